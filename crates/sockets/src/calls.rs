//! Calls that move octets: by the kernel, or by the switch in attempts that do not wait.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr::null;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use libc::{iovec, pollfd, ssize_t};
use urdma_socket_switch::{peek, recv, send, Event, Sent, Taken, Waits};

use crate::begin::{begin, begin_without_rings, Begun};
use crate::connection::Connection;
use crate::host::Call;
use crate::limits::{self, Limit};
use crate::octets::{Octets, Window};
use crate::real::{self, set_errno};
use crate::reasons::Reason;
use crate::signals::{self, Masked};
use crate::sleepers::Begun as Begin;
use crate::spins::spin;
use crate::table::{self, Cell, Seen, State};
use crate::{agent, at_once, bell, leave, process, sets};

/// Flags of calls that the switch knows; a call with others is the kernel's.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;
const RECV_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC;

/// A call of the kernel's has moved octets.
pub(crate) fn count(fd: c_int, cell: &'static Cell, way: Way) {
    let seen = cell.seen();
    let is_send = !matches!(way, Way::Recv(_));
    if seen.state() == State::Alone && cell.count_call(is_send) >= process::offered_from() {
        agent::ask(fd, cell, seen.generation());
    }
}

/// How an attempt has ended. It reaches no cancellation point that is not disabled
/// ([`Disabled`](urdma_abi::cancel::Disabled)): [`Call`] makes its system calls directly.
enum Attempt {
    Moved(u64),
    /// A receive has found nothing, and has asked for no wake-up.
    Nothing,
    Waits(Event),
    End,
    Failed(c_int),
    /// TCP says what the call returns.
    Broken,
}

fn try_send(connection: &Connection, window: &Window, flags: c_int) -> Attempt {
    let mut call = Call::new(connection, window, flags);
    if connection.does_not_wait(flags) {
        call = call.without_a_wait();
    }
    let may_upgrade = connection.is_in_ring(connection.end) || connection.may_upgrade();
    match send(&call, window.len(), may_upgrade) {
        Ok(Sent::Octets(sent)) => Attempt::Moved(sent),
        Ok(Sent::Broken) => match call.errno.get() {
            0 | libc::EPIPE => Attempt::Broken,
            errno => Attempt::Failed(errno),
        },
        Err(Waits(event)) => Attempt::Waits(event),
    }
}

/// A receive. One that waits asks for a wake-up when it `has_spun`: for a thread that is awake, the
/// peer makes no system call.
fn try_recv(connection: &Connection, window: &Window, flags: c_int, has_spun: bool) -> Attempt {
    let does_wait = !connection.does_not_wait(flags);
    let asks = does_wait && has_spun;
    // Without news there is nothing to receive, which costs no lock to say.
    let attempt = if asks || connection.has_news() {
        receive(connection, window, flags, asks)
    } else {
        Attempt::Nothing
    };
    if !does_wait && connection.note_receive(matches!(attempt, Attempt::Moved(_))) {
        std::thread::yield_now();
    }
    attempt
}

/// `asks`: whether the peer is to wake this end when there is something.
fn receive(connection: &Connection, window: &Window, flags: c_int, asks: bool) -> Attempt {
    let call = Call::new(connection, window, 0);
    let taken = if flags & libc::MSG_PEEK == 0 {
        recv(&call, window.len(), asks)
    } else {
        peek(&call, window.len(), asks)
    };
    match taken {
        Ok(Taken::Octets(taken)) => Attempt::Moved(taken),
        Ok(Taken::End) => Attempt::End,
        Ok(Taken::Nothing) => Attempt::Nothing,
        Ok(Taken::Reset) => match call.errno.get() {
            0 => {
                connection.tell_reset();
                Attempt::Failed(libc::ECONNRESET)
            }
            errno => Attempt::Failed(errno),
        },
        Err(Waits(event)) => Attempt::Waits(event),
    }
}

/// What a call does, and its flags.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Send(c_int),
    /// The same, and it ends when some octets are sent.
    SendSome(c_int),
    Recv(c_int),
}

impl Way {
    fn flags(self) -> c_int {
        match self {
            Self::Send(flags) | Self::SendSome(flags) | Self::Recv(flags) => flags,
        }
    }

    /// How long a call waits.
    fn limit(self) -> Limit {
        match self {
            Self::Send(_) | Self::SendSome(_) => Limit::of_send(),
            Self::Recv(_) => Limit::of_receive(),
        }
    }

    /// Whether a call with flags that the switch does not know leaves later ones as they are.
    fn is_look(self) -> bool {
        match self {
            Self::Send(_) | Self::SendSome(_) => self.is_known(),
            Self::Recv(flags) => flags & !(RECV_FLAGS | libc::MSG_PEEK | libc::MSG_TRUNC) == 0,
        }
    }

    /// Whether a call that has moved some octets, and could move more, goes on.
    fn goes_on(self, connection: &Connection) -> bool {
        match self {
            // Until there is no room: what the program waits for then is noticed.
            Self::Send(_) => true,
            Self::SendSome(_) => false,
            Self::Recv(flags) => {
                // An attempt takes a piece of what the ring has.
                let has_more = flags & libc::MSG_PEEK == 0 && connection.has_octets();
                has_more || self.waits_for_all(connection)
            }
        }
    }

    /// Whether a call that has moved some octets waits for more.
    fn waits_for_all(self, connection: &Connection) -> bool {
        match self {
            Self::Send(_) => true,
            Self::SendSome(_) => false,
            Self::Recv(flags) => flags & libc::MSG_WAITALL != 0 && !connection.does_not_wait(flags),
        }
    }

    /// Whether its flags are those of [`at_once`].
    #[inline(always)]
    pub(crate) const fn may_be_at_once(self) -> bool {
        match self {
            Self::Send(flags) | Self::SendSome(flags) => flags & !SEND_FLAGS == 0,
            Self::Recv(flags) => flags & !(RECV_FLAGS & !libc::MSG_WAITALL) == 0,
        }
    }

    #[inline]
    pub(crate) fn is_known(self) -> bool {
        match self {
            Self::Send(flags) | Self::SendSome(flags) => flags & !SEND_FLAGS == 0,
            // A look that waits for all octets is the kernel's.
            Self::Recv(flags) if flags & libc::MSG_WAITALL == 0 => {
                flags & !(RECV_FLAGS | libc::MSG_PEEK) == 0
            }
            Self::Recv(flags) => flags & !RECV_FLAGS == 0,
        }
    }
}

/// Moves octets: by rings, or by `kernel`, the call of the program itself.
///
/// # Safety
/// The octets are the caller's. A cancellation point: its frames have no values to be dropped.
#[inline]
pub(crate) unsafe fn transfer(
    fd: c_int,
    octets: Option<Octets>,
    way: Way,
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    let Some((cell, seen)) = table::hit_as_seen(fd) else {
        return kernel();
    };
    if let Some(octets) = octets.filter(|_| way.is_known()) {
        if let Some(entered) = begin_without_rings(cell, seen) {
            return transfer_by_kernel(fd, (cell, entered), way, kernel);
        }
        // SAFETY: as for the caller.
        if let Some(result) = unsafe { transfer_at_once(fd, (cell, seen), octets, way) } {
            return result;
        }
    }
    // SAFETY: as for the caller.
    unsafe { transfer_by(fd, cell, octets, (way, false), kernel) }
}

/// The transfer of a connection that has rings, if it needs nothing else; `None` if nothing was
/// done.
///
/// # Safety
/// As [`transfer`].
#[inline]
unsafe fn transfer_at_once(
    fd: c_int,
    (cell, seen): (&'static Cell, Seen),
    octets: Octets,
    way: Way,
) -> Option<ssize_t> {
    if seen.state() != State::Rings || !way.may_be_at_once() {
        return None;
    }
    let iovec { iov_base, iov_len } = octets.only_part()?;
    let otherwise: at_once::Otherwise = at_once::not_done;
    let result = match way {
        // SAFETY: as for the caller.
        Way::Send(flags) | Way::SendSome(flags) => unsafe {
            at_once::send(fd, iov_base, iov_len, flags, cell, otherwise)
        },
        // SAFETY: as for the caller.
        Way::Recv(flags) => unsafe { at_once::recv(fd, iov_base, iov_len, flags, cell, otherwise) },
    };
    (result != at_once::NOT_DONE).then_some(result)
}

/// The same on a descriptor that has a cell, as a part of a call that has begun.
///
/// # Safety
/// As [`transfer`].
pub(crate) unsafe fn transfer_in_call(
    fd: c_int,
    cell: &'static Cell,
    octets: Option<Octets>,
    way: Way,
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    // SAFETY: as for the caller.
    unsafe { transfer_by(fd, cell, octets, (way, true), kernel) }
}

/// The transfer of a call that has entered and has no rings.
#[inline]
pub(crate) fn transfer_by_kernel(
    fd: c_int,
    (cell, entered): (&'static Cell, Seen),
    way: Way,
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    let result = kernel();
    if result > 0 {
        count(fd, cell, way);
    }
    cell.leave_since(entered);
    result
}

/// `has_begun`: the transfer is a part of a call ([`signals::begin_call`]). The kernel's calls need
/// no begin.
///
/// # Safety
/// As [`transfer`].
pub(crate) unsafe fn transfer_by(
    fd: c_int,
    cell: &'static Cell,
    octets: Option<Octets>,
    (way, has_begun): (Way, bool),
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    let is_nothing = octets.is_some_and(|octets| octets.len() == 0);
    if is_nothing && way.is_known() && !matches!(way, Way::Recv(_)) {
        // Nothing is sent, and the kernel says whether it could be.
        return kernel();
    }
    let Some(octets) = octets.filter(|octets| octets.len() > 0 && way.is_known()) else {
        if !way.is_look() {
            leave::retire(fd, Reason::Flags);
        }
        let entered = loop {
            match begin(cell) {
                Begun::Kernel(entered) => break entered,
                Begun::Rings(_) => cell.leave(),
            }
            leave::retire(fd, Reason::Flags);
        };
        let result = kernel();
        cell.leave_since(entered);
        return result;
    };
    // SAFETY: as for the caller.
    match unsafe { transfer_by_rings(fd, cell, octets, (way, has_begun)) } {
        Ok(result) => result,
        Err(entered) => transfer_by_kernel(fd, (cell, entered), way, kernel),
    }
}

/// The transfer of a connection that has rings; `Err` if it has none: the call has entered then.
/// What it needs is not saved by calls of connections that stay with TCP.
///
/// # Safety
/// As [`transfer`].
#[inline(never)]
unsafe fn transfer_by_rings(
    fd: c_int,
    cell: &'static Cell,
    octets: Octets,
    (way, mut has_begun): (Way, bool),
) -> Result<ssize_t, Seen> {
    let (mut done, mut limit, mut has_spun) = (0, way.limit(), false);
    loop {
        let masked = Masked::new();
        let connection = match begin(cell) {
            Begun::Rings(connection) => connection,
            Begun::Kernel(entered) if done == 0 => return Err(entered),
            Begun::Kernel(entered) => {
                cell.leave_since(entered);
                drop(masked);
                if matches!(way, Way::Recv(flags) if flags & libc::MSG_WAITALL == 0) {
                    return Ok(moved_so_far(done));
                }
                // SAFETY: as for the caller.
                return Ok(unsafe { rest_by_kernel(fd, octets, done, way) });
            }
        };
        if !std::mem::replace(&mut has_begun, true) {
            signals::begin_call();
        }
        let window = octets.after(done);
        let taken = connection.sleepers.taken();
        let attempt = match way {
            Way::Send(flags) | Way::SendSome(flags) => try_send(connection, &window, flags),
            Way::Recv(flags) => try_recv(connection, &window, flags, has_spun),
        };
        if connection.is_violated.load(SeqCst) {
            connection.reset();
            leave_attempt(cell, masked);
            leave::retire(fd, Reason::Violated);
            return Ok(failed(libc::ECONNRESET));
        }
        let pause = match attempt {
            Attempt::Moved(moved) => {
                done += usize::try_from(moved).unwrap_or(0);
                let goes_on = done < octets.len() && way.goes_on(connection);
                leave_attempt(cell, masked);
                if !goes_on {
                    return Ok(moved_so_far(done));
                }
                has_spun = false;
                continue;
            }
            Attempt::End => {
                leave_attempt(cell, masked);
                return Ok(moved_so_far(done));
            }
            Attempt::Failed(errno) => {
                leave_attempt(cell, masked);
                return Ok(ended(done, errno));
            }
            Attempt::Broken => {
                leave_attempt(cell, masked);
                leave::retire(fd, Reason::Error);
                continue;
            }
            Attempt::Nothing | Attempt::Waits(_) if connection.does_not_wait(way.flags()) => {
                leave_attempt(cell, masked);
                return Ok(ended(done, libc::EAGAIN));
            }
            // Another thread has taken them.
            Attempt::Nothing | Attempt::Waits(_) if done > 0 && !way.waits_for_all(connection) => {
                leave_attempt(cell, masked);
                return Ok(moved_so_far(done));
            }
            Attempt::Nothing => Pause::Spin,
            Attempt::Waits(event) => Pause::Sleep(event, taken),
        };
        has_spun = matches!(pause, Pause::Spin);
        // SAFETY: this call has entered; as for the caller.
        match unsafe { wait((cell, masked), connection, pause, &mut limit) } {
            Slept::Again => {}
            Slept::Never => leave::retire(fd, Reason::NoDescriptor),
            Slept::Ended(errno) => return Ok(ended(done, errno)),
            Slept::Closed => return Ok(failed(libc::EBADF)),
        }
    }
}

/// Ends an attempt. A handler that was put off runs when the call has left: it need not return.
#[inline]
fn leave_attempt(cell: &'static Cell, masked: Masked) {
    cell.leave();
    drop(masked);
}

/// A call has ended that has moved `done` octets: an error if there are none.
fn ended(done: usize, errno: c_int) -> ssize_t {
    if done > 0 {
        moved_so_far(done)
    } else {
        failed(errno)
    }
}

fn failed(errno: c_int) -> ssize_t {
    set_errno(errno);
    -1
}

fn moved_so_far(done: usize) -> ssize_t {
    ssize_t::try_from(done).unwrap_or(ssize_t::MAX)
}

/// Goes on with a call whose connection has left its rings meanwhile.
///
/// # Safety
/// As [`transfer`].
unsafe fn rest_by_kernel(fd: c_int, octets: Octets, done: usize, way: Way) -> ssize_t {
    let mut done = done;
    while done < octets.len() {
        let window = octets.after(done);
        let (mut parts, count) = window.first(window.len());
        // SAFETY: all zeroes is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = count;
        let moved = match way {
            // SAFETY: octets of the caller.
            Way::Send(flags) | Way::SendSome(flags) => unsafe {
                real::sendmsg(fd, &raw const message, flags)
            },
            // SAFETY: octets of the caller.
            Way::Recv(flags) => unsafe { real::recvmsg(fd, &raw mut message, flags) },
        };
        match usize::try_from(moved) {
            Ok(moved) if moved > 0 => done += moved,
            _ => break,
        }
    }
    moved_so_far(done)
}

/// What a call does that could move nothing.
enum Pause {
    /// It looks for octets of the ring, while that has lately paid.
    Spin,
    /// It sleeps until the event. The number is from before the attempt
    /// ([`Sleepers::taken`](crate::sleepers::Sleepers::taken)).
    Sleep(Event, u64),
}

/// How a pause has ended.
enum Slept {
    Again,
    /// The call ends, by a handler of a signal or its limit of time, with this errno if it has
    /// moved nothing.
    Ended(c_int),
    Closed,
    /// It was not possible.
    Never,
}

/// Ends the attempt of a call, and spins or sleeps until it may be repeated. The thread may end
/// here.
///
/// # Safety
/// The call has entered. A cancellation point, as [`transfer`].
unsafe fn wait(
    (cell, masked): (&'static Cell, Masked),
    connection: &'static Connection,
    pause: Pause,
    limit: &mut Limit,
) -> Slept {
    let left = limit.left(connection.socket());
    let ended = || match left {
        Some(Duration::ZERO) => Some(libc::EAGAIN),
        _ => signals::has_ended_call(left.is_some()).then_some(libc::EINTR),
    };
    if masked.has_put_off() || ended().is_some() {
        leave_attempt(cell, masked);
        return ended().map_or(Slept::Again, Slept::Ended);
    }
    let pointer = std::ptr::from_ref(connection).cast_mut();
    let generation = cell.seen().generation();
    // SAFETY: the call has entered, so the cell has its reference.
    unsafe { Connection::hold(pointer) };
    leave_attempt(cell, masked);
    // Handlers may have run that blocked signals held back.
    let slept = match (ended(), pause) {
        (Some(errno), _) => Slept::Ended(errno),
        // Something has come, or the next octets are TCP's.
        (None, Pause::Spin) if connection.has_news() => Slept::Again,
        (None, Pause::Spin) if spin(|| connection.has_news(), || connection.has_news()) => {
            Slept::Again
        }
        (None, Pause::Spin) if signals::has_ended_call(left.is_some()) => Slept::Ended(libc::EINTR),
        (None, Pause::Spin) => Slept::Again,
        // SAFETY: as for the caller.
        (None, Pause::Sleep(event, taken)) => unsafe { sleep(connection, (event, taken), left) },
    };
    // SAFETY: the reference of above; the connection is not used any more.
    drop(unsafe { Connection::from_raw(pointer) });
    if cell.seen().generation() != generation {
        Slept::Closed
    } else {
        slept
    }
}

/// Sleeps on the word of the ring if only the ring can end the wait, or else for the socket.
///
/// # Safety
/// As [`wait`].
unsafe fn sleep(
    connection: &Connection,
    (event, taken): (Event, u64),
    left: Option<Duration>,
) -> Slept {
    let slept = match event {
        // SAFETY: as for the caller.
        Event::Readable => unsafe { connection.sleep_for_ring(left) },
        Event::Writable | Event::Peer => None,
    };
    match slept {
        Some(result) if result == -std::ffi::c_long::from(libc::EINTR) => Slept::Ended(libc::EINTR),
        Some(_) => Slept::Again,
        // SAFETY: as for the caller.
        None => unsafe { sleep_for_socket(connection, (event, taken), left) },
    }
}

/// Sleeps until the socket or a bell ends the wait, or a handler of a signal, for at most `limit`.
///
/// # Safety
/// As [`wait`].
unsafe fn sleep_for_socket(
    connection: &Connection,
    (event, taken): (Event, u64),
    limit: Option<Duration>,
) -> Slept {
    let time = limit.map(limits::timespec);
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    let mine = match connection.sleepers.begin(taken) {
        Begin::Bell(mine) => mine,
        Begin::Taken => return Slept::Again,
        Begin::Impossible => return Slept::Never,
    };
    let entry = |fd, events| pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut list = [
        entry(connection.socket(), awaited(event)),
        entry(connection.bell.as_raw_fd(), libc::POLLIN),
        entry(mine, libc::POLLIN),
    ];
    // SAFETY: a list of three entries.
    let result = unsafe { real::ppoll(list.as_mut_ptr(), 3, time, null()) };
    let is_interrupted = signals::is_interrupted(result, limit.is_some());
    if list[1].revents != 0 {
        sets::silence(connection, mine);
    }
    if list[2].revents != 0 {
        bell::silence(mine);
    }
    connection.sleepers.end(mine);
    connection.note_socket(list[0].revents);
    if is_interrupted {
        Slept::Ended(libc::EINTR)
    } else {
        Slept::Again
    }
}

fn awaited(event: Event) -> libc::c_short {
    match event {
        Event::Readable => libc::POLLIN | libc::POLLRDHUP,
        Event::Writable => libc::POLLOUT,
        Event::Peer => libc::POLLRDHUP,
    }
}

#[cfg(test)]
mod tests;
