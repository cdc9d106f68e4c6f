//! One leased queue pair: routes, bursts, counters.

use std::ffi::{c_void, CString};

use arrayvec::ArrayVec;
use dpdk::{Burst, Error, LcoreId, Mbuf, Port, QueueIndex, QueuePair};
use urdma_underlay::lease_abi::{
    LeaseCounters, LeaseRoute, RxDatagram, TxBuffer, TxDatagram, MAX_ROUTES,
};
use urdma_underlay::{
    from_octets, header_octets, max_datagram, parse, Checksum, Ecn, Endpoint, IpVersion, MacAddr,
    Route, Template, UdpPorts, MAX_HEADER_OCTETS,
};

use crate::attach::attach;

pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;

/// Where datagrams start in their buffers: behind the longest headers, on a cache line. A sender needs no more headroom.
const DATAGRAM_OFFSET: usize = MAX_HEADER_OCTETS.next_multiple_of(64);

/// Polls without a packet between two looks at the link.
const IDLE_POLLS: u32 = 64;

/// What the daemon said of the pair, checked.
pub(crate) struct Params {
    pub(crate) file_prefix: String,
    pub(crate) runtime_directory: CString,
    pub(crate) mempool: String,
    pub(crate) device: String,
    pub(crate) lcore: LcoreId,
    pub(crate) queue: QueueIndex,
    pub(crate) mtu: u16,
    pub(crate) local: Endpoint,
    pub(crate) checksum: Checksum,
}

/// Where a route's packets go, ready to be written.
struct OpenRoute {
    template: Template,
    ports: UdpPorts,
    max_octets: usize,
}

/// A lease as the table's functions see it.
pub(crate) struct LeaseState {
    lcore: LcoreId,
    port: Port,
    pair: QueuePair,
    local: Endpoint,
    checksum: Checksum,
    mtu: u16,
    capacity: u32,
    routes: Vec<Option<OpenRoute>>,
    free_routes: Vec<u32>,
    idle_polls: u32,
    pub(crate) counters: LeaseCounters,
}

impl LeaseState {
    /// Attaches to the primary and takes the pair over.
    pub(crate) fn open(params: Params) -> Result<Self, Error> {
        let eal = attach(
            &params.file_prefix,
            params.runtime_directory,
            params.lcore,
            &params.device,
        )?;
        let port = Port::find(&eal, &params.device)?;
        let pair = port.borrow_pair(params.queue, params.lcore, &params.mempool)?;
        // net_memif fetches its shared memory here, rather than in the first burst.
        port.link()?;
        let room = usize::from(pair.pool.buffer_octets()).saturating_sub(DATAGRAM_OFFSET);
        let capacity = room.min(max_datagram(params.mtu, IpVersion::V4));
        Ok(Self {
            lcore: params.lcore,
            port,
            pair,
            local: params.local,
            checksum: params.checksum,
            mtu: params.mtu,
            capacity: u32::try_from(capacity).unwrap_or(0),
            routes: Vec::new(),
            free_routes: Vec::new(),
            idle_polls: 0,
            counters: LeaseCounters::default(),
        })
    }

    fn route(&self, route: &LeaseRoute) -> Option<OpenRoute> {
        let destination = from_octets(route.remote);
        let version = IpVersion::of(destination);
        let template = Template::new(&Route {
            source_mac: self.local.mac(),
            destination_mac: MacAddr(route.remote_mac),
            source: self.local.first(version)?,
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

    /// Makes a route; the error is an errno.
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

    /// Ends a route.
    pub(crate) fn route_close(&mut self, number: u32) {
        if let Some(slot) = self.routes.get_mut(number as usize) {
            if slot.take().is_some() {
                self.free_routes.push(number);
            }
        }
    }

    /// Fills `buffers` with buffers to write into, all or none.
    #[inline]
    pub(crate) fn tx_alloc(&mut self, buffers: &mut [TxBuffer]) -> usize {
        self.use_caches();
        let mut burst = Burst::new();
        if !self.pair.pool.alloc_bulk(&mut burst, buffers.len()) {
            self.counters.tx_no_buffer += 1;
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

    /// Sends datagrams; returns how many of the first were consumed.
    ///
    /// # Safety
    /// The buffers came from `tx_alloc` of this lease and were not given back since.
    #[inline]
    pub(crate) unsafe fn tx_burst(&mut self, datagrams: &[TxDatagram]) -> usize {
        self.use_caches();
        let mut burst = Burst::new();
        let mut octets = [0u32; dpdk::MAX_BURST];
        let mut refused = None;
        for (datagram, length) in datagrams.iter().zip(&mut octets) {
            // SAFETY: the caller vouches for the buffer.
            let Some(mut mbuf) = (unsafe { Mbuf::from_raw(datagram.buffer) }) else {
                break;
            };
            if self.stamp(&mut mbuf, datagram).is_none() {
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
        // What was sent before the refused one is on its way: now it is its turn, and it goes nowhere.
        match refused {
            Some(mbuf) => {
                self.counters.tx_refused += 1;
                drop(mbuf);
                sent + 1
            }
            None => sent,
        }
    }

    /// Writes the headers in front of the datagram in its buffer.
    #[inline]
    fn stamp(&self, mbuf: &mut Mbuf, datagram: &TxDatagram) -> Option<()> {
        let route = self.routes.get(datagram.route as usize)?.as_ref()?;
        let octets = datagram.octets as usize;
        if octets > route.max_octets || datagram.octets > self.capacity {
            return None;
        }
        let headers = header_octets(route.template.version());
        let frame = mbuf.set_frame(DATAGRAM_OFFSET - headers, headers + octets)?;
        let ecn = Ecn::from_bits(datagram.ecn);
        route.template.write(frame, route.ports, ecn).ok()
    }

    /// Receives datagrams into `out`; returns how many.
    #[inline]
    pub(crate) fn rx_burst(&mut self, out: &mut [RxDatagram]) -> usize {
        self.use_caches();
        let mut burst = Burst::new();
        if self.pair.rx.burst_of(&mut burst, out.len()) == 0 {
            self.idle();
            return 0;
        }
        let mut count = 0;
        for mbuf in burst {
            if !mbuf.is_contiguous() {
                self.counters.rx_scattered += 1;
                continue;
            }
            let data = mbuf.data();
            match parse(data, &self.local) {
                Ok(received) => {
                    let octets = received.payload.len();
                    self.counters.rx_octets += octets as u64;
                    out[count] = RxDatagram {
                        data: data[received.payload].as_ptr(),
                        buffer: mbuf.into_raw(),
                        octets: u32::try_from(octets).unwrap_or(0),
                        source_port: received.source_port,
                        destination_port: received.destination_port,
                        source: received.source,
                        ecn: received.ecn.bits(),
                    };
                    count += 1;
                }
                Err(reason) => self.counters.rx_dropped[reason.index()] += 1,
            }
        }
        self.counters.rx_datagrams += count as u64;
        count
    }

    /// Gives buffers back.
    ///
    /// # Safety
    /// They came from `tx_alloc` or `rx_burst` of this lease and were not given back since.
    #[inline]
    pub(crate) unsafe fn free(&mut self, buffers: &[*mut c_void]) {
        self.use_caches();
        let mut burst: Burst = ArrayVec::new();
        for pointers in buffers.chunks(dpdk::MAX_BURST) {
            // SAFETY: the caller vouches for the buffers.
            burst.extend(
                pointers
                    .iter()
                    .filter_map(|one| unsafe { Mbuf::from_raw(*one) }),
            );
            dpdk::free_bulk(&mut burst);
        }
    }

    /// Notices that the peer's side of a net_memif port came back with new memory, which nothing else would tell.
    #[inline]
    fn idle(&mut self) {
        self.idle_polls += 1;
        if self.idle_polls == IDLE_POLLS {
            self.idle_polls = 0;
            self.look_at_link();
        }
    }

    #[cold]
    fn look_at_link(&mut self) {
        // The driver acts on what it sees; a port that is gone shows in the daemon.
        let _ = self.port.link();
    }

    /// The calling thread uses the pool's cache of this lease: without it every buffer would cost an atomic operation.
    #[inline]
    fn use_caches(&self) {
        // SAFETY: the id is this process' alone, and calls on the one lease of a process come one at a time.
        unsafe { self.lcore.adopt() };
    }
}
