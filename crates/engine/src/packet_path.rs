//! What a way for packets is to the loops that send and receive: room for a datagram, then the
//! datagram.
//!
//! Two ways exist: the arena (`arena_path.rs`), into the ring of another slot of the host, and the
//! leased queue (`lease.rs`), out of the port. The loops are generic and dispatch statically. What
//! only one way has is behind the defaults here: payload by reference, which only another process
//! of the host can read, and captures.
//!
//! Datagram queue pairs send without it (`datagram/send.rs`), and the arena's receive side does not
//! use it either; doc/adr/0013-packet-paths.md says why.

use urdma_arena::{Meta, Referred};

use super::cma::NEVER;
use super::note::Note;
use super::packet_body::PacketBody;

/// ECN codepoint ECT(0).
const ECN_CAPABLE: u8 = 2;

/// Why a datagram cannot be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The receiver's ring is full.
    Full,
    /// No frame of the class, or no buffer, is free.
    NoFrame,
}

/// What a connection has written into the room of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Octets of the datagram.
    pub(super) len: usize,
    /// It may be marked instead of dropped.
    pub(super) is_ecn_capable: bool,
    /// Its connection does not fail when the receiver does not exist.
    pub(super) is_unreliable: bool,
    /// Payload that is not among the octets written.
    pub(super) referred: Option<Referred>,
}

impl Written {
    /// The ECN bits of its packet.
    #[inline]
    pub(super) fn ecn(&self) -> u8 {
        if self.is_ecn_capable {
            ECN_CAPABLE
        } else {
            0
        }
    }
}

/// A way out for the datagrams of one queue pair.
pub(super) trait TransmitPath {
    /// Room for a datagram of up to `octets`, until [`Self::commit`] or [`Self::discard`]. What
    /// this learns of other slots goes into `notes`.
    ///
    /// # Errors
    /// [`Refused`]: nothing was begun.
    fn begin(&mut self, notes: &mut Vec<Note>, octets: usize) -> Result<&mut [u8], Refused>;

    /// The length from which the payload of a datagram of up to `octets` may stay where it is, if
    /// its connection allows that.
    #[inline]
    fn refer_from(&self, octets: usize, may_refer: impl FnOnce() -> bool) -> usize {
        let _ = (octets, may_refer);
        NEVER
    }

    /// Sends the datagram that was begun, at the latest with the next flush of the way.
    fn commit(&mut self, notes: &mut Vec<Note>, written: Written);

    /// Gives the room of the datagram that was begun back.
    fn discard(&mut self);
}

/// A way in for datagrams that name their receiver in the UDP ports.
pub(super) trait ReceivePath {
    /// Takes a burst of datagrams; gives their number. Those of the burst before have been
    /// released.
    fn receive(&mut self) -> usize;

    /// The datagrams of the burst, and where each came from.
    fn datagrams(&self) -> impl Iterator<Item = (PacketBody<'_>, Meta)>;

    /// Gives the datagrams of the burst back.
    fn release(&mut self);
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use urdma_engine::{Payload, SendFlags, SendOp, SendWr, Status};

    use super::super::clock;
    use super::super::path::{metadata, NextHop, PeerSource};
    use super::super::rig::{arena, still_pair, End};
    use super::super::shard::{host, Shard};
    use super::super::transmit::{run_turn, Turn};
    use super::*;

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
        fn begin(&mut self, _: &mut Vec<Note>, octets: usize) -> Result<&mut [u8], Refused> {
            if self.sent.len() == CAPACITY {
                return Err(Refused::Full);
            }
            self.begun = vec![0; octets].into_boxed_slice();
            Ok(&mut self.begun)
        }

        fn commit(&mut self, _: &mut Vec<Note>, written: Written) {
            assert!(written.referred.is_none(), "only copied payload");
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
        shard.acknowledge(number.index());
        let Shard {
            qps,
            regions,
            notes,
            counters,
            ..
        } = &mut *shard;
        let entry = qps.get_mut(number.index()).unwrap();
        let turn = run_turn(entry, (regions, notes, counters), clock::now(), &mut path);
        drop(shard);
        let mut shard = to.engine.shard.lock();
        shard.receive_burst(to.engine.info(), &mut path);
        turn
    }

    #[test]
    fn write_over_a_path_in_memory_arrives_whole() {
        const OCTETS: usize = 200_000;
        let (mut a, b) = still_pair(arena(), OCTETS);
        a.memory.fill(7);
        for (end, peer) in [(&a, &b), (&b, &a)] {
            let hop = NextHop::Remote {
                ip: IP,
                mac: [0; 6],
            };
            let mut shard = end.engine.shard.lock();
            let entry = shard.entry(&end.qp).unwrap();
            entry.source = PeerSource::new(hop, peer.qp.number());
        }
        let mut shard = a.engine.shard.lock();
        let (entry, regions, notes) = shard.entry_and_host(&a.qp).unwrap();
        let mut host = host!(entry, *regions, *notes);
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
        entry.conn.post_send(clock::now, &wr, &mut host).unwrap();
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
