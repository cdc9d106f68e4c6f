//! What urdmad takes from a process, and what it does not.

#![allow(clippy::unwrap_used)]

mod support;

use proto_trp::wire::datagram::{DatagramHeader, HEADER_LEN};
use proto_trp::wire::{Meta, PacketHead};
use support::{eventually, meta, Daemon, Process, Scratch};
use urdma_types::{source_port, Qpn, SlotId};

/// A message of a UD queue pair.
fn datagram(source: Qpn) -> Vec<u8> {
    let header = DatagramHeader {
        destination_index: 1,
        qkey: 1,
        traffic_class: 0,
        source_qpn: source.to_u32(),
        imm: None,
        solicited: false,
        source_gid: [0; 16],
        destination_gid: [0; 16],
    };
    let mut octets = vec![0; HEADER_LEN];
    header.encode(&mut octets).unwrap();
    octets
}

/// The head of a packet from `source` to the process of `to`.
fn head(source: SlotId, to: &Process, is_passed_on: bool) -> PacketHead {
    let meta = Meta {
        src_port: source_port(Qpn::new(source, 1)),
        ..meta("127.0.0.1", to.attached.slot)
    };
    PacketHead {
        is_passed_on,
        ..PacketHead::of(meta)
    }
}

fn count(daemon: &Daemon, counter: &str) -> u64 {
    daemon.status().counters.data[counter]
}

#[test]
fn packet_that_names_another_process_as_its_source_is_dropped() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let [mut a, mut b, other] = [(); 3].map(|()| daemon.attach());
    assert!(a.try_send_as(&head(other.slot(), &b, false), b"forged"));
    let forged = datagram(Qpn::new(other.slot(), 1));
    assert!(a.try_send_as(&head(a.slot(), &b, false), &forged));
    let own = datagram(Qpn::new(a.slot(), 1));
    assert!(a.try_send_as(&head(a.slot(), &b, false), &own));
    assert_eq!(b.receive().unwrap().octets, own);
    assert_eq!(count(&daemon, "drop_forged_source"), 2);
}

#[test]
fn packet_of_a_leased_queue_is_taken_from_lessees_only() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (mut a, mut b) = (daemon.attach(), daemon.attach());
    assert!(a.try_send_as(&head(a.slot(), &b, true), b"passed on"));
    a.send(&meta("127.0.0.1", b.attached.slot), b"sent");
    assert_eq!(b.receive().unwrap().octets, b"sent");
    assert_eq!(count(&daemon, "drop_passed_on"), 1);
}

#[test]
fn process_that_writes_what_no_process_writes_is_disconnected_alone() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (mut a, mut b) = (daemon.attach(), daemon.attach());
    for wrong in [&[1; 32][..], &[16], &[16, 2, 0]] {
        let mut offender = daemon.attach();
        assert!(offender.try_write(wrong, &[]));
        eventually("it is disconnected", || {
            let slots = daemon.status().slots;
            slots.iter().all(|slot| slot.slot != offender.attached.slot)
        });
        a.send(&meta("127.0.0.1", b.attached.slot), b"honest");
        assert_eq!(b.receive().unwrap().octets, b"honest");
    }
    assert_eq!(count(&daemon, "corrupt_cells"), 3);
}
