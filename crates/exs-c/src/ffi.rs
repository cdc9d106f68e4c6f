//! The calls of `include/exs.h`, and the only unsafe code of this crate.
//!
//! Pointers of the application are turned into values here, before safe code is called.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno as SystemErrno;
use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrLike};
use urdma_abi::address;
use urdma_exs::{Buffer, Memory, Options};

use crate::errno::Errno;
use crate::file::Part;
use crate::library::Library;
use crate::operation::{Details, Event, Kind, Operation, Registered};

/// EXS_VERSION.
const VERSION: c_int = 1;
/// EXS_ACCESS_READ and EXS_ACCESS_WRITE.
const ACCESS_READ: c_int = 1;
const ACCESS_WRITE: c_int = 2;
/// The number of no descriptor.
const NONE: c_int = -1;

/// `exs_evt_xfer`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ExsTransfer {
    buffer: usize,
    length: usize,
    mhandle: usize,
}

/// `exs_evt_accept`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ExsAccept {
    new_socket: c_int,
}

/// `exs_evt_union`.
#[repr(C)]
#[derive(Clone, Copy)]
union ExsDetails {
    transfer: ExsTransfer,
    accept: ExsAccept,
}

/// `exs_event_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExsEvent {
    kind: c_int,
    errno: c_int,
    socket: c_int,
    ahandle: usize,
    details: ExsDetails,
}

/// Makes a call: its result, or `failed` after setting errno.
fn call<T>(failed: T, call: impl FnOnce() -> Result<T, Errno>) -> T {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno(libc::EIO)));
    result.unwrap_or_else(|Errno(errno)| {
        SystemErrno::set_raw(errno);
        failed
    })
}

/// Refuses flags other than these.
fn check_flags(flags: c_int, known: c_int) -> Result<(), Errno> {
    match flags & !known {
        0 => Ok(()),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// An operation with a place in its queue.
fn operation(
    library: &Library,
    [number, queue]: [c_int; 2],
    kind: Kind,
    ahandle: usize,
    details: Details,
) -> Result<Operation, Errno> {
    let event = Event {
        kind,
        errno: 0,
        number,
        ahandle,
        details,
    };
    Ok(Operation {
        event,
        memory: None,
        place: library.queue(queue)?.reserve()?,
    })
}

/// The address that the application points to.
///
/// # Safety
/// There are `len` octets, or the pointer is null.
unsafe fn address_at(at: *const libc::sockaddr, len: libc::socklen_t) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller says.
    unsafe { address::read(at, len) }.map_err(Errno)
}

/// Starts the library.
#[no_mangle]
pub(crate) extern "C" fn exs_init(version: c_int) -> c_int {
    call(-1, || {
        if version != VERSION {
            return Err(Errno(libc::EINVAL));
        }
        let _ = library()?;
        Ok(0)
    })
}

/// The library; the first call also arranges its end.
fn library() -> Result<&'static Library, Errno> {
    extern "C" fn at_exit() {
        if let Ok(library) = Library::of_process() {
            library.end();
        }
    }
    static REGISTERED: std::sync::Once = std::sync::Once::new();
    let library = Library::of_process()?;
    REGISTERED.call_once(|| {
        // SAFETY: the function does not unwind, and this library is never unloaded. Without memory
        // for the entry the process ends without waiting for closed sockets.
        unsafe { libc::atexit(at_exit) };
    });
    Ok(library)
}

/// Registers memory of the caller.
///
/// # Safety
/// The memory is allocated until `exs_mderegister` succeeds for it.
#[no_mangle]
pub(crate) unsafe extern "C" fn exs_mregister(
    buf: *mut c_void,
    len: usize,
    access: c_int,
) -> usize {
    call(0, || {
        let is_known = access != 0 && access & !(ACCESS_READ | ACCESS_WRITE) == 0;
        let start = NonNull::new(buf.cast::<u8>()).filter(|_| is_known && len > 0);
        let start = start.ok_or(Errno(libc::EINVAL))?;
        start.addr().checked_add(len).ok_or(Errno(libc::EFAULT))?;
        Ok(library()?.register(Registered {
            // SAFETY: as the caller says; deregistration is refused while a buffer is used, and
            // tells all connections to forget the memory.
            memory: unsafe { Memory::new(start, len) },
            start: start.addr().get(),
            may_send: access & ACCESS_READ != 0,
            may_receive: access & ACCESS_WRITE != 0,
        }))
    })
}

/// Ends the registration of memory.
#[no_mangle]
pub(crate) extern "C" fn exs_mderegister(mhandle: usize) -> c_int {
    call(-1, || library()?.deregister(mhandle).map(|()| 0))
}

/// Makes an event queue.
#[no_mangle]
pub(crate) extern "C" fn exs_qcreate(depth: c_int) -> c_int {
    call(NONE, || {
        let depth = usize::try_from(depth).unwrap_or(0);
        if depth == 0 {
            return Err(Errno(libc::EINVAL));
        }
        library()?.create_queue(depth)
    })
}

/// Takes events of a queue.
///
/// # Safety
/// `events` has room for `count` events, and the timeout can be read, or is null. Addresses that
/// were passed to `exs_accept` can be written.
#[no_mangle]
pub(crate) unsafe extern "C" fn exs_qdequeue(
    queue: c_int,
    events: *mut ExsEvent,
    count: c_int,
    timeout: *const libc::timeval,
) -> c_int {
    call(-1, || {
        let most = usize::try_from(count).unwrap_or(0);
        let to = NonNull::new(events).filter(|_| most > 0);
        let to = to.ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as the caller says.
        let limit = unsafe { timeout.as_ref() }.map(duration).transpose()?;
        let taken = library()?.queue(queue)?.dequeue(most, limit)?;
        for (index, event) in taken.iter().enumerate() {
            // SAFETY: there is room for `most` events, of which this is one.
            unsafe { to.add(index).write(raw_event(event)) };
            if let Details::Accept {
                peer: Some(peer),
                wanted_at,
                ..
            } = event.details
            {
                // SAFETY: as the caller says.
                unsafe { write_address(peer, wanted_at) };
            }
        }
        c_int::try_from(taken.len()).map_err(|_| Errno(libc::EOVERFLOW))
    })
}

fn duration(timeout: &libc::timeval) -> Result<Duration, Errno> {
    let seconds = u64::try_from(timeout.tv_sec).map_err(|_| Errno(libc::EINVAL))?;
    let micros = u32::try_from(timeout.tv_usec).map_err(|_| Errno(libc::EINVAL))?;
    let nanos = micros.checked_mul(1000).ok_or(Errno(libc::EINVAL))?;
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(u64::from(nanos))))
}

fn raw_event(event: &Event) -> ExsEvent {
    let mut raw = ExsEvent {
        kind: match event.kind {
            Kind::Send => 1,
            Kind::Recv => 2,
            Kind::Sendfile => 3,
            Kind::Accept => 4,
            Kind::Connect => 5,
        },
        errno: event.errno,
        socket: event.number,
        ahandle: event.ahandle,
        details: ExsDetails {
            transfer: ExsTransfer {
                buffer: 0,
                length: 0,
                mhandle: 0,
            },
        },
    };
    match event.details {
        Details::Transfer {
            buffer,
            length,
            mhandle,
        } => {
            raw.details.transfer = ExsTransfer {
                buffer,
                length,
                mhandle,
            };
        }
        Details::Accept { number, .. } => raw.details.accept.new_socket = number,
        Details::Connect => {}
    }
    raw
}

/// Writes the address of a peer where accept(2) would: as much of it as there is room for.
///
/// # Safety
/// Neither address, or both, were passed to `exs_accept`, and can be written.
unsafe fn write_address(peer: SocketAddr, [at, len_at]: [usize; 2]) {
    let (at, len_at) = (at as *mut u8, len_at as *mut libc::socklen_t);
    if at.is_null() || len_at.is_null() {
        return;
    }
    let (v4, v6);
    let (address, size): (*const u8, usize) = match peer {
        SocketAddr::V4(peer) => {
            v4 = SockaddrIn::from(peer);
            (v4.as_ptr().cast(), size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(peer) => {
            v6 = SockaddrIn6::from(peer);
            (v6.as_ptr().cast(), size_of::<libc::sockaddr_in6>())
        }
    };
    // SAFETY: as the caller says.
    let room = unsafe { len_at.read() };
    let count = usize::try_from(room).unwrap_or(0).min(size);
    // SAFETY: the address has this many octets, and the application room for them.
    unsafe { at.copy_from_nonoverlapping(address, count) };
    // SAFETY: the address has this many octets, and the application room for them.
    unsafe { len_at.write(libc::socklen_t::try_from(size).unwrap_or(room)) };
}

/// Deletes an event queue.
#[no_mangle]
pub(crate) extern "C" fn exs_qdelete(queue: c_int) -> c_int {
    call(-1, || library()?.delete_queue(queue).map(|()| 0))
}

/// Makes a socket.
#[no_mangle]
pub(crate) extern "C" fn exs_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call(NONE, || {
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        if protocol != 0 {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let mut options = Options::default();
        options.config.kind = match kind {
            libc::SOCK_STREAM => urdma_exs::Kind::Octets,
            libc::SOCK_SEQPACKET => urdma_exs::Kind::Messages,
            _ => return Err(Errno(libc::ESOCKTNOSUPPORT)),
        };
        library()?.sockets.add(options)
    })
}

/// Gives a socket an address.
///
/// # Safety
/// There are `len` octets at `address`.
#[no_mangle]
pub(crate) unsafe extern "C" fn exs_bind(
    number: c_int,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    call(-1, || {
        let socket = library()?.sockets.get(number)?;
        // SAFETY: as the caller says.
        socket.bind(unsafe { address_at(address, len) }?)?;
        Ok(0)
    })
}

/// Lets a socket listen.
#[no_mangle]
pub(crate) extern "C" fn exs_listen(number: c_int, backlog: c_int) -> c_int {
    call(-1, || {
        let sockets = &library()?.sockets;
        let socket = sockets.get(number)?;
        socket.listen(backlog.max(1), &sockets.reactor)?;
        Ok(0)
    })
}

/// Posts the acceptance of a client.
///
/// # Safety
/// The address and its length can be written until the event was taken, or are null.
#[no_mangle]
pub(crate) unsafe extern "C" fn exs_accept(
    number: c_int,
    address: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    flags: c_int,
    ahandle: usize,
    queue: c_int,
) -> c_int {
    call(-1, || {
        let library = library()?;
        let socket = library.sockets.get(number)?;
        check_flags(flags, 0)?;
        if address.is_null() != len.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let details = Details::Accept {
            number: NONE,
            peer: None,
            wanted_at: [address as usize, len as usize],
        };
        let posted = operation(library, [number, queue], Kind::Accept, ahandle, details)?;
        socket.accept(posted, &library.sockets.reactor)?;
        Ok(0)
    })
}

/// Posts a connection to a listener.
///
/// # Safety
/// There are `len` octets at `address`.
#[no_mangle]
pub(crate) unsafe extern "C" fn exs_connect(
    number: c_int,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
    flags: c_int,
    ahandle: usize,
    queue: c_int,
) -> c_int {
    call(-1, || {
        let library = library()?;
        let socket = library.sockets.get(number)?;
        check_flags(flags, 0)?;
        // SAFETY: as the caller says.
        let to = unsafe { address_at(address, len) }?;
        let numbers = [number, queue];
        let posted = operation(library, numbers, Kind::Connect, ahandle, Details::Connect)?;
        socket.connect(to, posted, &library.sockets.reactor)?;
        Ok(0)
    })
}

/// Memory of a send or receive.
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    len: usize,
    mhandle: usize,
}

/// A send or receive of registered memory, and its buffer.
fn transfer(
    library: &Library,
    numbers: [c_int; 2],
    kind: Kind,
    ahandle: usize,
    range: Range,
) -> Result<(Operation, Buffer), Errno> {
    let registered = library.memory(range.mhandle)?;
    let is_permitted = match kind {
        Kind::Recv => registered.may_receive,
        _ => registered.may_send,
    };
    if !is_permitted {
        return Err(Errno(libc::EACCES));
    }
    let at = range.start.checked_sub(registered.start);
    let at = at.ok_or(Errno(libc::EFAULT))?;
    // SAFETY: the application leaves the octets alone until it has the event, and no part of this
    // library reads or writes a buffer as a slice.
    let buffer = unsafe { registered.memory.buffer(at, range.len) };
    let buffer = buffer.ok_or(Errno(libc::EFAULT))?;
    let details = Details::Transfer {
        buffer: range.start,
        length: 0,
        mhandle: range.mhandle,
    };
    let mut posted = operation(library, numbers, kind, ahandle, details)?;
    posted.memory = Some(Arc::clone(&registered));
    Ok((posted, buffer))
}

/// Posts a send or receive of registered memory.
fn post(numbers: [c_int; 2], kind: Kind, flags: c_int, ahandle: usize, range: Range) -> c_int {
    call(-1, || {
        let library = library()?;
        let socket = library.sockets.get(numbers[0])?;
        let is_recv = kind == Kind::Recv;
        let known = match is_recv {
            true => libc::MSG_WAITALL,
            false => libc::MSG_NOSIGNAL,
        };
        check_flags(flags, known)?;
        let (posted, buffer) = transfer(library, numbers, kind, ahandle, range)?;
        let reactor = &library.sockets.reactor;
        match is_recv {
            true => socket.recv(buffer, flags & libc::MSG_WAITALL != 0, posted, reactor)?,
            false => socket.send(buffer, posted, reactor)?,
        }
        Ok(0)
    })
}

/// Posts a send.
///
/// # Safety
/// The buffer is not written until the event was taken.
#[no_mangle]
pub(crate) unsafe extern "C" fn exs_send(
    number: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    mhandle: usize,
    ahandle: usize,
    queue: c_int,
) -> c_int {
    let range = Range {
        start: buf.addr(),
        len,
        mhandle,
    };
    post([number, queue], Kind::Send, flags, ahandle, range)
}

/// Posts a receive.
///
/// # Safety
/// The buffer is neither read nor written until the event was taken.
#[no_mangle]
pub(crate) unsafe extern "C" fn exs_recv(
    number: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    mhandle: usize,
    ahandle: usize,
    queue: c_int,
) -> c_int {
    let range = Range {
        start: buf.addr(),
        len,
        mhandle,
    };
    post([number, queue], Kind::Recv, flags, ahandle, range)
}

/// Posts a send of octets of a file.
///
/// # Safety
/// `file` is a descriptor or none.
#[no_mangle]
pub(crate) unsafe extern "C" fn exs_sendfile(
    number: c_int,
    file: c_int,
    offset: libc::off_t,
    len: usize,
    flags: c_int,
    ahandle: usize,
    queue: c_int,
) -> c_int {
    call(-1, || {
        let library = library()?;
        let socket = library.sockets.get(number)?;
        check_flags(flags, libc::MSG_NOSIGNAL)?;
        if file < 0 {
            return Err(Errno(libc::EBADF));
        }
        let details = Details::Transfer {
            buffer: 0,
            length: 0,
            mhandle: 0,
        };
        let posted = operation(library, [number, queue], Kind::Sendfile, ahandle, details)?;
        // SAFETY: it is used during the call only; if it is not open, reading fails.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let part = Part::new(file, offset, len)?;
        socket.send_file(part, posted, &library.sockets.reactor)?;
        Ok(0)
    })
}

/// Cancels operations of a socket.
#[no_mangle]
pub(crate) extern "C" fn exs_cancel(number: c_int, ahandle: usize) -> c_int {
    call(-1, || {
        let sockets = &library()?.sockets;
        sockets.get(number)?.cancel(ahandle, &sockets.reactor)?;
        Ok(0)
    })
}

/// Finishes one or both halves of a connection.
#[no_mangle]
pub(crate) extern "C" fn exs_shutdown(number: c_int, how: c_int) -> c_int {
    call(-1, || {
        let sockets = &library()?.sockets;
        let socket = sockets.get(number)?;
        let (sends, receives) = match how {
            libc::SHUT_RD => (false, true),
            libc::SHUT_WR => (true, false),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno(libc::EINVAL)),
        };
        socket.shut_down(sends, receives, &sockets.reactor)?;
        Ok(0)
    })
}

/// Closes a socket.
#[no_mangle]
pub(crate) extern "C" fn exs_close(number: c_int) -> c_int {
    call(-1, || library()?.sockets.close(number).map(|()| 0))
}

// As a C compiler lays exs_event_t out where pointers have 64 bits.
const _: () = assert!(size_of::<ExsEvent>() == 48);
