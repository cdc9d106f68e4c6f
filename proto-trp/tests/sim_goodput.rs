//! How much of a lossless link's rate remains when the link loses.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
use proto_trp::sim::{for_each_seed, LinkModel, Rights, Setup, SimHost, World};

const LENGTH: u32 = 65_536;
const RUN_NS: u64 = 100_000_000;

/// Octets written in 0.1 s of virtual time with the send queue kept full.
fn goodput(setup: &Setup, seed: u64) -> u64 {
    let mut world = World::new(setup, seed);
    let memory = vec![0x55; LENGTH as usize];
    let source = world.ends[0].host.register(memory.clone(), Rights::ALL);
    let target = world.ends[1].host.register(memory, Rights::ALL);
    let sges = [Sge {
        addr: SimHost::base(source),
        length: LENGTH,
        lkey: source,
    }];
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Write {
            remote: RemoteAddr {
                stag: target,
                to: SimHost::base(target),
            },
        },
        imm: None,
        flags: SendFlags {
            signaled: true,
            ..SendFlags::default()
        },
        payload: Payload::Sges(&sges),
    };
    let mut done = 0;
    world.run_until(RUN_NS, |world| {
        let now = world.now;
        let (conn, host) = world.split(0);
        while conn.sends_outstanding() < 64 {
            conn.post_send(now, &wr, host).unwrap();
        }
        done += host.completions.len() as u64;
        host.completions.clear();
        false
    });
    done * u64::from(LENGTH)
}

/// Round trip 100 us: 85 packets of 1472 octets at 10 Gb/s.
fn setup(max_datagram_octets: u32, loss_ppm: u32) -> Setup {
    Setup {
        max_datagram_octets,
        link: LinkModel {
            bits_per_second: 10_000_000_000,
            delay_ns: 50_000,
            loss_ppm,
            queue_octets: 1_000_000,
            ..LinkModel::default()
        },
        ..Setup::default()
    }
}

#[test]
fn goodput_at_one_percent_loss_is_most_of_the_lossless() {
    for max_datagram_octets in [1472, 8972] {
        let lossless = goodput(&setup(max_datagram_octets, 0), 1);
        let rate = lossless * 8 * 1_000 / (RUN_NS / 1_000_000);
        println!("{max_datagram_octets}: lossless {} Mb/s", rate / 1_000_000);
        assert!(rate > 8_500_000_000, "the line is not filled");
        for_each_seed(3, |seed| {
            let lossy = goodput(&setup(max_datagram_octets, 10_000), seed);
            println!("seed {seed}: {} % of the lossless", lossy * 100 / lossless);
            assert!(lossy * 10 >= lossless * 7);
        });
    }
}

#[test]
fn shallow_queue_is_not_overrun_for_ever() {
    let mut shallow = setup(1472, 0);
    shallow.link.queue_octets = 60_000;
    let lossless = goodput(&setup(1472, 0), 1);
    let got = goodput(&shallow, 1);
    println!("{} % of the lossless", got * 100 / lossless);
    assert!(got * 10 >= lossless * 7);
}
