//! Reading and writing fields of fixed length, in network byte order.

use super::error::{EncodeError, ParseError};

/// The first `N` octets at `at`, if they are there.
#[inline]
pub(super) fn chunk<const N: usize>(octets: &[u8], at: usize) -> Result<&[u8; N], ParseError> {
    // R15-3: a length is checked where octets are read.
    octets
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .ok_or(ParseError::Truncated)
}

/// Room for `N` octets at `at`.
#[inline]
pub(super) fn chunk_mut<const N: usize>(
    octets: &mut [u8],
    at: usize,
) -> Result<&mut [u8; N], EncodeError> {
    octets
        .get_mut(at..)
        .and_then(<[u8]>::first_chunk_mut)
        .ok_or(EncodeError::NoRoom)
}

#[inline]
pub(super) fn be16<const N: usize>(octets: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

#[inline]
pub(super) fn be24<const N: usize>(octets: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([0, octets[at], octets[at + 1], octets[at + 2]])
}

#[inline]
pub(super) fn be32<const N: usize>(octets: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
}

#[inline]
pub(super) fn be64<const N: usize>(octets: &[u8; N], at: usize) -> u64 {
    (u64::from(be32(octets, at)) << 32) | u64::from(be32(octets, at + 4))
}

#[inline]
pub(super) fn put<const N: usize, const M: usize>(octets: &mut [u8; N], at: usize, value: [u8; M]) {
    octets[at..at + M].copy_from_slice(&value);
}

#[inline]
pub(super) fn put24<const N: usize>(octets: &mut [u8; N], at: usize, value: u32) {
    let [_, a, b, c] = value.to_be_bytes();
    put(octets, at, [a, b, c]);
}
