//! Everything by which memory that another process writes could be changed, or its memory reached.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::{Duration, Instant};

use nix::fcntl::{fallocate, fcntl, FallocateFlags, FcntlArg, SealFlag};
use nix::sys::mman::ProtFlags;
use nix::sys::socket::MsgFlags;
use nix::sys::stat::{fchmod, fstat, Mode};
use nix::unistd::ftruncate;
use urdma_channel::ChannelConfig;
use urdma_waiting::Waker;

use crate::attach::PAGE;
use crate::memory::{can_copy, can_splice_into, can_take_descriptor, can_trace, Memory};
use crate::{Context, Tally};

/// How long the first offers are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tries everything on every descriptor that others have given, and on their processes.
pub(crate) fn escape(context: &Context) -> Result<Tally, String> {
    let mut session = context.attach()?;
    session.open(&context.slots()?, &ChannelConfig::default());
    let deadline = Instant::now() + PATIENCE;
    while session.given.is_empty() && Instant::now() < deadline {
        session.listen(Duration::from_millis(10));
    }
    session.listen(Duration::from_millis(50));
    if session.given.is_empty() {
        return Err("no process has answered with a channel".to_owned());
    }
    let mut tally = Tally::default();
    while !context.is_over() {
        for fd in &session.given {
            if Waker::accepts(fd) {
                on_socket(fd, &mut tally)?;
                continue;
            }
            on_descriptor(fd, &mut tally)?;
        }
        for process in context.lasting_processes()? {
            on_process(process.pid, &mut tally)?;
        }
        files(context, &mut tally)?;
    }
    Ok(tally)
}

/// A socket that wakes another process: nothing comes out of it.
fn on_socket(fd: &OwnedFd, tally: &mut Tally) -> Result<(), String> {
    let received = nix::sys::socket::recv(fd.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT);
    tally.refused("a message of the process", received.is_ok())?;
    // What the socket of the process is full of does not keep its other peers from waking it.
    for _ in 0..1000 {
        let _ = nix::sys::socket::send(fd.as_raw_fd(), &[0xff; 8], MsgFlags::MSG_DONTWAIT);
    }
    Ok(())
}

fn on_descriptor(fd: &OwnedFd, tally: &mut Tally) -> Result<(), String> {
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let length = fstat(fd).map_or(0, |status| status.st_size);
    let size = usize::try_from(length).unwrap_or(PAGE);
    tally.refused(
        "a writable mapping",
        Memory::map(fd.as_fd(), size, both).is_ok(),
    )?;
    let readable = Memory::map(fd.as_fd(), size, ProtFlags::PROT_READ)
        .map_err(|errno| format!("what was offered cannot be read: {errno}"))?;
    tally.refused("mprotect", readable.can_become_writable())?;
    tally.refused("MADV_REMOVE", readable.can_be_removed())?;
    tally.refused("ftruncate to 0", ftruncate(fd, 0).is_ok())?;
    tally.refused("ftruncate to more", ftruncate(fd, length + 4096).is_ok())?;
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    for (what, flags, at) in [
        ("a hole", punch, 0),
        ("zeroes", FallocateFlags::FALLOC_FL_ZERO_RANGE, 0),
        (
            "a collapsed range",
            FallocateFlags::FALLOC_FL_COLLAPSE_RANGE,
            0,
        ),
        ("growth", FallocateFlags::empty(), length),
    ] {
        tally.refused(what, fallocate(fd, flags, at, 4096).is_ok())?;
    }
    for seal in [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_SEAL] {
        let added = fcntl(fd, FcntlArg::F_ADD_SEALS(seal));
        tally.refused("another seal", added.is_ok())?;
    }
    tally.refused("fchmod", fchmod(fd, Mode::empty()).is_ok())?;
    tally.refused("sendfile", can_splice_into(fd.as_fd()))?;
    on_opened_again(fd, tally)?;
    on_own_memory(&readable, tally)
}

/// A memfd may be opened again for writing, but nothing can be written.
fn on_opened_again(fd: &OwnedFd, tally: &mut Tally) -> Result<(), String> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let opened = OpenOptions::new().write(true).truncate(true).open(&path);
    tally.refused("truncation by open", opened.is_ok())?;
    let copy = fd.try_clone().map_err(|error| error.to_string())?;
    let written = fs::File::from(copy).write_at(&[0xff], 0);
    tally.refused("write", written.is_ok())?;
    if let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) {
        tally.refused("write after open", file.write_at(&[0xff], 0).is_ok())?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let mapped = Memory::map(file.as_fd(), PAGE, both);
        tally.refused("a writable mapping after open", mapped.is_ok())?;
    }
    Ok(())
}

/// /proc/self/mem writes even where the mapping is read-only, if it is private.
fn on_own_memory(readable: &Memory, tally: &mut Tally) -> Result<(), String> {
    let Ok(mut memory) = OpenOptions::new().write(true).open("/proc/self/mem") else {
        return Ok(());
    };
    let written = memory
        .seek(SeekFrom::Start(readable.address()))
        .and_then(|_| memory.write(&[0xff]));
    tally.refused("/proc/self/mem", written.is_ok())
}

fn on_process(pid: i32, tally: &mut Tally) -> Result<(), String> {
    let some_address = 0x40_0000;
    tally.refused("process_vm_readv", can_copy(pid, some_address, false))?;
    tally.refused("process_vm_writev", can_copy(pid, some_address, true))?;
    tally.refused("ptrace", can_trace(pid))?;
    for number in 0..8 {
        tally.refused("pidfd_getfd", can_take_descriptor(pid, number))?;
    }
    for file in ["mem", "maps", "environ"] {
        let opened = fs::File::open(format!("/proc/{pid}/{file}"));
        tally.refused(file, opened.is_ok())?;
    }
    let listed = fs::read_dir(format!("/proc/{pid}/fd"));
    tally.refused("the list of descriptors", listed.is_ok())?;
    let target = nix::unistd::Pid::from_raw(pid);
    let signaled = nix::sys::signal::kill(target, None);
    tally.refused("a signal", signaled.is_ok())
}

/// Files of the run directory.
fn files(context: &Context, tally: &mut Tally) -> Result<(), String> {
    let dir = context.run_dir.path();
    tally.refused("a file", fs::write(dir.join("file"), "").is_ok())?;
    for name in ["control.sock", "pid"] {
        let path = dir.join(name);
        tally.refused("removal", fs::remove_file(&path).is_ok())?;
        let mode = fs::Permissions::from_mode(0o777);
        tally.refused("chmod", fs::set_permissions(&path, mode).is_ok())?;
    }
    Ok(())
}
