//! What the thread sleeps on: descriptors, deadlines, and calls of the application.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::errno::{lock, Errno};

/// The number of a socket, which no other socket of the process has.
pub(crate) type Token = u64;

/// The token of the bell; sockets have others.
const BELL: Token = 0;
/// How many descriptors are told of at once.
const FOUND: usize = 64;

#[derive(Debug, Default)]
struct Due {
    kicked: Vec<Token>,
    deadlines: HashMap<Token, Instant>,
    is_stopped: bool,
}

/// Descriptors, deadlines, and sockets that the application wants to be driven.
#[derive(Debug)]
pub(crate) struct Reactor {
    epoll: Epoll,
    bell: EventFd,
    due: Mutex<Due>,
}

impl Reactor {
    pub(crate) fn new() -> Result<Self, Errno> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        Ok(Self {
            epoll,
            bell,
            due: Mutex::default(),
        })
    }

    /// Drives a socket whenever a descriptor can be read, until the descriptor is closed.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, token: Token) -> Result<(), Errno> {
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, token);
        match self.epoll.add(fd, event) {
            // It was watched for the listener that has accepted the connection.
            Err(nix::Error::EEXIST) => Ok(self.epoll.modify(fd, &mut event)?),
            added => Ok(added?),
        }
    }

    /// Drives a socket as soon as possible.
    pub(crate) fn kick(&self, token: Token) {
        let mut due = lock(&self.due);
        if !due.kicked.contains(&token) {
            due.kicked.push(token);
            self.ring();
        }
    }

    /// Drives a socket at this moment in place of the last one that was set.
    pub(crate) fn set_deadline(&self, token: Token, deadline: Option<Instant>) {
        let mut due = lock(&self.due);
        let old = match deadline {
            Some(deadline) => due.deadlines.insert(token, deadline),
            None => due.deadlines.remove(&token),
        };
        if deadline.is_some_and(|new| old.is_none_or(|old| new < old)) {
            self.ring();
        }
    }

    /// Makes [`Reactor::wait`] return `None` from now on.
    pub(crate) fn stop(&self) {
        lock(&self.due).is_stopped = true;
        self.ring();
    }

    /// Sleeps until sockets are to be driven: which.
    pub(crate) fn wait(&self) -> Option<Vec<Token>> {
        let mut found = [EpollEvent::empty(); FOUND];
        // A signal ends the sleep, which is repeated then.
        let count = self.epoll.wait(&mut found, self.limit()).unwrap_or(0);
        let mut tokens: Vec<Token> = found[..count].iter().map(EpollEvent::data).collect();
        let mut due = lock(&self.due);
        if tokens.contains(&BELL) {
            // It cannot fail: the bell can be read.
            let _ = self.bell.read();
            tokens.retain(|&token| token != BELL);
        }
        if due.is_stopped {
            return None;
        }
        tokens.append(&mut due.kicked);
        let now = Instant::now();
        due.deadlines.retain(|&token, &mut deadline| {
            let is_due = deadline <= now;
            if is_due {
                tokens.push(token);
            }
            !is_due
        });
        tokens.sort_unstable();
        tokens.dedup();
        Some(tokens)
    }

    fn limit(&self) -> EpollTimeout {
        let due = lock(&self.due);
        let Some(&next) = due.deadlines.values().min() else {
            return EpollTimeout::NONE;
        };
        let left = next.saturating_duration_since(Instant::now());
        // Rounded up, so that a short limit is not a busy loop.
        let left = left + Duration::from_micros(999);
        EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX)
    }

    fn ring(&self) {
        // It fails only if the count is full, when the bell can be read, too.
        let _ = self.bell.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_that_is_kicked_twice_wakes_the_thread_once() {
        let reactor = Reactor::new().unwrap();
        reactor.kick(7);
        reactor.kick(7);
        assert_eq!(reactor.bell.read(), Ok(1));
        reactor.ring();
        assert_eq!(reactor.wait(), Some(vec![7]));
    }
}
