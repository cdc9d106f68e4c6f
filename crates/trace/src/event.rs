//! Events of connections, and their records.
//!
//! A record is four words of 64 bits in the byte order of the host: the time; kind (8 bits), queue
//! pair number (24) and connection id (32); two arguments.

/// What an event is about: a connection of connection management, a queue pair, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// The communication id of this end; 0 without connection management.
    pub conn: u32,
    /// The queue pair number, 24 bits; 0 while it is not known.
    pub qpn: u32,
}

/// Defines an enum of octets with the conversion from an octet.
macro_rules! octets {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$item_doc])* $item = $value,)*
        }

        impl $name {
            /// The value with this number, if there is one.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($value => Some(Self::$item),)*
                    _ => None,
                }
            }

            /// Its number.
            #[inline]
            pub const fn number(self) -> u8 {
                self as u8
            }
        }
    };
}

octets! {
    /// The kind of an event; the comments state the two arguments.
    Kind {
        /// The peer's address: its 16 octets, IPv4 mapped.
        Peer = 1,
        /// A message of connection management: direction, message, port and tries (see
        /// [`crate::recorder`]); the reason of a REJ.
        Message = 2,
        /// A message was sent again, counted: its first time.
        Retry = 3,
        /// Both ends may send.
        Established = 4,
        /// The end of a connection: [`End`]; the number of transmissions without an answer.
        End = 5,
        /// A connection request found no listener in urdmad, or a bound port: the port; 1 if it is
        /// bound.
        NoListener = 6,
        /// A queue pair was created: its type as in verbs (`enum ibv_qp_type`).
        QpCreate = 16,
        /// A queue pair changed its state: the states before and after (`enum ibv_qp_state`).
        QpModify = 17,
        /// A work request failed: its status (`enum ibv_wc_status`).
        QpError = 18,
        /// A queue pair was destroyed.
        QpDestroy = 19,
        /// The retransmission timeout expired, counted: its first time.
        Rto = 20,
        /// A packet was sent again, counted: its first time.
        SentAgain = 21,
        /// A queue of the port was leased (1) or taken back (0): its number.
        Lease = 32,
        /// A process attached: its slot and process id.
        Attach = 33,
        /// A process ended: its slot; 1 if it did not detach.
        Detach = 34,
    }
}

octets! {
    /// A message of connection management.
    CmMessage {
        /// Connection request.
        Req = 1,
        /// Its reply.
        Rep = 2,
        /// Ready to use.
        Rtu = 3,
        /// Rejection.
        Rej = 4,
        /// Disconnection request.
        Dreq = 5,
        /// Its reply.
        Drep = 6,
        /// The application has not decided yet.
        Mra = 7,
        /// The request is to be sent again with a cookie.
        Cookie = 8,
    }
}

octets! {
    /// States of a connection, as connection management has them.
    CmState {
        /// REQ sent.
        ReqSent = 1,
        /// REQ received.
        ReqRcvd = 2,
        /// Accepted; the queue pair is not in RTR.
        RepGated = 3,
        /// REP sent.
        RepSent = 4,
        /// REP received.
        RepRcvd = 5,
        /// REP accepted; the queue pair is not in RTR.
        RtuGated = 6,
        /// Both ends may send.
        Established = 7,
        /// DREQ sent.
        DreqSent = 8,
        /// Ended, and kept for late messages.
        TimeWait = 9,
        /// Ended.
        Closed = 10,
        /// A datagram service has answered.
        Answered = 11,
    }
}

octets! {
    /// Why a connection ended.
    End {
        /// The peer did not answer.
        Unreachable = 1,
        /// The peer's process or queue pair is gone.
        PeerGone = 2,
        /// One of the ends disconnected.
        Disconnected = 3,
        /// This end disconnected, and the peer did not answer.
        NoReply = 4,
    }
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// This end sent it.
    Sent = 0,
    /// This end received it.
    Received = 1,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, nanoseconds of `CLOCK_MONOTONIC`, never 0.
    pub time_ns: u64,
    /// Its kind.
    pub kind: Kind,
    /// What it is about.
    pub link: Link,
    /// The arguments; [`Kind`] says what they are.
    pub arguments: [u64; 2],
}

/// Bits of a queue pair number.
const QPN_MASK: u32 = (1 << 24) - 1;

/// The second word of a record.
#[inline]
pub(crate) const fn head(kind: Kind, link: Link) -> u64 {
    (kind as u64) | ((link.qpn & QPN_MASK) as u64) << 8 | (link.conn as u64) << 32
}

impl Event {
    /// The event of a record; `None` if it is none, or is being written.
    pub fn from_words([time_ns, head, a, b]: [u64; 4]) -> Option<Self> {
        let [kind, q0, q1, q2, c0, c1, c2, c3] = head.to_le_bytes();
        Some(Self {
            time_ns: (time_ns != 0).then_some(time_ns)?,
            kind: Kind::from_number(kind)?,
            link: Link {
                conn: u32::from_le_bytes([c0, c1, c2, c3]),
                qpn: u32::from_le_bytes([q0, q1, q2, 0]),
            },
            arguments: [a, b],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_of_a_record_keeps_kind_and_link() {
        let link = Link {
            conn: 0xdead_beef,
            qpn: 0x00fd_1234,
        };
        let event = Event::from_words([9, head(Kind::Rto, link), 1, 2]).unwrap();
        assert_eq!((event.kind, event.link), (Kind::Rto, link));
        assert_eq!((event.time_ns, event.arguments), (9, [1, 2]));
    }

    #[test]
    fn records_without_a_time_or_of_an_unknown_kind_are_none() {
        let head = head(Kind::Rto, Link::default());
        assert_eq!(Event::from_words([0, head, 0, 0]), None);
        assert_eq!(Event::from_words([1, 0, 0, 0]), None);
        assert_eq!(Event::from_words([1, 0xff, 0, 0]), None);
    }
}
