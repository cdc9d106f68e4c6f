//! Queue pairs that take packets and drop them. A test adds this kind to a copy of the tree.

use proto_trp::conn::Time;

use crate::objects::index_table::{FirstIndex, IndexTable};
use crate::objects::process::Process;
use crate::types::Info;

/// All of them: the packets that each has taken, by index.
pub(crate) struct SinkTable {
    pub(crate) taken: IndexTable<u64>,
}

impl SinkTable {
    /// No queue pairs; their indices begin with `first`.
    pub(crate) fn new(first: FirstIndex) -> Self {
        Self {
            taken: IndexTable::new(first),
        }
    }

    /// Takes what it needs of the instance.
    pub(crate) fn begin(&mut self, _: &Info) {}

    /// Whether a queue pair has the index.
    pub(crate) fn has(&self, index: u16) -> bool {
        self.taken.get(index).is_some()
    }

    /// Fails every queue pair: urdmad has ended.
    pub(crate) fn fail_all(&mut self, _: Time, _: &mut Process) {}
}
