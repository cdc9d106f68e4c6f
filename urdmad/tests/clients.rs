//! Clients that ask too much of urdmad.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;

use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::socket::{sendmsg, ControlMessage, MsgFlags};
use nix::unistd::ftruncate;

use support::{eventually, expect_idle, Daemon, Process, Scratch, LIMIT};
use urdma_ipc::message::{FromClient, FromDaemon, Request};
use urdma_ipc::packet::{PacketSocket, PACKET_OCTETS_MAX};
use urdma_ipc::status::{ConnectionReport, REPORTED_CONNECTIONS_MAX};
use urdma_ipc::{
    ControlClient, ControlError, Event, ProcessCounter, ProcessReport, PROTOCOL_VERSION,
};

/// Users that no machine has.
const MEMBER: u32 = 64_001;
const OTHER_MEMBER: u32 = 64_002;
const THIRD_MEMBER: u32 = 64_003;

/// A user whose descriptors on their way are those of one test alone, the `number`-th that asks.
fn user_of_test(number: u32) -> u32 {
    const FIRST: u32 = 100_000;
    FIRST + 2 * std::process::id() + number
}

/// Does something in a thread that is another user's.
fn as_user<T: Send>(uid: u32, action: impl FnOnce() -> T + Send) -> T {
    in_thread_of((-1, uid), action)
}

/// Does something in a thread of the real and effective users `users`.
fn in_thread_of<T: Send>(
    (real, effective): (libc::c_long, u32),
    action: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(move || {
            // SAFETY: the call takes three integers. Made past the C library it changes this thread
            // only.
            let outcome = unsafe { libc::syscall(libc::SYS_setresuid, real, effective, -1) };
            assert_eq!(outcome, 0);
            action()
        });
        acting.join().unwrap()
    })
}

/// Has as many conversations as `uid` gets, up to `most`; why there are not more.
fn hold(daemon: &Daemon, uid: u32, most: usize) -> (Vec<ControlClient>, String) {
    as_user(uid, || {
        let mut held = Vec::new();
        while held.len() < most {
            match ControlClient::connect(&daemon.run_dir, "test") {
                Ok(client) => held.push(client),
                Err(error) => return (held, error.to_string()),
            }
        }
        (held, String::new())
    })
}

// One member had all places, and root was told that urdmad had ended.
#[test]
fn members_who_hold_conversations_leave_some_to_others_and_to_root() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    admit_everybody(&scratch, &daemon);
    let (of_member, why) = hold(&daemon, MEMBER, 1000);
    assert_eq!(of_member.len(), 256);
    assert!(why.contains("user 64001 has 256 conversations"), "{why}");
    let (of_other, why) = hold(&daemon, OTHER_MEMBER, 1000);
    assert_eq!(of_other.len(), 128);
    assert!(why.contains("user 64002 has 128 conversations"), "{why}");
    let (of_third, why) = hold(&daemon, THIRD_MEMBER, 1000);
    assert_eq!(of_third.len(), 64, "{why}");
    let (of_root, why) = hold(&daemon, 0, 16);
    assert_eq!(of_root.len(), 16, "{why}");
    assert!(of_root[0].status().is_ok());
    drop((of_member, of_root));
    eventually("a place is free again", || {
        hold(&daemon, MEMBER, 1).0.len() == 1
    });
    daemon.stop();
}

/// Attaches as often as `uid` may; why it may not more often.
fn attach_all(daemon: &Daemon, uid: u32) -> (Vec<ControlClient>, String) {
    as_user(uid, || {
        let mut attached = Vec::new();
        loop {
            let client = ControlClient::connect(&daemon.run_dir, "test").unwrap();
            match client.attach(false) {
                Ok(_) => attached.push(client),
                Err(error) => return (attached, error.to_string()),
            }
        }
    })
}

fn admit_everybody(scratch: &Scratch, daemon: &Daemon) {
    let allow = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    allow(scratch.path(), 0o755);
    allow(daemon.run_dir.path(), 0o755);
    allow(&daemon.run_dir.control_socket(), 0o666);
}

#[test]
fn member_of_a_shared_instance_leaves_slots_to_others_and_to_root() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "group = \"daemon\"\nslots = 16");
    admit_everybody(&scratch, &daemon);
    let (of_member, why) = attach_all(&daemon, MEMBER);
    assert_eq!(of_member.len(), 8);
    assert!(why.contains("user 64001 has 8 slots, and the 7"), "{why}");
    let (of_other, why) = attach_all(&daemon, OTHER_MEMBER);
    assert_eq!(of_other.len(), 4);
    assert!(why.contains("user 64002 has 4 slots, and the 3"), "{why}");
    let (of_third, why) = attach_all(&daemon, THIRD_MEMBER);
    assert_eq!(of_third.len(), 2, "{why}");
    let (of_root, why) = attach_all(&daemon, 0);
    assert_eq!(of_root.len(), 2);
    assert!(why.contains("all 16 slots of this instance"), "{why}");
    drop((of_member, of_other, of_third, of_root));
    daemon.stop();
}

#[test]
fn instance_of_everyone_admits_every_user_up_to_the_quotas() {
    let scratch = Scratch::new();
    let config = "access = \"everyone\"\nslots = 16";
    let daemon = Daemon::start(scratch.path(), "a", config);
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (of_one, why) = attach_all(&daemon, MEMBER);
    assert_eq!(of_one.len(), 8);
    assert!(why.contains("kept for other users"), "{why}");
    let (of_other, _) = attach_all(&daemon, OTHER_MEMBER);
    assert_eq!(of_other.len(), 4);
    let refused = as_user(MEMBER, || daemon.client().shutdown()).unwrap_err();
    assert!(matches!(refused, ControlError::Refused(_)), "{refused}");
    drop((of_one, of_other));
    daemon.stop();
}

fn open_files(daemon: &Daemon) -> usize {
    let fds = format!("/proc/{}/fd", daemon.child.id());
    fs::read_dir(fds).unwrap().count()
}

// Four of each packet's descriptors stayed in urdmad.
#[test]
fn client_that_sends_descriptors_with_a_request_is_disconnected_and_none_stays() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let file = fs::File::open("/dev/null").unwrap();
    let before = open_files(&daemon);
    for copies in [1, 4, 5, 250] {
        let socket = PacketSocket::connect(&daemon.run_dir.control_socket()).unwrap();
        let request = Request::Hello {
            version: PROTOCOL_VERSION,
            program: "test".to_owned(),
        };
        let fds = vec![file.as_fd(); copies];
        socket.send(&FromClient { id: 1, request }, &fds).unwrap();
        assert!(socket.recv(&mut [0; 4096]).unwrap().is_none(), "{copies}");
    }
    eventually("no descriptor is left", || open_files(&daemon) <= before);
    daemon.stop();
}

/// Lowers the limit of open files, which urdmad knew when it started.
fn limit_open_files(daemon: &Daemon, most: usize) {
    let pid = i32::try_from(daemon.child.id()).unwrap();
    let limit = libc::rlimit {
        rlim_cur: most as u64,
        rlim_max: most as u64,
    };
    let resource = libc::RLIMIT_NOFILE;
    // SAFETY: the limit is valid for the call, and nothing is asked for.
    let outcome = unsafe { libc::prlimit(pid, resource, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(outcome, 0);
}

/// A memfd that urdmad takes for a region.
fn region() -> OwnedFd {
    let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC;
    let fd = memfd_create(c"test", flags).unwrap();
    ftruncate(&fd, 4096).unwrap();
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_FUTURE_WRITE;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

/// What urdmad has not received of a client's requests, with what the kernel needs for it.
fn octets_not_taken(client: &ControlClient) -> libc::c_int {
    let mut octets = 0;
    // SAFETY: TIOCOUTQ fills an int.
    let rc = unsafe { libc::ioctl(client.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
    assert_eq!(rc, 0);
    octets
}

/// Offers channels from each of these processes to all slots up to `last`.
fn offer_to_all(clients: &[ControlClient], last: u8) {
    let region = region();
    for (own, client) in (1..).zip(clients) {
        for slot in (1..=last).filter(|slot| *slot != own) {
            let fd = region.as_fd();
            client.offer_channel(slot, None, &[fd, fd]).unwrap();
        }
    }
}

// Clients of other users were disconnected, since the kernel sent no more descriptors.
#[test]
fn processes_that_read_no_offers_do_not_keep_those_of_others_from_channels() {
    const PROCESSES: u8 = 24;
    let scratch = Scratch::new();
    // Twice as many descriptors are offered.
    let limits = (user_of_test(0), 600);
    let daemon = Daemon::start_limited(limits, scratch.path(), "a", "slots = 64");
    admit_everybody(&scratch, &daemon);
    let of_member = as_user(MEMBER, || {
        let attach = |_| {
            let client = ControlClient::connect(&daemon.run_dir, "test").unwrap();
            client.attach(false).unwrap();
            client
        };
        (0..PROCESSES).map(attach).collect::<Vec<_>>()
    });
    offer_to_all(&of_member, PROCESSES);
    let (a, b) = (daemon.attach(), daemon.attach());
    let fd = region();
    let to = b.attached.slot;
    a.client
        .offer_channel(to, None, &[fd.as_fd(), fd.as_fd()])
        .unwrap();
    let passed = a.next_event();
    assert!(
        matches!(passed, Some(Event::ChannelPassed { .. })),
        "{passed:?}"
    );
    let offered = b.next_event();
    assert!(
        matches!(offered, Some(Event::ChannelOffered { .. })),
        "{offered:?}"
    );
    // Before an event is read, which would make room for another offer.
    eventually("urdmad has taken all offers", || {
        of_member.iter().all(|client| octets_not_taken(client) == 0)
    });
    assert!(daemon.client().status().is_ok(), "it has handled them");
    // Some were passed, at most a twelfth of the limit: an answer that was read may count still.
    let offered = usize::from(PROCESSES) - 1;
    let refused = of_member.iter().map(|client| {
        let events = std::iter::from_fn(|| client.next_event(Some(LIMIT)).unwrap());
        let outcomes = events.filter_map(|(event, _)| match event {
            Event::ChannelRefused { .. } => Some(true),
            Event::ChannelPassed { .. } => Some(false),
            _ => None,
        });
        let outcomes: Vec<bool> = outcomes.take(offered).collect();
        assert_eq!(outcomes.len(), offered);
        outcomes
            .into_iter()
            .filter(|is_refused| *is_refused)
            .count()
    });
    let passed = offered * of_member.len() - refused.sum::<usize>();
    assert!((1..=600 / 12).contains(&passed), "{passed}");
    daemon.stop();
}

/// Sends `count` descriptors at least, which stay on their way until the sockets are closed.
fn send_and_leave_unread(count: u32) -> Vec<(UnixStream, UnixStream)> {
    const OF_MESSAGE: u32 = 253;
    let file = fs::File::open("/dev/null").unwrap();
    let fds = [file.as_raw_fd(); OF_MESSAGE as usize];
    let send = |_| {
        let pair = UnixStream::pair().unwrap();
        let rights = [ControlMessage::ScmRights(&fds)];
        let octets = [IoSlice::new(b"x")];
        let flags = MsgFlags::empty();
        sendmsg::<()>(pair.0.as_raw_fd(), &octets, &rights, flags, None).unwrap();
        pair
    };
    (0..count.div_ceil(OF_MESSAGE)).map(send).collect()
}

// It was disconnected: the kernel refused the descriptors of its answer.
#[test]
fn process_is_answered_when_fewer_descriptors_of_the_user_are_on_their_way() {
    const FILES: u32 = 300;
    let scratch = Scratch::new();
    let user = user_of_test(1);
    let daemon = Daemon::start_limited((user, FILES.into()), scratch.path(), "a", "");
    let sent = in_thread_of((user.into(), 0), || send_and_leave_unread(FILES + 1));
    let attaching = ControlClient::begin_attach(&daemon.run_dir, "test", false).unwrap();
    eventually("the slot is taken", || daemon.status().slots.len() == 1);
    drop(sent);
    attaching.finish().unwrap();
    expect_idle(daemon.child.id(), 5);
    daemon.stop();
}

// It was disconnected only when something else woke urdmad.
#[test]
fn client_that_reads_no_answers_is_disconnected_when_they_are_due_together() {
    // More than its socket and urdmad keep for it.
    const REQUESTS: u64 = 400;
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    // urdmad answers when the time for its report has passed.
    let silent = daemon.attach();
    let socket = PacketSocket::connect(&daemon.run_dir.control_socket()).unwrap();
    let hello = Request::Hello {
        version: PROTOCOL_VERSION,
        program: "test".to_owned(),
    };
    let requests = (0..REQUESTS).map(|_| Request::Status);
    for (id, request) in (0..).zip([hello].into_iter().chain(requests)) {
        // An error means that urdmad has ended the connection already.
        let _ = socket.send(&FromClient { id, request }, &[]);
    }
    let limit = PollTimeout::try_from(LIMIT).unwrap();
    let mut ended = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    assert_eq!(poll(&mut ended, limit), Ok(1));
    assert!(reports_wanted(&silent) <= 1);
    drop(silent);
    daemon.stop();
}

/// How often urdmad has asked a process for its report.
fn reports_wanted(process: &Process) -> usize {
    let brief = Some(Duration::from_millis(100));
    let events = std::iter::from_fn(|| process.client.next_event(brief).ok().flatten());
    let wanted = events.filter(|(event, _)| matches!(event, Event::ReportWanted));
    wanted.count()
}

// Each request asked every process, and those of one user kept the others from answers.
#[test]
fn statuses_are_asked_for_together() {
    const CLIENTS: usize = 20;
    const OF_CLIENT: u64 = 4;
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    admit_everybody(&scratch, &daemon);
    let silent = daemon.attach();
    let clients: Vec<_> = as_user(MEMBER, || {
        let connect = || PacketSocket::connect(&daemon.run_dir.control_socket()).unwrap();
        (0..CLIENTS).map(|_| connect()).collect()
    });
    let hello = Request::Hello {
        version: PROTOCOL_VERSION,
        program: "test".to_owned(),
    };
    for client in &clients {
        let requests = (0..OF_CLIENT).map(|_| Request::Status);
        for (id, request) in (0..).zip([hello.clone()].into_iter().chain(requests)) {
            client.send(&FromClient { id, request }, &[]).unwrap();
        }
    }
    assert!(daemon.client().status().is_ok());
    let mut room = vec![0; PACKET_OCTETS_MAX];
    for client in &clients {
        for id in 0..=OF_CLIENT {
            let packet = client.recv(&mut room).unwrap().unwrap();
            let answer = packet.parse::<FromDaemon>().unwrap();
            let FromDaemon::Answer { id: of, result } = answer else {
                panic!("{answer:?}");
            };
            assert!(of == id && result.is_ok(), "{result:?}");
        }
    }
    // Sixteen answers at once, and some that were not filled.
    let asked = reports_wanted(&silent);
    assert!((5..=12).contains(&asked), "{asked} times");
    drop(silent);
    daemon.stop();
}

// urdmad waited for its data thread once for each of them, and did not answer meanwhile: on a busy
// machine for ten seconds.
#[test]
fn processes_that_end_together_are_waited_for_together() {
    // Each wait takes up to two seconds, while LIMIT is that of the status.
    const PROCESSES: usize = 50;
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let attached: Vec<_> = (0..PROCESSES).map(|_| daemon.attach()).collect();
    let client = daemon.client();
    let stopped = StoppedThread::of(&daemon, "urdmad-data");
    drop(attached);
    let status = client.status();
    drop(stopped);
    assert!(status.unwrap().slots.is_empty());
    daemon.stop();
}

/// A thread of urdmad that the calling thread keeps stopped.
struct StoppedThread(libc::pid_t);

impl StoppedThread {
    fn of(daemon: &Daemon, name: &str) -> Self {
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.child.id())).unwrap();
        let mut tasks = tasks.map(|task| task.unwrap().path());
        let is_it = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap().trim() == name;
        let task = tasks.find(is_it).unwrap();
        let thread = task.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let stopped = Self(thread);
        stopped.ptrace(libc::PTRACE_SEIZE);
        stopped.ptrace(libc::PTRACE_INTERRUPT);
        // SAFETY: waitpid takes no memory of ours.
        let reported = unsafe { libc::waitpid(thread, ptr::null_mut(), libc::__WALL) };
        assert_eq!(reported, thread);
        stopped
    }

    fn ptrace(&self, request: libc::c_uint) {
        // SAFETY: these requests use neither address nor data.
        let outcome = unsafe { libc::ptrace(request, self.0, 0, 0) };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        self.ptrace(libc::PTRACE_DETACH);
    }
}

// urdmad took a processor and filled its log, and said nothing.
#[test]
fn clients_beyond_the_limit_of_open_files_are_refused_and_urdmad_sleeps() {
    const CLIENTS: usize = 100;
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    limit_open_files(&daemon, open_files(&daemon) + CLIENTS / 2);
    let connect = || ControlClient::connect(&daemon.run_dir, "test");
    let mut held = Vec::new();
    for _ in 0..CLIENTS {
        match connect() {
            Ok(client) => held.push(client),
            Err(error) => {
                let refused = matches!(error, ControlError::Refused(_));
                assert!(refused && error.to_string().contains("files"), "{error}");
            }
        }
    }
    assert!((1..CLIENTS).contains(&held.len()));
    expect_idle(daemon.child.id(), 5);
    assert!(daemon.log().len() < 20_000, "{}", daemon.log());
    assert!(
        held[0].status().is_ok(),
        "those that were accepted are served"
    );
    drop(held);
    eventually("a place is free again", || connect().is_ok());
    daemon.stop();
}

// The right-to-left override reversed what followed it, and U+009B begins a command of a terminal.
#[test]
fn names_that_a_process_chooses_are_shown_without_what_cannot_be_seen() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let unseen = [
        '\u{202e}', '\u{2066}', '\u{200b}', '\u{2028}', '\u{9b}', '\n',
    ];
    let unseen = String::from_iter(unseen);
    let name = format!("größe{unseen}x");
    let client = ControlClient::connect(&daemon.run_dir, &name).unwrap();
    client.attach(false).unwrap();
    assert_eq!(daemon.status().slots[0].program, "größe??????x");
}

// A report was as long as a packet can be, and so were the status and the metrics of each process.
#[test]
fn report_is_shown_with_the_counters_and_as_many_connections_as_processes_have() {
    const UNKNOWN: u64 = 100;
    const CONNECTIONS: usize = REPORTED_CONNECTIONS_MAX + 3;
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let client = ControlClient::connect(&daemon.run_dir, "test").unwrap();
    client.attach(false).unwrap();
    let known = ProcessCounter::ALL.iter().map(|counter| counter.name());
    let known: BTreeMap<String, u64> = known.map(|name| (name.to_owned(), 7)).collect();
    let unknown = (0..UNKNOWN).map(|number| (format!("datagrams_sent {number}"), 8));
    let report = ProcessReport {
        counters: known.clone().into_iter().chain(unknown).collect(),
        connections: vec![ConnectionReport::default(); CONNECTIONS],
        ..ProcessReport::default()
    };
    // urdmad waits a tenth of a second for the answer: a report may come too late.
    eventually("a report is shown", || {
        let status = std::thread::scope(|scope| {
            let asking = scope.spawn(|| daemon.status());
            let next = || client.next_event(Some(LIMIT)).unwrap().unwrap().0;
            while next() != Event::ReportWanted {}
            client.report(report.clone()).unwrap();
            asking.join().unwrap()
        });
        let Some(shown) = &status.slots[0].report else {
            return false;
        };
        assert_eq!(shown.counters, known);
        assert_eq!(shown.connections.len(), REPORTED_CONNECTIONS_MAX);
        let counted = status.counters.report_counters_unknown;
        assert!(
            counted >= UNKNOWN && counted.is_multiple_of(UNKNOWN),
            "{counted}"
        );
        true
    });
}
