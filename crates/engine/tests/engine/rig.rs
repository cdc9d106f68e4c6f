//! Two ends of a connection.

#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

use proto_trp::wire::message::{CELL_LEN, CELL_PAYLOAD_LEN, MESSAGE_HEAD_LEN};
use proto_trp::wire::PacketHead;
use urdma_channel::{Channel, ChannelConfig, Incoming, Kind, Next, OwnRegion, PeerRegion};
use urdma_engine::{
    Access, AsyncEvent, AttachError, CompletionChannel, Cq, CqConfig, Engine, EventSink, Gid,
    GidEntry, Host, HostMemory, InProcess, Parts, Payload, Pd, Personality, PlayedDaemon,
    PostError, Qp, QpConfig, QpModify, QpState, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
    SlotId, Status, WorkCompletion,
};
use urdma_waiting::{Bells, OwnPage, Parked, PeerPage};
use urdmad::data::InProcess as Daemon;

pub(crate) const GID: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Events(pub(crate) Mutex<Vec<AsyncEvent>>);

impl EventSink for Events {
    fn async_event(&self, event: AsyncEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// One end.
pub(crate) struct End {
    pub(crate) engine: Arc<Engine>,
    pub(crate) pd: Pd,
    pub(crate) cq: Arc<Cq>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) events: Arc<Events>,
    pub(crate) memory: Vec<u8>,
    pub(crate) key: u32,
    pub(crate) channel: UnixStream,
}

pub(crate) fn instance() -> Arc<InProcess> {
    InProcess::new().unwrap()
}

pub(crate) fn engine(instance: &Arc<InProcess>, slot: u8) -> Arc<Engine> {
    Engine::start(parts(instance, slot)).unwrap()
}

pub(crate) fn parts(instance: &Arc<InProcess>, slot: u8) -> Parts {
    Parts::in_process(instance, SlotId::new(slot).unwrap(), GID)
}

pub(crate) const DEPTH: u32 = 128;

pub(crate) fn qp_config(pd: Pd, cq: &Arc<Cq>, events: &Arc<Events>, unreliable: bool) -> QpConfig {
    QpConfig {
        unreliable,
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        cookie: 5,
        ..QpConfig::new(pd, cq, events.clone())
    }
}

impl End {
    pub(crate) fn new(engine: Arc<Engine>, octets: usize) -> End {
        let pd = engine.alloc_pd().unwrap();
        End::in_domain(engine, pd, octets)
    }

    /// One that acknowledges nothing and sends nothing again.
    pub(crate) fn unreliable(engine: Arc<Engine>, octets: usize) -> End {
        let pd = engine.alloc_pd().unwrap();
        End::with(&engine.clone(), engine, pd, octets, true)
    }

    /// One whose queue pair and completion queue are in a lane beside `first`.
    pub(crate) fn in_lane(first: &Engine, lane: Arc<Engine>, pd: Pd, octets: usize) -> End {
        End::with(first, lane, pd, octets, false)
    }

    /// A queue pair and memory in a protection domain that there is.
    pub(crate) fn in_domain(engine: Arc<Engine>, pd: Pd, octets: usize) -> End {
        End::with(&engine.clone(), engine, pd, octets, false)
    }

    fn with(first: &Engine, engine: Arc<Engine>, pd: Pd, octets: usize, unreliable: bool) -> End {
        let (channel, write_end) = UnixStream::pair().unwrap();
        let cq = engine
            .create_cq(CqConfig {
                depth: 16,
                channel: Some(CompletionChannel::new(OwnedFd::from(write_end))),
                cookie: 77,
                keeps_time: false,
            })
            .unwrap();
        let events = Arc::new(Events::default());
        let config = QpConfig {
            fails_with_peer: engine.info().personality == Personality::Iwarp,
            ..qp_config(pd, &cq, &events, unreliable)
        };
        let qp = engine.create_qp(&config).unwrap();
        let memory = vec![0u8; octets];
        let addr = memory.as_ptr() as u64;
        let keys = first
            .register_mr(
                pd,
                addr,
                octets as u64,
                addr,
                Access::all() - Access::ON_DEMAND,
            )
            .unwrap();
        End {
            engine,
            pd,
            cq,
            qp,
            events,
            memory,
            key: keys.lkey,
            channel,
        }
    }

    pub(crate) fn init(&self, access: Access) {
        self.engine
            .modify_qp(
                &self.qp,
                &QpModify {
                    state: Some(QpState::Init),
                    access: Some(access),
                    ..QpModify::default()
                },
            )
            .unwrap();
    }

    pub(crate) fn connect(&self, remote: u32) {
        self.connect_at(remote, 100);
    }

    /// From INIT to RTS, with `psn` for the first packet either way.
    pub(crate) fn connect_at(&self, remote: u32, psn: u32) {
        self.connect_with(remote, psn, (GID, 0));
    }

    /// The same to a queue pair at another address, from the address of a GID index.
    pub(crate) fn connect_with(&self, remote: u32, psn: u32, address: (Gid, u8)) {
        self.engine
            .modify_qp(
                &self.qp,
                &QpModify {
                    state: Some(QpState::Rtr),
                    address: Some(address),
                    remote_qpn: Some(remote),
                    rq_psn: Some(psn),
                    max_dest_rd_atomic: Some(128),
                    min_rnr_timer: Some(12),
                    path_mtu: Some(5),
                    ..QpModify::default()
                },
            )
            .unwrap();
        self.engine
            .modify_qp(
                &self.qp,
                &QpModify {
                    state: Some(QpState::Rts),
                    sq_psn: Some(psn),
                    max_rd_atomic: Some(128),
                    timeout: Some(14),
                    retry_cnt: Some(7),
                    rnr_retry: Some(7),
                    ..QpModify::default()
                },
            )
            .unwrap();
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.memory.len());
        Sge {
            addr: self.memory.as_ptr() as u64 + at as u64,
            length: len as u32,
            lkey: self.key,
        }
    }

    pub(crate) fn remote(&self, at: usize) -> RemoteAddr {
        RemoteAddr {
            stag: self.key,
            to: self.memory.as_ptr() as u64 + at as u64,
        }
    }

    pub(crate) fn post(&self, wr_id: u64, op: SendOp, sges: &[Sge]) -> Result<(), PostError> {
        self.post_with(wr_id, op, None, true, sges)
    }

    pub(crate) fn post_with(
        &self,
        wr_id: u64,
        op: SendOp,
        imm: Option<u32>,
        signaled: bool,
        sges: &[Sge],
    ) -> Result<(), PostError> {
        self.engine.post_send(
            &self.qp,
            &SendWr {
                wr_id,
                op,
                imm,
                flags: SendFlags {
                    signaled,
                    ..SendFlags::default()
                },
                shared_queue: 0,
                payload: Payload::Sges(sges),
            },
        )
    }

    pub(crate) fn receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.engine.post_recv(&self.qp, &RecvWr { wr_id, sges })
    }

    pub(crate) fn poll(&self) -> Vec<WorkCompletion> {
        let mut found = Vec::new();
        self.engine
            .poll_cq(&self.cq, 16, |wc| found.push(*wc))
            .unwrap();
        found
    }

    /// Polls until `count` completions have come.
    pub(crate) fn wait(&self, count: usize) -> Vec<WorkCompletion> {
        let begin = Instant::now();
        let mut found = Vec::new();
        while found.len() < count {
            assert!(
                begin.elapsed() < MAX_WAIT,
                "{} of {count} completions: {found:?}",
                found.len()
            );
            found.extend(self.poll());
            std::thread::yield_now();
        }
        assert_eq!(found.len(), count);
        found
    }

    /// Waits for one completion, which must be of `wr_id` with `status`.
    pub(crate) fn expect(&self, wr_id: u64, status: Status) -> WorkCompletion {
        let found = self.wait(1)[0];
        assert_eq!(
            (found.completion.wr_id, found.completion.status),
            (wr_id, status),
            "{found:?}"
        );
        found
    }

    /// A volatile look at one octet.
    pub(crate) fn octet(&self, at: usize) -> u8 {
        // SAFETY: the octet is within the memory, which lives.
        unsafe { std::ptr::read_volatile(&raw const self.memory[at]) }
    }
}

/// Two connected ends with `octets` of memory each.
pub(crate) fn pair(octets: usize) -> (End, End) {
    pair_with(octets, Access::all())
}

pub(crate) fn pair_with(octets: usize, access: Access) -> (End, End) {
    pair_in(&instance(), octets, access)
}

/// Two connected ends in slots 1 and 2 of `instance`.
pub(crate) fn pair_in(instance: &Arc<InProcess>, octets: usize, access: Access) -> (End, End) {
    pair_of([1, 2].map(|slot| engine(instance, slot)), octets, access)
}

/// As [`pair_in`], without threads, so that nothing moves between the calls of a test.
pub(crate) fn still_pair(instance: &Arc<InProcess>, octets: usize) -> (End, End) {
    let still = |slot| Engine::start_without_thread(parts(instance, slot)).unwrap();
    pair_of([1, 2].map(still), octets, Access::all())
}

/// Two connected ends of these engines.
pub(crate) fn pair_of(engines: [Arc<Engine>; 2], octets: usize, access: Access) -> (End, End) {
    let [a, b] = engines.map(|engine| End::new(engine, octets));
    connect(&a, &b, access);
    (a, b)
}

/// Connects two ends in RESET, each of which grants the other `access`.
pub(crate) fn connect(a: &End, b: &End, access: Access) {
    for end in [a, b] {
        end.init(access);
    }
    a.connect(b.qp.number().to_u32());
    b.connect(a.qp.number().to_u32());
}

/// IP MTU of the hosts of [`engine_of_host`].
pub(crate) const MTU: u16 = 1_500;

/// The address of a host.
pub(crate) const fn address(which: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1 + which))
}

/// The engine of a process of a host whose urdmad is played by the caller.
pub(crate) fn engine_of_host(
    which: u8,
    daemon: &mut Daemon,
    start: impl FnOnce(Parts) -> Result<Arc<Engine>, AttachError>,
) -> Arc<Engine> {
    let slot = SlotId::new(1 + which).unwrap();
    let offer = daemon.open(slot).unwrap();
    let (offers, offered) = mpsc::channel();
    let gids = daemon.identity().gids.iter().map(|entry| GidEntry {
        gid: Gid(entry.gid),
        netdev: None,
    });
    let engine = start(Parts {
        host: Host::Played(PlayedDaemon {
            memory: HostMemory {
                directory: offer.directory,
                region: offer.region,
                page: offer.page,
            },
            next_hop: [2, 0, 0, 0, 0, 9],
            offers,
        }),
        slot,
        node_guid: 1,
        personality: Personality::Roce,
        gids: gids.collect(),
        addresses: vec![address(which)],
        mtu: MTU,
        control: None,
    });
    daemon.attach(slot, offered.recv().unwrap()).unwrap();
    engine.unwrap()
}

/// A process that the test plays, and its channel to an engine.
pub(crate) struct Guest {
    pub(crate) channel: Channel,
    page: OwnPage,
}

impl Guest {
    /// In `slot` of `instance`, with a channel to `engine`.
    pub(crate) fn of(instance: &Arc<InProcess>, slot: SlotId, engine: &Arc<Engine>) -> Self {
        instance.play(slot);
        let (region, region_fd) =
            OwnRegion::create(&ChannelConfig::default(), slot.number()).unwrap();
        let (page, page_fd) = OwnPage::create().unwrap();
        engine.channel_offered(slot, 1, None, vec![region_fd, page_fd]);
        let mut offer = None;
        until("the engine offers a channel, too", || {
            offer = instance.take_offer(engine.info().slot, slot);
            offer.is_some()
        });
        let [region_of_peer, page_of_peer, _] = <[OwnedFd; 3]>::try_from(offer.unwrap()).unwrap();
        let mut channel = Channel::new(region);
        let incoming = Incoming::new(PeerRegion::open(region_of_peer).unwrap());
        channel.attach(incoming, PeerPage::open(page_of_peer).unwrap());
        Self { channel, page }
    }

    /// Sends a message: what its cell holds, and what is in a frame.
    pub(crate) fn send(&mut self, cell: &[u8], frame: &[u8]) {
        self.publish(cell, frame);
        self.channel.notify();
    }

    /// As [`Guest::send`], without waking the receiver.
    pub(crate) fn publish(&mut self, cell: &[u8], frame: &[u8]) {
        self.channel.complete(|_| ());
        let mut room = self.channel.begin(Kind::Answer, frame.len()).unwrap();
        room.octets_mut()[..cell.len()].copy_from_slice(cell);
        room.payload_mut().copy_from_slice(frame);
        room.publish(cell.len(), 0);
    }

    /// Sends a packet.
    pub(crate) fn send_packet(&mut self, head: &PacketHead, packet: &[u8]) {
        let mut cell = [0; MESSAGE_HEAD_LEN];
        head.encode(&mut cell);
        if packet.len() <= CELL_PAYLOAD_LEN {
            self.send(&[&cell, packet].concat(), &[]);
        } else {
            self.send(&cell, packet);
        }
    }

    /// Waits until the engine has settled what was sent.
    pub(crate) fn until_settled(&mut self) {
        until("all messages are settled", || {
            self.take();
            self.channel.complete(|_| ());
            self.channel.outgoing().completed() == self.channel.outgoing().written()
        });
    }

    /// Sleeps until a message has come; whether one has.
    pub(crate) fn sleep(&self) -> bool {
        let mut bells = Bells::default();
        self.page.listen(&mut bells);
        self.channel.listen(&mut bells);
        let has_work = || self.channel.has_work();
        self.page.park(&bells, Some(MAX_WAIT), has_work) != Parked::Timeout
    }

    /// The next message: what its cell and its frame hold.
    pub(crate) fn take(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut cell = [0; CELL_LEN];
        let Next::Message { len, payload, .. } = self.channel.next(&mut cell, |_| ()) else {
            return None;
        };
        let mut frame = vec![0; payload.map_or(0, |payload| payload.len())];
        if let Some(payload) = payload {
            let incoming = self.channel.incoming().unwrap();
            assert!(incoming.copy_payload(payload, 0, &mut frame));
        }
        self.channel.settle();
        Some((cell[..len].to_vec(), frame))
    }
}

/// Polls `condition` until it holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < MAX_WAIT, "waited in vain: {what}");
        std::thread::yield_now();
    }
}
