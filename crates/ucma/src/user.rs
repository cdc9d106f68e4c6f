//! Copies to and from the application's memory, at addresses in its commands.

#![allow(unsafe_code)]

use zerocopy::{Immutable, IntoBytes};

use crate::driver::Errno;

/// Proof that the caller of [`Caller::vouched`] guarantees the addresses in a command.
#[derive(Clone, Copy)]
pub(crate) struct Caller(());

impl Caller {
    /// Guarantees the addresses of a command.
    ///
    /// # Safety
    /// Each address in the command is null or valid, as the ucma ABI requires, for the length in
    /// the command, until the command has been executed.
    pub(crate) unsafe fn vouched() -> Self {
        Self(())
    }

    /// Writes an answer to `address`, which has room for `room` octets. The answer is truncated to
    /// it, as the kernel does for fields that an older application does not know.
    pub(crate) fn put<T>(self, address: u64, room: usize, answer: &T) -> Result<(), Errno>
    where
        T: IntoBytes + Immutable + ?Sized,
    {
        let octets = answer.as_bytes();
        let target = usize::try_from(address).map_err(|_| libc::EFAULT)? as *mut u8;
        if target.is_null() {
            return Err(libc::EFAULT);
        }
        let len = octets.len().min(room);
        // SAFETY: `vouched` promises that `address` is valid for `room` octets, and `octets` is a
        // private copy of the answer.
        unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), target, len) };
        Ok(())
    }

    /// Reads `len` octets at `address`.
    pub(crate) fn get(self, address: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let source = usize::try_from(address).map_err(|_| libc::EFAULT)? as *const u8;
        if source.is_null() {
            return Err(libc::EFAULT);
        }
        let mut octets = vec![0; len];
        // SAFETY: `vouched` promises that `address` is valid for `len` octets.
        unsafe { std::ptr::copy_nonoverlapping(source, octets.as_mut_ptr(), len) };
        Ok(octets)
    }
}
