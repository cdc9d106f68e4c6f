//! The table of C functions through which urdmad drives a port of DPDK.
//!
//! `liburdma_dpdk.so` exports one function, [`Table::SYMBOL`], which returns a [`PortTable`]; the
//! only other visible symbols replace functions of DPDK (crates/dpdk-port/src/guard.rs). urdmad
//! loads it when its configuration names a port that needs DPDK.
//!
//! Order of calls: `open` once per process; `enter` in the thread that uses the port from then on;
//! then any others; `close`. Calls on one port must be serialised. `open`, `close`, `lend`,
//! `reclaim` and `report` may allocate and take milliseconds; the others do not.
//!
//! Queue pair 0 is urdmad's; pairs 1 and up can be lent. Received frames stay in their buffers from
//! `receive` until `release`. A buffer for sending is the caller's from `alloc` until `send` has
//! sent it or `free`. Buffers that are left when the port is closed end with the process.
//!
//! Functions with a `message` store a sentence there, terminated by a zero octet and cut to the
//! given length, and an empty one if there is nothing to say.

use std::ffi::{c_char, c_int, c_void, CStr};

use crate::library::Table;

/// Maximum number of frames or buffers in a call; longer bursts are cut to this.
pub const MAX_BURST: usize = 32;

/// Octets of a message that hold every sentence.
pub const MESSAGE_OCTETS: usize = 1024;

/// Octets of the name of a device, with the zero octet at its end.
pub const DEVICE_OCTETS: usize = 64;

/// Octets by which a frame may be longer than its IP packet: an Ethernet header with a VLAN tag,
/// rounded up.
pub const LINK_OCTETS: usize = 32;

/// Values of [`OpenedPort::steering`], that is, how packets reach the queue pair of their lessee.
pub mod steering {
    /// Not at all: no queue pair can be lent.
    pub const NONE: u32 = 0;
    /// The peer chooses the queue.
    pub const PEER: u32 = 1;
    /// By rules of the NIC.
    pub const RULES: u32 = 2;
    /// By the redirection table of the NIC.
    pub const TABLE: u32 = 3;
}

/// An open port; opaque to urdmad.
#[repr(C)]
pub struct Port {
    opaque: [u8; 0],
}

/// What `open` needs. All strings are terminated by a zero octet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PortParams {
    /// DPDK's arguments for the device: `net_...,key=value` or a PCI address.
    pub device: *const c_char,
    /// The network interface that the device shares with the kernel, from which it takes only
    /// urdma's packets; null: none.
    pub shared_netdev: *const c_char,
    /// `--file-prefix` of this primary.
    pub file_prefix: *const c_char,
    /// Absolute path of the run directory, in which DPDK has its files.
    pub run_dir: *const c_char,
    /// File for DPDK's messages; null: they are discarded.
    pub log: *const c_char,
    /// Hugepages to take, MB; 0: as much as is needed.
    pub hugepages_mb: u32,
    /// Largest IP packet, octets.
    pub mtu: u16,
    /// Queue pairs that are to be lent.
    pub lease_queues: u16,
}

/// What `open` stores.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpenedPort {
    /// The port.
    pub port: *mut Port,
    /// Name of the device, terminated by a zero octet.
    pub device: [c_char; DEVICE_OCTETS],
    /// One of [`steering`]. With [`steering::NONE`] the message says why.
    pub steering: u32,
    /// Entries of the redirection table, with [`steering::TABLE`].
    pub table_entries: u32,
    /// Octets of the longest frame that fits a buffer.
    pub capacity: u32,
    /// Queue pairs, urdmad's included.
    pub queues: u16,
    /// Ethernet address of the port.
    pub mac: [u8; 6],
}

/// A received frame.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RxFrame {
    /// Its first octet.
    pub data: *const u8,
    /// Its octets.
    pub octets: u32,
}

/// A buffer to write a frame into.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TxBuffer {
    /// Identifies the buffer in later calls.
    pub buffer: *mut c_void,
    /// Where the frame starts.
    pub data: *mut u8,
}

/// A frame to send.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TxFrame {
    /// The buffer from `alloc`.
    pub buffer: *mut c_void,
    /// Octets of the frame, at most [`OpenedPort::capacity`].
    pub octets: u32,
}

/// State and counters of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortState {
    /// Not 0: the link is up.
    pub link_up: u32,
    /// Packets received.
    pub rx_packets: u64,
    /// Octets received.
    pub rx_octets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Octets sent.
    pub tx_octets: u64,
    /// Packets that the device dropped because no buffer was free.
    pub rx_missed: u64,
    /// Received packets with errors.
    pub rx_errors: u64,
    /// Packets that failed to be sent.
    pub tx_errors: u64,
    /// Failed allocations of receive buffers.
    pub rx_no_buffer: u64,
    /// Packets dropped because they were received in more than one buffer.
    pub rx_scattered: u64,
}

/// Packet buffers of one queue pair; zeros for a pair that could not be taken back.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolState {
    /// All buffers.
    pub total: u32,
    /// Those that are free.
    pub free: u32,
}

/// The functions of the library. Those that return a [`c_int`] return 0, or a positive errno.
#[repr(C)]
pub struct PortTable {
    /// Octets of this structure.
    pub size: u32,
    /// [`Table::VERSION`].
    pub version: u32,

    /// The version of the DPDK that is loaded, such as `DPDK 22.11.9`.
    pub dpdk_version: unsafe extern "C" fn() -> *const c_char,
    /// Whether DPDK has a driver, such as `net_tap`, or with an empty name whether there is DPDK;
    /// if not, the message says what to install.
    pub check: unsafe extern "C" fn(
        driver: *const c_char,
        message: *mut c_char,
        message_octets: usize,
    ) -> c_int,
    /// Starts DPDK, opens the port and stores it. DPDK cannot be started twice in a process.
    pub open: unsafe extern "C" fn(
        params: *const PortParams,
        opened: *mut OpenedPort,
        message: *mut c_char,
        message_octets: usize,
    ) -> c_int,
    /// Closes the port and removes DPDK's files.
    pub close: unsafe extern "C" fn(port: *mut Port),
    /// Prepares the port for use by the calling thread.
    pub enter: unsafe extern "C" fn(port: *mut Port),

    /// Stores up to `count` frames that have arrived on a queue pair that is not lent; returns
    /// their number. They are valid until `release`, which is called before the next `receive` if
    /// the number is not 0.
    pub receive:
        unsafe extern "C" fn(port: *mut Port, queue: u16, frames: *mut RxFrame, count: u32) -> u32,
    /// Frees the frames of the last `receive`.
    pub release: unsafe extern "C" fn(port: *mut Port),
    /// Allocates up to `count` buffers; returns the number stored.
    pub alloc: unsafe extern "C" fn(port: *mut Port, buffers: *mut TxBuffer, count: u32) -> u32,
    /// Sends frames in order; returns how many were sent, from the first on. The others belong to
    /// the caller, which may try again.
    pub send: unsafe extern "C" fn(port: *mut Port, frames: *const TxFrame, count: u32) -> u32,
    /// Frees the buffers of frames that are not sent.
    pub free: unsafe extern "C" fn(port: *mut Port, frames: *const TxFrame, count: u32),

    /// Lends a queue pair, and steers packets for `udp_port` to it. The message says why not, or
    /// what the device cannot do.
    pub lend: unsafe extern "C" fn(
        port: *mut Port,
        queue: u16,
        udp_port: u16,
        message: *mut c_char,
        message_octets: usize,
    ) -> c_int,
    /// Takes back a queue pair whose lessee has ended. The message says why it is lost, or what the
    /// device cannot do.
    pub reclaim: unsafe extern "C" fn(
        port: *mut Port,
        queue: u16,
        message: *mut c_char,
        message_octets: usize,
    ) -> c_int,
    /// Stores the state of the port, and that of the buffers of its first `count` queue pairs.
    pub report: unsafe extern "C" fn(
        port: *mut Port,
        state: *mut PortState,
        pools: *mut PoolState,
        count: u32,
    ),
}

// SAFETY: it begins with size and version; the library documents the rest.
unsafe impl Table for PortTable {
    const SYMBOL: &'static CStr = c"urdma_port_table";
    const VERSION: u32 = 2;
}

impl PortTable {
    /// The size of the structure.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it has some tens of octets"
    )]
    pub const OCTETS: u32 = size_of::<Self>() as u32;
}

/// The name by which a lessee finds the pool of its queue pair.
pub fn pool_name(queue: u16) -> String {
    format!("urdma-q{queue}")
}
