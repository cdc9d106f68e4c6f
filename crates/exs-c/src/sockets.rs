//! All sockets of the process, and the thread that drives them.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;
use urdma_exs::{Memory, Options};

use crate::errno::{lock, Errno};
use crate::operation::Details;
use crate::reactor::{Reactor, Token};
use crate::socket::{Accepted, Number, Shared, Socket};

/// A socket that the application has a number of.
#[derive(Debug)]
struct Numbered {
    /// Keeps the number; nothing is read from it or written to it.
    _descriptor: EventFd,
    socket: Shared,
}

/// Sockets by their numbers, and all that are to be driven.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) reactor: Reactor,
    numbered: RwLock<HashMap<Number, Numbered>>,
    driven: Mutex<HashMap<Token, Shared>>,
    next_token: AtomicU64,
    /// How many were closed by the application, but have not ended.
    closing: Mutex<usize>,
    one_has_ended: Condvar,
}

impl Sockets {
    /// No socket, and the thread, which ends after [`Reactor::stop`].
    pub(crate) fn start() -> Result<(Arc<Self>, JoinHandle<()>), Errno> {
        let sockets = Arc::new(Self {
            reactor: Reactor::new()?,
            numbered: RwLock::default(),
            driven: Mutex::default(),
            next_token: AtomicU64::new(1),
            closing: Mutex::new(0),
            one_has_ended: Condvar::new(),
        });
        let shared = Arc::clone(&sockets);
        // A new thread has the mask of its creator; signals are for threads of the application.
        let before = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK)?;
        let started = std::thread::Builder::new()
            .name("urdma-exs".to_owned())
            .spawn(move || shared.run());
        before.thread_set_mask()?;
        let thread =
            started.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        Ok((sockets, thread))
    }

    /// Makes a socket, which has a number from then on.
    pub(crate) fn add(&self, options: Options) -> Result<Number, Errno> {
        let token = self.token();
        self.insert(Arc::new(Socket::new(token, options)))
    }

    fn token(&self) -> Token {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    fn insert(&self, socket: Shared) -> Result<Number, Errno> {
        let descriptor = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
        let number = descriptor.as_fd().as_raw_fd();
        lock(&self.driven).insert(socket.token, Arc::clone(&socket));
        let mut numbered = self
            .numbered
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let entry = Numbered {
            _descriptor: descriptor,
            socket,
        };
        numbered.insert(number, entry);
        Ok(number)
    }

    /// The socket with this number: EBADF if there is none.
    pub(crate) fn get(&self, number: Number) -> Result<Shared, Errno> {
        let numbered = self.numbered.read().unwrap_or_else(PoisonError::into_inner);
        let found = numbered.get(&number).ok_or(Errno(libc::EBADF))?;
        Ok(Arc::clone(&found.socket))
    }

    /// Closes a socket; the thread ends its connection.
    pub(crate) fn close(&self, number: Number) -> Result<(), Errno> {
        let mut numbered = self
            .numbered
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let removed = numbered.remove(&number).ok_or(Errno(libc::EBADF))?;
        drop(numbered);
        let socket = &removed.socket;
        *lock(&self.closing) += 1;
        if !socket.release(&self.reactor) {
            self.forget(socket.token);
        }
        Ok(())
    }

    /// A socket that was closed has ended.
    fn forget(&self, token: Token) {
        if lock(&self.driven).remove(&token).is_some() {
            *lock(&self.closing) -= 1;
            self.one_has_ended.notify_all();
        }
    }

    /// Ends the registration of memory with all connections.
    pub(crate) fn forget_memory(&self, memory: &Memory) {
        let all: Vec<Shared> = lock(&self.driven).values().map(Arc::clone).collect();
        all.iter().for_each(|socket| socket.forget(memory));
    }

    /// Waits until all sockets that were closed have ended, for at most so long.
    pub(crate) fn wait_for_ends(&self, limit: Duration) {
        let closing = lock(&self.closing);
        let waited = self
            .one_has_ended
            .wait_timeout_while(closing, limit, |count| *count > 0);
        drop(waited);
    }

    fn run(&self) {
        let driving = std::panic::AssertUnwindSafe(|| {
            while let Some(tokens) = self.reactor.wait() {
                tokens.into_iter().for_each(|token| self.drive(token));
            }
        });
        if std::panic::catch_unwind(driving).is_err() {
            // No operation would ever end.
            std::process::abort();
        }
    }

    fn drive(&self, token: Token) {
        let found = lock(&self.driven).get(&token).map(Arc::clone);
        let Some(socket) = found else {
            return;
        };
        let driven = socket.drive(&self.reactor);
        for accepted in driven.accepted {
            self.admit(accepted, &socket.options);
        }
        if driven.again {
            self.reactor.kick(token);
        }
        if driven.has_ended {
            self.forget(token);
        }
    }

    /// Gives a client that has connected a socket.
    fn admit(&self, accepted: Accepted, options: &Options) {
        let Accepted {
            connection,
            mut operation,
        } = accepted;
        let address = connection.peer();
        let socket = Arc::new(Socket::accepted(self.token(), *options, connection));
        let watched = socket.watch(&self.reactor);
        let token = socket.token;
        match watched.and_then(|()| self.insert(socket)) {
            Ok(new) => {
                // What has come before it was watched.
                self.reactor.kick(token);
                if let Details::Accept { number, peer, .. } = &mut operation.event.details {
                    (*number, *peer) = (new, address);
                }
                operation.end(0);
            }
            Err(Errno(errno)) => operation.end(errno),
        }
    }
}
