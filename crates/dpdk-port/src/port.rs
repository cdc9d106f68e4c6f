//! A port on DPDK: this process is the primary, lessees are its secondaries.
//!
//! Queue pair 0 is the daemon's, for everything that it sends. Pairs 1 and up are polled here until
//! they are lent. Each pair has its own pool, so that the pool of a dead lessee can be
//! reinitialised.

#![allow(unsafe_code)]

use dpdk::{
    free_bulk, Burst, Eal, FlowRule, FlowVersion, LcoreId, Lent, Mbuf, Port as DpdkPort, PortStats,
    QueueIndex, QueuePair, HEADROOM_OCTETS, MAX_BURST,
};
use urdma_abi::port::{PoolState, PortState, RxFrame, TxBuffer, TxFrame};

use crate::error::QueueError;
use crate::redirection::Table;

const _: () = assert!(MAX_BURST == urdma_abi::port::MAX_BURST);

/// One queue pair.
enum Queue {
    /// Polled here.
    Ours(QueuePair),
    /// Lent to a lessee; the rules steer its packets there.
    Lent(Lent, Vec<FlowRule>),
    /// It could not be taken back.
    Lost,
}

/// The port. Fields are dropped in this order: buffers, rules and queues before the port, the port
/// before DPDK.
pub(crate) struct Dpdk {
    /// Buffers of the frames that were received last.
    received: Burst,
    queues: Vec<Queue>,
    /// The table that steers packets to lessees where there are no rules.
    table: Option<Table>,
    /// Received in more than one buffer.
    scattered: u64,
    port: DpdkPort,
    _eal: Eal,
}

impl Dpdk {
    /// The port that was started with these queue pairs.
    pub(crate) fn new(
        eal: Eal,
        port: DpdkPort,
        pairs: Vec<QueuePair>,
        table: Option<Table>,
    ) -> Self {
        Self {
            received: Burst::new(),
            queues: pairs.into_iter().map(Queue::Ours).collect(),
            table,
            scattered: 0,
            port,
            _eal: eal,
        }
    }

    /// Steers the packets for a UDP port to a lessee's queue, as far as the device can; packets
    /// that arrive elsewhere are forwarded by slot. Returns what the device cannot do.
    fn steer(&mut self, queue: u16, udp_port: u16) -> (Vec<FlowRule>, String) {
        if let Some(table) = &mut self.table {
            table.lend(queue, udp_port);
            return (Vec::new(), self.redirect());
        }
        let (mut rules, mut note) = (Vec::new(), String::new());
        for version in [FlowVersion::V4, FlowVersion::V6] {
            match self.port.steer(udp_port, version, QueueIndex(queue)) {
                Ok(rule) => rules.push(rule),
                Err(error) => note = format!("{error}; packets are forwarded by slot"),
            }
        }
        (rules, note)
    }

    /// Writes the current table to the device; returns what the device cannot do.
    fn redirect(&self) -> String {
        let queues = self.table.as_ref().map(Table::queues).unwrap_or_default();
        let queues: Vec<QueueIndex> = queues.into_iter().map(QueueIndex).collect();
        match self.port.redirect(&queues) {
            Ok(()) => String::new(),
            Err(error) => format!("{error}; packets are forwarded by slot"),
        }
    }

    /// Prepares the port for use by the calling thread.
    pub(crate) fn enter(&mut self) {
        // SAFETY: one thread of this process uses pools at a time, and every lessee has an id of
        // its own above 0.
        unsafe { LcoreId::PRIMARY.adopt() };
    }

    /// Stores what has arrived on a queue, up to the length of `frames`; returns the number.
    pub(crate) fn receive(&mut self, queue: u16, frames: &mut [RxFrame]) -> usize {
        let Some(Queue::Ours(pair)) = self.queues.get_mut(usize::from(queue)) else {
            return 0;
        };
        pair.rx.burst_of(&mut self.received, frames.len());
        let mut count = 0;
        for mbuf in &self.received {
            if !mbuf.is_contiguous() {
                self.scattered += 1;
                continue;
            }
            let data = mbuf.data();
            frames[count] = RxFrame {
                data: data.as_ptr(),
                octets: u32::try_from(data.len()).unwrap_or(0),
            };
            count += 1;
        }
        if count == 0 {
            self.release();
        }
        count
    }

    /// Frees what was received.
    pub(crate) fn release(&mut self) {
        free_bulk(&mut self.received);
    }

    /// The pair of the daemon.
    fn own(&mut self) -> Option<&mut QueuePair> {
        match self.queues.first_mut() {
            Some(Queue::Ours(pair)) => Some(pair),
            _ => None,
        }
    }

    /// Octets of the longest frame that fits a buffer.
    pub(crate) fn capacity(&mut self) -> usize {
        let octets = self.own().map_or(0, |pair| pair.pool.buffer_octets());
        usize::from(octets).saturating_sub(HEADROOM_OCTETS)
    }

    /// Allocates buffers; all, or one if the pool has fewer. Returns their number.
    pub(crate) fn alloc(&mut self, buffers: &mut [TxBuffer]) -> usize {
        let Some(pair) = self.own() else { return 0 };
        let mut burst = Burst::new();
        if !pair.pool.alloc_bulk(&mut burst, buffers.len()) {
            pair.pool.alloc_bulk(&mut burst, 1);
        }
        let count = burst.len();
        for (buffer, mbuf) in buffers.iter_mut().zip(burst) {
            // The headroom is a part of every buffer.
            let data = mbuf.buffer_start().wrapping_add(HEADROOM_OCTETS);
            *buffer = TxBuffer {
                buffer: mbuf.into_raw(),
                data,
            };
        }
        count
    }

    /// Sends frames in order; returns how many were sent.
    ///
    /// # Safety
    /// The frames are in buffers of this port that the caller owns.
    pub(crate) unsafe fn send(&mut self, frames: &[TxFrame]) -> usize {
        let mut burst = Burst::new();
        for frame in frames {
            // SAFETY: the pointer is that of a buffer, which the caller owns.
            let Some(mut mbuf) = (unsafe { Mbuf::from_raw(frame.buffer) }) else {
                continue;
            };
            // The caller knows the capacity.
            let _ = mbuf.set_frame(HEADROOM_OCTETS, usize::try_from(frame.octets).unwrap_or(0));
            burst.push(mbuf);
        }
        let sent = self.own().map_or(0, |pair| pair.tx.burst(&mut burst));
        // The others stay the caller's.
        for mbuf in burst {
            mbuf.into_raw();
        }
        sent
    }

    /// Frees buffers.
    ///
    /// # Safety
    /// The frames are in buffers of this port that the caller owns.
    pub(crate) unsafe fn free(&mut self, frames: &[TxFrame]) {
        let mut burst: Burst = frames
            .iter()
            // SAFETY: the pointers are those of buffers, which the caller owns.
            .filter_map(|frame| unsafe { Mbuf::from_raw(frame.buffer) })
            .collect();
        free_bulk(&mut burst);
    }

    /// Lends a queue pair; returns what the device cannot do.
    ///
    /// # Errors
    /// The reason why it is not lent.
    pub(crate) fn lend(&mut self, queue: u16, udp_port: u16) -> Result<String, QueueError> {
        let place = self
            .queues
            .get_mut(usize::from(queue))
            .filter(|_| queue > 0)
            .ok_or(QueueError::None)?;
        match std::mem::replace(place, Queue::Lost) {
            Queue::Ours(pair) => match pair.lend() {
                Ok(lent) => {
                    let (rules, note) = self.steer(queue, udp_port);
                    self.queues[usize::from(queue)] = Queue::Lent(lent, rules);
                    Ok(note)
                }
                Err(pair) => {
                    *place = Queue::Ours(pair);
                    Err(QueueError::InUse)
                }
            },
            other => {
                *place = other;
                Err(QueueError::Lent)
            }
        }
    }

    /// Takes a queue pair back from a lessee that has ended; returns what the device cannot do.
    ///
    /// # Errors
    /// The reason why it is lost.
    pub(crate) fn reclaim(&mut self, queue: u16) -> Result<String, QueueError> {
        let place = self
            .queues
            .get_mut(usize::from(queue))
            .ok_or(QueueError::None)?;
        match std::mem::replace(place, Queue::Lost) {
            Queue::Lent(lent, rules) => {
                drop(rules);
                let mut note = String::new();
                if let Some(table) = &mut self.table {
                    table.reclaim(queue);
                    note = self.redirect();
                }
                let pair = lent.take_back()?;
                self.queues[usize::from(queue)] = Queue::Ours(pair);
                Ok(note)
            }
            other => {
                *place = other;
                Err(QueueError::NotLent)
            }
        }
    }

    /// Packet buffers of a queue pair; `None` if it is lost or does not exist.
    pub(crate) fn pool(&self, queue: usize) -> Option<PoolState> {
        let pool = match self.queues.get(queue)? {
            Queue::Ours(pair) => &pair.pool,
            Queue::Lent(lent, _) => lent.pool(),
            Queue::Lost => return None,
        };
        Some(PoolState {
            total: pool.buffers(),
            free: pool.available(),
        })
    }

    /// State and counters of the port.
    pub(crate) fn state(&self) -> PortState {
        let stats: PortStats = self.port.stats().unwrap_or_default();
        PortState {
            link_up: self.port.link().is_ok_and(|link| link.up).into(),
            rx_packets: stats.rx_packets,
            rx_octets: stats.rx_octets,
            tx_packets: stats.tx_packets,
            tx_octets: stats.tx_octets,
            rx_missed: stats.rx_missed,
            rx_errors: stats.rx_errors,
            tx_errors: stats.tx_errors,
            rx_no_buffer: stats.rx_no_buffer,
            rx_scattered: self.scattered,
        }
    }
}
