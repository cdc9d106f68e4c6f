//! A port on DPDK: this process is the primary, lessees are its secondaries.
//!
//! Queue pair 0 is the daemon's, for everything that it sends. Pairs 1 and up are polled here until
//! they are lent. Each pair has its own pool, so that the pool of a dead lessee can be
//! reinitialised.

use std::collections::BTreeMap;

use ::dpdk::{
    free_bulk, Burst, Eal, Error, FlowRule, FlowVersion, LcoreId, Lent, Port as DpdkPort,
    PortStats, QueueIndex, QueuePair, HEADROOM_OCTETS, MAX_BURST,
};
use arrayvec::ArrayVec;
use urdma_ipc::status::PoolStatus;
use urdma_underlay::MacAddr;

use super::interface::{NoBuffer, PacketPort, PortReport, Resolver};
use super::table::Table;

/// One queue pair.
enum Queue {
    /// Polled here.
    Ours(QueuePair),
    /// Lent to a lessee; the rules steer its packets there.
    Lent(Lent, Vec<FlowRule>),
    /// It could not be taken back.
    Lost,
}

/// The port. Fields are dropped in this order: rules and queues before the port, the port before
/// DPDK.
pub(super) struct Dpdk {
    queues: Vec<Queue>,
    /// The table that steers packets to lessees where there are no rules.
    table: Option<Table>,
    /// Empty packet buffers.
    stash: Burst,
    /// Filled ones.
    filled: Burst,
    /// Received in more than one buffer.
    scattered: u64,
    mac: MacAddr,
    mtu: u16,
    netdev: Option<String>,
    port: DpdkPort,
    _eal: Eal,
}

impl Dpdk {
    /// The port that was started with these queue pairs.
    ///
    /// # Errors
    /// The device is gone.
    pub(super) fn new(
        eal: Eal,
        port: DpdkPort,
        pairs: Vec<QueuePair>,
        table: Option<Table>,
        mtu: u16,
        netdev: Option<String>,
    ) -> Result<Self, Error> {
        Ok(Self {
            queues: pairs.into_iter().map(Queue::Ours).collect(),
            table,
            stash: ArrayVec::new(),
            filled: ArrayVec::new(),
            scattered: 0,
            mac: MacAddr(port.mac()?),
            mtu,
            netdev,
            port,
            _eal: eal,
        })
    }

    /// Passes the filled buffers to queue 0, which may not accept all of them.
    fn push(&mut self) {
        if let Some(Queue::Ours(pair)) = self.queues.first_mut() {
            pair.tx.burst(&mut self.filled);
        }
    }

    /// Steers the packets for a UDP port to a lessee's queue, as far as the device can; packets
    /// that arrive elsewhere are forwarded by slot.
    fn steer(&mut self, queue: u16, udp_port: u16) -> Vec<FlowRule> {
        if let Some(table) = &mut self.table {
            table.lend(queue, udp_port);
            self.redirect();
            return Vec::new();
        }
        [FlowVersion::V4, FlowVersion::V6]
            .into_iter()
            .filter_map(
                |version| match self.port.steer(udp_port, version, QueueIndex(queue)) {
                    Ok(rule) => Some(rule),
                    Err(error) => {
                        tracing::debug!("queue {queue}: {error}; packets are forwarded by slot");
                        None
                    }
                },
            )
            .collect()
    }

    /// Writes the current table to the device.
    fn redirect(&self) {
        let Some(table) = &self.table else { return };
        let queues: Vec<QueueIndex> = table.queues().into_iter().map(QueueIndex).collect();
        if let Err(error) = self.port.redirect(&queues) {
            tracing::warn!("{error}; packets are forwarded by slot");
        }
    }
}

impl PacketPort for Dpdk {
    fn enter(&mut self) {
        // SAFETY: the data thread is the only one of this process that uses pools, and every lessee
        // has an id of its own above 0.
        unsafe { LcoreId::PRIMARY.adopt() };
    }

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn resolver(&self) -> Resolver<'_> {
        self.netdev
            .as_deref()
            .map_or(Resolver::DataThread, Resolver::Kernel)
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut burst: Burst = ArrayVec::new();
        let mut count = 0;
        for queue in &mut self.queues {
            let Queue::Ours(pair) = queue else { continue };
            count += pair.rx.burst(&mut burst);
            for mbuf in &burst {
                if mbuf.is_contiguous() {
                    sink(mbuf.data());
                } else {
                    self.scattered += 1;
                }
            }
            free_bulk(&mut burst);
        }
        count
    }

    fn has_room(&mut self) -> bool {
        if self.filled.is_full() {
            self.push();
        }
        !self.filled.is_full()
    }

    fn transmit(&mut self, octets: usize) -> Result<&mut [u8], NoBuffer> {
        if !self.has_room() {
            return Err(NoBuffer);
        }
        if self.stash.is_empty() {
            let Some(Queue::Ours(pair)) = self.queues.first() else {
                return Err(NoBuffer);
            };
            if !pair.pool.alloc_bulk(&mut self.stash, MAX_BURST)
                && !pair.pool.alloc_bulk(&mut self.stash, 1)
            {
                return Err(NoBuffer);
            }
        }
        let mbuf = self.stash.last_mut().ok_or(NoBuffer)?;
        if octets > mbuf.buffer_octets().saturating_sub(HEADROOM_OCTETS) {
            return Err(NoBuffer);
        }
        self.filled.extend(self.stash.pop());
        let mbuf = self.filled.last_mut().ok_or(NoBuffer)?;
        mbuf.set_frame(HEADROOM_OCTETS, octets).ok_or(NoBuffer)
    }

    fn flush(&mut self) -> bool {
        if !self.filled.is_empty() {
            self.push();
        }
        self.filled.is_empty()
    }

    fn discard(&mut self) -> usize {
        let count = self.filled.len();
        free_bulk(&mut self.filled);
        count
    }

    fn lend(&mut self, queue: u16, udp_port: u16) -> Result<(), String> {
        let place = self
            .queues
            .get_mut(usize::from(queue))
            .filter(|_| queue > 0)
            .ok_or("there is no such queue")?;
        match std::mem::replace(place, Queue::Lost) {
            Queue::Ours(pair) => match pair.lend() {
                Ok(lent) => {
                    let rules = self.steer(queue, udp_port);
                    self.queues[usize::from(queue)] = Queue::Lent(lent, rules);
                    Ok(())
                }
                Err(pair) => {
                    *place = Queue::Ours(pair);
                    Err("packet buffers of the queue are in use".to_owned())
                }
            },
            other => {
                *place = other;
                Err("the queue is lent already".to_owned())
            }
        }
    }

    fn reclaim(&mut self, queue: u16) -> Result<(), String> {
        let place = self
            .queues
            .get_mut(usize::from(queue))
            .ok_or("there is no such queue")?;
        match std::mem::replace(place, Queue::Lost) {
            Queue::Lent(lent, rules) => {
                drop(rules);
                if let Some(table) = &mut self.table {
                    table.reclaim(queue);
                    self.redirect();
                }
                let pair = lent.take_back().map_err(|error| error.to_string())?;
                self.queues[usize::from(queue)] = Queue::Ours(pair);
                Ok(())
            }
            other => {
                *place = other;
                Err("the queue is not lent".to_owned())
            }
        }
    }

    fn report(&mut self) -> PortReport {
        let pools = self
            .queues
            .iter()
            .enumerate()
            .filter_map(|(index, queue)| {
                let pool = match queue {
                    Queue::Ours(pair) => &pair.pool,
                    Queue::Lent(lent, _) => lent.pool(),
                    Queue::Lost => return None,
                };
                // What waits in our hands is free.
                let stashed = if index == 0 { self.stash.len() } else { 0 };
                Some(PoolStatus {
                    name: format!("urdma-q{index}"),
                    total: pool.buffers(),
                    free: pool.available() + u32::try_from(stashed).unwrap_or(0),
                })
            })
            .collect();
        PortReport {
            link_up: self.port.link().is_ok_and(|link| link.up),
            hardware: hardware_counters(&self.port.stats().unwrap_or_default(), self.scattered),
            pools,
            notes: Vec::new(),
        }
    }
}

fn hardware_counters(stats: &PortStats, scattered: u64) -> BTreeMap<String, u64> {
    [
        ("rx_packets", stats.rx_packets),
        ("rx_octets", stats.rx_octets),
        ("tx_packets", stats.tx_packets),
        ("tx_octets", stats.tx_octets),
        ("rx_missed", stats.rx_missed),
        ("rx_errors", stats.rx_errors),
        ("tx_errors", stats.tx_errors),
        ("rx_no_buffer", stats.rx_no_buffer),
        ("rx_scattered", scattered),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}
