//! Hosts with instances of urdma, and the ends that run there.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, Scratch};
use urdma_harness::process::Process;
use urdma_tests::{
    expect_all_taken_back, link_urdmadv, ports, start_end, up_with_faults, OneHost, CHECK_LIMIT,
};

use super::{GO, MET, OWN, PEER, ROLE};

pub(crate) fn kill(end: Process) {
    end.signal(Signal::SIGKILL).unwrap();
    end.wait(CHECK_LIMIT).unwrap();
}

/// What there is between ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Connections,
    Initiators,
}

/// Ends on one host, or on two.
pub(crate) struct Hosts {
    pub(crate) over: Over,
    pub(crate) hosts: Vec<Instance>,
    pub(crate) scratch: Scratch,
    pub(crate) addresses: [String; 2],
}

impl Hosts {
    pub(crate) fn one() -> Self {
        let OneHost { host, scratch } = OneHost::up();
        let addresses = [(); 2].map(|()| format!("127.0.0.1:{}", ports()));
        Self {
            over: Over::Connections,
            hosts: vec![host],
            scratch,
            addresses,
        }
    }

    /// Whose ends reach each other so.
    pub(crate) fn over(self, over: Over) -> Self {
        link_urdmadv(self.scratch.path());
        Self { over, ..self }
    }

    pub(crate) fn two(fault: &str) -> Self {
        let scratch = Scratch::new("sends").unwrap();
        let hosts = up_with_faults(&scratch, fault);
        let addresses = ["127.0.0.1", "127.0.0.2"].map(|host| format!("{host}:{}", ports()));
        Self {
            over: Over::Connections,
            hosts: hosts.into(),
            scratch,
            addresses,
        }
    }

    pub(crate) fn go(&self) -> PathBuf {
        self.scratch.path().join("go")
    }

    /// Starts the end at one of the addresses, which connects to the other one, if at all.
    pub(crate) fn start(&self, role: &str, at: usize) -> Process {
        self.start_at(role, at, &self.addresses[at])
    }

    pub(crate) fn start_at(&self, role: &str, at: usize, own: &str) -> Process {
        let host = &self.hosts[at.min(self.hosts.len() - 1)];
        self.start_on(host, role, own, &self.addresses[1 - at])
    }

    /// Starts an end on the first host, with two addresses.
    pub(crate) fn start_between(&self, role: &str, own: &str, peer: &str) -> Process {
        self.start_on(&self.hosts[0], role, own, peer)
    }

    fn start_on(&self, host: &Instance, role: &str, own: &str, peer: &str) -> Process {
        let go = self.go();
        let mut environment = vec![
            (ROLE, role),
            (OWN, own),
            (PEER, peer),
            (GO, go.to_str().unwrap()),
        ];
        if self.over == Over::Initiators {
            let libraries = self.scratch.path().to_str().unwrap();
            environment.extend([(MET, "1"), ("LD_LIBRARY_PATH", libraries)]);
        }
        let mut end = start_end(host, &environment);
        end.wait_for_text("listens", CHECK_LIMIT).unwrap();
        end
    }

    pub(crate) fn let_go(&self) {
        std::fs::write(self.go(), "").unwrap();
    }

    /// Nothing is left of the ends, which are killed.
    pub(crate) fn down(self, ends: impl IntoIterator<Item = Process>) {
        ends.into_iter().for_each(kill);
        self.hosts.iter().for_each(expect_all_taken_back);
        for host in self.hosts {
            host.down().unwrap();
        }
    }
}
