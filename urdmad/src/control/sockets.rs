//! Offers of TCP connections for rings: urdmad asks the kernel about each socket that it is given,
//! and passes memory and bells to both ends (doc/sockets.md).

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::mem::{size_of, MaybeUninit};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use urdma_ipc::message::FromDaemon;
use urdma_ipc::{Event, JoinedSocket, SocketReason};

use crate::client::Client;
use crate::closing::Closer;
use crate::descriptors::is_region;
use crate::slots::Token;
use crate::sockets::{Joined, Offer, OfferId, Outcome, Place, Sockets};

/// Memory of connections that a client may leave unread.
const UNREAD_MAX: usize = 64;
/// `TCP_ESTABLISHED` of `enum` in `linux/tcp_states.h`.
const ESTABLISHED: u8 = 1;

/// What an offer concerns.
pub(super) struct Offers<'a> {
    pub(super) clients: &'a mut BTreeMap<Token, Client>,
    pub(super) sockets: &'a mut Sockets,
    pub(super) closer: &'a Closer,
}

impl Offers<'_> {
    /// Takes the offer of a socket, with its bells. A client that sends other descriptors is
    /// disconnected. The answer follows when urdmad has closed its copy of the socket, which would
    /// hold back the end of the connection.
    pub(super) fn take(&mut self, token: Token, offer: u64, fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let is_known = client.program.is_some();
        let is_offer = |fds: &[OwnedFd; 3]| is_tcp(&fds[0]) && fds[1..].iter().all(is_eventfd);
        let [socket, bell, agent] = match <[OwnedFd; 3]>::try_from(fds) {
            Ok(fds) if is_known && is_offer(&fds) => fds,
            other => {
                tracing::warn!(
                    "process {}: an offer needs a TCP socket and two eventfds; disconnected",
                    client.peer.pid()
                );
                return client.reject(other.map_or_else(|fds| fds, Vec::from));
            }
        };
        let uid = client.peer.uid();
        let id = (token, offer);
        let identified = identify(socket.as_fd()).map(|(place, cookie)| Offer {
            id,
            uid,
            place,
            cookie,
            bells: [bell, agent],
        });
        let identified = identified.map_err(|_| SocketReason::NotConnected);
        self.sockets.expect(id, identified);
        self.closer.close_offered(uid, socket, id);
    }

    /// Answers the offers whose sockets are closed.
    pub(super) fn answer_closed(&mut self) {
        for id in self.closer.closed() {
            if let Some(taken) = self.sockets.closed(id) {
                self.answer(id, taken);
            }
        }
    }

    fn answer(&mut self, (token, offer): OfferId, taken: Result<Outcome, SocketReason>) {
        match taken {
            Ok(Outcome::Waits) => self.tell(token, Event::SocketWaits { offer }),
            Ok(Outcome::Joined(joined)) => self.pass_memory(&joined),
            Err(reason) => {
                let reason = reason.name();
                tracing::debug!("a socket of client {token} stays with TCP: {reason}");
                self.tell(token, Event::SocketRefused { offer });
            }
        }
    }

    /// Gives the ends of a connection its memory and each other's bells.
    fn pass_memory(&mut self, joined: &Joined) {
        let Joined { waited, offer, .. } = joined;
        let reads = [waited, offer].map(|end| {
            let client = self.clients.get_mut(&end.id.0);
            client.is_some_and(|client| client.unread() < UNREAD_MAX)
        });
        if reads != [true; 2] {
            return self.part(joined);
        }
        let is_first = joined.is_waited_first;
        for (end, peer, is_first) in [(waited, offer, is_first), (offer, waited, !is_first)] {
            let event = FromDaemon::Event(Event::SocketJoined(JoinedSocket {
                offer: end.id.1,
                is_first,
                process: end.id.0,
                peer_process: peer.id.0,
            }));
            let [bell, agent] = peer.bells();
            let fds = [joined.memory.as_fd(), bell, agent];
            let client = self.clients.get_mut(&end.id.0);
            if !client.is_some_and(|client| client.send(&event, &fds)) {
                // An end that never gets the memory never uses the rings, nor does its peer.
                return self.part(joined);
            }
        }
    }

    /// The ends of a connection cannot have its memory.
    fn part(&mut self, joined: &Joined) {
        let ends = [&joined.waited, &joined.offer];
        self.sockets.part(ends.map(|end| end.id));
        for end in ends {
            let offer = end.id.1;
            self.tell(end.id.0, Event::SocketRefused { offer });
        }
    }

    /// Takes the memory in which a process counts why its sockets stay with TCP.
    pub(super) fn take_reasons(&mut self, token: Token, fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let memory = match <[OwnedFd; 1]>::try_from(fds) {
            Ok([memory]) if client.program.is_some() && is_region(&memory) => memory,
            Ok(fds) => return client.reject(fds.into()),
            Err(fds) => return client.reject(fds),
        };
        if !self.sockets.add_reasons(token, memory) {
            client.is_broken = true;
        }
    }

    fn tell(&mut self, token: Token, event: Event) {
        if let Some(client) = self.clients.get_mut(&token) {
            client.tell(event);
        }
    }
}

fn is_eventfd(fd: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let file = std::fs::read_link(path);
    file.is_ok_and(|file| file.as_os_str() == "anon_inode:[eventfd]")
}

/// Whether a file is a TCP socket, connected or not.
fn is_tcp(fd: &OwnedFd) -> bool {
    let of_socket = |name| option::<libc::c_int>(fd.as_fd(), libc::SOL_SOCKET, name).ok();
    of_socket(libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && of_socket(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// Addresses and cookies of an established TCP connection.
fn identify(fd: BorrowedFd<'_>) -> io::Result<(Place, u64)> {
    // The first octet of `struct tcp_info` is the state.
    let state: u8 = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    if state != ESTABLISHED {
        return Err(io::ErrorKind::NotConnected.into());
    }
    let netns = option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE)?;
    let cookie = option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)?;
    let stream = TcpStream::from(fd.try_clone_to_owned()?);
    let place = Place {
        netns,
        local: canonical(stream.local_addr()?)?,
        remote: canonical(stream.peer_addr()?)?,
    };
    Ok((place, cookie))
}

/// The same for an IPv4 address and its form in IPv6.
fn canonical(address: SocketAddr) -> io::Result<SocketAddr> {
    let ip = address.ip().to_canonical();
    // Sockets of two interfaces may have the same link-local addresses.
    if matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(SocketAddr::new(ip, address.port()))
}

/// Linux 5.14; not in the libc crate for all architectures.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Types of which every pattern of octets is a value.
trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for libc::c_int {}
impl Plain for u64 {}

fn option<T: Plain>(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `len` octets to `value`.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroes or what the kernel wrote, both of which are values of a plain type.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests;
