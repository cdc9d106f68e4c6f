//! Random configurations and schedules; the faults that they must find.

use super::world::{Ending, Finding, Plan, World};
use super::{for_each_seed, Rng};
use crate::fault::Fault;
use crate::{Choice, Config, Failure, Kind, Stats};

const STEPS: u64 = 600;
const DRAIN_STEPS: usize = 20_000;

/// How the ends of a run choose, and what they carry.
#[derive(Clone, Copy, Debug)]
struct Kinds {
    kind: Kind,
    choices: [Choice; 2],
}

const DYNAMIC: Kinds = Kinds {
    kind: Kind::Octets,
    choices: [Choice::Dynamic; 2],
};

fn plan(rng: &mut Rng, kinds: Kinds) -> Plan {
    let mut config = |choice: Choice| Config {
        kind: kinds.kind,
        choice,
        recv_slots: rng.between(8, 24) as u16,
        max_sends: rng.between(1, 8) as usize,
        max_recvs: rng.between(1, 8) as u16,
        send_depth: rng.between(2, 12) as usize,
        piece_max_octets: rng.between(1, 12) as u32,
        pause_every: [0, 1, 4][rng.below(3) as usize],
        gather_max: rng.between(1, 4) as usize,
        advert_min_octets: [0, 0, rng.between(1, 12)][rng.below(3) as usize],
        ring_max_octets: rng.between(1, 80),
    };
    let configs = [config(kinds.choices[0]), config(kinds.choices[1])];
    Plan {
        configs,
        rings: {
            let longest = [40, 40, 200][rng.below(3) as usize];
            [rng.between(1, longest), rng.between(1, longest)]
        },
        longest: rng.between(1, 24),
        waitall_percent: [0, 30, 100][rng.below(3) as usize],
        cancel_percent: [0, 10, 50][rng.below(3) as usize],
        ring_percent: [0, 10, 50][rng.below(3) as usize],
        ending: {
            let end = rng.below(2) as usize;
            match rng.below(12) {
                0 => Ending::Finish(end),
                1 => Ending::Stop(end),
                2 => Ending::Close(end),
                3 => Ending::Abort(end),
                4 => Ending::Disconnect,
                _ => Ending::Later,
            }
        },
        fault: None,
        early_immediates: false,
    }
}

/// Runs a plan: random steps, in the middle of which the stream may end, then whatever is needed
/// until both halves have ended.
fn run(plan: &Plan, rng: &mut Rng) -> Result<[Stats; 2], Finding> {
    let mut world = World::new(plan);
    let mut weights = new_weights(rng);
    let ends_at = rng.below(STEPS);
    for at in 0..STEPS {
        if at == ends_at {
            end_stream(plan.ending, &mut world)?;
        }
        if rng.percent(1) {
            weights = new_weights(rng);
        }
        step(plan, &mut world, &weights, rng)?;
        world.invariants()?;
    }
    match plan.ending {
        Ending::Abort(end) => drain_failed(&mut world, end)?,
        Ending::Disconnect => world.compare([false; 2])?,
        Ending::Stop(end) | Ending::Close(end) => {
            drain(plan, &mut world, rng)?;
            world.compare([end != 0, end != 1])?;
        }
        Ending::Finish(_) | Ending::Later => {
            drain(plan, &mut world, rng)?;
            world.compare([true; 2])?;
        }
    }
    Ok(world.stats())
}

const ABORT_CODE: u32 = 77;

fn end_stream(ending: Ending, world: &mut World) -> Result<(), Finding> {
    let result = match ending {
        Ending::Later => Ok(()),
        Ending::Finish(end) => world.ends[end].stream.finish(),
        Ending::Stop(end) => world.ends[end].stream.stop(),
        Ending::Close(end) => world.ends[end].stream.close(),
        Ending::Abort(end) => {
            world.ends[end].stream.abort(ABORT_CODE);
            // Whatever the credits and the send queue are, the abort is next.
            if !world.ends[end].transmit()? {
                return Err("the abort has to wait".to_owned());
            }
            Ok(())
        }
        Ending::Disconnect => return world.disconnect(),
    };
    result.map_err(|error| error.to_string())
}

/// After an abort the peer learns of it, and everything completes with the connection.
fn drain_failed(world: &mut World, aborted: usize) -> Result<(), Finding> {
    while world.deliver(0)? || world.deliver(1)? {
        world.ends[0].events()?;
        world.ends[1].events()?;
    }
    let failures = [world.ends[aborted].failed, world.ends[1 - aborted].failed];
    let expected = [Failure::Aborted(ABORT_CODE), Failure::Reset(ABORT_CODE)].map(Some);
    if failures != expected {
        return Err(format!("the ends fail by {failures:?}"));
    }
    world.disconnect()?;
    world.compare([false; 2])
}

const ACTIONS: usize = 8;

/// How often each action of each end is chosen.
fn new_weights(rng: &mut Rng) -> [u64; 2 * ACTIONS] {
    std::array::from_fn(|_| rng.between(5, 100))
}

fn step(
    plan: &Plan,
    world: &mut World,
    weights: &[u64; 2 * ACTIONS],
    rng: &mut Rng,
) -> Result<(), Finding> {
    let mut pick = rng.below(weights.iter().sum());
    let chosen = weights.iter().position(|&weight| {
        let here = pick < weight;
        pick = pick.saturating_sub(weight);
        here
    });
    let chosen = chosen.unwrap_or(0);
    let index = chosen % 2;
    let shortest = u64::from(plan.configs[0].kind == Kind::Octets);
    let len = rng.between(shortest, plan.longest);
    let end = &mut world.ends[index];
    match chosen / 2 {
        0 if rng.percent(20) => {
            end.drain()?;
            end.send(len);
            end.expect_drained(end.stream.is_gathering())?;
        }
        0 => {
            if !(rng.percent(50) && end.send_at_once(len)?) {
                end.send(len);
            }
        }
        1 => {
            let is_drained = rng.percent(20);
            if is_drained {
                end.drain()?;
            }
            end.recv(len, rng.percent(plan.waitall_percent));
            end.expect_drained(is_drained && !end.stream.is_receive_due())?;
        }
        2 => {
            end.transmit()?;
        }
        3 => {
            end.complete();
        }
        4 => {
            end.copy()?;
        }
        5 if rng.percent(plan.cancel_percent) => end.cancel_any(rng),
        6 if rng.percent(plan.ring_percent) => end.wish_ring(rng),
        _ => {
            match rng.percent(50) {
                true => world.deliver_at_once(index)?,
                false => world.deliver(index)?,
            };
        }
    }
    world.ends[index].events()?;
    world.ends[1 - index].events()
}

fn drain(plan: &Plan, world: &mut World, rng: &mut Rng) -> Result<(), Finding> {
    for end in &mut world.ends {
        end.stream.finish().ok();
    }
    // Before receives are posted: what has arrived then is in the rings.
    let receives_from = rng.below(100);
    let mut is_connected = true;
    for at in 0..DRAIN_STEPS as u64 {
        let mut any = at < receives_from;
        // An end that knows that both are complete may end the connection at any time.
        let is_settled = world.ends.iter().any(|end| end.stream.is_settled());
        if is_connected && is_settled && rng.percent(30) {
            is_connected = false;
            world.disconnect()?;
        }
        for index in 0..2 {
            any |= match rng.percent(50) {
                true => world.deliver_at_once(index)?,
                false => world.deliver(index)?,
            };
            let end = &mut world.ends[index];
            any |= end.copy()?;
            any |= end.ring(rng.percent(30));
            any |= end.transmit()?;
            any |= end.complete();
            world.ends[0].events()?;
            world.ends[1].events()?;
            let end = &mut world.ends[index];
            let receives = at >= receives_from && !end.end_of_stream;
            if receives && end.open_recvs() == 0 {
                any |= end.recv(rng.between(1, plan.longest), false);
            }
        }
        world.invariants()?;
        let ended = |index: usize| {
            let stopped = [Ending::Stop(index), Ending::Close(index)].contains(&plan.ending);
            let end = &world.ends[index];
            end.closed && (end.end_of_stream || stopped)
        };
        let ended = ended(0) && ended(1);
        if ended && world.is_idle() && !any {
            let left = world
                .ends
                .iter()
                .any(|end| end.open_sends() + end.open_recvs() > 0);
            return if left {
                Err("something did not complete".to_owned())
            } else {
                Ok(())
            };
        }
        if !any && !world.pass_time() {
            return Err(format!("no progress: {world:?}"));
        }
    }
    Err("the stream does not end".to_owned())
}

fn correct(kinds: Kinds, seed: u64) -> [Stats; 2] {
    let mut rng = Rng::new(seed);
    let plan = plan(&mut rng, kinds);
    match run(&plan, &mut rng) {
        Ok(stats) => stats,
        Err(finding) => panic!("{plan:?}: {finding}"),
    }
}

#[test]
fn octets_dynamic_equal_the_model() {
    let total = std::sync::Mutex::new(Stats::default());
    for_each_seed(3000, |seed| {
        let mut total = total.lock().unwrap();
        for stats in correct(DYNAMIC, seed) {
            total.direct_transfers += stats.direct_transfers;
            total.indirect_transfers += stats.indirect_transfers;
            total.adverts_stale += stats.adverts_stale;
            total.pauses += stats.pauses;
            total.rings_taken += stats.rings_taken;
        }
    });
    let total = total.lock().unwrap();
    println!(
        "direct {} indirect {} ratio {:.3} stale adverts {} pauses {} rings {}",
        total.direct_transfers,
        total.indirect_transfers,
        total.direct_ratio(),
        total.adverts_stale,
        total.pauses,
        total.rings_taken
    );
}

#[test]
fn octets_with_any_choice_equal_the_model() {
    use Choice::{Direct, Dynamic, Indirect};
    let pairs = [
        [Direct, Direct],
        [Indirect, Indirect],
        [Direct, Dynamic],
        [Dynamic, Direct],
        [Indirect, Dynamic],
        [Dynamic, Indirect],
    ];
    for_each_seed(1200, |seed| {
        let choices = pairs[(seed % 6) as usize];
        let [a, b] = correct(
            Kinds {
                kind: Kind::Octets,
                choices,
            },
            seed,
        );
        if choices.contains(&Direct) {
            assert_eq!(a.indirect_transfers + b.indirect_transfers, 0);
        }
        if choices.contains(&Indirect) {
            assert_eq!(a.direct_transfers + b.direct_transfers, 0);
        }
    });
}

#[test]
fn messages_equal_the_model() {
    for_each_seed(600, |seed| {
        let choices = [Choice::Dynamic; 2];
        correct(
            Kinds {
                kind: Kind::Messages,
                choices,
            },
            seed,
        );
    });
}

/// How many seeds it takes to find a fault, within a limit.
fn seeds_to_find(fault: Option<Fault>, early_immediates: bool) -> Option<(u64, Finding)> {
    (0..2000).find_map(|seed| {
        let mut rng = Rng::new(seed);
        let mut plan = plan(&mut rng, DYNAMIC);
        plan.fault = fault;
        plan.early_immediates = early_immediates;
        // An assertion of the faulty end is a finding, too.
        let result = std::panic::catch_unwind(|| run(&plan, &mut rng.clone()));
        match result {
            Ok(Ok(_)) => None,
            Ok(Err(finding)) => Some((seed, finding)),
            Err(_) => Some((seed, "an assertion".to_owned())),
        }
    })
}

fn assert_found(fault: Fault) {
    let (seed, finding) =
        seeds_to_find(Some(fault), false).unwrap_or_else(|| panic!("{fault:?} is not found"));
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
    fault_no_phase_advance_is_found: NoPhaseAdvance,
    fault_no_position_check_is_found: NoPositionCheck,
    fault_no_phase_check_is_found: NoPhaseCheck,
    fault_position_in_direct_is_found: PositionInDirect,
    fault_advert_over_ring_is_found: AdvertOverRing,
    fault_advert_over_stale_is_found: AdvertOverStale,
    fault_advert_out_of_order_is_found: AdvertOutOfOrder,
    fault_printed_estimate_is_found: PrintedEstimate,
    fault_early_ring_credit_is_found: EarlyRingCredit,
    fault_immediate_first_is_found: ImmediateFirst,
    fault_no_wrap_is_found: NoWrap,
    fault_pause_keeps_adverts_is_found: PauseKeepsAdverts,
    fault_waitall_restart_is_found: WaitallRestart,
    fault_cancel_at_once_is_found: CancelAtOnce,
    fault_withdrawn_early_is_found: WithdrawnEarly,
    fault_finish_early_is_found: FinishEarly,
    fault_no_credit_is_found: NoCredit,
    fault_taken_in_transfer_is_found: TakenInTransfer,
    fault_ring_used_untold_is_found: RingUsedUntold,
    fault_ring_place_kept_is_found: RingPlaceKept,
    fault_old_ring_returned_is_found: OldRingReturned,
    fault_copy_across_rings_is_found: CopyAcrossRings,
    fault_ring_over_old_is_found: RingOverOld,
    fault_lone_over_others_is_found: LoneOverOthers,
    fault_controls_unseen_is_found: ControlsUnseen,
    fault_copies_unseen_is_found: CopiesUnseen,
    fault_lone_past_end_is_found: LonePastEnd,
    fault_lone_untold_is_found: LoneUntold,
}

#[test]
fn immediates_before_their_data_are_found() {
    let (seed, finding) = seeds_to_find(None, true).expect("they are not found");
    println!("seed {seed}: {finding}");
}
