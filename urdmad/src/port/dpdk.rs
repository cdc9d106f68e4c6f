//! A port of DPDK, driven through `liburdma_dpdk.so`, which is loaded for it.
//!
//! urdmad itself links no part of DPDK: doc/adr/0018-without-dpdk.md.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_char, CStr, CString, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, NonNull};

use arrayvec::ArrayVec;
use urdma_abi::library::{self, Visibility};
use urdma_abi::port::{
    pool_name, steering, OpenedPort, PoolState, Port, PortParams, PortState, PortTable, RxFrame,
    TxBuffer, TxFrame, MAX_BURST, MESSAGE_OCTETS,
};
use urdma_ipc::status::{LeaseSteering, PoolStatus};
use urdma_underlay::{MacAddr, Verification};

use super::error::{PortError, QueueError};
use super::interface::{NoBuffer, OpenPort, PacketPort, PortReport, PortRequest, Resolver};
use crate::interfaces;
use crate::kinds::PortKind;
use crate::lease::{LeaseOffer, NotLeasable};

/// The library's file name.
const LIBRARY: &str = "liburdma_dpdk.so";
/// Environment variable that names the library.
const LIBRARY_VARIABLE: &str = "URDMA_DPDK_LIB";

/// An open port.
struct Dpdk {
    table: &'static PortTable,
    port: NonNull<Port>,
    /// Queue pairs, urdmad's included.
    queues: u16,
    /// Octets of the longest frame that fits a buffer.
    capacity: usize,
    /// Empty buffers.
    stash: ArrayVec<TxBuffer, MAX_BURST>,
    /// Frames that the next flush sends.
    filled: ArrayVec<TxFrame, MAX_BURST>,
    mac: MacAddr,
    mtu: u16,
    netdev: Option<String>,
    verification: Verification,
}

// SAFETY: the functions of a port may be called from any thread, one at a time, which `&mut self`
// guarantees.
unsafe impl Send for Dpdk {}

/// Removes the files that a killed daemon has left of this run directory's port.
pub fn remove_leftovers(run_dir: &Path) {
    dpdk_files::remove_leftovers(&file_prefix(run_dir), Some(run_dir));
}

/// Identifies DPDK's primary on this machine, the same at each start; short, because names of
/// sockets are made from it.
fn file_prefix(run_dir: &Path) -> String {
    let hash = crate::identity::fnv1a([run_dir.as_os_str().as_encoded_bytes()]);
    format!("urdma-{:08x}", hash >> 32)
}

/// Loads the library.
///
/// # Errors
/// It or DPDK is not installed.
fn load(kind: &'static str) -> Result<&'static PortTable, PortError> {
    let path = library_path();
    // DPDK's drivers are loaded later, and take its functions from the library and from DPDK.
    library::load(&path, Visibility::Global).map_err(|error| PortError::Library { kind, error })
}

/// `$URDMA_DPDK_LIB`, or the library beside urdmad or in `../lib/urdma`.
fn library_path() -> PathBuf {
    // SAFETY: the call reads a constant.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let named = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty());
    // A user must not choose what a program with capabilities of its file executes.
    if let (false, Some(path)) = (is_privileged, named) {
        return path.into();
    }
    let program = std::env::current_exe().and_then(|program| program.canonicalize());
    let beside = program
        .ok()
        .and_then(|path| Some(path.parent()?.to_owned()));
    let beside = beside.unwrap_or_default();
    let installed = beside.with_file_name("lib").join("urdma");
    let path = beside.join(LIBRARY);
    if !path.exists() && installed.is_dir() {
        installed.join(LIBRARY)
    } else {
        path
    }
}

/// The kinds of ports of DPDK, each with the reason for which it cannot be used here, if so.
pub fn kinds() -> impl Iterator<Item = (&'static str, Result<(), PortError>)> {
    PortKind::of_dpdk().map(|(name, driver)| {
        let checked = load(name).and_then(|table| {
            said(|message, octets| {
                // SAFETY: the driver is a string, and the message has room for `octets`.
                unsafe { (table.check)(driver.as_ptr(), message, octets) }
            })
            .map(drop)
            .map_err(|Refusal(reason)| PortError::Driver(reason))
        });
        (name, checked)
    })
}

/// Why the library refuses, in its words.
struct Refusal(String);

/// Calls a function of the table that stores a message: the message, as a note or a refusal.
fn said(call: impl FnOnce(*mut c_char, usize) -> i32) -> Result<String, Refusal> {
    let mut message = [0u8; MESSAGE_OCTETS];
    let errno = call(message.as_mut_ptr().cast(), message.len());
    let text = CStr::from_bytes_until_nul(&message).unwrap_or_default();
    let text = text.to_string_lossy().into_owned();
    if errno == 0 {
        Ok(text)
    } else {
        Err(Refusal(text))
    }
}

/// Loads the library and opens the port, whose device has these arguments.
///
/// # Errors
/// It cannot be used.
pub(super) fn open(request: &PortRequest<'_>, arguments: &str) -> Result<OpenPort, PortError> {
    let config = request.config;
    let kind = config.kind.get();
    let refused = |reason| PortError::refused(kind.cause(), reason);
    let table = load(config.kind.name())?;
    let arguments = c_string(arguments)?;
    let netdev = kind.shared_netdev().map(str::to_owned);
    let shared_netdev = netdev.as_deref().map(c_string).transpose()?;
    let prefix = file_prefix(request.run_dir);
    let c_prefix = c_string(&prefix)?;
    let run_dir = c_string(request.run_dir)?;
    let log = request.log.map(c_string).transpose()?;
    let params = PortParams {
        device: arguments.as_ptr(),
        shared_netdev: shared_netdev.as_ref().map_or(null(), |name| name.as_ptr()),
        file_prefix: c_prefix.as_ptr(),
        run_dir: run_dir.as_ptr(),
        log: log.as_ref().map_or(null(), |log| log.as_ptr()),
        hugepages_mb: config.hugepages_mb.unwrap_or(0),
        mtu: config.mtu,
        lease_queues: config.lease_queues,
    };
    let mut opened = MaybeUninit::<OpenedPort>::uninit();
    let note = said(|message, octets| {
        // SAFETY: all pointers are valid during the call.
        unsafe { (table.open)(&raw const params, opened.as_mut_ptr(), message, octets) }
    })
    .map_err(|Refusal(reason)| refused(reason))?;
    // SAFETY: the function has succeeded, and has stored it.
    let opened = unsafe { opened.assume_init() };
    let port = Dpdk {
        table,
        port: NonNull::new(opened.port).ok_or(PortError::None)?,
        queues: opened.queues,
        capacity: usize::try_from(opened.capacity).unwrap_or(0),
        stash: ArrayVec::new(),
        filled: ArrayVec::new(),
        mac: MacAddr(opened.mac),
        mtu: config.mtu,
        verification: verification(netdev.as_deref()),
        netdev,
    };
    kind.opened(port.mac)
        .map_err(|error| refused(error.to_string()))?;
    // SAFETY: the name ends with a zero octet.
    let device = unsafe { CStr::from_ptr(opened.device.as_ptr()) };
    let device = device.to_string_lossy().into_owned();
    let steering = match opened.steering {
        steering::PEER => Ok(LeaseSteering::Peer),
        steering::RULES => Ok(LeaseSteering::Rules),
        steering::TABLE => Ok(LeaseSteering::Table {
            entries: usize::try_from(opened.table_entries).unwrap_or(0),
        }),
        _ => Err(NotLeasable::Driver(note)),
    };
    // SAFETY: the function returns a constant string.
    let dpdk = unsafe { CStr::from_ptr((table.dpdk_version)()) };
    let leases = steering.map(|steering| LeaseOffer {
        dpdk: dpdk.to_string_lossy().into_owned(),
        file_prefix: prefix,
        runtime_dir: Some(request.run_dir.to_owned()),
        device: device.clone(),
        mac: opened.mac,
        mtu: config.mtu,
        checksum: config.checksum,
        pools: (1..opened.queues).map(pool_name).collect(),
        steering,
    });
    Ok(OpenPort {
        port: Box::new(port),
        device,
        leases,
    })
}

/// How checksums are checked that arrive from this interface of the kernel, if it is one.
fn verification(netdev: Option<&str>) -> Verification {
    // An AF_XDP socket gets what the sender's kernel has written. Of an interface without a
    // device (veth, bridge, macvlan) that may be a kernel of this machine, which expects from the
    // receiver's kernel that it knows partial checksums.
    match netdev {
        Some(netdev) if interfaces::is_virtual(netdev) => Verification::Partial,
        _ => Verification::Full,
    }
}

fn c_string(text: impl AsRef<OsStr>) -> Result<CString, PortError> {
    CString::new(text.as_ref().as_bytes()).map_err(|_| PortError::ZeroOctet)
}

impl Dpdk {
    #[cold]
    fn fill_stash(&mut self) {
        let most = u32::try_from(MAX_BURST).unwrap_or(0);
        let first = self.stash.as_mut_ptr();
        // SAFETY: the port is open, `&mut self` excludes other calls, and the stash has room.
        let count = unsafe { (self.table.alloc)(self.port.as_ptr(), first, most) };
        let count = MAX_BURST.min(usize::try_from(count).unwrap_or(0));
        // SAFETY: the function has stored the first `count` of them.
        unsafe { self.stash.set_len(count) };
    }
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        // SAFETY: the port is open and not used after this.
        unsafe { (self.table.close)(self.port.as_ptr()) };
    }
}

impl PacketPort for Dpdk {
    fn enter(&mut self) {
        // SAFETY: the port is open, and `&mut self` excludes other calls.
        unsafe { (self.table.enter)(self.port.as_ptr()) };
    }

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn resolver(&self) -> Resolver<'_> {
        self.netdev
            .as_deref()
            .map_or(Resolver::DataThread, Resolver::Kernel)
    }

    fn verification(&self) -> Verification {
        self.verification
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut frames = [const { MaybeUninit::<RxFrame>::uninit() }; MAX_BURST];
        let (port, most) = (self.port.as_ptr(), u32::try_from(MAX_BURST).unwrap_or(0));
        let mut total = 0;
        for queue in 0..self.queues {
            let first = frames.as_mut_ptr().cast();
            // SAFETY: the port is open, and `&mut self` excludes other calls; there is room for
            // `most` frames.
            let count = unsafe { (self.table.receive)(port, queue, first, most) };
            if count == 0 {
                continue;
            }
            let count = MAX_BURST.min(usize::try_from(count).unwrap_or(0));
            for frame in &frames[..count] {
                // SAFETY: the function has stored the first `count` of them.
                let frame = unsafe { frame.assume_init_ref() };
                let octets = usize::try_from(frame.octets).unwrap_or(0);
                // SAFETY: the frame is valid until it is released.
                sink(unsafe { std::slice::from_raw_parts(frame.data, octets) });
            }
            // SAFETY: the port is open, and `&mut self` excludes other calls; the frames are not
            // used any more.
            unsafe { (self.table.release)(port) };
            total += count;
        }
        total
    }

    fn has_room(&mut self) -> bool {
        if self.filled.is_full() {
            self.flush();
        }
        !self.filled.is_full()
    }

    fn transmit(&mut self, octets: usize) -> Result<&mut [u8], NoBuffer> {
        if !self.has_room() || octets > self.capacity {
            return Err(NoBuffer);
        }
        if self.stash.is_empty() {
            self.fill_stash();
        }
        let TxBuffer { buffer, data } = self.stash.pop().ok_or(NoBuffer)?;
        self.filled.push(TxFrame {
            buffer,
            octets: u32::try_from(octets).unwrap_or(0),
        });
        // SAFETY: the buffer has room for the capacity, and is this port's until the frame is sent,
        // for which `&mut self` is needed.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, octets) })
    }

    fn flush(&mut self) -> bool {
        let count = u32::try_from(self.filled.len()).unwrap_or(0);
        if count > 0 {
            // SAFETY: the port is open, and `&mut self` excludes other calls; the frames are
            // complete, and in buffers that this port owns.
            let sent =
                unsafe { (self.table.send)(self.port.as_ptr(), self.filled.as_ptr(), count) };
            self.filled
                .drain(..usize::try_from(sent.min(count)).unwrap_or(0));
        }
        self.filled.is_empty()
    }

    fn discard(&mut self) -> usize {
        let count = self.filled.len();
        let frames = u32::try_from(count).unwrap_or(0);
        // SAFETY: the port is open, and `&mut self` excludes other calls; the frames are in buffers
        // that this port owns, and not used any more.
        unsafe { (self.table.free)(self.port.as_ptr(), self.filled.as_ptr(), frames) };
        self.filled.clear();
        count
    }

    fn lend(&mut self, queue: u16, udp_port: u16) -> Result<(), QueueError> {
        let note = said(|message, octets| {
            // SAFETY: the port is open, and `&mut self` excludes other calls; the message has room
            // for `octets`.
            unsafe { (self.table.lend)(self.port.as_ptr(), queue, udp_port, message, octets) }
        })
        .map_err(|Refusal(reason)| QueueError::Driver(reason))?;
        if !note.is_empty() {
            tracing::debug!("queue {queue}: {note}");
        }
        Ok(())
    }

    fn reclaim(&mut self, queue: u16) -> Result<(), QueueError> {
        let note = said(|message, octets| {
            // SAFETY: the port is open, and `&mut self` excludes other calls; the message has room
            // for `octets`.
            unsafe { (self.table.reclaim)(self.port.as_ptr(), queue, message, octets) }
        })
        .map_err(|Refusal(reason)| QueueError::Driver(reason))?;
        if !note.is_empty() {
            tracing::warn!("queue {queue}: {note}");
        }
        Ok(())
    }

    fn report(&mut self) -> PortReport {
        let mut state = PortState::default();
        let mut pools = vec![PoolState::default(); usize::from(self.queues)];
        // SAFETY: the port is open, and `&mut self` excludes other calls; there is room for the
        // state, and for that of each queue's pool.
        unsafe {
            (self.table.report)(
                self.port.as_ptr(),
                &raw mut state,
                pools.as_mut_ptr(),
                u32::from(self.queues),
            );
        };
        // What waits in the stash is free.
        let stashed = u32::try_from(self.stash.len()).unwrap_or(0);
        let pools = (0..self.queues)
            .zip(pools)
            .filter(|(_, pool)| pool.total > 0);
        PortReport {
            link_up: state.link_up != 0,
            hardware: hardware_counters(&state),
            pools: pools
                .map(|(queue, pool)| PoolStatus {
                    name: pool_name(queue),
                    total: pool.total,
                    free: pool.free + if queue == 0 { stashed } else { 0 },
                })
                .collect(),
            notes: Vec::new(),
        }
    }
}

fn hardware_counters(state: &PortState) -> BTreeMap<String, u64> {
    [
        ("rx_packets", state.rx_packets),
        ("rx_octets", state.rx_octets),
        ("tx_packets", state.tx_packets),
        ("tx_octets", state.tx_octets),
        ("rx_missed", state.rx_missed),
        ("rx_errors", state.rx_errors),
        ("tx_errors", state.tx_errors),
        ("rx_no_buffer", state.rx_no_buffer),
        ("rx_scattered", state.rx_scattered),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}
