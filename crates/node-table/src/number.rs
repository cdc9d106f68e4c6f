//! Numbers in network order.

/// The number in at most 8 octets in network order.
pub(crate) fn number(octets: &[u8]) -> u64 {
    octets
        .iter()
        .fold(0, |number, octet| number << 8 | u64::from(*octet))
}

/// The number in 4 octets in network order.
pub(crate) fn number_32(octets: &[u8]) -> u32 {
    u32::try_from(number(octets)).expect("4 octets")
}

/// The number in 2 octets in network order.
pub(crate) fn number_16(octets: &[u8]) -> u16 {
    u16::try_from(number(octets)).expect("2 octets")
}
