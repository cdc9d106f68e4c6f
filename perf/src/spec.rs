//! A comparison before it is measured: the probes, and the goal.

use serde::Serialize;

use crate::samples::Probe;

/// How the value of a row follows from its probes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compare {
    /// Ratio of urdma's median to that of a limit or peer.
    With(Probe),
    /// urdma's median.
    Alone,
    /// Difference between urdma's median and that of the same without urdma.
    Above(Probe),
    /// Ratio of urdma's median to the best of a sweep.
    BestOf(&'static [(u32, Probe)]),
}

/// The goal of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Goal {
    /// The value is at most this.
    AtMost(f64),
    /// The value is at least this.
    AtLeast(f64),
    /// No goal: for information.
    None,
}

impl Goal {
    pub(crate) fn met(self, value: f64) -> Option<bool> {
        match self {
            Self::AtMost(limit) => Some(value <= limit),
            Self::AtLeast(limit) => Some(value >= limit),
            Self::None => None,
        }
    }

    /// As text: "<= 2", ">= 0.6", or empty.
    pub fn sign(self) -> String {
        match self {
            Self::AtMost(limit) => format!("<= {limit}"),
            Self::AtLeast(limit) => format!(">= {limit}"),
            Self::None => String::new(),
        }
    }
}

/// One row before it is measured.
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) ours: Probe,
    pub(crate) compare: Compare,
    pub(crate) goal: Goal,
}

impl Spec {
    pub(crate) const fn new(name: &'static str, ours: Probe, compare: Compare, goal: Goal) -> Self {
        Self {
            name,
            ours,
            compare,
            goal,
        }
    }
}

/// A figure over urdma and over its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) ours: Probe,
    pub(crate) peer: Probe,
    /// The name of the row that compares them.
    pub(crate) row: &'static str,
}

impl Pair {
    pub(crate) const fn spec(&self, goal: Goal) -> Spec {
        Spec::new(self.row, self.ours, Compare::With(self.peer), goal)
    }
}

/// A [`Pair`]: unit, name of the peer, parts of the name.
macro_rules! pair {
    ($unit:ident, $peer:literal, $($name:expr),*) => {
        $crate::spec::Pair {
            ours: Probe { name: concat!($($name),*), unit: Unit::$unit },
            peer: Probe { name: concat!($($name,)* ", ", $peer), unit: Unit::$unit },
            row: concat!($($name,)* " / ", $peer),
        }
    };
}
pub(crate) use pair;
