//! Sending: frames are collected, and those of one flow become messages that the kernel segments.

use std::collections::HashMap;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::os::fd::OwnedFd;

use arrayvec::ArrayVec;
use nix::errno::Errno;
use urdma_types::{slot_of_source_port, source_port, Qpn, SlotId, PORT_BASE};
use urdma_underlay::{header_octets, IpVersion, ETHERNET_OCTETS};

use super::peers::Peers;
use super::sockets::{sender, LocalAddress};
use super::sys::{self, Message, RawAddress, BATCH};
use crate::port::NoBuffer;

/// Frames that are collected.
const FRAMES: usize = 128;
/// Datagrams of a message: UDP_MAX_SEGMENTS of the kernels before 6.9.
const SEGMENTS_MAX: usize = 64;
/// Octets of a message, with which an IPv6 packet of the kernel is not too long.
const MESSAGE_OCTETS_MAX: usize = 65_000;
/// Sockets of source ports that are made when they are needed; beyond that the one that was not
/// used for longest is closed.
const SENDERS_MAX: usize = 1024;

/// What the datagrams of a message have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flow {
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
    ecn: u8,
}

/// Frames in a row that are sent as one message.
struct Pending {
    flow: Flow,
    sender: Sender,
    to: RawAddress,
    frames: Range<usize>,
    /// Octets of each datagram but the last.
    segment: usize,
    octets: usize,
    /// The last datagram is shorter.
    is_closed: bool,
}

/// Where a message is sent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// A socket that receives, by its place.
    Daemon(usize),
    /// A socket of a source port.
    Source(usize),
}

#[derive(Debug)]
struct Source {
    socket: OwnedFd,
    key: (usize, u16),
    used: u64,
}

/// The sockets that messages are sent from.
#[derive(Debug)]
struct Senders {
    addresses: Vec<LocalAddress>,
    /// Places of the sockets that receive at urdmad's own port, by address.
    daemon: Vec<usize>,
    sources: Vec<Source>,
    /// The number of the first ones, which are never closed: the first source port of each slot.
    kept: usize,
    by_key: HashMap<(usize, u16), usize>,
    /// Source ports that another program has, in place of which the slot's first one is used.
    replaced: usize,
}

/// The sending half of a port.
pub(super) struct Outgoing {
    stride: usize,
    frames: Box<[u8]>,
    datagrams: ArrayVec<Range<usize>, FRAMES>,
    /// Octets of the frame after those, which the caller writes.
    begun: Option<usize>,
    pending: Vec<Pending>,
    /// Messages at the front of `pending` that were sent.
    sent: usize,
    senders: Senders,
    /// Counts flushes, by which sockets age.
    turn: u64,
    /// The kernel segments messages.
    segments: bool,
    /// Calls that sent something, and the packets.
    pub(super) calls: u64,
    pub(super) packets: u64,
    pub(super) octets: u64,
}

impl Outgoing {
    /// Sends from these addresses, and from urdmad's port by the receivers in the places `daemon`.
    pub(super) fn new(addresses: Vec<LocalAddress>, daemon: Vec<usize>, mtu: u16) -> Self {
        let stride = (usize::from(mtu) + ETHERNET_OCTETS).next_multiple_of(64);
        Self {
            stride,
            frames: vec![0; FRAMES * stride].into(),
            datagrams: ArrayVec::new(),
            begun: None,
            pending: Vec::with_capacity(FRAMES),
            sent: 0,
            senders: Senders {
                addresses,
                daemon,
                sources: Vec::new(),
                kept: 0,
                by_key: HashMap::new(),
                replaced: 0,
            },
            turn: 1,
            segments: true,
            calls: 0,
            packets: 0,
            octets: 0,
        }
    }

    /// Whether another frame can be collected.
    pub(super) fn has_room(&mut self, peers: &mut Peers) -> bool {
        self.collect(peers);
        !self.datagrams.is_full()
    }

    /// Makes the sockets of the first source port of each of these slots, which no other program
    /// can take from then on; gives the number of those that are not to be had.
    pub(super) fn keep(&mut self, slots: &[SlotId]) -> usize {
        let mut missing = 0;
        for index in 0..self.senders.addresses.len() {
            for slot in slots {
                let key = (index, first_port(*slot));
                if let Ok(source) = self.senders.open(key, 0) {
                    self.senders.push(source);
                } else {
                    missing += 1;
                }
            }
        }
        self.senders.kept = self.senders.sources.len();
        missing
    }

    /// The number of source ports that another program has, and that were replaced by another one.
    pub(super) fn replaced(&self) -> usize {
        self.senders.replaced
    }

    /// The number of sockets.
    pub(super) fn len(&self) -> usize {
        self.senders.sources.len()
    }

    /// Room for a frame of `octets`, which the caller writes at once.
    pub(super) fn begin(
        &mut self,
        octets: usize,
        peers: &mut Peers,
    ) -> Result<&mut [u8], NoBuffer> {
        self.collect(peers);
        if self.datagrams.is_full() || octets > self.stride {
            return Err(NoBuffer);
        }
        self.begun = Some(octets);
        let start = self.datagrams.len() * self.stride;
        Ok(&mut self.frames[start..start + octets])
    }

    /// Collects the frame that was begun.
    pub(super) fn collect(&mut self, peers: &mut Peers) {
        let Some(octets) = self.begun.take() else {
            return;
        };
        let index = self.datagrams.len();
        let start = index * self.stride;
        let frame = &self.frames[start..start + octets];
        let Some((flow, datagram)) = parse(frame) else {
            // urdmad sends nothing else.
            return;
        };
        let octets = datagram.len();
        let range = start + datagram.start..start + datagram.end;
        if let Some(last) = self.pending.last_mut().filter(|_| self.segments) {
            if last.takes(&flow, octets) {
                last.frames.end = index + 1;
                last.octets += octets;
                last.is_closed = octets < last.segment;
                self.datagrams.push(range);
                return;
            }
        }
        let (sender, to) = match self.senders.find(&flow, self.turn) {
            Ok(found) => found,
            Err(errno) => {
                peers.sent(flow.destination.0, 1);
                peers.failed(flow.destination.0, errno, 0);
                return;
            }
        };
        self.datagrams.push(range);
        self.pending.push(Pending {
            flow,
            sender,
            to,
            frames: index..index + 1,
            segment: octets,
            octets,
            is_closed: false,
        });
    }

    /// Sends what was collected; whether all was sent. `receivers` gives the socket in a place.
    pub(super) fn flush<'a>(
        &mut self,
        receivers: impl Fn(usize) -> Option<&'a OwnedFd>,
        peers: &mut Peers,
    ) -> bool {
        self.collect(peers);
        while self.sent < self.pending.len() {
            let Some(sent) = self.send_some(&receivers, peers) else {
                return false;
            };
            self.sent += sent;
        }
        self.clear();
        true
    }

    /// Drops what was collected and not sent; gives the number of frames.
    pub(super) fn discard(&mut self, peers: &mut Peers) -> usize {
        self.collect(peers);
        let left = self.pending.iter().skip(self.sent);
        let frames = left.map(|pending| pending.frames.len()).sum();
        self.clear();
        frames
    }

    fn clear(&mut self) {
        self.pending.clear();
        self.datagrams.clear();
        self.sent = 0;
        self.turn += 1;
    }

    /// Sends the next messages of one socket; gives the number of those that are done with, `None`
    /// if the socket has no room.
    fn send_some<'a>(
        &mut self,
        receivers: &impl Fn(usize) -> Option<&'a OwnedFd>,
        peers: &mut Peers,
    ) -> Option<usize> {
        let left = &self.pending[self.sent..];
        let first = left.first()?;
        let count = left
            .iter()
            .take(BATCH)
            .take_while(|next| next.sender == first.sender)
            .count();
        let batch = &left[..count];
        let parts: ArrayVec<IoSlice<'_>, FRAMES> = self.datagrams
            [batch[0].frames.start..batch[count - 1].frames.end]
            .iter()
            .map(|range| IoSlice::new(&self.frames[range.clone()]))
            .collect();
        let socket = match first.sender {
            Sender::Daemon(place) => receivers(place)?,
            Sender::Source(place) => &self.senders.sources[place].socket,
        };
        let messages: ArrayVec<Message<'_>, BATCH> = batch
            .iter()
            .map(|pending| {
                let start = pending.frames.start - batch[0].frames.start;
                pending.message(&parts[start..start + pending.frames.len()])
            })
            .collect();
        let sent = match sys::send(socket, &messages) {
            Ok(sent) => sent.max(1),
            Err(Errno::EAGAIN) => return None,
            Err(Errno::EINTR) => return Some(0),
            Err(errno) => {
                peers.take_reports(socket);
                let outcome = send_again(socket, first, &messages[0], errno);
                self.segments &= outcome != Again::WithoutSegments;
                match outcome {
                    Again::Full => return None,
                    Again::Failed(errno) => {
                        peers.sent(first.flow.destination.0, first.frames.len());
                        peers.failed(first.flow.destination.0, errno, path_mtu(peers, first));
                        return Some(1);
                    }
                    Again::Sent | Again::WithoutSegments => 1,
                }
            }
        };
        self.calls += 1;
        for pending in &batch[..sent] {
            self.packets += pending.frames.len() as u64;
            self.octets += pending.octets as u64;
            peers.sent(pending.flow.destination.0, pending.frames.len());
        }
        Some(sent)
    }

    /// Takes what the network reported about earlier packets.
    pub(super) fn take_reports(&self, peers: &mut Peers) {
        for source in &self.senders.sources {
            peers.take_reports(&source.socket);
        }
    }
}

/// The MTU of the path that the network has reported.
fn path_mtu(peers: &Peers, pending: &Pending) -> u32 {
    peers.path_mtu(pending.flow.destination.0).unwrap_or(0)
}

/// The second attempt to send a message.
#[derive(Debug, PartialEq, Eq)]
enum Again {
    Sent,
    /// One by one, since the kernel does not segment for this interface.
    WithoutSegments,
    Full,
    Failed(Errno),
}

/// Sends a message again: the error may have been the report of an earlier datagram. Its datagrams
/// are sent one by one where the kernel or the interface cannot segment.
#[cold]
fn send_again(socket: &OwnedFd, pending: &Pending, message: &Message<'_>, first: Errno) -> Again {
    let errno = match sys::send(socket, std::slice::from_ref(message)) {
        Ok(_) => return Again::Sent,
        Err(Errno::EAGAIN) => return Again::Full,
        Err(errno) => errno,
    };
    let may_be_segmentation = matches!(first, Errno::EIO | Errno::EINVAL | Errno::ENOPROTOOPT);
    if !may_be_segmentation || message.segment == 0 {
        return Again::Failed(errno);
    }
    for part in message.parts {
        let single = Message {
            to: &pending.to,
            parts: std::slice::from_ref(part),
            segment: 0,
            ecn: message.ecn,
        };
        if let Err(errno) = sys::send(socket, &[single]) {
            return Again::Failed(errno);
        }
    }
    Again::WithoutSegments
}

impl Pending {
    /// Whether a datagram of a flow can be a part of the message.
    fn takes(&self, flow: &Flow, octets: usize) -> bool {
        !self.is_closed
            && octets <= self.segment
            && octets > 0
            && self.frames.len() < SEGMENTS_MAX
            && self.octets + octets <= MESSAGE_OCTETS_MAX
            && self.flow == *flow
    }

    fn message<'a>(&'a self, parts: &'a [IoSlice<'a>]) -> Message<'a> {
        let segment = if self.frames.len() > 1 {
            // A datagram fits an IP packet.
            u16::try_from(self.segment).unwrap_or(0)
        } else {
            0
        };
        Message {
            to: &self.to,
            parts,
            segment,
            ecn: self.flow.ecn,
        }
    }
}

impl Senders {
    /// The socket of a flow and its destination; makes one for a source port that has none. In
    /// place of a port that is not to be had, the slot's first one is used.
    fn find(&mut self, flow: &Flow, turn: u64) -> Result<(Sender, RawAddress), Errno> {
        let (ip, port) = flow.source;
        let mut addresses = self.addresses.iter();
        let index = addresses.position(|own| own.ip == ip);
        let index = index.ok_or(Errno::EADDRNOTAVAIL)?;
        let local = self.addresses[index];
        let to = RawAddress::new(local.to_remote(flow.destination.0, flow.destination.1));
        if port == PORT_BASE {
            return Ok((Sender::Daemon(self.daemon[index]), to));
        }
        let key = (index, port);
        if let Some(place) = self.by_key.get(&key) {
            self.sources[*place].used = turn;
            return Ok((Sender::Source(*place), to));
        }
        let place = match self.open(key, turn) {
            Ok(source) => self.insert(source, turn)?,
            Err(errno @ Errno::EADDRINUSE) => self.replacement(key, turn).ok_or(errno)?,
            Err(errno) => return Err(errno),
        };
        Ok((Sender::Source(place), to))
    }

    /// Makes the socket of a source port of an address.
    fn open(&self, key: (usize, u16), turn: u64) -> Result<Source, Errno> {
        let (index, port) = key;
        Ok(Source {
            socket: sender(self.addresses[index], port)?,
            key,
            used: turn,
        })
    }

    /// Adds a socket, in place of an old one if there are many; gives its place.
    fn insert(&mut self, source: Source, turn: u64) -> Result<usize, Errno> {
        if self.sources.len() < self.kept + SENDERS_MAX {
            return Ok(self.push(source));
        }
        let place = self.oldest(turn).ok_or(Errno::EMFILE)?;
        self.by_key.remove(&self.sources[place].key);
        self.by_key.insert(source.key, place);
        self.sources[place] = source;
        Ok(place)
    }

    /// Adds a socket; gives its place.
    fn push(&mut self, source: Source) -> usize {
        let place = self.sources.len();
        self.by_key.insert(source.key, place);
        self.sources.push(source);
        place
    }

    /// The place of the first source port of the slot that a port belongs to, from which the port's
    /// packets are sent from now on.
    #[cold]
    fn replacement(&mut self, key: (usize, u16), turn: u64) -> Option<usize> {
        let (index, port) = key;
        let first = (index, first_port(slot_of_source_port(port)?));
        // R3-10
        //# A host on which another program has the UDP source port of a queue pair MAY send the
        //# packets of that queue pair with e = 0.
        let place = self.by_key.get(&first).copied();
        let place = place.filter(|place| *place < self.kept)?;
        self.sources[place].used = turn;
        self.by_key.insert(key, place);
        self.replaced += 1;
        Some(place)
    }

    /// The socket that was not used for longest, none of whose messages waits.
    fn oldest(&self, turn: u64) -> Option<usize> {
        let places = self.sources.iter().enumerate().skip(self.kept);
        let (place, source) = places.min_by_key(|(_, source)| source.used)?;
        (source.used < turn).then_some(place)
    }
}

/// The source port of a slot from which packets of all of its queue pairs are accepted.
const fn first_port(slot: SlotId) -> u16 {
    source_port(Qpn::new(slot, 0))
}

/// The flow and the datagram of a frame that urdmad wrote.
#[inline]
fn parse(frame: &[u8]) -> Option<(Flow, Range<usize>)> {
    let ip = frame.get(ETHERNET_OCTETS..)?;
    let (version, ecn, source, destination) = match ip.first()? >> 4 {
        4 => {
            let address = |at: usize| Some(Ipv4Addr::from(*ip.get(at..)?.first_chunk::<4>()?));
            let ends = (address(12)?.into(), address(16)?.into());
            (IpVersion::V4, ip[1] & 3, ends.0, ends.1)
        }
        6 => {
            let address = |at: usize| Some(Ipv6Addr::from(*ip.get(at..)?.first_chunk::<16>()?));
            let ends = (address(8)?.into(), address(24)?.into());
            (IpVersion::V6, ip[1] >> 4 & 3, ends.0, ends.1)
        }
        _ => return None,
    };
    let start = header_octets(version);
    let udp = frame.get(start - urdma_underlay::UDP_OCTETS..start)?;
    let flow = Flow {
        source: (source, u16::from_be_bytes([udp[0], udp[1]])),
        destination: (destination, u16::from_be_bytes([udp[2], udp[3]])),
        ecn,
    };
    Some((flow, start..frame.len()))
}
