//! The findings.

use std::path::Path;

use urdma_ipc::HugepageInfo;

use super::finding::Finding;
use super::machine::{may_write, Machine};

/// Prefix of the PCI classes of network controllers.
const PCI_NETWORK: &str = "0x02";
/// Drivers that give user space access to a PCI device.
const USER_SPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];
/// Directories of dynamic libraries on Debian and other systems.
const LIBRARY_DIRS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];

/// All findings but that of the instance, in the order of the report.
pub(super) fn all(machine: &Machine) -> Vec<Finding> {
    let mut all = vec![
        libibverbs(machine),
        librdmacm(machine),
        kernel_rdma(machine),
        module(machine),
        front_door(machine),
        hugepages(machine),
        iommu(machine),
        pci_drivers(machine),
        nics(machine),
        xdp(machine),
    ];
    all.extend(driver(machine));
    all.extend(sessions(machine));
    all
}

fn library(machine: &Machine, name: &str) -> Option<String> {
    LIBRARY_DIRS
        .iter()
        .map(|dir| format!("{dir}/{name}"))
        .find(|path| machine.has(path))
}

fn libibverbs(machine: &Machine) -> Finding {
    const WHAT: &str = "libibverbs";
    match library(machine, "libibverbs.so.1") {
        Some(path) => Finding::good(WHAT, path),
        None => Finding::bad(
            WHAT,
            "verbs programs need it",
            "apt-get install libibverbs1 ibverbs-utils",
        ),
    }
}

fn librdmacm(machine: &Machine) -> Finding {
    const WHAT: &str = "librdmacm";
    match library(machine, "librdmacm.so.1") {
        Some(path) => Finding::good(WHAT, path),
        None => Finding::without(
            WHAT,
            "programs that connect by rdma_cm need it",
            "apt-get install librdmacm1 rdmacm-utils",
        ),
    }
}

fn kernel_rdma(machine: &Machine) -> Finding {
    const WHAT: &str = "kernel RDMA";
    let devices = machine.names("/sys/class/infiniband");
    let uverbs = machine.has("/sys/class/infiniband_verbs");
    if !devices.is_empty() {
        Finding::good(WHAT, format!("devices {}", devices.join(", ")))
    } else if uverbs {
        Finding::good(WHAT, "loaded, no device")
    } else {
        Finding::without(
            WHAT,
            "this kernel has none, or its modules are not loaded",
            "none is needed: `urdma run` brings a stand-in; where the kernel has modules: modprobe \
            ib_uverbs rdma_ucm",
        )
    }
}

fn module(machine: &Machine) -> Finding {
    const WHAT: &str = "kernel module";
    if machine.has("/sys/module/urdma") {
        if machine.has("/etc/libibverbs.d/urdma.driver") {
            return Finding::good(WHAT, "urdma is loaded");
        }
        return Finding::without(
            WHAT,
            "urdma is loaded, but libibverbs has no driver for it",
            "make install-module, or see doc/kernel-module.md",
        );
    }
    let advice = if machine.has("/sys/class/infiniband_verbs") {
        "with it programs need no `urdma run`: see doc/kernel-module.md"
    } else {
        "not needed; it wants a kernel with RDMA"
    };
    Finding::without(WHAT, "urdma is not loaded", advice)
}

/// Whether libibverbs finds the provider by the name that its configuration gives.
fn driver(machine: &Machine) -> Option<Finding> {
    const WHAT: &str = "libibverbs driver";
    let text = machine.text("/etc/libibverbs.d/urdma.driver");
    let path = text.strip_prefix("driver ")?.trim();
    let abi = private_abi(machine, &library(machine, "libibverbs.so.1")?)?;
    let file = format!("{path}-rdmav{abi}.so");
    Some(if machine.has(&file) {
        Finding::good(WHAT, file)
    } else {
        Finding::without(
            WHAT,
            format!("libibverbs looks for {file}, since its private ABI is {abi}; there is none"),
            "install the urdma that belongs to this rdma-core, or make install-module",
        )
    })
}

/// The private provider ABI of a libibverbs: its private symbols have a version of this number.
fn private_abi(machine: &Machine, library: &str) -> Option<String> {
    const VERSION: &[u8] = b"\0IBVERBS_PRIVATE_";
    let octets = std::fs::read(machine.path(library)).ok()?;
    let at = octets
        .windows(VERSION.len())
        .position(|part| part == VERSION)?;
    let number = octets[at + VERSION.len()..]
        .iter()
        .take_while(|octet| octet.is_ascii_digit());
    Some(number.map(|octet| char::from(*octet)).collect())
}

/// How programs reach the provider.
fn front_door(machine: &Machine) -> Finding {
    const WHAT: &str = "front door";
    let ours = machine
        .names("/sys/class/infiniband")
        .into_iter()
        .find(|device| device.starts_with("urdma"));
    match ours {
        Some(device) => Finding::good(
            WHAT,
            format!("the kernel's {device}: programs run as they are"),
        ),
        None => Finding::good(
            WHAT,
            "the stand-in: programs run through `urdma run -- PROGRAM`",
        ),
    }
}

fn hugepages(machine: &Machine) -> Finding {
    const WHAT: &str = "hugepages";
    let advice = "for leased queues, as root: echo 512 > /proc/sys/vm/nr_hugepages";
    let (meminfo, mounts) = (machine.text("/proc/meminfo"), machine.text("/proc/mounts"));
    let pages = HugepageInfo::parse(&meminfo, &mounts);
    let (free, size_mb) = (pages.free, pages.size_kb / 1024);
    if free == 0 {
        return Finding::without(
            WHAT,
            "none is free; packets of other hosts are forwarded by urdmad",
            advice,
        );
    }
    match pages.mount.as_deref().map(Path::to_string_lossy) {
        None => Finding::without(
            WHAT,
            format!("{free} pages of {size_mb} MB are free, but hugetlbfs is not mounted"),
            "as root: mkdir -p /dev/hugepages; mount -t hugetlbfs none /dev/hugepages",
        ),
        Some(directory) if !may_write(&machine.path(&directory)) => Finding::without(
            WHAT,
            format!(
                "{free} pages of {size_mb} MB are free, but this user may not write to {directory}"
            ),
            "start urdmad as root for leased queues",
        ),
        Some(directory) => Finding::good(
            WHAT,
            format!("{free} pages of {size_mb} MB are free at {directory}"),
        ),
    }
}

fn iommu(machine: &Machine) -> Finding {
    const WHAT: &str = "IOMMU";
    let groups = machine.names("/sys/kernel/iommu_groups").len();
    if groups > 0 {
        return Finding::good(WHAT, format!("{groups} groups"));
    }
    Finding::without(
        WHAT,
        "none",
        "only PCI NICs want one: intel_iommu=on or amd_iommu=on on the kernel's command line; \
        without it, root may set vfio's enable_unsafe_noiommu_mode",
    )
}

fn pci_drivers(machine: &Machine) -> Finding {
    const WHAT: &str = "PCI in user space";
    let loaded: Vec<&str> = USER_SPACE_DRIVERS
        .into_iter()
        .filter(|driver| machine.has(&format!("/sys/bus/pci/drivers/{driver}")))
        .collect();
    if loaded.is_empty() {
        Finding::without(
            WHAT,
            "no driver that gives a PCI NIC to user space is loaded",
            "for a NIC of urdmad's own, as root: modprobe vfio-pci",
        )
    } else {
        Finding::good(WHAT, loaded.join(", "))
    }
}

fn nics(machine: &Machine) -> Finding {
    const WHAT: &str = "NICs";
    let list: Vec<String> = machine
        .names("/sys/bus/pci/devices")
        .into_iter()
        .filter_map(|address| nic(machine, &address))
        .collect();
    if list.is_empty() {
        return Finding::without(
            WHAT,
            "no PCI NIC",
            "between hosts use [port] kind \"udp\", which needs no privilege, or \"af_xdp\" or \
            \"tap\" on a network interface, or \"memif\" on one machine",
        );
    }
    Finding::good(WHAT, list.join(", "))
}

/// Address and driver of a PCI device that is a NIC.
fn nic(machine: &Machine, address: &str) -> Option<String> {
    let device = format!("/sys/bus/pci/devices/{address}");
    if !machine
        .text(&format!("{device}/class"))
        .starts_with(PCI_NETWORK)
    {
        return None;
    }
    let driver = machine.link_name(&format!("{device}/driver"));
    let driver = driver.as_deref().unwrap_or("no driver");
    let netdevs = machine.names(&format!("{device}/net")).join(" ");
    Some(
        match (USER_SPACE_DRIVERS.contains(&driver), netdevs.is_empty()) {
            (true, _) => format!("{address} ({driver}: ready for urdmad)"),
            (false, true) => format!("{address} ({driver})"),
            (false, false) => format!("{address} ({driver}, {netdevs})"),
        },
    )
}

/// The kinds of ports, as `urdmad --list-kinds` prints them.
pub(super) fn port_kinds(listed: &str) -> Finding {
    const WHAT: &str = "ports";
    let (mut usable, mut others, mut reason) = (Vec::new(), Vec::new(), "");
    for line in listed.lines() {
        match line.split_once(": ") {
            Some((kind, why)) => {
                others.push(kind);
                reason = why;
            }
            None => usable.push(line),
        }
    }
    let can = format!("kinds {}", usable.join(", "));
    if others.is_empty() {
        Finding::good(WHAT, can)
    } else {
        Finding::without(
            WHAT,
            format!("{can}; not {}: {reason}", others.join(", ")),
            "kind \"udp\" needs no DPDK; the others and leases do: install the package urdma-dpdk",
        )
    }
}

fn xdp(machine: &Machine) -> Finding {
    const WHAT: &str = "AF_XDP";
    // The kernel's list of socket address families.
    let has = machine
        .text("/proc/net/protocols")
        .lines()
        .any(|line| line.starts_with("XDP "));
    if has {
        Finding::good(
            WHAT,
            "a network interface can be shared with the kernel (experimental: on a veth pair \
            it can stall for seconds; kind \"udp\" needs no XDP sockets)",
        )
    } else {
        Finding::without(
            WHAT,
            "this kernel has no XDP sockets",
            "use [port] kind \"udp\", \"tap\", \"memif\" or a PCI NIC",
        )
    }
}

/// Whether the kernel lets threads of one session keep those of others from running, which was seen
/// on Linux 6.18 only.
fn sessions(machine: &Machine) -> Option<Finding> {
    let are_groups = machine.text("/proc/sys/kernel/sched_autogroup_enabled") == "1";
    let release = machine.text("/proc/sys/kernel/osrelease");
    (are_groups && release.starts_with("6.18.")).then(|| {
        Finding::without(
            "fair scheduling",
            format!(
                "on Linux {release}, programs that poll can keep those of other sessions, and \
                 urdmad, from running for seconds"
            ),
            "sysctl kernel.sched_autogroup_enabled=0; see doc/limits.md",
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::finding::Grade;
    use super::*;

    /// A machine with these files, in a directory of this test.
    fn machine(name: &str, files: &[(&str, &str)]) -> Machine {
        let root = std::env::temp_dir().join(format!("urdma-doctor-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let machine = Machine { root };
        fs::create_dir_all(&machine.root).unwrap();
        for (path, text) in files {
            let path = machine.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        machine
    }

    fn grade(machine: &Machine, what: &str) -> Grade {
        let found = all(machine);
        found.iter().find(|f| f.what == what).unwrap().grade
    }

    #[test]
    fn bare_machine_lacks_only_libibverbs_badly() {
        let machine = machine("bare", &[]);
        let bad: Vec<&str> = all(&machine)
            .into_iter()
            .filter(|finding| finding.grade == Grade::Bad)
            .map(|finding| finding.what)
            .collect();
        assert_eq!(bad, ["libibverbs"]);
        assert!(all(&machine)
            .iter()
            .all(|finding| finding.grade == Grade::Good || !finding.advice.is_empty()));
        fs::remove_dir_all(&machine.root).unwrap();
    }

    #[test]
    fn sharing_an_interface_by_xdp_sockets_is_called_experimental() {
        let machine = machine("xdp", &[("/proc/net/protocols", "XDP  1 0\n")]);
        let found = xdp(&machine);
        assert_eq!(found.grade, Grade::Good);
        assert!(found.detail.contains("experimental"), "{}", found.detail);
        fs::remove_dir_all(&machine.root).unwrap();
    }

    #[test]
    fn groups_of_the_scheduler_are_reported_where_they_are_unfair() {
        for (groups, release, is_reported) in [
            ("1\n", "6.18.44\n", true),
            ("0\n", "6.18.44\n", false),
            ("1\n", "6.1.0-35-amd64\n", false),
        ] {
            let files = [
                ("/proc/sys/kernel/sched_autogroup_enabled", groups),
                ("/proc/sys/kernel/osrelease", release),
            ];
            let machine = machine("groups", &files);
            assert_eq!(sessions(&machine).is_some(), is_reported, "{release}");
            fs::remove_dir_all(&machine.root).unwrap();
        }
    }

    #[test]
    fn module_without_a_driver_file_is_not_all() {
        let machine = machine("driverless", &[("/sys/module/urdma/refcnt", "0")]);
        assert_eq!(grade(&machine, "kernel module"), Grade::Without);
        fs::remove_dir_all(&machine.root).unwrap();
    }

    #[test]
    fn provider_under_the_name_of_another_private_abi_is_named() {
        let files = [
            ("/etc/libibverbs.d/urdma.driver", "driver /opt/liburdma\n"),
            ("/usr/lib64/libibverbs.so.1", "x\0IBVERBS_PRIVATE_34\0y"),
            ("/opt/liburdma-rdmav65.so", ""),
        ];
        let machine = machine("driver-name", &files);
        let found = driver(&machine).unwrap();
        assert_eq!(found.grade, Grade::Without);
        assert!(
            found.detail.contains("/opt/liburdma-rdmav34.so"),
            "{found:?}"
        );
        fs::write(machine.path("/opt/liburdma-rdmav34.so"), "").unwrap();
        assert_eq!(driver(&machine).unwrap().grade, Grade::Good);
        fs::remove_dir_all(&machine.root).unwrap();
    }

    #[test]
    fn kernel_device_of_ours_is_the_front_door() {
        let machine = machine(
            "module",
            &[
                ("/sys/class/infiniband/urdma0/node_type", "4: RNIC"),
                ("/sys/module/urdma/refcnt", "0"),
                ("/etc/libibverbs.d/urdma.driver", "driver urdma"),
            ],
        );
        assert_eq!(grade(&machine, "kernel module"), Grade::Good);
        assert!(front_door(&machine).detail.contains("urdma0"));
        assert!(kernel_rdma(&machine).detail.contains("urdma0"));
        fs::remove_dir_all(&machine.root).unwrap();
    }

    #[test]
    fn hugepages_need_pages_and_a_mount() {
        let pages = "HugePages_Free:      512\nHugepagesize:       2048 kB\n";
        let unmounted = machine("pages", &[("/proc/meminfo", pages)]);
        assert!(hugepages(&unmounted).detail.contains("not mounted"));
        let mounted = machine(
            "mounted",
            &[
                ("/proc/meminfo", pages),
                ("/proc/mounts", "none /dev/hugepages hugetlbfs rw 0 0\n"),
                ("/dev/hugepages/file", ""),
            ],
        );
        assert_eq!(hugepages(&mounted).grade, Grade::Good);
        for machine in [unmounted, mounted] {
            fs::remove_dir_all(&machine.root).unwrap();
        }
    }

    #[test]
    fn kinds_of_ports_are_those_that_urdmad_lists() {
        let all = port_kinds("udp\nmemif\ntap\n");
        assert_eq!(
            (all.grade, &*all.detail),
            (Grade::Good, "kinds udp, memif, tap")
        );
        let some = port_kinds("udp\nmemif: there is no x.so\ntap: there is no x.so\n");
        assert_eq!(some.grade, Grade::Without);
        assert_eq!(some.detail, "kinds udp; not memif, tap: there is no x.so");
    }

    #[test]
    fn nics_are_named_with_their_drivers_and_others_left_out() {
        let machine = machine(
            "nics",
            &[
                ("/sys/bus/pci/devices/0000:00:03.0/class", "0x020000\n"),
                ("/sys/bus/pci/devices/0000:00:03.0/net/eth0/mtu", "1500"),
                ("/sys/bus/pci/devices/0000:00:04.0/class", "0x020000\n"),
                ("/sys/bus/pci/devices/0000:00:05.0/class", "0x010000\n"),
            ],
        );
        symlink(
            "../../../bus/pci/drivers/vfio-pci",
            machine.path("/sys/bus/pci/devices/0000:00:04.0/driver"),
        )
        .unwrap();
        assert_eq!(
            nics(&machine).detail,
            "0000:00:03.0 (no driver, eth0), 0000:00:04.0 (vfio-pci: ready for urdmad)"
        );
        fs::remove_dir_all(&machine.root).unwrap();
    }
}
