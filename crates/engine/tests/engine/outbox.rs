//! Short messages that share frames arrive complete and in order, for any order of polling.

use super::rig::*;
use urdma_arena::{Arena, ArenaConfig};
use urdma_engine::SendOp;

/// Octets of a message.
const LEN: usize = 24;
/// Messages that leave at once although the application does not poll.
const AT_ONCE: usize = 8;

/// Octets of memory of an end: half for what is sent, half for what arrives.
const MEMORY: usize = 2 * DEPTH as usize * LEN;

/// Where the `i`-th message arrives.
fn place(i: usize) -> usize {
    MEMORY / 2 + i % DEPTH as usize * LEN
}

/// Whether the `i`-th message has arrived at `to` as it was sent.
fn is_whole(to: &End, i: usize) -> bool {
    let octet = u8::try_from(i % 251).unwrap();
    (place(i)..place(i) + LEN).all(|at| to.octet(at) == octet)
}

/// Fills the `i`-th message with what only it holds and sends it.
fn send(from: &mut End, i: usize) {
    let octet = u8::try_from(i % 251).unwrap();
    let at = i % DEPTH as usize * LEN;
    from.memory[at..at + LEN].fill(octet);
    from.post(i as u64, SendOp::Send, &[from.sge(at, LEN)])
        .unwrap();
}

fn receive(to: &End, i: usize) {
    to.receive(i as u64, &[to.sge(place(i), LEN)]).unwrap();
}

/// Takes the next receive completions, which must be those from the `from`-th on; gives how many
/// came.
fn take(to: &End, from: usize) -> usize {
    let found = to.poll();
    for (completion, i) in found.iter().zip(from..) {
        assert_eq!(completion.completion.wr_id, i as u64);
        assert_eq!(completion.completion.byte_len as usize, LEN);
        assert!(is_whole(to, i), "{i}");
    }
    found.len()
}

#[test]
fn requests_without_a_poll_in_between_wait_for_one() {
    let (mut a, b) = still_pair(arena(), MEMORY);
    let count = AT_ONCE + 5;
    (0..count).for_each(|i| receive(&b, i));
    (0..count).for_each(|i| send(&mut a, i));
    assert_eq!(take(&b, 0), AT_ONCE);
    assert_eq!(take(&b, AT_ONCE), 0);
    a.poll();
    assert_eq!(take(&b, AT_ONCE), 5);
}

#[test]
fn poll_that_finds_a_completion_sends_what_waits() {
    let (mut a, b) = still_pair(arena(), MEMORY);
    let count = 1 + AT_ONCE + 4;
    (0..count).for_each(|i| receive(&b, i));
    send(&mut a, 0);
    assert_eq!(take(&b, 0), 1);
    // The acknowledgement, which was put off.
    b.poll();
    // Takes it, and leaves the completion where it is.
    a.engine.poll_cq(&a.cq, 0, |_| {}).unwrap();
    (1..count).for_each(|i| send(&mut a, i));
    assert_eq!(take(&b, 1), AT_ONCE);
    let polled = a.engine.poll_cq(&a.cq, 1, |_| {}).unwrap();
    assert_eq!(polled, 1);
    assert_eq!(take(&b, 1 + AT_ONCE), 4);
}

#[test]
fn what_waits_leaves_without_another_call_of_the_application() {
    let (mut a, b) = pair(MEMORY);
    let count = 60;
    (0..count).for_each(|i| receive(&b, i));
    a.poll();
    (0..count).for_each(|i| send(&mut a, i));
    let mut next = 0;
    until("all messages", || {
        next += take(&b, next);
        next == count
    });
}

/// Messages in both directions through an arena in which rings or frames run out all the time.
fn crowd(config: &ArenaConfig) {
    let (mut a, mut b) = still_pair(Arena::create(config).unwrap(), MEMORY);
    let count = 2000;
    let window = 60;
    let mut posted = [0, 0];
    let mut taken = [0, 0];
    let mut completed = [0, 0];
    (0..window).for_each(|i| [&a, &b].iter().for_each(|end| receive(end, i)));
    until("all messages", || {
        for (which, from) in [&mut a, &mut b].into_iter().enumerate() {
            // Each message has a receive request, since no timer would end the wait after an RNR.
            let done = taken[which].min(completed[which]);
            while posted[which] < count.min(done + window) {
                send(from, posted[which]);
                posted[which] += 1;
            }
        }
        for (which, to) in [&mut b, &mut a].into_iter().enumerate() {
            for wc in to.poll() {
                if wc.completion.is_send() {
                    completed[1 - which] += 1;
                    continue;
                }
                let i = taken[which];
                assert_eq!(wc.completion.wr_id, i as u64);
                assert!(is_whole(to, i), "{i}");
                taken[which] += 1;
                receive(to, i + window);
            }
        }
        completed == [count, count] && taken == [count, count]
    });
}

#[test]
fn messages_keep_their_order_when_rings_are_full() {
    crowd(&ArenaConfig {
        slots: 3,
        ring_cells: 2,
        ..ArenaConfig::default()
    });
}

#[test]
fn messages_keep_their_order_when_frames_are_short() {
    crowd(&ArenaConfig {
        slots: 3,
        small_frames: 2,
        ..ArenaConfig::default()
    });
}
