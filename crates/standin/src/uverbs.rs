//! The requests that libibverbs itself makes on a uverbs file, not through the provider: the
//! command CREATE_COMP_CHANNEL and the method ASYNC_EVENT_ALLOC. All others are refused.

use std::ffi::c_int;

use crate::fds::{self, Kind};
use crate::{provider, real};
use urdma_abi::event_socket::event_socket;
use urdma_abi::front::FrontTable;

/// `IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL`.
const CREATE_COMP_CHANNEL: u32 = 17;
/// Header and body of CREATE_COMP_CHANNEL.
const COMMAND_OCTETS: usize = 16;

/// `RDMA_VERBS_IOCTL`: one method, with attributes.
pub(crate) const METHOD_REQUEST: libc::c_ulong = 0xc018_1b01;
/// `UVERBS_OBJECT_ASYNC_EVENT`.
const OBJECT_ASYNC_EVENT: u16 = 16;
/// `UVERBS_METHOD_ASYNC_EVENT_ALLOC`.
const METHOD_ASYNC_EVENT_ALLOC: u16 = 0;

/// `struct ib_uverbs_ioctl_hdr`.
#[repr(C)]
pub(crate) struct MethodHeader {
    length: u16,
    object: u16,
    method: u16,
    attribute_count: u16,
    reserved1: u64,
    driver: u32,
    reserved2: u32,
}

/// `struct ib_uverbs_attr`.
#[repr(C)]
struct Attribute {
    number: u16,
    len: u16,
    flags: u16,
    reserved: u16,
    data: i64,
}

/// Executes a method; fails with an errno. A file of another process is refused, since its objects
/// are not in this process.
///
/// # Safety
/// `header` is null or a method, followed by the number of attributes in the header.
pub(crate) unsafe fn method(
    fd: c_int,
    is_mine: bool,
    header: *mut MethodHeader,
) -> Result<(), c_int> {
    if header.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller guarantees it.
    let (object, method, count) = unsafe {
        (
            (*header).object,
            (*header).method,
            (*header).attribute_count,
        )
    };
    if (object, method, count) != (OBJECT_ASYNC_EVENT, METHOD_ASYNC_EVENT_ALLOC, 1) {
        return Err(libc::ENOTTY);
    }
    if !is_mine {
        return Err(libc::EIO);
    }
    let table = provider::table().ok_or(libc::ENODEV)?;
    // SAFETY: no precondition.
    let opened = unsafe { (table.async_open)(fd) };
    if opened < 0 {
        return Err(c_int::try_from(-opened).unwrap_or(libc::EIO));
    }
    // SAFETY: the caller guarantees that the one attribute, which receives the descriptor, follows
    // the header.
    unsafe { (*header.add(1).cast::<Attribute>()).data = opened };
    Ok(())
}

const _: () = {
    assert!(size_of::<MethodHeader>() == 24);
    assert!(size_of::<Attribute>() == 16);
};

/// Executes a write to a uverbs file; returns a negative errno on failure.
///
/// # Safety
/// The address in the command is valid for 4 octets, as the uverbs ABI requires.
pub(crate) unsafe fn command(octets: &[u8]) -> i64 {
    let Some(command) = octets.first_chunk::<COMMAND_OCTETS>() else {
        return -i64::from(libc::EINVAL);
    };
    let (header, response) = command.split_at(8);
    let number = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    if number != CREATE_COMP_CHANNEL {
        return -i64::from(libc::ENOSYS);
    }
    let mut address = [0; 8];
    address.copy_from_slice(response);
    let answer = usize::from_ne_bytes(address) as *mut u32;
    if answer.is_null() {
        return -i64::from(libc::EFAULT);
    }
    match create_channel() {
        Ok(fd) => {
            // SAFETY: the caller guarantees it; the place need not be aligned.
            unsafe { answer.write_unaligned(fd.cast_unsigned()) };
            i64::try_from(octets.len()).unwrap_or(i64::MAX)
        }
        Err(errno) => -i64::from(errno),
    }
}

fn create_channel() -> Result<c_int, c_int> {
    let table = provider::table().ok_or(libc::ENODEV)?;
    let ends = event_socket().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    let outcome = hand_over(table, ends);
    if outcome.is_err() {
        for fd in ends {
            // SAFETY: the descriptors are owned here; the provider has not taken them.
            unsafe { real::close(fd) };
        }
    }
    outcome
}

fn hand_over(table: &FrontTable, [read_fd, write_fd]: [c_int; 2]) -> Result<c_int, c_int> {
    // SAFETY: fcntl with F_SETFL touches no memory.
    if unsafe { libc::fcntl(write_fd, libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return Err(real::errno());
    }
    if !fds::add(read_fd, Kind::Channel, 0) {
        return Err(libc::EMFILE);
    }
    // SAFETY: both descriptors are open; the provider takes the second.
    let taken = unsafe { (table.channel_open)(read_fd, write_fd) };
    if taken < 0 {
        fds::remove(read_fd);
        return Err(c_int::try_from(-taken).unwrap_or(libc::EIO));
    }
    Ok(read_fd)
}
