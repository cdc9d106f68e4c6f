//! A program that is stopped, or killed, at each step of what it does with the device: at its
//! system calls, to which strace(1) adds the signal.
//!
//! A persistent rping server answers one client after the other. Whatever happens to a client, the
//! server, a pair of programs that check every octet, and urdmad go on.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use urdma_harness::instance::{LeasePolicy, Scratch};
use urdma_harness::pair::is_ready;
use urdma_harness::process::{wait_until, Ended, Process};
use urdma_harness::programs::{is_content_of_rping, words, Ready};
use urdma_tests::hostile::{Bed, Steady};
use urdma_tests::{alone, descriptors_of, ports, SHORT};

/// The system calls by which a process talks to urdmad, shares memory and sleeps.
const CALLS: &str = "memfd_create,mmap,munmap,madvise,ftruncate,fcntl,ioctl,close,socket,connect,\
    sendto,recvfrom,sendmsg,recvmsg,read,write,futex,futex_waitv,poll,ppoll,epoll_pwait2";
/// At how many of each kind of call a client gets the signal.
const STEPS: usize = 3;
/// How long a client stays stopped.
const STOPPED: Duration = Duration::from_millis(20);
/// How long a client may take: each call stops it at most once, and it stays stopped for a moment.
const CLIENT: Duration = Duration::from_secs(30);

/// An rping server, and what it takes to run clients of it.
struct Served<'a> {
    bed: &'a Bed,
    scratch: Scratch,
    server: Process,
    port: u16,
    /// Those of urdmad before.
    descriptors: usize,
}

/// A server that is ready.
fn serve(bed: &Bed, port: u16) -> Process {
    let line = words(&format!("rping -s -P -a 127.0.0.1 -p {port}"));
    let mut command = bed.host().run(LeasePolicy::Never, &line).unwrap();
    let mut server = Process::start(&mut command).unwrap();
    wait_until("rping listens", SHORT, || {
        is_ready(Ready::Cm(port), bed.host()) || !server.is_running()
    })
    .unwrap();
    server
}

impl<'a> Served<'a> {
    fn start(bed: &'a Bed) -> Self {
        let port = ports();
        let descriptors = descriptors_of(bed.host().daemon_pid().unwrap());
        let server = serve(bed, port);
        Self {
            bed,
            scratch: Scratch::new("steps").unwrap(),
            server,
            port,
            descriptors,
        }
    }

    /// A client that is traced with these options, or a plain one.
    fn client(&self, strace: &[&str]) -> Process {
        let line = format!("rping -c -a 127.0.0.1 -p {} -C 5 -V", self.port);
        let mut line = words(&line);
        if !strace.is_empty() {
            let traced = ["strace", "-f", "-qq"].iter().chain(strace);
            line.splice(0..0, traced.map(ToString::to_string));
        }
        let mut command = self.bed.host().run(LeasePolicy::Never, &line).unwrap();
        Process::start(&mut command).unwrap()
    }

    /// How often a client makes each of [`CALLS`].
    fn calls_of_a_client(&self) -> BTreeMap<String, usize> {
        let file = self.scratch.path().join("calls");
        let trace = format!("trace={CALLS}");
        let options = ["-e", &trace, "-o", file.to_str().unwrap()];
        let ended = self.client(&options).wait(CLIENT).unwrap();
        assert!(is_content_of_rping(&ended), "{}", ended.describe());
        let mut calls = BTreeMap::new();
        for line in fs::read_to_string(file).unwrap().lines() {
            // The number of the thread, and the call with its arguments.
            let call = line.split_whitespace().nth(1).unwrap_or_default();
            if let Some((name, _)) = call.split_once('(') {
                *calls.entry(name.to_owned()).or_insert(0) += 1;
            }
        }
        calls
    }

    /// Runs a client for each step, and has it get the signal there. The calls of the loader, which
    /// come first, are few beside the others.
    fn at_each_step(&mut self, signal: &str, run: impl Fn(Process) -> Ended) -> usize {
        let mut steps = 0;
        for (call, count) in self.calls_of_a_client() {
            for step in 0..STEPS.min(count) {
                let when = 1 + step * count / STEPS;
                let inject = format!("inject={call}:signal={signal}:when={when}");
                let options = ["-o", "/dev/null", "-e", &inject];
                let mut ends = std::iter::repeat_with(|| run(self.client(&options)));
                // strace itself ends now and then when its program is continued.
                let ended = ends.find(|ended| !ended.output.contains("strace: Unexpected wait"));
                let ended = ended.unwrap();
                println!("{inject}: {}", ended.describe());
                if signal == "SIGSTOP" {
                    let is_good = is_content_of_rping(&ended);
                    assert!(is_good, "{inject}: {}", ended.describe());
                }
                self.expect_server();
                steps += 1;
            }
        }
        steps
    }

    /// Starts another server if rping has ended. It ends with any event of a connection whose other
    /// end has gone before it was established, and says so.
    fn expect_server(&mut self) {
        if !self.server.is_running() {
            let said = self.server.printed();
            let why = said.lines().last().unwrap_or_default();
            assert!(why.starts_with("cma event RDMA_CM_EVENT_"), "{said}");
            self.server = serve(self.bed, self.port);
        }
    }

    /// The server still answers, and everything is taken back once it has ended.
    fn end(self) {
        let ended = self.client(&[]).wait(CLIENT).unwrap();
        assert!(is_content_of_rping(&ended), "{}", ended.describe());
        self.server.signal(Signal::SIGKILL).unwrap();
        drop(self.server);
        self.bed.expect_nothing_left_of_attackers(self.descriptors);
    }
}

#[test]
fn client_stopped_at_any_step_goes_on_and_holds_up_no_other() {
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let mut served = Served::start(&bed);
    let steps = served.at_each_step("SIGSTOP", |mut client| {
        let tracer = client.id();
        let children = format!("/proc/{tracer}/task/{tracer}/children");
        wait_until("a client that is stopped again and again", CLIENT, || {
            std::thread::sleep(STOPPED);
            let traced = fs::read_to_string(&children).unwrap_or_default();
            for program in traced.split_whitespace() {
                let program = Pid::from_raw(program.parse().unwrap());
                // It may have ended.
                let _ = kill(program, Signal::SIGCONT);
            }
            !client.is_running()
        })
        .unwrap();
        client.wait(SHORT).unwrap()
    });
    assert!(steps > 2 * STEPS, "{steps}");
    steady.expect_progress("beside clients that are stopped");
    served.end();
    steady.end();
    bed.down();
}

#[test]
fn client_killed_at_any_step_leaves_nothing_behind() {
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let mut served = Served::start(&bed);
    let steps = served.at_each_step("SIGKILL", |client| client.wait(CLIENT).unwrap());
    assert!(steps > 2 * STEPS, "{steps}");
    steady.expect_progress("beside clients that are killed");
    served.end();
    steady.end();
    bed.down();
}
