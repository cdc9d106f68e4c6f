//! The port as the data path sees it: [`PacketPort`], and what opening one takes and gives.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use urdma_ipc::status::PoolStatus;
use urdma_underlay::{MacAddr, Verification};

use crate::config::PortConfig;
use crate::lease::{LeaseOffer, NotLeasable};

use super::error::QueueError;

/// The operations that the data path needs. One thread uses a port, after [`PacketPort::enter`].
pub trait PacketPort: Send {
    /// Prepares the port for use by the calling thread.
    fn enter(&mut self);

    /// Its Ethernet address.
    fn mac(&self) -> MacAddr;

    /// Who resolves the Ethernet addresses of neighbours.
    fn resolver(&self) -> Resolver<'_>;

    /// How the checksums of frames that arrive are checked.
    fn verification(&self) -> Verification {
        Verification::Full
    }

    /// Largest IP packet, octets.
    fn mtu(&self) -> u16;

    /// Passes the frames that have arrived on queues that are not leased to `sink`, up to one burst
    /// per queue; returns their number.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize;

    /// Whether the port accepts another frame for sending.
    fn has_room(&mut self) -> bool;

    /// Room for a frame of `octets`, which the caller writes at once: it is sent with the next
    /// [`PacketPort::flush`].
    ///
    /// # Errors
    /// [`NoBuffer`]: nothing is sent.
    fn transmit(&mut self, octets: usize) -> Result<&mut [u8], NoBuffer>;

    /// Sends the accepted frames; whether all were sent. The others are sent by the next call.
    fn flush(&mut self) -> bool;

    /// Drops the accepted frames that were not sent; returns their number.
    fn discard(&mut self) -> usize;

    /// Lends `queue` to a lessee, and steers packets for `udp_port` to it if the device can.
    ///
    /// # Errors
    /// The queue is not lent.
    fn lend(&mut self, queue: u16, udp_port: u16) -> Result<(), QueueError>;

    /// Takes back the queue of a lessee that has ended: its packets are dropped, its buffers
    /// reinitialised.
    ///
    /// # Errors
    /// The queue cannot be leased again.
    fn reclaim(&mut self, queue: u16) -> Result<(), QueueError>;

    /// Whether this host has members of a group, for a port that receives from no other groups.
    fn set_group(&mut self, _group: IpAddr, _has_members: bool) {}

    /// What [`PacketPort::arm`] is to call; a port that cannot is polled.
    fn set_wake(&mut self, _wake: Box<dyn Fn() + Send>) {}

    /// Has the data thread woken once when a frame arrives or has arrived; false if the port
    /// cannot.
    fn arm(&mut self) -> bool {
        false
    }

    /// The data thread is awake.
    fn disarm(&mut self) {}

    /// The state that `urdma status` shows.
    fn report(&mut self) -> PortReport;
}

/// Who resolves the Ethernet addresses of a port's neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolver<'a> {
    /// The data thread.
    DataThread,
    /// The kernel, on this network interface, which it also uses: it has the address too.
    Kernel(&'a str),
    /// Nobody: datagrams are the kernel's, which routes them.
    Routes,
}

/// No packet buffer is free, or the port has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoBuffer;

/// The state of a port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortReport {
    /// Whether the link is up.
    pub link_up: bool,
    /// The driver's counters.
    pub hardware: BTreeMap<String, u64>,
    /// Packet buffers by pool.
    pub pools: Vec<PoolStatus>,
    /// What does not work, a sentence each.
    pub notes: Vec<String>,
}

/// An open port.
pub struct OpenPort {
    /// The data path's side.
    pub port: Box<dyn PacketPort>,
    /// Name of the device.
    pub device: String,
    /// The offer to lessees, or the reason why there is none.
    pub leases: Result<LeaseOffer, NotLeasable>,
}

/// Arguments of opening a port.
#[derive(Debug)]
pub struct PortRequest<'a> {
    /// The configuration.
    pub config: &'a PortConfig,
    /// The run directory, absolute.
    pub run_dir: &'a Path,
    /// The instance's addresses.
    pub addresses: &'a [IpAddr],
    /// Processes that can be attached at the same time.
    pub slots: u16,
    /// The node GUID, from which a virtual port's Ethernet address is made.
    pub node_guid: u64,
    /// File for the driver's messages; without one they are discarded.
    pub log: Option<&'a Path>,
}
