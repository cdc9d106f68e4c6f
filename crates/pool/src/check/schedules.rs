//! Random configurations and schedules; the faults that they must find.

use super::world::{World, NODES};
use super::{choose, finds, for_each_seed, Finding, Rng};
use crate::fault::Fault;
use crate::{Config, Switching, Transport};
use std::time::Duration;

const STEPS: u64 = 500;
const ACTIONS: usize = 14;

pub(super) fn random_config(rng: &mut Rng) -> Config {
    let sq_depth = rng.between(1, 8) as u32;
    let mut config = Config {
        sq_depth,
        cq_depth: sq_depth * rng.between(1, 4) as u32,
        transport: match rng.percent(50) {
            true => Transport::Connections {
                per_node: rng.between(1, 3) as u16,
            },
            false => Transport::Initiators {
                count: rng.between(1, 3) as u16,
            },
        },
        switching: None,
        nodes_max: NODES as u32,
        virtual_max: 12,
        in_flight_max: rng.between(1, 6) as u32,
        in_flight_octets_max: rng.between(1, 20_000),
        lead_octets_max: rng.between(1, 20_000),
        elements_max: rng.between(1, 4) as u32,
        read_elements_max: rng.between(1, 4) as u32,
        message_octets_max: 1 << 20,
        signal_every: rng.between(1, 6) as u32,
    };
    if let Transport::Initiators { count } = config.transport {
        if rng.percent(70) {
            let connections_max = rng.between(1, NODES) as u16;
            config.switching = Some(Switching {
                connections_max,
                requests: rng.between(1, 6) as u32,
                window: Duration::from_millis(1),
                quiet_windows: rng.between(1, 4) as u32,
                retry_windows: rng.between(1, 4) as u32,
            });
            config.cq_depth = config
                .cq_depth
                .max(sq_depth * u32::from(count + connections_max));
        }
    }
    config
}

/// Runs one schedule, with a fault if one is given.
fn run(seed: u64, fault: Option<Fault>) -> Result<World, Finding> {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let config = random_config(rng);
    let mut world = World::new(&config, fault, rng);
    let breaks = [0, 2, 20][rng.below(3) as usize];
    let mut weights: [u64; ACTIONS] = std::array::from_fn(|_| rng.between(5, 100));
    weights[8] = rng.below(10);
    weights[9] = breaks;
    weights[10] = breaks;
    weights[11] = breaks / 2;
    weights[12] = rng.below(20);
    weights[13] = rng.below(60);
    for _ in 0..STEPS {
        step(&mut world, &weights, rng)?;
    }
    world.refuses_next = false;
    world.refuses_all = rng.percent(10);
    world.drain(rng)?;
    Ok(world)
}

fn step(world: &mut World, weights: &[u64; ACTIONS], rng: &mut Rng) -> Result<(), Finding> {
    let chosen = choose(weights, rng);
    match chosen {
        0 => world.open(rng)?,
        1 | 2 => {
            for _ in 0..rng.between(1, 6) {
                world.post(rng)?;
            }
        }
        3 => world.act(rng, true)?,
        4 => drop(world.execute(rng)?),
        5 => drop(world.acknowledge(rng)?),
        6 => {
            for _ in 0..rng.below(5) {
                world.poll();
            }
            for _ in 0..rng.below(5) {
                world.handle_one();
            }
        }
        7 => world.poll_any(rng)?,
        8 => world.close_any(rng)?,
        9 => world.break_any(rng)?,
        10 => world.change_memory(rng)?,
        12 => world.replace_node(rng)?,
        13 => world.end_windows(rng.between(1, 2) as u32),
        _ => world.refuses_next = true,
    }
    world.transmit()
}

#[test]
fn random_schedules_keep_every_rule() {
    for_each_seed(3000, |seed| run(seed, None).map(drop));
}

#[test]
fn random_schedules_reach_what_they_are_for() {
    let mut all = crate::Stats::default();
    for seed in 0..200 {
        let world = run(seed, None).unwrap();
        assert_eq!(world.completions(), 0);
        let stats = world.pool.stats();
        let (to, back) = (stats.switched_to_connections, stats.switched_back);
        assert!(back <= to, "more have left connections than were on one");
        all.failed += stats.failed;
        all.repeated += stats.repeated;
        all.closed += stats.closed;
        all.stale += stats.stale;
        all.refused += stats.refused;
        all.removed += stats.removed;
        all.retired += stats.retired;
        all.switched_to_connections += stats.switched_to_connections;
        all.switched_back += stats.switched_back;
        all.switches_failed += stats.switches_failed;
        all.signaled += stats.posted - stats.signaled;
    }
    // The last is the number of work requests that are not signaled.
    let counts = [
        all.failed,
        all.repeated,
        all.closed,
        all.stale,
        all.refused,
        all.removed,
        all.retired,
        all.switched_to_connections,
        all.switched_back,
        all.switches_failed,
        all.signaled,
    ];
    assert!(counts.iter().all(|count| *count > 10), "{all:?}");
}

/// The finding is that of the model, of a request with an effect. Few schedules have a connection
/// that ends behind such a request.
#[test]
fn finds_a_request_that_is_executed_twice_at_the_switch() {
    let fault = Some(Fault::SwitchRepeated);
    let found = (0..5000).find_map(|seed| run(seed, fault).err());
    let found = found.expect("no schedule finds the request");
    assert!(found.ends_with("is executed twice"), "{found}");
}

finds! {
    run:
    finds_remote_bounds_that_are_not_checked: NoRemoteBounds,
    finds_local_bounds_that_are_not_checked: NoLocalBounds,
    finds_elements_that_are_not_checked: FirstElementChecked,
    finds_too_many_elements: ElementsUnbounded,
    finds_memory_of_elements_that_is_not_released: FirstElementReleased,
    finds_rights_that_are_not_checked: NoRights,
    finds_memory_of_other_users: NoOwner,
    finds_memory_of_other_nodes: NoNode,
    finds_a_send_queue_that_overflows: SendQueueUnbounded,
    finds_completions_without_a_place: CompletionsUncounted,
    finds_a_completion_queue_that_overflows: CompletionQueueUnreserved,
    finds_too_many_requests_in_flight: InFlightUnbounded,
    finds_completions_of_closed_virtual_queue_pairs: VirtualGenerationIgnored,
    finds_completions_of_destroyed_queue_pairs: PhysicalGenerationIgnored,
    finds_unsignaled_requests_that_are_not_retired: OneRetired,
    finds_tails_that_are_not_signaled: TailUnsignaled,
    finds_completions_that_nobody_asked_for: SignaledForAll,
    finds_requests_that_are_executed_twice: EffectsRepeated,
    finds_innocents_that_fail: InnocentFail,
    finds_requests_that_outlive_an_error: QueueKept,
    finds_a_cause_without_its_status: CauseFlushed,
    finds_requests_that_are_not_repeated: NotRepeated,
    finds_requests_to_other_nodes_that_fail: OtherNodesFail,
    finds_neighbours_that_are_repeated: NeighboursRepeated,
    finds_requests_that_go_to_another_node: NodeKept,
    finds_too_many_initiators: InitiatorsUnbounded,
    finds_refusals_without_end: RefusalsRepeated,
    finds_memory_that_is_released_in_use: ReleasedEarly,
    finds_memory_of_refused_requests: RefusedUseMemory,
    finds_nodes_that_are_removed_in_use: NodesRemovedInUse,
    finds_nodes_that_are_removed_in_any_order: NodesRemovedInAnyOrder,
    finds_connections_that_are_taken_in_use: ConnectionsTakenInUse,
    finds_connections_that_are_not_destroyed: ConnectionsKept,
    finds_a_switch_with_requests_in_flight: SwitchedInFlight,
    finds_turns_that_outlive_a_switch: SwitchTurnsKept,
    finds_requests_that_stay_with_a_failed_connection: SwitchForgotten,
    finds_nodes_that_never_go_back: SwitchedForever,
    finds_too_many_connections: SwitchUnbounded,
    finds_attempts_without_a_pause: SwitchRetriedAtOnce,
    finds_requests_that_wait_for_a_failed_connection: SwitchNotCancelled,
}
