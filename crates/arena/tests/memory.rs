//! How much memory an arena takes when programs look at all of it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use urdma_types::SlotId;

use urdma_arena::{Arena, ArenaConfig, Endpoint, MappedArena, Reaper};

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
    let flags = flags_of_mappings(arena.fd());
    assert!(!flags.is_empty(), "the arena is not mapped");
    for flags in flags {
        assert!(flags.contains(" dd"), "{flags}");
    }
}

/// What the kernel says of each mapping of a file.
fn flags_of_mappings(file: BorrowedFd<'_>) -> Vec<String> {
    let status = fs::metadata(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let inode = format!(" {} ", status.ino());
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines();
    let mut flags = Vec::new();
    while let Some(line) = lines.next() {
        if line.contains("memfd:") && line.contains(&inode) {
            let of_mapping = lines.find(|line| line.starts_with("VmFlags:"));
            flags.push(of_mapping.unwrap().to_owned());
        }
    }
    flags
}

/// An arena that another process might have made: this one has not mapped it.
fn foreign_arena() -> OwnedFd {
    let arena = arena();
    let mut header = [0; 32];
    let mut original = fs::File::from(arena.fd().try_clone_to_owned().unwrap());
    original.read_exact(&mut header).unwrap();
    // SAFETY: the name is a C string.
    let raw = unsafe { libc::memfd_create(c"copy".as_ptr(), libc::MFD_ALLOW_SEALING) };
    assert!(raw >= 0);
    // SAFETY: the call has just made it.
    let mut copy = fs::File::from(unsafe { OwnedFd::from_raw_fd(raw) });
    copy.set_len(arena.layout().total() as u64).unwrap();
    copy.write_all(&header).unwrap();
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: seals the file from above.
    assert_eq!(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals) }, 0);
    copy.into()
}

#[test]
fn arena_is_unmapped_with_its_last_holder() {
    let file = foreign_arena();
    let open = || {
        // SAFETY: nothing that comes from it is kept.
        unsafe { MappedArena::from_fd(file.try_clone().unwrap()) }.unwrap()
    };
    let (first, second) = (open(), open());
    assert_eq!(flags_of_mappings(file.as_fd()).len(), 1);
    drop(first);
    assert_eq!(second.arena().generation(slot(1)), 0);
    drop(second);
    assert!(flags_of_mappings(file.as_fd()).is_empty());
    let third = open();
    Arena::from_fd(file.try_clone().unwrap()).unwrap();
    drop(third);
    assert_eq!(flags_of_mappings(file.as_fd()).len(), 1);
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
    reaper.give_back_unused(|of| of.number() > 2);
    let octets_of_slots = 3 * arena.layout().frames_of(slot(1)).1 as u64;
    let bound = before + octets_of_slots + (4 << 20);
    let after = resident_octets(arena);
    assert!(after < bound, "{after} octets, {before} before");
    let mut text = [0; 3];
    assert!(kept.copy_to_slice(0, &mut text));
    assert_eq!(&text, b"abc");
    drop(survivor);
}
