//! The BPF program of an AF_XDP port: it redirects urdma's datagrams to the port and passes all
//! other packets to the kernel (`bpf/steer.bpf.c`).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use nix::sys::memfd::{memfd_create, MFdFlags};

/// Compiled by `build.rs`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steer.o"));

/// The program in an unnamed file, since DPDK needs a path.
#[derive(Debug)]
pub(crate) struct Steer(File);

impl Steer {
    pub(crate) fn new() -> io::Result<Self> {
        let mut file = File::from(memfd_create(c"urdma-steer", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(OBJECT)?;
        Ok(Self(file))
    }

    /// The file's path, valid as long as `self` lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}
