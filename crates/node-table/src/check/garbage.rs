//! Tables that no owner wrote: each look-up ends, with a documented answer.

use super::log::Log;
use super::{for_each_seed, key, target, Rng};
use crate::bucket::BUCKET_LEN;
use crate::fault::{Fault, Faults};
use crate::{
    Answer, BadTable, CreateError, Directory, Geometry, Lookup, Memory, Read, RetryCause, Step,
    Table, BUCKETS_MAX, HEADER_LEN, READS_MAX,
};

const GEOMETRY: Geometry = Geometry {
    epoch: 7,
    seed: 1,
    buckets: 4,
};
const HEADER: Read = Read {
    offset_octets: 0,
    len_octets: HEADER_LEN as u32,
};

fn memory() -> Log {
    Log::new((0..GEOMETRY.len_octets() / 8).map(|_| 0))
}

/// What is read of memory that does not change.
fn read(memory: &Log, read: Read) -> Vec<u8> {
    memory.read(read, memory.now, memory.now, &mut Rng::new(1))
}

fn open(memory: &Log) -> Result<Directory, BadTable> {
    Directory::new(&read(memory, HEADER), GEOMETRY.len_octets())
}

/// Looks up a node in whatever `octets` gives.
fn answer(
    directory: &mut Directory,
    node: u32,
    mut octets: impl FnMut(Read) -> Vec<u8>,
) -> (Answer, u32) {
    let mut lookup = Lookup::new(directory, key(node));
    for reads in 1..=READS_MAX {
        match lookup.handle(directory, &octets(lookup.read())) {
            Step::Read(again) => lookup = again,
            Step::Done(answer) => return (answer, reads),
        }
    }
    panic!("more than {READS_MAX} READs");
}

fn filled() -> Table<Log> {
    let mut table = Table::create(memory(), GEOMETRY).unwrap();
    let rng = &mut Rng::new(1);
    for node in 0..6 {
        table.insert(key(node), target(rng)).unwrap();
    }
    table
}

#[test]
fn random_buckets_give_an_answer_in_bounded_reads() {
    for_each_seed(500, |seed| {
        let rng = &mut Rng::new(seed);
        let table = filled();
        let mut directory = open(table.memory()).map_err(|bad| bad.to_string())?;
        let keeps_versions = rng.percent(80);
        let keeps_epoch = rng.percent(80);
        for node in 0..20 {
            let (answer, _) = answer(&mut directory, node, |read| {
                let mut octets = vec![0; read.len_octets as usize];
                rng.fill(&mut octets);
                for word in octets.chunks_exact_mut(8).filter(|_| keeps_versions) {
                    word[..2].copy_from_slice(&[1, 2]);
                }
                if keeps_epoch {
                    octets[2..4].copy_from_slice(&GEOMETRY.epoch.to_be_bytes());
                }
                octets
            });
            if matches!(answer, Answer::Found(_) | Answer::Absent) {
                return Err(format!("{answer:?} from random octets"));
            }
        }
        Ok(())
    });
}

#[test]
fn flipped_bit_of_a_table_never_panics_or_reads_without_end() {
    let table = filled();
    let memory = table.memory();
    let mut kinds = [0; 4];
    let flip = |wanted: Read, bit: usize| {
        let mut octets = read(memory, wanted);
        octets[bit / 8] ^= 1 << (bit % 8);
        octets
    };
    for bit in 0..8 * HEADER_LEN {
        let header = Directory::new(&flip(HEADER, bit), GEOMETRY.len_octets());
        assert_eq!(
            header.map(|_| ()),
            Err(BadTable::NoTable),
            "bit {bit} of the header"
        );
    }
    for bit in 0..8 * BUCKET_LEN {
        let mut directory = open(memory).unwrap();
        for node in 0..8 {
            let flipped = |wanted| flip(wanted, bit);
            kinds[match answer(&mut directory, node, flipped).0 {
                Answer::Found(_) => 0,
                Answer::Absent => 1,
                Answer::Retry(_) => 2,
                Answer::Bad(_) => 3,
            }] += 1;
        }
    }
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
}

#[test]
fn header_that_no_client_can_use_is_refused() {
    let memory = memory();
    assert_eq!(open(&memory).map(|_| ()), Err(BadTable::NoTable));
    let octets = |geometry: Geometry| -> Vec<u8> {
        geometry
            .encode()
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect()
    };
    let refused = |octets: &[u8]| Directory::new(octets, GEOMETRY.len_octets()).unwrap_err();
    for (epoch, buckets) in [(7, 0), (7, 1), (7, BUCKETS_MAX + 1), (0, 4)] {
        let geometry = Geometry {
            epoch,
            buckets,
            ..GEOMETRY
        };
        assert_eq!(refused(&octets(geometry)), BadTable::Geometry);
        assert!(Table::create(self::memory(), geometry).is_err());
    }
    let longer = Geometry {
        buckets: 5,
        ..GEOMETRY
    };
    assert_eq!(
        refused(&octets(longer)),
        BadTable::Bounds {
            table: longer.len_octets(),
            memory: GEOMETRY.len_octets(),
        }
    );
    assert_eq!(
        refused(&octets(GEOMETRY)[..63]),
        BadTable::Length {
            expected: 64,
            actual: 63,
        }
    );
    let mut directory = Directory::new(&octets(GEOMETRY), GEOMETRY.len_octets()).unwrap();
    let hints = directory.hints().len_octets as usize;
    assert!(directory.handle_hints(&vec![0; hints + 1]).is_err());
    assert!(directory.handle_hints(&vec![0; hints]).is_ok());
}

#[test]
fn owner_that_ends_within_an_update_leaves_a_torn_bucket_that_the_next_one_mends() {
    let table = filled();
    let node = (0..6).find(|node| {
        let mut directory = open(table.memory()).unwrap();
        answer(&mut directory, *node, |wanted| read(table.memory(), wanted)).1 == 1
    });
    let node = node.unwrap();
    let mut directory = open(table.memory()).unwrap();
    let wanted = Lookup::new(&directory, key(node)).read();
    let mut memory = table.into_memory();
    let word = wanted.offset_octets as usize / 8 + 3;
    let torn = memory.load(word) + (1 << 48);
    memory.store(word, torn);
    let torn = answer(&mut directory, node, |wanted| read(&memory, wanted));
    assert_eq!(torn, (Answer::Retry(RetryCause::Torn), READS_MAX));

    let same = Table::create(memory, GEOMETRY).map(|_| ()).unwrap_err();
    assert_eq!(same, CreateError::SameEpoch(GEOMETRY.epoch));
    let mut table = filled();
    let mut memory = std::mem::replace(&mut table, filled()).into_memory();
    memory.store(word, !memory.load(word));
    let epoch = GEOMETRY.epoch + 1;
    let mut table = Table::create(memory, Geometry { epoch, ..GEOMETRY }).unwrap();
    let registered = target(&mut Rng::new(2));
    table.insert(key(node), registered).unwrap();
    let other = answer(&mut directory, node, |wanted| read(table.memory(), wanted));
    assert_eq!(other.0, Answer::Bad(BadTable::OtherTable));
    let mut directory = open(table.memory()).unwrap();
    let (found, _) = answer(&mut directory, node, |wanted| read(table.memory(), wanted));
    assert!(matches!(found, Answer::Found(found) if found.target == registered));
}

#[test]
fn memory_that_is_too_short_is_refused() {
    let needed = GEOMETRY.len_octets() / 8;
    let short = Log::new((1..needed).map(|_| 0));
    let available = needed - 1;
    let refused = Table::create(short, GEOMETRY).map(|_| ()).unwrap_err();
    assert_eq!(refused, CreateError::Memory { needed, available });
}

/// Whether a table shares no version with the one before it, whose buckets it overwrites at once.
fn versions_continue(fault: Option<Fault>) -> bool {
    let faults = Faults { only: fault };
    let before = Table::create_with(memory(), GEOMETRY, faults).unwrap();
    let versions = |memory: &Log| -> Vec<u64> {
        let first = GEOMETRY.bucket_offset(0) as usize / 8;
        let words = first..memory.len_words();
        words.map(|index| memory.load(index) >> 48).collect()
    };
    let memory = before.into_memory();
    let old = versions(&memory);
    let epoch = GEOMETRY.epoch + 1;
    let geometry = Geometry { epoch, ..GEOMETRY };
    let table = Table::create_with(memory, geometry, faults).unwrap();
    let new = versions(table.memory());
    old.iter().zip(&new).all(|(old, new)| old != new)
}

#[test]
fn read_of_two_tables_is_torn() {
    assert!(versions_continue(None));
    assert!(!versions_continue(Some(Fault::VersionsRestart)));
}
