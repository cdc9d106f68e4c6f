//! Event queues.
//!
//! An operation reserves a place in its queue before it is posted, so that no event is lost.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::errno::{lock, Errno};

#[derive(Debug)]
struct Inside<E> {
    events: VecDeque<E>,
    /// Places of events and of operations in progress.
    taken: usize,
    is_deleted: bool,
}

/// A queue, whose descriptor can be read when it has an event.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    bell: EventFd,
    depth: usize,
    inside: Mutex<Inside<E>>,
    changed: Condvar,
}

impl<E> Queue<E> {
    pub(crate) fn new(depth: usize) -> Result<Arc<Self>, Errno> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Arc::new(Self {
            bell,
            depth,
            inside: Mutex::new(Inside {
                events: VecDeque::new(),
                taken: 0,
                is_deleted: false,
            }),
            changed: Condvar::new(),
        }))
    }

    pub(crate) fn number(&self) -> RawFd {
        self.bell.as_fd().as_raw_fd()
    }

    /// A place for the event of an operation: ENOBUFS if the queue has none left.
    pub(crate) fn reserve(self: &Arc<Self>) -> Result<Place<E>, Errno> {
        let mut inside = lock(&self.inside);
        if inside.is_deleted {
            return Err(Errno(libc::EBADF));
        }
        if inside.taken >= self.depth {
            return Err(Errno(libc::ENOBUFS));
        }
        inside.taken += 1;
        Ok(Place(Some(Arc::clone(self))))
    }

    /// The oldest events, `most` at most; waits until `limit` for the first.
    pub(crate) fn dequeue(&self, most: usize, limit: Option<Duration>) -> Result<Vec<E>, Errno> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut inside = lock(&self.inside);
        loop {
            if inside.is_deleted {
                return Err(Errno(libc::EBADF));
            }
            if !inside.events.is_empty() {
                let count = most.min(inside.events.len());
                inside.taken -= count;
                let events = inside.events.drain(..count).collect();
                if inside.events.is_empty() {
                    self.bell.read()?;
                }
                return Ok(events);
            }
            inside = match until {
                None => self
                    .changed
                    .wait(inside)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(Vec::new());
                    }
                    let waited = self.changed.wait_timeout(inside, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Ends the queue and every wait for it; EBUSY while operations are in progress.
    pub(crate) fn delete(&self) -> Result<(), Errno> {
        let mut inside = lock(&self.inside);
        if inside.taken > inside.events.len() {
            return Err(Errno(libc::EBUSY));
        }
        inside.is_deleted = true;
        self.changed.notify_all();
        Ok(())
    }

    fn put(&self, event: E) {
        let mut inside = lock(&self.inside);
        inside.events.push_back(event);
        if inside.events.len() == 1 {
            // It fails only if the count is full, when the descriptor can be read, too.
            let _ = self.bell.write(1);
        }
        self.changed.notify_one();
    }

    fn give_back(&self) {
        lock(&self.inside).taken -= 1;
    }
}

/// A place in a queue, for one event.
#[derive(Debug)]
pub(crate) struct Place<E>(Option<Arc<Queue<E>>>);

impl<E> Place<E> {
    pub(crate) fn put(mut self, event: E) {
        if let Some(queue) = self.0.take() {
            queue.put(event);
        }
    }
}

impl<E> Drop for Place<E> {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            queue.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    fn is_readable(queue: &Queue<u32>) -> bool {
        let mut fds = [PollFd::new(queue.bell.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn queue_without_a_place_refuses_until_an_event_is_taken() {
        let queue = Queue::new(2).unwrap();
        let [first, second] = [(); 2].map(|()| queue.reserve().unwrap());
        assert_eq!(queue.reserve().unwrap_err(), Errno(libc::ENOBUFS));
        first.put(1);
        assert_eq!(queue.reserve().unwrap_err(), Errno(libc::ENOBUFS));
        assert_eq!(queue.dequeue(9, NOW).unwrap(), [1]);
        let third = queue.reserve().unwrap();
        drop(second);
        let fourth = queue.reserve().unwrap();
        third.put(3);
        fourth.put(4);
        assert_eq!(queue.dequeue(9, None).unwrap(), [3, 4]);
    }

    #[test]
    fn descriptor_can_be_read_while_there_are_events() {
        let queue = Queue::new(3).unwrap();
        assert!(!is_readable(&queue));
        for event in [1, 2, 3] {
            queue.reserve().unwrap().put(event);
        }
        assert_eq!(queue.dequeue(2, NOW).unwrap(), [1, 2]);
        assert!(is_readable(&queue));
        assert_eq!(queue.dequeue(2, NOW).unwrap(), [3]);
        assert!(!is_readable(&queue));
        assert!(queue.dequeue(2, NOW).unwrap().is_empty());
    }

    #[test]
    fn deletion_waits_for_operations_and_ends_waits() {
        let queue = Queue::<u32>::new(3).unwrap();
        let place = queue.reserve().unwrap();
        assert_eq!(queue.delete(), Err(Errno(libc::EBUSY)));
        let waiting = Arc::clone(&queue);
        let waiter = std::thread::spawn(move || waiting.dequeue(1, None));
        drop(place);
        queue.delete().unwrap();
        assert_eq!(waiter.join().unwrap(), Err(Errno(libc::EBADF)));
        assert_eq!(queue.reserve().unwrap_err(), Errno(libc::EBADF));
    }
}
