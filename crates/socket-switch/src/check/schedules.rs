//! Random schedules; the faults that they must find.

use urdma_types::{seeds, Rng};

use super::processes::{Processes, ENDS};
use super::world::Counts;
use super::Finding;
use crate::fault::{Fault, ONLY};

/// Steps of a schedule: accesses of threads, octets that TCP carries, calls, incidents.
const STEPS: u64 = 3000;
/// No schedule needs as many to become quiet.
const QUIET_STEPS: u64 = 30_000;

/// How often each kind of step is chosen, of 1000.
struct Weights {
    carry: u64,
    transfer: u64,
    incident: u64,
    resume: u64,
    quiet: u64,
    sends_percent: u64,
    pauses_percent: u64,
}

fn new_weights(rng: &mut Rng) -> Weights {
    Weights {
        carry: rng.between(5, 150),
        transfer: rng.between(20, 150),
        incident: [0, 1, 5, 15][rng.below_len(4)],
        resume: rng.between(1, 40),
        quiet: [0, 2, 5][rng.below_len(3)],
        sends_percent: rng.between(20, 80),
        pauses_percent: [0, 0, 10][rng.below_len(3)],
    }
}

/// Runs a schedule: random steps, then whatever is needed until both streams have ended.
fn run(seed: u64) -> Result<Counts, Finding> {
    let mut rng = Rng::new(seed);
    let mut processes = Processes::new(Rng::new(rng.bits()));
    let mut weights = new_weights(&mut rng);
    let joins = [rng.below(STEPS / 4), rng.below(STEPS / 4)];
    for at in 0..STEPS {
        if rng.percent(1) {
            weights = new_weights(&mut rng);
            processes.killed_with_lock = [0, 2, 20, 60][rng.below_len(4)];
        }
        for end in ENDS {
            if at >= joins[end.index()] {
                processes.join(end);
            }
        }
        step(&mut processes, &weights, &mut rng)?;
    }
    quiet(&mut processes, &mut rng)?;
    drain(&mut processes, &mut rng)?;
    let counts = processes.world.borrow().counts;
    Ok(counts)
}

fn step(processes: &mut Processes, weights: &Weights, rng: &mut Rng) -> Result<(), Finding> {
    let mut pick = rng.below(1000);
    let mut is_chosen = |weight: u64| {
        let here = pick < weight;
        pick = pick.saturating_sub(weight);
        here
    };
    if is_chosen(weights.carry) {
        carry(processes, rng);
    } else if is_chosen(weights.transfer) {
        if rng.percent(weights.pauses_percent) {
            processes.start_pause();
        } else {
            processes.start_transfer(weights.sends_percent);
        }
    } else if is_chosen(weights.incident) {
        processes.incident();
    } else if is_chosen(weights.resume) {
        processes.resume_any();
    } else if is_chosen(weights.quiet) {
        quiet(processes, rng)?;
    } else {
        processes.run_one()?;
    }
    Ok(())
}

fn carry(processes: &Processes, rng: &mut Rng) -> bool {
    let octets = rng.between(1, 8);
    let first = ENDS[rng.below_len(2)];
    let mut world = processes.world.borrow_mut();
    world.tcp.carry(first, octets) || world.tcp.carry(first.peer(), octets)
}

/// Lets all threads run until each sleeps or has nothing to do, and TCP has nothing to carry.
fn quiet(processes: &mut Processes, rng: &mut Rng) -> Result<(), Finding> {
    for _ in 0..QUIET_STEPS {
        let has_carried = rng.percent(30) && carry(processes, rng);
        if !processes.run_one()? && !has_carried && !carry(processes, rng) {
            return processes.check_sleepers();
        }
    }
    Err(format!("no end: {}", processes.describe()))
}

/// Both ends send their end, and receive until they have the other's.
fn drain(processes: &mut Processes, rng: &mut Rng) -> Result<(), Finding> {
    processes.killed_with_lock = 0;
    processes.fork_each();
    for _ in 0..QUIET_STEPS {
        processes.resume_any();
        processes.start_last_calls();
        let has_run = processes.run_one()?;
        let has_carried = carry(processes, rng);
        let is_drained = |end| !processes.is_alive(end) || processes.is_drained(end);
        if ENDS.into_iter().all(is_drained) && processes.is_idle() {
            return Ok(());
        }
        if !has_run && !has_carried {
            return Err(format!("blocked: {}", processes.describe()));
        }
    }
    Err(format!("the streams do not end: {}", processes.describe()))
}

/// How many schedules a test runs, unless `URDMA_SIM_SEEDS` says so.
const USUAL_SEEDS: u64 = 2000;
/// Schedules of which one finds each fault.
const SEEDS_TO_FIND: u64 = 100_000;

#[test]
fn random_schedules_equal_the_model() {
    let mut total = Counts::default();
    for seed in seeds(USUAL_SEEDS) {
        let counts = run(seed).unwrap_or_else(|finding| {
            panic!("URDMA_SEED={seed} cargo test -p urdma-socket-switch random: {finding}")
        });
        total.add(&counts);
    }
    println!("{total:?}");
    if seeds(USUAL_SEEDS).count() > 1000 {
        assert!(total.least() > 0, "{total:?}");
    }
}

fn assert_found(fault: Fault) {
    ONLY.set(Some(fault));
    let found = (0..SEEDS_TO_FIND).find_map(|seed| {
        // An assertion or an overflow is a finding, too.
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(Ok(_)) => None,
            Ok(Err(finding)) => Some((seed, finding)),
            Err(_) => Some((seed, "an assertion".to_owned())),
        }
    });
    let (seed, finding) = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
    let text: String = finding.chars().take(80).collect();
    println!("{fault:?}: seed {seed}: {text}");
}

macro_rules! faults {
    ($($name:ident: $fault:ident,)*) => {
        $(#[test]
        fn $name() {
            assert_found(Fault::$fault);
        })*
    };
}

faults! {
    fault_ring_before_tcp_is_found: RingBeforeTcp,
    fault_drained_for_good_is_found: DrainedForGood,
    fault_hand_back_unlocked_is_found: HandBackUnlocked,
    fault_no_recovery_is_found: NoRecovery,
    fault_late_record_is_found: LateRecord,
    fault_recovery_restarts_is_found: RecoveryRestarts,
    fault_tcp_before_empty_is_found: TcpBeforeEmpty,
    fault_refuse_late_is_found: RefuseLate,
    fault_demote_unlocked_is_found: DemoteUnlocked,
    fault_mode_before_count_is_found: ModeBeforeCount,
    fault_upgrade_after_end_is_found: UpgradeAfterEnd,
    fault_locks_kept_is_found: LocksKept,
    fault_silent_recovery_is_found: SilentRecovery,
    fault_stolen_lock_is_found: StolenLock,
    fault_lock_of_the_dead_is_found: LockOfTheDead,
    fault_sleep_unseen_is_found: SleepUnseen,
    fault_wait_as_seen_is_found: WaitAsSeen,
    fault_no_wake_reader_is_found: NoWakeReader,
    fault_no_wake_writer_is_found: NoWakeWriter,
    fault_end_before_ring_is_found: EndBeforeRing,
    fault_end_over_ring_is_found: EndOverRing,
    fault_one_direction_is_found: OneDirection,
    fault_deaf_agent_is_found: DeafAgent,
    fault_unread_is_end_is_found: UnreadIsEnd,
    fault_close_is_end_is_found: CloseIsEnd,
    fault_peek_over_gap_is_found: PeekOverGap,
    fault_silent_take_is_found: SilentTake,
    fault_long_before_head_is_found: LongBeforeHead,
    fault_silent_growth_is_found: SilentGrowth,
    fault_wait_for_the_gone_is_found: WaitForTheGone,
    fault_mode_unseen_at_once_is_found: ModeUnseenAtOnce,
    fault_tcp_unseen_at_once_is_found: TcpUnseenAtOnce,
}
