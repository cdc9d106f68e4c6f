//! What `urdma status` shows: the whole state of an instance at one moment.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fault::Impairment;
use crate::personality::Personality;
use crate::port_table::PortTable;

/// The state of an instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The instance's name.
    pub instance: String,
    /// urdmad's process id.
    pub pid: u32,
    /// Version of urdmad.
    pub version: String,
    /// Seconds since it is ready.
    pub uptime_s: u64,
    /// Its run directory.
    pub run_dir: PathBuf,
    /// Node GUID as sysfs prints it.
    pub node_guid: String,
    /// What its device shows itself as, but for the kernel module's, which is an RNIC always.
    pub personality: Personality,
    /// The instance's addresses.
    pub addresses: Vec<IpAddr>,
    /// Slots that can be attached.
    pub slots_total: u16,
    /// Attached processes by slot.
    pub slots: Vec<SlotStatus>,
    /// CM ports that are listened on.
    pub listeners: Vec<ListenerStatus>,
    /// CM ports that are bound and not listened on.
    pub bound: Vec<ListenerStatus>,
    /// Multicast groups with the processes that are members.
    pub groups: Vec<GroupStatus>,
    /// The port, if the instance has one.
    pub port: Option<PortStatus>,
    /// Faults made at the port, if the instance has one.
    pub faults: Option<FaultStatus>,
    /// What slot 0 did.
    pub counters: Counters,
    /// Frames of the whole arena.
    pub frames: FrameCounts,
    /// Leased queue pairs.
    pub leases: Vec<LeaseStatus>,
    /// How packets come to leased queues, if any can be leased.
    pub lease_steering: Option<LeaseSteering>,
    /// Why no queue pair can be leased, if so.
    pub no_leases_because: Option<String>,
    /// The kernel module's device, if the instance is to serve one.
    pub kernel: Option<KernelStatus>,
    /// File of the running capture.
    pub capture: Option<PathBuf>,
}

/// The kernel module's device of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    /// Its name.
    pub device: String,
    /// Why it is not served at the moment, as a sentence; nothing if it is.
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
    /// The program's name, as it said.
    pub program: String,
    /// Seconds since it attached.
    pub attached_s: u64,
    /// Frames that it holds.
    pub frames_held: u64,
    /// Frames on their way to it.
    pub frames_inbound: u64,
    /// What the arena counted for it (`sent`, `received`, `full`, ...).
    pub arena: BTreeMap<String, u64>,
    /// Its leased queue.
    pub lease_queue: Option<u16>,
    /// What the process says of itself; nothing if it did not answer in time.
    pub report: Option<ProcessReport>,
}

/// What a provider process reports of itself for `urdma status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessReport {
    /// Queue pairs.
    pub qps: u32,
    /// Of those, in RTS.
    pub qps_connected: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Slots of processes whose memory it may not read, so that long messages from there are copied
    /// twice.
    pub copies_twice_from: Vec<u8>,
    /// Counters by name, for people to read.
    pub counters: BTreeMap<String, u64>,
}

/// Frames by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameCounts {
    /// All.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Held by a process.
    pub held: u64,
    /// Sent and not yet received.
    pub in_flight: u64,
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
    /// Whose it is.
    pub slot: u8,
    /// Requests that may wait; 0 if it is only bound.
    pub backlog: u32,
}

/// One multicast group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The group.
    pub group: IpAddr,
    /// Its members.
    pub slots: Vec<u8>,
}

/// The instance's port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// `memif`, `tap`, `af_xdp` or `device`.
    pub kind: String,
    /// DPDK's name of the device.
    pub device: String,
    /// Ethernet address.
    pub mac: String,
    /// IP MTU, octets.
    pub mtu: u16,
    /// Whether the link is up.
    pub link_up: bool,
    /// Queue pairs, the daemon's included.
    pub queues: u16,
    /// The driver's counters.
    pub hardware: BTreeMap<String, u64>,
    /// Packet buffers free and in all, by pool.
    pub mbufs: Vec<PoolStatus>,
}

/// Faults made at the port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultStatus {
    /// From which they are drawn.
    pub seed: u64,
    /// To frames that arrive; nothing: none.
    pub inbound: Option<LineStatus>,
    /// To frames that are sent; nothing: none.
    pub outbound: Option<LineStatus>,
}

/// Faults of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineStatus {
    /// What was asked for.
    pub impairment: Impairment,
    /// What was done.
    pub counts: FaultCounts,
    /// Frames under way.
    pub held_packets: u64,
    /// Their octets.
    pub held_octets: u64,
}

/// What was done to frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Frames that came.
    pub offered: u64,
    /// Lost.
    pub lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Made late.
    pub reordered: u64,
    /// Changed.
    pub corrupted: u64,
    /// Marked as having met congestion.
    pub marked: u64,
    /// Lost because the link's queue was full.
    pub queue_full: u64,
    /// Lost because too much is under way.
    pub no_room: u64,
    /// How long all together have waited in the link's queue, nanoseconds.
    pub waited_ns: u64,
    /// The longest that one has waited, nanoseconds.
    pub waited_most_ns: u64,
}

impl FaultCounts {
    /// How long a frame has waited in the link's queue on average, nanoseconds.
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
    /// Buffers in all.
    pub total: u32,
    /// Of those free.
    pub free: u32,
}

/// One leased queue pair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// Queue index.
    pub queue: u16,
    /// Whose it is; nothing if it is free.
    pub slot: Option<u8>,
}

/// How packets come to the queue of their lessee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseSteering {
    /// The device's peer chooses the queue; packets of others are passed on by slot.
    Peer,
    /// By flow rules of the NIC.
    Rules,
    /// By the NIC's redirection table, which has so many entries.
    Table {
        /// How many.
        entries: usize,
    },
}

/// What slot 0 did since the start. Every drop is counted by its reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Processes that attached.
    pub attached: u64,
    /// Processes that ended without detaching.
    pub reaped: u64,
    /// Frames taken back from those.
    pub reaped_frames: u64,
    /// Attach requests refused.
    pub attach_refused: u64,
    /// Everything that the data path counted, by name (`rx_packets`, `drop_unknown_slot`, ...).
    pub data: BTreeMap<String, u64>,
}
