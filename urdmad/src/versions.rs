//! Hosts that send packets of another version of the protocol. Anybody on the link can send a
//! packet in the name of a host, so what it says is kept for a limited time, and until the host
//! sends a packet of this version.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use proto_trp::wire::trp::VERSION;

/// Hosts that are remembered.
const HOSTS_MAX: usize = 8;
/// How long one is remembered after its last packet.
const KEPT: Duration = Duration::from_secs(120);

/// The hosts, with version and time of the last packet.
#[derive(Debug, Default)]
pub(crate) struct OtherVersions(BTreeMap<IpAddr, (u8, Instant)>);

impl OtherVersions {
    /// A packet of another version came from `from`. Of more hosts than are remembered, the one
    /// that was silent for longest is forgotten.
    pub(crate) fn note(&mut self, now: Instant, from: IpAddr, version: u8) {
        if self.0.len() >= HOSTS_MAX && !self.0.contains_key(&from) {
            let hosts = self.0.iter();
            let oldest = hosts.min_by_key(|(_, (_, at))| *at).map(|(ip, _)| *ip);
            oldest.and_then(|ip| self.0.remove(&ip));
        }
        self.0.insert(from, (version, now));
    }

    /// A packet of this version came from `from`.
    pub(crate) fn clear(&mut self, from: IpAddr) {
        self.0.remove(&from);
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets hosts that have not sent for a while.
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_young = |at: Instant| now.saturating_duration_since(at) < KEPT;
        self.0.retain(|_, (_, at)| is_young(*at));
    }

    /// A sentence for each host.
    pub(crate) fn notes(&self) -> Vec<String> {
        let hosts = self.0.iter();
        hosts
            .map(|(ip, (version, _))| {
                format!(
                    "{ip} sends packets of version {version} of the protocol, and this urdmad \
                     knows version {VERSION}: install the same version of urdma on both hosts"
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn host_is_forgotten_after_a_packet_of_this_version_or_after_a_while() {
        let start = Instant::now();
        let mut versions = OtherVersions::default();
        versions.note(start, host(1), 9);
        versions.note(start, host(2), 9);
        versions.clear(host(1));
        let notes = versions.notes();
        assert_eq!(notes.len(), 1);
        assert!(notes[0].starts_with("192.0.2.2 sends packets of version 9 "));
        versions.expire(start + KEPT - Duration::from_nanos(1));
        assert!(!versions.is_empty());
        versions.expire(start + KEPT);
        assert!(versions.is_empty());
    }

    #[test]
    fn forged_hosts_do_not_keep_out_a_later_one() {
        let start = Instant::now();
        let mut versions = OtherVersions::default();
        for number in 0..100 {
            let at = start + Duration::from_millis(number.into());
            versions.note(at, host(number), 9);
        }
        let notes = versions.notes();
        assert_eq!(notes.len(), HOSTS_MAX);
        assert!(notes[HOSTS_MAX - 1].starts_with("192.0.2.99 "));
        assert!(notes[0].starts_with("192.0.2.92 "));
    }
}
