//! The tree that libibverbs and librdmacm read instead of /sys (`SYSFS_PATH`).

use std::fs;
use std::io;
use std::path::Path;

use urdma_ipc::{gid_table_len, Personality};

use crate::identity::{colon_groups, Identity};

/// Name of the device.
pub const DEVICE: &str = "urdma0";
/// /dev/null: the stand-in shows it as /dev/infiniband/uverbs0, and it exists everywhere.
const DEVICE_NUMBER: &str = "1:3";
/// `IB_USER_VERBS_ABI_VERSION`.
const VERBS_ABI: &str = "6";
/// `RDMA_USER_CM_ABI_VERSION`.
const CM_ABI: &str = "4";

/// How the kernel writes a personality as a node type.
fn node_type(personality: Personality) -> &'static str {
    match personality {
        Personality::Roce => "1: CA",
        Personality::Iwarp => "4: RNIC",
    }
}

/// Writes the tree below `root`, which must exist.
///
/// # Errors
/// A file cannot be written.
pub fn write(root: &Path, identity: &Identity, personality: Personality) -> io::Result<()> {
    let class = root.join("class");
    put(&class.join("infiniband_verbs"), "abi_version", VERBS_ABI)?;
    let uverbs = class.join("infiniband_verbs/uverbs0");
    for (name, text) in [
        ("abi_version", "1"),
        ("ibdev", DEVICE),
        ("dev", DEVICE_NUMBER),
    ] {
        put(&uverbs, name, text)?;
    }
    put(&class.join("misc/rdma_cm"), "abi_version", CM_ABI)?;

    let device = class.join("infiniband").join(DEVICE);
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
        ("device/numa_node", "-1"),
        ("device/vendor", "0x0000"),
        ("device/device", "0x0000"),
    ] {
        put(&device, name, text)?;
    }
    if let Some(netdev) = identity
        .gids
        .iter()
        .find_map(|entry| entry.netdev.as_deref())
    {
        // Programs find a device's network interface by this folder's contents.
        fs::create_dir_all(device.join("device/net").join(netdev))?;
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
        // Empty entries have a GID of zeroes, and a type, without which libibverbs takes none of the table.
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
