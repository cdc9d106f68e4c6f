//! The data path without the thread, and without a control socket: for counts of its instructions.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use urdma_channel::{ChannelConfig, OwnDirectory, OwnRegion};
use urdma_memfd::MemoryError;
use urdma_types::SlotId;
use urdma_waiting::OwnPage;

use super::channels::PeerMemory;
use super::DataPlane;
use crate::identity::Identity;
use crate::port::PacketPort;
use crate::shared::Shared;

/// Connection requests of a user in a second; there are none.
const REQUESTS_PER_SECOND: u32 = 1;

/// See the module.
pub struct InProcess {
    plane: DataPlane,
    identity: Arc<Identity>,
    directory: OwnDirectory,
    directory_fd: OwnedFd,
    page_fd: OwnedFd,
}

/// What slot 0 shows the process of a slot.
#[derive(Debug)]
pub struct Offer {
    /// The directory of the instance.
    pub directory: OwnedFd,
    /// The region that slot 0 writes.
    pub region: OwnedFd,
    /// Slot 0's page.
    pub page: OwnedFd,
}

impl std::fmt::Debug for InProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}

impl InProcess {
    /// A host with this address and port, which computes no UDP checksums over IPv4.
    ///
    /// # Errors
    /// Its memory cannot be created.
    pub fn new(address: IpAddr, port: Box<dyn PacketPort>) -> io::Result<Self> {
        let (page, page_fd) = OwnPage::create().map_err(io::Error::other)?;
        let (directory, directory_fd) = OwnDirectory::create().map_err(io::Error::other)?;
        let run_dir = format!("/{address}");
        let identity = Arc::new(Identity::new(Path::new(&run_dir), Some(&[address])));
        let shared = Arc::new(Shared::new()?);
        let port = Some((port, false));
        let of_plane = Arc::clone(&identity);
        let plane = DataPlane::new(page, shared, of_plane, port, REQUESTS_PER_SECOND)?;
        Ok(Self {
            plane,
            identity,
            directory,
            directory_fd,
            page_fd,
        })
    }

    /// The identity of the host.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Gives a slot to a process.
    ///
    /// # Errors
    /// The channel's memory cannot be created.
    pub fn open(&mut self, slot: SlotId) -> io::Result<Offer> {
        self.directory.assign(slot.number());
        let created = OwnRegion::create(&ChannelConfig::PACKETS, SlotId::DAEMON.number());
        let (region, fd) = created.map_err(io::Error::other)?;
        self.plane.channels.open(slot, region);
        Ok(Offer {
            directory: self.directory_fd.try_clone()?,
            region: fd,
            page: self.page_fd.try_clone()?,
        })
    }

    /// Reads what the process of a slot writes, which has offered these descriptors.
    ///
    /// # Errors
    /// They are others.
    pub fn attach(&mut self, slot: SlotId, offer: Vec<OwnedFd>) -> Result<(), MemoryError> {
        let peer = PeerMemory::open(offer)?;
        self.plane.channels.attach(slot, peer);
        Ok(())
    }

    /// One pass of the data thread, at a moment; whether there was work.
    pub fn pass(&mut self, now_ns: u64) -> bool {
        let is_full = self.plane.is_full(now_ns);
        self.plane.pass(now_ns, is_full)
    }
}
