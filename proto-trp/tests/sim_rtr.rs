//! An end that stays in RTR, as the passive side of a read does, answers the peer's requests.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{
    Path, Payload, QpState, RemoteAddr, RtrParams, RtsParams, SendFlags, SendOp, SendWr, Sge,
    Status,
};
use trp_sim::{for_each_seed, LinkModel, Rights, Setup, SimHost, World};
use urdma_types::Psn;

fn lossy() -> Setup {
    Setup {
        link: LinkModel {
            delay_ns: 20_000,
            loss_ppm: 20_000,
            reorder_ppm: 20_000,
            reorder_ns: 100_000,
            ..LinkModel::default()
        },
        ..Setup::default()
    }
}

/// A world whose end 0 is in RTS and whose end 1 is in RTR.
fn half_connected(setup: &Setup, seed: u64) -> World {
    let mut world = World::unconnected(setup, seed);
    world.connect(0);
    let now = world.now;
    let remote_qpn = world.conn(0).config().local_qpn;
    let rtr = RtrParams {
        remote_qpn,
        remote_psn: Psn::new(setup.psn[0]),
        max_datagram_octets: setup.max_datagram_octets,
        max_dest_rd_atomic: setup.rd_atomic,
        min_rnr_timer: setup.min_rnr_timer,
        path: Path::Network,
    };
    world.conn(1).to_rtr(now, &rtr).unwrap();
    world
}

/// Reads 4096 octets of the other end; returns the key of the sink.
fn read(world: &mut World, end: usize, wr_id: u64) -> u32 {
    let sink = world.ends[end].host.register(vec![0; 4096], Rights::ALL);
    let source = world.ends[1 - end]
        .host
        .register(vec![9; 4096], Rights::ALL);
    let sge = Sge {
        addr: SimHost::base(sink),
        length: 4096,
        lkey: sink,
    };
    let remote = RemoteAddr {
        stag: source,
        to: SimHost::base(source),
    };
    let now = world.now;
    let (conn, host) = world.split(end);
    let wr = SendWr {
        wr_id,
        op: SendOp::Read { remote },
        imm: None,
        flags: SendFlags {
            signaled: true,
            ..SendFlags::default()
        },
        shared_queue: 0,
        payload: Payload::Sges(&[sge]),
    };
    conn.post_send(|| now, &wr, host).unwrap();
    sink
}

/// Lets a read finish and checks its data.
fn finish(world: &mut World, end: usize, wr_id: u64, sink: u32) {
    let done = |world: &mut World| !world.ends[end].host.completions.is_empty();
    assert!(world.run_until(10_000_000_000, done), "{}", world.summary());
    let completion = world.ends[end].host.completions.pop_front().unwrap();
    assert_eq!(
        (completion.wr_id, completion.status),
        (wr_id, Status::Success)
    );
    assert!(world.ends[end].host.octets(sink).iter().all(|&o| o == 9));
}

#[test]
fn responder_in_rtr_answers_reads() {
    for_each_seed(200, |seed| {
        let mut world = half_connected(&lossy(), seed);
        for wr_id in 0..20 {
            let sink = read(&mut world, 0, wr_id);
            finish(&mut world, 0, wr_id, sink);
        }
        assert_eq!(world.conn(1).state(), QpState::Rtr);
    });
}

#[test]
fn responder_that_reaches_rts_later_goes_on_with_its_stream() {
    for_each_seed(200, |seed| {
        let setup = lossy();
        let mut world = half_connected(&setup, seed);
        let first = read(&mut world, 0, 1);
        if seed % 2 == 0 {
            finish(&mut world, 0, 1, first);
        } else {
            world.run_until(100_000, |_| false);
        }
        let rts = RtsParams {
            local_psn: Psn::new(setup.psn[1]),
            timeout: setup.timeout,
            retry_cnt: setup.retry_cnt,
            rnr_retry: setup.rnr_retry,
            max_rd_atomic: setup.rd_atomic,
            keepalive_ns: setup.keepalive_ns,
        };
        let now = world.now;
        world.conn(1).to_rts(now, &rts).unwrap();
        let back = read(&mut world, 1, 2);
        finish(&mut world, 1, 2, back);
        if seed % 2 != 0 {
            finish(&mut world, 0, 1, first);
        }
    });
}
