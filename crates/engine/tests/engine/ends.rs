//! The end of a queue pair, of a peer, of urdmad; and what rest costs.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use urdma_engine::{
    Access, AsyncKind, Engine, EngineError, EventSink, Parts, Personality, QpModify, QpState,
    SendOp, SlotId, Status,
};

use crate::rig::{engine, instance, pair, pair_of, parts, still_pair, until, End, Events, DEPTH};

/// How long a request to a queue pair in ERR waits before it fails.
const FAILS_AFTER: Duration = Duration::from_millis(500);

#[test]
fn destroyed_peer_ends_what_is_sent_to_it() {
    let (a, b) = pair(64);
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    b.expect(1, Status::Success);
    a.expect(1, Status::Success);
    b.engine.destroy_qp(&b.qp).unwrap();
    a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    let end = a.wait(1)[0].completion;
    assert_ne!(end.status, Status::Success);
}

// It was RETRY_EXC: the acknowledgement, put off to the receiver's next call, was not sent when
// that call ended its queue pair.
#[test]
fn send_that_arrived_is_a_success_though_its_receiver_stops_at_once() {
    for destroys in [false, true] {
        // No thread may send the acknowledgement meanwhile.
        let (a, b) = still_pair(&instance(), 64);
        b.receive(1, &[b.sge(0, 8)]).unwrap();
        a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        b.expect(1, Status::Success);
        if destroys {
            b.engine.destroy_qp(&b.qp).unwrap();
        } else {
            let failed = QpModify {
                state: Some(QpState::Error),
                ..QpModify::default()
            };
            b.engine.modify_qp(&b.qp, &failed).unwrap();
        }
        a.expect(2, Status::Success);
    }
}

/// The kinds of asynchronous events that an end has heard of.
fn kinds(end: &End) -> Vec<AsyncKind> {
    let events = end.events.0.lock().unwrap();
    events.iter().map(|event| event.kind).collect()
}

// Every client that left was a catastrophic error in its server's log.
#[test]
fn end_of_the_peer_changes_nothing_at_an_idle_end_and_its_next_send_fails() {
    let (a, b) = pair(64);
    a.receive(1, &[a.sge(0, 8)]).unwrap();
    a.engine.peer_slot_gone(b.engine.info().slot, 1);
    assert!(a.poll().is_empty());
    assert_eq!(a.engine.query_qp(&a.qp).0, QpState::Rts);
    assert_eq!(kinds(&a), []);
    a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    let ended = a.wait(2).into_iter().map(|wc| wc.completion);
    let ended: Vec<_> = ended.map(|wc| (wc.wr_id, wc.status)).collect();
    let wanted = [(2, Status::RetryExceeded), (1, Status::WorkRequestFlushed)];
    assert_eq!(ended, wanted);
    assert_eq!(kinds(&a), []);
}

// A process that learnt late of the end of another failed what it had with the next one in that
// slot.
#[test]
fn end_of_a_process_is_not_that_of_the_next_one_in_its_slot() {
    let instance = instance();
    let first = engine(&instance, 1);
    let leaver = Engine::start_without_thread(parts(&instance, 2)).unwrap();
    let (a, _b) = pair_of([first.clone(), leaver], 64, Access::all());
    let slot = urdma_types::SlotId::new(2).unwrap();
    assert_eq!(instance.end(slot), 1);
    let (c, d) = pair_of([first.clone(), engine(&instance, 2)], 64, Access::all());
    first.peer_slot_gone(SlotId::new(2).unwrap(), 1);
    d.receive(1, &[d.sge(0, 8)]).unwrap();
    c.post(2, SendOp::Send, &[c.sge(0, 8)]).unwrap();
    c.expect(2, Status::Success);
    d.expect(1, Status::Success);
    a.post(3, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    a.expect(3, Status::RetryExceeded);
    first.peer_slot_gone(SlotId::new(2).unwrap(), 2);
    c.post(4, SendOp::Send, &[c.sge(0, 8)]).unwrap();
    c.expect(4, Status::RetryExceeded);
}

#[test]
fn end_of_the_peer_is_the_end_of_an_rnics_queue_pair() {
    let instance = instance();
    let rnic = |slot| {
        Engine::start(Parts {
            personality: Personality::Iwarp,
            ..parts(&instance, slot)
        })
    };
    let (a, b) = pair_of([1, 2].map(|slot| rnic(slot).unwrap()), 64, Access::all());
    a.receive(1, &[a.sge(0, 8)]).unwrap();
    a.engine.peer_slot_gone(SlotId::new(3).unwrap(), 1);
    assert_eq!(a.engine.query_qp(&a.qp).0, QpState::Rts);
    a.engine.peer_slot_gone(b.engine.info().slot, 1);
    a.expect(1, Status::WorkRequestFlushed);
    assert_eq!(a.engine.query_qp(&a.qp).0, QpState::Error);
    assert_eq!(kinds(&a), [AsyncKind::QpFatal]);
}

// All of these ended with RETRY_EXC: the acknowledgement is due a millisecond later, or with the
// receiver's next call, which never comes.
#[test]
fn message_that_was_taken_is_a_success_though_its_process_ends_before_it_answers() {
    for (imm, signaled) in [
        (None, true),
        (None, false),
        (Some(7), true),
        (Some(7), false),
    ] {
        let (a, b) = still_pair(&instance(), 64);
        b.receive(1, &[b.sge(0, 8)]).unwrap();
        let op = match imm {
            None => SendOp::Send,
            Some(_) => SendOp::Write {
                remote: b.remote(0),
            },
        };
        a.post_with(2, op, imm, signaled, &[a.sge(0, 8)]).unwrap();
        b.expect(1, Status::Success);
        a.engine.peer_slot_gone(b.engine.info().slot, 1);
        if signaled {
            a.expect(2, Status::Success);
        }
        assert!(a.poll().is_empty());
        assert_eq!(a.engine.query_qp(&a.qp).0, QpState::Rts);
    }
}

#[test]
fn message_that_was_not_taken_fails_with_its_process() {
    let (a, b) = still_pair(&instance(), 64);
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    for wr_id in [2, 3] {
        a.post(wr_id, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    }
    // The second is refused for want of a receive request, and its refusal not sent.
    b.expect(1, Status::Success);
    a.engine.peer_slot_gone(b.engine.info().slot, 1);
    let ended = a.wait(2).into_iter().map(|wc| wc.completion);
    let ended: Vec<_> = ended.map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ended, [(2, Status::Success), (3, Status::RetryExceeded)]);
}

#[test]
fn queue_pair_that_stops_acknowledges_what_it_has_taken() {
    let (a, b) = still_pair(&instance(), 64);
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    // The request is unsignaled, so no acknowledgement is requested.
    a.post_with(2, SendOp::Send, None, false, &[a.sge(0, 8)])
        .unwrap();
    b.expect(1, Status::Success);
    let failed = QpModify {
        state: Some(QpState::Error),
        ..QpModify::default()
    };
    b.engine.modify_qp(&b.qp, &failed).unwrap();
    assert!(a.poll().is_empty());
    assert_eq!(a.engine.send_room(&a.qp), Ok(DEPTH));
}

#[test]
fn send_to_a_queue_pair_in_error_fails_without_an_event() {
    let (a, b) = pair(64);
    let failed = QpModify {
        state: Some(QpState::Error),
        ..QpModify::default()
    };
    b.engine.modify_qp(&b.qp, &failed).unwrap();
    a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    a.expect(1, Status::RetryExceeded);
    assert_eq!(kinds(&a), []);
}

/// A sender floods its peer with messages of 8 octets, cancels the rest by ERR and goes to RESET;
/// the peer lives and has sent it credits meanwhile, which nothing takes any more.
#[test]
fn flood_that_is_cancelled_by_error_and_reset_fails_nothing_at_the_live_peer() {
    const CREDITS: u64 = 1 << 32;
    let go = |end: &End, state| {
        let state = Some(state);
        let change = QpModify {
            state,
            ..QpModify::default()
        };
        end.engine.modify_qp(&end.qp, &change).unwrap();
    };
    for round in 0..200_u64 {
        let (a, b) = pair(64);
        for id in 0..u64::from(DEPTH) {
            b.receive(id, &[b.sge(8, 8)]).unwrap();
        }
        for id in 0..u64::from(DEPTH) {
            a.post(id, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        }
        // The more rounds, the more messages have arrived.
        let mut at_peer = Vec::new();
        for _ in 0..round % 20 {
            at_peer.extend(b.poll());
        }
        let begin = Instant::now();
        go(&a, QpState::Error);
        b.post(CREDITS, SendOp::Send, &[b.sge(0, 8)]).unwrap();
        let at_sender = a.wait(DEPTH as usize);
        go(&a, QpState::Reset);
        at_peer.extend(b.poll());
        b.post(CREDITS + 1, SendOp::Send, &[b.sge(0, 8)]).unwrap();
        at_peer.extend(b.poll());
        go(&b, QpState::Error);
        if begin.elapsed() >= FAILS_AFTER {
            continue;
        }
        at_peer.extend(b.wait(DEPTH as usize + 2 - at_peer.len()));
        for (end, found) in [("sender", at_sender), ("peer", at_peer)] {
            let is_flushed = |status| status == Status::WorkRequestFlushed;
            let fine = |status| status == Status::Success || is_flushed(status);
            let wrong: Vec<_> = found
                .iter()
                .filter(|wc| !fine(wc.completion.status))
                .collect();
            assert!(wrong.is_empty(), "round {round}, {end}: {wrong:?}");
        }
        assert_eq!(kinds(&b), []);
    }
}

#[test]
fn peer_slot_gone_after_its_last_acknowledgement_leaves_the_send_a_success() {
    for _ in 0..50 {
        let (a, b) = pair(64);
        b.receive(1, &[b.sge(0, 8)]).unwrap();
        a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        b.expect(1, Status::Success);
        b.engine.destroy_qp(&b.qp).unwrap();
        a.engine.peer_slot_gone(b.engine.info().slot, 1);
        a.expect(1, Status::Success);
    }
}

#[test]
fn peer_that_said_goodbye_before_its_slot_is_gone_flushes_nothing() {
    let (a, b) = pair(64);
    a.receive(1, &[a.sge(0, 8)]).unwrap();
    a.receive(2, &[a.sge(0, 8)]).unwrap();
    b.post(1, SendOp::Send, &[b.sge(0, 8)]).unwrap();
    b.engine.destroy_qp(&b.qp).unwrap();
    a.engine.peer_slot_gone(b.engine.info().slot, 1);
    a.expect(1, Status::Success);
    assert_eq!(a.engine.query_qp(&a.qp).0, QpState::Rts);
    assert!(a.poll().is_empty());
}

#[test]
fn send_to_a_vacant_slot_fails_at_once() {
    let a = crate::rig::End::new(crate::rig::engine(&crate::rig::instance(), 1), 64);
    a.init(urdma_engine::Access::all());
    a.connect(0x0002_0001);
    a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    a.expect(1, Status::RetryExceeded);
}

#[test]
fn device_gone_flushes_tells_and_refuses() {
    let (a, _b) = pair(64);
    let events: Arc<Events> = Arc::default();
    let sink: Arc<dyn EventSink> = events.clone();
    a.engine.add_device_sink(&sink);
    a.receive(1, &[a.sge(0, 8)]).unwrap();
    a.engine.device_gone();
    a.engine.device_gone();
    a.expect(1, Status::WorkRequestFlushed);
    let kinds: Vec<_> = events.0.lock().unwrap().iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [AsyncKind::DeviceFatal]);
    assert_eq!(a.engine.alloc_pd(), Err(EngineError::DeviceGone));
    assert_eq!(EngineError::DeviceGone.errno(), libc::EIO);
    a.engine.destroy_qp(&a.qp).unwrap();
}

#[test]
fn forked_child_is_refused() {
    let (a, _b) = pair(64);
    // SAFETY: the child only calls code that takes no lock, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = a.engine.poll_cq(&a.cq, 1, |_| {}) == Err(EngineError::Forked)
            && a.engine.alloc_pd() == Err(EngineError::Forked)
            && a.engine.destroy_qp(&a.qp) == Err(EngineError::Forked);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(a.poll().is_empty());
}

/// What the engine threads of this process have used so far: processor time in nanoseconds, and how
/// often they went to sleep.
fn engine_threads() -> (u64, u64) {
    let mut sum = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let read = |file: &str| std::fs::read_to_string(path.join(file)).unwrap_or_default();
        if read("comm").trim() != "urdma-engine" {
            continue;
        }
        let number = |text: Option<&str>| text.unwrap_or("0").trim().parse::<u64>().unwrap();
        sum.0 += number(read("schedstat").split_whitespace().next());
        let status = read("status");
        let mut lines = status.lines();
        sum.1 += number(lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")));
    }
    sum
}

/// Set for the process in which the idle test has the engine threads for itself.
const ALONE: &str = "URDMA_TEST_ALONE";
/// Windows of a second; one in which nothing disturbs is enough.
const WINDOWS: usize = 30;
/// An idle engine looks up for a keep-alive or at the end of a spell of polling, not more often.
const SLEEPS_MAX: u64 = 10;
const CPU_MAX_NS: u64 = 4_000_000;

#[test]
fn idle_engines_sleep() {
    if std::env::var_os(ALONE).is_none() {
        // Other tests of this binary have engines too.
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ends::idle_engines_sleep", "--nocapture"])
            .env(ALONE, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let (a, b) = pair(64);
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    b.expect(1, Status::Success);
    a.expect(1, Status::Success);
    let idle = (0..WINDOWS).any(|_| {
        let before = engine_threads();
        std::thread::sleep(Duration::from_secs(1));
        let after = engine_threads();
        let (cpu_ns, sleeps) = (after.0 - before.0, after.1 - before.1);
        println!("in a second: {sleeps} sleeps, {cpu_ns} ns");
        sleeps <= SLEEPS_MAX && cpu_ns <= CPU_MAX_NS
    });
    assert!(idle, "never a quiet second");
    until("that it still works", || a.poll().is_empty());
}

// A completion was once missed by a program that did this; 7,650 runs of it showed nothing.
#[test]
fn each_read_that_is_posted_while_another_thread_sets_error_has_one_completion() {
    for round in 0..500u32 {
        let (a, b) = pair(64);
        let failed = QpModify {
            state: Some(QpState::Error),
            ..QpModify::default()
        };
        let remote = b.remote(0);
        let posted = std::thread::scope(|scope| {
            let poster = scope.spawn(|| {
                let read = || SendOp::Read { remote };
                let fits = |id: &u64| a.post(*id, read(), &[a.sge(8, 8)]).is_ok();
                (0..u64::from(DEPTH)).take_while(fits).count()
            });
            for _ in 0..round % 50 {
                std::thread::yield_now();
            }
            a.engine.modify_qp(&a.qp, &failed).unwrap();
            poster.join().unwrap()
        });
        let found = a.wait(posted);
        let ids = found.iter().map(|wc| wc.completion.wr_id);
        assert!(ids.eq(0..posted as u64), "round {round}: {found:?}");
        let mut statuses = found.iter().map(|wc| wc.completion.status);
        let is_flushed = |status| status == Status::WorkRequestFlushed;
        assert!(
            statuses.all(|status| status == Status::Success || is_flushed(status)),
            "round {round}: {found:?}"
        );
        let flushed = found
            .iter()
            .skip_while(|wc| !is_flushed(wc.completion.status));
        assert!(flushed
            .into_iter()
            .all(|wc| is_flushed(wc.completion.status)));
        assert!(a.poll().is_empty());
    }
}
