//! Datagrams out: turns of queue pairs, and datagrams that belong to no queue pair.
//!
//! [`Shard::give_turns`] lets every queue pair in the ready list send up to [`TURN`] datagrams. The
//! loop of a turn, [`run_turn`], is the same for every [`TransmitPath`].

use proto_trp::conn::Time;
use urdma_arena::sync::prefetch_write;
use urdma_arena::{Meta, SMALL_CAPACITY};
use urdma_types::{Qpn, SlotId};
use urdma_ucma::ReqRoute;

use super::arena_path::ArenaPath;
use super::lease::{LeasePath, RouteId};
use super::mr::MrTable;
use super::note::Note;
use super::packet_body::CACHE_LINE;
use super::packet_path::{Refused, TransmitPath, Written};
use super::path::{metadata, PeerPath};
use super::shard::{host, PacketCounters, QpEntry, Shard};
use super::types::{Gid, Info};

/// Datagrams that a queue pair may send before it is the next one's turn.
pub(super) const TURN: u32 = 32;

/// How a queue pair's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing more may be sent now.
    Done,
    /// There is more.
    More,
    /// There is more, but no room.
    Blocked,
    /// There is more, but no small frame or buffer is free.
    NoFrame,
}

impl Shard {
    /// Sends a datagram that belongs to no queue pair; false when it could not be.
    pub(super) fn send_to_slot(&mut self, to: SlotId, octets: &[u8], meta: Option<&Meta>) -> bool {
        let Some(mut frame) = self.endpoint.alloc(octets.len()) else {
            self.counters.no_frame += 1;
            return false;
        };
        frame.data_mut()[..octets.len()].copy_from_slice(octets);
        if let Some(meta) = meta {
            frame.set_meta(meta);
        }
        if let Some(capture) = &mut self.capture {
            capture.add(self.slot, to, octets);
        }
        self.endpoint.send(to, frame, octets.len()).is_ok()
    }

    /// Sends a datagram of connection management to a slot of a host.
    pub(super) fn send_cm(&mut self, info: &Info, ip: std::net::IpAddr, to: SlotId, octets: &[u8]) {
        // R3-5
        // A REQ comes from the address that it names.
        let source = ReqRoute::parse(octets).map(|request| Gid::from_ip(request.src.ip()));
        let index = info.gids.iter().position(|own| Some(own.gid) == source);
        let gid_index = index.and_then(|index| u8::try_from(index).ok());
        let meta = metadata(ip, (Qpn::new(self.slot, 0), gid_index.unwrap_or(0)), to);
        let first_hop = if info.addresses.contains(&ip) {
            to
        } else {
            SlotId::DAEMON
        };
        self.send_to_slot(first_hop, octets, Some(&meta));
    }

    /// Gives every queue pair in the ready list one turn.
    #[inline]
    pub(super) fn give_turns(&mut self, now: Time) {
        let is_alone = self.batch.is_empty() && self.ready.len() == 1;
        self.batch.clear();
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else {
                break;
            };
            if let Some(entry) = self.qps.get_mut(index) {
                entry.is_queued = false;
                // Without a free frame the others cannot send either, unless they use buffers of a
                // leased queue.
                if self.give_turn(index, now, is_alone) == Turn::NoFrame && self.lease.is_none() {
                    break;
                }
            } else {
                self.transmit_datagrams(index, now);
            }
        }
    }

    /// Gives a queue pair one turn and publishes what it sent.
    #[inline]
    pub(super) fn transmit(&mut self, index: u16, now: Time) {
        self.give_turn(index, now, true);
        self.publish();
    }

    /// Gives a queue pair one turn, and puts it into the ready list if it has more to send.
    /// `is_alone` says that no other queue pair sends in this call.
    #[inline]
    pub(super) fn give_turn(&mut self, index: u16, now: Time, is_alone: bool) -> Turn {
        let Some(entry) = self.qps.get_mut(index) else {
            return Turn::Done;
        };
        let turn = match entry.path {
            _ if self.is_dead => Turn::Done,
            Some(PeerPath::Local(slot)) => self.transmit_to_slot(index, now, slot, None, is_alone),
            Some(PeerPath::Channel(slot)) => self.transmit_messages(index, slot),
            Some(PeerPath::Daemon(meta)) => {
                self.transmit_to_slot(index, now, SlotId::DAEMON, Some(&meta), false)
            }
            Some(PeerPath::Lease(route)) => self.transmit_leased(index, now, route),
            None => Turn::Done,
        };
        if let Some(entry) = self.qps.get_mut(index) {
            self.wheel.set(index, entry.conn.next_deadline());
        }
        if turn != Turn::Done {
            self.make_ready(index);
            self.is_blocked |= turn != Turn::More;
        }
        turn
    }

    /// Gives a queue pair a turn into the ring of `to`, which is its peer or slot 0.
    #[inline]
    fn transmit_to_slot(
        &mut self,
        index: u16,
        now: Time,
        to: SlotId,
        meta: Option<&Meta>,
        is_alone: bool,
    ) -> Turn {
        let Some(entry) = self.qps.get_mut(index) else {
            return Turn::Done;
        };
        let mut path = ArenaPath {
            endpoint: &mut self.endpoint,
            outbox: &mut self.outbox,
            capture: &mut self.capture,
            cma: &self.cma,
            from: self.slot,
            to,
            meta,
            is_alone,
        };
        let shared = (&mut self.regions, &mut self.notes, &mut self.counters);
        run_turn(entry, shared, now, &mut path)
    }

    /// Gives a queue pair a turn on a route of the lease.
    #[inline]
    fn transmit_leased(&mut self, index: u16, now: Time, route: RouteId) -> Turn {
        let (Some(entry), Some(lease)) = (self.qps.get_mut(index), &mut self.lease) else {
            return Turn::Done;
        };
        let shared = (&mut self.regions, &mut self.notes, &mut self.counters);
        let turn = run_turn(entry, shared, now, &mut LeasePath::new(lease, route));
        self.is_blocked |= !lease.flush();
        turn
    }
}

/// Sends what a queue pair may send on `path`, up to [`TURN`] datagrams.
#[inline]
pub(super) fn run_turn<P: TransmitPath>(
    entry: &mut QpEntry,
    (regions, notes, counters): (&mut MrTable, &mut Vec<Note>, &mut PacketCounters),
    now: Time,
    path: &mut P,
) -> Turn {
    for _ in 0..TURN {
        let Some(plan) = entry.conn.plan_transmit() else {
            return Turn::Done;
        };
        let refer_from = path.refer_from(plan.room(), || entry.conn.may_refer(plan));
        let room = match path.begin(notes, plan.room()) {
            Ok(room) => room,
            Err(Refused::Full) => return Turn::Blocked,
            Err(Refused::NoFrame) => {
                counters.no_frame += 1;
                let is_short = plan.room() <= SMALL_CAPACITY;
                return if is_short {
                    Turn::NoFrame
                } else {
                    Turn::Blocked
                };
            }
        };
        if plan.is_train() {
            prefetch_to_write(&room[..plan.room()]);
        }
        let mut host = host!(entry, *regions, *notes);
        host.refer_from = refer_from;
        let Some(transmit) = entry.conn.write_transmit(now, plan, room, &mut host) else {
            path.discard();
            continue;
        };
        let referred = host.referred;
        let written = Written {
            len: transmit.len,
            is_ecn_capable: transmit.ecn_capable,
            is_unreliable: entry.conn.is_unreliable(),
            referred,
        };
        path.commit(notes, written);
        counters.sent += 1;
    }
    Turn::More
}

/// Prefetches the cache lines that are about to be written.
#[inline(never)]
fn prefetch_to_write(room: &[u8]) {
    for line in room.chunks(CACHE_LINE) {
        prefetch_write(line.as_ptr());
    }
}
