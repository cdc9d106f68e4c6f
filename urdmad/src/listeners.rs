//! The bound CM ports of all processes.

use std::net::IpAddr;

use urdma_ipc::status::ListenerStatus;
use urdma_ipc::{CmPort, PortSharing, PortTable, Refusal, RefusalKind};
use urdma_types::SlotId;

/// First ephemeral port (as in `ip_local_port_range`).
const EPHEMERAL_FIRST: u16 = 32_768;
const EPHEMERAL_LAST: u16 = 60_999;

/// Identifies a bound port: the slot, and the process' number for the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindingId {
    /// The process' slot, urdmad's for the kernel module's listeners.
    pub slot: SlotId,
    /// Unique among the slot's.
    pub number: u32,
}

#[derive(Debug, Clone, Copy)]
struct Binding {
    id: BindingId,
    at: CmPort,
    /// Present while it is listened on.
    backlog: Option<u32>,
}

impl Binding {
    /// The error for `wanted` beside this binding: the rules and errors of the kernel's
    /// `cma_check_port`.
    fn refuses(&self, wanted: &CmPort) -> Option<Refusal> {
        let held = &self.at;
        let others_port = held.space != wanted.space || held.port != wanted.port;
        if others_port || (held.sharing.reuse_addr && wanted.sharing.reuse_addr) {
            return None;
        }
        let both_af_only = held.sharing.af_only && wanted.sharing.af_only;
        if both_af_only && held.addr.is_ipv4() != wanted.addr.is_ipv4() {
            return None;
        }
        let kind = if held.addr.is_unspecified() || wanted.addr.is_unspecified() {
            RefusalKind::AddressNotAvailable
        } else if held.addr == wanted.addr {
            RefusalKind::AddressInUse
        } else {
            return None;
        };
        let message = format!(
            "{} port {} is taken by {} port {}",
            wanted.addr, wanted.port, held.addr, held.port
        );
        Some(Refusal::new(kind, message))
    }

    /// Whether this binding covers requests for `address`.
    fn covers(&self, address: IpAddr) -> bool {
        let any = self.at.addr;
        let of_family = any.is_ipv4() == address.is_ipv4();
        let takes_family = of_family || (any.is_ipv6() && !self.at.sharing.af_only);
        any == address || (any.is_unspecified() && takes_family)
    }
}

/// The target of a connection request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestTarget {
    /// A listener of this slot.
    Listening(SlotId),
    /// A bound port without a listener. Its process will most likely listen soon: programs such as
    /// qperf tell the other end their port before they listen.
    Bound,
    /// No bound port.
    Unbound,
}

/// The bound ports of an instance.
#[derive(Debug, Default)]
pub struct Listeners {
    bindings: Vec<Binding>,
    next_ephemeral: u16,
}

impl Listeners {
    /// Reserves a port, or an ephemeral one for 0, for a process with `quota` ports in all; returns
    /// the port.
    ///
    /// # Errors
    /// AddressInUse, AddressNotAvailable, QuotaExceeded; Invalid if the process uses the number for
    /// another port.
    pub fn bind(&mut self, id: BindingId, wanted: CmPort, quota: u32) -> Result<u16, Refusal> {
        let taken = self
            .bindings
            .iter()
            .filter(|b| b.id.slot == id.slot)
            .count();
        if taken >= usize::try_from(quota).unwrap_or(usize::MAX) {
            return Err(Refusal::new(
                RefusalKind::QuotaExceeded,
                format!(
                    "this process has {taken} CM ports already, as many as \
                    cm_ports_per_process allows"
                ),
            ));
        }
        if self.bindings.iter().any(|b| b.id == id) {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                format!("this process has a CM port {} already", id.number),
            ));
        }
        let at = self.place(wanted)?;
        self.bindings.push(Binding {
            id,
            at,
            backlog: None,
        });
        Ok(at.port)
    }

    /// Changes which others may share a port that is not listened on.
    ///
    /// # Errors
    /// NotFound.
    pub fn share(&mut self, id: BindingId, sharing: PortSharing) -> Result<(), Refusal> {
        let binding = self.binding(id)?;
        if binding.backlog.is_none() {
            binding.at.sharing = sharing;
        }
        Ok(())
    }

    /// Listens on a port. No other binding may match the same requests, whatever its owner and
    /// others share (the kernel's `rdma_listen`), and none may be added later.
    ///
    /// # Errors
    /// AddressInUse, AddressNotAvailable, NotFound.
    pub fn listen(&mut self, id: BindingId, backlog: u32) -> Result<(), Refusal> {
        let mut alone = self.binding(id)?.at;
        alone.sharing.reuse_addr = false;
        self.refuse_taken(&alone, Some(id))?;
        let binding = self.binding(id)?;
        binding.at = alone;
        binding.backlog = Some(backlog);
        Ok(())
    }

    /// Releases a port.
    ///
    /// # Errors
    /// NotFound.
    pub fn release(&mut self, id: BindingId) -> Result<(), Refusal> {
        self.binding(id)?;
        self.bindings.retain(|binding| binding.id != id);
        Ok(())
    }

    /// Releases all ports of a dead slot.
    pub fn release_all(&mut self, slot: SlotId) {
        self.bindings.retain(|binding| binding.id.slot != slot);
    }

    /// The target of a request for `address` and `port`: a listener of the exact address first,
    /// then a wildcard of the same family, then any.
    pub fn find(&self, space: PortTable, address: IpAddr, port: u16) -> RequestTarget {
        let at_port = || {
            let bindings = self.bindings.iter();
            bindings.filter(move |b| b.at.space == space && b.at.port == port && b.covers(address))
        };
        let distance = |b: &&Binding| {
            let of_other_family = b.at.addr.is_ipv4() != address.is_ipv4();
            (b.at.addr != address, of_other_family)
        };
        let listening = at_port().filter(|b| b.backlog.is_some());
        match listening.min_by_key(distance) {
            Some(binding) => RequestTarget::Listening(binding.id.slot),
            None if at_port().next().is_some() => RequestTarget::Bound,
            None => RequestTarget::Unbound,
        }
    }

    /// The ports that are listened on, then those that are only bound.
    pub fn status(&self) -> (Vec<ListenerStatus>, Vec<ListenerStatus>) {
        let mut sorted = self.bindings.clone();
        sorted.sort_by_key(|b| (b.at.space, b.at.port, b.at.addr));
        let (listening, bound): (Vec<_>, Vec<_>) = sorted.iter().partition(|b| b.backlog.is_some());
        let status = |bindings: Vec<Binding>| {
            bindings
                .iter()
                .map(|b| ListenerStatus {
                    space: b.at.space,
                    address: b.at.addr,
                    port: b.at.port,
                    slot: b.id.slot.number(),
                    backlog: b.backlog.unwrap_or(0),
                })
                .collect()
        };
        (status(listening), status(bound))
    }

    fn binding(&mut self, id: BindingId) -> Result<&mut Binding, Refusal> {
        let found = self.bindings.iter_mut().find(|binding| binding.id == id);
        found.ok_or_else(|| {
            Refusal::new(
                RefusalKind::NotFound,
                format!("this process has bound no CM port {}", id.number),
            )
        })
    }

    /// Refuses a port that conflicts with a binding other than `own`, with the error of the newest,
    /// as the kernel does.
    fn refuse_taken(&self, wanted: &CmPort, own: Option<BindingId>) -> Result<(), Refusal> {
        let others = self.bindings.iter().rev().filter(|b| Some(b.id) != own);
        others
            .filter_map(|b| b.refuses(wanted))
            .next()
            .map_or(Ok(()), Err)
    }

    /// The address and port that a process gets.
    fn place(&mut self, wanted: CmPort) -> Result<CmPort, Refusal> {
        if wanted.port != 0 {
            self.refuse_taken(&wanted, None)?;
            return Ok(wanted);
        }
        // A shared port is not free.
        let mut at = wanted;
        at.sharing.reuse_addr = false;
        let span = EPHEMERAL_LAST - EPHEMERAL_FIRST + 1;
        for offset in 0..span {
            at.port = EPHEMERAL_FIRST + (self.next_ephemeral + offset) % span;
            if self.refuse_taken(&at, None).is_ok() {
                self.next_ephemeral = (at.port - EPHEMERAL_FIRST + 1) % span;
                at.sharing = wanted.sharing;
                return Ok(at);
            }
        }
        Err(Refusal::new(
            RefusalKind::AddressNotAvailable,
            "every ephemeral CM port is taken",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: PortTable = PortTable::Tcp;
    const QUOTA: u32 = 9;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn slot(number: u8) -> SlotId {
        SlotId::new(number).unwrap()
    }

    fn id(of: u8, number: u32) -> BindingId {
        BindingId {
            slot: slot(of),
            number,
        }
    }

    /// The request of an id without options.
    fn at(addr: &str, port: u16) -> CmPort {
        let addr = ip(addr);
        let sharing = PortSharing {
            reuse_addr: false,
            af_only: addr.is_ipv4(),
        };
        CmPort {
            space: SPACE,
            addr,
            port,
            sharing,
        }
    }

    fn shared(addr: &str, reuse_addr: bool, af_only: bool) -> CmPort {
        let mut port = at(addr, 7471);
        port.sharing = PortSharing {
            reuse_addr,
            af_only,
        };
        port
    }

    fn listen(listeners: &mut Listeners, id: BindingId, at: CmPort) {
        listeners.bind(id, at, QUOTA).unwrap();
        listeners.listen(id, 0).unwrap();
    }

    fn kind(outcome: Result<impl Sized, Refusal>) -> Option<RefusalKind> {
        outcome.err().map(|refusal| refusal.kind)
    }

    #[test]
    fn bind_of_a_taken_port_is_refused_as_the_kernel_does() {
        const IN_USE: Option<RefusalKind> = Some(RefusalKind::AddressInUse);
        const NOT_AVAILABLE: Option<RefusalKind> = Some(RefusalKind::AddressNotAvailable);
        for (held, asked, expected) in [
            ("127.0.0.1", "127.0.0.1", IN_USE),
            ("127.0.0.1", "127.0.0.2", None),
            ("127.0.0.1", "0.0.0.0", NOT_AVAILABLE),
            ("0.0.0.0", "127.0.0.1", NOT_AVAILABLE),
            ("0.0.0.0", "0.0.0.0", NOT_AVAILABLE),
            ("127.0.0.1", "::", NOT_AVAILABLE),
            ("::", "127.0.0.1", NOT_AVAILABLE),
            ("::1", "0.0.0.0", NOT_AVAILABLE),
            ("::1", "127.0.0.1", None),
            ("::", "::", NOT_AVAILABLE),
            ("::1", "::1", IN_USE),
        ] {
            for (held_af_only, asked_af_only) in [(false, false), (true, false), (true, true)] {
                for (held_reuse, asked_reuse) in [(false, false), (false, true), (true, true)] {
                    let mut listeners = Listeners::default();
                    let first = shared(held, held_reuse, held_af_only);
                    listeners.bind(id(1, 1), first, QUOTA).unwrap();
                    let apart =
                        held_af_only && asked_af_only && ip(held).is_ipv4() != ip(asked).is_ipv4();
                    let expected = expected.filter(|_| !(apart || held_reuse && asked_reuse));
                    let second = shared(asked, asked_reuse, asked_af_only);
                    for slot in [1, 2] {
                        let bound = listeners.bind(id(slot, 2), second, QUOTA);
                        assert_eq!(kind(bound), expected, "{first:?} {second:?}");
                        let _ = listeners.release(id(slot, 2));
                    }
                }
            }
        }
    }

    #[test]
    fn ports_of_other_spaces_do_not_clash() {
        let mut listeners = Listeners::default();
        listen(&mut listeners, id(1, 1), at("0.0.0.0", 7471));
        let mut datagrams = at("0.0.0.0", 7471);
        datagrams.space = PortTable::Udp;
        assert_eq!(listeners.bind(id(2, 1), datagrams, QUOTA), Ok(7471));
    }

    #[test]
    fn listen_needs_the_port_alone_and_keeps_it_alone() {
        let mut listeners = Listeners::default();
        for slot in [1, 2] {
            let at = shared("127.0.0.1", true, true);
            listeners.bind(id(slot, 1), at, QUOTA).unwrap();
        }
        let refused = listeners.listen(id(1, 1), 0);
        assert_eq!(kind(refused), Some(RefusalKind::AddressInUse));
        assert_eq!(
            listeners.find(SPACE, ip("127.0.0.1"), 7471),
            RequestTarget::Bound
        );
        listeners.release(id(2, 1)).unwrap();
        listeners.listen(id(1, 1), 0).unwrap();
        let late = listeners.bind(id(2, 1), shared("0.0.0.0", true, true), QUOTA);
        assert_eq!(kind(late), Some(RefusalKind::AddressNotAvailable));
        let sharing = PortSharing {
            reuse_addr: true,
            af_only: true,
        };
        listeners.share(id(1, 1), sharing).unwrap();
        let late = listeners.bind(id(2, 1), shared("127.0.0.1", true, true), QUOTA);
        assert_eq!(kind(late), Some(RefusalKind::AddressInUse));
    }

    #[test]
    fn port_shared_after_it_was_bound_can_be_bound_again() {
        let mut listeners = Listeners::default();
        let second = shared("127.0.0.1", true, true);
        listeners
            .bind(id(1, 1), at("127.0.0.1", 7471), QUOTA)
            .unwrap();
        let refused = listeners.bind(id(2, 1), second, QUOTA);
        assert_eq!(kind(refused), Some(RefusalKind::AddressInUse));
        listeners.share(id(1, 1), second.sharing).unwrap();
        listeners.bind(id(2, 1), second, QUOTA).unwrap();
    }

    #[test]
    fn find_prefers_the_exact_address_and_knows_bound_ports() {
        let mut listeners = Listeners::default();
        let find = |listeners: &Listeners, addr: &str, port| listeners.find(SPACE, ip(addr), port);
        listeners.bind(id(1, 1), at("127.0.0.1", 5), QUOTA).unwrap();
        assert_eq!(find(&listeners, "127.0.0.1", 5), RequestTarget::Bound);
        assert_eq!(find(&listeners, "127.0.0.2", 5), RequestTarget::Unbound);
        listeners.listen(id(1, 1), 0).unwrap();
        listen(&mut listeners, id(2, 1), at("127.0.0.2", 5));
        listen(&mut listeners, id(3, 1), at("::", 6));
        assert_eq!(
            find(&listeners, "127.0.0.1", 5),
            RequestTarget::Listening(slot(1))
        );
        assert_eq!(
            find(&listeners, "127.0.0.2", 5),
            RequestTarget::Listening(slot(2))
        );
        assert_eq!(
            find(&listeners, "127.0.0.2", 6),
            RequestTarget::Listening(slot(3))
        );
        assert_eq!(find(&listeners, "127.0.0.2", 7), RequestTarget::Unbound);
    }

    #[test]
    fn wildcards_of_both_families_each_get_their_requests() {
        let mut listeners = Listeners::default();
        listen(&mut listeners, id(1, 1), shared("::", false, true));
        let find = |listeners: &Listeners, addr: &str| listeners.find(SPACE, ip(addr), 7471);
        assert_eq!(find(&listeners, "127.0.0.1"), RequestTarget::Unbound);
        listen(&mut listeners, id(2, 1), shared("0.0.0.0", false, true));
        assert_eq!(
            find(&listeners, "127.0.0.1"),
            RequestTarget::Listening(slot(2))
        );
        assert_eq!(find(&listeners, "::1"), RequestTarget::Listening(slot(1)));
    }

    #[test]
    fn bind_of_port_zero_gives_a_port_that_is_not_shared() {
        let mut listeners = Listeners::default();
        let mut any = shared("127.0.0.1", true, true);
        any.port = 0;
        let a = listeners.bind(id(1, 1), any, QUOTA).unwrap();
        listeners.next_ephemeral = 0;
        let b = listeners.bind(id(1, 2), any, QUOTA).unwrap();
        assert!(a != b && a >= EPHEMERAL_FIRST && b >= EPHEMERAL_FIRST);
    }

    #[test]
    fn release_by_another_slot_is_refused() {
        let mut listeners = Listeners::default();
        listen(&mut listeners, id(1, 1), at("127.0.0.1", 5));
        let refusal = listeners.release(id(2, 1));
        assert_eq!(kind(refusal), Some(RefusalKind::NotFound));
        let find = |listeners: &Listeners| listeners.find(SPACE, ip("127.0.0.1"), 5);
        assert_eq!(find(&listeners), RequestTarget::Listening(slot(1)));
        listeners.release_all(slot(1));
        assert_eq!(find(&listeners), RequestTarget::Unbound);
    }

    #[test]
    fn bind_beyond_the_quota_or_with_a_number_in_use_is_refused() {
        let mut listeners = Listeners::default();
        listeners.bind(id(1, 1), at("127.0.0.1", 0), 2).unwrap();
        let twice = listeners.bind(id(1, 1), at("127.0.0.1", 0), 2);
        assert_eq!(kind(twice), Some(RefusalKind::Invalid));
        listeners.bind(id(1, 2), at("127.0.0.1", 0), 2).unwrap();
        let refusal = listeners.bind(id(1, 3), at("127.0.0.1", 0), 2);
        assert_eq!(kind(refusal), Some(RefusalKind::QuotaExceeded));
    }
}
