use super::*;
use std::net::Ipv4Addr;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 8, 0, 1));
const ACTIVE_QPN: RawQpn = RawQpn::new(0x01_0001).unwrap();
const SECOND_QPN: RawQpn = RawQpn::new(0x01_0002).unwrap();
const PASSIVE_QPN: RawQpn = RawQpn::new(0x02_0001).unwrap();
const ACCEPTED_IRD: u8 = 3;
const ACCEPTED_ORD: u8 = 5;
const LISTENING_PID: u32 = 77;
const LISTENER: ModuleId = ModuleId(1);
const ACTIVE: ModuleId = ModuleId(2);
const SECOND: ModuleId = ModuleId(3);

struct Bed {
    cm: KernelCm,
    shared: Shared,
    now: Time,
    told: Vec<CmMessage>,
    targets: Vec<QpTarget>,
    ended: Vec<RawQpn>,
    /// The queue pair of a process that is about to end.
    dying: Option<RawQpn>,
}

impl Bed {
    fn new() -> Self {
        Self {
            cm: KernelCm::new(7, 5),
            shared: Shared::new().unwrap(),
            now: Time::from_ns(1),
            told: Vec::new(),
            targets: Vec::new(),
            ended: Vec::new(),
            dying: None,
        }
    }

    /// Does what is to be done on one host: datagrams come back, the rest is kept.
    fn turn(&mut self) {
        while let Some(output) = self.cm.next_output(self.now) {
            match output {
                Output::Kernel(message) => self.told.push(*message),
                Output::SetQp(_, target) => self.targets.push(target),
                Output::Requested(pid, _) => assert_eq!(pid, LISTENING_PID),
                Output::EndQp(qpn) => self.ended.push(qpn),
                Output::Send(to, datagram) => {
                    assert_eq!((to.ip, to.slot), (HOST, SlotId::DAEMON));
                    self.cm.handle_datagram(self.now, HOST, &datagram);
                }
            }
        }
    }

    /// Lets time pass, and fires every timer when it is due.
    fn pass(&mut self, span: Duration) {
        let end = self.now.plus(span);
        while let Some(deadline) = self.cm.next_deadline().filter(|&d| d <= end) {
            self.now = deadline;
            let dying = self.dying;
            self.cm.handle_timeout(deadline, |qpn| dying == Some(qpn));
            self.turn();
        }
        self.now = end;
    }

    fn ask(&mut self, message: CmMessage) {
        self.cm.take(self.now, &message, &self.shared);
        self.turn();
    }

    fn listen(&mut self) {
        let mut listen = message(cm_kind::LISTEN, LISTENER);
        (listen.local, listen.local_port) = octets(SocketAddr::new(HOST, 7174));
        listen.pid = LISTENING_PID;
        self.ask(listen);
        assert_eq!(self.last().status, 0);
    }

    fn connect(&mut self) {
        self.connect_as(ACTIVE, ACTIVE_QPN);
    }

    fn connect_as(&mut self, id: ModuleId, qpn: RawQpn) {
        let mut connect = message(cm_kind::CONNECT, id);
        connect.qpn = qpn.to_u32();
        (connect.local, connect.local_port) = octets(SocketAddr::new(HOST, 50_000));
        (connect.remote, connect.remote_port) = octets(SocketAddr::new(HOST, 7174));
        connect.private_data[..2].copy_from_slice(b"hi");
        connect.private_len = 2;
        self.ask(connect);
    }

    fn accept(&mut self) -> ModuleId {
        let request = *self.last();
        assert_eq!(
            (request.kind, request.listener),
            (cm_kind::REQUEST, LISTENER.0)
        );
        let id = ModuleId(request.id);
        let mut accept = message(cm_kind::ACCEPT, id);
        accept.qpn = PASSIVE_QPN.to_u32();
        (accept.ird, accept.ord) = (ACCEPTED_IRD, ACCEPTED_ORD);
        self.ask(accept);
        id
    }

    fn set_qp(&mut self, qpn: RawQpn, remote_qpn: RawQpn, succeeded: bool) {
        let of_qp = self.targets.iter().position(|t| t.qpn == qpn.to_u32());
        let target = self.targets.remove(of_qp.unwrap());
        assert_eq!(target.remote_qpn, remote_qpn.to_u32());
        self.cm.qp_is_set(self.now, qpn, succeeded);
        self.turn();
    }

    fn last(&self) -> &CmMessage {
        self.told.last().unwrap()
    }

    fn kinds_of(&self, id: ModuleId) -> Vec<u32> {
        let of_id = self.told.iter().filter(|message| message.id == id.0);
        of_id.map(|message| message.kind).collect()
    }
}

#[test]
fn connect_to_a_listener_sets_both_queue_pairs_before_either_end_hears_of_it() {
    let mut bed = Bed::new();
    bed.listen();
    bed.connect();
    assert_eq!(bed.last().private_data[..3], *b"hi\0");
    let request = bed.accept();
    assert!(bed.kinds_of(ACTIVE).is_empty());
    bed.set_qp(PASSIVE_QPN, ACTIVE_QPN, true);
    assert!(bed.kinds_of(ACTIVE).is_empty());
    bed.set_qp(ACTIVE_QPN, PASSIVE_QPN, true);
    assert_eq!(bed.kinds_of(ACTIVE), [cm_kind::REPLY]);
    assert_eq!(
        bed.kinds_of(request),
        [cm_kind::REQUEST, cm_kind::ESTABLISHED]
    );
    bed.ask(message(cm_kind::END, ACTIVE));
    assert_eq!(bed.kinds_of(ACTIVE), [cm_kind::REPLY, cm_kind::CLOSED]);
    assert_eq!(bed.last().kind, cm_kind::CLOSED);
    assert_eq!(bed.kinds_of(request)[2..], [cm_kind::CLOSED]);
    bed.ended.sort_unstable();
    let mut both = [ACTIVE_QPN, PASSIVE_QPN];
    both.sort_unstable();
    assert_eq!(bed.ended, both);
}

#[test]
fn both_queue_pairs_are_set_at_the_same_time_in_any_order() {
    let mut bed = Bed::new();
    bed.listen();
    bed.connect();
    let request = bed.accept();
    let [accepting, connecting] = bed.targets[..] else {
        panic!("not both: {:?}", bed.targets);
    };
    let mirrored = QpTarget {
        qpn: accepting.remote_qpn,
        remote_ip: accepting.local_ip,
        local_ip: accepting.remote_ip,
        remote_qpn: accepting.qpn,
        remote_psn: accepting.local_psn,
        local_psn: accepting.remote_psn,
        max_rd_atomic: ACCEPTED_IRD,
        max_dest_rd_atomic: ACCEPTED_ORD,
        ..accepting
    };
    assert_eq!(connecting, mirrored);
    bed.set_qp(ACTIVE_QPN, PASSIVE_QPN, true);
    assert!(bed.kinds_of(ACTIVE).is_empty());
    assert_eq!(bed.kinds_of(request), [cm_kind::REQUEST]);
    bed.set_qp(PASSIVE_QPN, ACTIVE_QPN, true);
    assert_eq!(bed.kinds_of(ACTIVE), [cm_kind::REPLY]);
    let [.., established] = bed.kinds_of(request)[..] else {
        panic!("no message");
    };
    assert_eq!(established, cm_kind::ESTABLISHED);
    assert!(bed.targets.is_empty() && bed.ended.is_empty());
}

#[test]
fn queue_pair_that_was_set_for_a_connection_that_failed_is_ended() {
    let mut bed = Bed::new();
    bed.listen();
    bed.connect();
    let request = bed.accept();
    bed.set_qp(ACTIVE_QPN, PASSIVE_QPN, true);
    bed.set_qp(PASSIVE_QPN, ACTIVE_QPN, false);
    assert_eq!(bed.kinds_of(request)[1..], [cm_kind::CLOSED]);
    assert_eq!(bed.kinds_of(ACTIVE), [cm_kind::REPLY]);
    assert_ne!(bed.last().status, 0);
    assert_eq!(bed.ended, [PASSIVE_QPN, ACTIVE_QPN]);
}

#[test]
fn askers_of_a_process_are_those_whose_requests_it_has_not_accepted() {
    let mut bed = Bed::new();
    bed.listen();
    assert_eq!(bed.cm.askers(LISTENING_PID), []);
    bed.connect();
    let slot = SlotId::new(1).unwrap();
    assert_eq!(bed.cm.askers(LISTENING_PID), [(HOST, slot)]);
    assert_eq!(bed.cm.askers(LISTENING_PID + 1), []);
    bed.accept();
    assert_eq!(bed.cm.askers(LISTENING_PID), []);
}

/// The passive end's queue pair is not set: both ends hear of it.
fn queue_pair_is_not_set(what_happens: impl FnOnce(&mut Bed)) {
    let mut bed = Bed::new();
    bed.listen();
    bed.connect();
    let request = bed.accept();
    what_happens(&mut bed);
    assert_eq!(bed.kinds_of(request)[1..], [cm_kind::CLOSED]);
    assert_eq!(bed.kinds_of(ACTIVE), [cm_kind::REPLY]);
    assert_ne!(bed.last().status, 0);
}

#[test]
fn queue_pair_that_cannot_be_set_ends_both_ends() {
    queue_pair_is_not_set(|bed| bed.set_qp(PASSIVE_QPN, ACTIVE_QPN, false));
}

#[test]
fn process_that_does_not_set_its_queue_pair_at_all_ends_both_ends() {
    queue_pair_is_not_set(|bed| bed.pass(QP_PATIENCE));
}

#[test]
fn process_that_dies_before_it_has_set_its_queue_pair_is_not_waited_for() {
    queue_pair_is_not_set(|bed| {
        bed.dying = Some(PASSIVE_QPN);
        bed.pass(QP_LOOK);
    });
}

#[test]
fn stopped_processes_have_time_to_set_their_queue_pairs() {
    let mut bed = Bed::new();
    bed.listen();
    bed.connect();
    bed.accept();
    for (qpn, remote_qpn) in [(PASSIVE_QPN, ACTIVE_QPN), (ACTIVE_QPN, PASSIVE_QPN)] {
        bed.pass(QP_PATIENCE / 2);
        bed.set_qp(qpn, remote_qpn, true);
    }
    assert_eq!(bed.kinds_of(ACTIVE), [cm_kind::REPLY]);
    assert_eq!(bed.last().status, 0);
}

#[test]
fn listen_on_the_port_of_a_process_is_refused_and_end_gives_the_port_back() {
    let mut bed = Bed::new();
    let port = CmPort {
        space: urdma_ipc::PortTable::Tcp,
        addr: HOST,
        port: 7174,
        sharing: PortSharing::default(),
    };
    let of_process = BindingId {
        slot: SlotId::new(3).unwrap(),
        number: 1,
    };
    bed.listen();
    let taken = bed
        .shared
        .change_listeners()
        .bind(of_process, port, BY_KERNEL);
    assert!(taken.is_err());
    bed.ask(message(cm_kind::END, LISTENER));
    let bound = bed
        .shared
        .change_listeners()
        .bind(of_process, port, BY_KERNEL);
    bound.unwrap();
    let mut listen = message(cm_kind::LISTEN, LISTENER);
    (listen.local, listen.local_port) = octets(SocketAddr::new(HOST, 7174));
    bed.ask(listen);
    assert_eq!(bed.last().status, -libc::EADDRINUSE);
}

#[test]
fn reject_carries_private_data_to_the_active_end() {
    let mut bed = Bed::new();
    bed.listen();
    bed.connect();
    let mut reject = message(cm_kind::REJECT, ModuleId(bed.last().id));
    reject.private_data[..2].copy_from_slice(b"no");
    reject.private_len = 2;
    bed.ask(reject);
    let reply = bed.last();
    assert_eq!((reply.kind, reply.id), (cm_kind::REPLY, ACTIVE.0));
    assert_eq!(reply.status, -libc::ECONNREFUSED);
    assert_eq!(reply.private_data[..3], *b"no\0");
}

/// The kernel had the request when its listener was closed, and then another listener comes: the
/// application on the other end, which has a connection to the first, must not hear a refusal
/// (perftest connects twice).
fn second_request_after_the_listener(then: impl FnOnce(&mut Bed, CmMessage)) {
    let mut bed = Bed::new();
    bed.listen();
    bed.connect();
    bed.accept();
    bed.set_qp(PASSIVE_QPN, ACTIVE_QPN, true);
    bed.set_qp(ACTIVE_QPN, PASSIVE_QPN, true);
    bed.connect_as(SECOND, SECOND_QPN);
    let request = *bed.last();
    assert_eq!(request.kind, cm_kind::REQUEST);
    bed.ask(message(cm_kind::END, LISTENER));
    then(&mut bed, request);
    assert!(bed.kinds_of(SECOND).is_empty());

    bed.listen();
    bed.pass(Duration::from_secs(1));
    let again = *bed.last();
    assert_eq!((again.kind, again.listener), (cm_kind::REQUEST, LISTENER.0));
    assert_ne!(again.id, request.id);
    bed.accept();
    bed.set_qp(PASSIVE_QPN, SECOND_QPN, true);
    bed.set_qp(SECOND_QPN, PASSIVE_QPN, true);
    assert_eq!(bed.kinds_of(SECOND), [cm_kind::REPLY]);
    assert_eq!(bed.last().status, 0);
}

#[test]
fn request_that_the_kernel_refuses_by_itself_finds_the_next_listener() {
    second_request_after_the_listener(|bed, request| {
        let mut reject = message(cm_kind::REJECT, ModuleId(request.id));
        reject.status = -libc::ECONNABORTED;
        bed.ask(reject);
    });
}

#[test]
fn request_that_the_module_does_not_take_finds_the_next_listener() {
    second_request_after_the_listener(|bed, request| {
        bed.cm.not_taken(bed.now, &request, libc::ENOENT);
        bed.turn();
    });
}

#[test]
fn request_that_the_kernel_drops_with_its_listener_finds_the_next_one() {
    second_request_after_the_listener(|bed, _| bed.pass(DECISION_PATIENCE));
}

#[test]
fn request_for_which_a_listener_has_no_room_is_brought_again() {
    let mut bed = Bed::new();
    bed.listen();
    bed.connect();
    let request = *bed.last();
    bed.cm.not_taken(bed.now, &request, libc::ENOMEM);
    bed.pass(Duration::from_secs(1));
    assert!(bed.kinds_of(ACTIVE).is_empty());
    assert_eq!(bed.last().kind, cm_kind::REQUEST);
    assert_ne!(bed.last().id, request.id);
}
