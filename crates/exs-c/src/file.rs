//! The part of a file that is sent.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sys::stat::fstat;
use nix::sys::uio::pread;

use crate::errno::Errno;

/// The rest of a part of a file.
#[derive(Debug)]
pub(crate) struct Part {
    file: OwnedFd,
    at: libc::off_t,
    left: usize,
}

impl Part {
    /// What the file has from an offset on, at most `len` octets.
    pub(crate) fn new(file: BorrowedFd<'_>, at: libc::off_t, len: usize) -> Result<Self, Errno> {
        let rest = fstat(file)?.st_size.checked_sub(at).filter(|_| at >= 0);
        let rest = rest.and_then(|rest| usize::try_from(rest).ok());
        let left = len.min(rest.ok_or(Errno(libc::EINVAL))?);
        // A file that cannot be read is refused before anything is sent.
        let _ = pread(file, &mut [0; 1], at)?;
        let file = file.try_clone_to_owned();
        let file = file.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        Ok(Self { file, at, left })
    }

    /// How many octets were not read.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Reads the next octets, as many as the buffer has: EIO if the file has become shorter.
    ///
    /// With an error, the count of octets that were read before it.
    pub(crate) fn read(&mut self, to: &mut [u8]) -> (usize, Result<(), Errno>) {
        let mut done = 0;
        while done < to.len() {
            match pread(&self.file, &mut to[done..], self.at) {
                Ok(0) => return (done, Err(Errno(libc::EIO))),
                Ok(count) => {
                    done += count;
                    self.at = self.at.saturating_add_unsigned(count as u64);
                    self.left = self.left.saturating_sub(count);
                }
                Err(nix::Error::EINTR) => {}
                Err(errno) => return (done, Err(errno.into())),
            }
        }
        (done, Ok(()))
    }
}
