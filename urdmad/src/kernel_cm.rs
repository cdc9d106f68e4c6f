//! Connection management for the kernel module: the operations of `iw_cm`, on the CM engine (crate
//! `cm`) that the stand-in uses too, in slot 0.
//!
//! The module identifies listeners and connections by numbers ([`ModuleId`]). The queue pairs are
//! in processes, which set them to RTR and RTS on request; neither REP nor RTU is sent before that.
//! Nothing here blocks or sends: [`KernelCm::next_output`] returns the actions.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use urdma_cm::wire::{QpInfo, MAX_MESSAGE};
use urdma_cm::{
    AcceptParams, Config, ConnId, ConnectParams, ConnectRequest, ConnectionManager, Event,
    ListenId, LocalQp, Peer, PrivateData, RejReason, RemoteQp,
};
use urdma_ipc::message::QpTarget;
use urdma_ipc::{CmPort, PortSharing};
use urdma_kernel::abi::{cm_kind, CmMessage};
use urdma_trace::Recorder;
use urdma_types::{Ip16, PortSpace, Qpn, RawQpn, SlotId, Time};

use crate::listeners::{Binder, BindingId};
use crate::shared::Shared;

/// Time limit for a living process to set a queue pair: as long as an application may take to
/// decide about a request. The process may be stopped, or wait for a CPU.
const QP_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which the process is checked: a dying process does not answer, and the kernel delays
/// its exit for as long.
const QP_LOOK: Duration = Duration::from_secs(1);
/// Time limit for an application to decide about a request whose listener it has closed. The kernel
/// silently drops requests that it has not yet delivered to the listener.
const DECISION_PATIENCE: Duration = Duration::from_secs(3);
/// The stand-in's defaults for parameters that an application does not set (as in `librdmacm`).
const RETRIES: u8 = 7;
const ACK_TIMEOUT: u8 = 16;
/// Listeners of all processes together.
const BY_KERNEL: Binder = Binder {
    member: None,
    quota: 65_535,
};

/// A listener or connection of the module, by the number in its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ModuleId(u32);

impl ModuleId {
    /// The module's own numbers are below, those that urdmad gives to requests from here on.
    const FIRST_REQUEST: u32 = 1 << 31;

    /// Whether it is a request that urdmad brought to the module.
    fn is_request(self) -> bool {
        self.0 >= Self::FIRST_REQUEST
    }

    /// The request after this one.
    fn next_request(self) -> Self {
        Self(self.0.wrapping_add(1) | Self::FIRST_REQUEST)
    }
}

/// An action for the caller.
#[derive(Debug)]
pub(crate) enum Output {
    /// Send a message to the module.
    Kernel(Box<CmMessage>),
    /// A listener of this process has a request (see [`KernelCm::askers`]) from an address, of a
    /// queue pair in this slot if the address is of this host.
    Requested(u32, (IpAddr, SlotId)),
    /// Have the owner of a queue pair set it.
    SetQp(RawQpn, QpTarget),
    /// Have the owner of a queue pair move it to the error state.
    EndQp(RawQpn),
    /// Send a datagram.
    Send(Peer, Vec<u8>),
}

/// An event that must happen before `end`; at `look` it is checked whether it still can.
#[derive(Debug, Clone, Copy)]
struct Wait {
    look: Time,
    end: Time,
}

#[derive(Debug)]
struct Listener {
    listener: ListenId,
    /// The process that listens; 0 if it is not visible.
    pid: u32,
}

#[derive(Debug)]
struct Connection {
    conn: ConnId,
    /// The queue pair, [`RawQpn::NONE`] before an accept.
    qpn: RawQpn,
    /// The listener of a request.
    listener: Option<ModuleId>,
    /// The address that a request is from, and the slot of its queue pair.
    asker: Option<(IpAddr, SlotId)>,
    /// The other end's queue pair, for which a process was asked to set this one.
    target: Option<QpInfo>,
    /// Until the queue pair is set, or a request without a listener is decided.
    wait: Option<Wait>,
    /// The REP, reported when the queue pair is set.
    response: Option<(QpInfo, PrivateData)>,
}

/// All listeners and connections of the kernel's device.
#[derive(Debug)]
pub(crate) struct KernelCm {
    engine: ConnectionManager,
    path_mtu: u8,
    listeners: HashMap<ModuleId, Listener>,
    connections: HashMap<ModuleId, Connection>,
    /// The module's numbers by the engine's identifiers.
    of_listener: HashMap<ListenId, ModuleId>,
    of_conn: HashMap<ConnId, ModuleId>,
    last_request: ModuleId,
    outputs: VecDeque<Output>,
}

impl KernelCm {
    /// Passes what happens to connections to `recorder`.
    pub(crate) fn record_with(&mut self, recorder: Recorder) {
        self.engine.record_with(recorder);
    }

    /// No listeners or connections; `seed` must be unpredictable.
    pub(crate) fn new(seed: u64, path_mtu: u8) -> Self {
        let [a, b, c, d, ..] = seed.to_be_bytes();
        Self {
            engine: ConnectionManager::new(Config::new(SlotId::DAEMON, seed)),
            path_mtu,
            listeners: HashMap::new(),
            connections: HashMap::new(),
            of_listener: HashMap::new(),
            of_conn: HashMap::new(),
            // The module may still name requests of an earlier urdmad; their numbers must not match
            // new ones.
            last_request: ModuleId(u32::from_ne_bytes([a, b, c, d])),
            outputs: VecDeque::new(),
        }
    }

    /// Handles a message of the module.
    pub(crate) fn take(&mut self, now: Time, message: &CmMessage, shared: &Shared) {
        let id = ModuleId(message.id);
        match message.kind {
            cm_kind::CONNECT => self.connect(now, id, message),
            cm_kind::LISTEN => self.listen(id, message, shared),
            cm_kind::ACCEPT => self.accept(now, id, message),
            cm_kind::REJECT => self.reject(now, id, message),
            cm_kind::END => self.end(now, id, shared),
            kind => tracing::warn!("the kernel module sent a message of unknown kind {kind:#x}"),
        }
    }

    /// Handles a datagram from a host.
    pub(crate) fn handle_datagram(&mut self, now: Time, from: IpAddr, datagram: &[u8]) {
        self.engine.handle_datagram(now, from, datagram);
    }

    /// Handles the timers that are due. `is_dying` says whether the owner of a queue pair has ended
    /// or is about to.
    pub(crate) fn handle_timeout(&mut self, now: Time, is_dying: impl Fn(RawQpn) -> bool) {
        self.engine.handle_timeout(now);
        let mut late = Vec::new();
        for (&id, connection) in &mut self.connections {
            let qpn = connection.qpn;
            let Some(wait) = connection.wait.as_mut().filter(|wait| wait.look <= now) else {
                continue;
            };
            if wait.end <= now || is_dying(qpn) {
                late.push((id, qpn != RawQpn::NONE));
            } else {
                wait.look = wait.end.earlier(now.plus(QP_LOOK));
            }
        }
        for (id, is_decided) in late {
            if is_decided {
                self.give_up(now, id);
            } else {
                self.drop_undecided(now, id);
            }
        }
    }

    /// When [`KernelCm::handle_timeout`] must be called next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let own = self.connections.values().filter_map(|c| Some(c.wait?.look));
        own.chain(self.engine.next_deadline()).min()
    }

    /// A process has set a queue pair, or failed to.
    pub(crate) fn qp_is_set(&mut self, now: Time, qpn: RawQpn, succeeded: bool) {
        let waiting = |(_, c): &(&ModuleId, &mut Connection)| c.qpn == qpn && c.wait.is_some();
        let Some((&id, connection)) = self.connections.iter_mut().find(waiting) else {
            return;
        };
        connection.wait = None;
        if !succeeded {
            return self.give_up(now, id);
        }
        if id.is_request() {
            self.engine.qp_ready(now, qpn);
        } else {
            self.establish(now, id);
        }
    }

    /// The queue pair of a connecting end is set: accepts the REP, if it is there already.
    fn establish(&mut self, now: Time, id: ModuleId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let conn = connection.conn;
        let Some((qp, private_data)) = connection.response.take() else {
            return;
        };
        if self.engine.establish(now, conn, true).is_err() {
            return self.give_up(now, id);
        }
        let mut reply = message(cm_kind::REPLY, id);
        // One end's initiator depth is the other's responder resources.
        (reply.ord, reply.ird) = (qp.initiator_depth, qp.responder_resources);
        set_private(&mut reply, &private_data);
        self.tell(reply);
    }

    /// Where the requests are from that listeners of a process have and it has not accepted yet:
    /// their addresses, and the slots of their queue pairs if the addresses are of this host.
    pub(crate) fn askers(&self, pid: u32) -> Vec<(IpAddr, SlotId)> {
        let is_of = |connection: &&Connection| {
            let listener = connection.listener.and_then(|id| self.listeners.get(&id));
            connection.qpn == RawQpn::NONE && listener.is_some_and(|by| by.pid == pid)
        };
        let undecided = self.connections.values().filter(is_of);
        undecided
            .filter_map(|connection| connection.asker)
            .collect()
    }

    /// The module has not accepted a message of [`Output::Kernel`]. A request without room (ENOMEM)
    /// is retransmitted by its sender; with another error its listener is closed.
    pub(crate) fn not_taken(&mut self, now: Time, message: &CmMessage, errno: i32) {
        if message.kind != cm_kind::REQUEST {
            return;
        }
        if errno != libc::ENOMEM {
            return self.drop_undecided(now, ModuleId(message.id));
        }
        if let Some(conn) = self.remove(ModuleId(message.id)) {
            self.engine.drop_request(conn);
        }
    }

    /// The module is gone, with its listeners and connections.
    pub(crate) fn clear(&mut self, now: Time, shared: &Shared) {
        for id in self.connections.keys().copied().collect::<Vec<_>>() {
            self.forget(now, id);
        }
        for id in self.listeners.keys().copied().collect::<Vec<_>>() {
            self.unlisten(id, shared);
        }
    }

    /// The next action.
    pub(crate) fn next_output(&mut self, now: Time) -> Option<Output> {
        while let Some(event) = self.engine.poll_event() {
            self.translate(now, event);
        }
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let mut octets = [0; MAX_MESSAGE];
        let transmit = self.engine.poll_transmit(&mut octets)?;
        Some(Output::Send(transmit.to, octets[..transmit.len].to_vec()))
    }

    fn tell(&mut self, message: CmMessage) {
        self.outputs.push_back(Output::Kernel(Box::new(message)));
    }

    fn connect(&mut self, now: Time, id: ModuleId, request: &CmMessage) {
        let (Some(qp), Some(private_data)) = (local_qp(request), private_of(request)) else {
            return self.tell(message(cm_kind::CLOSED, id));
        };
        let params = ConnectParams {
            src: SocketAddr::new(address(request.local), request.local_port),
            dst: SocketAddr::new(address(request.remote), request.remote_port),
            port_space: PortSpace::TCP,
            qp,
            retry_count: RETRIES,
            ack_timeout: ACK_TIMEOUT,
            path_mtu: self.path_mtu,
            private_data,
        };
        let conn = self.engine.connect(now, &params);
        self.add(id, conn, qp.qpn, None);
    }

    fn add(&mut self, id: ModuleId, conn: ConnId, qpn: RawQpn, listener: Option<ModuleId>) {
        self.of_conn.insert(conn, id);
        let connection = Connection {
            conn,
            qpn,
            listener,
            asker: None,
            target: None,
            wait: None,
            response: None,
        };
        self.connections.insert(id, connection);
    }

    fn listen(&mut self, id: ModuleId, request: &CmMessage, shared: &Shared) {
        let mut answer = message(cm_kind::LISTENING, id);
        let (ip, port) = (address(request.local), request.local_port);
        let backlog = request.backlog.max(1);
        let wanted = CmPort {
            space: urdma_ipc::PortTable::Tcp,
            addr: ip,
            port,
            sharing: PortSharing {
                reuse_addr: false,
                af_only: ip.is_ipv4(),
            },
        };
        let binding = binding_of(id);
        let bound = shared.change_listeners().bind(binding, wanted, BY_KERNEL);
        let listened = bound
            .and_then(|port| {
                shared
                    .change_listeners()
                    .listen(binding, backlog)
                    .map(|()| port)
            })
            .map_err(|refusal| refusal.to_string())
            .and_then(|port| {
                let address = SocketAddr::new(ip, port);
                let listener = self.engine.listen(address, PortSpace::TCP, backlog);
                listener.map_err(|_| {
                    // Bound above, so the release succeeds.
                    let _ = shared.change_listeners().release(binding);
                    format!("{address} is listened on already")
                })
            });
        match listened {
            Ok(listener) => {
                self.of_listener.insert(listener, id);
                let pid = request.pid;
                self.listeners.insert(id, Listener { listener, pid });
            }
            Err(reason) => {
                tracing::info!("the kernel cannot listen: {reason}");
                answer.status = -libc::EADDRINUSE;
            }
        }
        self.tell(answer);
    }

    fn unlisten(&mut self, id: ModuleId, shared: &Shared) {
        if let Some(Listener { listener, .. }) = self.listeners.remove(&id) {
            self.of_listener.remove(&listener);
            self.engine.close_listener(listener);
            // Bound in `listen`, so the release succeeds.
            let _ = shared.change_listeners().release(binding_of(id));
        }
    }

    /// Sets a time limit for the undecided requests of a listener that is closed.
    fn limit_decisions(&mut self, now: Time, listener: ModuleId) {
        let is_undecided =
            |c: &&mut Connection| c.listener == Some(listener) && c.qpn == RawQpn::NONE;
        for request in self.connections.values_mut().filter(is_undecided) {
            let end = now.plus(DECISION_PATIENCE);
            request.wait = Some(Wait { look: end, end });
        }
    }

    fn accept(&mut self, now: Time, id: ModuleId, request: &CmMessage) {
        let conn = self.connections.get(&id).map(|c| c.conn);
        let (Some(conn), Some(qp), Some(private_data)) =
            (conn, local_qp(request), private_of(request))
        else {
            return self.tell(message(cm_kind::CLOSED, id));
        };
        let params = AcceptParams {
            qp,
            private_data,
            qp_ready: false,
        };
        if self.engine.accept(now, conn, &params).is_err() {
            // The request was withdrawn in the meantime.
            return self.give_up(now, id);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.qpn = qp.qpn;
            connection.wait = None;
        }
        if let Some(remote) = self.engine.remote(conn) {
            self.set_qp(now, id, &remote, now.plus(QP_PATIENCE));
        }
        self.set_waiting_qp(now, conn);
    }

    /// Has the process of the connecting end set its queue pair too, if both ends are on this host,
    /// while the accepting end's is set. The REP still follows the latter, and has the time limit.
    fn set_waiting_qp(&mut self, now: Time, accepted: ConnId) {
        let Some((conn, remote)) = self.engine.waiting_end(accepted) else {
            return;
        };
        if let Some(&id) = self.of_conn.get(&conn) {
            self.set_qp(now, id, &remote, Time::NEVER);
        }
    }

    /// The REP has come.
    fn respond(&mut self, now: Time, conn: ConnId, qp: QpInfo, private_data: PrivateData) {
        let Some(&id) = self.of_conn.get(&conn) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.response = Some((qp, private_data));
        let end = now.plus(QP_PATIENCE);
        match (connection.target, &mut connection.wait) {
            (None, _) => {
                if let Some(remote) = self.engine.remote(conn) {
                    self.set_qp(now, id, &remote, end);
                }
            }
            // It was set for another answer, which has failed.
            (Some(target), _) if target != qp => self.give_up(now, id),
            (Some(_), Some(wait)) => wait.end = end,
            (Some(_), None) => self.establish(now, id),
        }
    }

    fn reject(&mut self, now: Time, id: ModuleId, request: &CmMessage) {
        if request.status != 0 {
            return self.drop_undecided(now, id);
        }
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let private_data = private_of(request).unwrap_or(PrivateData::EMPTY);
        // A withdrawn request needs no refusal.
        let _ = self.engine.reject(
            now,
            connection.conn,
            RejReason::CONSUMER_DEFINED,
            &private_data,
        );
        self.forget(now, id);
    }

    fn end(&mut self, now: Time, id: ModuleId, shared: &Shared) {
        if self.listeners.contains_key(&id) {
            self.unlisten(id, shared);
            return self.limit_decisions(now, id);
        }
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        // The event says when it has ended.
        if self.engine.disconnect(now, connection.conn).is_err() {
            self.give_up(now, id);
        }
    }

    /// Has the process set its queue pair to the connection's parameters, once, until `end`.
    fn set_qp(&mut self, now: Time, id: ModuleId, remote: &RemoteQp, end: Time) {
        let connection = self.connections.get_mut(&id);
        let Some(connection) = connection.filter(|c| c.target.is_none()) else {
            return;
        };
        connection.target = Some(remote.qp);
        connection.wait = Some(Wait {
            look: now.plus(QP_LOOK),
            end,
        });
        let target = QpTarget {
            qpn: connection.qpn.to_u32(),
            remote_ip: remote.peer.ip,
            local_ip: remote.local_ip,
            remote_qpn: remote.qp.qpn.to_u32(),
            remote_psn: remote.qp.psn.to_u32(),
            local_psn: remote.local_psn.to_u32(),
            path_mtu: remote.path_mtu.min(self.path_mtu),
            retry_count: remote.retry_count,
            rnr_retry: remote.qp.rnr_retry,
            ack_timeout: remote.ack_timeout,
            max_rd_atomic: remote.qp.responder_resources,
            max_dest_rd_atomic: remote.qp.initiator_depth,
        };
        let set = Output::SetQp(connection.qpn, target);
        self.outputs.push_back(set);
    }

    /// Ends a connection that has failed, and reports it, to its queue pair too: for an RNIC
    /// librdmacm has only stopped sending, and applications wait for their receives to be flushed.
    fn give_up(&mut self, now: Time, id: ModuleId) {
        let qpn = self.connections.get(&id).map(|c| c.qpn);
        if let Some(qpn) = qpn.filter(|&qpn| qpn != RawQpn::NONE) {
            self.outputs.push_back(Output::EndQp(qpn));
        }
        self.forget(now, id);
        self.tell(message(cm_kind::CLOSED, id));
    }

    /// Removes a connection; the engine informs the peer if necessary.
    fn forget(&mut self, now: Time, id: ModuleId) {
        if let Some(conn) = self.remove(id) {
            self.engine.destroy(now, conn);
        }
    }

    /// Drops a request that was not decided before its listener closed; its retransmission may find
    /// the next listener.
    fn drop_undecided(&mut self, now: Time, id: ModuleId) {
        if let Some(conn) = self.remove(id) {
            self.engine.turn_away(now, conn);
        }
    }

    fn remove(&mut self, id: ModuleId) -> Option<ConnId> {
        let conn = self.connections.remove(&id)?.conn;
        self.of_conn.remove(&conn);
        Some(conn)
    }

    fn translate(&mut self, now: Time, event: Event) {
        match event {
            Event::ConnectRequest(request) => self.bring_request(now, &request),
            Event::Response {
                conn,
                qp,
                private_data,
            } => self.respond(now, conn, qp, private_data),
            Event::Established { conn } => {
                if let Some(&id) = self.of_conn.get(&conn) {
                    self.tell(message(cm_kind::ESTABLISHED, id));
                }
            }
            Event::Rejected {
                conn, private_data, ..
            } => self.fail(now, conn, libc::ECONNREFUSED, &private_data),
            Event::Unreachable { conn } => {
                self.fail(now, conn, libc::ETIMEDOUT, &PrivateData::EMPTY);
            }
            Event::Disconnected { conn, .. } => {
                if let Some(&id) = self.of_conn.get(&conn) {
                    self.give_up(now, id);
                }
            }
            // The module has received each request at once.
            Event::Withdrawn { .. } | Event::TimeWaitExit { .. } => {}
        }
    }

    /// The connection attempt failed. For an accepted request, iw_cm expects only the close.
    fn fail(&mut self, now: Time, conn: ConnId, errno: i32, private_data: &PrivateData) {
        let Some(&id) = self.of_conn.get(&conn) else {
            return;
        };
        let connection = self.connections.get(&id);
        if let Some(set) = connection.filter(|c| c.target.is_some()) {
            self.outputs.push_back(Output::EndQp(set.qpn));
        }
        self.forget(now, id);
        let mut answer = if id.is_request() {
            message(cm_kind::CLOSED, id)
        } else {
            message(cm_kind::REPLY, id)
        };
        answer.status = -errno;
        set_private(&mut answer, private_data);
        self.tell(answer);
    }

    fn bring_request(&mut self, now: Time, request: &ConnectRequest) {
        let Some(&listener) = self.of_listener.get(&request.listener) else {
            return self.engine.destroy(now, request.conn);
        };
        let id = self.last_request.next_request();
        self.last_request = id;
        self.add(id, request.conn, RawQpn::NONE, Some(listener));
        let slot = request.req.qp.qpn.to_qpn().map(Qpn::slot);
        let asker = slot.map(|slot| (request.req.src.ip(), slot));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.asker = asker;
        }
        self.engine.take_request(request.conn);
        let mut asked = message(cm_kind::REQUEST, id);
        asked.listener = listener.0;
        (asked.local, asked.local_port) = octets(request.req.dst);
        (asked.remote, asked.remote_port) = octets(request.req.src);
        asked.ord = request.req.qp.initiator_depth;
        asked.ird = request.req.qp.responder_resources;
        set_private(&mut asked, &request.private_data);
        self.tell(asked);
        let pid = self.listeners.get(&listener).map_or(0, |by| by.pid);
        if let Some(asker) = asker.filter(|_| pid != 0) {
            self.outputs.push_back(Output::Requested(pid, asker));
        }
    }
}

fn message(kind: u32, id: ModuleId) -> CmMessage {
    CmMessage {
        kind,
        id: id.0,
        ..CmMessage::default()
    }
}

fn address(octets: [u8; 16]) -> IpAddr {
    Ip16(octets).to_ip()
}

/// The binding of a kernel listener.
fn binding_of(listener: ModuleId) -> BindingId {
    BindingId {
        slot: SlotId::DAEMON,
        number: listener.0,
    }
}

fn octets(address: SocketAddr) -> ([u8; 16], u16) {
    (Ip16::new(address.ip()).0, address.port())
}

fn private_of(message: &CmMessage) -> Option<PrivateData> {
    PrivateData::new(&message.private_data[..usize::from(message.private_len)])
}

fn set_private(message: &mut CmMessage, private_data: &PrivateData) {
    let octets = private_data.as_slice();
    message.private_data[..octets.len()].copy_from_slice(octets);
    message.private_len = u8::try_from(octets.len()).unwrap_or(u8::MAX);
}

/// The queue pair that the module names; `None` if its number has more than 24 bits.
fn local_qp(message: &CmMessage) -> Option<LocalQp> {
    Some(LocalQp {
        qpn: RawQpn::new(message.qpn)?,
        responder_resources: message.ird,
        initiator_depth: message.ord,
        rnr_retry: RETRIES,
        ..LocalQp::default()
    })
}

#[cfg(test)]
mod tests;
