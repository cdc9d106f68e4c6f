//! The table of C functions through which a process drives a leased queue pair.
//!
//! `liburdma_lease.so` exports one function, [`Table::SYMBOL`], which returns a [`LeaseTable`]; no
//! other symbol of the library is visible.
//!
//! Order of calls: `open` once per process, then routes and bursts, then `close`. Calls on one
//! lease must be serialised, which the engine's lock does; they may come from different threads. No
//! function blocks, and only `open`, `close` and the route functions allocate or log.
//!
//! A buffer belongs to the caller from `tx_alloc` until `tx_burst` accepts it or `tx_free`, and
//! from `rx_burst` until `rx_free`. Buffers are sent in the order of allocation, except for those
//! that are freed unsent. Received buffers are freed as a whole burst, since the peer may get the
//! room back only when all of it is free. Closing the lease frees all buffers, including those that
//! the caller holds.

use std::ffi::{c_char, c_int, c_void, CStr};

use crate::library::Table;

/// Maximum number of buffers in a burst; longer bursts are cut to this.
pub const MAX_BURST: u32 = 32;

/// Octets that can be read from the start of a received datagram, even if it is shorter.
pub const READABLE: usize = 192;

/// Routes that one lease can hold at once.
pub const MAX_ROUTES: u32 = 65536;

/// Number of reasons to drop a received frame, as in `urdma_underlay::Dropped`.
pub const DROP_REASONS: usize = 11;

/// An open lease; opaque to the caller.
#[repr(C)]
pub struct Lease {
    opaque: [u8; 0],
}

/// The parameters of the leased queue pair, as urdmad sends them to its client. All strings are
/// terminated by a zero octet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LeaseParams {
    /// [`LeaseParams::OCTETS`].
    pub size: u32,
    /// The lcore id that no other process of this instance uses, below 128.
    pub lcore_id: u32,
    /// Version of the primary's DPDK, as `rte_version` returns it. The lease's must be the same.
    pub dpdk: *const c_char,
    /// `--file-prefix` of the primary.
    pub file_prefix: *const c_char,
    /// `RUNTIME_DIRECTORY` of the primary: the directory above its `dpdk/<file prefix>`.
    pub runtime_dir: *const c_char,
    /// Name of the mempool, which only this lease uses.
    pub mempool: *const c_char,
    /// IP addresses of this host, 16 octets each, IPv4 as IPv4-mapped.
    pub addresses: *const [u8; 16],
    /// Number of addresses, 1..=16.
    pub address_count: u32,
    /// Name of the port's Ethernet device, as the primary has it.
    pub device: *const c_char,
    /// Index of both the RX and the TX queue.
    pub queue: u16,
    /// IP MTU of the port.
    pub mtu: u16,
    /// Ethernet address of this host.
    pub mac: [u8; 6],
    /// Not 0: send UDP checksums (IPv4; IPv6 always does).
    pub checksum: u8,
    /// Not 0: packets go through the driver's burst functions, even where the library could bypass
    /// them.
    pub by_driver: u8,
}

/// Where the datagrams of one route go.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRoute {
    /// IP address of the remote host, IPv4 as IPv4-mapped.
    pub remote: [u8; 16],
    /// Ethernet address of the remote host or of the gateway to it.
    pub remote_mac: [u8; 6],
    /// UDP source port: one per queue pair.
    pub source_port: u16,
    /// UDP destination port: that of the remote slot.
    pub destination_port: u16,
    /// Index of the local address to send from, if its version and scope are those of the remote
    /// address.
    pub local_index: u8,
}

/// A buffer to write a datagram into.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TxBuffer {
    /// Identifies the buffer in later calls.
    pub buffer: *mut c_void,
    /// Where the datagram starts.
    pub data: *mut u8,
    /// Length of the longest datagram that fits the buffer and the MTU.
    pub capacity: u32,
}

/// A filled buffer to send.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TxDatagram {
    /// The buffer from `tx_alloc`.
    pub buffer: *mut c_void,
    /// Octets of the datagram, at most the buffer's capacity.
    pub octets: u32,
    /// Route from `route_open`.
    pub route: u32,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
}

/// A received datagram.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RxDatagram {
    /// Identifies the buffer for `rx_free`.
    pub buffer: *mut c_void,
    /// The datagram's first octet; [`READABLE`] octets can be read from there, and those after the
    /// datagram are unspecified.
    pub data: *const u8,
    /// Octets of the datagram.
    pub octets: u32,
    /// The sender's UDP port.
    pub source_port: u16,
    /// The UDP destination port, which identifies the slot; it need not be this process's slot.
    pub destination_port: u16,
    /// The sender's IP address, IPv4 as IPv4-mapped.
    pub source: [u8; 16],
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// Index of the local address that it was sent to; 255 for a multicast address.
    pub local_index: u8,
}

/// Counters of a lease since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounters {
    /// Datagrams that the port accepted.
    pub tx_datagrams: u64,
    /// Octets of these datagrams, without headers.
    pub tx_octets: u64,
    /// Datagrams consumed unsent because their route or length was wrong.
    pub tx_refused: u64,
    /// Calls of `tx_burst` in which the port did not accept all datagrams.
    pub tx_busy: u64,
    /// Calls of `tx_alloc` that found the pool empty, or the peer's ring full.
    pub tx_no_buffer: u64,
    /// Datagrams handed to the caller.
    pub rx_datagrams: u64,
    /// Octets of these datagrams, without headers.
    pub rx_octets: u64,
    /// Frames dropped because they were received in more than one buffer.
    pub rx_scattered: u64,
    /// Frames dropped for another reason, by `urdma_underlay::Dropped::index`.
    pub rx_dropped: [u64; DROP_REASONS],
}

/// The functions of the library.
#[repr(C)]
pub struct LeaseTable {
    /// [`LeaseTable::OCTETS`].
    pub size: u32,
    /// [`Table::VERSION`].
    pub version: u32,

    /// Attaches to the primary and stores the lease; returns 0, or a positive errno with a sentence
    /// in `message`.
    ///
    /// DPDK cannot be started twice in a process: a second `open` works only for the same primary
    /// (any port, queue and mempool), and returns `EBUSY` while the first lease is open.
    pub open: unsafe extern "C" fn(
        params: *const LeaseParams,
        lease: *mut *mut Lease,
        message: *mut c_char,
        message_octets: usize,
    ) -> c_int,
    /// Frees the buffers and closes the lease; its buffers and routes are invalid afterwards.
    ///
    /// `last` not 0: also detach from the primary, after which this process cannot open a lease.
    pub close: unsafe extern "C" fn(lease: *mut Lease, last: c_int),

    /// Creates a route and stores its number; returns 0, `EINVAL` (addresses) or `ENOSPC`.
    pub route_open: unsafe extern "C" fn(
        lease: *mut Lease,
        route: *const LeaseRoute,
        number: *mut u32,
    ) -> c_int,
    /// Changes a route; returns 0 or `EINVAL`.
    pub route_update:
        unsafe extern "C" fn(lease: *mut Lease, number: u32, route: *const LeaseRoute) -> c_int,
    /// Removes a route; its number may be reused.
    pub route_close: unsafe extern "C" fn(lease: *mut Lease, number: u32),

    /// Allocates `count` buffers, at most [`MAX_BURST`], for datagrams of a route; returns the
    /// number stored: all or none.
    pub tx_alloc: unsafe extern "C" fn(
        lease: *mut Lease,
        route: u32,
        buffers: *mut TxBuffer,
        count: u32,
    ) -> u32,
    /// Sends datagrams in order; returns how many were consumed, from the first on. The rest belong
    /// to the caller, which may retry them unchanged.
    pub tx_burst:
        unsafe extern "C" fn(lease: *mut Lease, datagrams: *const TxDatagram, count: u32) -> u32,
    /// Frees unsent buffers.
    pub tx_free: unsafe extern "C" fn(lease: *mut Lease, buffers: *const *mut c_void, count: u32),

    /// Receives up to `count` (at most [`MAX_BURST`]) datagrams; returns the number
    /// stored.
    pub rx_burst:
        unsafe extern "C" fn(lease: *mut Lease, datagrams: *mut RxDatagram, count: u32) -> u32,
    /// Frees received buffers.
    pub rx_free: unsafe extern "C" fn(lease: *mut Lease, buffers: *const *mut c_void, count: u32),

    /// Copies the counters.
    pub counters: unsafe extern "C" fn(lease: *const Lease, counters: *mut LeaseCounters),

    /// The descriptor of an epoll set in which datagrams that arrive while interrupts are unmasked
    /// raise an event, whose data are 0; -1 if there are no interrupts now. It is the same as long
    /// as the lease is open. The caller may add descriptors with other data.
    pub interrupts: unsafe extern "C" fn(lease: *mut Lease) -> c_int,
    /// Unmasks interrupts, which are masked at first; returns not 0 if datagrams may have arrived
    /// before, or if there are no interrupts now.
    pub unmask: unsafe extern "C" fn(lease: *mut Lease) -> c_int,
    /// Masks interrupts: the peer spends no system call on them.
    pub mask: unsafe extern "C" fn(lease: *mut Lease),
}

impl LeaseParams {
    /// The size of the structure.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it has some tens of octets"
    )]
    pub const OCTETS: u32 = size_of::<Self>() as u32;
}

// SAFETY: it begins with size and version; the library documents the rest.
unsafe impl Table for LeaseTable {
    const SYMBOL: &'static CStr = c"urdma_lease_table";
    const VERSION: u32 = 5;
}

impl LeaseTable {
    /// The size of the structure.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it has some tens of octets"
    )]
    pub const OCTETS: u32 = size_of::<Self>() as u32;
}
