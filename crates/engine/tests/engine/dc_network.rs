//! The dynamically connected transport between two hosts: each has a process and the data plane of
//! a urdmad, and the link between them is in memory.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{mpsc, Arc};
use std::time::Instant;

use urdma_engine::{
    Engine, Gid, GidEntry, Host, HostMemory, Parts, Personality, PlayedDaemon, SlotId,
};
use urdmad::data::{loopback_ports, InProcess};

use crate::dc::{works_with_both, Initiator, Target};

const MTU: u16 = 1_500;
const GID_INDEX: u8 = 1;

const fn address(which: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1 + which))
}

/// The process of a host.
fn process(which: u8, daemon: &mut InProcess) -> Arc<Engine> {
    let slot = SlotId::new(1 + which).unwrap();
    let offer = daemon.open(slot).unwrap();
    let (offers, offered) = mpsc::channel();
    let gids = daemon.identity().gids.iter().map(|entry| GidEntry {
        gid: Gid(entry.gid),
        netdev: None,
    });
    let engine = Engine::start(Parts {
        host: Host::Played(PlayedDaemon {
            memory: HostMemory {
                directory: offer.directory,
                region: offer.region,
                page: offer.page,
            },
            next_hop: [2, 0, 0, 0, 0, 9],
            offers,
        }),
        slot,
        node_guid: 1,
        personality: Personality::Roce,
        gids: gids.collect(),
        addresses: vec![address(which)],
        mtu: MTU,
        control: None,
    });
    let engine = engine.unwrap();
    daemon.attach(slot, offered.recv().unwrap()).unwrap();
    engine
}

#[test]
fn initiator_works_with_two_targets_of_another_host() {
    let mut daemons = Vec::new();
    let mut engines = Vec::new();
    for (which, port) in (0..).zip(loopback_ports(MTU)) {
        let mut daemon = InProcess::new(address(which), port).unwrap();
        engines.push(process(which, &mut daemon));
        daemons.push(daemon);
    }
    let begin = Instant::now();
    let mut turn = || {
        let now_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap();
        daemons.iter_mut().for_each(|daemon| {
            daemon.pass(now_ns);
        });
    };
    let to = (GID_INDEX, Gid::from_ip(address(1)));
    let mut initiator = Initiator::new(Arc::clone(&engines[0]), to, 18);
    let targets = [(); 2].map(|()| Target::new(Arc::clone(&engines[1])));
    works_with_both(&mut initiator, &targets, &mut turn);
}
