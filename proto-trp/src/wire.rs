//! Wire formats: TRP ([`trp`], [`ext`], [`train`]), DDP ([`ddp`]) and RDMAP ([`rdmap`],
//! [`terminate`]), the DATAGRAM packet ([`datagram`]), the extensions of
//! the dynamically connected transport ([`dc`]), and the messages of a channel ([`message`],
//! [`packet_head`]).
//!
//! Each layout is a set of named field positions, and a plain struct that can only hold valid
//! values. `parse` checks the length once and validates; `encode` fails only if the buffer is too
//! short. Receivers parse in one of two ways:
//!
//! ```text
//! Segment::parse(head, datagram_len)                  everything at once
//! TrpHeader::parse(head, datagram_len)                packet type, connection id
//!   then Segment::parse_after(&trp, head, datagram_len) the segment; its errors cause a Terminate
//! ```
//!
//! `head` is a private copy of the first octets of the datagram ([`HEAD_LEN_MAX`], or all of them
//! if fewer). No octet beyond it is read here.

mod cause;
pub mod datagram;
pub mod dc;
pub mod ddp;
mod error;
pub mod ext;
pub mod message;
mod octets;
pub mod packet_head;
mod predicted;
pub mod rdmap;
mod reset;
mod segment;
mod size;
pub mod terminate;
pub mod train;
mod train_table;
pub mod trp;

pub use datagram::DatagramHeader;
pub use dc::{DcConnect, DcRefused, DC_CONNECT_LEN, DC_RESET_LEN, DC_RESET_REASON};
pub use ddp::{Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader};
pub use error::{EncodeError, ParseError};
pub use ext::{
    Extensions, RnrTimer, Sack, Timestamp, SACK_BITS_MAX, SACK_WORD_BITS, SHARED_QUEUE_LEN,
};
pub use message::{MessageError, MessageFlags, MessageHead, MessageKind};
pub use packet_head::{Meta, PacketHead};
pub use predicted::{PredictedWrite, Prediction};
pub use rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, ImmediateData, Opcode, ReadRequest,
};
pub use reset::ResetReason;
pub use segment::{encode, encode_segment, Segment, SegmentKind};
pub use size::{HEAD_LEN_MAX, TAGGED_OVERHEAD, UNTAGGED_OVERHEAD};
pub use terminate::{Terminate, TerminateCause};
pub use train::{Piece, Train, TrainWriter, SEGMENT_HEAD_LEN};
pub use trp::{connection_id, ConnectionId, Flags, PacketType, TrpHeader, WINDOW_UNIT_PACKETS};
