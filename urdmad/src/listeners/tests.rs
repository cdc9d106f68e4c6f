//! Tests of the bound ports.

use super::*;

const SPACE: PortTable = PortTable::Tcp;
const QUOTA: Binder = Binder {
    member: None,
    quota: 9,
};

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
    listeners.free.clear();
    listeners.free.entry(SPACE).or_default().take(a);
    let b = listeners.bind(id(1, 2), any, QUOTA).unwrap();
    assert!(a != b && a >= free::EPHEMERAL_FIRST && b >= free::EPHEMERAL_FIRST);
}

#[test]
fn release_by_another_slot_is_refused() {
    let mut listeners = Listeners::default();
    listen(&mut listeners, id(1, 1), at("127.0.0.1", 5));
    let refusal = listeners.release(id(2, 1));
    assert_eq!(kind(refusal), Some(RefusalKind::NotFound));
    let find = |listeners: &Listeners| listeners.find(SPACE, ip("127.0.0.1"), 5);
    assert_eq!(find(&listeners), RequestTarget::Listening(slot(1)));
    assert!(!listeners.release_some(slot(1)));
    assert_eq!(find(&listeners), RequestTarget::Unbound);
}

#[test]
fn bind_beyond_the_quota_or_with_a_number_in_use_is_refused() {
    let two = Binder { quota: 2, ..QUOTA };
    let mut listeners = Listeners::default();
    listeners.bind(id(1, 1), at("127.0.0.1", 0), two).unwrap();
    let twice = listeners.bind(id(1, 1), at("127.0.0.1", 0), two);
    assert_eq!(kind(twice), Some(RefusalKind::Invalid));
    listeners.bind(id(1, 2), at("127.0.0.1", 0), two).unwrap();
    let refusal = listeners.bind(id(1, 3), at("127.0.0.1", 0), two);
    assert_eq!(kind(refusal), Some(RefusalKind::QuotaExceeded));
}

const fn member(uid: u32) -> Binder {
    Binder {
        member: Some(uid),
        quota: 65_535,
    }
}

const MEMBERS: [Binder; 3] = [member(1000), member(1001), member(1002)];
const ROOT: Binder = Binder {
    member: None,
    quota: 65_535,
};

/// Binds until a bind is refused; how many it were, and why it was refused.
fn bind_all(listeners: &mut Listeners, of: u8, wanted: CmPort, by: Binder) -> (u32, RefusalKind) {
    for number in 0.. {
        if let Err(refusal) = listeners.bind(id(of, number), wanted, by) {
            return (number, refusal.kind);
        }
    }
    unreachable!("ports end")
}

#[test]
fn users_that_bind_all_ports_leave_some_to_one_another_and_to_root() {
    let mut listeners = Listeners::default();
    let any = at("127.0.0.1", 0);
    let of_members = EPHEMERAL - KEPT_EPHEMERAL;
    let mut left = of_members;
    for (of, by) in (1..).zip(MEMBERS) {
        let (bound, refused) = bind_all(&mut listeners, of, any, by);
        assert_eq!(bound as usize, left.div_ceil(2));
        assert_eq!(refused, RefusalKind::QuotaExceeded);
        left -= bound as usize;
    }
    assert!(left >= of_members >> MEMBERS.len());
    // A port by its number, free or shared, is kept, too; one of another table is not.
    let is_free = |port: &u16| listeners.free[&SPACE].has(*port);
    let free = (free::EPHEMERAL_FIRST..).find(is_free).unwrap();
    listeners
        .share(id(1, 0), shared("127.0.0.1", true, true).sharing)
        .unwrap();
    let mut same = shared("127.0.0.1", true, true);
    same.port = listeners.by_id[&id(1, 0)].kind.at.port;
    let mut datagrams = any;
    datagrams.space = PortTable::Udp;
    for (wanted, expected) in [
        (at("127.0.0.1", free), Some(RefusalKind::QuotaExceeded)),
        (same, Some(RefusalKind::QuotaExceeded)),
        (at("127.0.0.1", 7471), None),
        (datagrams, None),
    ] {
        let bound = listeners.bind(id(2, u32::MAX), wanted, MEMBERS[1]);
        assert_eq!(kind(bound), expected, "{wanted:?}");
        let _ = listeners.release(id(2, u32::MAX));
    }
    // One that a user with more than are free releases is for others.
    let given_back = id(1, 0);
    listeners.release(given_back).unwrap();
    let again = listeners.bind(given_back, any, MEMBERS[0]);
    assert_eq!(kind(again), Some(RefusalKind::QuotaExceeded));
    listeners.bind(given_back, any, member(1003)).unwrap();
    listeners.release(given_back).unwrap();
    let (of_root, refused) = bind_all(&mut listeners, 4, any, ROOT);
    assert_eq!(refused, RefusalKind::AddressNotAvailable);
    assert_eq!(of_root as usize, left + 1 + KEPT_EPHEMERAL);
    // All that a slot had is free again, in steps.
    let mut steps = 1;
    while listeners.release_some(slot(1)) {
        steps += 1;
    }
    let of_first = of_members.div_ceil(2) - 1;
    assert_eq!(steps, of_first / RELEASED_AT_ONCE + 1);
    assert_eq!(listeners.free[&SPACE].count(), of_first);
}

/// The last ephemeral ports are kept for the owner and root.
#[test]
fn many_users_leave_ephemeral_ports_to_root() {
    let mut listeners = Listeners::default();
    let any = at("127.0.0.1", 0);
    let mut refused = RefusalKind::QuotaExceeded;
    for of in 1..100 {
        refused = bind_all(&mut listeners, of, any, member(u32::from(of))).1;
    }
    assert_eq!(refused, RefusalKind::AddressNotAvailable);
    let (of_root, _) = bind_all(&mut listeners, 100, any, ROOT);
    assert_eq!(of_root as usize, KEPT_EPHEMERAL);
}

#[test]
fn bindings_that_share_a_port_have_a_quota_and_do_not_lengthen_the_look_up() {
    let mut listeners = Listeners::default();
    let same = shared("127.0.0.1", true, true);
    let mut left = BINDINGS_OF_MEMBERS;
    for (of, by) in (1..).zip(MEMBERS) {
        let (count, refused) = bind_all(&mut listeners, of, same, by);
        assert_eq!(count as usize, left.div_ceil(2));
        assert_eq!(refused, RefusalKind::QuotaExceeded);
        left -= count as usize;
    }
    let at_port = &listeners.by_port[&(SPACE, same.port)];
    let bound = BINDINGS_OF_MEMBERS - left;
    assert_eq!((at_port.len(), at_port[0].ids.len()), (1, bound));
    assert_eq!(listeners.status().1.len(), LISTED_MAX);
    // Whatever its kind, an entry ends with its last binding.
    listeners.share(id(1, 0), PortSharing::default()).unwrap();
    assert_eq!(listeners.by_port[&(SPACE, same.port)].len(), 2);
    for of in 1..=3 {
        while listeners.release_some(slot(of)) {}
    }
    assert!(listeners.by_port.is_empty() && listeners.by_id.is_empty());
    assert!(listeners.of_member.is_empty() && listeners.of_slot.is_empty());
    assert!(listeners.ephemeral_of_member.is_empty());
}

#[test]
fn every_ephemeral_port_is_given_once_before_one_is_given_again() {
    let mut free = FreePorts::default();
    let mut given = std::collections::BTreeSet::new();
    while let Some(port) = free.next() {
        free.take(port);
        assert!(given.insert(port));
    }
    assert_eq!((given.len(), free.count()), (EPHEMERAL, 0));
    for port in [40_000, 33_000, 1, u16::MAX] {
        free.give_back(port);
    }
    assert_eq!(free.count(), 2);
    let found = [(); 3].map(|()| free.next().inspect(|port| free.take(*port)));
    assert_eq!(found, [Some(33_000), Some(40_000), None]);
}
