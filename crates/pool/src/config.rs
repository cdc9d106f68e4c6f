//! The configuration of a pool.

use std::time::Duration;

use crate::credit::{SHARE_MAX, SHARE_MIN};
use crate::error::ConfigError;
use crate::header::{HEADER_OCTETS, HEADER_OCTETS_MAX};
use crate::types::ELEMENTS_MAX;

/// What the shared queue pairs of a pool are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connections, each to one node.
    Connections {
        /// For each node, 1 or more.
        per_node: u16,
    },
    /// Initiators of dynamically connected transport, each of which reaches every node.
    Initiators {
        /// In all, 1 or more.
        count: u16,
    },
}

impl Transport {
    /// Octets of a message before those of its user.
    pub fn header_octets(self) -> usize {
        match self {
            Self::Connections { .. } => HEADER_OCTETS,
            Self::Initiators { .. } => HEADER_OCTETS_MAX,
        }
    }
}

/// When a pool of initiators connects to a node, and uses the connection. The defaults are measured
/// (doc/pool.md, "Switch"): by them, 1,000 READs in a row take about a third of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switching {
    /// Connections at a time, 1 or more. The completion queue has places for them beside those for
    /// the initiators.
    pub connections_max: u16,
    /// Requests to a node within a window, for which it is connected to, 1 or more. A node that
    /// gets fewer than a quarter of them is quiet.
    pub requests: u32,
    /// The window, after each of which the driver calls [`crate::Pool::end_windows`]; not 0. A
    /// driver without a thread, as that over verbs, calls it when it polls: while a client does
    /// not, it keeps its connections, and the windows that have passed end together at its next
    /// poll.
    pub window: Duration,
    /// Windows in a row in which a node is quiet whose connection is given up, 1 or more.
    pub quiet_windows: u32,
    /// Windows between the failure of a connection and the next attempt, 1 or more. Each further
    /// failure in a row doubles them, up to 64 times.
    pub retry_windows: u32,
}

impl Default for Switching {
    fn default() -> Self {
        Self {
            connections_max: 16,
            requests: 64,
            window: Duration::from_millis(1),
            quiet_windows: 1000,
            retry_windows: 1000,
        }
    }
}

/// Limits. The driver creates its queues with these depths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Requests that a shared queue pair takes, 1 or more.
    pub sq_depth: u32,
    /// Entries of the completion queue that all shared queue pairs have, `sq_depth` or more. There
    /// are no more queue pairs than it has room for.
    pub cq_depth: u32,
    /// What they are.
    pub transport: Transport,
    /// Of initiators, whether nodes that are used much are connected to, and when. Not by default:
    /// connections take descriptors and memory of both ends, which a pool of initiators saves, and
    /// nodes that may be connected to stay in the pool. A user that sends hundreds of requests to a
    /// node gains by [`Switching::default`].
    pub switching: Option<Switching>,
    /// Nodes that are known, 1 or more.
    pub nodes_max: u32,
    /// Virtual queue pairs, 1 or more.
    pub virtual_max: u32,
    /// Requests of one virtual queue pair that are posted at a time, 1 or more.
    pub in_flight_max: u32,
    /// Octets that a virtual queue pair has posted beside one request, while no other one has
    /// requests posted to the same queue pair.
    pub in_flight_octets_max: u64,
    /// Octets that it is ahead of its share beside one request, while others have.
    pub lead_octets_max: u64,
    /// Elements of a request, 1 to [`ELEMENTS_MAX`].
    pub elements_max: u32,
    /// Elements of an RDMA Read, for a device that takes fewer of them; 1 or more.
    pub read_elements_max: u32,
    /// The longest message.
    pub message_octets_max: u32,
    /// The most work requests in a row of which only the last is signaled, 1 or more.
    pub signal_every: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sq_depth: 128,
            cq_depth: 4096,
            transport: Transport::Connections { per_node: 1 },
            switching: None,
            nodes_max: 16_384,
            virtual_max: 65_536,
            in_flight_max: 32,
            in_flight_octets_max: 1 << 20,
            lead_octets_max: 1 << 16,
            elements_max: 4,
            read_elements_max: 4,
            message_octets_max: 1 << 30,
            signal_every: 32,
        }
    }
}

impl Config {
    /// Connections for each node, or initiators.
    pub(crate) fn per_node(&self) -> usize {
        match self.transport {
            Transport::Connections { per_node } => per_node.into(),
            Transport::Initiators { count } => count.into(),
        }
    }

    /// # Errors
    /// If a limit is 0, or the completion queue is too short for one queue pair.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let shared = match self.transport {
            Transport::Connections { per_node } => ("per_node", per_node.into()),
            Transport::Initiators { count } => ("count", count.into()),
        };
        let limits = [
            shared,
            ("sq_depth", self.sq_depth),
            ("nodes_max", self.nodes_max),
            ("virtual_max", self.virtual_max),
            ("in_flight_max", self.in_flight_max),
            ("elements_max", self.elements_max),
            ("read_elements_max", self.read_elements_max),
            ("message_octets_max", self.message_octets_max),
            ("signal_every", self.signal_every),
        ];
        check_not_zero(&limits)?;
        if self.elements_max as usize > ELEMENTS_MAX {
            return Err(ConfigError::Elements(self.elements_max));
        }
        if self.cq_depth < self.sq_depth {
            return Err(ConfigError::CompletionQueue {
                cq: self.cq_depth,
                sq: self.sq_depth,
            });
        }
        self.switching
            .map_or(Ok(()), |switching| self.check_switching(&switching))
    }

    fn check_switching(&self, switching: &Switching) -> Result<(), ConfigError> {
        let Transport::Initiators { count } = self.transport else {
            return Err(ConfigError::SwitchTransport);
        };
        let limits = [
            ("connections_max", switching.connections_max.into()),
            ("requests", switching.requests),
            ("window", u32::from(!switching.window.is_zero())),
            ("quiet_windows", switching.quiet_windows),
            ("retry_windows", switching.retry_windows),
        ];
        check_not_zero(&limits)?;
        let shared = u64::from(count) + u64::from(switching.connections_max);
        match shared * u64::from(self.sq_depth) <= u64::from(self.cq_depth) {
            true => Ok(()),
            false => Err(ConfigError::SwitchPlaces {
                cq: self.cq_depth,
                shared,
                sq: self.sq_depth,
            }),
        }
    }
}

/// How a pool exchanges messages for Sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageConfig {
    /// A random number, which no pool before it in the same place had: by it a message for a pool
    /// that has ended is known.
    pub epoch: u32,
    /// The length of a buffer, with the header. A Send that is longer than 32 octets less, or 48
    /// over initiators, goes in segments of that length.
    pub buffer_octets: u32,
    /// Buffers that each connection has, [`SHARE_MIN`] to [`SHARE_MAX`]. The driver posts a Receive
    /// for each before it connects.
    pub share: u16,
    /// Virtual queue pairs that wait for a service to accept them, 1 or more; others are refused.
    pub backlog: u32,
    /// Over initiators, nodes with which messages are exchanged at a time, 1 or more. There are
    /// Receives for `share` messages of each. Over connections, each has its own.
    pub peers_max: u32,
}

impl MessageConfig {
    /// The longest Send that goes in one message, and the length of the segments of longer ones.
    pub fn send_octets_max(&self, transport: Transport) -> u32 {
        let header = u32::try_from(transport.header_octets()).unwrap_or(u32::MAX);
        self.buffer_octets.saturating_sub(header)
    }

    pub(crate) fn validate(&self, transport: Transport) -> Result<(), ConfigError> {
        if !(SHARE_MIN..=SHARE_MAX).contains(&self.share) {
            return Err(ConfigError::Share(self.share));
        }
        if self.send_octets_max(transport) == 0 {
            return Err(ConfigError::Buffer(self.buffer_octets));
        }
        check_not_zero(&[("backlog", self.backlog), ("peers_max", self.peers_max)])
    }
}

fn check_not_zero(limits: &[(&'static str, u32)]) -> Result<(), ConfigError> {
    match limits.iter().find(|(_, limit)| *limit == 0) {
        Some((name, _)) => Err(ConfigError::Zero(name)),
        None => Ok(()),
    }
}
