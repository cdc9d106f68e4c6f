//! One line of the report and its severity.

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grade {
    /// Present.
    Good,
    /// Missing, needed by some uses only.
    Without,
    /// Missing, and nothing works without it.
    Bad,
}

impl Grade {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Good => "yes",
            Self::Without => "no",
            Self::Bad => "MISSING",
        }
    }
}

/// One line of the report.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) grade: Grade,
    /// The finding, as a sentence or a list.
    pub(super) detail: String,
    /// The remedy; empty if none is needed.
    pub(super) advice: String,
}

impl Finding {
    pub(super) fn good(what: &'static str, detail: impl Into<String>) -> Self {
        Self {
            what,
            grade: Grade::Good,
            detail: detail.into(),
            advice: String::new(),
        }
    }

    pub(super) fn without(
        what: &'static str,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            what,
            grade: Grade::Without,
            detail: detail.into(),
            advice: advice.into(),
        }
    }

    pub(super) fn bad(
        what: &'static str,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            grade: Grade::Bad,
            ..Self::without(what, detail, advice)
        }
    }
}
