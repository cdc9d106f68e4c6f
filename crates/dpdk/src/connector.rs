//! Reconnects net_memif clients. The driver itself tries to connect once, when the port starts.

use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::Error;

/// Interval of checks while the link is down. Connecting takes a few milliseconds, but there is no
/// bound on a busy machine.
const DOWN_PERIOD: Duration = Duration::from_millis(50);

/// The longest time that a server has to complete a connection: each attempt gets twice as long as
/// the one before.
const DOWN_PERIOD_MAX: Duration = Duration::from_secs(2);

/// Interval of checks while the link is up.
const UP_PERIOD: Duration = Duration::from_millis(250);

/// A thread that starts a port, and restarts it whenever its link is down.
#[derive(Debug)]
pub(crate) struct Connector {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Connector {
    /// Tries to start the port once, then starts the thread, which keeps trying.
    pub(crate) fn start(port: u16) -> Result<Self, Error> {
        let (stop, stopped) = channel::<()>();
        let mut connected = try_start(port);
        let thread = thread::Builder::new()
            .name("urdma-connect".into())
            .spawn(move || {
                let mut patience = DOWN_PERIOD;
                let mut period = patience;
                while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                    if connected && is_up(port) {
                        (patience, period) = (DOWN_PERIOD, UP_PERIOD);
                        continue;
                    }
                    // SAFETY: the port exists as long as the thread runs; the shim excludes bursts
                    // during the call.
                    unsafe { dpdk_sys::urdma_port_stop(port) };
                    connected = try_start(port);
                    patience = if connected {
                        (patience * 2).min(DOWN_PERIOD_MAX)
                    } else {
                        DOWN_PERIOD
                    };
                    period = patience;
                }
            })
            .map_err(|error| Error::new(libc::EAGAIN, format!("cannot start a thread: {error}")))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Starts the port. True if the server accepted the connection; the link comes up a little later.
fn try_start(port: u16) -> bool {
    // SAFETY: the port exists; one that is not configured is refused.
    (unsafe { dpdk_sys::urdma_port_start(port) }) == 0
}

fn is_up(port: u16) -> bool {
    let (mut up, mut megabits) = (false, 0);
    // SAFETY: the pointers are to local variables; a port that does not exist is refused.
    unsafe { dpdk_sys::urdma_port_link(port, &mut up, &mut megabits) };
    up
}
