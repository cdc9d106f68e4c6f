//! Which TCP connections stay with TCP by configuration: `urdma run --sockets-exclude`, `[sockets]`
//! of urdmad's configuration.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use thiserror::Error;

/// Sockets that have a port, an address, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketRule {
    /// An address of the network and the length of its prefix; `None`: every address.
    network: Option<(IpAddr, u8)>,
    ports: RangeInclusive<u16>,
}

/// Several rules, in text with commas between; none in an empty text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketRules(Vec<SocketRule>);

/// Which of several rules is none, and why.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{rule}\": {error}")]
pub struct SocketRulesError {
    rule: String,
    error: SocketRuleError,
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SocketRuleError {
    /// It has another form.
    #[error(
        "write a port (6379), ports (6000-6999), an address or network (127.0.0.1, 10.0.0.0/8, \
         ::1), or these with ports behind (10.0.0.0/8:6379, [::1]:6000-6999)"
    )]
    Form,
    /// Its ports are none.
    #[error("ports are from 1 to 65535, and the first of several is not above the last")]
    Ports,
    /// The prefix is longer than the address.
    #[error("the prefix of this address has at most {0} bits")]
    Prefix(u8),
    /// A network of IPv4 addresses in their form in IPv6.
    #[error("write IPv4 addresses as such: 10.0.0.0/8, not ::ffff:10.0.0.0/104")]
    Mapped,
}

impl SocketRule {
    /// Whether a connection is excluded that has this address at one of its ends.
    pub fn matches(&self, end: SocketAddr) -> bool {
        let is_in = |(network, prefix): (IpAddr, u8)| {
            let (network, bits) = number(network);
            let (ip, of_ip) = number(end.ip().to_canonical());
            let below = u32::from(bits.saturating_sub(prefix));
            // A shift by all bits leaves none.
            bits == of_ip && (network ^ ip).checked_shr(below).unwrap_or(0) == 0
        };
        self.ports.contains(&end.port()) && self.network.is_none_or(is_in)
    }
}

impl SocketRules {
    /// Whether a connection with these ends is excluded.
    pub fn exclude(&self, ends: [SocketAddr; 2]) -> bool {
        let is_one = |rule: &SocketRule| ends.iter().any(|end| rule.matches(*end));
        self.0.iter().any(is_one)
    }
}

impl FromIterator<SocketRule> for SocketRules {
    fn from_iter<I: IntoIterator<Item = SocketRule>>(rules: I) -> Self {
        Self(rules.into_iter().collect())
    }
}

impl FromStr for SocketRules {
    type Err = SocketRulesError;

    fn from_str(text: &str) -> Result<Self, SocketRulesError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let parsed = |rule: &str| {
            let rule = rule.trim();
            rule.parse().map_err(|error| SocketRulesError {
                rule: rule.to_owned(),
                error,
            })
        };
        text.split(',').map(parsed).collect()
    }
}

/// An address as a number, and how many bits it has.
fn number(ip: IpAddr) -> (u128, u8) {
    match ip {
        IpAddr::V4(ip) => (ip.to_bits().into(), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    }
}

impl FromStr for SocketRule {
    type Err = SocketRuleError;

    fn from_str(text: &str) -> Result<Self, SocketRuleError> {
        let has_ports_only = |text: &str| {
            let is_of_ports = |of: u8| of.is_ascii_digit() || of == b'-';
            !text.is_empty() && text.bytes().all(is_of_ports)
        };
        if has_ports_only(text) {
            let ports = ports(text)?;
            return Ok(Self {
                network: None,
                ports,
            });
        }
        let (address, behind) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(SocketRuleError::Form)?,
            None if text.matches(':').count() == 1 => {
                text.split_at(text.find(':').unwrap_or_default())
            }
            None => (text, ""),
        };
        let ports = match behind.strip_prefix(':') {
            Some(behind) if has_ports_only(behind) => ports(behind)?,
            None if behind.is_empty() => 1..=u16::MAX,
            _ => return Err(SocketRuleError::Form),
        };
        Ok(Self {
            network: Some(network(address)?),
            ports,
        })
    }
}

/// A port, or the first and the last one.
fn ports(text: &str) -> Result<RangeInclusive<u16>, SocketRuleError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.parse().map_err(|_| SocketRuleError::Ports);
    match (port(first)?, port(last)?) {
        (first @ 1.., last) if first <= last => Ok(first..=last),
        _ => Err(SocketRuleError::Ports),
    }
}

/// An address, and how many of its bits are those of the network.
fn network(text: &str) -> Result<(IpAddr, u8), SocketRuleError> {
    let (ip, prefix) = match text.split_once('/') {
        Some((ip, prefix)) => (ip, Some(prefix)),
        None => (text, None),
    };
    let ip: IpAddr = ip.parse().map_err(|_| SocketRuleError::Form)?;
    let Some(prefix) = prefix else {
        let ip = ip.to_canonical();
        return Ok((ip, number(ip).1));
    };
    if ip.to_canonical() != ip {
        return Err(SocketRuleError::Mapped);
    }
    let bits = number(ip).1;
    let is_number = prefix.bytes().all(|of| of.is_ascii_digit()) && !prefix.is_empty();
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= bits);
    match prefix {
        Some(prefix) if is_number => Ok((ip, prefix)),
        _ if is_number => Err(SocketRuleError::Prefix(bits)),
        _ => Err(SocketRuleError::Form),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> SocketRule {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn rule_matches_ends_with_its_address_and_port() {
        let cases = [
            ("6379", "127.0.0.1:6379", "127.0.0.1:6380"),
            ("6000-6999", "[::1]:6999", "[::1]:7000"),
            ("127.0.0.1", "127.0.0.1:9", "127.0.0.2:9"),
            ("10.0.0.0/8", "10.255.0.1:9", "11.0.0.1:9"),
            ("10.1.2.3/8", "10.255.0.1:9", "[a00::]:9"),
            ("0.0.0.0/0", "192.0.2.1:9", "[::1]:9"),
            ("::1", "[::1]:9", "[::2]:9"),
            ("::/0", "[2001:db8::1]:9", "127.0.0.1:9"),
            (
                "2001:db8::/33",
                "[2001:db8:7fff::]:9",
                "[2001:db8:8000::]:9",
            ),
            ("127.0.0.0/8:80-81", "127.9.9.9:81", "127.9.9.9:82"),
            ("[::1]:80", "[::1]:80", "[::1]:81"),
            ("[fd00::/8]:80", "[fdff::1]:80", "[fcff::1]:80"),
            ("::ffff:127.0.0.1", "[::ffff:127.0.0.1]:9", "[::1]:9"),
            ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", "[::1]:80"),
        ];
        for (text, inside, outside) in cases {
            assert!(rule(text).matches(inside.parse().unwrap()), "{text}");
            assert!(!rule(text).matches(outside.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn rules_exclude_what_one_of_them_matches_at_either_end() {
        let rules: SocketRules = "6379, 10.0.0.0/8".parse().unwrap();
        let ends = |text: [&str; 2]| text.map(|end| end.parse().unwrap());
        assert!(rules.exclude(ends(["127.0.0.1:9", "127.0.0.1:6379"])));
        assert!(rules.exclude(ends(["10.0.0.1:9", "192.0.2.1:9"])));
        assert!(!rules.exclude(ends(["127.0.0.1:9", "192.0.2.1:9"])));
        let none: SocketRules = "".parse().unwrap();
        assert!(!none.exclude(ends(["127.0.0.1:9", "127.0.0.1:6379"])));
        for (text, rule) in [("80,", ""), ("80,redis,90", "redis"), (",", "")] {
            let error = text.parse::<SocketRules>().unwrap_err().to_string();
            let says = format!("\"{rule}\": write a port (6379), ");
            assert!(error.starts_with(&says), "{error}");
        }
    }

    #[test]
    fn text_that_is_no_rule_is_refused_with_what_would_be_one() {
        use SocketRuleError::{Form, Mapped, Ports, Prefix};
        let cases = [
            ("", Form),
            ("redis", Form),
            ("localhost:80", Form),
            ("*:80", Form),
            (":80", Form),
            ("127.0.0.1:", Form),
            ("127.0.0.1:http", Form),
            ("127.0.0.1/x", Form),
            ("127.0.0.1/", Form),
            ("127.0.0.1/+8", Form),
            ("[::1", Form),
            ("[::1]80", Form),
            ("::1:80:", Form),
            ("0", Ports),
            ("0-9", Ports),
            ("65536", Ports),
            ("9-8", Ports),
            ("1-2-3", Ports),
            ("-", Ports),
            ("127.0.0.1:0", Ports),
            ("10.0.0.0/33", Prefix(32)),
            ("::/999", Prefix(128)),
            ("::ffff:10.0.0.0/104", Mapped),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<SocketRule>(), Err(error), "{text}");
        }
    }
}
