//! Completion channels and asynchronous events: how the engine notifies the application.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{fence, AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use urdma_waiting::Signal;

use urdma_waiting::local_events;
use urdma_waiting::unread::Unread;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncKind {
    /// IBV_EVENT_COMM_EST
    CommunicationEstablished,
    /// IBV_EVENT_QP_FATAL
    QpFatal,
    /// IBV_EVENT_QP_REQ_ERR
    QpRequestError,
    /// IBV_EVENT_QP_ACCESS_ERR
    QpAccessError,
    /// IBV_EVENT_SQ_DRAINED
    SqDrained,
    /// IBV_EVENT_QP_LAST_WQE_REACHED
    LastRecvReached,
    /// IBV_EVENT_SRQ_LIMIT_REACHED
    SrqLimitReached,
    /// IBV_EVENT_DEVICE_FATAL: urdmad has ended.
    DeviceFatal,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The kind of an event.
    pub kind: AsyncKind,
    /// [`super::QpConfig::cookie`] of the queue pair, or [`super::SrqConfig::cookie`] of the queue,
    /// it happened to; `None` for the device.
    pub element: Option<u64>,
}

/// A receiver of asynchronous events; one per opened device context.
pub trait EventSink: Send + Sync {
    /// Called under the engine's lock: must not block and must not call the engine.
    fn async_event(&self, event: AsyncEvent);
}

/// Ignores all events.
impl EventSink for () {
    fn async_event(&self, _: AsyncEvent) {}
}

/// A completion channel of the application.
pub trait CompletionSink: Send + Sync + std::fmt::Debug {
    /// Reports an event of the queue with this cookie. Called under the queue's lock: must not
    /// block and must not call the engine.
    fn notify(&self, cookie: u64);

    /// A queue has been armed, or is armed no longer. Called under the queue's lock.
    fn set_armed(&self, _is_armed: bool) {}
}

/// How a wait for an event ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// There may be an event; another thread may take it first.
    Ready,
    /// The thread should sleep in read(2), as the engine is driven by another one.
    NotDriven,
    /// As [`Waited::NotDriven`]; then [`CompletionChannel::has_read`] is to be called.
    Bystander,
    /// A handler of a signal ran: EINTR.
    Interrupted,
    /// Another thread has closed the channel.
    Closed,
}

/// What a driver waits for, in the order in which a driver gives way to a thread that waits for
/// something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Awaits {
    /// Asynchronous events alone: most programs have none.
    AsyncEvents,
    /// Connection management alone.
    Connections,
    /// Completions, perhaps among others.
    Completions,
}

/// A call in which a thread waits for events of a set of descriptors.
pub trait SetCall {
    /// The epoll set, if it is one.
    fn set(&self) -> Option<RawFd>;

    /// Whether the set has a completion channel, and not only files of rdma_cm.
    fn has_channel(&self) -> bool;

    /// Whether handlers of signals run in `look` only, and the mask of a sleep is not used.
    fn is_guarded(&self) -> bool;

    /// Looks for events of the set, and sleeps until there are some.
    fn look(&mut self, sleep: Option<Sleep>) -> Look;

    /// Adds an event of a member to those that the call returns; false if there is no room.
    fn put(&mut self, events: u32, data: u64) -> bool;
}

/// How long to sleep in a call on descriptors, and how.
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    /// For ever if there is none.
    pub limit: Option<Duration>,
    /// The signals that are blocked meanwhile, as the kernel has them.
    pub mask: u64,
}

/// What a call on descriptors has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The thread has what it waits for, or an error.
    pub is_done: bool,
    /// The descriptor by which peers wake it is readable.
    pub is_woken: bool,
}

/// An engine that a thread can drive while it waits for an event.
pub trait Driven: Send + Sync + std::fmt::Debug {
    /// See [`CompletionChannel::wait`].
    fn drive(
        &self,
        channel: &CompletionChannel,
        interrupts: u32,
        is_ready: &dyn Fn() -> bool,
    ) -> Waited;

    /// Waits by `call` for events of a set of descriptors. [`Waited::Ready`]: `call` has some;
    /// [`Waited::Bystander`]: the thread should sleep and then call [`Driven::has_waited`];
    /// [`Waited::NotDriven`]: it should sleep. `interrupts`: see [`CompletionChannel::wait`].
    fn drive_set(&self, interrupts: u32, call: &mut dyn SetCall) -> Waited;

    /// A [`Waited::Bystander`] has slept.
    fn has_waited(&self);

    /// The descriptor that is to be in a set on which a thread waits.
    fn wake_descriptor(&self) -> Option<RawFd>;

    /// A thread that does not drive has found that this descriptor is readable.
    fn was_woken(&self);

    /// Ends a wait on a set.
    fn interrupt(&self);

    /// Whether its urdmad runs.
    fn is_usable(&self) -> bool;
}

/// Armed completion queues of all completion channels of the process.
static ARMED: AtomicU32 = AtomicU32::new(0);

/// Events of all completion channels of the process, and deliveries to connection management.
static RAISED: AtomicU32 = AtomicU32::new(0);

/// How many completion queues of the process are armed.
pub(crate) fn armed_queues() -> u32 {
    ARMED.load(Ordering::Relaxed)
}

/// A descriptor for which a thread may wait on a set has become readable.
pub(crate) fn note_event() {
    RAISED.fetch_add(1, Ordering::Relaxed);
}

/// How many events the descriptors of this process had.
pub(crate) fn events_raised() -> u32 {
    RAISED.load(Ordering::Relaxed)
}

/// The engine's end of a completion channel that is a socket, or of the asynchronous events of a
/// context. For a thread that waits for its events, see `threads/driver.rs`.
#[derive(Debug)]
pub struct CompletionChannel {
    pub(crate) awaits: Awaits,
    unread: Arc<Unread>,
    /// Raised with each event, for a thread that drives the engine while it waits for one.
    pub(crate) signal: Signal,
    /// The engine of a queue that uses it.
    engine: Mutex<Option<Weak<dyn Driven>>>,
    /// The driver that waits for the signal sleeps in a call on descriptors.
    is_in_call: AtomicBool,
    /// Its armed queues.
    armed: AtomicU32,
    is_closed: AtomicBool,
}

impl CompletionChannel {
    /// A channel whose reader gets 8 octets per event; `write_end` must be non-blocking.
    pub fn new(write_end: OwnedFd) -> Arc<Self> {
        Self::with(write_end, Awaits::Completions)
    }

    /// Asynchronous events, whose reader gets one record each; `write_end` must be non-blocking.
    pub fn of_async_events(write_end: OwnedFd) -> Arc<Self> {
        Self::with(write_end, Awaits::AsyncEvents)
    }

    fn with(write_end: OwnedFd, awaits: Awaits) -> Arc<Self> {
        Arc::new(Self {
            awaits,
            unread: Unread::new(write_end.into()),
            signal: Signal::default(),
            engine: Mutex::default(),
            is_in_call: AtomicBool::new(false),
            armed: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Its events that the application has not read.
    pub fn unread(&self) -> &Unread {
        &self.unread
    }

    /// Reports an asynchronous event, a record as the application reads it. An event that finds the
    /// socket full is lost.
    pub fn send_record(&self, record: &[u8]) {
        self.unread.send_record(record);
        self.raise();
    }

    /// Names the engine of a queue that uses it. The first one that is usable stays.
    pub fn use_engine(&self, engine: Weak<dyn Driven>) {
        let mut known = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let is_usable = |known: &Weak<dyn Driven>| known.upgrade().is_some_and(|e| e.is_usable());
        if !known.as_ref().is_some_and(is_usable) {
            *known = Some(engine);
        }
    }

    /// The engine of a queue that uses it.
    pub fn engine(&self) -> Option<Arc<dyn Driven>> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.as_ref()?.upgrade()
    }

    /// Waits for an event, which `is_ready` looks for, and drives the engine meanwhile if no other
    /// thread does. `interrupts` is what [`super::interrupts`] returned before the thread last
    /// acted on a request to cancel it.
    pub fn wait(&self, interrupts: u32, is_ready: &dyn Fn() -> bool) -> Waited {
        match self.engine() {
            Some(engine) => engine.drive(self, interrupts, is_ready),
            None => Waited::NotDriven,
        }
    }

    /// A [`Waited::Bystander`] has returned from read(2).
    pub fn has_read(&self) {
        if let Some(engine) = self.engine() {
            engine.has_waited();
        }
    }

    /// The application has closed its end.
    pub fn close(&self) {
        self.unread.clear();
        self.is_closed.store(true, Ordering::SeqCst);
        self.raise();
    }

    /// Wakes the thread that waits.
    pub(crate) fn raise(&self) {
        self.signal.raise();
        if self.is_in_call.load(Ordering::SeqCst) {
            if let Some(engine) = self.engine() {
                engine.interrupt();
            }
        }
    }

    /// Runs `sleep`, a call on descriptors that [`Driven::interrupt`] ends. It first looks once
    /// more whether the signal was raised.
    pub(crate) fn await_in_call<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.is_in_call.store(true, Ordering::SeqCst);
        // Either this thread sees that the signal was raised, or the other one that it sleeps.
        fence(Ordering::SeqCst);
        let slept = sleep();
        self.is_in_call.store(false, Ordering::SeqCst);
        slept
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Whether a queue of another channel is armed: another thread may wait for its events.
    pub(crate) fn has_armed_rival(&self) -> bool {
        ARMED.load(Ordering::Relaxed) > self.armed.load(Ordering::Relaxed)
    }
}

impl CompletionSink for CompletionChannel {
    fn notify(&self, cookie: u64) {
        local_events::raise(&self.unread, cookie);
        note_event();
        self.raise();
    }

    fn set_armed(&self, is_armed: bool) {
        for count in [&self.armed, &ARMED] {
            if is_armed {
                count.fetch_add(1, Ordering::Relaxed);
            } else {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}
