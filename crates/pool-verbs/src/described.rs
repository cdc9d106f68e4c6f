//! The memory of a node, as the private data of its acceptance describes it: 4 octets of magic, a
//! key of 4, an address and a length of 8, all in network order. The answer to a question has the
//! access key of the node's target behind it, 8 octets.

/// The memory of a node. The key permits reads, writes and atomics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len_octets: u64,
}

const MAGIC: [u8; 4] = *b"upl1";
/// Length of the description.
pub(crate) const DESCRIBED_LEN: usize = 24;

impl Described {
    pub(crate) fn encode(&self) -> [u8; DESCRIBED_LEN] {
        let mut octets = [0; DESCRIBED_LEN];
        octets[0..4].copy_from_slice(&MAGIC);
        octets[4..8].copy_from_slice(&self.rkey.to_be_bytes());
        octets[8..16].copy_from_slice(&self.addr.to_be_bytes());
        octets[16..24].copy_from_slice(&self.len_octets.to_be_bytes());
        octets
    }

    /// The description in private data, which may have more octets behind it.
    pub(crate) fn decode(octets: &[u8]) -> Option<Self> {
        Self::decode_first(octets).map(|(described, _)| described)
    }

    fn decode_first(octets: &[u8]) -> Option<(Self, &[u8])> {
        let (octets, behind) = octets.split_first_chunk::<DESCRIBED_LEN>()?;
        let (magic, rest) = octets.split_first_chunk::<4>()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let (addr, rest) = rest.split_first_chunk()?;
        let (len, _) = rest.split_first_chunk()?;
        let described = Self {
            rkey: u32::from_be_bytes(*rkey),
            addr: u64::from_be_bytes(*addr),
            len_octets: u64::from_be_bytes(*len),
        };
        (*magic == MAGIC).then_some((described, behind))
    }

    /// With the access key of a target.
    pub(crate) fn encode_with_key(&self, key: u64) -> Vec<u8> {
        [&self.encode()[..], &key.to_be_bytes()].concat()
    }

    /// The description and the access key.
    pub(crate) fn decode_with_key(octets: &[u8]) -> Option<(Self, u64)> {
        let (described, behind) = Self::decode_first(octets)?;
        let (key, _) = behind.split_first_chunk()?;
        Some((described, u64::from_be_bytes(*key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_survives_the_wire_and_others_are_refused() {
        let described = Described {
            rkey: 0x0102_0304,
            addr: u64::MAX - 7,
            len_octets: 5,
        };
        let mut private = described.encode().to_vec();
        private.resize(56, 0);
        assert_eq!(Described::decode(&private), Some(described));
        assert_eq!(Described::decode(&private[..23]), None);
        let mut answer = described.encode_with_key(9);
        assert_eq!(Described::decode_with_key(&answer[..31]), None);
        answer.resize(56, 0);
        assert_eq!(Described::decode_with_key(&answer), Some((described, 9)));
        private[0] ^= 1;
        assert_eq!(Described::decode(&private), None);
    }
}
