//! Queue pairs, and lending them to other processes.

use arrayvec::ArrayVec;

use crate::{free_bulk, Burst, Error, Mempool, RxQueue, TxQueue};

/// Bursts that are thrown away at most when a queue is taken back: more than any queue holds.
const DRAIN_BURSTS: usize = 1024;
/// One of so many buffers of a pool must be free for a pair that could not be stopped to be lent
/// again.
const MINIMUM_SHARE: u32 = 4;

/// Both queues of one index, with the pool that the receive queue fills its buffers from.
///
/// Received buffers are of this pool, and nobody else's are: [`QueuePair::lend`] counts on it.
#[derive(Debug)]
pub struct QueuePair {
    /// Where packets arrive.
    pub rx: RxQueue,
    /// Where packets leave.
    pub tx: TxQueue,
    /// The pool of `rx`, and of what the pair's user sends.
    pub pool: Mempool,
}

impl QueuePair {
    /// Gives the pair to another process, which attaches to it as a secondary.
    ///
    /// # Errors
    /// The pair, when this process still holds buffers of its pool.
    pub fn lend(self) -> Result<Lent, QueuePair> {
        // Buffers in a NIC's descriptors are not in the pool either: how many that is, is known
        // when the pair is idle, which the first lending sees.
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
    /// The pool of the pair: its name and counts are of interest.
    pub const fn pool(&self) -> &Mempool {
        &self.pair.pool
    }

    /// Takes the pair back from a process that is gone, however it ended; nothing of what it held
    /// stays lost.
    ///
    /// Packets that wait in the receive queue are thrown away. The process must have ended: one
    /// that still used the pair would corrupt the pool.
    ///
    /// Where the driver cannot stop one pair of queues (net_virtio), the descriptors are all there
    /// again, but the buffers that a killed process held stay lost, and what it sent last comes
    /// back when the pair sends again: such a pair is usable as long as a quarter of its buffers
    /// are free.
    ///
    /// # Errors
    /// Too few buffers came back: the pair is unusable until the port is configured again.
    pub fn take_back(mut self) -> Result<QueuePair, Error> {
        let stopped = self.pair.stop()?;
        let is_rebuilt = stopped || is_software(&self.pair.rx);
        if is_rebuilt {
            // SAFETY: the other process is gone, the driver's buffers are back or it never keeps
            // any, and lending was refused while this process held any.
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
                format!("{have} buffers of a lent queue are left, and {want} are needed"),
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
    /// Stops both queues, so that the driver gives back the buffers in their descriptors; false,
    /// with both running, when it cannot.
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

    /// Makes whole what a process that was killed in the middle of a burst has left in the queues.
    fn mend(&mut self) {
        // SAFETY: the port and the pair exist, and nobody else uses the pair.
        let result = unsafe { dpdk_sys::urdma_virtio_mend(self.rx.port(), self.rx.index().0) };
        // The driver is another one, or not as it is known.
        let _ = result;
    }
}

/// Whether the queue's driver takes buffers only while it receives, and keeps none.
fn is_software(rx: &RxQueue) -> bool {
    rx.driver_is("net_memif") || rx.driver_is("net_ring")
}

impl RxQueue {
    fn driver_is(&self, name: &str) -> bool {
        // SAFETY: the port exists; the name it returns is a constant string.
        let driver = unsafe { std::ffi::CStr::from_ptr(dpdk_sys::urdma_port_driver(self.port())) };
        driver.to_bytes() == name.as_bytes()
    }

    fn stop(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` keeps other threads away.
        let result = unsafe { dpdk_sys::rte_eth_dev_rx_queue_stop(self.port(), self.index().0) };
        Error::check("cannot stop the receive queue", result).map(|_| ())
    }

    fn start(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` keeps other threads away.
        let result = unsafe { dpdk_sys::rte_eth_dev_rx_queue_start(self.port(), self.index().0) };
        Error::check("cannot start the receive queue again", result).map(|_| ())
    }
}

impl TxQueue {
    fn stop(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` keeps other threads away.
        let result = unsafe { dpdk_sys::rte_eth_dev_tx_queue_stop(self.port(), self.index().0) };
        Error::check("cannot stop the transmit queue", result).map(|_| ())
    }

    fn start(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` keeps other threads away.
        let result = unsafe { dpdk_sys::rte_eth_dev_tx_queue_start(self.port(), self.index().0) };
        Error::check("cannot start the transmit queue again", result).map(|_| ())
    }
}
