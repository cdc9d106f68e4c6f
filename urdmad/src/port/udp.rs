//! A port on UDP sockets, which needs no privilege: the kernel owns addresses, routes and
//! neighbours. doc/udp-port.md describes it.
//!
//! - `sys`: system calls; `sockets`: what the sockets are like.
//! - `incoming`, `outgoing`: from datagrams to frames and back.
//! - `watcher`: wakes the data thread.
//! - `peers`: from which hosts nothing arrives.

mod incoming;
mod outgoing;
mod peers;
mod sockets;
mod sys;
mod watcher;

use std::collections::BTreeMap;
use std::net::IpAddr;

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::resource::{getrlimit, Resource};
use urdma_types::{udp_port, SlotId, PORT_BASE};
use urdma_underlay::{MacAddr, Verification};

use self::incoming::Incoming;
use self::outgoing::Outgoing;
use self::peers::Peers;
use self::sockets::LocalAddress;
use self::watcher::Watcher;
use super::error::{PortError, QueueError};
use super::interface::{NoBuffer, OpenPort, PacketPort, PortReport, PortRequest, Resolver};
use crate::interfaces::{self, InterfaceAddress};
use crate::lease::NotLeasable;

pub(crate) use self::sockets::has_route;

/// The port.
struct Udp {
    addresses: Vec<LocalAddress>,
    mac: MacAddr,
    mtu: u16,
    /// Before the sockets that it watches.
    watcher: Option<Watcher>,
    incoming: Incoming,
    outgoing: Outgoing,
    peers: Peers,
    /// The places of the groups' sockets, or why there are none.
    groups: BTreeMap<IpAddr, Result<Vec<usize>, Errno>>,
    /// First source ports of slots that are not to be had.
    missing: usize,
}

/// Opens the sockets.
///
/// # Errors
/// They cannot be opened.
pub(super) fn open(request: &PortRequest<'_>, mac: MacAddr) -> Result<OpenPort, PortError> {
    let (config, host) = (request.config, interfaces::list());
    let addresses = request
        .addresses
        .iter()
        .map(|ip| find_address(&host, *ip, config.mtu))
        .collect::<Result<Vec<LocalAddress>, PortError>>()?;
    let mut incoming = Incoming::new(mac, request.addresses, config.mtu)
        .map_err(|errno| PortError::no_socket(errno, 1))?;
    let slots = || SlotId::all().take(usize::from(request.slots) + 1);
    let total = addresses.len() * slots().count();
    let mut daemon = Vec::new();
    for address in &addresses {
        for port in slots().map(udp_port) {
            let at = address.with_port(port);
            let place = sockets::receiver(*address, port)
                .and_then(|socket| incoming.add(socket, at))
                .map_err(|errno| PortError::not_bound(errno, address.ip, port, total))?;
            if port == PORT_BASE {
                daemon.push(place);
            }
        }
    }
    let mut outgoing = Outgoing::new(addresses.clone(), daemon, config.mtu);
    let own: Vec<SlotId> = slots().skip(1).collect();
    let sockets = addresses.len() * own.len();
    let missing = if leaves_room(sockets, getrlimit(Resource::RLIMIT_NOFILE)) {
        outgoing.keep(&own)
    } else {
        sockets
    };
    if missing > 0 {
        tracing::warn!("{}", without_port(missing));
    }
    let first = request.addresses.first().map(ToString::to_string);
    Ok(OpenPort {
        port: Box::new(Udp {
            outgoing,
            addresses,
            mac,
            mtu: config.mtu,
            watcher: None,
            incoming,
            peers: Peers::default(),
            groups: BTreeMap::new(),
            missing,
        }),
        device: format!("sockets at {}", first.unwrap_or_default()),
        leases: Err(NotLeasable::Kind("udp")),
    })
}

/// An address of this host for packets of an MTU.
fn find_address(
    host: &[InterfaceAddress],
    ip: IpAddr,
    mtu: u16,
) -> Result<LocalAddress, PortError> {
    let Some(netdev) = interfaces::netdev_of(host, ip) else {
        return Err(PortError::NoAddress(ip));
    };
    let interface = if_nametoindex(&*netdev).unwrap_or(0);
    let socket = sockets::new_socket(ip).map_err(|errno| PortError::no_socket(errno, 1))?;
    let limit = sys::interface_mtu(&socket, &netdev).unwrap_or(u32::from(mtu));
    if u32::from(mtu) > limit {
        return Err(PortError::Mtu {
            netdev,
            ip,
            limit,
            mtu,
        });
    }
    Ok(LocalAddress { ip, interface })
}

/// Whether a process with these limits of open files has descriptors for clients beside these
/// sockets, which are only precautions.
fn leaves_room(sockets: usize, limits: Result<(u64, u64), Errno>) -> bool {
    limits.is_ok_and(|(limit, _)| 4 * sockets as u64 <= limit)
}

/// What slots without a source port of their own cannot do.
fn without_port(slots: usize) -> String {
    format!(
        "{slots} UDP ports from 49152 to 49405 are in use by other programs, or this process may \
         have no more sockets: slots without theirs send nothing from queue pairs whose other \
         ports are in use too (ss -uanp shows the programs; end them, keep the ports free with \
         sysctl net.ipv4.ip_local_reserved_ports=49152-65535, and restart urdmad)"
    )
}

impl Udp {
    /// Becomes a member of a group at every address of its IP version.
    fn join(&mut self, group: IpAddr) -> Result<Vec<usize>, Errno> {
        let mut places = Vec::new();
        let mut outcome = Err(Errno::EAFNOSUPPORT);
        let mut interfaces = Vec::new();
        for address in self.addresses.clone() {
            let is_new = !interfaces.contains(&address.interface);
            if address.ip.is_ipv4() != group.is_ipv4() || !is_new {
                continue;
            }
            interfaces.push(address.interface);
            let joined = sockets::member(group, address, PORT_BASE).and_then(|socket| {
                self.incoming
                    .add(socket, address.to_remote(group, PORT_BASE))
            });
            match joined {
                Ok(place) => places.push(place),
                Err(errno) => outcome = Err(errno),
            }
        }
        if places.is_empty() {
            outcome
        } else {
            Ok(places)
        }
    }
}

impl PacketPort for Udp {
    fn enter(&mut self) {}

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn resolver(&self) -> Resolver<'_> {
        Resolver::Routes
    }

    fn verification(&self) -> Verification {
        Verification::Kernel
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
        self.incoming.receive(&mut self.peers, sink)
    }

    fn has_room(&mut self) -> bool {
        self.outgoing.has_room(&mut self.peers) || self.flush()
    }

    fn transmit(&mut self, octets: usize) -> Result<&mut [u8], NoBuffer> {
        if !self.has_room() {
            return Err(NoBuffer);
        }
        self.outgoing.begin(octets, &mut self.peers)
    }

    fn flush(&mut self) -> bool {
        let incoming = &self.incoming;
        self.outgoing
            .flush(|place| incoming.socket(place), &mut self.peers)
    }

    fn discard(&mut self) -> usize {
        self.outgoing.discard(&mut self.peers)
    }

    fn lend(&mut self, _: u16, _: u16) -> Result<(), QueueError> {
        Err(QueueError::None)
    }

    fn reclaim(&mut self, _: u16) -> Result<(), QueueError> {
        Err(QueueError::None)
    }

    fn set_group(&mut self, group: IpAddr, has_members: bool) {
        if has_members {
            if !self.groups.contains_key(&group) {
                let joined = self.join(group);
                self.groups.insert(group, joined);
            }
        } else if let Some(Ok(places)) = self.groups.remove(&group) {
            places.iter().for_each(|place| self.incoming.remove(*place));
        }
    }

    fn set_wake(&mut self, wake: Box<dyn Fn() + Send>) {
        match Watcher::start(self.incoming.descriptor(), wake) {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => tracing::warn!("no thread to watch sockets: {error}; they are polled"),
        }
    }

    fn arm(&mut self) -> bool {
        let watcher = self.watcher.as_ref();
        watcher.is_some_and(|watcher| watcher.arm(self.incoming.descriptor()))
    }

    fn disarm(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.disarm(self.incoming.descriptor());
        }
    }

    fn report(&mut self) -> PortReport {
        self.outgoing.take_reports(&mut self.peers);
        let overflows = self.incoming.overflows();
        let mut notes = self.peers.notes(self.mtu);
        if overflows > 0 {
            notes.push(format!(
                "{overflows} packets found a full receive buffer: let buffers be longer with \
                 sysctl net.core.rmem_max=4194304"
            ));
        }
        if self.missing > 0 {
            notes.push(without_port(self.missing));
        }
        if self.outgoing.replaced() > 0 {
            notes.push(format!(
                "{} UDP source ports of queue pairs are in use by other programs (ss -uanp shows \
                 them): their packets are sent from another port of the process",
                self.outgoing.replaced()
            ));
        }
        let mut without = self.groups.iter().filter_map(|(group, joined)| {
            let errno = joined.as_ref().err()?;
            Some((group, errno.desc()))
        });
        if let Some((group, reason)) = without.next() {
            let others = match without.count() {
                0 => String::new(),
                others => format!(" and {others} others"),
            };
            notes.push(format!(
                "datagrams to group {group}{others} do not arrive: {reason}"
            ));
        }
        let hardware = [
            ("rx_packets", self.incoming.packets),
            ("rx_calls", self.incoming.calls),
            ("rx_errors", self.incoming.errors),
            ("rx_missed", overflows),
            ("rx_sockets", self.incoming.len() as u64),
            ("tx_packets", self.outgoing.packets),
            ("tx_octets", self.outgoing.octets),
            ("tx_calls", self.outgoing.calls),
            ("tx_errors", self.peers.errors),
            ("tx_sockets", self.outgoing.len() as u64),
        ];
        let hardware = hardware.map(|(name, value)| (name.to_owned(), value));
        PortReport {
            link_up: true,
            hardware: hardware.into_iter().collect(),
            pools: Vec::new(),
            notes,
        }
    }
}

#[cfg(test)]
mod tests;
