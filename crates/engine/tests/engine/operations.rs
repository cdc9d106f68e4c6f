//! What goes well.

use std::io::Read;

use urdma_engine::{CompletionOp, Notify, Payload, SendFlags, SendOp, SendWr, Status};

use crate::rig::{pair, until, End, DEPTH};

fn fill(end: &mut End, seed: u8) {
    for (at, octet) in end.memory.iter_mut().enumerate() {
        *octet = (at as u8).wrapping_mul(31).wrapping_add(seed);
    }
}

#[test]
fn send_of_many_sizes_arrives_whole() {
    let (mut a, mut b) = pair(1 << 20);
    fill(&mut a, 1);
    for (id, len) in [0, 1, 64, 1000, 4096, 65_000, 65_536, 70_000, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let id = id as u64;
        b.memory.fill(0);
        b.receive(id, &[b.sge(0, 1 << 20)]).unwrap();
        a.post(id, SendOp::Send, &[a.sge(0, len)]).unwrap();
        let received = b.expect(id, Status::Success).completion;
        assert_eq!(
            (received.op, received.byte_len),
            (CompletionOp::Recv, len as u32)
        );
        assert_eq!(a.memory[..len], b.memory[..len], "{len}");
        assert!(b.memory[len..].iter().all(|&octet| octet == 0));
        a.expect(id, Status::Success);
    }
}

#[test]
fn send_with_lists_inline_and_immediate_data_arrives() {
    let (mut a, mut b) = pair(4096);
    fill(&mut a, 7);
    b.memory.fill(0);
    b.receive(1, &[b.sge(0, 10), b.sge(100, 200)]).unwrap();
    let list = [a.sge(5, 20), a.sge(50, 0), a.sge(1000, 30)];
    a.post_with(1, SendOp::Send, Some(0xdead_beef), true, &list)
        .unwrap();
    let received = b.expect(1, Status::Success).completion;
    assert_eq!((received.imm, received.byte_len), (Some(0xdead_beef), 50));
    let sent: Vec<u8> = [&a.memory[5..25], &a.memory[1000..1030]].concat();
    let got: Vec<u8> = [&b.memory[..10], &b.memory[100..140]].concat();
    assert_eq!(sent, got);
    a.expect(1, Status::Success);

    b.receive(2, &[b.sge(0, 100)]).unwrap();
    let inline: [&[u8]; 2] = [b"one ", b"two"];
    a.engine
        .post_send(
            &a.qp,
            &SendWr {
                wr_id: 2,
                op: SendOp::Send,
                imm: None,
                flags: SendFlags {
                    signaled: true,
                    ..SendFlags::default()
                },
                shared_queue: 0,
                payload: Payload::Inline(&inline),
            },
        )
        .unwrap();
    b.expect(2, Status::Success);
    assert_eq!(&b.memory[..7], b"one two");
}

#[test]
fn write_and_read_are_served_by_a_process_that_does_nothing() {
    let (mut a, mut b) = pair(300_000);
    fill(&mut a, 3);
    b.memory.fill(0);
    let write = SendOp::Write {
        remote: b.remote(1000),
    };
    a.post(1, write, &[a.sge(0, 200_000)]).unwrap();
    a.expect(1, Status::Success);
    assert_eq!(a.memory[..200_000], b.memory[1000..201_000]);
    assert!(b.memory[..1000].iter().all(|&octet| octet == 0));
    let read = SendOp::Read {
        remote: b.remote(1500),
    };
    a.post(2, read, &[a.sge(200_000, 100_000)]).unwrap();
    assert_eq!(
        a.expect(2, Status::Success).completion.op,
        CompletionOp::Read
    );
    assert_eq!(a.memory[200_000..], b.memory[1500..101_500]);
    assert!(b.poll().is_empty());
}

#[test]
fn write_with_immediate_data_completes_at_the_peer() {
    let (a, b) = pair(4096);
    b.receive(9, &[]).unwrap();
    let write = SendOp::Write {
        remote: b.remote(8),
    };
    a.post_with(1, write, Some(5), true, &[a.sge(0, 100)])
        .unwrap();
    let received = b.expect(9, Status::Success).completion;
    assert_eq!(received.op, CompletionOp::RecvWriteImm);
    assert_eq!((received.imm, received.byte_len), (Some(5), 100));
    a.expect(1, Status::Success);
}

#[test]
fn atomics_from_both_ends_add_up() {
    let (a, b) = pair(64);
    for round in 0..100u64 {
        for (me, peer) in [(&a, &b), (&b, &a)] {
            let add = SendOp::FetchAdd {
                remote: peer.remote(8),
                add: 3,
            };
            me.post(round, add, &[me.sge(0, 8)]).unwrap();
            me.expect(round, Status::Success);
            let old = u64::from_ne_bytes(me.memory[..8].try_into().unwrap());
            assert_eq!(old, round * 3);
        }
    }
    let swap = SendOp::CompareSwap {
        remote: b.remote(8),
        compare: 300,
        swap: 42,
    };
    a.post(1, swap, &[a.sge(0, 8)]).unwrap();
    a.expect(1, Status::Success);
    assert_eq!(u64::from_ne_bytes(b.memory[8..16].try_into().unwrap()), 42);
}

#[test]
fn stream_of_sends_both_ways_keeps_order_and_loses_nothing() {
    let (a, b) = pair(64 * DEPTH as usize);
    let (count, depth) = (20_000u64, u64::from(DEPTH) / 2);
    std::thread::scope(|scope| {
        for end in [&a, &b] {
            scope.spawn(move || {
                let (mut posted, mut received, mut sent) = (0, 0, 0);
                for id in 0..depth {
                    end.receive(id, &[end.sge(0, 64)]).unwrap();
                }
                until("the stream", || {
                    while posted < count && posted - sent < depth {
                        end.post(posted, SendOp::Send, &[end.sge(64, 64)]).unwrap();
                        posted += 1;
                    }
                    for wc in end.poll() {
                        assert_eq!(wc.completion.status, Status::Success);
                        if wc.completion.is_send() {
                            assert_eq!(wc.completion.wr_id, sent);
                            sent += 1;
                        } else {
                            assert_eq!(wc.completion.wr_id, received);
                            received += 1;
                            let id = received + depth - 1;
                            end.receive(id, &[end.sge(0, 64)]).unwrap();
                        }
                    }
                    sent == count && received == count
                });
            });
        }
    });
}

/// Those that leave together share packets; each comes whole to its own place, with what belongs to
/// it.
#[test]
fn short_messages_posted_in_a_row_arrive_whole() {
    const COUNT: usize = 100;
    const PLACE: usize = 300;
    let (mut a, mut b) = pair(COUNT * PLACE);
    fill(&mut a, 3);
    b.memory.fill(0);
    let len = |i: usize| i * 37 % 290;
    let is_write = |i: usize| i % 4 == 1;
    for i in (0..COUNT).filter(|&i| !is_write(i)) {
        b.receive(i as u64, &[b.sge(i * PLACE, PLACE)]).unwrap();
    }
    for i in 0..COUNT {
        let begin = i * PLACE;
        let half = len(i) / 2;
        let list = [a.sge(begin, half), a.sge(begin + half, len(i) - half)];
        let (op, imm) = if is_write(i) {
            let remote = b.remote(begin);
            (SendOp::Write { remote }, None)
        } else {
            (SendOp::Send, (i % 3 == 0).then_some(i as u32))
        };
        a.post_with(i as u64, op, imm, true, &list).unwrap();
    }
    let received = b.wait((0..COUNT).filter(|&i| !is_write(i)).count());
    let sent = a.wait(COUNT);
    for (wc, i) in sent.iter().zip(0..) {
        assert_eq!(
            (wc.completion.wr_id, wc.completion.status),
            (i, Status::Success)
        );
    }
    for (wc, i) in received.iter().zip((0..COUNT).filter(|&i| !is_write(i))) {
        let completion = wc.completion;
        assert_eq!(completion.wr_id, i as u64);
        assert_eq!(completion.byte_len, len(i) as u32);
        assert_eq!(completion.imm, (i % 3 == 0).then_some(i as u32));
    }
    for i in 0..COUNT {
        let (begin, end) = (i * PLACE, i * PLACE + len(i));
        assert_eq!(b.memory[begin..end], a.memory[begin..end], "{i}");
        assert!(b.memory[end..begin + PLACE].iter().all(|&octet| octet == 0));
    }
}

#[test]
fn unsignaled_sends_complete_silently_and_free_their_room() {
    let (a, b) = pair(4096);
    for id in 0..u64::from(DEPTH) * 4 {
        b.receive(id, &[b.sge(0, 64)]).unwrap();
        until("room", || {
            a.poll();
            a.post_with(id, SendOp::Send, None, id % 50 == 49, &[a.sge(0, 64)])
                .is_ok()
        });
        b.expect(id, Status::Success);
    }
}

#[test]
fn armed_queue_wakes_a_sleeper() {
    let (a, mut b) = pair(4096);
    b.channel
        .set_read_timeout(Some(crate::rig::MAX_WAIT))
        .unwrap();
    for id in 0..200 {
        b.receive(id, &[b.sge(0, 64)]).unwrap();
        b.engine.req_notify_cq(&b.cq, Notify::Any).unwrap();
        assert!(b.poll().is_empty());
        a.post(id, SendOp::Send, &[a.sge(0, 64)]).unwrap();
        let mut cookie = [0; 8];
        b.channel.read_exact(&mut cookie).unwrap();
        assert_eq!(u64::from_ne_bytes(cookie), 77);
        b.expect(id, Status::Success);
        a.expect(id, Status::Success);
    }
}

#[test]
fn process_that_looks_at_memory_is_served_though_it_polls_now_and_then() {
    let (mut a, mut b) = pair(4096);
    for round in 1..=200u8 {
        for turn in 0..2 {
            let (me, peer) = if turn == 0 {
                (&mut a, &b)
            } else {
                (&mut b, &a)
            };
            me.memory[0] = round;
            let write = SendOp::Write {
                remote: peer.remote(1),
            };
            me.post(round.into(), write, &[me.sge(0, 1)]).unwrap();
            me.expect(round.into(), Status::Success);
            until("the octet", || peer.octet(1) == round);
        }
    }
}

#[test]
fn many_large_reads_at_a_time_come_back_in_order() {
    const LEN: usize = 65_536;
    let (mut a, mut b) = pair(LEN * 2);
    fill(&mut a, 0);
    fill(&mut b, 5);
    let (count, depth) = (1000, u64::from(DEPTH));
    let (mut posted, mut done) = (0u64, 0u64);
    until("the reads", || {
        while posted < count && posted - done < depth {
            let read = SendOp::Read {
                remote: b.remote(posted as usize),
            };
            a.post(posted, read, &[a.sge(0, LEN)]).unwrap();
            posted += 1;
        }
        for wc in a.poll() {
            assert_eq!(
                (wc.completion.wr_id, wc.completion.status),
                (done, Status::Success)
            );
            done += 1;
        }
        done == count
    });
    assert_eq!(a.memory[..LEN], b.memory[count as usize - 1..][..LEN]);
}
