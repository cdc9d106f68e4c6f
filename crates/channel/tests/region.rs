//! Layout, seals, and what a reader refuses.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use common::{config, mappings_of, memfd, raw, SIZE_SEALS};
use urdma_channel::{
    ChannelConfig, Directory, Incoming, Kind, Layout, Outgoing, OwnDirectory, OwnRecords,
    OwnRegion, PeerRecords, PeerRegion, LARGE_FRAME, SMALL_FRAME,
};
use urdma_memfd::{avoiding, HeaderError, MemoryError};
use urdma_waiting::{OwnPage, PeerPage};

#[test]
fn layout_of_the_default_is_that_of_the_specification() {
    let layout = Layout::new(&ChannelConfig::default(), 0).unwrap();
    assert_eq!((layout.ring(), layout.frames()), (384, 36_864));
    assert_eq!(layout.total(), 36_864 + 64 * 2048 + 64 * 65_536);
    assert_eq!(layout.frame(0), Some((36_864, SMALL_FRAME)));
    assert_eq!(layout.frame(63), Some((36_864 + 63 * 2048, SMALL_FRAME)));
    assert_eq!(layout.frame(64), Some((36_864 + 64 * 2048, LARGE_FRAME)));
    assert_eq!(layout.frame(127).unwrap().0 + 65_536, layout.total());
    assert_eq!(layout.frame(128), None);
    assert_eq!(layout.frame(u32::MAX), None);
}

#[test]
fn rings_of_neighbouring_slots_begin_at_different_offsets() {
    let ring = |stagger| {
        Layout::new(&ChannelConfig::default(), stagger)
            .unwrap()
            .ring()
    };
    let mut rings: Vec<usize> = (0..62).map(ring).collect();
    assert_eq!((rings[0], rings[61], ring(62)), (384, 8192, 384));
    rings.dedup();
    assert_eq!(rings.len(), 62);
}

#[test]
fn header_of_every_layout_is_decoded_to_it() {
    for (config, stagger) in [
        (config(32, 0, 0), 0),
        (config(4096, 1, 1024), 61),
        (ChannelConfig::default(), 255),
    ] {
        let layout = Layout::new(&config, stagger).unwrap();
        let decoded = Layout::decode(&layout.encode(), layout.total() as u64);
        assert_eq!(decoded, Ok(layout));
    }
}

#[test]
fn header_with_a_value_out_of_range_is_refused() {
    let good = Layout::new(&ChannelConfig::default(), 0).unwrap();
    let decode = |at: usize, word: u32| {
        let mut header = good.encode();
        header[at..at + 4].copy_from_slice(&word.to_le_bytes());
        Layout::decode(&header, good.total() as u64)
    };
    assert_eq!(decode(4, 7), Err(HeaderError::Magic));
    assert_eq!(
        decode(8, 2),
        Err(HeaderError::Version { found: 2, known: 1 })
    );
    for cells in [0, 8, 16, 31, 255, 8192, 1 << 31, u32::MAX] {
        assert!(matches!(decode(12, cells), Err(HeaderError::Range(_))));
    }
    for (at, frames) in [(16, 1025), (20, 1025), (16, u32::MAX), (20, u32::MAX)] {
        assert!(matches!(decode(at, frames), Err(HeaderError::Range(_))));
    }
    for ring in [0, 256, 400, 8320, u32::MAX] {
        assert!(matches!(decode(24, ring), Err(HeaderError::Range(_))));
    }
    assert!(matches!(decode(16, 65), Err(HeaderError::Length { .. })));
}

#[test]
fn descriptor_that_is_handed_out_gives_no_way_to_write() {
    let (_region, fd) = OwnRegion::create(&ChannelConfig::default(), 0).unwrap();
    let (_page, page_fd) = OwnPage::create().unwrap();
    for fd in [fd, page_fd] {
        let file = File::from(fd);
        let octets = usize::try_from(file.metadata().unwrap().len()).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), octets, access, flags, raw(&file), 0) };
        let error = io::Error::last_os_error();
        assert_eq!(at, libc::MAP_FAILED);
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(file.write_at(&[1], 0).is_err(), "written");
        assert!(file.set_len(4095).is_err(), "shrunk");
        assert!(file.set_len(1 << 30).is_err(), "grown");
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: changes only that file.
        let rc = unsafe { libc::fallocate(raw(&file), hole, 0, 4096) };
        assert_eq!(rc, -1, "a hole");
        // SAFETY: changes only that file.
        let rc = unsafe { libc::fcntl(raw(&file), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        assert_eq!(rc, -1, "sealed further");
    }
}

fn open(file: &File) -> Result<PeerRegion, MemoryError> {
    PeerRegion::open(file.try_clone().unwrap().into())
}

#[test]
fn memory_that_is_no_region_is_refused() {
    let layout = Layout::new(&config(32, 2, 1), 0).unwrap();
    let header = layout.encode();
    let is_not_sealed = |seals| {
        matches!(
            open(&memfd(layout.total(), &header, seals, 0)),
            Err(MemoryError::NotSealed)
        )
    };
    assert!(is_not_sealed(0));
    assert!(is_not_sealed(libc::F_SEAL_SHRINK));
    assert!(is_not_sealed(libc::F_SEAL_GROW));

    let refused = |octets, content: &[u8]| match open(&memfd(octets, content, SIZE_SEALS, 0)) {
        Err(MemoryError::Header(error)) => error,
        other => panic!("{other:?}"),
    };
    let length = HeaderError::Length {
        file: 4096,
        header: layout.total() as u64,
    };
    assert_eq!(refused(4096, &header), length);
    assert_eq!(refused(layout.total(), &[1; 28]), HeaderError::Magic);
    assert_eq!(refused(20, &[]), HeaderError::Magic);

    let good = memfd(layout.total(), &header, SIZE_SEALS, 0);
    assert!(open(&good).is_ok());
    assert!(PeerPage::open(good.into()).is_err());
    let (_page, page_fd) = OwnPage::create().unwrap();
    assert!(PeerRegion::open(page_fd).is_err());
}

#[test]
fn descriptor_that_is_no_memfd_is_refused() {
    let is_refused = |fd: OwnedFd| matches!(PeerRegion::open(fd), Err(MemoryError::NotMemfd));
    assert!(is_refused(File::open("/proc/self/exe").unwrap().into()));
    assert!(is_refused(io::pipe().unwrap().0.into()));
    // Without a free hugepage, reading this one raises SIGBUS.
    let huge = memfd(2 << 20, &[], SIZE_SEALS, libc::MFD_HUGETLB);
    assert!(is_refused(huge.into()));
}

#[test]
fn directory_shows_processes_and_how_often_their_slots_were_assigned() {
    let (own, fd) = OwnDirectory::create().unwrap();
    let directory = Directory::open(fd).unwrap();
    assert_eq!(
        (directory.generation(5), directory.has_process(5)),
        (0, false)
    );
    assert_eq!(own.assign(5), 1);
    assert_eq!(
        (directory.generation(5), directory.has_process(5)),
        (1, true)
    );
    own.release(5);
    assert_eq!(
        (directory.generation(5), directory.has_process(5)),
        (1, false)
    );
    assert_eq!(own.assign(5), 2);
    assert_eq!(
        (directory.generation(5), directory.has_process(5)),
        (2, true)
    );
    assert_eq!(
        (directory.generation(254), directory.has_process(255)),
        (0, false)
    );
}

#[test]
fn records_tell_what_a_stream_delivered_until_the_next_stream() {
    let (own, fd) = OwnRecords::create().unwrap();
    let records = PeerRecords::open(fd).unwrap();
    for index in [0, u16::MAX] {
        assert_eq!(records.delivered(index, 9), None);
        own.of(index).begin(9, 100);
        own.of(index).advance(103);
        assert_eq!(records.delivered(index, 9), Some(103));
        assert_eq!(records.delivered(index, 8), None);
        own.of(index).begin(8, 7);
        assert_eq!(records.delivered(index, 9), None);
        assert_eq!(records.delivered(index, 8), Some(7));
    }
}

#[test]
fn table_of_another_kind_is_refused() {
    let page = || OwnPage::create().unwrap().1;
    assert!(matches!(
        Directory::open(page()),
        Err(MemoryError::Header(HeaderError::Magic))
    ));
    assert!(PeerRecords::open(page()).is_err());
    assert!(PeerPage::open(OwnDirectory::create().unwrap().1).is_err());
}

#[test]
fn new_region_has_memory_for_its_first_cells_only_and_is_left_out_of_core_dumps() {
    let (region, fd) = OwnRegion::create(&ChannelConfig::PACKETS, 0).unwrap();
    let file = File::from(fd);
    let resident = || file.metadata().unwrap().blocks() * 512;
    // The header, and 16 cells of 128 octets.
    assert_eq!(resident(), 4096);
    let peer = open(&file).unwrap();
    assert_eq!(resident(), 4096);
    let inode = format!(" {} ", file.metadata().unwrap().ino());
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines();
    let mut mappings = 0;
    while let Some(line) = lines.next() {
        if line.contains("memfd:urdma-channel") && line.contains(&inode) {
            let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
            assert!(flags.contains(" dd"), "{flags}");
            mappings += 1;
        }
    }
    assert_eq!((mappings, mappings_of(&file)), (2, 2));
    drop((region, peer));
    assert_eq!(mappings_of(&file), 0);
}

/// Where a file is mapped in this process.
fn addresses_of(file: &File) -> Vec<usize> {
    let inode = format!(" {} ", file.metadata().unwrap().ino());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|line| line.contains(&inode));
    let first = |line: &str| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    lines.map(first).collect()
}

#[test]
fn region_keeps_out_of_what_is_taken_if_there_is_another_place() {
    let create = || OwnRegion::create(&ChannelConfig::default(), 0).unwrap();
    // The kernel maps the next one where this one was.
    let (first, fd) = create();
    let file = File::from(fd);
    let octets = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let taken = addresses_of(&file)[0];
    drop(first);
    let is_taken = |at: usize, length: usize| at < taken + octets && taken < at + length;
    let (region, fd) = avoiding(&is_taken, create);
    let file = File::from(fd);
    let at = addresses_of(&file);
    assert_eq!(at.len(), 1);
    assert!(!is_taken(at[0], octets));
    let mut outgoing = Outgoing::new(region);
    assert_eq!(outgoing.begin(Kind::Work, 0).unwrap().publish(8, 0), 1);
    assert!(Incoming::new(open(&file).unwrap()).has_message());
    drop(outgoing);
    assert_eq!(mappings_of(&file), 0);
    let (region, fd) = avoiding(&|_, _| true, create);
    assert_eq!(mappings_of(&File::from(fd)), 1);
    drop(region);
}
