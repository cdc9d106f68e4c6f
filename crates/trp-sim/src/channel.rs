//! Two processes that are joined by a channel, with connections between them: bounded rings and
//! frames, counts that are read late, processes that stop and die (doc/spec/channel.md).
//!
//! The order of all steps is drawn from the seed. A step is one thing that a process does: it takes
//! messages, writes messages, reads or stores counts, or looks at its timers.

mod in_cell;

use proto_trp::conn::{
    answer_unknown, ConnConfig, Connection, Handled, Host, Message, Path, PostError, RtrParams,
    RtsParams, SendWr, Time,
};
use proto_trp::wire::message::CELL_LEN;
use proto_trp::wire::{connection_id, MessageFlags, MessageHead, MessageKind};
use std::collections::VecDeque;
use urdma_types::Rng;

use in_cell::Taken;

use super::ends::Ends;
use super::host::SimHost;
use super::world::Setup;
use urdma_types::{Psn, Qpn, SlotId};

/// Cells that are left to answers.
const RESERVE: usize = 16;
/// Octets of a small frame.
const SMALL_FRAME: usize = 2048;
/// Octets of a large frame.
const LARGE_FRAME: usize = 65_536;
/// Low bits of a count that a cell has.
const COUNT_BITS: u64 = (1 << 24) - 1;

/// A connection takes messages of one cell in one step or in the general way, as the driver likes.
const HALF_PPM: u32 = 500_000;

/// The sizes of a channel, and its connections.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSetup {
    /// Cells of each ring.
    pub cells: usize,
    /// Small and large frames of each region.
    pub frames: [usize; 2],
    /// Connections.
    pub connections: usize,
    /// What both ends of each connection have in common; what concerns links has no meaning.
    pub ends: Setup,
    /// Of a million steps of a process, how many stop it, for up to a millisecond.
    pub stop_ppm: u32,
    /// The ends of a connection are connected at different times.
    pub staggered: bool,
    /// The position of the first cell.
    pub first: u64,
}

impl Default for ChannelSetup {
    fn default() -> Self {
        Self {
            cells: 64,
            frames: [16, 4],
            connections: 1,
            ends: Setup::default(),
            stop_ppm: 0,
            staggered: false,
            first: 0,
        }
    }
}

/// A cell that was written.
#[derive(Debug)]
struct Cell {
    count: u64,
    octets: Vec<u8>,
    frame: Vec<u8>,
}

/// The writer of an unsettled cell, and the kind of frame that it uses.
#[derive(Clone, Copy, Debug)]
struct Owner {
    pair: Option<usize>,
    frame: Option<usize>,
}

impl Owner {
    /// The owner of a message of one cell of a connection.
    const fn of_pair(number: usize) -> Self {
        Self {
            pair: Some(number),
            frame: None,
        }
    }
}

/// The region that a process writes.
#[derive(Debug, Default)]
struct Region {
    /// Cells from `taken` of its reader on.
    cells: VecDeque<Cell>,
    /// `settled` and `written` of the counts.
    counts: (u64, u64),
}

/// A process at one end of the channel.
#[derive(Debug)]
struct Process {
    region: Region,
    /// Messages written.
    written: u64,
    /// Messages that the peer is known to have settled.
    known: u64,
    unsettled: VecDeque<Owner>,
    frames: [usize; 2],
    /// Messages of the peer that were settled.
    settled: u64,
    conns: Vec<Option<Connection>>,
    is_alive: bool,
    /// It knows that the peer's process is gone.
    knows_end: bool,
    stopped_until: Time,
}

/// Two processes, a channel and one virtual clock.
#[derive(Debug)]
pub struct ChannelWorld {
    /// The virtual clock.
    pub now: Time,
    /// Source of all randomness.
    pub rng: Rng,
    setup: ChannelSetup,
    processes: [Process; 2],
    hosts: [Vec<SimHost>; 2],
    frame: Vec<u8>,
}

/// The connection with this number.
#[derive(Debug)]
pub struct Pair<'a> {
    world: &'a mut ChannelWorld,
    number: usize,
}

impl Ends for Pair<'_> {
    fn now(&self) -> Time {
        self.world.now
    }

    fn host(&self, end: usize) -> &SimHost {
        &self.world.hosts[end][self.number]
    }

    fn host_mut(&mut self, end: usize) -> &mut SimHost {
        &mut self.world.hosts[end][self.number]
    }

    fn alive(&mut self, end: usize) -> Option<(&mut Connection, &mut SimHost)> {
        let world = &mut *self.world;
        let conn = world.processes[end].conns[self.number].as_mut()?;
        Some((conn, &mut world.hosts[end][self.number]))
    }

    /// In one step with its message, if it can be and the coin says so.
    fn post_send(&mut self, end: usize, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.world.rng.happens(HALF_PPM) && self.world.post_in_cell(end, self.number, wr) {
            return Ok(());
        }
        let now = self.world.now;
        let (conn, host) = self.alive(end).ok_or(PostError::InvalidState)?;
        conn.post_send(|| now, wr, host).map(|_| ())
    }
}

fn slot(end: usize) -> SlotId {
    SlotId::new(u8::try_from(end + 1).unwrap_or(1)).unwrap_or(SlotId::DAEMON)
}

fn qpn(end: usize, number: usize) -> Qpn {
    Qpn::new(
        slot(end),
        u16::try_from(100 * end + number + 1).unwrap_or(1),
    )
}

impl ChannelWorld {
    /// Two processes with connections in RTS, or in INIT if they are staggered.
    ///
    /// # Panics
    /// When the setup is out of range.
    pub fn new(setup: &ChannelSetup, seed: u64) -> Self {
        let mut world = Self::unconnected(setup, seed);
        if !setup.staggered {
            for number in 0..setup.connections {
                for end in 0..2 {
                    world.to_rtr(end, number);
                    world.to_rts(end, number);
                }
            }
        }
        world
    }

    /// Two processes with connections in INIT.
    ///
    /// # Panics
    /// When the setup is out of range.
    pub fn unconnected(setup: &ChannelSetup, seed: u64) -> Self {
        let process = |end: usize| Process {
            region: Region::default(),
            written: setup.first,
            known: setup.first,
            unsettled: VecDeque::new(),
            frames: setup.frames,
            settled: setup.first,
            conns: (0..setup.connections)
                .map(|number| {
                    let mut conn = Connection::new(ConnConfig {
                        local_qpn: qpn(end, number),
                        seed: seed ^ end as u64,
                        ..setup.ends.config
                    });
                    conn.to_init().expect("RESET to INIT");
                    Some(conn)
                })
                .collect(),
            is_alive: true,
            knows_end: false,
            stopped_until: Time::ZERO,
        };
        let hosts = || (0..setup.connections).map(|_| SimHost::default()).collect();
        Self {
            now: Time::from_ns(1_000_000),
            rng: Rng::new(seed),
            setup: *setup,
            processes: [process(0), process(1)],
            hosts: [hosts(), hosts()],
            frame: vec![0; LARGE_FRAME],
        }
    }

    /// A connection as its applications see it. Counts are stored before they look at completions.
    pub fn pair(&mut self, number: usize) -> Pair<'_> {
        for end in 0..2 {
            // An application observes no completion before its message is counted.
            self.store_counts(end);
        }
        Pair {
            world: self,
            number,
        }
    }

    /// The connection of an end.
    ///
    /// # Panics
    /// When it is gone.
    pub fn conn(&mut self, end: usize, number: usize) -> &mut Connection {
        self.processes[end].conns[number]
            .as_mut()
            .expect("a connection")
    }

    /// Brings an end from INIT to RTR.
    ///
    /// # Panics
    /// When the setup is out of range.
    pub fn to_rtr(&mut self, end: usize, number: usize) {
        let (now, setup) = (self.now, self.setup.ends);
        let rtr = RtrParams {
            remote_qpn: qpn(1 - end, number),
            remote_psn: Psn::new(setup.psn[1 - end]),
            max_datagram_octets: 0,
            max_dest_rd_atomic: setup.rd_atomic,
            min_rnr_timer: setup.min_rnr_timer,
            path: Path::Channel,
        };
        let conn = self.conn(end, number);
        conn.to_rtr(now, &rtr).expect("INIT to RTR");
    }

    /// Brings an end from RTR to RTS.
    ///
    /// # Panics
    /// When the setup is out of range.
    pub fn to_rts(&mut self, end: usize, number: usize) {
        let (now, setup) = (self.now, self.setup.ends);
        let rts = RtsParams {
            local_psn: Psn::new(setup.psn[end]),
            timeout: setup.timeout,
            retry_cnt: setup.retry_cnt,
            rnr_retry: setup.rnr_retry,
            max_rd_atomic: setup.rd_atomic,
            keepalive_ns: 0,
        };
        let conn = self.conn(end, number);
        conn.to_rts(now, &rts).expect("RTR to RTS");
    }

    /// Destroys a queue pair, in order if its FIN is written before.
    pub fn destroy(&mut self, end: usize, number: usize) {
        self.processes[end].conns[number] = None;
    }

    /// Kills a process.
    pub fn kill(&mut self, end: usize) {
        let process = &mut self.processes[end];
        process.is_alive = false;
        process.conns.iter_mut().for_each(|conn| *conn = None);
    }

    /// What both processes wait for.
    pub fn summary(&self) -> String {
        let processes = self.processes.iter().map(|process| {
            let conns: Vec<_> = process
                .conns
                .iter()
                .flatten()
                .map(|conn| {
                    (
                        conn.state(),
                        conn.sends_outstanding(),
                        conn.recvs_outstanding(),
                        conn.next_deadline(),
                        conn.plan_message(),
                    )
                })
                .collect();
            format!(
                "alive {}, written {}, known {}, settled {}, {conns:?}\n",
                process.is_alive, process.written, process.known, process.settled
            )
        });
        format!("at {:?}\n{}", self.now, processes.collect::<String>())
    }

    /// Whether a process does anything now.
    fn runs(&self, end: usize) -> bool {
        let process = &self.processes[end];
        process.is_alive && process.stopped_until <= self.now
    }

    /// One step of a random process.
    pub fn step(&mut self) {
        let end = self.rng.below_len(2);
        let elapsed_ns = self.rng.below(200);
        self.now = self.now.plus_ns(elapsed_ns);
        if !self.runs(end) {
            return;
        }
        if self.rng.happens(self.setup.stop_ppm) {
            let stop_ns = self.rng.below(1_000_000);
            self.processes[end].stopped_until = self.now.plus_ns(stop_ns);
            return;
        }
        match self.rng.below(8) {
            0 | 1 => {
                for _ in 0..=self.rng.below(8) {
                    self.take(end);
                }
            }
            2..=4 => {
                for _ in 0..=self.rng.below(4) {
                    self.write(end);
                }
            }
            5 => self.read_counts(end),
            6 => self.store_counts(end),
            _ => self.look_around(end),
        }
    }

    /// Takes a message, if there is one and room for the answer; false otherwise.
    pub fn take(&mut self, end: usize) -> bool {
        let peer_is_gone = self.processes[end].knows_end;
        // Room for an answer first, so that two processes never wait for each other.
        let has_room = self.processes[end].unsettled.len() < self.setup.cells;
        if !has_room && !peer_is_gone {
            return false;
        }
        let Some(cell) = self.processes[1 - end].region.cells.pop_front() else {
            return false;
        };
        let known = self.processes[end].known;
        let ahead = cell.count.wrapping_sub(known) & COUNT_BITS;
        self.settle(end, known + ahead);
        let answer = self.handle(end, &cell);
        if let Handled::Answer(answer) = answer {
            let owner = Owner {
                pair: None,
                frame: None,
            };
            self.put(end, owner, answer.octets().to_vec(), Vec::new());
        }
        self.processes[end].settled += 1;
        true
    }

    fn handle(&mut self, end: usize, cell: &Cell) -> Handled {
        let now = self.now;
        let mut body = cell.octets.clone();
        body.extend_from_slice(&cell.frame);
        let message = Message::parse(slot(1 - end), &cell.octets, cell.frame.len(), &body[..])
            .expect("a valid message");
        let number = usize::from(message.head.destination).wrapping_sub(100 * end + 1);
        if self.rng.happens(HALF_PPM) && self.take_in_cell(end, number, &message) {
            return Handled::Settled;
        }
        let process = &mut self.processes[end];
        match process.conns.get_mut(number).and_then(Option::as_mut) {
            Some(conn) => conn.handle_message(|| now, &message, &mut self.hosts[end][number]),
            None => answer_unknown(&message.head).map_or(Handled::Settled, Handled::Answer),
        }
    }

    /// Takes a message in one step, if its connection does.
    fn take_in_cell(&mut self, end: usize, number: usize, message: &Message<'_, [u8]>) -> bool {
        let has_room = self.has_room(end);
        let process = &mut self.processes[end];
        let count = process.settled + 1;
        let Some(conn) = process.conns.get_mut(number).and_then(Option::as_mut) else {
            return false;
        };
        match in_cell::take(conn, &mut self.hosts[end][number], message, has_room) {
            Taken::Declined => return false,
            Taken::Settled => {}
            Taken::Answered(octets) => {
                let answer = (octets, Vec::new());
                self.put_with_count(end, Owner::of_pair(number), answer, count);
            }
        }
        true
    }

    /// Posts a request and writes its message in one step, if its connection does and there is
    /// room.
    fn post_in_cell(&mut self, end: usize, number: usize, wr: &SendWr<'_>) -> bool {
        if !self.has_room(end) || !self.runs(end) {
            return false;
        }
        let process = &mut self.processes[end];
        let Some(conn) = &mut process.conns[number] else {
            return false;
        };
        let host = &mut self.hosts[end][number];
        let Some(octets) = in_cell::post(conn, host, wr, process.written) else {
            return false;
        };
        self.put(end, Owner::of_pair(number), octets, Vec::new());
        true
    }

    /// Whether there is room for a message of work requests: the rest of the cells is left to
    /// answers.
    fn has_room(&self, end: usize) -> bool {
        let process = &self.processes[end];
        process.unsettled.len() < self.setup.cells - RESERVE && !process.knows_end
    }

    /// Publishes a message.
    fn put(&mut self, end: usize, owner: Owner, octets: Vec<u8>, frame: Vec<u8>) {
        let count = self.processes[end].settled;
        self.put_with_count(end, owner, (octets, frame), count);
    }

    /// As [`ChannelWorld::put`], with this count of settled messages.
    fn put_with_count(
        &mut self,
        end: usize,
        owner: Owner,
        (octets, frame): (Vec<u8>, Vec<u8>),
        count: u64,
    ) {
        let cells = self.setup.cells;
        let process = &mut self.processes[end];
        assert!(octets.len() <= CELL_LEN, "a message longer than a cell");
        process.region.cells.push_back(Cell {
            count: count & COUNT_BITS,
            octets,
            frame,
        });
        process.written += 1;
        process.unsettled.push_back(owner);
        if let Some(kind) = owner.frame {
            process.frames[kind] -= 1;
        }
        let fits = process.unsettled.len() <= cells || process.knows_end;
        assert!(fits, "more unsettled messages than cells");
    }

    /// Writes a message of a random connection, if there is one and room; false otherwise.
    pub fn write(&mut self, end: usize) -> bool {
        let first = self.rng.below_len(self.setup.connections);
        (0..self.setup.connections)
            .any(|ahead| self.write_one(end, (first + ahead) % self.setup.connections))
    }

    /// Writes a message of a connection.
    fn write_one(&mut self, end: usize, number: usize) -> bool {
        if !self.has_room(end) {
            return false;
        }
        let process = &mut self.processes[end];
        let Some(conn) = &mut process.conns[number] else {
            return false;
        };
        let Some(plan) = conn.plan_message() else {
            return false;
        };
        let octets = plan.frame_octets();
        let kind = (octets > 0).then_some(usize::from(octets > SMALL_FRAME));
        if kind.is_some_and(|kind| process.frames[kind] == 0) {
            return false;
        }
        let mut cell = [0; CELL_LEN];
        let frame = &mut self.frame[..octets];
        let position = process.written;
        let host = &mut self.hosts[end][number];
        let Some(written) = conn.write_message(plan, position, &mut cell, frame, host) else {
            return true;
        };
        assert_eq!(written.frame_octets, octets, "another frame than planned");
        let owner = Owner {
            pair: Some(number),
            frame: kind,
        };
        let octets = cell[..written.cell_octets].to_vec();
        let frame = self.frame[..written.frame_octets].to_vec();
        self.put(end, owner, octets, frame);
        true
    }

    /// Stores the counts.
    fn store_counts(&mut self, end: usize) {
        let process = &mut self.processes[end];
        if process.is_alive {
            process.region.counts = (process.settled, process.written);
        }
    }

    /// Reads the peer's counts, after the messages that they cover.
    pub fn read_counts(&mut self, end: usize) {
        let (settled, written) = self.processes[1 - end].region.counts;
        // The answers that refuse some of the messages are among those before.
        while self.processes[end].settled < written {
            if !self.take(end) {
                return;
            }
        }
        self.settle(end, settled);
    }

    /// The peer has settled the messages before `count`.
    fn settle(&mut self, end: usize, count: u64) {
        let process = &mut self.processes[end];
        // Old counts, and those of messages that were not sent, are ignored.
        if count <= process.known || count > process.written {
            return;
        }
        let mut owners = Vec::new();
        for _ in process.known..count {
            let owner = process.unsettled.pop_front().expect("an unsettled message");
            if let Some(kind) = owner.frame {
                process.frames[kind] += 1;
            }
            owners.extend(owner.pair);
        }
        process.known = count;
        owners.sort_unstable();
        owners.dedup();
        for number in owners {
            let Some(conn) = &mut process.conns[number] else {
                continue;
            };
            let host = &mut self.hosts[end][number];
            if conn.settles_plainly() && self.rng.happens(HALF_PPM) {
                while let Some(completion) = conn.next_settled(count) {
                    host.complete(completion);
                }
            } else {
                conn.settled(count, host);
            }
        }
    }

    /// Timers, transitions of staggered connections, and the end of the peer's process.
    fn look_around(&mut self, end: usize) {
        for number in 0..self.setup.connections {
            let now = self.now;
            let Some(conn) = &mut self.processes[end].conns[number] else {
                continue;
            };
            if conn.next_deadline().is_some_and(|due| due <= now) {
                conn.handle_timeout(now, &mut self.hosts[end][number]);
            }
            if self.setup.staggered && self.rng.below(5) == 0 {
                match self.conn(end, number).state() {
                    proto_trp::conn::QpState::Init => self.to_rtr(end, number),
                    proto_trp::conn::QpState::Rtr => self.to_rts(end, number),
                    _ => {}
                }
            }
        }
        let is_gone = !self.processes[1 - end].is_alive;
        if is_gone && !self.processes[end].knows_end && self.rng.below(20) == 0 {
            self.learn_end(end);
        }
    }

    /// urdmad reports the end of the peer's process.
    pub fn learn_end(&mut self, end: usize) {
        self.processes[end].knows_end = true;
        // What the process has written before its end counts.
        while self.take(end) {}
        let (settled, _) = self.processes[1 - end].region.counts;
        self.settle(end, settled);
        for number in 0..self.setup.connections {
            if let Some(conn) = &mut self.processes[end].conns[number] {
                conn.peer_gone(&mut self.hosts[end][number]);
            }
        }
    }

    /// Takes, writes and counts at both ends until nothing is left to do at this time.
    pub fn settle_down(&mut self) {
        loop {
            let before = self.progress();
            for end in 0..2 {
                while self.runs(end) && self.take(end) {}
                while self.runs(end) && self.write(end) {}
                self.store_counts(end);
                if self.runs(end) {
                    self.read_counts(end);
                }
            }
            if before == self.progress() {
                return;
            }
        }
    }

    /// Moves the clock to the next deadline of a connection, and lets it happen; false if there is
    /// none.
    pub fn expire(&mut self) -> bool {
        let conns = self.processes.iter().flat_map(|process| &process.conns);
        let next = conns.flatten().filter_map(Connection::next_deadline).min();
        let Some(next) = next else {
            return false;
        };
        self.now = self.now.max(next);
        for end in 0..2 {
            if self.runs(end) {
                self.look_around(end);
            }
        }
        true
    }

    /// Lets everything happen until nothing is left to do, or `limit_ns` have passed.
    pub fn run(&mut self, limit_ns: u64) {
        let end = self.now.plus_ns(limit_ns);
        loop {
            self.settle_down();
            let conns = self.processes.iter().flat_map(|process| &process.conns);
            let next = conns.flatten().filter_map(Connection::next_deadline).min();
            match next {
                Some(next) if next <= end => self.expire(),
                _ => break,
            };
        }
        self.now = self.now.max(end);
    }

    /// Puts a message into the channel as if a queue pair of this end had written it.
    pub fn forge(&mut self, end: usize, octets: &[u8]) {
        self.forge_with(end, octets, Vec::new());
    }

    /// As [`ChannelWorld::forge`], with a payload in a frame.
    pub fn forge_with(&mut self, end: usize, octets: &[u8], frame: Vec<u8>) {
        let owner = Owner {
            pair: None,
            frame: None,
        };
        self.put(end, owner, octets.to_vec(), frame);
    }

    /// The head of a message of the first connection, as an end addresses it.
    pub fn address(&self, end: usize) -> MessageHead {
        let [local, remote] = [qpn(end, 0), qpn(1 - end, 0)];
        MessageHead {
            kind: MessageKind::Send,
            flags: MessageFlags::NONE,
            destination: remote.index(),
            source: local.index(),
            connection_id: connection_id(local, remote, Psn::new(self.setup.ends.psn[end])),
            number: 0,
            offset: 0,
            ulp: 0,
            shared_queue: 0,
        }
    }

    /// Settles what waits for an end without looking at it, and forgets what the end has written.
    pub fn discard(&mut self, end: usize) {
        let cells = &mut self.processes[1 - end].region.cells;
        let count = std::mem::take(cells).len();
        let process = &mut self.processes[end];
        process.settled += count as u64;
        process.unsettled.clear();
        process.known = process.written;
        self.store_counts(end);
    }

    /// The next message that an end would take.
    pub fn next_message(&self, end: usize) -> Option<&[u8]> {
        let cell = self.processes[1 - end].region.cells.front();
        cell.map(|cell| &cell.octets[..])
    }

    /// What changes when anything happens but time.
    fn progress(&self) -> [(u64, u64, u64); 2] {
        self.processes
            .each_ref()
            .map(|process| (process.written, process.settled, process.known))
    }

    /// The kinds of the messages that wait to be taken by an end.
    pub fn waiting(&self, end: usize) -> Vec<MessageKind> {
        let cells = self.processes[1 - end].region.cells.iter();
        cells
            .filter_map(|cell| MessageKind::from_octet(cell.octets[0]))
            .collect()
    }
}
