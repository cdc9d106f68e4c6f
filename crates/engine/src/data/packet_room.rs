//! Packets of TRP to other hosts, through urdmad, and the datagrams and the connection management
//! to processes of this host: room for them in the messages of channels.

use proto_trp::wire::message::{CELL_PAYLOAD_LEN, MESSAGE_HEAD_LEN};
use proto_trp::wire::PacketHead;
use urdma_channel::{Channel, Kind, Left, Room};
use urdma_memfd::avoiding;
use urdma_types::SlotId;

use crate::objects::note::Note;
use crate::paths::channels::Offer;
use crate::shard::Shard;

/// The owner of a packet's cell: no one is told when it is settled.
const NO_OWNER: u32 = 0;

/// Octets of a packet that are in a frame.
#[inline]
pub(super) const fn frame_octets(packet: usize) -> usize {
    if packet <= CELL_PAYLOAD_LEN {
        0
    } else {
        packet
    }
}

/// Room for a packet of `octets` octets; None without room for now.
#[inline]
pub(super) fn room(channel: &mut Channel, octets: usize) -> Option<&mut [u8]> {
    let room = channel.begin(Kind::Work, frame_octets(octets))?;
    Some(packet_in(room).1)
}

/// Where the packet goes in the room of its message.
#[inline(always)]
pub(super) fn packet_in(room: Room<'_>) -> (Left, &mut [u8]) {
    let (left, cell, frame) = room.leave();
    if frame.is_empty() {
        (left, &mut cell[MESSAGE_HEAD_LEN..])
    } else {
        (left, frame)
    }
}

/// Sends the packet for which [`room`] was given for `octets`, and `len` of them written.
#[inline]
pub(super) fn publish(channel: &mut Channel, octets: usize, head: &PacketHead, len: usize) {
    // The same room, since nothing was published in between.
    if let Some(room) = channel.begin(Kind::Work, frame_octets(octets)) {
        publish_in(room, head, len);
    }
}

/// Sends what was written, `len` octets, into the room of its message.
#[inline(always)]
pub(super) fn publish_in(mut room: Room<'_>, head: &PacketHead, len: usize) {
    let in_frame = !room.payload_mut().is_empty();
    if in_frame {
        room.truncate_payload(len);
    }
    if let Some(start) = room.octets_mut().first_chunk_mut() {
        head.encode(start);
    }
    let in_cell = if in_frame { 0 } else { len };
    room.publish(MESSAGE_HEAD_LEN + in_cell, NO_OWNER);
}

/// Why there is no room for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// For now.
    Full,
    /// No process has the slot, or it has refused the channel.
    Dead,
    /// There is no memory for a channel.
    NoChannel,
}

impl Shard {
    /// Makes sure that [`room`] finds room for a packet to a slot; opens the channel if there is
    /// none.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub(super) fn make_room(&mut self, to: SlotId, octets: usize) -> Result<(), NoRoom> {
        self.ensure_channel(to)?;
        for _ in 0..2 {
            let channel = self.channels.get_mut(to);
            if channel.is_some_and(|channel| room(channel, octets).is_some()) {
                return Ok(());
            }
            self.read_counts(to);
        }
        Err(NoRoom::Full)
    }

    /// Sends a packet that belongs to no queue pair.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub(super) fn send_to_slot(
        &mut self,
        to: SlotId,
        packet: &[u8],
        head: &PacketHead,
    ) -> Result<(), NoRoom> {
        self.make_room(to, packet.len())?;
        if let Some(capture) = &mut self.capture {
            capture.add(self.slot, to, &[packet]);
        }
        let channel = self.channels.get_mut(to).ok_or(NoRoom::Dead)?;
        if let Some(room) = room(channel, packet.len()) {
            room[..packet.len()].copy_from_slice(packet);
        }
        publish(channel, packet.len(), head, packet.len());
        self.channels.note_doorbell(to);
        Ok(())
    }

    /// Opens a channel to a process that there is none to.
    pub(crate) fn ensure_channel(&mut self, slot: SlotId) -> Result<(), NoRoom> {
        if self.channels.has(slot) {
            return Ok(());
        }
        let directory = self.channels.directory();
        let generation = directory.generation(slot.number());
        let may_be_opened =
            directory.has_process(slot.number()) && !self.channels.is_refused(slot, generation);
        if slot == SlotId::DAEMON || !may_be_opened {
            return Err(NoRoom::Dead);
        }
        let (regions, channels) = (&self.process.regions, &mut self.channels);
        let is_taken = |at, octets| regions.has_memory_in(at, octets);
        let offer = avoiding(&is_taken, || channels.create(slot));
        let offer = offer.ok().flatten().ok_or(NoRoom::NoChannel)?;
        self.process.notes.push(Note::Offer(slot, offer));
        Ok(())
    }

    /// Takes the offers of channels that were opened by messages out of the notes.
    pub(crate) fn take_offers(&mut self) -> Vec<(SlotId, Offer)> {
        let is_offer = |note: &Note| matches!(note, Note::Offer(..));
        if !self.process.notes.iter().any(is_offer) {
            return Vec::new();
        }
        let mut offers = Vec::new();
        for note in std::mem::take(&mut self.process.notes) {
            match note {
                Note::Offer(slot, offer) => offers.push((slot, offer)),
                other => self.process.notes.push(other),
            }
        }
        offers
    }
}
