//! The time of each step of a connection over RDMA, by a client that makes one at a time.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rdma_core_sys::rdmacm;
use urdma_perf::asleep::STEPS;

use crate::cm::{self, Events};
use crate::connections::{make_queue_pair, Shared};

/// The connecting end.
pub(crate) struct Client {
    events: Events,
    shared: Option<Shared>,
    to: (Ipv4Addr, u16),
    /// The time of each step, of all connections.
    sums: [Duration; STEPS.len()],
}

impl Client {
    pub(crate) fn new(to: (Ipv4Addr, u16)) -> Result<Self, String> {
        Ok(Self {
            events: Events::new()?,
            shared: None,
            to,
            sums: [Duration::ZERO; STEPS.len()],
        })
    }

    /// Connects for some time; returns the number of connections, and the time it took.
    pub(crate) fn connect_for(&mut self, time: Duration) -> Result<(u64, Duration), String> {
        let begin = Instant::now();
        let mut connections = 0;
        self.sums = [Duration::ZERO; STEPS.len()];
        while begin.elapsed() < time {
            self.connect()?;
            connections += 1;
        }
        Ok((connections, begin.elapsed()))
    }

    fn connect(&mut self) -> Result<(), String> {
        let mut last = Instant::now();
        let mut sums = self.sums.iter_mut();
        let mut step = || {
            let now = Instant::now();
            if let Some(sum) = sums.next() {
                *sum += now - last;
            }
            last = now;
        };
        let id = self.events.id()?;
        cm::resolve_address(id, self.to)?;
        self.events.expect(rdmacm::RDMA_CM_EVENT_ADDR_RESOLVED)?;
        step();
        cm::resolve_route(id)?;
        self.events.expect(rdmacm::RDMA_CM_EVENT_ROUTE_RESOLVED)?;
        step();
        make_queue_pair(id, &mut self.shared)?;
        step();
        cm::begin_to_connect(id)?;
        self.events.expect(rdmacm::RDMA_CM_EVENT_ESTABLISHED)?;
        step();
        cm::disconnect(id)?;
        self.events.expect(rdmacm::RDMA_CM_EVENT_DISCONNECTED)?;
        step();
        cm::destroy(id)?;
        step();
        Ok(())
    }

    /// Microseconds of each step of the last call, on average of these connections.
    pub(crate) fn steps_us(&self, connections: u64) -> [f64; STEPS.len()] {
        self.sums
            .map(|sum| sum.as_secs_f64() * 1e6 / connections.max(1) as f64)
    }
}
