//! Runs in the guest of `kernel-stub/bed` as root: looks at the module through its files, without libibverbs.
//!
//! `module_check objects` makes one of everything and raises events; `module_check hold` makes objects, says `ready` and waits to be killed;
//! `module_check limit OCTETS` registers that much and says what came of it; `module_check garbage SEED` writes random octets to the files.
//! Each but `garbage` first serves the device `urdma0` if nobody does.
#![allow(clippy::unwrap_used)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use urdma_kernel::uverbs::{MrRequest, Opened, QpRequest};
use urdma_kernel::{Agent, Kind, Uverbs};

const DEVICE: &str = "urdma0";
const RUN_DIR: &str = "/run/urdma/check";
/// `IBV_ACCESS_LOCAL_WRITE`
const LOCAL_WRITE: u32 = 1;
const ENODEV: i32 = 19;
const EBUSY: i32 = 16;

/// The GID that the served device shows at index 1.
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 8, 0, 1];

fn serve() -> std::io::Result<Agent> {
    Agent::serve(DEVICE, Path::new(RUN_DIR), &[GID])
}

fn uverbs_file() -> File {
    let name = std::fs::read_dir("/sys/class/infiniband_verbs")
        .unwrap()
        .flatten()
        .find(|entry| {
            std::fs::read_to_string(entry.path().join("ibdev"))
                .is_ok_and(|text| text.trim() == DEVICE)
        })
        .unwrap()
        .file_name();
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(Path::new("/dev/infiniband").join(name))
        .unwrap()
}

fn open() -> Opened {
    Uverbs::open(uverbs_file().as_fd()).unwrap()
}

/// One object of each kind that can be made, in the order in which they were made.
fn make_all(uverbs: &Uverbs, memory: &[u8], channel: i32, qpn: u32) -> Vec<(Kind, u32)> {
    let pd = uverbs.alloc_pd().unwrap();
    let request = MrRequest {
        pd,
        start: memory.as_ptr() as u64,
        length: memory.len() as u64,
        access: LOCAL_WRITE,
        key: 0x1234_5600,
    };
    let mr = uverbs.reg_mr(&request).unwrap();
    let cq = uverbs.create_cq(0xc0, 16, Some(channel)).unwrap();
    let srq = uverbs.create_srq(0x50, pd).unwrap();
    let request = QpRequest {
        qpn,
        user_handle: 0x90,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: Some(srq),
    };
    let qp = uverbs.create_qp(&request).unwrap();
    assert_eq!(
        uverbs.create_qp(&request).unwrap_err().raw_os_error(),
        Some(EBUSY)
    );
    vec![
        (Kind::Pd, pd),
        (Kind::Mr, mr),
        (Kind::Cq, cq),
        (Kind::Srq, srq),
        (Kind::Qp, qp),
    ]
}

fn handle_of(objects: &[(Kind, u32)], kind: Kind) -> u32 {
    objects.iter().find(|(k, _)| *k == kind).unwrap().1
}

fn objects() {
    // Nobody serves the device: it cannot be opened.
    let refused = Uverbs::open(uverbs_file().as_fd()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(ENODEV), "{refused}");
    let agent = serve().unwrap();
    assert!(serve().is_err());
    let Opened { uverbs, async_fd } = open();
    assert_eq!(uverbs.run_dir(), Path::new(RUN_DIR));

    let channel = uverbs.create_comp_channel().unwrap();
    let memory = vec![7_u8; 100_000];
    let objects = make_all(&uverbs, &memory, channel.as_raw_fd(), 0x01_0001);

    uverbs.raise_cq(handle_of(&objects, Kind::Cq)).unwrap();
    let mut event = [0; 8];
    assert_eq!(File::from(channel).read(&mut event).unwrap(), 8);
    assert_eq!(u64::from_ne_bytes(event), 0xc0);

    let mut events = File::from(async_fd);
    // IBV_EVENT_COMM_EST
    uverbs.raise_qp(handle_of(&objects, Kind::Qp), 4).unwrap();
    assert_async(&mut events, 0x90, 4);
    uverbs.raise_srq(handle_of(&objects, Kind::Srq)).unwrap();
    // IBV_EVENT_SRQ_LIMIT_REACHED
    assert_async(&mut events, 0x50, 15);
    // An event of the device is nobody's to raise, a handle of another kind is none.
    assert!(uverbs.raise_qp(handle_of(&objects, Kind::Qp), 8).is_err());
    assert!(uverbs.raise_cq(0xffff).is_err());

    // What is in use stays.
    let pd = handle_of(&objects, Kind::Pd);
    assert!(uverbs.destroy(Kind::Pd, pd).is_err());
    for &(kind, handle) in objects.iter().rev() {
        uverbs.destroy(kind, handle).unwrap();
        assert!(uverbs.destroy(kind, handle).is_err());
    }

    // urdmad dies: the device says so.
    drop(agent);
    // IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR
    let mut kinds = [read_async(&mut events).1, read_async(&mut events).1];
    kinds.sort_unstable();
    assert_eq!(kinds[0], 8);
}

fn read_async(events: &mut File) -> (u64, u32) {
    let mut record = [0; 16];
    assert_eq!(events.read(&mut record).unwrap(), 16);
    (
        u64::from_ne_bytes(record[..8].try_into().unwrap()),
        u32::from_ne_bytes(record[8..12].try_into().unwrap()),
    )
}

/// Reads events until the one that is meant: the port's state changes when it likes.
fn assert_async(events: &mut File, element: u64, kind: u32) {
    loop {
        let (of, what) = read_async(events);
        // IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_GID_CHANGE
        if ![9, 10, 18].contains(&what) {
            assert_eq!((of, what), (element, kind));
            return;
        }
    }
}

fn hold() {
    let agent = serve().ok();
    let Opened { uverbs, async_fd } = open();
    let channel = uverbs.create_comp_channel().unwrap();
    let memory = vec![7_u8; 1_000_000];
    let qpn = std::process::id() & 0xff_ffff;
    let objects = make_all(&uverbs, &memory, channel.as_raw_fd(), qpn);
    uverbs.raise_cq(handle_of(&objects, Kind::Cq)).unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
        let _ = (&agent, &async_fd, &channel);
    }
}

fn limit(octets: usize) {
    let _agent = serve().ok();
    let opened = open();
    let memory = vec![7_u8; octets];
    let request = MrRequest {
        pd: opened.uverbs.alloc_pd().unwrap(),
        start: memory.as_ptr() as u64,
        length: octets as u64,
        access: LOCAL_WRITE,
        key: 1,
    };
    match opened.uverbs.reg_mr(&request) {
        Ok(_) => println!("registered"),
        Err(error) => println!("refused {}", error.raw_os_error().unwrap()),
    }
}

/// Random octets, most of them after the head of a command that exists.
fn garbage(seed: u64) {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let _agent = serve().ok();
    for round in 0..3000_u32 {
        let mut file = uverbs_file();
        let opened = (round % 2 == 0).then(|| Uverbs::open(file.as_fd()).unwrap());
        for _ in 0..8 {
            let words = 2 + random() % 30;
            let mut octets: Vec<u8> = (0..words * 4).map(|_| random().to_le_bytes()[0]).collect();
            octets[..4].copy_from_slice(&u32::try_from(random() % 45).unwrap().to_ne_bytes());
            octets[4..6].copy_from_slice(&u16::try_from(words).unwrap().to_ne_bytes());
            octets[6..8].copy_from_slice(&u16::try_from(random() % 40).unwrap().to_ne_bytes());
            // Answers go to no address that exists.
            if octets.len() >= 16 {
                octets[8..16].copy_from_slice(&random().to_ne_bytes());
            }
            let _ = file.write(&octets);
        }
        drop(opened);
        let mut agent = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/urdma")
            .unwrap();
        let _ = agent.write(&random().to_ne_bytes());
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["objects"] => objects(),
        ["hold"] => hold(),
        ["limit", octets] => limit(octets.parse().unwrap()),
        ["garbage", seed] => garbage(seed.parse().unwrap()),
        _ => panic!("module_check objects | hold | limit OCTETS | garbage SEED"),
    }
}
