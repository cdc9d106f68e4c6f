//! Low bits of a word: the only intended truncations.
#![allow(clippy::cast_possible_truncation)]

/// Bits 0..8.
#[inline(always)]
pub(crate) const fn low8(word: u64) -> u8 {
    (word & 0xff) as u8
}

/// Bits 0..16.
#[inline(always)]
pub(crate) const fn low16(word: u64) -> u16 {
    (word & 0xffff) as u16
}

/// Bits 0..32.
#[inline(always)]
pub(crate) const fn low32(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// The word modulo `n`, a power of two.
#[inline(always)]
pub(crate) const fn modulo(word: u64, n: usize) -> usize {
    word as usize & (n - 1)
}
