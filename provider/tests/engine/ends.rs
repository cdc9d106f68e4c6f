//! The end of a queue pair, of a peer, of urdmad; and what rest costs.

use std::sync::Arc;
use std::time::Duration;

use urdma_provider::engine::{
    AsyncKind, EngineError, EventSink, QpModify, SendOp, SlotId, State, Status,
};

use crate::rig::{arena, pair, still_pair, until, Events};

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

// It was RETRY_EXC: the acknowledgement, put off to the receiver's next call, was not sent when that call ended its queue pair.
#[test]
fn send_that_arrived_is_a_success_though_its_receiver_stops_at_once() {
    for destroys in [false, true] {
        // No thread may send the acknowledgement meanwhile.
        let (a, b) = still_pair(arena(), 64);
        b.receive(1, &[b.sge(0, 8)]).unwrap();
        a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        b.expect(1, Status::Success);
        if destroys {
            b.engine.destroy_qp(&b.qp).unwrap();
        } else {
            let failed = QpModify {
                state: Some(State::Error),
                ..QpModify::default()
            };
            b.engine.modify_qp(&b.qp, &failed).unwrap();
        }
        a.expect(2, Status::Success);
    }
}

#[test]
fn peer_slot_gone_flushes_receives_and_says_so() {
    let (a, b) = pair(64);
    a.receive(1, &[a.sge(0, 8)]).unwrap();
    a.engine.peer_slot_gone(SlotId::new(3).unwrap());
    assert_eq!(a.engine.query_qp(&a.qp).0, State::Rts);
    a.engine.peer_slot_gone(b.engine.info().slot);
    a.expect(1, Status::WorkRequestFlushed);
    assert_eq!(a.engine.query_qp(&a.qp).0, State::Error);
}

#[test]
fn peer_slot_gone_after_its_last_acknowledgement_leaves_the_send_a_success() {
    for _ in 0..50 {
        let (a, b) = pair(64);
        b.receive(1, &[b.sge(0, 8)]).unwrap();
        a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        b.expect(1, Status::Success);
        b.engine.destroy_qp(&b.qp).unwrap();
        a.engine.peer_slot_gone(b.engine.info().slot);
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
    a.engine.peer_slot_gone(b.engine.info().slot);
    a.expect(1, Status::Success);
    assert_eq!(a.engine.query_qp(&a.qp).0, State::Rts);
    assert!(a.poll().is_empty());
}

#[test]
fn send_to_a_slot_where_nobody_is_fails_at_once() {
    let a = crate::rig::End::new(crate::rig::engine(crate::rig::arena(), 1), 64);
    a.init(urdma_provider::engine::Access::all());
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

/// What the engine threads of this process have used so far: processor time in nanoseconds, and how often they went to sleep.
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
