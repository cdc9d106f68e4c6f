//! What ends say to one another: the greeting, control messages, immediate data.
//!
//! All numbers are big-endian. A control message is one SEND of 16 octets and a body whose length
//! its type fixes. The layout is in doc/streams.md; parsing judges form only, what a message means
//! is judged by the half that it concerns.

use crate::error::{PeerError, SetupError};
use crate::types::{AdvertNo, Buffer, Choice, Kind, Phase, RingNo, Seq};

/// The version of the protocol.
pub const VERSION: u8 = 2;
/// The length of a greeting.
pub const HELLO_LEN: usize = 32;
/// The greatest length of a control message.
pub const CONTROL_MAX_LEN: usize = 64;
/// The most octets that one transfer can carry: what 30 bits of an immediate can say.
pub const TRANSFER_MAX_OCTETS: u64 = (1 << 30) - 1;

const MAGIC: [u8; 4] = *b"uEXS";
const HEAD_LEN: usize = 16;
/// The types of the messages that end a stream.
const FINISH: u8 = 5;
const ABORT: u8 = 7;

/// The first words of each end, exchanged as private data of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the stream carries.
    pub kind: Kind,
    /// How this end chooses.
    pub choice: Choice,
    /// How many messages this end can receive before it returns credits.
    pub recv_slots: u16,
    /// How many adverts this end can hold.
    pub max_adverts: u16,
    /// This end's ring; without octets if it offers none.
    pub ring: Buffer,
}

impl Hello {
    /// The octets of the greeting.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = Writer::<HELLO_LEN>::new();
        out.put(MAGIC);
        out.put([VERSION, kind_code(self.kind), choice_code(self.choice), 0]);
        out.put(self.recv_slots.to_be_bytes());
        out.put(self.max_adverts.to_be_bytes());
        out.put(self.ring.rkey.to_be_bytes());
        out.put(self.ring.addr.to_be_bytes());
        out.put(self.ring.len_octets.to_be_bytes());
        out.octets
    }

    /// Reads a greeting; private data may be padded, so octets after it are ignored.
    ///
    /// # Errors
    /// If it is malformed or of another version.
    pub fn decode(octets: &[u8]) -> Result<Self, SetupError> {
        let mut input = Reader(octets.get(..HELLO_LEN).ok_or(SetupError::Malformed)?);
        let malformed = SetupError::Malformed;
        if input.take::<4>().ok_or(malformed)? != MAGIC {
            return Err(malformed);
        }
        let [version, kind, choice, zero] = input.take().ok_or(malformed)?;
        if version != VERSION {
            return Err(SetupError::Version(version));
        }
        let hello = Self {
            kind: match kind {
                0 => Kind::Octets,
                1 => Kind::Messages,
                _ => return Err(malformed),
            },
            choice: match choice {
                0 => Choice::Dynamic,
                1 => Choice::Direct,
                2 => Choice::Indirect,
                _ => return Err(malformed),
            },
            recv_slots: u16::from_be_bytes(input.take().ok_or(malformed)?),
            max_adverts: u16::from_be_bytes(input.take().ok_or(malformed)?),
            ring: {
                let rkey = input.u32().ok_or(malformed)?;
                let addr = input.u64().ok_or(malformed)?;
                let len_octets = input.u64().ok_or(malformed)?;
                Buffer {
                    addr,
                    len_octets,
                    rkey,
                }
            },
        };
        (zero == 0 && hello.ring.is_addressable())
            .then_some(hello)
            .ok_or(malformed)
    }
}

fn kind_code(kind: Kind) -> u8 {
    match kind {
        Kind::Octets => 0,
        Kind::Messages => 1,
    }
}

fn choice_code(choice: Choice) -> u8 {
    match choice {
        Choice::Dynamic => 0,
        Choice::Direct => 1,
        Choice::Indirect => 2,
    }
}

/// A buffer offered for direct transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advert {
    /// Its number.
    pub number: AdvertNo,
    /// The receiver's phase when it was sent.
    pub phase: Phase,
    /// The least position that the first octet of the buffer can have.
    pub estimate: Seq,
    /// The part of the receive's buffer that is not filled.
    pub buffer: Buffer,
    /// Whether the receive completes only when its buffer is full.
    pub waitall: bool,
    /// Whether it is the first that was sent after a pause of the peer was known.
    pub renewed: bool,
}

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Only what every message says.
    Update,
    /// A buffer for direct transfers.
    Advert(Advert),
    /// Adverts from this number on are to be given back.
    Withdraw(AdvertNo),
    /// Of the adverts from this number on, none will be used any more.
    Withdrawn(AdvertNo),
    /// The sender of this message sends no data after this position.
    Finish(Seq),
    /// The sender of this message receives no more data.
    Stop,
    /// The sender of this message sends no data after this position before it gets RESUME, and
    /// uses no advert that was sent before this message was received.
    Pause(Seq),
    /// The answer: the adverts that are possible now have been sent.
    Resume,
    /// The sender of this message asks for a ring of this number of octets instead of the present
    /// one.
    Want(u64),
    /// The answer: a ring with this number, or, without octets, a refusal.
    Ring(RingNo, Buffer),
    /// The sender of this message has taken the ring with this number: later transfers are there.
    Taken(RingNo),
    /// The stream is given up, with a code of the user's.
    Abort(u32),
}

/// A control message: what it says, and the credits that every message returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// How many messages the sender of this one has received, modulo 2^32.
    pub received: u32,
    /// How many octets of its ring it has emptied, from the beginning of the stream.
    pub emptied: u64,
    /// What it says.
    pub body: Body,
}

/// A control message as octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlOctets {
    octets: [u8; CONTROL_MAX_LEN],
    len: usize,
}

impl ControlOctets {
    /// The message.
    pub fn as_slice(&self) -> &[u8] {
        &self.octets[..self.len]
    }

    /// Whether the end of the stream depends on the completion of this message: FINISH, and ABORT,
    /// after which the driver ends the connection. No other control message has to be signaled.
    pub fn ends(&self) -> bool {
        matches!(self.octets[0], FINISH | ABORT)
    }
}

impl Control {
    /// The octets of the message.
    pub fn encode(&self) -> ControlOctets {
        let mut out = Writer::<CONTROL_MAX_LEN>::new();
        let code = match self.body {
            Body::Update => 1,
            Body::Advert(_) => 2,
            Body::Withdraw(_) => 3,
            Body::Withdrawn(_) => 4,
            Body::Finish(_) => FINISH,
            Body::Stop => 6,
            Body::Abort(_) => ABORT,
            Body::Pause(_) => 8,
            Body::Resume => 9,
            Body::Want(_) => 10,
            Body::Ring(..) => 11,
            Body::Taken(_) => 12,
        };
        out.put([code, 0, 0, 0]);
        out.put(self.received.to_be_bytes());
        out.put(self.emptied.to_be_bytes());
        match self.body {
            Body::Update | Body::Stop | Body::Resume => {}
            Body::Advert(advert) => {
                out.put(advert.number.0.to_be_bytes());
                out.put(advert.phase.0.to_be_bytes());
                out.put(advert.estimate.0.to_be_bytes());
                out.put(advert.buffer.addr.to_be_bytes());
                out.put(advert.buffer.len_octets.to_be_bytes());
                out.put(advert.buffer.rkey.to_be_bytes());
                let flags = u32::from(advert.waitall) | u32::from(advert.renewed) << 1;
                out.put(flags.to_be_bytes());
            }
            Body::Withdraw(number) | Body::Withdrawn(number) => out.put(number.0.to_be_bytes()),
            Body::Ring(number, ring) => {
                out.put(number.0.to_be_bytes());
                out.put(ring.addr.to_be_bytes());
                out.put(ring.len_octets.to_be_bytes());
                out.put(ring.rkey.to_be_bytes());
                out.put([0; 4]);
            }
            Body::Want(octets) => out.put(octets.to_be_bytes()),
            Body::Taken(number) => out.put(number.0.to_be_bytes()),
            Body::Finish(seq) | Body::Pause(seq) => out.put(seq.0.to_be_bytes()),
            Body::Abort(code) => out.put(u64::from(code).to_be_bytes()),
        }
        ControlOctets {
            octets: out.octets,
            len: out.len,
        }
    }

    /// Reads a control message.
    ///
    /// # Errors
    /// [`PeerError::Malformed`] for an unknown type, another length than its type has, or a
    /// reserved bit.
    pub fn decode(octets: &[u8]) -> Result<Self, PeerError> {
        Self::parse(octets).ok_or(PeerError::Malformed)
    }

    fn parse(octets: &[u8]) -> Option<Self> {
        let mut input = Reader(octets);
        let [code, 0, 0, 0] = input.take::<4>()? else {
            return None;
        };
        let received = input.u32()?;
        let emptied = input.u64()?;
        debug_assert_eq!(octets.len() - input.0.len(), HEAD_LEN);
        let body = match code {
            1 => Body::Update,
            2 => Body::Advert(parse_advert(&mut input)?),
            3 => Body::Withdraw(AdvertNo(input.u64()?)),
            4 => Body::Withdrawn(AdvertNo(input.u64()?)),
            FINISH => Body::Finish(Seq(input.u64()?)),
            6 => Body::Stop,
            ABORT => Body::Abort(u32::try_from(input.u64()?).ok()?),
            8 => Body::Pause(Seq(input.u64()?)),
            9 => Body::Resume,
            10 => Body::Want(input.u64()?),
            11 => parse_ring(&mut input)?,
            12 => Body::Taken(RingNo(input.u64()?)),
            _ => return None,
        };
        input.0.is_empty().then_some(Self {
            received,
            emptied,
            body,
        })
    }
}

fn parse_advert(input: &mut Reader<'_>) -> Option<Advert> {
    let number = AdvertNo(input.u64()?);
    let phase = Phase(input.u64()?);
    let estimate = Seq(input.u64()?);
    let addr = input.u64()?;
    let len_octets = input.u64()?;
    let rkey = input.u32()?;
    let flags = input.u32()?;
    if flags > 3 {
        return None;
    }
    Some(Advert {
        number,
        phase,
        estimate,
        buffer: Buffer {
            addr,
            len_octets,
            rkey,
        },
        waitall: flags & 1 != 0,
        renewed: flags & 2 != 0,
    })
}

fn parse_ring(input: &mut Reader<'_>) -> Option<Body> {
    let number = RingNo(input.u64()?);
    let addr = input.u64()?;
    let len_octets = input.u64()?;
    let rkey = input.u32()?;
    let ring = Buffer {
        addr,
        len_octets,
        rkey,
    };
    (input.u32()? == 0).then_some(Body::Ring(number, ring))
}

/// The immediate data of the last RDMA Write of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// So many octets are in the buffer of the receive that is next.
    Direct(u32),
    /// So many octets are in the ring.
    Indirect(u32),
}

impl Immediate {
    /// The immediate as its number. The lengths have at most 30 bits.
    pub fn encode(self) -> u32 {
        match self {
            Self::Direct(len_octets) => len_octets,
            Self::Indirect(len_octets) => len_octets | 1 << 30,
        }
    }

    /// Reads an immediate.
    ///
    /// # Errors
    /// [`PeerError::UnknownImmediate`] if its first bit is set.
    pub fn decode(word: u32) -> Result<Self, PeerError> {
        let len_octets = word & ((1 << 30) - 1);
        match word >> 30 {
            0 => Ok(Self::Direct(len_octets)),
            1 => Ok(Self::Indirect(len_octets)),
            _ => Err(PeerError::UnknownImmediate),
        }
    }
}

struct Writer<const N: usize> {
    octets: [u8; N],
    len: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Self {
            octets: [0; N],
            len: 0,
        }
    }

    fn put<const M: usize>(&mut self, field: [u8; M]) {
        self.octets[self.len..self.len + M].copy_from_slice(&field);
        self.len += M;
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}
