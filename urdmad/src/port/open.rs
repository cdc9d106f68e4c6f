//! Starting DPDK and a port.

use std::path::Path;

use ::dpdk::{
    is_pci_address, remove_leftovers as remove_files_of, Drivers, Eal, EalOptions, Error,
    FlowVersion, LcoreId, Log, Memory, Mempool, PoolConfig, Port as DpdkPort, PortConfig, Process,
    QueueIndex, QueuePair,
};
use nix::net::if_::if_nametoindex;
use urdma_ipc::status::LeaseSteering;

use super::dpdk::Dpdk;
use super::interface::{OpenPort, PacketPort, PortRequest};
use super::steer::{self, Steer};
use super::table::Table;
use super::{device, tap, udp};
use crate::config::{self, PortKind};
use crate::lease::LeaseOffer;

const POOL_CACHE: u32 = 64;

/// Removes the files that a killed daemon has left of this run directory's port.
pub fn remove_leftovers(run_dir: &Path) {
    remove_files_of(&file_prefix(run_dir), Some(run_dir));
}

/// Identifies the primary on this machine, the same at each start; short, because names of sockets
/// are made from it.
fn file_prefix(run_dir: &Path) -> String {
    let hash = crate::identity::fnv1a([run_dir.as_os_str().as_encoded_bytes()]);
    format!("urdma-{:08x}", hash >> 32)
}

/// Starts the port, and DPDK if it needs that.
///
/// # Errors
/// The reason, as a sentence.
pub fn open(request: &PortRequest<'_>) -> Result<OpenPort, String> {
    let config = request.config;
    if config.kind == PortKind::Udp {
        return udp::open(request);
    }
    let netdev = device::netdev(config);
    // DPDK reads it when the port starts.
    let program = netdev.map(kernel_program).transpose()?;
    let mut device = device::arguments(config, request.node_guid)?;
    if let Some(program) = &program {
        device = format!("{device},xdp_prog={}", program.path());
    }
    let plan = Plan::new(config, &device);
    let eal = start_dpdk(request, &device, plan.memory.clone())?;
    let mut port = DpdkPort::attach(&eal, &device).map_err(|error| error.to_string())?;
    let pools = plan.make_pools(&eal, config.mtu)?;
    start(&mut port, &pools, config.mtu, None).map_err(|error| match netdev {
        Some(netdev) => steer::explain(&error, netdev),
        None => error.to_string(),
    })?;
    let steering = match plan.leasable {
        Ok(()) => choose_steering(&mut port, &device, &pools, config.mtu)
            .map_err(|error| error.to_string())?,
        Err(reason) => Err(reason),
    };
    let (steering, table) = match steering {
        Ok((steering, table)) => (Ok(steering), table),
        Err(reason) => (Err(reason), None),
    };
    let pairs = (0..=plan.lease_queues)
        .map(|index| port.take_pair(QueueIndex(index)))
        .collect::<Option<Vec<QueuePair>>>()
        .ok_or("the port has too few queues")?;
    let netdev = netdev.map(str::to_owned);
    let port = Dpdk::new(eal, port, pairs, table, config.mtu, netdev)
        .map_err(|error| error.to_string())?;
    if let PortKind::Tap { netdev } = &config.kind {
        tap::set_kernel_mac(netdev, port.mac())
            .map_err(|error| format!("cannot set the address of {netdev}: {error}"))?;
    }
    let device = device.split(',').next().unwrap_or(&device).to_owned();
    let leases = steering.map(|steering| LeaseOffer {
        file_prefix: file_prefix(request.run_dir),
        runtime_dir: Some(request.run_dir.to_owned()),
        device: device.clone(),
        mac: port.mac().0,
        mtu: config.mtu,
        checksum: config.checksum,
        pools: (1..=plan.lease_queues).map(pool_name).collect(),
        steering,
    });
    Ok(OpenPort {
        port: Box::new(port),
        device,
        leases,
    })
}

/// The BPF program that separates the port's packets from the kernel's on this network interface.
fn kernel_program(netdev: &str) -> Result<Steer, String> {
    if if_nametoindex(netdev).is_err() {
        return Err(format!("there is no network interface \"{netdev}\""));
    }
    Steer::new().map_err(|error| format!("no memory for a program: {error}"))
}

/// Queues and memory of the port.
struct Plan {
    /// Whether queue pairs can be leased, as far as is known before the port is open.
    leasable: Result<(), String>,
    /// Leasable queue pairs, beside the daemon's own.
    lease_queues: u16,
    /// Packet buffers of each queue pair.
    lease_buffers: u32,
    memory: Memory,
}

impl Plan {
    fn new(config: &config::PortConfig, device: &str) -> Self {
        let wanted = config.lease_queues;
        let lease_buffers = if device::is_software(device) {
            device::SOFTWARE_LEASE_BUFFERS
        } else {
            device::LEASE_BUFFERS
        };
        let buffers = device::OWN_BUFFERS + u32::from(wanted) * lease_buffers;
        let megabytes = config
            .hugepages_mb
            .unwrap_or_else(|| device::memory_mb(config.mtu, buffers));
        let leasable = leasable(wanted, device, megabytes);
        let memory = match leasable {
            Ok(()) => Memory::Huge {
                megabytes,
                directory: None,
            },
            Err(_) => Memory::Plain {
                megabytes: device::memory_mb(config.mtu, device::OWN_BUFFERS),
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
    fn make_pools(&self, eal: &Eal, mtu: u16) -> Result<Vec<Mempool>, String> {
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
                Mempool::create(eal, &pool_name(queue), &config).map_err(|error| error.to_string())
            })
            .collect()
    }
}

/// The name by which lessees find the pool of their queue.
fn pool_name(queue: u16) -> String {
    format!("urdma-q{queue}")
}

/// Whether `wanted` queue pairs of the device can be leased.
fn leasable(wanted: u16, device: &str, megabytes: u32) -> Result<(), String> {
    if wanted == 0 {
        return Err("port.lease_queues is 0 in the configuration".to_owned());
    }
    match device::no_lease_because(device, wanted + 1) {
        Some(reason) => Err(reason),
        None => device::check_hugepages(megabytes),
    }
}

fn start_dpdk(request: &PortRequest<'_>, device: &str, memory: Memory) -> Result<Eal, String> {
    Eal::init(&EalOptions {
        process: Process::Primary,
        file_prefix: file_prefix(request.run_dir),
        runtime_directory: Some(request.run_dir.to_owned()),
        lcore: LcoreId::PRIMARY,
        memory,
        drivers: Drivers::of_devices([device]),
        pci: is_pci_address(device).then(|| device.to_owned()),
        log: request
            .log
            .map_or(Log::Off, |log| Log::File(log.to_owned())),
    })
    .map_err(|error| error.to_string())
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
type Steering = Result<(LeaseSteering, Option<Table>), String>;

/// Finds a way to steer the packets of a leased queue, and only those, to it.
///
/// # Errors
/// The port, which was started, cannot be started again.
fn choose_steering(
    port: &mut DpdkPort,
    device: &str,
    pools: &[Mempool],
    mtu: u16,
) -> Result<Steering, Error> {
    if !is_pci_address(device) {
        return Ok(Ok((LeaseSteering::Peer, None)));
    }
    let udp_port = urdma_types::PORT_BASE;
    let no_rules = match port.steer(udp_port, FlowVersion::V4, QueueIndex(1)) {
        Ok(_) => return Ok(Ok((LeaseSteering::Rules, None))),
        Err(error) => error,
    };
    let no_table = match port.spreading()?.and_then(Table::new) {
        None => "it has no redirection table".to_owned(),
        Some(table) => {
            port.stop()?;
            let entries = table.entries();
            let started = start(port, pools, mtu, Some(&table.hash_key()))
                .and_then(|()| port.redirect(&vec![QueueIndex(0); entries]));
            let error = match started {
                Ok(()) => return Ok(Ok((LeaseSteering::Table { entries }, Some(table)))),
                Err(error) => error,
            };
            port.stop()?;
            start(port, pools, mtu, None)?;
            error.to_string()
        }
    };
    Ok(Err(format!(
        "this NIC cannot steer packets to a leased queue ({no_rules}; {no_table}); they are \
         forwarded"
    )))
}
