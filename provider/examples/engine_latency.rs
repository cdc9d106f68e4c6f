//! One-way latency of SENDs between two processes through the engine, without verbs: half the median round trip.
//!
//! `cargo run --release -p urdma-provider --example engine_latency [OCTETS [ROUNDS [alone]]]`
//!
//! With `alone`, both ends are in one thread: what the processor does for one message, without waiting and without moving cache lines
//! between processors.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use urdma_arena::{Arena, ArenaConfig};
use urdma_provider::engine::{
    Access, AsyncEvent, Cq, CqConfig, Engine, EventSink, Gid, GidEntry, Parts, Payload, Qp,
    QpConfig, QpModify, Qpn, RecvWr, SendFlags, SendOp, SendWr, Sge, SlotId, State,
};

const GID: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
const DEPTH: u32 = 64;
const WARM_UP: usize = 2000;

struct Nowhere;

impl EventSink for Nowhere {
    fn async_event(&self, event: AsyncEvent) {
        eprintln!("{event:?}");
    }
}

/// One end: a connected queue pair and a registered buffer.
struct End {
    engine: Arc<Engine>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    sge: Sge,
    received: usize,
    _memory: Vec<u8>,
}

impl End {
    fn new(arena: Arena, own: SlotId, peer: SlotId, octets: usize) -> Result<Self, String> {
        let engine = Engine::start(Parts {
            arena,
            slot: own,
            node_guid: 1,
            gids: vec![GidEntry {
                gid: GID,
                netdev: None,
            }],
            addresses: Vec::new(),
            mtu: 0,
            control: None,
        });
        let engine = engine.map_err(|error| error.to_string())?;
        Self::connect(engine, Qpn::new(peer, 1), octets).map_err(|error| error.to_string())
    }

    fn connect(
        engine: Arc<Engine>,
        remote: Qpn,
        octets: usize,
    ) -> Result<Self, urdma_provider::engine::EngineError> {
        let pd = engine.alloc_pd()?;
        let cq = engine.create_cq(CqConfig {
            depth: DEPTH,
            channel: None,
            cookie: 0,
            keeps_time: false,
        })?;
        let qp = engine.create_qp(&QpConfig {
            pd,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            cookie: 0,
            events: Arc::new(Nowhere),
        })?;
        let memory = vec![0u8; octets];
        let addr = memory.as_ptr() as u64;
        let keys = engine.register_mr(pd, addr, octets as u64, addr, Access::LOCAL_WRITE)?;
        for state in [State::Init, State::Rtr, State::Rts] {
            let change = QpModify {
                state: Some(state),
                address: Some((GID, 0)),
                remote_qpn: Some(remote.to_u32()),
                timeout: Some(14),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                ..QpModify::default()
            };
            engine.modify_qp(&qp, &change)?;
        }
        let length = u32::try_from(octets).unwrap_or(u32::MAX);
        let sge = Sge {
            addr,
            length,
            lkey: keys.lkey,
        };
        Ok(Self {
            engine,
            cq,
            qp,
            sge,
            received: 0,
            _memory: memory,
        })
    }

    fn receive(&self) {
        let sges = [self.sge];
        let wr = RecvWr {
            wr_id: 0,
            sges: &sges,
        };
        self.engine.post_recv(&self.qp, &wr).expect("post_recv");
    }

    fn send(&self) {
        let sges = [self.sge];
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            imm: None,
            flags: SendFlags {
                signaled: true,
                ..SendFlags::default()
            },
            payload: Payload::Sges(&sges),
        };
        self.engine.post_send(&self.qp, &wr).expect("post_send");
    }

    /// Polls until one more message has come.
    fn wait(&mut self) {
        while self.received == 0 {
            let received = &mut self.received;
            self.engine
                .poll_cq(&self.cq, 4, |wc| {
                    *received += usize::from(!wc.completion.is_send());
                })
                .expect("poll_cq");
        }
        self.received -= 1;
    }
}

fn meet(mut socket: &UnixStream) -> std::io::Result<()> {
    socket.write_all(b"x")?;
    socket.read_exact(&mut [0])
}

fn run(end: &mut End, rounds: usize, begins: bool) -> Vec<u64> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        end.receive();
        let begin = Instant::now();
        if begins {
            end.send();
            end.wait();
        } else {
            end.wait();
            end.send();
        }
        times.push(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    times
}

/// Both ends in turn, in this thread.
fn run_alone(arena: Arena, slots: [SlotId; 2], octets: usize, rounds: usize) -> Result<(), String> {
    let mut ends = [
        End::new(arena, slots[0], slots[1], octets)?,
        End::new(arena, slots[1], slots[0], octets)?,
    ];
    let begin = Instant::now();
    for _ in 0..rounds {
        for turn in 0..2 {
            ends[1 - turn].receive();
            ends[turn].send();
            ends[1 - turn].wait();
        }
    }
    let each = begin.elapsed().as_nanos() / (2 * rounds as u128);
    println!("{octets} octets, processor time of both ends: {each} ns");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let is_alone = std::env::args().nth(3).is_some_and(|word| word == "alone");
    let numbers = std::env::args().skip(1).take(2);
    let mut arguments = numbers.map(|text| text.parse::<usize>());
    let octets = arguments.next().transpose()?.unwrap_or(64);
    let rounds = arguments.next().transpose()?.unwrap_or(100_000);
    let arena = Arena::create(&ArenaConfig {
        slots: 3,
        ..ArenaConfig::default()
    })?;
    let (one, two) = UnixStream::pair()?;
    let slots = [1, 2].map(|number| SlotId::new(number).unwrap_or(SlotId::DAEMON));
    if is_alone {
        return Ok(run_alone(arena, slots, octets, rounds)?);
    }
    // SAFETY: the process has one thread yet.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut end = End::new(arena, slots[1], slots[0], octets)?;
        // The first receive must be there before the first message.
        end.receive();
        meet(&two)?;
        run(&mut end, WARM_UP + rounds, false);
        meet(&two)?;
        return Ok(());
    }
    let mut end = End::new(arena, slots[0], slots[1], octets)?;
    meet(&one)?;
    run(&mut end, WARM_UP, true);
    let mut times = run(&mut end, rounds, true);
    meet(&one)?;
    times.sort_unstable();
    for (name, share) in [("min", 0), ("p50", 50), ("p90", 90), ("p99", 99)] {
        let at = (rounds - 1) * share / 100;
        println!("{octets} octets one way, {name}: {} ns", times[at] / 2);
    }
    Ok(())
}
