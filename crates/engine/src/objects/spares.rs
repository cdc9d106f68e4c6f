//! Memory of boxes that were dropped.
//!
//! The allocator of the C library keeps blocks of up to 1 KB for the thread that frees them. For a
//! larger one it searches, and joins all small free blocks before, so that a program that makes and
//! destroys queue pairs all the time also finds its small blocks in other memory each time.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::drop_in_place;

/// Boxes whose memory is kept.
const KEPT_MAX: usize = 16;

/// Memory for boxes of one type. The block that was used last is used first.
#[derive(Debug)]
pub(crate) struct Spares<T> {
    free: Vec<Box<MaybeUninit<T>>>,
}

impl<T> Default for Spares<T> {
    fn default() -> Self {
        Self { free: Vec::new() }
    }
}

impl<T> Spares<T> {
    /// A box of `value`.
    pub(crate) fn place(&mut self, value: T) -> Box<T> {
        let memory = self.free.pop().unwrap_or_else(Box::new_uninit);
        Box::write(memory, value)
    }

    /// Drops what is in a box, and keeps its memory.
    pub(crate) fn drop(&mut self, value: Box<T>) {
        if self.free.len() >= KEPT_MAX {
            return;
        }
        let value = Box::into_raw(value);
        // SAFETY: the box has a value, which nothing uses afterwards.
        unsafe { drop_in_place(value) };
        // SAFETY: it came out of a box with the same layout.
        self.free.push(unsafe { Box::from_raw(value.cast()) });
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn values_are_dropped_once_and_their_memory_is_used_again() {
        let counted = Rc::new(());
        let mut spares = Spares::default();
        let first = spares.place(Rc::clone(&counted));
        let at = std::ptr::from_ref(&*first);
        spares.drop(first);
        assert_eq!(Rc::strong_count(&counted), 1);
        let again = spares.place(Rc::clone(&counted));
        assert_eq!(std::ptr::from_ref(&*again), at);

        let many: Vec<_> = (0..2 * KEPT_MAX)
            .map(|_| spares.place(Rc::clone(&counted)))
            .collect();
        for value in many {
            spares.drop(value);
        }
        assert_eq!(spares.free.len(), KEPT_MAX);
        assert_eq!(Rc::strong_count(&counted), 2);
        drop((spares, again));
        assert_eq!(Rc::strong_count(&counted), 1);
    }
}
