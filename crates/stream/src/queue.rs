//! Sends or receives in the order in which they were posted.
//!
//! One that is complete stays where it is until its event is taken: to move it to a queue of events
//! takes as long as all else that is done with a short one.

use std::collections::{vec_deque, VecDeque};
use std::ops::{Index, IndexMut};

/// A queue of operations. Places are counted from the oldest that is not complete.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Queue<T> {
    all: VecDeque<T>,
    /// How many, at the front, are complete.
    complete: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            all: VecDeque::new(),
            complete: 0,
        }
    }

    /// How many are not complete.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.all.len() - self.complete
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.len() == self.complete
    }

    #[inline]
    pub(crate) fn push_back(&mut self, operation: T) {
        self.all.push_back(operation);
    }

    #[inline]
    pub(crate) fn get(&self, place: usize) -> Option<&T> {
        self.all.get(self.complete + place)
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        self.get(0)
    }

    #[inline]
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        self.all.get_mut(self.complete)
    }

    /// Those from a place on.
    #[inline]
    pub(crate) fn rest(&self, place: usize) -> vec_deque::Iter<'_, T> {
        self.all.range(self.complete + place..)
    }

    /// The same, which can be changed.
    #[inline]
    pub(crate) fn rest_mut(&mut self, place: usize) -> vec_deque::IterMut<'_, T> {
        self.all.range_mut(self.complete + place..)
    }

    /// The oldest is complete; its event can be taken.
    #[inline]
    pub(crate) fn complete_front(&mut self) {
        self.complete += 1;
    }

    /// Whether one is complete.
    #[inline]
    pub(crate) fn has_complete(&self) -> bool {
        self.complete > 0
    }

    /// Takes the oldest that is complete.
    #[inline]
    pub(crate) fn take_complete(&mut self) -> Option<T> {
        self.complete = self.complete.checked_sub(1)?;
        self.all.pop_front()
    }

    /// Takes one that is not complete.
    pub(crate) fn remove(&mut self, place: usize) -> Option<T> {
        match self.complete + place {
            0 => self.all.pop_front(),
            place => self.all.remove(place),
        }
    }

    /// Takes all that are not complete.
    pub(crate) fn drain(&mut self) -> vec_deque::Drain<'_, T> {
        self.all.drain(self.complete..)
    }

    /// The place of the operation with a number. The queue is in the order of numbers, which are
    /// consecutive but for operations that have ended before others.
    #[inline]
    pub(crate) fn place_of(&self, number: u64, number_of: impl Fn(&T) -> u64) -> Option<usize> {
        let first = number_of(self.front()?);
        let place = usize::try_from(number.checked_sub(first)?).ok()?;
        match self.get(place) {
            Some(found) if number_of(found) == number => Some(place),
            _ => {
                let found = self.all.binary_search_by_key(&number, number_of);
                found.ok()?.checked_sub(self.complete)
            }
        }
    }
}

impl<T> Index<usize> for Queue<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: usize) -> &T {
        &self.all[self.complete + place]
    }
}

impl<T> IndexMut<usize> for Queue<T> {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut T {
        &mut self.all[self.complete + place]
    }
}
