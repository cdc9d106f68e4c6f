//! Helpers that post work requests to the ends of a world, and read completions and events.

use proto_trp::conn::{
    ConnStats, Event, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Status,
};

use super::host::SimHost;
use super::world::World;

/// Flags of an application that wants every completion.
pub const SIGNALED: SendFlags = SendFlags {
    signaled: true,
    fence: false,
    solicited: false,
};

impl SimHost {
    /// A piece of a region as a scatter-gather element.
    pub fn sge(key: u32, at: u64, length: u32) -> Sge {
        Sge {
            addr: Self::base(key) + at,
            length,
            lkey: key,
        }
    }

    /// A place in a region as the peer names it.
    pub fn remote(key: u32, at: u64) -> RemoteAddr {
        RemoteAddr {
            stag: key,
            to: Self::base(key).wrapping_add(at),
        }
    }
}

impl World {
    /// Posts a signaled send request.
    ///
    /// # Panics
    /// When it is refused.
    pub fn post(&mut self, end: usize, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = SendWr {
            wr_id,
            op,
            imm: None,
            flags: SIGNALED,
            shared_queue: 0,
            payload: Payload::Sges(sges),
        };
        self.post_send(end, &wr);
    }

    /// Posts a send request.
    ///
    /// # Panics
    /// When it is refused.
    pub fn post_send(&mut self, end: usize, wr: &SendWr<'_>) {
        let now = self.now;
        let (conn, host) = self.split(end);
        conn.post_send(|| now, wr, host).expect("a send is taken");
    }

    /// Posts a receive request.
    ///
    /// # Panics
    /// When it is refused.
    pub fn post_recv(&mut self, end: usize, wr_id: u64, sges: &[Sge]) {
        let (conn, host) = self.split(end);
        let wr = RecvWr { wr_id, sges };
        conn.post_recv(&wr, host).expect("a receive is taken");
    }

    /// Completions of an end since the last call: identifier and status.
    pub fn outcome(&mut self, end: usize) -> Vec<(u64, Status)> {
        let completions = self.ends[end].host.completions.drain(..);
        completions.map(|c| (c.wr_id, c.status)).collect()
    }

    /// Events of an end since the last call.
    pub fn events(&mut self, end: usize) -> Vec<Event> {
        self.ends[end].host.events.drain(..).collect()
    }

    /// The counters of an end.
    ///
    /// # Panics
    /// When its process was killed.
    pub fn stats(&mut self, end: usize) -> ConnStats {
        *self.conn(end).stats()
    }
}
