//! A command as it was written: its parts, and what every command checks of them.

use urdma_types::Time;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::abi::{cmd, Header};
use crate::driver::{Driver, Errno};
use crate::handle::FileHandle;
use crate::ids::UcmaState;
use crate::user::Caller;

/// One command and its context.
pub(crate) struct Command<'a> {
    pub(crate) state: &'a mut UcmaState,
    pub(crate) driver: &'a dyn Driver,
    pub(crate) caller: Caller,
    pub(crate) now: Time,
    /// The file to which the command was written.
    pub(crate) file: FileHandle,
    pub(crate) header: Header,
    pub(crate) body: &'a [u8],
}

/// Splits a write into header and body, with the checks of the kernel's ucma_write.
pub(crate) fn parse(command: &[u8]) -> Result<(Header, &[u8]), Errno> {
    let (header, body) = Header::read_from_prefix(command).map_err(|_| libc::EINVAL)?;
    if header.cmd > cmd::WRITE_CM_EVENT {
        return Err(libc::EINVAL);
    }
    let body = body.get(..usize::from(header.input)).ok_or(libc::EINVAL)?;
    Ok((header, body))
}

/// Reads a body that must be complete.
pub(crate) fn body_of<T: FromBytes>(body: &[u8]) -> Result<T, Errno> {
    let (value, _) = T::read_from_prefix(body).map_err(|_| libc::EINVAL)?;
    Ok(value)
}

/// Reads a body; fields from octet `required` on may be missing and are zero then.
pub(crate) fn body_with_tail<T: FromZeros + FromBytes + IntoBytes>(
    body: &[u8],
    required: usize,
) -> Result<T, Errno> {
    if body.len() < required {
        return Err(libc::EINVAL);
    }
    let mut value = T::new_zeroed();
    let octets = value.as_mut_bytes();
    let len = octets.len().min(body.len());
    octets[..len].copy_from_slice(&body[..len]);
    Ok(value)
}

impl Command<'_> {
    pub(crate) fn room_for<T>(&self) -> Result<usize, Errno> {
        let room = usize::from(self.header.output);
        if room < size_of::<T>() {
            return Err(libc::ENOSPC);
        }
        Ok(room)
    }

    /// Fails commands that start an operation after urdmad is gone.
    pub(crate) fn require_device(&self) -> Result<(), Errno> {
        if self.state.removed {
            return Err(libc::ENODEV);
        }
        Ok(())
    }
}
