//! What a client asks a server for, as the first octets of a stream.

use crate::error::Error;
use crate::octets::{number, DIGEST};

/// The octets of a request.
pub(crate) const REQUEST: usize = 32;
/// The octets of the answer to a blast: a count and a digest.
pub(crate) const ANSWER: usize = 8 + DIGEST;
/// The octet by which the server says that its receives are posted.
pub(crate) const READY: [u8; 1] = [1];

const MAGIC: [u8; 4] = *b"uxs1";
/// The most octets of buffers that a server allocates for a client.
const BUFFERS_MAX: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Octets until the end of the stream; their count and digest are the answer.
    Blast,
    /// The same without a digest, which is 0.
    BlastUnchecked,
    /// Messages of `octets`, each of which is sent back.
    Ping,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) mode: Mode,
    /// Receives in progress.
    pub(crate) posted: u32,
    /// The greatest length of a receive, or the length of a message.
    pub(crate) octets: u64,
    /// What the lengths of receives are drawn from; 0: each has the greatest length.
    pub(crate) seed: u64,
}

impl Request {
    pub(crate) fn encode(&self) -> [u8; REQUEST] {
        let mode: u32 = match self.mode {
            Mode::Blast => 0,
            Mode::BlastUnchecked => 1,
            Mode::Ping => 2,
        };
        let mut octets = [0; REQUEST];
        octets[..4].copy_from_slice(&MAGIC);
        octets[4..8].copy_from_slice(&mode.to_le_bytes());
        octets[8..12].copy_from_slice(&self.posted.to_le_bytes());
        octets[16..24].copy_from_slice(&self.octets.to_le_bytes());
        octets[24..].copy_from_slice(&self.seed.to_le_bytes());
        octets
    }

    pub(crate) fn decode(octets: &[u8; REQUEST]) -> Result<Self, Error> {
        let mode = match number(&octets[4..8]) {
            0 => Mode::Blast,
            1 => Mode::BlastUnchecked,
            2 => Mode::Ping,
            _ => return Err(Error::NotOurs("blast or ping")),
        };
        let request = Self {
            mode,
            posted: u32::try_from(number(&octets[8..12])).unwrap_or(u32::MAX),
            octets: number(&octets[16..24]),
            seed: number(&octets[24..]),
        };
        if octets[..4] != MAGIC || request.posted == 0 || request.octets == 0 {
            return Err(Error::NotOurs("blast or ping"));
        }
        let all = request.octets.saturating_mul(u64::from(request.posted));
        if all > BUFFERS_MAX {
            return Err(Error::TooLarge(all, BUFFERS_MAX));
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request = Request {
        mode: Mode::BlastUnchecked,
        posted: 16,
        octets: 1 << 20,
        seed: u64::MAX - 7,
    };

    #[test]
    fn request_is_decoded_as_it_was_encoded() {
        for mode in [Mode::Blast, Mode::BlastUnchecked, Mode::Ping] {
            let request = Request { mode, ..REQUEST };
            assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        }
    }

    #[test]
    fn request_of_another_program_is_refused() {
        for at in 0..4 {
            let mut octets = REQUEST.encode();
            octets[at] ^= 1;
            assert!(matches!(Request::decode(&octets), Err(Error::NotOurs(_))));
        }
        let none = Request {
            posted: 0,
            ..REQUEST
        };
        assert!(matches!(
            Request::decode(&none.encode()),
            Err(Error::NotOurs(_))
        ));
    }

    #[test]
    fn buffers_of_a_client_are_bounded() {
        let largest = Request {
            octets: 1 << 26,
            ..REQUEST
        };
        Request::decode(&largest.encode()).unwrap();
        for octets in [(1 << 26) + 1, u64::MAX] {
            let request = Request { octets, ..REQUEST };
            assert!(matches!(
                Request::decode(&request.encode()),
                Err(Error::TooLarge(..))
            ));
        }
    }
}
