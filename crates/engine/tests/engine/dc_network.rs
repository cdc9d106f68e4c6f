//! The dynamically connected transport between two hosts: each has a process and the data plane of
//! a urdmad, and the link between them is in memory.

use std::sync::Arc;
use std::time::Instant;

use urdma_engine::{Engine, Gid};
use urdmad::data::{loopback_ports, InProcess};

use crate::dc::{works_with_both, Initiator, Target};
use crate::rig::{address, engine_of_host, MTU};

const GID_INDEX: u8 = 1;

#[test]
fn initiator_works_with_two_targets_of_another_host() {
    let mut daemons = Vec::new();
    let mut engines = Vec::new();
    for (which, port) in (0..).zip(loopback_ports(MTU)) {
        let mut daemon = InProcess::new(address(which), port).unwrap();
        engines.push(engine_of_host(which, &mut daemon, Engine::start));
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
