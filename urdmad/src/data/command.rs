//! What the control thread asks of the data thread.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, Sender, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use urdma_arena::Parker;
use urdma_ipc::fault::Faults;
use urdma_ipc::message::FromDaemon;
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::status::FaultStatus;
use urdma_ipc::{Answer, Resolution};

use super::own::Answer as Datagram;
use crate::port::PortReport;

/// The data thread looks at its commands at least once a millisecond; longer means that it hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// One wish.
#[derive(Debug)]
pub(crate) enum Command {
    /// Answer `reply` when it is known how to reach `ip`.
    Resolve { ip: IpAddr, reply: Reply },
    /// Send this.
    Send(Box<Datagram>),
    /// Leave a queue to a lessee that has this UDP port.
    Lend {
        queue: u16,
        udp_port: u16,
        done: SyncSender<Result<(), String>>,
    },
    /// Take back the queue of a lessee that is gone, and poll it.
    Reclaim {
        queue: u16,
        done: SyncSender<Result<(), String>>,
    },
    /// Say how the port is.
    Report {
        done: SyncSender<(PortReport, FaultStatus)>,
    },
    /// Do this to the port's frames from now on.
    SetFaults {
        faults: Faults,
        done: SyncSender<()>,
    },
    /// Send what is to be sent and end.
    Stop,
}

/// Where the answer to a client's request goes.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) socket: Arc<PacketSocket>,
    pub(crate) id: u64,
}

impl Reply {
    /// Sends the answer; a client that is gone or does not read is the control thread's business.
    pub(crate) fn resolved(&self, resolution: Resolution) {
        let answer = FromDaemon::Answer {
            id: self.id,
            result: Ok(Answer::Resolved(resolution)),
        };
        let _ = self.socket.try_send(&answer, &[]);
    }
}

/// The data thread's end of the queue.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) commands: Receiver<Command>,
    pub(crate) has_some: Arc<AtomicBool>,
}

/// The control thread's hold on the data thread.
#[derive(Debug)]
pub(crate) struct DataHandle {
    commands: Sender<Command>,
    has_some: Arc<AtomicBool>,
    parker: Parker,
    thread: Option<JoinHandle<()>>,
}

impl DataHandle {
    pub(crate) fn new(
        commands: Sender<Command>,
        has_some: Arc<AtomicBool>,
        parker: Parker,
        thread: JoinHandle<()>,
    ) -> Self {
        Self {
            commands,
            has_some,
            parker,
            thread: Some(thread),
        }
    }

    /// Sends a command; false if the data thread is gone.
    pub(crate) fn send(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        self.has_some.store(true, Ordering::SeqCst);
        self.parker.unpark();
        sent
    }

    /// Leaves a queue to a lessee that has `udp_port`.
    pub(crate) fn lend(&self, queue: u16, udp_port: u16) -> Result<(), String> {
        self.ask(|done| Command::Lend {
            queue,
            udp_port,
            done,
        })
        .unwrap_or_else(|| Err("the data thread does not answer".to_owned()))
    }

    /// Takes a queue back.
    pub(crate) fn reclaim(&self, queue: u16) -> Result<(), String> {
        self.ask(|done| Command::Reclaim { queue, done })
            .unwrap_or_else(|| Err("the data thread does not answer".to_owned()))
    }

    /// How the port is; nothing if the data thread did not answer.
    pub(crate) fn report(&self) -> Option<(PortReport, FaultStatus)> {
        self.ask(|done| Command::Report { done })
    }

    /// Changes what happens to the port's frames; nothing if there is no port or the data thread did not answer.
    pub(crate) fn set_faults(&self, faults: Faults) -> Option<()> {
        self.ask(|done| Command::SetFaults { faults, done })
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Option<T> {
        let (done, answer) = sync_channel(1);
        if !self.send(command(done)) {
            return None;
        }
        answer.recv_timeout(ANSWER_LIMIT).ok()
    }

    /// Whether the thread has ended, which it must not before it is told to.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread and waits for it.
    pub(crate) fn stop(&mut self) {
        self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                tracing::error!("the data thread panicked");
            }
        }
    }
}

impl Drop for DataHandle {
    fn drop(&mut self) {
        self.stop();
    }
}
