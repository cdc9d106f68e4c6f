//! Queue pairs, and lending them to other processes.

use arrayvec::ArrayVec;

use crate::{free_bulk, Burst, Error, Mempool, RxQueue, TxQueue};

/// Bursts to discard at most when a queue is reclaimed: more than any queue holds.
const DRAIN_BURSTS: usize = 1024;
/// A pair that cannot be stopped is lent again only if at least one in this many buffers of its
/// pool is free.
const MINIMUM_SHARE: u32 = 4;

/// Both queues of one index, with the pool from which the receive queue takes its buffers.
///
/// No other queue uses the pool, on which [`QueuePair::lend`] relies.
#[derive(Debug)]
pub struct QueuePair {
    /// The receive queue.
    pub rx: RxQueue,
    /// The transmit queue.
    pub tx: TxQueue,
    /// The pool of `rx`, and of the packets that the user of the pair sends.
    pub pool: Mempool,
}

impl QueuePair {
    /// Lends the pair to another process, which attaches as a secondary.
    ///
    /// # Errors
    /// The pair, if this process still holds buffers of its pool.
    pub fn lend(self) -> Result<Lent, QueuePair> {
        // Buffers in a NIC's descriptors are not in the pool either. Their number is taken at the
        // first lending, when the pair is idle.
        let resting = self.pool.available();
        if is_software(&self.rx) && resting != self.pool.buffers() {
            return Err(self);
        }
        Ok(Lent {
            pair: self,
            resting,
        })
    }
}

/// A queue pair that another process uses.
#[derive(Debug)]
pub struct Lent {
    pair: QueuePair,
    resting: u32,
}

impl Lent {
    /// The pool of the pair, for its name and counts.
    pub const fn pool(&self) -> &Mempool {
        &self.pair.pool
    }

    /// Reclaims the pair and the buffers of a process that has exited or was killed.
    ///
    /// Packets in the receive queue are discarded. The process must have ended: if it still used
    /// the pair, it would corrupt the pool.
    ///
    /// If the driver cannot stop a single pair of queues (net_virtio), all descriptors are
    /// reclaimed, but the buffers that a killed process held are lost, and those of its last
    /// packets are freed when the pair transmits again. Such a pair is usable as long as a quarter
    /// of its buffers is free.
    ///
    /// # Errors
    /// Too few buffers were reclaimed: the pair is unusable until the port is configured again.
    pub fn take_back(mut self) -> Result<QueuePair, Error> {
        let stopped = self.pair.stop()?;
        let is_rebuilt = stopped || is_software(&self.pair.rx);
        if is_rebuilt {
            // SAFETY: the other process has ended; the driver has returned its buffers, or never
            // keeps any; this process holds none, since `lend` refuses the pair otherwise.
            unsafe { self.pair.pool.rebuild() }?;
        }
        if stopped {
            self.pair.start()?;
        } else {
            self.pair.mend();
        }
        self.drain();
        let have = self.pair.pool.available();
        let want = if is_rebuilt {
            self.resting
        } else {
            self.pair.pool.buffers() / MINIMUM_SHARE
        };
        if have < want {
            return Err(Error::new(
                libc::EBUSY,
                format!("only {have} buffers of a lent queue are free, {want} are needed"),
            ));
        }
        Ok(self.pair)
    }

    fn drain(&mut self) {
        let mut burst: Burst = ArrayVec::new();
        for _ in 0..DRAIN_BURSTS {
            if self.pair.rx.burst(&mut burst) == 0 {
                break;
            }
            free_bulk(&mut burst);
        }
    }
}

impl QueuePair {
    /// Stops both queues, so that the driver frees the buffers in their descriptors; false, with
    /// both running, if it cannot.
    fn stop(&mut self) -> Result<bool, Error> {
        if self.rx.stop().is_err() {
            return Ok(false);
        }
        if self.tx.stop().is_err() {
            self.rx.start()?;
            return Ok(false);
        }
        Ok(true)
    }

    fn start(&mut self) -> Result<(), Error> {
        self.tx.start()?;
        self.rx.start()
    }

    /// Repairs the queues after a process was killed in the middle of a burst.
    fn mend(&mut self) {
        // SAFETY: the port and the pair exist, and no other thread or process uses the pair.
        let result = unsafe { dpdk_sys::urdma_virtio_mend(self.rx.port(), self.rx.index().0) };
        // Another driver, or an unknown version of it.
        let _ = result;
    }
}

/// Whether the queue's driver allocates buffers only while it receives, and keeps none.
fn is_software(rx: &RxQueue) -> bool {
    rx.driver_is("net_memif") || rx.driver_is("net_ring")
}

impl RxQueue {
    fn driver_is(&self, name: &str) -> bool {
        // SAFETY: the port exists, and the returned name is a constant string.
        let driver = unsafe { std::ffi::CStr::from_ptr(dpdk_sys::urdma_port_driver(self.port())) };
        driver.to_bytes() == name.as_bytes()
    }

    fn stop(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` excludes other threads.
        let result = unsafe { dpdk_sys::rte_eth_dev_rx_queue_stop(self.port(), self.index().0) };
        Error::check("cannot stop the receive queue", result).map(|_| ())
    }

    fn start(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` excludes other threads.
        let result = unsafe { dpdk_sys::rte_eth_dev_rx_queue_start(self.port(), self.index().0) };
        Error::check("cannot start the receive queue again", result).map(|_| ())
    }
}

impl TxQueue {
    fn stop(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` excludes other threads.
        let result = unsafe { dpdk_sys::rte_eth_dev_tx_queue_stop(self.port(), self.index().0) };
        Error::check("cannot stop the transmit queue", result).map(|_| ())
    }

    fn start(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` excludes other threads.
        let result = unsafe { dpdk_sys::rte_eth_dev_tx_queue_start(self.port(), self.index().0) };
        Error::check("cannot start the transmit queue again", result).map(|_| ())
    }
}
