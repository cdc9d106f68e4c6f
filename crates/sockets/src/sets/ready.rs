//! Which members of a set are reported: level and edge triggering, and EPOLLONESHOT.
//!
//! A member is either in the queue, and each wait looks at it, or it is armed: a change of what it
//! is ready for is noticed ([`Ready::notice`]). A member that was not ready in several waits is
//! armed, and every member is before a wait sleeps. A wait therefore costs what the members in the
//! queue cost.
//!
//! A wait that sleeps arms members that may be ready soon for its sleep only. The peer tells of one
//! of them, so all are in the queue again when the sleep ends ([`Ready::wake`]).
//!
//! Members are reported in the order in which they became ready, as those of the kernel's set: the
//! peer says when octets came to a ring ([`Source::stamp`]). A member that was reported comes
//! behind those that were ready then, whatever its peer says.

use std::collections::VecDeque;
use std::ffi::c_int;

use libc::epoll_event;

/// Waits in which a member was not ready, after which it is armed.
const MISSES: u32 = 8;
/// Bits of the interest in a member that are not events.
const ONE_SHOT: u32 = libc::EPOLLONESHOT.cast_unsigned();
const EDGE: u32 = libc::EPOLLET.cast_unsigned();
/// Events that are reported without interest in them.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();
const IN: u32 = libc::EPOLLIN.cast_unsigned();
const OUT: u32 = libc::EPOLLOUT.cast_unsigned();

/// What a member stands for. No method reaches a cancellation point.
pub(crate) trait Source {
    /// Which of some events it is ready for.
    fn ready(&self, events: u32) -> u32;
    /// A count that grows when octets come.
    fn arrived(&self) -> u64;
    /// When octets came that are the first ones unread. The peer can say any time.
    fn stamp(&self) -> u64;
    /// Has a change of what it is ready for noticed; with the number of a sleep, 0 for none, that
    /// of one member that is armed for it.
    fn arm(&self, events: u32, sleep: u64);
    /// The sleep is over: the member is looked at.
    fn disarm(&self);
}

/// The events that a wait returns.
pub(crate) struct Events {
    at: *mut epoll_event,
    room: usize,
    count: usize,
    /// The last look; 0 before the first.
    look: u64,
    /// How many members had got rings when the kernel was asked.
    pub(super) joins: u64,
}

impl Events {
    /// # Safety
    /// The array has `room` entries, and lives as long as this.
    pub(crate) unsafe fn new(at: *mut epoll_event, room: usize) -> Self {
        Self {
            at,
            room,
            count: 0,
            look: 0,
            joins: 0,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == self.room
    }

    /// What follows the events, and how many more it can have.
    pub(crate) fn rest(&self) -> (*mut epoll_event, usize) {
        // SAFETY: at most the end of the array.
        (unsafe { self.at.add(self.count) }, self.room - self.count)
    }

    pub(crate) fn push(&mut self, event: epoll_event) {
        if !self.is_full() {
            // SAFETY: an entry of the array.
            unsafe { self.at.add(self.count).write_unaligned(event) };
            self.count += 1;
        }
    }
}

#[derive(Debug)]
struct Member<S> {
    source: S,
    /// The interest of the program; `None` after it has removed the member.
    event: Option<epoll_event>,
    /// EPOLLONESHOT has reported it.
    is_spent: bool,
    /// Something has happened since it was reported.
    is_new: bool,
    /// [`Source::arrived`] when it was reported.
    arrived: u64,
    misses: u32,
    /// It was not ready for writing, in which the program has interest, when it was looked at.
    lacks_room: bool,
    is_queued: bool,
    /// Not before this time did it become ready again.
    since: u64,
    /// Not after this time did it become ready.
    until: u64,
    /// The look that has reported it last, and what it has reported.
    reported: (u64, u32),
}

/// What a look has found.
enum Looked {
    Due(FoundReady),
    /// Not ready; it stays in the queue.
    Missed,
    /// Not ready; it leaves the queue until the sleep ends.
    Asleep,
    /// Not ready; it leaves the queue.
    Armed,
}

/// A member that a look reports.
#[derive(Debug)]
struct Due {
    index: usize,
    /// When it became ready.
    at: u64,
    found: FoundReady,
}

/// What a look finds of a member.
#[derive(Debug)]
struct FoundReady {
    /// The interest of the program.
    event: epoll_event,
    /// [`Source::arrived`] before the look.
    arrived: u64,
    ready: u32,
    /// It is reported.
    is_due: bool,
}

impl<S: Source> Member<S> {
    /// What a look finds now.
    fn found(&self) -> Option<FoundReady> {
        let event = self.wanted()?;
        let arrived = self.source.arrived();
        let ready = self.source.ready(event.events);
        let has_room = ready & OUT != 0;
        let has_arrived = event.events & IN != 0 && arrived != self.arrived;
        let is_edge = self.is_new || has_arrived || self.lacks_room && has_room;
        Some(FoundReady {
            event,
            arrived,
            ready,
            is_due: ready != 0 && (event.events & EDGE == 0 || is_edge),
        })
    }

    /// What is to be reported now.
    fn due(&mut self) -> Option<FoundReady> {
        let found = self.found()?;
        let has_room = found.ready & OUT != 0;
        self.lacks_room |= found.event.events & OUT != 0 && !has_room;
        found.is_due.then_some(found)
    }

    /// Looks once; before a sleep, the member is armed if it is not ready.
    fn look(&mut self, sleep: Option<u64>) -> Looked {
        let Some(wanted) = self.wanted() else {
            return Looked::Armed;
        };
        if let Some(found) = self.due() {
            return Looked::Due(found);
        }
        self.until = u64::MAX;
        self.misses += 1;
        let (sleep, armed) = match sleep {
            _ if self.misses >= MISSES => (0, Looked::Armed),
            Some(sleep) => (sleep, Looked::Asleep),
            None => return Looked::Missed,
        };
        self.source.arm(wanted.events, sleep);
        self.due().map_or(armed, Looked::Due)
    }

    /// When it became ready, as far as the peer may say.
    fn ready_at(&self) -> u64 {
        self.source.stamp().max(self.since).min(self.until)
    }

    /// It is reported, at the time `now`.
    fn report(&mut self, look: u64, now: u64, found: &FoundReady) -> epoll_event {
        let (event, ready) = (found.event, found.ready);
        self.lacks_room &= ready & OUT == 0;
        self.is_new = false;
        self.arrived = found.arrived;
        self.misses = 0;
        self.reported = (look, ready);
        self.is_spent = event.events & ONE_SHOT != 0;
        // Behind what is ready now and is not reported.
        (self.since, self.until) = (now.saturating_add(1), u64::MAX);
        epoll_event {
            events: ready,
            u64: event.u64,
        }
    }

    fn wanted(&self) -> Option<epoll_event> {
        self.event.filter(|_| !self.is_spent)
    }
}

/// The members of a set, by their descriptors.
#[derive(Debug)]
pub(crate) struct Ready<S> {
    members: Vec<Option<Member<S>>>,
    /// How many members there are.
    count: usize,
    queue: VecDeque<usize>,
    /// Members that are armed for a sleep.
    asleep: Vec<usize>,
    /// What the look reports that is in progress.
    due: Vec<Due>,
    looks: u64,
}

impl<S: Source> Ready<S> {
    pub(crate) const fn new() -> Self {
        Self {
            members: Vec::new(),
            count: 0,
            queue: VecDeque::new(),
            asleep: Vec::new(),
            due: Vec::new(),
            looks: 0,
        }
    }

    fn member(&mut self, fd: c_int) -> Option<&mut Member<S>> {
        self.members.get_mut(usize::try_from(fd).ok()?)?.as_mut()
    }

    pub(crate) fn source(&self, fd: c_int) -> Option<&S> {
        let member = self.members.get(usize::try_from(fd).ok()?)?.as_ref()?;
        Some(&member.source)
    }

    /// The descriptors of all members.
    pub(crate) fn fds(&self) -> impl Iterator<Item = c_int> + '_ {
        let members = self.members.iter().enumerate();
        let fds = members.filter_map(|(fd, member)| member.as_ref().map(|_| fd));
        fds.filter_map(|fd| c_int::try_from(fd).ok())
    }

    /// A member of the set gets a source.
    pub(crate) fn insert(&mut self, fd: c_int, source: S, event: epoll_event) {
        let Ok(index) = usize::try_from(fd) else {
            return;
        };
        if self.members.len() <= index {
            self.members.resize_with(index + 1, || None);
        }
        let is_queued = self.member(fd).is_some_and(|member| member.is_queued);
        self.count += usize::from(self.members[index].is_none());
        self.members[index] = Some(Member {
            source,
            event: Some(event),
            is_spent: event.events & !EDGE == ONE_SHOT,
            is_new: true,
            arrived: 0,
            misses: 0,
            lacks_room: false,
            is_queued,
            since: 0,
            until: u64::MAX,
            reported: (0, 0),
        });
        self.notice(fd);
    }

    /// A member is no more; returns the interest that the kernel has to have in it.
    pub(crate) fn remove(&mut self, fd: c_int) -> Option<(S, Option<epoll_event>)> {
        let index = usize::try_from(fd).ok()?;
        let member = self.members.get_mut(index)?.take()?;
        self.count -= 1;
        self.queue.retain(|queued| *queued != index);
        self.asleep.retain(|asleep| *asleep != index);
        let event = member.event.map(|event| epoll_event {
            events: if member.is_spent {
                ONE_SHOT | EDGE
            } else {
                event.events
            },
            ..event
        });
        Some((member.source, event))
    }

    /// epoll_ctl(2) on a member that has a source.
    ///
    /// # Errors
    /// The errno.
    pub(crate) fn control(
        &mut self,
        fd: c_int,
        op: c_int,
        event: epoll_event,
    ) -> Result<(), c_int> {
        let member = self.member(fd).ok_or(libc::ENOENT)?;
        match (op, member.event.is_some()) {
            (libc::EPOLL_CTL_ADD, true) => return Err(libc::EEXIST),
            (libc::EPOLL_CTL_ADD, false) | (libc::EPOLL_CTL_MOD, true) => {
                member.event = Some(event);
                member.is_spent = false;
                self.notice(fd);
            }
            (libc::EPOLL_CTL_DEL, true) => member.event = None,
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false) => return Err(libc::ENOENT),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    /// Something has happened to a member: it is looked at, and is new for edge triggering.
    pub(crate) fn notice(&mut self, fd: c_int) {
        let Some(member) = self.member(fd) else {
            return;
        };
        member.is_new = true;
        member.misses = 0;
        if !std::mem::replace(&mut member.is_queued, true) {
            self.queue.extend(usize::try_from(fd));
        }
    }

    /// Something has happened to a member that made it ready for some events, or for those of its
    /// ring, before the wait returns that has found `found`. If it is reported there with these,
    /// that was no other edge.
    pub(crate) fn notice_before(&mut self, found: &Events, fd: c_int, ready: u32) {
        let is_told = self.member(fd).is_some_and(|member| {
            let (look, told) = member.reported;
            let interest = member.event.map_or(0, |event| event.events) | ALWAYS;
            look == found.look && look != 0 && ready & interest & !told == 0
        });
        if !is_told {
            self.notice(fd);
        }
    }

    /// A member became ready after the time `at`.
    pub(crate) fn delay(&mut self, fd: c_int, at: u64) {
        if let Some(member) = self.member(fd) {
            member.since = member.since.max(at);
        }
    }

    /// Whether a wait would look at a member.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether there is more than one member.
    pub(crate) fn is_several(&self) -> bool {
        self.count > 1
    }

    /// Whether a look would report a member of the queue.
    pub(crate) fn is_due(&self) -> bool {
        let members = self
            .queue
            .iter()
            .filter_map(|index| self.members[*index].as_ref());
        members.filter_map(Member::found).any(|found| found.is_due)
    }

    /// Whether the program has removed a member, or it is none.
    pub(crate) fn has_left(&self, fd: c_int) -> bool {
        let index = usize::try_from(fd).unwrap_or(usize::MAX);
        let member = self.members.get(index).and_then(Option::as_ref);
        member.is_none_or(|member| member.event.is_none())
    }

    /// A sleep has ended, or the peer may tell of a member that has left: those that are armed for
    /// it are looked at.
    pub(crate) fn wake(&mut self) {
        for index in self.asleep.drain(..) {
            let Some(member) = self.members[index].as_mut() else {
                continue;
            };
            member.source.disarm();
            if !std::mem::replace(&mut member.is_queued, true) {
                self.queue.push_back(index);
            }
        }
    }

    /// Looks at each member in the queue. With the number of a sleep that follows, those that are
    /// not ready are armed. `now` is the time by the clock of [`Source::stamp`].
    pub(crate) fn look(
        &mut self,
        events: &mut Events,
        sleep: Option<u64>,
        now: impl FnOnce() -> u64,
    ) {
        self.looks += 1;
        events.look = self.looks;
        if sleep.is_some() {
            // A thread that sleeps already is woken for this sleep too.
            self.wake();
        }
        for _ in 0..self.queue.len() {
            let Some(index) = self.queue.pop_front() else {
                break;
            };
            let Some(member) = self.members[index].as_mut() else {
                continue;
            };
            match member.look(sleep) {
                Looked::Due(found) => self.due.push(Due {
                    index,
                    at: 0,
                    found,
                }),
                Looked::Missed => self.queue.push_back(index),
                Looked::Asleep => {
                    member.is_queued = false;
                    self.asleep.push(index);
                }
                Looked::Armed => member.is_queued = false,
            }
        }
        if !self.due.is_empty() {
            self.report(events, now);
        }
    }

    /// Reports what a look has found, in the order in which it became ready.
    fn report(&mut self, events: &mut Events, now: impl FnOnce() -> u64) {
        let has_order = self.is_several();
        let now = if has_order { now() } else { 0 };
        let mut found = std::mem::take(&mut self.due);
        if has_order {
            for due in &mut found {
                let member = self.members[due.index].as_ref();
                due.at = member.map_or(0, Member::ready_at).min(now);
            }
            found.sort_by_key(|due| due.at);
        }
        for due in found.drain(..) {
            self.queue.push_back(due.index);
            let Some(member) = self.members[due.index].as_mut() else {
                continue;
            };
            if events.is_full() {
                member.until = member.until.min(due.at);
            } else {
                events.push(member.report(events.look, now, &due.found));
            }
        }
        self.due = found;
    }
}

#[cfg(test)]
mod tests;
