//! Events that a process raises and does not read: the kernel keeps a bounded number of them.

#![allow(unsafe_code)]

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use urdma_kernel::Kind;

use super::{handle_of, make_all, open, serve, Opened, OWN_QPN};

const RAISED: usize = 20_000;
/// Of a queue pair, whose events are of several kinds.
const BOUND_OF_QP: usize = 64;
const COMM_EST: u32 = 4;
const SRQ_LIMIT_REACHED: u32 = 15;
const ENOBUFS: i32 = 105;

pub(crate) fn run() {
    let _agent = serve().unwrap();
    let Opened { uverbs, async_fd } = open();
    let channel = uverbs.create_comp_channel().unwrap();
    let memory = vec![7_u8; 4096];
    let objects = make_all(&uverbs, &memory, channel.as_raw_fd(), OWN_QPN);
    let (cq, srq) = (
        handle_of(&objects, Kind::Cq),
        handle_of(&objects, Kind::Srq),
    );
    let qp = handle_of(&objects, Kind::Qp);
    do_not_block(channel.as_fd());
    do_not_block(async_fd.as_fd());
    let (mut completions, mut events) = (channel.into(), async_fd.into());

    // After it has been read, the next event is raised again.
    for _ in 0..2 {
        for _ in 0..RAISED {
            uverbs.raise_cq(cq).unwrap();
            uverbs.raise_srq(srq).unwrap();
        }
        assert_eq!(unread::<8>(&mut completions).len(), 1);
        assert_eq!(of_kind(&mut events, SRQ_LIMIT_REACHED), 1);

        let lost = (0..RAISED).filter(|_| {
            let refused = uverbs.raise_qp(qp, COMM_EST).err();
            assert!(refused
                .as_ref()
                .is_none_or(|error| error.raw_os_error() == Some(ENOBUFS)));
            refused.is_some()
        });
        assert_eq!(lost.count(), RAISED - BOUND_OF_QP);
        assert_eq!(of_kind(&mut events, COMM_EST), BOUND_OF_QP);
    }
}

/// Reads all events that are there.
fn unread<const OCTETS: usize>(file: &mut std::fs::File) -> Vec<[u8; OCTETS]> {
    let mut all = Vec::new();
    loop {
        let mut event = [0; OCTETS];
        match file.read(&mut event) {
            Ok(octets) => assert_eq!(octets, OCTETS),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
            Err(error) => panic!("{error}"),
        }
        all.push(event);
    }
}

/// Reads all asynchronous events and counts those of a kind; there are others about the port.
fn of_kind(events: &mut std::fs::File, kind: u32) -> usize {
    let all = unread::<16>(events);
    all.iter()
        .filter(|event| event[8..12] == kind.to_ne_bytes())
        .count()
}

fn do_not_block(file: BorrowedFd<'_>) {
    // SAFETY: the call touches no memory of this process.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(result, 0);
}
