//! Doubly linked lists of the places of a table: an entry is added, moved and removed at constant
//! cost and without an allocation. One table has several kinds of lists; an entry is in at most one
//! list of a kind.

/// No entry.
const NONE: u32 = u32::MAX;

/// The neighbours of each entry in its list of one kind.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    is_in: bool,
}

impl Link {
    const OUT: Self = Self {
        before: NONE,
        after: NONE,
        is_in: false,
    };
}

/// A list; the entries are linked by the [`Links`] of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    /// A list without entries.
    pub(super) const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };

    /// The entry that was added before all others.
    pub(super) fn first(&self) -> Option<u32> {
        Some(self.first).filter(|first| *first != NONE)
    }

    /// Adds an entry behind the others, unless it is in a list of this kind.
    pub(super) fn push(&mut self, links: &mut Links, entry: u32) {
        let link = links.at(entry);
        if std::mem::replace(&mut link.is_in, true) {
            return;
        }
        (link.before, link.after) = (self.last, NONE);
        match self.last {
            NONE => self.first = entry,
            last => links.at(last).after = entry,
        }
        self.last = entry;
    }

    /// Removes an entry of this list; one that is in no list stays so.
    pub(super) fn remove(&mut self, links: &mut Links, entry: u32) {
        let Link {
            before,
            after,
            is_in,
        } = std::mem::replace(links.at(entry), Link::OUT);
        if !is_in {
            return;
        }
        match before {
            NONE => self.first = after,
            before => links.at(before).after = after,
        }
        match after {
            NONE => self.last = before,
            after => links.at(after).before = before,
        }
    }
}

impl Default for List {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Links {
    /// Room for one entry more.
    pub(super) fn grow(&mut self) {
        self.0.push(Link::OUT);
    }

    fn at(&mut self, entry: u32) -> &mut Link {
        &mut self.0[entry as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn list_is_a_queue_from_which_any_entry_can_be_removed() {
        const ENTRIES: u32 = 9;
        let mut rng = urdma_types::Rng::new(1);
        let (mut links, mut list) = (Links::default(), List::EMPTY);
        (0..ENTRIES).for_each(|_| links.grow());
        let mut model = VecDeque::new();
        for _ in 0..10_000 {
            let entry = rng.below(u64::from(ENTRIES)) as u32;
            if rng.below(2) == 0 {
                list.push(&mut links, entry);
                if !model.contains(&entry) {
                    model.push_back(entry);
                }
            } else {
                list.remove(&mut links, entry);
                model.retain(|other| *other != entry);
            }
            assert_eq!(list.first(), model.front().copied());
        }
        while let Some(first) = list.first() {
            assert_eq!(model.pop_front(), Some(first));
            list.remove(&mut links, first);
        }
        assert!(model.is_empty());
        assert_eq!(list, List::EMPTY);
    }
}
