use super::*;

const A: u32 = 64_001;
const B: u32 = 64_002;

fn place(local: u16, remote: u16) -> Place {
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    Place {
        netns: 1,
        local: address(local),
        remote: address(remote),
    }
}

fn offer(id: OfferId, uid: u32, place: Place) -> Offer {
    let bell = || File::open("/dev/null").unwrap().into();
    Offer {
        id,
        uid,
        place,
        cookie: id.0 << 32 | id.1,
        bells: [bell(), bell()],
    }
}

/// The outcome of an offer whose socket is closed at once.
fn sent(sockets: &mut Sockets, offer: Offer) -> Result<Outcome, SocketReason> {
    let id = offer.id;
    sockets.expect(id, Ok(offer));
    sockets.closed(id).unwrap()
}

fn joined(outcome: Result<Outcome, SocketReason>) -> Joined {
    match outcome {
        Ok(Outcome::Joined(joined)) => *joined,
        other => panic!("{other:?}"),
    }
}

fn status(sockets: &Sockets) -> SocketStatus {
    sockets.status(|token| Some((i32::try_from(token).ok()?, format!("program {token}"))))
}

fn waits(outcome: Result<Outcome, SocketReason>) {
    assert!(matches!(outcome, Ok(Outcome::Waits)), "{outcome:?}");
}

#[test]
fn mirrored_addresses_of_one_namespace_meet() {
    let mut sockets = Sockets::within(100);
    waits(sent(&mut sockets, offer((1, 7), A, place(20, 10))));
    let other_netns = Place {
        netns: 2,
        ..place(10, 20)
    };
    waits(sent(&mut sockets, offer((2, 1), B, other_netns)));
    waits(sent(&mut sockets, offer((2, 2), B, place(10, 21))));
    let met = joined(sent(&mut sockets, offer((2, 3), B, place(10, 20))));
    assert_eq!((met.waited.id, met.offer.id), ((1, 7), (2, 3)));
    assert!(!met.is_waited_first);
    let status = status(&sockets);
    assert_eq!((status.offered, status.waiting), (4, 2));
    assert_eq!((status.joined, status.open), (1, 1));
}

#[test]
fn socket_that_is_connected_to_itself_is_refused() {
    let mut sockets = Sockets::within(100);
    assert!(sent(&mut sockets, offer((1, 1), A, place(10, 10))).is_err());
    assert_eq!(status(&sockets).refused, 1);
}

#[test]
fn memory_has_a_fixed_length_and_two_refusals() {
    let memory = File::from(new_memory().unwrap());
    assert!(memory.set_len(0).is_err() && memory.set_len(1 << 20).is_err());
    let mut first = [0; 16];
    memory.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(first, layout::first_octets());
}

#[test]
fn connection_is_open_until_both_ends_are_forgotten_and_its_octets_stay_counted() {
    let mut sockets = Sockets::within(100);
    waits(sent(&mut sockets, offer((1, 1), A, place(10, 20))));
    let met = joined(sent(&mut sockets, offer((2, 1), B, place(20, 10))));
    let memory = File::from(met.memory);
    for (sender, octets) in [(End::First, 5_u64), (End::Second, 6)] {
        let at = Block::head_at(sender) as u64;
        memory.write_all_at(&octets.to_ne_bytes(), at).unwrap();
    }
    assert_eq!(sockets.of_user(A), 1);
    sockets.forget((1, 1));
    assert_eq!(
        (status(&sockets).open, status(&sockets).ring_octets),
        (1, 11)
    );
    sockets.forget((1, 1));
    sockets.forget_all(2);
    assert_eq!(
        (status(&sockets).open, status(&sockets).ring_octets),
        (0, 11)
    );
    assert_eq!(sockets.of_user(A), 0);
}

#[test]
fn offers_end_with_their_process() {
    let mut sockets = Sockets::within(100);
    waits(sent(&mut sockets, offer((1, 1), A, place(10, 20))));
    waits(sent(&mut sockets, offer((2, 1), A, place(11, 20))));
    sockets.forget_all(1);
    assert_eq!(status(&sockets).waiting, 1);
    waits(sent(&mut sockets, offer((3, 1), B, place(20, 10))));
}

#[test]
fn offer_meets_no_other_until_its_socket_is_closed() {
    let mut sockets = Sockets::within(100);
    sockets.expect((1, 1), Ok(offer((1, 1), A, place(10, 20))));
    assert_eq!(
        (sockets.of_user(A), sockets.descriptors()),
        (1, FDS_OF_OFFER)
    );
    waits(sent(&mut sockets, offer((2, 1), B, place(20, 10))));
    assert_eq!(status(&sockets).offered, 1);
    let met = joined(sockets.closed((1, 1)).unwrap());
    assert_eq!((met.waited.id, met.offer.id), ((2, 1), (1, 1)));
    assert!(sockets.closed((1, 1)).is_none());
}

#[test]
fn offer_that_is_forgotten_before_its_socket_is_closed_has_no_answer() {
    let mut sockets = Sockets::within(100);
    for number in 1..=2 {
        let port = 10 + u16::try_from(number).unwrap();
        sockets.expect((1, number), Ok(offer((1, number), A, place(port, 20))));
    }
    sockets.forget((1, 1));
    assert_eq!(sockets.of_user(A), 1);
    sockets.forget_all(1);
    assert_eq!((sockets.of_user(A), sockets.descriptors()), (0, 0));
    assert!(sockets.closed((1, 1)).is_none() && sockets.closed((1, 2)).is_none());
}

#[test]
fn offer_with_the_number_of_an_earlier_one_replaces_it() {
    let mut sockets = Sockets::within(100);
    waits(sent(&mut sockets, offer((1, 1), A, place(10, 20))));
    waits(sent(&mut sockets, offer((1, 1), A, place(11, 20))));
    assert_eq!(status(&sockets).waiting, 1);
    sockets.forget_all(1);
    assert_eq!((status(&sockets).waiting, sockets.of_user(A)), (0, 0));
}

#[test]
fn sockets_that_are_being_closed_count_to_their_user() {
    let mut sockets = Sockets::within(4 * PER_USER_MAX * FDS_OF_OFFER);
    let number_max = u16::try_from(PER_USER_MAX).unwrap();
    for port in 0..=number_max {
        let id = (1, port.into());
        sockets.expect(id, Ok(offer(id, A, place(port, 60_000))));
    }
    assert_eq!(sockets.of_user(A), PER_USER_MAX);
    let last = sockets.closed((1, number_max.into())).unwrap();
    assert_eq!(last.unwrap_err(), SocketReason::TooMany);
}

#[test]
fn connection_that_the_configuration_excludes_is_refused_at_both_ends() {
    let mut sockets = Sockets {
        excluded: "127.0.0.0/8:20".parse().unwrap(),
        ..Sockets::within(100)
    };
    for (id, place) in [((1, 1), place(10, 20)), ((2, 1), place(20, 10))] {
        let refused = sent(&mut sockets, offer(id, A, place));
        assert_eq!(refused.unwrap_err(), SocketReason::Excluded);
    }
    waits(sent(&mut sockets, offer((1, 2), A, place(10, 21))));
    assert_eq!(status(&sockets).reasons[&SocketReason::Excluded], 2);
}

#[test]
fn later_socket_with_the_same_addresses_replaces_the_earlier_one() {
    let mut sockets = Sockets::within(100);
    waits(sent(&mut sockets, offer((1, 1), A, place(10, 20))));
    let again = Offer {
        id: (1, 2),
        ..offer((1, 1), A, place(10, 20))
    };
    assert!(sent(&mut sockets, again).is_err());
    waits(sent(&mut sockets, offer((1, 3), A, place(10, 20))));
    let met = joined(sent(&mut sockets, offer((2, 1), B, place(20, 10))));
    assert_eq!(met.waited.id, (1, 3));
}

#[test]
fn one_user_leaves_room_for_others_and_all_for_urdmad() {
    let mut sockets = Sockets::within(2 * PER_USER_MAX * FDS_OF_OFFER + 4);
    let mut port = 0;
    let mut fill = |sockets: &mut Sockets, uid| {
        let mut taken = 0;
        loop {
            port += 1;
            let next = offer((1, port.into()), uid, place(port, 60_000));
            match sent(sockets, next) {
                Ok(_) => taken += 1,
                Err(_) => return taken,
            }
        }
    };
    assert_eq!(fill(&mut sockets, A), PER_USER_MAX);
    // Half of what is free, 258, and of what is then.
    assert_eq!(fill(&mut sockets, B), 129);
    assert_eq!(fill(&mut sockets, B + 1), 65);
    assert_eq!(fill(&mut sockets, 0), 64);
}

#[test]
fn reasons_of_a_process_stay_counted_whatever_it_writes() {
    let mut sockets = Sockets::within(100);
    let memory = new_memory().unwrap();
    let written = File::from(memory.try_clone().unwrap());
    assert!(sockets.add_reasons(1, memory));
    let option = SocketReason::Option;
    let at = (option as u64) * 8;
    written.write_all_at(&7_u64.to_ne_bytes(), at).unwrap();
    assert_eq!(status(&sockets).reasons[&option], 7);
    written.write_all_at(&u64::MAX.to_ne_bytes(), at).unwrap();
    sockets.forget_all(1);
    sockets.expect((2, 1), Err(option));
    assert_eq!(sockets.closed((2, 1)).unwrap().unwrap_err(), option);
    assert_eq!(status(&sockets).reasons[&option], u64::MAX);

    let short = File::from(new_memory().unwrap());
    assert!(sockets.add_reasons(2, short.try_clone().unwrap().into()));
    assert!(!sockets.add_reasons(2, short.into()));
}

#[test]
fn status_says_which_programs_have_rings_and_why_others_have_none() {
    let mut sockets = Sockets::within(100);
    waits(sent(&mut sockets, offer((1, 1), A, place(10, 20))));
    let met = joined(sent(&mut sockets, offer((2, 1), B, place(20, 10))));
    waits(sent(&mut sockets, offer((1, 2), A, place(11, 20))));
    let counts = new_memory().unwrap();
    let at = (SocketReason::Dup as u64) * 8;
    let written = File::from(counts.try_clone().unwrap());
    written.write_all_at(&7_u64.to_ne_bytes(), at).unwrap();
    // The memory of a connection begins with refusals, that of counts with none.
    written.write_all_at(&[0; 16], 0).unwrap();
    assert!(sockets.add_reasons(2, counts));

    let of_program = |status: &SocketStatus, pid| {
        let mut all = status.processes.iter();
        all.find(|process| process.pid == pid).unwrap().clone()
    };
    let before = status(&sockets);
    let first = of_program(&before, 1);
    assert_eq!((first.open, first.waiting), (1, 1));
    assert_eq!((&*first.program, first.reasons.len()), ("program 1", 0));
    let second = of_program(&before, 2);
    assert_eq!((second.open, second.waiting), (1, 0));
    assert_eq!(second.reasons, [(SocketReason::Dup, 7)].into());

    let shown = &before.connections[0];
    assert_eq!(shown.pids, [1, 2]);
    assert_eq!(shown.addresses.map(|address| address.port()), [10, 20]);
    assert!(!shown.is_on_rings);
    let memory = File::from(met.memory);
    memory.write_all_at(&[0; 16], 0).unwrap();
    assert!(status(&sockets).connections[0].is_on_rings);
    sockets.forget((2, 1));
    assert_eq!(status(&sockets).connections[0].pids, [1, 0]);
}

#[test]
fn status_lists_the_busiest_connections() {
    let mut sockets = Sockets::within(10_000);
    for port in 0..100 {
        waits(sent(
            &mut sockets,
            offer((1, port.into()), 0, place(port, 60_000)),
        ));
        let met = joined(sent(
            &mut sockets,
            offer((2, port.into()), 0, place(60_000, port)),
        ));
        let head = u64::from(port).to_ne_bytes();
        let at = Block::head_at(End::First) as u64;
        File::from(met.memory).write_all_at(&head, at).unwrap();
    }
    let listed = status(&sockets).connections;
    let octets: Vec<u64> = listed.iter().map(|of| of.ring_octets).collect();
    let busiest: Vec<u64> = (0..100).rev().take(CONNECTIONS_LISTED_MAX).collect();
    assert_eq!(octets, busiest);
}
