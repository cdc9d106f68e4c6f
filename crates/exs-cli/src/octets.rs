//! Numbers and digests in what the ends tell each other.

/// The octets of a digest.
pub(crate) const DIGEST: usize = 32;
/// A SHA-256.
pub(crate) type Sum = [u8; DIGEST];

/// A little-endian number of up to 8 octets.
pub(crate) fn number(octets: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..octets.len()].copy_from_slice(octets);
    u64::from_le_bytes(word)
}
