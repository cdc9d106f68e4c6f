//! What the two ends of a copy tell each other. Numbers are little-endian.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Refusal};
use crate::octets::{number, Sum, DIGEST};

/// The code by which a sender gives up, which has told its user why.
pub(super) const GIVEN_UP: u32 = 2;

const MAGIC: [u8; 4] = *b"uxc1";
const NAME_MAX: usize = 255;
const HEADER: usize = 16;
const REPLY: usize = 48;

/// A file that the sender offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) name: Vec<u8>,
    pub(super) octets: u64,
}

impl Offer {
    /// Magic, length of the name, octets of the file; then the name.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let len = u32::try_from(self.name.len()).unwrap_or(u32::MAX);
        to.write_all(&MAGIC)?;
        to.write_all(&len.to_le_bytes())?;
        to.write_all(&self.octets.to_le_bytes())?;
        to.write_all(&self.name)
    }

    /// The next offer; `None` at the end of the stream.
    pub(super) fn read(from: &mut impl Read) -> Result<Option<Self>, Error> {
        let mut header = [0; HEADER];
        let mut have = 0;
        while have < HEADER {
            match from.read(&mut header[have..]).map_err(Error::stream)? {
                0 if have == 0 => return Ok(None),
                0 => return Err(Error::Truncated("a file was offered")),
                count => have += count,
            }
        }
        let len = usize::try_from(number(&header[4..8])).unwrap_or(usize::MAX);
        if header[..4] != MAGIC || !(1..=NAME_MAX).contains(&len) {
            return Err(Error::NotOurs("send"));
        }
        let mut name = vec![0; len];
        from.read_exact(&mut name).map_err(Error::stream)?;
        let octets = number(&header[8..]);
        Ok(Some(Self { name, octets }))
    }

    /// The file in a directory; `None` if the name is not that of one.
    pub(super) fn path(&self, directory: &Path) -> Option<PathBuf> {
        let is_other = self.name.iter().any(|octet| [b'/', 0].contains(octet));
        if is_other || [&b"."[..], b".."].contains(&&self.name[..]) {
            return None;
        }
        Some(directory.join(OsStr::from_bytes(&self.name)))
    }

    /// The name for messages.
    pub(super) fn shown(&self) -> String {
        self.name.escape_ascii().to_string()
    }
}

const REFUSALS: [Refusal; 5] = [
    Refusal::Name,
    Refusal::Exists,
    Refusal::Busy,
    Refusal::Failed,
    Refusal::Corrupt,
];

/// What the receiver answers to an offer, and when it has all octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The octets that it has, and their digest.
    Has(u64, Sum),
    Refused(Refusal),
}

impl Reply {
    /// 0, or 1 + the number of the refusal (4); 0 (4); octets (8); digest (32).
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut octets = [0; REPLY];
        match self {
            Self::Has(count, sum) => {
                octets[8..16].copy_from_slice(&count.to_le_bytes());
                octets[16..].copy_from_slice(sum);
            }
            Self::Refused(refusal) => {
                let index = REFUSALS.iter().position(|known| known == refusal);
                octets[0] = index
                    .and_then(|index| u8::try_from(index + 1).ok())
                    .unwrap_or(u8::MAX);
            }
        }
        to.write_all(&octets)?;
        to.flush()
    }

    pub(super) fn read(from: &mut impl Read) -> Result<Self, Error> {
        let mut octets = [0; REPLY];
        from.read_exact(&mut octets).map_err(Error::stream)?;
        let mut sum = [0; DIGEST];
        sum.copy_from_slice(&octets[16..]);
        match number(&octets[..4]) {
            0 => Ok(Self::Has(number(&octets[8..16]), sum)),
            code => {
                let index = usize::try_from(code - 1).unwrap_or(usize::MAX);
                let refusal = REFUSALS.get(index).ok_or(Error::NotOurs("receive"))?;
                Ok(Self::Refused(*refusal))
            }
        }
    }
}

/// Hashes the first octets of a file; how many there were.
pub(super) fn hash_first(file: &mut impl Read, octets: u64) -> io::Result<(u64, Sha256)> {
    let mut hash = Sha256::new();
    let count = io::copy(&mut file.take(octets), &mut hash)?;
    Ok((count, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &[u8]) -> Offer {
        Offer {
            name: name.to_vec(),
            octets: 1 << 40,
        }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let mut octets = Vec::new();
        offer(b"name").write(&mut octets).unwrap();
        assert_eq!(Offer::read(&mut &octets[..]).unwrap(), Some(offer(b"name")));
        assert_eq!(Offer::read(&mut &octets[..0]).unwrap(), None);
        assert!(matches!(
            Offer::read(&mut &octets[..9]),
            Err(Error::Truncated(_))
        ));
        let replies = REFUSALS.map(Reply::Refused);
        for reply in replies.into_iter().chain([Reply::Has(7, [9; DIGEST])]) {
            let mut octets = Vec::new();
            reply.write(&mut octets).unwrap();
            assert_eq!(Reply::read(&mut &octets[..]).unwrap(), reply);
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let mut octets = Vec::new();
        offer(b"name").write(&mut octets).unwrap();
        for at in [0, 3, 6] {
            let mut wrong = octets.clone();
            wrong[at] ^= 1;
            assert!(matches!(
                Offer::read(&mut &wrong[..]),
                Err(Error::NotOurs(_))
            ));
        }
        let unknown = [200; REPLY];
        assert!(matches!(
            Reply::read(&mut &unknown[..]),
            Err(Error::NotOurs(_))
        ));
    }

    #[test]
    fn file_is_in_the_directory() {
        let directory = Path::new("/there");
        for name in [&b"../x"[..], b"/etc/passwd", b"a/b", b"..", b".", b"a\0b"] {
            assert_eq!(offer(name).path(directory), None, "{name:?}");
        }
        let path = offer(b"..x").path(directory).unwrap();
        assert_eq!(path, Path::new("/there/..x"));
    }
}
