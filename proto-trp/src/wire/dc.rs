//! The extensions of the dynamically connected transport (doc/spec/trp.md, section 17): DC_CONNECT
//! in each packet of an initiator, DC_REFUSED in the RESET that answers one.

use super::error::EncodeError;
use super::ext::field;
use super::octets::{be16, be32, be64, chunk, chunk_mut, put};
use super::trp::{field as header_field, HEADER_LEN};
use urdma_types::{Psn, Qpn};

/// Kind of [`DcConnect`].
pub const KIND_DC_CONNECT: u8 = 5;
/// Kind of [`DcRefused`].
pub const KIND_DC_REFUSED: u8 = 6;
/// Length of [`DcConnect`], in octets.
pub const DC_CONNECT_LEN: usize = 32;
/// Length of a RESET with [`DcRefused`], in octets.
pub const DC_RESET_LEN: usize = HEADER_LEN + DC_REFUSED_LEN;
/// The reason of a RESET with [`DcRefused`].
pub const DC_RESET_REASON: u8 = 3;

const DC_REFUSED_LEN: usize = 24;
const WORD_LEN: usize = 4;

/// What each packet of an initiator says about its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcConnect {
    /// Acknowledge timeout of the initiator, as in `ibv_modify_qp`, 1..=31.
    pub timeout: u8,
    /// Retries of the initiator, 0..=7.
    pub retry_cnt: u8,
    /// The initiator's queue pair number.
    pub initiator: Qpn,
    /// Numbers the connections of the initiator to this target.
    pub epoch: u64,
    /// The target's access key.
    pub key: u64,
    /// What the target has given to this initiator; 0 before that.
    pub token: u32,
    /// Every request in the packets before this one is complete.
    pub confirmed: Psn,
}

/// Why a target refuses a packet, and how to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcRefused {
    /// The epoch of the refused packet.
    pub epoch: u64,
    /// No connection with this epoch or an earlier one is accepted any more.
    pub floor: u64,
    /// The token to connect with.
    pub token: u32,
}

/// The first extension of this kind and length, from its first word on.
fn find<const N: usize>(extensions: &[u8], kind: u8) -> Option<&[u8; N]> {
    let mut rest = extensions;
    loop {
        let first: &[u8; WORD_LEN] = chunk(rest, 0).ok()?;
        let len = WORD_LEN * (1 + usize::from(first[field::WORDS]));
        if first[field::KIND] == kind && len == N {
            return chunk(rest, 0).ok();
        }
        rest = rest.get(len..)?;
    }
}

const fn words_after_first(len: usize) -> u8 {
    // Both lengths are below 1 KB.
    (len / WORD_LEN - 1).to_le_bytes()[0]
}

impl DcConnect {
    /// The extension in those of a packet ([`super::TrpHeader::extension_octets`]); `None` if there
    /// is none, or it names no queue pair.
    pub fn find(extensions: &[u8]) -> Option<Self> {
        let octets = find::<DC_CONNECT_LEN>(extensions, KIND_DC_CONNECT)?;
        let [timeout, retry_cnt] = be16(octets, field::ARGUMENT).to_be_bytes();
        Some(Self {
            timeout: timeout & 0x1f,
            retry_cnt: retry_cnt & 0x07,
            initiator: Qpn::from_u32(be32(octets, 4))?,
            epoch: be64(octets, 8),
            key: be64(octets, 16),
            token: be32(octets, 24),
            confirmed: Psn::new(be32(octets, 28)),
        })
    }

    /// Adds the extension to a packet that was written to `buf` from octet [`DC_CONNECT_LEN`] on;
    /// afterwards the packet begins with the first octet of `buf`.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`] if the packet has no header, or too many extensions besides.
    pub fn add_to(&self, buf: &mut [u8]) -> Result<(), EncodeError> {
        let begin = DC_CONNECT_LEN;
        if buf.len() < begin + HEADER_LEN {
            return Err(EncodeError::NoRoom);
        }
        buf.copy_within(begin..begin + HEADER_LEN, 0);
        let words = &mut buf[header_field::EXTENSION_WORDS];
        *words += 1 + words_after_first(DC_CONNECT_LEN);
        if usize::from(*words) > super::trp::EXTENSION_WORDS_MAX {
            return Err(EncodeError::NoRoom);
        }
        let octets = chunk_mut::<DC_CONNECT_LEN>(buf, HEADER_LEN)?;
        let first = words_after_first(DC_CONNECT_LEN);
        put(
            octets,
            0,
            [KIND_DC_CONNECT, first, self.timeout, self.retry_cnt],
        );
        put(octets, 4, self.initiator.to_u32().to_be_bytes());
        put(octets, 8, self.epoch.to_be_bytes());
        put(octets, 16, self.key.to_be_bytes());
        put(octets, 24, self.token.to_be_bytes());
        put(octets, 28, self.confirmed.to_u32().to_be_bytes());
        Ok(())
    }
}

impl DcRefused {
    /// The extension in those of a RESET.
    pub fn find(extensions: &[u8]) -> Option<Self> {
        let octets = find::<DC_REFUSED_LEN>(extensions, KIND_DC_REFUSED)?;
        Some(Self {
            epoch: be64(octets, 4),
            floor: be64(octets, 12),
            token: be32(octets, 20),
        })
    }

    /// Adds the extension to a RESET, in the first [`HEADER_LEN`] octets of `reset`.
    pub fn add_to(&self, reset: &mut [u8; DC_RESET_LEN]) {
        let first = words_after_first(DC_REFUSED_LEN);
        put(reset, header_field::EXTENSION_WORDS, [1 + first]);
        put(reset, HEADER_LEN, [KIND_DC_REFUSED, first, 0, 0]);
        put(reset, HEADER_LEN + 4, self.epoch.to_be_bytes());
        put(reset, HEADER_LEN + 12, self.floor.to_be_bytes());
        put(reset, HEADER_LEN + 20, self.token.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Extensions, PacketType, TrpHeader};
    use super::*;

    const CONNECT: DcConnect = DcConnect {
        timeout: 14,
        retry_cnt: 7,
        initiator: match Qpn::from_u32(0x01_002a) {
            Some(qpn) => qpn,
            None => panic!("a queue pair number"),
        },
        epoch: 0x0102_0304_0506_0708,
        key: 0x1122_3344_99aa_bbcc,
        token: 0x5566_7788,
        confirmed: Psn::new(0x0a_0b0c),
    };

    /// An ACK with a SACK of `sack_words` words, and DC_CONNECT.
    fn packet(sack_words: u8) -> Result<Vec<u8>, EncodeError> {
        let extensions = 4 * (1 + usize::from(sack_words));
        let mut buf = vec![0; DC_CONNECT_LEN + HEADER_LEN + extensions];
        let header = &mut buf[DC_CONNECT_LEN..];
        header[0] = PacketType::Ack.first_octet();
        header[8] = 1;
        header[header_field::EXTENSION_WORDS] = 1 + sack_words;
        header[HEADER_LEN..HEADER_LEN + 2].copy_from_slice(&[1, sack_words]);
        CONNECT.add_to(&mut buf).map(|()| buf)
    }

    #[test]
    fn dc_connect_is_found_beside_the_longest_sack() {
        let octets = packet(16).unwrap();
        let trp = TrpHeader::parse(&octets, octets.len()).unwrap();
        let extensions = trp.extension_octets(&octets);
        assert_eq!(DcConnect::find(extensions), Some(CONNECT));
        let others = Extensions::parse(extensions).unwrap();
        assert_eq!(others.sack.unwrap().words().len(), 16);
        assert_eq!(packet(17), Err(EncodeError::NoRoom));
    }

    #[test]
    fn dc_connect_octets_are_those_of_the_specification() {
        let octets = packet(0).unwrap();
        let expected = [
            5, 7, 14, 7, 0, 1, 0, 0x2a, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0x99, 0xaa,
            0xbb, 0xcc, 0x55, 0x66, 0x77, 0x88, 0, 0x0a, 0x0b, 0x0c,
        ];
        assert_eq!(octets[HEADER_LEN..HEADER_LEN + DC_CONNECT_LEN], expected);
        for len in 0..DC_CONNECT_LEN {
            assert_eq!(DcConnect::find(&expected[..len]), None);
        }
    }

    #[test]
    fn dc_refused_is_found_as_it_was_added() {
        let refused = DcRefused {
            epoch: 5,
            floor: u64::MAX - 1,
            token: 9,
        };
        let mut reset = [0; DC_RESET_LEN];
        reset[0] = PacketType::Reset.first_octet();
        refused.add_to(&mut reset);
        let trp = TrpHeader::parse(&reset, reset.len()).unwrap();
        assert_eq!(DcRefused::find(trp.extension_octets(&reset)), Some(refused));
    }
}
