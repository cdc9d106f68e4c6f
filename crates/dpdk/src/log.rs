//! Where DPDK's messages go, and the last of them as the reason of a failure.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::path::PathBuf;

use crate::Error;

/// Where DPDK's messages go: never to standard output or the system's log.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Log {
    /// Nowhere; a failed start still says why.
    #[default]
    Off,
    /// To the end of this file.
    File(PathBuf),
}

/// An open log, before and while DPDK starts.
pub(crate) struct Sink {
    file: File,
    start: u64,
    off: bool,
}

impl Sink {
    /// Opens the log and makes DPDK write to it.
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
        // SAFETY: the descriptor is open, ours alone, and given away to the stream; the mode is a
        // constant string.
        let stream = unsafe { libc::fdopen(copy.into_raw_fd(), c"a".as_ptr()) };
        if stream.is_null() {
            return Err(Error::new(libc::ENOMEM, "cannot open a log stream"));
        }
        // SAFETY: the stream is open and is never closed, since any thread of DPDK may write to it
        // until the end.
        unsafe { dpdk_sys::rte_openlog_stream(stream.cast()) };
        Ok(Self {
            file,
            start,
            off: *log == Log::Off,
        })
    }

    /// The last lines that were written since the log was opened, as one sentence.
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

    /// After the start: a log that is off stops growing.
    pub(crate) fn settle(self) {
        if !self.off {
            return;
        }
        // The stream's descriptor is the lowest that shares our file; emptying the file and sealing
        // it against growth makes every later write fail, which DPDK ignores.
        let _ = self.file.set_len(0);
        // SAFETY: the descriptor is open; the call changes nothing in this process' memory.
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
    // SAFETY: the name is a constant string; the call touches no memory of ours.
    let descriptor = unsafe { libc::memfd_create(c"urdma-eal-log".as_ptr(), flags) };
    if descriptor < 0 {
        return Err(Error::new(libc::ENOMEM, "cannot make a log in memory"));
    }
    // SAFETY: the descriptor was just opened and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}
