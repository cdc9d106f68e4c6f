//! Random schedules of pools that exchange messages; the faults that they must find.

use std::cell::Cell;

use super::ends::{End, Users};
use super::pools::USERS;
use super::{choose, finds, for_each_seed, Finding, Rng};
use crate::fault::Fault;
use crate::{Action, Config, MessageConfig, Operation, Status, Transport, UserId, HEADER_OCTETS};

const SIDES: usize = 3;
const STEPS: u64 = 1500;
const ACTIONS: usize = 16;
/// Octets of a segment, and of the longest Send.
const SEGMENT: u32 = 64;
const LONGEST: u32 = 8 * SEGMENT;

/// What there is between the sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Connections,
    Initiators,
}

fn random_config(between: Between, rng: &mut Rng) -> (Config, MessageConfig) {
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
        peers_max: 1,
    };
    if between == Between::Connections {
        return (config, messages);
    }
    let transport = Transport::Initiators {
        count: rng.between(1, 2) as u16,
    };
    let messages = MessageConfig {
        buffer_octets: transport.header_octets() as u32 + SEGMENT,
        // Now and then, exchanges with one node end for those with another one.
        peers_max: match rng.percent(20) {
            true => 1,
            false => SIDES as u32,
        },
        ..messages
    };
    (
        Config {
            transport,
            ..config
        },
        messages,
    )
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
    between: Between,
    /// Over initiators: no node is found silent, and none is asked whether it is there.
    is_trusting: bool,
    users: Users,
    trouble: Trouble,
    weights: [u64; ACTIONS],
}

impl Schedule {
    fn new(between: Between, seed: u64, fault: Option<Fault>, rng: &mut Rng) -> Self {
        let (config, messages) = random_config(between, rng);
        let mut users = Users::new(&config, &messages, SIDES, fault);
        let trouble = [
            Trouble::None,
            Trouble::Breaks,
            Trouble::Restarts,
            Trouble::Lies,
        ][(seed % 4) as usize];
        users.pools.liar = (trouble == Trouble::Lies).then_some(SIDES - 1);
        users.writes = rng.percent(50);
        let is_trusting = trouble == Trouble::Breaks && seed % 8 == 1;
        let mut weights: [u64; ACTIONS] = std::array::from_fn(|_| rng.between(10, 100));
        weights[0] = rng.between(2, 10);
        weights[10] = rng.below(4);
        weights[11] = rng.below(4);
        weights[12] = match (trouble, between) {
            (Trouble::None | Trouble::Lies, _) => 0,
            (_, Between::Connections) => rng.between(2, 30),
            (_, Between::Initiators) if is_trusting => rng.between(20, 60),
            // A node that is silent ends more.
            (_, Between::Initiators) => rng.between(1, 8),
        };
        weights[13] = u64::from(trouble == Trouble::Restarts);
        weights[14] *= 3;
        weights[15] = rng.below(4);
        Self {
            between,
            is_trusting,
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
                    || self.is_trusting && self.between == Between::Initiators
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
            _ if self.between == Between::Initiators => {
                self.users.pools.step_question(rng)?;
                self.excuse_given_up();
                if rng.percent(2) && !self.is_trusting {
                    drop(self.probe(side));
                }
                if rng.percent(4) {
                    self.users.pools.sides[side].pool.end_idle_exchange();
                }
            }
            _ => self.users.pools.step_connect(rng)?,
        }
        self.users.pools.turn()
    }

    fn act(&mut self, side: usize, is_reachable: bool) -> Result<(), Finding> {
        if !is_reachable {
            // All ends to the node may fail, or all of the side.
            match self.users.pools.sides[side].actions.front() {
                Some(Action::Connect(_, node) | Action::Ask(node)) => {
                    let peer = self.users.pools.sides[side].index_of(*node);
                    self.excuse_all(|end| end.side == side && Some(end.peer) == peer);
                }
                Some(Action::Create(_)) => self.excuse_all(|end| end.side == side),
                _ => {}
            }
        }
        // Writes may have been posted since they broke.
        for side in 0..SIDES {
            for at in 0..self.users.pools.sides[side].qps.len() {
                let qp = &self.users.pools.sides[side].qps[at];
                if let Some(peer) = qp.silent {
                    self.excuse_all(|end| (end.side, end.peer) == (side, peer));
                }
                if self.users.pools.sides[side].qps[at].is_broken {
                    self.excuse_writers(side, at);
                }
            }
        }
        self.users.pools.act(side, is_reachable)
    }

    /// A side asks silent nodes whether they are there. It gives up those from which nothing has
    /// come for too long.
    fn probe(&mut self, side: usize) -> Vec<usize> {
        let before = self.users.pools.sides[side].met();
        self.users.pools.sides[side].pool.probe_silent();
        let after = self.users.pools.sides[side].met();
        let given_up = before.into_iter().filter(|peer| !after.contains(peer));
        let given_up: Vec<usize> = given_up.collect();
        for peer in &given_up {
            self.users.pools.met[4] += 1;
            self.excuse_all(|end| (end.side, end.peer) == (side, *peer));
        }
        given_up
    }

    /// Some nodes have not answered.
    fn excuse_given_up(&mut self) {
        for between in std::mem::take(&mut self.users.pools.given_up) {
            self.excuse_all(|end| (end.side, end.peer) == between);
        }
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
        if self.users.pools.is_stale(side, at) {
            let (node, _) = self.users.pools.sides[side]
                .oldest(at)
                .unwrap_or((side, false));
            self.fall_silent(side, at, node);
            return Ok(());
        }
        let is_liar = self.users.pools.liar == Some(side);
        let mut lies = 0;
        let others = self.some_end_id(rng);
        let label = self.users.pools.label_octets();
        let mut change = |message: &mut Vec<u8>| {
            if is_liar && label > 0 && rng.percent(4) {
                lies += 1;
                message[rng.below_len(label)] = rng.bits() as u8;
            } else if is_liar && rng.percent(20) {
                lies += 1;
                let message = &mut message[label..];
                match rng.below(5) {
                    0 => message[rng.below_len(HEADER_OCTETS)] = rng.bits() as u8,
                    1 => message[..8].copy_from_slice(&others),
                    2 => message[8..16].copy_from_slice(&others),
                    3 => message[24] = rng.between(1, 12) as u8,
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
            // The Receive comes later: messages that have come before take those of others.
            Err(None) if self.between == Between::Initiators && self.trouble != Trouble::None => {
                Ok(())
            }
            Err(None) if is_liar || self.users.pools.liar == Some(peer) => {
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
        if self.between == Between::Initiators && first == Status::RetryExceeded {
            if self.is_trusting {
                return;
            }
            // Only a node that was asked can be silent.
            if let Some((node, true)) = self.users.pools.sides[side].oldest(at) {
                self.fall_silent(side, at, node);
            }
            return;
        }
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

    /// A node does not answer the oldest work request of an initiator: messages are exchanged with
    /// it no more.
    fn fall_silent(&mut self, side: usize, at: usize, peer: usize) {
        self.excuse_all(|end| (end.side, end.peer) == (side, peer));
        self.excuse_writers(side, at);
        let pools = &mut self.users.pools;
        pools.sides[side].qps[at].silent = Some(peer);
        pools.break_link(side, at, Status::RetryExceeded);
    }

    fn excuse_writers(&mut self, side: usize, at: usize) {
        if self.users.pools.sides[side].qps[at].is_initiator {
            if self.users.writes {
                self.excuse_all(|end| end.side == side);
            }
            return;
        }
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
        for round in 0..150 {
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
            self.users.pools.step_questions()?;
            self.excuse_given_up();
            self.users.pools.turn()?;
            let probes = self.between == Between::Initiators && !self.is_trusting;
            if probes && round % 10 == 0 {
                let liar = self.users.pools.liar.unwrap_or(SIDES);
                for side in 0..SIDES {
                    let heard = self.users.pools.hears(side);
                    let given_up = self.probe(side);
                    let is_lied_to = |peer: usize| [side, peer].contains(&liar);
                    let mut given_up = given_up.iter().filter(|peer| !is_lied_to(**peer));
                    // All that it has asked since the first round was answered.
                    if round >= 50 && given_up.any(|peer| heard.contains(peer)) {
                        return Err(format!("side {side} gives a node up that answers"));
                    }
                }
                self.users.pools.turn()?;
            }
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
        self.users.pools.all_met()?;
        let may_break = matches!(self.trouble, Trouble::Breaks | Trouble::Restarts);
        self.users.refused_are_told(may_break)?;
        self.users.all_done()
    }
}

fn run(seed: u64, fault: Option<Fault>) -> Result<Users, Finding> {
    run_between(Between::Connections, seed, fault)
}

fn run_met(seed: u64, fault: Option<Fault>) -> Result<Users, Finding> {
    run_between(Between::Initiators, seed, fault)
}

fn run_between(between: Between, seed: u64, fault: Option<Fault>) -> Result<Users, Finding> {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let mut schedule = Schedule::new(between, seed, fault, rng);
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
fn messages_over_initiators_are_delivered_once_in_order_to_their_end() {
    for_each_seed(1000, |seed| run_met(seed, None).map(drop));
}

/// Schedules in which something was wrong that few others find: a question that came again began
/// another exchange, a number of Receives was lost with an Accept, an exchange that had ended had
/// its credit back, and a question was handled before a message that had arrived.
#[test]
fn schedules_that_few_are_like() {
    for seed in [7476, 8625, 12603, 14098, 114_824] {
        run_met(seed, None).unwrap();
    }
}

/// Counts of what schedules have reached.
fn reached(run: impl Fn(u64) -> Result<Users, Finding>) -> [u64; 9] {
    let (mut messages, mut writes, mut lies, mut received) = (0, 0, 0, 0);
    let (mut duplicates, mut dropped, mut pairs) = (0, 0, 0);
    let (mut long, mut refused) = (0, 0);
    for seed in 0..800 {
        let users = run(seed).unwrap();
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
    [
        messages, writes, lies, received, duplicates, dropped, pairs, long, refused,
    ]
}

#[test]
fn schedules_of_messages_reach_what_they_are_for() {
    let (crossed, abandoned) = (Cell::new(0), Cell::new(0));
    let counts = reached(|seed| {
        let users = run(seed, None)?;
        crossed.set(crossed.get() + users.pools.crossed);
        abandoned.set(abandoned.get() + users.pools.abandoned);
        Ok(users)
    });
    let more = [crossed.get(), abandoned.get()];
    let mut all = counts.iter().chain(&more);
    assert!(all.all(|count| *count > 20), "{counts:?} {more:?}");
}

#[test]
fn schedules_of_messages_over_initiators_reach_what_they_are_for() {
    let more = Cell::new([0; 5]);
    let counts = reached(|seed| {
        let users = run_met(seed, None)?;
        let reached = users.pools.met.into_iter().zip(more.get());
        let sums: Vec<u64> = reached.map(|(one, before)| one + before).collect();
        more.set(sums.try_into().unwrap());
        Ok(users)
    });
    let more = more.get();
    let mut all = counts.iter().chain(&more);
    assert!(all.all(|count| *count > 20), "{counts:?} {more:?}");
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

finds! {
    run_met:
    finds_numbers_that_are_not_taken_back: NumbersNotTakenBack,
    finds_numbers_that_are_ignored: NumbersIgnored,
    finds_own_messages_that_are_not_repeated: OwnNotRepeated,
    finds_exchanges_with_a_silent_node: UntoldKept,
    finds_questions_that_are_late: LateQuestionsTaken,
}
