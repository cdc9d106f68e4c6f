//! Unreliable datagrams: what arrives, what is dropped without a word, what fails.

use std::sync::Arc;

use urdma_engine::{
    Access, AddressHandle, AsyncKind, CompletionOp, Cq, CqConfig, DatagramModify, DatagramWr,
    Engine, EngineError, Gid, Payload, Pd, PostError, Qp, QpConfig, QpState, RecvWr, SendFlags,
    Sge, Srq, SrqConfig, Status, WorkCompletion, XrcRole,
};

use crate::rig::{engine, instance, until, Events, GID};

const QKEY: u32 = 0x1111_2222;
/// Octets before a message in the receive buffer.
pub(crate) const GRH: usize = 40;
const OCTETS: usize = 16_384;
pub(crate) const MTU: usize = 4096;

/// A datagram queue pair in RTS, and memory for it.
pub(crate) struct DatagramEnd {
    pub(crate) engine: Arc<Engine>,
    pub(crate) pd: Pd,
    cq: Arc<Cq>,
    pub(crate) qp: Arc<Qp>,
    events: Arc<Events>,
    pub(crate) memory: Vec<u8>,
    key: u32,
}

impl DatagramEnd {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self::with(engine, |_| ())
    }

    /// One that is made with other attributes.
    pub(crate) fn with(engine: &Arc<Engine>, change: impl FnOnce(&mut QpConfig)) -> Self {
        let pd = engine.alloc_pd().unwrap();
        let config = CqConfig::with_depth(16);
        let cq = engine.create_cq(config).unwrap();
        let events = Arc::new(Events::default());
        let mut config = QpConfig {
            pd,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 2,
            max_recv_sge: 3,
            max_inline: 64,
            fails_with_peer: false,
            hears_itself: true,
            cookie: 5,
            events: events.clone(),
            srq: None,
            xrc: XrcRole::None,
            unreliable: false,
        };
        change(&mut config);
        let qp = engine.create_datagram_qp(&config).unwrap();
        let memory: Vec<u8> = (0..OCTETS).map(|at| (at % 251) as u8).collect();
        let addr = memory.as_ptr() as u64;
        let keys = engine
            .register_mr(pd, addr, OCTETS as u64, addr, Access::all())
            .unwrap();
        let port = Self {
            engine: Arc::clone(engine),
            pd,
            cq,
            qp,
            events,
            memory,
            key: keys.lkey,
        };
        port.go(QpState::Init);
        port.go(QpState::Rtr);
        port.go(QpState::Rts);
        port
    }

    fn go(&self, state: QpState) {
        let change = DatagramModify {
            state: Some(state),
            qkey: (state == QpState::Init).then_some(QKEY),
            sq_psn: None,
        };
        self.engine.modify_datagram_qp(&self.qp, &change).unwrap();
    }

    pub(crate) fn state(&self) -> QpState {
        self.engine.query_datagram_qp(&self.qp).0
    }

    pub(crate) fn number(&self) -> u32 {
        self.qp.number().to_u32()
    }

    fn handle(&self) -> Arc<AddressHandle> {
        self.engine.create_ah(self.pd, 0, GID, 0).unwrap()
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= OCTETS);
        Sge {
            addr: self.memory.as_ptr() as u64 + at as u64,
            length: len as u32,
            lkey: self.key,
        }
    }

    pub(crate) fn receive(&self, wr_id: u64, sges: &[Sge]) {
        let wr = RecvWr { wr_id, sges };
        self.engine.post_datagram_recv(&self.qp, &wr).unwrap();
    }

    fn send(&self, wr_id: u64, to: &DatagramEnd, payload: Payload<'_>) -> Result<(), PostError> {
        self.send_with(wr_id, to, payload, QKEY, None)
    }

    fn send_with(
        &self,
        wr_id: u64,
        to: &DatagramEnd,
        payload: Payload<'_>,
        remote_qkey: u32,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let handle = self.handle();
        let wr = DatagramWr {
            wr_id,
            imm,
            flags: SendFlags {
                signaled: true,
                ..SendFlags::default()
            },
            payload,
            handle: &handle,
            remote_qpn: to.number(),
            remote_qkey,
        };
        self.engine.post_datagram(&self.qp, &wr)
    }

    /// Sends to where a handle points.
    pub(crate) fn send_to(
        &self,
        wr_id: u64,
        handle: &Arc<AddressHandle>,
        remote_qpn: u32,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        let wr = DatagramWr {
            wr_id,
            imm: None,
            flags: SendFlags {
                signaled: true,
                ..SendFlags::default()
            },
            payload,
            handle,
            remote_qpn,
            remote_qkey: QKEY,
        };
        self.engine.post_datagram(&self.qp, &wr)
    }

    /// Waits until this engine has handled all that `from` sent: a later message, which takes the
    /// same ring, has arrived.
    fn has_handled_all_of(&self, from: &DatagramEnd) {
        let probe = DatagramEnd::new(&self.engine);
        probe.receive(9, &[probe.sge(0, 100)]);
        from.send(9, &probe, Payload::Inline(&[b"later"])).unwrap();
        from.expect(9, Status::Success);
        probe.expect(9, Status::Success);
    }

    pub(crate) fn poll(&self) -> Vec<WorkCompletion> {
        let mut found = Vec::new();
        let take = |wc: &WorkCompletion| found.push(*wc);
        self.engine.poll_cq(&self.cq, 16, take).unwrap();
        found
    }

    /// Waits for one completion, which must be of `wr_id` with `status`.
    pub(crate) fn expect(&self, wr_id: u64, status: Status) -> WorkCompletion {
        let mut found = None;
        until("a completion", || {
            let mut polled = self.poll();
            assert!(polled.len() <= 1, "{polled:?}");
            found = polled.pop();
            found.is_some()
        });
        let found = found.unwrap();
        let completion = found.completion;
        assert_eq!((completion.wr_id, completion.status), (wr_id, status));
        found
    }
}

/// An end whose receives come from a shared queue that tells when fewer than `limit` are left.
fn sharing(engine: &Arc<Engine>, limit: u32) -> (DatagramEnd, Arc<Srq>) {
    let mut shared = None;
    let port = DatagramEnd::with(engine, |config| {
        let srq = SrqConfig {
            pd: config.pd,
            max_wr: 4,
            max_sge: 1,
            limit,
            cookie: 6,
            events: config.events.clone(),
        };
        shared = Some(engine.create_srq(srq).unwrap());
        config.srq = shared.clone();
    });
    (port, shared.unwrap())
}

fn two() -> (DatagramEnd, DatagramEnd) {
    let instance = instance();
    (
        DatagramEnd::new(&engine(&instance, 1)),
        DatagramEnd::new(&engine(&instance, 2)),
    )
}

#[test]
fn message_arrives_behind_a_header_with_both_gids() {
    let (a, b) = two();
    b.receive(1, &[b.sge(0, 10), b.sge(100, 30), b.sge(200, 1000)]);
    let list = [a.sge(5, 100), a.sge(1000, 23)];
    a.send_with(7, &b, Payload::Sges(&list), QKEY, Some(0xdead_beef))
        .unwrap();
    let sent = a.expect(7, Status::Success);
    assert_eq!(sent.completion.op, CompletionOp::Send);
    let received = b.expect(1, Status::Success);
    assert_eq!(received.packet_type, 9);
    assert_eq!(received.remote_qpn, a.number());
    assert_eq!(received.completion.op, CompletionOp::Recv);
    assert_eq!(received.completion.byte_len as usize, GRH + 123);
    assert_eq!(received.completion.imm, Some(0xdead_beef));
    let message = [&a.memory[5..105], &a.memory[1000..1023]].concat();
    assert_eq!(b.memory[200..323], message);
    let grh = [&b.memory[..10], &b.memory[100..130]].concat();
    assert_eq!(grh[0] >> 4, 6);
    assert_eq!((&grh[8..24], &grh[24..40]), (&GID.0[..], &GID.0[..]));
}

#[test]
fn message_inline_empty_and_of_full_size_arrive() {
    let (a, b) = two();
    for (id, len) in [(1, 0), (2, MTU)] {
        b.receive(id, &[b.sge(0, GRH + len)]);
        a.send(id, &b, Payload::Sges(&[a.sge(7, len)])).unwrap();
        a.expect(id, Status::Success);
        let received = b.expect(id, Status::Success);
        assert_eq!(received.completion.byte_len as usize, GRH + len);
        assert_eq!(b.memory[GRH..GRH + len], a.memory[7..7 + len]);
    }
    b.receive(3, &[b.sge(0, 100)]);
    a.send(3, &b, Payload::Inline(&[b"in", b"line"])).unwrap();
    a.expect(3, Status::Success);
    b.expect(3, Status::Success);
    assert_eq!(&b.memory[GRH..GRH + 6], b"inline");
}

#[test]
fn message_to_itself_arrives() {
    let a = DatagramEnd::new(&engine(&instance(), 1));
    a.receive(1, &[a.sge(0, 100)]);
    a.send(2, &a, Payload::Inline(&[b"me"])).unwrap();
    a.expect(2, Status::Success);
    assert_eq!(a.expect(1, Status::Success).remote_qpn, a.number());
}

#[test]
fn message_with_another_key_or_without_a_receive_is_dropped_in_silence() {
    let (a, b) = two();
    // Without a receive request the datagram is lost, and no error is reported.
    a.send(1, &b, Payload::Inline(&[b"early"])).unwrap();
    a.expect(1, Status::Success);
    b.has_handled_all_of(&a);
    b.receive(1, &[b.sge(0, 100)]);
    a.send_with(2, &b, Payload::Inline(&[b"wrong"]), QKEY + 1, None)
        .unwrap();
    a.expect(2, Status::Success);
    // The highest bit stands for the sender's own key, which is the receiver's too.
    a.send_with(3, &b, Payload::Inline(&[b"right"]), 1 << 31, None)
        .unwrap();
    a.expect(3, Status::Success);
    b.expect(1, Status::Success);
    assert_eq!(&b.memory[GRH..GRH + 5], b"right");
    assert_eq!(b.state(), QpState::Rts);
}

#[test]
fn message_too_long_for_the_path_stops_the_send_queue_until_it_is_mended() {
    let (a, b) = two();
    b.receive(1, &[b.sge(0, 100)]);
    let long = [a.sge(0, MTU + 1)];
    a.send(1, &b, Payload::Sges(&long)).unwrap();
    a.expect(1, Status::LocalLengthError);
    assert_eq!(a.state(), QpState::Sqe);
    a.send(2, &b, Payload::Inline(&[b"x"])).unwrap();
    a.expect(2, Status::WorkRequestFlushed);
    a.go(QpState::Rts);
    a.send(3, &b, Payload::Inline(&[b"x"])).unwrap();
    a.expect(3, Status::Success);
    b.expect(1, Status::Success);
}

#[test]
fn request_that_the_service_does_not_have_fails_in_its_turn_and_stops_the_send_queue() {
    let (a, b) = two();
    b.receive(1, &[b.sge(0, 100)]);
    a.go(QpState::Sqd);
    a.send(1, &b, Payload::Inline(&[b"x"])).unwrap();
    let post = || {
        a.engine
            .post_unsupported_datagram(&a.qp, 2, CompletionOp::Read)
    };
    post().unwrap();
    a.send(3, &b, Payload::Inline(&[b"x"])).unwrap();
    assert!(a.poll().is_empty());
    a.go(QpState::Rts);
    let mut found = Vec::new();
    until("all three end", || {
        found.extend(a.poll().into_iter().map(|wc| wc.completion));
        found.len() == 3
    });
    let ends: Vec<_> = found.iter().map(|c| (c.wr_id, c.op, c.status)).collect();
    let expected = [
        (1, CompletionOp::Send, Status::Success),
        (2, CompletionOp::Read, Status::LocalQpOperationError),
        (3, CompletionOp::Send, Status::WorkRequestFlushed),
    ];
    assert_eq!(ends, expected);
    assert_eq!(a.state(), QpState::Sqe);
    b.expect(1, Status::Success);
    // In SQE it is flushed as any other, and before RTS it is refused.
    post().unwrap();
    a.expect(2, Status::WorkRequestFlushed);
    a.go(QpState::Reset);
    assert_eq!(post(), Err(PostError::InvalidState));
}

#[test]
fn memory_that_is_not_registered_is_neither_sent_nor_written() {
    let (a, b) = two();
    let foreign = Sge {
        lkey: a.key ^ 1,
        ..a.sge(0, 10)
    };
    a.send(1, &b, Payload::Sges(&[foreign])).unwrap();
    a.expect(1, Status::LocalProtectionError);
    a.go(QpState::Rts);
    let before = b.memory.clone();
    let foreign = Sge {
        lkey: b.key ^ 1,
        ..b.sge(0, 100)
    };
    b.receive(1, &[foreign]);
    a.send(2, &b, Payload::Inline(&[b"x"])).unwrap();
    a.expect(2, Status::Success);
    b.expect(1, Status::LocalProtectionError);
    assert_eq!(b.state(), QpState::Error);
    assert_eq!(b.memory, before);
}

#[test]
fn shared_receive_queue_of_another_domain_takes_keys_of_its_own_domain() {
    let instance = instance();
    let (a, other) = (engine(&instance, 1), engine(&instance, 2));
    let a = DatagramEnd::new(&a);
    let owner = DatagramEnd::new(&other);
    let srq = SrqConfig {
        pd: owner.pd,
        max_wr: 4,
        max_sge: 1,
        limit: 0,
        cookie: 0,
        events: Arc::new(Events::default()),
    };
    let srq = other.create_srq(srq).unwrap();
    let b = DatagramEnd::with(&other, |config| config.srq = Some(Arc::clone(&srq)));
    assert_ne!(b.pd, owner.pd);
    let receive = |wr_id, sge| {
        let sges = [sge];
        let wr = RecvWr { wr_id, sges: &sges };
        other.post_srq_recv(&srq, &wr).unwrap();
    };
    receive(1, owner.sge(0, 100));
    a.send(1, &b, Payload::Inline(&[b"x"])).unwrap();
    a.expect(1, Status::Success);
    b.expect(1, Status::Success);
    assert_eq!(owner.memory[GRH], b'x');
    receive(2, b.sge(0, 100));
    a.send(2, &b, Payload::Inline(&[b"x"])).unwrap();
    a.expect(2, Status::Success);
    b.expect(2, Status::LocalProtectionError);
}

#[test]
fn message_longer_than_the_receive_is_dropped_and_the_receive_takes_the_next_that_fits() {
    let (a, b) = two();
    let before = b.memory.clone();
    // Room for a message of 3 octets, in two elements.
    b.receive(1, &[b.sge(0, GRH), b.sge(100, 3)]);
    for (id, message) in [(1, &b"four"[..]), (2, &[7; 64])] {
        a.send(id, &b, Payload::Inline(&[message])).unwrap();
        a.expect(id, Status::Success);
    }
    a.send(3, &b, Payload::Sges(&[a.sge(0, MTU)])).unwrap();
    a.expect(3, Status::Success);
    b.has_handled_all_of(&a);
    assert!(b.poll().is_empty());
    assert_eq!(b.memory, before);
    a.send(4, &b, Payload::Inline(&[b"fit"])).unwrap();
    a.expect(4, Status::Success);
    let received = b.expect(1, Status::Success);
    assert_eq!(received.completion.byte_len as usize, GRH + 3);
    assert_eq!(&b.memory[100..103], b"fit");
    assert_eq!(b.state(), QpState::Rts);
    assert!(b.events.0.lock().unwrap().is_empty());
}

#[test]
fn message_longer_than_a_shared_receive_is_dropped_and_takes_nothing_off_the_queue() {
    let instance = instance();
    let (a, host) = (
        DatagramEnd::new(&engine(&instance, 1)),
        engine(&instance, 2),
    );
    let (b, srq) = sharing(&host, 1);
    let wr = RecvWr {
        wr_id: 1,
        sges: &[b.sge(0, GRH + 3)],
    };
    host.post_srq_recv(&srq, &wr).unwrap();
    for id in 1..4 {
        a.send(id, &b, Payload::Inline(&[b"four"])).unwrap();
        a.expect(id, Status::Success);
    }
    b.has_handled_all_of(&a);
    assert!(b.poll().is_empty());
    // The limit event comes when the queue becomes empty: not yet.
    assert!(b.events.0.lock().unwrap().is_empty());
    a.send(4, &b, Payload::Inline(&[b"fit"])).unwrap();
    a.expect(4, Status::Success);
    b.expect(1, Status::Success);
    assert_eq!(&b.memory[GRH..GRH + 3], b"fit");
    assert_eq!(b.state(), QpState::Rts);
    let events: Vec<_> = b.events.0.lock().unwrap().iter().map(|e| e.kind).collect();
    assert_eq!(events, [AsyncKind::SrqLimitReached]);
}

#[test]
fn shared_receive_into_foreign_memory_fails_the_receiver() {
    let instance = instance();
    let (a, host) = (
        DatagramEnd::new(&engine(&instance, 1)),
        engine(&instance, 2),
    );
    let (b, srq) = sharing(&host, 0);
    let foreign = Sge {
        lkey: b.key ^ 1,
        ..b.sge(0, 100)
    };
    let wr = RecvWr {
        wr_id: 1,
        sges: &[foreign],
    };
    host.post_srq_recv(&srq, &wr).unwrap();
    a.send(1, &b, Payload::Inline(&[b"x"])).unwrap();
    a.expect(1, Status::Success);
    b.expect(1, Status::LocalProtectionError);
    assert_eq!(b.state(), QpState::Error);
}

#[test]
fn queue_pair_in_error_flushes_and_after_reset_is_as_new() {
    let (a, b) = two();
    b.receive(1, &[b.sge(0, 100)]);
    b.go(QpState::Error);
    b.expect(1, Status::WorkRequestFlushed);
    b.receive(2, &[b.sge(0, 100)]);
    b.expect(2, Status::WorkRequestFlushed);
    b.go(QpState::Reset);
    let wr = RecvWr {
        wr_id: 3,
        sges: &[],
    };
    let refused = b.engine.post_datagram_recv(&b.qp, &wr);
    assert_eq!(refused, Err(PostError::InvalidState));
    b.go(QpState::Init);
    let refused = b.send(3, &a, Payload::Inline(&[b"x"]));
    assert_eq!(refused, Err(PostError::InvalidState));
    b.go(QpState::Rtr);
    b.go(QpState::Rts);
    a.receive(4, &[a.sge(0, 100)]);
    b.send(4, &a, Payload::Inline(&[b"x"])).unwrap();
    b.expect(4, Status::Success);
    a.expect(4, Status::Success);
}

#[test]
fn drained_send_queue_keeps_requests_until_it_goes_on() {
    let (a, b) = two();
    b.receive(1, &[b.sge(0, 100)]);
    a.go(QpState::Sqd);
    for id in 0..8 {
        a.send(id, &b, Payload::Inline(&[b"x"])).unwrap();
    }
    let full = a.send(8, &b, Payload::Inline(&[b"x"]));
    assert_eq!(full, Err(PostError::QueueFull));
    assert!(a.poll().is_empty());
    a.go(QpState::Rts);
    let mut ids = Vec::new();
    until("all are sent", || {
        ids.extend(a.poll().iter().map(|wc| wc.completion.wr_id));
        ids.len() == 8
    });
    assert_eq!(ids, (0..8).collect::<Vec<_>>());
    b.expect(1, Status::Success);
}

#[test]
fn message_to_a_vacant_slot_is_lost_and_later_ones_arrive() {
    let (a, b) = two();
    // Slot 3 has no process: a datagram to it is lost, and later ones are sent.
    let to_vacant = DatagramWr {
        wr_id: 1,
        imm: None,
        flags: SendFlags {
            signaled: true,
            ..SendFlags::default()
        },
        payload: Payload::Inline(&[b"x"]),
        handle: &a.handle(),
        remote_qpn: 3 << 16 | 1,
        remote_qkey: QKEY,
    };
    a.engine.post_datagram(&a.qp, &to_vacant).unwrap();
    a.expect(1, Status::Success);
    b.receive(1, &[b.sge(0, 100)]);
    a.send(2, &b, Payload::Inline(&[b"x"])).unwrap();
    a.expect(2, Status::Success);
    b.expect(1, Status::Success);
}

#[test]
fn address_handles_name_gids_that_exist() {
    let a = DatagramEnd::new(&engine(&instance(), 1));
    let refused = a.engine.create_ah(a.pd, 1, GID, 0);
    assert_eq!(refused.unwrap_err(), EngineError::Invalid);
    let elsewhere = Gid([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let refused = a.engine.create_ah(a.pd, 0, elsewhere, 0);
    assert_eq!(refused.unwrap_err(), EngineError::NetUnreachable);
    let handle = a.handle();
    assert_eq!(a.engine.dealloc_pd(a.pd), Err(EngineError::Busy));
    a.engine.destroy_ah(&handle).unwrap();
    // Another domain's handle is no way out of this one.
    let foreign = a.engine.alloc_pd().unwrap();
    let handle = a.engine.create_ah(foreign, 0, GID, 0).unwrap();
    let wr = DatagramWr {
        wr_id: 1,
        imm: None,
        flags: SendFlags::default(),
        payload: Payload::Inline(&[b"x"]),
        handle: &handle,
        remote_qpn: a.number(),
        remote_qkey: QKEY,
    };
    a.engine.post_datagram(&a.qp, &wr).unwrap();
    a.expect(1, Status::LocalQpOperationError);
}

#[test]
fn destroyed_queue_pair_is_gone_with_its_completions() {
    let (a, b) = two();
    a.send(1, &b, Payload::Inline(&[b"x"])).unwrap();
    a.engine.destroy_datagram_qp(&a.qp).unwrap();
    assert!(a.poll().is_empty());
    let again = a.engine.destroy_datagram_qp(&a.qp);
    assert_eq!(again, Err(EngineError::Invalid));
    let gone = a.send(2, &b, Payload::Inline(&[b"x"]));
    assert_eq!(gone, Err(PostError::InvalidState));
    a.engine.destroy_cq(&a.cq).unwrap();
}
