//! Messages of a hostile process, made from octets, for fuzzers and random tests.

use proto_trp::conn::{Payload, PostError, QpState, RecvWr, SendOp, SendWr};
use proto_trp::wire::message::{CELL_LEN, CELL_PAYLOAD_LEN, MESSAGE_HEAD_LEN};
use proto_trp::wire::{rdmap, MessageFlags, MessageHead, MessageKind};

use super::channel::{ChannelSetup, ChannelWorld};
use super::ends::Ends;
use super::fuzz::Choices;
use super::host::{Rights, SimHost};
use super::verbs::SIGNALED;
use super::world::Setup;

const REGION: usize = 4096;
const GUARD: u8 = 0xa5;

/// Sends the messages that `octets` stand for, most of them with the right address, to a queue pair
/// that has requests of its own.
///
/// # Panics
/// When a request completes twice or never, or memory is written without the right.
pub fn fuzz_messages(octets: &[u8]) {
    let mut choices = Choices(octets);
    let choice = choices.octet();
    let mut setup = ChannelSetup {
        ends: Setup {
            rnr_retry: choice >> 5,
            ..Setup::default()
        },
        ..ChannelSetup::default()
    };
    setup.ends.config.unreliable = choice & 1 != 0;
    setup.ends.config.sq_depth = 4;
    let mut world = ChannelWorld::new(&setup, u64::from(choice));
    let keys = {
        let mut pair = world.pair(0);
        let host = pair.host_mut(1);
        let memory = host.register(vec![0; REGION], Rights::ALL);
        let guard = host.register(vec![GUARD; REGION], Rights::default());
        [memory, guard]
    };
    let mut posted = 0;
    while !choices.0.is_empty() {
        match choices.octet() {
            choice @ 0..=63 => posted += post(&mut world, keys[0], choice),
            64..=95 => {
                world.expire();
            }
            96..=111 => world.read_counts(1),
            _ => hostile(&mut world, &keys, &mut choices),
        }
        while world.write(1) {}
        while world.take(1) {}
        world.discard(0);
    }
    let mut pair = world.pair(0);
    if let Some((conn, host)) = pair.alive(1) {
        if conn.state() != QpState::Reset {
            conn.to_error(host);
        }
    }
    let host = pair.host(1);
    assert_eq!(
        host.completions.len(),
        posted,
        "a request was lost or came twice"
    );
    let is_whole = host.octets(keys[1]).iter().all(|&octet| octet == GUARD);
    assert!(is_whole, "no right to write here");
}

/// Posts a request at the attacked end; returns how many completions it will have.
fn post(world: &mut ChannelWorld, key: u32, choice: u8) -> usize {
    let now = world.now;
    let sges = [SimHost::sge(key, 0, 64)];
    let remote = SimHost::remote(key, 64);
    let word = [SimHost::sge(key, 0, 8)];
    let mut pair = world.pair(0);
    let Some((conn, host)) = pair.alive(1) else {
        return 0;
    };
    let (op, list) = match choice % 8 {
        0..=2 => {
            let posted = conn.post_recv(
                &RecvWr {
                    wr_id: 1,
                    sges: &sges,
                },
                host,
            );
            return usize::from(posted.is_ok());
        }
        3 => (SendOp::Send, &sges),
        4 => (SendOp::Write { remote }, &sges),
        5 | 6 => (SendOp::Read { remote }, &sges),
        _ => (SendOp::FetchAdd { remote, add: 1 }, &word),
    };
    let wr = SendWr {
        wr_id: 2,
        op,
        imm: None,
        flags: SIGNALED,
        shared_queue: 0,
        payload: Payload::Sges(list),
    };
    match conn.post_send(|| now, &wr, host) {
        Ok(_) => 1,
        Err(PostError::QueueFull) => 0,
        Err(error) => panic!("{error:?}"),
    }
}

/// Puts a message into the ring.
fn hostile(world: &mut ChannelWorld, keys: &[u32; 2], choices: &mut Choices<'_>) {
    let choice = choices.octet();
    let mut head = world.address(0);
    let kinds = [
        MessageKind::Send,
        MessageKind::Write,
        MessageKind::Immediate,
        MessageKind::ReadRequest,
        MessageKind::ReadResponse,
        MessageKind::AtomicRequest,
        MessageKind::AtomicResponse,
        MessageKind::Terminate,
        MessageKind::NotReady,
        MessageKind::Reset,
        MessageKind::Fin,
        MessageKind::Packet,
        MessageKind::NotReady,
        MessageKind::NotReady,
        MessageKind::WriteImmediate,
        MessageKind::Write,
    ];
    head.kind = kinds[usize::from(choice & 15)];
    let flags = MessageFlags::from_octet(choices.octet() & 0x7f).unwrap_or_default();
    let number = u32::from(choices.octet());
    let service = MessageFlags::UNRELIABLE.when(world.conn(1, 0).is_unreliable());
    // Most are of the service of the connection.
    head.flags = match number {
        254 => flags,
        _ => flags.without(MessageFlags::UNRELIABLE) | service,
    };
    head.number = match choice >> 4 & 3 {
        0 => keys[0],
        1 => keys[1],
        2 => number & 3,
        _ => world.conn(1, 0).cookie() ^ (number & 3),
    };
    let offset = u64::from(choices.octet());
    head.offset = match choice >> 6 {
        0 => SimHost::base(head.number).wrapping_add(offset * 16),
        3 => u64::MAX - offset,
        _ => offset,
    };
    head.shared_queue = match head.kind {
        // A message number, which the next message may have.
        MessageKind::WriteImmediate => number & 3,
        _ => 0,
    };
    head.ulp = keys[usize::from(number & 1 != 0)];
    if number == 255 {
        // Not the address of the peer.
        head.source ^= u16::from(choices.octet());
    }
    let mut octets = [0; CELL_LEN];
    let (room, rest) = octets.split_at_mut(MESSAGE_HEAD_LEN);
    if let Some(room) = room.first_chunk_mut() {
        MessageHead::encode(&head, room);
    }
    let usual = match head.kind {
        MessageKind::Immediate => rdmap::IMMEDIATE_DATA_LEN,
        MessageKind::ReadRequest => rdmap::READ_REQUEST_LEN,
        MessageKind::AtomicRequest => rdmap::ATOMIC_REQUEST_LEN,
        MessageKind::AtomicResponse => rdmap::ATOMIC_RESPONSE_LEN,
        _ => 8,
    };
    let len = match usize::from(choices.octet()) {
        len @ 0..=CELL_PAYLOAD_LEN => len,
        _ => usual,
    };
    rest[..len].fill_with(|| choices.octet());
    let end = MESSAGE_HEAD_LEN + len;
    if choice & 0xc0 == 0x80 {
        let frame: Vec<u8> = rest.repeat(1 + len);
        world.forge_with(0, &octets[..MESSAGE_HEAD_LEN], frame);
    } else {
        world.forge(0, &octets[..end]);
    }
}
