//! Connections that are over and that the application has destroyed: what answers to their late
//! messages need, for as long as such messages may come.
//!
//! A process that connects all the time remembers some ten thousand. What is kept of them is
//! written one behind the other, and the tables have a few octets for each, so that little memory
//! is used that no cache has.

use std::collections::{HashMap, VecDeque};

use rustc_hash::FxHashMap;
use urdma_types::{RawQpn, Time};

use crate::conn::{Conn, ConnId, ConnState, Role};
use crate::wire::{CommId, Nonce, Peer};

/// What is remembered of a connection in `TimeWait`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) role: Role,
    pub(crate) remote_id: CommId,
    pub(crate) nonce: Nonce,
    pub(crate) peer: Peer,
    /// The local QP.
    pub(crate) qpn: RawQpn,
    /// The service's.
    pub(crate) port: u16,
    /// When it is forgotten.
    until: Time,
}

impl Ended {
    /// Of a connection that is over and destroyed, no message of which is sent any more but
    /// answers to late ones.
    pub(crate) fn of(conn: &Conn) -> Option<Self> {
        let is_over = conn.state == ConnState::TimeWait && !conn.owned;
        let until = conn.deadline.filter(|_| is_over)?;
        Some(Self {
            role: conn.role,
            remote_id: conn.remote_id,
            nonce: conn.nonce,
            peer: conn.peer,
            qpn: conn.local.qpn,
            port: conn.req.dst.port(),
            until,
        })
    }
}

/// Those of a process.
#[derive(Debug, Default)]
pub(crate) struct EndedConns {
    /// In the order in which they came; `None` is forgotten.
    records: VecDeque<Option<Ended>>,
    /// How many records were removed at the front, modulo 2^32.
    removed: u32,
    /// The number of a connection's record. This manager gives the ids.
    by_id: FxHashMap<ConnId, u32>,
    /// The same for connections that a peer began. Of two peers that have chosen the same nonce,
    /// the last one is found.
    by_nonce: HashMap<Nonce, u32>,
}

impl EndedConns {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn contains(&self, id: ConnId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn get(&self, id: ConnId) -> Option<&Ended> {
        self.record(*self.by_id.get(&id)?)
    }

    /// Whether one of them began with a REQ of this peer.
    pub(crate) fn has_request(&self, peer: Peer, nonce: Nonce) -> bool {
        let ended = self.by_nonce.get(&nonce);
        let ended = ended.and_then(|number| self.record(*number));
        ended.is_some_and(|ended| (ended.peer, ended.nonce) == (peer, nonce))
    }

    pub(crate) fn insert(&mut self, id: ConnId, ended: Ended) {
        let len = u32::try_from(self.records.len()).unwrap_or(u32::MAX);
        let number = self.removed.wrapping_add(len);
        self.records.push_back(Some(ended));
        self.by_id.insert(id, number);
        if ended.role == Role::Passive {
            self.by_nonce.insert(ended.nonce, number);
        }
    }

    /// Forgets a connection, if its time is over at `deadline`.
    pub(crate) fn forget(&mut self, id: ConnId, deadline: Time) -> Option<Ended> {
        let number = *self.by_id.get(&id)?;
        let place = self.place(number);
        let record = self.records.get_mut(place)?;
        let ended = record.take_if(|ended| ended.until == deadline)?;
        self.by_id.remove(&id);
        if self.by_nonce.get(&ended.nonce) == Some(&number) {
            self.by_nonce.remove(&ended.nonce);
        }
        while self.records.front().is_some_and(Option::is_none) {
            self.records.pop_front();
            self.removed = self.removed.wrapping_add(1);
        }
        Some(ended)
    }

    fn record(&self, number: u32) -> Option<&Ended> {
        self.records.get(self.place(number))?.as_ref()
    }

    fn place(&self, number: u32) -> usize {
        number.wrapping_sub(self.removed) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use urdma_types::SlotId;

    use super::*;

    fn ended(role: Role, nonce: u64, until: u64) -> Ended {
        Ended {
            role,
            remote_id: CommId(1),
            nonce: Nonce(nonce),
            peer: peer(1),
            qpn: RawQpn::default(),
            port: 7,
            until: Time::from_ns(until),
        }
    }

    fn peer(slot: u8) -> Peer {
        Peer {
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            slot: SlotId::new(slot).unwrap_or_default(),
        }
    }

    #[test]
    fn each_is_found_until_its_time_whatever_the_order_of_the_times() {
        let mut all = EndedConns {
            // The numbers of the records wrap.
            removed: u32::MAX - 3,
            ..EndedConns::default()
        };
        for id in 1..=100 {
            // The first ends last.
            all.insert(
                ConnId(id),
                ended(Role::Passive, u64::from(id), 1000 - u64::from(id)),
            );
        }
        for id in (1..=100).rev() {
            let deadline = Time::from_ns(1000 - u64::from(id));
            assert!(all.forget(ConnId(id), Time::from_ns(1)).is_none());
            assert!(all.has_request(peer(1), Nonce(id.into())));
            assert!(!all.has_request(peer(2), Nonce(id.into())));
            let forgotten = all.forget(ConnId(id), deadline);
            assert_eq!(forgotten.map(|ended| ended.nonce), Some(Nonce(id.into())));
            assert!(all.get(ConnId(id)).is_none() && !all.has_request(peer(1), Nonce(id.into())));
            assert_eq!(all.len(), id as usize - 1);
        }
        assert!(all.records.is_empty() && all.by_nonce.is_empty());
    }

    #[test]
    fn memory_is_given_back_in_order() {
        let mut all = EndedConns::default();
        for id in 1..10_000 {
            all.insert(ConnId(id), ended(Role::Active, 1, id.into()));
            if let Some(old) = id.checked_sub(10).filter(|old| *old > 0) {
                assert!(all.forget(ConnId(old), Time::from_ns(old.into())).is_some());
            }
            assert!(all.records.len() <= 10);
        }
        assert!(all.by_nonce.is_empty());
    }

    #[test]
    fn of_two_peers_with_one_nonce_the_last_one_is_found() {
        let mut all = EndedConns::default();
        let other = Ended {
            peer: peer(2),
            ..ended(Role::Passive, 5, 2)
        };
        all.insert(ConnId(1), ended(Role::Passive, 5, 1));
        all.insert(ConnId(2), other);
        assert!(!all.has_request(peer(1), Nonce(5)) && all.has_request(peer(2), Nonce(5)));
        assert!(all.forget(ConnId(1), Time::from_ns(1)).is_some());
        assert!(all.has_request(peer(2), Nonce(5)));
    }
}
