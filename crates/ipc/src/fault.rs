//! Impairments that urdmad applies to its port's frames: parameters, and their syntax.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The denominator of packet rates.
const MILLION: u32 = 1_000_000;
/// Maximum delay, which exceeds that of any terrestrial path.
const DELAY_MAX: Duration = Duration::from_secs(10);
const RATE_BIT_S_MIN: u64 = 1000;
const RATE_BIT_S_MAX: u64 = 1_000_000_000_000;
const QUEUE_OCTETS_MAX: u64 = 1 << 32;

/// The impairments of one direction; the default is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Impairment {
    /// Lost packets per million.
    pub loss_ppm: u32,
    /// Duplicated packets per million.
    pub duplicate_ppm: u32,
    /// Reordered packets per million.
    pub reorder_ppm: u32,
    /// Maximum extra delay of such a packet, nanoseconds.
    pub reorder_by_ns: u64,
    /// Packets with one flipped bit, per million.
    pub corrupt_ppm: u32,
    /// Delay of every packet, nanoseconds.
    pub delay_ns: u64,
    /// Rate of the link, bits of frames per second; `None`: no limit.
    pub rate_bit_s: Option<u64>,
    /// Length of the link's queue in octets; packets beyond it are lost.
    pub queue_octets: u64,
    /// Queue length in octets from which packets are ECN-marked; `None`: never.
    pub mark_octets: Option<u64>,
}

impl Default for Impairment {
    fn default() -> Self {
        Self {
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            reorder_by_ns: 100_000,
            corrupt_ppm: 0,
            delay_ns: 0,
            rate_bit_s: None,
            queue_octets: 1 << 20,
            mark_octets: None,
        }
    }
}

impl Impairment {
    /// Whether there is no impairment.
    pub fn is_none(&self) -> bool {
        self.loss_ppm == 0
            && self.duplicate_ppm == 0
            && self.reorder_ppm == 0
            && self.corrupt_ppm == 0
            && self.delay_ns == 0
            && self.rate_bit_s.is_none()
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        let mut parts = Vec::new();
        let mut share = |name: &str, ppm: u32, more: String| {
            if ppm > 0 {
                parts.push(format!("{name} {}%{more}", f64::from(ppm) / 1e4));
            }
        };
        share("loss", self.loss_ppm, String::new());
        share("duplicate", self.duplicate_ppm, String::new());
        let by = Duration::from_nanos(self.reorder_by_ns);
        share("reorder", self.reorder_ppm, format!(" by up to {by:?}"));
        share("corrupt", self.corrupt_ppm, String::new());
        if self.delay_ns > 0 {
            parts.push(format!("delay {:?}", Duration::from_nanos(self.delay_ns)));
        }
        if let Some(rate) = self.rate_bit_s {
            parts.push(format!("rate {rate} bit/s, queue {} B", self.queue_octets));
        }
        if let Some(mark) = self.mark_octets {
            parts.push(format!("marks from {mark} B"));
        }
        f.write_str(&parts.join(", "))
    }
}

/// A direction of packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Received packets.
    In,
    /// Sent packets.
    Out,
    /// Both.
    #[default]
    Both,
}

/// The impairments of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// Seed of all random choices.
    pub seed: u64,
    /// Impairment of received packets.
    pub inbound: Impairment,
    /// Impairment of sent packets.
    pub outbound: Impairment,
}

impl Faults {
    /// `self` with `impairment` for one direction; the other stays unchanged.
    #[must_use]
    pub fn with(mut self, direction: Direction, impairment: Impairment) -> Self {
        if direction != Direction::Out {
            self.inbound = impairment;
        }
        if direction != Direction::In {
            self.outbound = impairment;
        }
        self
    }

    /// Whether there is no impairment.
    pub fn are_none(&self) -> bool {
        self.inbound.is_none() && self.outbound.is_none()
    }

    /// Whether packets are corrupted.
    pub fn corrupt(&self) -> bool {
        self.inbound.corrupt_ppm > 0 || self.outbound.corrupt_ppm > 0
    }
}

/// A text that is not a parameter of an impairment. Displayed, it states the syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyntaxError {
    /// Not a fraction of packets.
    Share(String),
    /// Not a time.
    Time(String),
    /// Not a rate.
    Rate(String),
    /// Not a number of octets.
    Octets(String),
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(text) => write!(
                f,
                "\"{text}\" is not a share of packets: write 0% to 100%, such as \"0.1%\""
            ),
            Self::Time(text) => write!(
                f,
                "\"{text}\" is not a time: write 0s to {DELAY_MAX:?} with ns, us, ms or s, such \
                as \"1ms\""
            ),
            Self::Rate(text) => write!(
                f,
                "\"{text}\" is not a rate: write 1kbit/s to 1000Gbit/s, such as \"10Gbit/s\""
            ),
            Self::Octets(text) => write!(
                f,
                "\"{text}\" is not a number of octets: write 0B to 4GB, such as \"64kB\""
            ),
        }
    }
}

impl std::error::Error for SyntaxError {}

/// Parses a fraction of packets, such as `1%` or `0.01%`, to a number per million.
///
/// # Errors
/// [`SyntaxError::Share`].
pub fn parse_share(text: &str) -> Result<u32, SyntaxError> {
    let wrong = || SyntaxError::Share(text.to_owned());
    let number = text.trim().strip_suffix('%').ok_or_else(wrong)?;
    let millionths = scaled(number, f64::from(MILLION) / 100.0).ok_or_else(wrong)?;
    u32::try_from(millionths)
        .ok()
        .filter(|ppm| *ppm <= MILLION)
        .ok_or_else(wrong)
}

/// Parses a time, such as `1ms`, `250us` or `0.5s`, to nanoseconds.
///
/// # Errors
/// [`SyntaxError::Time`].
pub fn parse_time(text: &str) -> Result<u64, SyntaxError> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let most = u64::try_from(DELAY_MAX.as_nanos()).unwrap_or(u64::MAX);
    with_unit(text, &units)
        .filter(|ns| *ns <= most)
        .ok_or_else(|| SyntaxError::Time(text.to_owned()))
}

/// Parses a rate, such as `10Gbit/s` or `100Mbit/s`, to bits per second.
///
/// # Errors
/// [`SyntaxError::Rate`].
pub fn parse_rate(text: &str) -> Result<u64, SyntaxError> {
    let units = [
        ("Gbit/s", 1e9),
        ("Mbit/s", 1e6),
        ("kbit/s", 1e3),
        ("bit/s", 1.0),
    ];
    with_unit(text, &units)
        .filter(|rate| (RATE_BIT_S_MIN..=RATE_BIT_S_MAX).contains(rate))
        .ok_or_else(|| SyntaxError::Rate(text.to_owned()))
}

/// Parses a number of octets, such as `64kB` or `1MB`.
///
/// # Errors
/// [`SyntaxError::Octets`].
pub fn parse_octets(text: &str) -> Result<u64, SyntaxError> {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)];
    with_unit(text, &units)
        .filter(|octets| *octets <= QUEUE_OCTETS_MAX)
        .ok_or_else(|| SyntaxError::Octets(text.to_owned()))
}

fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let text = text.trim();
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    scaled(number, factor)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked to be in range
fn scaled(number: &str, factor: f64) -> Option<u64> {
    let value = number.trim().parse::<f64>().ok()? * factor;
    (0.0..1e15).contains(&value).then(|| value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_units_are_understood() {
        assert_eq!(parse_share("1%"), Ok(10_000));
        assert_eq!(parse_share("0.01%"), Ok(100));
        assert_eq!(parse_share("100%"), Ok(1_000_000));
        assert_eq!(parse_time("1ms"), Ok(1_000_000));
        assert_eq!(parse_time("0.5us"), Ok(500));
        assert_eq!(parse_time("2s"), Ok(2_000_000_000));
        assert_eq!(parse_rate("10Gbit/s"), Ok(10_000_000_000));
        assert_eq!(parse_rate("2.5Mbit/s"), Ok(2_500_000));
        assert_eq!(parse_octets("64kB"), Ok(64_000));
        assert_eq!(parse_octets("0B"), Ok(0));
    }

    #[test]
    fn bad_values_are_refused_with_an_example() {
        for said in [
            parse_share("1").unwrap_err().to_string(),
            parse_share("101%").unwrap_err().to_string(),
            parse_share("-1%").unwrap_err().to_string(),
            parse_share("NaN%").unwrap_err().to_string(),
        ] {
            assert!(said.contains("such as \"0.1%\""), "{said}");
        }
        assert!(parse_time("11s")
            .unwrap_err()
            .to_string()
            .contains("such as \"1ms\""));
        assert!(parse_time("1 hour").is_err());
        assert!(parse_rate("10Gb").is_err());
        assert!(parse_rate("0bit/s").is_err());
        assert!(parse_octets("1e30B").is_err());
    }

    #[test]
    fn impairment_says_what_it_does() {
        let impairment = Impairment {
            loss_ppm: 100,
            delay_ns: 1_000_000,
            ..Impairment::default()
        };
        assert_eq!(impairment.to_string(), "loss 0.01%, delay 1ms");
        assert_eq!(Impairment::default().to_string(), "none");
    }

    #[test]
    fn direction_says_whose_impairment_changes() {
        let lossy = Impairment {
            loss_ppm: 1,
            ..Impairment::default()
        };
        let faults = Faults::default().with(Direction::Out, lossy);
        assert!(faults.inbound.is_none() && faults.outbound == lossy);
        let faults = faults.with(Direction::Both, Impairment::default());
        assert!(faults.are_none());
    }
}
