//! Deadlines of the places of a table, in a heap in which each place knows where it is.

use urdma_types::Time;

/// Not in the heap.
const NONE: u32 = u32::MAX;

/// A heap of deadlines, one for each place at most.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Vec<(Time, u32)>,
    /// Where in the heap each place is.
    positions: Vec<u32>,
}

impl Timers {
    /// Room for one place more.
    pub(super) fn grow(&mut self) {
        self.positions.push(NONE);
        self.heap.reserve(self.positions.len() - self.heap.len());
    }

    /// The earliest deadline and its place.
    pub(super) fn first(&self) -> Option<(Time, u32)> {
        self.heap.first().copied()
    }

    /// The deadline of a place.
    pub(super) fn of(&self, place: u32) -> Option<Time> {
        let position = self.positions[place as usize];
        (position != NONE).then(|| self.heap[position as usize].0)
    }

    /// Sets the deadline of a place.
    pub(super) fn set(&mut self, place: u32, deadline: Time) {
        let position = match self.positions[place as usize] {
            NONE => {
                self.heap.push((deadline, place));
                self.heap.len() - 1
            }
            position => position as usize,
        };
        self.settle(position, (deadline, place));
    }

    /// Removes the deadline of a place, if it has one.
    pub(super) fn remove(&mut self, place: u32) {
        let position = std::mem::replace(&mut self.positions[place as usize], NONE);
        if position == NONE {
            return;
        }
        let last = self.heap.pop();
        if let Some(last) = last.filter(|(_, other)| *other != place) {
            self.settle(position as usize, last);
        }
    }

    /// Puts an entry where it belongs, from a position on whose entry is void.
    fn settle(&mut self, mut at: usize, entry: (Time, u32)) {
        while at > 0 && entry.0 < self.heap[(at - 1) / 2].0 {
            self.put(at, self.heap[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        loop {
            let children = (2 * at + 1)..(2 * at + 3).min(self.heap.len());
            match children.min_by_key(|&child| self.heap[child].0) {
                Some(child) if self.heap[child].0 < entry.0 => {
                    self.put(at, self.heap[child]);
                    at = child;
                }
                _ => break,
            }
        }
        self.put(at, entry);
    }

    fn put(&mut self, at: usize, entry: (Time, u32)) {
        self.heap[at] = entry;
        // Places are counted by 32 bits.
        self.positions[entry.1 as usize] = u32::try_from(at).unwrap_or(NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_deadline_is_the_earliest_of_all_that_are_set() {
        const PLACES: u32 = 40;
        let mut rng = urdma_types::Rng::new(7);
        let mut timers = Timers::default();
        (0..PLACES).for_each(|_| timers.grow());
        let mut model = vec![None; PLACES as usize];
        for _ in 0..20_000 {
            let place = rng.below(u64::from(PLACES)) as u32;
            if rng.below(3) == 0 {
                timers.remove(place);
                model[place as usize] = None;
            } else {
                let deadline = Time::from_ns(rng.below(1000));
                timers.set(place, deadline);
                model[place as usize] = Some(deadline);
            }
            assert_eq!(timers.of(place), model[place as usize]);
            let earliest = model.iter().flatten().min().copied();
            assert_eq!(timers.first().map(|(time, _)| time), earliest);
            if let Some((time, place)) = timers.first() {
                assert_eq!(model[place as usize], Some(time));
            }
        }
    }
}
