//! Calls in which the application sleeps: the calling thread drives the engine meanwhile.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use urdma_abi::front::{look, wait, LookFn, PutFn};
use urdma_engine::{Driven, Look, SetCall, Sleep, Waited};

use super::answer::answer;
use super::channels::{self, channel, engine_of_channel};
use super::cm::{self, engine_of_cm};
use super::sets::engine_of_set;

/// A thread that sleeps while another one may drive its engine.
struct Bystander(Weak<dyn Driven>);

impl Drop for Bystander {
    fn drop(&mut self) {
        if let Some(engine) = self.0.upgrade() {
            engine.has_waited();
        }
    }
}

thread_local! {
    /// This thread sleeps in a wait on an epoll set, or was cancelled or has jumped out of one.
    static BYSTANDER: RefCell<Option<Bystander>> = const { RefCell::new(None) };
}

/// A call of the stand-in, which guarantees that the functions may be called with `call`.
struct Caller {
    call: *mut c_void,
    look: LookFn,
    /// The epoll set, if it is one.
    set: Option<(RawFd, PutFn)>,
    has_channel: bool,
    /// Handlers of signals run in `look` only.
    is_guarded: bool,
}

impl Caller {
    /// A call on a list of descriptors.
    fn of_list(call: *mut c_void, look: LookFn, has_channel: bool, is_guarded: c_int) -> Self {
        Self {
            call,
            look,
            set: None,
            has_channel,
            is_guarded: is_guarded != 0,
        }
    }
}

impl SetCall for Caller {
    fn set(&self) -> Option<RawFd> {
        self.set.map(|(set, _)| set)
    }

    fn has_channel(&self) -> bool {
        self.has_channel
    }

    fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    fn look(&mut self, sleep: Option<Sleep>) -> Look {
        let (limit, mask) = match sleep {
            Some(sleep) => (sleep.limit, sleep.mask),
            None => (Some(Duration::ZERO), 0),
        };
        let limit = limit.and_then(|limit| i64::try_from(limit.as_nanos()).ok());
        // SAFETY: the stand-in guarantees it.
        let found = unsafe { (self.look)(self.call, limit.unwrap_or(-1), mask) };
        Look {
            is_done: found & look::DONE != 0,
            is_woken: found & look::WOKEN != 0,
        }
    }

    fn put(&mut self, events: u32, data: u64) -> bool {
        self.set.is_some_and(|(_, put)| {
            // SAFETY: the stand-in guarantees it.
            unsafe { put(self.call, events, data) != 0 }
        })
    }
}

/// Has the calling thread drive the engine until `call` has what it waits for.
fn drive(engine: Option<Arc<dyn Driven>>, interrupts: u32, mut call: Caller) -> i64 {
    answer(|| {
        has_waited();
        let Some(engine) = engine else {
            return Ok(wait::NOT_DRIVEN);
        };
        let waited = engine.drive_set(interrupts, &mut call);
        if waited == Waited::Bystander {
            let engine = Arc::downgrade(&engine);
            BYSTANDER.with(|own| own.replace(Some(Bystander(engine))));
        }
        Ok(number_of(waited))
    })
}

pub(super) unsafe extern "C" fn set_wait(
    set: c_int,
    interrupts: u32,
    is_guarded: c_int,
    call: *mut c_void,
    look: LookFn,
    put: PutFn,
) -> i64 {
    let (engine, has_channel) = engine_of_set(set);
    let call = Caller {
        set: Some((set, put)),
        ..Caller::of_list(call, look, has_channel, is_guarded)
    };
    drive(engine, interrupts, call)
}

pub(super) unsafe extern "C" fn set_poll(
    set: c_int,
    interrupts: u32,
    is_guarded: c_int,
    call: *mut c_void,
    look: LookFn,
) -> i64 {
    let (engine, has_channel) = engine_of_set(set);
    let list = Caller::of_list(call, look, has_channel, is_guarded);
    drive(engine, interrupts, list)
}

pub(super) unsafe extern "C" fn channel_poll(
    read_fd: c_int,
    interrupts: u32,
    is_guarded: c_int,
    call: *mut c_void,
    look: LookFn,
) -> i64 {
    let list = Caller::of_list(call, look, true, is_guarded);
    drive(engine_of_channel(read_fd), interrupts, list)
}

pub(super) unsafe extern "C" fn cm_poll(
    handle: i64,
    interrupts: u32,
    is_guarded: c_int,
    call: *mut c_void,
    look: LookFn,
) -> i64 {
    let list = Caller::of_list(call, look, false, is_guarded);
    drive(engine_of_cm(handle), interrupts, list)
}

pub(super) unsafe extern "C" fn channel_wait(read_fd: c_int, interrupts: u32) -> i64 {
    answer(|| {
        let waited = channel(read_fd).map_or(Waited::NotDriven, |channel| {
            channel.wait(interrupts, &|| {
                channel.unread().has_any() || is_readable(read_fd)
            })
        });
        Ok(number_of(waited))
    })
}

/// The number of a result in the table.
fn number_of(waited: Waited) -> i64 {
    match waited {
        Waited::Ready => wait::READY,
        Waited::NotDriven => wait::NOT_DRIVEN,
        Waited::Bystander => wait::BYSTANDER,
        Waited::Interrupted => wait::INTERRUPTED,
        Waited::Closed => wait::CLOSED,
    }
}

/// Whether an event waits. The C library's function would be a cancellation point.
fn is_readable(fd: c_int) -> bool {
    let mut waiting = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let no_mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: one valid pollfd and one timespec.
    unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            &raw mut waiting,
            1,
            &raw const now,
            no_mask,
            0,
        ) != 0
    }
}

fn waker(engine: Option<Arc<dyn Driven>>) -> i64 {
    answer(|| {
        let engine = engine.ok_or(libc::ENOENT)?;
        let descriptor = engine.wake_descriptor().ok_or(libc::EOPNOTSUPP)?;
        Ok(i64::from(descriptor))
    })
}

pub(super) unsafe extern "C" fn set_waker(set_fd: c_int) -> i64 {
    waker(engine_of_set(set_fd).0)
}

pub(super) unsafe extern "C" fn channel_waker(read_fd: c_int) -> i64 {
    waker(engine_of_channel(read_fd))
}

pub(super) unsafe extern "C" fn cm_waker(handle: i64) -> i64 {
    waker(engine_of_cm(handle))
}

pub(super) unsafe extern "C" fn set_was_woken(set_fd: c_int) {
    answer(|| {
        if let Some(engine) = engine_of_set(set_fd).0 {
            engine.was_woken();
        }
        Ok(0)
    });
}

pub(super) extern "C" fn has_waited() {
    let slept = BYSTANDER.try_with(RefCell::take);
    drop(slept);
}

pub(super) unsafe extern "C" fn interrupts() -> u32 {
    urdma_engine::interrupts()
}

pub(super) unsafe extern "C" fn interrupt() {
    answer(|| {
        let open = channels::all();
        urdma_engine::interrupt_waits(open.iter().map(Arc::as_ref));
        let of_channels = open.iter().filter_map(|channel| channel.engine());
        of_channels
            .chain(cm::engines())
            .for_each(|engine| engine.interrupt());
        Ok(0)
    });
}
