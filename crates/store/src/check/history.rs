//! What clients did with one key, and whether a register could have done the same.

use std::collections::HashSet;

/// A value: which put wrote it.
pub(super) type Value = u16;

/// What an operation does to a register, and what it has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
    Get(Option<Value>),
    /// Whether there was a value before, if the operation has said so.
    Put(Value, Option<bool>),
    Delete(Option<bool>),
}

/// An operation between two moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) begin: u64,
    /// None if its client has ended before.
    pub(super) end: Option<u64>,
    pub(super) did: Did,
}

/// The operations on one key that may have had an effect.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) events: Vec<Event>,
}

impl Did {
    /// The register afterwards, if the operation could have said what it has.
    fn apply(self, register: Option<Value>) -> Option<Option<Value>> {
        let agrees = |said: Option<bool>| said.is_none_or(|said| said == register.is_some());
        match self {
            Self::Get(found) => (found == register).then_some(register),
            Self::Put(value, said) => agrees(said).then_some(Some(value)),
            Self::Delete(said) => agrees(said).then_some(None),
        }
    }
}

impl History {
    /// Whether there is an order of the operations, each between its begin and its end, in which a
    /// register says what they have said (Wing and Gong). Those without an end may be left out.
    pub(super) fn is_linearizable(&self) -> bool {
        assert!(self.events.len() <= 128);
        self.search(0, None, &mut HashSet::new())
    }

    fn search(
        &self,
        done: u128,
        register: Option<Value>,
        seen: &mut HashSet<(u128, Option<Value>)>,
    ) -> bool {
        let left = || {
            let events = self.events.iter().enumerate();
            events.filter(move |(n, _)| done >> n & 1 == 0)
        };
        // What has ended first has to come before what began later.
        let Some(first_end) = left().filter_map(|(_, event)| event.end).min() else {
            return true;
        };
        if !seen.insert((done, register)) {
            return false;
        }
        left().any(|(n, event)| {
            let next = event
                .did
                .apply(register)
                .filter(|_| event.begin <= first_end);
            next.is_some_and(|next| self.search(done | 1 << n, next, seen))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(events: &[(u64, u64, Did)]) -> History {
        let events = events.iter().map(|(begin, end, did)| Event {
            begin: *begin,
            end: (*end > 0).then_some(*end),
            did: *did,
        });
        History {
            events: events.collect(),
        }
    }

    #[test]
    fn orders_that_a_register_has_are_found_and_others_are_not() {
        let put = |value| Did::Put(value, None);
        let good: [&[_]; 4] = [
            &[(1, 2, put(1)), (3, 4, Did::Get(Some(1)))],
            // The put takes effect between the two.
            &[
                (1, 9, put(1)),
                (2, 3, Did::Get(None)),
                (4, 5, Did::Get(Some(1))),
            ],
            // One that has not ended may have taken effect, or not.
            &[
                (1, 0, put(1)),
                (2, 3, Did::Get(None)),
                (4, 5, Did::Get(Some(1))),
            ],
            &[(1, 0, put(1)), (2, 3, Did::Get(None))],
        ];
        for events in good {
            assert!(history(events).is_linearizable(), "{events:?}");
        }
        let bad: [&[_]; 4] = [
            &[(1, 2, put(1)), (3, 4, Did::Get(None))],
            &[
                (1, 9, put(1)),
                (2, 3, Did::Get(Some(1))),
                (4, 5, Did::Get(None)),
            ],
            &[(1, 2, put(1)), (3, 4, Did::Put(2, Some(false)))],
            &[
                (1, 2, put(1)),
                (3, 4, Did::Delete(Some(true))),
                (5, 6, Did::Get(Some(1))),
            ],
        ];
        for events in bad {
            assert!(!history(events).is_linearizable(), "{events:?}");
        }
    }
}
