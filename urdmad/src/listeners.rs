//! Which process has which CM port.

use std::net::IpAddr;

use urdma_ipc::status::ListenerStatus;
use urdma_ipc::{PortSpace, Refusal, RefusalKind};

/// First port that is handed out when a process asks for any (as `ip_local_port_range`).
const EPHEMERAL_FIRST: u16 = 32_768;
const EPHEMERAL_LAST: u16 = 60_999;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Binding {
    space: PortSpace,
    address: IpAddr,
    port: u16,
    slot: u8,
    backlog: Option<u32>,
}

impl Binding {
    /// Whether a packet could be meant for both.
    fn conflicts(&self, space: PortSpace, address: IpAddr, port: u16) -> bool {
        self.space == space
            && self.port == port
            && (self.address == address
                || self.address.is_unspecified()
                || address.is_unspecified())
    }

    fn is(&self, space: PortSpace, address: IpAddr, port: u16) -> bool {
        self.space == space && self.address == address && self.port == port
    }
}

/// What is at a place that somebody wants to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// A listener of this slot.
    Listening(u8),
    /// A port that a process has bound. It is most likely about to listen: programs such as qperf tell the other end their port before they do.
    Bound,
    /// Nothing.
    Nobody,
}

/// The bound ports of an instance.
#[derive(Debug, Default)]
pub struct Listeners {
    bindings: Vec<Binding>,
    next_ephemeral: u16,
}

impl Listeners {
    /// Reserves `port`, or any free one for 0, for `slot`, which may have `quota` in all; gives the port.
    ///
    /// # Errors
    /// AddressInUse, QuotaExceeded.
    pub fn bind(
        &mut self,
        slot: u8,
        space: PortSpace,
        address: IpAddr,
        port: u16,
        quota: u32,
    ) -> Result<u16, Refusal> {
        let taken = self.bindings.iter().filter(|b| b.slot == slot).count();
        if taken >= usize::try_from(quota).unwrap_or(usize::MAX) {
            return Err(Refusal::new(
                RefusalKind::QuotaExceeded,
                format!("this process has {taken} CM ports already, as many as cm_ports_per_process allows"),
            ));
        }
        let port = if port == 0 {
            self.free_port(space, address)?
        } else if self.is_taken(space, address, port) {
            return Err(in_use(address, port));
        } else {
            port
        };
        self.bindings.push(Binding {
            space,
            address,
            port,
            slot,
            backlog: None,
        });
        Ok(port)
    }

    /// Listens on a port of `slot`, binding it first if need be; gives the port.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn listen(
        &mut self,
        slot: u8,
        space: PortSpace,
        address: IpAddr,
        port: u16,
        backlog: u32,
        quota: u32,
    ) -> Result<u16, Refusal> {
        let is_own = |b: &Binding| b.slot == slot && b.is(space, address, port);
        let bound_port = if self.bindings.iter().any(is_own) {
            port
        } else {
            self.bind(slot, space, address, port, quota)?
        };
        for binding in &mut self.bindings {
            if binding.is(space, address, bound_port) {
                binding.backlog = Some(backlog);
            }
        }
        Ok(bound_port)
    }

    /// Gives a port of `slot` back.
    ///
    /// # Errors
    /// NotFound if it is not this slot's.
    pub fn release(
        &mut self,
        slot: u8,
        space: PortSpace,
        address: IpAddr,
        port: u16,
    ) -> Result<(), Refusal> {
        let before = self.bindings.len();
        self.bindings
            .retain(|b| !(b.slot == slot && b.is(space, address, port)));
        if self.bindings.len() == before {
            return Err(Refusal::new(
                RefusalKind::NotFound,
                format!("this process has not bound {address} port {port}"),
            ));
        }
        Ok(())
    }

    /// Gives all ports of a dead slot back.
    pub fn release_all(&mut self, slot: u8) {
        self.bindings.retain(|binding| binding.slot != slot);
    }

    /// What a request for `address` and `port` is for: a listener of the exact address first, then one of the wildcard.
    pub fn find(&self, space: PortSpace, address: IpAddr, port: u16) -> Service {
        let at_port = || {
            let bindings = self.bindings.iter();
            bindings.filter(move |b| b.space == space && b.port == port)
        };
        let covers = |b: &&Binding| {
            b.address == address || (b.address.is_unspecified() && covers(b.address, address))
        };
        let listening = || at_port().filter(|b| b.backlog.is_some());
        let exact = listening().find(|b| b.address == address);
        match exact.or_else(|| listening().find(covers)) {
            Some(binding) => Service::Listening(binding.slot),
            None if at_port().any(|b| covers(&b)) => Service::Bound,
            None => Service::Nobody,
        }
    }

    /// Those that are listened on, then those that are only bound.
    pub fn status(&self) -> (Vec<ListenerStatus>, Vec<ListenerStatus>) {
        let mut sorted = self.bindings.clone();
        sorted.sort_by_key(|b| (b.space, b.port, b.address));
        let (listening, bound): (Vec<_>, Vec<_>) = sorted.iter().partition(|b| b.backlog.is_some());
        let status = |bindings: Vec<Binding>| {
            bindings
                .iter()
                .map(|b| ListenerStatus {
                    space: b.space,
                    address: b.address,
                    port: b.port,
                    slot: b.slot,
                    backlog: b.backlog.unwrap_or(0),
                })
                .collect()
        };
        (status(listening), status(bound))
    }

    fn is_taken(&self, space: PortSpace, address: IpAddr, port: u16) -> bool {
        self.bindings
            .iter()
            .any(|binding| binding.conflicts(space, address, port))
    }

    fn free_port(&mut self, space: PortSpace, address: IpAddr) -> Result<u16, Refusal> {
        let span = EPHEMERAL_LAST - EPHEMERAL_FIRST + 1;
        for offset in 0..span {
            let port = EPHEMERAL_FIRST + (self.next_ephemeral + offset) % span;
            if !self.is_taken(space, address, port) {
                self.next_ephemeral = (port - EPHEMERAL_FIRST + 1) % span;
                return Ok(port);
            }
        }
        Err(Refusal::new(
            RefusalKind::AddressInUse,
            "every ephemeral CM port is taken",
        ))
    }
}

/// Whether the wildcard address `any` stands for `address`; `::` stands for both versions.
fn covers(any: IpAddr, address: IpAddr) -> bool {
    any.is_ipv6() || address.is_ipv4()
}

fn in_use(address: IpAddr, port: u16) -> Refusal {
    Refusal::new(
        RefusalKind::AddressInUse,
        format!("{address} port {port} is taken by another listener"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: PortSpace = PortSpace::Tcp;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn listen_on_a_taken_port_is_refused_also_by_wildcard() {
        let mut listeners = Listeners::default();
        listeners.listen(1, TCP, ip("0.0.0.0"), 7471, 5, 9).unwrap();
        for address in ["0.0.0.0", "127.0.0.1", "::"] {
            let refusal = listeners.bind(2, TCP, ip(address), 7471, 9).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::AddressInUse);
        }
        assert_eq!(
            listeners.bind(2, PortSpace::Udp, ip("0.0.0.0"), 7471, 9),
            Ok(7471)
        );
    }

    #[test]
    fn find_prefers_the_exact_address_and_knows_bound_ports() {
        let mut listeners = Listeners::default();
        listeners.bind(1, TCP, ip("127.0.0.1"), 5, 9).unwrap();
        assert_eq!(listeners.find(TCP, ip("127.0.0.1"), 5), Service::Bound);
        assert_eq!(listeners.find(TCP, ip("127.0.0.2"), 5), Service::Nobody);
        listeners.listen(1, TCP, ip("127.0.0.1"), 5, 0, 9).unwrap();
        listeners.listen(2, TCP, ip("127.0.0.2"), 5, 0, 9).unwrap();
        listeners.listen(3, TCP, ip("::"), 6, 0, 9).unwrap();
        assert_eq!(
            listeners.find(TCP, ip("127.0.0.1"), 5),
            Service::Listening(1)
        );
        assert_eq!(
            listeners.find(TCP, ip("127.0.0.2"), 5),
            Service::Listening(2)
        );
        assert_eq!(
            listeners.find(TCP, ip("127.0.0.2"), 6),
            Service::Listening(3)
        );
        assert_eq!(listeners.find(TCP, ip("127.0.0.2"), 7), Service::Nobody);
    }

    #[test]
    fn bind_of_port_zero_gives_different_ports() {
        let mut listeners = Listeners::default();
        let a = listeners.bind(1, TCP, ip("127.0.0.1"), 0, 9).unwrap();
        let b = listeners.bind(1, TCP, ip("127.0.0.1"), 0, 9).unwrap();
        assert!(a != b && a >= EPHEMERAL_FIRST && b >= EPHEMERAL_FIRST);
    }

    #[test]
    fn release_by_another_slot_is_refused() {
        let mut listeners = Listeners::default();
        listeners.listen(1, TCP, ip("127.0.0.1"), 5, 0, 9).unwrap();
        let refusal = listeners.release(2, TCP, ip("127.0.0.1"), 5).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::NotFound);
        assert_eq!(
            listeners.find(TCP, ip("127.0.0.1"), 5),
            Service::Listening(1)
        );
        listeners.release_all(1);
        assert_eq!(listeners.find(TCP, ip("127.0.0.1"), 5), Service::Nobody);
    }

    #[test]
    fn bind_beyond_the_quota_is_refused() {
        let mut listeners = Listeners::default();
        listeners.bind(1, TCP, ip("127.0.0.1"), 0, 1).unwrap();
        let refusal = listeners.bind(1, TCP, ip("127.0.0.1"), 0, 1).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::QuotaExceeded);
    }
}
