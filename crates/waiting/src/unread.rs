//! The events of a completion channel, or the asynchronous ones of a context, that the application
//! has not read: in the socket, or in memory. `local_events.rs` says when they are in memory, which
//! asynchronous ones never are.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use urdma_abi::spared::Spared;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An epoll set.
    Set(RawFd),
    /// The events of one channel, by their address.
    Reader(usize),
}

impl Target {
    /// The events of the channel.
    pub fn reader(unread: &Unread) -> Self {
        Self::Reader(std::ptr::from_ref(unread).addr())
    }
}

/// The bits of epoll that ask for events of a channel, as the set reports them.
const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM).cast_unsigned();
/// Bits beside these mean that a member is not plainly level-triggered.
const PLAIN: u32 =
    IN | (libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();

/// A completion channel as a member of an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The set.
    pub set: RawFd,
    /// What it is to report, as in epoll_ctl(2).
    pub events: u32,
    /// What comes with it.
    pub data: u64,
}

impl Member {
    fn is_plain(&self) -> bool {
        self.events & IN != 0 && self.events & !PLAIN == 0
    }
}

/// A list of channels with events in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListId(pub usize);

/// What [`Unread::take`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// An event in memory.
    Event(u64),
    /// None in memory, and most likely one in the socket.
    InSocket,
    /// No event.
    Nothing,
}

#[derive(Debug, Default)]
struct State {
    /// In memory, oldest first; none if some are in the socket.
    cookies: VecDeque<u64>,
    /// The list of channels with events in memory in which it was entered last.
    listed_in: Option<ListId>,
    /// In the socket, at most.
    sent: u32,
    /// The sets in which the channel is.
    members: Vec<Member>,
    /// It is or was in a set in a way that is not known.
    has_strangers: bool,
}

impl State {
    /// Whether events may stay in memory for a thread that waits for `target`, `own` being that of
    /// the channel itself.
    fn may_stay(&self, target: Target, own: Target) -> bool {
        let is_target = match (target, self.members.as_slice()) {
            (Target::Set(set), [member]) => member.set == set && member.is_plain(),
            (target, []) => target == own,
            _ => false,
        };
        is_target && self.sent == 0 && !self.has_strangers
    }
}

/// See the module.
#[derive(Debug)]
pub struct Unread {
    write_end: Spared,
    state: Mutex<State>,
    myself: Weak<Self>,
}

impl Unread {
    /// Those of a channel, and the end of its socket that the process writes.
    pub fn new(write_end: Spared) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            write_end,
            state: Mutex::default(),
            myself: myself.clone(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel was added to an epoll set, or is to be reported otherwise there.
    pub fn join(&self, member: Member) {
        let mut state = self.state();
        state.members.retain(|known| known.set != member.set);
        state.members.push(member);
        self.send_all(&mut state);
    }

    /// The channel was removed from the set.
    pub fn part(&self, set: RawFd) {
        let mut state = self.state();
        let before = state.members.len();
        state.members.retain(|known| known.set != set);
        // It was added by another descriptor of the same set.
        state.has_strangers |= state.members.len() == before;
        self.send_all(&mut state);
    }

    /// Its events and its data in the set.
    pub(crate) fn member_of(&self, set: RawFd) -> Option<(u32, u64)> {
        let state = self.state();
        let member = state.members.iter().find(|member| member.set == set)?;
        Some((member.events & IN, member.data))
    }

    /// Keeps an event in memory if it may stay there for `target`; `enter` enters the channel in
    /// the list.
    pub(crate) fn keep(
        &self,
        target: Target,
        cookie: u64,
        list: ListId,
        enter: impl FnOnce(Arc<Self>),
    ) -> bool {
        let mut state = self.state();
        if !state.may_stay(target, Target::reader(self)) {
            return false;
        }
        if state.listed_in != Some(list) {
            let Some(myself) = self.myself.upgrade() else {
                return false;
            };
            enter(myself);
            state.listed_in = Some(list);
        }
        state.cookies.push_back(cookie);
        true
    }

    /// Whether the channel stays in the list, since events are in memory.
    pub(crate) fn stays_in(&self, list: ListId) -> bool {
        let mut state = self.state();
        if state.cookies.is_empty() && state.listed_in == Some(list) {
            state.listed_in = None;
        }
        !state.cookies.is_empty()
    }

    /// Takes the oldest event if it is in memory.
    pub fn take(&self) -> Taken {
        let mut state = self.state();
        match state.cookies.pop_front() {
            Some(cookie) => Taken::Event(cookie),
            None if state.sent > 0 => Taken::InSocket,
            None => Taken::Nothing,
        }
    }

    /// Whether events are in memory.
    pub fn has_any(&self) -> bool {
        !self.state().cookies.is_empty()
    }

    /// Sends the events in memory to the socket.
    pub fn send_kept(&self) {
        self.send_all(&mut self.state());
    }

    /// An event was read from the socket.
    pub fn has_received(&self) {
        let mut state = self.state();
        state.sent = state.sent.saturating_sub(1);
    }

    fn send_all(&self, state: &mut State) {
        while let Some(cookie) = state.cookies.pop_front() {
            self.send_one(state, cookie);
        }
    }

    /// An event that finds the socket full is lost; that takes more unread events than there are
    /// armed completion queues.
    fn send_one(&self, state: &mut State, cookie: u64) {
        self.send_octets(state, &cookie.to_ne_bytes());
    }

    fn send_octets(&self, state: &mut State, octets: &[u8]) {
        if send_nowait(&self.write_end, octets) {
            state.sent = state.sent.saturating_add(1);
        }
    }

    /// Sends an event, after those in memory.
    pub fn send(&self, cookie: u64) {
        let mut state = self.state();
        self.send_all(&mut state);
        self.send_one(&mut state, cookie);
    }

    /// Sends an asynchronous event, a record as the application reads it.
    pub fn send_record(&self, record: &[u8]) {
        self.send_octets(&mut self.state(), record);
    }

    /// The application has closed its end.
    pub fn clear(&self) {
        *self.state() = State::default();
    }
}

/// Sends a record to a socket; false if it is lost since the socket is full.
fn send_nowait(socket: &Spared, octets: &[u8]) -> bool {
    // The C library's function is a cancellation point, and this is called from the data path.
    // SAFETY: the descriptor is open as long as `socket` lives, and `octets` holds the octets that
    // are sent; no address is named.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.as_raw_fd(),
            octets.as_ptr(),
            octets.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            std::ptr::null::<libc::sockaddr>(),
            0,
        )
    };
    sent >= 0
}
