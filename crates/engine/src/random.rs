//! Random numbers from the kernel.

/// Four octets that cannot be guessed.
pub(super) fn random_u32() -> u32 {
    let mut octets = [0u8; 4];
    // SAFETY: `octets` is writable for its length.
    unsafe { libc::getrandom(octets.as_mut_ptr().cast(), octets.len(), 0) };
    u32::from_ne_bytes(octets)
}

/// Eight octets that cannot be guessed.
pub(super) fn random_u64() -> u64 {
    u64::from(random_u32()) << 32 | u64::from(random_u32())
}
