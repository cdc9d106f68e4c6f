//! The interest in members that may get rings, by their descriptors.

use std::ffi::c_int;

use libc::epoll_event;

/// An entry for each descriptor up to the highest one: a program registers each connection once,
/// and a hash would cost more than the entry.
#[derive(Debug)]
pub(super) struct Others {
    events: Vec<Option<epoll_event>>,
    /// How many there are.
    count: usize,
}

impl Others {
    pub(super) const fn new() -> Self {
        Self {
            events: Vec::new(),
            count: 0,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn get(&self, fd: c_int) -> Option<epoll_event> {
        *self.events.get(usize::try_from(fd).ok()?)?
    }

    /// Returns what was there before.
    pub(super) fn insert(&mut self, fd: c_int, event: epoll_event) -> Option<epoll_event> {
        let index = usize::try_from(fd).ok()?;
        if self.events.len() <= index {
            self.events.resize(index + 1, None);
        }
        let before = self.events[index].replace(event);
        self.count += usize::from(before.is_none());
        before
    }

    /// Returns what was there.
    pub(super) fn remove(&mut self, fd: c_int) -> Option<epoll_event> {
        let before = self.events.get_mut(usize::try_from(fd).ok()?)?.take();
        self.count -= usize::from(before.is_some());
        before
    }

    /// The descriptors.
    pub(super) fn fds(&self) -> impl Iterator<Item = c_int> + '_ {
        let events = self.events.iter().zip(0..);
        events.filter_map(|(event, fd)| event.map(|_| fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interest_is_that_of_the_last_insertion_until_it_is_removed() {
        let event = |data| epoll_event {
            events: 1,
            u64: data,
        };
        let data = |event: Option<epoll_event>| event.map(|event| event.u64);
        let mut others = Others::new();
        assert_eq!(data(others.insert(7, event(1))), None);
        assert_eq!(data(others.insert(7, event(2))), Some(1));
        assert_eq!(data(others.insert(3, event(3))), None);
        assert_eq!(others.fds().collect::<Vec<_>>(), [3, 7]);
        assert_eq!(data(others.get(7)), Some(2));
        assert_eq!(data(others.remove(7)), Some(2));
        assert_eq!(data(others.remove(7)), None);
        assert!(others.get(7).is_none() && others.get(-1).is_none() && !others.is_empty());
        assert_eq!(data(others.remove(3)), Some(3));
        assert!(others.is_empty());
    }
}
