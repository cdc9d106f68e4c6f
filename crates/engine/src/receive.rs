//! Datagrams in: a burst is taken from the arena and from the leased queue, and each datagram is
//! handed to the queue pair that it is for.
//!
//! A datagram that no queue pair takes is answered with a RESET; RESETs to other hosts are limited.

use proto_trp::conn::{Datagram, Time};
use proto_trp::wire::{trp, PacketType, ResetReason, TrpHeader};
use urdma_arena::{Arrival, Meta, Referred, RxFrame, ShortOctets, Special, SHORT_CAPACITY};
use urdma_types::{slot_of_port, slot_of_source_port, source_port, udp_port, Qpn, SlotId};

use super::clock;
use super::note::Note;
use super::packet_body::{PacketBody, AHEAD, CACHE_LINE};
use super::packet_path::ReceivePath;
use super::progress::BURST;
use super::shard::{host, QpEntry, Shard};
use super::types::Info;

/// Datagrams of a frame that are being loaded into the cache while one is handled.
const PREFETCHED: usize = 3;
/// Both ECN bits: congestion experienced.
const ECN_CE: u8 = 3;
/// Octets of a datagram that are copied before anything is looked at.
const HEAD: usize = proto_trp::conn::HEAD_OCTETS;

/// Where a datagram came from.
enum Origin {
    Local(SlotId),
    Remote(Meta),
}

impl Shard {
    /// Takes what has arrived. After a short datagram, if `is_enough`, only further short datagrams
    /// are taken.
    #[inline]
    pub(super) fn take(&mut self, info: &Info, is_enough: impl Fn() -> bool) -> usize {
        let taken = self.receive_from_arena(info, is_enough);
        if self.lease.is_none() {
            return taken;
        }
        taken + self.receive_leased(info)
    }

    #[inline]
    fn receive_from_arena(&mut self, info: &Info, is_enough: impl Fn() -> bool) -> usize {
        let mut octets = [0; SHORT_CAPACITY];
        let Some(mut arrival) = self.endpoint.recv_any(&mut octets) else {
            return 0;
        };
        let mut now = clock::now();
        let mut taken = 0;
        loop {
            let is_enough = match arrival {
                Arrival::Short { from, len } => {
                    taken += self.dispatch_short(info, now, &octets, from, len);
                    is_enough()
                }
                Arrival::Frame(frame) => {
                    self.endpoint.prefetch_next();
                    if frame.from() == SlotId::DAEMON {
                        // If this thread has waited for a processor, the datagram came after the
                        // last reading of the clock, and round trips would seem shorter than the
                        // path.
                        now = clock::now();
                    }
                    taken += self.dispatch_frame(info, now, &frame);
                    self.endpoint.release(frame);
                    false
                }
            };
            if taken >= BURST {
                break;
            }
            let next = if is_enough {
                self.endpoint.recv_short(&mut octets)
            } else {
                self.endpoint.recv_any(&mut octets)
            };
            arrival = match next {
                Some(next) => next,
                None => break,
            };
        }
        taken
    }

    /// Dispatches a datagram that came without a frame.
    #[inline]
    fn dispatch_short(
        &mut self,
        info: &Info,
        now: Time,
        octets: &ShortOctets,
        from: SlotId,
        len: usize,
    ) -> usize {
        let origin = Origin::Local(from);
        // SAFETY: the octets are borrowed as long as this lasts, and `len` is at most their number.
        let body = unsafe { PacketBody::new(octets.as_ptr(), len, octets.len()) };
        self.handle(info, now, &octets[..len], &body, &origin)
    }

    /// Dispatches the datagrams of a frame; returns the number of packets in them.
    #[inline]
    fn dispatch_frame(&mut self, info: &Info, now: Time, frame: &RxFrame) -> usize {
        let origin = if frame.from() == SlotId::DAEMON {
            Origin::Remote(frame.meta())
        } else {
            Origin::Local(frame.from())
        };
        if let Some(special) = frame.special() {
            self.take_special(info, now, frame, special, &origin);
            return 1;
        }
        let mut followers = frame.followers();
        let mut ahead = frame.followers();
        for (at, _) in ahead.by_ref().take(PREFETCHED - 1) {
            frame.prefetch(at);
        }
        let (mut at, mut len) = (0, frame.len());
        let mut taken = 0;
        loop {
            if let Some((at, _)) = ahead.next() {
                frame.prefetch(at);
            }
            // SAFETY: the datagram lies within the frame, as does what is readable behind it, and
            // the frame is held as long as it is borrowed.
            let body =
                unsafe { PacketBody::new(frame.data_ptr().add(at), len, frame.capacity() - at) };
            taken += self.dispatch(info, now, &body, &origin);
            match followers.next() {
                Some(next) => (at, len) = next,
                None => return taken,
            }
        }
    }

    /// Dispatches a frame that is not a plain one.
    #[inline(never)]
    fn take_special(
        &mut self,
        info: &Info,
        now: Time,
        frame: &RxFrame,
        special: Special,
        origin: &Origin,
    ) {
        match special {
            Special::Referring(referred) => {
                self.take_referring(info, now, frame, referred, origin);
            }
            Special::PassedOn => {
                // SAFETY: the datagram lies within the frame, as does what is readable behind it,
                // and the frame is held as long as it is borrowed.
                let body =
                    unsafe { PacketBody::new(frame.data_ptr(), frame.len(), frame.capacity()) };
                self.dispatch(info, now, &body, &Origin::Remote(frame.meta()));
            }
        }
    }

    /// Dispatches a datagram whose payload is in the memory of the process that sent it.
    fn take_referring(
        &mut self,
        info: &Info,
        now: Time,
        frame: &RxFrame,
        referred: Referred,
        origin: &Origin,
    ) {
        let Origin::Local(slot) = *origin else {
            self.counters.malformed += 1;
            return;
        };
        self.counters.referred += 1;
        let Some(far) = self.cma.open(&self.endpoint, slot, frame, referred) else {
            self.counters.unreadable += 1;
            return;
        };
        // SAFETY: as in `dispatch_frame`; the entries are not part of it.
        let body = unsafe { PacketBody::new(frame.data_ptr(), far.begin(), frame.capacity()) };
        self.dispatch(info, now, &body.with_payload(&far), origin);
        if let Some(error) = far.error() {
            self.counters.unreadable += 1;
            self.cma.note(&self.endpoint, slot, error);
        }
    }

    fn receive_leased(&mut self, info: &Info) -> usize {
        // Handling datagrams needs the whole shard, but never the lease.
        let Some(mut lease) = self.lease.take() else {
            return 0;
        };
        if !lease.flush() {
            self.is_blocked = true;
        }
        let taken = self.receive_burst(info, &mut *lease);
        self.lease = Some(lease);
        taken
    }

    /// Takes one burst of datagrams from a path that does not know slots.
    pub(super) fn receive_burst<P: ReceivePath>(&mut self, info: &Info, path: &mut P) -> usize {
        if path.receive() == 0 {
            return 0;
        }
        let mut taken = 0;
        let now = clock::now();
        for (body, meta) in path.datagrams() {
            match slot_of_port(meta.dst_port) {
                Some(slot) if slot == self.slot => {
                    taken += self.dispatch(info, now, &body, &Origin::Remote(meta));
                    continue;
                }
                Some(slot) => self.pass_on(slot, &body, &meta),
                None => self.counters.malformed += 1,
            }
            taken += 1;
        }
        path.release();
        taken
    }

    /// Copies a datagram that is another slot's into the arena for that slot.
    #[cold]
    fn pass_on(&mut self, to: SlotId, body: &PacketBody, meta: &Meta) {
        self.counters.forwarded += 1;
        if let Some(mut frame) = self.endpoint.alloc(body.len()) {
            body.copy_to_slice(&mut frame.data_mut()[..body.len()]);
            frame.pass_on(meta);
            // A full ring loses it, as any network would.
            let _ = self.endpoint.send(to, frame, body.len());
        }
    }

    /// Dispatches a datagram in memory that others may write to.
    #[inline]
    fn dispatch(&mut self, info: &Info, now: Time, body: &PacketBody, origin: &Origin) -> usize {
        let mut head = [0u8; HEAD];
        // R15-2
        let head_len = body.copy_head(&mut head);
        self.handle(info, now, &head[..head_len], body, origin)
    }

    /// Passes a datagram, of which `head` is a private copy of the first octets, to its queue pair.
    /// Returns the number of packets in it, which is more than 1 for a train.
    #[inline]
    fn handle(
        &mut self,
        info: &Info,
        now: Time,
        head: &[u8],
        body: &PacketBody,
        origin: &Origin,
    ) -> usize {
        self.counters.received += 1;
        let Some(fixed) = head.first_chunk::<{ trp::HEADER_LEN }>() else {
            self.counters.malformed += 1;
            return 1;
        };
        let index = match PacketType::of(fixed[trp::field::VERSION_TYPE]) {
            Ok(PacketType::Cm) => {
                self.dispatch_cm(info, body, origin);
                return 1;
            }
            Ok(PacketType::Datagram) => {
                self.dispatch_datagram(info, head, body);
                return 1;
            }
            Ok(PacketType::Reset) => self.index_of_reset(fixed),
            Ok(PacketType::Train) => {
                body.prefetch(2 * CACHE_LINE, AHEAD + 2 * CACHE_LINE);
                index_of(fixed)
            }
            Ok(_) => index_of(fixed),
            Err(_) => {
                self.counters.malformed += 1;
                return 1;
            }
        };
        let Some(entry) = self.qps.get_mut(index) else {
            self.counters.unknown_qp += 1;
            self.answer_reset(now, (head, body.len()), origin, ResetReason::NoQueuePair);
            return 1;
        };
        let is_from_peer = match origin {
            Origin::Local(slot) => entry.source.is_slot(*slot),
            Origin::Remote(meta) => entry.source.sent(meta),
        };
        // R3-9, R8.4-9
        if !is_from_peer && !may_be_from_peer(entry, fixed, origin) {
            self.counters.wrong_source += 1;
            return 1;
        }
        let datagram = Datagram {
            head,
            len: body.len(),
            body,
            congestion_experienced: matches!(origin, Origin::Remote(meta) if meta.ecn == ECN_CE),
        };
        let mut host = host!(entry, self.regions, self.notes);
        let handled = entry.conn.handle_datagram(now, &datagram, &mut host);
        self.wheel.set(index, entry.conn.next_deadline());
        if !entry.is_queued && entry.conn.may_have_tx() {
            entry.is_queued = true;
            self.ready.push_back(index);
        }
        match handled {
            Ok(packets) => packets as usize,
            Err(reason) => {
                self.answer_reset(now, (head, body.len()), origin, reason);
                1
            }
        }
    }

    /// The queue pair whose stream a RESET names; 0, which is none, if there is no such.
    #[cold]
    fn index_of_reset(&self, fixed: &[u8; trp::HEADER_LEN]) -> u16 {
        let at = trp::field::CONNECTION_ID;
        let id = u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        self.by_id.get(&id).copied().unwrap_or(0)
    }

    #[cold]
    fn dispatch_cm(&mut self, info: &Info, body: &PacketBody, origin: &Origin) {
        let from = match origin {
            Origin::Remote(meta) => Some(meta.remote_ip.to_ip()),
            Origin::Local(_) => info.addresses.first().copied(),
        };
        if let Some(from) = from {
            self.notes.push(Note::Cm(from, body.to_boxed()));
        }
    }

    /// Answers a datagram that no queue pair accepts with a RESET, so that its sender need not wait
    /// for a timeout.
    #[cold]
    fn answer_reset(
        &mut self,
        now: Time,
        offender: (&[u8], usize),
        origin: &Origin,
        reason: ResetReason,
    ) {
        let (arena, own) = (self.endpoint.arena(), self.endpoint.slot());
        let delivered = |index, stream| arena.delivered(own, index, stream);
        let Some(reset) = TrpHeader::reset_answering(offender, reason, delivered) else {
            return;
        };
        let mut octets = [0; trp::HEADER_LEN];
        if reset.encode(&mut octets).is_ok() {
            match origin {
                Origin::Local(slot) => {
                    self.send_to_slot(*slot, &octets, None);
                }
                Origin::Remote(meta) if self.resets.allows(now.as_ns()) => {
                    self.send_back(meta, &octets);
                }
                Origin::Remote(_) => self.counters.resets_left_out += 1,
            }
        }
    }

    /// Answers, without state, a datagram that came from another host.
    fn send_back(&mut self, meta: &Meta, octets: &[u8]) {
        let Some(slot) = slot_of_source_port(meta.src_port) else {
            return;
        };
        // R3-4, R3-5, R15-1
        let back = Meta {
            src_port: source_port(Qpn::new(self.slot, 0)),
            dst_port: udp_port(slot),
            ecn: 0,
            ..*meta
        };
        self.send_to_slot(SlotId::DAEMON, octets, Some(&back));
    }
}

/// Whether a datagram from another source than the peer's may still be the peer's: a RESET, or one
/// for a queue pair that has no peer yet.
#[cold]
fn may_be_from_peer(entry: &QpEntry, fixed: &[u8; trp::HEADER_LEN], origin: &Origin) -> bool {
    let is_reset = PacketType::of(fixed[trp::field::VERSION_TYPE]) == Ok(PacketType::Reset);
    entry.path.is_none()
        || matches!(origin, Origin::Remote(meta) if is_reset && entry.source.sent_reset(meta))
}

/// The queue pair's index that a packet of a connection names.
#[inline]
fn index_of(fixed: &[u8; trp::HEADER_LEN]) -> u16 {
    let at = trp::field::DESTINATION_INDEX;
    u16::from_be_bytes([fixed[at], fixed[at + 1]])
}
