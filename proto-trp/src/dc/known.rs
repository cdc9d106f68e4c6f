//! What an initiator keeps of targets to which it is not connected: as many as configured, those
//! that were used last.

use super::ends::DcTargetAddress;
use super::lists::{Links, List};
use std::collections::HashMap;

/// What is known of a target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// 0 if it is not known.
    pub(super) token: u32,
    /// With a token: the epoch of the latest connection, or the target's floor if that is higher.
    pub(super) epoch: u64,
}

/// The targets.
#[derive(Debug)]
pub(super) struct KnownTargets {
    max: usize,
    places: HashMap<DcTargetAddress, u32>,
    entries: Vec<(DcTargetAddress, Known)>,
    /// Least recently used first.
    order: List,
    links: Links,
}

impl KnownTargets {
    /// Room for `max` targets.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            places: HashMap::new(),
            entries: Vec::new(),
            order: List::EMPTY,
            links: Links::default(),
        }
    }

    /// The entry of a target, which is the most recently used one from now on. A new one takes the
    /// place of the least recently used one if there is no other.
    pub(super) fn touch(&mut self, target: DcTargetAddress) -> &mut Known {
        let known = self.places.get(&target).copied();
        let reused = self
            .order
            .first()
            .filter(|_| self.entries.len() >= self.max);
        let place = match (known, reused) {
            (Some(place), _) => place,
            (None, Some(place)) => {
                let entry = &mut self.entries[place as usize];
                self.places.remove(&entry.0);
                *entry = (target, Known::default());
                self.places.insert(target, place);
                place
            }
            (None, None) => {
                // There are fewer targets than there are queue pair numbers.
                let place = u32::try_from(self.entries.len()).unwrap_or(0);
                self.entries.push((target, Known::default()));
                self.links.grow();
                self.places.insert(target, place);
                place
            }
        };
        self.order.remove(&mut self.links, place);
        self.order.push(&mut self.links, place);
        &mut self.entries[place as usize].1
    }

    /// What is known of a target.
    pub(super) fn get_mut(&mut self, target: &DcTargetAddress) -> Option<&mut Known> {
        let place = self.places.get(target)?;
        self.entries
            .get_mut(*place as usize)
            .map(|(_, known)| known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};
    use urdma_types::{Qpn, SlotId};

    fn target(index: u16) -> DcTargetAddress {
        DcTargetAddress {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            number: Qpn::new(SlotId::new(1).unwrap(), index),
            key: 0,
            local: 0,
        }
    }

    #[test]
    fn least_recently_used_target_is_forgotten() {
        let mut known = KnownTargets::new(2);
        known.touch(target(1)).epoch = 1;
        known.touch(target(2)).epoch = 2;
        assert_eq!(known.touch(target(1)).epoch, 1);
        assert_eq!(known.touch(target(3)).epoch, 0);
        assert!(known.get_mut(&target(2)).is_none());
        assert_eq!(known.get_mut(&target(1)).map(|known| known.epoch), Some(1));
        assert_eq!(known.touch(target(2)).epoch, 0);
        assert!(known.get_mut(&target(1)).is_none());
    }
}
