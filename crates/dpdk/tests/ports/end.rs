//! The role of a process with one port.

use std::fs::File;
use std::io::{stdin, BufRead};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use dpdk::{
    free_bulk, Burst, Drivers, Eal, EalOptions, FlowVersion, LcoreId, Log, Mbuf, Memory, Mempool,
    PoolConfig, Port, PortConfig, Process, QueueIndex, QueuePair, HEADROOM_OCTETS,
};

/// The local experimental ethertype, which no other program on the link uses.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const PATIENCE: Duration = Duration::from_secs(30);
/// net_af_xdp allocates 2048 at the start.
const BUFFERS: u32 = 4607;

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let [name, device, mtu, directory, namespace] = arguments else {
        return ExitCode::FAILURE;
    };
    if !namespace.is_empty() {
        enter(namespace);
    }
    let eal = Eal::init(&EalOptions {
        process: Process::Primary,
        file_prefix: format!("urdma-ports-{name}"),
        runtime_directory: Some(PathBuf::from(directory)),
        lcore: LcoreId::PRIMARY,
        memory: Memory::Plain { megabytes: 96 },
        drivers: Drivers::of_devices([device.as_str()]),
        pci: None,
        log: Log::File(Path::new(directory).join(format!("{name}.log"))),
    })
    .unwrap();
    let mtu: u16 = mtu.parse().unwrap();
    let pool = PoolConfig {
        buffers: BUFFERS,
        cache: 64,
        buffer_octets: u16::try_from(HEADROOM_OCTETS).unwrap() + (mtu + 64).max(2048),
    };
    let pool = if device.starts_with("net_af_xdp") {
        Mempool::create_in_pages(&eal, "pool", &pool).unwrap()
    } else {
        Mempool::create(&eal, "pool", &pool).unwrap()
    };
    let mut port = Port::attach(&eal, device)
        .unwrap_or_else(|error| panic!("{error}{}", log(directory, name)));
    let config = PortConfig {
        pools: std::slice::from_ref(&pool),
        mtu,
        descriptors: None,
        rx_interrupts: false,
        hash_key: None,
    };
    port.configure(&config)
        .unwrap_or_else(|error| panic!("{error}{}", log(directory, name)));
    port.start()
        .unwrap_or_else(|error| panic!("{error}{}", log(directory, name)));
    let pair = port.take_pair(QueueIndex(0)).unwrap();
    assert!(
        port.take_pair(QueueIndex(0)).is_none(),
        "a pair is taken once"
    );
    println!("started");
    End {
        port,
        pair,
        pool,
        mtu,
        held: Vec::new(),
    }
    .serve();
    ExitCode::SUCCESS
}

fn log(directory: &str, name: &str) -> String {
    let text = std::fs::read_to_string(Path::new(directory).join(format!("{name}.log")));
    format!("\n{}", text.unwrap_or_default())
}

fn enter(namespace: &str) {
    let file = File::open(format!("/var/run/netns/{namespace}")).unwrap();
    // SAFETY: the descriptor is that of a network namespace.
    let result = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "cannot enter {namespace}");
}

struct End {
    port: Port,
    pair: QueuePair,
    pool: Mempool,
    mtu: u16,
    held: Vec<Mbuf>,
}

impl End {
    fn serve(mut self) {
        for line in stdin().lock().lines() {
            let line = line.unwrap();
            let (verb, number) = line.split_once(' ').unwrap_or((&line, "0"));
            let number: usize = number.parse().unwrap();
            match verb {
                "wait-up" => self.wait_up(),
                "send" => self.send(number),
                "receive" => self.receive(number),
                "hold" => self.hold(number),
                "send-held" => self.send_held(number),
                "receive-many" => self.receive_many(number),
                "flood" => self.flood(Duration::from_millis(number as u64)),
                "available" => println!("available {}", self.pool.available()),
                "steer" => {
                    let error = self
                        .port
                        .steer(21_505, FlowVersion::V4, QueueIndex(0))
                        .unwrap_err();
                    println!("steer: {}", word(error.is_unsupported()));
                }
                "interrupt" => {
                    let error = self.pair.rx.arm().unwrap_err();
                    println!("interrupt: {}", word(error.is_unsupported()));
                }
                "queues" => self.configure(number, self.mtu),
                "mtu" => self.configure(1, u16::try_from(number).unwrap()),
                verb => panic!("{verb}?"),
            }
        }
    }

    fn configure(&mut self, queues: usize, mtu: u16) {
        let config = PortConfig {
            pools: &vec![self.pool.clone(); queues],
            mtu,
            descriptors: None,
            rx_interrupts: false,
            hash_key: None,
        };
        println!("{}", self.port.configure(&config).unwrap_err());
    }

    fn wait_up(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.port.link().unwrap().up {
            assert!(Instant::now() < deadline, "no link");
            sleep(Duration::from_millis(5));
        }
        println!("up");
    }

    fn frame(&self, burst: &mut Burst, octets: usize) -> bool {
        if !self.pool.alloc_bulk(burst, 1) {
            return false;
        }
        let frame = burst
            .last_mut()
            .unwrap()
            .set_frame(HEADROOM_OCTETS, octets)
            .unwrap();
        for (index, octet) in frame.iter_mut().enumerate() {
            *octet = fill(index, octets);
        }
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&self.port.mac().unwrap());
        frame[12..14].copy_from_slice(&ETHERTYPE);
        true
    }

    fn send(&mut self, octets: usize) {
        let mut burst = Burst::new();
        let deadline = Instant::now() + PATIENCE;
        while !self.frame(&mut burst, octets) {
            assert!(Instant::now() < deadline, "no packet buffer");
            yield_now();
        }
        while self.pair.tx.burst(&mut burst) == 0 {
            assert!(Instant::now() < deadline, "no frame was sent");
            yield_now();
        }
        println!("sent");
    }

    /// Makes frames of all buffers of the pool.
    fn hold(&mut self, octets: usize) {
        let mut burst = Burst::new();
        while self.frame(&mut burst, octets) {
            self.held.extend(burst.drain(..));
        }
        println!("{}", self.held.len());
    }

    /// Sends the first `frames` of those that are held.
    fn send_held(&mut self, frames: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut burst: Burst = self.held.drain(..frames).collect();
        while !burst.is_empty() {
            assert!(Instant::now() < deadline, "no frame was sent");
            self.pair.tx.burst(&mut burst);
        }
        println!("sent");
    }

    /// Waits for `frames` frames.
    fn receive_many(&mut self, frames: usize) {
        println!("receiving");
        let deadline = Instant::now() + PATIENCE;
        let (mut burst, mut received) = (Burst::new(), 0);
        while received < frames {
            assert!(Instant::now() < deadline, "{received} of {frames} frames");
            self.pair.rx.burst(&mut burst);
            let ours = |mbuf: &&Mbuf| mbuf.data()[12..14] == ETHERTYPE;
            received += burst.iter().filter(ours).count();
            free_bulk(&mut burst);
            yield_now();
        }
        println!("received");
    }

    /// Waits for a frame of this length and checks each octet of it.
    fn receive(&mut self, octets: usize) {
        println!("receiving");
        let deadline = Instant::now() + PATIENCE;
        let mut burst = Burst::new();
        loop {
            assert!(Instant::now() < deadline, "no frame of {octets} octets");
            self.pair.rx.burst(&mut burst);
            let good = burst.iter().any(|mbuf| {
                let data = mbuf.data();
                let rest = || data.iter().enumerate().skip(14);
                mbuf.is_contiguous()
                    && data.len() == octets
                    && data[12..14] == ETHERTYPE
                    && rest().all(|(index, octet)| *octet == fill(index, octets))
            });
            free_bulk(&mut burst);
            if good {
                break;
            }
            yield_now();
        }
        println!("received");
    }

    /// Sends and receives long frames at full rate.
    fn flood(&mut self, time: Duration) {
        println!("flooding");
        let deadline = Instant::now() + time;
        let (mut sent, mut received) = (0, 0);
        let (mut out, mut back) = (Burst::new(), Burst::new());
        while Instant::now() < deadline {
            while !out.is_full() && self.frame(&mut out, usize::from(self.mtu) + 14) {}
            sent += self.pair.tx.burst(&mut out);
            received += self.pair.rx.burst(&mut back);
            free_bulk(&mut back);
            yield_now();
        }
        free_bulk(&mut out);
        println!("flooded {sent} {received}");
    }
}

fn fill(index: usize, octets: usize) -> u8 {
    (index ^ octets).to_le_bytes()[0]
}

fn word(unsupported: bool) -> &'static str {
    if unsupported {
        "unsupported"
    } else {
        "supported"
    }
}
