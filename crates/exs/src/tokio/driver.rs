//! The task that drives a stream until its connection has ended.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::descriptor::{Alarm, Descriptor};
use crate::buffered::Buffered;
use crate::socket::LINGER;

/// Which of the tasks of a stream waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Reader,
    Writer,
}

/// A stream, and the tasks that wait for something to happen to it.
#[derive(Debug)]
pub(super) struct State {
    pub(super) buffered: Buffered,
    reader: Option<Waker>,
    writer: Option<Waker>,
    driver: Option<Waker>,
    /// The user has dropped the stream.
    is_released: bool,
    /// Until when the other end may end the connection.
    linger: Option<Instant>,
}

impl State {
    /// The tasks for which something has happened.
    fn due(&mut self) -> [Option<Waker>; 2] {
        let news = self.buffered.take_news();
        [
            self.reader.take_if(|_| news.for_reads),
            self.writer.take_if(|_| news.for_writes),
        ]
    }

    /// Executes the protocol. `true`: nothing is left to be done for now.
    fn drive(&mut self) -> bool {
        let is_done = self.buffered.socket.turn();
        self.buffered.take_events();
        let has_closed = self.is_released && self.buffered.try_close().is_ready();
        if has_closed {
            let until = *self.linger.get_or_insert_with(|| Instant::now() + LINGER);
            if Instant::now() >= until {
                self.buffered.socket.disconnect();
            }
        }
        is_done
    }

    fn has_ended(&self) -> bool {
        self.buffered.socket.fds().is_none()
    }

    fn deadline(&self) -> Option<Instant> {
        let both = [self.buffered.socket.deadline(), self.linger];
        both.into_iter().flatten().min()
    }
}

/// A stream that its user and the task share.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<State>>);

impl Shared {
    /// A stream, and its driver.
    pub(super) fn new(buffered: Buffered) -> io::Result<(Self, Option<Driver>)> {
        let fds = match buffered.socket.fds() {
            Some([first, second]) => Some([Descriptor::new(first)?, Descriptor::new(second)?]),
            None => None,
        };
        let shared = Self(Arc::new(Mutex::new(State {
            buffered,
            reader: None,
            writer: None,
            driver: None,
            is_released: false,
            linger: None,
        })));
        let driver = fds.map(|fds| Driver {
            shared: shared.clone(),
            fds,
            alarm: Alarm::new(),
        });
        Ok((shared, driver))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call of the user; the task of this side is woken when a call that is pending may be
    /// complete.
    pub(super) fn call<T>(
        &self,
        side: Side,
        context: &Context<'_>,
        call: impl FnOnce(&mut Buffered) -> Poll<T>,
    ) -> Poll<T> {
        let mut state = self.lock();
        let result = call(&mut state.buffered);
        // Before the waker is kept: it is for what happens from now on.
        let due = state.due();
        if result.is_pending() {
            let waker = match side {
                Side::Reader => &mut state.reader,
                Side::Writer => &mut state.writer,
            };
            *waker = Some(context.waker().clone());
        }
        let socket = &state.buffered.socket;
        let is_due = socket.is_ending() || socket.deadline().is_some();
        let driver = state.driver.take_if(|_| is_due);
        // A waker may call the stream.
        drop(state);
        due.into_iter()
            .flatten()
            .chain(driver)
            .for_each(Waker::wake);
        result
    }

    /// The user drops the stream: what was written is sent, and the task ends the connection.
    pub(super) fn release(&self) {
        let mut state = self.lock();
        state.buffered.finish_both();
        state.is_released = true;
        let driver = state.driver.take();
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }
}

/// The task. It ends with the connection.
#[derive(Debug)]
pub(super) struct Driver {
    shared: Shared,
    fds: [Descriptor; 2],
    alarm: Alarm,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let driver = &mut *self;
        loop {
            // Before the turn, which takes what has made them readable.
            if driver.fds.iter().any(|fd| fd.arm(context).is_err()) {
                // The runtime is ending.
                return Poll::Ready(());
            }
            let mut state = driver.shared.lock();
            let is_done = state.drive();
            let due = state.due();
            let has_ended = state.has_ended();
            let deadline = state.deadline();
            state.driver = Some(context.waker().clone());
            drop(state);
            due.into_iter().flatten().for_each(Waker::wake);
            if has_ended {
                return Poll::Ready(());
            }
            if !is_done {
                // Other tasks have their turn first.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            match deadline {
                Some(at) if driver.alarm.is_due(at, context) => {}
                _ => return Poll::Pending,
            }
        }
    }
}
