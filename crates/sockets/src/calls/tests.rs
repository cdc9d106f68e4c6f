//! Attempts of calls, both ends in this process.

use libc::iovec;
use urdma_socket_switch::{End, Word};

use super::*;
use crate::host::tests::{ends, join_both, put, take};

/// One attempt of a receive of 100 octets that waits; what it has asked for.
fn attempt(connection: &Connection, has_spun: bool) -> (Attempt, u64) {
    let mut octets = [0_u8; 100];
    let part = iovec {
        iov_base: octets.as_mut_ptr().cast(),
        iov_len: octets.len(),
    };
    // SAFETY: an array of one part, which lives as long as the attempt.
    let octets = unsafe { Octets::new(&raw const part, 1) }.unwrap();
    let attempt = try_recv(connection, &octets.after(0), 0, has_spun);
    let asked = connection.load(Word::ReaderSleeps(connection.end.peer()));
    (attempt, asked)
}

#[test]
fn receive_asks_for_a_wake_up_only_when_it_has_spun() {
    let [one, other] = ends();
    join_both([&one, &other]);
    assert_eq!(one.end, End::First);
    // By TCP, whose octets the kernel announces.
    assert!(matches!(attempt(&one, false), (Attempt::Nothing, 0)));
    assert_eq!(put(&other, b"over the ring"), Some(13));
    assert_eq!(take(&one, 100).unwrap(), b"over the ring");
    assert!(matches!(attempt(&one, false), (Attempt::Nothing, 0)));
    let (waits, asked) = attempt(&one, true);
    assert!(matches!(waits, Attempt::Waits(Event::Readable)));
    assert_ne!(asked, 0);
    assert_eq!(put(&other, b"again"), Some(5));
    assert!(matches!(attempt(&one, false), (Attempt::Moved(5), 0)));
}
