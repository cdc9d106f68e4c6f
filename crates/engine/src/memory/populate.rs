//! Whether memory is mapped, and pages that are missing.

#![allow(unsafe_code)]

use super::address::pointer;
use crate::types::EngineError;

/// Brings `len` octets at `addr` into memory and checks that they may be read, or written if
/// `write`.
///
/// # Errors
/// [`EngineError::Fault`] when they are not mapped so.
pub(crate) fn populate(addr: u64, len: u64, write: bool) -> Result<(), EngineError> {
    const PAGE: u64 = 4096;
    let begin = addr & !(PAGE - 1);
    let end = addr.checked_add(len).ok_or(EngineError::Fault)?;
    let octets = usize::try_from(end - begin).map_err(|_| EngineError::Fault)?;
    if len == 0 {
        return Ok(());
    }
    let advice = if write {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    loop {
        // SAFETY: populating changes no contents; the kernel checks the range itself.
        if unsafe { libc::madvise(pointer(begin).cast(), octets, advice) } == 0 {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // ENOMEM: there is a hole. EFAULT: no such right, or the file is shorter.
            Some(libc::ENOMEM | libc::EFAULT | libc::EHWPOISON) => return Err(EngineError::Fault),
            // EINVAL: no right to write, or a kernel before 5.14, or memory of a device. If it can
            // be read, it is the first; else it is the application's word.
            Some(libc::EINVAL) if write => return cannot_be_read(addr, len),
            _ => return Ok(()),
        }
    }
}

fn cannot_be_read(addr: u64, len: u64) -> Result<(), EngineError> {
    let begin = addr & !4095;
    let octets = usize::try_from(addr + len - begin).map_err(|_| EngineError::Fault)?;
    // SAFETY: as in `populate`, whose checks of the range these arguments have passed.
    let outcome = unsafe { libc::madvise(pointer(begin).cast(), octets, libc::MADV_POPULATE_READ) };
    if outcome == 0 {
        Err(EngineError::Fault)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn populate_of_unmapped_memory_is_a_fault() {
        assert_eq!(populate(0x1000, 8, false), Err(EngineError::Fault));
        assert_eq!(populate(u64::MAX, 8, false), Err(EngineError::Fault));
    }

    #[test]
    fn populate_of_read_only_memory_for_writing_is_a_fault() {
        // SAFETY: a new anonymous mapping disturbs nothing.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let addr = page as u64;
        assert_eq!(populate(addr, 4096, false), Ok(()));
        assert_eq!(populate(addr, 4096, true), Err(EngineError::Fault));
        let buffer = vec![1u8; 10_000];
        assert_eq!(populate(buffer.as_ptr() as u64 + 1, 9_999, true), Ok(()));
        assert_eq!(buffer[9_999], 1);
    }
}
