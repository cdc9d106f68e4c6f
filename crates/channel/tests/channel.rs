//! Cells, frames, room and counts, as a process sees them.
#![allow(clippy::unwrap_used)]

mod common;

use common::{complete, config, page, pair, region, send, send_long, take, Forged};
use urdma_channel::steps::Live;
use urdma_channel::{
    Channel, ChannelConfig, Incoming, Kind, Next, Outgoing, OwnRegion, PeerRegion, ANSWER_RESERVE,
    CELL_DATA, LARGE_FRAME, SMALL_FRAME,
};

#[test]
fn messages_arrive_in_order_with_all_their_octets() {
    let [mut p, mut q] = pair(&config(32, 2, 2));
    let mut text = [0; CELL_DATA];
    for (i, octet) in (0..).zip(&mut text) {
        *octet = i;
    }
    for len in 0..=CELL_DATA {
        assert!(send(&mut p, Kind::Work, &text[..len], 0));
        assert_eq!(take(&mut q).unwrap().0, &text[..len]);
        q.settle();
        complete(&mut p);
    }
    for len in [1, SMALL_FRAME, SMALL_FRAME + 1, LARGE_FRAME] {
        let text: Vec<u8> = (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect();
        assert!(send_long(&mut p, &text, 0));
        assert_eq!(take(&mut q).unwrap().1, text);
    }
    assert!(take(&mut q).is_none());
}

#[test]
fn positions_wrap_at_32_bits_and_counts_at_24() {
    for begin in [
        (1 << 32) - 128,
        (1 << 24) - 128,
        (1 << 32) + (1 << 24) - 128,
    ] {
        let config = config(32, 2, 2);
        let new = || {
            let (region, fd) = OwnRegion::create(&config, 0).unwrap();
            let incoming = Incoming::starting_at(PeerRegion::open(fd).unwrap(), begin);
            let outgoing = Outgoing::<Live>::with_steps(region, begin);
            (Channel::with_outgoing(outgoing), incoming)
        };
        let ((mut p, from_p), (mut q, from_q)) = (new(), new());
        p.attach(from_q, page().1);
        q.attach(from_p, page().1);
        for i in 0..300u32 {
            assert!(send(&mut p, Kind::Work, &i.to_le_bytes(), i));
            assert!(send_long(&mut p, &i.to_le_bytes(), i + 1000));
            assert_eq!(take(&mut q).unwrap().0, i.to_le_bytes());
            assert_eq!(take(&mut q).unwrap().1, i.to_le_bytes());
            q.settle();
            // By the counts, or by the count of a cell.
            if i % 2 == 0 {
                assert_eq!(complete(&mut p), [i, i + 1000]);
            } else {
                assert!(send(&mut q, Kind::Work, b"", 0));
                assert_eq!(take(&mut p).unwrap().2, [i, i + 1000]);
                p.settle();
                complete(&mut q);
            }
        }
    }
}

#[test]
fn work_leaves_cells_that_answers_may_use() {
    let [mut p, _q] = pair(&config(64, 0, 0));
    let sent = (0..1000)
        .take_while(|_| send(&mut p, Kind::Work, b"work", 0))
        .count();
    assert_eq!(sent, 64 - ANSWER_RESERVE as usize);
    let answers = (0..1000)
        .take_while(|_| send(&mut p, Kind::Answer, b"answer", 0))
        .count();
    assert_eq!(answers, ANSWER_RESERVE as usize);
}

#[test]
fn frame_freed_last_is_used_first_and_large_ones_replace_small_ones() {
    let [mut p, mut q] = pair(&config(64, 2, 3));
    let mut octets = [0; CELL_DATA];
    let mut frame = |q: &mut Channel| match q.next(&mut octets, |_| ()) {
        Next::Message {
            payload: Some(payload),
            ..
        } => q.incoming().unwrap().payload_ptr(payload) as usize,
        other => panic!("{other:?}"),
    };
    let mut frames = Vec::new();
    for len in [1, 2, 3, 5000] {
        assert!(send_long(&mut p, &vec![7; len], 0));
        frames.push(frame(&mut q));
    }
    assert_eq!(frames[1] - frames[0], SMALL_FRAME);
    assert_eq!(frames[3] - frames[2], LARGE_FRAME);
    // One large frame is left: no room is wasted by what does not fit.
    assert!(send_long(&mut p, &[7; 5000], 0));
    assert!(!send_long(&mut p, &[7; 5000], 0) && !send_long(&mut p, &[7; 5], 0));
    frames.push(frame(&mut q));
    q.settle();
    complete(&mut p);
    // The second one was freed after the first.
    for (len, expected) in [
        (9, frames[1]),
        (9, frames[0]),
        (9, frames[4]),
        (9, frames[3]),
    ] {
        assert!(send_long(&mut p, &vec![8; len], 0));
        assert_eq!(frame(&mut q), expected);
    }
}

#[test]
fn long_payloads_leave_large_frames_to_shorter_ones() {
    const LONG: usize = LARGE_FRAME / 2 + 1;
    const LONG_FRAMES: usize = 16;
    let [mut p, mut q] = pair(&ChannelConfig::default());
    let frames = ChannelConfig::default().large_frames as usize;
    let send_many = |p: &mut Channel, len: usize| {
        let text = vec![7; len];
        (0..1000).take_while(|_| send_long(p, &text, 0)).count()
    };
    assert_eq!(send_many(&mut p, LONG), LONG_FRAMES);
    assert_eq!(send_many(&mut p, LONG - 1), frames - LONG_FRAMES);
    for _ in 0..frames - LONG_FRAMES {
        take(&mut q).unwrap();
    }
    q.settle();
    complete(&mut p);
    // As many are in use as long payloads may use.
    assert_eq!(send_many(&mut p, LONG), 0);
    take(&mut q).unwrap();
    q.settle();
    complete(&mut p);
    assert_eq!(send_many(&mut p, LONG), 1);
}

#[test]
fn room_that_is_not_published_takes_nothing() {
    let [mut p, mut q] = pair(&config(32, 1, 0));
    for _ in 0..100 {
        let mut room = p.begin(Kind::Work, 100).unwrap();
        room.payload_mut().fill(1);
    }
    assert!(take(&mut q).is_none());
    assert!(send_long(&mut p, b"now", 0));
    assert_eq!(take(&mut q).unwrap().1, b"now");
}

#[test]
fn channel_without_its_peer_sends_and_receives_nothing() {
    let (to_q, from_p) = region(&config(32, 0, 0));
    let mut p = Channel::new(to_q);
    assert!(send(&mut p, Kind::Work, b"early", 5));
    p.settle();
    assert!(take(&mut p).is_none() && complete(&mut p).is_empty() && !p.has_work());
    let (to_p, from_q) = region(&config(32, 0, 0));
    let mut q = Channel::new(to_p);
    q.attach(from_p, page().1);
    assert!(q.has_work());
    assert_eq!(take(&mut q).unwrap().0, b"early");
    q.settle();
    p.attach(from_q, page().1);
    assert!(p.has_work());
    assert_eq!(complete(&mut p), [5]);
    assert!(!p.has_work());
}

#[test]
fn counts_complete_only_what_the_answers_before_them_do_not_refuse() {
    let [mut p, mut q] = pair(&config(32, 0, 0));
    for owner in 0..3 {
        assert!(send(&mut p, Kind::Work, b"request", owner));
    }
    for _ in 0..3 {
        take(&mut q).unwrap();
    }
    assert!(send(&mut q, Kind::Answer, b"the second is refused", 0));
    q.settle();
    assert!(complete(&mut p).is_empty(), "before the answer was taken");
    let (answer, _, owners) = take(&mut p).unwrap();
    assert_eq!(answer, b"the second is refused");
    assert!(owners.is_empty(), "the cell was written before the counts");
    assert_eq!(complete(&mut p), [0, 1, 2]);
}

#[test]
fn count_in_a_cell_completes_what_was_settled_before_it() {
    let [mut p, mut q] = pair(&config(32, 0, 0));
    assert!(send(&mut p, Kind::Work, b"ping", 1));
    assert!(send(&mut p, Kind::Work, b"ping", 2));
    take(&mut q).unwrap();
    q.settle();
    assert!(send(&mut q, Kind::Work, b"pong", 0));
    assert_eq!(take(&mut p).unwrap().2, [1]);
}

#[test]
fn two_ends_without_an_empty_cell_go_on() {
    let [mut p, mut q] = pair(&config(32, 0, 0));
    let fill = |channel: &mut Channel| {
        (0..)
            .take_while(|owner| send(channel, Kind::Work, b"work", *owner))
            .count()
    };
    assert_eq!((fill(&mut p), fill(&mut q)), (16, 16));
    // Both refuse everything; p stops with a message to take and no room to answer it.
    for _ in 0..16 {
        take(&mut p).unwrap();
        assert!(send(&mut p, Kind::Answer, b"answer", 99));
    }
    p.settle();
    assert!(!p.has_room(Kind::Answer));
    // q, too, takes 16 messages, and then has no room until it has read the counts.
    for taken in 0..32 {
        if taken == 16 {
            assert!(!q.has_room(Kind::Answer));
            assert!(complete(&mut q).is_empty());
            assert!(q.has_room(Kind::Answer));
        }
        take(&mut q).unwrap();
        if taken < 16 {
            assert!(send(&mut q, Kind::Answer, b"answer", 99));
        }
        q.settle();
    }
    // The counts free p's cells although messages before them are to be taken.
    assert!(!p.has_room(Kind::Answer) && p.has_work());
    assert!(complete(&mut p).is_empty());
    assert!(p.has_room(Kind::Answer) && !p.has_room(Kind::Work));
    let mut owners = Vec::new();
    while let Some((_, _, completed)) = take(&mut p) {
        assert!(send(&mut p, Kind::Answer, b"answer", 98));
        owners.extend(completed);
        p.settle();
        owners.extend(complete(&mut p));
    }
    let expected: Vec<u32> = (0..16).chain([99; 16]).collect();
    assert_eq!(owners, expected);
    while take(&mut q).is_some() {}
    q.settle();
    assert_eq!(complete(&mut p), [98; 16]);
    assert!(p.has_room(Kind::Work));
}

#[test]
fn counts_behind_or_ahead_of_what_was_sent_are_ignored() {
    let config = config(32, 1, 0);
    let forged = Forged::new(&config);
    let (region, _from_p) = region(&config);
    let mut p = Channel::new(region);
    p.attach(forged.open(), page().1);
    for owner in 0..4 {
        assert!(send(&mut p, Kind::Work, b"x", owner));
    }
    for settled in [5, 1000, 1 << 31, u32::MAX] {
        forged.put_counts(settled, 0);
        assert!(complete(&mut p).is_empty() && !p.has_work(), "{settled}");
    }
    forged.put_counts(3, 0);
    assert!(p.has_work());
    assert_eq!(complete(&mut p), [0, 1, 2]);
    for settled in [2, 0, 3, 5, u32::MAX] {
        forged.put_counts(settled, 0);
        assert!(complete(&mut p).is_empty() && !p.has_work(), "{settled}");
    }
    // The same in cells.
    for (position, count) in (0..).zip([2, 5, 0xff_ffff]) {
        forged.put_cell(position, 1, count, 0, 0);
        assert!(take(&mut p).unwrap().2.is_empty(), "{count}");
    }
    forged.put_cell(3, 1, 4, 0, 0);
    assert_eq!(take(&mut p).unwrap().2, [3]);
}

#[test]
fn counts_that_refer_to_messages_that_never_come_complete_nothing_and_keep_nobody_awake() {
    let config = config(32, 1, 0);
    let forged = Forged::new(&config);
    let (region, _from_p) = region(&config);
    let mut p = Channel::new(region);
    p.attach(forged.open(), page().1);
    assert!(send_long(&mut p, b"x", 1));
    for written in [1, 31, 1 << 30] {
        forged.put_counts(1, written);
        assert!(complete(&mut p).is_empty());
        assert!(!p.has_work());
    }
}

#[test]
fn cell_that_is_not_valid_is_corrupt() {
    let small = u32::try_from(SMALL_FRAME).unwrap();
    let large = u32::try_from(LARGE_FRAME).unwrap();
    let corrupt = [
        (113, 0, 0),
        (255, 0, 0),
        (0, 4, 1),
        (0, u16::MAX, 1),
        (0, 1, 0),
        (0, 1, small + 1),
        (0, 2, large),
        (0, 3, large + 1),
        (0, 3, u32::MAX),
    ];
    for (len, frame, octets) in corrupt {
        let forged = Forged::new(&config(32, 2, 1));
        let mut incoming = forged.open();
        forged.put_cell(0, len, 0, frame, octets);
        let next = incoming.next(&mut [0; CELL_DATA]);
        assert_eq!(next, Next::Corrupt, "{len} {frame} {octets}");
        assert_eq!(incoming.taken(), 0);
    }
    for (len, frame, octets) in [(112, 0, 0), (0, 1, small), (112, 3, large), (0, 2, 1)] {
        let forged = Forged::new(&config(32, 2, 1));
        forged.put_cell(0, len, 0, frame, octets);
        let next = forged.open().next(&mut [0; CELL_DATA]);
        assert!(
            matches!(next, Next::Message { .. }),
            "{len} {frame} {octets}"
        );
    }
}

#[test]
fn payload_is_copied_only_from_within() {
    let [mut p, mut q] = pair(&config(32, 1, 0));
    assert!(send_long(&mut p, b"0123456789", 0));
    let Next::Message {
        payload: Some(payload),
        ..
    } = q.next(&mut [0; CELL_DATA], |_| ())
    else {
        panic!("no payload");
    };
    let incoming = q.incoming().unwrap();
    let mut text = [0; 4];
    assert!(incoming.copy_payload(payload, 6, &mut text));
    assert_eq!(&text, b"6789");
    for skip in [7, 10, usize::MAX] {
        assert!(!incoming.copy_payload(payload, skip, &mut text));
    }
    assert_eq!(&text, b"6789");
}

#[test]
#[should_panic(expected = "a payload of another half")]
fn payload_of_another_channel_is_refused() {
    let [mut p, mut q] = pair(&config(32, 0, 2));
    let [_, r] = pair(&config(32, 0, 1));
    assert!(send_long(&mut p, b"x", 0) && send_long(&mut p, b"x", 0));
    let mut octets = [0; CELL_DATA];
    q.next(&mut octets, |_| ());
    let Next::Message {
        payload: Some(payload),
        ..
    } = q.next(&mut octets, |_| ())
    else {
        panic!("no payload");
    };
    let _ = r.incoming().unwrap().copy_payload(payload, 0, &mut [0]);
}
