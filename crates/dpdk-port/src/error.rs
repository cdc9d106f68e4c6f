//! Why something does not work. The library's functions give their callers the messages.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a port cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Dpdk(#[from] dpdk::Error),
    #[error(
        "this port needs DPDK's {}, which is not installed: install the package urdma-dpdk, or \
         use kind = \"udp\"", .0.display()
    )]
    Driver(PathBuf),
    #[error("a parameter of the port is missing")]
    Parameter,
    #[error("there is no network interface \"{0}\"")]
    Interface(String),
    #[error("no memory for a program: {0}")]
    Program(io::Error),
    /// Of an AF_XDP port, with the most frequent remedy.
    #[error(
        "{error}; if {netdev} carries an XDP program already, perhaps of an urdmad that was \
         killed: ip link set dev {netdev} xdp off"
    )]
    Xdp { netdev: String, error: dpdk::Error },
    #[error("the port has too few queues")]
    Queues,
    #[error("opening the port panicked")]
    Panicked,
}

/// Why no queue pair of a port can be leased.
#[derive(Debug, Error)]
pub(crate) enum NotLeasable {
    #[error("port.lease_queues is 0 in the configuration")]
    NotConfigured,
    #[error("queues of this device work only in urdmad")]
    OnlyHere,
    #[error("net_tap has 4 queue pairs, so port.lease_queues may be 3 at most")]
    TapQueues,
    #[error(
        "{lack}; a lease needs {megabytes} MB of hugepages: as root, echo {} > \
         /proc/sys/vm/nr_hugepages and mount -t hugetlbfs none /dev/hugepages",
        .megabytes.div_ceil(2)
    )]
    Hugepages { lack: Lack, megabytes: u32 },
    #[error(
        "this NIC cannot steer packets to a leased queue ({rules}; {table}); they are forwarded"
    )]
    Steering { rules: dpdk::Error, table: NoTable },
}

/// What is missing of hugepages.
#[derive(Debug, Error)]
pub(crate) enum Lack {
    #[error("only {0} MB of hugepages are free")]
    Pages(u64),
    #[error("hugetlbfs is not mounted")]
    Mount,
    #[error("this user may not write to {}", .0.display())]
    Permission(PathBuf),
}

/// Why packets are not steered by the redirection table of a NIC.
#[derive(Debug, Error)]
pub(crate) enum NoTable {
    #[error("it has no redirection table")]
    None,
    #[error(transparent)]
    Dpdk(dpdk::Error),
}

/// Why a queue pair is not lent, or not taken back.
#[derive(Debug, Error)]
pub(crate) enum QueueError {
    #[error("there is no such queue")]
    None,
    #[error("packet buffers of the queue are in use")]
    InUse,
    #[error("the queue is lent already")]
    Lent,
    #[error("the queue is not lent")]
    NotLent,
    #[error(transparent)]
    Dpdk(#[from] dpdk::Error),
    #[error("the call panicked")]
    Panicked,
}
