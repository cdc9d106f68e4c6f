//! What the engine keeps of one connected queue pair.

use std::sync::Arc;

use proto_trp::conn::Connection;
use urdma_types::SlotId;

use super::process::Process;
use super::qp::{Counts, Polled, Qp};
use super::qp_host::{Delivery, QpHost};
use crate::paths::path::{PeerPath, PeerSource};
use crate::types::QpAttributes;

/// One queue pair.
pub(crate) struct QpEntry {
    pub(crate) conn: Connection,
    pub(crate) qp: Arc<Qp>,
    pub(crate) attributes: QpAttributes,
    pub(crate) path: Option<PeerPath>,
    /// The only source from which packets of other hosts are accepted.
    pub(crate) source: PeerSource,
    pub(crate) counts: Counts,
    /// Where urdmad reads what the queue pair has received from another host.
    pub(crate) delivery: Option<Delivery>,
    /// Whether it is in the ready list.
    pub(crate) is_queued: bool,
    /// Connection ids that lead here, of received and sent streams.
    pub(crate) ids: [Option<u32>; 2],
}

impl QpEntry {
    /// Places of the send queue in use: by requests, and by completions that were not polled.
    #[inline(always)]
    pub(crate) fn sends_in_use(&self, polled: &Polled) -> u32 {
        self.conn.sends_outstanding() + polled.send_waiting(&self.counts)
    }

    /// The connection, and its host: what it reaches of this process during one call.
    #[inline]
    pub(crate) fn with_host<'a>(
        &'a mut self,
        process: &'a mut Process,
    ) -> (&'a mut Connection, QpHost<'a>) {
        let host = QpHost {
            regions: &mut process.regions,
            qp: &self.qp,
            access: self.attributes.access,
            remote_qpn: self.attributes.remote_qpn,
            counts: &mut self.counts,
            delivery: self.delivery.as_ref(),
            notes: &mut process.notes,
        };
        (&mut self.conn, host)
    }

    /// Whether the peer is the process at the other end of the channel to `slot`.
    #[inline]
    pub(crate) fn is_over(&self, slot: SlotId) -> bool {
        matches!(self.path, Some(PeerPath::Channel(peer)) if peer == slot)
    }
}
