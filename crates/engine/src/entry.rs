//! What the engine keeps of one connected queue pair.

use std::sync::Arc;

use proto_trp::conn::Connection;
use urdma_types::SlotId;

use super::path::{PeerPath, PeerSource};
use super::process::Process;
use super::qp::{Counts, Qp};
use super::qp_host::{Delivery, QpHost};
use super::types::QpAttributes;

/// One queue pair.
pub(super) struct QpEntry {
    pub(super) conn: Connection,
    pub(super) qp: Arc<Qp>,
    pub(super) attributes: QpAttributes,
    pub(super) path: Option<PeerPath>,
    /// The only source from which packets of other hosts are accepted.
    pub(super) source: PeerSource,
    pub(super) counts: Counts,
    /// Where urdmad reads what the queue pair has received from another host.
    pub(super) delivery: Option<Delivery>,
    /// Whether it is in the ready list.
    pub(super) is_queued: bool,
    /// Connection ids that lead here, of received and sent streams.
    pub(super) ids: [Option<u32>; 2],
}

impl QpEntry {
    /// The connection, and its host: what it reaches of this process during one call.
    #[inline]
    pub(super) fn with_host<'a>(
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
    pub(super) fn is_over(&self, slot: SlotId) -> bool {
        matches!(self.path, Some(PeerPath::Channel(peer)) if peer == slot)
    }
}
