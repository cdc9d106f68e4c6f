//! What happens to connections over a channel: refusals, pauses, the ends of queue pairs and
//! processes, and operations that random exchanges do not have.
#![allow(clippy::unwrap_used)]

use proto_trp::conn::{
    Completion, CompletionOp, Event, Payload, QpState, RecvWr, SendOp, SendWr, Sge, Status, Time,
};
use proto_trp::wire::{MessageFlags, MessageHead, MessageKind};
use trp_sim::{ChannelSetup, ChannelWorld, Ends, Rights, Setup, SimHost, SIGNALED};

const MS: u64 = 1_000_000;

fn setup() -> ChannelSetup {
    ChannelSetup {
        ends: Setup {
            // 1 ms.
            min_rnr_timer: 14,
            ..Setup::default()
        },
        ..ChannelSetup::default()
    }
}

fn memory(world: &mut ChannelWorld, end: usize, len: usize) -> u32 {
    let fill = u8::try_from(end + 1).unwrap();
    let mut pair = world.pair(0);
    pair.host_mut(end).register(vec![fill; len], Rights::ALL)
}

fn post_wr(world: &mut ChannelWorld, end: usize, wr: &SendWr<'_>) {
    let now = world.now;
    let mut pair = world.pair(0);
    let (conn, host) = pair.alive(end).unwrap();
    conn.post_send(|| now, wr, host).unwrap();
}

fn wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        imm: None,
        flags: SIGNALED,
        shared_queue: 0,
        payload: Payload::Sges(sges),
    }
}

fn post(world: &mut ChannelWorld, end: usize, wr_id: u64, op: SendOp, sges: &[Sge]) {
    post_wr(world, end, &wr(wr_id, op, sges));
}

fn post_recv(world: &mut ChannelWorld, end: usize, wr_id: u64, sges: &[Sge]) {
    let mut pair = world.pair(0);
    let (conn, host) = pair.alive(end).unwrap();
    conn.post_recv(&RecvWr { wr_id, sges }, host).unwrap();
}

fn completions(world: &mut ChannelWorld, end: usize) -> Vec<Completion> {
    let mut pair = world.pair(0);
    pair.host_mut(end).completions.drain(..).collect()
}

fn outcome(world: &mut ChannelWorld, end: usize) -> Vec<(u64, Status)> {
    let completions = completions(world, end).into_iter();
    completions.map(|c| (c.wr_id, c.status)).collect()
}

fn events(world: &mut ChannelWorld, end: usize) -> Vec<Event> {
    world.pair(0).host_mut(end).events.drain(..).collect()
}

/// Posts a Send of 64 octets.
fn send(world: &mut ChannelWorld, end: usize, wr_id: u64) {
    let key = memory(world, end, 64);
    post(world, end, wr_id, SendOp::Send, &[SimHost::sge(key, 0, 64)]);
}

fn recv(world: &mut ChannelWorld, end: usize, wr_id: u64) -> u32 {
    let key = memory(world, end, 64);
    post_recv(world, end, wr_id, &[SimHost::sge(key, 0, 64)]);
    key
}

fn state(world: &mut ChannelWorld, end: usize) -> QpState {
    world.conn(end, 0).state()
}

fn to_error(world: &mut ChannelWorld, end: usize) {
    let mut pair = world.pair(0);
    let (conn, host) = pair.alive(end).unwrap();
    conn.to_error(host);
}

#[test]
fn message_without_receive_request_is_sent_again_after_the_pause() {
    let mut world = ChannelWorld::new(&setup(), 1);
    send(&mut world, 0, 1);
    send(&mut world, 0, 2);
    world.run(MS / 2);
    assert_eq!(outcome(&mut world, 0), []);
    assert_eq!(world.conn(1, 0).stats().rnr_sent, 1);
    let key = recv(&mut world, 1, 7);
    recv(&mut world, 1, 8);
    // NOT_READY with the shortest code ends the pause early.
    world.run(MS / 10);
    let done = |ids: [u64; 2]| ids.map(|id| (id, Status::Success));
    assert_eq!(outcome(&mut world, 0), done([1, 2]));
    assert_eq!(outcome(&mut world, 1), done([7, 8]));
    assert_eq!(world.pair(0).host(1).octets(key), [1; 64]);
    assert_eq!(world.conn(0, 0).stats().rnr_received, 1);
}

// A driver that sleeps was woken for counts of requests of which its application learns nothing.
#[test]
fn count_of_the_first_signaled_request_is_reported() {
    let mut world = ChannelWorld::new(&setup(), 1);
    for id in 1..=3 {
        recv(&mut world, 1, id);
    }
    let key = memory(&mut world, 0, 64);
    let sges = [SimHost::sge(key, 0, 64)];
    let mut unreported = wr(1, SendOp::Send, &sges);
    unreported.flags.signaled = false;
    post_wr(&mut world, 0, &unreported);
    assert!(world.write(0));
    assert_eq!(world.conn(0, 0).reported_count(), None);
    send(&mut world, 0, 2);
    assert_eq!(world.conn(0, 0).reported_count(), Some(0), "it may be sent");
    assert!(world.write(0));
    assert_eq!(world.conn(0, 0).reported_count(), Some(2));
    world.settle_down();
    assert_eq!(world.conn(0, 0).reported_count(), None);
    assert_eq!(outcome(&mut world, 0), [(2, Status::Success)]);
}

#[test]
fn only_the_refused_message_is_sent_until_it_is_settled() {
    let mut world = ChannelWorld::new(&setup(), 1);
    for id in 1..=3 {
        send(&mut world, 0, id);
        assert!(world.write(0));
    }
    world.settle_down();
    assert_eq!(world.conn(0, 0).awaited_count(), None);
    for id in 1..=3 {
        recv(&mut world, 1, id);
    }
    world.now = world.now.plus_ns(MS);
    assert!(world.expire());
    assert!(world.write(0) && !world.write(0));
    // Three cells were written before.
    assert_eq!(world.conn(0, 0).awaited_count(), Some(4));
    world.settle_down();
    assert_eq!(world.conn(0, 0).awaited_count(), None);
    let done = [1, 2, 3].map(|id| (id, Status::Success));
    assert_eq!(outcome(&mut world, 0), done);
}

#[test]
fn message_refused_too_often_fails_with_those_after_it() {
    let mut setup = setup();
    setup.ends.rnr_retry = 2;
    let mut world = ChannelWorld::new(&setup, 1);
    send(&mut world, 0, 1);
    send(&mut world, 0, 2);
    world.run(20 * MS);
    let failed = [
        (1, Status::RnrRetryExceeded),
        (2, Status::WorkRequestFlushed),
    ];
    assert_eq!(outcome(&mut world, 0), failed);
    assert_eq!(world.conn(1, 0).stats().rnr_sent, 3);
    assert_eq!(state(&mut world, 0), QpState::Error);
}

#[test]
fn refused_message_waits_without_bound_if_the_limit_is_seven() {
    let mut world = ChannelWorld::new(&setup(), 1);
    send(&mut world, 0, 1);
    world.run(100 * MS);
    assert!(world.conn(1, 0).stats().rnr_sent > 50);
    recv(&mut world, 1, 7);
    world.run(2 * MS);
    assert_eq!(outcome(&mut world, 0), [(1, Status::Success)]);
}

#[test]
fn refused_immediate_data_is_sent_again_without_its_write() {
    let mut world = ChannelWorld::new(&setup(), 1);
    let (from, to) = (memory(&mut world, 0, 4096), memory(&mut world, 1, 4096));
    let remote = SimHost::remote(to, 0);
    let sges = [SimHost::sge(from, 0, 4096)];
    let request = SendWr {
        imm: Some(5),
        ..wr(1, SendOp::Write { remote }, &sges)
    };
    post_wr(&mut world, 0, &request);
    world.run(MS / 2);
    assert_eq!(world.pair(0).host(1).octets(to), [1; 4096]);
    let sent = world.conn(0, 0).stats().tx_datagrams;
    recv(&mut world, 1, 7);
    world.run(2 * MS);
    assert_eq!(outcome(&mut world, 0), [(1, Status::Success)]);
    let received = completions(&mut world, 1);
    assert_eq!(received[0].op, CompletionOp::RecvWriteImm);
    assert_eq!((received[0].imm, received[0].byte_len), (Some(5), 4096));
    assert_eq!(world.conn(0, 0).stats().tx_datagrams, sent + 1);
}

#[test]
fn write_of_one_segment_and_its_immediate_data_are_one_message() {
    for (octets, messages) in [(0, 1), (64, 1), (65_536, 1), (65_537, 3)] {
        let mut world = ChannelWorld::new(&setup(), 1);
        let (from, to) = (memory(&mut world, 0, 70_000), memory(&mut world, 1, 70_000));
        recv(&mut world, 1, 7);
        let remote = SimHost::remote(to, 0);
        let sges = [SimHost::sge(from, 0, octets)];
        let mut request = wr(1, SendOp::Write { remote }, &sges);
        (request.imm, request.flags.solicited) = (Some(5), true);
        post_wr(&mut world, 0, &request);
        world.settle_down();
        assert_eq!(world.conn(0, 0).stats().tx_datagrams, messages, "{octets}");
        assert_eq!(outcome(&mut world, 0), [(1, Status::Success)]);
        let received = completions(&mut world, 1);
        let [done] = received[..] else {
            panic!("{received:?}");
        };
        assert_eq!((done.wr_id, done.op), (7, CompletionOp::RecvWriteImm));
        assert_eq!((done.imm, done.byte_len), (Some(5), octets));
        assert!(done.solicited);
        let pair = world.pair(0);
        let placed = &pair.host(1).octets(to)[..octets as usize];
        assert!(placed.iter().all(|&octet| octet == 1), "{octets}");
    }
}

#[test]
fn responses_are_taken_while_requests_are_refused() {
    let mut world = ChannelWorld::new(&setup(), 1);
    send(&mut world, 0, 1);
    world.run(0);
    let (sink, source) = (memory(&mut world, 1, 5000), memory(&mut world, 0, 5000));
    let remote = SimHost::remote(source, 0);
    let sges = [SimHost::sge(sink, 0, 5000)];
    post(&mut world, 1, 9, SendOp::Read { remote }, &sges);
    world.run(0);
    assert_eq!(outcome(&mut world, 1), [(9, Status::Success)]);
    assert_eq!(world.pair(0).host(1).octets(sink), [1; 5000]);
}

#[test]
fn requests_to_a_queue_pair_in_init_are_sent_again_until_it_is_connected() {
    let mut world = ChannelWorld::unconnected(&setup(), 1);
    world.to_rtr(0, 0);
    world.to_rts(0, 0);
    send(&mut world, 0, 1);
    send(&mut world, 0, 2);
    recv(&mut world, 1, 7);
    recv(&mut world, 1, 8);
    world.settle_down();
    assert_eq!(outcome(&mut world, 0), []);
    world.to_rtr(1, 0);
    world.now = world.now.plus_ns(MS);
    assert!(world.expire());
    world.settle_down();
    let done = |ids: [u64; 2]| ids.map(|id| (id, Status::Success)).to_vec();
    assert_eq!(outcome(&mut world, 0), done([1, 2]));
    assert_eq!(outcome(&mut world, 1), done([7, 8]));
    assert_eq!(events(&mut world, 1), [Event::Established]);
}

#[test]
fn message_behind_one_refused_before_rtr_is_not_taken() {
    let mut world = ChannelWorld::unconnected(&setup(), 1);
    world.to_rtr(0, 0);
    world.to_rts(0, 0);
    let (from, to) = (memory(&mut world, 0, 64), memory(&mut world, 1, 64));
    let sges = [SimHost::sge(from, 0, 64)];
    recv(&mut world, 1, 7);
    send(&mut world, 0, 1);
    let remote = SimHost::remote(to, 0);
    post(&mut world, 0, 2, SendOp::Write { remote }, &sges);
    assert!(world.write(0) && world.write(0) && !world.write(0));
    // The first is refused, the second arrives in RTR.
    assert!(world.take(1));
    world.to_rtr(1, 0);
    assert!(world.take(1));
    assert_eq!(world.pair(0).host(1).octets(to), [2; 64]);
    world.settle_down();
    assert_eq!(outcome(&mut world, 0), []);
    world.now = world.now.plus_ns(MS);
    assert!(world.expire());
    world.settle_down();
    assert_eq!(world.pair(0).host(1).octets(to), [1; 64]);
    let done = [(1, Status::Success), (2, Status::Success)];
    assert_eq!(outcome(&mut world, 0), done);
}

#[test]
fn reset_of_an_earlier_epoch_is_ignored() {
    let mut world = ChannelWorld::unconnected(&setup(), 1);
    world.to_rtr(0, 0);
    world.to_rts(0, 0);
    send(&mut world, 0, 1);
    send(&mut world, 0, 2);
    recv(&mut world, 1, 7);
    recv(&mut world, 1, 8);
    assert!(world.write(0) && world.write(0));
    assert!(world.take(1) && world.take(0));
    // The pause is over before the peer takes the second message.
    world.now = world.now.plus_ns(MS);
    assert!(world.expire());
    assert!(world.write(0) && !world.write(0));
    assert!(world.take(1) && world.take(0));
    world.to_rtr(1, 0);
    world.settle_down();
    let done = |ids: [u64; 2]| ids.map(|id| (id, Status::Success)).to_vec();
    assert_eq!(outcome(&mut world, 1), done([7, 8]));
    assert_eq!(outcome(&mut world, 0), done([1, 2]));
}

#[test]
fn request_to_a_queue_pair_that_is_never_connected_fails_after_the_timeout() {
    let mut setup = setup();
    // 3 times 67 ms.
    (setup.ends.timeout, setup.ends.retry_cnt) = (14, 2);
    let mut world = ChannelWorld::unconnected(&setup, 1);
    world.to_rtr(0, 0);
    world.to_rts(0, 0);
    send(&mut world, 0, 1);
    world.run(195 * MS);
    assert_eq!(outcome(&mut world, 0), []);
    // Nothing happens before the pause of 16 ms has ended, except the end.
    let resets = world.conn(1, 0).stats().rx_wrong_state;
    assert!((14..20).contains(&resets), "{resets} RESETs");
    world.run(10 * MS);
    assert_eq!(outcome(&mut world, 0), [(1, Status::RetryExceeded)]);
}

#[test]
fn request_to_a_queue_pair_that_is_never_connected_waits_without_timeout() {
    let mut setup = setup();
    setup.ends.timeout = 0;
    let mut world = ChannelWorld::unconnected(&setup, 1);
    world.to_rtr(0, 0);
    world.to_rts(0, 0);
    send(&mut world, 0, 1);
    world.run(20_000 * MS);
    assert_eq!(outcome(&mut world, 0), []);
}

#[test]
fn request_to_a_destroyed_queue_pair_fails_at_once() {
    let mut world = ChannelWorld::new(&setup(), 1);
    world.destroy(1, 0);
    send(&mut world, 0, 1);
    send(&mut world, 0, 2);
    world.run(0);
    let failed = [(1, Status::RetryExceeded), (2, Status::WorkRequestFlushed)];
    assert_eq!(outcome(&mut world, 0), failed);
    assert_eq!(events(&mut world, 0), [Event::PeerGone]);
}

// They failed at once. A program whose peer cancels its requests by ERROR, and then announces and
// makes its end, took that for a fault (UCX).
#[test]
fn requests_to_a_queue_pair_in_error_fail_later_and_without_one_nothing_happens() {
    let mut world = ChannelWorld::new(&setup(), 1);
    to_error(&mut world, 1);
    world.run(MS);
    assert_eq!(state(&mut world, 0), QpState::Rts);
    send(&mut world, 0, 1);
    send(&mut world, 0, 2);
    world.run(499 * MS);
    send(&mut world, 0, 3);
    assert_eq!(outcome(&mut world, 0), []);
    // None is repeated meanwhile.
    assert_eq!(world.conn(1, 0).stats().rx_wrong_state, 2);
    world.run(MS);
    let flushed = Status::WorkRequestFlushed;
    let failed = [(1, Status::RetryExceeded), (2, flushed), (3, flushed)];
    assert_eq!(outcome(&mut world, 0), failed);
    assert_eq!(events(&mut world, 0), []);
}

#[test]
fn end_of_a_process_fails_at_once_what_waits_for_its_queue_pair_in_error() {
    let mut world = ChannelWorld::new(&setup(), 1);
    to_error(&mut world, 1);
    send(&mut world, 0, 1);
    world.run(MS);
    assert_eq!(outcome(&mut world, 0), []);
    world.kill(1);
    world.learn_end(0);
    assert_eq!(outcome(&mut world, 0), [(1, Status::RetryExceeded)]);
}

#[test]
fn sends_after_a_fin_fail_later_and_none_that_was_refused_succeeds() {
    let mut world = ChannelWorld::new(&setup(), 1);
    recv(&mut world, 1, 7);
    send(&mut world, 0, 1);
    send(&mut world, 0, 2);
    // The first is taken, the second meets a destroyed queue pair.
    assert!(world.write(0) && world.write(0) && world.take(1));
    world.conn(1, 0).close();
    assert!(world.write(1));
    world.destroy(1, 0);
    world.settle_down();
    assert_eq!(events(&mut world, 0), [Event::PeerClosed]);
    assert_eq!(outcome(&mut world, 0), [(1, Status::Success)]);
    world.run(600 * MS);
    assert_eq!(outcome(&mut world, 0), [(2, Status::RetryExceeded)]);
}

#[test]
fn write_without_the_right_ends_both_queue_pairs() {
    let mut world = ChannelWorld::new(&setup(), 1);
    let from = memory(&mut world, 0, 64);
    let target = vec![2; 64];
    let to = world
        .pair(0)
        .host_mut(1)
        .register(target, Rights::default());
    let sges = [SimHost::sge(from, 0, 64)];
    let remote = SimHost::remote(to, 0);
    recv(&mut world, 1, 7);
    recv(&mut world, 1, 8);
    send(&mut world, 0, 1);
    post(&mut world, 0, 2, SendOp::Write { remote }, &sges);
    send(&mut world, 0, 3);
    world.run(0);
    let ended = [
        (1, Status::Success),
        (2, Status::RemoteAccessError),
        (3, Status::WorkRequestFlushed),
    ];
    assert_eq!(outcome(&mut world, 0), ended);
    let received = [(7, Status::Success), (8, Status::WorkRequestFlushed)];
    assert_eq!(outcome(&mut world, 1), received);
    assert_eq!(events(&mut world, 1), [Event::RemoteAccessError]);
    assert_eq!(world.pair(0).host(1).octets(to), [2; 64]);
}

#[test]
fn local_error_of_the_peer_ends_the_next_request() {
    let mut world = ChannelWorld::new(&setup(), 1);
    let bad = [SimHost::sge(0x1234_565a, 0, 8)];
    post(&mut world, 1, 9, SendOp::Send, &bad);
    world.run(0);
    assert_eq!(outcome(&mut world, 1), [(9, Status::LocalProtectionError)]);
    // The peer has no request that this prevents.
    assert_eq!(state(&mut world, 0), QpState::Rts);
    send(&mut world, 0, 1);
    world.run(0);
    assert_eq!(outcome(&mut world, 0), [(1, Status::RemoteOperationError)]);
}

#[test]
fn requests_settled_before_the_end_of_the_process_succeed() {
    let mut world = ChannelWorld::new(&setup(), 1);
    for id in 1..=3 {
        recv(&mut world, 1, id);
        send(&mut world, 0, id);
        assert!(world.write(0));
    }
    assert!(world.take(1) && world.take(1));
    // Its application observes the completions.
    assert_eq!(outcome(&mut world, 1).len(), 2);
    world.kill(1);
    world.learn_end(0);
    let ended = [
        (1, Status::Success),
        (2, Status::Success),
        (3, Status::RetryExceeded),
    ];
    assert_eq!(outcome(&mut world, 0), ended);
    assert_eq!(events(&mut world, 0), [Event::PeerGone]);
}

#[test]
fn read_is_answered_in_rtr() {
    let mut world = ChannelWorld::unconnected(&setup(), 1);
    world.to_rtr(1, 0);
    world.to_rtr(0, 0);
    world.to_rts(0, 0);
    let (sink, source) = (memory(&mut world, 0, 70_000), memory(&mut world, 1, 70_000));
    let remote = SimHost::remote(source, 0);
    let sges = [SimHost::sge(sink, 0, 70_000)];
    post(&mut world, 0, 1, SendOp::Read { remote }, &sges);
    // Refused in RTR, too.
    send(&mut world, 0, 2);
    world.run(MS / 2);
    assert_eq!(outcome(&mut world, 0), [(1, Status::Success)]);
    assert_eq!(world.pair(0).host(0).octets(sink), [2; 70_000]);
    recv(&mut world, 1, 7);
    world.run(2 * MS);
    assert_eq!(outcome(&mut world, 0), [(2, Status::Success)]);
}

#[test]
fn unreliable_requests_complete_when_written_and_are_never_answered() {
    let mut setup = setup();
    setup.ends.config.unreliable = true;
    let mut world = ChannelWorld::new(&setup, 1);
    send(&mut world, 0, 1);
    assert!(world.write(0));
    assert_eq!(outcome(&mut world, 0), [(1, Status::Success)]);
    world.settle_down();
    // Dropped for want of a receive request.
    assert_eq!(world.conn(1, 0).stats().rx_dropped_messages, 1);
    recv(&mut world, 1, 7);
    send(&mut world, 0, 2);
    world.settle_down();
    assert_eq!(outcome(&mut world, 1), [(7, Status::Success)]);
    world.destroy(1, 0);
    send(&mut world, 0, 3);
    world.settle_down();
    assert_eq!(world.conn(0, 0).stats().rx_datagrams, 0);
    assert_eq!(state(&mut world, 0), QpState::Rts);
}

#[test]
fn unreliable_write_after_one_that_failed_half_way_is_whole() {
    let mut setup = setup();
    setup.ends.config.unreliable = true;
    let mut world = ChannelWorld::new(&setup, 1);
    let (from, to) = (
        memory(&mut world, 0, 65_536),
        memory(&mut world, 1, 1 << 20),
    );
    let remote = SimHost::remote(to, 0);
    let broken = [
        SimHost::sge(from, 0, 65_536),
        SimHost::sge(0x1234_565a, 0, 8),
    ];
    post(&mut world, 0, 1, SendOp::Write { remote }, &broken);
    world.settle_down();
    assert_eq!(outcome(&mut world, 0), [(1, Status::LocalProtectionError)]);
    assert_eq!(state(&mut world, 0), QpState::Sqe);
    world.conn(0, 0).resume().unwrap();
    recv(&mut world, 1, 7);
    let sges = [SimHost::sge(from, 0, 100)];
    let request = SendWr {
        imm: Some(3),
        ..wr(2, SendOp::Write { remote }, &sges)
    };
    post_wr(&mut world, 0, &request);
    world.settle_down();
    assert_eq!(outcome(&mut world, 0), [(2, Status::Success)]);
    assert_eq!(outcome(&mut world, 1), [(7, Status::Success)]);
}

#[test]
fn message_of_another_connection_is_refused_and_changes_nothing() {
    let mut world = ChannelWorld::new(&setup(), 1);
    send(&mut world, 0, 1);
    assert!(world.write(0));
    let octets = world.next_message(1).unwrap().to_vec();
    recv(&mut world, 1, 7);
    world.settle_down();
    assert_eq!(outcome(&mut world, 1).len(), 1);
    let change = |at: usize, value: u8| {
        let mut octets = octets.clone();
        octets[at] ^= value;
        octets
    };
    // Its source, and its connection id.
    for (count, forged) in (1..).zip([change(4, 8), change(8, 1)]) {
        world.forge(0, &forged);
        assert!(world.take(1));
        assert_eq!(world.conn(1, 0).stats().rx_wrong_id, count);
        assert_eq!(world.waiting(0), [MessageKind::Reset]);
        let reset = MessageHead::parse(world.next_message(0).unwrap()).unwrap();
        let refused = MessageHead::parse(&forged).unwrap();
        assert_eq!(reset.offset, 2);
        assert_eq!(reset.connection_id, refused.connection_id);
        assert_eq!(
            (reset.source, reset.destination),
            (refused.destination, refused.source)
        );
        assert!(world.take(0));
    }
    // A RESET, and a message of an unreliable connection, are not answered.
    let mut reset = change(8, 1);
    reset[0] = MessageKind::Reset as u8;
    let mut unreliable = change(8, 1);
    unreliable[1] |= MessageFlags::UNRELIABLE.octet();
    for forged in [reset, unreliable] {
        world.forge(0, &forged);
        assert!(world.take(1));
        assert_eq!(world.waiting(0), []);
    }
    assert_eq!(state(&mut world, 0), QpState::Rts);
    assert_eq!(state(&mut world, 1), QpState::Rts);
}

#[test]
fn request_of_the_wrong_length_ends_the_connection() {
    let mut world = ChannelWorld::new(&setup(), 1);
    let (sink, source) = (memory(&mut world, 0, 64), memory(&mut world, 1, 64));
    let remote = SimHost::remote(source, 0);
    let sges = [SimHost::sge(sink, 0, 64)];
    post(&mut world, 0, 1, SendOp::Read { remote }, &sges);
    assert!(world.write(0));
    let mut octets = world.next_message(1).unwrap().to_vec();
    octets.pop();
    world.forge(0, &octets);
    // The request itself is answered, its copy is not.
    world.settle_down();
    assert_eq!(state(&mut world, 1), QpState::Error);
    assert_eq!(state(&mut world, 0), QpState::Error);
    assert_eq!(events(&mut world, 1), [Event::RemoteInvalidRequest]);
}

#[test]
fn shared_receive_queue_is_the_one_that_the_message_names() {
    let mut setup = setup();
    setup.ends.config.shared_recv = true;
    setup.ends.config.names_shared_queue = true;
    let mut world = ChannelWorld::new(&setup, 1);
    let key = memory(&mut world, 0, 64);
    let room = memory(&mut world, 1, 64);
    {
        let mut pair = world.pair(0);
        let host = pair.host_mut(1);
        host.shared_queue = 77;
        let list = vec![SimHost::sge(room, 0, 64)];
        host.shared_recvs.push_back((7, list));
    }
    let sges = [SimHost::sge(key, 0, 64)];
    let named = |wr_id, shared_queue| SendWr {
        shared_queue,
        ..wr(wr_id, SendOp::Send, &sges)
    };
    post_wr(&mut world, 0, &named(1, 77));
    world.settle_down();
    assert_eq!(outcome(&mut world, 0), [(1, Status::Success)]);
    assert_eq!(outcome(&mut world, 1), [(7, Status::Success)]);
    post_wr(&mut world, 0, &named(2, 78));
    world.settle_down();
    assert_eq!(
        outcome(&mut world, 0),
        [(2, Status::RemoteInvalidRequestError)]
    );
    let ended = [Event::LastRecvReached, Event::RemoteInvalidRequest];
    assert_eq!(events(&mut world, 1), ended);
}

#[test]
fn key_is_invalidated_and_local_requests_run_once_before_a_refused_one() {
    let mut world = ChannelWorld::new(&setup(), 1);
    let key = memory(&mut world, 1, 64);
    send(&mut world, 0, 1);
    post(&mut world, 0, 2, SendOp::LocalInvalidate { stag: 5 }, &[]);
    let invalidate = SendOp::SendInvalidate { stag: key };
    post(&mut world, 0, 3, invalidate, &[]);
    world.run(0);
    recv(&mut world, 1, 7);
    recv(&mut world, 1, 8);
    world.run(2 * MS);
    let done = [1, 2, 3].map(|id| (id, Status::Success));
    assert_eq!(outcome(&mut world, 0), done);
    let received = completions(&mut world, 1);
    assert_eq!(received[1].invalidated, Some(key));
    let pair = world.pair(0);
    assert_eq!(pair.host(0).invalidated_here, [5]);
    assert_eq!(pair.host(1).invalidated, [key]);
}

#[test]
fn send_queue_drains_in_sqd_what_had_begun() {
    let mut world = ChannelWorld::new(&setup(), 1);
    send(&mut world, 0, 1);
    assert!(world.write(0));
    {
        let mut pair = world.pair(0);
        let (conn, host) = pair.alive(0).unwrap();
        conn.to_sqd(host).unwrap();
    }
    send(&mut world, 0, 2);
    world.run(MS / 2);
    assert_eq!(events(&mut world, 0), []);
    recv(&mut world, 1, 7);
    recv(&mut world, 1, 8);
    world.run(2 * MS);
    assert_eq!(events(&mut world, 0), [Event::SqDrained]);
    assert_eq!(outcome(&mut world, 0), [(1, Status::Success)]);
    world.conn(0, 0).resume().unwrap();
    world.run(0);
    assert_eq!(outcome(&mut world, 0), [(2, Status::Success)]);
}

#[test]
fn datagrams_are_not_taken_by_a_connection_over_a_channel() {
    use proto_trp::conn::Datagram;
    let mut world = ChannelWorld::new(&setup(), 1);
    // A DATA packet for index 1 with a connection id of 0, and a RESET.
    for kind in [0x10, 0x13] {
        let octets = [kind, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        let datagram = Datagram {
            head: &octets,
            len: octets.len(),
            body: &octets[..],
            congestion_experienced: false,
        };
        let mut pair = world.pair(0);
        let (conn, host) = pair.alive(0).unwrap();
        assert!(conn.handle_datagram(Time::ZERO, &datagram, host).is_ok());
    }
    assert_eq!(world.conn(0, 0).stats().rx_wrong_id, 2);
}
