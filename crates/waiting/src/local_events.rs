//! Completion events that a thread raises for itself stay in memory.
//!
//! A thread that drives the engine in its waits raises most of the events that it waits for. Such
//! an event need not pass through the socket of its completion channel: the wait reports it, and
//! the read takes it, from the channel's memory.
//!
//! - Between [`LocalEvents::begin`] and the end of the hold, events that this thread raises stay in
//!   memory if they are of its *target*: the level-triggered channels of the set on which it last
//!   waited, or the channel from which it last read. A channel that is in several sets has no such
//!   events. Those of a channel are all in memory, or all in its socket.
//! - **Nobody waits for them in vain.** Others see an event once it is in the socket. It is sent
//!   there when the thread turns to another target, when another thread takes the seat, and when
//!   the background thread takes it, which it does after a bounded sleep if the thread does not
//!   return to its wait. The end of a hold and the decision to keep an event are under one lock:
//!   an event is either sent by the former or raised through the socket.
//! - A thread does not sleep while an event of its target is in memory.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::unread::{ListId, Target, Unread};

/// How often a thread looks at the descriptors of its set while it finds events in memory.
const LOOK_NS: u64 = 100_000;

/// See the module. One for each engine.
#[derive(Debug, Default)]
pub struct LocalEvents {
    state: Mutex<State>,
    is_held: AtomicBool,
    /// When a thread next looks at the descriptors of its set, nanoseconds.
    next_look: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last hold.
    last: u64,
    /// The hold whose events stay in memory.
    current: Option<u64>,
    /// The channels that may have events in memory.
    channels: Vec<Arc<Unread>>,
}

impl State {
    fn send_all(&mut self, list: ListId) {
        for channel in self.channels.drain(..) {
            channel.send_kept();
            channel.stays_in(list);
        }
    }

    /// A channel may have been entered in the list of another engine meanwhile.
    fn enter(&mut self, channel: Arc<Unread>) {
        if !self
            .channels
            .iter()
            .any(|known| Arc::ptr_eq(known, &channel))
        {
            self.channels.push(channel);
        }
    }
}

struct Hold {
    of: Arc<LocalEvents>,
    number: u64,
    target: Target,
}

thread_local! {
    static HOLD: RefCell<Option<Hold>> = const { RefCell::new(None) };
}

/// The calling thread is about to look at descriptors that are not an epoll set.
pub fn send_local_events() {
    turn_to(None);
}

/// The calling thread is about to wait for `target`: events of another target do not stay in
/// memory any longer.
pub fn turn_to(target: Option<Target>) {
    let left = HOLD.try_with(|hold| {
        let mut hold = hold.borrow_mut();
        let stays = hold.as_ref().is_none_or(|hold| Some(hold.target) == target);
        if stays {
            None
        } else {
            hold.take()
        }
    });
    if let Ok(Some(left)) = left {
        left.of.end();
    }
}

/// Keeps an event of the channel in memory, or sends it to the channel's socket.
pub fn raise(channel: &Unread, cookie: u64) {
    if !keep(channel, cookie) {
        channel.send(cookie);
    }
}

/// Keeps an event of the channel in memory; false if it is to be sent.
fn keep(channel: &Unread, cookie: u64) -> bool {
    let kept = HOLD.try_with(|hold| {
        let hold = hold.borrow();
        let Some(hold) = hold.as_ref() else {
            return false;
        };
        let mut state = hold.of.lock();
        state.current == Some(hold.number)
            && channel.keep(hold.target, cookie, hold.of.id(), |c| state.enter(c))
    });
    kept.unwrap_or(false)
}

impl LocalEvents {
    fn id(&self) -> ListId {
        ListId(std::ptr::from_ref(self).addr())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread has taken the seat to wait for `target`.
    pub fn begin(self: &Arc<Self>, target: Target) {
        let mut state = self.lock();
        // Without thread-local storage, at the end of a thread, there is no hold.
        let _ = HOLD.try_with(|own| {
            let mut own = own.borrow_mut();
            let is_same = own.as_ref().is_some_and(|own| {
                let is_current = state.current == Some(own.number);
                is_current && own.target == target && Arc::ptr_eq(&own.of, self)
            });
            if is_same {
                return;
            }
            state.send_all(self.id());
            state.last += 1;
            state.current = Some(state.last);
            self.is_held.store(true, Ordering::SeqCst);
            *own = Some(Hold {
                of: Arc::clone(self),
                number: state.last,
                target,
            });
        });
    }

    /// Ends the hold of a thread, and sends its events. The seat has been taken from the thread
    /// before.
    pub fn end(&self) {
        if self.is_held.swap(false, Ordering::SeqCst) {
            let mut state = self.lock();
            state.current = None;
            state.send_all(self.id());
        }
    }

    /// Sends the events that are in memory. Those that come later may stay there.
    pub fn send(&self) {
        self.lock().send_all(self.id());
    }

    /// Ends the hold of another thread.
    pub fn end_of_others(&self) {
        let current = self.lock().current;
        let number = |own: &RefCell<Option<Hold>>| own.borrow().as_ref().map(|own| own.number);
        if current.is_some() && HOLD.try_with(number).unwrap_or(None) != current {
            self.end();
        }
    }

    /// Whether channels may have events in memory.
    pub fn has_any(&self) -> bool {
        !self.lock().channels.is_empty()
    }

    /// Reports the events in memory to a wait on the set; whether there are any.
    ///
    /// What the set itself reports is to be added before: a channel that is reported by both would
    /// be in the list twice.
    pub fn report(&self, set: RawFd, mut put: impl FnMut(u32, u64) -> bool) -> bool {
        let mut state = self.lock();
        let mut reported = 0;
        let list = self.id();
        state.channels.retain(|channel| channel.stays_in(list));
        for channel in &state.channels {
            let Some((events, data)) = channel.member_of(set) else {
                continue;
            };
            if !put(events, data) {
                break;
            }
            reported += 1;
        }
        // If there is no room for all, the others are the first of the next wait.
        state.channels.rotate_left(reported);
        reported > 0
    }

    /// Whether to look at the descriptors of the set although there are events in memory.
    pub fn is_look_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_look.load(Ordering::Relaxed)
    }

    /// The thread looks at the descriptors of its set.
    pub fn looks(&self, now_ns: u64) {
        self.next_look.store(now_ns + LOOK_NS, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use urdma_abi::spared::Spared;

    use super::*;
    use crate::unread::{Member, Taken};

    const SET: RawFd = 1000;
    const IN: u32 = libc::EPOLLIN as u32;

    fn channel() -> (Arc<Unread>, UnixStream) {
        let (reader, writer) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        (Unread::new(Spared::from(OwnedFd::from(writer))), reader)
    }

    /// A channel in the set, whose data is `data`.
    fn member(data: u64) -> (Arc<Unread>, UnixStream) {
        let (channel, reader) = channel();
        let (set, events) = (SET, IN);
        channel.join(Member { set, events, data });
        (channel, reader)
    }

    fn held() -> Arc<LocalEvents> {
        let local = Arc::new(LocalEvents::default());
        local.begin(Target::Set(SET));
        local
    }

    /// What a wait with room for `room` events finds.
    fn reported(local: &LocalEvents, room: usize) -> Vec<u64> {
        let mut found = Vec::new();
        let has_any = local.report(SET, |events, data| {
            assert_eq!(events, IN);
            let has_room = found.len() < room;
            if has_room {
                found.push(data);
            }
            has_room
        });
        assert_eq!(has_any, !found.is_empty());
        found
    }

    /// The events in the socket.
    fn sent(mut reader: &UnixStream) -> Vec<u64> {
        let mut events = Vec::new();
        loop {
            let mut octets = [0; 8];
            match reader.read(&mut octets) {
                Ok(8) => events.push(u64::from_ne_bytes(octets)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return events,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn event_of_the_set_stays_in_memory_until_it_is_taken() {
        let (local, (channel, reader)) = (held(), member(7));
        raise(&channel, 1);
        raise(&channel, 2);
        assert_eq!(reported(&local, 4), [7]);
        assert_eq!(reported(&local, 4), [7], "it was not read");
        assert_eq!(
            [channel.take(), channel.take()],
            [Taken::Event(1), Taken::Event(2)]
        );
        assert!(reported(&local, 4).is_empty());
        assert!(sent(&reader).is_empty());
    }

    // A channel whose event another thread had taken was entered twice.
    #[test]
    fn channel_is_reported_once() {
        let (local, (channel, _reader)) = (held(), member(7));
        raise(&channel, 1);
        assert_eq!(channel.take(), Taken::Event(1));
        raise(&channel, 2);
        assert_eq!(reported(&local, 4), [7]);
    }

    #[test]
    fn those_without_room_are_the_first_of_the_next_wait() {
        let local = held();
        let all = [1, 2, 3].map(member);
        for (channel, _) in &all {
            raise(channel, 0);
        }
        assert_eq!(reported(&local, 2), [1, 2]);
        assert_eq!(reported(&local, 2), [3, 1]);
    }

    #[test]
    fn end_of_the_hold_sends_events_and_keeps_no_more() {
        let (local, (channel, reader)) = (held(), member(7));
        raise(&channel, 1);
        local.end();
        raise(&channel, 2);
        assert_eq!(sent(&reader), [1, 2]);
        assert!(reported(&local, 4).is_empty());
    }

    #[test]
    fn events_are_sent_and_the_hold_goes_on() {
        let (local, (channel, reader)) = (held(), member(7));
        raise(&channel, 1);
        local.send();
        assert_eq!(sent(&reader), [1]);
        channel.has_received();
        raise(&channel, 2);
        assert!(sent(&reader).is_empty());
        assert_eq!(reported(&local, 4), [7]);
    }

    #[test]
    fn thread_that_turns_elsewhere_sends_events() {
        let (local, (channel, reader)) = (held(), member(7));
        raise(&channel, 1);
        turn_to(Some(Target::Set(SET)));
        assert!(sent(&reader).is_empty());
        turn_to(Some(Target::reader(&channel)));
        assert_eq!(sent(&reader), [1]);
        local.begin(Target::Set(SET));
        channel.has_received();
        raise(&channel, 2);
        send_local_events();
        assert_eq!(sent(&reader), [2]);
    }

    #[test]
    fn events_of_another_thread_are_sent_in_order() {
        let (_local, (channel, reader)) = (held(), member(7));
        raise(&channel, 1);
        std::thread::scope(|scope| scope.spawn(|| raise(&channel, 2)).join().unwrap());
        raise(&channel, 3);
        assert_eq!(sent(&reader), [1, 2, 3]);
    }

    #[test]
    fn thread_that_takes_the_seat_ends_the_hold_of_the_one_before() {
        let (local, (channel, reader)) = (held(), member(7));
        raise(&channel, 1);
        std::thread::scope(|scope| {
            let other = || local.begin(Target::Set(SET));
            scope.spawn(other).join().unwrap();
        });
        raise(&channel, 2);
        assert_eq!(sent(&reader), [1, 2]);
    }

    #[test]
    fn event_stays_in_memory_only_in_one_level_triggered_set() {
        let _local = held();
        let member = |set, flags: libc::c_int| Member {
            set,
            events: IN | flags.cast_unsigned(),
            data: 7,
        };
        let one_shot = member(SET, libc::EPOLLONESHOT);
        let edge = member(SET, libc::EPOLLET);
        let [here, elsewhere] = [SET, SET + 1].map(|set| member(set, 0));
        let cases: [&[Member]; 5] = [&[], &[one_shot], &[edge], &[elsewhere], &[here, elsewhere]];
        for members in cases {
            let (channel, reader) = channel();
            members.iter().for_each(|member| channel.join(*member));
            raise(&channel, 1);
            assert_eq!(sent(&reader), [1], "{members:?}");
        }
        let (channel, reader) = channel();
        channel.join(here);
        channel.part(SET + 1);
        raise(&channel, 1);
        assert_eq!(sent(&reader), [1], "in the set by another descriptor of it");
    }

    #[test]
    fn change_of_membership_sends_events() {
        let (local, (channel, reader)) = (held(), member(7));
        raise(&channel, 1);
        channel.part(SET);
        assert_eq!(sent(&reader), [1]);
        assert!(reported(&local, 4).is_empty());
    }

    #[test]
    fn closed_channel_is_not_reported() {
        let (local, (channel, _reader)) = (held(), member(7));
        raise(&channel, 1);
        channel.clear();
        assert!(reported(&local, 4).is_empty());
    }

    #[test]
    fn reader_of_one_channel_finds_its_events_in_memory() {
        let local = Arc::new(LocalEvents::default());
        let ((own, own_reader), (other, other_reader)) = (channel(), channel());
        local.begin(Target::reader(&own));
        raise(&own, 1);
        raise(&other, 2);
        assert_eq!(own.take(), Taken::Event(1));
        assert!(sent(&own_reader).is_empty());
        assert_eq!(sent(&other_reader), [2]);
    }
}
