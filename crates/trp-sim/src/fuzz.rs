//! Operation sequences made from octets, for fuzzers and random tests.

use proto_trp::conn::{
    Connection, Payload, PostError, QpState, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
    Status,
};

use super::host::{Rights, SimHost};
use super::link::LinkModel;
use super::world::{Setup, World};

/// Octets as a source of choices; 0 after the last.
pub(super) struct Choices<'a>(pub(super) &'a [u8]);

impl Choices<'_> {
    pub(super) fn octet(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.octet(), self.octet()])
    }
}

const REGION: usize = 8192;
const GUARD: u8 = 0xa5;

/// One end's keys, its requests and their completions.
#[derive(Default)]
struct Ledger {
    memory: u32,
    guard: u32,
    signaled: u64,
    receives: u64,
    completions: u64,
}

/// Runs the operations that `octets` stand for on two connections: posts good and bad requests,
/// lets time pass, damages datagrams, fails and resets queue pairs.
///
/// # Panics
/// When a request completes twice or never, or memory is written without the right.
pub fn fuzz_operations(octets: &[u8]) {
    let mut choices = Choices(octets);
    let setup = setup(&mut choices);
    let mut world = World::new(&setup, u64::from(choices.word()));
    let mut ledgers = [0, 1].map(|end: usize| {
        let host = &mut world.ends[end].host;
        Ledger {
            memory: host.register(vec![0; REGION], Rights::ALL),
            guard: host.register(vec![GUARD; REGION], Rights::default()),
            ..Ledger::default()
        }
    });
    while !choices.0.is_empty() {
        let choice = choices.octet();
        let end = usize::from(choice >> 7);
        operate(&mut world, &mut ledgers, end, choice & 0x7f, &mut choices);
        count(&mut world, &mut ledgers);
    }
    for end in 0..2 {
        let (conn, host) = world.split(end);
        if conn.state() != QpState::Reset {
            conn.to_error(host);
        }
    }
    count(&mut world, &mut ledgers);
    for (ledger, end) in ledgers.iter().zip(&world.ends) {
        let asked = ledger.signaled + ledger.receives;
        assert_eq!(
            ledger.completions, asked,
            "a request was lost or came twice"
        );
        let guard = end.host.octets(ledger.guard);
        assert!(
            guard.iter().all(|&octet| octet == GUARD),
            "no right to write here"
        );
    }
}

fn setup(choices: &mut Choices<'_>) -> Setup {
    let choice = choices.octet();
    let mut setup = Setup {
        max_datagram_octets: [256, 600, 1472, 65_507][usize::from(choice >> 1 & 3)],
        rnr_retry: choice >> 3 & 7,
        rd_atomic: 1 + (choice >> 6),
        timeout: 4,
        retry_cnt: 2,
        psn: [0xff_fffa, u32::from(choices.word())],
        ..Setup::default()
    };
    setup.link = LinkModel {
        delay_ns: 5_000,
        jitter_ns: u64::from(choices.octet()) * 100,
        loss_ppm: u32::from(choices.octet()) * 1_000,
        duplicate_ppm: u32::from(choices.octet()) * 1_000,
        ..LinkModel::default()
    };
    setup.config.sq_depth = 8;
    setup.config.rq_depth = 8;
    setup.config.window_packets = 64;
    setup.config.unreliable = setup.psn[1] % 8 == 7;
    setup
}

/// One operation.
fn operate(
    world: &mut World,
    ledgers: &mut [Ledger; 2],
    end: usize,
    choice: u8,
    choices: &mut Choices<'_>,
) {
    match choice {
        0..=39 => post_send(world, ledgers, end, choices),
        40..=69 => post_recv(world, ledgers, end, choices),
        70..=99 => {
            for _ in 0..=choices.octet() {
                if !world.step() {
                    break;
                }
            }
        }
        100..=109 => damage(world, end, choices),
        110..=114 => world.blackout(u64::from(choices.octet()) * 10_000),
        115 | 116 => {
            let (conn, host) = world.split(end);
            conn.to_error(host);
        }
        117 => {
            let (conn, host) = world.split(end);
            conn.peer_gone(host);
        }
        118 => world.conn(end).close(),
        119 => {
            let (conn, host) = world.split(end);
            // Refused in most states, which is tested as well.
            let _ = conn.to_sqd(host);
        }
        120 => {
            let _ = world.conn(end).resume();
        }
        121 => reconnect(world, ledgers),
        _ => {
            let octets: Vec<u8> = (0..choices.octet()).map(|_| choices.octet()).collect();
            world.deliver(end, &octets, false);
        }
    }
}

/// Flushes, resets and connects both ends again.
fn reconnect(world: &mut World, ledgers: &mut [Ledger; 2]) {
    for end in 0..2 {
        let (conn, host) = world.split(end);
        conn.to_error(host);
        conn.reset();
        assert_eq!(conn.to_init(), Ok(()));
    }
    count(world, ledgers);
    world.connect(0);
    world.connect(1);
}

fn random_sge(ledger: &Ledger, choices: &mut Choices<'_>) -> Sge {
    let choice = choices.octet();
    let key = match choice & 15 {
        0 => ledger.guard,
        1 => ledger.memory ^ 1,
        _ => ledger.memory,
    };
    Sge {
        addr: SimHost::base(ledger.memory) + u64::from(choices.octet()) * 8,
        length: u32::from(choices.octet()) << (choice >> 6),
        lkey: key,
    }
}

fn post_send(world: &mut World, ledgers: &mut [Ledger; 2], end: usize, choices: &mut Choices<'_>) {
    let choice = choices.octet();
    let peer = &ledgers[1 - end];
    let stag = match choices.octet() & 31 {
        0 => peer.guard,
        1 => 0x1234_5678,
        _ => peer.memory,
    };
    let remote = RemoteAddr {
        stag,
        to: SimHost::base(peer.memory) + u64::from(choices.octet()) * 8,
    };
    let value = u64::from(choices.octet());
    let op = match choice & 7 {
        0..=2 => SendOp::Send,
        3 | 4 => SendOp::Write { remote },
        5 => SendOp::Read { remote },
        6 if value % 2 == 0 => SendOp::AtomicWrite {
            remote,
            octets: value.to_be_bytes(),
        },
        6 => SendOp::FetchAdd { remote, add: value },
        _ => SendOp::CompareSwap {
            remote,
            compare: value,
            swap: !value,
        },
    };
    let flags = SendFlags {
        signaled: true,
        fence: choice & 8 != 0,
        solicited: choice & 16 != 0,
    };
    let carries = matches!(op, SendOp::Send | SendOp::Write { .. });
    let mut sges = [
        random_sge(&ledgers[end], choices),
        random_sge(&ledgers[end], choices),
    ];
    let brings_word = matches!(op, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
    if brings_word && choice & 96 != 96 {
        // Lists of another length fail before anything is sent.
        (sges[0].length, sges[1].length) = (8, 0);
    }
    let wr = SendWr {
        wr_id: 0,
        op,
        imm: (choice & 32 != 0 && carries).then_some(7),
        flags,
        shared_queue: 0,
        payload: if choice & 64 != 0 && carries {
            Payload::Inline(&[&[1; 40], &[2; 9]])
        } else if matches!(op, SendOp::AtomicWrite { .. }) {
            Payload::Sges(&[])
        } else {
            Payload::Sges(&sges)
        },
    };
    let now = world.now;
    let (conn, host) = world.split(end);
    match conn.post_send(|| now, &wr, host) {
        Ok(_) => ledgers[end].signaled += 1,
        Err(PostError::QueueFull | PostError::InvalidState | PostError::InvalidRequest) => {}
        Err(error) => panic!("{error:?}"),
    }
}

fn post_recv(world: &mut World, ledgers: &mut [Ledger; 2], end: usize, choices: &mut Choices<'_>) {
    let sges = [random_sge(&ledgers[end], choices)];
    let wr = RecvWr {
        wr_id: 1,
        sges: &sges,
    };
    let (conn, host) = world.split(end);
    match conn.post_recv(&wr, host) {
        Ok(()) => ledgers[end].receives += 1,
        Err(PostError::QueueFull | PostError::InvalidState) => {}
        Err(error) => panic!("{error:?}"),
    }
}

/// Takes the next datagram of an end and hands it to the other with a few octets changed.
fn damage(world: &mut World, end: usize, choices: &mut Choices<'_>) {
    let now = world.now;
    let mut frame = vec![0; 65_566];
    let (conn, host) = world.split(end);
    let Some(sent) = conn.poll_transmit(now, &mut frame, host) else {
        return;
    };
    frame.truncate(sent.len);
    for _ in 0..=choices.octet() & 3 {
        let at = usize::from(choices.octet()) % frame.len();
        frame[at] = choices.octet();
    }
    frame.truncate(frame.len() - usize::from(choices.octet() >> 5).min(frame.len()));
    world.deliver(1 - end, &frame, false);
}

/// Counts what has completed.
fn count(world: &mut World, ledgers: &mut [Ledger; 2]) {
    for (ledger, end) in ledgers.iter_mut().zip(&mut world.ends) {
        for completion in end.host.completions.drain(..) {
            ledger.completions += 1;
            // The unreliable service has no reads and atomics.
            let lacks = end.conn.as_ref().is_some_and(Connection::is_unreliable);
            let internal = completion.status == Status::LocalQpOperationError;
            assert!(!internal || lacks, "{completion:?}");
        }
        end.host.events.clear();
    }
}
