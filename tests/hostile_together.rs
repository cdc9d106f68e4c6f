//! All attacks of `urdma-hostile` at once, beside programs of two users on one host and between
//! two.
//!
//! `URDMA_HOSTILE_S` is the duration of the attacks in seconds; the default is ten minutes.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use urdma_harness::process::Process;
use urdma_harness::scheduler::WithoutAutogroups;
use urdma_tests::hostile::{
    beside_pairs_that_connect, Bed, Pair, Steady, Work, ATTACKER, ATTACK_LIMIT, HONEST,
    OTHER_ATTACKER,
};
use urdma_tests::{alone, descriptors_of, expect_all_taken_back};

const SECONDS: u64 = 600;
/// How long the attacks of a round last, and the programs that only compute before them.
const ROUND: Duration = Duration::from_secs(30);
const COMPARED: Duration = Duration::from_secs(10);
/// How long each of [`HOARDS`] lasts.
const HOARD: Duration = Duration::from_secs(4);
/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// The program that only computes.
const SPIN: &str = "spin";
/// The part of its share that each honest pair keeps.
const SHARE: f64 = 0.6;
/// Whose attacks take all that a user may have of slots, connections or ports: beside them no other
/// attack of that user could begin, and two users with them would leave no slot to a third.
const HOARDER: u32 = OTHER_ATTACKER;
const HOARDS: [&str; 7] = [
    "crowd",
    "lingering",
    "ports",
    "quotas",
    "reports",
    "statuses",
    "unread",
];
/// The pairs of honest programs.
const PAIRS: [Pair; 4] = [
    pair("one-host", 0, [0, 0]),
    pair("one-host-of-another", 1, [0, 0]),
    pair("two-hosts", 0, [0, 1]),
    pair("two-hosts-of-another", 1, [1, 0]),
];

const fn pair(name: &'static str, user: usize, hosts: [usize; 2]) -> Pair {
    let user = HONEST[user];
    Pair { name, user, hosts }
}

/// Programs that have started, with the names of their attacks.
type Attacks = Vec<(String, Process)>;

/// Honest programs that are attacked.
struct Honest<'a> {
    bed: &'a Bed,
    pairs: Vec<Steady>,
    /// That of the next program that attacks.
    seed: u64,
}

impl Honest<'_> {
    fn expect_progress(&mut self, when: &str) {
        for pair in &mut self.pairs {
            pair.expect_progress(when);
        }
    }

    /// Starts an attack of a user, which aims at the pairs of the host.
    fn start(&mut self, user: u32, attack: &str, duration: Duration) -> (String, Process) {
        let mut command = self.bed.hostile(user, attack, duration);
        for (pair, steady) in PAIRS.iter().zip(&self.pairs) {
            // The numbers of the other host's queue pairs mean others on this one.
            if pair.hosts == [0, 0] {
                command.args(["--connection", &steady.connection()]);
            }
        }
        self.seed += 1;
        command.args(["--seed", &self.seed.to_string()]);
        (attack.to_owned(), Process::start(&mut command).unwrap())
    }

    /// Calls `meanwhile` again and again for a time in which all pairs make progress; returns the
    /// work of each.
    fn work_during(
        &mut self,
        (what, duration): (&str, Duration),
        mut meanwhile: impl FnMut(&mut Self),
    ) -> Vec<Work> {
        let work = |honest: &Self| honest.pairs.iter().map(Steady::work).collect::<Vec<_>>();
        let (before, until) = (work(self), Instant::now() + duration);
        while Instant::now() < until {
            self.expect_progress(what);
            meanwhile(self);
            std::thread::sleep(LOOK);
        }
        let done = work(self).into_iter().zip(before);
        done.map(|(after, before)| after - before).collect()
    }

    /// The work of the pairs beside all attacks, of which those of [`HOARDS`] run one after the
    /// other.
    fn attacked(
        &mut self,
        together: &[String],
        hoards: &mut dyn Iterator<Item = &str>,
    ) -> Vec<Work> {
        let start = |name: &String| self.start(ATTACKER, name, ROUND);
        let mut attacks: Attacks = together.iter().map(start).collect();
        let mut hoard = None;
        let work = self.work_during(("all attacks", ROUND), |honest| {
            let has_ended = |(_, process): &mut (_, Process)| !process.is_running();
            if hoard.as_mut().is_none_or(has_ended) {
                let next = honest.start(HOARDER, hoards.next().unwrap(), HOARD);
                attacks.extend(hoard.replace(next));
            }
        });
        attacks.extend(hoard);
        expect_success(attacks);
        work
    }

    /// The work of the pairs beside as many programs that only compute.
    fn compared(&mut self, programs: usize) -> Vec<Work> {
        let start = |_| self.start(ATTACKER, SPIN, COMPARED);
        let computing = (0..programs).map(start).collect();
        let work = self.work_during((SPIN, COMPARED), |_| {});
        expect_success(computing);
        work
    }
}

fn expect_success(attacks: Attacks) {
    for (name, process) in attacks {
        let ended = process.wait(ATTACK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{name}: {}", ended.describe());
        print!("{}", ended.output);
    }
}

// The scheduler gives every runnable thread its share of the processors, and two processors are
// less than this test has threads, so a share is what a pair does with the processor time that its
// two programs have: operations in a second of it, beside all attacks, against the same beside as
// many programs that compute and do nothing else. Programs and attacks alternate, and the work of
// all rounds is added up, since a single rate depends on which processors the ends have. Time that
// a program spends in waiting for urdmad, for its peer or for cells of an attacker counts.
//
// With groups of threads for each session, Linux 6.18.44 keeps urdmad from running for 20 s.
#[test]
#[ignore = "lasts ten minutes"]
fn two_users_keep_their_share_and_their_octets_beside_all_attacks_at_once() {
    let _alone = alone();
    let _without_autogroups = WithoutAutogroups::set();
    let seconds = std::env::var("URDMA_HOSTILE_S");
    let seconds = seconds.map_or(SECONDS, |text| text.parse().unwrap());
    let rounds = seconds.div_ceil(ROUND.as_secs());
    let bed = Bed::up_two();
    let is_hoard = |name: &String| HOARDS.contains(&name.as_str());
    let (hoards, mut together): (Vec<_>, Vec<_>) = bed.attacks().into_iter().partition(is_hoard);
    assert_eq!(hoards.len(), HOARDS.len());
    together.retain(|name| name != SPIN);
    let mut honest = Honest {
        bed: &bed,
        pairs: PAIRS.map(|pair| Steady::start_pair(&bed, &pair)).into(),
        seed: u64::from(std::process::id()),
    };
    let descriptors = descriptors_of(bed.host().daemon_pid().unwrap());
    let (mut attacked, mut compared) = ([Work::default(); 4], [Work::default(); 4]);
    let mut next_hoard = HOARDS.into_iter().cycle();
    beside_pairs_that_connect(&bed, |expect_others| {
        for round in 1..=rounds {
            add(&mut compared, honest.compared(together.len() + 1));
            add(&mut attacked, honest.attacked(&together, &mut next_hoard));
            expect_others("all attacks");
            let shares = shares(&attacked, &compared);
            println!("round {round} of {rounds}: {shares:.2?} of the shares");
        }
    });
    let shares = shares(&attacked, &compared);
    for (pair, share) in PAIRS.iter().zip(shares) {
        assert!(share >= SHARE, "{}: {share:.2} of the share", pair.name);
    }
    bed.expect_nothing_left_of_attackers(descriptors);
    honest.pairs.into_iter().for_each(Steady::end);
    bed.hosts.iter().for_each(expect_all_taken_back);
    bed.down();
}

fn add(sums: &mut [Work], work: Vec<Work>) {
    for (sum, work) in sums.iter_mut().zip(work) {
        *sum += work;
    }
}

/// Which part of its share each pair has.
fn shares(attacked: &[Work], compared: &[Work]) -> Vec<f64> {
    let rates = attacked.iter().zip(compared);
    rates
        .map(|(attacked, compared)| attacked.rate() / compared.rate())
        .collect()
}
