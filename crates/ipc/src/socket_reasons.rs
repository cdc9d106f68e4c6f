//! Why sockets of programs in `urdma run --sockets` stay with TCP or move back to it.

use serde::{Deserialize, Serialize};

use crate::named::named;

named! {
    /// Why a socket has no rings, or has them no more (doc/sockets.md), in the order of the counts
    /// in the memory of a process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum SocketReason {
        /// The addresses of its ends are not equal, and not both of the loopback interface.
        OtherHost = "other_host",
        /// The configuration of the program or of urdmad excludes an address or port of it.
        Excluded = "excluded",
        /// The other end was not offered while this one was.
        PeerAbsent = "peer_absent",
        /// No established connection of two sockets, or one that is offered already.
        NotConnected = "not_connected",
        /// The user has too many connections with rings.
        TooMany = "too_many",
        /// urdmad's limit of open files, no memory, or a process that does not read its messages.
        NoRoom = "no_room",
        /// No urdmad runs, or it ended before it answered.
        UrdmadGone = "urdmad_gone",
        /// No descriptor, or no memory, in the process.
        NoDescriptor = "no_descriptor",
        /// An option that changes what a receive does, or asks for signals.
        Option = "option",
        /// Flags of a send or receive, such as those of out-of-band data and MSG_TRUNC; control
        /// data.
        Flags = "flags",
        /// ioctl(2), such as SIOCATMARK.
        Ioctl = "ioctl",
        /// shutdown(2) while it has rings.
        Shutdown = "shutdown",
        /// splice(2), tee(2), sendfile(2) of a file that is not regular.
        Splice = "splice",
        /// Another call that rings do not have, such as sendmmsg(2) and fdopen(3).
        OtherCall = "other_call",
        /// A system call by syscall(3).
        Syscall = "syscall",
        /// The process uses io_uring.
        IoUring = "io_uring",
        /// An epoll set that is given up, EPOLLEXCLUSIVE, or a second set.
        Epoll = "epoll",
        /// Too many entries in one call of poll or select.
        Poll = "poll",
        /// A second descriptor: dup(2) and the like.
        Dup = "dup",
        /// The descriptor was passed by SCM_RIGHTS.
        Passed = "passed",
        /// fork(2): until the child has ended.
        Fork = "fork",
        /// clone(2) or _Fork(3).
        Clone = "clone",
        /// The process executes another program.
        Exec = "exec",
        /// A program that is started inherits the descriptor.
        Inherited = "inherited",
        /// TCP has an error.
        Error = "error",
        /// The peer's process has broken the rules of the memory.
        Violated = "violated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_names_of_the_text() {
        for reason in SocketReason::ALL {
            let json = serde_json::to_value(reason).unwrap();
            assert_eq!(json, reason.name());
        }
    }
}
