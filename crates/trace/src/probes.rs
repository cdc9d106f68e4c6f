//! Static probes of the provider `urdma`: SystemTap's notes, version 3, which bpftrace, perf, gdb
//! and SystemTap find in the library or in urdmad.
//!
//! Each has a semaphore, which a tracer increments. While it is 0, a probe costs a call, a load
//! and a branch. Names and arguments are an interface: doc/tracing.md lists them.
//!
//! They are not inlined: the linker keeps the notes of copies whose code it has removed, and
//! tracers complain about their addresses.

/// Defines a function for each probe.
macro_rules! probes {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),+);)*) => {
        $(
            $(#[$doc])*
            #[inline(never)]
            #[allow(clippy::too_many_arguments)] // those of a probe
            pub fn $name($($argument: $type),+) {
                probe::probe_lazy!(urdma, $name $(, $argument)+);
            }
        )*
    };
}

probes! {
    /// A connection changed its state: connection id, queue pair, states before and after
    /// ([`crate::CmState`]).
    cm_state(conn: u32, qpn: u32, from: u8, to: u8);
    /// A connection request: connection id, queue pair, direction (0 sent, 1 received), the peer's
    /// address (two words in network order), the listener's port. bpftrace reads six arguments.
    cm_req(conn: u32, qpn: u32, direction: u8, high: u64, low: u64, port: u16);
    /// The reply to a connection request: connection id, queue pair, direction, transmissions.
    cm_rep(conn: u32, qpn: u32, direction: u8, tries: u32);
    /// Ready to use: connection id, queue pair, direction.
    cm_rtu(conn: u32, qpn: u32, direction: u8);
    /// A disconnection request: connection id, queue pair, direction.
    cm_dreq(conn: u32, qpn: u32, direction: u8);
    /// The reply to a disconnection request: connection id, queue pair, direction.
    cm_drep(conn: u32, qpn: u32, direction: u8);
    /// A message was sent again: connection id, queue pair, message ([`crate::CmMessage`]),
    /// transmissions.
    cm_retry(conn: u32, qpn: u32, message: u8, tries: u32);
    /// A rejection: connection id, queue pair, direction, reason.
    cm_reject(conn: u32, qpn: u32, direction: u8, reason: u16);
    /// A queue pair was created: its number and type (`enum ibv_qp_type`).
    qp_create(qpn: u32, kind: u32);
    /// A queue pair changed its state: its number, states before and after (`enum ibv_qp_state`),
    /// the peer's address (two words in network order) and queue pair.
    qp_modify(qpn: u32, from: u8, to: u8, peer_high: u64, peer_low: u64, remote_qpn: u32);
    /// An event was queued for the application: connection id, event (`enum rdma_cm_event_type`),
    /// status.
    event_push(conn: u32, event: u32, status: i32);
    /// A sleeping process is woken: its slot. The process that wakes is the one in which the probe
    /// is.
    wake(slot: u8);
    /// A queue of the port was leased (1) or taken back (0): slot, queue, which of both.
    lease(slot: u8, queue: u16, granted: u8);
    /// The retransmission timeout expired: queue pair, consecutive timeouts, the next interval in
    /// nanoseconds.
    rto(qpn: u32, backoff: u32, interval_ns: u64);
    /// The congestion window changed: queue pair, packets, smoothed round-trip time in nanoseconds.
    cwnd(qpn: u32, packets: u32, rtt_ns: u64);
}
