//! Waits for a set: what its members with rings report, and what the kernel does.

use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use crate::{clock, readiness};

use super::ready::Source;
use super::{index_of, Events, Members, Ringed, Set, BELL, KINDS};

/// The number of the next sleep of a thread that waits for a set. The peers of this process compare
/// it with that for which they have rung.
static SLEEPS: AtomicU64 = AtomicU64::new(1);

/// Waits that find members with rings ready, of which one asks the kernel.
const KERNEL_EVERY: u32 = 8;

impl Members {
    /// Looks at the members with rings; with the number of a sleep that follows, arms them.
    fn look(&mut self, events: &mut Events, sleep: Option<u64>) {
        self.ready.look(events, sleep, clock::now_ns);
    }

    /// Whether the kernel is to be asked before octets of rings are reported: something that it
    /// knows may have come before them.
    fn is_kernel_first(&self) -> bool {
        let has_others = !self.others.is_empty() || self.ready.is_several();
        has_others && !self.is_rings_turn
    }
}

impl Set {
    /// A wait begins: reports members with rings. Returns whether the kernel is asked too, after
    /// which [`Self::end_sleep`] follows. With `may_sleep`, members are armed if none is ready.
    pub(crate) fn look(&self, events: &mut Events, may_sleep: bool) -> bool {
        self.members.with(|members| {
            members.is_rings_turn = false;
            members.look(events, None);
            if events.count() == 0 && may_sleep {
                members.look(events, Some(SLEEPS.fetch_add(1, SeqCst)));
            }
            let is_late = members.unasked >= KERNEL_EVERY || members.has_new;
            let is_asked = (events.count() == 0 || is_late) && !events.is_full();
            if is_asked {
                self.begin_sleep(members, events);
            } else {
                members.unasked += 1;
                self.pass_on(members);
            }
            is_asked
        })
    }

    /// A wait begins: whether nothing but the kernel is asked, after which [`Self::end_sleep`]
    /// follows. The flag is looked at last: the thread that sets it finds the waiter.
    pub(crate) fn begin_sleep_without_rings(&self) -> bool {
        if self.is_ringed() {
            return false;
        }
        self.waiters.fetch_add(1, SeqCst);
        let is_ringed = self.is_ringed();
        if is_ringed {
            self.end_sleep();
        }
        !is_ringed
    }

    /// Whether a wait is to spin: a member with rings was ready lately.
    pub(crate) fn may_spin(&self) -> bool {
        self.is_ringed() && self.members.with(|members| members.ready.has_queued())
    }

    /// Whether a wait would report octets of rings, before which the kernel is to be asked.
    pub(crate) fn is_order_unknown(&self) -> bool {
        let is_unknown =
            |members: &mut Members| members.is_kernel_first() && members.ready.is_due();
        self.is_ringed() && self.members.with(is_unknown)
    }

    /// A look that does not wait: whether the kernel is asked first, after which
    /// [`Self::end_sleep`] follows.
    pub(crate) fn begin_glance(&self, events: &mut Events) -> bool {
        self.members.with(|members| {
            let is_late = members.unasked >= KERNEL_EVERY || members.has_new;
            let is_asked = is_late || members.is_kernel_first();
            if is_asked {
                self.begin_sleep(members, events);
            }
            is_asked
        })
    }

    /// The thread is about to ask the kernel.
    fn begin_sleep(&self, members: &mut Members, events: &mut Events) {
        members.has_new = false;
        members.unasked = 0;
        events.joins = members.joins;
        self.waiters.fetch_add(1, SeqCst);
    }

    /// Whether a look would report a member with rings that is not armed. No system call is made
    /// while TCP is quiet.
    pub(crate) fn is_due(&self) -> bool {
        self.members.with(|members| members.ready.is_due())
    }

    /// The thread has asked the kernel.
    pub(crate) fn end_sleep(&self) {
        self.waiters.fetch_sub(1, SeqCst);
    }

    /// Takes what the kernel has reported, `count` entries behind `events`: the program's own are
    /// kept, members with rings are looked at. Returns whether none of them were the program's.
    pub(crate) fn sort(&self, events: &mut Events, count: usize) -> bool {
        let (reported, _) = events.rest();
        let before = events.count();
        let is_first = before == 0;
        self.with(|members| {
            // Of a socket itself the kernel says that it became ready after those before it.
            let mut behind = 0;
            let mut is_told = false;
            for index in 0..count {
                // SAFETY: the kernel has written `count` entries.
                let event = unsafe { reported.add(index).read_unaligned() };
                match index_of(event.u64) {
                    None => events.push(event),
                    Some(index) => {
                        is_told = true;
                        note(members, index, events, event.events, &mut behind);
                    }
                }
            }
            // A thread that still sleeps is told by the peers while they have told nothing.
            if is_told || self.waiters.load(SeqCst) == 0 {
                members.ready.wake();
            }
            let is_ours = events.count() == before;
            // A member is not reported twice: before the kernel was asked, or by the kernel before
            // it got its rings.
            if is_first && (is_ours || events.joins == members.joins) {
                members.is_rings_turn = events.is_full();
                members.look(events, None);
            }
            self.pass_on(members);
            is_ours
        })
    }
}

/// The kernel has reported a registration of this library's, with what the socket is ready for.
/// `behind`: when the members became ready that it has reported before.
fn note(members: &mut Members, index: usize, found: &Events, ready: u32, behind: &mut u64) {
    let Ok(fd) = c_int::try_from(index / KINDS) else {
        return;
    };
    let Some(source) = members.ready.source(fd) else {
        return;
    };
    let Ringed(connection) = source;
    if index % KINDS == BELL {
        // What a ring has is an edge by its counts.
        *behind = (*behind).max(source.stamp());
        members.ready.notice_before(found, fd, 0);
        return;
    }
    if connection.is_tcp_quiet() {
        // What was reported may be of before.
        let events = libc::POLLIN | libc::POLLRDHUP;
        connection.note_socket(readiness::of_socket(connection, events));
    }
    members.ready.notice_before(found, fd, ready);
    members.ready.delay(fd, *behind);
}
