//! The open rdma_cm files of a process, behind one lock.

#![allow(unsafe_code)]

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urdma_cm::wire::ReqRoute;
use urdma_cm::{Config, ConnectionManager, Peer};
use urdma_types::{Psn, Qpn, RawQpn, SlotId, Time};

use crate::abi::{cmd, event, EventResp, GetEvent, Header};
use crate::command::{self, Command};
use crate::commands::After;
use crate::driver::{Driver, Errno};
use crate::handle::{CmId, FileHandle};
use crate::ids::UcmaState;
use crate::pending::Pending;
use crate::user::Caller;

/// The rdma_cm of this process.
pub struct Ucma {
    driver: Arc<dyn Driver>,
    state: Mutex<UcmaState>,
    /// The connection manager's next deadline in ns, [`Time::NEVER`] for none; readable without the
    /// lock.
    deadline: AtomicU64,
}

impl std::fmt::Debug for Ucma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ucma").finish_non_exhaustive()
    }
}

impl Ucma {
    /// Starts with no file open.
    pub fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        let device = driver.device();
        let mut manager = ConnectionManager::new(Config::new(device.slot, driver.entropy()));
        manager.record_with(driver.recorder());
        Arc::new(Self {
            state: Mutex::new(UcmaState::new(manager, device)),
            deadline: AtomicU64::new(Time::NEVER.as_ns()),
            driver,
        })
    }

    /// Opens an rdma_cm file, which the application has as the empty epoll set `set_fd`: it is
    /// readable while events are pending. Returns its handle.
    ///
    /// # Errors
    /// EMFILE when there is no descriptor left, EBADF.
    pub fn open(&self, set_fd: RawFd) -> Result<FileHandle, Errno> {
        let pending = Pending::new(set_fd)?;
        Ok(self.lock().add_file(pending))
    }

    /// Closes a file and destroys its ids.
    pub fn close(&self, handle: FileHandle) {
        let was_last = self.with(|state, now, driver| {
            for number in state.ids_of(handle) {
                state.destroy_id(driver, now, number);
            }
            state.files.remove(&handle);
            state.files.is_empty()
        });
        if was_last {
            // There are no more deadlines to watch.
            self.driver.kick();
        }
    }

    /// Whether no file is open.
    pub fn has_no_file(&self) -> bool {
        self.lock().files.is_empty()
    }

    /// Executes one command written to a file; does not block. Returns the length of the command.
    ///
    /// # Errors
    /// As the kernel's ucma; EAGAIN for a GET_EVENT that finds no event.
    ///
    /// # Safety
    /// The addresses in the command are null or valid for the lengths in the command.
    pub unsafe fn write(
        self: &Arc<Self>,
        handle: FileHandle,
        command: &[u8],
    ) -> Result<usize, Errno> {
        // SAFETY: the caller guarantees it.
        let caller = unsafe { Caller::vouched() };
        let (header, body) = command::parse(command)?;
        if header.cmd == cmd::GET_EVENT {
            self.get_event(handle, &header, body, caller)?;
            return Ok(command.len());
        }
        let after = self.with(|state, now, driver| {
            if !state.files.contains_key(&handle) {
                return Err(libc::EBADF);
            }
            Command {
                state,
                driver,
                caller,
                now,
                file: handle,
                header,
                body,
            }
            .run()
        })?;
        if let After::Resolve { id, ip } = after {
            self.resolve_in_thread(id, ip);
        }
        Ok(command.len())
    }

    /// Processes a connection management datagram from a host; for one that this host sent to
    /// itself, `from` is any of its addresses.
    pub fn handle_datagram(&self, from: IpAddr, datagram: &[u8]) {
        self.with(|state, now, _| {
            // R9-6
            //# A daemon or slot MUST drop a REQ that came from an IP address other than the source
            //# address in its body.
            let is_forged = ReqRoute::parse(datagram).is_some_and(|request| {
                let source = request.src.ip();
                source != from && !(state.is_own(source) && state.is_own(from))
            });
            if !is_forged {
                state.manager.handle_datagram(now, from, datagram);
            }
        });
    }

    /// Runs all timers that have expired.
    pub fn handle_timeout(&self) {
        self.with(|state, now, _| state.manager.handle_timeout(now));
    }

    /// When [`Ucma::handle_timeout`] must be called next, in the driver's time.
    pub fn next_deadline(&self) -> Option<Time> {
        let deadline = Time::from_ns(self.deadline.load(Ordering::Acquire));
        (deadline != Time::NEVER).then_some(deadline)
    }

    /// A QP of this process has reached RTR.
    pub fn qp_ready(&self, qpn: Qpn) {
        self.open_gate(qpn.into());
    }

    /// The first message arrived on a QP of this process. Repeated calls have no effect, but
    /// take the lock.
    pub fn qp_data(&self, qpn: Qpn) {
        self.with(|state, _, _| state.manager.qp_data(qpn.into()));
    }

    /// The other end of a QP of this process is gone.
    pub fn qp_gone(&self, qpn: Qpn) {
        self.with(|state, now, _| state.manager.qp_gone(now, qpn.into()));
    }

    /// Whether an id of this process is connecting or connected to a QP with this number and this
    /// first PSN.
    pub fn has_peer(&self, qpn: RawQpn, psn: Psn) -> bool {
        self.lock().manager.has_peer(qpn, psn)
    }

    /// The process of this host that had `slot` is gone. Its connections end, unless the slot
    /// `has_next`, a process that came after it: then they cannot be told from those of that one.
    /// It is asked under the lock, where no request of a later process is taken meanwhile.
    pub fn slot_gone(&self, slot: SlotId, has_next: impl FnOnce() -> bool) {
        self.with(|state, now, _| {
            if has_next() {
                return;
            }
            for ip in state.device.addresses.clone() {
                state.manager.peer_gone(now, Peer { ip, slot });
            }
        });
    }

    /// urdmad is gone: each id gets an event, and no operation can start.
    pub fn device_removed(&self) {
        self.with(|state, _, _| {
            if !std::mem::replace(&mut state.removed, true) {
                for number in state.all_ids() {
                    state.post(number, event::DEVICE_REMOVAL, -libc::ENODEV);
                }
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, UcmaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` under the lock, then sends packets and checks QP states without the lock.
    fn with<R>(&self, work: impl FnOnce(&mut UcmaState, Time, &dyn Driver) -> R) -> R {
        let now = self.driver.now();
        let mut state = self.lock();
        let result = work(&mut state, now, &*self.driver);
        state.drain_manager();
        let UcmaState {
            outgoing, manager, ..
        } = &mut *state;
        let mut packets = outgoing.take(now, manager);
        let gates = std::mem::take(&mut state.gates);
        let mut is_earlier = self.set_deadline(&state, now);
        drop(state);
        packets.send(&*self.driver);
        if !packets.is_empty() {
            let mut state = self.lock();
            state.outgoing.put_back(packets);
            is_earlier |= self.set_deadline(&state, now);
        }
        if is_earlier {
            self.driver.kick();
        }
        for qpn in gates {
            if self.driver.qp_is_ready(qpn) {
                self.open_gate(qpn);
            }
        }
        result
    }

    /// Publishes the deadline; whether it is earlier than the one before. Called under the lock.
    fn set_deadline(&self, state: &UcmaState, now: Time) -> bool {
        let timer = state.manager.next_deadline().unwrap_or(Time::NEVER);
        let deadline = timer.min(state.outgoing.next_try(now)).as_ns();
        deadline < self.deadline.swap(deadline, Ordering::AcqRel)
    }

    /// Sends the REP or RTU that was held back until a QP reached RTR.
    fn open_gate(&self, qpn: RawQpn) {
        self.with(|state, now, _| state.manager.qp_ready(now, qpn));
    }

    fn get_event(
        &self,
        handle: FileHandle,
        header: &Header,
        body: &[u8],
        caller: Caller,
    ) -> Result<(), Errno> {
        let room = usize::from(header.output);
        if room < std::mem::offset_of!(EventResp, reserved) {
            return Err(libc::ENOSPC);
        }
        let body: GetEvent = command::body_of(body)?;
        let mut answer = self.lock().next_event(handle)?;
        if answer.is_none() {
            self.driver.no_event();
            answer = self.lock().next_event(handle)?;
        }
        let answer = answer.ok_or(libc::EAGAIN)?;
        caller.put(body.response, room, &answer)?;
        self.driver.event_taken();
        Ok(())
    }

    /// Resolves `ip` in a separate thread, since it may take seconds.
    fn resolve_in_thread(self: &Arc<Self>, id: CmId, ip: IpAddr) {
        let ucma = Arc::clone(self);
        let work = move || {
            let source = ucma.driver.resolve(ip);
            ucma.with(|state, _, _| state.resolved(id, ip, source));
        };
        if spawn_quiet(work).is_err() {
            self.with(|state, _, _| state.resolved(id, ip, Err(libc::EAGAIN)));
        }
    }
}

/// Spawns a thread with all signals blocked, so that the application's handlers run in the
/// application's threads.
fn spawn_quiet(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // SAFETY: an all-zero sigset_t is a valid place for sigfillset and pthread_sigmask to write to.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both sets are valid; the mask is restored below.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let spawned = std::thread::Builder::new()
        .name("urdma-resolve".into())
        .stack_size(256 * 1024)
        .spawn(work);
    // SAFETY: `before` holds the mask from above.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
    spawned.map(drop)
}
