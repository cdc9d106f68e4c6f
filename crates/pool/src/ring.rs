//! A queue in an array.

/// A queue like `VecDeque`, of plain values, whose operations are joined with what calls them: an
/// entry is written where it stays.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    /// As many as a power of two, or none.
    places: Vec<T>,
    /// The place of the oldest, modulo their number.
    first: usize,
    len: usize,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            first: 0,
            len: 0,
        }
    }
}

impl<T: Copy> Ring<T> {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn place(&self, at: usize) -> usize {
        self.first.wrapping_add(at) & self.places.len().wrapping_sub(1)
    }

    /// The one behind `at` others.
    #[inline(always)]
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        match at < self.len {
            true => self.places.get(self.place(at)),
            false => None,
        }
    }

    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&T> {
        self.get(0)
    }

    #[inline(always)]
    pub(crate) fn back(&self) -> Option<&T> {
        self.get(self.len.wrapping_sub(1))
    }

    /// Those behind `at` others.
    pub(crate) fn behind(&self, at: usize) -> impl Iterator<Item = &T> {
        (at..self.len).filter_map(|at| self.get(at))
    }

    #[inline(always)]
    pub(crate) fn push_back(&mut self, value: T) {
        if self.len == self.places.len() {
            // A copy, so that the value itself needs no place in memory.
            let any = value;
            self.grow(&any);
        }
        let place = self.place(self.len);
        if let Some(place) = self.places.get_mut(place) {
            *place = value;
            self.len += 1;
        }
    }

    /// Doubles the places. The new ones have any value.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, any: &T) {
        const FIRST: usize = 4;
        let count = (self.places.len() * 2).max(FIRST);
        let mut places = Vec::with_capacity(count);
        places.extend(self.behind(0));
        places.resize(count, *any);
        (self.places, self.first) = (places, 0);
    }

    #[inline(always)]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let popped = *self.front()?;
        self.first = self.first.wrapping_add(1);
        self.len -= 1;
        Some(popped)
    }

    #[inline(always)]
    pub(crate) fn pop_back(&mut self) -> Option<T> {
        let popped = *self.back()?;
        self.len -= 1;
        Some(popped)
    }

    /// Keeps the first ones, this many at most.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use urdma_types::Rng;

    use super::*;

    fn compare(ring: &Ring<u64>, model: &VecDeque<u64>) {
        assert_eq!(ring.len(), model.len());
        assert_eq!(ring.is_empty(), model.is_empty());
        assert_eq!((ring.front(), ring.back()), (model.front(), model.back()));
        for at in 0..=model.len() {
            assert_eq!(ring.get(at), model.get(at));
            assert!(ring.behind(at).eq(model.range(at..)));
        }
    }

    #[test]
    fn ring_is_a_queue() {
        let mut rng = Rng::new(1);
        let (mut ring, mut model) = (Ring::default(), VecDeque::new());
        for n in 0..10_000 {
            match rng.below(20) {
                0..10 => {
                    ring.push_back(n);
                    model.push_back(n);
                }
                10..17 => assert_eq!(ring.pop_front(), model.pop_front()),
                17..19 => assert_eq!(ring.pop_back(), model.pop_back()),
                _ => {
                    let len = rng.below(40) as usize;
                    ring.truncate(len);
                    model.truncate(len);
                }
            }
            compare(&ring, &model);
        }
        assert!(ring.places.len().is_power_of_two());
    }
}
