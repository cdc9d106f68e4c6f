//! DPDK's environment abstraction layer (EAL), which a process initialises once and all other types
//! of this crate share.

use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;

use dpdk_files::remove_leftovers;

use crate::log::{Log, Sink};
use crate::Error;

/// An lcore id of DPDK, 0 to 127: selects the per-lcore caches of pools that a thread uses.
///
/// Two processes of one instance must not use the same id at the same time: they would corrupt the
/// caches of the pools that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LcoreId(u32);

impl LcoreId {
    /// The number of ids.
    pub const COUNT: u32 = dpdk_sys::RTE_MAX_LCORE;

    /// The primary's only lcore.
    pub const PRIMARY: LcoreId = LcoreId(0);

    /// The id with this number; `None` if it is out of range.
    pub const fn new(number: u32) -> Option<Self> {
        if number < Self::COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Makes the calling thread use the pool caches of this lcore.
    ///
    /// # Safety
    /// No two threads with the same id, in any process of the instance, may use pools at the same
    /// time.
    #[inline]
    pub unsafe fn adopt(self) {
        // SAFETY: the id is below RTE_MAX_LCORE; the caller keeps threads with one id apart.
        unsafe { dpdk_sys::urdma_lcore_adopt(self.0) }
    }
}

/// The role of a process: whether it creates the shared memory or attaches to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Creates it: the daemon.
    Primary,
    /// Attaches to that of the primary with the same file prefix.
    Secondary,
}

/// The memory that a primary allocates; secondaries use the primary's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Hugepages from hugetlbfs; the only kind to which secondaries can attach.
    Huge {
        /// Megabytes, allocated at the start, which takes longer the more they are.
        megabytes: u32,
        /// Mount point; `None` for any mount of hugetlbfs.
        directory: Option<PathBuf>,
    },
    /// Ordinary pages: needs no privileges and supports no secondaries.
    Plain {
        /// Megabytes.
        megabytes: u32,
    },
}

/// The drivers that a process with shared DPDK needs; static DPDK has the drivers linked into it.
///
/// Shared DPDK loads all drivers of `RTE_EAL_PMD_PATH` whatever `-d` names (doc/configuration.md).
/// [`Drivers::missing`] finds a needed one that is not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drivers {
    /// The linked ones only.
    Linked,
    /// Not known: any installed driver.
    All,
    /// These, by the name of the library without `librte_` and `.so`, such as `net_memif`.
    Named(Vec<String>),
}

impl Drivers {
    /// The drivers of devices with these arguments; all drivers if one is unknown.
    ///
    /// The device `net_memif0,role=server` has the driver `net_memif`. The drivers of a PCI device
    /// follow from its vendor.
    pub fn of_devices<'a>(devices: impl IntoIterator<Item = &'a str>) -> Self {
        let mut names = vec!["bus_vdev".to_owned(), "mempool_ring".to_owned()];
        for device in devices {
            let name = device.split(',').next().unwrap_or(device);
            if is_pci_address(name) {
                let Some(drivers) = drivers_of_pci(name) else {
                    return Self::All;
                };
                names.push("bus_pci".to_owned());
                names.extend(installed(drivers).into_iter().map(str::to_owned));
                continue;
            }
            let driver = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
            if !driver.starts_with("net_") || driver.contains(':') {
                return Self::All;
            }
            if !names.iter().any(|known| known == driver) {
                names.push(driver.to_owned());
            }
        }
        Self::Named(names)
    }

    /// The first of them whose library is not installed.
    pub fn missing(&self) -> Option<PathBuf> {
        match self {
            Self::Linked | Self::All => None,
            Self::Named(names) => names
                .iter()
                .map(|name| library_of(name))
                .find(|path| !path.exists()),
        }
    }
}

/// The drivers that are installed; all if none is. Versions of DPDK differ in which there are:
/// 25.11 has no net_igc.
fn installed(drivers: &[&'static str]) -> Vec<&'static str> {
    let exists = |driver: &&str| library_of(driver).exists();
    let found: Vec<&str> = drivers.iter().copied().filter(exists).collect();
    if found.is_empty() {
        drivers.to_owned()
    } else {
        found
    }
}

/// The library of a driver. Its name has the major version, which the name of the directory ends
/// with (`pmds-23.0`): names without one belong to the packages for developers.
fn library_of(driver: &str) -> PathBuf {
    let path = dpdk_sys::RTE_EAL_PMD_PATH;
    let directory = String::from_utf8_lossy(&path[..path.len() - 1]).into_owned();
    let version = directory.rsplit_once("pmds-").map_or("", |(_, it)| it);
    let major = version.split('.').next().unwrap_or(version);
    let name = format!("librte_{driver}.so.{major}");
    PathBuf::from(directory).join(name)
}

/// The version of DPDK that this process uses, such as `DPDK 22.11.9`.
pub fn version() -> &'static CStr {
    // SAFETY: the function returns a constant string.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }
}

/// Parameters of the initialisation.
#[derive(Clone, Debug)]
pub struct EalOptions {
    /// The role of the process.
    pub process: Process,
    /// Distinguishes the primaries of one machine.
    pub file_prefix: String,
    /// The directory of DPDK's files, which is set as `RUNTIME_DIRECTORY` in the process'
    /// environment; `None`: DPDK's default.
    pub runtime_directory: Option<PathBuf>,
    /// The only lcore of the process; unique among the processes of the instance.
    pub lcore: LcoreId,
    /// The memory, in a primary.
    pub memory: Memory,
    /// Drivers to load.
    pub drivers: Drivers,
    /// The only PCI device that is probed: its address and arguments.
    pub pci: Option<String>,
    /// The destination of log messages.
    pub log: Log,
}

static STARTED: AtomicBool = AtomicBool::new(false);

struct Running {
    /// In a primary: the file prefix and the directory of the files to remove at the end.
    files: Option<(String, Option<PathBuf>)>,
}

impl Drop for Running {
    fn drop(&mut self) {
        match &self.files {
            // rte_eal_cleanup would unmap memory that DPDK's interrupt thread may still read, since
            // that thread is never stopped. The memory is freed when the process ends; only the
            // files must be removed.
            Some((prefix, runtime)) => remove_leftovers(prefix, runtime.as_deref()),
            None => {
                // SAFETY: DPDK is initialised, and no pool, port or queue is left, since each holds
                // a reference to this. Drivers of a secondary register nothing with its interrupt
                // thread.
                unsafe { dpdk_sys::rte_eal_cleanup() };
            }
        }
    }
}

/// The initialised DPDK; clones share it. When the last clone is dropped, a secondary detaches from
/// its primary, and a primary removes its files; its memory is freed when the process ends.
#[derive(Clone)]
pub struct Eal {
    _running: Arc<Running>,
    process: Process,
}

impl std::fmt::Debug for Eal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Eal")
            .field("process", &self.process)
            .finish()
    }
}

impl Eal {
    /// Initialises DPDK.
    ///
    /// The initialisation runs in a thread of its own, so that neither the caller's CPU affinity
    /// nor its signal mask changes. The threads that DPDK creates have all signals blocked.
    ///
    /// # Errors
    /// `EALREADY` if this process has initialised DPDK before, even if it was cleaned up since;
    /// otherwise DPDK's own error, such as no hugepages or no primary.
    pub fn init(options: &EalOptions) -> Result<Self, Error> {
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(Error::new(
                libc::EALREADY,
                "DPDK can be initialised only once in a process",
            ));
        }
        if let Some(directory) = &options.runtime_directory {
            std::env::set_var("RUNTIME_DIRECTORY", directory);
        }
        let mut sink = Sink::open(&options.log)?;
        let arguments = arguments(options)?;
        let process = options.process;
        let started = thread::Builder::new()
            .name("urdma-eal-init".into())
            .spawn(move || start(&arguments, process))
            .map_err(|error| Error::new(libc::EAGAIN, format!("cannot start a thread: {error}")))?
            .join();
        match started {
            Ok(Ok(())) => sink.settle(),
            Ok(Err(error)) => {
                let reason = sink.reason();
                return Err(Error::new(error.errno(), format!("{error} ({reason})")));
            }
            Err(_) => {
                return Err(Error::new(
                    libc::EFAULT,
                    "the initialisation of DPDK panicked",
                ))
            }
        }
        let files = (options.process == Process::Primary).then(|| {
            (
                options.file_prefix.clone(),
                options.runtime_directory.clone(),
            )
        });
        Ok(Self {
            _running: Arc::new(Running { files }),
            process: options.process,
        })
    }

    /// The role of this process.
    pub const fn process(&self) -> Process {
        self.process
    }
}

fn start(arguments: &[CString], process: Process) -> Result<(), Error> {
    block_signals();
    // DPDK keeps pointers to its arguments for telemetry, so they are leaked.
    let mut pointers: Vec<*mut libc::c_char> = arguments
        .iter()
        .map(|argument| argument.clone().into_raw())
        .collect();
    pointers.push(ptr::null_mut());
    let pointers = pointers.leak();
    let count = i32::try_from(arguments.len()).unwrap_or(i32::MAX);
    // SAFETY: the array holds `count` strings and a terminating null, and is never freed.
    let result = unsafe { dpdk_sys::rte_eal_init(count, pointers.as_mut_ptr()) };
    if result < 0 {
        return Err(Error::last("cannot initialise DPDK"));
    }
    if process == Process::Primary {
        // Without it the lessees of queue pairs sleep by the clock.
        // SAFETY: DPDK is initialised.
        let _ = unsafe { dpdk_sys::urdma_interrupts_offer() };
    }
    Ok(())
}

/// Blocks all signals but those of synchronous faults, in this thread and the threads it creates.
fn block_signals() {
    let faults = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];
    // SAFETY: all zeros is a valid signal set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local variable.
    unsafe { libc::sigfillset(&mut set) };
    for signal in faults {
        // SAFETY: the set is initialized, and the signal number is valid.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    // SAFETY: the set is initialized, and a null pointer for the old mask is allowed.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) };
}

/// The EAL command line for the options.
fn arguments(options: &EalOptions) -> Result<Vec<CString>, Error> {
    let mut list: Vec<String> = vec!["urdma".into()];
    let mut option = |name: &str, value: String| {
        list.push(name.to_owned());
        list.push(value);
    };
    option("--file-prefix", options.file_prefix.clone());
    option(
        "--lcores",
        format!("{}@({})", options.lcore.0, allowed_cpus()?),
    );
    match options.process {
        Process::Primary => option("--proc-type", "primary".into()),
        Process::Secondary => option("--proc-type", "secondary".into()),
    }
    if options.process == Process::Primary {
        match &options.memory {
            Memory::Huge {
                megabytes,
                directory,
            } => {
                option("-m", megabytes.to_string());
                if let Some(directory) = directory {
                    option("--huge-dir", directory.display().to_string());
                }
            }
            Memory::Plain { megabytes } => option("-m", megabytes.to_string()),
        }
    }
    match &options.drivers {
        Drivers::Linked | Drivers::All => {}
        Drivers::Named(names) => {
            for name in names {
                option("-d", library_of(name).display().to_string());
            }
        }
    }
    if options.process == Process::Primary && matches!(options.memory, Memory::Plain { .. }) {
        list.push("--no-huge".into());
    }
    match &options.pci {
        Some(device) => list.extend(["-a".into(), device.clone()]),
        None => list.push("--no-pci".into()),
    }
    list.push("--no-telemetry".into());
    list.into_iter()
        .map(|argument| {
            CString::new(argument)
                .map_err(|_| Error::new(libc::EINVAL, "an option contains a zero octet"))
        })
        .collect()
}

/// Drivers by PCI vendor, of which one has to be installed.
const DRIVERS_OF_VENDORS: &[(u16, &[&str])] = &[
    (0x14e4, &["net_bnxt"]),
    (0x15ad, &["net_vmxnet3"]),
    (0x1ae0, &["net_gve"]),
    (0x1af4, &["net_virtio"]),
    (0x1d0f, &["net_ena"]),
    (
        0x8086,
        &[
            "net_e1000",
            "net_i40e",
            "net_iavf",
            "net_ice",
            "net_igc",
            "net_ixgbe",
        ],
    ),
];

/// The drivers for the PCI device at this address, by the vendor id that the kernel reports.
fn drivers_of_pci(address: &str) -> Option<&'static [&'static str]> {
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/vendor")).ok()?;
    let vendor = u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()?;
    DRIVERS_OF_VENDORS
        .iter()
        .find(|(known, _)| *known == vendor)
        .map(|(_, drivers)| *drivers)
}

/// Whether device arguments begin with the full address of a PCI device, such as `0000:3b:00.0`.
pub fn is_pci_address(device: &str) -> bool {
    let address = device.split(',').next().unwrap_or(device);
    let mut parts = address.split([':', '.']);
    let mut hex = |digits: std::ops::RangeInclusive<usize>| {
        parts.next().is_some_and(|part| {
            digits.contains(&part.len()) && part.chars().all(|digit| digit.is_ascii_hexdigit())
        })
    };
    hex(4..=8) && hex(2..=2) && hex(2..=2) && hex(1..=1) && parts.next().is_none()
}

/// The CPUs of the process' affinity mask, in the syntax of DPDK.
fn allowed_cpus() -> Result<String, Error> {
    // SAFETY: all zeros is a valid set of CPUs.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local variable of the size that is passed.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if result != 0 {
        return Err(Error::new(
            libc::EINVAL,
            "cannot read the CPU affinity mask",
        ));
    }
    let count = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    let cpus: Vec<String> = (0..count)
        // SAFETY: the CPU's number is below CPU_SETSIZE.
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .map(|cpu| cpu.to_string())
        .collect();
    Ok(cpus.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_told_from_other_devices() {
        for device in ["0000:3b:00.0", "0000:00:1f.6,mode=1", "10000:01:00.1"] {
            assert!(is_pci_address(device), "{device}");
        }
        for device in [
            "net_tap0,iface=tap0",
            "3b:00.0",
            "0000:3b:00",
            "net_vhost0,iface=/a:b:c.d",
        ] {
            assert!(!is_pci_address(device), "{device}");
        }
    }

    #[test]
    fn drivers_of_virtual_devices_are_only_theirs() {
        assert_eq!(
            Drivers::of_devices(["net_memif0,role=server", "net_memif1", "net_tap0,iface=x"]),
            Drivers::Named(vec![
                "bus_vdev".into(),
                "mempool_ring".into(),
                "net_memif".into(),
                "net_tap".into()
            ])
        );
        // No such device exists, so its vendor is unknown.
        assert_eq!(Drivers::of_devices(["ffff:ff:1f.7"]), Drivers::All);
    }

    #[test]
    fn drivers_of_a_pci_vendor_that_are_not_installed_are_left_out_unless_none_is() {
        assert_eq!(installed(&["net_of_no_kind", "net_tap"]), ["net_tap"]);
        assert_eq!(installed(&["net_of_no_kind"]), ["net_of_no_kind"]);
    }

    #[test]
    fn lcore_128_is_refused() {
        assert_eq!(LcoreId::new(127).unwrap().number(), 127);
        assert_eq!(LcoreId::new(128), None);
    }

    #[test]
    fn missing_driver_is_named_and_an_installed_one_is_not() {
        let named = |name: &str| Drivers::Named(vec!["mempool_ring".into(), name.into()]);
        assert_eq!(named("bus_vdev").missing(), None);
        let missing = named("net_of_no_kind").missing().unwrap();
        let name = missing.file_name().unwrap().to_str().unwrap();
        let version = name.strip_prefix("librte_net_of_no_kind.so.").unwrap();
        assert!(version.parse::<u32>().is_ok(), "{missing:?}");
    }
}
