//! What is kept for each element of a request.

use std::collections::VecDeque;

/// A value for each element of one request. That of the first element is here, since most requests
/// have one; those of the others are in a queue, behind those of the requests before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerElement<T> {
    first: Option<T>,
    others: u32,
}

impl<T> Default for PerElement<T> {
    fn default() -> Self {
        Self {
            first: None,
            others: 0,
        }
    }
}

impl<T: Copy> PerElement<T> {
    /// That of the first element, and how many others are in the queue.
    #[inline(always)]
    pub(crate) fn new(first: Option<T>, others: u32) -> Self {
        Self { first, others }
    }

    /// Adds that of the next element.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T, others: &mut VecDeque<T>) {
        if self.first.is_none() {
            self.first = Some(value);
        } else {
            others.push_back(value);
            self.others += 1;
        }
    }

    /// How many are in the queue.
    pub(crate) fn others(&self) -> u32 {
        self.others
    }

    /// That of the only element, if there is one.
    #[inline]
    pub(crate) fn only(&self) -> Option<T> {
        self.first.filter(|_| self.others == 0)
    }

    /// What the only value has.
    pub(crate) fn map_only<U: Copy>(self, of: impl FnOnce(T) -> U) -> PerElement<U> {
        PerElement::new(self.only().map(of), 0)
    }

    /// All of them; those in the queue begin at a place.
    pub(crate) fn all(self, others: &VecDeque<T>, at: u32) -> impl Iterator<Item = T> + use<'_, T> {
        let behind = others.range(at as usize..(at + self.others) as usize);
        self.first.into_iter().chain(behind.copied())
    }

    /// Takes those of the oldest request out of the queue, and gives all of them to `each`.
    #[inline(always)]
    pub(crate) fn take_oldest(self, others: &mut VecDeque<T>, mut each: impl FnMut(T)) {
        let Some(first) = self.first else {
            return;
        };
        each(first);
        if self.others > 0 {
            others.drain(..self.others as usize).for_each(each);
        }
    }

    /// Takes those of the newest request out of the queue, and gives all of them to `each`.
    pub(crate) fn take_newest(self, others: &mut VecDeque<T>, mut each: impl FnMut(T)) {
        let left = others.len() - self.others as usize;
        self.first.into_iter().for_each(&mut each);
        others.drain(left..).for_each(each);
    }
}
