//! The commands, with the semantics of the kernel's ucma and rdma_cm.

use std::net::{IpAddr, SocketAddr};

use urdma_cm::wire::Ece as CmEce;
use urdma_cm::{
    AcceptParams, ConnId, ConnState, ConnectParams, LocalQp, PrivateData, RejReason, Role,
};
use urdma_types::{PortSpace, RawQpn};

use crate::abi::{self, cmd, event, option, ConnParam, Ece};
use crate::answers;
use crate::command::{body_of, body_with_tail, Command};
use crate::driver::Errno;
use crate::handle::CmId;
use crate::ids::{with_port, IdState, UcmaState};
use crate::service::Service;
use crate::sockaddr;

/// Maximum number of pending REQs of a listener, the kernel's default.
const MAX_BACKLOG: u32 = 1024;
/// Default local acknowledgement timeout: 4.096 us * 2^16 = 268 ms.
const ACK_TIMEOUT: u8 = 16;
/// `CM_REJ_VENDOR_OPTION_NOT_SUPPORTED`, the other reason that an application may pass.
const REJ_VENDOR_OPTION: u8 = 35;
/// `IBV_EVENT_COMM_EST`.
const EVENT_COMM_EST: u32 = 4;

/// Work that remains after the lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing.
    Done,
    /// The driver resolves this address, which may block for seconds.
    Resolve {
        /// The id that waits.
        id: CmId,
        /// The address.
        ip: IpAddr,
    },
}

impl Command<'_> {
    /// Executes the command. [`crate::Ucma`] handles GET_EVENT itself, since it only fetches an
    /// event.
    pub(crate) fn run(&mut self) -> Result<After, Errno> {
        match self.header.cmd {
            cmd::RESOLVE_IP => return self.resolve_ip(),
            cmd::RESOLVE_ADDR => return self.resolve_addr(),
            cmd::CREATE_ID => self.create_id(),
            cmd::DESTROY_ID => self.destroy_id(),
            cmd::BIND_IP => {
                let body: abi::BindIp = body_of(self.body)?;
                self.bind(CmId(body.id), ip_address(&body.addr.octets)?)
            }
            cmd::BIND => self.bind_sized(),
            cmd::RESOLVE_ROUTE => self.resolve_route(),
            cmd::QUERY_ROUTE => {
                let body: abi::Query = body_of(self.body)?;
                self.query_route(&body)
            }
            cmd::QUERY => self.query(),
            cmd::CONNECT => self.connect(),
            cmd::LISTEN => self.listen(),
            cmd::ACCEPT => self.accept(),
            cmd::REJECT => self.reject(),
            cmd::DISCONNECT => self.disconnect(),
            cmd::INIT_QP_ATTR => self.init_qp_attr(),
            cmd::SET_OPTION => self.set_option(),
            cmd::NOTIFY => self.notify(),
            cmd::JOIN_IP_MCAST => self.join_ip_mcast(),
            cmd::JOIN_MCAST => self.join_mcast(),
            cmd::LEAVE_MCAST => self.leave_mcast(),
            cmd::MIGRATE_ID => self.migrate_id(),
            // Needs a subnet administrator, which Ethernet does not have.
            cmd::RESOLVE_IB_SERVICE => Err(libc::EOPNOTSUPP),
            cmd::WRITE_CM_EVENT => self.write_cm_event(),
            _ => Err(libc::ENOSYS),
        }?;
        Ok(After::Done)
    }

    fn create_id(&mut self) -> Result<(), Errno> {
        let room = self.room_for::<u32>()?;
        let body: abi::CreateId = body_of(self.body)?;
        let space = PortSpace(body.ps);
        let service = Service::of(space, body.qp_type)?;
        self.require_device()?;
        let number = self.state.add_id(self.file, body.uid, space, service);
        let answered = self.caller.put(body.response, room, &number.0);
        if answered.is_err() {
            self.state.destroy_id(self.driver, self.now, number);
        }
        answered
    }

    fn destroy_id(&mut self) -> Result<(), Errno> {
        let room = self.room_for::<u32>()?;
        let body: abi::DestroyId = body_of(self.body)?;
        self.state.id(self.file, CmId(body.id))?;
        let reported = self.state.destroy_id(self.driver, self.now, CmId(body.id));
        self.caller.put(body.response, room, &reported)
    }

    fn bind_sized(&mut self) -> Result<(), Errno> {
        let body: abi::Bind = body_of(self.body)?;
        let addr = sockaddr::parse(&body.addr.octets);
        check_size(addr, body.addr_size)?;
        if body.reserved != 0 || body.addr_size == 0 {
            return Err(libc::EINVAL);
        }
        self.bind(CmId(body.id), addr?)
    }

    fn bind(&mut self, number: CmId, addr: Option<SocketAddr>) -> Result<(), Errno> {
        let addr = addr.ok_or(libc::EINVAL)?;
        self.require_device()?;
        let is_definite = !addr.ip().is_unspecified();
        let is_foreign = is_definite && !self.state.is_own(addr.ip());
        let id = self.state.id(self.file, number)?;
        if id.state != IdState::Idle {
            return Err(libc::EINVAL);
        }
        if is_foreign {
            return Err(libc::EADDRNOTAVAIL);
        }
        id.src = Some(addr);
        let reserved = self.state.reserve_port(self.driver, number);
        let id = self.state.id(self.file, number)?;
        if reserved.is_err() {
            id.src = None;
            return reserved;
        }
        id.has_device = is_definite;
        id.state = IdState::Bound;
        Ok(())
    }

    fn resolve_ip(&mut self) -> Result<After, Errno> {
        let body: abi::ResolveIp = body_of(self.body)?;
        let src = ip_address(&body.src_addr.octets)?;
        let dst = ip_address(&body.dst_addr.octets)?;
        self.resolve(CmId(body.id), src, dst)
    }

    fn resolve_addr(&mut self) -> Result<After, Errno> {
        let body: abi::ResolveAddr = body_of(self.body)?;
        let src = sockaddr::parse(&body.src_addr.octets);
        let dst = sockaddr::parse(&body.dst_addr.octets);
        check_size(dst, body.dst_size)?;
        if body.src_size != 0 {
            check_size(src, body.src_size)?;
        }
        if body.reserved != 0 || body.dst_size == 0 {
            return Err(libc::EINVAL);
        }
        let src = if body.src_size == 0 { None } else { src? };
        self.resolve(CmId(body.id), src, dst?)
    }

    fn resolve(
        &mut self,
        number: CmId,
        src: Option<SocketAddr>,
        dst: Option<SocketAddr>,
    ) -> Result<After, Errno> {
        let dst = dst.ok_or(libc::EINVAL)?;
        self.require_device()?;
        if self.state.id(self.file, number)?.state == IdState::Idle {
            self.choose_source(number, src, dst)?;
        }
        let id = self.state.id(self.file, number)?;
        let src = id.src.ok_or(libc::EINVAL)?;
        if id.state != IdState::Bound || !sockaddr::same_family(src.ip(), dst.ip()) {
            return Err(libc::EINVAL);
        }
        id.state = IdState::AddrQuery;
        id.dst = Some(dst);
        let mut ip = dst.ip();
        if ip.is_multicast() {
            let source = self.state.own_like(ip).ok_or(libc::ENETUNREACH);
            self.state.resolved(number, ip, source);
            return Ok(After::Done);
        }
        if ip.is_unspecified() {
            ip = self.state.own_like(ip).unwrap_or(ip);
        }
        if self.state.is_own(ip) {
            self.state.resolved(number, ip, Ok(ip));
            return Ok(After::Done);
        }
        Ok(After::Resolve { id: number, ip })
    }

    /// Binds an active id to the address that the application requests, otherwise to the wildcard
    /// of the family.
    fn choose_source(
        &mut self,
        number: CmId,
        src: Option<SocketAddr>,
        dst: SocketAddr,
    ) -> Result<(), Errno> {
        match src {
            Some(src) if src.port() != 0 => return self.bind(number, Some(src)),
            Some(src) if !src.ip().is_unspecified() && !self.state.is_own(src.ip()) => {
                return Err(libc::EADDRNOTAVAIL);
            }
            _ => {}
        }
        let any = SocketAddr::new(urdma_cm::wire::unspecified_like(dst.ip()), 0);
        let port = self.state.anonymous_port();
        let id = self.state.id(self.file, number)?;
        id.src = Some(with_port(src.unwrap_or(any), port));
        id.state = IdState::Bound;
        Ok(())
    }

    fn resolve_route(&mut self) -> Result<(), Errno> {
        let body: abi::ResolveRoute = body_of(self.body)?;
        if body.timeout_ms == 0 {
            return Err(libc::EINVAL);
        }
        self.finish_route(CmId(body.id))
    }

    fn finish_route(&mut self, number: CmId) -> Result<(), Errno> {
        let id = self.state.id(self.file, number)?;
        if id.state != IdState::AddrResolved {
            return Err(libc::EINVAL);
        }
        id.state = IdState::RouteResolved;
        self.state.post(number, event::ROUTE_RESOLVED, 0);
        Ok(())
    }

    fn connect(&mut self) -> Result<(), Errno> {
        let body: abi::Connect =
            body_with_tail(self.body, std::mem::offset_of!(abi::Connect, reserved))?;
        self.require_device()?;
        let path_mtu = self.state.device.path_mtu;
        let id = self.state.id(self.file, CmId(body.id))?;
        let (Some(src), Some(dst)) = (id.src, id.dst) else {
            return Err(libc::EINVAL);
        };
        if body.conn_param.valid == 0
            || id.state != IdState::RouteResolved
            || id.service == Service::XrcTarget
        {
            return Err(libc::EINVAL);
        }
        let mut dst = sockaddr::canonical(dst);
        if dst.ip().is_unspecified() {
            dst.set_ip(src.ip().to_canonical());
        }
        let params = ConnectParams {
            src: sockaddr::canonical(src),
            dst,
            port_space: id.space,
            qp: local_qp(&body.conn_param, &body.ece)?,
            retry_count: body.conn_param.retry_count.min(7),
            ack_timeout: id.ack_timeout.unwrap_or(ACK_TIMEOUT),
            path_mtu,
            private_data: private_data(&body.conn_param)?,
        };
        let conn = self.state.manager.connect(self.now, &params);
        self.state.attach_conn(CmId(body.id), conn);
        self.state.id(self.file, CmId(body.id))?.state = IdState::Connected(conn);
        Ok(())
    }

    fn listen(&mut self) -> Result<(), Errno> {
        let body: abi::Listen = body_of(self.body)?;
        self.require_device()?;
        let id = self.state.id(self.file, CmId(body.id))?;
        if id.service == Service::XrcInitiator {
            return Err(libc::EINVAL);
        }
        if id.state == IdState::Idle {
            let any = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
            self.bind(CmId(body.id), Some(any))?;
        }
        let id = self.state.id(self.file, CmId(body.id))?;
        if id.state != IdState::Bound {
            return Err(libc::EINVAL);
        }
        if !id.has_port {
            // Its address could not be resolved, which does not reserve a port.
            self.state.reserve_port(self.driver, CmId(body.id))?;
        }
        let id = self.state.id(self.file, CmId(body.id))?;
        let (space, src) = (id.space, id.src.ok_or(libc::EINVAL)?);
        let backlog = match body.backlog {
            asked @ 1..MAX_BACKLOG => asked,
            _ => MAX_BACKLOG,
        };
        let listener = self
            .state
            .manager
            .listen(sockaddr::canonical(src), space, backlog)
            .map_err(|_| libc::EADDRINUSE)?;
        if let Err(errno) = self.driver.listen(CmId(body.id), backlog) {
            self.state.manager.close_listener(listener);
            return Err(errno);
        }
        self.state.attach_listener(CmId(body.id), listener);
        let id = self.state.id(self.file, CmId(body.id))?;
        id.reuse_addr = false;
        id.state = IdState::Listening(listener);
        Ok(())
    }

    fn accept(&mut self) -> Result<(), Errno> {
        let body: abi::Accept =
            body_with_tail(self.body, std::mem::offset_of!(abi::Accept, reserved))?;
        let conn = self.conn_of(CmId(body.id))?;
        if body.conn_param.valid == 0 {
            let manager = &mut self.state.manager;
            manager
                .establish(self.now, conn, false)
                .map_err(|_| libc::EINVAL)?;
            self.state.gates.extend(manager.local_qpn(conn));
            return Ok(());
        }
        let params = AcceptParams {
            qp: local_qp(&body.conn_param, &body.ece)?,
            private_data: private_data(&body.conn_param)?,
            qp_ready: false,
        };
        let manager = &mut self.state.manager;
        manager
            .accept(self.now, conn, &params)
            .map_err(|_| libc::EINVAL)?;
        self.state.gates.push(params.qp.qpn);
        self.state.id(self.file, CmId(body.id))?.uid = body.uid;
        Ok(())
    }

    fn reject(&mut self) -> Result<(), Errno> {
        let body: abi::Reject = body_of(self.body)?;
        let conn = self.conn_of(CmId(body.id))?;
        let reason = match body.reason {
            0 => RejReason::CONSUMER_DEFINED,
            28 | REJ_VENDOR_OPTION => RejReason(u16::from(body.reason)),
            _ => return Err(libc::EINVAL),
        };
        let octets = &body.private_data[..usize::from(body.private_data_len)];
        let private_data = PrivateData::new(octets).ok_or(libc::EINVAL)?;
        let manager = &mut self.state.manager;
        manager
            .reject(self.now, conn, reason, &private_data)
            .map_err(|_| libc::EINVAL)
    }

    fn disconnect(&mut self) -> Result<(), Errno> {
        let body: abi::Disconnect = body_of(self.body)?;
        let conn = self.conn_of(CmId(body.id))?;
        let manager = &mut self.state.manager;
        match manager.disconnect(self.now, conn) {
            Ok(()) => Ok(()),
            // A connection that failed has nothing to disconnect; the kernel returns success too.
            Err(_) if manager.state(conn) == Some(ConnState::Closed) => Ok(()),
            Err(_) => Err(libc::EINVAL),
        }
    }

    fn init_qp_attr(&mut self) -> Result<(), Errno> {
        let room = self.room_for::<abi::QpAttr>()?;
        let body: abi::InitQpAttr = body_of(self.body)?;
        let id = self.state.id(self.file, CmId(body.id))?;
        if !id.has_device {
            return Err(libc::EINVAL);
        }
        let conn = match id.state {
            IdState::Connected(conn) => Some(conn),
            _ => None,
        };
        let (service, src) = (id.service, id.src);
        let attr = answers::qp_attr(self.state, body.qp_state, service, src, conn)?;
        self.caller.put(body.response, room, &attr)
    }

    fn query_route(&mut self, body: &abi::Query) -> Result<(), Errno> {
        let room = usize::from(self.header.output);
        if room < std::mem::offset_of!(abi::QueryRouteResp, ibdev_index) {
            return Err(libc::ENOSPC);
        }
        self.state.id(self.file, CmId(body.id))?;
        let answer = answers::route(self.state, CmId(body.id));
        self.caller.put(body.response, room, &answer)
    }

    fn query(&mut self) -> Result<(), Errno> {
        let body: abi::Query = body_of(self.body)?;
        let room = usize::from(self.header.output);
        self.state.id(self.file, CmId(body.id))?;
        let addr_room = std::mem::offset_of!(abi::QueryAddrResp, ibdev_index);
        match body.option {
            abi::query::ADDR | abi::query::GID if room < addr_room => Err(libc::ENOSPC),
            abi::query::ADDR => {
                let answer = answers::addr(self.state, CmId(body.id));
                self.caller.put(body.response, room, &answer)
            }
            abi::query::GID => {
                let answer = answers::gid(self.state, CmId(body.id));
                self.caller.put(body.response, room, &answer)
            }
            abi::query::PATH if room < size_of::<abi::QueryPathResp>() => Err(libc::ENOSPC),
            abi::query::PATH => {
                let answer = answers::path(self.state, CmId(body.id));
                let len = room.min(answer.len());
                self.caller.put(body.response, len, answer.as_slice())
            }
            _ => Err(libc::ENOSYS),
        }
    }

    fn set_option(&mut self) -> Result<(), Errno> {
        let body: abi::SetOption = body_of(self.body)?;
        self.state.id(self.file, CmId(body.id))?;
        let len = usize::try_from(body.optlen).map_err(|_| libc::EINVAL)?;
        if len > 4096 {
            return Err(libc::EINVAL);
        }
        let value = self.caller.get(body.optval, len)?;
        match (body.level, body.optname) {
            (option::LEVEL_ID, name) => self.set_option_id(CmId(body.id), name, &value),
            (option::LEVEL_IB, option::IB_PATH) => {
                if value.is_empty() || value.len() % size_of::<abi::PathRecData>() != 0 {
                    return Err(libc::EINVAL);
                }
                self.finish_route(CmId(body.id))
            }
            _ => Err(libc::ENOSYS),
        }
    }

    fn set_option_id(&mut self, number: CmId, name: u32, value: &[u8]) -> Result<(), Errno> {
        let id = self.state.id(self.file, number)?;
        match (name, value) {
            (option::ID_TOS, &[tos]) => id.tos = tos,
            (option::ID_ACK_TIMEOUT, &[timeout])
                if matches!(id.service, Service::Connection | Service::XrcInitiator) =>
            {
                id.ack_timeout = Some(timeout & 31);
            }
            (option::ID_REUSEADDR, &[a, b, c, d]) => {
                let reuse = u32::from_ne_bytes([a, b, c, d]) != 0;
                let may_begin = !matches!(id.state, IdState::Listening(_));
                if !(id.state == IdState::Idle || reuse && may_begin) {
                    return Err(libc::EINVAL);
                }
                id.reuse_addr = reuse;
                return self.share_port(number);
            }
            (option::ID_AFONLY, &[a, b, c, d]) => {
                if !matches!(id.state, IdState::Idle | IdState::Bound) {
                    return Err(libc::EINVAL);
                }
                id.af_only = Some(u32::from_ne_bytes([a, b, c, d]) != 0);
                return self.share_port(number);
            }
            (option::ID_TOS..=option::ID_ACK_TIMEOUT, _) => return Err(libc::EINVAL),
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    }

    /// Tells urdmad of an id's options, if a port is reserved for it.
    fn share_port(&mut self, number: CmId) -> Result<(), Errno> {
        let id = self.state.id(self.file, number)?;
        if id.has_port {
            return self.driver.share_port(number, id.sharing());
        }
        Ok(())
    }

    fn notify(&mut self) -> Result<(), Errno> {
        let body: abi::Notify = body_of(self.body)?;
        let conn = self.conn_of(CmId(body.id))?;
        if body.event != EVENT_COMM_EST {
            return Err(libc::EINVAL);
        }
        if let Some(qpn) = self.state.manager.local_qpn(conn) {
            self.state.manager.qp_data(qpn);
        }
        Ok(())
    }

    /// Queues an event of the application's own, or of librdmacm's.
    fn write_cm_event(&mut self) -> Result<(), Errno> {
        let body: abi::WriteCmEvent = body_of(self.body)?;
        if !matches!(body.event, event::USER | event::INTERNAL) {
            return Err(libc::EINVAL);
        }
        let number = CmId(body.id);
        self.state.id(self.file, number)?;
        let status = body.status.cast_signed();
        self.state
            .post_argument(number, body.event, status, body.arg);
        Ok(())
    }

    fn migrate_id(&mut self) -> Result<(), Errno> {
        let room = self.room_for::<u32>()?;
        let body: abi::MigrateId = body_of(self.body)?;
        let reported = self.state.migrate_id(CmId(body.id), self.file)?;
        self.caller.put(body.response, room, &reported)
    }

    fn conn_of(&mut self, number: CmId) -> Result<ConnId, Errno> {
        match self.state.id(self.file, number)?.state {
            IdState::Connected(conn) => Ok(conn),
            _ => Err(libc::EINVAL),
        }
    }
}

impl UcmaState {
    /// Completes the resolution of an address, unless the id is gone: its number may be that of
    /// another one since.
    pub(crate) fn resolved(&mut self, number: CmId, ip: IpAddr, source: Result<IpAddr, Errno>) {
        let Some(id) = self
            .any_id(number)
            .filter(|id| id.state == IdState::AddrQuery)
        else {
            return;
        };
        let (Some(src), Some(dst)) = (id.src, id.dst) else {
            return;
        };
        if !dst.ip().is_unspecified() && dst.ip().to_canonical() != ip.to_canonical() {
            return;
        }
        match source {
            Ok(source) => {
                if src.ip().is_unspecified() {
                    id.src = Some(SocketAddr::new(like_family(source, src.ip()), src.port()));
                }
                if dst.ip().is_unspecified() {
                    id.dst = Some(SocketAddr::new(ip, dst.port()));
                }
                id.has_device = true;
                id.state = IdState::AddrResolved;
                self.post(number, event::ADDR_RESOLVED, 0);
            }
            Err(errno) => {
                id.state = IdState::Bound;
                self.post(number, event::ADDR_ERROR, -errno);
            }
        }
    }

    /// The role of an id in its connection; `None` if it has no connection.
    pub(crate) fn role_of(&self, conn: Option<ConnId>) -> Option<Role> {
        self.manager.role(conn?)
    }
}

/// Converts an IPv4 address to IPv4-mapped IPv6 if `model` is IPv6.
fn like_family(ip: IpAddr, model: IpAddr) -> IpAddr {
    match (ip, model) {
        (IpAddr::V4(v4), IpAddr::V6(_)) => IpAddr::V6(v4.to_ipv6_mapped()),
        _ => ip,
    }
}

/// The address of a command that accepts only IPv4 and IPv6.
fn ip_address(octets: &[u8]) -> Result<Option<SocketAddr>, Errno> {
    sockaddr::parse(octets).map_err(|_| libc::EINVAL)
}

fn check_size(addr: Result<Option<SocketAddr>, Errno>, size: u16) -> Result<(), Errno> {
    match addr {
        Ok(addr) if sockaddr::size_of(addr) == size => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

fn private_data(param: &ConnParam) -> Result<PrivateData, Errno> {
    let len = usize::from(param.private_data_len);
    PrivateData::new(&param.private_data[..len]).ok_or(libc::EINVAL)
}

fn local_qp(param: &ConnParam, ece: &Ece) -> Result<LocalQp, Errno> {
    Ok(LocalQp {
        qpn: RawQpn::new(param.qp_num).ok_or(libc::EINVAL)?,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        srq: param.srq != 0,
        flow_control: param.flow_control != 0,
        rnr_retry: param.rnr_retry_count.min(7),
        ece: CmEce {
            vendor_id: ece.vendor_id,
            attr_mod: ece.attr_mod,
        },
    })
}
