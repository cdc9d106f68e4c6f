//! The log of DPDK; its last lines are the reason of a failed initialisation.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::path::PathBuf;

use crate::Error;

/// The destination of DPDK's log messages, which is never standard output or the system log.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Log {
    /// None; a failed initialisation still reports its reason.
    #[default]
    Off,
    /// Appended to this file.
    File(PathBuf),
}

/// The open log, before and during the initialisation.
pub(crate) struct Sink {
    file: File,
    start: u64,
    off: bool,
}

impl Sink {
    /// Opens the log and redirects DPDK's messages to it.
    pub(crate) fn open(log: &Log) -> Result<Self, Error> {
        let mut file = match log {
            Log::Off => memory_file()?,
            Log::File(path) => OpenOptions::new()
                .append(true)
                .read(true)
                .create(true)
                .open(path)
                .map_err(|error| {
                    Error::new(
                        libc::EIO,
                        format!("cannot open {}: {error}", path.display()),
                    )
                })?,
        };
        let start = file.seek(SeekFrom::End(0)).unwrap_or(0);
        let copy = file
            .try_clone()
            .map_err(|error| Error::new(libc::EMFILE, format!("cannot open a log: {error}")))?;
        // SAFETY: the descriptor is open and not used elsewhere, and the stream takes ownership of
        // it; the mode is a constant string.
        let stream = unsafe { libc::fdopen(copy.into_raw_fd(), c"a".as_ptr()) };
        if stream.is_null() {
            return Err(Error::new(libc::ENOMEM, "cannot open a log stream"));
        }
        // SAFETY: the stream is open, and never closed, since any thread of DPDK may write to it
        // until the process ends.
        unsafe { dpdk_sys::rte_openlog_stream(stream.cast()) };
        Ok(Self {
            file,
            start,
            off: *log == Log::Off,
        })
    }

    /// The last lines that were written since the log was opened, joined into one.
    pub(crate) fn reason(&mut self) -> String {
        let mut text = String::new();
        let mut octets = Vec::new();
        if self.file.seek(SeekFrom::Start(self.start)).is_ok()
            && self.file.read_to_end(&mut octets).is_ok()
        {
            text = String::from_utf8_lossy(&octets).into_owned();
        }
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.contains("Detected"))
            .collect();
        let last = &lines[lines.len().saturating_sub(3)..];
        last.join("; ")
    }

    /// Called after the initialisation: a log that is off accepts no more messages.
    pub(crate) fn settle(self) {
        if !self.off {
            return;
        }
        // The stream's descriptor refers to the same file. After the file is truncated and sealed
        // against growth, every write fails, which DPDK ignores.
        let _ = self.file.set_len(0);
        // SAFETY: the descriptor is open, and the call accesses no memory.
        unsafe {
            libc::fcntl(
                self.file.as_raw_fd(),
                libc::F_ADD_SEALS,
                libc::F_SEAL_GROW | libc::F_SEAL_WRITE,
            )
        };
    }
}

fn memory_file() -> Result<File, Error> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a constant string.
    let descriptor = unsafe { libc::memfd_create(c"urdma-eal-log".as_ptr(), flags) };
    if descriptor < 0 {
        return Err(Error::new(libc::ENOMEM, "cannot make a log in memory"));
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}
