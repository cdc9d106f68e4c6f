//! Packet sequence numbers.

/// Mask of the 24 bits.
const MASK_24: u32 = 0x00ff_ffff;

/// Packet sequence number: 24 bits, serial arithmetic (RFC 1982 with SERIAL_BITS = 24).
///
/// Serial numbers have no total order, hence no `Ord`: use [`Psn::precedes`] and [`Psn::distance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The number of sequence numbers, 2^24.
    pub const MODULUS: u32 = 1 << 24;

    /// The sequence number in the low 24 bits of `value`, as verbs passes it in `sq_psn` and
    /// `rq_psn`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The sequence number `value`; `None` when it has more than 24 bits.
    #[inline]
    pub const fn from_u32(value: u32) -> Option<Self> {
        if value > MASK_24 {
            None
        } else {
            Some(Self(value))
        }
    }

    /// The number in the low 24 bits.
    #[inline]
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// The number `packets` later.
    #[inline]
    #[must_use]
    pub const fn add(self, packets: u32) -> Self {
        Self(self.0.wrapping_add(packets) & MASK_24)
    }

    /// The number `packets` earlier.
    #[inline]
    #[must_use]
    pub const fn sub(self, packets: u32) -> Self {
        Self(self.0.wrapping_sub(packets) & MASK_24)
    }

    /// The next number.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// How many packets `self` is after `earlier`: negative when it is before it, in -2^23..2^23.
    #[inline]
    pub const fn distance(self, earlier: Psn) -> i32 {
        // R7.1-1
        //# PSNs MUST be compared by serial arithmetic (RFC 1982, 24 bits): `a` is before `b` when
        //# `(a - b) mod 2^24`, taken as a signed 24-bit number, is negative.
        // The 24-bit difference is shifted to the top of the word, so that the arithmetic shift
        // back extends its sign.
        i32::from_ne_bytes((self.0.wrapping_sub(earlier.0) << 8).to_ne_bytes()) >> 8
    }

    /// How many packets `self` is after `base`, counted upwards modulo 2^24: 0..2^24.
    #[inline]
    pub const fn offset_from(self, base: Psn) -> u32 {
        self.0.wrapping_sub(base.0) & MASK_24
    }

    /// Whether `self` comes before `other`; false for equal numbers.
    #[inline]
    pub const fn precedes(self, other: Psn) -> bool {
        self.distance(other) < 0
    }
}

impl std::fmt::Display for Psn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_across_the_wrap_keeps_order() {
        let last = Psn::new(0x00ff_ffff);
        let first = last.next();
        assert_eq!(first, Psn::new(0));
        assert!(last.precedes(first) && !first.precedes(last) && !first.precedes(first));
        assert_eq!(first.distance(last), 1);
        assert_eq!(last.distance(first), -1);
        assert_eq!(last.offset_from(first), 0x00ff_ffff);
        assert_eq!(first.sub(1), last);
    }

    #[test]
    fn psn_distance_at_half_the_circle_is_the_most_negative() {
        let a = Psn::new(5);
        assert_eq!(a.add((1 << 23) - 1).distance(a), (1 << 23) - 1);
        assert_eq!(a.add(1 << 23).distance(a), -(1 << 23));
        assert_eq!(a.add(Psn::MODULUS), a);
    }

    #[test]
    fn psn_new_drops_the_upper_octet_and_from_u32_refuses_it() {
        assert_eq!(Psn::new(0xab12_3456).to_u32(), 0x0012_3456);
        assert_eq!(Psn::from_u32(0x0012_3456), Some(Psn::new(0x0012_3456)));
        assert_eq!(Psn::from_u32(0xab12_3456), None);
    }
}
