//! Ports: attachment, configuration, start and stop, counters.

use std::ffi::{CStr, CString};

use crate::connector::Connector;
use crate::{Eal, Error, LcoreId, Mempool, QueueIndex, QueuePair, RxQueue, TxQueue};

/// Descriptors of a queue, unless configured.
const DEFAULT_DESCRIPTORS: u16 = 1024;

/// The driver whose reported limit of frames (1518 octets) does not apply; the size of its buffers
/// is the limit.
const MEMIF: &str = "net_memif";

/// The capabilities of a port's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Name of the driver, such as `net_memif`.
    pub driver: String,
    /// Maximum number of queue pairs.
    pub max_queue_pairs: u16,
    /// Longest received frame that the driver reports, in octets; net_memif accepts longer ones.
    pub max_frame_octets: u32,
    /// Largest IP MTU that the driver reports.
    pub max_mtu: u16,
}

/// Configuration of a port.
#[derive(Clone, Debug)]
pub struct PortConfig<'a> {
    /// One pool per queue pair, for the buffers of its receive queue.
    pub pools: &'a [Mempool],
    /// IP MTU.
    pub mtu: u16,
    /// Descriptors of each queue; `None`: 1024, within the limits of the driver.
    pub descriptors: Option<u16>,
    /// Whether receive interrupts are enabled; see [`RxQueue::interrupt`].
    pub rx_interrupts: bool,
    /// Key of the hash that distributes UDP over IPv4 over the queues (RSS); see
    /// [`Port::spreading`]. `None`: no RSS.
    pub hash_key: Option<&'a [u8]>,
}

/// State and speed of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether the link is up.
    pub up: bool,
    /// Megabits per second; `None` if the driver does not know it.
    pub megabits: Option<u32>,
}

/// The counters of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Octets received.
    pub rx_octets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Octets sent.
    pub tx_octets: u64,
    /// Packets that the device dropped because no buffer was free.
    pub rx_missed: u64,
    /// Received packets with errors.
    pub rx_errors: u64,
    /// Packets that failed to be sent.
    pub tx_errors: u64,
    /// Failed allocations of receive buffers.
    pub rx_no_buffer: u64,
}

/// A port. In the primary it is stopped and closed when dropped.
#[derive(Debug)]
pub struct Port {
    id: u16,
    eal: Eal,
    pools: Vec<Option<Mempool>>,
    owned: bool,
    started: bool,
    /// Reconnects a net_memif client.
    connector: Option<Connector>,
    is_client: bool,
    /// The key of the hash, to which DPDK keeps a pointer.
    hash_key: Option<Vec<u8>>,
}

impl Port {
    /// Attaches a device and returns its port. The device is `net_memif0,role=server,...` or a PCI
    /// address with arguments.
    ///
    /// # Errors
    /// The driver's error; the log has more detail.
    pub fn attach(eal: &Eal, device: &str) -> Result<Self, Error> {
        let what = format!("cannot attach the device {device}");
        remove_stale_socket(device);
        let c_device = c_string(device)?;
        // SAFETY: DPDK is initialised, and the string lives during the call.
        let result = unsafe { dpdk_sys::rte_dev_probe(c_device.as_ptr()) };
        if result < 0 && result != -libc::EEXIST {
            return Err(Error::of(&what, -result));
        }
        let name = device.split(',').next().unwrap_or(device);
        let mut port = Self::find(eal, name)?;
        port.owned = true;
        let is_server = device
            .split(',')
            .any(|pair| pair == "role=server" || pair == "role=master");
        port.is_client = name.starts_with(MEMIF) && !is_server;
        Ok(port)
    }

    /// Finds the port of a device by its name, in a secondary.
    ///
    /// # Errors
    /// `ENODEV` if no port has this name.
    pub fn find(eal: &Eal, name: &str) -> Result<Self, Error> {
        let c_name = c_string(name)?;
        let mut id = 0;
        // SAFETY: DPDK is initialised; the string and the number live during the call.
        let result = unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(c_name.as_ptr(), &mut id) };
        Error::check(&format!("no port of the device {name}"), result)?;
        Ok(Self {
            id,
            eal: eal.clone(),
            pools: Vec::new(),
            owned: false,
            started: false,
            connector: None,
            is_client: false,
            hash_key: None,
        })
    }

    /// DPDK's number of the port, the same in every process.
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// The capabilities of the driver.
    ///
    /// # Errors
    /// The device was removed.
    pub fn info(&self) -> Result<PortInfo, Error> {
        // SAFETY: all zeros is a valid value of this plain C structure.
        let mut info: dpdk_sys::rte_eth_dev_info = unsafe { std::mem::zeroed() };
        // SAFETY: the port exists, and the pointer is to a local variable.
        let result = unsafe { dpdk_sys::rte_eth_dev_info_get(self.id, &mut info) };
        Error::check("cannot query the port's capabilities", result)?;
        let driver = if info.driver_name.is_null() {
            String::new()
        } else {
            // SAFETY: the driver's name is a constant string.
            let name = unsafe { CStr::from_ptr(info.driver_name) };
            name.to_string_lossy().into_owned()
        };
        Ok(PortInfo {
            driver,
            max_queue_pairs: info.max_rx_queues.min(info.max_tx_queues),
            max_frame_octets: info.max_rx_pktlen,
            max_mtu: info.max_mtu,
        })
    }

    /// Configures the port with one queue pair per pool.
    ///
    /// # Errors
    /// `EINVAL` for a number of queues or an MTU that the driver does not support; otherwise the
    /// driver's error.
    pub fn configure(&mut self, config: &PortConfig<'_>) -> Result<(), Error> {
        let info = self.info()?;
        let pairs = u16::try_from(config.pools.len()).unwrap_or(u16::MAX);
        self.check(config, &info, pairs)?;
        // net_memif has no MTU and accepts all frames that fit its buffers.
        let mtu = if info.driver == MEMIF {
            0
        } else {
            u32::from(config.mtu)
        };
        self.configure_device(config, pairs, mtu)?;
        let wanted = config.descriptors.unwrap_or(DEFAULT_DESCRIPTORS);
        let (mut rx, mut tx) = (wanted, wanted);
        // SAFETY: the port is configured, and the pointers are to local variables.
        let result =
            unsafe { dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, &mut rx, &mut tx) };
        Error::check("cannot set the number of descriptors", result)?;
        // SAFETY: the port exists.
        let socket = unsafe { dpdk_sys::rte_eth_dev_socket_id(self.id) }.cast_unsigned();
        for (index, pool) in (0..pairs).zip(config.pools) {
            // SAFETY: the port is configured with this queue; a null configuration selects the
            // driver's default; the pool lives as long as DPDK.
            let result = unsafe {
                dpdk_sys::rte_eth_rx_queue_setup(
                    self.id,
                    index,
                    rx,
                    socket,
                    std::ptr::null(),
                    pool.as_ptr(),
                )
            };
            Error::check("cannot set up a receive queue", result)?;
            // SAFETY: the port is configured with this queue; a null configuration selects the
            // driver's default; the pool lives as long as DPDK.
            let result = unsafe {
                dpdk_sys::rte_eth_tx_queue_setup(self.id, index, tx, socket, std::ptr::null())
            };
            Error::check("cannot set up a transmit queue", result)?;
        }
        self.pools = config.pools.iter().cloned().map(Some).collect();
        Ok(())
    }

    /// Configures the number of queue pairs, before the queues are set up.
    fn configure_device(
        &mut self,
        config: &PortConfig<'_>,
        pairs: u16,
        mtu: u32,
    ) -> Result<(), Error> {
        self.hash_key = config.hash_key.map(<[u8]>::to_vec);
        let (key, key_octets) = match &mut self.hash_key {
            Some(key) => (key.as_mut_ptr(), u8::try_from(key.len()).unwrap_or(0)),
            None => (std::ptr::null_mut(), 0),
        };
        let interrupts = i32::from(config.rx_interrupts);
        // SAFETY: the port exists and is not started; the key lives as long as the port.
        let result = unsafe {
            dpdk_sys::urdma_port_configure(self.id, pairs, pairs, mtu, interrupts, key, key_octets)
        };
        Error::check("cannot configure the port", result).map(|_| ())
    }

    fn check(&self, config: &PortConfig<'_>, info: &PortInfo, pairs: u16) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::new(libc::EINVAL, message));
        if pairs == 0 || pairs > info.max_queue_pairs {
            return invalid(format!(
                "the port can have 1 to {} queue pairs, not {pairs}",
                info.max_queue_pairs
            ));
        }
        let frame = u32::from(config.mtu) + 18;
        if info.driver != MEMIF && (config.mtu > info.max_mtu || frame > info.max_frame_octets) {
            return invalid(format!(
                "the port's MTU can be at most {}, not {}",
                u32::from(info.max_mtu).min(info.max_frame_octets.saturating_sub(18)),
                config.mtu
            ));
        }
        let needed = usize::from(config.mtu) + 14 + crate::HEADROOM_OCTETS;
        if let Some(pool) = config
            .pools
            .iter()
            .find(|pool| usize::from(pool.buffer_octets()) < needed)
        {
            return invalid(format!(
                "buffers of {} octets are too short for MTU {}: {needed} are needed",
                pool.buffer_octets(),
                config.mtu
            ));
        }
        Ok(())
    }

    /// Starts the port.
    ///
    /// A net_memif client connects as soon as its server exists, and reconnects after the server
    /// has restarted; see [`Port::link`].
    ///
    /// # Errors
    /// The driver's error.
    pub fn start(&mut self) -> Result<(), Error> {
        if self.is_client {
            self.connector = Some(Connector::start(self.id)?);
        } else {
            // SAFETY: the port exists; one that is not configured is refused.
            let result = unsafe { dpdk_sys::urdma_port_start(self.id) };
            Error::check("cannot start the port", result)?;
        }
        self.started = true;
        Ok(())
    }

    /// Stops the port; its queues then carry no packets.
    ///
    /// # Errors
    /// The driver's error.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.connector = None;
        // SAFETY: the port exists; stopping a stopped port has no effect.
        let result = unsafe { dpdk_sys::urdma_port_stop(self.id) };
        Error::check("cannot stop the port", result)?;
        self.started = false;
        Ok(())
    }

    /// Takes a queue pair with its pool; `None` if it does not exist or has been taken.
    pub fn take_pair(&mut self, index: QueueIndex) -> Option<QueuePair> {
        let pool = self.pools.get_mut(usize::from(index.0))?.take()?;
        Some(QueuePair {
            rx: RxQueue::new(self.id, index, self.eal.clone()),
            tx: TxQueue::new(self.id, index, self.eal.clone()),
            pool,
        })
    }

    /// The queue pair that the primary has lent to this process, a secondary.
    ///
    /// `lcore` is the lcore id of this process, `pool` the name of the queue pair's pool.
    ///
    /// # Errors
    /// No pool has this name.
    pub fn borrow_pair(
        &self,
        index: QueueIndex,
        lcore: LcoreId,
        pool: &str,
    ) -> Result<QueuePair, Error> {
        debug_assert!(lcore != LcoreId::PRIMARY, "the lcore id is the primary's");
        Ok(QueuePair {
            rx: RxQueue::new(self.id, index, self.eal.clone()),
            tx: TxQueue::new(self.id, index, self.eal.clone()),
            pool: Mempool::lookup(&self.eal, pool)?,
        })
    }

    /// The port's Ethernet address.
    ///
    /// # Errors
    /// The device was removed.
    pub fn mac(&self) -> Result<[u8; 6], Error> {
        // SAFETY: all zeros is a valid address.
        let mut address: dpdk_sys::rte_ether_addr = unsafe { std::mem::zeroed() };
        // SAFETY: the port exists, and the pointer is to a local variable.
        let result = unsafe { dpdk_sys::rte_eth_macaddr_get(self.id, &mut address) };
        Error::check("cannot read the port's address", result)?;
        Ok(address.addr_bytes)
    }

    /// The IP MTU of the driver; meaningless for net_memif.
    ///
    /// # Errors
    /// The device was removed.
    pub fn mtu(&self) -> Result<u16, Error> {
        let mut mtu = 0;
        // SAFETY: the port exists, and the pointer is to a local variable.
        let result = unsafe { dpdk_sys::rte_eth_dev_get_mtu(self.id, &mut mtu) };
        Error::check("cannot read the port's MTU", result)?;
        Ok(mtu)
    }

    /// The state of the link, without waiting for it to come up.
    ///
    /// # Errors
    /// The device was removed.
    pub fn link(&self) -> Result<Link, Error> {
        let (mut up, mut megabits) = (false, 0);
        // SAFETY: the port exists, and the pointers are to local variables.
        let result = unsafe { dpdk_sys::urdma_port_link(self.id, &mut up, &mut megabits) };
        Error::check("cannot read the port's link", result)?;
        Ok(Link {
            up,
            megabits: (megabits != 0 && megabits != u32::MAX).then_some(megabits),
        })
    }

    /// The port's counters; those of net_memif include the packets of all processes.
    ///
    /// # Errors
    /// The driver has no counters.
    pub fn stats(&self) -> Result<PortStats, Error> {
        // SAFETY: all zeros is a valid value of this plain C structure.
        let mut stats: dpdk_sys::rte_eth_stats = unsafe { std::mem::zeroed() };
        // SAFETY: the port exists, and the pointer is to a local variable.
        let result = unsafe { dpdk_sys::rte_eth_stats_get(self.id, &mut stats) };
        Error::check("cannot read the port's counters", result)?;
        Ok(PortStats {
            rx_packets: stats.ipackets,
            rx_octets: stats.ibytes,
            tx_packets: stats.opackets,
            tx_octets: stats.obytes,
            rx_missed: stats.imissed,
            rx_errors: stats.ierrors,
            tx_errors: stats.oerrors,
            rx_no_buffer: stats.rx_nombuf,
        })
    }

    /// Enables reception of all multicast frames, which IPv6 neighbour discovery needs.
    ///
    /// # Errors
    /// "Not supported" by drivers that do not filter frames.
    pub fn accept_groups(&self) -> Result<(), Error> {
        // SAFETY: the port exists.
        let result = unsafe { dpdk_sys::rte_eth_allmulticast_enable(self.id) };
        Error::check("cannot receive multicast frames", result).map(|_| ())
    }

    /// Enables promiscuous mode.
    ///
    /// # Errors
    /// "Not supported" by drivers that do not filter frames.
    pub fn accept_all(&self) -> Result<(), Error> {
        // SAFETY: the port exists.
        let result = unsafe { dpdk_sys::rte_eth_promiscuous_enable(self.id) };
        Error::check("cannot enable promiscuous mode", result).map(|_| ())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if self.started {
            // An error is ignored, since the port is closed next.
            let _ = self.stop();
        }
        // SAFETY: the port exists and is stopped; bursts on its queues have no effect from then on.
        unsafe { dpdk_sys::urdma_port_close(self.id) };
    }
}

/// Removes the socket that a killed net_memif server left, which net_memif would report to be in
/// use.
fn remove_stale_socket(device: &str) {
    let value = |key: &str| {
        let mut pairs = device
            .split(',')
            .skip(1)
            .filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let is_server = matches!(value("role"), Some("server" | "master"));
    if !device.starts_with(MEMIF) || !is_server || value("socket-abstract") != Some("no") {
        return;
    }
    let Some(path) = value("socket") else { return };
    // The probe uses another socket type, so it does not connect to a running server, but the error
    // shows whether there is one.
    let answer = std::os::unix::net::UnixStream::connect(path);
    if answer.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(path);
    }
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::new(libc::EINVAL, "a name contains a zero octet"))
}
