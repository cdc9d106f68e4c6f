//! An end of a TCP connection that sleeps in epoll_wait(2), beside descriptors on which nothing
//! happens.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::resource::{getrlimit, setrlimit, Resource};

use crate::ping_pong::{End, OCTETS};
use crate::text;

/// Descriptors of a process beside the idle ones.
const OTHERS: u64 = 256;
/// Events that a wait reports at most.
const REPORTED: usize = 64;

pub(crate) struct MemberEnd {
    stream: TcpStream,
    set: Epoll,
    _idle: Vec<EventFd>,
}

impl MemberEnd {
    /// The stream does not wait in reads.
    pub(crate) fn new(stream: TcpStream, idle: u32) -> Result<Self, String> {
        let (soft, limit) = getrlimit(Resource::RLIMIT_NOFILE).map_err(text)?;
        let needed = u64::from(idle) + OTHERS;
        if needed > limit {
            return Err(format!(
                "{needed} descriptors are needed, and {limit} allowed: raise ulimit -Hn"
            ));
        }
        setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), limit).map_err(text)?;
        let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(text)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        let idle: Result<Vec<_>, _> = (0..idle).map(|_| EventFd::new()).collect();
        let idle = idle.map_err(text)?;
        for fd in &idle {
            set.add(fd, event).map_err(text)?;
        }
        set.add(&stream, event).map_err(text)?;
        Ok(Self {
            stream,
            set,
            _idle: idle,
        })
    }
}

impl End for MemberEnd {
    fn send(&mut self, octet: u8) -> Result<(), String> {
        self.stream.send(octet)
    }

    fn receive(&mut self) -> Result<u8, String> {
        let mut octets = [0; OCTETS as usize];
        let mut count = 0;
        let mut events = [EpollEvent::empty(); REPORTED];
        while count < octets.len() {
            self.set
                .wait(&mut events, EpollTimeout::NONE)
                .map_err(text)?;
            match self.stream.read(&mut octets[count..]) {
                Ok(0) => return Err("the connection has ended".into()),
                Ok(more) => count += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(text(error)),
            }
        }
        Ok(octets[0])
    }
}
