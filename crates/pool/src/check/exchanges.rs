//! Random schedules of pools that exchange messages; the faults that they must find.

use super::ends::{End, Users};
use super::pools::USERS;
use super::{choose, finds, for_each_seed, Finding, Rng};
use crate::fault::Fault;
use crate::{Config, MessageConfig, Operation, Status, Transport, UserId, HEADER_OCTETS};

const SIDES: usize = 3;
const STEPS: u64 = 1500;
const ACTIONS: usize = 16;
/// Octets of a segment, and of the longest Send.
const SEGMENT: u32 = 64;
const LONGEST: u32 = 8 * SEGMENT;

fn random_config(rng: &mut Rng) -> (Config, MessageConfig) {
    let sq_depth = rng.between(1, 8) as u32;
    let config = Config {
        sq_depth,
        cq_depth: sq_depth * 64,
        transport: Transport::Connections {
            per_node: rng.between(1, 2) as u16,
        },
        nodes_max: SIDES as u32,
        virtual_max: 24,
        in_flight_max: rng.between(1, 6) as u32,
        in_flight_octets_max: rng.between(1, 20_000),
        lead_octets_max: rng.between(1, 20_000),
        elements_max: rng.between(1, 2) as u32,
        message_octets_max: LONGEST,
        signal_every: rng.between(1, 6) as u32,
        ..Config::default()
    };
    let messages = MessageConfig {
        epoch: rng.bits32(),
        buffer_octets: HEADER_OCTETS as u32 + SEGMENT,
        share: rng.between(4, 9) as u16,
        backlog: rng.between(1, 6) as u32,
    };
    (config, messages)
}

/// What is wrong in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// Connections break, and cannot be made for a while.
    Breaks,
    /// Connections break as in `Breaks`, and sides begin anew.
    Restarts,
    /// The messages of one side are changed on their way.
    Lies,
}

struct Schedule {
    users: Users,
    trouble: Trouble,
    weights: [u64; ACTIONS],
}

impl Schedule {
    fn new(seed: u64, fault: Option<Fault>, rng: &mut Rng) -> Self {
        let (config, messages) = random_config(rng);
        let mut users = Users::new(&config, &messages, SIDES, fault);
        let trouble = [
            Trouble::None,
            Trouble::Breaks,
            Trouble::Restarts,
            Trouble::Lies,
        ][(seed % 4) as usize];
        users.liar = (trouble == Trouble::Lies).then_some(SIDES - 1);
        users.writes = rng.percent(50);
        let mut weights: [u64; ACTIONS] = std::array::from_fn(|_| rng.between(10, 100));
        weights[0] = rng.between(2, 10);
        weights[10] = rng.below(4);
        weights[11] = rng.below(4);
        weights[12] = match trouble {
            Trouble::None | Trouble::Lies => 0,
            _ => rng.between(2, 30),
        };
        weights[13] = u64::from(trouble == Trouble::Restarts);
        weights[14] *= 3;
        weights[15] = rng.below(4);
        Self {
            users,
            trouble,
            weights,
        }
    }

    fn any_end(&self, rng: &mut Rng) -> Option<usize> {
        let at = rng.below_len(self.users.ends.len().max(1));
        let end = self.users.ends.get(at)?;
        end.is_open.then_some(at)
    }

    fn step(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        let chosen = choose(&self.weights, rng);
        let side = rng.below_len(SIDES);
        match chosen {
            0 => {
                let peer = (side + 1 + rng.below_len(SIDES - 1)) % SIDES;
                self.users.open(side, peer, rng);
            }
            1 => drop(self.users.accept(side, rng)?),
            2 => {
                if let Some(at) = self.any_end(rng) {
                    self.users.send(at, rng)?;
                }
            }
            3 => {
                if let Some(at) = self.any_end(rng) {
                    self.users.receive(at, rng)?;
                }
            }
            4 | 5 => self.execute(rng)?,
            6 => drop(self.users.pools.arrive(side)),
            7 => {
                if let Some((side, at)) = self.users.pools.any_qp(rng) {
                    self.users.pools.sides[side].acknowledge(at);
                }
                self.users.pools.sides[side].handle_one();
            }
            8 => {
                if rng.percent(20) {
                    self.users.pools.tell_broken(side);
                }
                let is_reachable = self.trouble == Trouble::None
                    || self.trouble == Trouble::Lies
                    || rng.percent(95);
                self.act(side, is_reachable)?;
            }
            9 => {
                if let Some(at) = self.any_end(rng) {
                    self.users.poll(at)?;
                    if self.users.writes {
                        self.users.write(at);
                    }
                }
            }
            10 => {
                if let Some(at) = self.any_end(rng) {
                    self.users.close(at)?;
                }
            }
            11 => self.users.refuse(side, rng),
            12 => self.break_any(rng),
            13 => self.restart(side)?,
            15 => {
                let user = UserId(rng.bits32() % USERS);
                self.users.pools.sides[side].register_anew(user);
            }
            _ => self.users.pools.step_connect(rng)?,
        }
        self.users.pools.turn()
    }

    fn act(&mut self, side: usize, is_reachable: bool) -> Result<(), Finding> {
        if !is_reachable {
            // All ends to the node may fail.
            if let Some(crate::Action::Connect(_, node)) =
                self.users.pools.sides[side].actions.front()
            {
                let nodes = &self.users.pools.sides[side].nodes;
                let peer = nodes.iter().position(|known| known == node);
                self.excuse_all(|end| end.side == side && Some(end.peer) == peer);
            }
        }
        // Writes may have been posted since they broke.
        for side in 0..SIDES {
            for at in 0..self.users.pools.sides[side].qps.len() {
                if self.users.pools.sides[side].qps[at].is_broken {
                    self.excuse_writers(side, at);
                }
            }
        }
        self.users.pools.act(side, is_reachable)
    }

    fn excuse_all(&mut self, is_concerned: impl Fn(&End) -> bool) {
        for at in 0..self.users.ends.len() {
            if is_concerned(&self.users.ends[at]) {
                self.users.excuse(at);
            }
        }
    }

    /// The next work request of a queue pair is executed. A message of the liar names something
    /// else, now and then.
    fn execute(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        let Some((side, at)) = self.users.pools.any_qp(rng) else {
            return Ok(());
        };
        let is_liar = self.users.liar == Some(side);
        let mut lies = 0;
        let others = self.some_end_id(rng);
        let mut change = |message: &mut Vec<u8>| {
            if is_liar && rng.percent(20) {
                lies += 1;
                match rng.below(5) {
                    0 => message[rng.below_len(HEADER_OCTETS)] = rng.bits() as u8,
                    1 => message[..8].copy_from_slice(&others),
                    2 => message[8..16].copy_from_slice(&others),
                    3 => message[24] = rng.between(1, 10) as u8,
                    _ => message[rng.between(16, 27) as usize] ^= 1 << rng.below(8),
                }
            }
        };
        let writes = self.next_write(side, at);
        let executed = self.users.pools.execute(side, at, &mut change);
        self.users.lies += lies;
        let peer = self.users.pools.sides[side].qps[at].peer;
        match executed {
            Ok(Some(Operation::Write)) => {
                if let Some(owner) = writes {
                    self.users.ends[owner].executed_writes += 1;
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(None) if is_liar || self.users.liar == Some(peer) => {
                self.users.pools.break_link(side, at, Status::RetryExceeded);
                Ok(())
            }
            Err(None) => Err("a message has no Receive".to_owned()),
            Err(Some(finding)) => Err(finding),
        }
    }

    /// The other end that a message may name.
    fn some_end_id(&self, rng: &mut Rng) -> [u8; 8] {
        let at = rng.below_len(self.users.ends.len().max(1));
        let id = self.users.ends.get(at).map(|end| {
            let pool = &self.users.pools.sides[end.side].pool;
            pool.messages.end_id(end.id).0
        });
        id.unwrap_or(0).to_be_bytes()
    }

    /// Whose work request is executed next.
    fn next_write(&self, side: usize, at: usize) -> Option<usize> {
        let id = self.users.pools.next_owner(side, at)?;
        self.users.index_of(side, id)
    }

    /// A connection breaks. Ends with a Write in flight may fail, and that of the oldest request if
    /// the peer did not answer.
    fn break_any(&mut self, rng: &mut Rng) {
        let Some((side, at)) = self.users.pools.any_qp(rng) else {
            return;
        };
        self.excuse_writers(side, at);
        let first = match rng.percent(50) {
            true => Status::Flushed,
            false => Status::RetryExceeded,
        };
        if first == Status::RetryExceeded {
            let oldest = self.users.pools.sides[side].in_flight(at);
            for id in oldest {
                if let Some(at) = self.users.index_of(side, id) {
                    self.users.excuse(at);
                }
            }
        }
        self.users.pools.break_link(side, at, first);
    }

    fn excuse_writers(&mut self, side: usize, at: usize) {
        let peer = self.users.pools.sides[side].qps[at].peer;
        if self.users.writes {
            let is_between = |end: &End| {
                (end.side, end.peer) == (side, peer) || (end.side, end.peer) == (peer, side)
            };
            self.excuse_all(is_between);
        }
    }

    fn restart(&mut self, side: usize) -> Result<(), Finding> {
        self.excuse_all(|end| end.side == side || end.peer == side);
        for end in self.users.ends.iter_mut().filter(|end| end.side == side) {
            end.is_open = false;
        }
        self.users.restart(side);
        Ok(())
    }

    /// Until nothing happens any more.
    fn drain(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        for _ in 0..150 {
            self.users.pools.turn()?;
            for side in 0..SIDES {
                self.users.pools.tell_broken(side);
                self.users.pools.turn()?;
                while !self.users.pools.sides[side].actions.is_empty() {
                    self.act(side, true)?;
                    self.users.pools.turn()?;
                }
            }
            self.users.pools.step_connects()?;
            self.users.pools.turn()?;
            for _ in 0..60 {
                self.execute(rng)?;
            }
            for side in 0..SIDES {
                while self.users.pools.arrive(side) {}
                for at in 0..self.users.pools.sides[side].qps.len() {
                    for _ in 0..8 {
                        self.users.pools.sides[side].acknowledge(at);
                    }
                }
                while self.users.pools.sides[side].handle_one() {}
            }
            self.users.pools.turn()?;
            for at in 0..self.users.ends.len() {
                self.users.poll(at)?;
            }
        }
        self.users.pools.all_connected()?;
        let may_break = matches!(self.trouble, Trouble::Breaks | Trouble::Restarts);
        self.users.refused_are_told(may_break)?;
        self.users.all_done()
    }
}

fn run(seed: u64, fault: Option<Fault>) -> Result<Users, Finding> {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let mut schedule = Schedule::new(seed, fault, rng);
    for _ in 0..STEPS {
        schedule.step(rng)?;
    }
    schedule.drain(rng)?;
    Ok(schedule.users)
}

#[test]
fn messages_are_delivered_once_in_order_to_their_end() {
    for_each_seed(1000, |seed| run(seed, None).map(drop));
}

#[test]
fn schedules_of_messages_reach_what_they_are_for() {
    let (mut messages, mut writes, mut lies, mut received) = (0, 0, 0, 0);
    let (mut duplicates, mut dropped, mut pairs) = (0, 0, 0);
    let (mut crossed, mut abandoned) = (0, 0);
    let (mut long, mut refused) = (0, 0);
    for seed in 0..400 {
        let users = run(seed, None).unwrap();
        crossed += users.pools.crossed;
        abandoned += users.pools.abandoned;
        messages += users.pools.executed[0];
        writes += users.pools.executed[1];
        lies += users.lies;
        for side in &users.pools.sides {
            duplicates += side.pool.stats().duplicates;
            dropped += side.pool.stats().dropped;
        }
        for (at, end) in users.ends.iter().enumerate() {
            long += end.long;
            refused += u64::from(users.refused(at) == Some(Status::RemoteInvalidRequest));
            received += end.received as u64;
            pairs += u64::from(end.pair.is_some() && !end.is_excused);
        }
    }
    let counts = [
        messages, writes, lies, received, duplicates, dropped, pairs, crossed, abandoned, long,
        refused,
    ];
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}

finds! {
    run:
    finds_sends_without_a_receive: SendsUncovered,
    finds_sends_without_a_buffer: BuffersUncounted,
    finds_sends_that_take_the_last_buffers: ReserveUsed,
    finds_sends_that_wait_for_ever: StarvedForgotten,
    finds_receives_that_are_not_announced: ReceivesUnannounced,
    finds_sends_that_are_delivered_twice: DuplicatesDelivered,
    finds_messages_for_ends_of_others: EndsUnchecked,
    finds_ends_that_are_accepted_twice: OpenedTwice,
    finds_ends_that_are_not_told_again: EndsNotToldAgain,
    finds_ends_that_are_not_told_of_a_close: CloseUntold,
    finds_receives_that_are_not_flushed: ReceivesKept,
    finds_messages_that_are_cut: LongMessagesCut,
    finds_last_segments_that_do_not_wait: LastSegmentEarly,
    finds_segments_that_count_twice: SegmentsCountedTwice,
    finds_sends_whose_taking_is_not_told_again: TakenNotToldAgain,
    finds_segments_whose_memory_is_not_in_use: SegmentsUseNothing,
    finds_refusals_that_are_not_told: RefusalUntold,
    finds_sends_that_are_not_repeated_from_their_beginning: SegmentsNotRepeated,
    finds_connects_that_are_both_given_up: CrossingTaken,
    finds_connects_that_are_both_refused: CrossingRefused,
}
