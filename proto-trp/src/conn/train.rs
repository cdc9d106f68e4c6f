//! Trains: several short messages in one packet, equivalent to a packet for each of them
//! (doc/spec/trp.md, section 4.4).
//!
//! A train consists of requests that are ready when the first of them is sent: nothing waits for
//! more. Each segment has its own record in the window, so acknowledgement and loss recovery do not
//! know trains; a lost segment is retransmitted in a packet of its own. The receiver processes the
//! segments one by one.

use super::connection::Connection;
use super::host::Host;
use super::num::len32;
use super::queues::{Kind, SendWqe};
use super::queues::{SegmentSource, SegmentSpec};
use super::transmit::{Next, Planned, Transmit, CONTROL_LEN, TRAIN_MESSAGE_OCTETS_MAX};
use crate::wire::{self, ddp, train, Flags, PacketType, SegmentKind, TrainWriter};
use urdma_types::Time;

/// The longest train, in octets: 14 messages of 64 octets.
const TRAIN_OCTETS_MAX: usize = CONTROL_LEN + 1024;

/// Whether a request is one segment that may be in a train.
#[inline]
fn is_short_message(wqe: &SendWqe) -> bool {
    wqe.length <= TRAIN_MESSAGE_OCTETS_MAX
        && matches!(
            wqe.kind,
            Kind::PlainSend | Kind::Send | Kind::SendInvalidate | Kind::PlainWrite | Kind::Write
        )
}

impl Connection {
    /// The plan for a request whose first segment has `octets` of payload, while `waiting` requests
    /// are ready: alone, or as a train if it may be in one.
    #[inline(never)]
    pub(super) fn plan_train(&self, waiting: u32, octets: u32) -> Planned {
        let first = self.sq.next();
        let goes = |index| is_short_message(self.sq.get(index));
        let is_alone = !self.transport.is_stream()
            || self.config.names_shared_queue
            || self.responder.has_answers()
            || !goes(first)
            || !goes(first.wrapping_add(1));
        if is_alone {
            return Planned::alone(Next::Request, octets);
        }
        // Sized as if all were as long as the first; what does not fit is sent next.
        let segment = ddp::UNTAGGED_LEN + octets as usize;
        let room = self.peer.max_datagram.min(TRAIN_OCTETS_MAX) - train::OVERHEAD;
        let count = (waiting as usize)
            .min(train::SEGMENTS_MAX)
            .min(room / segment);
        if count < 2 {
            return Planned::alone(Next::Request, octets);
        }
        let len = train::OVERHEAD + count * segment;
        Planned::alone(Next::Train, len32(len.saturating_sub(CONTROL_LEN)))
    }

    /// Sends requests that are ready, as many as fit into the first `room` octets of `buf`.
    pub(super) fn write_train<H: Host>(
        &mut self,
        now: Time,
        room: usize,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        let first = self.sender.next();
        let mut train = TrainWriter::default();
        let mut ack_requested = false;
        while let Some((index, spec)) = self.next_of_train(&train, room) {
            let seq = self.sender.next();
            let requests_ack = self.begin_segment(seq, &spec);
            let kind = self.message_kind(index, &spec);
            let begin = train.end();
            let Ok(headers) = wire::encode_segment(&kind, spec.last, &mut buf[begin..]) else {
                break;
            };
            let payload = begin + headers;
            let end = payload + spec.len as usize;
            if !self.put_payload(index, spec.offset, &mut buf[payload..end], host) {
                break;
            }
            train.push(end - begin, has_immediate(&kind));
            self.note_new(now, seq, &spec, requests_ack);
            ack_requested |= requests_ack;
        }
        if train.count() == 0 {
            return None;
        }
        let mut flags = self.sender.epoch();
        if ack_requested {
            // The last segment requests the acknowledgement for all, and gives the RTT sample.
            self.sender.request_ack_of_last();
            flags = flags | Flags::ACK_REQUESTED;
        }
        let mut trp = self.header(PacketType::Train, flags);
        trp.psn = self.sender.psn(first);
        let len = train.finish(&trp, buf).ok()?;
        self.note_acknowledged();
        self.stats.tx_trains += 1;
        Some(Transmit {
            len,
            ecn_capable: true,
        })
    }

    /// The next segment of a train that is being written, if there is one and it may be sent now;
    /// the index of its request.
    #[inline]
    fn next_of_train(&self, train: &TrainWriter, room: usize) -> Option<(u32, SegmentSpec)> {
        if !self.sender.may_send() || train.count() == train::SEGMENTS_MAX {
            return None;
        }
        let spec = self.next_request_segment()?;
        let SegmentSource::Message(index) = spec.source else {
            return None;
        };
        let fits = train.end() + ddp::UNTAGGED_LEN + spec.len as usize <= room;
        (fits && is_short_message(self.sq.get(index))).then_some((index, spec))
    }
}

/// Whether the packet of such a segment has the flag IMM.
#[inline]
fn has_immediate(kind: &SegmentKind) -> bool {
    matches!(
        kind,
        SegmentKind::Send {
            immediate: Some(_),
            ..
        }
    )
}
