//! The role of a daemon: creates pools and the port, lends queue pairs and reclaims them.

use std::io::{stdin, BufRead};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dpdk::{
    Drivers, Eal, EalOptions, LcoreId, Lent, Log, Memory, Mempool, PoolConfig, Port, PortConfig,
    Process, QueueIndex, QueuePair,
};

use crate::host;

const BUFFERS: u32 = 1023;

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let [name, side, directory, pages] = arguments else {
        return ExitCode::FAILURE;
    };
    let device = format!(
        "{},role={side},socket={directory}/memif,socket-abstract=no,bsize=9728,rsize=10,mac={}",
        host::DEVICE,
        host::mac(name)
            .map(|octet| format!("{octet:02x}"))
            .join(":"),
    );
    let eal = Eal::init(&EalOptions {
        process: Process::Primary,
        file_prefix: host::prefix(name),
        runtime_directory: Some(PathBuf::from(directory)),
        lcore: LcoreId::PRIMARY,
        memory: Memory::Huge {
            megabytes: 64,
            directory: Some(PathBuf::from(pages)),
        },
        drivers: Drivers::of_devices([device.as_str()]),
        pci: None,
        log: Log::Off,
    })
    .unwrap();
    let config = PoolConfig {
        buffers: BUFFERS,
        cache: 256,
        buffer_octets: 9152,
    };
    let pools: Vec<Mempool> = (0..host::QUEUES)
        .map(|queue| Mempool::create(&eal, &host::pool(queue), &config).unwrap())
        .collect();
    let mut port = Port::attach(&eal, &device).unwrap();
    assert_eq!(port.mac().unwrap(), host::mac(name));
    port.configure(&PortConfig {
        pools: &pools,
        mtu: host::MTU,
        descriptors: None,
        rx_interrupts: false,
        hash_key: None,
    })
    .unwrap();
    println!("listening");
    start(&mut port);
    println!("up");
    serve(&mut port);
    drop((port, pools, eal));
    println!("gone");
    ExitCode::SUCCESS
}

/// Starts the port and waits for the link.
fn start(port: &mut Port) {
    port.start().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !port.link().unwrap().up {
        assert!(Instant::now() < deadline, "no link");
        sleep(Duration::from_millis(5));
    }
}

enum Pair {
    Here(QueuePair),
    Away(Lent),
}

fn serve(port: &mut Port) {
    let mut pairs: Vec<Option<Pair>> = (0..host::QUEUES)
        .map(|queue| port.take_pair(QueueIndex(queue)).map(Pair::Here))
        .collect();
    for line in stdin().lock().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        let verb = words.next().unwrap();
        if verb == "quit" {
            return;
        }
        let slot = &mut pairs[words.next().unwrap().parse::<usize>().unwrap()];
        match (verb, slot.take().unwrap()) {
            ("lend", Pair::Here(pair)) => {
                println!("lent {}", pair.pool.available());
                *slot = Some(Pair::Away(pair.lend().unwrap()));
            }
            ("take-back", Pair::Away(lent)) => {
                let missing = lent.pool().buffers() - lent.pool().available();
                let pair = lent.take_back().unwrap();
                println!("back {} {missing}", pair.pool.available());
                *slot = Some(Pair::Here(pair));
            }
            (verb, _) => panic!("{verb}?"),
        }
    }
}
