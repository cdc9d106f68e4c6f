//! Receive and transmit queues of a port.

use crate::{Burst, Eal, Error, Mbuf, MAX_BURST};

/// Index of a queue of a port, the same for both directions of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueIndex(pub u16);

/// A receive queue, for one thread at a time.
#[derive(Debug)]
pub struct RxQueue {
    port: u16,
    index: QueueIndex,
    _eal: Eal,
}

impl RxQueue {
    pub(crate) fn new(port: u16, index: QueueIndex, eal: Eal) -> Self {
        Self {
            port,
            index,
            _eal: eal,
        }
    }

    /// The queue's index.
    pub const fn index(&self) -> QueueIndex {
        self.index
    }

    /// Appends received packets to the burst, as many as it has room for; returns their number.
    #[inline]
    pub fn burst(&mut self, burst: &mut Burst) -> usize {
        self.burst_of(burst, MAX_BURST)
    }

    /// As [`RxQueue::burst`], for at most `most` packets.
    #[inline]
    pub fn burst_of(&mut self, burst: &mut Burst, most: usize) -> usize {
        let held = burst.len();
        let room = u16::try_from(most.min(MAX_BURST - held)).unwrap_or(0);
        // SAFETY: `held` is at most the burst's capacity.
        let free = unsafe { burst.as_mut_ptr().add(held) };
        // SAFETY: the queue was set up; `&mut self` excludes other threads; at most `room` pointers
        // are stored.
        let count = unsafe { dpdk_sys::urdma_rx_burst(self.port, self.index.0, free.cast(), room) };
        // SAFETY: `count` more elements were just written; the burst owns their buffers.
        unsafe { burst.set_len(held + usize::from(count)) };
        usize::from(count)
    }

    /// A descriptor that becomes readable when packets arrive after a call of [`RxQueue::arm`].
    ///
    /// # Errors
    /// "Not supported": net_memif of DPDK 22.11 has no receive interrupts, and no driver has them
    /// in a secondary.
    pub fn interrupt(&self) -> Result<i32, Error> {
        // SAFETY: the queue was set up; the function only reads.
        let descriptor =
            unsafe { dpdk_sys::rte_eth_dev_rx_intr_ctl_q_get_fd(self.port, self.index.0) };
        if descriptor < 0 {
            return Err(Error::new(
                libc::ENOTSUP,
                "the port has no receive interrupts",
            ));
        }
        Ok(descriptor)
    }

    /// Enables one interrupt for the next packet. The caller must then poll the queue once more.
    ///
    /// # Errors
    /// "Not supported".
    pub fn arm(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` excludes other threads.
        let result = unsafe { dpdk_sys::rte_eth_dev_rx_intr_enable(self.port, self.index.0) };
        Error::check("cannot enable receive interrupts", result).map(|_| ())
    }

    /// Disables interrupts.
    ///
    /// # Errors
    /// "Not supported".
    pub fn disarm(&mut self) -> Result<(), Error> {
        // SAFETY: the queue was set up, and `&mut self` excludes other threads.
        let result = unsafe { dpdk_sys::rte_eth_dev_rx_intr_disable(self.port, self.index.0) };
        Error::check("cannot disable receive interrupts", result).map(|_| ())
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }
}

/// A transmit queue, for one thread at a time.
#[derive(Debug)]
pub struct TxQueue {
    port: u16,
    index: QueueIndex,
    _eal: Eal,
}

impl TxQueue {
    pub(crate) fn new(port: u16, index: QueueIndex, eal: Eal) -> Self {
        Self {
            port,
            index,
            _eal: eal,
        }
    }

    /// The queue's index.
    pub const fn index(&self) -> QueueIndex {
        self.index
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Sends the burst's packets in order and removes those that were sent; returns their number.
    ///
    /// The caller may send the rest again, but not without a limit: a peer that has ended accepts
    /// no packets.
    #[inline]
    pub fn burst(&mut self, burst: &mut Burst) -> usize {
        let sent = self.send(burst);
        drop_sent(burst, sent);
        sent
    }

    #[inline]
    fn send(&mut self, burst: &mut [Mbuf]) -> usize {
        let count = u16::try_from(burst.len()).unwrap_or(u16::MAX);
        let first = burst.as_mut_ptr();
        // SAFETY: the queue was set up; `&mut self` excludes other threads; `Mbuf` is a transparent
        // pointer, and the array has `count` of them. The driver owns those that were sent, which
        // the caller removes.
        let sent =
            unsafe { dpdk_sys::urdma_tx_burst(self.port, self.index.0, first.cast(), count) };
        usize::from(sent)
    }
}

/// Removes the first `sent` buffers without freeing them, since the driver owns them.
#[inline]
fn drop_sent(burst: &mut Burst, sent: usize) {
    let held = burst.len();
    let left = held - sent.min(held);
    if left != 0 {
        let first = burst.as_mut_ptr();
        // SAFETY: both ranges are within the `held` elements; those overwritten are not owned any
        // more.
        unsafe { std::ptr::copy(first.add(sent), first, left) };
    }
    // SAFETY: the first `left` elements are the buffers that were not sent.
    unsafe { burst.set_len(left) };
}
