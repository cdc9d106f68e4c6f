//! Conversions between widths, in one place.

/// The low 32 bits.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the low half is requested")]
pub(super) const fn low32(value: u64) -> u32 {
    value as u32
}

/// The slot of a free-running counter in a ring of `mask + 1` entries.
#[inline]
pub(super) const fn slot64(counter: u64, mask: u32) -> usize {
    (low32(counter) & mask) as usize
}

/// The slot of a free-running counter in a ring of `mask + 1` entries.
#[inline]
pub(super) const fn slot32(counter: u32, mask: u32) -> usize {
    (counter & mask) as usize
}

/// A length that is known to be below 2^32; saturates.
#[inline]
pub(super) fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
