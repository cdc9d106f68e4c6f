//! The header that begins each message of the pool, as doc/design/pool-sends.md specifies it.
//!
//! [`Header`] can only hold what may be sent. [`Header::decode`] accepts exactly what
//! [`Header::encode`] makes: a field that a kind of message does not use is 0.

use thiserror::Error;

/// Octets of a header.
pub const HEADER_OCTETS: usize = 32;
/// Octets of what precedes it over initiators.
pub const LABEL_OCTETS: usize = 16;
/// Octets before those of the user, at most.
pub const HEADER_OCTETS_MAX: usize = LABEL_OCTETS + HEADER_OCTETS;

/// An end of two virtual queue pairs that exchange messages, as its pool numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndId(pub u64);

/// The two ends of a message, and the Receives that its source has posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Who it is for.
    pub destination: EndId,
    /// Who sends it.
    pub source: EndId,
    /// Receives that the user of the source has posted since it was opened, modulo 2^32.
    pub receives: u32,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A virtual queue pair asks for one of a service. It is answered by `Accept` or `Refuse`.
    Open {
        /// The number of the service.
        service: u32,
        /// Who asks.
        source: EndId,
        /// As in [`Ends`].
        receives: u32,
    },
    /// The service has a virtual queue pair for the destination.
    Accept(Ends),
    /// It has none, and will have none.
    Refuse {
        /// Who asked.
        destination: EndId,
    },
    /// A Send, or the last segment of one that is longer than a message: its octets follow.
    Data {
        /// From where to where.
        ends: Ends,
        /// The number of the Send among those of its source, from 0, modulo 2^32.
        sequence: u32,
        /// Immediate data of the user.
        immediate: Option<u32>,
    },
    /// The first segment of a Send that is longer than a message: its first octets follow.
    Begin {
        /// From where to where.
        ends: Ends,
        /// As in `Data`.
        sequence: u32,
        /// Of the Send, in all its segments.
        len_octets: u32,
    },
    /// A segment between the first and the last: its octets follow.
    Part {
        /// From where to where.
        ends: Ends,
        /// As in `Data`.
        sequence: u32,
        /// Octets of the Send before these.
        offset: u32,
    },
    /// The Send of which `Begin` has come is taken: its Receive is long enough.
    Taken {
        /// From where to where.
        ends: Ends,
        /// As in `Begin`.
        sequence: u32,
    },
    /// Nothing but the number of Receives.
    Receives(Ends),
    /// The source does not exist any more, or it has failed.
    Close {
        /// Who it is for.
        destination: EndId,
        /// Who sends it.
        source: EndId,
        /// The Send of which `Begin` has come and that is longer than its Receive, if that is why.
        refused: Option<u32>,
    },
    /// Nothing but the number of buffers.
    Buffers,
    /// The pool of the source has no exchange with that of the destination any more.
    Leave,
    /// The pool of the destination is to send `Buffers`, which shows that it is there.
    Probe,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Receives that the pool of the source has posted for its peer to the connection, modulo 2^16.
    pub buffers: u16,
    /// What follows from the message.
    pub message: Message,
}

/// Why octets are no message of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// It is shorter than a header.
    #[error("a message of {0} octets is shorter than its header")]
    Short(usize),
    /// No kind of message has this number.
    #[error("no kind of message has the number {0}")]
    Kind(u8),
    /// A flag has no meaning.
    #[error("the flags {0:#x} have no meaning in this kind of message")]
    Flags(u8),
    /// A field is not 0 that this kind of message does not use.
    #[error("a field that this kind of message does not use is not 0")]
    Unused,
    /// Octets follow a header that is all of its message.
    #[error("octets follow a header that is all of its message")]
    Long,
}

/// Numbers of the kinds.
mod kind {
    pub(super) const OPEN: u8 = 1;
    pub(super) const ACCEPT: u8 = 2;
    pub(super) const REFUSE: u8 = 3;
    pub(super) const DATA: u8 = 4;
    pub(super) const BEGIN: u8 = 5;
    pub(super) const PART: u8 = 6;
    pub(super) const RECEIVES: u8 = 7;
    pub(super) const CLOSE: u8 = 8;
    pub(super) const BUFFERS: u8 = 9;
    pub(super) const TAKEN: u8 = 10;
    pub(super) const LEAVE: u8 = 11;
    pub(super) const PROBE: u8 = 12;
}

/// The message has immediate data.
const HAS_IMMEDIATE: u8 = 1;
/// The message names a Send that is refused.
const HAS_REFUSED: u8 = 2;

/// The flags that a kind of message may have.
fn flags_of(kind: u8) -> u8 {
    match kind {
        kind::DATA => HAS_IMMEDIATE,
        kind::CLOSE => HAS_REFUSED,
        _ => 0,
    }
}

/// Whether octets of a user follow the header.
fn has_octets(kind: u8) -> bool {
    matches!(kind, kind::DATA | kind::BEGIN | kind::PART)
}

/// All fields, in the order in which they are sent, whether a kind uses them or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    destination: u64,
    source: u64,
    sequence: u32,
    receives: u32,
    kind: u8,
    flags: u8,
    buffers: u16,
    immediate: u32,
}

impl Fields {
    fn write(&self) -> [u8; HEADER_OCTETS] {
        let mut octets = [0; HEADER_OCTETS];
        octets[..8].copy_from_slice(&self.destination.to_be_bytes());
        octets[8..16].copy_from_slice(&self.source.to_be_bytes());
        octets[16..20].copy_from_slice(&self.sequence.to_be_bytes());
        octets[20..24].copy_from_slice(&self.receives.to_be_bytes());
        (octets[24], octets[25]) = (self.kind, self.flags);
        octets[26..28].copy_from_slice(&self.buffers.to_be_bytes());
        octets[28..].copy_from_slice(&self.immediate.to_be_bytes());
        octets
    }

    fn read(octets: &[u8; HEADER_OCTETS]) -> Self {
        let long = |at: usize| u64::from_be_bytes(std::array::from_fn(|n| octets[at + n]));
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|n| octets[at + n]));
        Self {
            destination: long(0),
            source: long(8),
            sequence: word(16),
            receives: word(20),
            kind: octets[24],
            flags: octets[25],
            buffers: u16::from_be_bytes([octets[26], octets[27]]),
            immediate: word(28),
        }
    }

    fn ends(&self) -> Ends {
        Ends {
            destination: EndId(self.destination),
            source: EndId(self.source),
            receives: self.receives,
        }
    }

    fn of_ends(kind: u8, ends: &Ends) -> Self {
        Self {
            kind,
            destination: ends.destination.0,
            source: ends.source.0,
            receives: ends.receives,
            ..Self::default()
        }
    }

    /// Of a message about a Send.
    fn of_send(kind: u8, ends: &Ends, sequence: u32, immediate: u32) -> Self {
        Self {
            sequence,
            immediate,
            ..Self::of_ends(kind, ends)
        }
    }

    fn of_message(message: &Message) -> Self {
        match *message {
            Message::Open {
                service,
                source,
                receives,
            } => Self {
                kind: kind::OPEN,
                destination: service.into(),
                source: source.0,
                receives,
                ..Self::default()
            },
            Message::Accept(ends) => Self::of_ends(kind::ACCEPT, &ends),
            Message::Refuse { destination } => Self {
                kind: kind::REFUSE,
                destination: destination.0,
                ..Self::default()
            },
            Message::Data {
                ends,
                sequence,
                immediate,
            } => Self {
                flags: immediate.map_or(0, |_| HAS_IMMEDIATE),
                ..Self::of_send(kind::DATA, &ends, sequence, immediate.unwrap_or(0))
            },
            Message::Begin {
                ends,
                sequence,
                len_octets,
            } => Self::of_send(kind::BEGIN, &ends, sequence, len_octets),
            Message::Part {
                ends,
                sequence,
                offset,
            } => Self::of_send(kind::PART, &ends, sequence, offset),
            Message::Taken { ends, sequence } => Self::of_send(kind::TAKEN, &ends, sequence, 0),
            Message::Receives(ends) => Self::of_ends(kind::RECEIVES, &ends),
            Message::Close {
                destination,
                source,
                refused,
            } => Self {
                kind: kind::CLOSE,
                flags: refused.map_or(0, |_| HAS_REFUSED),
                sequence: refused.unwrap_or(0),
                destination: destination.0,
                source: source.0,
                ..Self::default()
            },
            Message::Buffers => Self {
                kind: kind::BUFFERS,
                ..Self::default()
            },
            Message::Leave => Self {
                kind: kind::LEAVE,
                ..Self::default()
            },
            Message::Probe => Self {
                kind: kind::PROBE,
                ..Self::default()
            },
        }
    }

    fn message(&self) -> Result<Message, HeaderError> {
        let ends = self.ends();
        let Ends {
            destination,
            source,
            receives,
        } = ends;
        Ok(match self.kind {
            kind::OPEN => Message::Open {
                service: u32::try_from(self.destination).map_err(|_| HeaderError::Unused)?,
                source,
                receives,
            },
            kind::ACCEPT => Message::Accept(ends),
            kind::REFUSE => Message::Refuse { destination },
            kind::DATA => Message::Data {
                ends,
                sequence: self.sequence,
                immediate: (self.flags == HAS_IMMEDIATE).then_some(self.immediate),
            },
            kind::BEGIN => Message::Begin {
                ends,
                sequence: self.sequence,
                len_octets: self.immediate,
            },
            kind::PART => Message::Part {
                ends,
                sequence: self.sequence,
                offset: self.immediate,
            },
            kind::TAKEN => Message::Taken {
                ends,
                sequence: self.sequence,
            },
            kind::RECEIVES => Message::Receives(ends),
            kind::CLOSE => Message::Close {
                destination,
                source,
                refused: (self.flags == HAS_REFUSED).then_some(self.sequence),
            },
            kind::BUFFERS => Message::Buffers,
            kind::LEAVE => Message::Leave,
            kind::PROBE => Message::Probe,
            other => return Err(HeaderError::Kind(other)),
        })
    }
}

/// What precedes the header of a message over initiators, since no queue pair tells whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// What the destination has told the source.
    pub token: u64,
    /// The number of the message, from 1, modulo 2^16. One that may not have arrived is followed by
    /// one with the same number.
    pub number: u16,
}

impl Label {
    fn encode(&self) -> [u8; LABEL_OCTETS] {
        let mut octets = [0; LABEL_OCTETS];
        octets[..8].copy_from_slice(&self.token.to_be_bytes());
        octets[8..10].copy_from_slice(&self.number.to_be_bytes());
        octets
    }

    /// The label in the first octets of a message, and those behind it.
    ///
    /// # Errors
    /// If a pool sends no such message.
    pub fn decode(first: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let short = HeaderError::Short(first.len());
        let (octets, rest) = first.split_first_chunk::<LABEL_OCTETS>().ok_or(short)?;
        let label = Self {
            token: u64::from_be_bytes(std::array::from_fn(|n| octets[n])),
            number: u16::from_be_bytes([octets[8], octets[9]]),
        };
        match label.encode() == *octets {
            true => Ok((label, rest)),
            false => Err(HeaderError::Unused),
        }
    }
}

/// The octets of a message before those of its user: a header, with a label over initiators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderOctets {
    octets: [u8; HEADER_OCTETS_MAX],
    /// Where they begin.
    begin: usize,
}

impl std::ops::Deref for HeaderOctets {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.octets[self.begin..]
    }
}

impl Header {
    /// With a label, over initiators.
    pub fn with_label(&self, label: Option<Label>) -> HeaderOctets {
        let mut octets = [0; HEADER_OCTETS_MAX];
        octets[LABEL_OCTETS..].copy_from_slice(&self.encode());
        if let Some(label) = label {
            octets[..LABEL_OCTETS].copy_from_slice(&label.encode());
        }
        let begin = if label.is_some() { 0 } else { LABEL_OCTETS };
        HeaderOctets { octets, begin }
    }

    /// Its octets.
    pub fn encode(&self) -> [u8; HEADER_OCTETS] {
        let fields = Fields::of_message(&self.message);
        Fields {
            buffers: self.buffers,
            ..fields
        }
        .write()
    }

    /// The header of a message of `len_octets`, and how many octets of the user are behind it.
    /// `first` has the first octets of the message, as many as there are up to [`HEADER_OCTETS`].
    ///
    /// # Errors
    /// If a pool sends no such message.
    pub fn decode(first: &[u8], len_octets: usize) -> Result<(Self, usize), HeaderError> {
        let short = HeaderError::Short(len_octets);
        let first = first.first_chunk().ok_or(short)?;
        let behind = len_octets.checked_sub(HEADER_OCTETS).ok_or(short)?;
        let fields = Fields::read(first);
        let header = Self {
            buffers: fields.buffers,
            message: fields.message()?,
        };
        if fields.flags & !flags_of(fields.kind) != 0 {
            return Err(HeaderError::Flags(fields.flags));
        }
        if header.encode() != *first {
            return Err(HeaderError::Unused);
        }
        match has_octets(fields.kind) || behind == 0 {
            true => Ok((header, behind)),
            false => Err(HeaderError::Long),
        }
    }
}

#[cfg(test)]
mod tests {
    use urdma_types::Rng;

    use super::*;

    const KINDS: u64 = 12;

    fn random_message(rng: &mut Rng) -> Message {
        let ends = Ends {
            destination: EndId(rng.bits()),
            source: EndId(rng.bits()),
            receives: rng.bits32(),
        };
        let Ends {
            destination,
            source,
            receives,
        } = ends;
        match rng.below(KINDS) {
            0 => Message::Open {
                service: rng.bits32(),
                source,
                receives,
            },
            1 => Message::Accept(ends),
            2 => Message::Refuse { destination },
            3 => Message::Data {
                ends,
                sequence: rng.bits32(),
                immediate: rng.percent(50).then(|| rng.bits32()),
            },
            4 => Message::Receives(ends),
            5 => Message::Close {
                destination,
                source,
                refused: rng.percent(50).then(|| rng.bits32()),
            },
            6 => Message::Begin {
                ends,
                sequence: rng.bits32(),
                len_octets: rng.bits32(),
            },
            7 => Message::Part {
                ends,
                sequence: rng.bits32(),
                offset: rng.bits32(),
            },
            8 => Message::Taken {
                ends,
                sequence: rng.bits32(),
            },
            9 => Message::Leave,
            10 => Message::Probe,
            _ => Message::Buffers,
        }
    }

    fn random_header(rng: &mut Rng) -> Header {
        Header {
            buffers: rng.bits() as u16,
            message: random_message(rng),
        }
    }

    #[test]
    fn header_is_decoded_as_it_was_encoded() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            let header = random_header(&mut rng);
            let mut octets = header.encode().to_vec();
            assert_eq!(Header::decode(&octets, HEADER_OCTETS), Ok((header, 0)));
            octets.extend([1, 2, 3]);
            let len = octets.len();
            let expected = match header.message {
                Message::Data { .. } | Message::Begin { .. } | Message::Part { .. } => {
                    Ok((header, 3))
                }
                _ => Err(HeaderError::Long),
            };
            assert_eq!(Header::decode(&octets, len), expected);
        }
    }

    /// Octets of every kind, of which some are random: what is accepted is what `encode` makes.
    #[test]
    fn arbitrary_octets_are_refused_or_canonical() {
        let mut rng = Rng::new(2);
        let mut accepted = [0_u32; 2];
        for _ in 0..200_000 {
            let mut octets = random_header(&mut rng).encode().to_vec();
            for _ in 0..rng.below(4) {
                octets[rng.below_len(HEADER_OCTETS)] = rng.bits() as u8;
            }
            if rng.percent(10) {
                rng.fill(&mut octets);
            }
            octets.truncate(match rng.percent(10) {
                true => rng.below_len(HEADER_OCTETS + 1),
                false => HEADER_OCTETS,
            });
            let decoded = Header::decode(&octets, octets.len());
            if let Ok((header, _)) = decoded {
                assert_eq!(header.encode()[..], octets[..HEADER_OCTETS]);
            }
            accepted[usize::from(decoded.is_ok())] += 1;
        }
        assert!(accepted.iter().all(|count| *count > 10_000), "{accepted:?}");
    }

    fn changed(header: &Header, at: usize, octet: u8) -> Result<Message, HeaderError> {
        let mut octets = header.encode();
        octets[at] = octet;
        Header::decode(&octets, octets.len()).map(|(header, _)| header.message)
    }

    #[test]
    fn each_error_is_named() {
        let buffers = Header {
            buffers: 7,
            message: Message::Buffers,
        };
        let octets = buffers.encode();
        assert_eq!(
            Header::decode(&octets[1..], 31),
            Err(HeaderError::Short(31))
        );
        for (at, octet, expected) in [
            (24, 0, HeaderError::Kind(0)),
            (24, 13, HeaderError::Kind(13)),
            (24, 255, HeaderError::Kind(255)),
            (25, HAS_IMMEDIATE, HeaderError::Flags(1)),
            (25, 2, HeaderError::Flags(2)),
            (0, 1, HeaderError::Unused),
            (15, 1, HeaderError::Unused),
            (19, 1, HeaderError::Unused),
            (23, 1, HeaderError::Unused),
            (31, 1, HeaderError::Unused),
        ] {
            assert_eq!(changed(&buffers, at, octet), Err(expected), "octet {at}");
        }
        let ends = Ends {
            destination: EndId(1),
            source: EndId(2),
            receives: 3,
        };
        let data = Header {
            buffers: 0,
            message: Message::Data {
                ends,
                sequence: 4,
                immediate: None,
            },
        };
        assert_eq!(changed(&data, 31, 1), Err(HeaderError::Unused));
        assert_eq!(changed(&data, 25, 3), Err(HeaderError::Flags(3)));
        let open = Header {
            buffers: 0,
            message: Message::Open {
                service: 1,
                source: EndId(2),
                receives: 3,
            },
        };
        assert_eq!(changed(&open, 3, 1), Err(HeaderError::Unused));
    }

    #[test]
    fn fields_are_where_the_design_says() {
        let header = Header {
            buffers: 0x1b1a,
            message: Message::Data {
                ends: Ends {
                    destination: EndId(0x0706_0504_0302_0100),
                    source: EndId(0x0f0e_0d0c_0b0a_0908),
                    receives: 0x1716_1514,
                },
                sequence: 0x1312_1110,
                immediate: Some(0x1f1e_1d1c),
            },
        };
        let expected = [
            7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8, 19, 18, 17, 16, 23, 22, 21, 20,
            4, 1, 27, 26, 31, 30, 29, 28,
        ];
        assert_eq!(header.encode(), expected);
    }
}
