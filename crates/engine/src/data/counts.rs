//! What the peers of channels have settled: reading their counts, and completing the requests.

use proto_trp::conn::QpState;
use urdma_channel::Channel;
use urdma_types::SlotId;

use crate::memory::host::complete_send;
use crate::objects::entry::QpEntry;
use crate::objects::index_table::IndexTable;
use crate::objects::process::Process;
use crate::paths::path::PeerPath;
use crate::shard::Shard;

/// The owner of a cell: the index of a queue pair, and whether its request ends with the message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u32);

impl Owner {
    /// No queue pair is told of the message's settlement.
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn of(index: u16) -> Self {
        Self(u32::from(index))
    }

    #[inline]
    fn index(self) -> Option<u16> {
        u16::try_from(self.0).ok().filter(|index| *index != 0)
    }
}

impl Shard {
    /// Says, before this process sleeps, of which counts it must learn: the first that completes a
    /// request for which the application sleeps, or for which a connection waits; the next one if
    /// something waits for room.
    pub(crate) fn await_counts(&mut self) {
        let mut at = 0;
        while let Some(slot) = self.channels.open.get(at) {
            at += 1;
            let Some(channel) = self.channels.get_mut(slot) else {
                continue;
            };
            let qps = &self.qps.connected;
            let is_blocked = self.is_blocked;
            // Successive messages are often of one queue pair.
            let mut asked = (Owner::NONE, None);
            let awaited = channel.outgoing().owners().find(|(count, owner)| {
                if asked.0 != Owner(*owner) {
                    asked = (Owner(*owner), waited_for(qps, Owner(*owner)));
                }
                is_blocked
                    || asked.1.is_some_and(|first| *count >= first)
                    || is_awaited_count(qps, Owner(*owner), *count)
            });
            channel.set_wake_at(awaited.map(|(count, _)| count));
        }
    }

    /// Reads what the peer of a queue pair has settled, if it is over a channel.
    pub(crate) fn read_counts_of(&mut self, index: u16) {
        if let Some(Some(PeerPath::Channel(slot))) =
            self.qps.connected.get(index).map(|entry| entry.path)
        {
            self.read_counts(slot);
        }
    }

    /// Reads what the peer in a slot has settled; whether requests completed.
    #[inline]
    pub(super) fn read_counts(&mut self, slot: SlotId) -> bool {
        let Some(channel) = self.channels.get_mut(slot) else {
            return false;
        };
        if is_all_completed(channel) {
            return false;
        }
        let Some(position) = channel.settled_by_counts() else {
            return false;
        };
        self.complete_sends(slot, position);
        true
    }

    /// Completes the requests of all messages before a position of the channel to a slot.
    #[inline(always)]
    pub(super) fn complete_sends(&mut self, slot: SlotId, position: u64) {
        let Some(channel) = self.channels.get_mut(slot) else {
            return;
        };
        while let Some((owner, end)) = channel.settle_run(position) {
            let index = Owner(owner).index();
            // The queue pair may be one after it with its index, connected to another slot.
            let entry = index.and_then(|index| self.qps.connected.get_mut(index));
            let Some(entry) = entry.filter(|entry| entry.is_over(slot)) else {
                continue;
            };
            let (qp, counts) = (&*entry.qp, &mut entry.counts);
            let remote_qpn = entry.attributes.remote_qpn;
            if entry.conn.settles_plainly() {
                while let Some(completion) = entry.conn.next_settled(end) {
                    complete_send(&mut self.direct, (qp, counts), remote_qpn, completion);
                }
            } else {
                settle_with_effects(entry, &mut self.process, end);
            }
            // Requests may have waited for these.
            if entry.conn.has_unsent() && !entry.is_queued {
                entry.is_queued = true;
                self.qps.ready.extend(index);
            }
        }
    }
}

/// The count of settled messages at which a send request of a queue pair completes for which the
/// application sleeps.
fn waited_for(qps: &IndexTable<QpEntry>, owner: Owner) -> Option<u64> {
    let entry = owner.index().and_then(|index| qps.get(index))?;
    if entry.conn.state() == QpState::Sqd {
        return Some(0);
    }
    let slot = entry.qp.number().slot();
    let is_awaited = entry.qp.send_cq().is_awaited_from(slot);
    is_awaited.then(|| entry.conn.reported_count()).flatten()
}

/// Whether a connection sends nothing more before this count.
fn is_awaited_count(qps: &IndexTable<QpEntry>, owner: Owner, count: u64) -> bool {
    let entry = owner.index().and_then(|index| qps.get(index));
    entry.is_some_and(|entry| entry.conn.awaited_count() == Some(count))
}

#[inline]
fn is_all_completed(channel: &Channel) -> bool {
    let outgoing = channel.outgoing();
    outgoing.completed() == outgoing.written()
}

/// Settles requests of a connection that does more than complete them.
#[cold]
fn settle_with_effects(entry: &mut QpEntry, process: &mut Process, count: u64) {
    let (conn, mut host) = entry.with_host(process);
    conn.settled(count, &mut host);
}
