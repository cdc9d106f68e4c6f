//! Receive-side scaling (RSS): a NIC hashes the addresses and ports of a packet, and the entry of
//! the redirection table at the hash selects the queue.

use crate::{Error, Port, QueueIndex};

/// Parameters of RSS on a port, for UDP over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spreading {
    /// Entries of the redirection table; the low bits of the hash select one.
    pub entries: u16,
    /// Octets of the hash key.
    pub key_octets: u8,
}

impl Port {
    /// The RSS parameters of the port; `None` if its driver has no RSS, or no configurable key and
    /// table.
    ///
    /// # Errors
    /// The device was removed.
    pub fn spreading(&self) -> Result<Option<Spreading>, Error> {
        let (mut entries, mut key_octets) = (0, 0);
        // SAFETY: the port exists, and the pointers are to local variables.
        let result =
            unsafe { dpdk_sys::urdma_port_spreading(self.id(), &mut entries, &mut key_octets) };
        Error::check("cannot query the port's RSS parameters", result)?;
        Ok((entries > 0 && key_octets > 0).then_some(Spreading {
            entries,
            key_octets,
        }))
    }

    /// Sets the queue of each entry of the redirection table; the port must be started.
    ///
    /// # Errors
    /// The driver's error, or `EINVAL` if the length is not that of the table.
    pub fn redirect(&self, queues: &[QueueIndex]) -> Result<(), Error> {
        let queues: Vec<u16> = queues.iter().map(|queue| queue.0).collect();
        let entries = u16::try_from(queues.len()).unwrap_or(u16::MAX);
        // SAFETY: the port exists, and the length passed is at most that of the slice.
        let result = unsafe { dpdk_sys::urdma_port_redirect(self.id(), queues.as_ptr(), entries) };
        Error::check("cannot set the redirection table", result).map(|_| ())
    }
}
