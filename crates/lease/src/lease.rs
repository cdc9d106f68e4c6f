//! One leased queue pair: routes, bursts, counters.

use std::ffi::{c_void, CString};
use std::os::fd::RawFd;
use urdma_types::Ip16;

use arrayvec::ArrayVec;
use dpdk::{Burst, Error, LcoreId, Mbuf, Port, QueueIndex, QueuePair};
use urdma_abi::lease::{LeaseCounters, LeaseRoute, RxDatagram, TxBuffer, TxDatagram, MAX_ROUTES};
use urdma_underlay::{
    header_octets, max_datagram, parse, Checksum, Dropped, Ecn, IpVersion, LocalInterface, MacAddr,
    Route, Template, UdpPorts, MAX_HEADER_OCTETS,
};

use crate::attach::attach;
use crate::interrupts::Interrupts;
use crate::memif::{self, handle, index_of, Arrived, Rings};

pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;

/// The offset of datagrams in their buffers: after the longest headers, at a cache line.
const DATAGRAM_OFFSET: usize = MAX_HEADER_OCTETS.next_multiple_of(64);

/// Empty polls between two checks of the link.
const IDLE_POLLS: u32 = 64;

/// The parameters of the pair from the daemon, validated.
pub(crate) struct Params {
    pub(crate) file_prefix: String,
    pub(crate) runtime_directory: CString,
    pub(crate) mempool: String,
    pub(crate) device: String,
    pub(crate) lcore: LcoreId,
    pub(crate) queue: QueueIndex,
    pub(crate) mtu: u16,
    pub(crate) local: LocalInterface,
    pub(crate) checksum: Checksum,
    pub(crate) by_driver: bool,
}

/// A route, as the fields of its packets' headers.
struct OpenRoute {
    template: Template,
    ports: UdpPorts,
    max_octets: usize,
}

/// The state of a lease behind the functions of the table.
pub(crate) struct LeaseState {
    lcore: LcoreId,
    port: Port,
    pair: QueuePair,
    /// The pair's rings, if they can be used without the driver.
    rings: Option<Rings>,
    interrupts: Option<Interrupts>,
    by_driver: bool,
    /// Whether the peer may reconnect with new memory.
    is_memif: bool,
    local: LocalInterface,
    checksum: Checksum,
    mtu: u16,
    capacity: u32,
    routes: Vec<Option<OpenRoute>>,
    free_routes: Vec<u32>,
    idle_polls: u32,
    pub(crate) counters: LeaseCounters,
}

impl LeaseState {
    /// Attaches to the primary and opens the queue pair.
    pub(crate) fn open(params: Params) -> Result<Self, Error> {
        let eal = attach(
            &params.file_prefix,
            params.runtime_directory,
            params.lcore,
            &params.device,
        )?;
        let port = Port::find(&eal, &params.device)?;
        let pair = port.borrow_pair(params.queue, params.lcore, &params.mempool)?;
        // net_memif maps its shared memory here, instead of in the first burst.
        port.link()?;
        let room = usize::from(pair.pool.buffer_octets()).saturating_sub(DATAGRAM_OFFSET);
        let capacity = room.min(max_datagram(params.mtu, IpVersion::V4));
        let is_memif = params.device.starts_with("net_memif");
        let has_rings = is_memif && !params.by_driver;
        let mut lease = Self {
            lcore: params.lcore,
            port,
            pair,
            rings: None,
            interrupts: has_rings.then(Interrupts::new).and_then(Result::ok),
            by_driver: params.by_driver,
            is_memif,
            local: params.local,
            checksum: params.checksum,
            mtu: params.mtu,
            capacity: u32::try_from(capacity).unwrap_or(0),
            routes: Vec::new(),
            free_routes: Vec::new(),
            idle_polls: 0,
            counters: LeaseCounters::default(),
        };
        lease.find_rings();
        Ok(lease)
    }

    /// Locates the rings, which are in the memory that the last check of the link mapped.
    fn find_rings(&mut self) {
        self.rings = None;
        if !self.by_driver {
            let longest = MAX_HEADER_OCTETS + max_datagram(self.mtu, IpVersion::V4);
            self.rings = Rings::find(self.port.id(), self.pair.rx.index(), longest);
        }
        let Some(interrupts) = &mut self.interrupts else {
            return;
        };
        interrupts.end();
        if let Some(rings) = &mut self.rings {
            // A process that was killed may have left them unmasked.
            rings.mask();
            if let Some(peer) = interrupts.begin(self.port.id(), self.pair.rx.index()) {
                rings.interrupt_by(peer);
            }
        }
    }

    /// The set of descriptors that becomes readable by an interrupt, if there are any now.
    pub(crate) fn interrupts(&self) -> Option<RawFd> {
        self.interrupts.as_ref()?.descriptor()
    }

    /// Unmasks interrupts; whether datagrams may have arrived before, or there are no interrupts.
    pub(crate) fn unmask(&mut self) -> bool {
        self.look_at_link();
        match &self.rings {
            Some(rings) if self.interrupts().is_some() && rings.is_current() => rings.unmask(),
            _ => true,
        }
    }

    /// Masks interrupts.
    pub(crate) fn mask(&self) {
        if let Some(rings) = self.rings.as_ref().filter(|rings| rings.is_current()) {
            rings.mask();
        }
    }

    fn route(&self, route: &LeaseRoute) -> Option<OpenRoute> {
        let destination = Ip16(route.remote).to_ip();
        let version = IpVersion::of(destination);
        let template = Template::new(&Route {
            source_mac: self.local.mac(),
            destination_mac: MacAddr(route.remote_mac),
            source: self.local.source_for(destination, route.local_index)?,
            destination,
            checksum: self.checksum,
        })
        .ok()?;
        Some(OpenRoute {
            template,
            ports: UdpPorts {
                source: route.source_port,
                destination: route.destination_port,
            },
            max_octets: max_datagram(self.mtu, version),
        })
    }

    /// Creates a route; the error is an errno.
    pub(crate) fn route_open(&mut self, route: &LeaseRoute) -> Result<u32, i32> {
        let open = self.route(route).ok_or(EINVAL)?;
        if let Some(number) = self.free_routes.pop() {
            self.routes[number as usize] = Some(open);
            return Ok(number);
        }
        let number = u32::try_from(self.routes.len()).map_err(|_| ENOSPC)?;
        if number >= MAX_ROUTES {
            return Err(ENOSPC);
        }
        self.routes.push(Some(open));
        Ok(number)
    }

    /// Changes a route; the error is an errno.
    pub(crate) fn route_update(&mut self, number: u32, route: &LeaseRoute) -> Result<(), i32> {
        let open = self.route(route).ok_or(EINVAL)?;
        match self.routes.get_mut(number as usize) {
            Some(Some(slot)) => {
                *slot = open;
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    /// Removes a route.
    pub(crate) fn route_close(&mut self, number: u32) {
        if let Some(slot) = self.routes.get_mut(number as usize) {
            if slot.take().is_some() {
                self.free_routes.push(number);
            }
        }
    }

    /// Allocates buffers for datagrams of a route into `buffers`, all or none.
    #[inline]
    pub(crate) fn tx_alloc(&mut self, route: u32, buffers: &mut [TxBuffer]) -> usize {
        let filled = match &mut self.rings {
            Some(rings) if rings.is_current() => {
                let Some(Some(route)) = self.routes.get(route as usize) else {
                    return 0;
                };
                reserve(rings, route, self.capacity, buffers)
            }
            _ => self.alloc_mbufs(buffers),
        };
        if filled == 0 {
            self.counters.tx_no_buffer += 1;
        }
        filled
    }

    fn alloc_mbufs(&mut self, buffers: &mut [TxBuffer]) -> usize {
        self.use_caches();
        let mut burst = Burst::new();
        if !self.pair.pool.alloc_bulk(&mut burst, buffers.len()) {
            return 0;
        }
        for (out, mbuf) in buffers.iter_mut().zip(burst) {
            *out = TxBuffer {
                data: mbuf.buffer_start().wrapping_add(DATAGRAM_OFFSET),
                capacity: self.capacity,
                buffer: mbuf.into_raw(),
            };
        }
        buffers.len()
    }

    /// Sends datagrams in order; returns how many were consumed.
    ///
    /// # Safety
    /// The buffers were allocated by `tx_alloc` of this lease and not freed or sent since.
    #[inline]
    pub(crate) unsafe fn tx_burst(&mut self, datagrams: &[TxDatagram]) -> usize {
        // A burst has buffers of both kinds only just after the peer has connected or disconnected.
        match datagrams
            .iter()
            .position(|one| index_of(one.buffer).is_none())
        {
            Some(0) => {
                let others = datagrams
                    .iter()
                    .position(|one| index_of(one.buffer).is_some());
                // SAFETY: guaranteed by the caller.
                unsafe { self.send_mbufs(&datagrams[..others.unwrap_or(datagrams.len())]) }
            }
            others => self.send_slots(&datagrams[..others.unwrap_or(datagrams.len())]),
        }
    }

    /// Sends datagrams in slots of the rings; all are consumed.
    #[inline]
    fn send_slots(&mut self, datagrams: &[TxDatagram]) -> usize {
        let Some(rings) = &mut self.rings else {
            // The slots were unmapped when the peer disconnected.
            return datagrams.len();
        };
        for datagram in datagrams {
            let Some(index) = index_of(datagram.buffer) else {
                continue;
            };
            let octets = stamp(&self.routes, self.capacity, datagram, |_, octets| {
                rings.frame(index, octets)
            });
            match octets {
                Some(octets) => {
                    rings.complete(index, octets);
                    self.counters.tx_datagrams += 1;
                    self.counters.tx_octets += u64::from(datagram.octets);
                }
                None => {
                    rings.discard(index);
                    self.counters.tx_refused += 1;
                }
            }
        }
        rings.publish();
        datagrams.len()
    }

    /// # Safety
    /// That of [`LeaseState::tx_burst`]; all buffers are mbufs.
    unsafe fn send_mbufs(&mut self, datagrams: &[TxDatagram]) -> usize {
        self.use_caches();
        let mut burst = Burst::new();
        let mut octets = [0u32; dpdk::MAX_BURST];
        let mut refused = None;
        for (datagram, length) in datagrams.iter().zip(&mut octets) {
            // SAFETY: guaranteed by the caller.
            let Some(mut mbuf) = (unsafe { Mbuf::from_raw(datagram.buffer) }) else {
                break;
            };
            let stamped = stamp(&self.routes, self.capacity, datagram, |headers, octets| {
                mbuf.set_frame(DATAGRAM_OFFSET - headers, octets)
            });
            if stamped.is_none() {
                refused = Some(mbuf);
                break;
            }
            *length = datagram.octets;
            burst.push(mbuf);
        }
        let wanted = burst.len();
        let sent = if wanted == 0 {
            0
        } else {
            self.pair.tx.burst(&mut burst)
        };
        self.counters.tx_datagrams += sent as u64;
        self.counters.tx_octets += octets[..sent].iter().map(|n| u64::from(*n)).sum::<u64>();
        if sent < wanted {
            self.counters.tx_busy += 1;
            burst.into_iter().chain(refused).for_each(|mbuf| {
                mbuf.into_raw();
            });
            return sent;
        }
        // The datagrams before the refused one have been sent. It is consumed here, unsent.
        match refused {
            Some(mbuf) => {
                self.counters.tx_refused += 1;
                drop(mbuf);
                sent + 1
            }
            None => sent,
        }
    }

    /// Receives datagrams into `out`; returns their number.
    #[inline]
    pub(crate) fn rx_burst(&mut self, out: &mut [RxDatagram]) -> usize {
        let count = match &mut self.rings {
            Some(rings) if rings.is_current() => read(rings, &self.local, out, &mut self.counters),
            _ => self.receive_mbufs(out),
        };
        if count == 0 {
            self.idle();
            return 0;
        }
        self.idle_polls = 0;
        self.counters.rx_datagrams += count as u64;
        count
    }

    fn receive_mbufs(&mut self, out: &mut [RxDatagram]) -> usize {
        self.use_caches();
        let mut burst = Burst::new();
        self.pair.rx.burst_of(&mut burst, out.len());
        let mut count = 0;
        for mbuf in burst {
            if !mbuf.is_contiguous() {
                self.counters.rx_scattered += 1;
                continue;
            }
            if let Some(received) = check(mbuf.data(), &self.local, &mut self.counters) {
                out[count] = RxDatagram {
                    buffer: mbuf.into_raw(),
                    ..received
                };
                count += 1;
            }
        }
        count
    }

    /// Frees unsent or received buffers.
    ///
    /// # Safety
    /// The buffers are from `tx_alloc` (`are_received` false) or `rx_burst` (true) of this lease,
    /// and were not freed or sent since.
    #[inline]
    pub(crate) unsafe fn free(&mut self, buffers: &[*mut c_void], are_received: bool) {
        let mut mbufs: ArrayVec<Mbuf, { dpdk::MAX_BURST }> = ArrayVec::new();
        let mut packets = 0;
        for buffer in buffers.iter().take(dpdk::MAX_BURST) {
            match (index_of(*buffer), &mut self.rings) {
                (Some(_), Some(_)) if are_received => packets += 1,
                (Some(index), Some(rings)) => rings.discard(index),
                // The slot was unmapped when the peer disconnected.
                (Some(_), None) => {}
                // SAFETY: guaranteed by the caller.
                (None, _) => mbufs.extend(unsafe { Mbuf::from_raw(*buffer) }),
            }
        }
        if let (1.., Some(rings)) = (packets, &mut self.rings) {
            rings.give_back(packets);
        }
        if !mbufs.is_empty() {
            self.use_caches();
            dpdk::free_bulk(&mut mbufs);
        }
    }

    /// Checks the link of a net_memif port: without this, a peer that has reconnected with new
    /// memory would go unnoticed.
    #[inline]
    fn idle(&mut self) {
        // The link of a NIC is a register, and reading it takes longer than many polls.
        if !self.is_memif {
            return;
        }
        self.idle_polls += 1;
        if self.idle_polls == IDLE_POLLS {
            self.idle_polls = 0;
            self.look_at_link();
        }
    }

    #[cold]
    fn look_at_link(&mut self) {
        // The check may unmap the memory of packets that the caller holds.
        if self.rings.as_ref().is_some_and(Rings::is_held) {
            return;
        }
        let before = memif::changes();
        // The driver may map or unmap the rings in this call. An error means that the port was
        // removed, which the daemon handles.
        let _ = self.port.link();
        if self.rings.is_none() || memif::changes() != before {
            self.find_rings();
        }
    }

    /// Makes the calling thread use the pool cache of this lease's lcore. Without a cache, every
    /// allocation is an atomic operation on the pool.
    #[inline]
    fn use_caches(&self) {
        // SAFETY: no other process has this id, and calls on the only lease of the process are
        // serialised.
        unsafe { self.lcore.adopt() };
    }
}

/// Allocates slots of the rings as buffers for datagrams of a route, all or none.
#[inline]
fn reserve(rings: &mut Rings, route: &OpenRoute, capacity: u32, buffers: &mut [TxBuffer]) -> usize {
    let headers = header_octets(route.template.version());
    let capacity = capacity.min(u32::try_from(route.max_octets).unwrap_or(0));
    let frame_octets = u32::try_from(headers).unwrap_or(0) + capacity;
    for filled in 0..buffers.len() {
        let Some((index, frame)) = rings.reserve(frame_octets) else {
            for buffer in buffers[..filled].iter().rev() {
                index_of(buffer.buffer)
                    .into_iter()
                    .for_each(|index| rings.discard(index));
            }
            return 0;
        };
        buffers[filled] = TxBuffer {
            buffer: handle(index),
            data: frame.wrapping_add(headers),
            capacity,
        };
    }
    buffers.len()
}

/// Writes the headers of a datagram; returns the octets of the frame, or `None` if the route or the
/// length is invalid. `frame` returns the frame, given the octets of the headers and of the frame.
#[inline]
fn stamp<'f>(
    routes: &[Option<OpenRoute>],
    capacity: u32,
    datagram: &TxDatagram,
    frame: impl FnOnce(usize, usize) -> Option<&'f mut [u8]>,
) -> Option<u32> {
    let route = routes.get(datagram.route as usize)?.as_ref()?;
    let octets = datagram.octets as usize;
    if octets > route.max_octets || datagram.octets > capacity {
        return None;
    }
    let headers = header_octets(route.template.version());
    let frame = frame(headers, headers + octets)?;
    let whole = u32::try_from(frame.len()).ok()?;
    let ecn = Ecn::from_bits(datagram.ecn);
    route.template.write(frame, route.ports, ecn).ok()?;
    Some(whole)
}

/// Receives datagrams from the rings.
#[inline]
fn read(
    rings: &mut Rings,
    local: &LocalInterface,
    out: &mut [RxDatagram],
    counters: &mut LeaseCounters,
) -> usize {
    let mut count = 0;
    while count < out.len() {
        let dropped = match rings.take() {
            None => break,
            Some(Arrived::Packet(index, data, octets)) => {
                // SAFETY: the octets are mapped until the slot is freed.
                let frame = unsafe { std::slice::from_raw_parts(data, octets) };
                if let Some(received) = check(frame, local, counters) {
                    out[count] = RxDatagram {
                        buffer: handle(index),
                        ..received
                    };
                    count += 1;
                    continue;
                }
                1
            }
            Some(Arrived::Scattered) => {
                counters.rx_scattered += 1;
                0
            }
            Some(Arrived::Outside) => {
                counters.rx_dropped[Dropped::Truncated.index()] += 1;
                0
            }
        };
        rings.give_back(dropped);
    }
    count
}

/// The datagram in a received frame, if it is addressed to this process; its buffer is not set.
#[inline]
fn check(frame: &[u8], local: &LocalInterface, counters: &mut LeaseCounters) -> Option<RxDatagram> {
    match parse(frame, local) {
        Ok(received) => {
            let octets = received.payload.len();
            counters.rx_octets += octets as u64;
            Some(RxDatagram {
                buffer: std::ptr::null_mut(),
                data: frame[received.payload].as_ptr(),
                octets: u32::try_from(octets).unwrap_or(0),
                source_port: received.source_port,
                destination_port: received.destination_port,
                source: received.source.0,
                ecn: received.ecn.bits(),
                local_index: received.index,
            })
        }
        Err(reason) => {
            counters.rx_dropped[reason.index()] += 1;
            None
        }
    }
}

impl Drop for LeaseState {
    fn drop(&mut self) {
        self.mask();
    }
}
