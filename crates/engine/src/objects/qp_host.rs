//! What a connection or datagram queue pair has of this process during one call.

use std::sync::Arc;

use proto_trp::conn::RemoteAccess;
use urdma_channel::{DeliveryRecord, OwnRecords};

use super::mr::MrTable;
use super::note::Note;
use super::qp::{Counts, Qp};
use crate::types::{Access, Pd};

/// The host of a connection or datagram queue pair during one call: its access to this process.
pub(crate) struct QpHost<'a> {
    /// All regions.
    pub(crate) regions: &'a mut MrTable,
    /// The queue pair.
    pub(crate) qp: &'a Qp,
    /// What it grants to its peer.
    pub(crate) access: Access,
    /// The peer's queue pair.
    pub(crate) remote_qpn: u32,
    /// Completions pushed so far.
    pub(crate) counts: &'a mut Counts,
    /// Where urdmad reads up to which packet the queue pair has received the stream of another
    /// host.
    pub(crate) delivery: Option<&'a Delivery>,
    /// Events to deliver when the lock is free.
    pub(crate) notes: &'a mut Vec<Note>,
}

impl QpHost<'_> {
    /// The right that an access of the peer needs.
    #[inline]
    pub(crate) const fn rights(access: RemoteAccess) -> Access {
        match access {
            RemoteAccess::Write => Access::REMOTE_WRITE,
            RemoteAccess::Read => Access::REMOTE_READ,
            RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        }
    }
}

/// The delivery record of a queue pair.
pub(crate) struct Delivery {
    records: Arc<OwnRecords>,
    index: u16,
}

impl Delivery {
    pub(crate) fn new(records: &Arc<OwnRecords>, index: u16) -> Self {
        Self {
            records: Arc::clone(records),
            index,
        }
    }

    #[inline]
    pub(crate) fn record(&self) -> &DeliveryRecord {
        self.records.of(self.index)
    }
}

/// The use of a scatter-gather list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListKind {
    /// Octets are read from it, to be sent.
    Source,
    /// The result of a read or an atomic is written to it.
    Response,
    /// A message is written to it.
    Receive,
}

impl ListKind {
    /// The protection domain that its keys must belong to.
    #[inline]
    pub(crate) fn pd(self, qp: &Qp) -> Pd {
        match self {
            ListKind::Source | ListKind::Response => qp.pd(),
            ListKind::Receive => qp.recv_pd(),
        }
    }

    /// The right that its keys must have.
    #[inline]
    pub(crate) const fn needs(self) -> Access {
        match self {
            ListKind::Source => Access::LOCAL,
            ListKind::Response | ListKind::Receive => Access::LOCAL_WRITE,
        }
    }
}
