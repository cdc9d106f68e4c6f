//! Slots, queue pair numbers and UDP ports.
//!
//! An instance has up to [`MAX_SLOTS`] slots; slot 0 is urdmad, every other slot one attached
//! process. A queue pair number contains the slot of its process, and the slot determines the UDP
//! port of its packets, so that QPN and address are all that a peer needs (doc/spec/trp.md,
//! section 3).

/// UDP destination port of slot 0; slot `s` listens on `PORT_BASE + s`.
pub const PORT_BASE: u16 = 21504;

/// Slots of one instance, urdmad's included: 0..=253.
pub const MAX_SLOTS: u8 = 254;

/// Slot of an instance, 0..=253.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SlotId(u8);

impl SlotId {
    /// The slot of urdmad itself.
    pub const DAEMON: SlotId = SlotId(0);

    /// The slot with this number; `None` when no instance has it.
    #[inline]
    pub const fn new(number: u8) -> Option<Self> {
        if number < MAX_SLOTS {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number, 0..=253.
    #[inline]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The number as an index into tables of [`MAX_SLOTS`] entries.
    #[inline]
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }

    /// Every slot of an instance in ascending order, urdmad's first.
    pub fn all() -> impl Iterator<Item = SlotId> {
        (0..MAX_SLOTS).map(SlotId)
    }
}

impl std::fmt::Display for SlotId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Queue pair number, 24 bits: `slot << 16 | index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The queue pair `index` of the process in `slot`; index 0 is not assigned to queue pairs.
    #[inline]
    pub const fn new(slot: SlotId, index: u16) -> Self {
        Self((slot.0 as u32) << 16 | index as u32)
    }

    /// The queue pair number as verbs and the wire carry it.
    ///
    /// `None` when it has more than 24 bits, names a slot that no instance has, or has index 0.
    #[inline]
    pub const fn from_u32(value: u32) -> Option<Self> {
        // R3-1
        //# Index 0 MUST NOT be assigned to a queue pair; slots 254 and 255 do not exist.
        if value >= (MAX_SLOTS as u32) << 16 || value & 0xffff == 0 {
            None
        } else {
            Some(Self(value))
        }
    }

    /// The slot of the process that owns the queue pair.
    #[inline]
    pub const fn slot(self) -> SlotId {
        SlotId(self.0.to_be_bytes()[1])
    }

    /// The queue pair's index in its process.
    #[inline]
    pub const fn index(self) -> u16 {
        let octets = self.0.to_be_bytes();
        u16::from_be_bytes([octets[2], octets[3]])
    }

    /// The number in the low 24 bits.
    #[inline]
    pub const fn to_u32(self) -> u32 {
        self.0
    }
}

impl std::fmt::Display for Qpn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A queue pair number as verbs and peers name it: any value of 24 bits.
///
/// Unlike a [`Qpn`] it need not belong to a slot: connection management carries the numbers of
/// other devices too, and 0 stands for "no queue pair".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RawQpn(u32);

impl RawQpn {
    /// No queue pair.
    pub const NONE: RawQpn = RawQpn(0);

    /// The number that stands for every member of a multicast group (`0xffffff`).
    pub const MULTICAST: RawQpn = RawQpn(0x00ff_ffff);

    /// The queue pair number `value`; `None` when it has more than 24 bits.
    #[inline]
    pub const fn new(value: u32) -> Option<Self> {
        if value > 0x00ff_ffff {
            None
        } else {
            Some(Self(value))
        }
    }

    /// The number in the low 24 bits.
    #[inline]
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// The number as one of a queue pair of urdma, if it can be one.
    #[inline]
    pub const fn to_qpn(self) -> Option<Qpn> {
        Qpn::from_u32(self.0)
    }
}

impl From<Qpn> for RawQpn {
    #[inline]
    fn from(qpn: Qpn) -> Self {
        Self(qpn.0)
    }
}

/// The UDP destination port of the packets for a slot.
#[inline]
pub const fn udp_port(slot: SlotId) -> u16 {
    // R3-2
    //# The UDP destination port MUST be 21504 + the slot of the destination.
    PORT_BASE + slot.0 as u16
}

/// First of the UDP source ports; the 14 low bits are `entropy << 8 | slot`.
pub const SOURCE_PORT_BASE: u16 = 0xc000;

/// The UDP source port of the packets of a queue pair: its slot, and 6 bits of its index to spread
/// flows over paths and queues. The sender of a RESET has no state of the connection and takes the
/// destination slot from this port.
#[inline]
pub const fn source_port(sender: Qpn) -> u16 {
    let [_, slot, high, low] = sender.to_u32().to_be_bytes();
    // R3-3
    //# The UDP source port of a queue pair MUST be 0xC000 (e << 8) slot of the sender, where e =
    //# (index XOR (index >> 8)) AND 0x3F and index is the sender's.
    SOURCE_PORT_BASE | u16::from_be_bytes([(high ^ low) & 0x3f, slot])
}

/// The slot of the sender of a packet with this UDP source port; `None` if no slot has the port.
#[inline]
pub const fn slot_of_source_port(port: u16) -> Option<SlotId> {
    // R8.4-3: no slot, so no RESET.
    if port < SOURCE_PORT_BASE {
        return None;
    }
    SlotId::new(port.to_be_bytes()[1])
}

/// The slot that listens on a UDP destination port; `None` if no slot has the port.
#[inline]
pub const fn slot_of_port(port: u16) -> Option<SlotId> {
    match port.checked_sub(PORT_BASE) {
        Some(offset) if offset < MAX_SLOTS as u16 => SlotId::new(offset.to_be_bytes()[1]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qpn_new_splits_into_slot_and_index() {
        let slot = SlotId::new(253).unwrap();
        let qpn = Qpn::new(slot, 0xbeef);
        assert_eq!(qpn.to_u32(), 0x00fd_beef);
        assert_eq!((qpn.slot(), qpn.index()), (slot, 0xbeef));
        assert_eq!(Qpn::from_u32(0x00fd_beef), Some(qpn));
    }

    #[test]
    fn qpn_from_impossible_number_is_none() {
        for value in [0, 0x0001_0000, 0x00fe_0001, 0x0100_0001, u32::MAX] {
            assert_eq!(Qpn::from_u32(value), None, "{value:#x}");
        }
    }

    #[test]
    fn raw_qpn_has_24_bits_and_need_not_have_a_slot() {
        assert_eq!(RawQpn::new(0x00ff_ffff), Some(RawQpn::MULTICAST));
        assert_eq!(RawQpn::new(0x0100_0000), None);
        assert_eq!(RawQpn::new(0), Some(RawQpn::NONE));
        assert_eq!(RawQpn::NONE.to_qpn(), None);
        let qpn = Qpn::new(SlotId::DAEMON, 1);
        assert_eq!(RawQpn::from(qpn).to_qpn(), Some(qpn));
    }

    #[test]
    fn udp_port_of_every_slot_maps_back() {
        for slot in SlotId::all() {
            assert_eq!(slot_of_port(udp_port(slot)), Some(slot));
        }
        assert_eq!(SlotId::all().count(), 254);
        for port in [
            0,
            80,
            PORT_BASE - 1,
            PORT_BASE + 254,
            PORT_BASE + 256,
            u16::MAX,
        ] {
            assert_eq!(slot_of_port(port), None, "{port}");
        }
    }

    #[test]
    fn source_port_of_any_queue_pair_names_its_slot() {
        for slot in SlotId::all() {
            for index in [1, 2, 63, 64, 0xffff] {
                let port = source_port(Qpn::new(slot, index));
                assert!(port >= 0xc000);
                assert_eq!(slot_of_source_port(port), Some(slot));
            }
        }
        let slot = SlotId::new(7).unwrap();
        assert_eq!(source_port(Qpn::new(slot, 0x0105)), 0xc407);
        assert_eq!(slot_of_source_port(0xbfff), None);
        assert_eq!(slot_of_source_port(0xc0fe), None);
    }

    #[test]
    fn slot_254_is_refused() {
        assert_eq!(SlotId::new(254), None);
        assert_eq!(SlotId::new(255), None);
    }
}
