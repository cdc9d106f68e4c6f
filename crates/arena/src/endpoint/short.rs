//! The short rings of an endpoint's own slot, and the ones at its peers that it fills.

use crate::frame::{FrameHeader, HeldFrame};
use crate::layout::SHORT_RINGS;
use crate::map::Arena;
use crate::short::{Producer, ShortOctets, Shorts, Taken};
use crate::slot::{Producers, ORPHAN};
use crate::state::{self, Word};
use urdma_types::SlotId;

/// Short rings of a slot: one for each octet of the word with their producers.
const COUNT: u32 = u64::BITS / 8;

/// The short rings of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rings {
    producers: &'static Producers,
    rings: &'static Shorts,
}

impl Rings {
    pub(super) fn of(arena: &Arena, slot: SlotId) -> Option<Self> {
        Some(Self {
            producers: &arena.entry(slot)?.owner.shorts,
            rings: arena.shorts(slot)?,
        })
    }

    /// Whether one of them has entries.
    #[inline]
    pub(super) fn have_entry(&self) -> bool {
        let octets = self.producers.load();
        octets != 0 && self.rings.iter().any(|ring| ring.has_entry())
    }

    /// A ring for `producer`, if one is free.
    fn claim(&self, producer: SlotId) -> Option<Producer<'static>> {
        let ring = self.rings.get(self.producers.claim(producer)?)?;
        Some(Producer::new(ring))
    }
}

/// The owner's state of its short rings.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) rings: Rings,
    heads: [u32; SHORT_RINGS],
    /// The ring that is checked first; each has its turn.
    turn: u32,
}

impl Inbound {
    /// Entries from before the attach were sent to the previous owner.
    pub(super) fn new(rings: Rings) -> Self {
        Self {
            rings,
            heads: rings.rings.each_ref().map(|ring| ring.skip()),
            turn: 0,
        }
    }

    /// Copies the next datagram out.
    #[inline]
    pub(super) fn take(&mut self, out: &mut ShortOctets) -> Taken {
        // An octet for each ring, the first one's turn first.
        let mut producers = self.rings.producers.load().rotate_right(8 * self.turn);
        while producers != 0 {
            let ahead = producers.trailing_zeros() / 8;
            let index = (self.turn + ahead) as usize % SHORT_RINGS;
            match self.rings.rings[index].take(&mut self.heads[index], out) {
                Taken::Empty if producers >> (8 * ahead) & 0xff == ORPHAN.into() => {
                    self.rings.producers.free_orphan(index);
                }
                Taken::Empty => {}
                taken => {
                    self.turn = (self.turn + ahead + 1) % COUNT;
                    return taken;
                }
            }
            producers &= !(0xff << (8 * ahead));
        }
        Taken::Empty
    }
}

/// An endpoint's state for another slot.
#[derive(Debug, Default)]
struct Peer {
    /// The endpoint's short ring there.
    producer: Option<Producer<'static>>,
    /// The endpoint has requested a ring.
    has_asked: bool,
    /// The last frame sent there, until it is known to have been received.
    frame: Option<(&'static FrameHeader, u32)>,
}

/// The slots that an endpoint sends to.
#[derive(Debug)]
pub(super) struct Peers(Box<[Peer]>);

impl Peers {
    pub(super) fn new(arena: &Arena) -> Self {
        Self(arena.slots().map(|_| Peer::default()).collect())
    }

    /// A frame was sent to `to`.
    #[inline]
    pub(super) fn note_frame(&mut self, to: SlotId, held: &HeldFrame) {
        if let Some(peer) = self.0.get_mut(usize::from(to.number())) {
            peer.frame = Some((held.header, held.generation));
        }
    }

    /// Whether there is an empty cell for a datagram from `me` to `to`, and no frame that it would
    /// overtake.
    #[inline]
    pub(super) fn may_send(&mut self, arena: &Arena, me: SlotId, to: SlotId) -> bool {
        let Some(peer) = self.0.get_mut(usize::from(to.number())) else {
            return false;
        };
        if let Some((header, generation)) = peer.frame {
            if state::load(&header.state) == Word::in_flight(generation, me, to) {
                return false;
            }
            peer.frame = None;
        }
        if !peer.has_asked {
            peer.has_asked = true;
            peer.producer = Rings::of(arena, to).and_then(|rings| rings.claim(me));
        }
        let Some(producer) = &mut peer.producer else {
            return false;
        };
        let has_room = producer.has_room();
        if has_room {
            producer.prefetch();
        }
        has_room
    }

    /// This endpoint's ring at `to`.
    #[inline]
    pub(super) fn producer(&mut self, to: SlotId) -> Option<&mut Producer<'static>> {
        self.0.get_mut(usize::from(to.number()))?.producer.as_mut()
    }
}
