//! Sockets that are offered when they are connected: `urdma run --sockets-from 0`.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use urdma_abi::cancel::Disabled;

use crate::signals::Masked;
use crate::table::{self, State};
use crate::{agent, connection, process, real};

/// How long connect and accept wait for urdmad's answer.
const LIMIT: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(20);

/// connect or accept has ended. If the socket is connected now it is offered, and urdmad has
/// answered when this returns, or will not for a while.
pub(crate) fn connected(fd: c_int) {
    if process::offered_from() == 0 && table::hit(fd).is_some() {
        offer(fd);
    }
}

#[cold]
fn offer(fd: c_int) {
    let Some(cell) = table::hit(fd) else {
        return;
    };
    let seen = cell.seen();
    let before = real::errno();
    if seen.state() == State::Alone && connection::is_established(fd) {
        agent::ask(fd, cell, seen.generation());
        let _uncancelled = Disabled::new();
        let _masked = Masked::sleeping();
        let begin = Instant::now();
        let is_answered = || {
            let now = cell.seen();
            now.generation() != seen.generation() || now.state() != State::Offered
        };
        while !is_answered() && begin.elapsed() < LIMIT {
            std::thread::sleep(PAUSE);
        }
    }
    real::set_errno(before);
}
