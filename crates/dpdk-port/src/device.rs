//! The arguments for DPDK: devices, memory, and which devices can be lent.

#![allow(unsafe_code)]

use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};

use dpdk::is_pci_address;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{access, AccessFlags};
use urdma_ipc::HugepageInfo;

use crate::error::{Lack, NotLeasable, OpenError};
use crate::params::{Kind, Params};

/// Packet buffers of the daemon's own queue: 2^n - 1 uses memory best.
pub(crate) const OWN_BUFFERS: u32 = 4095;
/// Packet buffers of each leasable queue.
pub(crate) const LEASE_BUFFERS: u32 = 4095;
/// The same for a device that keeps no buffers in descriptors.
pub(crate) const SOFTWARE_LEASE_BUFFERS: u32 = 2047;
/// Memory for DPDK itself, with room for what dead lessees leave behind (156 KB each).
const OVERHEAD_MB: u64 = 48;
const MB: u64 = 1 << 20;
/// Overhead of a packet buffer: the mbuf itself and the pool's header.
const BUFFER_OVERHEAD: u64 = 256;
/// Smallest data room that all drivers accept: 2 KB and headroom.
const DATA_ROOM_MIN: usize = 2048 + dpdk::HEADROOM_OCTETS;
/// Ethernet header with a VLAN tag, rounded up.
const LINK_OCTETS: usize = 32;
const MEMIF_BUFFER_SMALL: u16 = 2048;
/// "Clean" in measurements; holds the largest frame.
const MEMIF_BUFFER_LARGE: u16 = 9728;

/// Entries of a ring, as a power of two: few enough that their buffers are still cached when the
/// peer reads them.
const MEMIF_RING_LOG2: u8 = 8;

/// Octets that the path of a memif socket may have so that the arguments are shorter than 128
/// octets. DPDK sends them to secondaries in a field of that length: DPDK 25.11 refuses longer
/// ones, older versions cut them.
const SOCKET_PATH_MAX: usize = 30;

/// DPDK's arguments for the device of a port.
///
/// # Errors
/// The directory of a memif socket cannot be opened.
pub(crate) fn arguments(params: &Params) -> Result<String, OpenError> {
    let mac = params.mac;
    Ok(match &params.kind {
        Kind::Memif { is_server, socket } => {
            let role = if *is_server { "server" } else { "client" };
            let fits_small =
                usize::from(params.mtu) + LINK_OCTETS <= usize::from(MEMIF_BUFFER_SMALL);
            let bsize = if fits_small {
                MEMIF_BUFFER_SMALL
            } else {
                MEMIF_BUFFER_LARGE
            };
            format!(
                "net_memif0,role={role},id=0,socket={},socket-abstract=no,bsize={bsize},\
                 rsize={MEMIF_RING_LOG2},mac={mac}",
                short_path(socket)?.display()
            )
        }
        Kind::Tap { netdev } => format!("net_tap0,iface={netdev},mac={mac}"),
        Kind::AfXdp { netdev } => format!("net_af_xdp0,iface={netdev}"),
        Kind::Device { device } => full_address(device),
    })
}

/// A path of at most [`SOCKET_PATH_MAX`] octets to the same socket, if the name in its directory is
/// short.
///
/// A shorter path goes through a descriptor of the directory. It stays open as long as the daemon
/// runs, since the driver uses the path at each connection.
///
/// # Errors
/// The directory cannot be opened.
fn short_path(socket: &Path) -> Result<PathBuf, OpenError> {
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Ok(socket.to_owned());
    };
    if socket.as_os_str().len() <= SOCKET_PATH_MAX {
        return Ok(socket.to_owned());
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let descriptor = nix::fcntl::open(directory, flags, Mode::empty()).map_err(|errno| {
        OpenError::Directory {
            directory: directory.to_owned(),
            errno,
        }
    })?;
    let link = format!("/proc/self/fd/{}", descriptor.into_raw_fd());
    Ok(Path::new(&link).join(name))
}

/// PCI addresses without a domain are in domain 0; DPDK finds ports only by the whole address.
fn full_address(device: &str) -> String {
    let full = format!("0000:{device}");
    if is_pci_address(&full) {
        full
    } else {
        device.to_owned()
    }
}

/// The driver of a kind of port whose driver is known without its device.
pub(crate) fn driver(kind: &Kind) -> &'static str {
    match kind {
        Kind::Memif { .. } => "net_memif",
        Kind::Tap { .. } => "net_tap",
        Kind::AfXdp { .. } => "net_af_xdp",
        Kind::Device { .. } => "",
    }
}

/// The network interface that the port shares with the kernel, if any.
pub(crate) fn netdev(kind: &Kind) -> Option<&str> {
    match kind {
        Kind::AfXdp { netdev } => Some(netdev),
        Kind::Memif { .. } | Kind::Tap { .. } | Kind::Device { .. } => None,
    }
}

/// Why queues of such a device cannot be leased, if they cannot.
pub(crate) fn no_lease_because(device: &str, queues: u16) -> Option<NotLeasable> {
    let is = |driver: &str| device.starts_with(driver);
    if is("net_af_xdp") || is("net_af_packet") || is("net_pcap") {
        return Some(NotLeasable::OnlyHere);
    }
    // More than four queue pairs used by secondaries abort the primary.
    if is("net_tap") && queues > 4 {
        return Some(NotLeasable::TapQueues);
    }
    None
}

/// Whether the device keeps no packet buffers in descriptors.
pub(crate) fn is_software(device: &str) -> bool {
    device.starts_with("net_memif") || device.starts_with("net_ring")
}

/// Whether the driver only works with buffers of whole pages.
pub(crate) fn takes_whole_pages(device: &str) -> bool {
    device.starts_with("net_af_xdp")
}

/// Data room of a packet buffer for frames of this MTU.
pub(crate) fn data_room(mtu: u16) -> u16 {
    let octets = (usize::from(mtu) + LINK_OCTETS + dpdk::HEADROOM_OCTETS).next_multiple_of(64);
    u16::try_from(octets.max(DATA_ROOM_MIN)).unwrap_or(u16::MAX)
}

/// Megabytes that pools of `buffers` buffers in all need.
pub(crate) fn memory_mb(device: &str, mtu: u16, buffers: u32) -> u32 {
    let mut each = u64::from(data_room(mtu)) + BUFFER_OVERHEAD;
    if takes_whole_pages(device) {
        each = each.next_multiple_of(page_octets());
    }
    let needed = OVERHEAD_MB + (u64::from(buffers) * each).div_ceil(MB);
    u32::try_from(needed.next_multiple_of(2)).unwrap_or(u32::MAX)
}

fn page_octets() -> u64 {
    // SAFETY: the call has no preconditions.
    let octets = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(octets).unwrap_or(4096)
}

/// Whether so much of hugetlbfs can be had.
///
/// # Errors
/// It cannot.
pub(crate) fn check_hugepages(megabytes: u32) -> Result<(), NotLeasable> {
    let lacks = |lack| Err(NotLeasable::Hugepages { lack, megabytes });
    let pages = HugepageInfo::read().unwrap_or_default();
    let free_mb = pages.free_mb();
    if free_mb < u64::from(megabytes) {
        return lacks(Lack::Pages(free_mb));
    }
    let Some(mount) = pages.mount else {
        return lacks(Lack::Mount);
    };
    if access(&mount, AccessFlags::W_OK).is_err() {
        return lacks(Lack::Permission(mount));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(kind: Kind, mtu: u16) -> Params {
        Params {
            kind,
            file_prefix: "p".into(),
            run_dir: "/tmp".into(),
            log: None,
            hugepages_mb: None,
            mtu,
            lease_queues: 2,
            mac: urdma_underlay::MacAddr([2, 0x11, 0x11, 0x33, 0x44, 0x55]),
        }
    }

    #[test]
    fn memif_arguments_name_role_socket_and_a_buffer_for_the_mtu() {
        let memif = |is_server| Kind::Memif {
            is_server,
            socket: "/tmp/m".into(),
        };
        let text = arguments(&params(memif(true), 9000)).unwrap();
        assert_eq!(
            text,
            "net_memif0,role=server,id=0,socket=/tmp/m,socket-abstract=no,bsize=9728,\
             rsize=8,mac=02:11:11:33:44:55"
        );
        let text = arguments(&params(memif(false), 1500)).unwrap();
        assert!(text.contains("role=client") && text.contains("bsize=2048"));
    }

    #[test]
    fn long_path_of_a_memif_socket_becomes_a_short_one_to_the_same_socket() {
        let directory = std::env::temp_dir().join(format!("{:0>100}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let long = directory.join("urdma.memif");
        let short = short_path(&long).unwrap();
        assert!(short.as_os_str().len() <= SOCKET_PATH_MAX, "{short:?}");
        std::fs::write(&short, "").unwrap();
        assert!(long.exists());
        std::fs::remove_dir_all(&directory).unwrap();
        let kind = Kind::Memif {
            is_server: true,
            socket: "/".repeat(SOCKET_PATH_MAX).into(),
        };
        assert!(arguments(&params(kind, 9000)).unwrap().len() < 128);
    }

    #[test]
    fn memory_grows_with_mtu_and_buffers() {
        let memory_mb = |mtu, buffers| memory_mb("net_tap0,iface=a", mtu, buffers);
        assert!(memory_mb(1500, 4095) < memory_mb(9000, 4095));
        assert!(memory_mb(9000, 4095) < memory_mb(9000, 8190));
        assert!(memory_mb(9000, 4095) < 100);
        assert!(data_room(9600) >= 9600 + 14 + 128);
    }

    #[test]
    fn hugepages_beyond_any_machine_are_refused_with_advice() {
        let said = check_hugepages(1 << 30).unwrap_err().to_string();
        assert!(said.contains("/proc/sys/vm/nr_hugepages"), "{said}");
    }
}
