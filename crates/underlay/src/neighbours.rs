//! Neighbour resolution: ARP and IPv6 neighbour discovery for a port that the kernel does not see,
//! sans I/O.
//!
//! | state | sends | `resolve` returns |
//! |---|---|---|
//! | asking | a request to all, repeated with backoff | pending |
//! | heard | nothing | the address |
//! | known | nothing | the address |
//! | checking | a unicast request, repeated with backoff | the address |
//! | missing | nothing | unreachable |
//!
//! | transition | event |
//! |---|---|
//! | none -> asking | `resolve` |
//! | none -> heard | a request from the neighbour |
//! | asking, missing -> known | an answer |
//! | asking, missing -> checking | a request from the neighbour |
//! | asking -> missing | no tries left |
//! | missing -> asking | `resolve` after `missing_ns` |
//! | heard, checking -> known | an answer |
//! | heard -> checking | `resolve`, or a claim of the address by another host |
//! | heard -> none | `forget_ns` without use |
//! | known -> checking | `check_ns` in use, or a claim of the address by another host |
//! | known -> heard | `check_ns` without use |
//! | checking -> asking | no tries left |
//!
//! Any host on the link can claim an address. So an unsolicited claim is verified on first use, and
//! a claim of an address with a known neighbour changes nothing until that neighbour no longer
//! answers and a request to all is answered.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::addr::{IpVersion, LocalInterface, MacAddr};
use crate::frame::is_host;
use crate::solicit::{self, Message};

/// Neighbours in the table at most; the least recently used is evicted.
pub const MAX_NEIGHBOURS: usize = 1024;

/// Answers in the queue at most; requests beyond it are ignored.
const MAX_ANSWERS: usize = 32;

/// Timers of neighbour resolution, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the first request to the second; every later interval is twice as long.
    pub first_wait_ns: u64,
    /// Requests before a neighbour counts as missing.
    pub tries: u32,
    /// How long an answer is valid while packets are sent to the neighbour.
    pub check_ns: u64,
    /// How long a neighbour stays in the table while no packets are sent to it.
    pub forget_ns: u64,
    /// How long after an answer a claim of another address does not cause a check.
    pub settled_ns: u64,
    /// How long a missing neighbour is not requested again.
    pub missing_ns: u64,
}

impl Default for Timing {
    /// Requests after 0, 100, 300, 700 ms, gives up after 1.5 s for 1 s; checks neighbours in use
    /// every 5 s.
    fn default() -> Self {
        Self {
            first_wait_ns: 100_000_000,
            tries: 4,
            check_ns: 5_000_000_000,
            forget_ns: 30_000_000_000,
            settled_ns: 1_000_000_000,
            missing_ns: 1_000_000_000,
        }
    }
}

/// The result of a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourResolution {
    /// The Ethernet address.
    Known(MacAddr),
    /// A request is outstanding: call `poll_transmit`, and try again after the next answer.
    Pending,
    /// It does not answer.
    Unreachable,
}

#[derive(Clone, Copy, Debug)]
enum NeighbourState {
    Asking,
    Heard(MacAddr),
    Known(MacAddr),
    Checking(MacAddr),
    Missing,
}

impl NeighbourState {
    /// The destination of packets.
    fn mac(self) -> Option<MacAddr> {
        match self {
            NeighbourState::Heard(mac)
            | NeighbourState::Known(mac)
            | NeighbourState::Checking(mac) => Some(mac),
            NeighbourState::Asking | NeighbourState::Missing => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    state: NeighbourState,
    /// Requests sent in this state.
    sent: u32,
    /// When the state repeats its request or ends.
    due_ns: u64,
    /// When `resolve` last asked for it; 0 for never.
    used_ns: u64,
    /// Until then, a claim of another address does not cause a check.
    settled_until_ns: u64,
}

/// The neighbours of one port.
#[derive(Debug)]
pub struct Neighbours {
    local: LocalInterface,
    timing: Timing,
    table: HashMap<IpAddr, Neighbour>,
    answers: VecDeque<Message>,
    changes: u64,
    /// No neighbour is due before this time, so that polling an idle table costs one comparison.
    idle_until_ns: u64,
}

impl Neighbours {
    /// No neighbours yet.
    pub fn new(local: LocalInterface, timing: Timing) -> Self {
        Self {
            local,
            timing,
            table: HashMap::new(),
            answers: VecDeque::with_capacity(MAX_ANSWERS),
            changes: 0,
            idle_until_ns: 0,
        }
    }

    /// A counter of changes of neighbours' Ethernet addresses; callers that cache addresses resolve
    /// them again when it changes.
    #[inline]
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// The local interface.
    pub const fn local(&self) -> &LocalInterface {
        &self.local
    }

    /// Whether there is an entry for `address`, whatever its state, so that [`Neighbours::resolve`]
    /// makes none.
    pub fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.local.owns(address) || self.table.contains_key(&address)
    }

    /// The Ethernet address for `address`; starts the resolution if it is unknown.
    pub fn resolve(&mut self, now_ns: u64, address: IpAddr) -> NeighbourResolution {
        let address = address.to_canonical();
        let version = IpVersion::of(address);
        if !is_host(address) || self.local.first(version).is_none() {
            return NeighbourResolution::Unreachable;
        }
        if self.local.owns(address) {
            return NeighbourResolution::Known(self.local.mac());
        }
        if let Some(neighbour) = self.table.get_mut(&address) {
            neighbour.used_ns = now_ns;
            match neighbour.state {
                NeighbourState::Asking => return NeighbourResolution::Pending,
                NeighbourState::Heard(mac) => {
                    neighbour.check(now_ns, mac);
                    self.idle_until_ns = self.idle_until_ns.min(now_ns);
                    return NeighbourResolution::Known(mac);
                }
                NeighbourState::Known(mac) | NeighbourState::Checking(mac) => {
                    return NeighbourResolution::Known(mac)
                }
                NeighbourState::Missing if now_ns < neighbour.due_ns => {
                    return NeighbourResolution::Unreachable
                }
                NeighbourState::Missing => {}
            }
        } else {
            self.make_room();
        }
        let asking = Neighbour {
            state: NeighbourState::Asking,
            sent: 0,
            due_ns: now_ns,
            used_ns: now_ns,
            settled_until_ns: 0,
        };
        self.table.insert(address, asking);
        self.idle_until_ns = self.idle_until_ns.min(now_ns);
        NeighbourResolution::Pending
    }

    /// Announces the local addresses on the link, as after a start, so that stale entries elsewhere
    /// are corrected.
    pub fn announce(&mut self) {
        for address in self.local.addresses() {
            if self.answers.len() < MAX_ANSWERS {
                self.answers.push_back(Message::Answer {
                    address: *address,
                    mac: self.local.mac(),
                    to: None,
                });
            }
        }
    }

    /// Processes a received frame; false when it is neither ARP nor neighbour discovery, or
    /// malformed.
    pub fn handle_frame(&mut self, now_ns: u64, frame: &[u8]) -> bool {
        let Some(message) = solicit::read(frame) else {
            return false;
        };
        match message {
            Message::Question {
                asker,
                asker_mac,
                target,
                ..
            } => {
                if !self.local.owns(target) {
                    return true;
                }
                self.learn_asker(now_ns, asker, asker_mac);
                if self.answers.len() < MAX_ANSWERS && asker_mac.is_unicast() {
                    self.answers.push_back(Message::Answer {
                        address: target,
                        mac: self.local.mac(),
                        to: Some((asker, asker_mac)),
                    });
                }
            }
            Message::Answer { address, mac, .. } => self.learn(now_ns, address, mac),
        }
        true
    }

    /// Writes the next frame to send and returns its length; `None` when nothing is due.
    ///
    /// `frame` should have [`crate::MAX_SOLICITATION_OCTETS`].
    pub fn poll_transmit(&mut self, now_ns: u64, frame: &mut [u8]) -> Option<usize> {
        while let Some(answer) = self.answers.pop_front() {
            if let Some(octets) = solicit::write(&answer, self.local.mac(), frame) {
                return Some(octets);
            }
        }
        if now_ns < self.idle_until_ns {
            return None;
        }
        while let Some((&address, _)) = self.table.iter().find(|(_, n)| n.is_due(now_ns)) {
            if let Some(question) = self.advance(now_ns, address) {
                return solicit::write(&question, self.local.mac(), frame);
            }
        }
        self.idle_until_ns = self.earliest_ns().unwrap_or(u64::MAX);
        None
    }

    /// When [`Neighbours::poll_transmit`] must be called next, if nothing arrives before; 0 means
    /// at once.
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.answers.is_empty() {
            return Some(0);
        }
        self.earliest_ns()
    }

    fn earliest_ns(&self) -> Option<u64> {
        self.table.values().filter_map(Neighbour::deadline).min()
    }

    /// Advances a neighbour whose timer has expired, and returns the request that the new state
    /// sends.
    fn advance(&mut self, now_ns: u64, address: IpAddr) -> Option<Message> {
        let Timing {
            first_wait_ns,
            tries,
            check_ns,
            forget_ns,
            missing_ns,
            ..
        } = self.timing;
        let neighbour = self.table.get_mut(&address)?;
        let used = now_ns.saturating_sub(neighbour.used_ns) < check_ns;
        let to = match neighbour.state {
            NeighbourState::Asking if neighbour.sent >= tries => {
                neighbour.state = NeighbourState::Missing;
                neighbour.due_ns = now_ns + missing_ns;
                self.changes += 1;
                return None;
            }
            NeighbourState::Known(mac) if used => {
                neighbour.state = NeighbourState::Checking(mac);
                neighbour.sent = 0;
                Some(mac)
            }
            NeighbourState::Known(mac) => {
                neighbour.state = NeighbourState::Heard(mac);
                neighbour.due_ns = now_ns + forget_ns;
                return None;
            }
            NeighbourState::Heard(_) => {
                self.table.remove(&address);
                return None;
            }
            NeighbourState::Checking(_) if neighbour.sent >= tries => {
                neighbour.state = NeighbourState::Asking;
                neighbour.sent = 0;
                self.changes += 1;
                None
            }
            NeighbourState::Asking => None,
            NeighbourState::Checking(mac) => Some(mac),
            NeighbourState::Missing => return None,
        };
        neighbour.due_ns = now_ns + (first_wait_ns << neighbour.sent.min(16));
        neighbour.sent += 1;
        Some(Message::Question {
            asker: self.local.first(IpVersion::of(address))?,
            asker_mac: self.local.mac(),
            target: address,
            to,
        })
    }

    /// Processes an answer; one from a neighbour without an entry is ignored.
    fn learn(&mut self, now_ns: u64, address: IpAddr, mac: MacAddr) {
        if !self.may_have(address, mac) {
            return;
        }
        let Some(neighbour) = self.table.get_mut(&address) else {
            return;
        };
        match neighbour.state.mac() {
            Some(before) if before != mac => self.contest(now_ns, address, before),
            before => {
                if before.is_none() {
                    self.changes += 1;
                }
                neighbour.state = NeighbourState::Known(mac);
                neighbour.due_ns = now_ns + self.timing.check_ns;
                neighbour.settled_until_ns = now_ns + self.timing.settled_ns;
                self.idle_until_ns = self.idle_until_ns.min(neighbour.due_ns);
            }
        }
    }

    /// Records the sender of a request for a local address: it will send to this host and be
    /// answered, so it is worth an entry (RFC 826), but is not verified.
    fn learn_asker(&mut self, now_ns: u64, address: IpAddr, mac: MacAddr) {
        if !self.may_have(address, mac) {
            return;
        }
        if let Some(neighbour) = self.table.get_mut(&address) {
            match neighbour.state.mac() {
                Some(before) if before != mac => self.contest(now_ns, address, before),
                Some(_) => {}
                None => {
                    neighbour.check(now_ns, mac);
                    self.changes += 1;
                    self.idle_until_ns = self.idle_until_ns.min(now_ns);
                }
            }
            return;
        }
        self.make_room();
        self.changes += 1;
        let heard = Neighbour {
            state: NeighbourState::Heard(mac),
            sent: 0,
            due_ns: now_ns + self.timing.forget_ns,
            used_ns: 0,
            settled_until_ns: 0,
        };
        self.idle_until_ns = self.idle_until_ns.min(heard.due_ns);
        self.table.insert(address, heard);
    }

    /// Handles a claim of the address of a neighbour at `mac`: the neighbour is checked there.
    fn contest(&mut self, now_ns: u64, address: IpAddr, mac: MacAddr) {
        let Some(neighbour) = self.table.get_mut(&address) else {
            return;
        };
        let is_checked = matches!(neighbour.state, NeighbourState::Checking(_));
        if !is_checked && now_ns >= neighbour.settled_until_ns {
            neighbour.check(now_ns, mac);
            self.idle_until_ns = self.idle_until_ns.min(now_ns);
        }
    }

    /// Whether another host can have these addresses.
    fn may_have(&self, address: IpAddr, mac: MacAddr) -> bool {
        is_host(address) && !self.local.owns(address) && mac.is_unicast()
    }

    fn make_room(&mut self) {
        if self.table.len() < MAX_NEIGHBOURS {
            return;
        }
        let oldest = self
            .table
            .iter()
            .min_by_key(|(_, neighbour)| neighbour.used_ns)
            .map(|(address, _)| *address);
        if let Some(address) = oldest {
            self.table.remove(&address);
            self.changes += 1;
        }
    }
}

impl Neighbour {
    /// Sends requests to the neighbour at `mac` only.
    fn check(&mut self, now_ns: u64, mac: MacAddr) {
        self.state = NeighbourState::Checking(mac);
        self.sent = 0;
        self.due_ns = now_ns;
    }

    /// When the state must be advanced; a missing neighbour waits for the next resolution.
    fn deadline(&self) -> Option<u64> {
        match self.state {
            NeighbourState::Missing => None,
            NeighbourState::Asking
            | NeighbourState::Heard(_)
            | NeighbourState::Known(_)
            | NeighbourState::Checking(_) => Some(self.due_ns),
        }
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.deadline().is_some_and(|due_ns| due_ns <= now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_SOLICITATION_OCTETS;

    const SECOND: u64 = 1_000_000_000;

    fn neighbours(mac: u8, address: &str) -> Neighbours {
        let local = LocalInterface::new(MacAddr([2, 0, 0, 0, 0, mac]), &[address.parse().unwrap()]);
        Neighbours::new(local.unwrap(), Timing::default())
    }

    /// Carries every frame both ways until both are silent; returns how many there were.
    fn exchange(now_ns: u64, a: &mut Neighbours, b: &mut Neighbours) -> usize {
        let mut frames = 0;
        let mut buffer = [0; MAX_SOLICITATION_OCTETS];
        loop {
            let before = frames;
            while let Some(octets) = a.poll_transmit(now_ns, &mut buffer) {
                assert!(b.handle_frame(now_ns, &buffer[..octets]));
                frames += 1;
            }
            while let Some(octets) = b.poll_transmit(now_ns, &mut buffer) {
                assert!(a.handle_frame(now_ns, &buffer[..octets]));
                frames += 1;
            }
            if frames == before {
                return frames;
            }
        }
    }

    #[test]
    fn resolve_of_a_neighbour_asks_once_and_both_know() {
        for (a_address, b_address) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            let (mut a, mut b) = (neighbours(1, a_address), neighbours(2, b_address));
            let (a_address, b_address) = (a_address.parse().unwrap(), b_address.parse().unwrap());
            assert_eq!(a.resolve(5, b_address), NeighbourResolution::Pending);
            assert_eq!(a.next_deadline(), Some(5));
            assert_eq!(exchange(5, &mut a, &mut b), 2);
            assert_eq!(
                a.resolve(6, b_address),
                NeighbourResolution::Known(MacAddr([2, 0, 0, 0, 0, 2]))
            );
            assert_eq!(
                b.resolve(6, a_address),
                NeighbourResolution::Known(MacAddr([2, 0, 0, 0, 0, 1]))
            );
            assert_eq!(a.changes(), 1);
        }
    }

    #[test]
    fn resolve_of_a_silent_neighbour_gives_up_and_asks_again_later() {
        for address in ["10.0.0.2", "fe80::2"] {
            let mut a = match address.contains(':') {
                false => neighbours(1, "10.0.0.1"),
                true => neighbours(1, "fe80::1"),
            };
            let address = address.parse().unwrap();
            let mut buffer = [0; MAX_SOLICITATION_OCTETS];
            let mut sent_at = Vec::new();
            let mut now_ns = 0;
            assert_eq!(a.resolve(now_ns, address), NeighbourResolution::Pending);
            while let Some(due_ns) = a.next_deadline() {
                now_ns = due_ns;
                while a.poll_transmit(now_ns, &mut buffer).is_some() {
                    sent_at.push(now_ns / 1_000_000);
                }
            }
            assert_eq!(sent_at, [0, 100, 300, 700]);
            assert_eq!(now_ns, 3 * SECOND / 2);
            assert_eq!(a.resolve(now_ns, address), NeighbourResolution::Unreachable);
            assert_eq!(
                a.resolve(now_ns + SECOND, address),
                NeighbourResolution::Pending
            );
        }
    }

    #[test]
    fn neighbour_in_use_is_checked_and_survives_its_age() {
        let (mut a, mut b) = (neighbours(1, "10.0.0.1"), neighbours(2, "10.0.0.2"));
        let address = "10.0.0.2".parse().unwrap();
        a.resolve(0, address);
        exchange(0, &mut a, &mut b);
        a.resolve(4 * SECOND, address);
        let due_ns = a.next_deadline().unwrap();
        assert_eq!(due_ns, 5 * SECOND);
        let mut buffer = [0; MAX_SOLICITATION_OCTETS];
        let octets = a.poll_transmit(due_ns, &mut buffer).unwrap();
        assert_eq!(buffer[..6], [2, 0, 0, 0, 0, 2], "asks the neighbour alone");
        b.handle_frame(due_ns, &buffer[..octets]);
        exchange(due_ns, &mut a, &mut b);
        assert!(matches!(
            a.resolve(due_ns, address),
            NeighbourResolution::Known(_)
        ));
        assert_eq!(a.changes(), 1);
    }

    #[test]
    fn neighbour_in_use_that_died_becomes_unreachable() {
        let (mut a, mut b) = (neighbours(1, "10.0.0.1"), neighbours(2, "10.0.0.2"));
        let address = "10.0.0.2".parse().unwrap();
        a.resolve(0, address);
        exchange(0, &mut a, &mut b);
        a.resolve(4 * SECOND, address);
        let mut buffer = [0; MAX_SOLICITATION_OCTETS];
        let mut now_ns = 0;
        while let Some(due_ns) = a.next_deadline() {
            now_ns = due_ns;
            while a.poll_transmit(now_ns, &mut buffer).is_some() {}
        }
        assert!(now_ns < 10 * SECOND);
        assert_eq!(a.resolve(now_ns, address), NeighbourResolution::Unreachable);
    }

    #[test]
    fn neighbour_out_of_use_is_forgotten() {
        let (mut a, mut b) = (neighbours(1, "10.0.0.1"), neighbours(2, "10.0.0.2"));
        a.resolve(0, "10.0.0.2".parse().unwrap());
        exchange(0, &mut a, &mut b);
        while let Some(due_ns) = a.next_deadline() {
            assert!(due_ns <= 35 * SECOND);
            assert_eq!(exchange(due_ns, &mut a, &mut b), 0);
        }
    }

    #[test]
    fn neighbour_back_in_use_is_checked() {
        let (mut a, mut b) = (neighbours(1, "10.0.0.1"), neighbours(2, "10.0.0.2"));
        let address = "10.0.0.2".parse().unwrap();
        a.resolve(0, address);
        exchange(0, &mut a, &mut b);
        let due_ns = a.next_deadline().unwrap();
        assert_eq!(exchange(due_ns, &mut a, &mut b), 0);
        let known = NeighbourResolution::Known(MacAddr([2, 0, 0, 0, 0, 2]));
        assert_eq!(a.resolve(due_ns + SECOND, address), known);
        assert_eq!(exchange(due_ns + SECOND, &mut a, &mut b), 2);
        assert_eq!(a.changes(), 1);
    }

    #[test]
    fn announcement_after_a_restart_is_believed_when_the_old_address_does_not_answer() {
        for (a_address, b_address) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            let (mut a, mut b) = (neighbours(1, a_address), neighbours(2, b_address));
            let b_ip = b_address.parse().unwrap();
            a.resolve(0, b_ip);
            exchange(0, &mut a, &mut b);
            let mut b = neighbours(3, b_address);
            b.announce();
            let known = |last| NeighbourResolution::Known(MacAddr([2, 0, 0, 0, 0, last]));
            let mut buffer = [0; MAX_SOLICITATION_OCTETS];
            let mut now_ns = 2 * SECOND;
            while let Some(octets) = b.poll_transmit(now_ns, &mut buffer) {
                a.handle_frame(now_ns, &buffer[..octets]);
            }
            let asked_at = now_ns;
            let mut alone = 0;
            while a.resolve(now_ns, b_ip) != known(3) {
                assert!(now_ns < asked_at + 2 * SECOND);
                while let Some(octets) = a.poll_transmit(now_ns, &mut buffer) {
                    // No station but the one addressed takes a frame to it alone.
                    if buffer[..6] == [2, 0, 0, 0, 0, 2] {
                        assert_eq!(a.resolve(now_ns, b_ip), known(2));
                        alone += 1;
                    } else {
                        b.handle_frame(now_ns, &buffer[..octets]);
                    }
                }
                exchange(now_ns, &mut a, &mut b);
                now_ns = a.next_deadline().unwrap().max(now_ns + 1);
            }
            assert_eq!(alone, 4);
        }
    }

    /// What of `claims` the neighbour at address 2 makes of claims that come while it is there: it
    /// stays where it is.
    fn claims_change_nothing(claim: impl Fn(&mut Neighbours)) {
        for (a_address, b_address) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            let (mut a, mut b) = (neighbours(1, a_address), neighbours(2, b_address));
            let b_ip = b_address.parse().unwrap();
            a.resolve(0, b_ip);
            exchange(0, &mut a, &mut b);
            let mut buffer = [0; MAX_SOLICITATION_OCTETS];
            let mut questions = 0;
            for turn in 0..100 {
                let now_ns = 2 * SECOND + turn * SECOND / 100;
                let mut attacker = neighbours(3, b_address);
                claim(&mut attacker);
                while let Some(octets) = attacker.poll_transmit(now_ns, &mut buffer) {
                    a.handle_frame(now_ns, &buffer[..octets]);
                }
                questions += exchange(now_ns, &mut a, &mut b) / 2;
                let known = NeighbourResolution::Known(MacAddr([2, 0, 0, 0, 0, 2]));
                assert_eq!(a.resolve(now_ns, b_ip), known);
            }
            assert_eq!(questions, 1, "a flood has it checked once a second");
            assert_eq!(a.changes(), 1);
        }
    }

    #[test]
    fn announcement_of_the_address_of_a_neighbour_that_answers_changes_nothing() {
        claims_change_nothing(Neighbours::announce);
    }

    #[test]
    fn question_from_the_address_of_a_neighbour_that_answers_changes_nothing() {
        claims_change_nothing(|attacker| {
            let victim = match attacker.local().addresses()[0] {
                IpAddr::V4(_) => "10.0.0.1",
                IpAddr::V6(_) => "fe80::1",
            };
            attacker.resolve(0, victim.parse().unwrap());
        });
    }

    #[test]
    fn asker_at_a_false_address_is_checked_when_it_is_used() {
        let (mut a, mut b) = (neighbours(1, "10.0.0.1"), neighbours(2, "10.0.0.2"));
        let mut attacker = neighbours(3, "10.0.0.2");
        attacker.resolve(0, "10.0.0.1".parse().unwrap());
        let mut buffer = [0; MAX_SOLICITATION_OCTETS];
        let octets = attacker.poll_transmit(0, &mut buffer).unwrap();
        a.handle_frame(0, &buffer[..octets]);
        while a.poll_transmit(0, &mut buffer).is_some() {}
        let address = "10.0.0.2".parse().unwrap();
        let mut now_ns = SECOND;
        a.resolve(now_ns, address);
        while a.resolve(now_ns, address) != NeighbourResolution::Known(MacAddr([2, 0, 0, 0, 0, 2]))
        {
            assert!(now_ns < 3 * SECOND);
            while let Some(octets) = a.poll_transmit(now_ns, &mut buffer) {
                if buffer[..6] != [2, 0, 0, 0, 0, 3] {
                    b.handle_frame(now_ns, &buffer[..octets]);
                }
            }
            exchange(now_ns, &mut a, &mut b);
            now_ns = a.next_deadline().unwrap().max(now_ns + 1);
        }
    }

    #[test]
    fn announcement_of_a_stranger_is_not_remembered() {
        let (mut a, mut b) = (neighbours(1, "10.0.0.1"), neighbours(2, "10.0.0.2"));
        b.announce();
        assert_eq!(exchange(0, &mut a, &mut b), 1);
        assert_eq!(
            a.resolve(0, "10.0.0.2".parse().unwrap()),
            NeighbourResolution::Pending
        );
    }

    #[test]
    fn claim_on_our_own_address_is_ignored() {
        let (mut a, mut b) = (neighbours(1, "10.0.0.1"), neighbours(2, "10.0.0.1"));
        b.announce();
        exchange(0, &mut a, &mut b);
        let own = "10.0.0.1".parse().unwrap();
        assert_eq!(
            a.resolve(0, own),
            NeighbourResolution::Known(MacAddr([2, 0, 0, 0, 0, 1]))
        );
    }

    #[test]
    fn resolve_without_an_address_of_that_version_is_unreachable() {
        let mut a = neighbours(1, "10.0.0.1");
        for address in ["fe80::2", "224.0.0.1", "0.0.0.0", "255.255.255.255"] {
            assert_eq!(
                a.resolve(0, address.parse().unwrap()),
                NeighbourResolution::Unreachable
            );
        }
    }

    #[test]
    fn discovery_from_beyond_a_router_is_ignored() {
        let (mut a, mut b) = (neighbours(1, "fe80::1"), neighbours(2, "fe80::2"));
        a.resolve(0, "fe80::2".parse().unwrap());
        let mut buffer = [0; MAX_SOLICITATION_OCTETS];
        let octets = a.poll_transmit(0, &mut buffer).unwrap();
        assert_eq!(buffer[..6], [0x33, 0x33, 0xff, 0, 0, 2]);
        buffer[21] = 254;
        assert!(!b.handle_frame(0, &buffer[..octets]));
        buffer[21] = 255;
        buffer[octets - 1] ^= 1;
        assert!(!b.handle_frame(0, &buffer[..octets]), "wrong checksum");
    }

    #[test]
    fn table_under_a_flood_of_questions_stays_bounded() {
        let mut a = neighbours(1, "10.0.0.1");
        for number in 0..2 * MAX_NEIGHBOURS {
            let [.., high, low] = (number as u32 + 256).to_be_bytes();
            a.resolve(number as u64, IpAddr::from([10, 1, high, low]));
        }
        assert_eq!(a.table.len(), MAX_NEIGHBOURS);
    }
}
