//! Processes that use the arena are killed, at random instants and after every single labelled
//! step, and every frame is accounted for.
//!
//! The helper processes are this test program again, started with `ARENA_FD` set: see
//! [`helper_process_entry`]. The seed is printed; `URDMA_SEED` repeats a run (of the same workload;
//! the instants stay random), `URDMA_CRASH_SECONDS` makes it longer.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use urdma_types::SlotId;

use common::{number, seed, Random};
use urdma_arena::steps::Steps;
use urdma_arena::{
    Arena, ArenaConfig, Arrival, Endpoint, EndpointWith, Reaper, RxFrame, SHORT_CAPACITY,
};

const WORKERS: u8 = 4;
const PATIENCE: Duration = Duration::from_secs(20);

fn slot(index: u8) -> SlotId {
    SlotId::new(index).unwrap()
}

fn fill(room: &mut [u8]) {
    let len = room.len();
    for (i, octet) in room.iter_mut().enumerate() {
        *octet = (i + len).to_le_bytes()[0];
    }
}

fn check(frame: &RxFrame) {
    let mut text = vec![0; frame.len()];
    assert!(frame.copy_to_slice(0, &mut text));
    check_text(&text);
}

fn check_text(text: &[u8]) {
    let len = text.len();
    let wrong = text
        .iter()
        .enumerate()
        .find(|(i, octet)| **octet != (i + len).to_le_bytes()[0]);
    assert_eq!(wrong, None, "in a datagram of {len}");
}

/// Sends a short datagram if there is room for it.
fn send_short<S: Steps>(endpoint: &mut EndpointWith<S>, to: SlotId, len: usize) -> bool {
    let mut octets = [0; SHORT_CAPACITY];
    fill(&mut octets[..len]);
    let sent = endpoint.may_send_short(to) && endpoint.send_short(to, &octets, len).is_ok();
    if sent {
        endpoint.ring_doorbell(to);
    }
    sent
}

/// The next frame, if one has come; short datagrams before it are checked.
fn receive_any<S: Steps>(endpoint: &mut EndpointWith<S>) -> Option<RxFrame> {
    let mut octets = [0; SHORT_CAPACITY];
    loop {
        match endpoint.recv_any(&mut octets)? {
            Arrival::Short { len, .. } => check_text(&octets[..len]),
            Arrival::Frame(frame) => return Some(frame),
        }
    }
}

static STEPS_DONE: AtomicU64 = AtomicU64::new(0);
static DIE_AT: AtomicU64 = AtomicU64::new(0);

/// Kills this process at its `DIE_AT`-th step.
struct Doomed;

impl Steps for Doomed {
    fn at(_label: &'static str) {
        if STEPS_DONE.fetch_add(1, Ordering::Relaxed) + 1 == DIE_AT.load(Ordering::Relaxed) {
            // SAFETY: kills only this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

/// Not a test: the code of the helper processes. As a test it does nothing.
#[test]
fn helper_process_entry() {
    let fd = number("ARENA_FD", 0);
    if fd == 0 {
        return;
    }
    // SAFETY: the descriptor is inherited from the parent and has no other owner in this process.
    let fd = unsafe { OwnedFd::from_raw_fd(fd.try_into().unwrap()) };
    let arena = Arena::from_fd(fd).unwrap();
    let me = slot(number("ARENA_SLOT", 1).try_into().unwrap());
    DIE_AT.store(number("ARENA_DIE_AT", 0), Ordering::Relaxed);
    if DIE_AT.load(Ordering::Relaxed) > 0 {
        script(&arena, me);
    } else {
        work_until_killed(&arena, me, Random::new(number("URDMA_SEED", 1)));
    }
    std::process::exit(0);
}

fn start(arena: &Arena, me: SlotId, die_at: u64, seed: u64) -> Child {
    let fd = arena.fd().as_raw_fd();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["helper_process_entry", "--exact", "--nocapture"])
        .env("ARENA_FD", fd.to_string())
        .env("ARENA_SLOT", me.number().to_string())
        .env("ARENA_DIE_AT", die_at.to_string())
        .env("URDMA_SEED", seed.to_string())
        .stdout(Stdio::null());
    let keep_fd = move || {
        // SAFETY: fcntl may be called between fork and exec.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        Ok(())
    };
    // SAFETY: the closure only calls an async-signal-safe function.
    unsafe { command.pre_exec(keep_fd) };
    command.spawn().unwrap()
}

fn work_until_killed(arena: &Arena, me: SlotId, mut random: Random) {
    let mut endpoint = Endpoint::attach(arena, me).unwrap();
    let mut kept = Vec::new();
    loop {
        let octets = if random.below(8) == 0 {
            random.below(65_000)
        } else {
            random.below(300)
        };
        if let Some(mut frame) = endpoint.alloc(octets) {
            fill(&mut frame.data_mut()[..octets]);
            let to = slot(random.below(usize::from(WORKERS) + 1).try_into().unwrap());
            match random.below(4) {
                0 => drop(frame),
                1 => {
                    drop(endpoint.send_quiet(to, frame, octets));
                    endpoint.ring_doorbell(to);
                }
                _ => drop(endpoint.send(to, frame, octets)),
            }
        }
        if random.below(2) == 0 {
            let to = slot(u8::try_from(1 + random.below(WORKERS.into())).unwrap());
            send_short(&mut endpoint, to, 1 + random.below(SHORT_CAPACITY));
        }
        for _ in 0..random.below(3) {
            let Some(frame) = receive_any(&mut endpoint) else {
                break;
            };
            check(&frame);
            match random.below(4) {
                0 if kept.len() < 4 => kept.push(frame),
                1 => drop(endpoint.forward(slot(1), frame)),
                _ => endpoint.release(frame),
            }
        }
        match random.below(16) {
            0 => kept.clear(),
            1 => drop(endpoint.park(Some(Duration::from_micros(300)))),
            2 => std::thread::yield_now(),
            _ => {}
        }
    }
}

fn serve(daemon: &mut Endpoint, random: &mut Random, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        match daemon.recv() {
            Some(frame) => {
                check(&frame);
                let to = slot(random.below(usize::from(WORKERS) + 1).try_into().unwrap());
                let _ = daemon.forward(to, frame);
            }
            None => std::thread::yield_now(),
        }
    }
}

fn received(arena: &Arena, worker: u8) -> u64 {
    arena.status(slot(worker)).unwrap().received
}

#[test]
fn processes_killed_at_random_instants_lose_no_frame_and_block_no_process() {
    let seed = seed();
    let mut random = Random::new(seed);
    let config = ArenaConfig {
        slots: 8,
        ring_cells: 64,
        small_frames: 32,
        large_frames: 8,
    };
    let arena = Arena::create(&config).unwrap();
    let mut reaper = Reaper::new(&arena);
    let mut daemon = Endpoint::attach(&arena, SlotId::DAEMON).unwrap();
    let mut workers: Vec<Child> = (1..=WORKERS)
        .map(|w| start(&arena, slot(w), 0, random.next()))
        .collect();
    let time = Duration::from_secs(number("URDMA_CRASH_SECONDS", 4));
    let (begin, mut kills, mut reaped) = (Instant::now(), 0, 0);
    while begin.elapsed() < time {
        let pause = Duration::from_micros(random.below(4000) as u64);
        serve(&mut daemon, &mut random, pause);
        let victim = random.below(workers.len());
        let worker = slot(u8::try_from(victim + 1).unwrap());
        if !arena.is_alive(worker) {
            continue; // it is still starting
        }
        workers[victim].kill().unwrap();
        let status = workers[victim].wait().unwrap();
        assert_eq!(
            status.signal(),
            Some(libc::SIGKILL),
            "a worker failed by itself"
        );
        let report = reaper.reap(worker);
        assert_eq!(report.corrupt, 0);
        reaped += report.held + report.to_dead + report.unfinished;
        reaper.reset(worker);
        workers[victim] = start(&arena, worker, 0, random.next());
        kills += 1;
    }
    // Everyone alive still gets datagrams.
    for worker in 1..=WORKERS {
        let (before, begin) = (received(&arena, worker), Instant::now());
        while received(&arena, worker) < before + 100 {
            assert!(
                begin.elapsed() < PATIENCE,
                "slot {worker} gets nothing any more"
            );
            serve(&mut daemon, &mut random, Duration::from_millis(1));
        }
    }
    for worker in &mut workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    for worker in 1..=WORKERS {
        reaper.reap(slot(worker));
    }
    while let Some(frame) = daemon.recv() {
        check(&frame);
    }
    let account = reaper.account();
    println!(
        "seed {seed}: {kills} kills, {reaped} frames taken back, {} of {} used",
        account.used, account.total
    );
    assert!(account.all_free(), "{account:?}");
    reaper.verify().unwrap();
    assert!(kills > 20);
}

/// Every kind of step at least once. Slot 2 echoes nothing and releases all; three datagrams come
/// from it first.
fn script(arena: &Arena, me: SlotId) {
    let mut endpoint = EndpointWith::<Doomed>::attach(arena, me).unwrap();
    let send = |endpoint: &mut EndpointWith<Doomed>, to: SlotId, octets: usize| {
        let mut frame = endpoint.alloc(octets).unwrap();
        fill(&mut frame.data_mut()[..octets]);
        endpoint
            .send(to, frame, octets)
            .map_err(|(_, e)| e)
            .unwrap();
    };
    let receive = |endpoint: &mut EndpointWith<Doomed>| loop {
        match receive_any(endpoint) {
            Some(frame) => break frame,
            None => std::thread::yield_now(),
        }
    };
    assert!(send_short(&mut endpoint, slot(2), 99));
    let first = receive(&mut endpoint);
    send(&mut endpoint, slot(2), 64);
    drop(endpoint.alloc(100));
    let second = receive(&mut endpoint);
    endpoint.release(first);
    endpoint.forward(slot(2), second).unwrap();
    for round in 0..10 {
        // Not while the last frame waits behind one of the peer's.
        send_short(&mut endpoint, me, 20);
        send(&mut endpoint, me, if round % 3 == 0 { 5000 } else { 50 });
        let own = receive(&mut endpoint);
        check(&own);
        endpoint.release(own);
    }
    // The peer sleeps by now: its bell has to be rung.
    std::thread::sleep(Duration::from_millis(5));
    send(&mut endpoint, slot(2), 3000);
    let third = receive(&mut endpoint);
    let frame = endpoint.alloc(10).unwrap();
    assert!(endpoint.send_quiet(slot(3), frame, 10).is_err());
    endpoint.release(third);
}

/// Sends three datagrams to slot 1 when it is there, then sleeps and releases what comes, until
/// told to stop.
fn peer(arena: &Arena, peer: &mut Endpoint, stop: &AtomicBool) {
    let mut to_send = 3;
    while !stop.load(Ordering::Relaxed) {
        while let Some(frame) = receive_any(peer) {
            check(&frame);
        }
        if to_send > 0 {
            if arena.is_alive(slot(1)) {
                let mut frame = peer.alloc(99).unwrap();
                fill(&mut frame.data_mut()[..99]);
                to_send = if peer.send(slot(1), frame, 99).is_ok() {
                    to_send - 1
                } else {
                    0
                };
            }
            std::thread::yield_now();
        } else {
            peer.parker()
                .park(Some(PATIENCE), || stop.load(Ordering::Relaxed));
        }
    }
}

#[test]
fn process_killed_after_each_single_step_loses_no_frame_and_blocks_no_process() {
    let config = ArenaConfig {
        slots: 5,
        ring_cells: 8,
        small_frames: 8,
        large_frames: 4,
    };
    let arena = Arena::create(&config).unwrap();
    let mut reaper = Reaper::new(&arena);
    let mut endpoint = Endpoint::attach(&arena, slot(2)).unwrap();
    let parker = endpoint.parker();
    let mut die_at = 0;
    loop {
        die_at += 1;
        let stop = AtomicBool::new(false);
        let status = std::thread::scope(|scope| {
            let (endpoint, stop) = (&mut endpoint, &stop);
            scope.spawn(move || peer(&arena, endpoint, stop));
            let status = start(&arena, slot(1), die_at, 0).wait().unwrap();
            reaper.reap(slot(1));
            // Nothing that lies in the ring of a live slot may be slept over.
            let begin = Instant::now();
            while parker.has_work() && begin.elapsed() < PATIENCE / 2 {
                std::thread::yield_now();
            }
            let slept_over = parker.has_work();
            stop.store(true, Ordering::Relaxed);
            parker.unpark();
            assert!(!slept_over, "step {die_at}: the peer sleeps over its work");
            status
        });
        let account = reaper.account();
        assert!(account.all_free(), "step {die_at}: {account:?}");
        reaper.verify().unwrap();
        assert_eq!(reaper.reset(slot(1)), 0);
        // The slot's next owner can do everything.
        let mut next = Endpoint::attach(&arena, slot(1)).unwrap();
        for _ in 0..20 {
            let frame = next.alloc(1).unwrap();
            next.send(slot(2), frame, 1).map_err(|(_, e)| e).unwrap();
            let frame = endpoint.alloc(1).unwrap();
            endpoint
                .send(slot(1), frame, 1)
                .map_err(|(_, e)| e)
                .unwrap();
            assert!(receive_any(&mut next).is_some() && receive_any(&mut endpoint).is_some());
            assert!(send_short(&mut next, slot(2), 30) && send_short(&mut endpoint, slot(1), 30));
            assert!(receive_any(&mut next).is_none() && receive_any(&mut endpoint).is_none());
        }
        drop(next);
        assert_eq!(reaper.reset(slot(1)), 0);
        if status.success() {
            break;
        }
        assert_eq!(status.signal(), Some(libc::SIGKILL), "step {die_at}");
    }
    println!("killed after each of {} steps", die_at - 1);
    assert!(die_at > 100);
}
