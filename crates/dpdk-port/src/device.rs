//! What is known of drivers: the memory of their packet buffers, and which devices can be lent.

#![allow(unsafe_code)]

use dpdk::is_pci_address;
use nix::unistd::{access, AccessFlags};
use urdma_abi::port::LINK_OCTETS;
use urdma_ipc::HugepageInfo;

use crate::error::{Lack, NotLeasable};

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

/// PCI addresses without a domain are in domain 0; DPDK finds ports only by the whole address.
pub(crate) fn full_address(device: &str) -> String {
    let full = format!("0000:{device}");
    if is_pci_address(&full) {
        full
    } else {
        device.to_owned()
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

/// Whether this much of hugetlbfs can be had.
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

    #[test]
    fn pci_address_without_a_domain_gets_one() {
        assert_eq!(full_address("03:00.0"), "0000:03:00.0");
        assert_eq!(full_address("net_tap0,iface=a"), "net_tap0,iface=a");
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
