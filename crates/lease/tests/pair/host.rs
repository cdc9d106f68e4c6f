//! The two hosts of the test and the secondaries on them.

use std::path::{Path, PathBuf};

use urdma_harness::hugepages::Hugepages;

use crate::child::Role;

/// Both sides of a memif pair, which are removed with their files when dropped.
pub(crate) struct Hosts {
    pub(crate) a: Role,
    pub(crate) b: Role,
    directory: PathBuf,
    hugepages: Hugepages,
}

/// Hugepages for two primaries of 64 MB, and some in reserve.
const HUGEPAGES: u64 = 80;

impl Hosts {
    pub(crate) fn start() -> Self {
        let hugepages = match Hugepages::reserve(HUGEPAGES) {
            Ok(hugepages) => hugepages,
            Err(failure) => panic!("this test needs hugepages: {failure}"),
        };
        let directory = std::env::temp_dir().join(format!("urdma-lease-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (a, b) = (
            primary("a", "server", &directory, hugepages.directory()),
            primary("b", "client", &directory, hugepages.directory()),
        );
        a.expect("up");
        b.expect("up");
        Self {
            a,
            b,
            directory,
            hugepages,
        }
    }

    /// Kills the primary of host b and starts another.
    pub(crate) fn replace_b(&mut self) {
        self.b.kill();
        self.b = primary("b", "client", &self.directory, self.hugepages.directory());
        self.b.expect("up");
    }

    /// Starts a secondary of a host with the lease of a queue.
    pub(crate) fn secondary(&self, host: &str, queue: u16, lcore: u16) -> Role {
        let role = self.attach(host, queue, lcore);
        let line = role.line();
        assert!(line.starts_with("attached"), "{line}");
        role
    }

    /// As `secondary`, without waiting until it has attached.
    pub(crate) fn attach(&self, host: &str, queue: u16, lcore: u16) -> Role {
        Role::start(&[
            "role-secondary",
            host,
            self.directory.to_str().unwrap(),
            &queue.to_string(),
            &lcore.to_string(),
        ])
    }
}

fn primary(name: &str, side: &str, directory: &Path, pages: &Path) -> Role {
    let (directory, pages) = (directory.to_str().unwrap(), pages.to_str().unwrap());
    let role = Role::start(&["role-primary", name, side, directory, pages]);
    role.expect("listening");
    role
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for role in [&mut self.a, &mut self.b] {
            role.tell("quit");
        }
        for role in [&self.a, &self.b] {
            role.expect("gone");
        }
        let left: Vec<_> = files(&self.directory.join("dpdk"));
        let _ = std::fs::remove_dir_all(&self.directory);
        if !std::thread::panicking() {
            assert!(left.is_empty(), "files are left: {left:?}");
        }
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

/// The address of a host, "a" or "b".
pub(crate) fn address(host: &str) -> std::net::Ipv4Addr {
    if host == "a" {
        [127, 0, 0, 1].into()
    } else {
        [127, 0, 0, 2].into()
    }
}

/// The Ethernet address of a host's port.
pub(crate) fn mac(host: &str) -> [u8; 6] {
    [2, 0, 0, 0, 0, host.as_bytes()[0]]
}

/// The file prefix of a host's primary.
pub(crate) fn prefix(host: &str) -> String {
    format!("urdma-test-{host}")
}

/// The pool of a queue.
pub(crate) fn pool(queue: u16) -> String {
    format!("lease{queue}")
}

/// The device of every host.
pub(crate) const DEVICE: &str = "net_memif0";

/// IP MTU of the pair.
pub(crate) const MTU: u16 = 9000;

/// Queue pairs of each port.
pub(crate) const QUEUES: u16 = 3;
