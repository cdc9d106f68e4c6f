//! The rdma_cm ids of all open files, their queued events, and the translation of the connection
//! manager's events to theirs.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use rustc_hash::FxHashMap;
use urdma_cm::wire::QpInfo;
use urdma_cm::{ConnId, ConnectRequest, ConnectionManager, Event, ListenId, PrivateData};
use urdma_trace::probes;
use urdma_types::{Ip16, PortSpace, RawQpn, Time};

use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{event, AhAttr, ConnParam, Ece, EventResp};
use crate::driver::{Device, Driver, Errno, PortRequest, Sharing};
use crate::handle::{CmId, FileHandle, MembershipId};
use crate::outgoing::Outgoing;
use crate::param::{datagram_param, ece_of, empty_param, no_ece, param_of, way, REST};
use crate::pending::Pending;
use crate::service::Service;
use crate::sockaddr;

/// First local port of active ids that did not request one; such ports are not reserved.
const ANONYMOUS_PORTS: u16 = 49152;

/// Numbers of destroyed ids that are not given again yet, so that a number that a program uses by
/// mistake after it has destroyed the id is as a rule unknown.
const FREE_KEPT: usize = 64;

/// State of an id, as in the kernel's `enum rdma_cm_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdState {
    /// No address.
    Idle,
    /// Has a local address.
    Bound,
    /// Waits for ADDR_RESOLVED.
    AddrQuery,
    /// Has source and destination addresses.
    AddrResolved,
    /// May connect.
    RouteResolved,
    /// Belongs to a connection of the manager.
    Connected(ConnId),
    /// Belongs to a listener of the manager.
    Listening(ListenId),
}

/// One `rdma_cm_id`.
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) file: FileHandle,
    /// The application's identifier; 0 until the connection is accepted.
    pub(crate) uid: u64,
    pub(crate) space: PortSpace,
    pub(crate) service: Service,
    pub(crate) state: IdState,
    pub(crate) src: Option<SocketAddr>,
    pub(crate) dst: Option<SocketAddr>,
    /// The device is determined, since the local address is not the wildcard.
    pub(crate) has_device: bool,
    pub(crate) reuse_addr: bool,
    /// The AFONLY option, if the application has set it.
    pub(crate) af_only: Option<bool>,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) tos: u8,
    pub(crate) events_reported: u32,
    /// Events in the file's queue that count for it.
    events_queued: u32,
    /// A port is reserved for it, which is released with the id.
    pub(crate) has_port: bool,
}

impl Id {
    /// Which other ids may share its port. An IPv4 id has AFONLY unless the application clears it.
    pub(crate) fn sharing(&self) -> Sharing {
        let is_ipv4 = self.src.is_some_and(|src| src.is_ipv4());
        Sharing {
            reuse_addr: self.reuse_addr,
            af_only: self.af_only.unwrap_or(is_ipv4),
        }
    }
}

/// An event that is pending for GET_EVENT.
#[derive(Debug)]
pub(crate) struct Queued {
    /// The id that counts the event: the listener for a CONNECT_REQUEST.
    pub(crate) id: CmId,
    /// The membership of a multicast event, which counts the event too.
    pub(crate) membership: Option<MembershipId>,
    pub(crate) event: u32,
    pub(crate) status: i32,
    pub(crate) conn: ConnParam,
    /// The remaining parameters of a datagram service, which has more.
    pub(crate) rest: [u8; REST],
    pub(crate) ece: Ece,
    /// For a CONNECT_REQUEST, the new connection and its REQ.
    pub(crate) request: Option<(ConnId, SocketAddr, SocketAddr)>,
}

/// One id's membership in one group.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The id.
    pub(crate) id: CmId,
    /// The application's identifier of the membership.
    pub(crate) uid: u64,
    pub(crate) events_reported: u32,
}

/// One open rdma_cm file.
#[derive(Debug)]
pub(crate) struct File {
    /// Set while there are events in `queue`. Both change under the lock only.
    pending: Pending,
    queue: VecDeque<Queued>,
}

/// The state that the ucma's lock protects.
#[derive(Debug)]
pub(crate) struct UcmaState {
    pub(crate) manager: ConnectionManager,
    /// What the manager has sent and there was no room for.
    pub(crate) outgoing: Outgoing,
    pub(crate) device: Device,
    /// urdmad is gone: no operation can start.
    pub(crate) removed: bool,
    /// QPs whose REP or RTU is held back, to be checked for RTR when the lock is released.
    pub(crate) gates: Vec<RawQpn>,
    pub(crate) files: BTreeMap<FileHandle, File>,
    ids: BTreeMap<CmId, Id>,
    conns: FxHashMap<ConnId, CmId>,
    listeners: BTreeMap<ListenId, CmId>,
    pub(crate) memberships: BTreeMap<MembershipId, Membership>,
    /// Of the ids that were destroyed, in this order. They are given again: librdmacm keeps 8
    /// octets for each number up to the highest, and has no place for those from 65,536 on.
    free: VecDeque<CmId>,
    last_id: u32,
    pub(crate) next_membership: u32,
    next_file: u64,
    next_port: u16,
}

impl UcmaState {
    pub(crate) fn new(manager: ConnectionManager, device: Device) -> Self {
        Self {
            manager,
            outgoing: Outgoing::default(),
            device,
            removed: false,
            gates: Vec::new(),
            files: BTreeMap::new(),
            ids: BTreeMap::new(),
            conns: FxHashMap::default(),
            listeners: BTreeMap::new(),
            memberships: BTreeMap::new(),
            free: VecDeque::new(),
            last_id: 0,
            next_membership: 0,
            next_file: 0,
            next_port: 0,
        }
    }

    /// The first address of this host in the family of `ip`; a link-local GID if there is no other.
    pub(crate) fn own_like(&self, ip: IpAddr) -> Option<IpAddr> {
        let gids = self.device.gids.iter();
        let gids = gids.map(|gid| IpAddr::from(*gid).to_canonical());
        let own = self.device.addresses.iter().copied().chain(gids);
        own.into_iter()
            .find(|own| sockaddr::same_family(*own, ip) && !own.is_unspecified())
    }

    /// Whether the address is one of this host's.
    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.device.addresses.contains(&ip) || self.device.gids.contains(&Ip16::new(ip).0)
    }

    pub(crate) fn add_file(&mut self, pending: Pending) -> FileHandle {
        let handle = FileHandle(self.next_file);
        self.next_file += 1;
        let file = File {
            pending,
            queue: VecDeque::new(),
        };
        self.files.insert(handle, file);
        handle
    }

    fn new_number(&mut self) -> CmId {
        if self.free.len() > FREE_KEPT {
            if let Some(freed) = self.free.pop_front() {
                return freed;
            }
        }
        self.last_id += 1;
        CmId(self.last_id)
    }

    pub(crate) fn add_id(
        &mut self,
        file: FileHandle,
        uid: u64,
        space: PortSpace,
        service: Service,
    ) -> CmId {
        let number = self.new_number();
        let id = Id {
            file,
            uid,
            space,
            service,
            state: IdState::Idle,
            src: None,
            dst: None,
            has_device: false,
            reuse_addr: false,
            af_only: None,
            ack_timeout: None,
            tos: 0,
            events_reported: 0,
            events_queued: 0,
            has_port: false,
        };
        self.ids.insert(number, id);
        number
    }

    /// The id of this number, if it belongs to this file.
    pub(crate) fn id(&mut self, file: FileHandle, number: CmId) -> Result<&mut Id, Errno> {
        let id = self.ids.get_mut(&number).ok_or(libc::ENOENT)?;
        if id.file == file {
            Ok(id)
        } else {
            Err(libc::EINVAL)
        }
    }

    /// The id of this number, of whatever file.
    pub(crate) fn any_id(&mut self, number: CmId) -> Option<&mut Id> {
        self.ids.get_mut(&number)
    }

    pub(crate) fn ids_of(&self, file: FileHandle) -> Vec<CmId> {
        let of_file = |&(&number, id): &(&CmId, &Id)| (id.file == file).then_some(number);
        self.ids
            .iter()
            .filter_map(|entry| of_file(&entry))
            .collect()
    }

    pub(crate) fn all_ids(&self) -> Vec<CmId> {
        self.ids.keys().copied().collect()
    }

    pub(crate) fn attach_conn(&mut self, number: CmId, conn: ConnId) {
        self.conns.insert(conn, number);
    }

    pub(crate) fn attach_listener(&mut self, number: CmId, listener: ListenId) {
        self.listeners.insert(listener, number);
    }

    /// A local port for an active id; not reserved, since it does not accept connections.
    pub(crate) fn anonymous_port(&mut self) -> u16 {
        let port = ANONYMOUS_PORTS + self.next_port;
        self.next_port = (self.next_port + 1) % (u16::MAX - ANONYMOUS_PORTS);
        port
    }

    /// Reserves the port of an id's source address, and stores the port that urdmad assigned.
    pub(crate) fn reserve_port(&mut self, driver: &dyn Driver, number: CmId) -> Result<(), Errno> {
        let Some((id, src)) = self.ids.get_mut(&number).and_then(|id| {
            let src = id.src?;
            Some((id, src))
        }) else {
            return Err(libc::EINVAL);
        };
        let wanted = PortRequest {
            space: id.space,
            ip: src.ip().to_canonical(),
            port: src.port(),
            sharing: id.sharing(),
        };
        let port = driver.bind_port(number, &wanted)?;
        id.src = Some(with_port(src, port));
        id.has_port = true;
        Ok(())
    }

    /// Destroys an id; returns the number of its events that the application has fetched.
    pub(crate) fn destroy_id(&mut self, driver: &dyn Driver, now: Time, number: CmId) -> u32 {
        let Some(id) = self.ids.remove(&number) else {
            return 0;
        };
        self.free.push_back(number);
        self.memberships
            .retain(|_, membership| membership.id != number);
        if id.events_queued > 0 {
            for queued in self.remove_events(id.file, |queued| queued.id == number) {
                if let Some((conn, ..)) = queued.request {
                    self.manager.turn_away(now, conn);
                }
            }
        }
        match id.state {
            IdState::Connected(conn) => {
                self.conns.remove(&conn);
                self.manager.destroy(now, conn);
            }
            IdState::Listening(listener) => {
                self.listeners.remove(&listener);
                self.manager.close_listener(listener);
            }
            _ => {}
        }
        if id.has_port {
            driver.release_port(number);
        }
        id.events_reported
    }

    /// Moves an id with its queued events to another file.
    pub(crate) fn migrate_id(&mut self, number: CmId, to: FileHandle) -> Result<u32, Errno> {
        let id = self.ids.get_mut(&number).ok_or(libc::ENOENT)?;
        let from = std::mem::replace(&mut id.file, to);
        let reported = id.events_reported;
        if from != to {
            for queued in self.remove_events(from, |queued| queued.id == number) {
                self.enqueue(to, queued);
            }
        }
        Ok(reported)
    }

    /// Queues an event without parameters. Ids that the application does not know yet get no
    /// events.
    pub(crate) fn post(&mut self, number: CmId, event: u32, status: i32) {
        self.post_full(number, event, status, empty_param(), no_ece());
    }

    /// Queues an event with an argument, which takes the place of the parameters.
    pub(crate) fn post_argument(&mut self, number: CmId, event: u32, status: i32, argument: u64) {
        let mut param = empty_param();
        param.as_mut_bytes()[..size_of::<u64>()].copy_from_slice(&argument.to_ne_bytes());
        self.post_full(number, event, status, param, no_ece());
    }

    fn post_full(&mut self, number: CmId, event: u32, status: i32, conn: ConnParam, ece: Ece) {
        let Some(id) = self.ids.get(&number).filter(|id| id.uid != 0) else {
            return;
        };
        let queued = Queued {
            id: number,
            membership: None,
            event,
            status,
            conn,
            rest: [0; REST],
            ece,
            request: None,
        };
        self.enqueue(id.file, queued);
    }

    /// Queues the result of a datagram service's REP: the destination for datagrams.
    fn post_service(&mut self, conn: ConnId, qp: &QpInfo, private_data: &PrivateData) {
        let Some(&number) = self.conns.get(&conn) else {
            return;
        };
        let src = self.ids.get(&number).and_then(|id| id.src);
        let Some(remote) = self.manager.remote(conn) else {
            return;
        };
        let way = way(&self.device, src, remote.peer.ip);
        let (param, rest) = datagram_param(qp.qpn, way, private_data);
        let Some(id) = self.ids.get(&number).filter(|id| id.uid != 0) else {
            return;
        };
        let queued = Queued {
            id: number,
            membership: None,
            event: event::ESTABLISHED,
            status: 0,
            conn: param,
            rest,
            ece: no_ece(),
            request: None,
        };
        self.enqueue(id.file, queued);
    }

    fn is_datagram(&self, conn: ConnId) -> bool {
        let id = self
            .conns
            .get(&conn)
            .and_then(|number| self.ids.get(number));
        id.is_some_and(|id| id.service == Service::Datagram)
    }

    pub(crate) fn enqueue(&mut self, file: FileHandle, queued: Queued) {
        probes::event_push(queued.id.0, queued.event, queued.status);
        if let Some(file) = self.files.get_mut(&file) {
            if let Some(id) = self.ids.get_mut(&queued.id) {
                id.events_queued += 1;
            }
            file.queue.push_back(queued);
            if file.queue.len() == 1 {
                file.pending.set();
            }
        }
    }

    /// Removes events from a file's queue, in order.
    pub(crate) fn remove_events(
        &mut self,
        file: FileHandle,
        is_meant: impl Fn(&Queued) -> bool,
    ) -> Vec<Queued> {
        let Some(file) = self.files.get_mut(&file) else {
            return Vec::new();
        };
        let removed = extract(&mut file.queue, is_meant);
        if file.queue.is_empty() && !removed.is_empty() {
            file.pending.clear();
        }
        for queued in &removed {
            if let Some(id) = self.ids.get_mut(&queued.id) {
                id.events_queued -= 1;
            }
        }
        removed
    }

    /// Removes the event of a request that the application has not received. Those that end
    /// together are the oldest, so that this takes no long time.
    fn remove_request(&mut self, listener: ListenId, conn: ConnId) {
        let Some(id) = self
            .listeners
            .get(&listener)
            .and_then(|number| self.ids.get_mut(number))
        else {
            return;
        };
        let Some(file) = self.files.get_mut(&id.file) else {
            return;
        };
        let is_meant = |queued: &Queued| queued.request.is_some_and(|request| request.0 == conn);
        let Some(at) = file.queue.iter().position(is_meant) else {
            return;
        };
        file.queue.remove(at);
        id.events_queued -= 1;
        if file.queue.is_empty() {
            file.pending.clear();
        }
    }

    /// The next event of a file, counted for its id; `None` if none is pending.
    pub(crate) fn next_event(&mut self, file: FileHandle) -> Result<Option<EventResp>, Errno> {
        let queue = &mut self.files.get_mut(&file).ok_or(libc::EBADF)?;
        let Some(queued) = queue.queue.pop_front() else {
            return Ok(None);
        };
        if queue.queue.is_empty() {
            queue.pending.clear();
        }
        let (mut uid, mut kind) = (0, (PortSpace::TCP, Service::Connection));
        if let Some(id) = self.ids.get_mut(&queued.id) {
            id.events_reported += 1;
            id.events_queued -= 1;
            (uid, kind) = (id.uid, (id.space, id.service));
        }
        let mut number = queued.id.0;
        if let Some(membership) = queued.membership {
            if let Some(known) = self.memberships.get_mut(&membership) {
                known.events_reported += 1;
                uid = known.uid;
            }
            number = membership.0;
        }
        if let Some((conn, src, dst)) = queued.request {
            let new = self.add_id(file, 0, kind.0, kind.1);
            number = new.0;
            self.manager.take_request(conn);
            self.conns.insert(conn, new);
            if let Some(id) = self.ids.get_mut(&new) {
                id.state = IdState::Connected(conn);
                id.src = Some(src);
                id.dst = Some(dst);
                id.has_device = true;
            }
        }
        Ok(Some(EventResp {
            uid,
            id: number,
            event: queued.event,
            status: queued.status.cast_unsigned(),
            conn: queued.conn,
            rest: queued.rest,
            reserved: 0,
            ece: queued.ece,
        }))
    }

    /// Turns the manager's events into events of ids.
    pub(crate) fn drain_manager(&mut self) {
        while let Some(event) = self.manager.poll_event() {
            self.translate(event);
        }
    }

    fn translate(&mut self, event: Event) {
        match event {
            Event::ConnectRequest(request) => self.queue_request(&request),
            Event::Withdrawn { listener, conn } => self.remove_request(listener, conn),
            Event::Response {
                conn,
                qp,
                private_data,
            } if self.is_datagram(conn) => self.post_service(conn, &qp, &private_data),
            Event::Response {
                conn,
                qp,
                private_data,
            } => {
                let param = param_of(&qp, 0, &private_data);
                self.post_conn(conn, event::CONNECT_RESPONSE, 0, param, ece_of(&qp));
            }
            Event::Established { conn } => {
                self.post_conn(conn, event::ESTABLISHED, 0, empty_param(), no_ece());
            }
            Event::Rejected {
                conn,
                reason,
                private_data,
            } => {
                let param = param_of(&QpInfo::default(), 0, &private_data);
                let status = i32::from(reason.0);
                self.post_conn(conn, event::REJECTED, status, param, no_ece());
            }
            Event::Unreachable { conn } => {
                let status = -libc::ETIMEDOUT;
                self.post_conn(conn, event::UNREACHABLE, status, empty_param(), no_ece());
            }
            Event::Disconnected { conn, timed_out } => {
                let status = if timed_out { -libc::ETIMEDOUT } else { 0 };
                self.post_conn(conn, event::DISCONNECTED, status, empty_param(), no_ece());
            }
            Event::TimeWaitExit { conn } => {
                self.post_conn(conn, event::TIMEWAIT_EXIT, 0, empty_param(), no_ece());
            }
        }
    }

    fn post_conn(&mut self, conn: ConnId, event: u32, status: i32, param: ConnParam, ece: Ece) {
        if let Some(&number) = self.conns.get(&conn) {
            self.post_full(number, event, status, param, ece);
        }
    }

    fn queue_request(&mut self, request: &ConnectRequest) {
        let Some(&number) = self.listeners.get(&request.listener) else {
            return;
        };
        let Some(file) = self.ids.get(&number).map(|id| id.file) else {
            return;
        };
        let qp = &request.req.qp;
        let (conn, rest) = if request.req.port_space.is_datagram() {
            // The kernel reports no more about the sender of a datagram REQ either.
            datagram_param(RawQpn::NONE, AhAttr::new_zeroed(), &request.private_data)
        } else {
            let param = param_of(qp, request.req.retry_count, &request.private_data);
            (param, [0; REST])
        };
        let queued = Queued {
            id: number,
            membership: None,
            event: event::CONNECT_REQUEST,
            status: 0,
            conn,
            rest,
            ece: ece_of(qp),
            request: Some((request.conn, request.req.dst, request.req.src)),
        };
        self.enqueue(file, queued);
    }
}

pub(crate) fn with_port(mut addr: SocketAddr, port: u16) -> SocketAddr {
    addr.set_port(port);
    addr
}

fn extract(queue: &mut VecDeque<Queued>, is_meant: impl Fn(&Queued) -> bool) -> Vec<Queued> {
    let mut removed = Vec::new();
    for _ in 0..queue.len() {
        if let Some(queued) = queue.pop_front() {
            if is_meant(&queued) {
                removed.push(queued);
            } else {
                queue.push_back(queued);
            }
        }
    }
    removed
}
