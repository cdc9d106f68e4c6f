//! Whether the two processors are near each other or far apart, which decides many of the figures:
//! results of machines of one kind can be compared with each other, others cannot.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::probes::RAW_RING;
use crate::samples::Samples;

/// Processors are near when half a round trip through the raw ring takes less, in microseconds.
///
/// The round trip is a few transfers of cache lines and nothing else. Half of one takes about 75 ns
/// between processors that share a cache, and 250 ns and more between others. A virtual machine
/// does not say which it has, and may be moved from one kind to the other. The threshold is the
/// geometric mean of the two, so that noise has to exceed a factor of 1.8 to change the answer.
const NEAR_BELOW_US: f64 = 0.137;

/// The kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The processors share a cache.
    Near,
    /// They do not.
    Far,
    /// The rounds differ, and the medians mix both kinds.
    Mixed,
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near processors",
            Self::Far => "far processors",
            Self::Mixed => "near and far processors",
        })
    }
}

/// What the raw ring says about the processors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Processors {
    /// The kind of machine.
    pub kind: Kind,
    /// Least and greatest half round trip of all rounds.
    pub raw_ring_us: (f64, f64),
}

impl Processors {
    /// Judges by the raw ring of each round; `None` when it was not measured.
    pub fn of(samples: &Samples) -> Option<Self> {
        let values = samples.values(RAW_RING);
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        let is_near = |us: f64| us < NEAR_BELOW_US;
        let kind = match (is_near(least), is_near(most)) {
            (true, true) => Kind::Near,
            (true, false) | (false, true) => Kind::Mixed,
            (false, false) => Kind::Far,
        };
        Some(Self {
            kind,
            raw_ring_us: (least, most),
        })
    }
}

impl Display for Processors {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (least, most) = self.raw_ring_us;
        write!(f, "{}: raw ring {least:.3} to {most:.3} us", self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(values: &[f64]) -> Option<Kind> {
        let mut samples = Samples::default();
        for value in values {
            samples.add(RAW_RING, Ok(*value));
        }
        Processors::of(&samples).map(|processors| processors.kind)
    }

    #[test]
    fn kind_is_that_of_every_round() {
        assert_eq!(kind(&[]), None);
        assert_eq!(kind(&[0.075, 0.1]), Some(Kind::Near));
        assert_eq!(kind(&[0.25, 0.6]), Some(Kind::Far));
        assert_eq!(kind(&[0.074, 0.25, 0.075]), Some(Kind::Mixed));
    }
}
