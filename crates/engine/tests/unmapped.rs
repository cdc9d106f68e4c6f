//! Memory that is unmapped while it is registered, in a process without the stand-in. It is the
//! only test of its program: other threads would map their memory where pages were unmapped.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

#[allow(dead_code)]
#[path = "engine/rig.rs"]
mod rig;

use urdma_engine::{Access, MrChange, SendOp, Sge, Status};

use rig::{pair, End};

const PAGE: usize = 4096;

/// Pages of this test.
struct Pages(*mut libc::c_void);

impl Pages {
    fn map(count: usize) -> Self {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), count * PAGE, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at)
    }

    fn at(&self, page: usize) -> u64 {
        self.0 as u64 + (page * PAGE) as u64
    }

    fn unmap(&self, page: usize) {
        // SAFETY: a page of the mapping, to which there is no reference.
        let failed = unsafe { libc::munmap(self.0.byte_add(page * PAGE), PAGE) };
        assert_eq!(failed, 0);
    }

    fn is_mapped(&self, page: usize) -> bool {
        let mut resident = 0u8;
        // SAFETY: changes nothing; there is room for the answer of a page.
        unsafe { libc::mincore(self.0.byte_add(page * PAGE), PAGE, &raw mut resident) == 0 }
    }
}

fn register(end: &End, pages: &Pages, page: usize) -> u32 {
    let (at, rights) = (pages.at(page), Access::all() - Access::ON_DEMAND);
    let keys = end
        .engine
        .register_mr(end.pd, at, PAGE as u64, at, rights)
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
    let (a, b) = pair(2 * PAGE);
    let pages = Pages::map(2);
    let keys = [0, 1].map(|page| register(&a, &pages, page));
    for (page, key) in keys.into_iter().enumerate() {
        pages.unmap(page);
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
