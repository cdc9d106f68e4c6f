//! A region as private data describes it: 4 octets of magic, a key of 4, an address and a length of
//! 8, all in network order. A node's acceptance has the magic `upl1`; the answer to a question has
//! the access key of the node's target behind it, 8 octets.

use urdma_node_table::Region;

/// Of the memory of a node, whose key permits reads, writes and atomics.
const NODE: [u8; 4] = *b"upl1";

/// Key, address and length.
pub(crate) fn encode_region(region: &Region) -> Vec<u8> {
    [
        &region.rkey.to_be_bytes()[..],
        &region.addr.to_be_bytes(),
        &region.len_octets.to_be_bytes(),
    ]
    .concat()
}

/// The region in the first octets, and those behind it.
pub(crate) fn decode_region(octets: &[u8]) -> Option<(Region, &[u8])> {
    let (rkey, rest) = octets.split_first_chunk()?;
    let (addr, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let region = Region {
        rkey: u32::from_be_bytes(*rkey),
        addr: u64::from_be_bytes(*addr),
        len_octets: u64::from_be_bytes(*len),
    };
    Some((region, rest))
}

/// What a node's acceptance has.
pub(crate) fn encode(region: &Region) -> Vec<u8> {
    [&NODE[..], &encode_region(region)].concat()
}

fn decode_first(octets: &[u8]) -> Option<(Region, &[u8])> {
    decode_region(octets.strip_prefix(&NODE)?)
}

/// The memory of a node in private data, which may have more octets behind it.
pub(crate) fn decode(octets: &[u8]) -> Option<Region> {
    decode_first(octets).map(|(region, _)| region)
}

/// With the access key of a target.
pub(crate) fn encode_with_key(region: &Region, key: u64) -> Vec<u8> {
    [&encode(region)[..], &key.to_be_bytes()].concat()
}

/// The memory of a node, and the access key.
pub(crate) fn decode_with_key(octets: &[u8]) -> Option<(Region, u64)> {
    let (region, behind) = decode_first(octets)?;
    let (key, _) = behind.split_first_chunk()?;
    Some((region, u64::from_be_bytes(*key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_survives_the_wire_and_others_are_refused() {
        let region = Region {
            rkey: 0x0102_0304,
            addr: u64::MAX - 7,
            len_octets: 5,
        };
        let mut private = encode(&region);
        private.resize(56, 0);
        assert_eq!(decode(&private), Some(region));
        assert_eq!(decode(&private[..23]), None);
        let mut answer = encode_with_key(&region, 9);
        assert_eq!(decode_with_key(&answer[..31]), None);
        answer.resize(56, 0);
        assert_eq!(decode_with_key(&answer), Some((region, 9)));
        private[0] ^= 1;
        assert_eq!(decode(&private), None);
    }
}
