//! The tree that libibverbs and librdmacm read instead of /sys (`SYSFS_PATH`).

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use urdma_ipc::{gid_table_len, Personality};

use crate::identity::{colon_groups, Identity};

/// Name of the device.
pub const DEVICE: &str = "urdma0";
/// The device's directory in the tree; the stand-in shows the same path below /sys.
const BUS: &str = "devices/urdma";
/// The kernel's list of PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
const CPUS_ONLINE: &str = "/sys/devices/system/cpu/online";
/// /dev/null: the stand-in shows it as /dev/infiniband/uverbs0, and it exists everywhere.
const DEVICE_NUMBER: &str = "1:3";
/// `IB_USER_VERBS_ABI_VERSION`.
const VERBS_ABI: &str = "6";
/// `RDMA_USER_CM_ABI_VERSION`.
const CM_ABI: &str = "4";

/// The kernel's node type for a personality.
fn node_type(personality: Personality) -> &'static str {
    match personality {
        Personality::Roce => "1: CA",
        Personality::Iwarp => "4: RNIC",
    }
}

/// Writes the tree below `root`, which must exist.
///
/// As in the kernel's, the entries in `class` are links to a device on a bus, since programs derive
/// the device's PCI address from the links' targets.
///
/// # Errors
/// A file cannot be written.
pub fn write(root: &Path, identity: &Identity, personality: Personality) -> io::Result<()> {
    let class = root.join("class");
    put(&class.join("infiniband_verbs"), "abi_version", VERBS_ABI)?;
    put(&class.join("misc/rdma_cm"), "abi_version", CM_ABI)?;

    let address = pci_address(Path::new(PCI_DEVICES));
    let bus_device = root.join(BUS).join(&address);
    write_bus_device(&bus_device, &address, identity)?;
    let uverbs = link(root, &address, "infiniband_verbs", "uverbs0")?;
    for (name, text) in [
        ("abi_version", "1"),
        ("ibdev", DEVICE),
        ("dev", DEVICE_NUMBER),
    ] {
        put(&uverbs, name, text)?;
    }
    let device = link(root, &address, "infiniband", DEVICE)?;
    let guid = identity.node_guid_text();
    for (name, text) in [
        ("node_type", node_type(personality)),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", "urdma software RDMA"),
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("hca_type", "urdma"),
        ("hw_rev", "0"),
        ("board_id", "urdma"),
    ] {
        put(&device, name, text)?;
    }
    let port = device.join("ports/1");
    write_port(&port)?;
    match personality {
        Personality::Roce => write_gids(&port, identity),
        // An RNIC's only GID is its Ethernet address.
        Personality::Iwarp => {
            put(&port, "gids/0", &colon_groups(&identity.ethernet_gid()))?;
            put(&port, "gid_attrs/types/0", "IB/RoCE v1")
        }
    }
}

/// The directory of the device's port, below the root of a tree that [`write`] has written.
pub(crate) fn port(root: &Path) -> PathBuf {
    root.join("class/infiniband").join(DEVICE).join("ports/1")
}

/// A PCI address that no device of this machine has: the last domain, or one before it, since
/// virtual machines have devices in any.
fn pci_address(devices: &Path) -> String {
    let mut addresses = (0..=u16::MAX)
        .rev()
        .map(|domain| format!("{domain:04x}:00:00.0"));
    let free = addresses.find(|address| !devices.join(address).exists());
    free.unwrap_or_else(|| "ffff:00:00.0".to_owned())
}

/// Creates the directory of `name` in a class below the bus device, and the links between class,
/// directory and bus device.
fn link(root: &Path, address: &str, class: &str, name: &str) -> io::Result<PathBuf> {
    let place = root.join(BUS).join(address).join(class).join(name);
    fs::create_dir_all(&place)?;
    symlink(format!("../../../{address}"), place.join("device"))?;
    let class_dir = root.join("class").join(class);
    fs::create_dir_all(&class_dir)?;
    let target = format!("../../{BUS}/{address}/{class}/{name}");
    symlink(target, class_dir.join(name))?;
    Ok(place)
}

/// The PCI device's attributes that programs read. It is on no NUMA node and equally close to each
/// CPU. Without a link `subsystem` NCCL knows that no PCI bridge leads to it, and without
/// `modalias` no other driver of libibverbs matches it.
fn write_bus_device(device: &Path, address: &str, identity: &Identity) -> io::Result<()> {
    let online = fs::read_to_string(CPUS_ONLINE).unwrap_or_default();
    let cpus = cpus_of(online.trim());
    let uevent = format!("PCI_CLASS=20000\nPCI_ID=0000:0000\nPCI_SLOT_NAME={address}");
    for (name, text) in [
        ("class", "0x020000"),
        ("vendor", "0x0000"),
        ("device", "0x0000"),
        ("subsystem_vendor", "0x0000"),
        ("subsystem_device", "0x0000"),
        ("revision", "0x00"),
        ("numa_node", "-1"),
        ("local_cpulist", online.trim()),
        ("local_cpus", &cpu_mask(&cpus)),
        ("uevent", &uevent),
    ] {
        put(device, name, text)?;
    }
    let netdevs = || {
        identity
            .gids
            .iter()
            .filter_map(|entry| entry.netdev.as_deref())
    };
    if let Some(netdev) = netdevs().find(|name| *name != "lo").or(netdevs().next()) {
        // Programs find a device's network interface by this folder's first entry.
        fs::create_dir_all(device.join("net").join(netdev))?;
    }
    Ok(())
}

/// The CPUs of a list such as `0-3,8`.
fn cpus_of(list: &str) -> Vec<usize> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// CPUs in the kernel's mask format: words of 32 bits in hexadecimal, the highest first.
fn cpu_mask(cpus: &[usize]) -> String {
    let words = 1 + cpus.iter().max().map_or(0, |cpu| cpu / 32);
    let word = |index: usize| {
        let bits = cpus.iter().filter(|cpu| *cpu / 32 == index);
        bits.fold(0u32, |word, cpu| word | 1 << (cpu % 32))
    };
    let words: Vec<String> = (0..words)
        .rev()
        .map(|index| format!("{:08x}", word(index)))
        .collect();
    words.join(",")
}

fn write_port(port: &Path) -> io::Result<()> {
    for (name, text) in [
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("link_layer", "Ethernet"),
        ("rate", "100 Gb/sec (4X EDR)"),
        ("lid", "0x0"),
        ("sm_lid", "0x0"),
        ("lid_mask_count", "0"),
        ("sm_sl", "0"),
        ("cap_mask", "0x00010000"),
        ("pkeys/0", "0xffff"),
    ] {
        put(port, name, text)?;
    }
    Ok(())
}

fn write_gids(port: &Path, identity: &Identity) -> io::Result<()> {
    for index in 0..gid_table_len(identity.gids.len()) {
        let entry = identity.gids.get(index);
        // Empty entries have a GID of zeroes, and a type, without which libibverbs reads none of
        // the table.
        let gid = entry.map_or([0; 16], |entry| entry.gid);
        put(port, &format!("gids/{index}"), &colon_groups(&gid))?;
        put(port, &format!("gid_attrs/types/{index}"), "RoCE v2")?;
        if let Some(netdev) = entry.and_then(|entry| entry.netdev.as_ref()) {
            put(port, &format!("gid_attrs/ndevs/{index}"), netdev)?;
        }
    }
    Ok(())
}

fn put(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = directory.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_address_is_one_that_no_device_has() {
        let devices = std::env::temp_dir().join(format!("urdmad-pci-{}", std::process::id()));
        assert_eq!(pci_address(&devices), "ffff:00:00.0");
        fs::create_dir_all(devices.join("ffff:00:00.0")).unwrap();
        assert_eq!(pci_address(&devices), "fffe:00:00.0");
        fs::remove_dir_all(&devices).unwrap();
    }

    #[test]
    fn cpu_masks_are_written_as_the_kernel_does() {
        for (list, mask) in [
            ("0", "00000001"),
            ("0-3,8", "0000010f"),
            ("0-39", "000000ff,ffffffff"),
            ("", "00000000"),
        ] {
            assert_eq!(cpu_mask(&cpus_of(list)), mask, "{list}");
        }
    }
}
