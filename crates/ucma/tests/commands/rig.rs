//! Two simulated processes of one host, and the commands that librdmacm writes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use urdma_cm::wire::{reject_no_listener, ReqRoute, MAX_MESSAGE};
use urdma_types::{Ip16, PortSpace, Qpn, RawQpn, SlotId, Time};
use urdma_ucma::abi::{self, cmd, event, EventResp, QpAttr, QueryRouteResp};
use urdma_ucma::{CmId, Device, Driver, Errno, FileHandle, Peer, PortRequest, Sharing, Ucma};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub(crate) const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 1));
pub(crate) const GUID: [u8; 8] = [2, 0, 0, 0xff, 0xfe, 0, 0, 1];

/// The host of both processes.
#[derive(Default)]
pub(crate) struct Host {
    pub(crate) now_ns: AtomicU64,
    pub(crate) packets: Mutex<VecDeque<(SlotId, Vec<u8>)>>,
    /// There is no room for packets.
    pub(crate) is_full: AtomicBool,
    /// By slot and id.
    pub(crate) ports: Mutex<HashMap<(SlotId, CmId), PortRequest>>,
    pub(crate) listeners: Mutex<HashMap<u16, SlotId>>,
}

pub(crate) struct Process {
    pub(crate) slot: SlotId,
    pub(crate) host: Arc<Host>,
    /// QPs that are not in RTR.
    pub(crate) unready: Mutex<HashSet<RawQpn>>,
    /// Datagrams of this host that the process has not looked at yet.
    pub(crate) unseen: Mutex<VecDeque<Vec<u8>>>,
    ucma: OnceLock<Weak<Ucma>>,
}

impl Driver for Process {
    fn now(&self) -> Time {
        Time::from_ns(self.host.now_ns.load(Ordering::Relaxed))
    }

    fn entropy(&self) -> u64 {
        u64::from(self.slot.number())
    }

    fn device(&self) -> Device {
        Device {
            slot: self.slot,
            node_guid: GUID,
            addresses: vec![HOST],
            gids: vec![[0xfe; 16], Ip16::new(HOST).0],
            path_mtu: 5,
        }
    }

    fn transmit(&self, to: Peer, datagram: &[u8]) -> bool {
        assert_eq!(to.ip, HOST);
        let mut packets = self.host.packets.lock().unwrap();
        if self.host.is_full.load(Ordering::Relaxed) {
            return false;
        }
        packets.push_back((to.slot, datagram.to_vec()));
        true
    }

    fn no_event(&self) {
        let unseen = std::mem::take(&mut *self.unseen.lock().unwrap());
        let ucma = self.ucma.get().and_then(Weak::upgrade).unwrap();
        for octets in unseen {
            ucma.handle_datagram(HOST, &octets);
        }
    }

    fn kick(&self) {}

    fn qp_is_ready(&self, qpn: RawQpn) -> bool {
        !self.unready.lock().unwrap().contains(&qpn)
    }

    fn bind_port(&self, id: CmId, wanted: &PortRequest) -> Result<u16, Errno> {
        let mut ports = self.host.ports.lock().unwrap();
        let is_taken = |port: u16| ports.values().any(|bound| bound.port == port);
        let port = if wanted.port == 0 {
            (50_000..).find(|port| !is_taken(*port)).unwrap()
        } else {
            wanted.port
        };
        if is_taken(port) {
            return Err(libc::EADDRINUSE);
        }
        ports.insert((self.slot, id), PortRequest { port, ..*wanted });
        Ok(port)
    }

    fn share_port(&self, id: CmId, sharing: Sharing) -> Result<(), Errno> {
        let mut ports = self.host.ports.lock().unwrap();
        ports.get_mut(&(self.slot, id)).unwrap().sharing = sharing;
        Ok(())
    }

    fn listen(&self, id: CmId, _: u32) -> Result<(), Errno> {
        let port = self.host.ports.lock().unwrap()[&(self.slot, id)].port;
        self.host.listeners.lock().unwrap().insert(port, self.slot);
        Ok(())
    }

    fn release_port(&self, id: CmId) {
        let released = self.host.ports.lock().unwrap().remove(&(self.slot, id));
        let mut listeners = self.host.listeners.lock().unwrap();
        listeners.remove(&released.unwrap().port);
    }

    fn resolve(&self, ip: IpAddr) -> Result<IpAddr, Errno> {
        if ip == IpAddr::from([10, 0, 0, 7]) {
            // This address is never resolved.
            loop {
                std::thread::park();
            }
        }
        if ip == IpAddr::from([10, 0, 0, 6]) {
            // It takes until the clock moves to learn that this one is not.
            while self.now() == Time::ZERO {
                std::thread::yield_now();
            }
        }
        if ip == IpAddr::from([10, 0, 0, 9]) {
            return Ok(HOST);
        }
        Err(libc::EHOSTUNREACH)
    }
}

/// An open rdma_cm file of a process.
pub(crate) struct Channel {
    pub(crate) ucma: Arc<Ucma>,
    pub(crate) process: Arc<Process>,
    pub(crate) fd: RawFd,
    pub(crate) handle: FileHandle,
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.ucma.close(self.handle);
        // SAFETY: ours.
        unsafe { libc::close(self.fd) };
    }
}

impl Channel {
    pub(crate) fn of(ucma: &Arc<Ucma>, process: &Arc<Process>) -> Self {
        // SAFETY: epoll_create1 has no preconditions.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        Self {
            handle: ucma.open(fd).unwrap(),
            ucma: Arc::clone(ucma),
            process: Arc::clone(process),
            fd,
        }
    }

    pub(crate) fn new(host: &Arc<Host>, slot: u8) -> Self {
        let process = Arc::new(Process {
            slot: SlotId::new(slot).unwrap(),
            host: Arc::clone(host),
            unready: Mutex::default(),
            unseen: Mutex::default(),
            ucma: OnceLock::new(),
        });
        let ucma = Ucma::new(Arc::clone(&process) as Arc<dyn Driver>);
        process.ucma.set(Arc::downgrade(&ucma)).unwrap();
        Self::of(&ucma, &process)
    }

    pub(crate) fn write<T: IntoBytes + zerocopy::Immutable>(
        &self,
        number: u32,
        room: usize,
        body: &T,
    ) -> Result<(), Errno> {
        let octets = body.as_bytes();
        let mut command = number.to_ne_bytes().to_vec();
        command.extend_from_slice(&(octets.len() as u16).to_ne_bytes());
        command.extend_from_slice(&(room as u16).to_ne_bytes());
        command.extend_from_slice(octets);
        // SAFETY: the addresses in the tests' commands are those of live variables.
        let outcome = unsafe { self.ucma.write(self.handle, &command) };
        outcome.map(|len| assert_eq!(len, command.len()))
    }

    pub(crate) fn ask<T, A>(&self, number: u32, body: impl FnOnce(u64) -> T) -> Result<A, Errno>
    where
        T: IntoBytes + zerocopy::Immutable,
        A: FromZeros + FromBytes + IntoBytes,
    {
        let mut answer = A::new_zeroed();
        let address = (&raw mut answer) as usize as u64;
        self.write(number, size_of::<A>(), &body(address))?;
        Ok(answer)
    }

    pub(crate) fn create_in(&self, uid: u64, ps: u16) -> Result<u32, Errno> {
        self.create_for(uid, ps, abi::QPT_RC)
    }

    pub(crate) fn create_for(&self, uid: u64, ps: u16, qp_type: u8) -> Result<u32, Errno> {
        self.ask(cmd::CREATE_ID, |response| abi::CreateId {
            uid,
            response,
            ps,
            qp_type,
            reserved: [0; 5],
        })
    }

    pub(crate) fn create(&self, uid: u64) -> u32 {
        self.create_in(uid, PortSpace::TCP.0).unwrap()
    }

    pub(crate) fn destroy(&self, id: u32) -> Result<u32, Errno> {
        self.ask(cmd::DESTROY_ID, |response| abi::DestroyId {
            response,
            id,
            reserved: 0,
        })
    }

    pub(crate) fn bind(&self, id: u32, addr: &str) -> Result<(), Errno> {
        let body = abi::BindIp {
            response: 0,
            addr: in6(addr),
            id,
        };
        self.write(cmd::BIND_IP, 0, &body)
    }

    pub(crate) fn listen(&self, id: u32, backlog: u32) -> Result<(), Errno> {
        self.write(cmd::LISTEN, 0, &abi::Listen { id, backlog })
    }

    pub(crate) fn resolve(&self, id: u32, dst: &str) -> Result<(), Errno> {
        let body = abi::ResolveIp {
            src_addr: abi::SockaddrIn6 { octets: [0; 28] },
            dst_addr: in6(dst),
            id,
            timeout_ms: 2000,
        };
        self.write(cmd::RESOLVE_IP, 0, &body)
    }

    pub(crate) fn option(&self, id: u32, optname: u32, value: u32) -> Result<(), Errno> {
        let value = value.to_ne_bytes();
        let body = abi::SetOption {
            optval: value.as_ptr() as usize as u64,
            id,
            level: abi::option::LEVEL_ID,
            optname,
            optlen: value.len() as u32,
        };
        self.write(cmd::SET_OPTION, 0, &body)
    }

    /// The port that is reserved for an id.
    pub(crate) fn port(&self, id: u32) -> Option<PortRequest> {
        let ports = self.process.host.ports.lock().unwrap();
        ports.get(&(self.process.slot, CmId(id))).copied()
    }

    pub(crate) fn resolve_route(&self, id: u32) -> Result<(), Errno> {
        let body = abi::ResolveRoute { id, timeout_ms: 1 };
        self.write(cmd::RESOLVE_ROUTE, 0, &body)
    }

    pub(crate) fn connect(&self, id: u32, qpn: u32) -> Result<(), Errno> {
        let body = abi::Connect {
            conn_param: param(qpn, b"from client", 1),
            id,
            reserved: 0,
            ece: abi::Ece {
                vendor_id: 5,
                attr_mod: 6,
            },
        };
        self.write(cmd::CONNECT, 0, &body)
    }

    pub(crate) fn accept(&self, id: u32, uid: u64, qpn: u32, valid: u8) -> Result<(), Errno> {
        let body = abi::Accept {
            uid,
            conn_param: param(qpn, b"from server", valid),
            id,
            reserved: 0,
            ece: abi::Ece::new_zeroed(),
        };
        self.write(cmd::ACCEPT, 0, &body)
    }

    pub(crate) fn disconnect(&self, id: u32) -> Result<(), Errno> {
        self.write(cmd::DISCONNECT, 0, &abi::Disconnect { id })
    }

    pub(crate) fn event(&self) -> Result<EventResp, Errno> {
        self.ask(cmd::GET_EVENT, |response| abi::GetEvent { response })
    }

    /// Waits for an event, as the stand-in does for a blocking file.
    pub(crate) fn wait(&self) {
        let mut waiting = libc::pollfd {
            fd: self.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        assert_eq!(unsafe { libc::poll(&raw mut waiting, 1, 60_000) }, 1);
    }

    pub(crate) fn expect(&self, wanted: u32) -> EventResp {
        let got = self.event().unwrap();
        assert_eq!(got.event, wanted, "status {}", got.status.cast_signed());
        got
    }

    pub(crate) fn attr(&self, id: u32, qp_state: u32) -> Result<QpAttr, Errno> {
        self.ask(cmd::INIT_QP_ATTR, |response| abi::InitQpAttr {
            response,
            id,
            qp_state,
        })
    }

    pub(crate) fn route(&self, id: u32) -> Result<QueryRouteResp, Errno> {
        self.ask(cmd::QUERY_ROUTE, |response| abi::Query {
            response,
            id,
            option: 0,
        })
    }

    pub(crate) fn is_readable(&self) -> bool {
        let mut waiting = libc::pollfd {
            fd: self.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut waiting, 1, 0) == 1 }
    }
}

/// The queue pair that the server of a [`Pair`] accepts with.
pub(crate) fn server_qpn() -> Qpn {
    Qpn::from_u32(0x01_0001).unwrap()
}

pub(crate) fn in6(addr: &str) -> abi::SockaddrIn6 {
    let mut octets = [0; 28];
    let addr: SocketAddr = addr.parse().unwrap();
    octets[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr.ip() {
        IpAddr::V4(ip) => {
            octets[0] = 2;
            octets[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            octets[0] = 10;
            octets[8..24].copy_from_slice(&ip.octets());
        }
    }
    abi::SockaddrIn6 { octets }
}

pub(crate) fn param(qp_num: u32, data: &[u8], valid: u8) -> abi::ConnParam {
    let mut param = abi::ConnParam::new_zeroed();
    param.qp_num = qp_num;
    param.private_data[..data.len()].copy_from_slice(data);
    param.private_data_len = data.len() as u8;
    param.responder_resources = 2;
    param.initiator_depth = 9;
    param.retry_count = 6;
    param.rnr_retry_count = 7;
    param.valid = valid;
    param
}

/// Delivers packets until none are left; slot 0 is urdmad.
pub(crate) fn carry(host: &Arc<Host>, channels: &[&Channel]) {
    loop {
        let Some((slot, octets)) = host.packets.lock().unwrap().pop_front() else {
            return;
        };
        let mut slot = slot;
        if slot == SlotId::DAEMON {
            let route = ReqRoute::parse(&octets).unwrap();
            let listener = host
                .listeners
                .lock()
                .unwrap()
                .get(&route.dst.port())
                .copied();
            if listener.is_none() {
                let mut buf = [0; MAX_MESSAGE];
                let len = reject_no_listener(&route, &mut buf);
                let mut packets = host.packets.lock().unwrap();
                packets.push_back((route.slot, buf[..len].to_vec()));
                continue;
            }
            slot = listener.unwrap();
        }
        let channel = channels.iter().find(|c| c.process.slot == slot);
        channel.unwrap().ucma.handle_datagram(HOST, &octets);
    }
}

pub(crate) struct Pair {
    pub(crate) host: Arc<Host>,
    pub(crate) server: Channel,
    pub(crate) client: Channel,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let host = Arc::new(Host::default());
        Self {
            server: Channel::new(&host, 1),
            client: Channel::new(&host, 2),
            host,
        }
    }

    pub(crate) fn carry(&self) {
        carry(&self.host, &[&self.server, &self.client]);
    }

    /// A listening id of the server.
    pub(crate) fn listening(&self) -> u32 {
        let id = self.server.create(100);
        self.server.bind(id, "0.0.0.0:7471").unwrap();
        self.server.listen(id, 0).unwrap();
        id
    }

    /// An id of the client after CONNECT.
    pub(crate) fn connecting(&self) -> u32 {
        let id = self.client.create(200);
        self.route(id);
        self.client.connect(id, 0x02_0001).unwrap();
        self.carry();
        id
    }

    /// Resolves address and route of the client's id 200, so that it can connect to the server.
    pub(crate) fn route(&self, id: u32) {
        self.client.resolve(id, "127.0.0.1:7471").unwrap();
        assert_eq!(self.client.expect(event::ADDR_RESOLVED).uid, 200);
        self.client.resolve_route(id).unwrap();
        self.client.expect(event::ROUTE_RESOLVED);
    }

    /// Ids of listener, client and server, connected.
    pub(crate) fn connected(&self) -> (u32, u32, u32) {
        let listener = self.listening();
        let client = self.connecting();
        let request = self.server.expect(event::CONNECT_REQUEST);
        self.server.accept(request.id, 300, 0x01_0001, 1).unwrap();
        self.carry();
        self.client.expect(event::CONNECT_RESPONSE);
        self.client.accept(client, 0, 0, 0).unwrap();
        self.carry();
        assert_eq!(self.server.expect(event::ESTABLISHED).uid, 300);
        (listener, client, request.id)
    }
}
