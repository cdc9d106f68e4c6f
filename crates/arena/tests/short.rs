//! Datagrams that go without a frame, as an endpoint's callers see them.
#![allow(clippy::unwrap_used)]

use std::time::Duration;
use urdma_types::SlotId;

use urdma_arena::{
    Arena, ArenaConfig, Arrival, Endpoint, Parked, Reaper, SendError, SHORT_CAPACITY,
};

/// Short rings that a slot has.
const RINGS: u8 = 8;

fn slot(index: u8) -> SlotId {
    SlotId::new(index).unwrap()
}

fn arena() -> Arena {
    Arena::create(&ArenaConfig {
        slots: 16,
        ring_cells: 8,
        small_frames: 4,
        large_frames: 2,
    })
    .unwrap()
}

fn attach<const N: usize>(arena: &Arena) -> [Endpoint; N] {
    std::array::from_fn(|i| Endpoint::attach(arena, slot(u8::try_from(i + 1).unwrap())).unwrap())
}

fn send_short(from: &mut Endpoint, to: SlotId, text: &[u8]) -> Result<(), SendError> {
    assert!(from.may_send_short(to));
    let mut octets = [0xee; SHORT_CAPACITY];
    octets[..text.len()].copy_from_slice(text);
    from.send_short(to, &octets, text.len())
}

fn send_frame(from: &mut Endpoint, to: SlotId, text: &[u8]) {
    let mut frame = from.alloc(text.len()).unwrap();
    frame.data_mut()[..text.len()].copy_from_slice(text);
    from.send(to, frame, text.len()).unwrap();
}

/// The next datagram and the slot of its sender.
fn receive(at: &mut Endpoint) -> Option<(SlotId, Vec<u8>)> {
    let mut octets = [0; SHORT_CAPACITY];
    Some(match at.recv_any(&mut octets)? {
        Arrival::Short { from, len } => (from, octets[..len].to_vec()),
        Arrival::Frame(frame) => {
            let mut text = vec![0; frame.len()];
            assert!(frame.copy_to_slice(0, &mut text));
            (frame.from(), text)
        }
    })
}

fn texts(at: &mut Endpoint) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| receive(at).map(|(_, text)| text)).collect()
}

#[test]
fn short_datagram_of_any_length_arrives_unchanged_and_uses_no_frame() {
    let arena = arena();
    let [mut a, mut b] = attach(&arena);
    for len in 1..=SHORT_CAPACITY {
        let text: Vec<u8> = (0..len).map(|i| (i * 7 + len).to_le_bytes()[0]).collect();
        send_short(&mut a, slot(2), &text).unwrap();
        assert!(b.has_work());
        assert_eq!(receive(&mut b), Some((slot(1), text)));
        assert!(!b.has_work() && receive(&mut b).is_none());
    }
    let count = SHORT_CAPACITY as u64;
    assert_eq!(arena.status(slot(1)).unwrap().sent, count);
    assert_eq!(arena.status(slot(2)).unwrap().received, count);
    assert_eq!(Reaper::new(&arena).account().used, 0);
}

#[test]
fn slot_sends_short_to_itself() {
    let [mut a] = attach(&arena());
    send_short(&mut a, slot(1), b"me").unwrap();
    assert_eq!(receive(&mut a), Some((slot(1), b"me".to_vec())));
}

#[test]
fn short_ring_that_is_full_takes_no_more_until_something_is_taken() {
    let [mut a, mut b] = attach(&arena());
    let mut sent = 0u8;
    while a.may_send_short(slot(2)) {
        send_short(&mut a, slot(2), &[sent]).unwrap();
        sent += 1;
    }
    assert!(sent > 1);
    let octets = [0; SHORT_CAPACITY];
    assert_eq!(a.send_short(slot(2), &octets, 1), Err(SendError::Full));
    assert_eq!(receive(&mut b), Some((slot(1), vec![0])));
    send_short(&mut a, slot(2), &[sent]).unwrap();
    let rest: Vec<_> = (1..=sent).map(|octet| vec![octet]).collect();
    assert_eq!(texts(&mut b), rest);
}

#[test]
fn what_one_slot_sends_comes_in_order_whichever_way_it_goes() {
    let [mut a, mut b] = attach(&arena());
    send_short(&mut a, slot(2), b"1").unwrap();
    send_frame(&mut a, slot(2), b"2");
    // It would overtake the frame.
    assert!(!a.may_send_short(slot(2)));
    send_frame(&mut a, slot(2), b"3");
    assert_eq!(receive(&mut b), Some((slot(1), b"1".to_vec())));
    assert_eq!(receive(&mut b), Some((slot(1), b"2".to_vec())));
    assert!(!a.may_send_short(slot(2)));
    assert_eq!(receive(&mut b), Some((slot(1), b"3".to_vec())));
    send_short(&mut a, slot(2), b"4").unwrap();
    assert_eq!(texts(&mut b), [b"4"]);
}

#[test]
fn every_sender_has_its_turn() {
    let [mut a, mut b, mut c] = attach(&arena());
    for round in 0..4 {
        send_short(&mut a, slot(3), &[round]).unwrap();
        send_short(&mut b, slot(3), &[round]).unwrap();
    }
    for round in 0..4 {
        let mut from = [(); 2].map(|()| receive(&mut c).unwrap());
        from.sort();
        assert_eq!(from, [(slot(1), vec![round]), (slot(2), vec![round])]);
    }
}

#[test]
fn frame_is_not_passed_over_for_ever_nor_overtakes_what_came_before() {
    let [mut a, mut b, mut c] = attach(&arena());
    let fill = |sender: &mut Endpoint| {
        while sender.may_send_short(slot(3)) {
            send_short(sender, slot(3), b"short").unwrap();
        }
    };
    fill(&mut a);
    send_frame(&mut a, slot(3), b"frame");
    let (mut shorts, mut others) = (0, 0);
    loop {
        fill(&mut b);
        match receive(&mut c).unwrap() {
            (from, _) if from == slot(2) => others += 1,
            (_, text) if text == b"short" => shorts += 1,
            (_, text) => break assert_eq!(text, b"frame"),
        }
        assert!(others < 1000, "passed over for ever");
    }
    assert!(shorts > 1);
    // It has all that was sent before behind it.
    while let Some((from, _)) = receive(&mut c) {
        assert_eq!(from, slot(2));
    }
}

#[test]
fn more_senders_than_rings_use_frames_until_one_dies() {
    let arena = arena();
    let mut reaper = Reaper::new(&arena);
    let mut to = Endpoint::attach(&arena, slot(RINGS + 3)).unwrap();
    let (me, last) = (to.slot(), slot(RINGS + 1));
    let mut senders: Vec<_> = (1..=RINGS)
        .map(|sender| Endpoint::attach(&arena, slot(sender)).unwrap())
        .collect();
    for sender in &mut senders {
        send_short(sender, me, b"first").unwrap();
    }
    let mut late = Endpoint::attach(&arena, last).unwrap();
    assert!(!late.may_send_short(me));
    // What the dead had sent still comes; then its ring is free.
    drop(senders.remove(2));
    reaper.reset(slot(3));
    assert_eq!(texts(&mut to).len(), usize::from(RINGS));
    assert!(receive(&mut to).is_none());
    let mut next = Endpoint::attach(&arena, slot(3)).unwrap();
    send_short(&mut next, me, b"next").unwrap();
    assert_eq!(receive(&mut to), Some((slot(3), b"next".to_vec())));
}

#[test]
fn next_owner_of_a_slot_does_not_get_what_was_sent_to_the_last_one() {
    let arena = arena();
    let mut reaper = Reaper::new(&arena);
    let [mut a, b] = attach(&arena);
    send_short(&mut a, slot(2), b"for the last one").unwrap();
    drop(b);
    assert!(matches!(
        a.send_short(slot(2), &[0; SHORT_CAPACITY], 1),
        Err(SendError::Dead)
    ));
    reaper.reset(slot(2));
    let mut next = Endpoint::attach(&arena, slot(2)).unwrap();
    assert!(!next.has_work() && receive(&mut next).is_none());
    send_short(&mut a, slot(2), b"for the next one").unwrap();
    assert_eq!(texts(&mut next), [b"for the next one"]);
}

#[test]
fn parked_receiver_is_woken_by_a_short_datagram_and_its_bell() {
    let [mut a, mut b] = attach(&arena());
    let parker = b.parker();
    let sleeper = std::thread::spawn(move || parker.park(Some(Duration::from_secs(30)), || false));
    while !b.parker().is_parked() && !sleeper.is_finished() {
        std::thread::yield_now();
    }
    send_short(&mut a, slot(2), b"wake").unwrap();
    a.ring_doorbell(slot(2));
    assert_ne!(sleeper.join().unwrap(), Parked::Timeout);
    // And it does not sleep over one that came before.
    let limit = Some(Duration::from_secs(30));
    assert_eq!(b.park(limit), Parked::HadWork);
    assert_eq!(texts(&mut b), [b"wake"]);
}
