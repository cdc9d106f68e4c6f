//! The counters of the port as files whose values are computed when they are opened.
//!
//! urdmad holds a lease (fcntl(2), F_SETLEASE) of each file. A program that opens one is made to
//! wait by the kernel, which signals urdmad; urdmad writes the value and gives the lease up. So the
//! values are as young as those of the kernel's sysfs, and cost nothing while they are not read.
//! Any program reads them: also one in a container, and one that makes system calls of its own,
//! which the stand-in does not see.
//!
//! A lease is had only of a file that no other program has open. Each file that has been opened is
//! therefore replaced by a new one.
//!
//! If urdmad is stopped, the kernel ends the lease after `/proc/sys/fs/lease-break-time` (45 s),
//! and the program reads the values of the last time.

#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use libc::c_int;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::gettid;
use urdma_kernel::abi::PortCounters;

use crate::port_counters::{PortCounter, ALL};

/// Of fcntl(2), with `struct f_owner_ex`.
const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;
const F_GETLEASE: c_int = 1025;

#[repr(C)]
struct Owner {
    kind: c_int,
    pid: libc::pid_t,
}

/// The files, for the thread that has made them.
#[derive(Debug)]
pub(crate) struct CounterFiles {
    /// Where a file is made before it replaces another one.
    scratch: PathBuf,
    files: Vec<Leased>,
    signals: SignalFd,
}

/// A file that no program has opened since it was made, or that some wait to open.
#[derive(Debug)]
struct Leased {
    path: PathBuf,
    file: File,
    counter: &'static PortCounter,
}

impl CounterFiles {
    /// Makes the files below the directory of the port, with values of 0. `scratch` is a path in
    /// the same file system. Blocks SIGIO in this thread.
    ///
    /// # Errors
    /// A file cannot be made, or its file system has no leases; no file is left then.
    pub(crate) fn create(port: &Path, scratch: &Path) -> io::Result<Self> {
        let signal = SigSet::from(Signal::SIGIO);
        signal.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let mut this = Self {
            scratch: scratch.to_owned(),
            files: Vec::new(),
            signals: SignalFd::with_flags(&signal, flags)?,
        };
        for counter in ALL {
            let path = port.join(counter.file);
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            match make(scratch, &path, 0) {
                Ok(file) => this.files.push(Leased {
                    path,
                    file,
                    counter,
                }),
                Err(error) => {
                    this.remove();
                    return Err(error);
                }
            }
        }
        Ok(this)
    }

    fn remove(&self) {
        for path in self.files.iter().map(|leased| &leased.path) {
            let _ = fs::remove_file(path);
        }
        let directories = self.files.iter().filter_map(|leased| leased.path.parent());
        for directory in directories {
            // The last file of it is gone.
            let _ = fs::remove_dir(directory);
        }
    }

    /// Takes the signals that the kernel has sent since the last call.
    pub(crate) fn take_signals(&self) {
        while matches!(self.signals.read_signal(), Ok(Some(_))) {}
    }

    /// Lets the programs that wait for counters read them.
    pub(crate) fn answer(&mut self, counters: &PortCounters) {
        let Self { scratch, files, .. } = self;
        files.retain_mut(|leased| {
            if has_lease(&leased.file) {
                return true;
            }
            let value = (leased.counter.value)(counters);
            // The next program opens the new file.
            let outcome = make(scratch, &leased.path, value);
            let written = write(&leased.file, value);
            match outcome.and_then(|file| written.map(|()| file)) {
                // The old one is closed, and its lease ends.
                Ok(file) => leased.file = file,
                Err(error) => {
                    tracing::warn!("{} is not offered any more: {error}", leased.path.display());
                    let _ = fs::remove_file(&leased.path);
                    return false;
                }
            }
            true
        });
    }
}

impl AsFd for CounterFiles {
    /// Readable when a program has opened a file.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

/// Makes a file with this value, of which this process has a lease, in the place of `path`.
fn make(scratch: &Path, path: &Path, value: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(scratch)?;
    let outcome = write(&file, value)
        .and_then(|()| take_lease(&file))
        .and_then(|()| fs::rename(scratch, path));
    if let Err(error) = outcome {
        let _ = fs::remove_file(scratch);
        return Err(error);
    }
    Ok(file)
}

fn write(file: &File, value: u64) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(format!("{value}\n").as_bytes(), 0)
}

/// Takes the lease, about whose end this thread gets SIGIO.
fn take_lease(file: &File) -> io::Result<()> {
    let owner = Owner {
        kind: F_OWNER_TID,
        pid: gettid().as_raw(),
    };
    let fd = file.as_raw_fd();
    // SAFETY: an open descriptor, and the struct that the call reads.
    check(unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) })?;
    // SAFETY: an open descriptor.
    check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) })
}

/// Whether this process has the lease, and no program waits for its end.
fn has_lease(file: &File) -> bool {
    // SAFETY: an open descriptor.
    unsafe { libc::fcntl(file.as_raw_fd(), F_GETLEASE) == libc::F_WRLCK }
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc::{channel, Receiver};
    use std::thread;
    use std::time::Duration;

    use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);
    const PACKETS: &str = "counters/port_xmit_packets";

    /// Opens a file in another thread, and reads it.
    fn open(path: &Path) -> Receiver<(File, String)> {
        let (path, (done, answer)) = (path.to_owned(), channel());
        thread::spawn(move || {
            let mut file = File::open(path).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            done.send((file, text)).unwrap();
        });
        answer
    }

    /// Waits until a program has opened a file, and answers it.
    fn answer(files: &mut CounterFiles, port_xmit_packets: u64) {
        let mut fds = [PollFd::new(files.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(LIMIT).unwrap();
        assert_eq!(poll(&mut fds, timeout), Ok(1));
        files.take_signals();
        files.answer(&PortCounters {
            port_xmit_packets,
            ..PortCounters::default()
        });
    }

    #[test]
    fn each_reader_gets_the_value_of_the_moment() {
        let root = std::env::temp_dir().join(format!("urdmad-counters-{}", std::process::id()));
        let port = root.join("port");
        let mut files = CounterFiles::create(&port, &root.join("new")).unwrap();
        let path = port.join(PACKETS);
        let mut held = Vec::new();
        // Readers that keep their file open do not keep the next one from the new value.
        for value in [7, 12_345, 8] {
            let reader = open(&path);
            answer(&mut files, value);
            let (file, text) = reader.recv_timeout(LIMIT).unwrap();
            assert_eq!(text, format!("{value}\n"));
            held.push(file);
        }
        let names = |directory: &str| fs::read_dir(port.join(directory)).unwrap().count();
        assert_eq!(names("counters") + names("hw_counters"), ALL.len());
        assert!(!root.join("new").exists());
        files.remove();
        assert!(!port.join("counters").exists() && !port.join("hw_counters").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
