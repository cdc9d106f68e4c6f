//! Memory that is unmapped while it is registered, in a process without the stand-in. Its tests run
//! one after the other and are the only ones of their program.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

#[allow(dead_code)]
#[path = "engine/rig.rs"]
mod rig;

use std::sync::{Mutex, MutexGuard, PoisonError};

use urdma_engine::{Access, MrChange, SendOp, Sge, Status};

use rig::{connect, engine, instance, pair, End};

const PAGE: usize = 4096;

/// Pages of this test.
struct Pages(*mut libc::c_void);

impl Pages {
    /// Pages where the kernel maps memory.
    fn map(count: usize) -> Self {
        Self::map_at(0, count)
    }

    /// Pages where the kernel maps memory of no other thread once they are unmapped: above them is
    /// more free space than any mapping takes.
    fn map_apart(count: usize) -> Self {
        const AT: usize = 0x1000_0000_0000;
        Self::map_at(AT, count)
    }

    fn map_at(address: usize, count: usize) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let new = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let flags = match address {
            0 => new,
            _ => new | libc::MAP_FIXED_NOREPLACE,
        };
        let at = std::ptr::without_provenance_mut(address);
        // SAFETY: a new mapping, which replaces none.
        let at = unsafe { libc::mmap(at, count * PAGE, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at)
    }

    fn at(&self, page: usize) -> u64 {
        self.0 as u64 + (page * PAGE) as u64
    }

    fn unmap(&self, page: usize, count: usize) {
        // SAFETY: pages of the mapping, to which there is no reference.
        let failed = unsafe { libc::munmap(self.0.byte_add(page * PAGE), count * PAGE) };
        assert_eq!(failed, 0);
    }

    fn is_mapped(&self, page: usize) -> bool {
        let mut resident = 0u8;
        // SAFETY: changes nothing; there is room for the answer of a page.
        unsafe { libc::mincore(self.0.byte_add(page * PAGE), PAGE, &raw mut resident) == 0 }
    }
}

/// Held by the test that runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register(end: &End, pages: &Pages, page: usize, count: usize) -> u32 {
    let (at, rights) = (pages.at(page), Access::all() - Access::ON_DEMAND);
    let keys = end
        .engine
        .register_mr(end.pd, at, (count * PAGE) as u64, at, rights)
        .unwrap();
    keys.lkey
}

/// Sends the page from one end, and waits for the message at the other.
fn send(from: &End, to: &End, pages: &Pages, page: usize, lkey: u32) {
    let sge = Sge {
        addr: pages.at(page),
        length: PAGE as u32,
        lkey,
    };
    to.receive(1, &[to.sge(0, PAGE)]).unwrap();
    from.post(2, SendOp::Send, &[sge]).unwrap();
    to.expect(1, Status::Success);
    from.expect(2, Status::Success);
}

#[test]
fn unmapped_page_is_empty_until_its_region_ends_or_has_other_memory() {
    let _alone = alone();
    let (a, b) = pair(2 * PAGE);
    let pages = Pages::map_apart(2);
    let keys = [0, 1].map(|page| register(&a, &pages, page, 1));
    for (page, key) in keys.into_iter().enumerate() {
        pages.unmap(page, 1);
        send(&a, &b, &pages, page, key);
        assert!(pages.is_mapped(page));
    }
    assert!(b.memory.iter().all(|octet| *octet == 0));
    a.engine.deregister_mr(keys[0]).unwrap();
    assert!(!pages.is_mapped(0) && pages.is_mapped(1));
    let memory = a.memory.as_ptr() as u64;
    let change = MrChange {
        translation: Some((memory, PAGE as u64, memory)),
        ..MrChange::default()
    };
    a.engine.reregister_mr(keys[1], &change).unwrap();
    assert!(!pages.is_mapped(1));
}

/// The ranges of addresses at which this process has memory of channels.
fn memory_of_channels() -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("/memfd:urdma-"));
    let range = |line: &str| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |digits| u64::from_str_radix(digits, 16).unwrap();
        (number(from), number(to))
    };
    ours.map(range).collect()
}

// Regression: a server ended with SIGSEGV, since the page of its peer, which is read only, had been
// mapped where the server had unmapped registered memory, to which a Write went.
#[test]
fn memory_of_channels_is_not_mapped_where_registered_memory_was() {
    // One by one, so that each is where the kernel maps a page next; and some that a region fits.
    const COUNTS: [usize; 9] = [1, 1, 1, 1, 1, 1, 1, 1, 16384];
    let _alone = alone();
    let instance = instance();
    let end = |slot| End::new(engine(&instance, slot), PAGE);
    let (a, b) = (end(1), end(2));
    let all = COUNTS.map(|count| (Pages::map(count), count));
    for (pages, count) in &all {
        register(&a, pages, 0, *count);
        register(&b, pages, 0, *count);
    }
    for (pages, count) in &all {
        pages.unmap(0, *count);
    }
    let before = memory_of_channels().len();
    connect(&a, &b, Access::all() - Access::ON_DEMAND);
    b.receive(1, &[b.sge(0, PAGE)]).unwrap();
    a.post(2, SendOp::Send, &[a.sge(0, PAGE)]).unwrap();
    b.expect(1, Status::Success);
    a.expect(2, Status::Success);
    let mapped = memory_of_channels();
    assert!(mapped.len() > before);
    for (from, to) in mapped {
        let is_registered =
            |(pages, count): &(Pages, usize)| from < pages.at(*count) && pages.at(0) < to;
        assert!(!all.iter().any(is_registered), "{from:x}-{to:x}");
    }
}
