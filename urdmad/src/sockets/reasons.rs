//! Why sockets stay with TCP: counts of urdmad's own, and those in the memory of processes.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use urdma_ipc::SocketReason;

use crate::slots::Token;

const COUNT: usize = SocketReason::ALL.len();

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    /// urdmad's own, and those of processes that have ended.
    counts: [u64; COUNT],
    processes: BTreeMap<Token, File>,
}

impl Reasons {
    /// Counts a reason of urdmad's own.
    pub(super) fn count(&mut self, reason: SocketReason) {
        let count = &mut self.counts[reason as usize];
        *count = count.saturating_add(1);
    }

    /// The memory of a process; false if it has some already.
    pub(super) fn add(&mut self, token: Token, memory: OwnedFd) -> bool {
        self.processes.insert(token, File::from(memory)).is_none()
    }

    /// A process has ended.
    pub(super) fn end(&mut self, token: Token) {
        if let Some(memory) = self.processes.remove(&token) {
            add(&mut self.counts, &memory);
        }
    }

    /// All counts.
    pub(super) fn status(&self) -> BTreeMap<SocketReason, u64> {
        let mut counts = self.counts;
        for memory in self.processes.values() {
            add(&mut counts, memory);
        }
        SocketReason::ALL.iter().copied().zip(counts).collect()
    }

    /// The counts of each process that runs, without those that are 0.
    pub(super) fn of_processes(
        &self,
    ) -> impl Iterator<Item = (Token, BTreeMap<SocketReason, u64>)> + '_ {
        self.processes.iter().map(|(token, memory)| {
            let mut counts = [0; COUNT];
            add(&mut counts, memory);
            let named = SocketReason::ALL.iter().copied().zip(counts);
            (*token, named.filter(|(_, count)| *count > 0).collect())
        })
    }
}

/// Adds the counts of a process, which can write any number there.
fn add(counts: &mut [u64; COUNT], memory: &File) {
    let mut octets = [0; COUNT * 8];
    if memory.read_exact_at(&mut octets, 0).is_ok() {
        let (words, _) = octets.as_chunks();
        for (count, word) in counts.iter_mut().zip(words) {
            *count = count.saturating_add(u64::from_ne_bytes(*word));
        }
    }
}
