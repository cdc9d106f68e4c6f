//! How much memory an arena takes when programs look at all of it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use urdma_arena::{Arena, ArenaConfig, Endpoint, Reaper, SlotId};

const PAGE: usize = 4096;

fn slot(index: u8) -> SlotId {
    SlotId::new(index).unwrap()
}

fn arena() -> Arena {
    let config = ArenaConfig {
        slots: 16,
        ..ArenaConfig::default()
    };
    Arena::create(&config).unwrap()
}

/// Octets of memory that the arena has.
fn resident_octets(arena: Arena) -> u64 {
    let path = format!("/proc/self/fd/{}", arena.fd().as_raw_fd());
    fs::metadata(path).unwrap().blocks() * 512
}

/// Reads an octet of each page, as a core dump without MADV_DONTDUMP or mlockall does.
fn read_all(arena: Arena) {
    let octets = arena.layout().total();
    // SAFETY: a new mapping of the whole arena, whose size is sealed.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            octets,
            libc::PROT_READ,
            libc::MAP_SHARED,
            arena.fd().as_raw_fd(),
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    for at in (0..octets).step_by(PAGE) {
        // SAFETY: within the mapping; the octets are not used.
        unsafe { base.cast::<u8>().add(at).read_volatile() };
    }
    // SAFETY: mapped above, and not used any more.
    unsafe { libc::munmap(base, octets) };
}

#[test]
fn arena_is_left_out_of_core_dumps() {
    let arena = arena();
    let copy = arena.fd().try_clone_to_owned().unwrap();
    Arena::from_fd(copy).unwrap();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let inode = fs::metadata(format!("/proc/self/fd/{}", arena.fd().as_raw_fd())).unwrap();
    let inode = format!(" {} ", inode.ino());
    let mut lines = maps.lines();
    let mut found = 0;
    while let Some(line) = lines.next() {
        if line.contains("urdma-arena") && line.contains(&inode) {
            let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
            assert!(flags.contains(" dd"), "{line}: {flags}");
            found += 1;
        }
    }
    assert!(found > 0, "the arena is not mapped");
}

#[test]
fn memory_that_a_reader_of_the_whole_arena_took_is_given_back_when_it_ends() {
    let arena = arena();
    let mut reaper = Reaper::new(&arena);
    let survivor = Endpoint::attach(&arena, slot(1)).unwrap();
    let mut sender = Endpoint::attach(&arena, slot(2)).unwrap();
    // A slot that was used, one of whose frames a live process still has.
    let mut leaver = Endpoint::attach(&arena, slot(3)).unwrap();
    let mut frame = leaver.alloc(100).unwrap();
    frame.data_mut()[..3].copy_from_slice(b"abc");
    leaver.send(slot(2), frame, 100).unwrap();
    let kept = sender.recv().unwrap();
    drop(leaver);
    assert_eq!(reaper.reset(slot(3)), 1);

    let reader = Endpoint::attach(&arena, slot(4)).unwrap();
    let before = resident_octets(arena);
    read_all(arena);
    assert!(resident_octets(arena) > arena.layout().total() as u64 / 2);
    drop(reader);
    reaper.reset(slot(4));
    reaper.give_back_unused(|of| of.index() > 2);
    let octets_of_slots = 3 * arena.layout().frames_of(slot(1)).1 as u64;
    let bound = before + octets_of_slots + (4 << 20);
    let after = resident_octets(arena);
    assert!(after < bound, "{after} octets, {before} before");
    let mut text = [0; 3];
    assert!(kept.copy_to_slice(0, &mut text));
    assert_eq!(&text, b"abc");
    drop(survivor);
}
