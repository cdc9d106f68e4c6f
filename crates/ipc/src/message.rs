//! Requests of a client, answers of urdmad, and events, which urdmad sends unsolicited.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::capture::{CaptureCounts, CaptureOptions};
use crate::error::Refusal;
use crate::fault::{Direction, Impairment};
use crate::personality::Personality;
use crate::port_table::{CmPort, PortSharing};
use crate::recordings::RecordingInfo;
use crate::status::{ProcessReport, Status};

/// Multicast groups that a process can be a member of at the same time.
pub const GROUPS_PER_PROCESS_MAX: u32 = 256;

/// One packet from a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FromClient {
    /// Repeated by the answer; unique within a connection.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// One packet from urdmad.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromDaemon {
    /// The answer to a request.
    Answer {
        /// The request's id.
        id: u64,
        /// The answer or the refusal.
        result: Result<Answer, Refusal>,
    },
    /// An event for the client.
    Event(Event),
    /// urdmad refuses the connection, independent of any request, and closes it at once.
    Refused(Refusal),
}

/// Requests of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Always the first message. Answer: [`Answer::Welcome`].
    Hello {
        /// [`crate::PROTOCOL_VERSION`] of the client.
        version: u32,
        /// Name of the client's program, for `urdma status`.
        program: String,
    },
    /// Requests a slot. Answer: [`Answer::Attached`], with the descriptors of the
    /// directory, of urdmad's region for the process, and of urdmad's page.
    Attach {
        /// Whether a leased queue pair is requested.
        want_lease: bool,
    },
    /// Releases the slot; the socket may be closed after the answer. Answer: [`Answer::Done`].
    Detach,
    /// Reserves a CM port. Answer: [`Answer::CmBound`]; refused with AddressInUse or
    /// AddressNotAvailable.
    CmBindPort {
        /// The client's number for the port in later requests; unique among the client's ports.
        binding: u32,
        /// The requested port.
        wanted: CmPort,
    },
    /// Changes the sharing of a port that is bound and not listened on. Answer: [`Answer::Done`].
    CmShare {
        /// The port.
        binding: u32,
        /// The new sharing.
        sharing: PortSharing,
    },
    /// Listens on a bound port, which can then not be shared. Answer: [`Answer::Done`]; refused
    /// like [`Request::CmBindPort`] while the port is shared.
    CmListen {
        /// The port.
        binding: u32,
        /// The backlog of connection requests, which urdmad only reports.
        backlog: u32,
    },
    /// Releases a port, and stops listening if it was listened on. Answer: [`Answer::Done`].
    CmRelease {
        /// The port.
        binding: u32,
    },
    /// Makes this process a member of a multicast group, so that it receives the group's datagrams;
    /// has no effect on a member. Answer: [`Answer::Done`]; refused with QuotaExceeded beyond
    /// [`GROUPS_PER_PROCESS_MAX`] groups.
    JoinGroup {
        /// The group, IPv4 or IPv6.
        group: IpAddr,
    },
    /// Ends the membership of a group. Answer: [`Answer::Done`].
    LeaveGroup {
        /// The group.
        group: IpAddr,
    },
    /// Offers a channel to the process in another slot; with two descriptors: the region that this
    /// process writes and the other reads, and this process' page, both sealed. To slot 0, which is
    /// urdmad, directly after [`Answer::Attached`], with a third one: the delivery records. Answer:
    /// none; [`Event::ChannelRefused`] if an offer to another process is not passed on, and
    /// [`Event::ChannelPassed`] if one is that names no generation. A process offers one channel to
    /// each process.
    OfferChannel {
        /// The other's slot.
        slot: u8,
        /// The generation of the slot, in the directory, in which its process is meant: an offer to
        /// one that has ended is refused. Without it, the process that has the slot.
        #[serde(default)]
        generation: Option<u32>,
    },
    /// Gives urdmad this process' end of a channel in advance, with the descriptors of an offer to
    /// another process. urdmad gives it to a process that the kernel's rdma_cm connects this one
    /// with, if it has one of that as well; before that a second one is refused. Answer: none;
    /// [`Event::ChannelOffered`] names the process.
    DepositChannel,
    /// Gives urdmad the flight recording of this process, with one descriptor, sealed as those of
    /// channels are; once, after [`Answer::Attached`]. Answer: none.
    OfferRecording,
    /// Offers a TCP connection for rings, with three descriptors: the socket, the bell of this end
    /// of the connection, and the bell of the process's agent, both eventfd (doc/sockets.md). The
    /// id of the request is the number of the offer. Answer: none; the outcome is
    /// [`Event::SocketWaits`], [`Event::SocketJoined`] or [`Event::SocketRefused`].
    SocketOffer,
    /// An offered socket is closed, or uses its rings no more. Answer: none.
    SocketForget {
        /// The id of the offer.
        offer: u64,
    },
    /// Gives urdmad the memory in which this process counts why its sockets stay with TCP, with one
    /// descriptor, sealed as those of channels are: a u64 for each
    /// [`SocketReason`](crate::SocketReason), in their order. Once. Answer: none.
    SocketReasons,
    /// The recordings that this client may read: root and the owner of the instance those of all
    /// users. Answer: [`Answer::Recordings`].
    Recordings,
    /// One of them. Answer: [`Answer::Recording`], with its descriptor, which cannot be written
    /// through.
    Recording {
        /// [`RecordingInfo::number`].
        number: u64,
    },
    /// Resolves an address to its next hop, within two seconds. Answer: [`Answer::Resolved`].
    Resolve {
        /// The remote address.
        ip: IpAddr,
    },
    /// Requests the state of the instance. Answer: [`Answer::Status`].
    Status,
    /// The resources of this process, sent after [`Event::ReportWanted`]. Answer: none.
    Report(ProcessReport),
    /// This process has stored the totals of its traffic in its delivery records, after
    /// [`Event::CountWanted`]. Answer: none.
    Counted,
    /// Captures the packets that pass urdmad from now on into a file (pcapng). Answer:
    /// [`Answer::Done`].
    CaptureStart {
        /// The file, as urdmad sees it; it must not exist.
        file: PathBuf,
        /// Which frames, and how they are divided into files.
        options: CaptureOptions,
    },
    /// Ends the capture. Answer: [`Answer::CaptureStopped`].
    CaptureStop,
    /// Sets the impairments of the port's frames. Answer: [`Answer::Done`].
    SetFaults {
        /// The direction; the other stays unchanged.
        direction: Direction,
        /// The impairment; the default is none.
        impairment: Impairment,
        /// The seed of both directions; `None`: unchanged.
        seed: Option<u64>,
    },
    /// The results of [`Event::SetQps`]. Answer: none.
    QpsAreSet(Vec<QpOutcome>),
    /// Stops urdmad. Answer: [`Answer::Done`]; the socket is closed after all files are removed.
    Shutdown,
}

/// Answers of urdmad.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The request succeeded.
    Done,
    /// To [`Request::Hello`].
    Welcome {
        /// The instance's name.
        instance: String,
        /// urdmad's process id.
        pid: u32,
    },
    /// To [`Request::Attach`].
    Attached(Box<Attached>),
    /// To [`Request::CmBindPort`].
    CmBound {
        /// The port, never 0.
        port: u16,
    },
    /// To [`Request::Resolve`].
    Resolved(Resolution),
    /// To [`Request::Recordings`], the newest last.
    Recordings(Vec<RecordingInfo>),
    /// To [`Request::Recording`].
    Recording,
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::CaptureStop`].
    CaptureStopped(CaptureCounts),
}

/// Events of urdmad.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The process of this slot has ended and its slot may be assigned to
    /// another process at any time.
    SlotGone {
        /// The slot, never the receiver's own.
        slot: u8,
        /// The slot's generation in the directory when the process attached: the event may be read
        /// when the slot has its next process, which it does not concern.
        generation: u32,
    },
    /// The process in a slot offers a channel; with the descriptors of [`Request::OfferChannel`],
    /// or without any if the receiver cannot open them.
    ChannelOffered {
        /// The slot of the process that offers, from urdmad.
        slot: u8,
        /// The slot's generation.
        generation: u32,
        /// The user of the process, from the kernel; none for root and the receiver's own user.
        stranger: Option<u32>,
        /// What the receiver has deposited ([`Request::DepositChannel`]) is offered to that process
        /// as well.
        #[serde(default)]
        deposit_is_given: bool,
    },
    /// The process in a slot and this one are about to be connected by the kernel's rdma_cm: offer
    /// it a channel, unless there is one.
    ChannelWanted {
        /// The slot, never the receiver's own.
        slot: u8,
        /// The slot's generation.
        generation: u32,
    },
    /// An offer of this process, which named no generation, was passed on.
    ChannelPassed {
        /// The slot.
        slot: u8,
        /// The generation of the slot, which tells apart the processes that have it one after the
        /// other.
        generation: u32,
    },
    /// An offer of this process was not passed on: the process that was meant does not have the
    /// slot.
    ChannelRefused {
        /// The slot.
        slot: u8,
        /// The generation that the offer named.
        #[serde(default)]
        generation: Option<u32>,
    },
    /// urdmad shuts down; the socket will be closed.
    Shutdown,
    /// A status was requested: answer with [`Request::Report`] (see
    /// [`crate::ControlClient::report`]).
    ReportWanted,
    /// The counters of the port are read: store the totals and answer with [`Request::Counted`].
    CountWanted,
    /// Connections of the kernel's rdma_cm need queue pairs in RTS, at most [`QPS_AT_ONCE`]; the
    /// client answers with [`Request::QpsAreSet`].
    SetQps(Vec<QpTarget>),
    /// A connection of the kernel's rdma_cm has ended: the queue pair goes to ERR, as on an RNIC.
    EndQp {
        /// The queue pair.
        qpn: u32,
    },
    /// The other end of an offered connection is not known yet. urdmad closes its copy of the
    /// socket.
    SocketWaits {
        /// The id of the offer.
        offer: u64,
    },
    /// Both ends of a connection are offered; with three descriptors: the memory of its rings, and
    /// the bells of the peer's offer.
    SocketJoined(JoinedSocket),
    /// A connection stays with TCP.
    SocketRefused {
        /// The id of the offer.
        offer: u64,
    },
}

/// An end of a connection whose rings both ends have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedSocket {
    /// The id of the offer.
    pub offer: u64,
    /// Whether this end is the first one: that with the lower address and port.
    pub is_first: bool,
    /// urdmad's number of this process, not 0, which no other process has while urdmad runs.
    pub process: u64,
    /// That of the process of the other end.
    pub peer_process: u64,
}

/// Queue pairs that one message names at most.
pub const QPS_AT_ONCE: usize = 64;

/// Whether a process has set a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpOutcome {
    /// The queue pair.
    pub qpn: u32,
    /// It is in RTS.
    pub succeeded: bool,
}

/// Parameters of the queue pair of a connection that urdmad manages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpTarget {
    /// The queue pair.
    pub qpn: u32,
    /// The peer's address.
    pub remote_ip: IpAddr,
    /// The address of this host that the peer uses.
    pub local_ip: IpAddr,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// First PSN of the peer.
    pub remote_psn: u32,
    /// First PSN of this end.
    pub local_psn: u32,
    /// Largest path MTU that the ends accept, in the encoding of `ibv_mtu`.
    pub path_mtu: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Local acknowledgement timeout code.
    pub ack_timeout: u8,
    /// Reads and atomics that this end may have outstanding.
    pub max_rd_atomic: u8,
    /// Reads and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
}

/// A slot and the parameters that its process needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attached {
    /// The process' slot, 1..=253.
    pub slot: u8,
    /// EUI-64 of the device, unique per instance and the same at every start.
    pub node_guid: u64,
    /// The device's personality.
    pub personality: Personality,
    /// The GID table in order of its indices; index 0 is the link-local GID.
    pub gids: Vec<GidEntry>,
    /// The instance's addresses in order of configuration.
    pub addresses: Vec<IpAddr>,
    /// IP MTU of the instance's port, octets; 0 if it has none.
    pub mtu: u16,
    /// The lease, or the reason for its refusal.
    pub lease: LeaseAnswer,
}

/// One entry of the GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidEntry {
    /// The GID in network order.
    pub gid: [u8; 16],
    /// Network interface of the kernel that has the address, if any.
    pub netdev: Option<String>,
}

/// Minimum length of a GID table; entries without an address are empty.
const GID_TABLE_LEN_MIN: usize = 16;

/// Length of the GID table of a device that has `gids` GIDs.
pub fn gid_table_len(gids: usize) -> usize {
    gids.max(GID_TABLE_LEN_MIN)
}

/// The answer to a lease request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseAnswer {
    /// No lease was requested.
    NotAsked,
    /// The lease.
    Granted(Box<LeaseParams>),
    /// The lease is refused, with the reason as a message.
    Refused(String),
}

/// Parameters of a DPDK secondary that uses its queue pair; the fields of
/// `urdma_abi::lease::LeaseParams`, which needs the instance's addresses as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseParams {
    /// Version of the primary's DPDK, such as `DPDK 22.11.9`.
    pub dpdk: String,
    /// `--file-prefix` of the primary.
    pub file_prefix: String,
    /// `RUNTIME_DIRECTORY` of the primary; `None` for DPDK's default.
    pub runtime_dir: Option<PathBuf>,
    /// The lcore id that only this process uses.
    pub lcore_id: u32,
    /// Name of the port's device, as the primary has it.
    pub device: String,
    /// Index of the receive and of the transmit queue.
    pub queue: u16,
    /// Name of the mempool that only this process and this queue use.
    pub mempool: String,
    /// The port's Ethernet address.
    pub mac: [u8; 6],
    /// IP MTU, octets.
    pub mtu: u16,
    /// Whether UDP checksums are sent.
    pub checksum: bool,
}

/// How an address can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// The address is one of the instance's.
    Local,
    /// The address is that of a neighbour on the port's network, or is reached through a gateway.
    Neighbour {
        /// Ethernet address of the next hop.
        mac: [u8; 6],
        /// The instance's address to use as source.
        source: IpAddr,
    },
    /// The address does not answer.
    NoHost,
}
