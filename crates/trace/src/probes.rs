//! Static probes of the provider `urdma`: SystemTap's notes, version 3, which bpftrace, perf, gdb
//! and SystemTap find in the library or in urdmad.
//!
//! Each has a semaphore, which a tracer increments. While it is 0, a probe costs a call, a load
//! and a branch. Names and arguments are an interface: doc/tracing.md lists them.
//!
//! They are not inlined: the linker keeps the notes of copies whose code it has removed, and
//! tracers complain about their addresses.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU16, Ordering};

/// What a tracer replaces: one instruction without effect of five octets, since Linux 6.18 replaces
/// it by a call, which takes half of the time of a breakpoint. The canonical one (`0f 1f 44 00 00`)
/// is executed in single steps by older kernels, which takes longer than the breakpoint alone. It
/// is aligned, as the kernel calls from none that is on two pages.
#[cfg(target_arch = "x86_64")]
macro_rules! nothing {
    () => {
        ".balign 8\n990: .byte 0x66, 0x66, 0x66, 0x66, 0x90\n"
    };
}

#[cfg(not(target_arch = "x86_64"))]
macro_rules! nothing {
    () => {
        "990: nop\n"
    };
}

/// The place of a probe, with its note: the address, that of the semaphore, the provider, the name
/// and where the arguments are, each a signed number of eight octets in a register.
macro_rules! place {
    ($name:ident, $semaphore:ident, $first:ident $(, $other:ident)*) => {
        std::arch::asm!(
            concat!(
                nothing!(),
                ".pushsection .note.stapsdt, \"?\", \"note\"\n",
                ".balign 4\n",
                ".4byte 992f - 991f, 994f - 993f, 3\n",
                "991: .asciz \"stapsdt\"\n",
                "992: .balign 4\n",
                "993: .8byte 990b\n",
                ".8byte _.stapsdt.base\n",
                ".8byte {semaphore}\n",
                ".asciz \"urdma\"\n",
                ".asciz \"", stringify!($name), "\"\n",
                ".asciz \"-8@{", stringify!($first), "}",
                $(" -8@{", stringify!($other), "}",)*
                "\"\n",
                "994: .balign 4\n",
                ".popsection\n",
                // The linker keeps one of these, by which tools know that the file was relocated.
                ".ifndef _.stapsdt.base\n",
                ".pushsection .stapsdt.base, \"aGR\", \"progbits\", .stapsdt.base, comdat\n",
                ".weak _.stapsdt.base\n",
                ".hidden _.stapsdt.base\n",
                "_.stapsdt.base: .space 1\n",
                ".size _.stapsdt.base, 1\n",
                ".popsection\n",
                ".endif\n",
            ),
            semaphore = sym $semaphore,
            $first = in(reg) $first as i64,
            $($other = in(reg) $other as i64,)*
            options(att_syntax, readonly, nostack, preserves_flags),
        )
    };
}

/// Defines a function for each probe.
macro_rules! probes {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),+);)*) => {
        $(
            $(#[$doc])*
            #[inline(never)]
            #[allow(clippy::too_many_arguments)] // those of a probe
            pub fn $name($($argument: $type),+) {
                #[link_section = ".probes"]
                static SEMAPHORE: AtomicU16 = AtomicU16::new(0);
                if SEMAPHORE.load(Ordering::Relaxed) != 0 {
                    // SAFETY: it has no effect but what a tracer does with the arguments.
                    unsafe { place!($name, SEMAPHORE $(, $argument)+) };
                }
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
