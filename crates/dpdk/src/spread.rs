//! Receive-side scaling: a NIC hashes a packet's addresses and ports, and the hash's entry in a
//! table names the queue.

use crate::{Error, Port, QueueIndex};

/// How a port spreads UDP over IPv4 when it is configured with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spreading {
    /// Entries of the table; the low bits of the hash choose one.
    pub entries: u16,
    /// Octets of the key.
    pub key_octets: u8,
}

impl Port {
    /// How the port spreads; `None` when its driver cannot, or lets nobody choose the key and the
    /// table.
    ///
    /// # Errors
    /// The device is gone.
    pub fn spreading(&self) -> Result<Option<Spreading>, Error> {
        let (mut entries, mut key_octets) = (0, 0);
        // SAFETY: the port exists, and the numbers are ours.
        let result =
            unsafe { dpdk_sys::urdma_port_spreading(self.id(), &mut entries, &mut key_octets) };
        Error::check("cannot ask the port how it spreads packets", result)?;
        Ok((entries > 0 && key_octets > 0).then_some(Spreading {
            entries,
            key_octets,
        }))
    }

    /// Sets the queue of each entry of the table; the port must be started.
    ///
    /// # Errors
    /// The driver's reason, or `EINVAL` when the table is not that long.
    pub fn redirect(&self, queues: &[QueueIndex]) -> Result<(), Error> {
        let queues: Vec<u16> = queues.iter().map(|queue| queue.0).collect();
        let entries = u16::try_from(queues.len()).unwrap_or(u16::MAX);
        // SAFETY: the port exists, and there are that many entries.
        let result = unsafe { dpdk_sys::urdma_port_redirect(self.id(), queues.as_ptr(), entries) };
        Error::check("cannot change the table of the receive queues", result).map(|_| ())
    }
}
