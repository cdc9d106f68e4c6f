//! The C table through which the stand-in reaches the engine, and the completion channels that come
//! in by it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use urdma_abi::cancel::Disabled;
use urdma_abi::front::{FrontTable, FRONT_ABI, FRONT_SIZE};
use urdma_ipc::RunDir;
use urdma_ucma::{Errno, FileHandle, Ucma};

use urdma_engine::{CompletionChannel, Engine, LeaseState};

static TABLE: FrontTable = FrontTable {
    abi: FRONT_ABI,
    size: FRONT_SIZE,
    cm_open,
    cm_write,
    cm_close,
    channel_open,
    channel_close,
    async_open,
};

type Channels = HashMap<c_int, Arc<CompletionChannel>>;

/// Completion channels by the descriptor that the application reads.
static CHANNELS: Mutex<Option<Channels>> = Mutex::new(None);

fn channels() -> MutexGuard<'static, Option<Channels>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The completion channel that the application reads from `read_fd`.
pub(crate) fn channel(read_fd: c_int) -> Option<Arc<CompletionChannel>> {
    channels().as_ref()?.get(&read_fd).cloned()
}

/// Where libibverbs will read the asynchronous events of contexts that are being imported, by the
/// descriptors that they are imported by.
static ASYNC_FILES: Mutex<BTreeMap<c_int, OwnedFd>> = Mutex::new(BTreeMap::new());

fn async_files() -> MutexGuard<'static, BTreeMap<c_int, OwnedFd>> {
    ASYNC_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the file of asynchronous events of an imported context until libibverbs asks for it.
pub(crate) fn offer_async_file(cmd_fd: c_int, file: OwnedFd) {
    async_files().insert(cmd_fd, file);
}

/// Takes it back, if libibverbs has not asked.
pub(crate) fn withdraw_async_file(cmd_fd: c_int) {
    async_files().remove(&cmd_fd);
}

unsafe extern "C" fn async_open(cmd_fd: c_int) -> i64 {
    answer(|| {
        let file = async_files().remove(&cmd_fd).ok_or(libc::EINVAL)?;
        Ok(i64::from(file.into_raw_fd()))
    })
}

/// The engine that connection management used last, so that not every call has to find it by its
/// run directory.
static CM_ENGINE: Mutex<Weak<Engine>> = Mutex::new(Weak::new());

/// An opened rdma_cm file: it stays with the engine that it was opened for, also when that has lost
/// its urdmad.
#[derive(Clone)]
struct CmFile {
    ucma: Arc<Ucma>,
    handle: FileHandle,
}

/// The opened rdma_cm files by their handles; none is used twice.
static CM_FILES: Mutex<BTreeMap<i64, CmFile>> = Mutex::new(BTreeMap::new());

fn cm_files() -> MutexGuard<'static, BTreeMap<i64, CmFile>> {
    CM_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine of the instance that the environment names; says on standard error why there is none.
///
/// # Errors
/// The errno that says why.
pub(crate) fn attach() -> Result<Arc<Engine>, Errno> {
    attach_to(&RunDir::find(None, None))
}

/// The engine of the instance with this run directory; says on standard error why there is none.
///
/// # Errors
/// The errno that says why.
pub(crate) fn attach_to(run_dir: &RunDir) -> Result<Arc<Engine>, Errno> {
    let engine = Engine::attach(run_dir).map_err(|error| {
        eprintln!("urdma: {error}");
        error.errno()
    })?;
    say_if_forwarded(&engine);
    Ok(engine)
}

/// Says once, where there is a port, why this process has no queue of its own.
fn say_if_forwarded(engine: &Engine) {
    static SAID: Once = Once::new();
    if let LeaseState::Forwarded(why) = &engine.info().lease {
        if engine.info().mtu > 0 {
            SAID.call_once(|| eprintln!("urdma: no leased queue, urdmad forwards: {why}"));
        }
    }
}

/// Gives the stand-in its table; null, after a sentence on standard error, when urdmad cannot be
/// used.
#[no_mangle]
pub(crate) extern "C" fn urdma_front_table() -> *const FrontTable {
    let _uncancelled = Disabled::new();
    match catch_unwind(attach) {
        Ok(Ok(_)) => &TABLE,
        Ok(Err(_)) | Err(_) => std::ptr::null(),
    }
}

/// Runs a call; a refusal becomes a negative errno, and so does a panic.
fn answer(call: impl FnOnce() -> Result<i64, Errno>) -> i64 {
    let _uncancelled = Disabled::new();
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => -i64::from(errno),
        Err(_) => -i64::from(libc::EIO),
    }
}

fn ucma() -> Result<Arc<Ucma>, Errno> {
    let mut cached = CM_ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = match cached.upgrade().filter(|engine| engine.is_usable()) {
        Some(engine) => engine,
        None => attach()?,
    };
    *cached = Arc::downgrade(&engine);
    engine.ucma().cloned().map_err(|error| error.errno())
}

unsafe extern "C" fn cm_open(event_fd: c_int) -> i64 {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    answer(|| {
        let ucma = ucma()?;
        let handle = ucma.open(event_fd)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        cm_files().insert(number, CmFile { ucma, handle });
        Ok(number)
    })
}

unsafe extern "C" fn cm_write(handle: i64, command: *const c_void, len: usize) -> i64 {
    answer(|| {
        if command.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the stand-in passes what the application writes: `len` octets.
        let octets = unsafe { std::slice::from_raw_parts(command.cast::<u8>(), len) };
        let file = cm_files().get(&handle).cloned().ok_or(libc::EBADF)?;
        // SAFETY: the application vouches for the addresses in the command, as it does to the
        // kernel.
        let taken = unsafe { file.ucma.write(file.handle, octets)? };
        i64::try_from(taken).map_err(|_| libc::EINVAL)
    })
}

unsafe extern "C" fn cm_close(handle: i64) {
    answer(|| {
        let file = cm_files().remove(&handle);
        if let Some(file) = file {
            file.ucma.close(file.handle);
        }
        Ok(0)
    });
}

unsafe extern "C" fn channel_open(read_fd: c_int, write_fd: c_int) -> i64 {
    answer(|| {
        // SAFETY: the stand-in gives this descriptor to us with a call that succeeds, as this one
        // does from here on.
        let channel = CompletionChannel::new(unsafe { OwnedFd::from_raw_fd(write_fd) });
        channels()
            .get_or_insert_with(HashMap::new)
            .insert(read_fd, channel);
        Ok(0)
    })
}

unsafe extern "C" fn channel_close(read_fd: c_int) {
    answer(|| {
        if let Some(channels) = channels().as_mut() {
            channels.remove(&read_fd);
        }
        Ok(0)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn channel_opened_is_found_until_it_is_closed() {
        let (reader, writer) = UnixStream::pair().unwrap();
        let read_fd = reader.as_raw_fd();
        assert!(channel(read_fd).is_none());
        // SAFETY: both descriptors are open; the second is given away.
        assert_eq!(unsafe { channel_open(read_fd, writer.into_raw_fd()) }, 0);
        assert!(channel(read_fd).is_some());
        // SAFETY: no precondition.
        unsafe { channel_close(read_fd) };
        assert!(channel(read_fd).is_none());
    }

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
        // SAFETY: it was given to us just now.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        offer_async_file(-6, second.into());
        withdraw_async_file(-6);
        assert_eq!(open(-6), -i64::from(libc::EINVAL));
    }

    #[test]
    fn answer_of_a_refusal_or_a_panic_is_a_negative_errno() {
        assert_eq!(answer(|| Ok(5)), 5);
        assert_eq!(answer(|| Err(libc::EINVAL)), -i64::from(libc::EINVAL));
        assert_eq!(
            answer(|| panic!("expected by the test")),
            -i64::from(libc::EIO)
        );
    }

    #[test]
    fn cm_write_from_nowhere_is_efault() {
        // SAFETY: null is refused before it is used.
        let result = unsafe { cm_write(0, std::ptr::null(), 8) };
        assert_eq!(result, -i64::from(libc::EFAULT));
    }
}
