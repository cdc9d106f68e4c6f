//! Moves to TCP, both ends in this process.

use std::time::Duration;

use urdma_socket_switch::settle;

use super::*;
use crate::host::tests::{call, ends, join_both, put};

#[test]
fn move_to_tcp_ends_when_tcp_has_carried_what_was_handed_back() {
    const LATE: &[u8] = b"late";
    let [one, other] = ends();
    join_both([&one, &other]);
    assert_eq!(put(&other, b"in the ring"), Some(11));
    call(&other, |call| settle(call)).unwrap();
    assert!(one.has_arrived());
    // Of what was handed back, TCP carries some octets when the move is in progress.
    let until = other.block().word(Word::TcpUntil(other.end));
    until.fetch_add(LATE.len() as u64, SeqCst);
    assert!(!one.has_arrived());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while other.load(Word::Refusals(one.end)) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            let (octets, fd) = (LATE.as_ptr().cast(), other.socket());
            // SAFETY: the octets of above.
            let sent = unsafe { libc::send(fd, octets, LATE.len(), 0) };
            assert_eq!(usize::try_from(sent), Ok(LATE.len()));
        });
        move_to_tcp(&one, 0);
        assert!(one.has_arrived());
    });
}
