//! Multicast groups: attached queue pairs receive a copy. The tests take the part of slot 0.

use std::sync::Arc;
use urdma_types::SlotId;

use proto_trp::wire::datagram::group_of;
use proto_trp::wire::message::MESSAGE_HEAD_LEN;
use proto_trp::wire::PacketHead;
use urdma_engine::{Engine, EngineError, Gid, Payload, QpState, Status, LIMITS};

use crate::datagrams::{DatagramEnd, GRH, MTU};
use crate::rig::{engine, instance, until, Guest};

/// 239.1.2.3
const GROUP: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);

/// The number that stands for every member; any would do.
const ALL_QPN: u32 = 0x00ff_ffff;

/// A process, and slot 0, which the test plays.
struct Site {
    engine: Arc<Engine>,
    daemon: Guest,
}

impl Site {
    fn new() -> Self {
        let instance = instance();
        let engine = engine(&instance, 1);
        Self {
            daemon: Guest::of(&instance, SlotId::DAEMON, &engine),
            engine,
        }
    }

    /// Takes a datagram to a group off slot 0's channel and hands it back to the process, as urdmad
    /// does for a member.
    fn copy_one(&mut self) {
        let mut taken = None;
        until("slot 0 has a datagram", || {
            taken = self.daemon.take();
            taken.is_some()
        });
        let (cell, frame) = taken.unwrap();
        let (head, in_cell) = cell.split_at(MESSAGE_HEAD_LEN);
        let packet = if frame.is_empty() { in_cell } else { &frame };
        assert_eq!(group_of(packet, packet.len()), Some(GROUP.0));
        let head = PacketHead::parse(head).unwrap();
        // This is how urdmad knows that it is from here and for the network too.
        assert_eq!(head.meta.remote_ip, urdma_types::Ip16(GROUP.0));
        assert_eq!(head.meta.dst_port, 21504);
        self.daemon.send_packet(&PacketHead::default(), packet);
    }

    fn attach(&self, port: &DatagramEnd) -> Result<(), EngineError> {
        self.engine.attach_to_group(&port.qp, GROUP)
    }

    fn detach(&self, port: &DatagramEnd) -> Result<(), EngineError> {
        self.engine.detach_from_group(&port.qp, GROUP)
    }
}

fn send(from: &DatagramEnd, octets: usize) {
    let sges = [from.sge(0, octets)];
    let handle = from.engine.create_ah(from.pd, 0, GROUP, 0).unwrap();
    from.send_to(1, &handle, ALL_QPN, Payload::Sges(&sges))
        .unwrap();
    from.expect(1, Status::Success);
}

fn receive(port: &DatagramEnd, wr_id: u64) {
    port.receive(wr_id, &[port.sge(8192, GRH + MTU)]);
}

#[test]
fn attached_queue_pairs_get_one_copy_each_and_others_none() {
    let mut site = Site::new();
    let [a, b, other] = [(); 3].map(|()| DatagramEnd::new(&site.engine));
    site.attach(&a).unwrap();
    site.attach(&b).unwrap();
    // Once is enough, and one end of it is enough.
    site.attach(&b).unwrap();
    for (port, wr_id) in [(&a, 10), (&b, 11), (&b, 12), (&other, 13)] {
        receive(port, wr_id);
    }
    send(&a, MTU);
    site.copy_one();
    // A sender that is a member gets its own.
    for (port, wr_id) in [(&a, 10), (&b, 11)] {
        let got = port.expect(wr_id, Status::Success);
        assert_eq!(got.completion.byte_len as usize, GRH + MTU);
        assert_eq!(got.remote_qpn, a.number());
        assert_eq!(port.memory[8192 + GRH..][..MTU], a.memory[..MTU]);
    }
    site.detach(&b).unwrap();
    assert_eq!(site.detach(&b), Err(EngineError::Invalid));
    receive(&a, 14);
    send(&other, 5);
    site.copy_one();
    a.expect(14, Status::Success);
    assert_eq!((b.poll().len(), other.poll().len()), (0, 0));
}

#[test]
fn sender_that_does_not_want_its_own_gets_those_of_others() {
    let mut site = Site::new();
    let a = DatagramEnd::with(&site.engine, |config| config.hears_itself = false);
    let b = DatagramEnd::new(&site.engine);
    for port in [&a, &b] {
        site.attach(port).unwrap();
    }
    receive(&a, 1);
    receive(&b, 2);
    receive(&b, 3);
    send(&a, 5);
    site.copy_one();
    b.expect(2, Status::Success);
    assert_eq!(a.poll().len(), 0);
    send(&b, 5);
    site.copy_one();
    a.expect(1, Status::Success);
    b.expect(3, Status::Success);
}

#[test]
fn member_whose_receive_is_too_short_keeps_it_and_the_others_get_their_copy() {
    let mut site = Site::new();
    let [a, short, roomy] = [(); 3].map(|()| DatagramEnd::new(&site.engine));
    for port in [&short, &roomy] {
        site.attach(port).unwrap();
    }
    short.receive(1, &[short.sge(0, GRH + 3)]);
    receive(&roomy, 2);
    receive(&roomy, 3);
    send(&a, 4);
    site.copy_one();
    roomy.expect(2, Status::Success);
    assert!(short.poll().is_empty());
    send(&a, 3);
    site.copy_one();
    roomy.expect(3, Status::Success);
    let got = short.expect(1, Status::Success);
    assert_eq!(got.completion.byte_len as usize, GRH + 3);
    assert_eq!(short.state(), QpState::Rts);
}

#[test]
fn attached_queue_pair_is_busy_and_hosts_are_no_groups() {
    let site = Site::new();
    let port = DatagramEnd::new(&site.engine);
    let attach = |gid| site.engine.attach_to_group(&port.qp, gid);
    assert_eq!(attach(crate::rig::GID), Err(EngineError::Invalid));
    assert_eq!(site.detach(&port), Err(EngineError::Invalid));
    attach(GROUP).unwrap();
    let destroy = || site.engine.destroy_datagram_qp(&port.qp);
    assert_eq!(destroy(), Err(EngineError::Busy));
    site.detach(&port).unwrap();
    destroy().unwrap();
    assert_eq!(attach(GROUP), Err(EngineError::Invalid));
}

#[test]
fn groups_and_members_are_as_many_as_the_device_says() {
    let site = Site::new();
    let port = DatagramEnd::new(&site.engine);
    let group = |number: u32| {
        let [.., high, low] = number.to_be_bytes();
        Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low])
    };
    for number in 0..LIMITS.max_mcast_grp {
        let attached = site.engine.attach_to_group(&port.qp, group(number));
        attached.unwrap();
    }
    let one_more = group(LIMITS.max_mcast_grp);
    let beyond = site.engine.attach_to_group(&port.qp, one_more);
    assert_eq!(beyond, Err(EngineError::NoMemory));
    let members: Vec<DatagramEnd> = (1..LIMITS.max_mcast_qp_attach)
        .map(|_| DatagramEnd::new(&site.engine))
        .collect();
    for member in &members {
        let attached = site.engine.attach_to_group(&member.qp, group(7));
        attached.unwrap();
    }
    let last = DatagramEnd::new(&site.engine);
    let attach_last = |gid| site.engine.attach_to_group(&last.qp, gid);
    assert_eq!(attach_last(group(7)), Err(EngineError::NoMemory));
    attach_last(group(8)).unwrap();
}

// Nothing woke urdmad for a datagram that was posted.
#[test]
fn message_to_a_group_wakes_slot_0() {
    let site = Site::new();
    let port = DatagramEnd::new(&site.engine);
    std::thread::scope(|scope| {
        let daemon = &site.daemon;
        let sleeper = scope.spawn(|| daemon.sleep());
        // Long enough for it to sleep; if it does not, the test finds nothing, but does not fail.
        std::thread::sleep(std::time::Duration::from_millis(50));
        send(&port, 64);
        assert!(sleeper.join().unwrap());
    });
}
