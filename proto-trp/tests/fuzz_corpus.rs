//! Replays the fuzzing corpus, and small damage to each of its files, without a fuzzer.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

#[allow(unreachable_pub)] // public in the fuzzing crate
#[path = "../fuzz/src/targets.rs"]
mod targets;

/// The files of a target's directory.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let files = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    files
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect()
}

#[test]
fn corpus_of_every_target_passes() {
    for (name, target) in targets::ALL {
        let seeds = corpus(name);
        assert!(!seeds.is_empty(), "{name} has no corpus");
        seeds.iter().for_each(|seed| target(seed));
    }
}

#[test]
fn damaged_corpus_of_every_target_passes() {
    for (name, target) in targets::ALL {
        for mut seed in corpus(name) {
            for len in 0..seed.len() {
                target(&seed[..len]);
            }
            for at in 0..seed.len() {
                let octet = seed[at];
                for bit in 0..8 {
                    seed[at] = octet ^ 1 << bit;
                    target(&seed);
                }
                for value in [0, 0x7f, 0xff] {
                    seed[at] = value;
                    target(&seed);
                }
                seed[at] = octet;
            }
        }
    }
}
