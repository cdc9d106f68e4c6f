//! A process that keeps no rule (`urdma-hostile`) beside programs of another user on one instance.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::process::{wait_until, Process};
use urdma_tests::hostile::{
    beside_pairs_that_connect, Bed, Pair, Steady, ATTACKER, ATTACK_LIMIT, HONEST, OTHER_ATTACKER,
};
use urdma_tests::{alone, descriptors_of, expect_all_taken_back, CHECK_LIMIT, SHORT};

/// How long each attack lasts.
const ATTACK: Duration = Duration::from_millis(1500);
/// The part of its share that an honest pair keeps, and how often an attack is compared before it
/// counts as one that takes more.
const SHARE: f64 = 0.8;
const COMPARISONS: usize = 12;
/// How long two users take places.
const TAKING: Duration = Duration::from_secs(10);
/// The duration of an attack that a test ends.
const UNTIL_KILLED: Duration = Duration::from_secs(3600);
/// Programs that connect one after the other, some connections each.
const ROUNDS_OF_UCMATOSE: usize = 3;

/// An attack of the usual duration.
fn hostile(bed: &Bed, attack: &str) -> Command {
    bed.hostile(ATTACKER, attack, ATTACK)
}

/// rdma-core's `ucmatose`, of the user that is attacked.
fn ucmatose(bed: &Bed, arguments: &[&str]) -> Process {
    let mut command = bed.run(HONEST[0], 0);
    command.arg("/usr/bin/ucmatose").args(arguments);
    Process::start(&mut command).unwrap()
}

/// Regions that a process has mapped.
fn regions_of(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.matches("memfd:urdma-").count()
}

/// Runs an attack beside a steady pair; returns the operations of the pair in a second of the
/// processor time that it had.
fn attack(bed: &Bed, steady: &mut Steady, name: &str, seed: usize) -> f64 {
    let mut command = hostile(bed, name);
    command.args(["--connection", &steady.connection(), "--seed"]);
    command.arg(seed.to_string());
    let before = steady.work();
    let attacking = Process::start(&mut command).unwrap();
    steady.expect_progress(name);
    let ended = attacking.wait(ATTACK_LIMIT).unwrap();
    // An attack that does not find the pair fails for the same reason.
    steady.expect_alive(name);
    assert!(
        ended.succeeded(),
        "{name}: {}{}",
        ended.output,
        ended.describe()
    );
    let rate = (steady.work() - before).rate();
    print!("{}", ended.output);
    rate
}

/// Runs `beside` beside a steady pair and a pair that connects again and again, and checks that
/// nothing is left of the attacker.
fn with_honest_pairs(beside: impl FnOnce(&Bed, &mut Steady, &dyn Fn(&str))) {
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let regions = steady.ends.each_ref().map(|end| regions_of(end.id()));
    let descriptors = descriptors_of(bed.host().daemon_pid().unwrap());
    beside_pairs_that_connect(&bed, |expect_others| {
        beside(&bed, &mut steady, expect_others);
    });
    bed.expect_nothing_left_of_attackers(descriptors);
    for (end, before) in steady.ends.iter().zip(regions) {
        wait_until("the end of channels", SHORT, || {
            regions_of(end.id()) <= before
        })
        .unwrap();
    }
    end(bed, steady);
}

/// Ends the pair and the instance.
fn end(bed: Bed, steady: Steady) {
    steady.end();
    expect_all_taken_back(bed.host());
    bed.down();
}

#[test]
fn programs_of_another_user_lose_nothing_while_a_process_attacks_them() {
    with_honest_pairs(|bed, steady, expect_others| {
        for name in bed.attacks() {
            attack(bed, steady, &name, std::process::id() as usize);
            expect_others(&name);
        }
    });
}

// The scheduler gives every runnable thread its share of the processors, so what counts is what the
// pair does with the processor time that it has. Beside 20 busy threads on two processors a single
// rate of `spin` is 40 to 150 % of the median, and as much depends on which processors the ends of
// the pair have.
#[test]
#[ignore = "make test-all"]
fn honest_pair_keeps_its_share_beside_each_attack() {
    with_honest_pairs(|bed, steady, _| {
        let seed = std::process::id() as usize;
        for name in bed.attacks().iter().filter(|name| *name != "spin") {
            let mut kept = 0.0;
            for _ in 0..COMPARISONS {
                let share = attack(bed, steady, "spin", seed);
                kept = attack(bed, steady, name, seed) / share;
                if kept >= SHARE {
                    break;
                }
            }
            println!("  the honest pair has {:.0} % of its share", 100.0 * kept);
            assert!(kept >= SHARE, "{name}: {:.0} % of the share", 100.0 * kept);
        }
    });
}

/// The kernel limits the descriptors of a user that are on their way, whichever process has sent
/// them: an attack repeats what the kernel does not take, and does not find that urdmad permits it.
#[test]
fn attack_repeats_what_the_kernel_does_not_take() {
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let mut command = bed.hostile(ATTACKER, "jam", UNTIL_KILLED);
    let mut jam = Process::start(&mut command).unwrap();
    jam.wait_for_text("arrived\n", ATTACK_LIMIT).unwrap();
    for name in ["repeats", "descriptors", "recordings"] {
        attack(&bed, &mut steady, name, std::process::id() as usize);
    }
    assert!(jam.is_running(), "{}", jam.printed());
    jam.signal(Signal::SIGKILL).unwrap();
    jam.wait(SHORT).unwrap();
    end(bed, steady);
}

/// Two users have all slots that they may, and then all conversations, again and again; programs of
/// a third one connect.
#[test]
fn programs_go_on_connecting_while_two_users_take_all_places() {
    with_honest_pairs(|bed, steady, expect_others| {
        let start = |user| {
            let mut command = bed.hostile(user, "quotas", TAKING);
            Process::start(&mut command).unwrap()
        };
        let mut takers = [ATTACKER, OTHER_ATTACKER].map(start);
        for taker in &mut takers {
            taker.wait_for_text("arrived\n", ATTACK_LIMIT).unwrap();
        }
        while takers.iter_mut().any(Process::is_running) {
            steady.expect_progress("quotas");
            expect_others("quotas");
        }
        for taker in takers {
            let ended = taker.wait(SHORT).unwrap();
            assert!(ended.succeeded(), "{}{}", ended.output, ended.describe());
            print!("{}", ended.output);
        }
    });
}

#[test]
fn corrupt_cell_ends_the_connections_to_its_process_and_no_others() {
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let mut command = hostile(&bed, "corrupt");
    command.arg("--meet").arg(bed.meeting_point("corrupted"));
    let attacking = Process::start(&mut command).unwrap();
    let pair = Pair {
        name: "corrupted",
        user: HONEST[0],
        hosts: [0, 0],
    };
    let victim = bed.check_end("corrupted", (&pair, 1), &[]);
    let ended = victim.wait(SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    let ended = attacking.wait(SHORT).unwrap();
    assert!(ended.succeeded(), "{}{}", ended.output, ended.describe());
    steady.expect_progress("a corrupt cell");
    end(bed, steady);
}

/// One user has bound every port that it may, and goes on; two programs of another user connect
/// again and again.
#[test]
fn programs_go_on_connecting_while_another_user_binds_all_ports() {
    const CONNECTIONS: &str = "50";
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let mut command = bed.hostile(ATTACKER, "ports", UNTIL_KILLED);
    let mut attacking = Process::start(&mut command).unwrap();
    attacking.wait_for_text("arrived\n", ATTACK_LIMIT).unwrap();
    for _ in 0..ROUNDS_OF_UCMATOSE {
        let server = ucmatose(&bed, &["-c", CONNECTIONS]);
        wait_until("a listener", SHORT, || {
            let status = bed.host().status().unwrap();
            !status["listeners"].as_array().unwrap().is_empty()
        })
        .unwrap();
        let client = ucmatose(&bed, &["-c", CONNECTIONS, "-s", "127.0.0.1"]);
        for end in [client, server] {
            let ended = end.wait(CHECK_LIMIT).unwrap();
            assert!(ended.succeeded(), "{}", ended.describe());
        }
    }
    assert!(attacking.is_running(), "{}", attacking.printed());
    attacking.signal(Signal::SIGKILL).unwrap();
    attacking.wait(SHORT).unwrap();
    steady.expect_progress("ports");
    end(bed, steady);
}

/// A program that may open few files keeps its device, and some descriptors.
#[test]
fn program_with_few_descriptors_keeps_its_device_while_a_crowd_offers_channels() {
    const FREE: usize = 28;
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let open = steady.ends.each_ref().map(|end| descriptors_of(end.id()));
    for (end, open) in steady.ends.iter().zip(open) {
        let mut limit = bed.as_user(HONEST[0], "/usr/bin/prlimit");
        limit.args(["--pid", &end.id().to_string()]);
        limit.arg(format!("--nofile={0}:{0}", open + FREE));
        let ended = Process::run(&mut limit, SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    let mut command = hostile(&bed, "crowd");
    command.args(["--connection", &steady.connection()]);
    let mut attacking = Process::start(&mut command).unwrap();
    let mut most = [0; 2];
    while attacking.is_running() {
        for (most, end) in most.iter_mut().zip(&steady.ends) {
            *most = descriptors_of(end.id()).max(*most);
        }
    }
    let ended = attacking.wait(ATTACK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}{}", ended.output, ended.describe());
    print!("{}", ended.output);
    for (most, open) in most.into_iter().zip(open) {
        let kept = (open + FREE) / 4;
        let range = open + kept..open + FREE;
        assert!(range.contains(&most), "{most} descriptors, not {range:?}");
    }
    steady.expect_progress("crowd");
    end(bed, steady);
}

/// A program that is stopped, by a debugger for example, keeps its device and its connection.
#[test]
fn stopped_program_keeps_its_device_while_a_process_attacks() {
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    for name in ["churn", "statuses"] {
        for end in &steady.ends {
            end.signal(Signal::SIGSTOP).unwrap();
        }
        let mut command = hostile(&bed, name);
        command.args(["--connection", &steady.connection()]);
        let ended = Process::run(&mut command, ATTACK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{name}: {}", ended.output);
        for end in &steady.ends {
            end.signal(Signal::SIGCONT).unwrap();
        }
        steady.expect_progress(name);
    }
    end(bed, steady);
}
