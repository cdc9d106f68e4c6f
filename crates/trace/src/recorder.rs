//! Writing: one call for each event, which passes the probe and writes the record.
//!
//! The events of a queue pair, and of a connection whose queue pair is known, go to the track of
//! the queue pair's index, so that a busy connection does not displace the events of another; all
//! others go to track 0. A track keeps the first events of its queue pair and the last ones. A
//! record of [`Kind::Message`] has its first argument in four parts: direction (8 bits), message
//! (8), port (16), transmissions (32).

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use urdma_channel::recording::TRACKS;
use urdma_channel::OwnRecording;

use crate::event::{head, CmMessage, CmState, Direction, End, Event, Kind, Link};
use crate::probes;

/// The recorder of a process, or of one engine of it. Copies write to the same recording. The
/// default records nothing, and passes the probes.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    recording: OwnRecording,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    now_ns: fn() -> u64,
}

/// A message of connection management that is sent or received.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Which one.
    pub message: CmMessage,
    /// Its direction.
    pub direction: Direction,
    /// The listener's port.
    pub port: u16,
    /// Transmissions by this end so far.
    pub tries: u32,
    /// The reason of a REJ, else 0.
    pub reason: u16,
    /// The peer, of a REQ.
    pub peer: IpAddr,
}

impl Message {
    /// The arguments of its record.
    fn arguments(&self) -> (u64, u64) {
        let first = self.direction as u64
            | (self.message as u64) << 8
            | u64::from(self.port) << 16
            | u64::from(self.tries) << 32;
        (first, self.reason.into())
    }

    /// The message of an event of [`Kind::Message`], without its peer; `None` for another kind or
    /// an unknown message.
    pub fn of(event: &Event) -> Option<Self> {
        let [direction, message, p0, p1, t0, t1, t2, t3] = event.arguments[0].to_le_bytes();
        let is_message = event.kind == Kind::Message;
        Some(Self {
            message: CmMessage::from_number(message).filter(|_| is_message)?,
            direction: match direction {
                0 => Direction::Sent,
                _ => Direction::Received,
            },
            port: u16::from_le_bytes([p0, p1]),
            tries: u32::from_le_bytes([t0, t1, t2, t3]),
            reason: u16::try_from(event.arguments[1]).ok()?,
            peer: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        })
    }
}

/// An address as two words in network order; IPv4 is mapped.
pub fn words_of(ip: IpAddr) -> (u64, u64) {
    let octets = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let address = u128::from_be_bytes(octets);
    // The halves.
    #[allow(clippy::cast_possible_truncation)]
    let words = ((address >> 64) as u64, address as u64);
    words
}

/// The track of a queue pair; 0 without one.
#[inline]
pub fn track_of(qpn: u32) -> usize {
    let tracks = TRACKS - 1;
    match qpn {
        0 => 0,
        _ => 1 + (qpn & 0xffff) as usize % tracks,
    }
}

impl Recorder {
    /// A recorder that writes to `recording` and reads the time from `now_ns`, nanoseconds of
    /// `CLOCK_MONOTONIC`.
    pub fn new(recording: OwnRecording, now_ns: fn() -> u64) -> Self {
        Self(Some(Arc::new(Inner { recording, now_ns })))
    }

    #[inline]
    fn add(&self, kind: Kind, link: Link, a: u64, b: u64) {
        if let Some(inner) = &self.0 {
            let words = [head(kind, link), a, b];
            let time_ns = (inner.now_ns)() | 1;
            inner.recording.add(track_of(link.qpn), time_ns, words);
        }
    }

    /// Counts a repeated event.
    #[inline]
    fn add_again(&self, kind: Kind, link: Link) {
        if let Some(inner) = &self.0 {
            let time_ns = (inner.now_ns)() | 1;
            let track = track_of(link.qpn);
            inner.recording.add_again(track, time_ns, head(kind, link));
        }
    }

    /// A connection changes its state.
    #[inline]
    pub fn cm_state(&self, link: Link, from: CmState, to: CmState) {
        probes::cm_state(link.conn, link.qpn, from.number(), to.number());
        if to == CmState::Established {
            self.add(Kind::Established, link, 0, 0);
        }
    }

    /// A message of connection management is sent or has been received.
    pub fn cm_message(&self, link: Link, message: &Message) {
        let Link { conn, qpn } = link;
        let (direction, tries) = (message.direction as u8, message.tries);
        let is_again = message.direction == Direction::Sent && tries > 1;
        let is_req = message.message == CmMessage::Req;
        if is_again {
            probes::cm_retry(conn, qpn, message.message.number(), tries);
            if message.message != CmMessage::Rej {
                return self.add_again(Kind::Retry, link);
            }
        }
        let (high, low) = if is_req {
            words_of(message.peer)
        } else {
            (0, 0)
        };
        match message.message {
            CmMessage::Req => {
                probes::cm_req(conn, qpn, direction, high, low, message.port);
                self.add(Kind::Peer, link, high, low);
            }
            CmMessage::Rep => probes::cm_rep(conn, qpn, direction, tries),
            CmMessage::Rtu => probes::cm_rtu(conn, qpn, direction),
            CmMessage::Rej => probes::cm_reject(conn, qpn, direction, message.reason),
            CmMessage::Dreq => probes::cm_dreq(conn, qpn, direction),
            CmMessage::Drep => probes::cm_drep(conn, qpn, direction),
            CmMessage::Mra | CmMessage::Cookie => {}
        }
        let (a, b) = message.arguments();
        self.add(Kind::Message, link, a, b);
    }

    /// A connection has ended; `tries` transmissions had no answer.
    pub fn cm_end(&self, link: Link, end: End, tries: u32) {
        self.add(Kind::End, link, end.number().into(), tries.into());
    }

    /// urdmad has no listener for a connection request; `is_bound`: the port is bound.
    pub fn no_listener(&self, peer: IpAddr, port: u16, is_bound: bool) {
        let (high, low) = words_of(peer);
        let link = Link::default();
        self.add(Kind::Peer, link, high, low);
        self.add(Kind::NoListener, link, port.into(), is_bound.into());
    }

    /// A queue pair was created.
    pub fn qp_create(&self, qpn: u32, kind: u32) {
        probes::qp_create(qpn, kind);
        if let Some(inner) = &self.0 {
            inner.recording.begin(track_of(qpn));
        }
        self.add(Kind::QpCreate, Link { conn: 0, qpn }, kind.into(), 0);
    }

    /// A queue pair changed its state; its peer is the address and the queue pair `remote`.
    pub fn qp_modify(&self, qpn: u32, (from, to): (u8, u8), remote: ([u8; 16], u32)) {
        let (high, low) = words_of(remote.0.into());
        probes::qp_modify(qpn, from, to, high, low, remote.1);
        let link = Link { conn: 0, qpn };
        // Every queue pair goes to INIT (1); in RTR (2) it knows its peer.
        if to == 2 {
            self.add(Kind::Peer, link, high, low);
        }
        if to != 1 {
            self.add(Kind::QpModify, link, from.into(), to.into());
        }
    }

    /// A work request of a queue pair failed.
    pub fn qp_error(&self, qpn: u32, status: u32) {
        self.add(Kind::QpError, Link { conn: 0, qpn }, status.into(), 0);
    }

    /// A queue pair was destroyed.
    pub fn qp_destroy(&self, qpn: u32) {
        self.add(Kind::QpDestroy, Link { conn: 0, qpn }, 0, 0);
    }

    /// A retransmission timeout expired, the `backoff`-th in a row.
    pub fn rto(&self, qpn: u32, backoff: u32, interval_ns: u64) {
        probes::rto(qpn, backoff, interval_ns);
        self.add_again(Kind::Rto, Link { conn: 0, qpn });
    }

    /// The congestion window of a queue pair changed; passes the probe only.
    #[inline]
    pub fn cwnd(&self, qpn: u32, packets: u32, rtt_ns: u64) {
        probes::cwnd(qpn, packets, rtt_ns);
    }

    /// The peer of a queue pair is gone.
    pub fn peer_gone(&self, qpn: u32) {
        self.cm_end(Link { conn: 0, qpn }, End::PeerGone, 0);
    }

    /// A packet was sent again.
    pub fn sent_again(&self, qpn: u32) {
        self.add_again(Kind::SentAgain, Link { conn: 0, qpn });
    }

    /// A queue of the port was leased to `slot`, or taken back.
    pub fn lease(&self, slot: u8, queue: u16, is_granted: bool) {
        probes::lease(slot, queue, is_granted.into());
        let link = Link::default();
        self.add(Kind::Lease, link, queue.into(), is_granted.into());
    }

    /// A process has attached.
    pub fn attach(&self, slot: u8, pid: i32) {
        let pid = u64::from(pid.unsigned_abs());
        self.add(Kind::Attach, Link::default(), slot.into(), pid);
    }

    /// A process has ended.
    pub fn detach(&self, slot: u8, is_death: bool) {
        let link = Link::default();
        self.add(Kind::Detach, link, slot.into(), is_death.into());
    }
}
