//! Nodes that are known and not used: what reaches them is kept, and nothing else.

use std::net::SocketAddr;
use std::time::Instant;

use urdma_pool_verbs::Status;
use urdma_tests::alone;

use super::switch::told;
use super::{address_in, kill, read_from_each, Over, Pool, Reader, LIMIT, MANY, READ, SECOND};

/// Reads from many nodes, one after the other, again and again: each is asked once. Those over IPv6
/// stay in the pool, since records have no room for them.
pub(super) fn return_to_many(first: SocketAddr) {
    let nodes_max = match first.is_ipv6() {
        true => MANY.into(),
        false => 2,
    };
    let mut reader = Reader::new(first);
    reader.client.close(reader.qp).unwrap();
    for round in 0..4 {
        read_from_each(&mut reader, first, round * READ, nodes_max);
    }
    assert_eq!(reader.client.learned().by_asking, u64::from(MANY));
    println!("done");
}

/// A node begins anew while it is not used: that is found out by the first request, and the node is
/// asked again.
pub(super) fn return_to_another(address: SocketAddr) {
    let mut reader = Reader::new(address);
    reader.expect_read(0);
    reader.client.close(reader.qp).unwrap();
    reader.address = address_in(SECOND);
    reader.open().unwrap();
    reader.client.close(reader.qp).unwrap();
    assert_eq!(reader.client.pool().nodes(), 1);
    println!("away");
    let began = Instant::now();
    while !told("anew").exists() {
        assert!(began.elapsed() < LIMIT, "the node does not begin anew");
        std::thread::yield_now();
    }
    reader.address = address;
    reader.open().unwrap();
    assert_eq!(reader.client.learned().by_asking, 2);
    assert_ne!(reader.read(0).status, Status::Success);
    reader.client.close(reader.qp).unwrap();
    reader.open().unwrap();
    assert_eq!(reader.client.learned().by_asking, 3);
    reader.expect_read(READ);
    println!("done");
}

#[test]
fn nodes_that_are_not_used_are_reached_again_without_a_question() {
    let _alone = alone();
    returns_to_many(Pool::up(Over::Initiators));
}

#[test]
fn nodes_over_ipv6_that_are_not_used_are_reached_again_without_a_question() {
    let _alone = alone();
    returns_to_many(Pool::up_over_ipv6());
}

fn returns_to_many(pool: Pool) {
    let nodes = pool.start("nodes", &pool.addresses[0], "listens");
    let client = pool.client("returns to many", "done");
    pool.expect_success(client, vec![nodes]);
}

#[test]
fn node_that_begins_anew_while_it_is_not_used_is_asked_again() {
    let _alone = alone();
    let pool = Pool::up(Over::Initiators);
    let (node, second) = (pool.node(), pool.second_node());
    let client = pool.client("returns to another", "away");
    kill(node);
    let node = pool.node();
    std::fs::write(pool.libraries.path().join("anew"), []).unwrap();
    pool.expect_success(client, vec![node, second]);
}
