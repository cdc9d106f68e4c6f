//! Nodes that are known and not used: what is needed to reach each of them again, in 31 octets.

use std::net::{IpAddr, SocketAddr};

use urdma_node_table::{Region, Target};

/// Address (4) and port (2), by which records are in order; number (3) and key (8) of the target;
/// key (4), address (6) and length (4) of the memory.
const RECORD: usize = 31;
const KEY: usize = 6;

type Record = [u8; RECORD];

/// They are in one array, which grows by a few places at a time, so that few are empty.
#[derive(Debug, Default)]
pub(crate) struct Away {
    records: Vec<Record>,
    /// Where one is removed next, if there are too many.
    next: usize,
}

impl Away {
    /// Keeps what is known of a node, in place of what was known before; `false`: it has no room in
    /// a record. There are `most` at most: others give way, or this one if that is 0.
    pub(crate) fn keep(&mut self, address: SocketAddr, target: &Target, most: usize) -> bool {
        let Some(record) = encode(address, target) else {
            self.forget(address);
            return false;
        };
        if let Ok(at) = self.position(&record) {
            self.records[at] = record;
        } else if let Some(others) = most.checked_sub(1) {
            self.limit(others);
            if self.records.len() == self.records.capacity() {
                self.records.reserve_exact(4 + self.records.len() / 256);
            }
            let at = self.position(&record).unwrap_or_else(|at| at);
            self.records.insert(at, record);
        }
        self.limit(most);
        true
    }

    /// Whether there is room for what is known of a node.
    pub(crate) fn fits(address: SocketAddr, target: &Target) -> bool {
        encode(address, target).is_some()
    }

    /// Forgets nodes until there are `most` at most.
    pub(crate) fn limit(&mut self, most: usize) {
        while self.records.len() > most {
            self.next = (self.next + 1) % self.records.len();
            self.records.remove(self.next);
        }
    }

    /// What is known of the node at an address.
    pub(crate) fn find(&self, address: SocketAddr) -> Option<Target> {
        let at = self.position(&key(address)?).ok()?;
        decode(&self.records[at])
    }

    pub(crate) fn forget(&mut self, address: SocketAddr) {
        let at = key(address).and_then(|key| self.position(&key).ok());
        if let Some(at) = at {
            self.records.remove(at);
        }
    }

    /// Where the record with a key is, or is to be.
    fn position(&self, key: &[u8]) -> Result<usize, usize> {
        let searched = |record: &Record| record[..KEY].cmp(&key[..KEY]);
        self.records.binary_search_by(searched)
    }
}

/// None of an address of IPv6.
fn key(address: SocketAddr) -> Option<[u8; KEY]> {
    let IpAddr::V4(host) = address.ip() else {
        return None;
    };
    let mut key = [0; KEY];
    key[..4].copy_from_slice(&host.octets());
    key[4..].copy_from_slice(&address.port().to_be_bytes());
    Some(key)
}

/// None of an address of IPv6, or of memory at an address of more than 6 octets or with a length of
/// more than 4.
fn encode(address: SocketAddr, target: &Target) -> Option<Record> {
    let Region {
        rkey,
        addr,
        len_octets,
    } = target.region();
    let len_octets = u32::try_from(len_octets).ok()?;
    if addr >> 48 != 0 {
        return None;
    }
    let mut record = [0; RECORD];
    record[..KEY].copy_from_slice(&key(address)?);
    record[6..9].copy_from_slice(&target.number().to_be_bytes()[1..]);
    record[9..17].copy_from_slice(&target.access_key().to_be_bytes());
    record[17..21].copy_from_slice(&rkey.to_be_bytes());
    record[21..27].copy_from_slice(&addr.to_be_bytes()[2..]);
    record[27..].copy_from_slice(&len_octets.to_be_bytes());
    Some(record)
}

fn decode(record: &Record) -> Option<Target> {
    let number = |octets: &[u8]| octets.iter().fold(0, |n, octet| n << 8 | u64::from(*octet));
    let region = Region {
        rkey: u32::try_from(number(&record[17..21])).ok()?,
        addr: number(&record[21..27]),
        len_octets: number(&record[27..]),
    };
    let target = u32::try_from(number(&record[6..9])).ok()?;
    Target::new(target, number(&record[9..17]), region)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn address(n: u16) -> SocketAddr {
        // Neighbours in number are not neighbours in order.
        let host = Ipv4Addr::new(10, 0, n.to_be_bytes()[1], n.to_be_bytes()[0]);
        SocketAddr::new(host.into(), n)
    }

    fn target(n: u32) -> Target {
        let region = Region {
            rkey: u32::MAX - n,
            addr: (1 << 48) - 1 - u64::from(n),
            len_octets: u64::from(u32::MAX - n),
        };
        Target::new((1 << 24) - 1 - n, u64::MAX - u64::from(n), region).unwrap()
    }

    #[test]
    fn record_has_what_reaches_a_node() {
        let mut away = Away::default();
        for n in 0..1000 {
            assert!(away.keep(address(n), &target(n.into()), 1000));
        }
        for n in 0..1000 {
            assert_eq!(away.find(address(n)), Some(target(n.into())));
        }
        assert_eq!(away.find(address(1000)), None);
        assert!(away.keep(address(7), &target(70), 1000));
        assert_eq!(away.find(address(7)), Some(target(70)));
        away.forget(address(7));
        assert_eq!(away.find(address(7)), None);
        assert_eq!(away.records.len(), 999);
    }

    #[test]
    fn records_of_ten_thousand_nodes_take_less_than_32_octets_each() {
        let mut away = Away::default();
        for n in 1..=10_000 {
            away.keep(address(n), &target(n.into()), 10_000);
            let octets = away.records.capacity() * size_of::<Record>();
            let n = usize::from(n);
            assert!(octets <= (n + n / 256 + 4) * RECORD);
            // The first ones have a few empty places for each.
            assert!(n < 150 || octets < n * 32, "{octets} octets of {n} records");
        }
    }

    #[test]
    fn one_gives_way_if_there_are_too_many() {
        let mut away = Away::default();
        for n in 0..1000 {
            assert!(away.keep(address(n), &target(n.into()), 10));
            assert_eq!(away.find(address(n)), Some(target(n.into())));
            assert!(away.records.len() <= 10);
        }
        away.limit(3);
        assert_eq!(away.records.len(), 3);
        assert!(away.keep(address(999), &target(0), 0));
        assert!(away.records.is_empty());
    }

    #[test]
    fn what_has_no_room_is_not_kept() {
        let mut away = Away::default();
        let long = Region {
            len_octets: 1 << 32,
            ..target(0).region()
        };
        let high = Region {
            addr: 1 << 48,
            ..target(0).region()
        };
        assert!(away.keep(address(1), &target(0), 10));
        for region in [long, high] {
            let target = Target::new(1, 2, region).unwrap();
            assert!(!away.keep(address(1), &target, 10));
            assert_eq!(away.find(address(1)), None);
        }
        let other = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 1);
        assert!(!away.keep(other, &target(0), 10));
        assert_eq!(away.find(other), None);
    }
}
