//! A comparison before it is measured: what with what, and what is good.

use serde::Serialize;

use crate::samples::Probe;

/// How a row's value comes from its probes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compare {
    /// Ours divided by a limit or peer.
    With(Probe),
    /// Ours alone.
    Alone,
    /// Ours minus the same without us.
    Above(Probe),
    /// Ours divided by the best of a sweep.
    BestOf(&'static [(u32, Probe)]),
}

/// What is good.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Goal {
    /// At most this.
    AtMost(f64),
    /// At least this.
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

    /// "<= 2.00", ">= 0.60" or nothing.
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
