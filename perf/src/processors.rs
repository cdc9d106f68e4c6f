//! Whether the two processors are near each other or far apart, which decides many of the figures:
//! results of machines of one kind can be compared with each other, others cannot.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use crate::probes::RAW_RING;
use crate::samples::Samples;

/// Processors are near when half a round trip through the raw ring takes less, in microseconds.
///
/// The round trip is a few transfers of cache lines and nothing else. Half of one takes about 75 ns
/// between processors that share a cache, and 250 ns and more between others. A virtual machine
/// does not say which it has, and may be moved from one kind to the other. The threshold is the
/// geometric mean of the two, so that noise has to exceed a factor of 1.8 to change the answer.
const NEAR_BELOW_US: f64 = 0.137;

/// How far the processors are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// They share a cache.
    Near,
    /// They do not.
    Far,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Near, Self::Far];

    /// The kind by half a round trip through the raw ring, in microseconds.
    pub fn of(raw_ring_us: f64) -> Self {
        if raw_ring_us < NEAR_BELOW_US {
            Self::Near
        } else {
            Self::Far
        }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near processors",
            Self::Far => "far processors",
        })
    }
}

/// The samples of each kind. A virtual machine may change its kind from second to second, so each
/// measurement is between two looks at the raw ring, and counts for the kind that both have seen.
#[derive(Debug, Default)]
pub struct ByKind {
    near: Samples,
    far: Samples,
}

impl ByKind {
    /// The samples of a kind.
    pub fn of(&self, kind: Kind) -> &Samples {
        match kind {
            Kind::Near => &self.near,
            Kind::Far => &self.far,
        }
    }

    /// The samples of a kind.
    pub fn of_mut(&mut self, kind: Kind) -> &mut Samples {
        match kind {
            Kind::Near => &mut self.near,
            Kind::Far => &mut self.far,
        }
    }

    /// The kinds that were seen, the one with more looks first.
    pub fn kinds(&self) -> Vec<Kind> {
        let looks = |kind: &Kind| self.of(*kind).values(RAW_RING).len();
        let mut kinds = Kind::ALL.to_vec();
        kinds.retain(|kind| looks(kind) > 0);
        kinds.sort_by_key(|kind| std::cmp::Reverse(looks(kind)));
        kinds
    }
}

/// Least and greatest half round trip that was seen of a kind, in microseconds.
pub fn range(samples: &Samples) -> Option<(f64, f64)> {
    let values = samples.values(RAW_RING);
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    Some((least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_seen_the_more_frequent_first() {
        let mut samples = ByKind::default();
        assert!(samples.kinds().is_empty());
        for us in [0.25, 0.075, 0.1] {
            samples.of_mut(Kind::of(us)).add(RAW_RING, Ok(us));
        }
        assert_eq!(samples.kinds(), [Kind::Near, Kind::Far]);
        assert_eq!(range(samples.of(Kind::Near)), Some((0.075, 0.1)));
    }
}
