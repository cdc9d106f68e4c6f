//! The port as the data path sees it: [`PacketPort`], and what opening one takes and gives.

use std::collections::BTreeMap;
use std::path::Path;

use urdma_ipc::status::PoolStatus;
use urdma_underlay::MacAddr;

use crate::config::PortConfig;
use crate::lease::LeaseOffer;

/// What the data path needs of a port. One thread uses it, after [`PacketPort::enter`].
pub trait PacketPort: Send {
    /// The calling thread is the one that will use the port from now on.
    fn enter(&mut self);

    /// Its Ethernet address.
    fn mac(&self) -> MacAddr;

    /// The network interface that the kernel uses too, if there is one: its address and its neighbours are the kernel's.
    fn netdev(&self) -> Option<&str>;

    /// Largest IP packet, octets.
    fn mtu(&self) -> u16;

    /// Gives `sink` the frames that have arrived on the queues that are not leased, up to one burst a queue; how many there were.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize;

    /// Whether it takes another frame for sending.
    fn has_room(&mut self) -> bool;

    /// Lets `fill` write a frame of `octets` and takes it for sending with the next [`PacketPort::flush`].
    ///
    /// # Errors
    /// [`NoBuffer`]: the frame was not written.
    fn transmit(&mut self, octets: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), NoBuffer>;

    /// Sends what was taken; whether all of it. The rest goes with the next call.
    fn flush(&mut self) -> bool;

    /// Drops what was taken and not sent; how many frames.
    fn discard(&mut self) -> usize;

    /// Leaves `queue` to a lessee, to whom packets for `udp_port` are steered if the device can.
    ///
    /// # Errors
    /// The queue stays here, and why.
    fn lend(&mut self, queue: u16, udp_port: u16) -> Result<(), String>;

    /// Takes back the queue of a lessee that is gone: what is in it is dropped, its packet buffers are made anew.
    ///
    /// # Errors
    /// The queue cannot be leased again, and why.
    fn reclaim(&mut self, queue: u16) -> Result<(), String>;

    /// What `urdma status` shows.
    fn report(&mut self) -> PortReport;
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
}

/// A port that is ready for use.
pub struct OpenPort {
    /// The data path's side of it.
    pub port: Box<dyn PacketPort>,
    /// Name of the device.
    pub device: String,
    /// What it offers to lessees, or why it offers nothing.
    pub leases: Result<LeaseOffer, String>,
}

/// What opening a port is given.
#[derive(Debug)]
pub struct PortRequest<'a> {
    /// The configuration.
    pub config: &'a PortConfig,
    /// The run directory, absolute.
    pub run_dir: &'a Path,
    /// The node GUID, from which a virtual port's Ethernet address is made.
    pub node_guid: u64,
    /// Where the driver's messages go; nothing: nowhere.
    pub log: Option<&'a Path>,
}
