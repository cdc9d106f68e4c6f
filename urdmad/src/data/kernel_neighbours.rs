//! Neighbours of a port whose network interface the kernel also uses: the kernel resolves them, and
//! rtnetlink reports the results.
//!
//! A neighbour that is needed is marked as used (`NTF_USE`), which makes the kernel resolve it;
//! every change of the kernel's table arrives as a notification. While a neighbour is in use the
//! mark is repeated, so that the kernel keeps it verified.
//!
//! The messages are encoded and decoded here (doc/adr/0014-netlink-by-hand.md).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    bind, recv, send, socket, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol,
    SockType,
};
use urdma_underlay::{LocalInterface, MacAddr, NeighbourResolution, MAX_NEIGHBOURS};

/// The kernel gives up after three solicitations, one a second.
const ASKING_NS: u64 = 3_500_000_000;
/// How long a failed neighbour is not solicited again.
const MISSING_NS: u64 = 1_000_000_000;
/// Interval at which neighbours in use are marked.
const USE_NS: u64 = 5_000_000_000;
/// Polling interval of notifications while an answer is outstanding, and otherwise.
const LOOK_SOON_NS: u64 = 1_000_000;
const LOOK_NS: u64 = 100_000_000;
/// Receive buffer.
const RECEIVE_OCTETS: usize = 32_768;
/// States in which the Ethernet address is valid.
const VALID: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_PERMANENT
    | libc::NUD_NOARP;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NeighbourState {
    Asking,
    Known(MacAddr),
    Missing,
}

#[derive(Debug, Clone, Copy)]
struct Neighbour {
    state: NeighbourState,
    /// When the state began.
    since_ns: u64,
    /// When the neighbour was last marked as used.
    used_ns: u64,
}

/// The neighbours that were asked for, a part of the kernel's table.
#[derive(Debug)]
pub(crate) struct KernelNeighbours {
    socket: OwnedFd,
    interface: u32,
    local: LocalInterface,
    table: HashMap<IpAddr, Neighbour>,
    changes: u64,
    is_asking: bool,
    look_at_ns: u64,
    buffer: Box<[u8; RECEIVE_OCTETS]>,
}

impl KernelNeighbours {
    /// Neighbours on the interface `netdev` of the calling thread's network namespace.
    pub(crate) fn new(netdev: &str, local: LocalInterface) -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkRoute,
        )?;
        let group = 1 << (libc::RTNLGRP_NEIGH - 1);
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, group))?;
        Ok(Self {
            socket,
            interface: if_nametoindex(netdev)?,
            local,
            table: HashMap::new(),
            changes: 0,
            is_asking: false,
            look_at_ns: 0,
            buffer: Box::new([0; RECEIVE_OCTETS]),
        })
    }

    /// As [`urdma_underlay::Neighbours::changes`].
    #[inline]
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// As [`urdma_underlay::Neighbours::has`].
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.local.owns(address) || self.table.contains_key(&address)
    }

    /// As [`urdma_underlay::Neighbours::resolve`].
    pub(crate) fn resolve(&mut self, now_ns: u64, address: IpAddr) -> NeighbourResolution {
        let address = address.to_canonical();
        if address.is_unspecified() || address.is_multicast() || address == Ipv4Addr::BROADCAST {
            return NeighbourResolution::Unreachable;
        }
        if self.local.owns(address) {
            return NeighbourResolution::Known(self.local.mac());
        }
        if let Some(neighbour) = self.table.get_mut(&address) {
            match neighbour.state {
                NeighbourState::Asking => return NeighbourResolution::Pending,
                NeighbourState::Known(mac) => {
                    if now_ns >= neighbour.used_ns + USE_NS {
                        neighbour.used_ns = now_ns;
                        self.tell(libc::RTM_NEWNEIGH, address);
                    }
                    return NeighbourResolution::Known(mac);
                }
                NeighbourState::Missing if now_ns < neighbour.since_ns + MISSING_NS => {
                    return NeighbourResolution::Unreachable
                }
                NeighbourState::Missing => {}
            }
        }
        self.ask(now_ns, address);
        NeighbourResolution::Pending
    }

    /// Processes the notifications that have arrived.
    pub(crate) fn poll(&mut self, now_ns: u64) {
        if now_ns < self.look_at_ns {
            return;
        }
        let mut buffer = std::mem::replace(&mut self.buffer, Box::new([0; RECEIVE_OCTETS]));
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer[..], MsgFlags::empty()) {
                Ok(octets @ 1..) => self.take_in(now_ns, &buffer[..octets]),
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => self.ask_again(),
                Ok(0) | Err(_) => break,
            }
        }
        self.buffer = buffer;
        self.give_up(now_ns);
        let wait = if self.is_asking {
            LOOK_SOON_NS
        } else {
            LOOK_NS
        };
        self.look_at_ns = now_ns + wait;
    }

    /// When [`Self::poll`] must be called next at the latest.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.is_asking.then_some(self.look_at_ns)
    }

    fn ask(&mut self, now_ns: u64, address: IpAddr) {
        if self.table.len() >= MAX_NEIGHBOURS {
            self.table.clear();
            self.changes += 1;
        }
        let asking = Neighbour {
            state: NeighbourState::Asking,
            since_ns: now_ns,
            used_ns: now_ns,
        };
        self.table.insert(address, asking);
        self.is_asking = true;
        self.look_at_ns = now_ns;
        self.tell(libc::RTM_NEWNEIGH, address);
        self.tell(libc::RTM_GETNEIGH, address);
    }

    /// Requests the entries again after notifications were lost.
    fn ask_again(&mut self) {
        let addresses: Vec<IpAddr> = self.table.keys().copied().collect();
        for address in addresses {
            self.tell(libc::RTM_GETNEIGH, address);
        }
    }

    /// Sends a request about `address`. A lost request shows as a neighbour that does not answer.
    fn tell(&self, request: u16, address: IpAddr) {
        let message = request_about(request, self.interface, address);
        let _ = send(self.socket.as_raw_fd(), &message, MsgFlags::empty());
    }

    fn give_up(&mut self, now_ns: u64) {
        self.is_asking = false;
        for neighbour in self.table.values_mut() {
            if neighbour.state != NeighbourState::Asking {
                continue;
            }
            if now_ns < neighbour.since_ns + ASKING_NS {
                self.is_asking = true;
            } else {
                neighbour.state = NeighbourState::Missing;
                neighbour.since_ns = now_ns;
                self.changes += 1;
            }
        }
    }

    fn take_in(&mut self, now_ns: u64, messages: &[u8]) {
        for news in Messages(messages).filter(|news| news.interface == self.interface) {
            let Some(neighbour) = self.table.get_mut(&news.address) else {
                continue;
            };
            let state = match (news.is_gone, news.mac) {
                (false, Some(mac)) if news.state & VALID != 0 => NeighbourState::Known(mac),
                (false, _) if news.state & libc::NUD_FAILED != 0 => NeighbourState::Missing,
                (true, _) if neighbour.state != NeighbourState::Asking => {
                    self.table.remove(&news.address);
                    self.changes += 1;
                    continue;
                }
                // A request is outstanding.
                _ => continue,
            };
            if neighbour.state != state {
                neighbour.state = state;
                neighbour.since_ns = now_ns;
                self.changes += 1;
            }
        }
    }
}

/// A notification about a neighbour.
#[derive(Debug, PartialEq, Eq)]
struct News {
    interface: u32,
    address: IpAddr,
    mac: Option<MacAddr>,
    state: u16,
    is_gone: bool,
}

const NLMSG_HEADER: usize = 16;
const NDMSG: usize = 12;
const ATTRIBUTE_HEADER: usize = 4;

/// `RTM_NEWNEIGH` with "used", or `RTM_GETNEIGH`.
fn request_about(request: u16, interface: u32, address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let (flags, used) = if request == libc::RTM_NEWNEIGH {
        (libc::NLM_F_REQUEST | libc::NLM_F_CREATE, libc::NTF_USE)
    } else {
        (libc::NLM_F_REQUEST, 0)
    };
    let length = |octets: usize| u16::try_from(octets).unwrap_or(0).to_ne_bytes();
    let total = NLMSG_HEADER + NDMSG + ATTRIBUTE_HEADER + octets.len();
    let flags = u16::try_from(flags).unwrap_or(0);
    let family = u8::try_from(family).unwrap_or(0);
    [
        // The total is below 65,536, so its upper half is 0.
        &u32::from(u16::from_ne_bytes(length(total))).to_ne_bytes()[..],
        &request.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &[0; 8],
        &[family, 0, 0, 0],
        &interface.to_ne_bytes(),
        &libc::NUD_NONE.to_ne_bytes(),
        &[used, 0],
        &length(ATTRIBUTE_HEADER + octets.len()),
        &libc::NDA_DST.to_ne_bytes(),
        &octets,
    ]
    .concat()
}

/// The neighbours in a buffer of netlink messages; other and malformed messages are skipped.
struct Messages<'a>(&'a [u8]);

impl Iterator for Messages<'_> {
    type Item = News;

    fn next(&mut self) -> Option<News> {
        loop {
            let length = usize::try_from(u32_at(self.0, 0)?).ok()?;
            if length < NLMSG_HEADER {
                return None;
            }
            let message = self.0.get(..length)?;
            self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            if let Some(news) = news_in(message) {
                return Some(news);
            }
        }
    }
}

fn news_in(message: &[u8]) -> Option<News> {
    let kind = u16_at(message, 4)?;
    if kind != libc::RTM_NEWNEIGH && kind != libc::RTM_DELNEIGH {
        return None;
    }
    let body = message.get(NLMSG_HEADER..)?;
    let (mut address, mut mac) = (None, None);
    let mut attributes = body.get(NDMSG..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        let value = attributes.get(ATTRIBUTE_HEADER..length)?;
        match kind {
            libc::NDA_DST => address = address_from(value),
            libc::NDA_LLADDR => mac = <[u8; 6]>::try_from(value).ok().map(MacAddr),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(News {
        interface: u32_at(body, 4)?,
        address: address?,
        mac,
        state: u16_at(body, 8)?,
        is_gone: kind == libc::RTM_DELNEIGH,
    })
}

fn address_from(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(v4.into());
    }
    let v6 = <[u8; 16]>::try_from(octets).ok()?;
    Some(IpAddr::from(v6).to_canonical())
}

fn u16_at(octets: &[u8], at: usize) -> Option<u16> {
    let two = octets.get(at..at + 2)?;
    two.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(octets: &[u8], at: usize) -> Option<u32> {
    let four = octets.get(at..at + 4)?;
    four.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn peer() -> IpAddr {
        "10.0.0.2".parse().unwrap()
    }

    fn neighbours() -> KernelNeighbours {
        let own = "10.0.0.1".parse().unwrap();
        let local = LocalInterface::new(MacAddr([2, 0, 0, 0, 0, 1]), &[own]).unwrap();
        KernelNeighbours::new("lo", local).unwrap()
    }

    /// A notification as the kernel writes it.
    fn notification(kind: u16, interface: u32, state: u16, mac: Option<MacAddr>) -> Vec<u8> {
        let mut message = request_about(kind, interface, peer());
        message[24..26].copy_from_slice(&state.to_ne_bytes());
        if let Some(mac) = mac {
            message.extend(10u16.to_ne_bytes());
            message.extend(libc::NDA_LLADDR.to_ne_bytes());
            message.extend(mac.0);
            message.extend([0, 0]);
        }
        let length = (message.len() as u32).to_ne_bytes();
        message[..4].copy_from_slice(&length);
        message
    }

    #[test]
    fn resolve_follows_the_kernels_notifications() {
        let mut neighbours = neighbours();
        let interface = neighbours.interface;
        assert_eq!(neighbours.resolve(1, peer()), NeighbourResolution::Pending);
        let known = notification(
            libc::RTM_NEWNEIGH,
            interface,
            libc::NUD_REACHABLE,
            Some(MAC),
        );
        let elsewhere = notification(
            libc::RTM_NEWNEIGH,
            interface + 1,
            libc::NUD_REACHABLE,
            Some(MAC),
        );
        neighbours.take_in(2, &elsewhere);
        assert_eq!(neighbours.resolve(2, peer()), NeighbourResolution::Pending);
        neighbours.take_in(2, &[elsewhere, known].concat());
        assert_eq!(
            neighbours.resolve(2, peer()),
            NeighbourResolution::Known(MAC)
        );
        assert_eq!(neighbours.changes(), 1);
        let failed = notification(libc::RTM_NEWNEIGH, interface, libc::NUD_FAILED, None);
        neighbours.take_in(3, &failed);
        assert_eq!(
            neighbours.resolve(3, peer()),
            NeighbourResolution::Unreachable
        );
        let later = 4 + MISSING_NS;
        assert_eq!(
            neighbours.resolve(later, peer()),
            NeighbourResolution::Pending
        );
    }

    #[test]
    fn resolve_of_a_forgotten_neighbour_asks_again() {
        let mut neighbours = neighbours();
        let interface = neighbours.interface;
        let _ = neighbours.resolve(1, peer());
        neighbours.take_in(
            2,
            &notification(libc::RTM_NEWNEIGH, interface, libc::NUD_STALE, Some(MAC)),
        );
        neighbours.take_in(
            3,
            &notification(libc::RTM_DELNEIGH, interface, libc::NUD_STALE, Some(MAC)),
        );
        assert_eq!(neighbours.changes(), 2);
        assert_eq!(neighbours.resolve(4, peer()), NeighbourResolution::Pending);
    }

    #[test]
    fn resolve_without_any_answer_ends_as_unreachable() {
        let mut neighbours = neighbours();
        let _ = neighbours.resolve(1, peer());
        neighbours.give_up(ASKING_NS);
        assert_eq!(
            neighbours.resolve(ASKING_NS, peer()),
            NeighbourResolution::Pending
        );
        neighbours.give_up(1 + ASKING_NS);
        assert_eq!(
            neighbours.resolve(1 + ASKING_NS, peer()),
            NeighbourResolution::Unreachable
        );
        assert_eq!(neighbours.next_deadline(), None);
    }

    #[test]
    fn messages_cut_anywhere_give_nothing_and_end() {
        let whole = notification(libc::RTM_NEWNEIGH, 1, libc::NUD_STALE, Some(MAC));
        assert_eq!(Messages(&whole).count(), 1);
        for length in 0..whole.len() {
            assert_eq!(Messages(&whole[..length]).count(), 0, "{length}");
        }
        assert_eq!(Messages(&[0; 64]).count(), 0);
    }
}
