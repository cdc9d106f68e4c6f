//! Commands of the control thread to the data thread.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TryRecvError};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use thiserror::Error;
use urdma_channel::OwnRegion;
use urdma_ipc::fault::Faults;
use urdma_ipc::status::FaultStatus;
use urdma_types::SlotId;
use urdma_waiting::OwnPage;

use super::channels::PeerMemory;
use super::daemon_traffic::DaemonDatagram;
use crate::port::{PortReport, QueueError};
use crate::shared::Reply;

/// The data thread reads its commands at least once a millisecond; a longer delay means that it
/// hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Capacity of the command queue. One turn of the control loop handles at most 16 requests of each
/// of 254 slots, and the data thread empties the queue at least once a millisecond.
const COMMANDS_MAX: usize = 4096;

/// The port's state, and the impairments of its frames.
pub(crate) type Reported = (PortReport, FaultStatus);

/// A request of the control thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Write to the next process of a slot.
    Open { slot: SlotId, region: OwnRegion },
    /// Read what the process of a slot writes.
    Attach { slot: SlotId, peer: Box<PeerMemory> },
    /// Take the last packets of the process of a slot, which has ended, and close its channel.
    Close { slot: SlotId, done: SyncSender<()> },
    /// Give the control thread the answer for `reply` when the neighbour for `ip` is resolved.
    Resolve { ip: IpAddr, reply: Reply },
    /// Send a datagram.
    Send(Box<DaemonDatagram>),
    /// Lend a queue to a lessee with this UDP port.
    Lend {
        queue: u16,
        udp_port: u16,
        done: SyncSender<Result<(), QueueError>>,
    },
    /// Take back the queue of a lessee that has ended, and poll it.
    Reclaim {
        queue: u16,
        done: SyncSender<Result<(), QueueError>>,
    },
    /// Groups have had their first members or lost the last ones.
    GroupsChanged,
    /// Report the port's state.
    Report { done: SyncSender<Reported> },
    /// Apply these impairments to the port's frames from now on.
    SetFaults {
        faults: Box<Faults>,
        done: SyncSender<()>,
    },
}

/// Why the data thread does not take a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum NotTaken {
    #[error("too many commands wait for the data thread")]
    Full,
    #[error("the data thread has ended")]
    Ended,
    #[error("the data thread does not answer")]
    NoAnswer,
}

/// Why a queue of the port is not lent, or not taken back.
#[derive(Debug, Error)]
pub(crate) enum NotLent {
    #[error(transparent)]
    Port(#[from] QueueError),
    #[error(transparent)]
    DataThread(#[from] NotTaken),
}

/// What both ends of the command queue share.
#[derive(Debug)]
struct Mailbox {
    commands: ArrayQueue<Command>,
    /// Something changed since the data thread last looked.
    has_news: AtomicBool,
    /// The data thread is to end.
    must_stop: AtomicBool,
    /// The data thread has ended: commands are discarded.
    is_closed: AtomicBool,
}

impl Mailbox {
    fn discard(&self) {
        while self.commands.pop().is_some() {}
    }
}

/// The data thread's end of the command queue.
#[derive(Debug)]
pub(crate) struct Inbox(Arc<Mailbox>);

impl Inbox {
    /// An empty queue.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mailbox {
            commands: ArrayQueue::new(COMMANDS_MAX),
            has_news: AtomicBool::new(false),
            must_stop: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }))
    }

    /// The control thread's end, for the thread that has this one.
    pub(crate) fn handle(&self, page: Arc<OwnPage>) -> DataHandle {
        DataHandle {
            mailbox: Arc::clone(&self.0),
            page,
            thread: None,
        }
    }

    /// Whether [`take_news`](Self::take_news) would be true; clears nothing.
    pub(crate) fn has_news(&self) -> bool {
        self.0.has_news.load(Ordering::SeqCst)
    }

    /// Whether commands or the stop request may be waiting; clears the flag.
    #[inline]
    pub(crate) fn take_news(&self) -> bool {
        self.0.has_news.swap(false, Ordering::SeqCst)
    }

    /// The next command.
    pub(crate) fn pop(&self) -> Option<Command> {
        self.0.commands.pop()
    }

    /// Whether the data thread is to end once it has handled its commands.
    pub(crate) fn must_stop(&self) -> bool {
        self.0.must_stop.load(Ordering::SeqCst)
    }
}

impl Drop for Inbox {
    /// Discards the commands that remain, so that callers see their answer channels closed.
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
        self.0.discard();
    }
}

/// An answer of the data thread that has not come yet.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    answer: Receiver<T>,
    deadline: Instant,
}

impl<T> Pending<T> {
    fn new(answer: Receiver<T>) -> Self {
        Self {
            answer,
            deadline: Instant::now() + ANSWER_LIMIT,
        }
    }

    /// Waits for it.
    ///
    /// # Errors
    /// [`NotTaken::NoAnswer`]: the data thread has ended, or the time is over.
    pub(crate) fn wait(self) -> Result<T, NotTaken> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let answer = self.answer.recv_timeout(left);
        answer.map_err(|_| NotTaken::NoAnswer)
    }

    /// What [`Self::wait`] gives, if it would not wait.
    pub(crate) fn poll(&self) -> Option<Result<T, NotTaken>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(Ok(answer)),
            Err(TryRecvError::Empty) if Instant::now() < self.deadline => None,
            Err(_) => Some(Err(NotTaken::NoAnswer)),
        }
    }

    /// The end of the time for the answer.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// The control thread's handle of the data thread.
#[derive(Debug)]
pub(crate) struct DataHandle {
    mailbox: Arc<Mailbox>,
    page: Arc<OwnPage>,
    thread: Option<JoinHandle<()>>,
}

impl DataHandle {
    /// The handle, with the thread that it joins.
    pub(crate) fn with_thread(mut self, thread: JoinHandle<()>) -> Self {
        self.thread = Some(thread);
        self
    }

    /// Queues a command.
    ///
    /// # Errors
    /// The queue is full, or the data thread has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), NotTaken> {
        self.mailbox
            .commands
            .push(command)
            .map_err(|_| NotTaken::Full)?;
        self.notify();
        if self.mailbox.is_closed.load(Ordering::SeqCst) {
            self.mailbox.discard();
            return Err(NotTaken::Ended);
        }
        Ok(())
    }

    fn notify(&self) {
        self.mailbox.has_news.store(true, Ordering::SeqCst);
        self.page.unpark();
    }

    /// Lends a queue to a lessee with `udp_port`.
    pub(crate) fn lend(&self, queue: u16, udp_port: u16) -> Result<(), NotLent> {
        let lent = self.ask(|done| Command::Lend {
            queue,
            udp_port,
            done,
        })?;
        Ok(lent?)
    }

    /// Takes a queue back.
    pub(crate) fn reclaim(&self, queue: u16) -> Result<(), NotLent> {
        Ok(self.ask(|done| Command::Reclaim { queue, done })??)
    }

    /// Has the channel of a slot closed whose process has ended. The control thread is woken by the
    /// answer.
    pub(crate) fn close(&self, slot: SlotId) -> Pending<()> {
        let (done, answer) = sync_channel(1);
        // If the command is not taken, the end of `done` is the answer.
        let _ = self.send(Command::Close { slot, done });
        Pending::new(answer)
    }

    /// Asks for the port's state. The control thread is woken by the answer.
    pub(crate) fn report(&self) -> Result<Pending<Reported>, NotTaken> {
        self.begin(|done| Command::Report { done })
    }

    /// Sets the impairments of the port's frames.
    ///
    /// # Errors
    /// There is no port, or the data thread did not take the command or not answer.
    pub(crate) fn set_faults(&self, faults: Faults) -> Result<(), NotTaken> {
        self.ask(|done| Command::SetFaults {
            faults: Box::new(faults),
            done,
        })
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T, NotTaken> {
        self.begin(command)?.wait()
    }

    fn begin<T>(
        &self,
        command: impl FnOnce(SyncSender<T>) -> Command,
    ) -> Result<Pending<T>, NotTaken> {
        let (done, answer) = sync_channel(1);
        self.send(command(done))?;
        Ok(Pending::new(answer))
    }

    /// Whether the thread has ended; without a stop request that is an error.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the thread and joins it.
    pub(crate) fn stop(&mut self) {
        self.mailbox.must_stop.store(true, Ordering::SeqCst);
        self.notify();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> (Inbox, DataHandle) {
        let (page, _) = OwnPage::create().unwrap();
        let inbox = Inbox::new();
        let handle = inbox.handle(Arc::new(page));
        (inbox, handle)
    }

    fn lend(queue: u16) -> Command {
        let (done, _) = sync_channel(1);
        Command::Lend {
            queue,
            udp_port: 0,
            done,
        }
    }

    #[test]
    fn full_queue_refuses_commands_and_loses_none() {
        let (inbox, handle) = queue();
        let count = u16::try_from(COMMANDS_MAX).unwrap();
        for number in 0..count {
            assert_eq!(handle.send(lend(number)), Ok(()));
        }
        assert_eq!(handle.send(lend(count)), Err(NotTaken::Full));
        assert!(inbox.take_news() && !inbox.must_stop());
        for number in 0..count {
            let command = inbox.pop();
            assert!(matches!(command, Some(Command::Lend { queue, .. }) if queue == number));
        }
        assert!(inbox.pop().is_none());
        assert_eq!(handle.send(lend(count)), Ok(()));
    }

    #[test]
    fn full_queue_does_not_keep_the_thread_from_ending() {
        let (inbox, mut handle) = queue();
        for number in 0..COMMANDS_MAX {
            handle.send(lend(number as u16)).unwrap();
        }
        handle.stop();
        assert!(inbox.take_news() && inbox.must_stop());
    }

    #[test]
    fn commands_to_a_thread_that_has_ended_are_refused_at_once() {
        let (inbox, handle) = queue();
        handle.send(lend(1)).unwrap();
        drop(inbox);
        assert_eq!(handle.send(lend(2)), Err(NotTaken::Ended));
        assert!(handle.report().is_err());
    }
}
