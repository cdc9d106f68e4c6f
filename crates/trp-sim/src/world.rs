//! Two ends, two links, one virtual clock.

use proto_trp::conn::{
    ConnConfig, Connection, Datagram, Path, RtrParams, RtsParams, Time, HEAD_OCTETS,
};
use proto_trp::wire::{Extensions, ResetReason, SegmentKind, TrpHeader};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use urdma_types::Rng;

use super::ends::Ends;
use super::host::SimHost;
use super::link::{Flight, Link, LinkModel};
use urdma_types::{Psn, Qpn, SlotId};

/// The configuration of both ends.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Sizes of both; the queue pair numbers are the world's.
    pub config: ConnConfig,
    /// Largest datagram.
    pub max_datagram_octets: u32,
    /// Both directions of the link.
    pub link: LinkModel,
    /// Queue pair numbers of both ends.
    pub qpn: [Qpn; 2],
    /// Initial sequence numbers of both ends.
    pub psn: [u32; 2],
    /// Initial value of all other counters of both ends; 1 for a new connection.
    pub count_from: u32,
    /// Reads and atomics outstanding, as requester and as responder.
    pub rd_atomic: u8,
    /// Acknowledge timeout code.
    pub timeout: u8,
    /// Silent timeouts.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Keep-alive interval.
    pub keepalive_ns: u64,
    /// An end whose queue pair is unknown answers with RESET.
    pub answers_reset: bool,
    /// Scheduling delay of the ends.
    pub sleep: Sleep,
}

/// The sleep of an idle process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sleep {
    /// Time after the last datagram at which it sleeps.
    pub after_ns: u64,
    /// Maximum wake-up delay after the next one; 0 if it never sleeps.
    pub wake_ns: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            config: ConnConfig::new(Qpn::new(SlotId::DAEMON, 1)),
            max_datagram_octets: 1472,
            link: LinkModel {
                delay_ns: 10_000,
                ..LinkModel::default()
            },
            qpn: [0x0101, 0x0202].map(|index| Qpn::new(SlotId::DAEMON, index)),
            psn: [0x00ff_fff0, 77],
            count_from: 1,
            rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            keepalive_ns: 0,
            answers_reset: true,
            sleep: Sleep::default(),
        }
    }
}

/// One end.
#[derive(Debug)]
pub struct End {
    /// Its connection; `None` after its process was killed.
    pub conn: Option<Connection>,
    /// Its memory, completions and events.
    pub host: SimHost,
    /// Its process is stopped.
    frozen: bool,
    /// What has arrived since it was stopped or slept.
    waiting: Vec<Flight>,
    /// When its process goes to sleep.
    awake_until: Time,
    /// When it wakes up, while it sleeps.
    wakes_at: Option<Time>,
}

/// Datagrams that are queued for a stopped process.
const FROZEN_QUEUE: usize = 1024;
/// Datagrams of a run that an end writes at once.
const RUN_MAX: usize = 8;

#[derive(Debug, PartialEq, Eq)]
struct Arrival {
    at: Time,
    order: u64,
    to: usize,
    flight: Flight,
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Two ends, two links, one virtual clock.
#[derive(Debug)]
pub struct World {
    /// The virtual clock.
    pub now: Time,
    /// Both ends.
    pub ends: [End; 2],
    /// The link that each end sends to.
    pub links: [Link; 2],
    /// Source of all randomness.
    pub rng: Rng,
    setup: Setup,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    order: u64,
    buf: Vec<u8>,
}

impl World {
    /// Two connections in INIT.
    pub fn unconnected(setup: &Setup, seed: u64) -> Self {
        let end = |end: usize| {
            let mut conn = Connection::new(ConnConfig {
                local_qpn: setup.qpn[end],
                seed: seed ^ end as u64,
                ..setup.config
            });
            conn.to_init().expect("RESET to INIT");
            End {
                conn: Some(conn),
                host: SimHost::default(),
                frozen: false,
                waiting: Vec::new(),
                awake_until: Time::ZERO,
                wakes_at: None,
            }
        };
        Self {
            now: Time::from_ns(1_000_000),
            ends: [end(0), end(1)],
            links: [Link::new(setup.link), Link::new(setup.link)],
            rng: Rng::new(seed),
            setup: *setup,
            arrivals: BinaryHeap::new(),
            order: 0,
            buf: vec![0; RUN_MAX * setup.max_datagram_octets as usize],
        }
    }

    /// Two connections in RTS.
    ///
    /// # Panics
    /// When the setup is out of range.
    pub fn new(setup: &Setup, seed: u64) -> Self {
        let mut world = Self::unconnected(setup, seed);
        world.connect(0);
        world.connect(1);
        world
    }

    /// Brings an end to RTS.
    ///
    /// # Panics
    /// When the setup is out of range.
    pub fn connect(&mut self, end: usize) {
        let setup = self.setup;
        self.connect_with(end, &setup);
    }

    /// Brings an end to RTS with parameters of its own.
    ///
    /// # Panics
    /// When the setup is out of range.
    pub fn connect_with(&mut self, end: usize, setup: &Setup) {
        self.to_rtr(end, setup);
        self.to_rts(end, setup);
        if setup.count_from != 1 {
            self.conn(end).count_from(setup.count_from);
        }
    }

    /// Brings an end from INIT to RTR.
    ///
    /// # Panics
    /// When the setup is out of range.
    pub fn to_rtr(&mut self, end: usize, setup: &Setup) {
        let now = self.now;
        let rtr = RtrParams {
            remote_qpn: setup.qpn[1 - end],
            remote_psn: Psn::new(setup.psn[1 - end]),
            max_datagram_octets: setup.max_datagram_octets,
            max_dest_rd_atomic: setup.rd_atomic,
            min_rnr_timer: setup.min_rnr_timer,
            path: Path::Network,
        };
        self.conn(end).to_rtr(now, &rtr).expect("INIT to RTR");
    }

    /// Brings an end from RTR to RTS.
    ///
    /// # Panics
    /// When the setup is out of range.
    pub fn to_rts(&mut self, end: usize, setup: &Setup) {
        let now = self.now;
        let rts = RtsParams {
            local_psn: Psn::new(setup.psn[end]),
            timeout: setup.timeout,
            retry_cnt: setup.retry_cnt,
            rnr_retry: setup.rnr_retry,
            max_rd_atomic: setup.rd_atomic,
            keepalive_ns: setup.keepalive_ns,
        };
        self.conn(end).to_rts(now, &rts).expect("RTR to RTS");
    }

    /// The connection of an end.
    ///
    /// # Panics
    /// When its process was killed.
    pub fn conn(&mut self, end: usize) -> &mut Connection {
        self.ends[end].conn.as_mut().expect("a living end")
    }

    /// Connection and host of an end.
    ///
    /// # Panics
    /// When its process was killed.
    pub fn split(&mut self, end: usize) -> (&mut Connection, &mut SimHost) {
        let end = &mut self.ends[end];
        (end.conn.as_mut().expect("a living end"), &mut end.host)
    }

    /// Kills the process of an end, without FIN or RESET.
    pub fn kill(&mut self, end: usize) {
        self.ends[end].conn = None;
    }

    /// Nothing passes in either direction for this long.
    pub fn blackout(&mut self, ns: u64) {
        for link in &mut self.links {
            link.down_until = self.now.plus_ns(ns);
        }
    }

    /// Sends what an end has to send.
    pub fn flush(&mut self, end: usize) {
        let mut buf = std::mem::take(&mut self.buf);
        loop {
            let (now, room) = (self.now, self.setup.max_datagram_octets as usize);
            let frozen = self.ends[end].frozen;
            let Some(conn) = self.ends[end].conn.as_mut().filter(|_| !frozen) else {
                break;
            };
            let Some(plan) = conn.plan_transmit() else {
                break;
            };
            assert!(
                plan.room() <= room,
                "a plan larger than the path's datagrams"
            );
            let host = &mut self.ends[end].host;
            let room = plan.room();
            if plan.run() > 1 {
                let rooms = buf.chunks_exact_mut(room).take(RUN_MAX);
                let run = conn.write_run(now, plan, rooms, host);
                for datagram in buf[..run.octets()].chunks(room) {
                    self.carry(end, datagram);
                }
            } else if let Some(transmit) = conn.write_transmit(now, plan, &mut buf[..room], host) {
                self.carry(end, &buf[..transmit.len]);
            }
        }
        self.buf = buf;
    }

    /// Puts a datagram of an end on the link.
    pub fn carry(&mut self, from: usize, octets: &[u8]) {
        for flight in self.links[from].carry(self.now, octets, &mut self.rng) {
            self.order += 1;
            self.arrivals.push(Reverse(Arrival {
                at: flight.arrives,
                order: self.order,
                to: 1 - from,
                flight,
            }));
        }
    }

    /// Hands a datagram to an end as if it had arrived.
    pub fn deliver(&mut self, to: usize, octets: &[u8], marked: bool) {
        let now = self.now;
        let End { conn, host, .. } = &mut self.ends[to];
        let Some(conn) = conn else {
            self.answer_reset(to, octets, ResetReason::NoQueuePair);
            return;
        };
        let datagram = Datagram {
            head: &octets[..octets.len().min(HEAD_OCTETS)],
            len: octets.len(),
            body: octets,
            congestion_experienced: marked,
        };
        if let Err(reason) = conn.handle_datagram(now, &datagram, host) {
            self.answer_reset(to, octets, reason);
        }
    }

    /// Handles a packet without a queue pair, as driver and daemon do.
    fn answer_reset(&mut self, at: usize, octets: &[u8], reason: ResetReason) {
        if !self.setup.answers_reset {
            return;
        }
        let header = TrpHeader::parse(octets, octets.len()).ok();
        let Some((header, reset)) =
            header.and_then(|header| Some((header, TrpHeader::reset_for(&header, reason)?)))
        else {
            return;
        };
        // The record of a queue pair that is connected anew is of another stream.
        let is_known =
            reason != ResetReason::NotConnected && !header.kind.carries_acknowledged_stream();
        let taken = self.ends[at].host.taken.filter(|_| is_known);
        let reset = taken.map_or(reset, |next| reset.acknowledging(next));
        let mut buf = [0; HEAD_OCTETS];
        let written = proto_trp::wire::encode(
            &reset,
            &Extensions::NONE,
            &SegmentKind::Absent,
            true,
            &mut buf,
        );
        if let Ok(len) = written {
            self.carry(at, &buf[..len]);
        }
    }

    /// Moves the clock to the next thing that happens and lets it happen; false when nothing will.
    pub fn step(&mut self) -> bool {
        self.step_before(Time::from_ns(u64::MAX))
    }

    /// As [`World::step`], but what happens after `end` waits.
    pub(super) fn step_before(&mut self, end: Time) -> bool {
        self.flush_both();
        let Some(next) = self.next_event() else {
            return false;
        };
        if next > end {
            self.now = end;
            return false;
        }
        self.happen(next);
        true
    }

    /// Sends what both ends have to send.
    pub(super) fn flush_both(&mut self) {
        self.flush(0);
        self.flush(1);
    }

    /// When something happens next, after both ends have sent what they have to.
    pub(super) fn next_event(&self) -> Option<Time> {
        let arrival = self.arrivals.peek().map(|Reverse(arrival)| arrival.at);
        let deadline = |end: &End| {
            let conn = end.conn.as_ref().filter(|_| !end.frozen);
            conn.and_then(Connection::next_deadline)
        };
        let [a, b] = &self.ends;
        let next = [arrival, deadline(a), deadline(b), a.wakes_at, b.wakes_at];
        next.into_iter().flatten().min()
    }

    /// Moves the clock to the next event and lets everything happen that is due.
    pub(super) fn happen(&mut self, next: Time) {
        self.now = self.now.max(next);
        while let Some(Reverse(arrival)) = self.arrivals.peek() {
            if arrival.at > self.now {
                break;
            }
            if let Some(Reverse(arrival)) = self.arrivals.pop() {
                self.arrive(arrival.to, arrival.flight);
            }
        }
        for end in 0..2 {
            if self.ends[end].wakes_at.is_some_and(|at| at <= self.now) {
                self.wake(end);
            }
        }
        for end in &mut self.ends {
            if let (Some(conn), false) = (&mut end.conn, end.frozen) {
                if conn.next_deadline().is_some_and(|due| due <= self.now) {
                    conn.handle_timeout(self.now, &mut end.host);
                }
            }
        }
    }

    /// Something comes off the link: to the connection, or to the socket's queue of a process that
    /// is stopped or asleep.
    fn arrive(&mut self, to: usize, flight: Flight) {
        if !self.ends[to].frozen && !self.sleeps(to) {
            self.deliver(to, &flight.octets, flight.marked);
        } else if self.ends[to].waiting.len() < FROZEN_QUEUE {
            self.ends[to].waiting.push(flight);
        } else {
            self.links[1 - to].dropped += 1;
        }
    }

    /// Whether the process of an end, for which something has come, is asleep; it then is about to
    /// wake up.
    fn sleeps(&mut self, end: usize) -> bool {
        let sleep = self.setup.sleep;
        let end = &mut self.ends[end];
        if sleep.wake_ns == 0 {
            return false;
        }
        if end.wakes_at.is_none() && self.now > end.awake_until {
            let wakes_at = self.now.plus_ns(self.rng.below(sleep.wake_ns));
            end.wakes_at = Some(wakes_at);
        }
        end.awake_until = self.now.plus_ns(sleep.after_ns);
        end.wakes_at.is_some()
    }

    /// The process of an end wakes up and finds what its queue has kept.
    fn wake(&mut self, end: usize) {
        self.ends[end].wakes_at = None;
        self.ends[end].awake_until = self.now.plus_ns(self.setup.sleep.after_ns);
        if !self.ends[end].frozen {
            self.take_waiting(end);
        }
    }

    /// Stops the process of an end (SIGSTOP): it neither takes datagrams nor looks at its timers.
    pub fn freeze(&mut self, end: usize) {
        self.ends[end].frozen = true;
    }

    /// Lets the process of an end go on (SIGCONT): it finds what its queue has kept.
    pub fn thaw(&mut self, end: usize) {
        self.ends[end].frozen = false;
        self.take_waiting(end);
    }

    fn take_waiting(&mut self, end: usize) {
        for flight in std::mem::take(&mut self.ends[end].waiting) {
            self.deliver(end, &flight.octets, flight.marked);
        }
    }

    /// What both ends have counted and wait for.
    pub fn summary(&self) -> String {
        let ends = self.ends.iter().map(|end| match &end.conn {
            Some(conn) => format!(
                "{:?}, deadline {:?}, sends {}, receives {}, {:?}\n",
                conn.state(),
                conn.next_deadline(),
                conn.sends_outstanding(),
                conn.recvs_outstanding(),
                conn.stats()
            ),
            None => "killed\n".to_owned(),
        });
        format!("at {:?}\n{}", self.now, ends.collect::<String>())
    }

    /// Runs until `done` or until `limit_ns` have passed, or nothing happens any more; returns
    /// whether `done` came true.
    ///
    /// `done` may post work requests. It is called again for a while when nothing happens.
    pub fn run_until(&mut self, limit_ns: u64, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let end = self.now.plus_ns(limit_ns);
        let mut idle = 0;
        while self.now <= end && idle < 1_000 {
            if done(self) {
                return true;
            }
            if self.step_before(end) {
                idle = 0;
            } else {
                idle += 1;
                self.now = self.now.plus_ns(1_000);
            }
        }
        false
    }

    /// Runs until nothing happens any more or `limit_ns` have passed.
    pub fn run(&mut self, limit_ns: u64) {
        self.run_until(limit_ns, |_| false);
    }
}

impl Ends for World {
    fn now(&self) -> Time {
        self.now
    }

    fn host(&self, end: usize) -> &SimHost {
        &self.ends[end].host
    }

    fn host_mut(&mut self, end: usize) -> &mut SimHost {
        &mut self.ends[end].host
    }

    fn alive(&mut self, end: usize) -> Option<(&mut Connection, &mut SimHost)> {
        let End { conn, host, .. } = &mut self.ends[end];
        Some((conn.as_mut()?, host))
    }
}
