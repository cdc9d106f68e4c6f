//! Random tables, changes and READs; the faults that they must find.

use std::panic::{catch_unwind, AssertUnwindSafe};

use super::client::Client;
use super::world::World;
use super::{for_each_seed, Finding, Rng};
use crate::fault::{Fault, Faults};
use crate::{Answer, BadTable, Directory};

const CHANGES: u64 = 200;
const CLIENTS: u64 = 40;
const LOOKUPS: u64 = 20;

/// What the READs of clients met.
#[derive(Debug, Default)]
struct Met {
    found: u64,
    absent: u64,
    retries: u64,
    others: u64,
    repeated: u64,
}

/// Runs one schedule, with a fault if one is given.
fn run(seed: u64, fault: Option<Fault>) -> Result<Met, Finding> {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let faults = Faults { only: fault };
    let mut world = World::new(faults, rng);
    let removes_percent = rng.between(5, 60);
    let creates_ppm = [0, 5_000, 50_000][rng.below_len(3)];
    for _ in 0..CHANGES {
        match rng.happens(creates_ppm) {
            true => world.create_again(rng),
            false => world.change(removes_percent, rng)?,
        }
    }
    world.compare()?;
    let mut met = Met::default();
    for _ in 0..CLIENTS {
        let begin = rng.between(world.created[0].end, world.now());
        let width = [0, 3, 20, 100, 1000][rng.below_len(5)];
        let client = Client::new(&world, faults, begin, width);
        serve(&world, client, &mut met, rng)?;
    }
    look_up_all(&world, faults, rng)?;
    Ok(met)
}

/// One client: it looks up some nodes again and again.
fn serve(
    world: &World,
    mut client: Client<'_>,
    met: &mut Met,
    rng: &mut Rng,
) -> Result<(), Finding> {
    let with_hints = rng.percent(70);
    let garbled_percent = [0, 50][rng.below_len(2)];
    let gap = [0, 5, 50, 500][rng.below_len(4)];
    let nodes = rng.between(1, 4) as usize;
    let nodes: Vec<_> = (0..nodes)
        .map(|_| rng.below_len(world.states.len()))
        .collect();
    let mut directory = client.open(with_hints, rng)?;
    for _ in 0..LOOKUPS {
        client.wait(rng.between(0, gap));
        let Some(known) = &mut directory else {
            directory = client.open(with_hints, rng)?;
            continue;
        };
        if rng.percent(garbled_percent) {
            garble_hints(known, rng)?;
        }
        let node = nodes[rng.below_len(nodes.len())];
        let (answer, reads) = client.look_up(known, node, rng)?;
        met.repeated += u64::from(reads > 1);
        match answer {
            Answer::Found(_) => met.found += 1,
            Answer::Absent => met.absent += 1,
            Answer::Retry(_) => met.retries += 1,
            Answer::Bad(BadTable::OtherTable) => {
                met.others += 1;
                directory = None;
            }
            Answer::Bad(bad) => return Err(bad.to_string()),
        }
    }
    Ok(())
}

/// Replaces the hints of a client, which must not decide anything.
fn garble_hints(directory: &mut Directory, rng: &mut Rng) -> Result<(), Finding> {
    let mut hints = vec![0; directory.hints().len_octets as usize];
    rng.fill(&mut hints);
    let taken = directory.handle_hints(&hints);
    taken.map_err(|bad| bad.to_string())
}

/// Looks up all nodes while nothing changes: each has an answer.
fn look_up_all(world: &World, faults: Faults, rng: &mut Rng) -> Result<(), Finding> {
    let mut client = Client::new(world, faults, world.now(), 0);
    let mut directory = client
        .open(rng.percent(50), rng)?
        .ok_or("there is no table")?;
    for node in 0..world.states.len() {
        let (answer, reads) = client.look_up(&mut directory, node, rng)?;
        let is_answer = matches!(answer, Answer::Found(_) | Answer::Absent);
        if !is_answer || reads > 4 {
            return Err(format!(
                "node {node}: {answer:?} after {reads} READs, without changes"
            ));
        }
    }
    Ok(())
}

#[test]
fn answers_of_random_schedules_are_states_that_the_table_had() {
    for_each_seed(1500, |seed| run(seed, None).map(drop));
}

#[test]
fn schedules_meet_every_kind_of_answer() {
    let mut sum = Met::default();
    for seed in 0..50 {
        let met = run(seed, None).unwrap();
        sum.found += met.found;
        sum.absent += met.absent;
        sum.retries += met.retries;
        sum.others += met.others;
        sum.repeated += met.repeated;
    }
    let Met {
        found,
        absent,
        retries,
        others,
        repeated,
    } = sum;
    assert!(
        [found, absent, retries, others, repeated]
            .iter()
            .all(|count| *count > 100),
        "{sum:?}"
    );
}

/// Whether one of some seeds finds the fault.
fn is_found(fault: Fault) -> bool {
    (0..1500).any(|seed| {
        let found = catch_unwind(AssertUnwindSafe(|| run(seed, Some(fault))));
        !matches!(found, Ok(Ok(_)))
    })
}

#[test]
fn each_deliberate_fault_is_found() {
    let faults = [
        Fault::EndsCompared,
        Fault::VersionKept,
        Fault::RestKept,
        Fault::HeaderUndigested,
        Fault::EpochIgnored,
        Fault::SourceFirst,
        Fault::SourceKept,
        Fault::HintLate,
        Fault::HintMissing,
        Fault::HintUncounted,
        Fault::HintKept,
        Fault::HomeNotReread,
        Fault::GuessTrusted,
        Fault::ReadsUncounted,
        Fault::GenerationKept,
    ];
    let missed: Vec<_> = faults
        .into_iter()
        .filter(|fault| !is_found(*fault))
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
