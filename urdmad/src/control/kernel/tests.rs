//! An instance between a module and processes, all three played by the test.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use nix::sys::socket::{socketpair, AddressFamily, SockFlag, SockType};
use urdma_channel::{ChannelConfig, OwnRegion};
use urdma_ipc::message::FromDaemon;
use urdma_ipc::packet::{PacketListener, PacketSocket};
use urdma_ipc::RunDir;
use urdma_kernel::abi::cm_kind;
use urdma_kernel::Agent;
use urdma_types::Ip16;
use urdma_waiting::OwnPage;

use super::*;
use crate::config::{Access, Config};
use crate::daemon::{self, Options};
use crate::rundir::OwnedRunDir;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT: u16 = 7174;
const LISTENER: u32 = 1;
const ACTIVE: u32 = 2;
/// The process in slot 3.
const LISTENING_PID: u32 = 3;
/// Queue pairs of the processes in slots 1 and 2.
const ACTIVE_QPN: u32 = 0x01_0001;
const PASSIVE_QPN: u32 = 0x02_0001;

/// A process as urdmad sees it, and its end of the control socket.
struct Process {
    token: Token,
    socket: PacketSocket,
}

impl Process {
    fn hears(&self) -> Option<Event> {
        self.hears_with_descriptors().map(|(event, _)| event)
    }

    /// The same, with the number of descriptors that came with it.
    fn hears_with_descriptors(&self) -> Option<(Event, usize)> {
        let packet = self.socket.try_recv(8192).ok()??;
        match packet.parse().unwrap() {
            FromDaemon::Event(event) => Some((event, packet.fds.len())),
            FromDaemon::Answer { .. } | FromDaemon::Refused(_) => {
                panic!("it has asked for nothing")
            }
        }
    }

    /// The numbers of the queue pairs that it is asked to set, by one message.
    fn is_asked_to_set(&self) -> Vec<u32> {
        match self.hears() {
            None => Vec::new(),
            Some(Event::SetQps(targets)) => targets.iter().map(|target| target.qpn).collect(),
            Some(event) => panic!("{event:?}"),
        }
    }
}

struct Rig {
    control: Control,
    /// The module's end: it says and hears the same kind of messages.
    module: Agent,
    /// What it has heard and the test has not taken.
    heard: RefCell<VecDeque<CmMessage>>,
    run_dir: PathBuf,
    _owned: OwnedRunDir,
}

impl Rig {
    fn new(test: &str) -> Self {
        let run_dir = std::env::temp_dir().join(format!("urdmad-{}-{test}", std::process::id()));
        let options = Options {
            config: Config {
                slots: 3,
                kernel_device: Some("urdma0".to_owned()),
                ..Config::default()
            },
            run_dir: RunDir::at(&run_dir),
            foreground: true,
        };
        let owned = OwnedRunDir::acquire(&options.run_dir, Access::Owner).unwrap();
        let mut control = daemon::start(&options, &owned).unwrap();
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, module) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, flags).unwrap();
        control.kernel.serve_over(Agent::over(File::from(ours)));
        Self {
            control,
            module: Agent::over(File::from(module)),
            heard: RefCell::default(),
            run_dir,
            _owned: owned,
        }
    }

    /// A process attaches to `slot`.
    fn attach(&mut self, slot: u8) -> Process {
        let path = self.run_dir.join(format!("{slot}.sock"));
        let listener = PacketListener::bind(&path).unwrap();
        let socket = PacketSocket::connect(&path).unwrap();
        let accepted = listener.accept().unwrap();
        // Each process has a number of its own, that of its slot.
        let (uid, gid) = (accepted.peer().unwrap().uid(), 0);
        let pid = slot.into();
        let mut client = Client::new(accepted, libc::ucred { pid, uid, gid }.into());
        client.attach(SlotId::new(slot).unwrap());
        let token = Token::from(slot);
        self.control.clients.insert(token, client);
        Process { token, socket }
    }

    fn say(&mut self, message: &CmMessage) {
        self.say_all(&[*message]);
    }

    fn say_all(&mut self, messages: &[CmMessage]) {
        assert_eq!(self.module.send(messages).unwrap(), messages.len());
        self.control.take_from_kernel();
        self.control.serve_kernel();
    }

    /// What the module is told next.
    fn told(&self) -> Option<CmMessage> {
        let mut heard = self.heard.borrow_mut();
        heard.extend(self.module.receive().unwrap());
        heard.pop_front()
    }

    /// A process says what became of a queue pair.
    fn set(&mut self, token: Token, qpn: u32, succeeded: bool) {
        let outcome = QpOutcome { qpn, succeeded };
        self.control.qps_are_set(token, &[outcome]);
    }

    fn told_kinds(&self) -> Vec<(u32, u32)> {
        let told = std::iter::from_fn(|| self.told());
        told.map(|message| (message.kind, message.id)).collect()
    }

    fn listen(&mut self) {
        let mut listen = message(cm_kind::LISTEN, LISTENER);
        (listen.local, listen.local_port) = (Ip16::new(HOST).0, PORT);
        listen.pid = LISTENING_PID;
        self.say(&listen);
        assert_eq!(self.told().unwrap().status, 0);
    }

    fn connect(&mut self) {
        self.say(&connect(0));
    }

    /// Accepts the request that the module is told of next, and says its number.
    fn accept(&mut self) -> u32 {
        let request = self.told().unwrap();
        let mut accept = message(cm_kind::ACCEPT, request.id);
        accept.qpn = PASSIVE_QPN;
        self.say(&accept);
        request.id
    }

    fn service(&self) -> RequestTarget {
        let listeners = self.control.shared.listeners();
        listeners.find(PortTable::Tcp, HOST, PORT)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // What is left is in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.run_dir);
    }
}

fn message(kind: u32, id: u32) -> CmMessage {
    CmMessage {
        kind,
        id,
        ..CmMessage::default()
    }
}

/// The connect of one of the queue pairs of the process in slot 1.
fn connect(nth: u16) -> CmMessage {
    let mut connect = message(cm_kind::CONNECT, ACTIVE + u32::from(nth));
    connect.qpn = ACTIVE_QPN + u32::from(nth);
    (connect.local, connect.local_port) = (Ip16::new(HOST).0, 50_000 + nth);
    (connect.remote, connect.remote_port) = (Ip16::new(HOST).0, PORT);
    connect
}

/// Whether a queue pair has a process, and which one says what of it.
#[test]
fn only_the_owner_of_a_queue_pair_says_that_it_is_set() {
    let mut rig = Rig::new("owner");
    let (active, passive) = (rig.attach(1), rig.attach(2));
    rig.listen();
    rig.connect();
    let request = rig.accept();
    assert_eq!(passive.is_asked_to_set(), [PASSIVE_QPN]);
    assert_eq!(active.is_asked_to_set(), [ACTIVE_QPN]);

    rig.set(active.token, PASSIVE_QPN, true);
    rig.set(99, PASSIVE_QPN, false);
    rig.set(active.token, ACTIVE_QPN, true);
    rig.control.serve_kernel();
    assert_eq!(rig.told_kinds(), []);

    rig.set(passive.token, PASSIVE_QPN, true);
    rig.control.serve_kernel();
    assert!(active.is_asked_to_set().is_empty());
    let mut kinds = rig.told_kinds();
    kinds.sort_unstable();
    assert_eq!(
        kinds,
        [(cm_kind::REPLY, ACTIVE), (cm_kind::ESTABLISHED, request)]
    );

    rig.say(&message(cm_kind::END, ACTIVE));
    for (process, qpn) in [(active, ACTIVE_QPN), (passive, PASSIVE_QPN)] {
        assert_eq!(process.hears(), Some(Event::EndQp { qpn }));
    }
}

/// Descriptors of an end of a channel: a region and a page.
fn end_of_channel() -> Vec<OwnedFd> {
    let (_, region) = OwnRegion::create(&ChannelConfig::default(), 1).unwrap();
    let (_, page) = OwnPage::create().unwrap();
    vec![region, page]
}

#[test]
fn ends_that_were_deposited_are_given_to_the_processes_that_are_connected_first() {
    let mut rig = Rig::new("deposits");
    let (active, other, listening) = (rig.attach(1), rig.attach(2), rig.attach(3));
    for process in [&active, &other, &listening] {
        rig.control.take_deposit(process.token, end_of_channel());
    }
    rig.listen();
    rig.connect();
    for (process, slot) in [(&active, 3), (&listening, 1)] {
        let offered = Event::ChannelOffered {
            slot,
            generation: rig.control.directory.0.generation(slot),
            stranger: None,
            deposit_is_given: true,
        };
        assert_eq!(process.hears_with_descriptors(), Some((offered, 2)));
    }
    assert_eq!(other.hears(), None);
    // Once.
    rig.control.introduce_askers(LISTENING_PID);
    assert_eq!((active.hears(), listening.hears()), (None, None));
    // It made an offer before it heard of that, and must not make another one.
    for is_repetition in [false, true] {
        rig.control
            .offer_channel(active.token, (3, None), end_of_channel());
        let client = &rig.control.clients[&active.token];
        assert_eq!(client.is_broken, is_repetition);
        let is_passed = matches!(
            listening.hears(),
            Some(Event::ChannelOffered {
                deposit_is_given: false,
                ..
            })
        );
        assert_ne!(is_passed, is_repetition);
    }
}

#[test]
fn processes_of_which_one_has_deposited_nothing_are_asked_for_channels() {
    let mut rig = Rig::new("one-deposit");
    let (active, listening) = (rig.attach(1), rig.attach(3));
    rig.control.take_deposit(active.token, end_of_channel());
    rig.listen();
    rig.connect();
    for process in [&active, &listening] {
        assert!(matches!(process.hears(), Some(Event::ChannelWanted { .. })));
    }
}

#[test]
fn end_that_was_offered_otherwise_before_is_not_given() {
    let mut rig = Rig::new("offered");
    let (active, listening) = (rig.attach(1), rig.attach(3));
    for process in [&active, &listening] {
        rig.control.take_deposit(process.token, end_of_channel());
    }
    rig.control
        .offer_channel(listening.token, (1, Some(0)), end_of_channel());
    rig.listen();
    rig.connect();
    let heard: Vec<_> = std::iter::from_fn(|| active.hears()).collect();
    assert!(
        matches!(
            heard[..],
            [
                Event::ChannelOffered {
                    deposit_is_given: false,
                    ..
                },
                Event::ChannelWanted { .. }
            ]
        ),
        "{heard:?}"
    );
}

/// What both ends hear when a request and the listener's process have come, in this order or the
/// other.
fn is_introduced(test: &str, attaches_first: bool) {
    let mut rig = Rig::new(test);
    let (active, _other) = (rig.attach(1), rig.attach(2));
    let mut listening = attaches_first.then(|| rig.attach(3));
    rig.listen();
    rig.connect();
    if listening.is_none() {
        assert_eq!(active.hears(), None);
        listening = Some(rig.attach(3));
        rig.control.introduce_askers(LISTENING_PID);
    }
    let listening = listening.unwrap();
    for (process, slot) in [(&active, 3), (&listening, 1)] {
        let generation = rig.control.directory.0.generation(slot);
        let wanted = Event::ChannelWanted { slot, generation };
        assert_eq!(process.hears(), Some(wanted));
    }
    // Once.
    rig.control.introduce_askers(LISTENING_PID);
    assert_eq!((active.hears(), listening.hears()), (None, None));
    // The next process of the slot is another one.
    rig.control.forget_offers_to(SlotId::new(3).unwrap());
    rig.control.introduce_askers(LISTENING_PID);
    assert!(active.hears().is_some());
}

#[test]
fn process_with_a_slot_meets_the_asker_with_the_request() {
    is_introduced("meets", true);
}

#[test]
fn process_meets_the_askers_of_its_listeners_when_it_attaches() {
    is_introduced("attaches", false);
}

#[test]
fn queue_pair_of_no_process_ends_the_connection_at_once() {
    let mut rig = Rig::new("no-process");
    let active = rig.attach(1);
    rig.listen();
    rig.connect();
    let request = rig.accept();
    assert_eq!(
        rig.told_kinds(),
        [(cm_kind::CLOSED, request), (cm_kind::REPLY, ACTIVE)]
    );
    assert_eq!(active.is_asked_to_set(), [ACTIVE_QPN]);
    assert_eq!(active.hears(), Some(Event::EndQp { qpn: ACTIVE_QPN }));
}

#[test]
fn queue_pairs_that_are_due_at_once_are_set_by_one_message() {
    let mut rig = Rig::new("batch");
    let (active, passive) = (rig.attach(1), rig.attach(2));
    rig.listen();
    rig.say_all(&[0, 1].map(connect));
    let requests = [0, 1].map(|nth| {
        let request = rig.told().unwrap();
        let mut accept = message(cm_kind::ACCEPT, request.id);
        accept.qpn = PASSIVE_QPN + nth;
        accept
    });
    rig.say_all(&requests);
    assert_eq!(passive.is_asked_to_set(), [PASSIVE_QPN, PASSIVE_QPN + 1]);
    assert_eq!(active.is_asked_to_set(), [ACTIVE_QPN, ACTIVE_QPN + 1]);

    for (process, qpn) in [(&active, ACTIVE_QPN), (&passive, PASSIVE_QPN)] {
        let succeeded = true;
        let outcomes = [0, 1].map(|nth| QpOutcome {
            qpn: qpn + nth,
            succeeded,
        });
        rig.control.qps_are_set(process.token, &outcomes);
    }
    rig.control.serve_kernel();
    let mut kinds = rig.told_kinds();
    kinds.sort_unstable();
    let established = requests.map(|request| (cm_kind::ESTABLISHED, request.id));
    let replies = [0, 1].map(|nth| (cm_kind::REPLY, ACTIVE + nth));
    let mut expected = [replies, established].concat();
    expected.sort_unstable();
    assert_eq!(kinds, expected);
}

#[test]
fn process_that_is_gone_before_it_has_set_its_queue_pair_is_not_waited_for() {
    let mut rig = Rig::new("gone");
    let (_active, passive) = (rig.attach(1), rig.attach(2));
    rig.listen();
    rig.connect();
    let request = rig.accept();
    assert_eq!(rig.told_kinds(), []);
    rig.control.clients.remove(&passive.token);

    // As the control loop does.
    let limit = Instant::now() + Duration::from_secs(30);
    let mut kinds = Vec::new();
    while kinds.is_empty() {
        assert!(Instant::now() < limit);
        let deadline = rig.control.kernel_deadline().unwrap();
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        rig.control.serve_kernel();
        kinds = rig.told_kinds();
    }
    assert_eq!(
        kinds,
        [(cm_kind::CLOSED, request), (cm_kind::REPLY, ACTIVE)]
    );
}

#[test]
fn messages_that_make_no_sense_are_passed_over() {
    let mut rig = Rig::new("garbled");
    for kind in [0, 99, cm_kind::REQUEST, cm_kind::CLOSED, u32::MAX] {
        rig.say(&message(kind, LISTENER));
    }
    // Messages about unknown listeners and connections.
    for kind in [cm_kind::REJECT, cm_kind::END] {
        rig.say(&message(kind, ACTIVE));
    }
    assert_eq!(rig.told_kinds(), []);
    rig.say(&message(cm_kind::ACCEPT, ACTIVE));
    assert_eq!(rig.told_kinds(), [(cm_kind::CLOSED, ACTIVE)]);
    rig.listen();
}

#[test]
fn device_that_goes_away_takes_its_listeners_and_connections_along() {
    let mut rig = Rig::new("device");
    let (_active, passive) = (rig.attach(1), rig.attach(2));
    rig.listen();
    rig.connect();
    rig.accept();
    assert_eq!(rig.service(), RequestTarget::Listening(SlotId::DAEMON));

    // The module says nothing more, and takes nothing.
    rig.module = Agent::over(File::open("/dev/null").unwrap());
    rig.control.serve_kernel();
    rig.control.kernel_device_is_gone();
    assert_eq!(rig.service(), RequestTarget::Unbound);
    assert!(rig.control.kernel.next_try().is_some());

    // What processes still say of it does no harm.
    rig.set(passive.token, PASSIVE_QPN, true);
    rig.control.serve_kernel();
    assert_eq!(rig.service(), RequestTarget::Unbound);
}
