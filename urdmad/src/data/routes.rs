//! Header templates by remote address.

use std::collections::HashMap;
use std::net::IpAddr;
use urdma_types::Ip16;

use urdma_underlay::{Checksum, LocalInterface, MacAddr, NeighbourResolution, Route, Template};

use super::neighbours::Neighbours;

/// Templates at most; when there are more, all are discarded.
const ROUTES_MAX: usize = 4096;

/// Why a packet cannot be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoute {
    /// The neighbour is being resolved.
    Pending,
    /// The neighbour does not answer, or the address is no valid destination.
    Unreachable,
}

/// A remote address, and the index of the preferred source address.
pub(crate) type Ends = (Ip16, u8);

/// The templates of a port.
#[derive(Debug)]
pub(crate) struct Routes {
    local: LocalInterface,
    checksum: Checksum,
    templates: HashMap<Ends, Template>,
    last: Option<(Ends, Template)>,
    /// [`Neighbours::changes`] when the templates were made.
    made_at: u64,
    /// When the neighbours in use were last touched.
    touched_ns: u64,
}

/// Interval at which neighbours in use are touched, so that they are verified and not evicted.
const TOUCH_NS: u64 = 1_000_000_000;

impl Routes {
    pub(crate) fn new(local: LocalInterface, checksum: Checksum) -> Self {
        Self {
            local,
            checksum,
            templates: HashMap::new(),
            last: None,
            made_at: 0,
            touched_ns: 0,
        }
    }

    /// The template for packets between `ends`.
    #[inline]
    pub(crate) fn find(
        &mut self,
        now_ns: u64,
        ends: Ends,
        neighbours: &mut Neighbours,
    ) -> Result<&Template, NoRoute> {
        let is_last = self.last.as_ref().is_some_and(|(last, _)| *last == ends);
        let is_fresh = self.made_at == neighbours.changes() && now_ns < self.touched_ns + TOUCH_NS;
        if !(is_last && is_fresh) {
            let template = self.look_up(now_ns, ends, neighbours)?;
            self.last = Some((ends, template));
        }
        self.last
            .as_ref()
            .map(|(_, template)| template)
            .ok_or(NoRoute::Unreachable)
    }

    fn look_up(
        &mut self,
        now_ns: u64,
        ends: Ends,
        neighbours: &mut Neighbours,
    ) -> Result<Template, NoRoute> {
        let is_stale = now_ns >= self.touched_ns + TOUCH_NS;
        if self.made_at != neighbours.changes() || is_stale || self.templates.len() >= ROUTES_MAX {
            self.templates.clear();
            self.last = None;
            self.made_at = neighbours.changes();
            self.touched_ns = now_ns;
        }
        if let Some(template) = self.templates.get(&ends) {
            return Ok(template.clone());
        }
        let (remote, index) = ends;
        let address = remote.to_ip();
        let mac = if address.is_multicast() {
            // The Ethernet address of a group follows from its IP address, without resolution.
            MacAddr::of_group(address)
        } else {
            match neighbours.resolve(now_ns, address) {
                NeighbourResolution::Known(mac) => mac,
                NeighbourResolution::Pending => return Err(NoRoute::Pending),
                NeighbourResolution::Unreachable => return Err(NoRoute::Unreachable),
            }
        };
        let template = self.template(index, address, mac);
        let template = template.ok_or(NoRoute::Unreachable)?;
        self.templates.insert(ends, template.clone());
        Ok(template)
    }

    fn template(
        &self,
        index: u8,
        destination: IpAddr,
        destination_mac: MacAddr,
    ) -> Option<Template> {
        Template::new(&Route {
            source_mac: self.local.mac(),
            destination_mac,
            // R3-5
            //# The IP source address MUST be the address by which the receiver knows the sender:
            //# that of the GID with which the queue pair or the address handle was set up; in a REQ
            //# the source address in its body; in a RESET the destination address of the packet
            //# that it answers.
            source: self.local.source_for(destination, index)?,
            destination,
            checksum: self.checksum,
        })
        .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Resolver;

    fn local() -> LocalInterface {
        let addresses = ["fe80::1", "10.0.0.1", "2001:db8::1"].map(|text| text.parse().unwrap());
        LocalInterface::new(MacAddr([2, 0, 0, 0, 0, 1]), &addresses).unwrap()
    }

    /// The destination of a packet that is made from the template.
    fn destination_mac(template: &Template) -> [u8; 6] {
        let mut packet = [0; 64];
        let ports = urdma_underlay::UdpPorts {
            source: 1,
            destination: 2,
        };
        template
            .write(&mut packet, ports, urdma_underlay::Ecn::NotCapable)
            .unwrap();
        packet[..6].try_into().unwrap()
    }

    #[test]
    fn find_of_a_group_sends_no_request() {
        let mut neighbours = Neighbours::new(local(), Resolver::DataThread).unwrap();
        let mut routes = Routes::new(local(), Checksum::Full);
        // The announcements at its start.
        while neighbours.poll_transmit(1, &mut [0; 128]).is_some() {}
        for (group, mac) in [
            ("239.1.2.3", [1, 0, 0x5e, 1, 2, 3]),
            ("ff02::7", [0x33, 0x33, 0, 0, 0, 7]),
        ] {
            let group = Ip16::new(group.parse().unwrap());
            let template = routes.find(1, (group, 0), &mut neighbours).unwrap();
            assert_eq!(destination_mac(template), mac);
        }
        assert_eq!(neighbours.poll_transmit(1, &mut [0; 128]), None);
    }

    #[test]
    fn find_waits_for_the_neighbour_and_follows_its_new_address() {
        let mut neighbours = Neighbours::new(local(), Resolver::DataThread).unwrap();
        let mut routes = Routes::new(local(), Checksum::Full);
        let remote = Ip16::new("10.0.0.2".parse().unwrap());
        assert_eq!(
            routes.find(1, (remote, 0), &mut neighbours).err(),
            Some(NoRoute::Pending)
        );
        for last in [7, 8] {
            let mac = MacAddr([2, 0, 0, 0, 0, last]);
            let peer = LocalInterface::new(mac, &["10.0.0.2".parse().unwrap()]).unwrap();
            let mut peer = Neighbours::new(peer, Resolver::DataThread).unwrap();
            let mut frame = [0; 128];
            let octets = peer.poll_transmit(2, &mut frame).unwrap();
            let mut now_ns = u64::from(last) * 2_000_000_000;
            neighbours.handle_frame(now_ns, &frame[..octets]);
            // The old address is solicited first, and does not answer.
            let end_ns = now_ns + 2_000_000_000;
            while now_ns < end_ns {
                while let Some(octets) = neighbours.poll_transmit(now_ns, &mut frame) {
                    let is_for_peer = frame[0] & 1 == 1 || frame[..6] == mac.0;
                    if is_for_peer {
                        peer.handle_frame(now_ns, &frame[..octets]);
                    }
                }
                while let Some(octets) = peer.poll_transmit(now_ns, &mut frame) {
                    neighbours.handle_frame(now_ns, &frame[..octets]);
                }
                now_ns += 100_000_000;
            }
            let template = routes.find(now_ns, (remote, 0), &mut neighbours).unwrap();
            assert_eq!(destination_mac(template), mac.0);
        }
    }
}
