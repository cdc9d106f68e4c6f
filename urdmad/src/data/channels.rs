//! The channels of slot 0 to the processes of the host (doc/spec/channel.md, section 7.1).
//!
//! Who sends is known by the channel. Everything else is copied once and then validated.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use proto_trp::wire::message::{CELL_PAYLOAD_LEN, MESSAGE_HEAD_LEN};
use proto_trp::wire::packet_head::PACKET_OCTETS_MIN;
use proto_trp::wire::PacketHead;
use urdma_channel::{
    CellOctets, Channel, Incoming, Left, Next, OwnRegion, Payload, PeerRecords, PeerRegion, Rota,
    CELL_DATA, LARGE_FRAME, SLOTS,
};
use urdma_memfd::MemoryError;
use urdma_trace::probes;
use urdma_types::SlotId;
use urdma_waiting::{Bells, OwnPage, PeerPage, Waker};

/// What a process has offered to slot 0.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    pub(crate) region: PeerRegion,
    pub(crate) page: PeerPage,
    pub(crate) records: Arc<PeerRecords>,
}

impl PeerMemory {
    /// Maps what a process has offered to slot 0: the descriptors of its region, its page, its
    /// delivery records, and of the socket that wakes it, if it has one.
    ///
    /// # Errors
    /// They are others.
    pub(crate) fn open(fds: Vec<OwnedFd>) -> Result<Self, MemoryError> {
        let mut fds = fds.into_iter();
        let (Some(region), Some(page), Some(records)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(MemoryError::NotMemfd);
        };
        let mut page = PeerPage::open(page)?;
        // C6.1-2
        //# A receiver MUST verify that the descriptor is a socket of NETLINK_USERSOCK before it
        //# sends on it. [adr/0017](../adr/0017-wake-socket.md) says why it is no other kind.
        if let Some(waker) = fds.next().and_then(Waker::new) {
            page.set_waker(waker);
        }
        Ok(Self {
            region: PeerRegion::open(region)?,
            page,
            records: Arc::new(PeerRecords::open(records)?),
        })
    }
}

/// Why a packet was not put into a slot's channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotPut {
    /// The process has not taken those before it.
    Full,
    /// No process has the slot.
    Unattached,
}

/// The octets of packets: in a copy, or in a frame, which its process may still change.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Octets<'a> {
    Copy(&'a [u8]),
    /// A number of octets of a frame from an offset on.
    Frame(&'a Incoming, Payload, usize, usize),
}

impl Octets<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Octets::Copy(octets) => octets.len(),
            Octets::Frame(.., len) => *len,
        }
    }

    /// The `len` octets from `at` on, which are all there.
    #[inline]
    pub(crate) fn part(&self, at: usize, len: usize) -> Self {
        match *self {
            Octets::Copy(octets) => Octets::Copy(&octets[at..at + len]),
            Octets::Frame(incoming, payload, start, _) => {
                Octets::Frame(incoming, payload, start + at, len)
            }
        }
    }

    /// Copies the first octets, as many as `out` has; false if there are fewer.
    #[inline]
    #[must_use]
    pub(crate) fn copy_to(&self, out: &mut [u8]) -> bool {
        if out.len() > self.len() {
            return false;
        }
        match self {
            Octets::Copy(octets) => {
                out.copy_from_slice(&octets[..out.len()]);
                true
            }
            Octets::Frame(incoming, payload, at, _) => incoming.copy_payload(*payload, *at, out),
        }
    }
}

/// What a process has sent.
#[derive(Debug)]
pub(crate) enum Taken<'a> {
    Nothing,
    /// What no process sends: the channel is not read any more.
    Corrupt,
    Packets(PacketHead, Octets<'a>),
}

/// A channel, and what was shown with it.
#[derive(Debug)]
struct SlotChannel {
    channel: Channel,
    is_corrupt: bool,
    /// The last packets were parts of messages of several.
    expects_several: bool,
}

/// A message that is written and not sent, since more packets may follow.
#[derive(Debug)]
struct Begun {
    slot: SlotId,
    head: PacketHead,
    left: Left,
    /// Octets of the packets.
    octets: usize,
    /// Octets of the first of them.
    each: usize,
}

/// The last packet that was sent alone.
#[derive(Debug)]
struct Alone {
    slot: SlotId,
    head: PacketHead,
    octets: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Channels {
    page: Arc<OwnPage>,
    by_slot: Box<[Option<Box<SlotChannel>>]>,
    /// Delivery records of the last process of each slot.
    records: Box<[Option<Arc<PeerRecords>>]>,
    pub(crate) open: Rota<SlotId>,
    begun: Option<Begun>,
    alone: Option<Alone>,
    /// Slots that something was written for, or taken from, since they were notified.
    doorbells: Vec<SlotId>,
}

impl Channels {
    /// None yet; peers wake this process as `page` says.
    pub(crate) fn new(page: Arc<OwnPage>) -> Self {
        Self {
            page,
            by_slot: (0..SLOTS).map(|_| None).collect(),
            records: (0..SLOTS).map(|_| None).collect(),
            open: Rota::default(),
            begun: None,
            alone: None,
            doorbells: Vec::with_capacity(SLOTS),
        }
    }

    /// Writes to the next process of a slot from now on.
    pub(crate) fn open(&mut self, slot: SlotId, region: OwnRegion) {
        self.close(slot);
        self.records[slot.as_usize()] = None;
        self.by_slot[slot.as_usize()] = Some(Box::new(SlotChannel {
            channel: Channel::new(region),
            is_corrupt: false,
            expects_several: false,
        }));
        self.open.insert(slot);
    }

    /// Reads what the process of a slot writes from now on.
    pub(crate) fn attach(&mut self, slot: SlotId, peer: PeerMemory) {
        if let Some(entry) = self.entry(slot) {
            entry.channel.attach(Incoming::new(peer.region), peer.page);
            self.records[slot.as_usize()] = Some(peer.records);
        }
    }

    /// The process of a slot has ended; its delivery records are kept.
    pub(crate) fn close(&mut self, slot: SlotId) {
        self.begun.take_if(|begun| begun.slot == slot);
        self.by_slot[slot.as_usize()] = None;
        self.open.remove(slot);
        self.doorbells.retain(|other| *other != slot);
    }

    #[inline]
    fn entry(&mut self, slot: SlotId) -> Option<&mut SlotChannel> {
        self.by_slot[slot.as_usize()].as_deref_mut()
    }

    /// The packet that a queue pair of the last process of a slot expects next of `stream`.
    pub(crate) fn delivered(&self, slot: SlotId, index: u16, stream: u32) -> Option<u32> {
        let records = self.records[slot.as_usize()].as_ref();
        records?.delivered(index, stream)
    }

    /// Takes the packets of the next message of a slot's process; they are settled by
    /// [`Channels::settle`]. `cell` is room for a copy.
    #[inline]
    pub(crate) fn take<'a>(&'a mut self, slot: SlotId, cell: &'a mut CellOctets) -> Taken<'a> {
        self.finish();
        let Some(entry) = self.entry(slot).filter(|entry| !entry.is_corrupt) else {
            return Taken::Nothing;
        };
        let (len, payload) = match entry.channel.next(cell, |_| ()) {
            Next::Empty => return Taken::Nothing,
            Next::Message { len, payload, .. } => (len, payload),
            Next::Corrupt => {
                entry.is_corrupt = true;
                return Taken::Corrupt;
            }
        };
        let in_cell = cell[..len].get(MESSAGE_HEAD_LEN..);
        let head = PacketHead::parse(&cell[..len]);
        // C4-2: packets are in the cell or in a frame.
        match (head, in_cell, payload, entry.channel.incoming()) {
            (Some(head), Some([]), Some(payload), Some(incoming)) => {
                let len = payload.len();
                Taken::Packets(head, Octets::Frame(incoming, payload, 0, len))
            }
            (Some(head), Some(octets), None, _) => Taken::Packets(head, Octets::Copy(octets)),
            _ => {
                entry.is_corrupt = true;
                Taken::Corrupt
            }
        }
    }

    /// The packets that were taken from a slot have been copied.
    #[inline]
    pub(crate) fn settle(&mut self, slot: SlotId) {
        if let Some(entry) = self.entry(slot) {
            entry.channel.settle();
            self.note(slot);
        }
    }

    /// Gives a slot's process a packet; it is sent, at the latest, by [`Channels::finish`], and the
    /// process is woken by [`Channels::ring`].
    ///
    /// # Errors
    /// [`NotPut`].
    #[inline]
    pub(crate) fn put(
        &mut self,
        slot: SlotId,
        head: &PacketHead,
        packet: &[u8],
    ) -> Result<(), NotPut> {
        let Some(begun) = &mut self.begun else {
            return self.begin(slot, head, packet);
        };
        let is_next = begun.slot == slot
            && begun.head == *head
            && packet.len() <= begun.each
            && begun.octets + packet.len() <= LARGE_FRAME;
        let entry = self.by_slot[slot.as_usize()].as_deref_mut();
        let Some(entry) = entry.filter(|_| is_next) else {
            self.finish();
            return self.begin(slot, head, packet);
        };
        let mut room = entry.channel.resume(begun.left);
        room.payload_mut()[begun.octets..][..packet.len()].copy_from_slice(packet);
        begun.octets += packet.len();
        if packet.len() < begun.each {
            self.finish();
        }
        Ok(())
    }

    /// As [`Channels::put`], of a packet that begins a message.
    fn begin(&mut self, slot: SlotId, head: &PacketHead, packet: &[u8]) -> Result<(), NotPut> {
        let octets = packet.len();
        let in_frame = frame_octets(octets);
        let alone = self.alone.as_ref();
        let has_followed = alone.is_some_and(|alone| {
            alone.slot == slot && alone.head == *head && octets <= alone.octets
        });
        let entry = self.entry(slot).ok_or(NotPut::Unattached)?;
        entry.expects_several |= has_followed;
        if entry.expects_several && octets >= usize::from(PACKET_OCTETS_MIN) {
            if let Some(mut room) = entry.channel.begin_unanswered(LARGE_FRAME) {
                room.payload_mut()[..octets].copy_from_slice(packet);
                let (left, ..) = room.leave();
                self.begun = Some(Begun {
                    slot,
                    head: *head,
                    left,
                    octets,
                    each: octets,
                });
                return Ok(());
            }
        }
        let room = entry.channel.begin_unanswered(in_frame);
        let mut room = room.ok_or(NotPut::Full)?;
        let (cell, frame) = room.parts_mut();
        if let Some((start, rest)) = cell.split_first_chunk_mut() {
            head.encode(start);
            let room = if in_frame > 0 { frame } else { rest };
            room[..octets].copy_from_slice(packet);
        }
        room.publish(MESSAGE_HEAD_LEN + octets - in_frame, 0);
        self.note(slot);
        self.alone = Some(Alone {
            slot,
            head: *head,
            octets,
        });
        Ok(())
    }

    /// Sends the packets that wait for another one in the same message.
    #[inline]
    pub(crate) fn finish(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.publish(&begun);
        }
    }

    fn publish(&mut self, begun: &Begun) {
        let Some(entry) = self.entry(begun.slot) else {
            return;
        };
        let has_several = begun.octets > begun.each;
        entry.expects_several = has_several;
        let head = PacketHead {
            packet_octets: match u16::try_from(begun.each) {
                Ok(each) if has_several => each,
                _ => 0,
            },
            ..begun.head
        };
        let mut room = entry.channel.resume(begun.left);
        room.truncate_payload(begun.octets);
        if let Some(start) = room.octets_mut().first_chunk_mut() {
            head.encode(start);
        }
        room.publish(MESSAGE_HEAD_LEN, 0);
        self.note(begun.slot);
    }

    /// As [`Channels::put`], of a packet from a process of this host. These packets take at most
    /// half of the room: the port waits for a slot that is behind with the others (`patience`).
    ///
    /// # Errors
    /// [`NotPut`].
    pub(crate) fn put_local(
        &mut self,
        slot: SlotId,
        head: &PacketHead,
        packet: &[u8],
    ) -> Result<(), NotPut> {
        let (left, limit) = self.room(slot, packet.len()).ok_or(NotPut::Unattached)?;
        if left <= limit / 2 {
            return Err(NotPut::Full);
        }
        self.put(slot, head, packet)
    }

    /// How many packets of `octets` octets there is room for in a slot's channel, and how many
    /// there would be if it were empty; None without a process.
    pub(crate) fn room(&mut self, slot: SlotId, octets: usize) -> Option<(u64, u64)> {
        self.finish();
        let in_frame = frame_octets(octets);
        let channel = &mut self.entry(slot)?.channel;
        let (left, limit) = channel.outgoing().room(in_frame);
        if left > limit / 2 {
            return Some((left, limit));
        }
        channel.complete_unanswered();
        Some(channel.outgoing().room(in_frame))
    }

    #[inline]
    fn note(&mut self, slot: SlotId) {
        if self.doorbells.last() != Some(&slot) && !self.doorbells.contains(&slot) {
            self.doorbells.push(slot);
        }
    }

    /// Sends what was put, and wakes the processes that have to be.
    #[inline]
    pub(crate) fn ring(&mut self) {
        self.finish();
        self.alone = None;
        while let Some(slot) = self.doorbells.pop() {
            if let Some(entry) = self.entry(slot) {
                if entry.channel.notify() {
                    probes::wake(slot.number());
                }
            }
        }
    }

    /// Whether a packet waits, or room that is waited for.
    pub(crate) fn have_work(&self) -> bool {
        self.entries().any(|entry| entry.channel.has_work())
    }

    /// Has the next sleep end when a process rings. `wanted` is a slot that room is waited for in.
    pub(crate) fn listen(&mut self, bells: &mut Bells, wanted: Option<SlotId>) {
        self.page.listen(bells);
        let mut at = 0;
        while let Some(slot) = self.open.get(at) {
            at += 1;
            if let Some(entry) = self.entry(slot) {
                let next = entry.channel.outgoing().freed() + 1;
                let wake_at = (wanted == Some(slot)).then_some(next);
                entry.channel.set_wake_at(wake_at);
                entry.channel.listen(bells);
            }
        }
    }

    fn entries(&self) -> impl Iterator<Item = &SlotChannel> {
        let open = self.open.iter();
        let entries = open.filter_map(|slot| self.by_slot[slot.as_usize()].as_deref());
        entries.filter(|entry| !entry.is_corrupt)
    }
}

const _: () = assert!(MESSAGE_HEAD_LEN + CELL_PAYLOAD_LEN == CELL_DATA);

/// Octets of a packet that are in a frame.
#[inline]
const fn frame_octets(packet: usize) -> usize {
    if packet <= CELL_PAYLOAD_LEN {
        0
    } else {
        packet
    }
}
