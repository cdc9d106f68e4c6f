//! What a way for packets is to the loops that send and receive: room for a datagram, then the
//! datagram.
//!
//! Two ways exist: the channel to urdmad (`data/packets.rs`), and the leased queue (`lease.rs`),
//! out of the port. The loops are generic and dispatch statically.
//!
//! Datagram queue pairs send without it (`datagram/send.rs`), and the receive side of channels does
//! not use it either; doc/adr/0013-packet-paths.md says why.

use proto_trp::conn::Run;
use proto_trp::wire::Meta;

use super::packet_body::PacketBody;

/// ECN codepoint ECT(0).
const ECN_CAPABLE: u8 = 2;

/// Datagrams that a queue pair may send before it is the next one's turn.
pub(crate) const TURN: u16 = 32;

/// How a queue pair's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing more may be sent now.
    Done,
    /// There is more.
    More,
    /// There is more, but no room.
    Blocked,
}

/// Why a datagram cannot be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The channel is full.
    Full,
    /// No buffer is free.
    NoBuffer,
}

/// What a connection has written into the room of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Octets of the datagram.
    pub(crate) len: usize,
    /// It may be marked instead of dropped.
    pub(crate) is_ecn_capable: bool,
}

impl Written {
    /// A datagram of a run.
    #[inline]
    pub(crate) const fn of_run(len: usize) -> Self {
        Self {
            len,
            is_ecn_capable: true,
        }
    }

    /// The ECN bits of its packet.
    #[inline]
    pub(crate) fn ecn(&self) -> u8 {
        if self.is_ecn_capable {
            ECN_CAPABLE
        } else {
            0
        }
    }
}

/// A way out for the datagrams of one queue pair.
pub(crate) trait TransmitPath {
    /// Rooms for datagrams of a run.
    type Rooms<'s>: Iterator<Item = &'s mut [u8]>
    where
        Self: 's;

    /// Rooms for up to `count` datagrams of up to `octets`, at least one, until
    /// [`Self::commit_run`]. All of a run are ECN-capable.
    ///
    /// # Errors
    /// [`Refused`]: nothing was begun.
    fn begin_run(&mut self, octets: usize, count: u16) -> Result<Self::Rooms<'_>, Refused>;

    /// Sends the datagrams of the run that was begun, at the latest with the next flush of the way;
    /// the rooms that were not written are given back.
    fn commit_run(&mut self, run: &Run);

    /// Room for a datagram of up to `octets`, until [`Self::commit`] or [`Self::discard`]. If it
    /// `is_followed`, another one of that length, or a shorter one, is likely to come next.
    ///
    /// # Errors
    /// [`Refused`]: nothing was begun.
    fn begin(&mut self, octets: usize, is_followed: bool) -> Result<&mut [u8], Refused>;

    /// Sends the datagram that was begun, at the latest with [`Self::finish`] and the next flush of
    /// the way.
    fn commit(&mut self, written: Written);

    /// Sends the datagrams that were kept for the next one.
    #[inline]
    fn finish(&mut self) {}

    /// Gives the room of the datagram that was begun back.
    fn discard(&mut self);
}

/// A way in for datagrams that name their receiver in the UDP ports.
pub(crate) trait ReceivePath {
    /// Takes a burst of datagrams; gives their number. Those of the burst before have been
    /// released.
    fn receive(&mut self) -> usize;

    /// The datagrams of the burst, and where each came from.
    fn datagrams(&self) -> impl Iterator<Item = (PacketBody<'_>, Meta)>;

    /// Gives the datagrams of the burst back.
    fn release(&mut self);
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use urdma_engine::{Access, Engine, Payload, QpState, SendFlags, SendOp, SendWr, Status};

    use super::*;
    use crate::clock;
    use crate::data::transmit::run_turn;
    use crate::paths::path::{metadata, NextHop, PeerPath, PeerSource};
    use crate::rig::{instance, parts, End};
    use crate::shard::Shard;

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    /// Datagrams that find room.
    const CAPACITY: usize = 2;

    /// Datagrams in boxes, from one engine to another.
    struct MemoryPath {
        meta: Meta,
        begun: Box<[u8]>,
        sent: Vec<Box<[u8]>>,
        burst: Vec<Box<[u8]>>,
    }

    impl TransmitPath for MemoryPath {
        type Rooms<'s> = std::iter::Once<&'s mut [u8]>;

        fn begin_run(&mut self, octets: usize, _: u16) -> Result<Self::Rooms<'_>, Refused> {
            self.begin(octets, false).map(std::iter::once)
        }

        fn commit_run(&mut self, run: &Run) {
            if run.count > 0 {
                self.commit(Written::of_run(run.last));
            }
        }

        fn begin(&mut self, octets: usize, _: bool) -> Result<&mut [u8], Refused> {
            if self.sent.len() == CAPACITY {
                return Err(Refused::Full);
            }
            self.begun = vec![0; octets].into_boxed_slice();
            Ok(&mut self.begun)
        }

        fn commit(&mut self, written: Written) {
            self.sent.push(self.begun[..written.len].into());
        }

        fn discard(&mut self) {}
    }

    impl ReceivePath for MemoryPath {
        fn receive(&mut self) -> usize {
            self.burst = std::mem::take(&mut self.sent);
            self.burst.len()
        }

        fn datagrams(&self) -> impl Iterator<Item = (PacketBody<'_>, Meta)> {
            self.burst.iter().map(|octets| {
                // SAFETY: the box is borrowed as long as the body is.
                let body = unsafe { PacketBody::new(octets.as_ptr(), octets.len(), octets.len()) };
                (body, self.meta)
            })
        }

        fn release(&mut self) {
            self.burst.clear();
        }
    }

    /// Connects an end to a peer as if that were on another host.
    fn connect(end: &End, peer: &End) {
        const DATAGRAM: u32 = 60_000;
        end.init(Access::all());
        let index = end.qp.number().index();
        let hop = NextHop::Remote {
            ip: IP,
            mac: [0; 6],
        };
        let remote = peer.qp.number();
        let mut shard = end.engine.shard.lock();
        let entry = shard.qps.entry(&end.qp).unwrap();
        entry.attributes.remote_qpn = remote.to_u32();
        entry.path = Some(PeerPath::Daemon(metadata(
            IP,
            (end.qp.number(), 0),
            remote.slot(),
        )));
        entry.source = PeerSource::new(hop, remote);
        for state in [QpState::Rtr, QpState::Rts] {
            shard.step_qp(index, state, DATAGRAM).unwrap();
        }
    }

    /// Gives the queue pair of `from` a turn whose datagrams go to `to`; gives how the turn ended.
    fn carry(from: &End, to: &End) -> Turn {
        let number = from.qp.number();
        let mut path = MemoryPath {
            meta: metadata(IP, (number, 0), to.qp.number().slot()),
            begun: Box::default(),
            sent: Vec::new(),
            burst: Vec::new(),
        };
        let mut shard = from.engine.shard.lock();
        shard.qps.acknowledge(number.index());
        let Shard {
            qps,
            process,
            counters,
            ..
        } = &mut *shard;
        let entry = qps.connected.get_mut(number.index()).unwrap();
        let turn = run_turn(entry, (process, counters), clock::now(), &mut path);
        drop(shard);
        let mut shard = to.engine.shard.lock();
        shard.receive_burst(to.engine.info(), &mut path);
        turn
    }

    #[test]
    fn write_over_a_path_in_memory_arrives_whole() {
        const OCTETS: usize = 200_000;
        let instance = instance();
        let [mut a, b] = [1, 2].map(|slot| {
            let engine = Engine::start_without_thread(parts(&instance, slot)).unwrap();
            End::new(engine, OCTETS)
        });
        a.memory.fill(7);
        connect(&a, &b);
        connect(&b, &a);
        let mut shard = a.engine.shard.lock();
        let (entry, process) = shard.entry_and_process(&a.qp).unwrap();
        let (conn, mut host) = entry.with_host(process);
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Write {
                remote: b.remote(0),
            },
            imm: None,
            flags: SendFlags {
                signaled: true,
                ..SendFlags::default()
            },
            shared_queue: 0,
            payload: Payload::Sges(&[a.sge(0, OCTETS)]),
        };
        conn.post_send(clock::now, &wr, &mut host).unwrap();
        drop(shard);
        assert_eq!(carry(&a, &b), Turn::Blocked, "more than there is room for");
        while !a.cq.has_completions() {
            carry(&b, &a);
            carry(&a, &b);
        }
        a.expect(1, Status::Success);
        assert!((0..OCTETS).all(|at| b.octet(at) == 7));
    }
}
