//! Two engines in one process, without verbs, threads and urdmad: the cost of the engine itself.

use std::sync::Arc;

use urdma_engine::{
    Access, AsyncEvent, AttachError, Cq, CqConfig, Engine, EngineError, EventSink, Gid, InProcess,
    Parts, Payload, Qp, QpConfig, QpModify, QpState, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
    Sge, SlotId, XrcRole,
};

pub(crate) const GID: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
const DEPTH: u32 = 64;
const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);
/// The slots of the two ends.
pub(crate) const SLOTS: [SlotId; 2] = [slot(1), slot(2)];
/// Limit for a message. Reading a clock in each turn would count as the engine's work.
const POLLS_MAX: u32 = 100_000_000;

const fn slot(number: u8) -> SlotId {
    match SlotId::new(number) {
        Some(slot) => slot,
        None => panic!("there is no such slot"),
    }
}

struct Nowhere;

impl EventSink for Nowhere {
    fn async_event(&self, event: AsyncEvent) {
        eprintln!("{event:?}");
    }
}

/// One end: a queue pair and a registered buffer.
pub(crate) struct End {
    engine: Arc<Engine>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    sge: Sge,
    received: usize,
    sent: usize,
    _memory: Vec<u8>,
}

impl End {
    /// Makes the end in slot `SLOTS[which]`, not connected yet; messages have `octets` octets.
    ///
    /// # Errors
    /// The engine refuses a step.
    pub(crate) fn new(
        instance: &Arc<InProcess>,
        which: usize,
        octets: u32,
    ) -> Result<Self, String> {
        let parts = Parts::in_process(instance, SLOTS[which], GID);
        Self::with(Engine::start_without_thread(parts), octets)
    }

    /// Makes the end of an engine; messages have `octets` octets.
    ///
    /// # Errors
    /// As [`End::new`].
    pub(crate) fn with(
        engine: Result<Arc<Engine>, AttachError>,
        octets: u32,
    ) -> Result<Self, String> {
        let engine = engine.map_err(|error| error.to_string())?;
        Self::of(engine, octets).map_err(|error| error.to_string())
    }

    fn of(engine: Arc<Engine>, octets: u32) -> Result<Self, EngineError> {
        let pd = engine.alloc_pd()?;
        let cq = engine.create_cq(CqConfig::with_depth(DEPTH))?;
        let qp = engine.create_qp(&QpConfig {
            pd,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            xrc: XrcRole::None,
            unreliable: false,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            fails_with_peer: false,
            hears_itself: true,
            cookie: 0,
            events: Arc::new(Nowhere),
        })?;
        let memory = vec![0u8; octets as usize];
        let addr = memory.as_ptr() as u64;
        let keys = engine.register_mr(pd, addr, octets.into(), addr, ACCESS)?;
        let sge = Sge {
            addr,
            length: octets,
            lkey: keys.lkey,
        };
        Ok(Self {
            engine,
            cq,
            qp,
            sge,
            received: 0,
            sent: 0,
            _memory: memory,
        })
    }

    /// The number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.qp.number().to_u32()
    }

    /// Connects it to the queue pair with this number at a GID; its own has the index.
    ///
    /// # Errors
    /// The engine refuses a step.
    pub(crate) fn connect(&self, peer: u32, gid: Gid, own_index: u8) -> Result<(), String> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let change = QpModify {
                state: Some(state),
                address: Some((gid, own_index)),
                access: Some(ACCESS),
                remote_qpn: Some(peer),
                timeout: Some(14),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(1),
                max_dest_rd_atomic: Some(1),
                ..QpModify::default()
            };
            let modified = self.engine.modify_qp(&self.qp, &change);
            modified.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Posts a receive request.
    ///
    /// # Panics
    /// The request is refused.
    pub(crate) fn receive(&self) {
        let sges = [self.sge];
        let wr = RecvWr {
            wr_id: 0,
            sges: &sges,
        };
        self.engine
            .post_recv(&self.qp, &wr)
            .expect("the receive request is accepted");
    }

    /// Sends the buffer.
    ///
    /// # Panics
    /// The request is refused.
    pub(crate) fn send(&self, imm: Option<u32>) {
        self.post(SendOp::Send, imm);
    }

    /// Writes the buffer to that of an end in the same process.
    ///
    /// # Panics
    /// The request is refused.
    pub(crate) fn write(&self, peer: &End, imm: Option<u32>) {
        let remote = peer.buffer();
        self.post(SendOp::Write { remote }, imm);
    }

    /// Reads the buffer of an end in the same process.
    ///
    /// # Panics
    /// The request is refused.
    pub(crate) fn read(&self, peer: &End) {
        let remote = peer.buffer();
        self.post(SendOp::Read { remote }, None);
    }

    /// Adds 1 to the first word of the buffer of an end in the same process; the buffers have 8
    /// octets.
    ///
    /// # Panics
    /// The request is refused.
    pub(crate) fn fetch_add(&self, peer: &End) {
        let remote = peer.buffer();
        self.post(SendOp::FetchAdd { remote, add: 1 }, None);
    }

    fn buffer(&self) -> RemoteAddr {
        RemoteAddr {
            stag: self.sge.lkey,
            to: self.sge.addr,
        }
    }

    fn post(&self, op: SendOp, imm: Option<u32>) {
        let sges = [self.sge];
        let wr = SendWr {
            wr_id: 1,
            op,
            imm,
            flags: SendFlags {
                signaled: true,
                ..SendFlags::default()
            },
            shared_queue: 0,
            payload: Payload::Sges(&sges),
        };
        self.engine
            .post_send(&self.qp, &wr)
            .expect("the send request is accepted");
    }

    /// Polls once.
    ///
    /// # Panics
    /// The queue cannot be polled.
    #[inline]
    pub(crate) fn poll(&mut self) {
        let (sent, received) = (&mut self.sent, &mut self.received);
        self.engine
            .poll_cq(&self.cq, 4, |wc| {
                let is_send = wc.completion.is_send();
                *(if is_send { &mut *sent } else { &mut *received }) += 1;
            })
            .expect("the completion queue can be polled");
    }

    /// Send requests that have completed.
    pub(crate) fn completed(&self) -> usize {
        self.sent
    }

    /// Polls until one more message has arrived.
    pub(crate) fn wait(&mut self) {
        while self.received == 0 {
            self.poll();
        }
        self.received -= 1;
    }

    /// Polls both ends until the last request of `self` is complete.
    ///
    /// # Errors
    /// The request does not complete within polls that are enough for any.
    pub(crate) fn wait_sent(&mut self, peer: &mut End) -> Result<(), String> {
        let mut polls = 0;
        while self.sent == 0 {
            peer.poll();
            self.poll();
            polls += 1;
            if polls > POLLS_MAX {
                return Err("a request did not complete".into());
            }
        }
        self.sent -= 1;
        Ok(())
    }
}
