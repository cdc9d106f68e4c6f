//! The rdma_cm files that are open.

mod beside;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use urdma_engine::{Driven, Engine, EngineError};
use urdma_ucma::{Errno, FileHandle, Ucma};

use super::answer::{answer, answer_uncancelled};
use super::attach::attach;

/// The engine that has connection management, with it. It is used until its urdmad has ended, which
/// saves a lookup by run directory in each call.
static MANAGED: Mutex<(Weak<Engine>, Weak<Ucma>)> = Mutex::new((Weak::new(), Weak::new()));

/// An open rdma_cm file. It stays with the engine for which it was opened, also after that engine
/// has lost its urdmad.
struct CmFile {
    engine: Weak<Engine>,
    ucma: Arc<Ucma>,
    handle: FileHandle,
}

/// The open rdma_cm files by handle; no handle is reused.
static CM_FILES: Mutex<BTreeMap<i64, CmFile>> = Mutex::new(BTreeMap::new());

fn cm_files() -> MutexGuard<'static, BTreeMap<i64, CmFile>> {
    CM_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine of an open file.
pub(super) fn engine_of_cm(handle: i64) -> Option<Arc<dyn Driven>> {
    let engine = cm_files().get(&handle)?.engine.upgrade()?;
    Some(engine)
}

/// The engines of all open files.
pub(super) fn engines() -> Vec<Arc<dyn Driven>> {
    let engines: Vec<_> = cm_files()
        .values()
        .map(|file| file.engine.clone())
        .collect();
    let open = engines.iter().filter_map(Weak::upgrade);
    open.map(|engine| engine as Arc<dyn Driven>).collect()
}

/// The engine of this process with its connection management, which begins with the first file.
fn managed() -> Result<(Arc<Engine>, Arc<Ucma>), Errno> {
    let mut managed = MANAGED.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(engine), Some(ucma)) = (managed.0.upgrade(), managed.1.upgrade()) {
        if engine.is_usable() {
            return Ok((engine, ucma));
        }
    }
    let engine = attach()?;
    let ucma = beside::start(&engine).map_err(EngineError::errno)?;
    *managed = (Arc::downgrade(&engine), Arc::downgrade(&ucma));
    Ok((engine, ucma))
}

pub(super) unsafe extern "C" fn cm_open(set_fd: c_int) -> i64 {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    answer(|| {
        let (engine, ucma) = managed()?;
        let file = CmFile {
            handle: ucma.open(set_fd)?,
            engine: Arc::downgrade(&engine),
            ucma,
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        cm_files().insert(number, file);
        Ok(number)
    })
}

pub(super) unsafe extern "C" fn cm_write(handle: i64, command: *const c_void, len: usize) -> i64 {
    answer_uncancelled(|| {
        if command.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the stand-in passes the application's buffer of `len` octets.
        let octets = unsafe { std::slice::from_raw_parts(command.cast::<u8>(), len) };
        let file = cm_files()
            .get(&handle)
            .map(|file| (Arc::clone(&file.ucma), file.handle));
        let (ucma, file) = file.ok_or(libc::EBADF)?;
        // SAFETY: the application is responsible for the addresses in the command, as it is with
        // the kernel.
        let taken = unsafe { ucma.write(file, octets)? };
        i64::try_from(taken).map_err(|_| libc::EINVAL)
    })
}

pub(super) unsafe extern "C" fn cm_close(handle: i64) {
    answer(|| {
        let file = cm_files().remove(&handle);
        if let Some(file) = file {
            file.ucma.close(file.handle);
        }
        Ok(0)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cm_write_from_nowhere_is_efault() {
        // SAFETY: null is refused before it is used.
        let result = unsafe { cm_write(0, std::ptr::null(), 8) };
        assert_eq!(result, -i64::from(libc::EFAULT));
    }
}
