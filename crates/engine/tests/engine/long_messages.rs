//! Messages as long as verbs allow: 2^31 octets, in address space that shows the same 16 MB again
//! and again.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use urdma_engine::{Access, CompletionOp, PostError, RemoteAddr, SendOp, Sge, Status};

use crate::rig::{pair, End};

const LONGEST: usize = 1 << 31;
const PIECE: usize = 1 << 24;
/// Two gigabytes are copied twice, by a machine that may be busy.
const LIMIT: Duration = Duration::from_secs(300);

/// Address space of [`LONGEST`] octets and one more, every [`PIECE`] of which is the same memory.
struct Mirrors {
    start: *mut libc::c_void,
    file: libc::c_int,
}

const SPACE: usize = LONGEST + PIECE;

impl Mirrors {
    fn new(octet: u8) -> Self {
        // SAFETY: a new file and new mappings, which replace one another where they were made.
        unsafe {
            let file = libc::memfd_create(c"urdma-test".as_ptr(), 0);
            assert!(file >= 0 && libc::ftruncate(file, PIECE as libc::off_t) == 0);
            let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let start = libc::mmap(
                std::ptr::null_mut(),
                SPACE,
                libc::PROT_NONE,
                anonymous,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            for at in (0..SPACE).step_by(PIECE) {
                let piece = libc::mmap(start.byte_add(at), PIECE, rights, flags, file, 0);
                assert_ne!(piece, libc::MAP_FAILED);
            }
            let mirrors = Self { start, file };
            mirrors.fill(octet);
            mirrors
        }
    }

    fn fill(&self, octet: u8) {
        // SAFETY: the first piece, which is all there is; no transfer is under way.
        unsafe { self.start.cast::<u8>().write_bytes(octet, PIECE) };
    }

    /// A list over `length` octets, registered at `end`.
    fn list(&self, end: &End, length: usize) -> Sge {
        let addr = self.start as u64;
        let keys = end
            .engine
            .register_mr(end.pd, addr, SPACE as u64, addr, Access::all());
        Sge {
            addr,
            length: u32::try_from(length).unwrap(),
            lkey: keys.unwrap().lkey,
        }
    }

    fn is_all(&self, octet: u8) -> bool {
        // SAFETY: the piece is mapped, and no other code writes to it any more.
        let piece = unsafe { std::slice::from_raw_parts(self.start.cast::<u8>(), PIECE) };
        piece == vec![octet; PIECE]
    }
}

impl Drop for Mirrors {
    fn drop(&mut self) {
        // SAFETY: what `new` made, of which no region is left when the engines have ended their
        // transfers.
        unsafe {
            libc::munmap(self.start, SPACE);
            libc::close(self.file);
        }
    }
}

/// Waits for one completion of each end that is to have one.
fn finish(initiator: &End, target: Option<&End>) {
    let begin = Instant::now();
    let mut waiting: Vec<&End> = [Some(initiator), target].into_iter().flatten().collect();
    while !waiting.is_empty() {
        assert!(
            begin.elapsed() < LIMIT,
            "the longest message did not arrive"
        );
        waiting.retain(|end| {
            let found = end.poll();
            for wc in &found {
                let completion = wc.completion;
                assert_eq!(completion.status, Status::Success);
                if completion.op == CompletionOp::Recv {
                    assert_eq!(completion.byte_len as usize, LONGEST);
                }
            }
            found.is_empty()
        });
        std::thread::yield_now();
    }
}

#[test]
fn messages_of_two_gigabytes_arrive_whole_and_longer_ones_are_refused() {
    let (a, b) = pair(64);
    let (source, target) = (Mirrors::new(7), Mirrors::new(0));
    let (from, to) = (source.list(&a, LONGEST), target.list(&b, LONGEST));

    b.receive(1, &[to]).unwrap();
    a.post(2, SendOp::Send, &[from]).unwrap();
    finish(&a, Some(&b));
    assert!(target.is_all(7));

    source.fill(0);
    let remote = RemoteAddr {
        stag: to.lkey,
        to: to.addr,
    };
    a.post(3, SendOp::Read { remote }, &[from]).unwrap();
    finish(&a, None);
    assert!(source.is_all(7));

    let longer = Sge {
        length: from.length + 1,
        ..from
    };
    for op in [SendOp::Send, SendOp::Write { remote }] {
        let refused = a.post(4, op, &[longer]);
        assert_eq!(refused, Err(PostError::MessageTooLong));
    }
    for (end, key) in [(&a, from.lkey), (&b, to.lkey)] {
        end.engine.deregister_mr(key).unwrap();
    }
}
