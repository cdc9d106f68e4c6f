//! Why a port of DPDK could not be opened, where the driver reports no more than an errno.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;

use caps::{CapSet, Capability};
use nix::net::if_::if_nametoindex;
use nix::unistd::{access, AccessFlags};

use crate::config::PortKind;

/// The likely cause, and what to do; `None` if there is nothing to add to the driver's error.
pub(super) fn cause(kind: &PortKind) -> Option<String> {
    match kind {
        PortKind::Tap { netdev } => {
            lacks(kind, &[Capability::CAP_NET_ADMIN]).or_else(|| taken(netdev))
        }
        PortKind::AfXdp { .. } => {
            use Capability::{CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW};
            lacks(kind, &[CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF])
        }
        PortKind::Memif { is_server, socket } if *is_server => unusable(socket),
        PortKind::Memif { .. } | PortKind::Device { .. } | PortKind::Udp => None,
    }
}

/// Capabilities that this process lacks.
fn lacks(kind: &PortKind, needed: &[Capability]) -> Option<String> {
    let own = caps::read(None, CapSet::Effective).ok()?;
    let missing = needed.iter().filter(|capability| !own.contains(capability));
    let missing: Vec<String> = missing.map(ToString::to_string).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "a port of kind \"{}\" needs {}, which this user does not have: start urdmad as root, \
             or use kind = \"udp\"",
            kind.name(),
            missing.join(", ")
        )
    })
}

/// Whether the name of a new interface is in use.
fn taken(netdev: &str) -> Option<String> {
    if_nametoindex(netdev).ok()?;
    Some(format!(
        "there is a network interface \"{netdev}\" already: choose another name for port.netdev"
    ))
}

/// Why a socket cannot be made.
fn unusable(socket: &Path) -> Option<String> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let shown = directory.display();
    if !directory.is_dir() {
        return Some(format!(
            "there is no directory {shown} for port.socket: mkdir -p {shown}"
        ));
    }
    if access(directory, AccessFlags::W_OK).is_err() {
        return Some(format!(
            "this user may not write to {shown}: name another place for port.socket"
        ));
    }
    // The type of the socket is another, so nothing is connected.
    let is_dead = |kind| matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound);
    let answer = UnixStream::connect(socket);
    let is_used = answer.map_or_else(|error| !is_dead(error.kind()), |_| true);
    is_used.then(|| {
        format!(
            "{} is in use, perhaps by another instance: let one of the two have \
             role = \"client\", or another port.socket",
            socket.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn server(socket: impl Into<PathBuf>) -> PortKind {
        PortKind::Memif {
            is_server: true,
            socket: socket.into(),
        }
    }

    #[test]
    fn socket_without_a_directory_or_in_use_is_explained() {
        let said = cause(&server("/no/such/socket")).unwrap();
        assert!(said.contains("mkdir -p /no/such"), "{said}");
        let path = std::env::temp_dir().join(format!("urdma-cause-{}", std::process::id()));
        assert_eq!(cause(&server(&path)), None);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let said = cause(&server(&path)).unwrap();
        assert!(said.contains("in use"), "{said}");
        drop(listener);
        // A killed server leaves the file.
        assert_eq!(cause(&server(&path)), None);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn name_of_an_interface_that_exists_is_explained() {
        assert!(taken("lo").unwrap().contains("\"lo\" already"));
        assert_eq!(taken("no-such-netdev"), None);
    }
}
