//! The checker: tables under random changes, and clients whose READs are torn, against a plain map.
//!
//! `log` is the memory of a table that keeps each store, so that a READ takes every word at a
//! moment of its own; `world` makes the changes and knows what the table had at each moment;
//! `client` looks up nodes in the log and judges the answers; `schedules` runs them with random
//! configurations and asserts that each deliberate fault is found. `load` counts READs at a load of
//! 0.7, and `garbage` has tables that no owner wrote. A failing seed is printed; `URDMA_SEED` runs
//! it alone.

mod client;
mod garbage;
mod load;
mod log;
mod schedules;
mod world;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use urdma_types::{seeds, Rng};

use crate::{NodeKey, Region, Target};

/// What the table or the client did wrong.
type Finding = String;

/// Runs `test` on the seed of `URDMA_SEED`, or on as many seeds as `URDMA_SIM_SEEDS` says, or
/// `usual`.
fn for_each_seed(usual: u64, test: impl Fn(u64) -> Result<(), Finding>) {
    for seed in seeds(usual) {
        if let Err(finding) = test(seed) {
            panic!(
                "{finding}; to see this again: URDMA_SEED={seed} cargo test -p urdma-node-table"
            );
        }
    }
}

/// Node number `index`: every third one has an IPv6 address, and neighbours share a host.
fn key(index: u32) -> NodeKey {
    let port = 7000 + (index % 2) as u16;
    let host = index / 2;
    NodeKey::new(match index % 3 {
        0 => SocketAddr::from((Ipv6Addr::from(0x2001_0db8 << 96 | u128::from(host)), port)),
        _ => SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + host), port)),
    })
}

fn target(rng: &mut Rng) -> Target {
    let region = Region {
        rkey: rng.bits32(),
        addr: rng.bits(),
        len_octets: rng.bits(),
    };
    Target::new(rng.bits32() >> 8, rng.bits(), region).unwrap()
}
