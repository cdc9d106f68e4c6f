//! Files of the asynchronous events of contexts that are being imported.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::answer::answer;

/// The descriptors from which libibverbs reads the asynchronous events of contexts that are being
/// imported, by the command descriptor of the import.
static ASYNC_FILES: Mutex<BTreeMap<c_int, OwnedFd>> = Mutex::new(BTreeMap::new());

fn async_files() -> MutexGuard<'static, BTreeMap<c_int, OwnedFd>> {
    ASYNC_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the file of asynchronous events of an imported context until libibverbs asks for it.
pub(crate) fn offer_async_file(cmd_fd: c_int, file: OwnedFd) {
    async_files().insert(cmd_fd, file);
}

/// Removes the file if libibverbs has not asked for it.
pub(crate) fn withdraw_async_file(cmd_fd: c_int) {
    async_files().remove(&cmd_fd);
}

pub(super) unsafe extern "C" fn async_open(cmd_fd: c_int) -> i64 {
    answer(|| {
        let file = async_files().remove(&cmd_fd).ok_or(libc::EINVAL)?;
        Ok(i64::from(file.into_raw_fd()))
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn async_file_is_given_once_or_taken_back() {
        let ends = [(); 2].map(|()| UnixStream::pair().unwrap());
        let [(file, _other), (second, _another)] = ends;
        let number = file.as_raw_fd();
        offer_async_file(-5, file.into());
        // SAFETY: no precondition.
        let open = |cmd_fd| unsafe { async_open(cmd_fd) };
        assert_eq!(open(-5), i64::from(number));
        assert_eq!(open(-5), -i64::from(libc::EINVAL));
        // SAFETY: the test owns the descriptor, which it has just received.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        offer_async_file(-6, second.into());
        withdraw_async_file(-6);
        assert_eq!(open(-6), -i64::from(libc::EINVAL));
    }
}
