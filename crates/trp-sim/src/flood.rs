//! Bulk traffic: one end writes to the other continuously.

use proto_trp::conn::{Payload, SendOp, SendWr, Status, Time};

use super::host::{Rights, SimHost};
use super::verbs::SIGNALED;
use super::world::World;

/// Writes of one length from end 0 to end 1, with the send queue kept full.
#[derive(Debug)]
pub struct Flood {
    source: u32,
    target: u32,
    length: u32,
    outstanding: u32,
    /// Octets of the writes that have completed.
    pub completed_octets: u64,
}

impl Flood {
    /// Registers the memory; `outstanding` writes of `length` octets are posted at any time, at
    /// most the send queue's depth.
    pub fn new(world: &mut World, length: u32, outstanding: u32) -> Self {
        let memory = vec![0x55; length as usize];
        Self {
            source: world.ends[0].host.register(memory.clone(), Rights::ALL),
            target: world.ends[1].host.register(memory, Rights::ALL),
            length,
            outstanding,
            completed_octets: 0,
        }
    }

    /// Counts what has completed and posts as much again.
    ///
    /// # Panics
    /// When a write has failed, which no link may cause.
    pub fn refill(&mut self, world: &mut World) {
        for completion in world.ends[0].host.completions.drain(..) {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            self.completed_octets += u64::from(self.length);
        }
        while world.conn(0).sends_outstanding() < self.outstanding {
            let wr = SendWr {
                wr_id: 0,
                op: SendOp::Write {
                    remote: SimHost::remote(self.target, 0),
                },
                imm: None,
                flags: SIGNALED,
                shared_queue: 0,
                payload: Payload::Sges(&[SimHost::sge(self.source, 0, self.length)]),
            };
            world.post_send(0, &wr);
        }
    }

    /// Runs `ns` nanoseconds and returns the octets that were completed in them.
    pub fn run(&mut self, world: &mut World, ns: u64) -> u64 {
        let before = self.completed_octets;
        let end = world.now.plus_ns(ns);
        self.refill(world);
        while world.step_before(end) {
            self.refill(world);
        }
        self.completed_octets - before
    }
}

/// Connections between different hosts whose packets share one line in each direction.
#[derive(Debug)]
pub struct Bottleneck {
    flows: Vec<(World, Flood)>,
    /// Shared by all, in place of the worlds' own.
    pub links: [super::link::Link; 2],
    /// The virtual clock.
    pub now: Time,
    /// The flows that have started, from the first on.
    pub active: usize,
}

impl Bottleneck {
    /// Lets the floods of several worlds share the links of the first.
    ///
    /// # Panics
    /// When there is none.
    pub fn new(flows: Vec<(World, Flood)>) -> Self {
        let (first, _) = flows.first().expect("a flow");
        Self {
            links: first.links.clone(),
            now: first.now,
            active: flows.len(),
            flows,
        }
    }

    /// Runs `ns` nanoseconds and returns the octets that each flow has completed in them.
    pub fn run(&mut self, ns: u64) -> Vec<u64> {
        let before: Vec<u64> = self.completed().collect();
        let begin = self.now;
        let end = begin.plus_ns(ns);
        for flow in 0..self.active {
            self.with(flow, |world, flood| {
                world.now = world.now.max(begin);
                flood.refill(world);
                world.flush_both();
            });
        }
        while let Some((at, flow)) = self.next_event().filter(|&(at, _)| at <= end) {
            self.with(flow, |world, flood| {
                world.happen(at);
                flood.refill(world);
                world.flush_both();
            });
        }
        self.now = end;
        let after = self.completed();
        after
            .zip(before)
            .map(|(after, before)| after - before)
            .collect()
    }

    fn completed(&self) -> impl Iterator<Item = u64> + '_ {
        self.flows.iter().map(|(_, flood)| flood.completed_octets)
    }

    fn next_event(&self) -> Option<(Time, usize)> {
        let events = self.flows.iter().enumerate();
        events
            .filter_map(|(flow, (world, _))| Some((world.next_event()?, flow)))
            .min()
    }

    /// Does something to one flow while it has the shared links.
    fn with(&mut self, flow: usize, act: impl FnOnce(&mut World, &mut Flood)) {
        let (world, flood) = &mut self.flows[flow];
        std::mem::swap(&mut world.links, &mut self.links);
        act(world, flood);
        std::mem::swap(&mut world.links, &mut self.links);
    }
}
