//! A control thread whose clients are played by the test.

use std::collections::BTreeSet;
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::PollTimeout;
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use proto_trp::limit::RateLimit;
use urdma_harness::instance::Scratch;
use urdma_ipc::message::{FromClient, FromDaemon};
use urdma_ipc::packet::{PacketListener, PacketSocket};
use urdma_ipc::{Answer, Refusal, Request, RunDir, PROTOCOL_VERSION};
use urdma_waiting::OwnPage;

use super::super::acceptor::Acceptor;
use super::super::attaches::Attaches;
use super::super::spare::REST;
use super::*;
use crate::client::Client;
use crate::config::{Access, Config};
use crate::daemon::{self, Options};
use crate::data::command::{Command, Inbox};
use crate::rundir::OwnedRunDir;
use crate::slots::{SlotLimits, Slots};
use crate::user_limits::UserLimits;

const A: u32 = 64_001;
const B: u32 = 64_002;
const MS_NS: u64 = 1_000_000;
const HOUR_NS: u64 = 3600 * 1_000 * MS_NS;

/// A control thread that takes a turn when the test says so.
struct Rig {
    control: Control,
    listener: PacketListener,
    signals: SignalFd,
    scratch: Scratch,
    _owned: OwnedRunDir,
}

impl Rig {
    fn new(test: &str, limit: RateLimit) -> Self {
        let scratch = Scratch::new(test).unwrap();
        let options = Options {
            config: Config::default(),
            run_dir: RunDir::at(scratch.path().join("run")),
            foreground: true,
        };
        let owned = OwnedRunDir::acquire(&options.run_dir, Access::Owner).unwrap();
        let mut control = daemon::start(&options, &owned).unwrap();
        control.attaches = Attaches::within(UserLimits::new(limit));
        Self {
            control,
            listener: PacketListener::bind(&scratch.path().join("control")).unwrap(),
            signals: SignalFd::with_flags(&SigSet::empty(), SfdFlags::SFD_NONBLOCK).unwrap(),
            scratch,
            _owned: owned,
        }
    }

    /// A client of user `uid`, which has said hello.
    fn connect(&mut self, uid: u32) -> Process {
        let socket = PacketSocket::connect(&self.scratch.path().join("control")).unwrap();
        let accepted = self.listener.accept().unwrap();
        let own = accepted.peer().unwrap();
        let peer = libc::ucred {
            pid: own.pid(),
            uid,
            gid: own.gid(),
        };
        let token = self.control.next_token;
        self.control.next_token += 1;
        let client = Client::new(accepted, peer.into());
        self.control.clients.insert(token, client);
        let process = Process { socket };
        process.ask(Request::Hello {
            version: PROTOCOL_VERSION,
            program: "test".to_owned(),
        });
        self.turn();
        assert!(matches!(process.answer(), Some(Ok(Answer::Welcome { .. }))));
        process
    }

    /// One turn, which must have something to wait for.
    fn turn(&mut self) {
        let quota = self.control.config.quota;
        let mut acceptor = Acceptor::new(&self.listener, &quota);
        let ended = self.control.turn(&mut acceptor, &self.signals);
        assert_eq!(ended, Ok(None));
    }

    /// The next answer to a process, after as many turns as it takes.
    fn answer_to(&mut self, process: &Process) -> Answer {
        loop {
            if let Some(answer) = process.answer() {
                return answer.unwrap();
            }
            self.turn();
        }
    }

    /// Has a thread take the commands for the data thread that takes none until it is told.
    fn stall_data_thread(&mut self) -> Sender<()> {
        let inbox = Inbox::new();
        let (page, _) = OwnPage::create().unwrap();
        let (go, told) = channel();
        let shared = Arc::clone(&self.control.shared);
        let handle = inbox.handle(Arc::new(page));
        let thread = std::thread::spawn(move || {
            let _ = told.recv();
            while !inbox.must_stop() {
                while let Some(command) = inbox.pop() {
                    if let Command::Close { done, .. } = command {
                        done.send(()).unwrap();
                        shared.ring_control();
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        self.control.data = handle.with_thread(thread);
        go
    }

    /// Takes turns until one finds nothing to do, in which the region of the next process is
    /// created.
    fn prepare_region(&mut self) {
        while self.control.spare.is_wanted() {
            self.turn();
        }
    }

    fn sleeps_for_ever(&self) -> bool {
        self.control.timeout(Instant::now(), None) == PollTimeout::NONE
    }
}

/// The other end of a client's socket.
struct Process {
    socket: PacketSocket,
}

const ATTACH: Request = Request::Attach { want_lease: false };

impl Process {
    fn ask(&self, request: Request) {
        let message = FromClient { id: 1, request };
        self.socket.try_send(&message, &[]).unwrap();
    }

    /// The next answer that has arrived; events are passed over.
    fn answer(&self) -> Option<Result<Answer, Refusal>> {
        loop {
            let packet = self.socket.try_recv(8192).ok()??;
            match packet.parse().unwrap() {
                FromDaemon::Answer { result, .. } => return Some(result),
                FromDaemon::Event(_) => {}
                FromDaemon::Refused(refusal) => panic!("{refusal}"),
            }
        }
    }
}

// One process that attached and detached without pause took all of the control thread's time.
#[test]
fn attach_beyond_the_rate_of_its_user_waits_and_those_of_others_do_not() {
    /// As many at once, and one more as soon as time has passed.
    const BURST: u64 = 3;
    let mut rig = Rig::new("attaches", RateLimit::new(BURST, HOUR_NS));
    let (a, b) = (rig.connect(A), rig.connect(B));
    for _ in 0..=BURST {
        a.ask(ATTACH);
        a.ask(Request::Detach);
        assert!(matches!(rig.answer_to(&a), Answer::Attached(_)));
        assert!(matches!(rig.answer_to(&a), Answer::Done));
    }
    let later = rig.connect(A);
    for process in [&a, &later] {
        process.ask(ATTACH);
        process.ask(Request::Detach);
    }
    rig.turn();
    b.ask(ATTACH);
    rig.turn();
    assert!(matches!(b.answer(), Some(Ok(Answer::Attached(_)))));
    assert!(a.answer().is_none() && later.answer().is_none());
    assert_eq!(rig.control.counters.attach_delayed, 2);
    assert!(!rig.sleeps_for_ever());
    // The clients go away, and nothing of them is left.
    drop(a);
    rig.turn();
    assert_eq!(rig.control.attaches.waiting(), 1);
    drop(later);
    rig.turn();
    assert_eq!(rig.control.attaches.waiting(), 0);
    rig.prepare_region();
    assert!(rig.sleeps_for_ever());
    let left: BTreeSet<u32> = rig.control.clients.values().map(|c| c.peer.uid()).collect();
    assert_eq!(left, [B].into());
    assert_eq!(rig.control.counters.attached, BURST + 2);
}

// A process that had just attached waited for its processor until the region of the next one was
// created.
#[test]
fn region_of_the_next_process_is_created_when_nothing_has_been_asked_for_a_while() {
    let mut rig = Rig::new("rest", RateLimit::new(1, MS_NS));
    let (process, other) = (rig.connect(A), rig.connect(B));
    process.ask(ATTACH);
    assert!(matches!(rig.answer_to(&process), Answer::Attached(_)));
    let rest = PollTimeout::try_from(REST).unwrap();
    assert_eq!(rig.control.timeout(Instant::now(), None), rest);
    other.ask(Request::Recordings);
    rig.turn();
    assert!(matches!(other.answer(), Some(Ok(Answer::Recordings(_)))));
    assert!(rig.control.spare.is_wanted());
    rig.prepare_region();
    assert!(rig.sleeps_for_ever());
}

#[test]
fn attach_that_has_waited_is_answered_before_the_requests_behind_it() {
    const PROCESSES: usize = 8;
    let mut rig = Rig::new("attaches", RateLimit::new(1, 20 * MS_NS));
    let processes: Vec<Process> = (0..PROCESSES).map(|_| rig.connect(A)).collect();
    for process in &processes {
        process.ask(ATTACH);
        process.ask(Request::Detach);
    }
    for process in &processes {
        assert!(matches!(rig.answer_to(process), Answer::Attached(_)));
        assert!(matches!(rig.answer_to(process), Answer::Done));
    }
    assert_eq!(rig.control.counters.attached, PROCESSES as u64);
    assert!(rig.control.attaches.waiting() == 0);
}

// The control thread waited for the data thread at each end of a process, for seconds while that
// was not scheduled, and no client had an answer.
#[test]
fn control_thread_serves_others_while_the_data_thread_closes_a_channel() {
    let mut rig = Rig::new("closing-channel", RateLimit::new(9, HOUR_NS));
    let limits = SlotLimits::new(1, A, None, false);
    rig.control.slots = Slots::new(1, limits);
    let go = rig.stall_data_thread();
    let (first, next, later) = (rig.connect(A), rig.connect(A), rig.connect(A));
    first.ask(ATTACH);
    rig.turn();
    let Some(Ok(Answer::Attached(attached))) = first.answer() else {
        panic!("no slot");
    };
    drop(first);
    rig.turn();
    let slot = urdma_types::SlotId::new(attached.slot).unwrap();
    assert!(!rig.control.slots.is_free(slot));
    // One that wants a slot waits for it, and is not refused; others are served.
    next.ask(ATTACH);
    next.ask(Request::Detach);
    later.ask(Request::Status);
    assert!(matches!(rig.answer_to(&later), Answer::Status(_)));
    assert!(next.answer().is_none() && !rig.sleeps_for_ever());
    go.send(()).unwrap();
    assert!(matches!(rig.answer_to(&next), Answer::Attached(_)));
    assert!(matches!(rig.answer_to(&next), Answer::Done));
    assert!(rig.control.slots.is_free(slot));
    rig.prepare_region();
    assert!(rig.sleeps_for_ever());
    // While none is about to be free, a request is refused at once.
    later.ask(ATTACH);
    assert!(matches!(rig.answer_to(&later), Answer::Attached(_)));
    next.ask(ATTACH);
    rig.turn();
    assert!(matches!(next.answer(), Some(Err(_))));
}
