//! What all packets with new segments have in common: the header, the request of an
//! acknowledgement, and the record in the send window.

use super::connection::Connection;
use super::queues::{Kind, SegmentSource, SegmentSpec};
use crate::wire::{Flags, PacketType, TrpHeader};
use urdma_types::Time;

impl Connection {
    /// Prepares a new segment: returns whether it requests an acknowledgement.
    #[inline(always)]
    pub(super) fn begin_segment(&mut self, seq: u64, spec: &SegmentSpec) -> bool {
        let mut ack_requested = self.sender.requests_ack(seq);
        if let SegmentSource::Message(index)
        | SegmentSource::Immediate(index)
        | SegmentSource::Request(index) = spec.source
        {
            self.sq.start(index);
            ack_requested |= spec.last && self.wants_ack(index, spec.source);
        }
        ack_requested
    }

    /// Records a new segment that was written.
    #[inline(always)]
    pub(super) fn note_new(
        &mut self,
        now: Time,
        seq: u64,
        spec: &SegmentSpec,
        ack_requested: bool,
    ) {
        self.sender.on_sent(now, self.sender.is_empty());
        self.sender.push(now, *spec, ack_requested);
        self.note_sent(seq, spec);
    }

    /// Whether the last segment of a request requests an acknowledgement: reads and atomics are
    /// answered in any case.
    #[inline]
    fn wants_ack(&self, index: u32, source: SegmentSource) -> bool {
        let wqe = self.sq.get(index);
        let ends = match source {
            SegmentSource::Message(_) => wqe.kind != Kind::WriteImm,
            SegmentSource::Immediate(_) => true,
            SegmentSource::Request(_)
            | SegmentSource::Local(_)
            | SegmentSource::Response(_)
            | SegmentSource::Void => false,
        };
        ends && self.transport.is_stream() && (wqe.flags.signaled || self.sq.is_half_full())
    }

    /// The TRP header of a packet, with the complete state of the peer's stream.
    #[inline]
    pub(super) fn header(&self, kind: PacketType, flags: Flags) -> TrpHeader {
        let echo = if self.acks.marked {
            Flags::ECN_ECHO
        } else {
            Flags::NONE
        };
        TrpHeader {
            kind,
            // R4.4-2
            //# An end that accepts trains MUST set TR in every packet except RESET.
            flags: flags | echo | Flags::TRAINS,
            destination_index: self.peer.index,
            // R5-2
            //# **Sender.** DATA, UDATA, TRAIN, FIN and PROBE MUST carry the id of the sender's own
            //# stream; ACK, RNR and FIN_ACK MUST carry the id of the stream that they acknowledge.
            connection_id: if kind.carries_acknowledged_stream() {
                self.peer.rx_id
            } else {
                self.peer.tx_id
            },
            window: self.rx.advertised(),
            psn: self.sender.psn(self.sender.next()),
            // R4-3, R7.9-3: while requests are refused, the first of them.
            ack: self.rx.ack(),
            extension_words: 0,
        }
    }

    /// Records that a packet with segments was written. Its cumulative acknowledgement replaces a
    /// due ACK unless there is a gap to report.
    #[inline(always)]
    pub(super) fn note_acknowledged(&mut self) {
        if !self.rx.has_gap() {
            self.acks.on_sent();
        }
    }
}
