//! The hosts that packets were sent to: which of them nothing comes back from, and why.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::sys;
use crate::config::MTU_MIN;

/// Hosts at most; when there are more, all are forgotten.
const PEERS_MAX: usize = 1024;
/// Reports taken from a socket at a time.
const REPORTS_MAX: usize = 64;
/// How long a host may be silent before it is mentioned.
const SILENT: Duration = Duration::from_secs(1);
/// How long a host that nothing is sent to any more is mentioned.
const RECENT: Duration = Duration::from_secs(600);
/// Hosts mentioned at most.
const NOTES_MAX: usize = 8;

/// A host.
#[derive(Debug, Clone, Copy)]
struct Peer {
    /// Packets sent since the last one came, and when the first and the last of them were.
    unanswered: u64,
    since: Instant,
    until: Instant,
    has_answered: bool,
    /// Why packets were not delivered, since the last one came.
    reason: Option<(Errno, u32)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_ip: HashMap<IpAddr, Peer>,
    /// Messages that could not be sent.
    pub(super) errors: u64,
}

impl Peers {
    fn entry(&mut self, ip: IpAddr) -> &mut Peer {
        if self.by_ip.len() >= PEERS_MAX && !self.by_ip.contains_key(&ip) {
            self.by_ip.clear();
        }
        let now = Instant::now();
        self.by_ip.entry(ip).or_insert(Peer {
            unanswered: 0,
            since: now,
            until: now,
            has_answered: false,
            reason: None,
        })
    }

    /// Packets are sent to a host.
    pub(super) fn sent(&mut self, ip: IpAddr, packets: usize) {
        let now = Instant::now();
        let peer = self.entry(ip);
        if peer.unanswered == 0 {
            peer.since = now;
        }
        peer.until = now;
        peer.unanswered += packets as u64;
    }

    /// A packet has come from a host.
    pub(super) fn received(&mut self, ip: IpAddr) {
        // Hosts that nothing was sent to are of no interest.
        if let Some(peer) = self.by_ip.get_mut(&ip) {
            peer.unanswered = 0;
            peer.has_answered = true;
            peer.reason = None;
        }
    }

    /// A packet to a host could not be sent, or was not delivered.
    pub(super) fn failed(&mut self, ip: IpAddr, errno: Errno, mtu: u32) {
        self.errors += 1;
        self.entry(ip).reason = Some((errno, mtu));
    }

    /// The MTU of the path to a host, if the network has reported that packets were too long.
    pub(super) fn path_mtu(&self, ip: IpAddr) -> Option<u32> {
        let (errno, mtu) = self.by_ip.get(&ip)?.reason?;
        (errno == Errno::EMSGSIZE).then_some(mtu)
    }

    /// Takes what the network reported about earlier packets of a socket.
    pub(super) fn take_reports(&mut self, socket: &OwnedFd) {
        for _ in 0..REPORTS_MAX {
            let Some(report) = sys::take_report(socket) else {
                break;
            };
            self.failed(report.to, report.errno, report.mtu);
        }
    }

    /// What `urdma status` says of the hosts from which nothing arrives, a sentence each.
    pub(super) fn notes(&self, mtu: u16) -> Vec<String> {
        let now = Instant::now();
        let mut silent: Vec<(&IpAddr, &Peer)> = self
            .by_ip
            .iter()
            .filter(|(ip, peer)| {
                let is_recent = now.duration_since(peer.until) < RECENT;
                let is_silent = peer.unanswered > 0 && now.duration_since(peer.since) > SILENT;
                // A host to which nothing was sent is not silent, whatever the network reports.
                let has_failed = peer.unanswered > 0 && peer.reason.is_some();
                !ip.is_multicast() && is_recent && (is_silent || has_failed)
            })
            .collect();
        silent.sort_by_key(|(ip, _)| **ip);
        let notes = silent.iter().take(NOTES_MAX);
        notes
            .map(|(ip, peer)| {
                let why = match peer.reason {
                    Some(reason) => explain(reason, mtu),
                    None => "check that urdmad runs there with that address, and that the \
                             firewalls and reverse path filters of both hosts let UDP ports 21504 \
                             to 21757 pass"
                        .to_owned(),
                };
                let when = if peer.has_answered {
                    format!("for {} s", now.duration_since(peer.since).as_secs())
                } else {
                    "yet".to_owned()
                };
                format!(
                    "nothing arrives from {ip} {when} ({} packets sent): {why}",
                    peer.unanswered
                )
            })
            .collect()
    }
}

/// Why packets are not delivered, and what to do.
fn explain((errno, path_mtu): (Errno, u32), mtu: u16) -> String {
    match errno {
        Errno::ECONNREFUSED => "that host has no socket for them: start urdmad there, with that \
                                address and a port of kind \"udp\", or an equal one"
            .to_owned(),
        Errno::EPERM => "this host's firewall drops what is sent: allow UDP from and to ports \
                         21504 to 21757"
            .to_owned(),
        Errno::EACCES => "a firewall or route prohibits it".to_owned(),
        Errno::EHOSTUNREACH => {
            "the network says that the host is unreachable: check that it is up and connected"
                .to_owned()
        }
        Errno::ENETUNREACH => {
            "there is no route to it: add one, or bring the interface up".to_owned()
        }
        Errno::EINVAL | Errno::EADDRNOTAVAIL => {
            "the kernel does not send there from the address of this instance: check that the \
             address is still assigned to an interface that is up, and is not a loopback one"
                .to_owned()
        }
        Errno::EMSGSIZE if !(u32::from(MTU_MIN)..u32::from(mtu)).contains(&path_mtu) => format!(
            "the network reports an MTU of {path_mtu}, and port.mtu = {mtu} cannot be less than \
             {MTU_MIN}: let all links of the path have an MTU of {mtu}, unless the report is forged"
        ),
        Errno::EMSGSIZE => format!(
            "the path has an MTU of {path_mtu}, less than port.mtu = {mtu}: set port.mtu = \
             {path_mtu} on both hosts"
        ),
        Errno::EADDRINUSE => {
            "another program has the UDP source port of a queue pair (ss -uanp shows it): end it, \
             or keep such ports free with sysctl net.ipv4.ip_local_reserved_ports=49152-65535"
                .to_owned()
        }
        errno => errno.desc().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn host_that_answers_is_not_mentioned() {
        let mut peers = Peers::default();
        peers.failed(ip("10.0.0.1"), Errno::ECONNREFUSED, 0);
        peers.sent(ip("10.0.0.1"), 3);
        assert!(peers.notes(1500)[0].contains("10.0.0.1 yet (3 packets sent)"));
        peers.received(ip("10.0.0.1"));
        peers.received(ip("10.0.0.9"));
        assert_eq!(peers.notes(1500), [""; 0]);
    }

    #[test]
    fn path_with_a_shorter_mtu_is_named_with_the_remedy() {
        let mut peers = Peers::default();
        peers.sent(ip("10.0.0.1"), 1);
        peers.failed(ip("10.0.0.1"), Errno::EMSGSIZE, 1400);
        assert!(peers.notes(1500)[0].ends_with("set port.mtu = 1400 on both hosts"));
        peers.failed(ip("10.0.0.1"), Errno::EMSGSIZE, u32::from(MTU_MIN));
        assert!(peers.notes(1500)[0].ends_with("set port.mtu = 1280 on both hosts"));
    }

    #[test]
    fn advice_to_set_an_mtu_that_no_port_can_have_is_not_given() {
        for path_mtu in [0, 552, 1279, 1500, u32::MAX] {
            let mut peers = Peers::default();
            peers.sent(ip("10.0.0.1"), 1);
            peers.failed(ip("10.0.0.1"), Errno::EMSGSIZE, path_mtu);
            let notes = peers.notes(1500);
            assert!(!notes[0].contains("set port.mtu"), "{notes:?}");
            assert!(
                notes[0].contains(&format!("an MTU of {path_mtu},")),
                "{notes:?}"
            );
        }
    }

    #[test]
    fn host_to_which_nothing_was_sent_is_not_silent_whatever_is_reported_of_it() {
        let mut peers = Peers::default();
        peers.failed(ip("10.0.0.1"), Errno::EMSGSIZE, 552);
        assert_eq!(peers.notes(1500), [""; 0]);
    }

    #[test]
    fn hosts_and_notes_are_bounded() {
        let mut peers = Peers::default();
        for number in 0..3 * PEERS_MAX as u32 {
            peers.sent(IpAddr::V4(number.into()), 1);
            peers.failed(IpAddr::V4(number.into()), Errno::EPERM, 0);
        }
        assert!(peers.by_ip.len() <= PEERS_MAX);
        assert_eq!(peers.notes(1500).len(), NOTES_MAX);
    }
}
