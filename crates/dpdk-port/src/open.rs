//! Starting DPDK and a port.

use dpdk::{
    is_pci_address, Drivers, Eal, EalOptions, Error, FlowVersion, LcoreId, Log, Memory, Mempool,
    PoolConfig, Port as DpdkPort, PortConfig, Process, QueueIndex, QueuePair,
};
use nix::net::if_::if_nametoindex;
use urdma_abi::port::pool_name;
use urdma_underlay::MacAddr;

use crate::device;
use crate::error::{NoTable, NotLeasable, OpenError};
use crate::params::Params;
use crate::port::Dpdk;
use crate::redirection::Table;
use crate::steer::Steer;

const POOL_CACHE: u32 = 64;

/// An open port.
pub(crate) struct Opened {
    pub(crate) port: Dpdk,
    /// Name of the device.
    pub(crate) device: String,
    pub(crate) mac: MacAddr,
    /// Queue pairs, urdmad's included.
    pub(crate) queues: u16,
    /// How packets reach a lessee's queue, or why no queue can be lent.
    pub(crate) steering: Result<Steering, NotLeasable>,
}

/// How packets reach the queue of their lessee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steering {
    /// The peer chooses the queue.
    Peer,
    /// By rules of the NIC.
    Rules,
    /// By the redirection table of the NIC, which has this number of entries.
    Table(usize),
}

/// Checks that the driver of a device with these arguments is installed.
///
/// # Errors
/// It is not.
pub(crate) fn check_driver(device: &str) -> Result<(), OpenError> {
    match Drivers::of_devices([device]).missing() {
        Some(path) => Err(OpenError::Driver(path.to_owned())),
        None => Ok(()),
    }
}

/// Starts DPDK and the port.
///
/// # Errors
/// They cannot be started.
pub(crate) fn open(params: &Params) -> Result<Opened, OpenError> {
    let netdev = params.shared_netdev.as_deref();
    // DPDK reads it when the port starts.
    let program = netdev.map(kernel_program).transpose()?;
    let mut device = device::full_address(&params.device);
    if let Some(program) = &program {
        device = format!("{device},xdp_prog={}", program.path());
    }
    check_driver(&device)?;
    let plan = Plan::new(params, &device);
    let eal = start_dpdk(params, &device, plan.memory.clone())?;
    let mut port = DpdkPort::attach(&eal, &device)?;
    let pools = plan.make_pools(&eal, &device, params.mtu)?;
    start(&mut port, &pools, params.mtu, None).map_err(|error| match netdev {
        Some(netdev) => OpenError::Xdp {
            netdev: netdev.to_owned(),
            error,
        },
        None => error.into(),
    })?;
    let steering = match plan.leasable {
        Ok(()) => choose_steering(&mut port, &device, &pools, params.mtu)?,
        Err(reason) => Err(reason),
    };
    let (steering, table) = match steering {
        Ok((steering, table)) => (Ok(steering), table),
        Err(reason) => (Err(reason), None),
    };
    let queues = plan.lease_queues + 1;
    let pairs = (0..queues)
        .map(|index| port.take_pair(QueueIndex(index)))
        .collect::<Option<Vec<QueuePair>>>()
        .ok_or(OpenError::Queues)?;
    let mac = MacAddr(port.mac()?);
    Ok(Opened {
        port: Dpdk::new(eal, port, pairs, table),
        device: device.split(',').next().unwrap_or(&device).to_owned(),
        mac,
        queues,
        steering,
    })
}

/// The BPF program that separates the port's packets from the kernel's on this network interface.
fn kernel_program(netdev: &str) -> Result<Steer, OpenError> {
    if if_nametoindex(netdev).is_err() {
        return Err(OpenError::Interface(netdev.to_owned()));
    }
    Steer::new().map_err(OpenError::Program)
}

/// Queues and memory of the port.
struct Plan {
    /// Whether queue pairs can be leased, as far as is known before the port is open.
    leasable: Result<(), NotLeasable>,
    /// Leasable queue pairs, beside the daemon's own.
    lease_queues: u16,
    /// Packet buffers of each queue pair.
    lease_buffers: u32,
    memory: Memory,
}

impl Plan {
    fn new(params: &Params, device: &str) -> Self {
        let wanted = params.lease_queues;
        let lease_buffers = if device::is_software(device) {
            device::SOFTWARE_LEASE_BUFFERS
        } else {
            device::LEASE_BUFFERS
        };
        let buffers = device::OWN_BUFFERS + u32::from(wanted) * lease_buffers;
        let megabytes = params
            .hugepages_mb
            .unwrap_or_else(|| device::memory_mb(device, params.mtu, buffers));
        let leasable = leasable(wanted, device, megabytes);
        let memory = match leasable {
            Ok(()) => Memory::Huge {
                megabytes,
                directory: None,
            },
            Err(_) => Memory::Plain {
                megabytes: device::memory_mb(device, params.mtu, device::OWN_BUFFERS),
            },
        };
        Self {
            lease_queues: if leasable.is_ok() { wanted } else { 0 },
            leasable,
            lease_buffers,
            memory,
        }
    }

    /// One pool for each queue pair.
    fn make_pools(&self, eal: &Eal, device: &str, mtu: u16) -> Result<Vec<Mempool>, Error> {
        (0..=self.lease_queues)
            .map(|queue| {
                let config = PoolConfig {
                    buffers: if queue == 0 {
                        device::OWN_BUFFERS
                    } else {
                        self.lease_buffers
                    },
                    cache: POOL_CACHE,
                    buffer_octets: device::data_room(mtu),
                };
                let name = pool_name(queue);
                if device::takes_whole_pages(device) {
                    Mempool::create_in_pages(eal, &name, &config)
                } else {
                    Mempool::create(eal, &name, &config)
                }
            })
            .collect()
    }
}

/// Whether `wanted` queue pairs of the device can be leased.
fn leasable(wanted: u16, device: &str, megabytes: u32) -> Result<(), NotLeasable> {
    if wanted == 0 {
        return Err(NotLeasable::NotConfigured);
    }
    match device::no_lease_because(device, wanted + 1) {
        Some(reason) => Err(reason),
        None => device::check_hugepages(megabytes),
    }
}

fn start_dpdk(params: &Params, device: &str, memory: Memory) -> Result<Eal, Error> {
    Eal::init(&EalOptions {
        process: Process::Primary,
        file_prefix: params.file_prefix.clone(),
        runtime_directory: Some(params.run_dir.clone()),
        lcore: LcoreId::PRIMARY,
        memory,
        drivers: Drivers::of_devices([device]),
        pci: is_pci_address(device).then(|| device.to_owned()),
        log: params.log.clone().map_or(Log::Off, Log::File),
    })
}

/// Configures and starts the port; with a key the device chooses queues by RSS.
fn start(
    port: &mut DpdkPort,
    pools: &[Mempool],
    mtu: u16,
    hash_key: Option<&[u8]>,
) -> Result<(), Error> {
    port.configure(&PortConfig {
        pools,
        mtu,
        descriptors: None,
        rx_interrupts: false,
        hash_key,
    })?;
    port.start()?;
    // Drivers without this choice receive all anyway.
    match port.accept_groups() {
        Err(error) if !error.is_unsupported() => Err(error),
        _ => Ok(()),
    }
}

/// How packets are steered to a leased queue, or why they are not; with the table, if one is used.
type Choice = Result<(Steering, Option<Table>), NotLeasable>;

/// Finds a way to steer the packets of a leased queue, and only those, to it.
///
/// # Errors
/// The port, which was started, cannot be started again.
fn choose_steering(
    port: &mut DpdkPort,
    device: &str,
    pools: &[Mempool],
    mtu: u16,
) -> Result<Choice, Error> {
    if !is_pci_address(device) {
        return Ok(Ok((Steering::Peer, None)));
    }
    let udp_port = urdma_types::PORT_BASE;
    let rules = match port.steer(udp_port, FlowVersion::V4, QueueIndex(1)) {
        Ok(_) => return Ok(Ok((Steering::Rules, None))),
        Err(error) => error,
    };
    let table = match port.spreading()?.and_then(Table::new) {
        None => NoTable::None,
        Some(table) => {
            port.stop()?;
            let entries = table.entries();
            let started = start(port, pools, mtu, Some(&table.hash_key()))
                .and_then(|()| port.redirect(&vec![QueueIndex(0); entries]));
            let error = match started {
                Ok(()) => return Ok(Ok((Steering::Table(entries), Some(table)))),
                Err(error) => error,
            };
            port.stop()?;
            start(port, pools, mtu, None)?;
            NoTable::Dpdk(error)
        }
    };
    Ok(Err(NotLeasable::Steering { rules, table }))
}
