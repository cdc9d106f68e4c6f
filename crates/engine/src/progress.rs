//! Moving packets: take a burst, hand each datagram to its queue pair, send what the queue pairs have to send.
//!
//! One call of [`Shard::take`] takes at most [`BURST`] datagrams from the arena and as many from the lease; [`Shard::flush`] then lets
//! every queue pair in the ready list send up to [`TURN`] datagrams, acknowledgements that became due among them. [`Shard::progress_for_poll`]
//! puts the sending off, once, when few datagrams came and there is a completion to deliver: the application's next call sends, and if that is an answer to what
//! it has just received, the acknowledgement rides on it. A queue pair that finds its
//! receiver's ring full, or no free frame, keeps what it has to send and stays in the list; `is_blocked` makes the background thread try again
//! soon, so that nothing is lost and nobody spins.

use proto_trp::conn::{Datagram, Time};
use proto_trp::wire::{trp, PacketType, ResetReason, TrpHeader};
use urdma_arena::sync::prefetch_write;
use urdma_arena::{
    Arrival, Endpoint, Meta, Referred, RxFrame, ShortOctets, Special, SHORT_CAPACITY,
    SMALL_CAPACITY,
};
use urdma_types::{slot_of_source_port, source_port, udp_port, Psn, Qpn, SlotId};

use urdma_ucma::ReqRoute;

use super::clock;
use super::cma;
use super::lease::{self, RouteId};
use super::memory::{PacketBody, AHEAD, CACHE_LINE};
use super::outbox::Refused;
use super::path::{metadata, PeerPath};
use super::shard::{host, Note, QpEntry, Shard};
use super::types::{Gid, Info};

/// Datagrams that one call takes from the arena.
pub(super) const BURST: usize = 32;
/// Bursts that empty a ring of the largest size.
const DRAIN_BURSTS: usize = 65_536 / BURST;
/// Datagrams that a queue pair may send before it is the next one's turn.
const TURN: u32 = 32;
/// Datagrams at one poll after which acknowledgements are not put off: the sender of a stream waits for them, and no answer will carry them.
const PUT_OFF_MAX: usize = 4;
/// Datagrams of a frame that are on their way into the processor while one is looked at.
const PREFETCHED: usize = 3;
/// Both ECN bits: congestion experienced.
const ECN_CE: u8 = 3;
/// ECT(0).
const ECN_CAPABLE: u8 = 2;
/// Octets of a datagram that are copied before anything is looked at.
const HEAD: usize = proto_trp::conn::HEAD_OCTETS;

/// Where a datagram came from.
enum Origin {
    Local(SlotId),
    Remote(Meta),
}

/// How a queue pair's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nothing more may be sent now.
    Done,
    /// There is more.
    More,
    /// There is more, but no room.
    Blocked,
    /// There is more, but this slot has no frame left for anybody.
    NoFrame,
}

impl Shard {
    /// Takes and sends; gives the number of datagrams taken.
    #[inline]
    pub(super) fn progress(&mut self, info: &Info) -> usize {
        let taken = self.take(info, || false);
        self.flush();
        taken
    }

    /// As [`Shard::progress`] for an application that polls a queue: `is_found` says whether it has a completion.
    #[inline]
    pub(super) fn progress_for_poll(&mut self, info: &Info, is_found: impl Fn() -> bool) {
        self.batch.polled();
        if !self.batch.is_empty() {
            self.flush();
        }
        let taken = self.take(info, &is_found);
        if self.ready.is_empty() && !self.outbox.is_stuck() {
            return;
        }
        if taken <= PUT_OFF_MAX && !self.is_put_off && is_found() {
            self.is_put_off = true;
        } else {
            self.flush();
        }
    }

    /// Takes all that waits in the ring, as far as it was there at the beginning.
    pub(super) fn drain(&mut self, info: &Info) {
        for _ in 0..DRAIN_BURSTS {
            if self.progress(info) < BURST {
                break;
            }
        }
    }

    /// Whether a queue pair whose turn ended has more that could leave now: nothing but turns keeps it.
    pub(super) fn may_send_more(&self) -> bool {
        !self.is_dead && !self.is_blocked && !self.ready.is_empty()
    }

    /// Sends what was put off or is ready.
    #[inline]
    pub(super) fn flush(&mut self) {
        self.is_put_off = false;
        if self.outbox.is_stuck() {
            self.outbox.retry_all(&mut self.endpoint, &mut self.notes);
        }
        if !self.ready.is_empty() {
            self.give_turns(clock::now());
        }
        self.publish();
    }

    /// Sends what was written for other slots.
    #[inline]
    fn publish(&mut self) {
        self.outbox.publish(&mut self.endpoint, &mut self.notes);
        self.is_blocked |= self.outbox.is_stuck();
    }

    /// Sends what a request of `octets` that was just posted lets out, and what was put off for this call; or leaves it for more to come: see `batch.rs`.
    #[inline]
    pub(super) fn transmit_posted(&mut self, index: u16, octets: u32) {
        if self.batch.add(octets) {
            self.make_ready(index);
            return;
        }
        if self.is_put_off || !self.batch.is_empty() {
            self.is_put_off = false;
            self.make_ready(index);
            self.give_turns(clock::now());
        } else {
            self.give_turn(index, clock::now(), true);
        }
        self.publish();
    }

    /// Takes what has arrived. When a short datagram came and `is_enough`, only more of these are taken.
    #[inline]
    fn take(&mut self, info: &Info, is_enough: impl Fn() -> bool) -> usize {
        let taken = self.receive(info, is_enough);
        if self.lease.is_none() {
            return taken;
        }
        taken + self.receive_leased(info)
    }

    /// Handles the timers that are due and sends what they cause.
    pub(super) fn run_timers(&mut self, now: Time) {
        if !self.wheel.is_due(now) {
            return;
        }
        while let Some(index) = self.wheel.expired(now) {
            let Some(entry) = self.qps.get_mut(index) else {
                continue;
            };
            if entry.conn.next_deadline().is_some_and(|at| at <= now) {
                let mut host = host!(entry, self.regions, self.notes);
                entry.conn.handle_timeout(now, &mut host);
            }
            self.wheel.set(index, entry.conn.next_deadline());
            if entry.conn.may_have_tx() {
                self.make_ready(index);
            }
        }
        if !self.ready.is_empty() {
            self.give_turns(now);
            self.publish();
        }
    }

    #[inline]
    fn receive(&mut self, info: &Info, is_enough: impl Fn() -> bool) -> usize {
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
                    if frame.from() == urdma_types::SlotId::DAEMON {
                        // It came after the last look at the clock if this thread has waited for a processor: round trips would seem shorter than the path.
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

    /// Hands on a datagram that came without a frame.
    #[inline]
    fn dispatch_short(
        &mut self,
        info: &Info,
        now: Time,
        octets: &ShortOctets,
        from: urdma_types::SlotId,
        len: usize,
    ) -> usize {
        let origin = Origin::Local(from);
        // SAFETY: the octets are borrowed as long as this lasts, and `len` is at most their number.
        let body = unsafe { PacketBody::new(octets.as_ptr(), len, octets.len()) };
        self.handle(info, now, &octets[..len], &body, &origin)
    }

    /// Hands on the datagrams of a frame; gives the number of packets in them.
    #[inline]
    fn dispatch_frame(&mut self, info: &Info, now: Time, frame: &RxFrame) -> usize {
        let origin = if frame.from() == urdma_types::SlotId::DAEMON {
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
            // SAFETY: the datagram lies within the frame, as does what is readable behind it, and the frame is held as long as it is borrowed.
            let body =
                unsafe { PacketBody::new(frame.data_ptr().add(at), len, frame.capacity() - at) };
            taken += self.dispatch(info, now, &body, &origin);
            match followers.next() {
                Some(next) => (at, len) = next,
                None => return taken,
            }
        }
    }

    /// Takes a frame that is not just datagrams.
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
                // SAFETY: the datagram lies within the frame, as does what is readable behind it, and the frame is held as long as it is borrowed.
                let body =
                    unsafe { PacketBody::new(frame.data_ptr(), frame.len(), frame.capacity()) };
                self.dispatch(info, now, &body, &Origin::Remote(frame.meta()));
            }
        }
    }

    /// Takes a datagram whose payload is still in the memory of the process that sent it.
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
        let mut taken = 0;
        if lease.receive() > 0 {
            let now = clock::now();
            for datagram in lease.received() {
                match datagram.slot() {
                    Some(slot) if slot == self.slot => {
                        let origin = Origin::Remote(datagram.metadata());
                        taken += self.dispatch(info, now, &datagram.body(), &origin);
                        continue;
                    }
                    Some(slot) => self.hand_on(slot, datagram),
                    None => self.counters.malformed += 1,
                }
                taken += 1;
            }
            lease.release();
        }
        self.lease = Some(lease);
        taken
    }

    /// Copies a datagram that is another slot's into the arena for it.
    #[cold]
    fn hand_on(&mut self, to: SlotId, datagram: lease::LeasedDatagram<'_>) {
        let octets = datagram.octets();
        let meta = datagram.metadata();
        self.counters.forwarded += 1;
        if let Some(mut frame) = self.endpoint.alloc(octets.len()) {
            frame.data_mut()[..octets.len()].copy_from_slice(octets);
            frame.pass_on(&meta);
            // A full ring loses it, as any network would.
            let _ = self.endpoint.send(to, frame, octets.len());
        }
    }

    /// Hands on a datagram in memory that others may write to.
    #[inline]
    fn dispatch(&mut self, info: &Info, now: Time, body: &PacketBody, origin: &Origin) -> usize {
        let mut head = [0u8; HEAD];
        // R15-2
        let head_len = body.copy_head(&mut head);
        self.handle(info, now, &head[..head_len], body, origin)
    }

    /// Hands a datagram, of which `head` is a private copy of the first octets, to whom it is for. Gives the number of packets that it stands for, which is
    /// more than 1 for a train.
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

    /// Answers a datagram that no queue pair takes with a RESET, so that its sender need not wait for a timeout.
    #[cold]
    fn answer_reset(
        &mut self,
        now: Time,
        (head, len): (&[u8], usize),
        origin: &Origin,
        reason: ResetReason,
    ) {
        let Some(reset) = reset_of(&self.endpoint, head, len, reason) else {
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
    fn give_turns(&mut self, now: Time) {
        let is_alone = self.batch.is_empty() && self.ready.len() == 1;
        self.batch.clear();
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else {
                break;
            };
            if let Some(entry) = self.qps.get_mut(index) {
                entry.is_queued = false;
                // Without a frame the others need not be asked, unless they may have buffers of a leased queue.
                if self.give_turn(index, now, is_alone) == Turn::NoFrame && self.lease.is_none() {
                    break;
                }
            } else {
                self.transmit_datagrams(index, now);
            }
        }
    }

    /// Lets a queue pair send what it may.
    #[inline]
    pub(super) fn transmit(&mut self, index: u16, now: Time) {
        self.give_turn(index, now, true);
        self.publish();
    }

    /// Gives a queue pair one turn, and puts it into the ready list if it has more to send. What it sends goes by itself if `is_alone`.
    #[inline]
    fn give_turn(&mut self, index: u16, now: Time, is_alone: bool) -> Turn {
        let Some(entry) = self.qps.get_mut(index) else {
            return Turn::Done;
        };
        let turn = match entry.path {
            _ if self.is_dead => Turn::Done,
            Some(PeerPath::Local(slot)) => self.transmit_to_slot(index, now, slot, None, is_alone),
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

    #[inline]
    fn transmit_to_slot(
        &mut self,
        index: u16,
        now: Time,
        to: SlotId,
        meta: Option<&Meta>,
        is_alone: bool,
    ) -> Turn {
        let Self {
            qps,
            endpoint,
            outbox,
            regions,
            notes,
            counters,
            capture,
            cma,
            slot,
            ..
        } = self;
        let Some(entry) = qps.get_mut(index) else {
            return Turn::Done;
        };
        for _ in 0..TURN {
            let Some(plan) = entry.conn.plan_transmit() else {
                return Turn::Done;
            };
            let room = match outbox.begin(endpoint, notes, to, plan.room(), is_alone) {
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
            if plan.room() >= cma::REFER_FROM
                && meta.is_none()
                && capture.is_none()
                && entry.conn.may_refer(plan)
            {
                host.refer_from = cma.refer_from(endpoint, to);
            }
            let Some(written) = entry.conn.write_transmit(now, plan, room, &mut host) else {
                continue;
            };
            let referred = host.referred;
            if let Some(capture) = capture {
                capture.add(*slot, to, &room[..written.len]);
            }
            let meta = meta.map(|meta| Meta {
                ecn: if written.ecn_capable { ECN_CAPABLE } else { 0 },
                ..*meta
            });
            outbox.add(
                endpoint,
                notes,
                written.len,
                entry.conn.is_unreliable(),
                (meta, referred),
            );
            counters.sent += 1;
        }
        Turn::More
    }

    #[inline]
    fn transmit_leased(&mut self, index: u16, now: Time, route: RouteId) -> Turn {
        let Self {
            qps,
            lease: Some(lease),
            regions,
            notes,
            counters,
            ..
        } = self
        else {
            return Turn::Done;
        };
        let Some(entry) = qps.get_mut(index) else {
            return Turn::Done;
        };
        let mut turn = Turn::More;
        for _ in 0..TURN {
            let Some(plan) = entry.conn.plan_transmit() else {
                turn = Turn::Done;
                break;
            };
            let Some(mut buffer) = lease.alloc(route) else {
                counters.no_frame += 1;
                turn = Turn::Blocked;
                break;
            };
            if plan.is_train() {
                prefetch_to_write(&buffer.data_mut()[..plan.room()]);
            }
            let mut host = host!(entry, *regions, *notes);
            match entry
                .conn
                .write_transmit(now, plan, buffer.data_mut(), &mut host)
            {
                Some(written) => {
                    let ecn = if written.ecn_capable { ECN_CAPABLE } else { 0 };
                    lease.send(buffer, written.len, route, ecn);
                    counters.sent += 1;
                }
                None => lease.discard(buffer),
            }
        }
        if !lease.flush() {
            self.is_blocked = true;
        }
        turn
    }
}

/// Whether a datagram that did not come from where the peer's packets come from may be its all the same: a RESET, or one for a queue pair that has no peer yet.
#[cold]
fn may_be_from_peer(entry: &QpEntry, fixed: &[u8; trp::HEADER_LEN], origin: &Origin) -> bool {
    let is_reset = PacketType::of(fixed[trp::field::VERSION_TYPE]) == Ok(PacketType::Reset);
    entry.path.is_none()
        || matches!(origin, Origin::Remote(meta) if is_reset && entry.source.sent_reset(meta))
}

/// The RESET that answers a datagram for a queue pair of this process; acknowledges what that queue pair had taken, if the datagram is of its stream.
fn reset_of(
    endpoint: &Endpoint,
    head: &[u8],
    len: usize,
    reason: ResetReason,
) -> Option<TrpHeader> {
    // R8.4-2
    let offender = TrpHeader::parse(head, len).ok()?;
    let reset = TrpHeader::reset_for(&offender, reason)?;
    let stream = offender.connection_id.to_u32();
    let taken = endpoint
        .arena()
        .delivered(endpoint.slot(), offender.destination_index, stream);
    Some(taken.map_or(reset, |next| reset.acknowledging(Psn::new(next))))
}

/// The queue pair's index that a packet of a connection names.
#[inline]
fn index_of(fixed: &[u8; trp::HEADER_LEN]) -> u16 {
    let at = trp::field::DESTINATION_INDEX;
    u16::from_be_bytes([fixed[at], fixed[at + 1]])
}

/// Starts taking the lines that are about to be written from the processor that has them.
#[inline(never)]
fn prefetch_to_write(room: &[u8]) {
    for line in room.chunks(CACHE_LINE) {
        prefetch_write(line.as_ptr());
    }
}
