//! Digests of words, which are not cryptographic ones.

/// Spreads each bit of `value` over the result: the finalizer of splitmix64, a bijection.
#[must_use]
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The digest of what `digest` is of, and a word.
#[must_use]
pub fn absorb(digest: u64, word: u64) -> u64 {
    mix(digest.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ word)
}

/// The upper half of `hash`, scaled to 0..`range`.
///
/// # Panics
/// If `range` is 0.
#[must_use]
pub fn scale(hash: u64, range: u32) -> u32 {
    assert_ne!(range, 0, "a range has a number");
    let scaled = ((hash >> 32) * u64::from(range)) >> 32;
    u32::try_from(scaled).expect("less than the range")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_hash_is_in_the_range() {
        assert_eq!(scale(0, 7), 0);
        assert_eq!(scale(u64::MAX, 7), 6);
        assert_eq!(scale(1 << 63, 8), 4);
    }
}
