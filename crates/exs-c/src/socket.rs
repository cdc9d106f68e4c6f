//! The states of a socket.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use urdma_exs::{
    outcome_errno, Accepting, Buffer, Connecting, Endpoint, Error, Handshake, Kind, Listener,
    Memory, Options, RecvId, LINGER,
};

use crate::errno::{lock, Errno};
use crate::file::Part;
use crate::operation::Operation;
use crate::outgoing::Outgoing;
use crate::reactor::{Reactor, Token};

/// A listening socket: accepts without a client, and clients that have been answered.
#[derive(Debug)]
struct Listening {
    listener: Listener,
    waiting: VecDeque<Operation>,
    answered: Vec<(Accepting, Operation)>,
}

/// A connected socket.
#[derive(Debug)]
struct Connection {
    stream: urdma_exs::Socket,
    outgoing: Outgoing,
    recvs: VecDeque<(RecvId, Operation)>,
    /// Both ends have closed the stream; until when the other end may end the connection.
    closed: Option<Instant>,
    /// The application has closed the socket.
    is_released: bool,
}

#[derive(Debug)]
enum State {
    /// Neither listening nor connected; with an address, if it was bound.
    Open(Option<Endpoint>),
    Listening(Listening),
    Connecting(Box<Connecting>, Operation),
    Connected(Box<Connection>),
    /// Closed, and nothing is left to be done.
    Ended,
}

/// A client that has connected, and the operation that accepts it.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) connection: urdma_exs::Socket,
    pub(crate) operation: Operation,
}

/// What is left after a socket was driven.
#[derive(Debug, Default)]
pub(crate) struct Driven {
    /// It is to be driven again at once.
    pub(crate) again: bool,
    /// Nothing is left to be done, ever.
    pub(crate) has_ended: bool,
    pub(crate) accepted: Vec<Accepted>,
}

/// A socket, from exs_socket or exs_accept until exs_close and the end of its connection.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) token: Token,
    pub(crate) options: Options,
    state: Mutex<State>,
}

impl Socket {
    pub(crate) fn new(token: Token, options: Options) -> Self {
        Self {
            token,
            options,
            state: Mutex::new(State::Open(None)),
        }
    }

    /// The socket of a client that has connected. It has to be driven once.
    pub(crate) fn accepted(token: Token, options: Options, stream: urdma_exs::Socket) -> Self {
        Self {
            token,
            options,
            state: Mutex::new(State::Connected(Box::new(Connection::new(
                stream, &options,
            )))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The state for a call of the application: EBADF if another thread has closed the socket since
    /// the call has looked up its number.
    fn open(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.state();
        let is_closed = match &*state {
            State::Ended => true,
            State::Connected(connection) => connection.is_released,
            State::Open(_) | State::Listening(_) | State::Connecting(..) => false,
        };
        match is_closed {
            true => Err(Errno(libc::EBADF)),
            false => Ok(state),
        }
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        let mut state = self.open()?;
        match &*state {
            State::Open(None) => {
                let endpoint = Endpoint::new()?;
                endpoint.bind(address)?;
                *state = State::Open(Some(endpoint));
                Ok(())
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    pub(crate) fn listen(&self, backlog: i32, reactor: &Reactor) -> Result<(), Errno> {
        let mut state = self.open()?;
        let endpoint = match &mut *state {
            State::Open(endpoint) => endpoint.take().ok_or(Errno(libc::EDESTADDRREQ))?,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let listener = endpoint.listen(backlog)?;
        reactor.watch(listener.fd(), self.token)?;
        *state = State::Listening(Listening {
            listener,
            waiting: VecDeque::new(),
            answered: Vec::new(),
        });
        Ok(())
    }

    pub(crate) fn accept(&self, operation: Operation, reactor: &Reactor) -> Result<(), Errno> {
        match &mut *self.open()? {
            State::Listening(listening) => {
                listening.waiting.push_back(operation);
                // A client may have been waiting for this.
                reactor.kick(self.token);
                Ok(())
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        operation: Operation,
        reactor: &Reactor,
    ) -> Result<(), Errno> {
        let mut state = self.open()?;
        let bound = match &mut *state {
            State::Open(bound) => bound.take(),
            State::Connecting(..) => return Err(Errno(libc::EALREADY)),
            State::Connected(_) => return Err(Errno(libc::EISCONN)),
            State::Listening(_) | State::Ended => return Err(Errno(libc::EOPNOTSUPP)),
        };
        let endpoint = bound.map_or_else(Endpoint::new, Ok)?;
        let connecting = endpoint.connect(to, &self.options)?;
        reactor.watch(connecting.fd(), self.token)?;
        reactor.set_deadline(self.token, Some(connecting.deadline()));
        *state = State::Connecting(Box::new(connecting), operation);
        Ok(())
    }

    pub(crate) fn send(
        &self,
        buffer: Buffer,
        operation: Operation,
        reactor: &Reactor,
    ) -> Result<(), Errno> {
        self.connected(reactor, |connection| {
            let Connection {
                stream, outgoing, ..
            } = connection;
            Ok(outgoing.send(stream, buffer, operation)?)
        })
    }

    /// Sends a part of a file: in pieces, but a message as a whole.
    pub(crate) fn send_file(
        &self,
        mut part: Part,
        operation: Operation,
        reactor: &Reactor,
    ) -> Result<(), Errno> {
        if self.options.config.kind == Kind::Messages {
            let mut buffer = Buffer::new(part.left())?;
            part.read(&mut buffer).1?;
            return self.send(buffer, operation, reactor);
        }
        self.connected(reactor, |connection| {
            let Connection {
                stream, outgoing, ..
            } = connection;
            outgoing.send_file(stream, part, operation)
        })
    }

    pub(crate) fn recv(
        &self,
        buffer: Buffer,
        waitall: bool,
        operation: Operation,
        reactor: &Reactor,
    ) -> Result<(), Errno> {
        self.connected(reactor, |connection| {
            let len = buffer.len();
            let posted = connection.stream.recv(buffer, len, waitall);
            let id = posted.map_err(|refused| Errno::from(refused.error))?;
            connection.recvs.push_back((id, operation));
            Ok(())
        })
    }

    /// Finishes the sending half, the receiving half, or both.
    pub(crate) fn shut_down(
        &self,
        sends: bool,
        receives: bool,
        reactor: &Reactor,
    ) -> Result<(), Errno> {
        self.connected(reactor, |connection| {
            if receives {
                connection.stream.stop().map_err(Error::from)?;
            }
            if sends {
                connection.outgoing.finish(&mut connection.stream)?;
            }
            Ok(())
        })
    }

    /// Cancels the operations with this handle: ENOENT if there is none.
    pub(crate) fn cancel(&self, ahandle: usize, reactor: &Reactor) -> Result<(), Errno> {
        let is_it = |operation: &Operation| operation.event.ahandle == ahandle;
        let mut state = self.open()?;
        let count = match &mut *state {
            State::Listening(listening) => {
                let (canceled, left): (Vec<_>, _) =
                    listening.waiting.drain(..).partition(|op| is_it(op));
                listening.waiting = left.into();
                let count = canceled.len();
                canceled.into_iter().for_each(|op| op.end(libc::ECANCELED));
                count
            }
            State::Connecting(_, operation) if is_it(operation) => {
                abandon(&mut state, State::Open(None));
                1
            }
            State::Connected(connection) => {
                let count = connection.cancel(is_it);
                connection.settle(self.token, reactor);
                count
            }
            _ => 0,
        };
        match count {
            0 => Err(Errno(libc::ENOENT)),
            _ => Ok(()),
        }
    }

    /// The application closes the socket. `true`: the thread has to drive it until it has ended.
    pub(crate) fn release(&self, reactor: &Reactor) -> bool {
        let mut state = self.state();
        match &mut *state {
            State::Connected(connection) => {
                connection.is_released = true;
                // They fail if the stream has failed.
                let _ = connection.stream.stop();
                let _ = connection.outgoing.finish(&mut connection.stream);
                connection.deliver();
                reactor.kick(self.token);
                true
            }
            _ => {
                abandon(&mut state, State::Ended);
                false
            }
        }
    }

    /// Ends the registration of memory that no operation uses.
    pub(crate) fn forget(&self, memory: &Memory) {
        if let State::Connected(connection) = &mut *self.state() {
            connection.stream.forget(memory);
        }
    }

    /// Does what is due, without sleeping. Called by one thread only.
    pub(crate) fn drive(&self, reactor: &Reactor) -> Driven {
        let mut state = self.state();
        let mut driven = Driven::default();
        let deadline = match &mut *state {
            State::Open(_) => None,
            State::Ended => {
                driven.has_ended = true;
                None
            }
            State::Listening(listening) => {
                driven.accepted = listening.drive(&self.options, self.token, reactor);
                listening.deadline()
            }
            State::Connecting(..) => {
                driven.again = drive_connecting(&mut state, &self.options, self.token, reactor);
                match &*state {
                    State::Connecting(connecting, _) => Some(connecting.deadline()),
                    _ => None,
                }
            }
            State::Connected(connection) => {
                driven.again = !connection.drive();
                driven.has_ended = connection.is_released && connection.stream.fds().is_none();
                connection.deadline()
            }
        };
        if driven.has_ended {
            *state = State::Ended;
        }
        drop(state);
        reactor.set_deadline(self.token, deadline);
        driven
    }

    /// Watches the descriptors of a connection that was accepted.
    pub(crate) fn watch(&self, reactor: &Reactor) -> Result<(), Errno> {
        match &*self.state() {
            State::Connected(connection) => connection.watch(self.token, reactor),
            _ => Ok(()),
        }
    }

    /// A call for a connection.
    fn connected(
        &self,
        reactor: &Reactor,
        call: impl FnOnce(&mut Connection) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.open()?;
        let State::Connected(connection) = &mut *state else {
            return Err(Errno(libc::ENOTCONN));
        };
        let result = call(connection);
        connection.settle(self.token, reactor);
        result
    }
}

/// Replaces the state of a socket that is not connected; its operations are canceled.
fn abandon(state: &mut State, by: State) {
    match std::mem::replace(state, by) {
        State::Listening(listening) => {
            let answered = listening
                .answered
                .into_iter()
                .map(|(_, operation)| operation);
            let all = listening.waiting.into_iter().chain(answered);
            all.for_each(|operation| operation.end(libc::ECANCELED));
        }
        State::Connecting(connecting, operation) => {
            drop(connecting);
            operation.end(libc::ECANCELED);
        }
        State::Open(_) | State::Connected(_) | State::Ended => {}
    }
}

/// Takes the next steps of a connection; whether there is something to do at once.
fn drive_connecting(state: &mut State, options: &Options, token: Token, reactor: &Reactor) -> bool {
    let State::Connecting(connecting, _) = state else {
        return false;
    };
    let connection = match connecting.advance() {
        Ok(None) => return false,
        Ok(Some(stream)) => {
            let connection = Connection::new(stream, options);
            let watched = connection.watch(token, reactor);
            watched.map(|()| connection)
        }
        Err(error) => Err(error.into()),
    };
    let (next, errno) = match connection {
        Ok(connection) => (State::Connected(Box::new(connection)), 0),
        Err(Errno(errno)) => (State::Open(None), errno),
    };
    let is_connected = errno == 0;
    if let State::Connecting(connecting, operation) = std::mem::replace(state, next) {
        drop(connecting);
        operation.end(errno);
    }
    is_connected
}

impl Listening {
    fn drive(&mut self, options: &Options, token: Token, reactor: &Reactor) -> Vec<Accepted> {
        while !self.waiting.is_empty() {
            let answered = match self.listener.try_accept(options) {
                Ok(None) => break,
                Ok(Some(accepting)) => {
                    let watched = reactor.watch(accepting.fd(), token);
                    watched.map(|()| accepting)
                }
                Err(error) => Err(error.into()),
            };
            let operation = self.waiting.pop_front();
            let operation = operation.expect("an accept is waiting");
            match answered {
                Ok(accepting) => self.answered.push((accepting, operation)),
                Err(Errno(errno)) => operation.end(errno),
            }
        }
        let mut accepted = Vec::new();
        for (mut accepting, operation) in std::mem::take(&mut self.answered) {
            match accepting.advance() {
                Ok(None) => self.answered.push((accepting, operation)),
                Ok(Some(connection)) => accepted.push(Accepted {
                    connection,
                    operation,
                }),
                Err(error) => operation.end(Errno::from(error).0),
            }
        }
        accepted
    }

    fn deadline(&self) -> Option<Instant> {
        let all = self.answered.iter();
        all.map(|(accepting, _)| accepting.deadline()).min()
    }
}

impl Connection {
    fn new(stream: urdma_exs::Socket, options: &Options) -> Self {
        Self {
            stream,
            outgoing: Outgoing::new(options.config.max_sends),
            recvs: VecDeque::new(),
            closed: None,
            is_released: false,
        }
    }

    fn watch(&self, token: Token, reactor: &Reactor) -> Result<(), Errno> {
        let fds = self.stream.fds().into_iter().flatten();
        fds.into_iter().try_for_each(|fd| reactor.watch(fd, token))
    }

    fn cancel(&mut self, is_it: impl Fn(&Operation) -> bool) -> usize {
        let recvs = self.recvs.iter().filter(|(_, operation)| is_it(operation));
        let recvs: Vec<RecvId> = recvs.map(|&(id, _)| id).collect();
        let count = self.outgoing.cancel(&mut self.stream, is_it) + recvs.len();
        // Those that are complete, or that a failure completes, have their event in any case.
        for id in recvs {
            let _ = self.stream.cancel_recv(id);
        }
        count
    }

    /// After a call of the application.
    fn settle(&mut self, token: Token, reactor: &Reactor) {
        self.deliver();
        // The thread sends what is gathered: it cannot sleep for less than a millisecond.
        if self.stream.is_ending() || self.stream.is_gathering() {
            reactor.kick(token);
        } else if let Some(deadline) = self.deadline() {
            reactor.set_deadline(token, Some(deadline));
        }
    }

    /// Whether all that is due was done.
    fn drive(&mut self) -> bool {
        let is_done = self.stream.turn();
        self.deliver();
        let is_late = self.closed.is_some_and(|until| Instant::now() >= until);
        if is_late && self.is_released {
            self.stream.disconnect();
            self.deliver();
        }
        is_done
    }

    fn deadline(&self) -> Option<Instant> {
        let closed = self.closed.filter(|_| self.is_released);
        let has_fds = self.stream.fds().is_some();
        let both = [self.stream.deadline(), closed].into_iter().flatten();
        both.min().filter(|_| has_fds)
    }

    /// Turns what has happened into events of the operations.
    fn deliver(&mut self) {
        use urdma_exs::Event;
        while let Some(event) = self.stream.pop_event() {
            match event {
                Event::Sent {
                    id,
                    buffer,
                    octets,
                    outcome,
                } => {
                    let ended = (octets, outcome);
                    self.outgoing.take_sent(&mut self.stream, id, buffer, ended);
                }
                Event::Received {
                    id,
                    buffer,
                    octets,
                    outcome,
                } => {
                    drop(buffer);
                    if let Some(operation) = take(&mut self.recvs, id) {
                        operation.end_transfer(outcome_errno(outcome), octets);
                    }
                }
                Event::Closed => self.closed = Some(Instant::now() + LINGER),
                // Each operation that was posted has told of it.
                Event::Failed(failure) => self.outgoing.fail(failure),
            }
        }
    }
}

fn take<Id: PartialEq>(all: &mut VecDeque<(Id, Operation)>, id: Id) -> Option<Operation> {
    let index = all.iter().position(|(other, _)| *other == id)?;
    all.remove(index).map(|(_, operation)| operation)
}

/// A reference to a socket that several threads use.
pub(crate) type Shared = Arc<Socket>;

/// The number by which an application names a socket.
pub(crate) type Number = RawFd;
