//! Which members of a set are reported: level and edge triggering, and EPOLLONESHOT.
//!
//! A member is either in the queue, and each wait looks at it, or it is armed: a change of what it
//! is ready for is noticed ([`Ready::notice`]). A member that was not ready in several waits is
//! armed, and every member is before a wait sleeps. A wait therefore costs what the members in the
//! queue cost.

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

/// What a member stands for.
pub(crate) trait Source {
    /// Which of some events it is ready for.
    fn ready(&self, events: u32) -> u32;
    /// A count that grows when octets come.
    fn arrived(&self) -> u64;
    /// Has a change of what it is ready for noticed.
    fn arm(&self, events: u32);
}

/// The events that a wait returns.
pub(crate) struct Events {
    at: *mut epoll_event,
    room: usize,
    count: usize,
    /// The last look; 0 before the first.
    look: u64,
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
    /// The look that has reported it last, and what it has reported.
    reported: (u64, u32),
}

/// What a look finds of a member.
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

    /// What is reported now.
    fn report(&mut self, look: u64) -> Option<epoll_event> {
        let found = self.found()?;
        let (event, ready) = (found.event, found.ready);
        let has_room = ready & OUT != 0;
        self.lacks_room |= event.events & OUT != 0 && !has_room;
        if !found.is_due {
            return None;
        }
        self.lacks_room &= !has_room;
        self.is_new = false;
        self.arrived = found.arrived;
        self.misses = 0;
        self.reported = (look, ready);
        self.is_spent = event.events & ONE_SHOT != 0;
        Some(epoll_event {
            events: ready,
            u64: event.u64,
        })
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
    looks: u64,
}

impl<S: Source> Ready<S> {
    pub(crate) const fn new() -> Self {
        Self {
            members: Vec::new(),
            count: 0,
            queue: VecDeque::new(),
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

    /// Whether a wait would look at a member.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether there is one member, at which a wait would look.
    pub(crate) fn is_only_queued(&self) -> bool {
        self.count == 1 && self.has_queued()
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

    /// Looks at each member in the queue. With `is_last`, those that are not ready are armed.
    pub(crate) fn look(&mut self, events: &mut Events, is_last: bool) {
        self.looks += 1;
        events.look = self.looks;
        for _ in 0..self.queue.len() {
            if events.is_full() {
                return;
            }
            let Some(index) = self.queue.pop_front() else {
                return;
            };
            let Some(member) = self.members[index].as_mut() else {
                continue;
            };
            if look_at(member, events, is_last) {
                self.queue.push_back(index);
            } else {
                member.is_queued = false;
            }
        }
    }
}

/// Looks at one member; false if it leaves the queue.
fn look_at<S: Source>(member: &mut Member<S>, events: &mut Events, is_last: bool) -> bool {
    let Some(wanted) = member.wanted() else {
        return false;
    };
    let mut report = member.report(events.look);
    if report.is_none() {
        member.misses += 1;
        if !is_last && member.misses < MISSES {
            return true;
        }
        member.source.arm(wanted.events);
        report = member.report(events.look);
    }
    if let Some(event) = report {
        events.push(event);
    }
    report.is_some()
}

#[cfg(test)]
mod tests;
