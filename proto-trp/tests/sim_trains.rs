//! Trains: several messages in one packet are equivalent to a packet for each, whether the train
//! arrives or is lost.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{SendOp, Status};
use proto_trp::wire::train::{OVERHEAD, TABLE_LEN};
use proto_trp::wire::{PacketType, Train, TrpHeader};
use trp_sim::{Rights, Setup, SimHost, World};
use urdma_types::Psn;

const SECOND: u64 = 1_000_000_000;
const LENGTH: u32 = 64;
/// Octets of such a Send's segment.
const SEGMENT: usize = 18 + LENGTH as usize;
/// The number of the first packet after the greeting: those of a train run over the wrap.
const FIRST: u32 = 0xff_fffe;

/// Two ends, each with a region.
struct Pair {
    world: World,
    memory: [u32; 2],
}

impl Pair {
    fn unacquainted() -> Self {
        let mut setup = Setup {
            psn: [FIRST - 1, 77],
            ..Setup::default()
        };
        setup.config.window_packets = 256;
        let mut world = World::new(&setup, 1);
        let memory = [0, 1].map(|end| {
            let octets = vec![u8::try_from(end).unwrap(); 1 << 16];
            world.ends[end].host.register(octets, Rights::ALL)
        });
        Self { world, memory }
    }

    /// End 0 has learned that end 1 accepts trains.
    fn new() -> Self {
        let mut pair = Self::unacquainted();
        pair.receives(1);
        pair.sends(0..1);
        pair.run();
        assert_eq!(pair.world.outcome(0), [(0, Status::Success)]);
        assert_eq!(pair.world.outcome(1), [(100, Status::Success)]);
        pair
    }

    /// End 1 posts receives of [`LENGTH`], called 100 and so on.
    fn receives(&mut self, count: u64) {
        for wr_id in 100..100 + count {
            let at = (wr_id - 100) * u64::from(LENGTH);
            let sges = [SimHost::sge(self.memory[1], at, LENGTH)];
            self.world.post_recv(1, wr_id, &sges);
        }
    }

    fn send(&mut self, wr_id: u64, length: u32) {
        let sges = [SimHost::sge(self.memory[0], 0, length)];
        self.world.post(0, wr_id, SendOp::Send, &sges);
    }

    fn sends(&mut self, wr_ids: std::ops::Range<u64>) {
        wr_ids.for_each(|wr_id| self.send(wr_id, LENGTH));
    }

    /// The next packet of end 0, which is dropped.
    fn packet(&mut self) -> Option<Vec<u8>> {
        let now = self.world.now;
        let (conn, host) = self.world.split(0);
        let mut buf = vec![0; 1472];
        let sent = conn.poll_transmit(now, &mut buf, host)?;
        buf.truncate(sent.len);
        Some(buf)
    }

    /// The next packet of end 0, which is a train of `segments` segments.
    fn train(&mut self, segments: usize) -> Vec<u8> {
        let packet = self.packet().unwrap();
        assert_eq!(segments_of(&packet), segments);
        packet
    }

    fn run(&mut self) {
        self.world.run_until(SECOND, |_| false);
    }

    /// Everything that was posted completes, each once and in order.
    fn ends_well(&mut self, sends: std::ops::Range<u64>, receives: std::ops::Range<u64>) {
        self.run();
        let all = |wr_ids: std::ops::Range<u64>| -> Vec<(u64, Status)> {
            wr_ids.map(|wr_id| (wr_id, Status::Success)).collect()
        };
        assert_eq!(self.world.outcome(0), all(sends));
        assert_eq!(self.world.outcome(1), all(receives));
    }
}

fn header(packet: &[u8]) -> TrpHeader {
    TrpHeader::parse(packet, packet.len()).unwrap()
}

/// Segments of a train; 1 for another packet.
fn segments_of(packet: &[u8]) -> usize {
    let trp = header(packet);
    match trp.kind {
        PacketType::Train => Train::parse(&trp, packet, packet.len())
            .unwrap()
            .pieces()
            .len(),
        _ => 1,
    }
}

/// The DATA packet that the segment of a train with this place stands for.
fn alone(train: &[u8], place: usize) -> Vec<u8> {
    let trp = header(train);
    let pieces = Train::parse(&trp, train, train.len()).unwrap();
    let piece = pieces.pieces().nth(place).unwrap();
    let data = TrpHeader {
        kind: PacketType::Data,
        psn: trp.psn.add(u32::try_from(place).unwrap()),
        ..trp
    };
    let mut octets = vec![0; 16];
    data.encode(&mut octets).unwrap();
    octets.extend_from_slice(&train[piece.at..piece.at + piece.len]);
    octets
}

#[test]
fn train_is_the_messages_that_are_ready() {
    let mut pair = Pair::new();
    pair.receives(6);
    pair.sends(1..6);
    let train = pair.train(5);
    assert_eq!(header(&train).psn, Psn::new(FIRST));
    assert_eq!(train.len(), OVERHEAD + 5 * SEGMENT);
    assert!(pair.packet().is_none());
    pair.world.deliver(1, &train, false);
    // A single request leaves in a packet of its own.
    pair.sends(6..7);
    let single = pair.packet().unwrap();
    assert_eq!(header(&single).kind, PacketType::Data);
    assert_eq!(header(&single).psn, Psn::new(FIRST).add(5));
    pair.world.deliver(1, &single, false);
    pair.ends_well(1..7, 100..106);
    let (sent, received) = (pair.world.stats(0), pair.world.stats(1));
    assert_eq!((sent.tx_trains, received.rx_trains), (1, 1));
    assert_eq!((sent.retransmits, received.rx_duplicates), (0, 0));
}

#[test]
fn peer_that_has_not_announced_trains_is_sent_none() {
    let mut pair = Pair::unacquainted();
    pair.receives(3);
    pair.sends(1..4);
    for _ in 0..3 {
        let packet = pair.packet().unwrap();
        assert_eq!(header(&packet).kind, PacketType::Data);
        pair.world.deliver(1, &packet, false);
    }
    pair.ends_well(1..4, 100..103);
}

#[test]
fn only_short_messages_of_one_segment_share_a_train() {
    let mut pair = Pair::new();
    let (own, peer) = (pair.memory[0], pair.memory[1]);
    let write = SendOp::Write {
        remote: SimHost::remote(peer, 30_000),
    };
    let read = SendOp::Read {
        remote: SimHost::remote(peer, 0),
    };
    pair.receives(2);
    pair.sends(1..2);
    pair.world.post(0, 2, write, &[SimHost::sge(own, 0, 256)]);
    pair.world.post(0, 3, write, &[SimHost::sge(own, 0, 257)]);
    pair.sends(4..5);
    pair.world.post(0, 5, read, &[SimHost::sge(own, 9000, 8)]);
    let mut found = Vec::new();
    while let Some(packet) = pair.packet() {
        found.push(segments_of(&packet));
        pair.world.deliver(1, &packet, false);
    }
    assert_eq!(found, [2, 1, 1, 1]);
    pair.ends_well(1..6, 100..102);
    let written = &pair.world.ends[1].host.octets(peer)[30_000..30_258];
    assert_eq!(written, [&[0; 257][..], &[1]].concat());
}

#[test]
fn window_ends_a_train() {
    let mut pair = Pair::new();
    pair.receives(40);
    pair.sends(1..41);
    let mut found = Vec::new();
    while let Some(packet) = pair.packet() {
        found.push(segments_of(&packet));
    }
    // A new connection has 32 packets in flight.
    assert_eq!(found, [14, 14, 4]);
    pair.ends_well(1..41, 100..140);
}

#[test]
fn lost_train_is_sent_again() {
    let mut pair = Pair::new();
    pair.receives(9);
    pair.sends(1..6);
    pair.train(5);
    pair.sends(6..10);
    let second = pair.train(4);
    pair.world.deliver(1, &second, false);
    assert_eq!(pair.world.stats(1).rx_out_of_order, 4);
    pair.ends_well(1..10, 100..109);
    assert_eq!(pair.world.stats(0).retransmits, 5);
}

#[test]
fn duplicates_have_no_effect_even_if_half_a_train_is_new() {
    let mut pair = Pair::new();
    pair.receives(5);
    pair.sends(1..6);
    let train = pair.train(5);
    pair.world.deliver(1, &alone(&train, 0), false);
    pair.world.deliver(1, &alone(&train, 2), false);
    assert_eq!(pair.world.outcome(1), [(100, Status::Success)]);
    pair.world.deliver(1, &train, false);
    assert_eq!(pair.world.stats(1).rx_duplicates, 2);
    pair.world.deliver(1, &train, false);
    assert_eq!(pair.world.stats(1).rx_duplicates, 7);
    pair.ends_well(1..6, 101..105);
}

#[test]
fn refusal_in_the_middle_refuses_the_rest() {
    let mut pair = Pair::new();
    pair.receives(2);
    pair.sends(1..6);
    let train = pair.train(5);
    pair.world.deliver(1, &train, false);
    let now = pair.world.now;
    let (conn, host) = pair.world.split(1);
    let mut buf = vec![0; 1472];
    let sent = conn.poll_transmit(now, &mut buf, host).unwrap();
    let rnr = header(&buf[..sent.len]);
    assert_eq!(rnr.kind, PacketType::Rnr);
    assert_eq!(rnr.psn, Psn::new(FIRST).add(2));
    pair.world.deliver(0, &buf[..sent.len], false);
    pair.run();
    assert_eq!(pair.world.outcome(0).len(), 2);
    assert_eq!(pair.world.outcome(1).len(), 2);
    pair.receives(3);
    pair.ends_well(3..6, 100..103);
}

#[test]
fn message_too_long_in_the_middle_ends_the_connection_there() {
    let mut pair = Pair::new();
    pair.receives(5);
    pair.sends(1..3);
    pair.send(3, LENGTH + 1);
    pair.sends(4..6);
    // The size is planned as if all were as long as the first, so the last is not in it.
    let train = pair.train(4);
    pair.world.deliver(1, &train, false);
    pair.run();
    let ended =
        |status: [Status; 5], from: u64| -> Vec<(u64, Status)> { (from..).zip(status).collect() };
    use Status::{
        LocalLengthError as TooLong, RemoteInvalidRequestError as Invalid, Success,
        WorkRequestFlushed as Flushed,
    };
    let sent = [Success, Success, Invalid, Flushed, Flushed];
    assert_eq!(pair.world.outcome(0), ended(sent, 1));
    let received = [Success, Success, TooLong, Flushed, Flushed];
    assert_eq!(pair.world.outcome(1), ended(received, 100));
}

#[test]
fn train_beyond_the_window_is_dropped_from_there_on() {
    let mut pair = Pair::new();
    pair.receives(5);
    pair.sends(1..6);
    let train = pair.train(5);
    for (ahead, outside) in [(300, 5), (253, 2)] {
        let mut far = train.clone();
        let trp = TrpHeader {
            psn: Psn::new(FIRST).add(ahead),
            ..header(&train)
        };
        trp.encode(&mut far).unwrap();
        let before = pair.world.stats(1).rx_out_of_window;
        pair.world.deliver(1, &far, false);
        assert_eq!(pair.world.stats(1).rx_out_of_window - before, outside);
    }
    assert_eq!(pair.world.outcome(1), []);
}

#[test]
fn malformed_train_is_dropped_as_a_whole() {
    let mut pair = Pair::new();
    pair.receives(5);
    pair.sends(1..6);
    let train = pair.train(5);
    let mut dropped = 0;
    let mut refuse = |octets: &[u8]| {
        pair.world.deliver(1, octets, false);
        dropped += 1;
        assert_eq!(pair.world.stats(1).rx_malformed, dropped);
        assert_eq!(pair.world.outcome(1), []);
    };
    refuse(&train[..train.len() - 1]);
    refuse(&[&train[..], &[0]].concat());
    refuse(&train[..OVERHEAD - 1]);
    for at in OVERHEAD - TABLE_LEN..OVERHEAD {
        // The highest bit of an entry is a flag, which a length does not depend on.
        for bit in 0..if at % 2 == 0 { 7 } else { 8 } {
            let mut odd = train.clone();
            odd[at] ^= 1 << bit;
            refuse(&odd);
        }
    }
    let mut empty = train.clone();
    empty.truncate(OVERHEAD);
    empty[OVERHEAD - TABLE_LEN..].fill(0);
    refuse(&empty);
    pair.world.deliver(1, &train, false);
    pair.ends_well(1..6, 100..105);
}
