//! `/dev/urdma`: how an urdmad says which device it serves.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::abi::{Serve, DEVICE_OCTETS, IOC_SERVE, KERNEL_ABI, RUN_DIR_OCTETS};

/// The file that the module makes.
pub const AGENT_FILE: &str = "/dev/urdma";

/// A device that this process serves until the value is dropped. The descriptor hangs up when the device is gone.
#[derive(Debug)]
pub struct Agent {
    file: File,
}

impl Agent {
    /// Serves a device for an instance with its control socket in `run_dir`.
    ///
    /// # Errors
    /// ENOENT without the module, ENODEV without the device, EBUSY if another urdmad serves it, EPROTO for a module of another version,
    /// ENAMETOOLONG for a path beyond 103 octets.
    pub fn serve(device: &str, run_dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(AGENT_FILE)?;
        let serve = Serve {
            abi: KERNEL_ABI,
            reserved: 0,
            device: terminated::<DEVICE_OCTETS>(device.as_bytes())?,
            run_dir: terminated::<RUN_DIR_OCTETS>(run_dir.as_os_str().as_bytes())?,
        };
        // SAFETY: the kernel reads as many octets as the argument's type has.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), IOC_SERVE, &raw const serve) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file })
    }
}

impl AsFd for Agent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A text with zeros behind it up to the array's end, at least one.
fn terminated<const OCTETS: usize>(text: &[u8]) -> io::Result<[u8; OCTETS]> {
    let mut octets = [0; OCTETS];
    if text.len() >= OCTETS {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    octets[..text.len()].copy_from_slice(text);
    Ok(octets)
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
