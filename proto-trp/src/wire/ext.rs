//! TRP extensions (doc/spec/trp.md, section 6): selective acknowledgement, time stamps, the RNR
//! timer, the shared receive queue.
//!
//! Each extension begins with a word: kind (1 octet), number of words that follow (1 octet),
//! argument (2 octets).

use super::error::{EncodeError, ParseError};
use super::octets::{be16, be32, chunk, chunk_mut, put};

/// Positions in the first word of an extension.
pub mod field {
    /// Kind.
    pub const KIND: usize = 0;
    /// Number of words after the first.
    pub const WORDS: usize = 1;
    /// Argument, 2 octets; its meaning depends on the kind.
    pub const ARGUMENT: usize = 2;
    /// The words after the first.
    pub const BODY: usize = 4;
}

/// Kind of [`Sack`].
pub const KIND_SACK: u8 = 1;
/// Kind of [`Timestamp`].
pub const KIND_TIMESTAMP: u8 = 2;
/// Kind of [`RnrTimer`].
pub const KIND_RNR_TIMER: u8 = 3;
/// Kind of [`Extensions::shared_queue`].
pub const KIND_SHARED_QUEUE: u8 = 4;

/// Maximum number of words of a SACK bitmap.
pub const SACK_WORDS_MAX: usize = 16;
/// Maximum number of packets that a SACK covers.
pub const SACK_BITS_MAX: u32 = 512;
/// Packets that one word of the bitmap stands for.
pub const SACK_WORD_BITS: u32 = 32;

const WORD_LEN: usize = 4;
const TIMESTAMP_WORDS: u8 = 2;
const SHARED_QUEUE_WORDS: u8 = 1;
/// Length of a packet's extensions, in octets, if they only name a shared receive queue.
pub const SHARED_QUEUE_LEN: usize = WORD_LEN * (1 + SHARED_QUEUE_WORDS as usize);

const _: () = assert!(
    SACK_WORDS_MAX + TIMESTAMP_WORDS as usize + SHARED_QUEUE_WORDS as usize + 4
        <= super::trp::EXTENSION_WORDS_MAX
);

/// Selective acknowledgement: which packets after the first missing one have arrived.
///
/// Bit `i` stands for the packet with sequence number `ack + 1 + i`; the packet `ack` itself is
/// missing by definition. The bitmap covers up to [`SACK_BITS_MAX`] consecutive packets; the first
/// bit is a multiple of [`SACK_WORD_BITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sack {
    words: [u32; SACK_WORDS_MAX],
    len: u8,
    /// Words left out before the first.
    first: u16,
}

impl Default for Sack {
    fn default() -> Self {
        Self::starting_at(0)
    }
}

impl Sack {
    /// A bitmap that begins with bit `SACK_WORD_BITS * first`; `first` is at most 65535.
    #[inline]
    pub fn starting_at(first: u32) -> Self {
        Self {
            words: [0; SACK_WORDS_MAX],
            len: 0,
            first: u16::try_from(first).unwrap_or(u16::MAX),
        }
    }

    /// Adds the next word: the bits of 32 packets, the most significant for the first; there is
    /// room for [`SACK_WORDS_MAX`].
    #[inline]
    pub fn push(&mut self, word: u32) {
        if let Some(slot) = self.words.get_mut(usize::from(self.len)) {
            *slot = word;
            self.len += 1;
        }
    }

    /// Marks packet `ack + 1 + bit` as arrived; bits outside the bitmap are ignored.
    #[inline]
    pub fn insert(&mut self, bit: u32) {
        let word = (bit / SACK_WORD_BITS).wrapping_sub(u32::from(self.first));
        if let (Some(slot), Ok(word)) = (self.words.get_mut(word as usize), u8::try_from(word)) {
            *slot |= 1 << (31 - bit % SACK_WORD_BITS);
            self.len = self.len.max(word + 1);
        }
    }

    /// Whether packet `ack + 1 + bit` has arrived.
    #[inline]
    pub fn contains(&self, bit: u32) -> bool {
        let word = (bit / SACK_WORD_BITS).wrapping_sub(u32::from(self.first));
        self.words
            .get(word as usize)
            .is_some_and(|word| word & (1 << (31 - bit % SACK_WORD_BITS)) != 0)
    }

    /// Whether no packet is marked.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words().iter().all(|&word| word == 0)
    }

    /// The words of the bitmap; the most significant bit of the first is bit 32 *
    /// [`Sack::first_word`].
    #[inline]
    pub fn words(&self) -> &[u32] {
        &self.words[..usize::from(self.len)]
    }

    /// Words left out before the first.
    #[inline]
    pub fn first_word(&self) -> u16 {
        self.first
    }

    /// The bits that are set, in ascending order.
    #[inline]
    pub fn iter(&self) -> SackBits {
        SackBits {
            sack: *self,
            word: 0,
        }
    }

    #[inline]
    fn parse(first: u16, body: &[u8]) -> Result<Self, ParseError> {
        let mut sack = Self::starting_at(first.into());
        let words = body.chunks_exact(WORD_LEN);
        if words.len() > SACK_WORDS_MAX {
            return Err(ParseError::Extension);
        }
        for octets in words {
            sack.push(be32::<WORD_LEN>(chunk(octets, 0)?, 0));
        }
        Ok(sack)
    }
}

impl IntoIterator for &Sack {
    type Item = u32;
    type IntoIter = SackBits;

    fn into_iter(self) -> SackBits {
        self.iter()
    }
}

/// The bits of a [`Sack`] in ascending order.
#[derive(Clone, Debug)]
pub struct SackBits {
    sack: Sack,
    word: u32,
}

impl Iterator for SackBits {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.word < u32::from(self.sack.len) {
            let word = &mut self.sack.words[self.word as usize];
            if *word != 0 {
                let bit = word.leading_zeros();
                *word &= !(1 << (31 - bit));
                return Some((u32::from(self.sack.first) + self.word) * SACK_WORD_BITS + bit);
            }
            self.word += 1;
        }
        None
    }
}

/// Time stamp and echo, in microseconds of each end's own clock modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// The sender's clock when it sent this packet.
    pub value_us: u32,
    /// `value_us` of the packet that this one acknowledges.
    pub echo_us: u32,
}

/// The verbs code of the time after which a refused packet may be sent again (`min_rnr_timer`),
/// 0..=31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The timer with this code, of which the low 5 bits count.
    #[inline]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code, 0..=31.
    #[inline]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time in microseconds, as `ibv_modify_qp(3)` lists it.
    pub const fn as_us(self) -> u32 {
        const US: [u32; 32] = [
            655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920,
            2_560, 3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920,
            122_880, 163_840, 245_760, 327_680, 491_520,
        ];
        US[(self.0 & 0x1f) as usize]
    }
}

/// The extensions of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Packets that arrived out of order.
    pub sack: Option<Sack>,
    /// Time stamps for RTT measurement.
    pub timestamp: Option<Timestamp>,
    /// How long to wait before a refused packet is sent again.
    pub rnr_timer: Option<RnrTimer>,
    /// The receiver's shared receive queue that the message of this packet is for (XRC).
    pub shared_queue: Option<u32>,
}

impl Extensions {
    /// No extension.
    pub const NONE: Extensions = Extensions {
        sack: None,
        timestamp: None,
        rnr_timer: None,
        shared_queue: None,
    };

    /// A packet of a message for the receiver's shared receive queue `number`.
    #[inline]
    pub const fn for_shared_queue(number: u32) -> Self {
        Self {
            shared_queue: Some(number),
            ..Self::NONE
        }
    }

    /// Parses extensions ([`super::TrpHeader::extension_octets`]); unknown kinds are skipped, of
    /// repeated ones the last counts.
    ///
    /// # Errors
    /// [`ParseError::Extension`] when one ends outside `octets` or has a length that its kind
    /// cannot have.
    pub fn parse(octets: &[u8]) -> Result<Self, ParseError> {
        let mut found = Self::NONE;
        let mut rest = octets;
        while !rest.is_empty() {
            let first: &[u8; WORD_LEN] = chunk(rest, 0).map_err(|_| ParseError::Extension)?;
            let end = field::BODY + WORD_LEN * usize::from(first[field::WORDS]);
            // R6-7
            //# **Errors.** An extension that ends outside the length given in the header, or that
            //# has a length which its kind cannot have, MUST make the whole packet invalid.
            let body = rest.get(field::BODY..end).ok_or(ParseError::Extension)?;
            match first[field::KIND] {
                KIND_SACK => {
                    let skipped = be16(first, field::ARGUMENT);
                    found.sack = Some(Sack::parse(skipped, body)?);
                }
                KIND_TIMESTAMP => found.timestamp = Some(parse_timestamp(body)?),
                KIND_RNR_TIMER => {
                    let [_, code] = be16(first, field::ARGUMENT).to_be_bytes();
                    found.rnr_timer = Some(RnrTimer::new(code));
                }
                KIND_SHARED_QUEUE => found.shared_queue = Some(parse_shared_queue(body)?),
                // R6-6
                //# **Receiver.** A receiver MUST skip kinds that it does not know.
                _ => {}
            }
            rest = &rest[end..];
        }
        Ok(found)
    }

    /// The words that [`Extensions::encode`] writes, for [`super::TrpHeader::extension_words`].
    #[inline]
    pub fn words(&self) -> u8 {
        let sack = self.sack.as_ref().map_or(0, |sack| 1 + sack.len);
        let timestamp = self.timestamp.map_or(0, |_| 1 + TIMESTAMP_WORDS);
        let shared_queue = self.shared_queue.map_or(0, |_| 1 + SHARED_QUEUE_WORDS);
        sack + timestamp + u8::from(self.rnr_timer.is_some()) + shared_queue
    }

    /// Writes the extensions to the start of `buf` and returns their length in octets.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        let mut at = 0;
        // R6-1: each kind is there once.
        if let Some(sack) = &self.sack {
            let [high, low] = sack.first.to_be_bytes();
            at = put_word(buf, at, [KIND_SACK, sack.len, high, low])?;
            for word in sack.words() {
                at = put_word(buf, at, word.to_be_bytes())?;
            }
        }
        if let Some(timestamp) = &self.timestamp {
            at = put_word(buf, at, [KIND_TIMESTAMP, TIMESTAMP_WORDS, 0, 0])?;
            at = put_word(buf, at, timestamp.value_us.to_be_bytes())?;
            at = put_word(buf, at, timestamp.echo_us.to_be_bytes())?;
        }
        if let Some(timer) = self.rnr_timer {
            at = put_word(buf, at, [KIND_RNR_TIMER, 0, 0, timer.0])?;
        }
        if let Some(number) = self.shared_queue {
            at = put_word(buf, at, [KIND_SHARED_QUEUE, SHARED_QUEUE_WORDS, 0, 0])?;
            at = put_word(buf, at, number.to_be_bytes())?;
        }
        Ok(at)
    }
}

#[inline]
fn put_word(buf: &mut [u8], at: usize, word: [u8; WORD_LEN]) -> Result<usize, EncodeError> {
    put(chunk_mut::<WORD_LEN>(buf, at)?, 0, word);
    Ok(at + WORD_LEN)
}

fn parse_shared_queue(body: &[u8]) -> Result<u32, ParseError> {
    <[u8; WORD_LEN]>::try_from(body)
        .map(u32::from_be_bytes)
        .map_err(|_| ParseError::Extension)
}

fn parse_timestamp(body: &[u8]) -> Result<Timestamp, ParseError> {
    match <&[u8; WORD_LEN * TIMESTAMP_WORDS as usize]>::try_from(body) {
        Ok(body) => Ok(Timestamp {
            value_us: be32(body, 0),
            echo_us: be32(body, WORD_LEN),
        }),
        Err(_) => Err(ParseError::Extension),
    }
}
