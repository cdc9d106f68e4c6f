//! `/dev/urdma`: the file through which an urdmad serves a device.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use zerocopy::IntoBytes;

use crate::abi::{
    CmMessage, PortCounters, Serve, Slot, DEVICE_OCTETS, GIDS, GROUP_NONE, IOC_PORT_COUNTERS,
    IOC_SERVE, IOC_SLOT, KERNEL_ABI, RUN_DIR_OCTETS,
};

/// Requests that are read at a time.
const MESSAGES_AT_ONCE: usize = 32;

/// The module's character device.
pub const AGENT_FILE: &str = "/dev/urdma";

/// A device that this process serves until the value is dropped. The descriptor reports a hang-up
/// when the device is gone.
#[derive(Debug)]
pub struct Agent {
    file: File,
}

impl Agent {
    /// Serves a device for an instance with its control socket in `run_dir` and these GIDs; GIDs
    /// beyond [`GIDS`] are not shown. This process' user, root, and the members of `group` may use
    /// the device.
    ///
    /// # Errors
    /// ENOENT without the module, ENODEV without the device, EBUSY if another urdmad serves it,
    /// EPROTO for a module of another version, ENAMETOOLONG for a path beyond 103 octets.
    pub fn serve(
        device: &str,
        run_dir: &Path,
        gids: &[[u8; 16]],
        group: Option<u32>,
    ) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(AGENT_FILE)?;
        let mut table = [[0; 16]; GIDS];
        let mut gid_count = 0;
        for (entry, gid) in table.iter_mut().zip(gids) {
            *entry = *gid;
            gid_count += 1;
        }
        let serve = Serve {
            abi: KERNEL_ABI,
            gid_count,
            group: group.unwrap_or(GROUP_NONE),
            reserved: 0,
            device: terminated::<DEVICE_OCTETS>(device.as_bytes())?,
            run_dir: terminated::<RUN_DIR_OCTETS>(run_dir.as_os_str().as_bytes())?,
            gids: table,
        };
        // SAFETY: the kernel reads as many octets as the type of the argument has.
        check(unsafe { libc::ioctl(file.as_raw_fd(), IOC_SERVE, &raw const serve) })?;
        Ok(Self::over(file))
    }

    /// The same with a file that replaces the module's, such as a socket in a test.
    pub fn over(file: File) -> Self {
        Self { file }
    }

    /// Says which process, as this process numbers them, may have queue pairs with the numbers of a
    /// slot; `None` for no process.
    ///
    /// # Errors
    /// EINVAL for a slot beyond 255, ESRCH for a process that has ended.
    pub fn give_slot(&self, slot: u32, pid: Option<u32>) -> io::Result<()> {
        let slot = Slot {
            slot,
            pid: pid.unwrap_or(0),
        };
        // SAFETY: the kernel reads as many octets as the type of the argument has.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), IOC_SLOT, &raw const slot) })
    }

    /// Gives the counters of the port to the programs that wait for them. The descriptor reports
    /// POLLPRI while there are some.
    ///
    /// # Errors
    /// ENOTTY for a file that is not the module's.
    pub fn give_counters(&self, counters: &PortCounters) -> io::Result<()> {
        let fd = self.file.as_raw_fd();
        // SAFETY: the kernel reads as many octets as the type of the argument has.
        check(unsafe { libc::ioctl(fd, IOC_PORT_COUNTERS, &raw const *counters) })
    }

    /// The module's next requests, by one system call; none if there are none.
    ///
    /// # Errors
    /// Errors of the kernel; `InvalidData` for a truncated message.
    pub fn receive(&self) -> io::Result<Vec<CmMessage>> {
        let mut messages: Vec<CmMessage> = Vec::with_capacity(MESSAGES_AT_ONCE);
        let room = MESSAGES_AT_ONCE * size_of::<CmMessage>();
        let into = messages.as_mut_ptr().cast();
        // SAFETY: the vector has room for as many octets.
        let read = unsafe { libc::read(self.file.as_raw_fd(), into, room) };
        let octets = match usize::try_from(read) {
            Ok(octets) => octets,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => 0,
                error => return Err(error),
            },
        };
        if octets % size_of::<CmMessage>() != 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: the kernel has written so many, and any octets are a message.
        unsafe { messages.set_len(octets / size_of::<CmMessage>()) };
        Ok(messages)
    }

    /// Reports results and events to the module, by one system call; returns how many it has taken,
    /// up to one that it refuses.
    ///
    /// # Errors
    /// Of the first: ENOENT for a listener or connection that has ended, ENOMEM if a listener's
    /// backlog is full, ENODEV without the device.
    pub fn send(&self, messages: &[CmMessage]) -> io::Result<usize> {
        let octets = (&self.file).write(messages.as_bytes())?;
        Ok(octets / size_of::<CmMessage>())
    }
}

impl AsFd for Agent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A string, padded with zeros to the length of the array, with at least one.
fn terminated<const OCTETS: usize>(text: &[u8]) -> io::Result<[u8; OCTETS]> {
    let mut octets = [0; OCTETS];
    if text.len() >= OCTETS {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    octets[..text.len()].copy_from_slice(text);
    Ok(octets)
}

/// The error message for a failure of [`Agent::serve`], with the remedy.
pub fn explain(error: &io::Error, device: &str) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "the kernel module is not loaded: modprobe urdma".to_owned(),
        Some(libc::ENODEV) => {
            format!("there is no device {device}: rdma link add {device} type urdma netdev ...")
        }
        Some(libc::EBUSY) => format!("another urdmad serves {device}"),
        Some(libc::EPROTO) => format!(
            "the kernel module speaks another version than {KERNEL_ABI}: \
             install module and urdmad of one release"
        ),
        _ => format!("cannot serve {device}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminated_text_keeps_room_for_a_zero() {
        assert_eq!(terminated::<4>(b"abc").unwrap(), *b"abc\0");
        assert_eq!(
            terminated::<4>(b"abcd").unwrap_err().raw_os_error(),
            Some(libc::ENAMETOOLONG)
        );
    }
}
