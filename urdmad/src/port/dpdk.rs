//! A port by DPDK: this process is the primary, lessees are its secondaries.
//!
//! Queue pair 0 is the daemon's and sends all that it sends. Pairs 1 and up are polled here until they are lent. Each pair has a pool of its
//! own, so that the pool of a dead lessee can be made anew.

use std::collections::BTreeMap;
use std::path::Path;

use ::dpdk::{
    free_bulk, is_pci_address, remove_leftovers as remove_files_of, Burst, Drivers, Eal,
    EalOptions, FlowRule, FlowVersion, LcoreId, Lent, Log, Memory, Mempool, PoolConfig,
    Port as DpdkPort, PortStats, Process, QueueIndex, QueuePair, HEADROOM_OCTETS, MAX_BURST,
};
use arrayvec::ArrayVec;
use nix::net::if_::if_nametoindex;
use urdma_ipc::status::PoolStatus;
use urdma_underlay::MacAddr;

use super::steer::{self, Steer};
use super::{device, tap, NoBuffer, OpenPort, Port, PortReport, PortRequest};
use crate::config::PortKind;
use crate::lease::LeaseOffer;

const POOL_CACHE: u32 = 64;

/// One queue pair.
enum Queue {
    /// Polled here.
    Ours(QueuePair),
    /// A lessee has it; the rules steer its packets there.
    Lent(Lent, Vec<FlowRule>),
    /// It could not be taken back.
    Lost,
}

/// The port. Fields are dropped in this order: rules and queues before the port, the port before DPDK.
struct Dpdk {
    queues: Vec<Queue>,
    /// Empty packet buffers.
    stash: Burst,
    /// Filled ones.
    filled: Burst,
    /// Received in more than one buffer.
    scattered: u64,
    mac: MacAddr,
    mtu: u16,
    netdev: Option<String>,
    port: DpdkPort,
    _eal: Eal,
}

/// Removes what a daemon that was killed has left of this run directory's port.
pub fn remove_leftovers(run_dir: &Path) {
    remove_files_of(&file_prefix(run_dir), Some(run_dir));
}

/// Tells the primaries of one machine apart, the same at each start; short, because the names of sockets are made from it.
fn file_prefix(run_dir: &Path) -> String {
    let hash = crate::identity::fnv1a([run_dir.as_os_str().as_encoded_bytes()]);
    format!("urdma-{:08x}", hash >> 32)
}

/// Starts DPDK and the port.
///
/// # Errors
/// Why not, as a sentence.
pub fn open(request: &PortRequest<'_>) -> Result<OpenPort, String> {
    let config = request.config;
    let mut device = device::arguments(config, request.node_guid);
    let netdev = device::netdev(config).map(str::to_owned);
    // DPDK reads it when the port starts.
    let steer = match &netdev {
        Some(netdev) if if_nametoindex(netdev.as_str()).is_err() => {
            return Err(format!("there is no network interface \"{netdev}\""));
        }
        Some(_) => Some(Steer::new().map_err(|error| format!("no memory for a program: {error}"))?),
        None => None,
    };
    if let Some(steer) = &steer {
        device = format!("{device},xdp_prog={}", steer.path());
    }
    let wanted = config.lease_queues;
    let lease_buffers = if device::is_software(&device) {
        device::SOFTWARE_LEASE_BUFFERS
    } else {
        device::LEASE_BUFFERS
    };
    let buffers = device::OWN_BUFFERS + u32::from(wanted) * lease_buffers;
    let megabytes = config
        .hugepages_mb
        .unwrap_or_else(|| device::memory_mb(config.mtu, buffers));
    let leasable = leasable(wanted, &device, megabytes);
    let count = if leasable.is_ok() { wanted } else { 0 };
    let memory = if leasable.is_ok() {
        Memory::Huge {
            megabytes,
            directory: None,
        }
    } else {
        Memory::Plain {
            megabytes: device::memory_mb(config.mtu, device::OWN_BUFFERS),
        }
    };
    let eal = start_dpdk(request, &device, memory)?;
    let mut port = DpdkPort::attach(&eal, &device).map_err(|error| error.to_string())?;
    let names: Vec<String> = (0..=count).map(|queue| format!("urdma-q{queue}")).collect();
    let pools = make_pools(&eal, &names, config.mtu, lease_buffers)?;
    configure(&mut port, &pools, config.mtu).map_err(|error| match &netdev {
        Some(netdev) => steer::explain(&error, netdev),
        None => error.to_string(),
    })?;
    let queues = (0..=count)
        .map(|index| port.take_pair(QueueIndex(index)).map(Queue::Ours))
        .collect::<Option<Vec<Queue>>>()
        .ok_or("the port has too few queues")?;
    let mac = port.mac().map_err(|error| error.to_string())?;
    if let PortKind::Tap { netdev } = &config.kind {
        tap::set_kernel_mac(netdev, MacAddr(mac))
            .map_err(|error| format!("cannot set the address of {netdev}: {error}"))?;
    }
    let leasable = leasable.and_then(|()| steers(&port, &device));
    let device_name = device.split(',').next().unwrap_or(&device).to_owned();
    let leases = leasable.map(|()| LeaseOffer {
        file_prefix: file_prefix(request.run_dir),
        runtime_dir: Some(request.run_dir.to_owned()),
        device: device_name.clone(),
        mac,
        mtu: config.mtu,
        checksum: config.checksum,
        pools: names[1..].to_vec(),
    });
    Ok(OpenPort {
        port: Box::new(Dpdk {
            queues,
            stash: ArrayVec::new(),
            filled: ArrayVec::new(),
            scattered: 0,
            mac: MacAddr(mac),
            mtu: config.mtu,
            netdev,
            port,
            _eal: eal,
        }),
        device: device_name,
        leases,
    })
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

/// Whether a NIC brings the packets of a leased queue there and nobody else's. Virtual devices do without: their peers choose the queue.
fn steers(port: &DpdkPort, device: &str) -> Result<(), String> {
    if !is_pci_address(device) {
        return Ok(());
    }
    port.steer(proto_trp::addr::PORT_BASE, FlowVersion::V4, QueueIndex(1))
        .map(drop)
        .map_err(|error| {
            format!("this NIC cannot steer packets to a leased queue ({error}); they are forwarded")
        })
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

fn make_pools(
    eal: &Eal,
    names: &[String],
    mtu: u16,
    lease_buffers: u32,
) -> Result<Vec<Mempool>, String> {
    names
        .iter()
        .enumerate()
        .map(|(queue, name)| {
            let config = PoolConfig {
                buffers: if queue == 0 {
                    device::OWN_BUFFERS
                } else {
                    lease_buffers
                },
                cache: POOL_CACHE,
                buffer_octets: device::data_room(mtu),
            };
            Mempool::create(eal, name, &config).map_err(|error| error.to_string())
        })
        .collect()
}

fn configure(port: &mut DpdkPort, pools: &[Mempool], mtu: u16) -> Result<(), ::dpdk::Error> {
    port.configure(&::dpdk::PortConfig {
        pools,
        mtu,
        descriptors: None,
        rx_interrupts: false,
    })?;
    port.start()?;
    // Drivers that cannot choose receive all anyway.
    match port.accept_groups() {
        Err(error) if !error.is_unsupported() => Err(error),
        _ => Ok(()),
    }
}

impl Dpdk {
    /// Gives the filled buffers to queue 0, which may not take all of them.
    fn push(&mut self) {
        if let Some(Queue::Ours(pair)) = self.queues.first_mut() {
            pair.tx.burst(&mut self.filled);
        }
    }

    fn steering(&self, queue: u16, udp_port: u16) -> Vec<FlowRule> {
        [FlowVersion::V4, FlowVersion::V6]
            .into_iter()
            .filter_map(
                |version| match self.port.steer(udp_port, version, QueueIndex(queue)) {
                    Ok(rule) => Some(rule),
                    Err(error) => {
                        tracing::debug!("queue {queue}: {error}; packets are forwarded by slot");
                        None
                    }
                },
            )
            .collect()
    }
}

impl Port for Dpdk {
    fn enter(&mut self) {
        // SAFETY: the data thread is the only one of this process that uses pools, and every lessee has an id of its own above 0.
        unsafe { LcoreId::PRIMARY.adopt() };
    }

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn netdev(&self) -> Option<&str> {
        self.netdev.as_deref()
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut burst: Burst = ArrayVec::new();
        let mut count = 0;
        for queue in &mut self.queues {
            let Queue::Ours(pair) = queue else { continue };
            count += pair.rx.burst(&mut burst);
            for mbuf in &burst {
                if mbuf.is_contiguous() {
                    sink(mbuf.data());
                } else {
                    self.scattered += 1;
                }
            }
            free_bulk(&mut burst);
        }
        count
    }

    fn has_room(&mut self) -> bool {
        if self.filled.is_full() {
            self.push();
        }
        !self.filled.is_full()
    }

    fn transmit(&mut self, octets: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), NoBuffer> {
        if !self.has_room() {
            return Err(NoBuffer);
        }
        if self.stash.is_empty() {
            let Some(Queue::Ours(pair)) = self.queues.first() else {
                return Err(NoBuffer);
            };
            if !pair.pool.alloc_bulk(&mut self.stash, MAX_BURST)
                && !pair.pool.alloc_bulk(&mut self.stash, 1)
            {
                return Err(NoBuffer);
            }
        }
        let mut mbuf = self.stash.pop().ok_or(NoBuffer)?;
        fill(mbuf.set_frame(HEADROOM_OCTETS, octets).ok_or(NoBuffer)?);
        self.filled.push(mbuf);
        Ok(())
    }

    fn flush(&mut self) -> bool {
        if !self.filled.is_empty() {
            self.push();
        }
        self.filled.is_empty()
    }

    fn discard(&mut self) -> usize {
        let count = self.filled.len();
        free_bulk(&mut self.filled);
        count
    }

    fn lend(&mut self, queue: u16, udp_port: u16) -> Result<(), String> {
        let place = self
            .queues
            .get_mut(usize::from(queue))
            .filter(|_| queue > 0)
            .ok_or("there is no such queue")?;
        match std::mem::replace(place, Queue::Lost) {
            Queue::Ours(pair) => match pair.lend() {
                Ok(lent) => {
                    let rules = self.steering(queue, udp_port);
                    self.queues[usize::from(queue)] = Queue::Lent(lent, rules);
                    Ok(())
                }
                Err(pair) => {
                    *place = Queue::Ours(pair);
                    Err("packet buffers of the queue are in use".to_owned())
                }
            },
            other => {
                *place = other;
                Err("the queue is lent already".to_owned())
            }
        }
    }

    fn reclaim(&mut self, queue: u16) -> Result<(), String> {
        let place = self
            .queues
            .get_mut(usize::from(queue))
            .ok_or("there is no such queue")?;
        match std::mem::replace(place, Queue::Lost) {
            Queue::Lent(lent, rules) => {
                drop(rules);
                let pair = lent.take_back().map_err(|error| error.to_string())?;
                *place = Queue::Ours(pair);
                Ok(())
            }
            other => {
                *place = other;
                Err("the queue is not lent".to_owned())
            }
        }
    }

    fn report(&mut self) -> PortReport {
        let pools = self
            .queues
            .iter()
            .enumerate()
            .filter_map(|(index, queue)| {
                let pool = match queue {
                    Queue::Ours(pair) => &pair.pool,
                    Queue::Lent(lent, _) => lent.pool(),
                    Queue::Lost => return None,
                };
                // What waits in our hands is free.
                let stashed = if index == 0 { self.stash.len() } else { 0 };
                Some(PoolStatus {
                    name: format!("urdma-q{index}"),
                    total: pool.buffers(),
                    free: pool.available() + u32::try_from(stashed).unwrap_or(0),
                })
            })
            .collect();
        PortReport {
            link_up: self.port.link().is_ok_and(|link| link.up),
            hardware: hardware_counters(&self.port.stats().unwrap_or_default(), self.scattered),
            pools,
        }
    }
}

fn hardware_counters(stats: &PortStats, scattered: u64) -> BTreeMap<String, u64> {
    [
        ("rx_packets", stats.rx_packets),
        ("rx_octets", stats.rx_octets),
        ("tx_packets", stats.tx_packets),
        ("tx_octets", stats.tx_octets),
        ("rx_missed", stats.rx_missed),
        ("rx_errors", stats.rx_errors),
        ("tx_errors", stats.tx_errors),
        ("rx_no_buffer", stats.rx_no_buffer),
        ("rx_scattered", scattered),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}
