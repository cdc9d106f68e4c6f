//! Assignment of the port's queue pairs to processes.

use std::path::PathBuf;

use thiserror::Error;
use urdma_ipc::status::{LeaseStatus, LeaseSteering};
use urdma_ipc::LeaseParams;
use urdma_types::SlotId;

/// The port's offer to lessees: queue pairs 1 to `pools.len()`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseOffer {
    /// Version of urdmad's DPDK.
    pub dpdk: String,
    /// `--file-prefix` of urdmad's DPDK.
    pub file_prefix: String,
    /// Directory of its DPDK files.
    pub runtime_dir: Option<PathBuf>,
    /// Name of the port's device.
    pub device: String,
    /// The port's Ethernet address.
    pub mac: [u8; 6],
    /// IP MTU.
    pub mtu: u16,
    /// Whether UDP checksums are sent.
    pub checksum: bool,
    /// Name of each queue's mempool, queue 1 first.
    pub pools: Vec<String>,
    /// How packets are steered to their lessee's queue.
    pub steering: LeaseSteering,
}

/// Why a process has no queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotLeasable {
    /// There is no port.
    #[error("this instance has no port")]
    NoPort,
    /// The port has none for others.
    #[error("a port of kind \"{0}\" has no queue pairs to lease")]
    Kind(&'static str),
    /// The port's driver does not steer packets to them, and says why.
    #[error("{0}")]
    Driver(String),
    /// Others have them.
    #[error("all {0} queue pairs are leased: raise port.lease_queues in the configuration")]
    AllLeased(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Queue {
    Free,
    Leased(SlotId),
    /// The queue could not be taken back.
    Lost,
}

/// The leasable queue pairs of the port.
#[derive(Debug)]
pub struct Leases {
    offer: Result<LeaseOffer, NotLeasable>,
    queues: Vec<Queue>,
}

impl Leases {
    /// All free, or none and why.
    pub fn new(offer: Result<LeaseOffer, NotLeasable>) -> Self {
        let count = offer.as_ref().map_or(0, |offer| offer.pools.len());
        Self {
            offer,
            queues: vec![Queue::Free; count],
        }
    }

    /// Why no queue pair can be leased, if none can.
    pub fn impossible_because(&self) -> Option<&NotLeasable> {
        self.offer.as_ref().err()
    }

    /// How packets are steered to their lessee's queue, if any can be leased.
    pub fn steering(&self) -> Option<LeaseSteering> {
        self.offer.as_ref().ok().map(|offer| offer.steering)
    }

    /// Leases a free queue pair to `slot`.
    ///
    /// # Errors
    /// None is free or leasable.
    pub fn grant(&mut self, slot: SlotId) -> Result<LeaseParams, NotLeasable> {
        let offer = self.offer.as_ref().map_err(Clone::clone)?;
        let index = self
            .queues
            .iter()
            .position(|queue| *queue == Queue::Free)
            .ok_or(NotLeasable::AllLeased(self.queues.len()))?;
        let queue =
            u16::try_from(index + 1).map_err(|_| NotLeasable::AllLeased(self.queues.len()))?;
        self.queues[index] = Queue::Leased(slot);
        Ok(LeaseParams {
            dpdk: offer.dpdk.clone(),
            file_prefix: offer.file_prefix.clone(),
            runtime_dir: offer.runtime_dir.clone(),
            // urdmad's own threads have lcore 0, the lessee of queue i has lcore i.
            lcore_id: u32::from(queue),
            device: offer.device.clone(),
            queue,
            mempool: offer.pools[index].clone(),
            mac: offer.mac,
            mtu: offer.mtu,
            checksum: offer.checksum,
        })
    }

    /// The queue leased to `slot`.
    pub fn queue_of(&self, slot: SlotId) -> Option<u16> {
        let index = self
            .queues
            .iter()
            .position(|queue| *queue == Queue::Leased(slot))?;
        u16::try_from(index + 1).ok()
    }

    /// The number of leased queue pairs.
    pub fn leased(&self) -> usize {
        let is_leased = |queue: &&Queue| matches!(queue, Queue::Leased(_));
        self.queues.iter().filter(is_leased).count()
    }

    /// Frees the queue, or marks it lost if it could not be taken back.
    pub fn release(&mut self, queue: u16, is_usable: bool) {
        let index = usize::from(queue).checked_sub(1);
        if let Some(state) = index.and_then(|index| self.queues.get_mut(index)) {
            *state = if is_usable { Queue::Free } else { Queue::Lost };
        }
    }

    /// The state for `urdma status`.
    pub fn status(&self) -> Vec<LeaseStatus> {
        (1..)
            .zip(&self.queues)
            .map(|(queue, state)| LeaseStatus {
                queue,
                slot: match state {
                    Queue::Leased(slot) => Some(slot.number()),
                    Queue::Free | Queue::Lost => None,
                },
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leases(count: usize) -> Leases {
        Leases::new(Ok(LeaseOffer {
            dpdk: "DPDK 22.11.9".into(),
            file_prefix: "p".into(),
            runtime_dir: None,
            device: "net_memif0".into(),
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 9000,
            checksum: true,
            pools: (1..=count).map(|queue| format!("pool{queue}")).collect(),
            steering: LeaseSteering::Peer,
        }))
    }

    fn slot(index: u8) -> SlotId {
        SlotId::new(index).unwrap()
    }

    #[test]
    fn grant_gives_each_queue_once_and_again_after_release() {
        let mut leases = leases(2);
        let a = leases.grant(slot(5)).unwrap();
        let b = leases.grant(slot(6)).unwrap();
        assert_eq!((a.queue, b.queue, a.mempool.as_str()), (1, 2, "pool1"));
        assert_ne!(a.lcore_id, b.lcore_id);
        assert_eq!(leases.grant(slot(7)), Err(NotLeasable::AllLeased(2)));
        assert_eq!(leases.queue_of(slot(5)), Some(1));
        leases.release(1, true);
        assert_eq!(leases.grant(slot(7)).unwrap().queue, 1);
        leases.release(1, false);
        assert!(leases.grant(slot(8)).is_err());
    }

    #[test]
    fn grant_without_a_port_says_why() {
        let mut leases = Leases::new(Err(NotLeasable::NoPort));
        assert_eq!(leases.grant(slot(1)), Err(NotLeasable::NoPort));
        assert_eq!(leases.impossible_because(), Some(&NotLeasable::NoPort));
    }
}
