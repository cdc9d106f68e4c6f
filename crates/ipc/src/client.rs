//! The blocking client of urdmad, for providers and the command line.
//!
//! Threads share one [`ControlClient`]. A thread that waits for an answer or an event reads the
//! socket if no other thread does, and passes on the packets that others wait for. A program with
//! one thread needs no reader thread, and a thread in [`ControlClient::next_event`] receives the
//! answers to all calls.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::capture::{CaptureCounts, CaptureOptions};
use crate::error::{ControlError, Refusal, RefusalKind};
use crate::fault::{Direction, Impairment};
use crate::message::{
    Answer, Attached, Event, FromClient, FromDaemon, QpOutcome, Request, Resolution,
};
use crate::packet::{Packet, PacketSocket, PACKET_OCTETS_MAX};
use crate::paths::{RunDir, DEFAULT_INSTANCE};
use crate::port_table::{CmPort, PortSharing};
use crate::recordings::RecordingInfo;
use crate::status::{ProcessReport, Status};
use crate::trust::{Fault, Untrusted};
use crate::PROTOCOL_VERSION;

/// Time limit of an answer from urdmad.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);
/// The limit of a wait without one, after which the thread waits again.
const ENDLESS: Duration = Duration::from_secs(3600);
/// Capacity of the queue for [`ControlClient::next_event`]; when it is full, the oldest event is
/// dropped. Each process of an instance can cause a few events at a time.
const EVENTS_MAX: usize = 2048;

/// A control connection to urdmad. Dropping it closes the connection and releases the slot.
#[derive(Debug)]
pub struct ControlClient {
    socket: PacketSocket,
    instance: String,
    daemon_pid: u32,
    next_id: AtomicU64,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
}

#[derive(Debug)]
struct Inbox {
    /// None while a thread is in recvmsg; the others wait on the condition variable.
    reader: Option<Reader>,
    /// How many wait on the condition variable.
    waiting: u32,
    is_closed: bool,
    /// The reason for which urdmad has refused the connection.
    refused: Option<Refusal>,
    /// Answers by id: `None` until the answer has arrived. Only ids for which a thread waits have
    /// an entry.
    answers: HashMap<u64, Option<Reply>>,
    events: VecDeque<(Event, Vec<OwnedFd>)>,
}

impl Inbox {
    fn new() -> Self {
        Self {
            reader: Some(Reader {
                room: vec![0; PACKET_OCTETS_MAX],
                limit: Duration::ZERO,
            }),
            waiting: 0,
            is_closed: false,
            refused: None,
            answers: HashMap::new(),
            events: VecDeque::new(),
        }
    }
}

/// What a thread that reads the socket has for itself.
#[derive(Debug)]
struct Reader {
    /// Room for the longest packet. Only the pages that packets were written to take memory.
    room: Vec<u8>,
    /// The limit of waits that the socket has; zero for none.
    limit: Duration,
}

impl Reader {
    /// Reads a packet, and waits for it up to `left`, or less.
    fn receive(
        &mut self,
        socket: &PacketSocket,
        left: Option<Duration>,
    ) -> Result<Received<'_>, Errno> {
        let left = left.unwrap_or(ENDLESS);
        // A system call, so the limit is one for waits that are somewhat shorter or longer too: the
        // caller waits again.
        if self.limit > left || self.limit < left / 2 {
            self.limit = left / 4 * 3;
            socket.limit_waits(self.limit)?;
        }
        match socket.recv(&mut self.room) {
            Ok(packet) => Ok(packet.map_or(Received::Closed, Received::Packet)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Received::Nothing),
            Err(errno) => Err(errno),
        }
    }
}

/// An answer and its descriptors, or EMFILE if this process cannot open those.
type Reply = (Result<Answer, Refusal>, Result<Vec<OwnedFd>, Errno>);

/// The descriptors of the memory that urdmad shows to a process which has attached
/// (doc/spec/channel.md).
#[derive(Debug)]
pub struct HostMemory {
    /// The directory of the instance.
    pub directory: OwnedFd,
    /// The region that urdmad writes for this process.
    pub region: OwnedFd,
    /// urdmad's page.
    pub page: OwnedFd,
}

/// A connection on which Hello and Attach were sent and not yet answered.
#[derive(Debug)]
pub struct Attaching {
    client: ControlClient,
    hello: u64,
    /// A send error means that urdmad has closed the connection; its answer to Hello has the
    /// reason.
    attach: Result<u64, ControlError>,
}

impl Attaching {
    /// Waits for the answers; returns the connection, the slot and the memory to map.
    ///
    /// # Errors
    /// Those of [`ControlClient::connect`] and [`ControlClient::attach`].
    pub fn finish(self) -> Result<(ControlClient, Attached, HostMemory), ControlError> {
        let client = self.client.welcomed(self.hello)?;
        let (attached, memory) = client.attached(self.attach?)?;
        Ok((client, attached, memory))
    }
}

impl ControlClient {
    /// Connects to the urdmad of `run_dir` and sends Hello as `program`.
    ///
    /// # Errors
    /// No urdmad runs, no permission, another version, or a directory or urdmad of another user.
    pub fn connect(run_dir: &RunDir, program: &str) -> Result<Self, ControlError> {
        let (client, hello) = Self::greet(run_dir, program)?;
        client.welcomed(hello)
    }

    /// Connects to the urdmad of `run_dir`, sends Hello as `program` and requests a slot. Does not
    /// wait: urdmad answers both requests together, and the caller can do other work until
    /// [`Attaching::finish`].
    ///
    /// # Errors
    /// No urdmad runs, or no permission.
    pub fn begin_attach(
        run_dir: &RunDir,
        program: &str,
        want_lease: bool,
    ) -> Result<Attaching, ControlError> {
        let (client, hello) = Self::greet(run_dir, program)?;
        let attach = client.ask(Request::Attach { want_lease });
        Ok(Attaching {
            client,
            hello,
            attach,
        })
    }

    /// Connects and sends Hello; returns the id of the request without waiting for the answer.
    fn greet(run_dir: &RunDir, program: &str) -> Result<(Self, u64), ControlError> {
        let users = run_dir.trusted_users()?;
        let path = run_dir.control_socket();
        let socket =
            PacketSocket::connect(&path).map_err(|errno| connect_error(errno, run_dir, &path))?;
        let daemon = socket.peer()?.uid();
        if !users.include(daemon) {
            return Err(ControlError::Untrusted(Untrusted {
                dir: run_dir.path().to_owned(),
                fault: Fault::Daemon(daemon),
            }));
        }
        let client = Self {
            socket,
            instance: String::new(),
            daemon_pid: 0,
            next_id: AtomicU64::new(1),
            inbox: Mutex::new(Inbox::new()),
            arrived: Condvar::new(),
        };
        let hello = client.ask(Request::Hello {
            version: PROTOCOL_VERSION,
            program: program.to_owned(),
        })?;
        Ok((client, hello))
    }

    /// Waits for the answer to Hello.
    fn welcomed(mut self, hello: u64) -> Result<Self, ControlError> {
        match self.answer_to(hello) {
            Ok((Answer::Welcome { instance, pid }, _)) => {
                self.instance = instance;
                self.daemon_pid = pid;
                Ok(self)
            }
            Ok(other) => Err(unexpected(&other.0)),
            Err(ControlError::Refused(Refusal {
                kind: RefusalKind::VersionMismatch { theirs },
                ..
            })) => Err(ControlError::VersionMismatch {
                theirs,
                pid: self.socket.peer()?.pid(),
            }),
            Err(other) => Err(other),
        }
    }

    /// The instance's name, from urdmad.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// urdmad's process id, from urdmad.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon_pid
    }

    /// Requests a slot; returns it and the memory to map. The process then offers a channel to
    /// slot 0.
    ///
    /// # Errors
    /// No free slot, the quota is reached, or the connection failed.
    pub fn attach(&self, want_lease: bool) -> Result<(Attached, HostMemory), ControlError> {
        let attach = self.ask(Request::Attach { want_lease })?;
        self.attached(attach)
    }

    /// Waits for the answer to Attach.
    fn attached(&self, attach: u64) -> Result<(Attached, HostMemory), ControlError> {
        match self.answer_to(attach)? {
            (Answer::Attached(attached), fds) => match <[OwnedFd; 3]>::try_from(fds) {
                Ok([directory, region, page]) => {
                    let memory = HostMemory {
                        directory,
                        region,
                        page,
                    };
                    Ok((*attached, memory))
                }
                Err(_) => Err(ControlError::Malformed(
                    "a slot without the descriptors of its memory".into(),
                )),
            },
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Releases the slot.
    ///
    /// # Errors
    /// The connection failed, which also releases the slot.
    pub fn detach(&self) -> Result<(), ControlError> {
        self.call_done(Request::Detach)
    }

    /// Reserves a CM port under the number `binding`, unique among this client's ports; returns the
    /// port.
    ///
    /// # Errors
    /// Address in use or not available ([`ControlError::errno`] has EADDRINUSE, EADDRNOTAVAIL).
    pub fn cm_bind_port(&self, binding: u32, wanted: CmPort) -> Result<u16, ControlError> {
        self.call_bound(Request::CmBindPort { binding, wanted })
    }

    /// Changes the sharing of a port that is bound and not listened on.
    ///
    /// # Errors
    /// The port does not exist.
    pub fn cm_share(&self, binding: u32, sharing: PortSharing) -> Result<(), ControlError> {
        self.call_done(Request::CmShare { binding, sharing })
    }

    /// Listens on a port.
    ///
    /// # Errors
    /// Those of [`Self::cm_bind_port`] while the port is shared; the port does not exist.
    pub fn cm_listen(&self, binding: u32, backlog: u32) -> Result<(), ControlError> {
        self.call_done(Request::CmListen { binding, backlog })
    }

    /// Releases a port, and stops listening on it.
    ///
    /// # Errors
    /// The port does not exist.
    pub fn cm_release(&self, binding: u32) -> Result<(), ControlError> {
        self.call_done(Request::CmRelease { binding })
    }

    /// Makes this process a member of a multicast group.
    ///
    /// # Errors
    /// The address is not a multicast group, or the process is a member of
    /// [`crate::GROUPS_PER_PROCESS_MAX`] groups.
    pub fn join_group(&self, group: IpAddr) -> Result<(), ControlError> {
        self.call_done(Request::JoinGroup { group })
    }

    /// Ends the membership of a multicast group.
    ///
    /// # Errors
    /// This process is not a member.
    pub fn leave_group(&self, group: IpAddr) -> Result<(), ControlError> {
        self.call_done(Request::LeaveGroup { group })
    }

    /// Resolves `ip` to the next hop; takes up to two seconds if the address does not answer.
    ///
    /// # Errors
    /// The connection broke.
    pub fn resolve(&self, ip: IpAddr) -> Result<Resolution, ControlError> {
        match self.call(Request::Resolve { ip })? {
            (Answer::Resolved(resolution), _) => Ok(resolution),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Gives urdmad the flight recording of this process. Does not wait.
    ///
    /// # Errors
    /// urdmad has ended or does not read.
    pub fn offer_recording(&self, recording: BorrowedFd<'_>) -> Result<(), ControlError> {
        let message = FromClient {
            id: self.take_id(),
            request: Request::OfferRecording,
        };
        Ok(self.socket.try_send(&message, &[recording])?)
    }

    /// The recordings that this client may read.
    ///
    /// # Errors
    /// The connection broke.
    pub fn recordings(&self) -> Result<Vec<RecordingInfo>, ControlError> {
        match self.call(Request::Recordings)? {
            (Answer::Recordings(recordings), _) => Ok(recordings),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The descriptor of a recording.
    ///
    /// # Errors
    /// There is none of this number any more, or this client may not read it.
    pub fn recording(&self, number: u64) -> Result<OwnedFd, ControlError> {
        match self.call(Request::Recording { number })? {
            (Answer::Recording, fds) => match <[OwnedFd; 1]>::try_from(fds) {
                Ok([recording]) => Ok(recording),
                Err(_) => Err(ControlError::Malformed(
                    "a recording without its descriptor".into(),
                )),
            },
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The state of the instance.
    ///
    /// # Errors
    /// The connection broke.
    pub fn status(&self) -> Result<Status, ControlError> {
        match self.call(Request::Status)? {
            (Answer::Status(status), _) => Ok(*status),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Reports the resources of this process to urdmad, after [`Event::ReportWanted`]. Does not
    /// wait.
    ///
    /// # Errors
    /// The connection broke.
    pub fn report(&self, report: ProcessReport) -> Result<(), ControlError> {
        let message = FromClient {
            id: self.take_id(),
            request: Request::Report(report),
        };
        Ok(self.socket.try_send(&message, &[])?)
    }

    /// Says that this process has stored the totals of its traffic, after [`Event::CountWanted`].
    /// Does not wait.
    ///
    /// # Errors
    /// The connection broke.
    pub fn counted(&self) -> Result<(), ControlError> {
        let message = FromClient {
            id: self.take_id(),
            request: Request::Counted,
        };
        Ok(self.socket.try_send(&message, &[])?)
    }

    /// Reports results of [`Event::SetQps`] to urdmad.
    ///
    /// # Errors
    /// urdmad has ended or does not read.
    pub fn qps_are_set(&self, outcomes: Vec<QpOutcome>) -> Result<(), ControlError> {
        let message = FromClient {
            id: self.take_id(),
            request: Request::QpsAreSet(outcomes),
        };
        Ok(self.socket.try_send(&message, &[])?)
    }

    /// Starts a capture of the packets that pass urdmad into `file`.
    ///
    /// # Errors
    /// The file cannot be created, or a capture is active.
    pub fn capture_start(
        &self,
        file: PathBuf,
        options: CaptureOptions,
    ) -> Result<(), ControlError> {
        self.call_done(Request::CaptureStart { file, options })
    }

    /// Ends the capture; returns what became of its frames.
    ///
    /// # Errors
    /// No capture is active.
    pub fn capture_stop(&self) -> Result<CaptureCounts, ControlError> {
        match self.call(Request::CaptureStop)? {
            (Answer::CaptureStopped(counts), _) => Ok(counts),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Sets the impairments of the port's frames; without a seed it stays unchanged.
    ///
    /// # Errors
    /// There is no port, a queue pair is leased, or this user may not.
    pub fn set_faults(
        &self,
        direction: Direction,
        impairment: Impairment,
        seed: Option<u64>,
    ) -> Result<(), ControlError> {
        self.call_done(Request::SetFaults {
            direction,
            impairment,
            seed,
        })
    }

    /// Stops urdmad and waits until it has removed its files.
    ///
    /// # Errors
    /// This user may not stop it, or it does not end within [`CALL_LIMIT`].
    pub fn shutdown(&self) -> Result<(), ControlError> {
        self.call_done(Request::Shutdown)?;
        let deadline = Instant::now() + CALL_LIMIT;
        loop {
            match self.next_event(Some(deadline.saturating_duration_since(Instant::now()))) {
                Ok(Some(_)) => {}
                Ok(None) => return Err(ControlError::Timeout),
                Err(ControlError::Gone) => return Ok(()),
                Err(other) => return Err(other),
            }
        }
    }

    /// Waits for an event for at most `limit`; `None` after that. Descriptors come with
    /// [`Event::ChannelOffered`] and [`Event::SocketJoined`] only, and not if this process cannot
    /// open them.
    ///
    /// # Errors
    /// [`ControlError::Gone`] when urdmad has ended.
    pub fn next_event(
        &self,
        limit: Option<Duration>,
    ) -> Result<Option<(Event, Vec<OwnedFd>)>, ControlError> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        self.wait_until(deadline, |inbox| inbox.events.pop_front())
    }

    /// Offers a channel to the process that has `slot` in a generation, if one is named: the region
    /// that this process writes, and its page; to urdmad, slot 0, its delivery records as well.
    /// Does not wait; the outcome is an event.
    ///
    /// # Errors
    /// urdmad has ended or does not read.
    pub fn offer_channel(
        &self,
        slot: u8,
        generation: Option<u32>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        let message = FromClient {
            id: self.take_id(),
            request: Request::OfferChannel { slot, generation },
        };
        Ok(self.socket.send(&message, fds)?)
    }

    /// Gives urdmad this process' end of a channel in advance: the descriptors of an offer. Does
    /// not wait.
    ///
    /// # Errors
    /// urdmad has ended or does not read.
    pub fn deposit_channel(&self, fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        let message = FromClient {
            id: self.take_id(),
            request: Request::DepositChannel,
        };
        Ok(self.socket.send(&message, fds)?)
    }

    /// Offers a TCP connection for rings: its socket, and the bells of the connection and of the
    /// agent. Returns the number of the offer. Does not wait; the outcome is an event.
    ///
    /// # Errors
    /// urdmad has ended or does not read.
    pub fn offer_socket(&self, fds: [BorrowedFd<'_>; 3]) -> Result<u64, ControlError> {
        let id = self.take_id();
        let request = Request::SocketOffer;
        self.socket.try_send(&FromClient { id, request }, &fds)?;
        Ok(id)
    }

    /// Says that an offered connection is closed or uses its rings no more. Does not wait.
    ///
    /// # Errors
    /// urdmad has ended or does not read.
    pub fn forget_socket(&self, offer: u64) -> Result<(), ControlError> {
        let message = FromClient {
            id: self.take_id(),
            request: Request::SocketForget { offer },
        };
        Ok(self.socket.try_send(&message, &[])?)
    }

    /// Gives urdmad the memory in which this process counts why its sockets stay with TCP. Does not
    /// wait.
    ///
    /// # Errors
    /// urdmad has ended or does not read.
    pub fn offer_reasons(&self, memory: BorrowedFd<'_>) -> Result<(), ControlError> {
        let id = self.take_id();
        let request = Request::SocketReasons;
        let message = FromClient { id, request };
        Ok(self.socket.try_send(&message, &[memory])?)
    }

    fn call_done(&self, request: Request) -> Result<(), ControlError> {
        match self.call(request)? {
            (Answer::Done, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn call_bound(&self, request: Request) -> Result<u16, ControlError> {
        match self.call(request)? {
            (Answer::CmBound { port }, _) => Ok(port),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn take_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn call(&self, request: Request) -> Result<(Answer, Vec<OwnedFd>), ControlError> {
        let id = self.ask(request)?;
        self.answer_to(id)
    }

    /// Sends a request; returns its id for [`Self::answer_to`].
    fn ask(&self, request: Request) -> Result<u64, ControlError> {
        let id = self.take_id();
        self.lock().answers.insert(id, None);
        if let Err(errno) = self.socket.send(&FromClient { id, request }, &[]) {
            self.lock().answers.remove(&id);
            return Err(self.why_not_sent(errno));
        }
        Ok(id)
    }

    /// The error of a request that cannot be sent: the reason that urdmad sent before it closed the
    /// connection, if any.
    fn why_not_sent(&self, errno: Errno) -> ControlError {
        let error = ControlError::from(errno);
        if !matches!(error, ControlError::Gone) {
            return error;
        }
        let end = self.wait_until(Some(Instant::now() + CALL_LIMIT), |_| None::<()>);
        end.err().unwrap_or(error)
    }

    fn answer_to(&self, id: u64) -> Result<(Answer, Vec<OwnedFd>), ControlError> {
        let outcome = self.wait_until(Some(Instant::now() + CALL_LIMIT), |inbox| {
            inbox.answers.get_mut(&id)?.take()
        });
        self.lock().answers.remove(&id);
        match outcome? {
            Some((Ok(answer), fds)) => Ok((answer, fds?)),
            Some((Err(refusal), _)) => Err(ControlError::Refused(refusal)),
            None => Err(ControlError::Timeout),
        }
    }

    /// Reads, or waits for another thread to read, until `take` finds its packet; `None` at the
    /// deadline.
    fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        mut take: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<Option<T>, ControlError> {
        let mut inbox = self.lock();
        loop {
            if let Some(found) = take(&mut inbox) {
                return Ok(Some(found));
            }
            if inbox.is_closed {
                let refused = inbox.refused.clone().map(ControlError::Refused);
                return Err(refused.unwrap_or(ControlError::Gone));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            inbox = match inbox.reader.take() {
                None => self.wait_for_reader(inbox, left),
                Some(reader) => self.read_one(inbox, reader, left)?,
            };
        }
    }

    fn wait_for_reader<'a>(
        &'a self,
        mut inbox: MutexGuard<'a, Inbox>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, Inbox> {
        inbox.waiting += 1;
        let mut inbox = match left {
            Some(left) => {
                self.arrived
                    .wait_timeout(inbox, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => self
                .arrived
                .wait(inbox)
                .unwrap_or_else(PoisonError::into_inner),
        };
        inbox.waiting -= 1;
        inbox
    }

    /// Reads one packet before the deadline, if any, and stores it for its receiver.
    fn read_one<'a>(
        &'a self,
        inbox: MutexGuard<'a, Inbox>,
        mut reader: Reader,
        left: Option<Duration>,
    ) -> Result<MutexGuard<'a, Inbox>, ControlError> {
        drop(inbox);
        let received = reader.receive(&self.socket, left);
        let mut inbox = self.lock();
        let outcome = match received {
            Ok(Received::Packet(packet)) => file_packet(&mut inbox, packet),
            Ok(Received::Closed) | Err(Errno::ECONNRESET) => {
                inbox.is_closed = true;
                Ok(())
            }
            Ok(Received::Nothing) => Ok(()),
            Err(errno) => Err(errno.into()),
        };
        inbox.reader = Some(reader);
        // A system call, also if no thread waits.
        if inbox.waiting > 0 {
            self.arrived.notify_all();
        }
        outcome.map(|()| inbox)
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for ControlClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

enum Received<'a> {
    Packet(Packet<&'a [u8]>),
    Nothing,
    Closed,
}

fn file_packet(inbox: &mut Inbox, packet: Packet<&[u8]>) -> Result<(), ControlError> {
    let message = packet
        .parse()
        .map_err(|error| ControlError::Malformed(error.to_string()))?;
    match message {
        FromDaemon::Answer { id, result } => {
            // An answer without an entry arrived after its deadline.
            if let Some(place) = inbox.answers.get_mut(&id) {
                let fds = match packet.lacks_fds {
                    true => Err(Errno::EMFILE),
                    false => Ok(packet.fds),
                };
                *place = Some((result, fds));
            }
        }
        FromDaemon::Event(event) => {
            if inbox.events.len() == EVENTS_MAX {
                inbox.events.pop_front();
            }
            inbox.events.push_back((event, packet.fds));
        }
        FromDaemon::Refused(refusal) => inbox.refused = Some(refusal),
    }
    Ok(())
}

fn unexpected(answer: &Answer) -> ControlError {
    let text = format!("{answer:?}");
    ControlError::Malformed(text.chars().take(80).collect())
}

fn connect_error(errno: Errno, run_dir: &RunDir, socket: &Path) -> ControlError {
    match errno {
        Errno::EACCES | Errno::EPERM => ControlError::PermissionDenied {
            path: socket.to_owned(),
            group: owning_group(socket),
        },
        Errno::ENOENT | Errno::ECONNREFUSED | Errno::ENOTDIR => {
            let instance = run_dir.instance();
            let existing = run_dir.existing_instances();
            if instance == DEFAULT_INSTANCE || existing.is_empty() || existing.contains(&instance) {
                ControlError::NoDaemon {
                    instance,
                    dir: run_dir.path().to_owned(),
                }
            } else {
                ControlError::UnknownInstance { instance, existing }
            }
        }
        other => other.into(),
    }
}

/// The group of the last component of `path` whose metadata the caller may read.
fn owning_group(path: &Path) -> String {
    path.ancestors()
        .find_map(|place| nix::sys::stat::stat(place).ok())
        .and_then(|stat| {
            nix::unistd::Group::from_gid(stat.st_gid.into())
                .ok()
                .flatten()
        })
        .map_or_else(|| "of its owner".to_owned(), |group| group.name)
}

#[cfg(test)]
mod tests;
