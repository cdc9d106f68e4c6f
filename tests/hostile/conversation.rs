//! Packets to urdmad that need not be requests, and what urdmad makes of them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{send, shutdown, MsgFlags, Shutdown};
use urdma_ipc::message::{FromClient, FromDaemon, Request};
use urdma_ipc::packet::{PacketSocket, PACKET_OCTETS_MAX};
use urdma_ipc::{ControlError, RefusalKind, PROTOCOL_VERSION};

use crate::{Context, PROGRAM};

/// How long urdmad may take to answer, or to close a connection.
pub(crate) const CLOSING: Duration = Duration::from_secs(10);

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    /// urdmad has ended the connection without an answer.
    Ended,
    /// The user has as many conversations as it may have.
    NotAdmitted,
}

/// Sends descriptors once the kernel takes them, for up to [`CLOSING`]: it limits those of a user
/// that are on their way, whichever process has sent them.
pub(crate) fn once_taken(
    mut send: impl FnMut() -> Result<(), ControlError>,
) -> Result<(), ControlError> {
    let deadline = Instant::now() + CLOSING;
    loop {
        match send() {
            Err(error)
                if error.errno() == Errno::ETOOMANYREFS as i32 && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
}

/// A connection to the control socket.
#[derive(Debug)]
pub(crate) struct Conversation(PacketSocket);

impl Conversation {
    pub(crate) fn open(context: &Context) -> Result<Self, String> {
        let socket = PacketSocket::connect(&context.run_dir.control_socket());
        socket.map(Self).map_err(|errno| errno.to_string())
    }

    /// Sends Hello as every client does.
    pub(crate) fn greet(&self) -> bool {
        let hello = Request::Hello {
            version: PROTOCOL_VERSION,
            program: PROGRAM.to_owned(),
        };
        self.ask(0, hello, &[])
    }

    /// Sends a request; false if urdmad has ended the connection.
    pub(crate) fn ask(&self, id: u64, request: Request, fds: &[BorrowedFd<'_>]) -> bool {
        let message = FromClient { id, request };
        once_taken(|| Ok(self.0.send(&message, fds)?)).is_ok()
    }

    /// Sends any octets; false if urdmad has ended the connection or the kernel does not take them.
    pub(crate) fn send(&self, octets: &[u8]) -> bool {
        send(self.0.as_fd().as_raw_fd(), octets, MsgFlags::MSG_NOSIGNAL).is_ok()
    }

    pub(crate) fn shut(&self, how: Shutdown) {
        // An error means that urdmad has ended the connection.
        let _ = shutdown(self.0.as_fd().as_raw_fd(), how);
    }

    /// The next packet of urdmad; `None` once it has ended the connection.
    pub(crate) fn next(&self) -> Result<Option<FromDaemon>, String> {
        self.wait_for(PollFlags::POLLIN)?;
        match self.0.recv(&mut vec![0; PACKET_OCTETS_MAX]) {
            Ok(Some(packet)) => packet.parse().map(Some).map_err(|error| error.to_string()),
            Ok(None) | Err(Errno::ECONNRESET) => Ok(None),
            Err(errno) => Err(errno.to_string()),
        }
    }

    /// Waits for what becomes of the request `id`.
    pub(crate) fn await_answer(&self, id: u64) -> Result<Outcome, String> {
        loop {
            match self.next()? {
                Some(FromDaemon::Answer { id: of, .. }) if of == id => {
                    return Ok(Outcome::Answered)
                }
                Some(FromDaemon::Refused(refusal))
                    if refusal.kind == RefusalKind::QuotaExceeded =>
                {
                    // urdmad is still closing earlier ones.
                    std::thread::sleep(Duration::from_millis(5));
                    return Ok(Outcome::NotAdmitted);
                }
                Some(FromDaemon::Refused(refusal)) => return Err(refusal.to_string()),
                Some(_) => {}
                None => return Ok(Outcome::Ended),
            }
        }
    }

    /// Waits until urdmad has ended the connection; nothing is read, so that it may be shut for
    /// reading.
    pub(crate) fn await_end(&self) -> Result<(), String> {
        self.wait_for(PollFlags::empty())
    }

    fn wait_for(&self, events: PollFlags) -> Result<(), String> {
        let limit = PollTimeout::try_from(CLOSING).map_err(|error| error.to_string())?;
        let mut fds = [PollFd::new(self.0.as_fd(), events)];
        match poll(&mut fds, limit) {
            Ok(0) => Err("urdmad neither answers nor ends the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(errno) => Err(errno.to_string()),
        }
    }
}
