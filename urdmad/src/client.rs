//! One control connection.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::UnixCredentials;
use nix::unistd::Uid;
use urdma_ipc::message::FromDaemon;
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::{Event, ProcessReport};
use urdma_types::SlotId;

use crate::closing::Closer;
use crate::descriptors;
use crate::groups::SlotSet;
use crate::process;
use crate::slots::Token;
use crate::tally::Tally;

/// Events that wait for a client that does not read at the moment; there are at most four for each
/// slot.
const WAITING_MAX: usize = 4 * 256;
/// The least that the kernel counts for a message in a socket.
const MESSAGE_OCTETS_MIN: usize = 512;
/// Answers that wait for it: it has asked for each, and some are long.
const ANSWERS_WAITING_MAX: usize = 4;
/// After how long a message is sent again whose descriptors the kernel has refused to take.
const RETRY: Duration = Duration::from_millis(20);

/// A connection and the resources of its process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: PacketSocket,
    /// The peer's credentials, from the kernel.
    pub(crate) peer: UnixCredentials,
    /// The program name that the client states in its hello.
    pub(crate) program: Option<String>,
    pub(crate) attached: Option<Attachment>,
    pub(crate) report: Option<ProcessReport>,
    /// Its request for a slot, while that waits. It has no slot then, and no packet is received
    /// from it.
    pub(crate) delayed: Option<AttachRequest>,
    /// The traffic of its process.
    pub(crate) tally: Option<Tally>,
    pub(crate) channels: Introductions,
    /// It has started the active capture, which ends with it.
    pub(crate) is_capturing: bool,
    /// What its socket has no room for, or the kernel refuses to take for the time being.
    waiting: VecDeque<(FromDaemon, Vec<OwnedFd>)>,
    /// When the first of these is sent again whose descriptors the kernel has refused to take: too
    /// many were on their way, those of other processes of urdmad's user among them.
    retry_at: Option<Instant>,
    /// Messages with descriptors among those that wait.
    waiting_with_fds: usize,
    /// Messages with descriptors in its socket that it may not have read.
    sent_with_fds: usize,
    /// It is to be disconnected once its requests are handled.
    pub(crate) is_broken: bool,
    /// Descriptors that it must not send, to be closed with the connection.
    pub(crate) rejected: Vec<OwnedFd>,
}

/// A request for a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttachRequest {
    /// The number of the request.
    pub(crate) id: u64,
    pub(crate) want_lease: bool,
    /// It has waited for slots that were about to be free.
    pub(crate) has_waited: bool,
}

/// The channels of a process to others.
#[derive(Debug, Default)]
pub(crate) struct Introductions {
    /// The slots whose processes it has offered one to.
    pub(crate) offered: SlotSet,
    /// Those that it was told to offer one to.
    pub(crate) wanted: SlotSet,
    /// Its end of one, for the process that it is connected with first.
    pub(crate) deposit: Option<Vec<OwnedFd>>,
    /// The slots whose processes have got such an end. One of them may get an offer as well, which
    /// this process has made before it heard of that.
    pub(crate) given: SlotSet,
}

impl Introductions {
    /// The process of a slot has ended.
    pub(crate) fn forget(&mut self, slot: SlotId) {
        for slots in [&mut self.offered, &mut self.wanted, &mut self.given] {
            slots.remove(slot.number());
        }
    }
}

/// A slot in use.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) slot: SlotId,
    pub(crate) since: Instant,
    /// A pidfd, readable when the process is dead even if a child keeps the socket open; none for a
    /// process in a PID namespace that is not visible.
    death: Option<OwnedFd>,
}

impl Client {
    /// The process, unless it is in another PID namespace, from which urdmad sees no number.
    pub(crate) fn pid(&self) -> Option<u32> {
        let pid = u32::try_from(self.peer.pid());
        pid.ok().filter(|pid| *pid != 0)
    }

    pub(crate) fn new(socket: PacketSocket, peer: UnixCredentials) -> Self {
        Self {
            socket,
            peer,
            program: None,
            attached: None,
            report: None,
            delayed: None,
            tally: None,
            channels: Introductions::default(),
            is_capturing: false,
            waiting: VecDeque::new(),
            retry_at: None,
            waiting_with_fds: 0,
            sent_with_fds: 0,
            is_broken: false,
            rejected: Vec::new(),
        }
    }

    /// Whether no packets are to be received from it for a time.
    pub(crate) fn is_held(&self, closer: &Closer) -> bool {
        self.delayed.is_some() || closer.is_crowded(self.peer.uid())
    }

    /// The slot, if it has one.
    pub(crate) fn slot(&self) -> Option<SlotId> {
        self.attached.as_ref().map(|attached| attached.slot)
    }

    /// Records the slot of the process.
    pub(crate) fn attach(&mut self, slot: SlotId) {
        let death = match pidfd_open(self.peer.pid()) {
            Ok(death) => Some(death),
            Err(error) => {
                tracing::debug!("process {}: no pidfd: {error}", self.peer.pid());
                None
            }
        };
        self.attached = Some(Attachment {
            slot,
            since: Instant::now(),
            death,
        });
    }

    /// The descriptor that reports the process' death.
    pub(crate) fn death(&self) -> Option<BorrowedFd<'_>> {
        self.attached.as_ref()?.death.as_ref().map(AsFd::as_fd)
    }

    /// Whether the process is about to end: it answers nothing more, though its descriptors are
    /// still open. A process that is not visible counts as living.
    pub(crate) fn is_dying(&self) -> bool {
        process::is_dying(self.peer.pid())
    }

    /// Sends a message, or has it wait until the client reads; one that asks much and reads nothing
    /// is broken. False for an event whose descriptors cannot be sent, because too many are open or
    /// on their way: this client gets nothing then, and is not at fault. What it needs waits until
    /// fewer are on their way.
    pub(crate) fn send(&mut self, message: &FromDaemon, fds: &[BorrowedFd<'_>]) -> bool {
        let outcome = if self.waiting.is_empty() {
            self.socket.try_send(message, fds)
        } else {
            Err(Errno::EAGAIN)
        };
        let outcome = match outcome {
            Ok(()) => {
                self.sent_with_fds += usize::from(!fds.is_empty());
                Ok(())
            }
            Err(Errno::EAGAIN) => self.put_off(message, fds),
            Err(Errno::ETOOMANYREFS) if is_needed(message) => {
                self.retry_at = Some(Instant::now() + RETRY);
                self.put_off(message, fds)
            }
            other => other,
        };
        match outcome {
            Ok(()) => true,
            Err(Errno::ETOOMANYREFS | Errno::EMFILE) if !is_needed(message) => false,
            Err(errno) => {
                self.is_broken_by(errno);
                false
            }
        }
    }

    /// Has a message wait.
    fn put_off(&mut self, message: &FromDaemon, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let fds: io::Result<Vec<_>> = fds.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let fds = fds.map_err(|_| Errno::EMFILE)?;
        let with_fds = &mut self.waiting_with_fds;
        self.waiting.retain(|(earlier, fds)| {
            let stays = !replaces(message, earlier);
            *with_fds -= usize::from(!stays && !fds.is_empty());
            stays
        });
        *with_fds += usize::from(!fds.is_empty());
        self.waiting.push_back((message.clone(), fds));
        let answers = self
            .waiting
            .iter()
            .filter(|(message, _)| is_answer(message));
        if self.waiting.len() > WAITING_MAX || answers.count() > ANSWERS_WAITING_MAX {
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// Messages with descriptors that it has not read, at most.
    pub(crate) fn unread(&mut self) -> usize {
        if self.sent_with_fds > 0 {
            let in_socket = octets_unread(&self.socket) / MESSAGE_OCTETS_MIN;
            self.sent_with_fds = self.sent_with_fds.min(in_socket);
        }
        self.unread_by_count()
    }

    /// The same without a system call: messages that it has read since may be among them.
    fn unread_by_count(&self) -> usize {
        self.sent_with_fds + self.waiting_with_fds
    }

    /// Whether messages wait for room in the socket.
    pub(crate) fn is_behind(&self) -> bool {
        !self.waiting.is_empty() && self.retry_at.is_none()
    }

    /// When what waits is to be sent again, although the socket has room for it.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn send_waiting(&mut self) {
        self.retry_at = None;
        while let Some((message, fds)) = self.waiting.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match self.socket.try_send(message, &fds) {
                Ok(()) => {
                    let with_fds = usize::from(!fds.is_empty());
                    self.waiting_with_fds -= with_fds;
                    self.sent_with_fds += with_fds;
                    self.waiting.pop_front();
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::ETOOMANYREFS) => {
                    self.retry_at = Some(Instant::now() + RETRY);
                    return;
                }
                Err(errno) => return self.is_broken_by(errno),
            }
        }
    }

    /// Has it disconnected for the descriptors that it has sent.
    pub(crate) fn reject(&mut self, fds: Vec<OwnedFd>) {
        self.is_broken = true;
        self.rejected.extend(fds);
    }

    fn is_broken_by(&mut self, errno: Errno) {
        tracing::debug!("process {}: cannot send: {errno}", self.peer.pid());
        self.is_broken = true;
    }

    /// Sends an event.
    pub(crate) fn tell(&mut self, event: Event) {
        self.send(&FromDaemon::Event(event), &[]);
    }
}

/// Whether the processes of the user to whom `slot` belongs read what they are offered. The kernel
/// limits descriptors on their way to all clients together, so one user whose processes read
/// nothing could keep the others from opening channels and from attaching.
pub(crate) fn reads_offers(clients: &mut BTreeMap<Token, Client>, slot: SlotId) -> bool {
    let of_slot = clients.values().find(|client| client.slot() == Some(slot));
    let Some(uid) = of_slot.map(|client| client.peer.uid()) else {
        return true;
    };
    if uid == 0 || uid == Uid::effective().as_raw() {
        return true;
    }
    let limit = descriptors::unread_max();
    let of_user = || clients.values().filter(|client| client.peer.uid() == uid);
    if of_user().map(Client::unread_by_count).sum::<usize>() < limit {
        return true;
    }
    let of_user = clients
        .values_mut()
        .filter(|client| client.peer.uid() == uid);
    of_user.map(Client::unread).sum::<usize>() < limit
}

/// What the other end of a socket has not read, with what the kernel needs for it.
fn octets_unread(socket: &PacketSocket) -> usize {
    let mut octets: libc::c_int = 0;
    // SAFETY: TIOCOUTQ fills an int.
    let rc = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
    if rc < 0 {
        return usize::MAX;
    }
    usize::try_from(octets).unwrap_or(0)
}

fn is_answer(message: &FromDaemon) -> bool {
    matches!(message, FromDaemon::Answer { .. })
}

/// Whether a message must reach its client: an answer, or an offer after which the client uses what
/// it has deposited.
fn is_needed(message: &FromDaemon) -> bool {
    let gives_deposit = matches!(
        message,
        FromDaemon::Event(Event::ChannelOffered {
            deposit_is_given: true,
            ..
        })
    );
    gives_deposit || is_answer(message)
}

/// Whether a message makes one before it superfluous: the end of a process its offer and the ends
/// of those before it in the slot, and a request for a report another one.
fn replaces(message: &FromDaemon, earlier: &FromDaemon) -> bool {
    let (FromDaemon::Event(event), FromDaemon::Event(earlier)) = (message, earlier) else {
        return false;
    };
    match (event, earlier) {
        (Event::SlotGone { slot, .. }, Event::SlotGone { slot: of, .. })
        | (Event::SlotGone { slot, .. }, Event::ChannelOffered { slot: of, .. }) => slot == of,
        (Event::ReportWanted, Event::ReportWanted) => true,
        _ => false,
    }
}

fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    if pid <= 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor (close-on-exec) for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use urdma_harness::instance::Scratch;
    use urdma_ipc::packet::PacketListener;

    use super::*;

    /// A client that reads nothing.
    fn client(dir: &std::path::Path) -> (PacketSocket, Client) {
        let path = dir.join("control");
        let listener = PacketListener::bind(&path).unwrap();
        let peer = PacketSocket::connect(&path).unwrap();
        let socket = listener.accept().unwrap();
        let credentials = socket.peer().unwrap();
        (peer, Client::new(socket, credentials))
    }

    #[test]
    fn offers_of_processes_that_have_ended_are_not_unread() {
        const OFFERS: u32 = 4000;
        let scratch = Scratch::new("client").unwrap();
        let (peer, mut client) = client(scratch.path());
        let fd = File::open("/dev/null").unwrap();
        for generation in 0..OFFERS {
            let offer = FromDaemon::Event(Event::ChannelOffered {
                slot: 1,
                generation,
                stranger: None,
                deposit_is_given: false,
            });
            assert!(client.send(&offer, &[fd.as_fd()]));
            client.tell(Event::SlotGone {
                slot: 1,
                generation,
            });
        }
        assert!(!client.is_broken);
        let unread = client.unread();
        assert!(client.is_behind() && unread < 1000, "{unread}");
        // It reads what is in its socket, while the last event still waits.
        while peer.try_recv(4096).is_ok() {}
        assert!(client.is_behind());
        assert_eq!(client.unread(), 0);
    }
}
