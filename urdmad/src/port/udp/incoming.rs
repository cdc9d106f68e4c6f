//! Receiving: a socket for each slot at each address, and one for each group.

use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use urdma_underlay::{
    Checksum, Ecn, MacAddr, Route, Template, UdpPorts, MAX_HEADER_OCTETS, UDP_OCTETS,
};

use super::peers::Peers;
use super::sys::{self, Arrived, BATCH};
use crate::config::MTU_MAX;

/// The Ethernet address of all other hosts in frames, which were not sent as such.
const REMOTE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Octets of the longest message.
const MESSAGE_OCTETS: usize = 65_536;
/// Octets in front of a message, for the headers of its first datagram.
const HEADROOM: usize = 64;
const BUFFER_OCTETS: usize = HEADROOM + MESSAGE_OCTETS;
/// Ready sockets that one look finds.
const READY_MAX: usize = 32;
/// How often the socket that had messages last is asked before the others.
const HOT_MAX: u32 = 8;
/// Frames that one call passes on, so that slots that are behind can be waited for: fewer where the
/// channels hold fewer packets, the longer ones.
const BURST: usize = 32;
const BURST_OF_LONG: usize = 12;
const LONG_MTU: u16 = 2048;

const _: () = assert!(MAX_HEADER_OCTETS <= HEADROOM);

/// A socket that receives.
#[derive(Debug)]
struct Receiver {
    socket: OwnedFd,
    /// Its address: the destination of what arrives.
    at: SocketAddr,
    /// The headers of the last datagram's source.
    last: Option<(IpAddr, Template)>,
}

/// The receiving half of a port.
#[derive(Debug)]
pub(super) struct Incoming {
    mac: MacAddr,
    /// The instance's addresses.
    own: Vec<IpAddr>,
    burst: usize,
    /// A place is empty after its group was left.
    receivers: Vec<Option<Receiver>>,
    vacant: Vec<usize>,
    epoll: Epoll,
    ready: ArrayVec<usize, READY_MAX>,
    /// The socket that had messages last, and how often it was asked first.
    hot: Option<(usize, u32)>,
    buffers: Box<[u8]>,
    /// The messages in the buffers, of `current`.
    arrived: ArrayVec<Option<Arrived>, BATCH>,
    current: usize,
    /// The next message to pass on, and the octets of it that were.
    next: (usize, usize),
    /// Messages without a usable source, and datagrams that are too long.
    pub(super) errors: u64,
    /// Frames, and the calls that they came by.
    pub(super) packets: u64,
    pub(super) calls: u64,
}

impl Incoming {
    pub(super) fn new(mac: MacAddr, own: &[IpAddr], mtu: u16) -> Result<Self, Errno> {
        Ok(Self {
            mac,
            own: own.to_owned(),
            burst: if mtu > LONG_MTU { BURST_OF_LONG } else { BURST },
            receivers: Vec::new(),
            vacant: Vec::new(),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            ready: ArrayVec::new(),
            hot: None,
            buffers: vec![0; BATCH * BUFFER_OCTETS].into(),
            arrived: ArrayVec::new(),
            current: 0,
            next: (0, 0),
            errors: 0,
            packets: 0,
            calls: 0,
        })
    }

    /// Receives from a socket bound to `at` from now on; gives its place.
    pub(super) fn add(&mut self, socket: OwnedFd, at: SocketAddr) -> Result<usize, Errno> {
        let vacant = self.vacant.last().copied();
        let place = vacant.unwrap_or(self.receivers.len());
        let event = EpollEvent::new(EpollFlags::EPOLLIN, place as u64);
        self.epoll.add(&socket, event)?;
        let receiver = Some(Receiver {
            socket,
            at,
            last: None,
        });
        match self.receivers.get_mut(place) {
            Some(empty) => {
                *empty = receiver;
                self.vacant.pop();
            }
            None => self.receivers.push(receiver),
        }
        Ok(place)
    }

    /// Closes a socket.
    pub(super) fn remove(&mut self, place: usize) {
        let receiver = self.receivers.get_mut(place);
        if receiver.and_then(Option::take).is_some() {
            self.vacant.push(place);
        }
        if self.current == place {
            self.arrived.clear();
        }
    }

    /// The socket in a place.
    pub(super) fn socket(&self, place: usize) -> Option<&OwnedFd> {
        Some(&self.receivers.get(place)?.as_ref()?.socket)
    }

    /// Readable when a datagram waits at a socket.
    pub(super) fn descriptor(&self) -> impl AsFd + '_ {
        &self.epoll.0
    }

    /// Packets that found a socket's buffer full.
    pub(super) fn overflows(&self) -> u64 {
        let receivers = self.receivers.iter().flatten();
        receivers
            .map(|receiver| sys::overflows(&receiver.socket))
            .sum()
    }

    /// The number of sockets.
    pub(super) fn len(&self) -> usize {
        self.receivers.iter().flatten().count()
    }

    /// Passes a burst of what has arrived to `sink`; gives the number of frames.
    pub(super) fn receive(&mut self, peers: &mut Peers, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut count = 0;
        let mut may_look = true;
        while count < self.burst {
            count += self.pass_on(self.burst - count, sink);
            if count >= self.burst {
                break;
            }
            may_look &= count == 0;
            if !self.fill(may_look, peers) {
                break;
            }
            may_look = false;
        }
        self.packets += count as u64;
        count
    }

    /// Receives messages from the next socket that has some; false if none is known to.
    fn fill(&mut self, may_look: bool, peers: &mut Peers) -> bool {
        if let Some((place, turns)) = self.hot.take() {
            if turns < HOT_MAX && self.fill_from(place, peers) {
                self.hot = Some((place, turns + 1));
                return true;
            }
        }
        if may_look && self.ready.is_empty() {
            self.look(peers);
        }
        while let Some(place) = self.ready.pop() {
            if self.fill_from(place, peers) {
                self.hot = Some((place, 0));
                return true;
            }
        }
        false
    }

    fn look(&mut self, peers: &mut Peers) {
        let mut events = [EpollEvent::empty(); READY_MAX];
        // It can only be interrupted.
        let found = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        for event in &events[..found.unwrap_or(0)] {
            let place = usize::try_from(event.data()).unwrap_or(usize::MAX);
            if event.events().contains(EpollFlags::EPOLLERR) {
                if let Some(socket) = self.socket(place) {
                    peers.take_reports(socket);
                }
            }
            self.ready.push(place);
        }
    }

    fn fill_from(&mut self, place: usize, peers: &mut Peers) -> bool {
        self.arrived.clear();
        let Some(Some(receiver)) = self.receivers.get(place) else {
            return false;
        };
        let mut places: ArrayVec<IoSliceMut<'_>, BATCH> = self
            .buffers
            .chunks_exact_mut(BUFFER_OCTETS)
            .map(|buffer| IoSliceMut::new(&mut buffer[HEADROOM..]))
            .collect();
        match sys::receive(&receiver.socket, &mut places, &mut self.arrived) {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            // The report of an earlier datagram that was not delivered.
            Err(_) => {
                peers.take_reports(&receiver.socket);
                return false;
            }
        }
        for arrived in self.arrived.iter().flatten() {
            peers.received(arrived.from.ip().to_canonical());
        }
        self.calls += 1;
        self.current = place;
        self.next = (0, 0);
        !self.arrived.is_empty()
    }

    /// Passes on at most `limit` datagrams of the messages in the buffers.
    fn pass_on(&mut self, limit: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < limit {
            let (message, from) = self.next;
            let Some(arrived) = self.arrived.get(message) else {
                break;
            };
            let Some(arrived) = *arrived else {
                self.errors += 1;
                self.next = (message + 1, 0);
                continue;
            };
            let to = arrived.octets.min(from + arrived.segment.max(1));
            self.next = if to < arrived.octets {
                (message, to)
            } else {
                (message + 1, 0)
            };
            if to - from > usize::from(MTU_MAX) {
                // The kernel has reassembled fragments, which no other kind of port accepts.
                self.errors += 1;
                continue;
            }
            let at = message * BUFFER_OCTETS + HEADROOM + from;
            let datagram = at..at + (to - from);
            let Some(Some(receiver)) = self.receivers.get_mut(self.current) else {
                self.arrived.clear();
                break;
            };
            // The kernel loops back what this instance sends to a group; urdmad itself copies it to
            // the members of this host.
            let from_group = receiver.at.ip().is_multicast();
            if from_group && self.own.contains(&arrived.from.ip().to_canonical()) {
                continue;
            }
            let Some(template) = receiver.template(self.mac, arrived.from.ip()) else {
                self.errors += 1;
                continue;
            };
            // The headers overwrite the end of the previous datagram, which has been passed on.
            let frame = datagram.start - template.header_octets()..datagram.end;
            let frame = &mut self.buffers[frame];
            let ports = UdpPorts {
                source: arrived.from.port(),
                destination: receiver.at.port(),
            };
            let is_written = template.write(frame, ports, Ecn::from_bits(arrived.ecn));
            if is_written.is_ok() {
                sink(frame);
                count += 1;
            }
        }
        count
    }
}

impl Receiver {
    /// The headers of frames from a host.
    fn template(&mut self, mac: MacAddr, from: IpAddr) -> Option<Template> {
        let from = from.to_canonical();
        if self.last.as_ref().is_none_or(|(last, _)| *last != from) {
            let to = self.at.ip();
            let template = Template::new(&Route {
                source_mac: REMOTE_MAC,
                destination_mac: if to.is_multicast() {
                    MacAddr::of_group(to)
                } else {
                    mac
                },
                source: from,
                destination: to,
                checksum: Checksum::Left,
            });
            self.last = Some((from, template.ok()?));
        }
        self.last.as_ref().map(|(_, template)| template.clone())
    }
}

const _: () = assert!(MESSAGE_OCTETS + UDP_OCTETS > u16::MAX as usize);
