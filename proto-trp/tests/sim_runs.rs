//! Runs: the segments of an RDMA Write that are written in one call are those that are written one
//! at a time.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{RemoteAddr, SendOp, Sge, Status};
use proto_trp::wire::{Flags, TrpHeader};
use trp_sim::{Rights, Setup, SimHost, World};

const SECOND: u64 = 1_000_000_000;
const OCTETS: u32 = 100_000;
const DATAGRAM: usize = 1_472;

/// Two ends that have exchanged a message, and a region of each.
struct Pair {
    world: World,
    memory: [u32; 2],
}

impl Pair {
    fn new() -> Self {
        let mut setup = Setup::default();
        setup.config.window_packets = 256;
        let mut world = World::new(&setup, 1);
        let memory = [3, 4].map(|fill| {
            let end = usize::from(fill == 4);
            let octets = vec![fill; OCTETS as usize];
            world.ends[end].host.register(octets, Rights::ALL)
        });
        let mut pair = Self { world, memory };
        pair.write(0, &[SimHost::sge(pair.memory[0], 0, 1)]);
        pair.world.run(SECOND);
        assert_eq!(pair.world.outcome(0), [(0, Status::Success)]);
        pair
    }

    fn write(&mut self, wr_id: u64, sges: &[Sge]) {
        let remote = RemoteAddr {
            stag: self.memory[1],
            to: SimHost::base(self.memory[1]),
        };
        self.world.post(0, wr_id, SendOp::Write { remote }, sges);
    }

    /// What end 0 may send now, in runs of up to `rooms`; the length of each run.
    fn sent(&mut self, rooms: usize) -> (Vec<Vec<u8>>, Vec<u16>) {
        let now = self.world.now;
        let (conn, host) = self.world.split(0);
        let (mut sent, mut runs) = (Vec::new(), Vec::new());
        while let Some(plan) = conn.plan_transmit() {
            let mut buffers = vec![vec![0; plan.room()]; rooms];
            if rooms == 1 || plan.run() == 0 {
                let written = conn.write_transmit(now, plan, &mut buffers[0], host);
                sent.extend(written.map(|written| buffers[0][..written.len].to_vec()));
                continue;
            }
            let rooms = buffers.iter_mut().map(Vec::as_mut_slice);
            let run = conn.write_run(now, plan, rooms, host);
            assert!(run.count <= plan.run() && usize::from(run.count) <= buffers.len());
            runs.push(run.count);
            let lengths = (1..=run.count).map(|number| match number {
                last if last == run.count => run.last,
                _ => run.each,
            });
            sent.extend(
                buffers
                    .iter()
                    .zip(lengths)
                    .map(|(buffer, len)| buffer[..len].to_vec()),
            );
        }
        (sent, runs)
    }
}

#[test]
fn runs_are_the_packets_that_are_written_one_at_a_time() {
    let mut single = Pair::new();
    for rooms in [1, 2, 7, 64] {
        let mut pair = Pair::new();
        for pair in [&mut single, &mut pair] {
            for wr_id in 1..4 {
                pair.write(wr_id, &[SimHost::sge(pair.memory[0], 0, OCTETS)]);
            }
        }
        // The congestion window grows while acknowledgements arrive.
        let (mut packets, mut longest) = (0, 0);
        while pair.world.conn(0).sends_outstanding() > 0 {
            let (expected, _) = single.sent(1);
            let (sent, runs) = pair.sent(rooms);
            assert_eq!(sent, expected, "{rooms} at a time");
            packets += sent.len();
            longest = runs.into_iter().max().unwrap_or(0).max(longest);
            for (pair, packets) in [(&mut single, expected), (&mut pair, sent)] {
                for packet in packets {
                    pair.world.deliver(1, &packet, false);
                }
                pair.world.flush(1);
                while pair.world.step() && pair.world.conn(0).plan_transmit().is_none() {}
            }
        }
        assert_eq!(packets, 3 * 70);
        assert!(rooms == 1 || longest > 1 && usize::from(longest) <= rooms);
        single = Pair::new();
    }
}

#[test]
fn run_ends_with_its_request() {
    let mut pair = Pair::new();
    let sges = [SimHost::sge(pair.memory[0], 0, 3_000)];
    pair.write(1, &sges);
    pair.write(2, &sges);
    let (sent, runs) = pair.sent(64);
    assert_eq!(runs, [3, 3]);
    assert_eq!(sent[1].len(), DATAGRAM);
    assert_eq!(sent[2].len(), 30 + 3_000 - 2 * (DATAGRAM - 30));
}

#[test]
fn run_before_unreadable_memory_is_sent() {
    let mut pair = Pair::new();
    let missing = Sge {
        lkey: pair.memory[0] ^ 0xff00,
        ..SimHost::sge(pair.memory[0], 0, 10_000)
    };
    pair.write(1, &[SimHost::sge(pair.memory[0], 0, 5_000), missing]);
    let (sent, runs) = pair.sent(64);
    // The segment that has octets of both elements cannot be written.
    assert_eq!(runs, [3]);
    assert!(sent[..3].iter().all(|packet| packet.len() == DATAGRAM));
    for packet in sent {
        pair.world.deliver(1, &packet, false);
    }
    pair.world.run(SECOND);
    assert_eq!(pair.world.outcome(0), [(1, Status::LocalProtectionError)]);
}

#[test]
fn mark_is_reported_by_the_first_packet_of_a_run_only() {
    let mut pair = Pair::new();
    let remote = RemoteAddr {
        stag: pair.memory[0],
        to: SimHost::base(pair.memory[0]),
    };
    let sges = [SimHost::sge(pair.memory[1], 0, 500)];
    pair.world.post(1, 9, SendOp::Write { remote }, &sges);
    let now = pair.world.now;
    let (conn, host) = pair.world.split(1);
    let mut buf = [0; DATAGRAM];
    let len = conn.poll_transmit(now, &mut buf, host).unwrap().len;
    pair.world.deliver(0, &buf[..len], true);
    pair.write(1, &[SimHost::sge(pair.memory[0], 0, 20_000)]);
    let (sent, _) = pair.sent(64);
    let echoes = sent.iter().map(|packet| {
        let header = TrpHeader::parse(packet, packet.len()).unwrap();
        header.flags.contains(Flags::ECN_ECHO)
    });
    let echoes: Vec<bool> = echoes.collect();
    assert!(echoes.len() > 10);
    assert_eq!(echoes.iter().filter(|&&is_echo| is_echo).count(), 1);
    assert!(echoes[0]);
}
