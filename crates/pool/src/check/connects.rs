//! Connection management between pools: a request is on its way, then its answer, and then the
//! accepting end learns that the connection is complete. Requests may cross.

use super::pools::{Pools, Side};
use super::work::fail;
use super::{Finding, Rng};
use crate::{ConnectionName, NodeId, PhysicalId, PhysicalState};

/// A request of a side to connect.
#[derive(Debug)]
pub(super) struct Ask {
    side: usize,
    peer: usize,
    id: PhysicalId,
    name: ConnectionName,
    link: u64,
    /// The queue pair of the peer that has accepted it, if its answer is on its way.
    accepted: Option<PhysicalId>,
    /// It is not wanted any more. The peer may not know that yet.
    is_given_up: bool,
    /// The request of the peer for which it was given up.
    given_up_for: Option<u64>,
}

impl Side {
    /// The accepting end of a connection learns that it is complete, unless it has known that.
    pub(super) fn complete(&mut self, id: PhysicalId, share: u16) {
        let found = self.qp(id);
        let told = found.and_then(|at| self.qps[at].accepting.take());
        if let Some(name) = told {
            self.pool.handle_connected(id);
            self.pool.handle_granted(id, share, name);
        }
    }
}

impl Pools {
    /// The driver of a side begins to connect.
    pub(super) fn ask(
        &mut self,
        side: usize,
        id: PhysicalId,
        node: NodeId,
        is_reachable: bool,
    ) -> Result<(), Finding> {
        let own = &mut self.sides[side];
        let is_void = own.pool.physical_state(id) != Some(PhysicalState::Connecting);
        if is_void || self.wanted(side, id).is_some() {
            return Ok(());
        }
        let own = &mut self.sides[side];
        let peer = own.nodes.iter().position(|known| *known == node);
        let peer = peer.ok_or("an unknown node is connected to")?;
        if !is_reachable {
            own.pool.handle_unreachable(id);
            return Ok(());
        }
        self.asks.push(Ask {
            side,
            peer,
            id,
            name: self.sides[side].pool.name_of(id),
            link: self.next_link,
            accepted: None,
            is_given_up: false,
            given_up_for: None,
        });
        self.next_link += 1;
        Ok(())
    }

    /// The request of a side for a queue pair that is wanted.
    fn wanted(&self, side: usize, id: PhysicalId) -> Option<usize> {
        let is_it = |ask: &Ask| !ask.is_given_up && (ask.side, ask.id) == (side, id);
        self.asks.iter().position(is_it)
    }

    /// A side does not want to connect a queue pair itself any more, since it takes a request of
    /// the peer, if there is one.
    pub(super) fn give_up(
        &mut self,
        side: usize,
        id: PhysicalId,
        taken: Option<&Ask>,
    ) -> Result<(), Finding> {
        let Some(at) = self.wanted(side, id) else {
            return Ok(());
        };
        self.crossed += u64::from(taken.is_some());
        let ask = &mut self.asks[at];
        ask.is_given_up = true;
        ask.given_up_for = taken.map(|taken| taken.link);
        match taken.is_some_and(|taken| taken.given_up_for == Some(ask.link)) {
            true => fail("of two connects that cross, each is given up for the other one"),
            false => Ok(()),
        }
    }

    /// A process ends: its requests are not wanted any more.
    pub(super) fn end_asks(&mut self, side: usize) {
        let of_side = self.asks.iter_mut().filter(|ask| ask.side == side);
        of_side.for_each(|ask| ask.is_given_up = true);
    }

    /// Any connection goes on, if one can.
    pub(super) fn step_connect(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        if !self.asks.is_empty() && rng.percent(70) {
            return self.step_ask(rng.below_len(self.asks.len())).map(drop);
        }
        let side = rng.below_len(self.sides.len());
        self.tell_complete(side);
        Ok(())
    }

    /// All connections go on; whether one has.
    pub(super) fn step_connects(&mut self) -> Result<bool, Finding> {
        let mut has_moved = false;
        for at in (0..self.asks.len()).rev() {
            has_moved |= self.step_ask(at)?;
        }
        for side in 0..self.sides.len() {
            has_moved |= self.tell_complete(side);
        }
        Ok(has_moved)
    }

    /// The request is delivered, or its answer; `false`: the peer refuses it for now.
    fn step_ask(&mut self, at: usize) -> Result<bool, Finding> {
        // Those of a side to another one arrive in order.
        let way = (self.asks[at].side, self.asks[at].peer);
        let first = self.asks.iter().position(|ask| (ask.side, ask.peer) == way);
        let at = first.unwrap_or(at);
        match self.asks[at].accepted {
            None => self.deliver(at),
            Some(accepted) => self.answer(at, accepted).map(|()| true),
        }
    }

    fn deliver(&mut self, at: usize) -> Result<bool, Finding> {
        while self.arrive(self.asks[at].peer) {}
        let ask = self.asks.remove(at);
        let Ask { side, peer, .. } = ask;
        let own = &mut self.sides[peer];
        let from = own.nodes[side];
        let taken = own.pool.handle_request(from, ask.name, peer < side);
        let Some(accepted) = taken.map_err(|error| error.to_string())? else {
            let asks_again = !ask.is_given_up;
            if asks_again {
                self.asks.insert(at, ask);
            }
            return Ok(!asks_again);
        };
        self.give_up(peer, accepted, Some(&ask))?;
        if let Some(before) = self.sides[peer].qp(accepted) {
            self.sides[peer].qps.remove(before);
        }
        let (link, share) = (ask.link, self.messages.share);
        self.sides[peer].add_qp(accepted, side, link, share);
        let last = self.sides[peer].qps.last_mut();
        last.expect("it was added").accepting = Some(ask.name);
        // The request that was given up for this one may be before it now.
        let at = at.min(self.asks.len());
        let accepted = Some(accepted);
        self.asks.insert(at, Ask { accepted, ..ask });
        Ok(true)
    }

    fn answer(&mut self, at: usize, accepted: PhysicalId) -> Result<(), Finding> {
        let ask = self.asks.remove(at);
        let share = self.messages.share;
        let qps = &mut self.sides[ask.peer].qps;
        let other = qps.iter_mut().find(|qp| qp.link == ask.link);
        match other.filter(|qp| !qp.is_broken) {
            Some(other) if ask.is_given_up => other.is_broken = true,
            None if ask.is_given_up => {}
            // The peer has begun anew, or the connection has failed.
            None => {
                let accepted = None;
                self.asks.insert(at, Ask { accepted, ..ask });
            }
            Some(_) => {
                let name = self.sides[ask.peer].pool.name_of(accepted);
                let own = &mut self.sides[ask.side];
                if own.pool.physical_state(ask.id) != Some(PhysicalState::Connecting) {
                    return fail("a queue pair is connected that is not wanted");
                }
                own.add_qp(ask.id, ask.peer, ask.link, share);
                own.pool.handle_connected(ask.id);
                own.pool.handle_granted(ask.id, share, name);
            }
        }
        Ok(())
    }

    /// Accepting ends of a side learn that their connections are complete; whether there were any.
    fn tell_complete(&mut self, side: usize) -> bool {
        let share = self.messages.share;
        let mut complete = Vec::new();
        for (at, qp) in self.sides[side].qps.iter().enumerate() {
            let is_new = qp.accepting.is_some() && !qp.is_broken;
            if is_new && self.other_end(side, at).is_some() {
                complete.push(qp.id);
            }
        }
        let own = &mut self.sides[side];
        complete.iter().for_each(|id| own.complete(*id, share));
        !complete.is_empty()
    }

    /// Events tell a side of what is broken, after its messages.
    pub(super) fn tell_broken(&mut self, side: usize) {
        while self.arrive(side) {}
        let own = &mut self.sides[side];
        let (pool, abandoned) = (&mut own.pool, &mut self.abandoned);
        own.qps.retain(|qp| {
            let is_abandoned = qp.is_broken && qp.accepting.is_some();
            *abandoned += u64::from(is_abandoned);
            match is_abandoned {
                true => pool.handle_abandoned(qp.id),
                false if qp.is_broken => pool.handle_broken(qp.id),
                false => {}
            }
            !is_abandoned
        });
    }

    /// Whether each connection that is wanted was made.
    pub(super) fn all_connected(&self) -> Result<(), Finding> {
        for (at, side) in self.sides.iter().enumerate() {
            for shared in &side.pool.physicals {
                let state = shared.state;
                if !matches!(state, PhysicalState::Ready | PhysicalState::Down) {
                    return fail(format!("a queue pair of side {at} stays {state:?}"));
                }
            }
        }
        Ok(())
    }
}
