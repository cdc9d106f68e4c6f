//! Cells: false, but well-formed ones, and others (doc/spec/channel.md, sections 4 and 7).

use proto_trp::wire::connection_id;
use urdma_channel::{CELL_DATA, LARGE_FRAME, SMALL_FRAME};
use urdma_cm::wire::{Body, CommId, Cookie, Head, Message, Nonce, QpInfo, Req, MAX_MESSAGE};
use urdma_types::{PortSpace, Psn, Qpn, SlotId};

use crate::attach::Peer;
use crate::random::Random;

const CELL: usize = 128;
pub(crate) const HEAD: usize = 32;
const WAKE_AT: usize = 256;
const BELL: usize = 260;
const UNRELIABLE: u8 = 0x20;
const KNOWN_FLAGS: u8 = 0x7f;
/// Messages of connections; then datagrams, connection management and packets.
const KINDS: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18];
/// Those that are not answered, whatever their flags.
const UNANSWERED: [u8; 4] = [8, 9, 10, 11];
const BESIDE_CONNECTIONS: [u8; 3] = [16, 17, 18];

/// A connection of others, of which everything is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connection {
    receiver: Qpn,
    sender: Qpn,
    receiver_psn: Psn,
    sender_psn: Psn,
}

impl Connection {
    /// Reads `number:number of the peer:PSN:PSN of the peer`, for both directions.
    pub(crate) fn parse(text: &str) -> Option<[Self; 2]> {
        let numbers: Option<Vec<u32>> = text.split(':').map(|word| word.parse().ok()).collect();
        let [receiver, sender, receiver_psn, sender_psn] = numbers?.try_into().ok()?;
        let one = Self {
            receiver: Qpn::from_u32(receiver)?,
            sender: Qpn::from_u32(sender)?,
            receiver_psn: Psn::from_u32(receiver_psn)?,
            sender_psn: Psn::from_u32(sender_psn)?,
        };
        let other = Self {
            receiver: one.sender,
            sender: one.receiver,
            receiver_psn: one.sender_psn,
            sender_psn: one.receiver_psn,
        };
        Some([one, other])
    }

    /// The slot of the process that is attacked.
    pub(crate) fn slot(&self) -> u8 {
        self.receiver.slot().number()
    }

    /// The ids of both of its streams.
    fn ids(&self) -> [u32; 2] {
        [
            connection_id(self.sender, self.receiver, self.sender_psn).to_u32(),
            connection_id(self.receiver, self.sender, self.receiver_psn).to_u32(),
        ]
    }
}

/// What is put into the ring.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub(crate) len: u8,
    pub(crate) count: u32,
    pub(crate) frame: u16,
    pub(crate) frame_octets: u32,
    pub(crate) octets: [u8; CELL_DATA],
}

/// What kinds of messages are forged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Any,
    Unanswered,
    Answered,
    BesideConnections,
}

/// A head whose every field is one that its receiver knows, at a border, or any.
fn head(wish: Wish, connections: &[Connection], to: u8, random: &mut Random) -> [u8; HEAD] {
    let here = |connection: &&Connection| connection.slot() == to;
    let known: Vec<&Connection> = connections.iter().filter(here).collect();
    let known = (!known.is_empty() && !random.once_in(4)).then(|| random.one_of(&known));
    let mut flags = random.u8() & KNOWN_FLAGS;
    let kind = match wish {
        Wish::Any => random.one_of(&KINDS),
        Wish::BesideConnections => random.one_of(&BESIDE_CONNECTIONS),
        Wish::Answered => {
            flags &= !UNRELIABLE;
            random.one_of(&KINDS[..7])
        }
        Wish::Unanswered if random.once_in(2) => random.one_of(&UNANSWERED),
        Wish::Unanswered => {
            flags |= UNRELIABLE;
            random.one_of(&KINDS[..7])
        }
    };
    let (destination, source, id) = match known {
        Some(known) if !random.once_in(4) => {
            let id = random.one_of(&known.ids());
            (known.receiver.index(), known.sender.index(), id)
        }
        Some(known) => (
            random.border16(known.receiver.index()),
            random.border16(known.sender.index()),
            random.border32(known.ids()[0]),
        ),
        None => (random.u16(), random.border16(1), random.border32(1)),
    };
    let mut head = [0; HEAD];
    head[0] = kind;
    head[1] = flags;
    head[2..4].copy_from_slice(&destination.to_le_bytes());
    head[4..6].copy_from_slice(&source.to_le_bytes());
    head[6..8].copy_from_slice(&random.border16(0).to_le_bytes());
    head[8..12].copy_from_slice(&id.to_le_bytes());
    head[12..16].copy_from_slice(&random.border32(1).to_le_bytes());
    head[16..24].copy_from_slice(&random.border64(0).to_le_bytes());
    head[24..28].copy_from_slice(&random.border32(1).to_le_bytes());
    head[28..32].copy_from_slice(&random.border32(0).to_le_bytes());
    head
}

/// A request for a connection from any process to any other.
fn request(random: &mut Random) -> Vec<u8> {
    let slot = SlotId::new(random.one_of(&[0, 1, 2, 253])).unwrap_or(SlotId::DAEMON);
    let any = Qpn::new(slot, random.u16());
    let local: std::net::IpAddr = [127, 0, 0, 1].into();
    let message = Message {
        head: Head {
            local_id: CommId(random.u32()),
            remote_id: CommId::NONE,
            nonce: Nonce(random.u64()),
            slot,
        },
        body: Body::Req(Req {
            qp: QpInfo {
                qpn: any.into(),
                psn: Psn::new(random.u32()),
                ..QpInfo::default()
            },
            retry_count: random.u8() & 7,
            ack_timeout: random.u8() & 31,
            path_mtu: random.u8() & 7,
            port_space: PortSpace::TCP,
            src: (local, random.u16()).into(),
            dst: (local, random.u16()).into(),
            cookie: Cookie::NONE,
        }),
        private_data: &[0; 16],
    };
    let mut octets = [0; MAX_MESSAGE];
    let length = message.write(&mut octets);
    octets[..length].to_vec()
}

impl Cell {
    /// A message that no rule of sections 4 and 7 forbids, and its payload's frame.
    pub(crate) fn well_formed(
        wish: Wish,
        connections: &[Connection],
        peer: &Peer,
        random: &mut Random,
    ) -> Self {
        let mut octets = [0; CELL_DATA];
        random.fill(&mut octets[HEAD..HEAD + 24]);
        octets[..HEAD].copy_from_slice(&head(wish, connections, peer.slot, random));
        let count = random.border32(0);
        if random.once_in(3) {
            let config = peer.region.layout.config();
            let frames = config.small_frames + config.large_frames;
            let number = random.below(frames as usize);
            let room = if number < config.small_frames as usize {
                SMALL_FRAME
            } else {
                LARGE_FRAME
            };
            let octets_max = 1 + random.below(room);
            let frame_octets = random.one_of(&[1, room, octets_max]);
            if octets[0] == 17 {
                let (at, _) = peer.region.layout.frame(0).unwrap_or((0, 0));
                peer.region.memory.store(at, &request(random));
            }
            return Self {
                len: 32,
                count,
                frame: u16::try_from(number + 1).unwrap_or(1),
                frame_octets: u32::try_from(frame_octets).unwrap_or(1),
                octets,
            };
        }
        let rest = random.below(CELL_DATA - HEAD + 1);
        Self {
            len: u8::try_from(HEAD + random.one_of(&[0, 8, 24, 80, rest])).unwrap_or(32),
            count,
            frame: 0,
            frame_octets: 0,
            octets,
        }
    }

    /// A message that section 4 or 7 calls a cell that fails.
    pub(crate) fn corrupt(peer: &Peer, random: &mut Random) -> Self {
        let mut cell = Self::well_formed(Wish::Any, &[], peer, random);
        let config = *peer.region.layout.config();
        let last = u16::try_from(config.small_frames + config.large_frames).unwrap_or(u16::MAX);
        match random.below(7) {
            0 => cell.len = random.one_of(&[113, 128, 255]),
            1 => cell.len = random.one_of(&[0, 1, 31]),
            2 => (cell.len, cell.frame) = (32, random.one_of(&[last + 1, last + 2, u16::MAX])),
            3 => {
                let long = [0, 65_537, u32::MAX, 2049];
                (cell.len, cell.frame, cell.frame_octets) = (32, 1, random.one_of(&long));
            }
            4 => (cell.len, cell.frame, cell.frame_octets) = (33, 1, 1),
            5 => cell.octets[0] = random.one_of(&[0, 12, 15, 19, 255]),
            _ => cell.octets[1] |= 0x80,
        }
        cell
    }
}

impl Peer {
    /// Puts a cell into the ring, whether the peer has read the one before or not.
    pub(crate) fn write(&mut self, cell: &Cell) {
        let (layout, memory) = (&self.region.layout, &self.region.memory);
        let number = self.written & u64::from(layout.config().cells - 1);
        let at = layout.ring() + usize::try_from(number).unwrap_or(0) * CELL;
        memory.store64(
            at + 8,
            u64::from(cell.frame_octets) << 32 | u64::from(cell.frame),
        );
        memory.store(at + 16, &cell.octets);
        self.written += 1;
        let word = (self.written & 0xffff_ffff) << 32
            | u64::from(cell.len) << 24
            | u64::from(cell.count & 0xff_ffff);
        memory.store64(at, word);
    }

    /// Stores the counts.
    pub(crate) fn store_counts(&self, settled: u32, written: u32) {
        let counts = u64::from(settled) << 32 | u64::from(written);
        self.region.memory.store64(crate::attach::COUNTS, counts);
    }

    /// Says when the peer has to wake this process.
    pub(crate) fn store_wake_at(&self, position: u32) {
        self.region.memory.store32(WAKE_AT, position);
    }

    /// Wakes the peer.
    pub(crate) fn ring(&self, value: u32) {
        self.region.memory.store32(BELL, value);
        self.region.memory.wake(BELL);
    }
}
