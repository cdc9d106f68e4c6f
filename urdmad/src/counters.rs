//! Counters of the data path. Each has one writing thread; any thread may read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use urdma_underlay::Dropped;

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one.
    #[inline]
    pub fn bump(&self) {
        self.add(1);
    }

    /// Counts `by`; only the counter's one writer may.
    #[inline]
    pub fn add(&self, by: u64) {
        let value = self.0.load(Ordering::Relaxed).wrapping_add(by);
        self.0.store(value, Ordering::Relaxed);
    }

    /// The count.
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of slot 0's data path.
        #[derive(Debug, Default)]
        pub struct DataCounters {
            $($(#[$doc])* pub $name: Counter,)*
            /// Received frames dropped by [`urdma_underlay::parse`], by reason.
            pub rx_dropped: [Counter; Dropped::ALL.len()],
        }

        impl DataCounters {
            /// All by name, drops as `drop_...`.
            pub fn snapshot(&self) -> BTreeMap<String, u64> {
                let mut all = BTreeMap::new();
                $(all.insert(stringify!($name).to_owned(), self.$name.value());)*
                for reason in Dropped::ALL.into_iter().filter(|r| *r != Dropped::NeighbourTraffic) {
                    let count = self.rx_dropped[reason.index()].value();
                    all.insert(format!("drop_rx_{}", reason.name()), count);
                }
                all
            }
        }
    };
}

counters! {
    /// Frames received from the port.
    rx_packets,
    /// Their octets.
    rx_octets,
    /// ARP and neighbour discovery among them.
    rx_neighbour,
    /// Frames given to the port.
    tx_packets,
    /// Their octets.
    tx_octets,
    /// Frames that slot 0 received from processes.
    from_processes,
    /// Datagrams from the port delivered to processes.
    to_processes,
    /// Connection requests delivered to a listener.
    cm_requests,
    /// Connection requests without a valid cookie, answered with COOKIE.
    cm_cookies,
    /// Connection requests without a listener, answered with REJ.
    cm_rejected,
    /// Connection requests left unanswered, since they are retransmitted: the port is bound but not
    /// listened on yet, or the listener is behind.
    cm_unanswered,
    /// Datagrams to multicast groups, from processes and from the port.
    group_datagrams,
    /// Their copies delivered to members.
    group_copies,
    /// Copies dropped: a member that is behind.
    drop_group_copies,
    /// RESETs sent for slots that are not attached.
    resets_sent,
    /// Received: a UDP port that is not urdma's.
    drop_rx_not_our_port,
    /// Received: the slot is not attached. A RESET was sent if the datagram may be answered.
    drop_rx_unattached_slot,
    /// Received: the slot has too many packets that its process has not taken.
    drop_rx_slot_behind,
    /// From a process: the source port, or the source queue pair of a datagram, is another slot's.
    drop_forged_source,
    /// From a process without a lease: a packet that claims to come from a leased queue.
    drop_passed_on,
    /// Processes disconnected because they wrote what no process writes.
    corrupt_cells,
    /// At slot 0: neither a connection request nor for another host.
    drop_not_for_daemon,
    /// Datagrams to slot 0 of another version of the protocol.
    drop_rx_other_version,
    /// At slot 0: a CM datagram that found the control thread's queue full.
    drop_cm_queue_full,
    /// To send: a CM datagram of slot 0 that found the data thread's command queue full. The
    /// control thread counts it.
    drop_cm_commands_full,
    /// Received: a connection request whose source is not the host that sent it.
    drop_request_source,
    /// At slot 0: a connection request beyond those that its user may send in a second.
    drop_request_limit,
    /// Received: a connection request whose sender's Ethernet address is unknown or being resolved.
    drop_request_unresolved,
    /// At slot 0: a RESET was not sent because of the rate limit.
    drop_reset_limit,
    /// At slot 0: a REJ was not sent because of the rate limit.
    drop_reject_limit,
    /// To send: the instance has no port.
    drop_tx_no_port,
    /// To send: the neighbour does not answer.
    drop_tx_unreachable,
    /// To send: too many frames wait for their neighbour's resolution.
    drop_tx_waiting,
    /// To send: longer than the port's MTU allows.
    drop_tx_too_long,
    /// To send: no packet buffer.
    drop_tx_no_buffer,
    /// To send: the port did not accept it in time.
    drop_tx_port_full,
    /// To send: invalid metadata.
    drop_tx_bad_meta,
}
