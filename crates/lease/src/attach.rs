//! Joining the primary.

use std::ffi::{c_char, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dpdk::{is_pci_address, Drivers, Eal, EalOptions, Error, LcoreId, Log, Memory, Process};

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;

extern "C" {
    /// Of shim/shim.c.
    fn urdma_lease_set_runtime_directory(directory: *const c_char);
}

/// The one attachment that a process can have.
struct Attachment {
    eal: Eal,
    file_prefix: String,
    runtime_directory: CString,
}

static ATTACHMENT: Mutex<Option<Attachment>> = Mutex::new(None);

fn attachment() -> MutexGuard<'static, Option<Attachment>> {
    ATTACHMENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins the primary, or uses the attachment of an earlier lease to the same one.
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
            "this process is attached to another instance's DPDK already",
        ));
    }
    expect_primary(file_prefix, &runtime_directory)?;
    // SAFETY: the string is never freed; nothing else sets it, since the attachment is locked.
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

/// Leaves the primary, if no lease is open any more.
pub(crate) fn detach() {
    *attachment() = None;
}

/// Looks for the primary's files: without them DPDK would make a directory for them, and could not
/// be started again.
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

/// Whether a path can be that of DPDK's files.
pub(crate) fn is_absolute(directory: &CString) -> bool {
    directory.as_bytes().starts_with(b"/")
}
