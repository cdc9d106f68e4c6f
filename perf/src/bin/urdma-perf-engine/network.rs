//! Two engines on two hosts: packets of a stream of RDMA Writes, forwarded by the urdmad of either
//! host or over leased queue pairs. The hosts are in this thread, and the links between them in
//! memory; the functions of the links are called `loopback`, and are not counted.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc;

use urdma_engine::{
    leased_pair, Engine, Gid, GidEntry, Host, HostMemory, LeasedQueue, Parts, Personality,
    PlayedDaemon, SlotId, StoppedClock,
};
use urdmad::data::{loopback_ports, InProcess};

use crate::end::{End, SLOTS};

/// Length of a message in octets.
const MESSAGE_OCTETS: u32 = 65_536;
/// Messages that are posted and not complete.
const OUTSTANDING: usize = 16;
/// Octets of the headers of IPv4 and UDP.
const IP_OCTETS: u32 = 28;
/// Virtual time between the turns of the two ends.
const TURN_NS: u64 = 10_000;
/// Turns without a completion after which none is to be expected.
const TURNS_MAX: u32 = 10_000;
/// The slot of the process of either host.
const SLOT: SlotId = SLOTS[0];
/// The GID index of the address of a host.
const GID_INDEX: u8 = 1;
/// The Ethernet address to which a leased queue pair sends.
const NEXT_HOP: [u8; 6] = [2, 0, 0, 0, 0, 9];

const fn address(which: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1 + which))
}

/// One host: a process, and its urdmad.
struct Peer {
    end: End,
    daemon: InProcess,
    posted: usize,
}

impl Peer {
    fn new(
        which: u8,
        mtu: u16,
        mut daemon: InProcess,
        lease: Option<LeasedQueue>,
    ) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let offer = daemon.open(SLOT).map_err(text)?;
        let (offers, offered) = mpsc::channel();
        let gids = daemon.identity().gids.iter().map(|entry| GidEntry {
            gid: Gid(entry.gid),
            netdev: None,
        });
        let parts = Parts {
            host: Host::Played(PlayedDaemon {
                memory: HostMemory {
                    directory: offer.directory,
                    region: offer.region,
                    page: offer.page,
                },
                next_hop: NEXT_HOP,
                offers,
            }),
            slot: SLOT,
            node_guid: 1,
            personality: Personality::Roce,
            gids: gids.collect(),
            addresses: vec![address(which)],
            mtu,
            control: None,
        };
        let engine = Engine::start_leased_without_thread(parts, lease);
        let end = End::with(engine, MESSAGE_OCTETS)?;
        let offer = offered.recv().map_err(|_| "the engine offers no channel")?;
        let attached = daemon.attach(SLOT, offer);
        attached.map_err(|error| error.to_string())?;
        Ok(Self {
            end,
            daemon,
            posted: 0,
        })
    }
}

/// What the writing process does in a turn.
#[inline(never)]
fn sender(end: &mut End, peer: &End, posts: usize) {
    (0..posts).for_each(|_| end.write(peer, None));
    end.poll();
}

/// What the other process does in a turn.
#[inline(never)]
fn receiver(end: &mut End) {
    end.poll();
}

/// What the urdmad of the writing process does in a turn.
#[inline(never)]
fn daemon_of_sender(daemon: &mut InProcess, now_ns: u64) {
    daemon.pass(now_ns);
    // Equal functions are merged, and this one is to be counted by its name.
    black_box(0);
}

/// What the other urdmad does in a turn.
#[inline(never)]
fn daemon_of_receiver(daemon: &mut InProcess, now_ns: u64) {
    daemon.pass(now_ns);
}

/// Writes messages from one host to the other, with these leases.
fn run(mtu: u32, messages: u32, leases: [Option<LeasedQueue>; 2]) -> Result<(), String> {
    let mtu = u16::try_from(mtu).map_err(|_| "an MTU beyond that of IP")?;
    let clock = StoppedClock::stop().ok_or("the clock runs")?;
    let mut peers = Vec::new();
    for ((number, port), lease) in (0..).zip(loopback_ports(mtu)).zip(leases) {
        let daemon = InProcess::new(address(number), port).map_err(|error| error.to_string())?;
        peers.push(Peer::new(number, mtu, daemon, lease)?);
    }
    let [one, two] = &mut peers[..] else {
        return Err("not two hosts".into());
    };
    one.end
        .connect(two.end.number(), Gid::from_ip(address(1)), GID_INDEX)?;
    two.end
        .connect(one.end.number(), Gid::from_ip(address(0)), GID_INDEX)?;
    let (messages, mut now_ns, mut idle) = (messages as usize, 0u64, 0u32);
    while one.end.completed() < messages {
        let before = one.end.completed();
        let outstanding = one.posted - before;
        let posts = (OUTSTANDING - outstanding).min(messages - one.posted);
        one.posted += posts;
        sender(&mut one.end, &two.end, posts);
        daemon_of_sender(&mut one.daemon, now_ns);
        daemon_of_receiver(&mut two.daemon, now_ns);
        clock.advance(TURN_NS);
        receiver(&mut two.end);
        daemon_of_receiver(&mut two.daemon, now_ns);
        daemon_of_sender(&mut one.daemon, now_ns);
        clock.advance(TURN_NS);
        now_ns += 2 * TURN_NS;
        idle = if one.end.completed() == before {
            idle + 1
        } else {
            0
        };
        if idle > TURNS_MAX {
            return Err("no message completes".into());
        }
    }
    Ok(())
}

/// As [`run_leased`], of packets that the urdmad of either host forwards.
///
/// # Errors
/// As there.
pub(crate) fn run_forwarded(mtu: u32, messages: u32) -> Result<(), String> {
    run(mtu, messages, [None, None])
}

/// Writes messages over a path with this MTU, over leased queue pairs.
///
/// # Errors
/// The hosts cannot be made, or a message does not complete.
pub(crate) fn run_leased(mtu: u32, messages: u32) -> Result<(), String> {
    let leases = leased_pair(mtu.saturating_sub(IP_OCTETS));
    run(mtu, messages, leases.map(Some))
}
