//! The channels of slot 0 to the processes of the host (doc/spec/channel.md, section 7.1).
//!
//! Who sends is known by the channel. Everything else is copied once and then validated.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use proto_trp::wire::message::{CELL_PAYLOAD_LEN, MESSAGE_HEAD_LEN};
use proto_trp::wire::PacketHead;
use urdma_channel::{
    Bells, CellOctets, Channel, Incoming, Next, OwnPage, OwnRegion, Payload, PeerPage, PeerRecords,
    PeerRegion, RegionError, Rota, Waker, CELL_DATA, SLOTS,
};
use urdma_types::SlotId;

/// What a process has offered to slot 0.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    pub(crate) region: PeerRegion,
    pub(crate) page: PeerPage,
    pub(crate) records: PeerRecords,
}

impl PeerMemory {
    /// Maps what a process has offered to slot 0: the descriptors of its region, its page, its
    /// delivery records, and of the socket that wakes it, if it has one.
    ///
    /// # Errors
    /// They are others.
    pub(crate) fn open(fds: Vec<OwnedFd>) -> Result<Self, RegionError> {
        let mut fds = fds.into_iter();
        let (Some(region), Some(page), Some(records)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(RegionError::NotMemfd);
        };
        let mut page = PeerPage::open(page)?;
        // C6.1-2
        if let Some(waker) = fds.next().and_then(Waker::new) {
            page.set_waker(waker);
        }
        Ok(Self {
            region: PeerRegion::open(region)?,
            page,
            records: PeerRecords::open(records)?,
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

/// The octets of a packet: in the copy of its cell, or in a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Octets<'a> {
    Cell(&'a [u8]),
    Frame(&'a Incoming, Payload),
}

impl Octets<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Octets::Cell(octets) => octets.len(),
            Octets::Frame(_, payload) => payload.len(),
        }
    }

    /// Copies the first octets of the packet, as many as `out` has; false if there are fewer.
    #[must_use]
    pub(crate) fn copy_to(&self, out: &mut [u8]) -> bool {
        match self {
            Octets::Cell(octets) => match octets.get(..out.len()) {
                Some(octets) => {
                    out.copy_from_slice(octets);
                    true
                }
                None => false,
            },
            Octets::Frame(incoming, payload) => incoming.copy_payload(*payload, 0, out),
        }
    }
}

/// What a process has sent.
#[derive(Debug)]
pub(crate) enum Taken<'a> {
    Nothing,
    /// What no process sends: the channel is not read any more.
    Corrupt,
    Packet(PacketHead, Octets<'a>),
}

/// A channel, and what was shown with it.
#[derive(Debug)]
struct SlotChannel {
    channel: Channel,
    is_corrupt: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Channels {
    page: Arc<OwnPage>,
    by_slot: Box<[Option<Box<SlotChannel>>]>,
    /// Delivery records of the last process of each slot.
    records: Box<[Option<PeerRecords>]>,
    pub(crate) open: Rota<SlotId>,
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

    /// Takes the next packet of a slot's process; it is settled by [`Channels::settle`]. `cell` is
    /// room for a copy.
    #[inline]
    pub(crate) fn take<'a>(&'a mut self, slot: SlotId, cell: &'a mut CellOctets) -> Taken<'a> {
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
        // C4-2: a packet is in the cell or in a frame.
        match (head, in_cell, payload, entry.channel.incoming()) {
            (Some(head), Some([]), Some(payload), Some(incoming)) => {
                Taken::Packet(head, Octets::Frame(incoming, payload))
            }
            (Some(head), Some(octets), None, _) => Taken::Packet(head, Octets::Cell(octets)),
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

    /// Gives a slot's process a packet; it is woken by [`Channels::ring`].
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
        let entry = self.entry(slot).ok_or(NotPut::Unattached)?;
        let in_frame = frame_octets(packet.len());
        let room = entry.channel.begin_unanswered(in_frame);
        let mut room = room.ok_or(NotPut::Full)?;
        let (cell, frame) = room.parts_mut();
        if let Some((start, rest)) = cell.split_first_chunk_mut() {
            head.encode(start);
            let room = if in_frame > 0 { frame } else { rest };
            room[..packet.len()].copy_from_slice(packet);
        }
        room.publish(MESSAGE_HEAD_LEN + packet.len() - in_frame, 0);
        self.note(slot);
        Ok(())
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

    /// How many packets of so many octets there is room for in a slot's channel, and how many there
    /// would be if it were empty; None without a process.
    pub(crate) fn room(&mut self, slot: SlotId, octets: usize) -> Option<(u64, u64)> {
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

    /// Wakes the processes that have to be.
    #[inline]
    pub(crate) fn ring(&mut self) {
        while let Some(slot) = self.doorbells.pop() {
            if let Some(entry) = self.entry(slot) {
                entry.channel.notify();
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
