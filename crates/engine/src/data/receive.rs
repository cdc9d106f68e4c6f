//! Datagrams in: each that comes over a channel (`packets.rs`) or from the leased queue is handed
//! to the queue pair that it is for.
//!
//! A datagram from another host that no queue pair takes is answered with a RESET; RESETs are
//! limited.

use proto_trp::conn::{Datagram, Time, PREDICTED_OCTETS};
use proto_trp::wire::{trp, Meta, PacketHead, PacketType, ResetReason, TrpHeader};
use urdma_cm::wire::{is_req, ReqRoute};
use urdma_types::{slot_of_port, slot_of_source_port, source_port, udp_port, Qpn, SlotId};

use crate::clock;
use crate::objects::entry::QpEntry;
use crate::objects::kinds::handled::Handled;
use crate::objects::note::Note;
use crate::paths::origin::Origin;
use crate::paths::packet_body::{PacketBody, AHEAD, CACHE_LINE};
use crate::paths::packet_path::ReceivePath;
use crate::shard::Shard;
use crate::types::Info;

/// Both ECN bits: congestion experienced.
const ECN_CE: u8 = 3;
/// Octets of a datagram that are copied before anything is looked at.
const HEAD: usize = proto_trp::conn::HEAD_OCTETS;

impl Shard {
    /// Takes a burst from the leased queue, if there is one.
    #[inline]
    pub(super) fn receive_leased(&mut self, info: &Info) -> usize {
        if self.lease.is_none() {
            return 0;
        }
        self.receive_from_lease(info)
    }

    fn receive_from_lease(&mut self, info: &Info) -> usize {
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
    pub(crate) fn receive_burst<P: ReceivePath>(&mut self, info: &Info, path: &mut P) -> usize {
        if path.receive() == 0 {
            return 0;
        }
        let now = clock::now();
        let mut taken = 0;
        let mut datagrams = path.datagrams();
        let mut next = datagrams.next();
        while let Some((body, meta)) = next {
            match slot_of_port(meta.dst_port) {
                Some(slot) if slot == self.slot => {
                    taken += self.dispatch(info, &body, &Origin::Leased(meta));
                    let predicted = self.take_predicted(now, &meta, &mut datagrams);
                    taken += predicted.0;
                    next = predicted.1;
                    continue;
                }
                Some(_) => self.pass_on(&body, &meta),
                None => self.counters.malformed += 1,
            }
            taken += 1;
            next = datagrams.next();
        }
        drop(datagrams);
        self.settle_handled();
        path.release();
        taken
    }

    /// Takes the datagrams behind one with these metadata, as long as they have the same and are
    /// those that the connection predicts; gives their number, and the first that is not. All of
    /// them arrived before `now`.
    #[inline]
    pub(super) fn take_predicted<'b>(
        &mut self,
        now: Time,
        meta: &Meta,
        datagrams: &mut impl Iterator<Item = (PacketBody<'b>, Meta)>,
    ) -> (usize, Option<(PacketBody<'b>, Meta)>) {
        let entry = self.qps.connected.get_mut(self.qps.handled);
        let Some(entry) = entry.filter(|entry| entry.source.sent(meta)) else {
            return (0, datagrams.next());
        };
        let (conn, mut host) = entry.with_host(&mut self.process);
        let mut taken = 0;
        let mut other = None;
        for (body, of) in datagrams {
            let mut start = [0; PREDICTED_OCTETS];
            // R15-2
            //# A receiver MUST copy each header before it evaluates it, since the sender may share
            //# the memory that it lies in.
            let len = body.copy_start(&mut start);
            let datagram = Datagram {
                head: &start[..len],
                len: body.len(),
                body: &body,
                congestion_experienced: of.ecn == ECN_CE,
            };
            if of != *meta || !conn.handle_as_predicted(now, &datagram, &mut host) {
                other = Some((body, of));
                break;
            }
            taken += 1;
        }
        self.counters.received += taken as u64;
        (taken, other)
    }

    /// Passes a datagram that is another slot's on to urdmad, for that slot, or one that urdmad has
    /// to check.
    #[cold]
    fn pass_on(&mut self, body: &PacketBody, meta: &Meta) {
        self.counters.forwarded += 1;
        let head = PacketHead {
            is_passed_on: true,
            ..PacketHead::of(*meta)
        };
        // A full channel loses it, as any network would.
        let _ = self.send_to_slot(SlotId::DAEMON, &body.to_boxed(), &head);
    }

    /// Dispatches a datagram in memory that others may write to.
    #[inline]
    pub(super) fn dispatch(&mut self, info: &Info, body: &PacketBody, origin: &Origin) -> usize {
        let mut head = [0u8; HEAD];
        // R15-2
        //# A receiver MUST copy each header before it evaluates it, since the sender may share the
        //# memory that it lies in.
        let head_len = body.copy_head(&mut head);
        self.handle(info, &head[..head_len], body, origin)
    }

    /// Passes a datagram, of which `head` is a private copy of the first octets, to its queue pair.
    /// Returns the number of packets in it, which is more than 1 for a train.
    #[inline]
    pub(crate) fn handle(
        &mut self,
        info: &Info,
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
                self.dispatch_cm(info, head, body, origin);
                return 1;
            }
            Ok(PacketType::Datagram) => {
                self.dispatch_datagram(info, head, body, origin);
                return 1;
            }
            // C7.1-1
            //# Between two other processes there are only DATAGRAM and CM packets, and those of the
            //# dynamically connected transport (trp.md, section 17), whose source address is taken
            //# to be `::1`, and whose source port to name the slot of the channel; a receiver drops
            //# packets of connections.
            Ok(kind) if matches!(origin, Origin::Local(_)) => {
                if kind != PacketType::Reset && self.qps.connected.get(index_of(fixed)).is_some() {
                    self.counters.malformed += 1;
                } else {
                    self.handle_other(fixed, (head, body), origin);
                }
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
        // If this thread has waited for a processor, the datagram came after an earlier reading of
        // the clock, and round trips would seem shorter than the path.
        let now = clock::now();
        let Some(entry) = self.qps.connected.get_mut(index) else {
            self.handle_other(fixed, (head, body), origin);
            return 1;
        };
        let is_from_peer = origin.meta().is_some_and(|meta| entry.source.sent(meta));
        // R3-9, R8.4-9
        //# A packet of a connection MUST be accepted only from its peer: its IP source address is
        //# the one that the connection was set up with, and its UDP source port is that of the
        //# peer's QPN or that of the peer's slot (e = 0); in a RESET, it is that of the peer's slot
        //# or of its daemon.
        //# A packet for a queue pair that exists, from elsewhere than its peer or with a connection
        //# id that is not its own, MUST be dropped without an answer and is counted: it is late, or
        //# forged.
        if !is_from_peer && !may_be_from_peer(entry, fixed, origin) {
            self.counters.wrong_source += 1;
            return 1;
        }
        let datagram = Datagram {
            head,
            len: body.len(),
            body,
            congestion_experienced: origin.meta().is_some_and(|meta| meta.ecn == ECN_CE),
        };
        let (conn, mut host) = entry.with_host(&mut self.process);
        let handled = conn.handle_datagram(now, &datagram, &mut host);
        if self.qps.handled != index {
            self.settle_handled();
            self.qps.handled = index;
        }
        match handled {
            Ok(packets) => packets as usize,
            Err(reason) => {
                self.answer_reset(now, (head, body.len()), origin, reason);
                1
            }
        }
    }

    /// Processes a datagram that no connection takes: for a queue pair of another kind, or for
    /// none.
    #[inline(never)]
    fn handle_other(
        &mut self,
        fixed: &[u8; trp::HEADER_LEN],
        (head, body): (&[u8], &PacketBody),
        origin: &Origin,
    ) {
        let Some(sender) = origin.sender() else {
            self.counters.wrong_source += 1;
            return;
        };
        let (now, len) = (clock::now(), body.len());
        let datagram = Datagram {
            head,
            len,
            body,
            congestion_experienced: origin.meta().is_some_and(|meta| meta.ecn == ECN_CE),
        };
        let is_reset = PacketType::of(fixed[trp::field::VERSION_TYPE]) == Ok(PacketType::Reset);
        let found = if is_reset {
            self.handle_reset_of_kind(now, (origin, sender), &datagram)
        } else {
            self.handle_of_kind(index_of(fixed), now, (origin, sender), &datagram)
        };
        match found {
            Handled::Done => {}
            Handled::Answer(octets, len) => self.send_reset(now, origin, &octets[..len]),
            Handled::NoQueuePair => {
                self.counters.unknown_qp += 1;
                if !is_reset {
                    self.answer_reset(now, (head, len), origin, ResetReason::NoQueuePair);
                }
            }
        }
    }

    /// Sets the timer of the queue pair that took the last datagrams, and puts it into the ready
    /// list if it may send: after a burst, and before another one takes a datagram.
    #[inline]
    pub(super) fn settle_handled(&mut self) {
        let index = std::mem::take(&mut self.qps.handled);
        let Some(entry) = self.qps.connected.get_mut(index) else {
            return;
        };
        self.qps.wheel.set(index, entry.conn.next_deadline());
        if !entry.is_queued && entry.conn.may_have_tx() {
            entry.is_queued = true;
            self.qps.ready.push_back(index);
        }
    }

    /// The queue pair whose stream a RESET names; 0, which is none, if there is no such.
    #[cold]
    fn index_of_reset(&self, fixed: &[u8; trp::HEADER_LEN]) -> u16 {
        let at = trp::field::CONNECTION_ID;
        let id = u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        self.qps.by_id.get(&id).copied().unwrap_or(0)
    }

    #[cold]
    fn dispatch_cm(&mut self, info: &Info, head: &[u8], body: &PacketBody, origin: &Origin) {
        let from = match origin {
            // R9-11
            //# **Cookies.** A REQ from another host MUST have no effect but a COOKIE before its
            //# sender has shown, by a valid cookie, that it receives what is sent to its address:
            //# no state is created, no application sees it, and it is not refused.
            // urdmad checks the cookies of requests.
            Origin::Leased(meta) if is_req(head) => return self.pass_on(body, meta),
            Origin::Remote(meta) | Origin::Leased(meta) => Some(meta.remote_ip.to_ip()),
            Origin::Local(_) => info.addresses.first().copied(),
        };
        let Some(from) = from else {
            return;
        };
        let datagram = body.to_boxed();
        if matches!(origin, Origin::Remote(_)) && info.addresses.contains(&from) {
            self.open_way_back(info, &datagram);
        }
        self.process.notes.push(Note::Cm(from, datagram));
    }

    /// Opens the channel for the answer to a request that urdmad passes on from a process of this
    /// host, so that the process maps it while the program decides. The offer precedes the request
    /// in the notes: a program that is told of the request, rejects it and ends has made the offer.
    fn open_way_back(&mut self, info: &Info, datagram: &[u8]) {
        let Some(request) = ReqRoute::parse(datagram) else {
            return;
        };
        if info.addresses.contains(&request.src.ip()) {
            // If there can be none, the answer is lost.
            let _ = self.ensure_channel(request.slot);
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
        let records = self.records.as_deref();
        let delivered = |index, stream| records?.of(index).next_of(stream);
        let Some(reset) = TrpHeader::reset_answering(offender, reason, delivered) else {
            return;
        };
        let mut octets = [0; trp::HEADER_LEN];
        if reset.encode(&mut octets).is_err() {
            return;
        }
        self.send_reset(now, origin, &octets);
    }

    /// Sends a RESET to where a datagram came from, unless there are too many.
    #[cold]
    fn send_reset(&mut self, now: Time, origin: &Origin, octets: &[u8]) {
        let limit = match origin {
            Origin::Local(_) => &mut self.local_resets,
            Origin::Remote(_) | Origin::Leased(_) => &mut self.resets,
        };
        if !limit.allows(now.as_ns()) {
            self.counters.resets_left_out += 1;
            return;
        }
        match origin {
            Origin::Local(slot) => {
                // A full channel loses it, as any network would.
                let _ = self.send_to_slot(*slot, octets, &PacketHead::default());
            }
            Origin::Remote(meta) | Origin::Leased(meta) => self.send_back(meta, octets),
        }
    }

    /// Answers, without state, a datagram that came from another host.
    fn send_back(&mut self, meta: &Meta, octets: &[u8]) {
        let Some(slot) = slot_of_source_port(meta.src_port) else {
            return;
        };
        // R3-4, R3-5, R15-1
        //# The daemon, which has no queue pairs, MUST send from port 21504; connection management
        //# and RESETs of other slots MUST be sent with e = 0.
        //# The IP source address MUST be the address by which the receiver knows the sender: that
        //# of the GID with which the queue pair or the address handle was set up; in a REQ the
        //# source address in its body; in a RESET the destination address of the packet that it
        //# answers.
        //# An answer MUST be sent to the address that the packet came from, never to one that only
        //# its body names.
        let back = Meta {
            src_port: source_port(Qpn::new(self.slot, 0)),
            dst_port: udp_port(slot),
            ecn: 0,
            ..*meta
        };
        let head = PacketHead::of(back);
        // A full channel loses it, as any network would.
        let _ = self.send_to_slot(SlotId::DAEMON, octets, &head);
    }
}

/// Whether a datagram from another source than the peer's may still be the peer's: a RESET, or one
/// for a queue pair that has no peer yet.
#[cold]
fn may_be_from_peer(entry: &QpEntry, fixed: &[u8; trp::HEADER_LEN], origin: &Origin) -> bool {
    let is_reset = PacketType::of(fixed[trp::field::VERSION_TYPE]) == Ok(PacketType::Reset);
    let sent_reset = |meta| is_reset && entry.source.sent_reset(meta);
    entry.path.is_none() || origin.meta().is_some_and(sent_reset)
}

/// The queue pair's index that a packet of a connection names.
#[inline]
fn index_of(fixed: &[u8; trp::HEADER_LEN]) -> u16 {
    let at = trp::field::DESTINATION_INDEX;
    u16::from_be_bytes([fixed[at], fixed[at + 1]])
}
