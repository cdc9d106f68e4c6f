//! A key-value store in a node's memory, measured by `urdma_perf::store`:
//!
//! ```text
//! urdma-perf-store node ADDRESS                              the node; polls
//! urdma-perf-store work connections|initiators ADDRESS       a worker; figures
//! ```

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Instant;

use urdma_perf::pool::{config, Way};
use urdma_perf::store::{value, FIRST, GET, INSERT, KEYS, LISTENING, NEW_USER, REPLACE, USER};
use urdma_pool_verbs::{Client, Geometry, Store, StoreError, Transport, UserId};

/// Slots for 65,536 keys, of which a quarter is used.
const GEOMETRY: Geometry = Geometry {
    seed: 1,
    buckets: 8192,
    blocks: 32_768,
    block_octets: 128,
    extent_blocks: 256,
};
const OTHER_USER: UserId = UserId(2);
/// Turns of the node between looks for workers.
const TURNS: u32 = 256;

fn main() -> ExitCode {
    let began = Instant::now();
    match run(began) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-store: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(began: Instant) -> Result<(), String> {
    const USAGE: &str =
        "usage: urdma-perf-store node ADDRESS | work connections|initiators ADDRESS";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (transport, at) = match arguments[..] {
        ["node", at] => (None, at),
        ["work", way, at] => {
            let transport = Way::from_name(way).and_then(Way::transport);
            (Some(transport.ok_or(USAGE)?), at)
        }
        _ => return Err(USAGE.into()),
    };
    let at = at.parse().map_err(|_| USAGE)?;
    let ended = match transport {
        None => serve(at),
        Some(transport) => work(at, transport, began),
    };
    ended.map_err(|error| error.to_string())
}

fn serve(at: SocketAddr) -> Result<(), StoreError> {
    let mut node = Store::offer(at, &GEOMETRY)?;
    node.offer_target()?;
    println!("{LISTENING}");
    loop {
        node.turn()?;
        for _ in 0..TURNS {
            node.progress()?;
        }
        std::thread::yield_now();
    }
}

/// The median of the times of a call for each key, in microseconds.
fn median_us(mut call: impl FnMut(u32) -> Result<(), StoreError>) -> Result<f64, StoreError> {
    let mut ns = Vec::with_capacity(KEYS as usize);
    for n in 0..KEYS {
        let began = Instant::now();
        call(n)?;
        ns.push(began.elapsed().as_nanos());
    }
    ns.sort_unstable();
    Ok(ns[ns.len() / 2] as f64 / 1e3)
}

fn work(at: SocketAddr, transport: Transport, began: Instant) -> Result<(), StoreError> {
    let mut client = Client::new(at.ip(), &config(transport))?;
    let mut store = Store::open(&mut client, USER, at)?;
    assert_eq!(store.get(&mut client, b"none")?, None);
    let first_us = began.elapsed().as_secs_f64() * 1e6;
    let mut put = |n: u32, round| {
        let replaced = store.put(&mut client, &n.to_ne_bytes(), &value(n, round))?;
        assert_eq!(replaced, round > 0, "key {n}");
        Ok(())
    };
    let insert_us = median_us(|n| put(n, 0))?;
    let replace_us = median_us(|n| put(n, 1))?;
    let get_us = median_us(|n| {
        let found = store.get(&mut client, &n.to_ne_bytes())?;
        assert_eq!(found.as_deref(), Some(&value(n, 1)[..]), "key {n}");
        Ok(())
    })?;
    let new_user_us = median_us(|_| {
        let mut other = Store::open(&mut client, OTHER_USER, at)?;
        assert_eq!(other.get(&mut client, b"none")?, None);
        other.close(&mut client)
    })?;
    println!("{NEW_USER}{new_user_us:.4}");
    println!("{FIRST}{first_us:.1}\n{INSERT}{insert_us:.4}");
    println!("{REPLACE}{replace_us:.4}\n{GET}{get_us:.4}");
    store.close(&mut client)
}
