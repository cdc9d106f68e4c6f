//! The adverts that a sender holds (q_A).

use std::collections::VecDeque;

use crate::types::{AdvertNo, Phase};
use crate::wire::Advert;

/// An advert, and how much of its buffer is used.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    advert: Advert,
    used: u64,
}

impl Held {
    fn left(&self) -> u64 {
        self.advert.buffer.len_octets - self.used
    }

    /// The least number of octets that the receive still takes.
    fn promise(&self) -> u64 {
        if self.advert.waitall {
            self.left()
        } else {
            1
        }
    }
}

/// Adverts in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Adverts {
    held: VecDeque<Held>,
    /// The sum of what they promise; lengths are the peer's, so it may exceed 64 bits.
    promised: u128,
}

impl Adverts {
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// The octets that the receives take at least.
    pub(crate) fn promised(&self) -> u64 {
        u64::try_from(self.promised).unwrap_or(u64::MAX)
    }

    pub(crate) fn push(&mut self, advert: Advert) {
        let held = Held { advert, used: 0 };
        self.promised += u128::from(held.promise());
        self.held.push_back(held);
    }

    /// The oldest advert, and how many octets of its buffer are not used.
    pub(crate) fn first(&self) -> Option<(&Advert, u64)> {
        self.held.front().map(|held| (&held.advert, held.left()))
    }

    pub(crate) fn discard_first(&mut self) {
        if let Some(held) = self.held.pop_front() {
            self.promised -= u128::from(held.promise());
        }
    }

    /// Uses octets of the oldest advert, which has as many left: where they are to be written.
    pub(crate) fn use_first(&mut self, octets: u64) -> Option<(u64, u32)> {
        let held = self.held.front_mut()?;
        let place = (held.advert.buffer.addr + held.used, held.advert.buffer.rkey);
        if !held.advert.waitall || held.left() == octets {
            self.discard_first();
        } else {
            held.used += octets;
            self.promised -= u128::from(octets);
        }
        Some(place)
    }

    /// Discards the adverts from a number on. Returns the phase of the latest.
    pub(crate) fn discard_from(&mut self, from: AdvertNo) -> Option<Phase> {
        let mut phase = None;
        while let Some(held) = self.held.back().copied() {
            if held.advert.number < from {
                break;
            }
            phase = phase.max(Some(held.advert.phase));
            self.promised -= u128::from(held.promise());
            self.held.pop_back();
        }
        phase
    }

    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.promised = 0;
    }
}
