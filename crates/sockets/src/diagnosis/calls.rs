//! System calls that use descriptors, and which of those that they name are sockets and sets of
//! this library.

use libc::{c_int, c_long, greg_t, iovec, pollfd, ucontext_t};

use crate::sets;
use crate::table::{self, State};

/// Which arguments are descriptors.
#[derive(Debug, Clone, Copy)]
enum Names {
    At(usize),
    Both(usize, usize),
    /// A list of poll(2).
    Polled,
    /// The sets of select(2).
    Selected,
    /// An epoll set.
    Set,
    /// An epoll set and a descriptor.
    Member,
}

use Names::{At, Both, Member, Polled, Selected, Set};

const CALLS: [(c_long, &str, Names); 31] = [
    (libc::SYS_read, "read", At(0)),
    (libc::SYS_write, "write", At(0)),
    (libc::SYS_close, "close", At(0)),
    (libc::SYS_poll, "poll", Polled),
    (libc::SYS_ioctl, "ioctl", At(0)),
    (libc::SYS_readv, "readv", At(0)),
    (libc::SYS_writev, "writev", At(0)),
    (libc::SYS_select, "select", Selected),
    (libc::SYS_dup, "dup", At(0)),
    (libc::SYS_dup2, "dup2", Both(0, 1)),
    (libc::SYS_sendfile, "sendfile", At(0)),
    (libc::SYS_connect, "connect", At(0)),
    (libc::SYS_sendto, "sendto", At(0)),
    (libc::SYS_recvfrom, "recvfrom", At(0)),
    (libc::SYS_sendmsg, "sendmsg", At(0)),
    (libc::SYS_recvmsg, "recvmsg", At(0)),
    (libc::SYS_shutdown, "shutdown", At(0)),
    (libc::SYS_setsockopt, "setsockopt", At(0)),
    (libc::SYS_fcntl, "fcntl", At(0)),
    (libc::SYS_epoll_wait, "epoll_wait", Set),
    (libc::SYS_epoll_ctl, "epoll_ctl", Member),
    (libc::SYS_pselect6, "pselect6", Selected),
    (libc::SYS_ppoll, "ppoll", Polled),
    (libc::SYS_splice, "splice", Both(0, 2)),
    (libc::SYS_epoll_pwait, "epoll_pwait", Set),
    (libc::SYS_dup3, "dup3", Both(0, 1)),
    (libc::SYS_recvmmsg, "recvmmsg", At(0)),
    (libc::SYS_sendmmsg, "sendmmsg", At(0)),
    (libc::SYS_preadv2, "preadv2", At(0)),
    (libc::SYS_pwritev2, "pwritev2", At(0)),
    (libc::SYS_epoll_pwait2, "epoll_pwait2", Set),
];

/// A system call as its instruction finds it.
pub(super) struct Registers {
    pub(super) number: libc::c_long,
    pub(super) arguments: [usize; 6],
    /// Behind the instruction.
    pub(super) address: usize,
}

impl Registers {
    pub(super) fn of(context: &ucontext_t) -> Self {
        let value = |register: c_int| context.uc_mcontext.gregs[register as usize];
        let arguments = [
            libc::REG_RDI,
            libc::REG_RSI,
            libc::REG_RDX,
            libc::REG_R10,
            libc::REG_R8,
            libc::REG_R9,
        ];
        Self {
            number: value(libc::REG_RAX),
            arguments: arguments.map(|register| word(value(register))),
            address: word(value(libc::REG_RIP)),
        }
    }
}

/// The value of a register.
pub(super) fn word(register: greg_t) -> usize {
    usize::from_ne_bytes(register.to_ne_bytes())
}

/// A descriptor of this library's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    WithRings(c_int),
    Candidate(c_int),
    Set(c_int),
}

/// The name of a system call, and a descriptor that it uses, if this library has to know of the
/// call.
pub(super) fn look(registers: &Registers) -> Option<(&'static str, Found)> {
    let (_, name, names) = CALLS
        .iter()
        .find(|(number, ..)| *number == registers.number)?;
    let fd = |index: usize| descriptor(registers.arguments[index]);
    let found = match *names {
        At(index) => socket(fd(index)),
        Both(one, other) => socket(fd(one)).or_else(|| socket(fd(other))),
        Polled => polled(registers.arguments[0], registers.arguments[1]),
        Selected => selected(&registers.arguments),
        Set => set(fd(0)),
        Member => socket(fd(2)).or_else(|| set(fd(0))),
    };
    Some((name, found?))
}

/// The lower half of a register; the upper one has no meaning.
fn descriptor(value: usize) -> c_int {
    let [a, b, c, d, ..] = value.to_le_bytes();
    c_int::from_le_bytes([a, b, c, d])
}

fn socket(fd: c_int) -> Option<Found> {
    match table::cell(fd)?.seen().state() {
        State::Kernel | State::Ending => None,
        State::Ready | State::Rings => Some(Found::WithRings(fd)),
        State::Alone | State::Offered | State::Waits | State::Pausing => Some(Found::Candidate(fd)),
    }
}

fn set(fd: c_int) -> Option<Found> {
    let set = sets::known(fd).filter(|set| !set.is_plain());
    set.map(|set| Found::Set(set.fd()))
}

/// A socket in a list of poll(2), which may be no memory of the program.
fn polled(list: usize, count: usize) -> Option<Found> {
    const PART: usize = 32;
    const NONE: pollfd = pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    };
    // No list is longer.
    let count = count.min(table::DESCRIPTORS);
    (0..count).step_by(PART).find_map(|first| {
        let mut part = [NONE; PART];
        let at = list.wrapping_add(first * size_of::<pollfd>());
        let entries = &mut part[..PART.min(count - first)];
        copy(at, entries);
        entries.iter().find_map(|entry| socket(entry.fd))
    })
}

/// A socket in the sets of select(2).
fn selected(arguments: &[usize; 6]) -> Option<Found> {
    const WORDS: usize = libc::FD_SETSIZE / 64;
    let count = usize::try_from(descriptor(arguments[0])).unwrap_or(0);
    let words = count.div_ceil(64).min(WORDS);
    arguments[1..4].iter().find_map(|at| {
        let mut set = [0_u64; WORDS];
        copy(*at, &mut set[..words]);
        let has = |fd: &usize| set[fd / 64] & 1 << (fd % 64) != 0;
        let mut fds = (0..count.min(libc::FD_SETSIZE)).filter(has);
        fds.find_map(|fd| socket(descriptor(fd)))
    })
}

/// Copies values from an address of the program, if it has memory there.
fn copy<T: Copy>(at: usize, values: &mut [T]) {
    let octets = size_of_val(values);
    let part = |base: *mut T| iovec {
        iov_base: base.cast(),
        iov_len: octets,
    };
    let (own, other) = (part(values.as_mut_ptr()), part(at as *mut T));
    // SAFETY: the kernel writes to `values`, whose type any octets are a value of.
    unsafe { libc::process_vm_readv(libc::getpid(), &raw const own, 1, &raw const other, 1, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_program_is_copied_and_no_other() {
        let mut values = [1_u64, 2];
        copy([7_u64, 8].as_ptr().addr(), &mut values);
        assert_eq!(values, [7, 8]);
        copy(8, &mut values);
        assert_eq!(values, [7, 8]);
    }
}
