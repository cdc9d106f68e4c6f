//! Attaching to the primary.

use std::ffi::{c_char, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dpdk::{is_pci_address, Drivers, Eal, EalOptions, Error, LcoreId, Log, Memory, Process};

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;
const EPROTO: i32 = 71;

extern "C" {
    /// In shim/shim.c.
    fn urdma_lease_set_runtime_directory(directory: *const c_char);
}

/// The attachment of the process, of which there is at most one.
struct Attachment {
    eal: Eal,
    file_prefix: String,
    runtime_directory: CString,
}

static ATTACHMENT: Mutex<Option<Attachment>> = Mutex::new(None);

fn attachment() -> MutexGuard<'static, Option<Attachment>> {
    ATTACHMENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Attaches to the primary, or reuses the attachment of an earlier lease of the same primary.
pub(crate) fn attach(
    file_prefix: &str,
    runtime_directory: CString,
    lcore: LcoreId,
    device: &str,
) -> Result<Eal, Error> {
    let mut slot = attachment();
    if let Some(attachment) = &*slot {
        if attachment.file_prefix == file_prefix
            && attachment.runtime_directory == runtime_directory
        {
            return Ok(attachment.eal.clone());
        }
        return Err(Error::new(
            EBUSY,
            "this process is already attached to the DPDK of another instance",
        ));
    }
    expect_primary(file_prefix, &runtime_directory)?;
    // SAFETY: the string is never freed, and the lock excludes other calls.
    unsafe { urdma_lease_set_runtime_directory(runtime_directory.clone().into_raw()) };
    let eal = Eal::init(&EalOptions {
        process: Process::Secondary,
        file_prefix: file_prefix.to_owned(),
        runtime_directory: None,
        lcore,
        memory: Memory::Plain { megabytes: 0 },
        drivers: Drivers::Linked,
        pci: is_pci_address(device).then(|| device.to_owned()),
        log: Log::Off,
    })?;
    *slot = Some(Attachment {
        eal: eal.clone(),
        file_prefix: file_prefix.to_owned(),
        runtime_directory,
    });
    Ok(eal)
}

/// Detaches from the primary if no lease is open.
pub(crate) fn detach() {
    *attachment() = None;
}

/// Checks that the primary's files exist: without them DPDK would create a directory for them, and
/// could not be initialised again.
fn expect_primary(file_prefix: &str, runtime_directory: &CString) -> Result<(), Error> {
    let directory = Path::new(OsStr::from_bytes(runtime_directory.as_bytes()));
    let configuration = directory.join("dpdk").join(file_prefix).join("config");
    if configuration.exists() {
        return Ok(());
    }
    Err(Error::new(
        ENOENT,
        format!(
            "no DPDK primary with the prefix {file_prefix} runs in {}",
            directory.display()
        ),
    ))
}

/// Checks that the primary's DPDK is of this library's version: they share structures whose layout
/// depends on it. DPDK itself checks too, but cannot be started again when it has refused.
pub(crate) fn expect_same_dpdk(theirs: &str) -> Result<(), Error> {
    let ours = dpdk::version().to_string_lossy();
    if theirs == ours {
        return Ok(());
    }
    Err(Error::new(
        EPROTO,
        format!(
            "urdmad uses {theirs} and liburdma_lease.so has {ours}: build or install all parts of \
             urdma, with one version of DPDK"
        ),
    ))
}

/// Whether a path can be the directory of DPDK's files.
pub(crate) fn is_absolute(directory: &CString) -> bool {
    directory.as_bytes().starts_with(b"/")
}
