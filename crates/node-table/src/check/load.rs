//! READs for each look-up at a load of 0.7.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{key, target, Rng};
use crate::{
    Answer, Directory, Geometry, Lookup, Memory, Read, Step, Table, ENTRIES_PER_BUCKET, HEADER_LEN,
};

const BUCKETS: u32 = 10_000;
const NODES: u32 = BUCKETS * ENTRIES_PER_BUCKET as u32 * 7 / 10;

/// What a device reads: octets in the order of the memory.
fn read(words: &[AtomicU64], read: Read) -> Vec<u8> {
    let first = read.offset_octets as usize / 8;
    let count = read.len_octets.div_ceil(8) as usize;
    let words = words[first..first + count].iter();
    let mut octets: Vec<u8> = words
        .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
        .collect();
    octets.truncate(read.len_octets as usize);
    octets
}

fn open(words: &[AtomicU64], with_hints: bool) -> Directory {
    let header = Read {
        offset_octets: 0,
        len_octets: HEADER_LEN as u32,
    };
    let octets = words.len() as u64 * 8;
    let mut directory = Directory::new(&read(words, header), octets).unwrap();
    if with_hints {
        let hints = directory.hints();
        directory.handle_hints(&read(words, hints)).unwrap();
    }
    directory
}

/// Looks up nodes, each once. Returns how many of 10,000 needed one READ, and the most READs that
/// one needed.
fn count(
    words: &[AtomicU64],
    directory: &Directory,
    nodes: impl ExactSizeIterator<Item = u32>,
    present: bool,
) -> (usize, u32) {
    let len = nodes.len();
    let mut directory = directory.clone();
    let (mut ones, mut most) = (0, 0);
    for node in nodes {
        let mut lookup = Lookup::new(&directory, key(node));
        let answer = loop {
            let octets = read(words, lookup.read());
            most = most.max(lookup.reads() + 1);
            ones += usize::from(lookup.reads() == 0);
            match lookup.handle(&mut directory, &octets) {
                Step::Done(answer) => break answer,
                Step::Read(again) => {
                    ones -= usize::from(again.reads() == 1);
                    lookup = again;
                }
            }
        };
        assert_eq!(
            matches!(answer, Answer::Found(_)),
            present,
            "node {node}: {answer:?}"
        );
    }
    (ones * 10_000 / len, most)
}

fn table_of(words: &[AtomicU64], seed: u64) -> Table<&[AtomicU64]> {
    let geometry = Geometry {
        epoch: 1,
        seed,
        buckets: BUCKETS,
    };
    Table::create(words, geometry).unwrap()
}

fn memory() -> Vec<AtomicU64> {
    let geometry = Geometry {
        epoch: 1,
        seed: 0,
        buckets: BUCKETS,
    };
    let words = geometry.len_octets() / 8;
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// Prints the counts for look-ups of nodes that are present and of others. Returns whether at least
/// `least` of 10,000 needed one READ, and none more than four.
fn is_met(what: &str, counts: [(usize, u32); 2], least: usize) -> bool {
    println!("{what}: present, absent: (of 10,000 with one READ, most READs) {counts:?}");
    counts
        .iter()
        .all(|(ones, most)| *ones >= least && *most <= 4)
}

#[test]
fn of_look_ups_at_load_0_7_at_least_95_percent_need_one_read() {
    for seed in 1..=3 {
        let words = memory();
        let rng = &mut Rng::new(seed);
        let mut table = table_of(&words, rng.bits());
        for node in 0..NODES {
            table.insert(key(node), target(rng)).unwrap();
        }
        let both = |directory: &Directory, first: u32| {
            let absent = first + 2 * NODES..first + 3 * NODES;
            [
                count(&words, directory, first..first + NODES, true),
                count(&words, directory, absent, false),
            ]
        };
        let directory = open(&words, true);
        let filled = is_met("filled", both(&directory, 0), 9_500);
        let without = is_met("without hints", both(&open(&words, false), 0), 7_000);
        // A tenth of the nodes leaves, and others come.
        let changed = NODES / 10;
        for node in 0..changed {
            table.remove(key(node)).unwrap();
            table.insert(key(NODES + node), target(rng)).unwrap();
        }
        let older = is_met("older hints", both(&directory, changed), 9_300);
        // Ten times as many changes as nodes.
        let mut first = changed;
        for _ in 0..NODES * 10 {
            table.remove(key(first)).unwrap();
            table.insert(key(first + NODES), target(rng)).unwrap();
            first += 1;
        }
        let changed = is_met("changed", both(&open(&words, true), first), 9_500);
        assert!(filled && without && older && changed, "seed {seed}");
    }
}

#[test]
fn table_takes_85_percent_of_its_entries() {
    let words = memory();
    let rng = &mut Rng::new(4);
    let mut table = table_of(&words, rng.bits());
    let entries = BUCKETS * ENTRIES_PER_BUCKET as u32;
    let mut nodes = 0..entries;
    let refused = nodes.find(|node| table.insert(key(*node), target(rng)).is_err());
    println!("the first refused node is number {refused:?} of {entries}");
    assert!(table.len() >= entries * 85 / 100, "{refused:?}");
    assert_eq!(table.memory().len_words(), words.len());
}
