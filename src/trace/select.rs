//! Which events belong to one connection, and which connections are shown.

use std::collections::HashMap;
use std::net::IpAddr;
use std::str::FromStr;

use urdma_trace::{Event, Kind, Link};

use super::words;

/// The connections that `--conn` selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selection {
    /// Those with this queue pair number or connection id.
    Number(u32),
    /// Those with this peer.
    Peer(IpAddr),
}

/// A text that selects no connections.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither a number nor an IP address")]
pub(super) struct NoSelection;

impl FromStr for Selection {
    type Err = NoSelection;

    fn from_str(text: &str) -> Result<Self, NoSelection> {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let peer = || text.parse().ok().map(Selection::Peer);
        number
            .map(Selection::Number)
            .or_else(peer)
            .ok_or(NoSelection)
    }
}

/// The events of one connection, in order of time.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// Queue pair number and connection id, each the last one that it had.
    pub(super) link: Link,
    /// Its peer, the last one.
    pub(super) peer: Option<IpAddr>,
    /// Its events.
    pub(super) events: Vec<Event>,
}

impl Connection {
    fn add(&mut self, event: Event) {
        let Link { conn, qpn } = event.link;
        if conn != 0 {
            self.link.conn = conn;
        }
        if qpn != 0 {
            self.link.qpn = qpn;
        }
        if event.kind == Kind::Peer {
            self.peer = Some(words::address_of(event.arguments));
        }
        self.events.push(event);
    }

    /// The event that says why it failed; the first, since later ones follow from it. What came
    /// before it was established was no failure: a request may be repeated after a rejection.
    pub(super) fn failure(&self) -> Option<&Event> {
        let is_established = |event: &Event| event.kind == Kind::Established;
        let last = self.events.iter().rposition(is_established);
        let mut later = self.events.iter().skip(last.unwrap_or(0));
        later.find(|event| words::is_failure(event))
    }

    fn is_selected(&self, selection: Option<Selection>) -> bool {
        match selection {
            None => true,
            Some(Selection::Number(number)) => {
                number != 0 && (number == self.link.qpn || number == self.link.conn)
            }
            Some(Selection::Peer(peer)) => self.peer == Some(peer.to_canonical()),
        }
    }
}

/// Sorts events, which are in order of time, by connection. A queue pair that is created has the
/// number of another one that ended before. Events of no connection, those of urdmad, are one
/// connection without a number.
pub(super) fn connections(events: &[Event]) -> Vec<Connection> {
    let mut found: Vec<Connection> = Vec::new();
    let mut by_qpn: HashMap<u32, usize> = HashMap::new();
    let mut by_conn: HashMap<u32, usize> = HashMap::new();
    let mut without_number = None;
    for event in events {
        let Link { conn, qpn } = event.link;
        if event.kind == Kind::QpCreate {
            by_qpn.remove(&qpn);
        }
        let of_conn = by_conn.get(&conn).copied().filter(|_| conn != 0);
        let of_qpn = by_qpn.get(&qpn).copied().filter(|_| qpn != 0);
        let of_none = without_number.filter(|_| conn == 0 && qpn == 0);
        let place = of_qpn.or(of_conn).or(of_none).unwrap_or_else(|| {
            found.push(Connection::default());
            found.len() - 1
        });
        // The request came before the queue pair was chosen for it.
        if let Some(other) = of_conn.filter(|other| *other != place) {
            let before = std::mem::take(&mut found[other]);
            for event in before.events {
                found[place].add(event);
            }
            found[place].events.sort_by_key(|event| event.time_ns);
        }
        match (conn, qpn) {
            (0, 0) => without_number = Some(place),
            _ => {
                by_conn.insert(conn, place);
                by_qpn.insert(qpn, place);
            }
        }
        found[place].add(*event);
    }
    found.retain(|connection| !connection.events.is_empty());
    found
}

/// The connections that are shown.
pub(super) fn shown(
    events: &[Event],
    only_failed: bool,
    selection: Option<Selection>,
) -> impl Iterator<Item = Connection> {
    connections(events).into_iter().filter(move |connection| {
        connection.is_selected(selection) && (!only_failed || connection.failure().is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time_ns: u64, kind: Kind, conn: u32, qpn: u32) -> Event {
        Event {
            time_ns,
            kind,
            link: Link { conn, qpn },
            arguments: [0; 2],
        }
    }

    #[test]
    fn request_and_queue_pair_that_accepts_it_are_one_connection() {
        let events = [
            event(1, Kind::Message, 7, 0),
            event(2, Kind::QpCreate, 0, 0x3_0001),
            event(3, Kind::Message, 8, 0),
            event(4, Kind::Message, 7, 0x3_0001),
        ];
        let found = connections(&events);
        assert_eq!(found.len(), 2);
        let times = |at: usize| -> Vec<u64> {
            let events = found[at].events.iter();
            events.map(|event| event.time_ns).collect()
        };
        assert_eq!((times(0), times(1)), (vec![1, 2, 4], vec![3]));
        let link = Link {
            conn: 7,
            qpn: 0x3_0001,
        };
        assert_eq!(found[0].link, link);
    }

    #[test]
    fn queue_pair_with_the_number_of_an_earlier_one_is_another_connection() {
        let events = [
            event(1, Kind::QpCreate, 0, 5),
            event(2, Kind::QpDestroy, 0, 5),
            event(3, Kind::QpCreate, 0, 5),
        ];
        let lengths: Vec<usize> = connections(&events)
            .iter()
            .map(|connection| connection.events.len())
            .collect();
        assert_eq!(lengths, [2, 1]);
    }

    #[test]
    fn rejection_before_the_connection_was_established_is_no_failure() {
        let rejected = Event {
            // Received, REJ.
            arguments: [1 | 4 << 8, 8],
            ..event(1, Kind::Message, 7, 5)
        };
        let established = event(2, Kind::Established, 7, 5);
        let gone = Event {
            arguments: [2, 0],
            ..event(3, Kind::End, 7, 5)
        };
        let failure = |events: &[Event]| connections(events)[0].failure().copied();
        assert_eq!(failure(&[rejected]), Some(rejected));
        assert_eq!(failure(&[rejected, established]), None);
        assert_eq!(failure(&[rejected, established, gone]), Some(gone));
    }

    #[test]
    fn selection_is_a_number_or_an_address() {
        assert_eq!("0x30001".parse(), Ok(Selection::Number(0x3_0001)));
        assert_eq!("12".parse(), Ok(Selection::Number(12)));
        assert_eq!(
            "::1".parse(),
            Ok(Selection::Peer([0u16, 0, 0, 0, 0, 0, 0, 1].into()))
        );
        assert!("x".parse::<Selection>().is_err());
    }
}
