//! The contents of `urdma status`: a snapshot of the state of an instance.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fault::Impairment;
use crate::personality::Personality;
use crate::port_table::PortTable;
use crate::process_counters::ProcessCounter;
use crate::socket_reasons::SocketReason;

/// The state of an instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The instance's name.
    pub instance: String,
    /// urdmad's process id.
    pub pid: u32,
    /// Version of urdmad.
    pub version: String,
    /// Seconds since urdmad became ready.
    pub uptime_s: u64,
    /// The run directory.
    pub run_dir: PathBuf,
    /// Node GUID, in the format of sysfs.
    pub node_guid: String,
    /// The personality of the device; not of the kernel module's, which is always an RNIC.
    pub personality: Personality,
    /// The instance's addresses.
    pub addresses: Vec<IpAddr>,
    /// Number of slots for processes.
    pub slots_total: u16,
    /// Attached processes by slot.
    pub slots: Vec<SlotStatus>,
    /// CM ports in listening state.
    pub listeners: Vec<ListenerStatus>,
    /// CM ports that are bound and not listening.
    pub bound: Vec<ListenerStatus>,
    /// Multicast groups and their members.
    pub groups: Vec<GroupStatus>,
    /// The port, if the instance has one.
    pub port: Option<PortStatus>,
    /// Faults injected at the port, if the instance has one.
    pub faults: Option<FaultStatus>,
    /// Counters of slot 0.
    pub counters: Counters,
    /// Leased queue pairs.
    pub leases: Vec<LeaseStatus>,
    /// How packets are steered to leased queues, if queues can be leased.
    pub lease_steering: Option<LeaseSteering>,
    /// The reason for which no queue pair can be leased, if so.
    pub no_leases_because: Option<String>,
    /// The kernel module's device, if one is configured.
    pub kernel: Option<KernelStatus>,
    /// File of the active capture.
    pub capture: Option<PathBuf>,
    /// TCP connections over rings.
    #[serde(default)]
    pub sockets: SocketStatus,
}

/// TCP connections whose programs run with `urdma run --sockets` (doc/sockets.md).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketStatus {
    /// Sockets that were offered since the start.
    pub offered: u64,
    /// Those that were refused: no TCP connection of this host, or a limit.
    pub refused: u64,
    /// Sockets whose other end is not offered.
    pub waiting: u64,
    /// Connections whose ends have met since the start.
    pub joined: u64,
    /// Those among them that a process still has.
    pub open: u64,
    /// Octets that were sent over rings since the start, as the programs' memory says.
    pub ring_octets: u64,
    /// Sockets that stay with TCP or have moved back since the start, by the reason.
    pub reasons: BTreeMap<SocketReason, u64>,
    /// The open connections that have moved the most octets.
    #[serde(default)]
    pub connections: Vec<SocketConnection>,
    /// The processes that run with urdmad, and have offered sockets or counted reasons.
    #[serde(default)]
    pub processes: Vec<SocketProcess>,
}

/// A connection whose ends have met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketConnection {
    /// Its number since the start.
    pub number: u64,
    /// The addresses of its ends.
    pub addresses: [SocketAddr; 2],
    /// Their processes; 0 for one that has ended or closed the connection.
    pub pids: [i32; 2],
    /// Octets that were sent over its rings.
    pub ring_octets: u64,
    /// Whether both ends use rings at the moment.
    pub is_on_rings: bool,
}

/// A process whose sockets have rings, wait, or stay with TCP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketProcess {
    /// Process id.
    pub pid: i32,
    /// The program's name, as the process reported it.
    pub program: String,
    /// Its ends of open connections.
    pub open: u64,
    /// Its sockets whose other end is not offered.
    pub waiting: u64,
    /// Its sockets that stay with TCP or have moved back, by the reason; none without any.
    pub reasons: BTreeMap<SocketReason, u64>,
}

/// Ports or groups that a status which is too long keeps of each list.
const LISTED_MAX: usize = 200;

impl Status {
    /// Leaves out what makes it longer than `octets` as JSON: ports and groups beyond some hundred,
    /// then the longest reports. A process chooses how many ports it binds and what it reports, and
    /// must not prevent that the status of the others is shown. Returns whether all is left.
    pub fn fit(&mut self, octets: usize) -> bool {
        if octets_of(self) <= octets {
            return true;
        }
        self.listeners.truncate(LISTED_MAX);
        self.bound.truncate(LISTED_MAX);
        self.groups.truncate(LISTED_MAX);
        self.sockets.processes.truncate(LISTED_MAX);
        let mut excess = octets_of(self).saturating_sub(octets);
        let mut longest: Vec<_> = self.slots.iter_mut().map(|slot| &mut slot.report).collect();
        longest.sort_by_cached_key(|report| std::cmp::Reverse(octets_of(report)));
        for report in longest {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(octets_of(report));
            *report = None;
        }
        false
    }
}

fn octets_of(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}

/// The kernel module's device of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    /// The device's name.
    pub device: String,
    /// The reason for which it is not served at the moment; `None` if it is served.
    pub not_served_because: Option<String>,
}

/// One attached process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// The slot.
    pub slot: u8,
    /// Process id.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// The program's name, as the client reported it.
    pub program: String,
    /// Seconds since it attached.
    pub attached_s: u64,
    /// Its leased queue.
    pub lease_queue: Option<u16>,
    /// The process' report of itself; `None` if it did not answer in time.
    pub report: Option<ProcessReport>,
}

/// A process' report of its resources, for `urdma status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessReport {
    /// Queue pairs.
    pub qps: u32,
    /// Queue pairs in RTS.
    pub qps_connected: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Targets of the dynamically connected transport in RTR.
    pub dc_targets: u32,
    /// Contexts of initiators that these targets have.
    pub dc_contexts: u32,
    /// Counters by the name of their [`ProcessCounter`].
    pub counters: BTreeMap<String, u64>,
    /// No thread of it looks for packets: it sleeps until one comes.
    pub sleeping: bool,
    /// What ends the sleep of its threads when a packet comes to its leased queue, if it has one.
    pub lease_wake_up: Option<LeaseWakeUp>,
    /// The connections that have had most packets since the last report, at most
    /// [`REPORTED_CONNECTIONS_MAX`].
    pub connections: Vec<ConnectionReport>,
}

/// Connections in a report, so that it fits a request.
pub const REPORTED_CONNECTIONS_MAX: usize = 20;

impl ProcessReport {
    /// Leaves out what no process reports: counters of other names than those of a
    /// [`ProcessCounter`], and connections beyond [`REPORTED_CONNECTIONS_MAX`]. Returns the number
    /// of counters left out.
    pub fn keep_known(&mut self) -> usize {
        let is_known = |name: &str| ProcessCounter::ALL.iter().any(|known| known.name() == name);
        let all = self.counters.len();
        self.counters.retain(|name, _| is_known(name));
        self.connections.truncate(REPORTED_CONNECTIONS_MAX);
        all - self.counters.len()
    }
}

/// One connection of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionReport {
    /// The queue pair.
    pub qpn: u32,
    /// The peer's address.
    pub peer: Option<IpAddr>,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// Octets sent and received since the queue pair was created, with the headers of the
    /// transport.
    pub sent: u64,
    /// As `sent`.
    pub received: u64,
    /// Segments sent again.
    pub sent_again: u64,
    /// Send requests that have not completed.
    pub sends: u32,
    /// Posted receive requests.
    pub recvs: u32,
    /// Packets that may be in flight; 0 inside a host.
    pub window: u32,
    /// The smoothed round-trip time, microseconds; 0 inside a host.
    pub rtt_us: u32,
}

/// One bound CM port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Port space.
    pub space: PortTable,
    /// Local address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The slot of its process.
    pub slot: u8,
    /// The backlog of connection requests; 0 if the port is not listening.
    pub backlog: u32,
}

/// One multicast group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The group.
    pub group: IpAddr,
    /// Slots of its members.
    pub slots: Vec<u8>,
}

/// The instance's port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// `udp`, `memif`, `tap`, `af_xdp` or `device`.
    pub kind: String,
    /// The device's name in DPDK.
    pub device: String,
    /// Ethernet address.
    pub mac: String,
    /// IP MTU, octets.
    pub mtu: u16,
    /// Whether the link is up.
    pub link_up: bool,
    /// Queue pairs, including the daemon's.
    pub queues: u16,
    /// The driver's counters.
    pub hardware: BTreeMap<String, u64>,
    /// Free and total packet buffers by pool.
    pub mbufs: Vec<PoolStatus>,
    /// What does not work, a sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Faults injected at the port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultStatus {
    /// The seed of the random numbers.
    pub seed: u64,
    /// Faults of received frames, if any.
    pub inbound: Option<LineStatus>,
    /// Faults of sent frames, if any.
    pub outbound: Option<LineStatus>,
}

/// Faults of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineStatus {
    /// The configured impairment.
    pub impairment: Impairment,
    /// Counters.
    pub counts: FaultCounts,
    /// Delayed or queued frames.
    pub held_packets: u64,
    /// Octets of these frames.
    pub held_octets: u64,
}

/// Counters of injected faults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Frames in all.
    pub offered: u64,
    /// Dropped frames.
    pub lost: u64,
    /// Duplicated frames.
    pub duplicated: u64,
    /// Reordered frames.
    pub reordered: u64,
    /// Corrupted frames.
    pub corrupted: u64,
    /// Frames marked CE (congestion experienced).
    pub marked: u64,
    /// Frames dropped because the link's queue was full.
    pub queue_full: u64,
    /// Frames dropped because too many are delayed or queued.
    pub no_room: u64,
    /// Sum of the times that frames have waited in the link's queue, nanoseconds.
    pub waited_ns: u64,
    /// The longest such time, nanoseconds.
    pub waited_most_ns: u64,
}

impl FaultCounts {
    /// The average time that a frame has waited in the link's queue, nanoseconds.
    pub fn mean_wait_ns(&self) -> u64 {
        let queued = self.offered.saturating_sub(self.queue_full);
        self.waited_ns.checked_div(queued).unwrap_or(0)
    }
}

/// One pool of packet buffers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// The pool's name.
    pub name: String,
    /// Number of buffers.
    pub total: u32,
    /// Number of free buffers.
    pub free: u32,
}

/// One leased queue pair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// Queue index.
    pub queue: u16,
    /// The slot of the lessee; `None` if the queue pair is not leased.
    pub slot: Option<u8>,
}

/// What ends a sleep of a lessee when a packet comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseWakeUp {
    /// The receive interrupt of the queue.
    Interrupt,
    /// The end of a short sleep.
    Clock,
}

impl fmt::Display for LeaseWakeUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Interrupt => "interrupt",
            Self::Clock => "clock",
        })
    }
}

/// How packets are steered to the queue of their lessee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseSteering {
    /// The peer of the device selects the queue; other packets are forwarded by slot.
    Peer,
    /// By flow rules of the NIC.
    Rules,
    /// By the NIC's redirection table.
    Table {
        /// Number of entries of the table.
        entries: usize,
    },
}

/// Counters of slot 0 since the start. Every drop is counted by its reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Processes that attached.
    pub attached: u64,
    /// Processes that ended without detaching.
    pub reaped: u64,
    /// Attach requests refused.
    pub attach_refused: u64,
    /// Attach requests that waited, since their user had made too many in a second.
    #[serde(default)]
    pub attach_delayed: u64,
    /// Counters in reports of processes that were left out: this version has none of their names.
    #[serde(default)]
    pub report_counters_unknown: u64,
    /// Lines that could not be written to the log, because the disk is full for example.
    #[serde(default)]
    pub log_lines_lost: u64,
    /// Counters of the data path, by name (`rx_packets`, `drop_unknown_slot`, ...).
    pub data: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(slot: u8, counters: u32) -> SlotStatus {
        let counters = (0..counters).map(|number| (number.to_string(), u64::MAX));
        SlotStatus {
            slot,
            report: Some(ProcessReport {
                counters: counters.collect(),
                ..ProcessReport::default()
            }),
            ..SlotStatus::default()
        }
    }

    #[test]
    fn long_reports_are_left_out_until_the_rest_fits() {
        let mut status = Status {
            slots: vec![slot(1, 10), slot(2, 1000), slot(3, 900), slot(4, 10)],
            ..Status::default()
        };
        let whole = status.clone();
        assert!(status.fit(1 << 20));
        assert_eq!(status, whole);
        assert!(!status.fit(8192));
        let has_report = |slot: &SlotStatus| slot.report.is_some();
        let kept: Vec<bool> = status.slots.iter().map(has_report).collect();
        assert_eq!(kept, [true, false, false, true]);
        assert!(octets_of(&status) <= 8192);
    }

    #[test]
    fn many_ports_and_programs_are_left_out_before_reports() {
        let port = ListenerStatus {
            space: PortTable::Tcp,
            address: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
            port: 1,
            slot: 1,
            backlog: 0,
        };
        let mut status = Status {
            slots: vec![slot(1, 10)],
            bound: vec![port; 4096],
            sockets: SocketStatus {
                processes: vec![SocketProcess::default(); 4096],
                ..SocketStatus::default()
            },
            ..Status::default()
        };
        assert!(!status.fit(64 << 10));
        assert_eq!(status.bound.len(), LISTED_MAX);
        assert_eq!(status.sockets.processes.len(), LISTED_MAX);
        assert!(status.slots[0].report.is_some());
    }
}
