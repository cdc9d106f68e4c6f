//! The memory of a process with many connected queue pairs that are not used. It is the only test
//! of its program, since it measures the whole process.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use urdma_engine::{
    Access, Cq, CqConfig, Engine, Gid, InProcess, Parts, Pd, Qp, QpConfig, QpModify, SlotId,
};

const GID: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
/// Pairs of connected queue pairs.
const PAIRS: u64 = 500;
const OCTETS_PER_QP_MAX: u64 = 32 << 10;

struct End {
    engine: Arc<Engine>,
    pd: Pd,
    cq: Arc<Cq>,
}

impl End {
    fn new(instance: &Arc<InProcess>, slot: u8) -> Self {
        let slot = SlotId::new(slot).unwrap();
        let engine = Engine::start(Parts::in_process(instance, slot, GID)).unwrap();
        let pd = engine.alloc_pd().unwrap();
        let cq = engine.create_cq(CqConfig::with_depth(16)).unwrap();
        Self { engine, pd, cq }
    }

    fn create_qp(&self, depth: u32) -> Arc<Qp> {
        let config = QpConfig {
            max_send_wr: depth,
            max_recv_wr: depth,
            ..QpConfig::new(self.pd, &self.cq, Arc::new(()))
        };
        self.engine.create_qp(&config).unwrap()
    }

    fn connect(&self, own: &Qp, peer: &Qp) {
        for change in QpModify::steps_to_rts(peer.number(), GID, Access::REMOTE) {
            self.engine.modify_qp(own, &change).unwrap();
        }
    }
}

/// Octets of memory that the process has.
fn resident_octets() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<u64>().unwrap() << 10
}

fn connected_pair(ends: &[End; 2], depth: u32) -> [Arc<Qp>; 2] {
    let qps = [0, 1].map(|at: usize| ends[at].create_qp(depth));
    ends[0].connect(&qps[0], &qps[1]);
    ends[1].connect(&qps[1], &qps[0]);
    qps
}

#[test]
fn idle_connected_queue_pairs_take_little_memory_whatever_their_depth() {
    let instance = InProcess::new().unwrap();
    let ends = [1, 2].map(|slot| End::new(&instance, slot));
    // The channel between the two, and what the process has once.
    let _first = connected_pair(&ends, 16);
    // All of them stay, so that none takes memory that another one has given back.
    let mut pairs = Vec::new();
    for depth in [128, 1_024, 16_384] {
        let before = resident_octets();
        pairs.extend((0..PAIRS).map(|_| connected_pair(&ends, depth)));
        let per_qp = resident_octets().saturating_sub(before) / (2 * PAIRS);
        println!("depth {depth}: {per_qp} octets of memory for each queue pair");
        assert!(per_qp < OCTETS_PER_QP_MAX, "depth {depth}: {per_qp}");
    }
}
