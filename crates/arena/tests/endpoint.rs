//! Endpoints and the reaper as their callers see them, within one process.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};
use urdma_types::SlotId;

use arrayvec::ArrayVec;
use urdma_arena::{
    Arena, ArenaConfig, Endpoint, Meta, Parked, Reaper, RxFrame, SendError, TxFrame, FOLLOWERS_MAX,
    LARGE_CAPACITY, SMALL_CAPACITY,
};

fn slot(index: u8) -> SlotId {
    SlotId::new(index).unwrap()
}

fn small_arena() -> Arena {
    Arena::create(&ArenaConfig {
        slots: 4,
        ring_cells: 8,
        small_frames: 4,
        large_frames: 2,
    })
    .unwrap()
}

fn send_text(from: &mut Endpoint, to: SlotId, text: &[u8]) -> Result<(), SendError> {
    let mut frame = from.alloc(text.len()).unwrap();
    frame.data_mut()[..text.len()].copy_from_slice(text);
    from.send(to, frame, text.len()).map_err(|(_, error)| error)
}

fn text_of(frame: &RxFrame) -> Vec<u8> {
    let mut text = vec![0; frame.len()];
    assert!(frame.copy_to_slice(0, &mut text));
    text
}

fn file_of(arena: &Arena) -> std::fs::File {
    arena.fd().try_clone_to_owned().unwrap().into()
}

#[test]
fn arena_of_default_size_uses_memory_only_as_frames_are_used() {
    let arena = Arena::create(&ArenaConfig::default()).unwrap();
    let file = file_of(&arena);
    assert!(file.metadata().unwrap().len() > 1 << 30);
    let _endpoints: Vec<_> = arena
        .slots()
        .take(10)
        .map(|s| Endpoint::attach(&arena, s).unwrap())
        .collect();
    let octets = file.metadata().unwrap().blocks() * 512;
    assert!(octets < 2 << 20, "{octets} octets for ten idle slots");
    assert!(Reaper::new(&arena).account().all_free());
}

#[test]
fn datagram_of_any_length_arrives_unchanged() {
    let arena = Arena::create(&ArenaConfig::default()).unwrap();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut b = Endpoint::attach(&arena, slot(2)).unwrap();
    for len in [
        0,
        1,
        127,
        128,
        129,
        SMALL_CAPACITY,
        SMALL_CAPACITY + 1,
        9000,
        65_535,
        LARGE_CAPACITY,
    ] {
        let text: Vec<u8> = (0..len).map(|i| (i * 7 + len).to_le_bytes()[0]).collect();
        send_text(&mut a, slot(2), &text).unwrap();
        let frame = b.recv().unwrap();
        assert_eq!((frame.len(), frame.from()), (len, slot(1)));
        assert_eq!(text_of(&frame), text);
        let mut head = [0u8; 128];
        let n = frame.copy_head(&mut head);
        assert_eq!(head[..n], text[..len.min(128)]);
        assert!(!frame.copy_to_slice(len, &mut [0]));
        assert!(!frame.copy_to_slice(usize::MAX, &mut [0]));
        b.release(frame);
    }
    assert!(a.alloc(LARGE_CAPACITY + 1).is_none());
    assert!(b.recv().is_none());
    assert!(Reaper::new(&arena).account().all_free());
}

#[test]
fn metadata_travels_with_a_forwarded_frame() {
    let arena = small_arena();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut daemon = Endpoint::attach(&arena, SlotId::DAEMON).unwrap();
    let mut b = Endpoint::attach(&arena, slot(2)).unwrap();
    let ip = *b"0123456789abcdef";
    let meta = Meta {
        remote_ip: urdma_types::Ip16(ip),
        src_port: 0xfffe,
        dst_port: 21_504,
        ecn: 2,
        gid_index: 3,
    };
    let mut frame = a.alloc(3).unwrap();
    frame.set_meta(&meta);
    frame.data_mut()[..3].copy_from_slice(b"abc");
    a.send(SlotId::DAEMON, frame, 3).unwrap();
    let frame = daemon.recv().unwrap();
    assert_eq!(frame.meta(), meta);
    daemon.forward(slot(2), frame).unwrap();
    let frame = b.recv().unwrap();
    assert_eq!(
        (frame.from(), frame.meta(), text_of(&frame)),
        (SlotId::DAEMON, meta, b"abc".to_vec())
    );
    drop(frame);
    assert!(Reaper::new(&arena).account().all_free());
    Reaper::new(&arena).verify().unwrap();
}

/// Writes `text` behind the datagram that ends at `end`; gives where it ends.
fn add_text(frame: &mut TxFrame, end: usize, text: &[u8]) -> usize {
    let at = frame.next_at(end).unwrap();
    assert!(at >= end);
    frame.data_mut()[at..][..text.len()].copy_from_slice(text);
    frame.add_follower(text.len());
    at + text.len()
}

/// The datagrams of a frame.
fn texts_of(frame: &RxFrame) -> Vec<Vec<u8>> {
    std::iter::once((0, frame.len()))
        .chain(frame.followers())
        .map(|(at, len)| {
            // SAFETY: the datagram lies within the frame, which is held.
            unsafe { std::slice::from_raw_parts(frame.data_ptr().add(at), len) }.to_vec()
        })
        .collect()
}

#[test]
fn frame_with_followers_arrives_whole_also_at_the_second_try() {
    let arena = small_arena();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut b = Endpoint::attach(&arena, slot(2)).unwrap();
    let mut c = Endpoint::attach(&arena, slot(3)).unwrap();
    for _ in 0..4 {
        send_text(&mut b, slot(2), b"full").unwrap();
        send_text(&mut c, slot(2), b"full").unwrap();
    }
    let mut frame = a.alloc(3).unwrap();
    frame.data_mut()[..3].copy_from_slice(b"one");
    let end = add_text(&mut frame, 3, b"second");
    add_text(&mut frame, end, b"3");
    let (frame, error) = a.send(slot(2), frame, 3).unwrap_err();
    assert_eq!(error, SendError::Full);
    for _ in 0..8 {
        assert_eq!(texts_of(&b.recv().unwrap()), [b"full"]);
    }
    a.send(slot(2), frame, 3).unwrap();
    let frame = b.recv().unwrap();
    assert_eq!(
        texts_of(&frame),
        [b"one".to_vec(), b"second".to_vec(), b"3".to_vec()]
    );
    drop(frame);
    // The same frame, used again without followers.
    send_text(&mut a, slot(2), b"alone").unwrap();
    assert_eq!(texts_of(&b.recv().unwrap()), [b"alone"]);
}

#[test]
fn frame_takes_followers_until_there_is_no_more_room_or_number() {
    let arena = small_arena();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut frame = a.alloc(SMALL_CAPACITY).unwrap();
    assert_eq!(frame.next_at(SMALL_CAPACITY), None);
    let mut end = 1;
    for _ in 0..FOLLOWERS_MAX {
        end = add_text(&mut frame, end, b"x");
    }
    assert_eq!(frame.next_at(end), None);
}

#[test]
fn slot_sends_to_itself_and_in_bursts() {
    let arena = small_arena();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    for round in 0u8..50 {
        for i in 0..3 {
            let mut frame = a.alloc(2).unwrap();
            frame.data_mut()[..2].copy_from_slice(&[round, i]);
            a.send_quiet(slot(1), frame, 2).map_err(|(_, e)| e).unwrap();
        }
        a.ring_doorbell(slot(1));
        let mut burst = ArrayVec::<RxFrame, 2>::new();
        assert_eq!(a.recv_burst(&mut burst), 2);
        assert_eq!(text_of(&burst[1]), [round, 1]);
        assert_eq!(text_of(&a.recv().unwrap()), [round, 2]);
        assert!(!a.has_work());
    }
    assert_eq!(arena.status(slot(1)).unwrap().received, 150);
}

#[test]
fn allocation_when_a_receiver_keeps_frames_is_refused_counted_and_recovers() {
    let arena = small_arena();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut b = Endpoint::attach(&arena, slot(2)).unwrap();
    for _ in 0..4 {
        send_text(&mut a, slot(2), b"x").unwrap();
    }
    assert!(a.alloc(1).is_none());
    assert_eq!(arena.status(slot(1)).unwrap().exhausted, 1);
    let kept = b.recv().unwrap();
    drop(b.recv().unwrap());
    for _ in 0..100 {
        let frame = a.alloc(1).unwrap();
        assert!(a.alloc(1).is_none(), "the others are with the receiver");
        drop(frame);
    }
    drop(kept);
    assert!(
        a.alloc(LARGE_CAPACITY).is_some(),
        "the other class is not affected"
    );
}

#[test]
fn ring_that_is_full_gives_the_frame_back() {
    let arena = small_arena();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut c = Endpoint::attach(&arena, slot(3)).unwrap();
    let mut b = Endpoint::attach(&arena, slot(2)).unwrap();
    for sender in [&mut a, &mut c] {
        for _ in 0..4 {
            send_text(sender, slot(2), b"x").unwrap();
        }
    }
    let frame = a.alloc(3000).unwrap();
    let (frame, error) = a.send(slot(2), frame, 3000).unwrap_err();
    assert_eq!(error, SendError::Full);
    drop(b.recv().unwrap());
    a.send(slot(2), frame, 3000).map_err(|(_, e)| e).unwrap();
    assert_eq!(std::iter::from_fn(|| b.recv()).count(), 8);
    assert_eq!(arena.status(slot(1)).unwrap().full, 1);
}

#[test]
fn send_to_a_vacant_slot_is_refused_as_dead() {
    let arena = small_arena();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    assert_eq!(
        send_text(&mut a, slot(2), b"x"),
        Err(SendError::Dead),
        "never attached"
    );
    assert_eq!(
        send_text(&mut a, slot(200), b"x"),
        Err(SendError::Dead),
        "no such slot"
    );
    let b = Endpoint::attach(&arena, slot(2)).unwrap();
    send_text(&mut a, slot(2), b"x").unwrap();
    drop(b);
    assert_eq!(
        send_text(&mut a, slot(2), b"x"),
        Err(SendError::Dead),
        "detached"
    );
    for _ in 0..20 {
        let frame = a.alloc(1).unwrap();
        assert_eq!(
            a.send_quiet(slot(2), frame, 1).unwrap_err().1,
            SendError::Dead
        );
    }
    Reaper::new(&arena).reap(slot(2));
    assert!(Reaper::new(&arena).account().all_free());
}

#[test]
fn slot_is_attached_once_until_it_is_reset() {
    let arena = small_arena();
    let a = Endpoint::attach(&arena, slot(1)).unwrap();
    assert_eq!(
        Endpoint::attach(&arena, slot(1)).unwrap_err().kind(),
        std::io::ErrorKind::AddrInUse
    );
    drop(a);
    assert_eq!(
        Endpoint::attach(&arena, slot(1)).unwrap_err().kind(),
        std::io::ErrorKind::AddrInUse
    );
    assert_eq!(Reaper::new(&arena).reset(slot(1)), 0);
    let _again = Endpoint::attach(&arena, slot(1)).unwrap();
    assert_eq!(arena.status(slot(1)).unwrap().epoch, 1);
    assert!(Endpoint::attach(&arena, slot(4)).is_err());
}

#[test]
fn reset_while_a_peer_holds_frames_leaves_them_until_released() {
    let arena = small_arena();
    let mut reaper = Reaper::new(&arena);
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut b = Endpoint::attach(&arena, slot(2)).unwrap();
    for _ in 0..3 {
        send_text(&mut a, slot(2), b"old").unwrap();
    }
    let kept = b.recv().unwrap();
    drop(a);
    let report = reaper.reap(slot(1));
    assert_eq!(
        (report.unfinished, report.held),
        (0, 0),
        "what is in a live ring is delivered"
    );
    assert_eq!(reaper.reset(slot(1)), 3);
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let frame = a.alloc(1).unwrap();
    assert!(a.alloc(1).is_none(), "three of four are still with slot 2");
    assert_eq!(text_of(&kept), b"old");
    drop((kept, frame, b.recv().unwrap(), b.recv().unwrap()));
    assert!((0..4)
        .map(|_| a.alloc(1))
        .collect::<Vec<_>>()
        .iter()
        .all(Option::is_some));
    assert!(reaper.account().all_free());
}

#[test]
fn reap_of_a_receiver_takes_back_what_was_sent_to_it_and_what_it_held() {
    let arena = small_arena();
    let mut reaper = Reaper::new(&arena);
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut b = Endpoint::attach(&arena, slot(2)).unwrap();
    for _ in 0..3 {
        send_text(&mut a, slot(2), b"x").unwrap();
    }
    std::mem::forget((b.recv().unwrap(), b.alloc(5000).unwrap()));
    let account = reaper.account();
    assert_eq!(
        (account.held[2], account.in_flight[2], account.used),
        (2, 2, 4)
    );
    assert_eq!(account.free + 4, account.total);
    std::mem::forget(b);
    let report = reaper.reap(slot(2));
    assert_eq!(
        (report.held, report.to_dead, report.ring_entries),
        (2, 2, 2)
    );
    assert!(reaper.account().all_free());
    reaper.verify().unwrap();
    assert_eq!(send_text(&mut a, slot(2), b"x"), Err(SendError::Dead));
    assert_eq!(reaper.reset(slot(2)), 0);
    let mut b = Endpoint::attach(&arena, slot(2)).unwrap();
    assert!(b.recv().is_none());
    send_text(&mut a, slot(2), b"new").unwrap();
    assert_eq!(text_of(&b.recv().unwrap()), b"new");
}

#[test]
fn reset_gives_the_memory_of_unused_frames_back() {
    let arena = Arena::create(&ArenaConfig::default()).unwrap();
    let file = file_of(&arena);
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut frames: Vec<_> = (0..64).map(|_| a.alloc(LARGE_CAPACITY).unwrap()).collect();
    frames.iter_mut().for_each(|f| f.data_mut().fill(1));
    let used = file.metadata().unwrap().blocks() * 512;
    assert!(used > 4 << 20);
    drop((frames, a));
    Reaper::new(&arena).reset(slot(1));
    assert!(file.metadata().unwrap().blocks() * 512 < used - (4 << 20));
    assert!(Endpoint::attach(&arena, slot(1))
        .unwrap()
        .alloc(9)
        .is_some());
}

#[test]
fn parked_receiver_is_woken_by_a_send_and_by_its_own_process() {
    let arena = small_arena();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut b = Endpoint::attach(&arena, slot(2)).unwrap();
    let parker = b.parker();
    for round in 0..200 {
        let sleeper =
            std::thread::spawn(move || parker.park(Some(Duration::from_secs(20)), || false));
        if round % 2 == 0 {
            while round % 4 == 0 && !parker.is_parked() {
                std::thread::yield_now();
            }
            send_text(&mut a, slot(2), b"x").unwrap();
            assert!(matches!(
                sleeper.join().unwrap(),
                Parked::Woken | Parked::HadWork
            ));
            drop(b.recv().unwrap());
        } else {
            while !parker.is_parked() {
                std::thread::yield_now();
            }
            parker.unpark();
            assert_eq!(sleeper.join().unwrap(), Parked::Woken);
        }
        assert!(!parker.is_parked());
    }
    assert!(arena.status(slot(1)).unwrap().wakes > 0);
}

#[test]
fn park_ends_at_its_timeout_at_work_and_at_death() {
    let arena = small_arena();
    let b = Endpoint::attach(&arena, slot(2)).unwrap();
    let parker = b.parker();
    let start = Instant::now();
    assert_eq!(
        parker.park(Some(Duration::from_millis(20)), || false),
        Parked::Timeout
    );
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(parker.park(None, || true), Parked::HadWork);
    let sleeper = std::thread::spawn(move || parker.park(None, || false));
    while !parker.is_parked() {
        std::thread::yield_now();
    }
    Reaper::new(&arena).mark_dead(slot(2));
    assert_eq!(sleeper.join().unwrap(), Parked::Vacant);
    assert_eq!(parker.park(None, || false), Parked::Vacant);
}

#[test]
fn taken_over_sleeper_costs_senders_no_wake_up_until_it_is_roused() {
    let arena = small_arena();
    let mut a = Endpoint::attach(&arena, slot(1)).unwrap();
    let b = Endpoint::attach(&arena, slot(2)).unwrap();
    let parker = b.parker();
    let sleeper = std::thread::spawn(move || parker.park(Some(Duration::from_secs(20)), || false));
    while !parker.is_parked() {
        std::thread::yield_now();
    }
    // The word says PARKED a moment before the futex is waited on; taken over in between, the
    // sleeper would not sleep at all.
    std::thread::sleep(Duration::from_millis(200));
    assert!(parker.take_over());
    assert!(!parker.take_over());
    send_text(&mut a, slot(2), b"x").unwrap();
    assert_eq!(arena.status(slot(1)).unwrap().wakes, 0);
    assert!(!sleeper.is_finished());
    parker.rouse();
    assert_eq!(sleeper.join().unwrap(), Parked::Woken);
}

fn memfd(seal: bool, octets: u64, head: &[u8]) -> OwnedFd {
    // SAFETY: the name is a literal; the descriptor is new and ours.
    let fd = unsafe {
        OwnedFd::from_raw_fd(libc::memfd_create(
            c"x".as_ptr(),
            libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC,
        ))
    };
    let mut file = std::fs::File::from(fd);
    file.write_all(head).unwrap();
    file.set_len(octets).unwrap();
    if seal {
        // SAFETY: seals our own file.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    }
    file.into()
}

#[test]
fn foreign_file_is_refused_with_a_reason() {
    let arena = small_arena();
    let file = file_of(&arena);
    let mut head = [0u8; 32];
    file.read_exact_at(&mut head, 0).unwrap();
    let octets = file.metadata().unwrap().len();
    assert!(Arena::from_fd(memfd(true, octets, &head)).is_ok());
    let error = |fd| Arena::from_fd(fd).unwrap_err().to_string();
    assert!(error(memfd(false, octets, &head)).contains("not sealed"));
    assert!(error(memfd(true, octets + 4096, &head)).contains("header needs"));
    assert!(error(memfd(true, 10, &head[..10])).contains("magic"));
    assert!(error(memfd(true, octets, &[0; 32])).contains("magic"));
    let mut other = head;
    other[8] = 99;
    assert!(error(memfd(true, octets, &other)).contains("version 99"));
    for at in 12..32 {
        let mut other = head;
        other[at] ^= 0x81;
        assert!(
            Arena::from_fd(memfd(true, octets, &other)).is_err(),
            "octet {at}"
        );
    }
    assert!(Arena::from_fd(std::fs::File::open("/dev/null").unwrap().into()).is_err());
}

#[test]
fn arena_opened_twice_is_mapped_once() {
    let arena = small_arena();
    let again = Arena::from_fd(arena.fd().as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(arena.fd().as_raw_fd(), again.fd().as_raw_fd());
}

#[test]
fn config_out_of_range_is_refused() {
    let good = ArenaConfig::default();
    for bad in [
        ArenaConfig { slots: 1, ..good },
        ArenaConfig { slots: 255, ..good },
        ArenaConfig {
            ring_cells: 1000,
            ..good
        },
        ArenaConfig {
            ring_cells: 1,
            ..good
        },
        ArenaConfig {
            small_frames: 0,
            ..good
        },
        ArenaConfig {
            large_frames: 32_769,
            ..good
        },
        ArenaConfig {
            small_frames: 32_768,
            large_frames: 32_768,
            ..good
        },
    ] {
        assert!(Arena::create(&bad).is_err(), "{bad:?}");
    }
}
