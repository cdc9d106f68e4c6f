//! Points in time on a monotonic clock.

use std::time::Duration;

/// A point in time, in nanoseconds since an arbitrary start of the driver's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(u64);

impl Time {
    /// The clock's start.
    pub const ZERO: Time = Time(0);

    /// Later than every other time: a deadline that is not set.
    pub const NEVER: Time = Time(u64::MAX);

    /// The time `ns` nanoseconds after the clock's start.
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the clock's start.
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The time `ns` nanoseconds later; saturates at [`Time::NEVER`].
    #[inline]
    #[must_use]
    pub const fn plus_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// The time `span` later; saturates at [`Time::NEVER`].
    #[inline]
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        self.plus_ns(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The earlier of the two times.
    #[inline]
    #[must_use]
    pub const fn earlier(self, other: Time) -> Time {
        if other.0 < self.0 {
            other
        } else {
            self
        }
    }

    /// Nanoseconds since `earlier`, 0 when `earlier` is later.
    #[inline]
    pub const fn since_ns(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
