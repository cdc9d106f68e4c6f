//! Ports of TCP and UDP for servers, which no test that runs at the same time uses.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::OnceLock;

/// The first port of the tests.
const BASE: u16 = 19_000;
const RANGES: u16 = 12;
const RANGE: u16 = 1_000;

static NEXT: AtomicU16 = AtomicU16::new(0);
/// The first port of this process, and what has the name of its range until the process ends; none
/// if other processes have all of them.
static OWN: OnceLock<(u16, Option<UnixListener>)> = OnceLock::new();

/// A range that no other process has, if there is one.
fn take() -> (u16, Option<UnixListener>) {
    let begin = u16::try_from(std::process::id() % u32::from(RANGES)).unwrap_or(0);
    let numbers = (begin..RANGES).chain(0..begin);
    let mut free = numbers.filter_map(|number| Some((number, hold(number).ok()?)));
    let (number, held) = match free.next() {
        Some((number, held)) => (number, Some(held)),
        None => (begin, None),
    };
    (BASE + number * RANGE, held)
}

/// Takes the name of a range, which one process of a network namespace can have.
fn hold(number: u16) -> std::io::Result<UnixListener> {
    let name = format!("urdma-tests-ports-{number}");
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// The first of 100 ports that no other test uses.
pub fn ports() -> u16 {
    OWN.get_or_init(take).0 + NEXT.fetch_add(100, Ordering::Relaxed) % RANGE
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn processes_have_different_ports() {
        let ranges: Vec<_> = (0..RANGES).map(|_| take()).collect();
        let held = || ranges.iter().filter(|(_, held)| held.is_some());
        let firsts: BTreeSet<_> = held().map(|(first, _)| *first).collect();
        assert!(held().count() > 1);
        assert_eq!(firsts.len(), held().count());
        assert!(hold((ranges[0].0 - BASE) / RANGE).is_err());
    }
}
