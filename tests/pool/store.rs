//! A key-value store in a node's memory (`urdma_pool_verbs::Store`): workers in processes of their
//! own, one of which is killed at work.

use std::net::SocketAddr;

use nix::sys::signal::Signal;
use urdma_pool_verbs::{Geometry, GeometryError, Store, StoreError};
use urdma_tests::{alone, CHECK_LIMIT};

use super::{address_in, new_client, Over, Pool, SECOND, USER};

const GEOMETRY: Geometry = Geometry {
    seed: 7,
    buckets: 64,
    blocks: 2048,
    block_octets: 64,
    extent_blocks: 16,
};
/// Keys of each worker.
const KEYS: u32 = 100;
/// How often a worker changes each of them.
const ROUNDS: u32 = 20;

fn key(worker: u32, n: u32) -> Vec<u8> {
    format!("{worker}/{n}").into_bytes()
}

fn value(worker: u32, n: u32, round: u32) -> Vec<u8> {
    format!("{worker} has {n} in {round}").into_bytes()
}

/// A node with a store.
pub(super) fn offer(address: SocketAddr) {
    let mut node = Store::offer(address, &GEOMETRY).unwrap();
    if std::env::var(super::OVER).unwrap() == "initiators" {
        node.offer_target().unwrap();
    }
    println!("listens");
    loop {
        node.turn().unwrap();
        std::thread::yield_now();
    }
}

/// Puts, gets and deletes keys of its own, and one that all workers change, and checks each answer.
pub(super) fn work(address: SocketAddr, worker: u32) {
    let mut client = new_client();
    let mut store = Store::open(&mut client, USER, address).unwrap();
    for round in 0..ROUNDS {
        for n in 0..KEYS {
            let key = key(worker, n);
            let before = (round > 0 && n % 3 > 0).then(|| value(worker, n, round - 1));
            assert_eq!(store.get(&mut client, &key).unwrap(), before);
            let is_there = store.put(&mut client, &key, &value(worker, n, round));
            assert_eq!(is_there.unwrap(), before.is_some());
            if n % 3 == 0 {
                assert!(store.delete(&mut client, &key).unwrap());
                assert!(!store.delete(&mut client, &key).unwrap());
            }
        }
        match store.put(&mut client, b"shared", &value(worker, 0, round)) {
            Ok(_) | Err(StoreError::Operation(_)) => {}
            Err(error) => panic!("{error}"),
        }
        if round == 0 {
            println!("works");
        }
    }
    let shared = store.get(&mut client, b"shared").unwrap().unwrap();
    assert!(String::from_utf8(shared).unwrap().contains(" has 0 in "));
    let too_long = store.put(&mut client, b"long", &[0; 64]);
    assert!(matches!(too_long, Err(StoreError::Operation(_))));
    store.close(&mut client).unwrap();
}

/// Looks up all keys that a worker has left.
pub(super) fn look(address: SocketAddr) {
    let mut client = new_client();
    let mut store = Store::open(&mut client, USER, address).unwrap();
    for n in 0..KEYS {
        let found = store.get(&mut client, &key(1, n)).unwrap();
        let left = (n % 3 > 0).then(|| value(1, n, ROUNDS - 1));
        assert_eq!(found, left, "{n}");
    }
    store.close(&mut client).unwrap();
    let other = Store::open(&mut client, USER, address_in(SECOND));
    assert!(matches!(
        other,
        Err(StoreError::Geometry(GeometryError::NoStore))
    ));
}

/// Two workers at a time, and a third one that is killed; what one has left is there.
fn workers_share_a_store(over: Over) {
    let _alone = alone();
    let pool = Pool::up(over);
    let node = pool.start("store", &pool.addresses[0], "listens");
    let other = pool.second_node();
    let start = |role| pool.client(role, "works");
    let [first, second, killed] = ["worker 1", "worker 2", "worker 3"].map(start);
    killed.signal(Signal::SIGKILL).unwrap();
    killed.wait(CHECK_LIMIT).unwrap();
    for worker in [first, second] {
        let ended = worker.wait(CHECK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    let look = pool.client("looks", "");
    pool.expect_success(look, vec![node, other]);
}

#[test]
fn workers_share_a_store_over_connections() {
    workers_share_a_store(Over::Connections);
}

#[test]
fn workers_share_a_store_over_initiators() {
    workers_share_a_store(Over::Initiators);
}
