//! The numbers of ids, which are given again.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use urdma_ucma::abi::event;

use crate::rig::Pair;

#[test]
fn numbers_of_destroyed_ids_are_given_again_later() {
    let pair = Pair::new();
    let kept = pair.client.create(1);
    let mut last = Vec::new();
    for _ in 0..10_000 {
        let id = pair.client.create(2);
        assert!(id != kept && id < 100, "{id}");
        assert!(!last.iter().rev().take(50).any(|before| *before == id));
        last.push(id);
        pair.client.destroy(id).unwrap();
        assert_eq!(pair.client.destroy(id), Err(libc::ENOENT));
    }
}

#[test]
fn late_answer_of_a_resolution_does_not_concern_the_next_id_of_the_number() {
    let pair = Pair::new();
    let destroyed = pair.client.create(1);
    pair.client.resolve(destroyed, "10.0.0.6:1").unwrap();
    pair.client.destroy(destroyed).unwrap();
    let next = std::iter::repeat_with(|| {
        let id = pair.client.create(2);
        if id != destroyed {
            pair.client.destroy(id).unwrap();
        }
        id
    });
    let next = next.take(1000).find(|id| *id == destroyed).unwrap();
    pair.client.resolve(next, "10.0.0.7:1").unwrap();
    pair.host.now_ns.store(1, Ordering::Relaxed);
    // The thread of the other resolution stays.
    while Arc::strong_count(&pair.client.ucma) > 2 {
        std::thread::yield_now();
    }
    assert_eq!(pair.client.event().err(), Some(libc::EAGAIN));
    let own = pair.client.create(3);
    pair.client.resolve(own, "10.0.0.9:1").unwrap();
    pair.client.wait();
    assert_eq!(pair.client.expect(event::ADDR_RESOLVED).uid, 3);
}
