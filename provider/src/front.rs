//! The C table through which the stand-in reaches the engine, and the completion channels and
//! rdma_cm files that it opens.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

use urdma_abi::cancel::Disabled;
use urdma_abi::front::{look, take, wait, FrontTable, LookFn, PutFn, FRONT_ABI, FRONT_SIZE};
use urdma_ipc::RunDir;
use urdma_ucma::{Errno, FileHandle, Ucma};

use urdma_engine::{
    CompletionChannel, Driven, Engine, LeaseState, Look, Member, SetCall, Sleep, Taken, Waited,
};

static TABLE: FrontTable = FrontTable {
    abi: FRONT_ABI,
    size: FRONT_SIZE,
    cm_open,
    cm_write,
    cm_close,
    channel_open,
    channel_close,
    channel_release,
    async_open,
    channel_wait,
    channel_has_read,
    channel_take,
    channel_has_received,
    send_events,
    set_join,
    set_part,
    set_join_cm,
    set_close,
    set_waker,
    set_wait,
    set_poll,
    set_was_woken,
    channel_waker,
    channel_poll,
    cm_waker,
    cm_poll,
    has_waited,
    interrupts,
    interrupt,
};

/// `EPOLLIN` as the stand-in passes it.
const EPOLLIN: u32 = libc::EPOLLIN.cast_unsigned();

type Channels = HashMap<c_int, Arc<CompletionChannel>>;

/// Completion channels by the descriptor that the application reads.
static CHANNELS: Mutex<Option<Channels>> = Mutex::new(None);

fn channels() -> MutexGuard<'static, Option<Channels>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The completion channel that the application reads from `read_fd`.
pub(crate) fn channel(read_fd: c_int) -> Option<Arc<CompletionChannel>> {
    channels().as_ref()?.get(&read_fd).cloned()
}

/// What an epoll set of the application has of ours.
#[derive(Default)]
struct Set {
    /// Those that are reported when they have an event.
    channels: Vec<Weak<CompletionChannel>>,
    /// The handles of files of rdma_cm that were added.
    cm_files: Vec<i64>,
}

/// Sets by their descriptors.
static SETS: Mutex<Option<HashMap<c_int, Set>>> = Mutex::new(None);

fn sets() -> MutexGuard<'static, Option<HashMap<c_int, Set>>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine of a channel of a set, or of a file of rdma_cm if there is no channel; and whether
/// there is one.
fn engine_of_set(set: c_int) -> (Option<Arc<dyn Driven>>, bool) {
    let mut sets = sets();
    let Some(set) = sets.as_mut().and_then(|sets| sets.get_mut(&set)) else {
        return (None, false);
    };
    while let Some(first) = set.channels.first() {
        match first.upgrade() {
            Some(channel) => return (channel.engine(), true),
            None => set.channels.swap_remove(0),
        };
    }
    let engine = set.cm_files.iter().find_map(|handle| engine_of_cm(*handle));
    (engine, false)
}

fn engine_of_cm(handle: i64) -> Option<Arc<dyn Driven>> {
    let engine = cm_files().get(&handle)?.engine.upgrade()?;
    Some(engine)
}

fn engine_of_channel(read_fd: c_int) -> Option<Arc<dyn Driven>> {
    channel(read_fd)?.engine()
}

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

/// The descriptors from which libibverbs reads the asynchronous events of contexts that are being
/// imported, by the command descriptor of the import.
static ASYNC_FILES: Mutex<BTreeMap<c_int, OwnedFd>> = Mutex::new(BTreeMap::new());

fn async_files() -> MutexGuard<'static, BTreeMap<c_int, OwnedFd>> {
    ASYNC_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the file of asynchronous events of an imported context until libibverbs asks for it.
pub(crate) fn offer_async_file(cmd_fd: c_int, file: OwnedFd) {
    async_files().insert(cmd_fd, file);
}

/// Removes the file if libibverbs has not asked for it.
pub(crate) fn withdraw_async_file(cmd_fd: c_int) {
    async_files().remove(&cmd_fd);
}

unsafe extern "C" fn async_open(cmd_fd: c_int) -> i64 {
    answer(|| {
        let file = async_files().remove(&cmd_fd).ok_or(libc::EINVAL)?;
        Ok(i64::from(file.into_raw_fd()))
    })
}

/// The engine that connection management used last; it saves a lookup by run directory in each
/// call.
static CM_ENGINE: Mutex<Weak<Engine>> = Mutex::new(Weak::new());

/// An open rdma_cm file. It stays with the engine for which it was opened, also after that engine
/// has lost its urdmad.
#[derive(Clone)]
struct CmFile {
    engine: Weak<Engine>,
    ucma: Arc<Ucma>,
    handle: FileHandle,
}

/// The open rdma_cm files by handle; no handle is reused.
static CM_FILES: Mutex<BTreeMap<i64, CmFile>> = Mutex::new(BTreeMap::new());

fn cm_files() -> MutexGuard<'static, BTreeMap<i64, CmFile>> {
    CM_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Attaches to the instance that the environment names; prints a failure to standard error.
///
/// # Errors
/// The errno of the failure.
pub(crate) fn attach() -> Result<Arc<Engine>, Errno> {
    attach_to(&RunDir::find(None, None))
}

/// Attaches to the instance with this run directory; prints a failure to standard error.
///
/// # Errors
/// The errno of the failure.
pub(crate) fn attach_to(run_dir: &RunDir) -> Result<Arc<Engine>, Errno> {
    let engine = Engine::attach(run_dir).map_err(|error| {
        eprintln!("urdma: {error}");
        error.errno()
    })?;
    say_if_forwarded(&engine);
    Ok(engine)
}

/// Prints once why this process has no leased queue; only if the instance has a port.
fn say_if_forwarded(engine: &Engine) {
    static SAID: Once = Once::new();
    if let LeaseState::Forwarded(why) = &engine.info().lease {
        if engine.info().mtu > 0 {
            SAID.call_once(|| eprintln!("urdma: no leased queue, urdmad forwards: {why}"));
        }
    }
}

/// Returns the stand-in's table. If urdmad cannot be used, prints the reason to standard error and
/// returns null.
#[no_mangle]
pub(crate) extern "C" fn urdma_front_table() -> *const FrontTable {
    let _uncancelled = Disabled::new();
    match catch_unwind(attach) {
        Ok(Ok(_)) => &TABLE,
        Ok(Err(_)) | Err(_) => std::ptr::null(),
    }
}

/// Runs a call; an error becomes a negative errno, a panic `-EIO`.
fn answer(call: impl FnOnce() -> Result<i64, Errno>) -> i64 {
    let _uncancelled = Disabled::new();
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => -i64::from(errno),
        Err(_) => -i64::from(libc::EIO),
    }
}

fn cm_engine() -> Result<Arc<Engine>, Errno> {
    let mut cached = CM_ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = match cached.upgrade().filter(|engine| engine.is_usable()) {
        Some(engine) => engine,
        None => attach()?,
    };
    *cached = Arc::downgrade(&engine);
    Ok(engine)
}

unsafe extern "C" fn cm_open(set_fd: c_int) -> i64 {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    answer(|| {
        let engine = cm_engine()?;
        let ucma = Arc::clone(engine.ucma().map_err(|error| error.errno())?);
        let file = CmFile {
            handle: ucma.open(set_fd)?,
            engine: Arc::downgrade(&engine),
            ucma,
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        cm_files().insert(number, file);
        Ok(number)
    })
}

unsafe extern "C" fn cm_write(handle: i64, command: *const c_void, len: usize) -> i64 {
    answer(|| {
        if command.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the stand-in passes the application's buffer of `len` octets.
        let octets = unsafe { std::slice::from_raw_parts(command.cast::<u8>(), len) };
        let file = cm_files().get(&handle).cloned().ok_or(libc::EBADF)?;
        // SAFETY: the application is responsible for the addresses in the command, as it is with
        // the kernel.
        let taken = unsafe { file.ucma.write(file.handle, octets)? };
        i64::try_from(taken).map_err(|_| libc::EINVAL)
    })
}

unsafe extern "C" fn cm_close(handle: i64) {
    answer(|| {
        let file = cm_files().remove(&handle);
        if let Some(file) = file {
            file.ucma.close(file.handle);
        }
        Ok(0)
    });
}

unsafe extern "C" fn channel_open(read_fd: c_int, write_fd: c_int) -> i64 {
    answer(|| {
        // SAFETY: a call that succeeds takes ownership of the descriptor, and this one cannot fail
        // from here on.
        let channel = CompletionChannel::new(unsafe { OwnedFd::from_raw_fd(write_fd) });
        channels()
            .get_or_insert_with(HashMap::new)
            .insert(read_fd, channel);
        Ok(0)
    })
}

unsafe extern "C" fn channel_close(read_fd: c_int) -> i64 {
    answer(|| {
        let closed = channels().as_mut().and_then(|all| all.remove(&read_fd));
        Ok(closed.map_or(0, |channel| {
            channel.close();
            Arc::into_raw(channel) as i64
        }))
    })
}

unsafe extern "C" fn channel_release(closed: i64) {
    // No address is negative, as an errno is.
    if closed > 0 {
        // SAFETY: `channel_close` has returned it, and this is its last use.
        drop(unsafe { Arc::from_raw(closed as *const CompletionChannel) });
    }
}

unsafe extern "C" fn channel_wait(read_fd: c_int, interrupts: u32) -> i64 {
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

unsafe extern "C" fn channel_has_read(read_fd: c_int) {
    answer(|| {
        if let Some(channel) = channel(read_fd) {
            channel.has_read();
        }
        Ok(0)
    });
}

unsafe extern "C" fn channel_take(read_fd: c_int, event: *mut u64) -> i64 {
    answer(|| {
        let Some(channel) = channel(read_fd) else {
            return Ok(take::NOT_IN_MEMORY);
        };
        Ok(match channel.unread().take() {
            Taken::Event(taken) => {
                // SAFETY: the stand-in passes a word of its own.
                unsafe { event.write(taken) };
                take::TAKEN
            }
            Taken::InSocket => take::NOT_IN_MEMORY,
            Taken::Nothing => take::NOTHING,
        })
    })
}

unsafe extern "C" fn channel_has_received(read_fd: c_int) {
    answer(|| {
        if let Some(channel) = channel(read_fd) {
            channel.unread().has_received();
        }
        Ok(0)
    });
}

unsafe extern "C" fn send_events() {
    answer(|| {
        urdma_engine::send_local_events();
        Ok(0)
    });
}

unsafe extern "C" fn set_join(set: c_int, read_fd: c_int, events: u32, data: u64) {
    answer(|| {
        if let Some(channel) = channel(read_fd) {
            let mut sets = sets();
            let known = sets.get_or_insert_default().entry(set).or_default();
            let channels = &mut known.channels;
            let (this, is_open) = (Arc::downgrade(&channel), |other: &Weak<_>| {
                other.strong_count() > 0
            });
            channels.retain(|other| is_open(other) && !other.ptr_eq(&this));
            // A thread that is not to see the channel's events does not wait for them.
            if events & EPOLLIN != 0 {
                channels.push(this);
            }
            channel.unread().join(Member { set, events, data });
        }
        Ok(0)
    });
}

unsafe extern "C" fn set_part(set: c_int, read_fd: c_int) {
    answer(|| {
        if let Some(channel) = channel(read_fd) {
            let mut sets = sets();
            if let Some(known) = sets.as_mut().and_then(|sets| sets.get_mut(&set)) {
                known
                    .channels
                    .retain(|other| !other.ptr_eq(&Arc::downgrade(&channel)));
            }
            channel.unread().part(set);
        }
        Ok(0)
    });
}

unsafe extern "C" fn set_join_cm(set: c_int, handle: i64) {
    answer(|| {
        let mut sets = sets();
        let known = sets.get_or_insert_default().entry(set).or_default();
        known.cm_files.retain(|other| *other != handle);
        known.cm_files.push(handle);
        Ok(0)
    });
}

unsafe extern "C" fn set_close(set: c_int) {
    answer(|| {
        let known = sets().as_mut().and_then(|sets| sets.remove(&set));
        let channels = known.iter().flat_map(|known| &known.channels);
        let open = channels.filter_map(Weak::upgrade);
        open.for_each(|channel| channel.unread().part(set));
        Ok(0)
    });
}

fn waker(engine: Option<Arc<dyn Driven>>) -> i64 {
    answer(|| {
        let engine = engine.ok_or(libc::ENOENT)?;
        let descriptor = engine.wake_descriptor().ok_or(libc::EOPNOTSUPP)?;
        Ok(i64::from(descriptor))
    })
}

unsafe extern "C" fn set_waker(set_fd: c_int) -> i64 {
    waker(engine_of_set(set_fd).0)
}

unsafe extern "C" fn channel_waker(read_fd: c_int) -> i64 {
    waker(engine_of_channel(read_fd))
}

unsafe extern "C" fn set_was_woken(set_fd: c_int) {
    answer(|| {
        if let Some(engine) = engine_of_set(set_fd).0 {
            engine.was_woken();
        }
        Ok(0)
    });
}

unsafe extern "C" fn set_wait(
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

unsafe extern "C" fn set_poll(
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

unsafe extern "C" fn channel_poll(
    read_fd: c_int,
    interrupts: u32,
    is_guarded: c_int,
    call: *mut c_void,
    look: LookFn,
) -> i64 {
    let list = Caller::of_list(call, look, true, is_guarded);
    drive(engine_of_channel(read_fd), interrupts, list)
}

unsafe extern "C" fn cm_waker(handle: i64) -> i64 {
    waker(engine_of_cm(handle))
}

unsafe extern "C" fn cm_poll(
    handle: i64,
    interrupts: u32,
    is_guarded: c_int,
    call: *mut c_void,
    look: LookFn,
) -> i64 {
    let list = Caller::of_list(call, look, false, is_guarded);
    drive(engine_of_cm(handle), interrupts, list)
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

extern "C" fn has_waited() {
    let slept = BYSTANDER.try_with(RefCell::take);
    drop(slept);
}

unsafe extern "C" fn interrupts() -> u32 {
    urdma_engine::interrupts()
}

unsafe extern "C" fn interrupt() {
    answer(|| {
        let open: Vec<_> = channels()
            .iter()
            .flat_map(HashMap::values)
            .cloned()
            .collect();
        urdma_engine::interrupt_waits(open.iter().map(Arc::as_ref));
        let of_channels = open.iter().filter_map(|channel| channel.engine());
        let of_cm: Vec<_> = cm_files()
            .values()
            .map(|file| file.engine.clone())
            .collect();
        let of_cm = of_cm.iter().filter_map(Weak::upgrade);
        of_channels
            .chain(of_cm.map(|engine| engine as Arc<dyn Driven>))
            .for_each(|engine| engine.interrupt());
        Ok(0)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn channel_opened_is_found_until_it_is_closed() {
        let (reader, writer) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        let read_fd = reader.as_raw_fd();
        assert!(channel(read_fd).is_none());
        // SAFETY: both descriptors are open; ownership of the second is passed.
        assert_eq!(unsafe { channel_open(read_fd, writer.into_raw_fd()) }, 0);
        assert!(channel(read_fd).is_some());
        // SAFETY: no precondition.
        let closed = unsafe { channel_close(read_fd) };
        assert!(channel(read_fd).is_none());
        let mut octet = [0];
        let mut read = || (&reader).read(&mut octet).map_err(|error| error.kind());
        assert_eq!(read(), Err(ErrorKind::WouldBlock), "it has not ended yet");
        // SAFETY: it was not passed before.
        unsafe { channel_release(closed) };
        assert_eq!(read(), Ok(0));
        // SAFETY: no precondition.
        assert_eq!(unsafe { channel_close(read_fd) }, 0);
    }

    #[test]
    fn async_file_is_given_once_or_taken_back() {
        let ends = [(); 2].map(|()| UnixStream::pair().unwrap());
        let [(file, _other), (second, _another)] = ends;
        let number = file.as_raw_fd();
        offer_async_file(-5, file.into());
        // SAFETY: no precondition.
        let open = |cmd_fd| unsafe { async_open(cmd_fd) };
        assert_eq!(open(-5), i64::from(number));
        assert_eq!(open(-5), -i64::from(libc::EINVAL));
        // SAFETY: the test owns the descriptor, which it has just received.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        offer_async_file(-6, second.into());
        withdraw_async_file(-6);
        assert_eq!(open(-6), -i64::from(libc::EINVAL));
    }

    #[test]
    fn answer_of_a_refusal_or_a_panic_is_a_negative_errno() {
        assert_eq!(answer(|| Ok(5)), 5);
        assert_eq!(answer(|| Err(libc::EINVAL)), -i64::from(libc::EINVAL));
        assert_eq!(
            answer(|| panic!("expected by the test")),
            -i64::from(libc::EIO)
        );
    }

    #[test]
    fn cm_write_from_nowhere_is_efault() {
        // SAFETY: null is refused before it is used.
        let result = unsafe { cm_write(0, std::ptr::null(), 8) };
        assert_eq!(result, -i64::from(libc::EFAULT));
    }
}
