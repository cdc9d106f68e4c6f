//! The leased queue pair of the port: `liburdma_lease.so`, loaded when urdmad has granted a lease,
//! behind a safe interface.
//!
//! A received datagram that is for another slot is passed on to it (`data/receive.rs`).

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void, CStr, CString, OsStr};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use urdma_types::Ip16;

use arrayvec::ArrayVec;
use proto_trp::conn::Run;
use proto_trp::wire::Meta;
use thiserror::Error;
use urdma_abi::lease::{
    self as lease_abi, LeaseCounters, LeaseRoute, LeaseTable, RxDatagram, TxBuffer, TxDatagram,
    MAX_BURST, READABLE,
};
use urdma_abi::library::{self, LoadError, Visibility};
use urdma_ipc::LeaseParams;

use super::lease_set;
use super::packet_body::PacketBody;
use super::packet_path::{ReceivePath, Refused, TransmitPath, Written};

/// Datagrams of one burst.
const BURST: usize = 32;
const _: () = assert!(MAX_BURST == 32);
/// The library's file name.
const LIBRARY: &str = "liburdma_lease.so";
/// Environment variable that names the library.
const LIBRARY_VARIABLE: &str = "URDMA_LEASE_LIB";

/// Why no lease is open.
#[derive(Debug, Error)]
pub(crate) enum LeaseError {
    /// The library cannot be loaded.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// A parameter of urdmad's.
    #[error("urdmad sent a name with a zero octet")]
    Name,
    /// The library's reason.
    #[error("{sentence} (errno {errno})")]
    Refused { sentence: String, errno: i32 },
}

/// A route of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteId(u32);

/// A received datagram, until [`ReceivePath::release`].
#[derive(Clone, Copy)]
pub(crate) struct LeasedDatagram<'a>(&'a RxDatagram);

/// A buffer that is being filled.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct LeasedBuffer(TxBuffer);

/// Buffers that are being filled.
pub(crate) type LeasedBuffers = ArrayVec<LeasedBuffer, BURST>;

/// The lease of this process.
pub struct LeasedQueue {
    table: &'static LeaseTable,
    lease: NonNull<lease_abi::Lease>,
    /// Datagrams that are complete and not accepted by the port yet.
    outgoing: ArrayVec<TxDatagram, BURST>,
    /// Datagrams of the last burst: the first `received` places.
    incoming: [RxDatagram; BURST],
    received: usize,
    /// The set of the lease's interrupts, which has the socket by which peers wake the process.
    wake_set: Option<RawFd>,
    /// The system does not let this process wait on it.
    is_refused: bool,
    is_unmasked: bool,
}

// SAFETY: the functions of a lease may be called from any thread, one at a time; the engine's lock
// sees to that.
unsafe impl Send for LeasedQueue {}

impl<'a> LeasedDatagram<'a> {
    /// The datagram.
    pub(super) fn body(&self) -> PacketBody<'a> {
        // SAFETY: the buffer is the caller's, hence so far readable, until it is released, which
        // needs the lease that `self` borrows.
        unsafe { PacketBody::new(self.0.data, self.0.octets as usize, READABLE) }
    }

    /// Where it came from, as metadata of a frame.
    pub(crate) fn metadata(&self) -> Meta {
        Meta {
            remote_ip: Ip16(self.0.source),
            src_port: self.0.source_port,
            dst_port: self.0.destination_port,
            ecn: self.0.ecn,
            gid_index: self.0.local_index,
        }
    }
}

impl LeasedBuffer {
    /// The room for the datagram; never empty.
    #[inline]
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer is the caller's until it is sent or freed, for which `self` is
        // consumed.
        unsafe { std::slice::from_raw_parts_mut(self.0.data, self.0.capacity as usize) }
    }
}

impl std::fmt::Debug for LeasedQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeasedQueue").finish_non_exhaustive()
    }
}

impl LeasedQueue {
    /// A lease that was opened through `table`.
    pub(crate) fn new(table: &'static LeaseTable, lease: NonNull<lease_abi::Lease>) -> Self {
        Self {
            table,
            lease,
            outgoing: ArrayVec::new(),
            incoming: [EMPTY; BURST],
            received: 0,
            wake_set: None,
            is_refused: false,
            is_unmasked: false,
        }
    }

    /// Loads the library and opens the lease.
    pub(crate) fn open(params: &LeaseParams, addresses: &[IpAddr]) -> Result<Self, LeaseError> {
        let table = load_table()?;
        let mut lease = std::ptr::null_mut();
        let mut message = [0u8; 512];
        let strings = Strings::new(params)?;
        let addresses: Vec<[u8; 16]> = addresses.iter().map(|&ip| Ip16::new(ip).0).collect();
        let params = strings.params(params, &addresses);
        // SAFETY: all pointers of `params` are valid during the call; `message` is writable for its
        // length.
        let outcome = unsafe {
            (table.open)(
                &raw const params,
                &raw mut lease,
                message.as_mut_ptr().cast(),
                message.len(),
            )
        };
        match (outcome, NonNull::new(lease)) {
            (0, Some(lease)) => Ok(Self::new(table, lease)),
            _ => {
                message[message.len() - 1] = 0;
                let sentence = CStr::from_bytes_until_nul(&message).unwrap_or_default();
                Err(LeaseError::Refused {
                    sentence: sentence.to_string_lossy().into_owned(),
                    errno: outcome,
                })
            }
        }
    }

    /// A route for packets with these metadata, whose next hop has this Ethernet address.
    pub(crate) fn open_route(&mut self, mac: [u8; 6], meta: &Meta) -> Option<RouteId> {
        let route = LeaseRoute {
            remote: meta.remote_ip.0,
            remote_mac: mac,
            source_port: meta.src_port,
            destination_port: meta.dst_port,
            local_index: meta.gid_index,
        };
        let mut number = 0;
        // SAFETY: both pointers are valid during the call.
        let outcome = unsafe {
            (self.table.route_open)(self.lease.as_ptr(), &raw const route, &raw mut number)
        };
        (outcome == 0).then_some(RouteId(number))
    }

    /// Ends a route.
    pub(crate) fn close_route(&mut self, route: RouteId) {
        self.flush();
        // Datagrams that the port did not accept are lost with their route, as on any network.
        let mut lost: ArrayVec<*mut c_void, BURST> = ArrayVec::new();
        self.outgoing.retain(|datagram| {
            let keep = datagram.route != route.0;
            if !keep {
                lost.push(datagram.buffer);
            }
            keep
        });
        self.free(&lost);
        // SAFETY: the route is this lease's.
        unsafe { (self.table.route_close)(self.lease.as_ptr(), route.0) };
    }

    fn free(&mut self, buffers: &[*mut c_void]) {
        let count = u32::try_from(buffers.len()).unwrap_or(0);
        // SAFETY: the buffers are the caller's and not used any more.
        unsafe { (self.table.tx_free)(self.lease.as_ptr(), buffers.as_ptr(), count) };
    }

    /// Adds up to `count` buffers to fill with datagrams of a route, at least one.
    ///
    /// # Errors
    /// [`Refused`]: the pool is empty, or the port has fallen behind.
    #[inline]
    pub(crate) fn alloc(
        &mut self,
        route: RouteId,
        count: u16,
        buffers: &mut LeasedBuffers,
    ) -> Result<(), Refused> {
        if self.outgoing.is_full() {
            self.flush();
            if self.outgoing.is_full() {
                return Err(Refused::NoBuffer);
            }
        }
        let wanted = usize::from(count).min(self.outgoing.remaining_capacity());
        // All or none: if they are not there, one.
        if self.alloc_all(route, wanted, buffers) || self.alloc_all(route, 1, buffers) {
            Ok(())
        } else {
            Err(Refused::NoBuffer)
        }
    }

    /// Adds `count` buffers; false, and none, if they are not there.
    #[inline]
    fn alloc_all(&mut self, route: RouteId, count: usize, buffers: &mut LeasedBuffers) -> bool {
        let held = buffers.len();
        assert!(count <= BURST - held, "more buffers than a burst");
        let wanted = u32::try_from(count).unwrap_or(0);
        // SAFETY: the first `held` places are in use, and there are more.
        let free = unsafe { buffers.as_mut_ptr().add(held) };
        // SAFETY: there is room for `count` buffers, as which the places are written.
        let given =
            unsafe { (self.table.tx_alloc)(self.lease.as_ptr(), route.0, free.cast(), wanted) };
        if given != wanted {
            return false;
        }
        // SAFETY: the library has stored `count` more.
        unsafe { buffers.set_len(held + count) };
        true
    }

    /// Puts the datagram in a buffer among what the next flush sends. There is room, since
    /// [`LeasedQueue::alloc`] saw to it.
    #[inline]
    pub(crate) fn send(&mut self, buffer: LeasedBuffer, written: Written, route: RouteId) {
        self.outgoing.push(TxDatagram {
            buffer: buffer.0.buffer,
            octets: u32::try_from(written.len).unwrap_or(u32::MAX),
            route: route.0,
            ecn: written.ecn(),
        });
    }

    /// Frees a buffer unsent.
    pub(crate) fn discard(&mut self, buffer: LeasedBuffer) {
        self.free(&[buffer.0.buffer]);
    }

    /// Sends the complete datagrams; false when the port did not accept all.
    #[inline]
    pub(crate) fn flush(&mut self) -> bool {
        let count = u32::try_from(self.outgoing.len()).unwrap_or(0);
        if count == 0 {
            return true;
        }
        // SAFETY: the first `count` datagrams are complete and ours.
        let sent =
            unsafe { (self.table.tx_burst)(self.lease.as_ptr(), self.outgoing.as_ptr(), count) };
        self.outgoing.drain(..(sent.min(count) as usize));
        self.outgoing.is_empty()
    }

    #[inline]
    fn received(&self) -> impl Iterator<Item = LeasedDatagram<'_>> {
        self.incoming[..self.received].iter().map(LeasedDatagram)
    }

    /// Has the set of the lease's interrupts report what arrives at the process' wake socket, too.
    /// Returns the set, if there is one; it stays the same as long as the lease is open.
    pub(crate) fn add_wake_socket(&mut self, socket: RawFd) -> Option<RawFd> {
        self.wake_set = self.set().filter(|set| lease_set::add(*set, socket));
        self.wake_set
    }

    fn set(&self) -> Option<RawFd> {
        // SAFETY: the lease is open, and `self` is not used by another call.
        let set = unsafe { (self.table.interrupts)(self.lease.as_ptr()) };
        (set >= 0).then_some(set)
    }

    /// The set in which datagrams and peers raise events, if the queue has interrupts now.
    pub(crate) fn interrupts(&self) -> Option<RawFd> {
        let set = self.wake_set.filter(|_| !self.is_refused)?;
        self.set().map(|_| set)
    }

    /// The set cannot be waited on.
    pub(crate) fn give_up_interrupts(&mut self) {
        self.is_refused = true;
    }

    /// Unmasks interrupts, with a full fence; whether datagrams may wait.
    pub(crate) fn unmask(&mut self) -> bool {
        self.is_unmasked = true;
        // SAFETY: as in `set`.
        unsafe { (self.table.unmask)(self.lease.as_ptr()) != 0 }
    }

    /// Masks interrupts.
    pub(crate) fn mask(&mut self) {
        if std::mem::take(&mut self.is_unmasked) {
            // SAFETY: as in `set`.
            unsafe { (self.table.mask)(self.lease.as_ptr()) };
        }
    }

    /// Counters of the lease.
    pub(crate) fn counters(&self) -> LeaseCounters {
        let mut counters = LeaseCounters::default();
        // SAFETY: `counters` is writable.
        unsafe { (self.table.counters)(self.lease.as_ptr(), &raw mut counters) };
        counters
    }
}

impl ReceivePath for LeasedQueue {
    #[inline]
    fn receive(&mut self) -> usize {
        // SAFETY: there is room for BURST datagrams.
        let count = unsafe {
            (self.table.rx_burst)(self.lease.as_ptr(), self.incoming.as_mut_ptr(), MAX_BURST)
        };
        self.received = BURST.min(count as usize);
        self.received
    }

    #[inline]
    fn datagrams(&self) -> impl Iterator<Item = (PacketBody<'_>, Meta)> {
        self.received()
            .map(|datagram| (datagram.body(), datagram.metadata()))
    }

    #[inline]
    fn release(&mut self) {
        let buffers: ArrayVec<*mut c_void, BURST> =
            self.received().map(|datagram| datagram.0.buffer).collect();
        let count = u32::try_from(buffers.len()).unwrap_or(0);
        // SAFETY: the buffers came from `rx_burst` and are given back once.
        unsafe { (self.table.rx_free)(self.lease.as_ptr(), buffers.as_ptr(), count) };
        self.received = 0;
    }
}

/// A route of the lease as the way out of one queue pair.
pub(crate) struct LeasePath<'a> {
    lease: &'a mut LeasedQueue,
    route: RouteId,
    /// The buffers that are being filled.
    buffers: LeasedBuffers,
}

impl<'a> LeasePath<'a> {
    /// The way along `route`.
    #[inline]
    pub(crate) fn new(lease: &'a mut LeasedQueue, route: RouteId) -> Self {
        Self {
            lease,
            route,
            buffers: LeasedBuffers::new(),
        }
    }
}

/// Buffers that are being filled.
pub(crate) struct LeaseRooms<'s>(std::slice::IterMut<'s, LeasedBuffer>);

impl<'s> Iterator for LeaseRooms<'s> {
    type Item = &'s mut [u8];

    #[inline]
    fn next(&mut self) -> Option<&'s mut [u8]> {
        self.0.next().map(LeasedBuffer::data_mut)
    }
}

impl TransmitPath for LeasePath<'_> {
    type Rooms<'s>
        = LeaseRooms<'s>
    where
        Self: 's;

    #[inline]
    fn begin_run(&mut self, _: usize, count: u16) -> Result<Self::Rooms<'_>, Refused> {
        self.lease.alloc(self.route, count, &mut self.buffers)?;
        Ok(LeaseRooms(self.buffers.iter_mut()))
    }

    #[inline]
    fn commit_run(&mut self, run: &Run) {
        let unused = self.buffers.drain(usize::from(run.count)..).rev();
        unused.for_each(|buffer| self.lease.discard(buffer));
        let last = self.buffers.pop();
        for buffer in self.buffers.drain(..) {
            self.lease
                .send(buffer, Written::of_run(run.each), self.route);
        }
        if let Some(last) = last {
            self.lease.send(last, Written::of_run(run.last), self.route);
        }
    }

    #[inline]
    fn begin(&mut self, _: usize, _: bool) -> Result<&mut [u8], Refused> {
        self.lease.alloc(self.route, 1, &mut self.buffers)?;
        let buffer = self.buffers.last_mut().ok_or(Refused::NoBuffer)?;
        Ok(buffer.data_mut())
    }

    #[inline]
    fn commit(&mut self, written: Written) {
        if let Some(buffer) = self.buffers.pop() {
            self.lease.send(buffer, written, self.route);
        }
    }

    fn discard(&mut self) {
        if let Some(buffer) = self.buffers.pop() {
            self.lease.discard(buffer);
        }
    }
}

impl Drop for LeasedQueue {
    fn drop(&mut self) {
        // SAFETY: the lease is not used after this.
        unsafe { (self.table.close)(self.lease.as_ptr(), 1) };
    }
}

const EMPTY: RxDatagram = RxDatagram {
    buffer: std::ptr::null_mut(),
    data: std::ptr::null(),
    octets: 0,
    source_port: 0,
    destination_port: 0,
    source: [0; 16],
    ecn: 0,
    local_index: 0,
};

/// The strings of [`LeaseParams`] as C strings.
struct Strings {
    dpdk: CString,
    file_prefix: CString,
    runtime_dir: Option<CString>,
    mempool: CString,
    device: CString,
}

fn c_string(octets: &[u8]) -> Result<CString, LeaseError> {
    CString::new(octets).map_err(|_| LeaseError::Name)
}

impl Strings {
    fn new(params: &LeaseParams) -> Result<Self, LeaseError> {
        let runtime_dir = params.runtime_dir.as_deref();
        Ok(Self {
            dpdk: c_string(params.dpdk.as_bytes())?,
            file_prefix: c_string(params.file_prefix.as_bytes())?,
            runtime_dir: runtime_dir
                .map(|dir| c_string(dir.as_os_str().as_bytes()))
                .transpose()?,
            mempool: c_string(params.mempool.as_bytes())?,
            device: c_string(params.device.as_bytes())?,
        })
    }

    fn params(&self, params: &LeaseParams, addresses: &[[u8; 16]]) -> lease_abi::LeaseParams {
        let runtime_dir = self.runtime_dir.as_ref();
        lease_abi::LeaseParams {
            size: u32::try_from(size_of::<lease_abi::LeaseParams>()).unwrap_or(0),
            lcore_id: params.lcore_id,
            dpdk: self.dpdk.as_ptr(),
            file_prefix: self.file_prefix.as_ptr(),
            runtime_dir: runtime_dir.map_or(std::ptr::null::<c_char>(), |dir| dir.as_ptr()),
            mempool: self.mempool.as_ptr(),
            addresses: addresses.as_ptr(),
            address_count: u32::try_from(addresses.len()).unwrap_or(0),
            device: self.device.as_ptr(),
            queue: params.queue,
            mtu: params.mtu,
            mac: params.mac,
            checksum: params.checksum.into(),
            by_driver: 0,
        }
    }
}

fn load_table() -> Result<&'static LeaseTable, LoadError> {
    library::load(&library_path(), Visibility::Local)
}

/// `$URDMA_LEASE_LIB`, or the library beside this one.
fn library_path() -> PathBuf {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        return path.into();
    }
    own_directory().map_or_else(|| LIBRARY.into(), |directory| directory.join(LIBRARY))
}

/// The directory of the shared object that holds this function.
fn own_directory() -> Option<PathBuf> {
    // SAFETY: all zeroes is a valid Dl_info.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = own_directory as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: `info` is writable.
    if unsafe { libc::dladdr(here, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a string that lives as long as the shared object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    let path = path.canonicalize().ok()?;
    path.parent().map(Path::to_owned)
}
