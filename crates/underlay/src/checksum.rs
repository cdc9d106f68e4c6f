//! The Internet checksum (RFC 1071), summed in native byte order and converted at the end.

/// The checksum over `octets` whose checksum field is 0; 0 over octets with a correct checksum.
pub fn internet_checksum(octets: &[u8]) -> u16 {
    Sum::default().octets(octets).finish()
}

/// A running one's complement sum.
///
/// Every piece but the last must have an even number of octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// The sum so far plus these octets; an odd last octet counts as the upper half of a word.
    #[inline]
    pub(crate) fn octets(self, data: &[u8]) -> Self {
        let mut total = self.0;
        let (words, tail) = data.as_chunks::<4>();
        for word in words {
            total += u64::from(u32::from_ne_bytes(*word));
        }
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        Self(total + u64::from(u32::from_ne_bytes(last)))
    }

    /// The sum so far plus one 16-bit word that travels in network order.
    #[inline]
    pub(crate) const fn word(self, value: u16) -> Self {
        Self(self.0 + value.to_be() as u64)
    }

    /// The checksum to send: the complement of the sum.
    #[inline]
    pub(crate) const fn finish(self) -> u16 {
        !self.fold()
    }

    /// Whether the checksum of a packet, summed with its checksum field, is correct.
    #[inline]
    pub(crate) const fn is_right(self) -> bool {
        self.fold() == 0xffff
    }

    #[inline]
    const fn fold(self) -> u16 {
        let mut total = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        total = (total >> 16) + (total & 0xffff);
        total = (total >> 16) + (total & 0xffff);
        total = (total >> 16) + (total & 0xffff);
        let octets = total.to_le_bytes();
        u16::from_be(u16::from_le_bytes([octets[0], octets[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn plain(data: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in data.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            total += u32::from(word);
            total = (total >> 16) + (total & 0xffff);
        }
        !(total as u16)
    }

    #[test]
    fn sum_of_rfc_1071_example_is_its_checksum() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().octets(&data).finish(), !0xddf2);
    }

    proptest! {
        #[test]
        fn sum_of_any_octets_equals_the_plain_one(data in vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(Sum::default().octets(&data).finish(), plain(&data));
        }

        #[test]
        fn sum_in_pieces_equals_the_whole(
            words in vec(any::<u16>(), 0..40),
            tail in vec(any::<u8>(), 0..9),
        ) {
            let mut data: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let whole = words.iter().fold(Sum::default(), |sum, word| sum.word(*word));
            let pieces = whole.octets(&tail);
            data.extend(&tail);
            prop_assert_eq!(pieces.finish(), plain(&data));
        }
    }
}
