//! Initiators and targets of the dynamically connected transport.

use std::sync::Arc;

use urdma_engine::{
    Access, AddressHandle, CompletionOp, DcRole, Engine, EngineError, Gid, InProcess, Payload,
    PostError, Qp, QpModify, QpState, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Srq,
    SrqConfig, Status, WorkCompletion,
};

use crate::rig::{engine, instance, qp_config, until, End, GID};

const KEY: u64 = 0x0123_4567_89ab_cdef;
const OCTETS: usize = 20_000;

/// A change to a state, for the usual attributes and this timeout code.
fn step(state: QpState, timeout: u8) -> QpModify {
    QpModify {
        state: Some(state),
        access: Some(Access::all()),
        timeout: Some(timeout),
        retry_cnt: Some(3),
        rnr_retry: Some(7),
        min_rnr_timer: Some(1),
        ..QpModify::default()
    }
}

/// A process with memory; its own queue pair stays unused.
pub(crate) struct Process(pub(crate) End);

/// An initiator, whose completions are polled from the process' queue.
pub(crate) struct Initiator {
    pub(crate) process: Process,
    qp: Arc<Qp>,
    handle: Arc<AddressHandle>,
}

/// A target with a shared receive queue.
pub(crate) struct Target {
    pub(crate) process: Process,
    qp: Arc<Qp>,
    srq: Arc<Srq>,
    key: u64,
}

impl Initiator {
    /// In RTS, for targets at `address`.
    pub(crate) fn new(engine: Arc<Engine>, (gid_index, address): (u8, Gid), timeout: u8) -> Self {
        let process = Process(End::new(engine, OCTETS));
        let end = &process.0;
        let config = qp_config(end.pd, &end.cq, &end.events, false);
        let qp = end.engine.create_dc_qp(&config, DcRole::Initiator).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            end.engine.modify_dc_qp(&qp, &step(state, timeout)).unwrap();
        }
        let handle = end.engine.create_ah(end.pd, gid_index, address, 0).unwrap();
        Self {
            process,
            qp,
            handle,
        }
    }

    pub(crate) fn post(
        &self,
        wr_id: u64,
        target: &Target,
        op: SendOp,
        sges: &[Sge],
    ) -> Result<(), PostError> {
        let wr = SendWr {
            wr_id,
            op,
            imm: None,
            flags: SendFlags {
                signaled: true,
                ..SendFlags::default()
            },
            shared_queue: 0,
            payload: Payload::Sges(sges),
        };
        let to = (&*self.handle, target.qp.number().to_u32(), target.key);
        self.process.0.engine.post_dc_send(&self.qp, to, &wr)
    }

    fn state(&self) -> QpState {
        self.process.0.engine.query_dc_qp(&self.qp).0
    }
}

impl Target {
    /// In RTR.
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let process = Process(End::new(engine, OCTETS));
        let end = &process.0;
        let config = SrqConfig {
            pd: end.pd,
            max_wr: 64,
            max_sge: 1,
            limit: 0,
            cookie: 1,
            events: end.events.clone(),
        };
        let srq = end.engine.create_srq(config).unwrap();
        let mut config = qp_config(end.pd, &end.cq, &end.events, false);
        config.srq = Some(Arc::clone(&srq));
        let role = DcRole::Target { key: KEY };
        let qp = end.engine.create_dc_qp(&config, role).unwrap();
        for state in [QpState::Init, QpState::Rtr] {
            end.engine.modify_dc_qp(&qp, &step(state, 14)).unwrap();
        }
        Self {
            process,
            qp,
            srq,
            key: KEY,
        }
    }

    pub(crate) fn receive(&self, wr_id: u64, sges: &[Sge]) {
        let wr = RecvWr { wr_id, sges };
        let engine = &self.process.0.engine;
        engine.post_srq_recv(&self.srq, &wr).unwrap();
    }

    fn remote(&self, at: usize) -> RemoteAddr {
        self.process.0.remote(at)
    }
}

/// Polls until `process` has a completion of `wr_id` with `status`, while `turn` runs.
fn expect(
    process: &Process,
    (wr_id, status): (u64, Status),
    turn: &mut dyn FnMut(),
) -> WorkCompletion {
    let mut found = Vec::new();
    until("a completion", || {
        turn();
        let End { engine, cq, .. } = &process.0;
        engine.poll_cq(cq, 1, |wc| found.push(*wc)).unwrap();
        !found.is_empty()
    });
    let completion = &found[0].completion;
    assert_eq!((completion.wr_id, completion.status), (wr_id, status));
    found[0]
}

/// One initiator works with two targets in turn, with each operation.
pub(crate) fn works_with_both(a: &mut Initiator, targets: &[Target; 2], turn: &mut dyn FnMut()) {
    a.process.0.memory[..OCTETS / 2].fill(7);
    for round in 0..4 {
        let target = &targets[round % 2];
        let end = &target.process.0;
        let id = round as u64 * 10;
        target.receive(id, &[end.sge(0, 4_000)]);
        let write = SendOp::Write {
            remote: target.remote(4_000),
        };
        let read = SendOp::Read {
            remote: target.remote(4_000),
        };
        let add = SendOp::FetchAdd {
            remote: target.remote(16_000),
            add: 3,
        };
        let own = &a.process.0;
        a.post(id, target, SendOp::Send, &[own.sge(0, 4_000)])
            .unwrap();
        a.post(id + 1, target, write, &[own.sge(0, 9_000)]).unwrap();
        a.post(id + 2, target, read, &[own.sge(10_000, 9_000)])
            .unwrap();
        a.post(id + 3, target, add, &[own.sge(19_000, 8)]).unwrap();
        for wr_id in id..id + 4 {
            expect(&a.process, (wr_id, Status::Success), turn);
        }
        let received = expect(&target.process, (id, Status::Success), turn);
        assert_eq!(received.completion.op, CompletionOp::Recv);
        assert_eq!(received.completion.byte_len, 4_000);
        assert_eq!(received.qpn, target.qp.number());
        assert!((0..13_000).all(|at| end.octet(at) == 7), "round {round}");
        assert!((10_000..19_000).all(|at| own.octet(at) == 7));
        assert_eq!(own.octet(19_000), 3 * (round as u8 / 2));
        assert_eq!(end.octet(16_000), 3 * (round as u8 / 2) + 3);
    }
    assert_eq!(a.state(), QpState::Rts);
}

fn initiator_and_targets(timeout: u8) -> (Initiator, [Target; 2]) {
    let instance = instance();
    let initiator = Initiator::new(engine(&instance, 1), (0, GID), timeout);
    let targets = [2, 3].map(|slot| Target::new(engine(&instance, slot)));
    (initiator, targets)
}

#[test]
fn initiator_works_with_two_targets_of_its_host() {
    let (mut initiator, targets) = initiator_and_targets(14);
    works_with_both(&mut initiator, &targets, &mut || ());
}

#[test]
fn initiator_works_with_a_target_of_its_own_process() {
    let engine = engine(&instance(), 1);
    let targets = [(); 2].map(|()| Target::new(Arc::clone(&engine)));
    works_with_both(
        &mut Initiator::new(engine, (0, GID), 14),
        &targets,
        &mut || (),
    );
}

#[test]
fn target_serves_several_initiators_from_one_receive_queue() {
    let instance = instance();
    let target = Target::new(engine(&instance, 1));
    let initiators = [2, 3, 4, 5].map(|slot| Initiator::new(engine(&instance, slot), (0, GID), 14));
    let end = &target.process.0;
    for initiator in &initiators {
        let own = initiator.process.0.sge(0, 8);
        initiator.post(1, &target, SendOp::Send, &[own]).unwrap();
    }
    // The receive requests come late: the initiators try again.
    (0..4).for_each(|wr_id| target.receive(wr_id, &[end.sge(0, 8)]));
    for wr_id in 0..4 {
        expect(&target.process, (wr_id, Status::Success), &mut || ());
    }
    for initiator in &initiators {
        expect(&initiator.process, (1, Status::Success), &mut || ());
    }
}

#[test]
fn wrong_key_gets_no_answer_and_flushes_what_follows() {
    let (initiator, [mut wrong, other]) = initiator_and_targets(5);
    wrong.key = 1;
    for (wr_id, target) in [(1, &wrong), (2, &other)] {
        initiator.post(wr_id, target, SendOp::Send, &[]).unwrap();
    }
    let of = &initiator.process;
    expect(of, (1, Status::RetryExceeded), &mut || ());
    expect(of, (2, Status::WorkRequestFlushed), &mut || ());
    assert_eq!(initiator.state(), QpState::Error);
    initiator.post(3, &other, SendOp::Send, &[]).unwrap();
    expect(of, (3, Status::WorkRequestFlushed), &mut || ());
    // Anew.
    let engine = &of.0.engine;
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
        engine
            .modify_dc_qp(&initiator.qp, &step(state, 14))
            .unwrap();
    }
    other.receive(1, &[]);
    initiator.post(4, &other, SendOp::Send, &[]).unwrap();
    expect(of, (4, Status::Success), &mut || ());
}

#[test]
fn right_that_a_target_does_not_grant_fails_one_initiator_alone() {
    let (initiator, [target, _]) = initiator_and_targets(14);
    let change = QpModify {
        access: Some(Access::REMOTE_READ),
        ..QpModify::default()
    };
    let engine = &target.process.0.engine;
    engine.modify_dc_qp(&target.qp, &change).unwrap();
    let own = &initiator.process.0;
    let remote = target.remote(0);
    let (write, read) = (SendOp::Write { remote }, SendOp::Read { remote });
    let sges = [own.sge(0, 8)];
    let other = Initiator::new(Arc::clone(&own.engine), (0, GID), 14);
    other
        .post(1, &target, read, &[other.process.0.sge(0, 8)])
        .unwrap();
    expect(&other.process, (1, Status::Success), &mut || ());
    initiator.post(1, &target, write, &sges).unwrap();
    let of = &initiator.process;
    expect(of, (1, Status::RemoteAccessError), &mut || ());
    other
        .post(2, &target, read, &[other.process.0.sge(0, 8)])
        .unwrap();
    expect(&other.process, (2, Status::Success), &mut || ());
}

#[test]
fn target_that_has_ended_fails_the_request() {
    let (initiator, [target, _]) = initiator_and_targets(PATIENT);
    target.receive(1, &[]);
    initiator.post(1, &target, SendOp::Send, &[]).unwrap();
    let of = &initiator.process;
    expect(of, (1, Status::Success), &mut || ());
    let engine = &target.process.0.engine;
    engine.destroy_dc_qp(&target.qp).unwrap();
    assert_eq!(
        engine.destroy_dc_qp(&target.qp),
        Err(EngineError::Invalid),
        "it has ended"
    );
    initiator.post(2, &target, SendOp::Send, &[]).unwrap();
    expect(of, (2, Status::RetryExceeded), &mut || ());
}

/// A timeout code with which an initiator waits for longer than a test does: 69 s.
const PATIENT: u8 = 20;

/// Ends the process of a target, as the initiator learns it from urdmad.
fn end(instance: &InProcess, of: &Initiator, target: &Target) {
    let slot = target.qp.number().slot();
    let generation = instance.end(slot);
    of.process.0.engine.peer_slot_gone(slot, generation);
}

#[test]
fn end_of_the_targets_process_fails_the_request_that_it_has_at_once() {
    let instance = instance();
    let initiator = Initiator::new(engine(&instance, 1), (0, GID), PATIENT);
    let targets = [2, 3].map(|slot| Target::new(engine(&instance, slot)));
    let [target, other] = &targets;
    target.receive(1, &[]);
    let of = &initiator.process;
    for (wr_id, target) in [(1, target), (2, target), (3, target), (4, other)] {
        initiator.post(wr_id, target, SendOp::Send, &[]).unwrap();
    }
    expect(of, (1, Status::Success), &mut || ());
    // The second one waits for a receive request.
    end(&instance, &initiator, target);
    expect(of, (2, Status::RetryExceeded), &mut || ());
    for wr_id in [3, 4] {
        expect(of, (wr_id, Status::WorkRequestFlushed), &mut || ());
    }
    assert_eq!(initiator.state(), QpState::Error);
}

#[test]
fn request_to_a_process_that_has_ended_fails_at_once() {
    for is_known in [false, true] {
        let instance = instance();
        let initiator = Initiator::new(engine(&instance, 1), (0, GID), PATIENT);
        let target = Target::new(engine(&instance, 2));
        let of = &initiator.process;
        if is_known {
            target.receive(1, &[]);
            initiator.post(1, &target, SendOp::Send, &[]).unwrap();
            expect(of, (1, Status::Success), &mut || ());
        }
        end(&instance, &initiator, &target);
        assert_eq!(initiator.state(), QpState::Rts, "an end alone is no error");
        initiator.post(2, &target, SendOp::Send, &[]).unwrap();
        expect(of, (2, Status::RetryExceeded), &mut || ());
    }
}

// Its packets went to the process that had the slot before, until urdmad's report came.
#[test]
fn request_to_the_next_process_of_a_slot_does_not_wait_for_the_end_of_the_earlier_one() {
    let instance = instance();
    let initiator = Initiator::new(engine(&instance, 1), (0, GID), PATIENT);
    let of = &initiator.process;
    let earlier = Target::new(engine(&instance, 2));
    earlier.receive(1, &[]);
    initiator.post(1, &earlier, SendOp::Send, &[]).unwrap();
    expect(of, (1, Status::Success), &mut || ());
    let slot = earlier.qp.number().slot();
    let generation = instance.end(slot);
    let target = Target::new(engine(&instance, 2));
    target.receive(2, &[]);
    initiator.post(2, &target, SendOp::Send, &[]).unwrap();
    expect(of, (2, Status::Success), &mut || ());
    of.0.engine.peer_slot_gone(slot, generation);
    assert_eq!(initiator.state(), QpState::Rts);
}

#[test]
fn what_cannot_be_is_refused() {
    let (initiator, [target, _]) = initiator_and_targets(14);
    let end = &target.process.0;
    let role = DcRole::Target { key: KEY };
    let config = qp_config(end.pd, &end.cq, &end.events, false);
    let refused = end.engine.create_dc_qp(&config, role);
    assert_eq!(
        refused.unwrap_err(),
        EngineError::Invalid,
        "without a queue"
    );
    let to_rts = end.engine.modify_dc_qp(&target.qp, &step(QpState::Rts, 14));
    assert_eq!(to_rts, Err(EngineError::Invalid), "a target sends nothing");
    let elsewhere = initiator.process.0.engine.alloc_pd().unwrap();
    let engine = &initiator.process.0.engine;
    let stranger = Initiator {
        handle: engine.create_ah(elsewhere, 0, GID, 0).unwrap(),
        ..initiator
    };
    let posted = stranger.post(1, &target, SendOp::Send, &[]);
    assert_eq!(posted, Err(PostError::InvalidRequest), "another domain");
    let engine = &stranger.process.0.engine;
    let reset = step(QpState::Reset, 14);
    engine.modify_dc_qp(&stranger.qp, &reset).unwrap();
    let stranger = Initiator {
        handle: engine.create_ah(stranger.process.0.pd, 0, GID, 0).unwrap(),
        ..stranger
    };
    let posted = stranger.post(1, &target, SendOp::Send, &[]);
    assert_eq!(posted, Err(PostError::InvalidState));
}
