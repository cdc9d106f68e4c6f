//! The control thread: the control socket, its clients, signals, and the data thread's
//! notifications.
//!
//! Nothing here waits for a client: sockets are non-blocking, and what a client does not read
//! waits; one that asks for more and more is disconnected. `state` is what all parts share.
//! `requests` handles requests, `attach` those for slots (`attaches` limits their rate), `accept`
//! new connections (`acceptor` has the listening socket, `places` the limits), `channels` passes
//! channels on, `counting` gives the counters of the port to their readers, `recordings` takes and
//! passes flight recordings, `reap` reclaims the resources of processes (`reaping` has their slots
//! meanwhile), `spare` has the region of the next process, `report` answers status requests
//! (`statuses` has those that wait), `sockets` takes offers of TCP connections, `kernel` serves the
//! kernel module.

mod accept;
mod acceptor;
mod attach;
pub(crate) mod attaches;
mod channels;
mod counting;
mod kernel;
mod places;
mod reap;
pub(crate) mod reaping;
mod recordings;
mod report;
mod requests;
mod sockets;
pub(crate) mod spare;
mod state;
pub(crate) mod statuses;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signalfd::SignalFd;
use urdma_ipc::message::FromClient;
use urdma_ipc::packet::{NotReceived, PacketListener};

use self::acceptor::Acceptor;
pub(crate) use self::state::Control;
use crate::client::Client;
use crate::slots::Token;

/// Maximum length of a request.
const REQUEST_OCTETS_MAX: usize = 8192;
/// Requests of one client handled in one turn.
const REQUESTS_AT_ONCE: usize = 16;

/// Why the control loop ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A signal or a client requested it.
    Asked,
    /// The data thread has ended.
    DataThreadLost,
}

/// The descriptors that poll(2) reports.
struct Ready {
    /// None is ready.
    is_nothing: bool,
    signals: bool,
    bell: bool,
    listener: bool,
    /// The kernel module has requests.
    kernel: bool,
    kernel_hung_up: bool,
    counters: bool,
    clients: Vec<ReadyClient>,
}

/// What poll(2) reports of a client.
struct ReadyClient {
    token: Token,
    /// It may have packets, or room for some.
    is_ready: bool,
    has_hung_up: bool,
    is_dead: bool,
}

impl Control {
    /// Serves until a stop is requested.
    pub(crate) fn run(
        &mut self,
        listener: &PacketListener,
        signals: &SignalFd,
    ) -> Result<Ended, Errno> {
        let mut acceptor = Acceptor::new(listener, &self.config.quota);
        loop {
            if let Some(ended) = self.turn(&mut acceptor, signals)? {
                return Ok(ended);
            }
        }
    }

    /// Waits for something to do, and does all that there is; says whether the loop is to end.
    fn turn(
        &mut self,
        acceptor: &mut Acceptor<'_>,
        signals: &SignalFd,
    ) -> Result<Option<Ended>, Errno> {
        if self.kernel.keep_served(Instant::now()) {
            self.tell_kernel_slots();
        }
        let ready = self.wait(acceptor, signals)?;
        if ready.is_nothing {
            self.spare.prepare();
        }
        if ready.signals && matches!(signals.read_signal(), Ok(Some(_))) {
            return Ok(Some(Ended::Asked));
        }
        if ready.bell {
            self.shared.silence_bell();
        }
        if ready.kernel_hung_up {
            self.kernel_device_is_gone();
        }
        if ready.counters {
            self.note_readers();
        }
        if self.data.has_ended() {
            return Ok(Some(Ended::DataThreadLost));
        }
        for client in &ready.clients {
            self.serve(client);
        }
        self.send_again(Instant::now());
        if ready.listener {
            self.accept_from(acceptor);
        }
        if ready.kernel {
            self.take_from_kernel();
        }
        self.serve_kernel();
        self.answer_resolved();
        self.offers().answer_closed();
        self.drop_offenders();
        self.drop_broken();
        self.free_slots();
        self.attach_due(Instant::now());
        self.serve_statuses(Instant::now());
        self.answer_readers(Instant::now());
        // Those that have not read earlier answers.
        self.drop_broken();
        Ok(self.is_ending.then_some(Ended::Asked))
    }

    /// Waits until a descriptor is ready or a deadline has passed.
    fn wait(&self, acceptor: &Acceptor<'_>, signals: &SignalFd) -> Result<Ready, Errno> {
        const SIGNALS: usize = 0;
        const BELL: usize = 1;
        const LISTENER: usize = 2;
        let now = Instant::now();
        let bell = self.shared.bell();
        let (accepts, opens_at) = acceptor.poll_for(now);
        let mut fds = vec![
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(bell.as_fd(), PollFlags::POLLIN),
            PollFd::new(acceptor.as_fd(), accepts),
        ];
        let kernel_place = self.kernel.agent().map(|agent| {
            let mut events = PollFlags::POLLIN;
            // A program waits for counters, until it has them.
            events.set(PollFlags::POLLPRI, !self.counting.has_readers);
            fds.push(PollFd::new(agent.as_fd(), events));
            fds.len() - 1
        });
        let counters_place = self.counter_files.as_ref().map(|files| {
            fds.push(PollFd::new(files.as_fd(), PollFlags::POLLIN));
            fds.len() - 1
        });
        // By client: the index of its socket among the descriptors; the pidfd, if any, follows.
        let mut places = Vec::with_capacity(self.clients.len());
        for (token, client) in &self.clients {
            places.push((*token, fds.len(), client.death().is_some()));
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, !client.is_held(&self.closer));
            events.set(PollFlags::POLLOUT, client.is_behind());
            fds.push(PollFd::new(client.socket.as_fd(), events));
            if let Some(death) = client.death() {
                fds.push(PollFd::new(death, PollFlags::POLLIN));
            }
        }
        let is_nothing = match poll(&mut fds, self.timeout(now, opens_at)) {
            Ok(ready) => ready == 0,
            Err(Errno::EINTR) => false,
            Err(errno) => return Err(errno),
        };
        let is_set = |place: usize| fds[place].any().unwrap_or(false);
        let has = |place: usize, flag| {
            let events = fds[place].revents();
            events.is_some_and(|events| events.contains(flag))
        };
        let has_hung_up = |place| has(place, PollFlags::POLLHUP);
        let has_request = |place| has(place, PollFlags::POLLIN);
        let has_reader = |place| has(place, PollFlags::POLLPRI);
        let clients = places
            .into_iter()
            .map(|(token, place, has_death)| ReadyClient {
                token,
                is_ready: is_set(place),
                has_hung_up: has_hung_up(place),
                is_dead: has_death && is_set(place + 1),
            })
            .filter(|client| client.is_ready || client.is_dead)
            .collect();
        Ok(Ready {
            is_nothing,
            signals: is_set(SIGNALS),
            bell: is_set(BELL),
            listener: is_set(LISTENER),
            kernel: kernel_place.is_some_and(has_request),
            kernel_hung_up: kernel_place.is_some_and(has_hung_up),
            counters: counters_place.is_some_and(is_set) || kernel_place.is_some_and(has_reader),
            clients,
        })
    }

    /// How long to wait from `now` on, when the listener is paused until `opens_at`.
    fn timeout(&self, now: Instant, opens_at: Option<Instant>) -> PollTimeout {
        let deadlines = self
            .kernel
            .next_try()
            .into_iter()
            .chain(self.kernel_deadline())
            .chain(self.counting.deadline)
            .chain(opens_at)
            .chain(self.attaches.due_at())
            .chain(self.reaping.due_at())
            .chain(self.clients.values().filter_map(Client::retry_at))
            .chain(self.statuses.due_at(now))
            .chain(self.spare.is_wanted().then_some(now + spare::REST));
        let Some(deadline) = deadlines.min() else {
            return PollTimeout::NONE;
        };
        let left = deadline.saturating_duration_since(now);
        let milliseconds = (left + Duration::from_micros(999)).as_millis();
        PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
    }

    /// Sends what the kernel refused to take, if its time has come.
    fn send_again(&mut self, now: Instant) {
        let clients = self.clients.values_mut();
        for client in clients.filter(|client| client.retry_at().is_some_and(|at| at <= now)) {
            client.send_waiting();
        }
    }

    /// Handles the requests of a client.
    fn serve(&mut self, ready: &ReadyClient) {
        if let Some(client) = self.clients.get_mut(&ready.token) {
            client.send_waiting();
        }
        for _ in 0..REQUESTS_AT_ONCE {
            let Some(client) = self.clients.get_mut(&ready.token) else {
                return;
            };
            if !ready.is_ready || client.is_broken || client.is_held(&self.closer) {
                break;
            }
            match client.socket.try_recv(REQUEST_OCTETS_MAX) {
                Ok(Some(packet)) => match packet.parse::<FromClient>() {
                    Ok(message) => self.handle(ready.token, message, packet.fds),
                    Err(error) => {
                        tracing::warn!("process {}: not a request: {error}", client.peer.pid());
                        client.reject(packet.fds);
                    }
                },
                Ok(None) => client.is_broken = true,
                Err(NotReceived { errno, fds }) => {
                    if errno == Errno::EAGAIN {
                        break;
                    }
                    tracing::warn!("process {}: cannot receive: {errno}", client.peer.pid());
                    client.reject(fds);
                }
            }
        }
        if let Some(client) = self.clients.get_mut(&ready.token) {
            // Of a client that waits no packets are received, so neither is the end of them.
            let is_held = client.is_held(&self.closer);
            client.is_broken |= ready.is_dead || (ready.has_hung_up && is_held);
        }
    }

    /// Disconnects the processes that wrote what no process writes.
    fn drop_offenders(&mut self) {
        let offenders = self.shared.take_offenders();
        for client in self.clients.values_mut() {
            let slot = client.slot();
            if let Some(slot) = slot.filter(|slot| offenders.contains(*slot)) {
                tracing::warn!(
                    "slot {}: process {} has written what no process writes to its channel; \
                     disconnected",
                    slot.number(),
                    client.peer.pid()
                );
                client.is_broken = true;
            }
        }
    }

    /// Disconnects broken clients; events to the others may break some of them in turn.
    fn drop_broken(&mut self) {
        loop {
            let broken = self.clients.iter().filter(|(_, client)| client.is_broken);
            let broken: Vec<Token> = broken.map(|(token, _)| *token).collect();
            if broken.is_empty() {
                return;
            }
            for token in broken {
                self.detach(token, true, None);
                self.forget_attach(token);
                self.sockets.forget_all(token);
                if let Some(client) = self.clients.remove(&token) {
                    self.end_capture_of(&client);
                    self.close(client);
                }
                self.statuses.forget(token);
            }
        }
    }

    /// Ends the connections of all clients.
    pub(crate) fn close_all(&mut self) {
        for client in std::mem::take(&mut self.clients).into_values() {
            self.close(client);
        }
    }
}
