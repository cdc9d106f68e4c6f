//! Runs in the guest of `kernel-stub/bed` as root: tests the module through its files, without
//! libibverbs.
//!
//! `module_check objects` creates one object of each kind and raises events. `module_check hold`
//! creates objects, prints `ready` and waits to be killed. `module_check limit OCTETS` registers
//! that much memory and prints the result. `module_check stranger` is refused. `module_check
//! neighbour` may use the device, but not the objects of others. `module_check version` is refused,
//! since it speaks another version. `module_check garbage SEED` writes random octets and random
//! commands to the files, some of them almost valid. `module_check flood` raises events that it
//! does not read. `module_check silent` listens while no answer comes from urdmad. Subcommands that
//! use the device first serve `urdma0` if no process does.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use urdma_kernel::abi::{
    cm_kind, CmMessage, MethodAttr, MethodHead, Serve, DRIVER_ID, IOC_SERVE, KERNEL_ABI,
    VERBS_IOCTL,
};
use urdma_kernel::agent::AGENT_FILE;
use urdma_kernel::uverbs::{MrRequest, Opened, QpRequest};
use urdma_kernel::{Agent, Kind, Uverbs};
use zerocopy::{FromZeros, IntoBytes};

mod flood;
mod rdma_cm;
mod silent;

use rdma_cm::RdmaCm;

const DEVICE: &str = "urdma0";
const RUN_DIR: &str = "/run/urdma/check";
/// `IBV_ACCESS_LOCAL_WRITE`
const LOCAL_WRITE: u32 = 1;
const ENODEV: i32 = 19;
const EPROTO: i32 = 71;
const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const EINVAL: i32 = 22;
const EBUSY: i32 = 16;
const EACCES: i32 = 13;
/// The group whose members may use the device: Debian's `nogroup`.
const GROUP: u32 = 65534;
/// The number of a queue pair of a process that serves the device itself.
const OWN_QPN: u32 = 0x01_0001;
/// The number of a queue pair of `hold`.
const HELD_QPN: u32 = 0x02_0001;

/// The address of the device.
const IP: [u8; 4] = [10, 8, 0, 1];
/// The GID that the served device has at index 1.
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 8, 0, 1];

/// Serves the device; this process has the slots of the queue pairs that it makes.
fn serve() -> std::io::Result<Agent> {
    let agent = Agent::serve(DEVICE, Path::new(RUN_DIR), &[GID], Some(GROUP))?;
    for qpn in [OWN_QPN, HELD_QPN] {
        agent.give_slot(qpn >> 16, Some(std::process::id()))?;
    }
    Ok(agent)
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

/// One object of each kind, in the order of creation.
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
    // No process serves the device: it cannot be opened.
    let refused = Uverbs::open(uverbs_file().as_fd()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(ENODEV), "{refused}");
    let agent = serve().unwrap();
    assert!(serve().is_err());
    let errno = |slot, pid| agent.give_slot(slot, pid).unwrap_err().raw_os_error();
    assert_eq!(errno(256, None), Some(EINVAL));
    assert_eq!(errno(1, Some(u32::MAX)), Some(EINVAL));
    assert_eq!(errno(1, Some(0x3f_ffff)), Some(ESRCH));
    let Opened { uverbs, async_fd } = open();
    assert_eq!(uverbs.run_dir(), Path::new(RUN_DIR));

    let channel = uverbs.create_comp_channel().unwrap();
    let memory = vec![7_u8; 100_000];
    let objects = make_all(&uverbs, &memory, channel.as_raw_fd(), OWN_QPN);

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
    // Events of the device cannot be raised; a handle of another kind is refused.
    assert!(uverbs.raise_qp(handle_of(&objects, Kind::Qp), 8).is_err());
    assert!(uverbs.raise_cq(0xffff).is_err());

    // Objects in use are not destroyed.
    let pd = handle_of(&objects, Kind::Pd);
    assert!(uverbs.destroy(Kind::Pd, pd).is_err());
    for &(kind, handle) in objects.iter().rev() {
        uverbs.destroy(kind, handle).unwrap();
        assert!(uverbs.destroy(kind, handle).is_err());
    }

    // urdmad ends: the device reports it.
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

/// Reads events until the expected one; the port's state can change at any time.
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
    let objects = make_all(&uverbs, &memory, channel.as_raw_fd(), HELD_QPN);
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

/// A user that is neither the urdmad's user nor in its group, nor root.
fn stranger() {
    let refused = Uverbs::open(uverbs_file().as_fd()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EACCES), "{refused}");
}

/// An urdmad of another release.
fn version() {
    let file = File::open(AGENT_FILE).unwrap();
    let serve = Serve {
        abi: KERNEL_ABI + 1,
        ..Serve::new_zeroed()
    };
    // SAFETY: the kernel reads as many octets as the type of the argument has.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), IOC_SERVE, &raw const serve) };
    let refused = std::io::Error::last_os_error();
    assert_eq!((result, refused.raw_os_error()), (-1, Some(EPROTO)));
}

/// Another user of the device: it can neither name nor take the objects of `hold`, nor create a
/// queue pair with a number of another process.
fn neighbour() {
    let Opened { uverbs, .. } = open();
    for handle in 0..64 {
        assert!(uverbs.raise_cq(handle).is_err());
        assert!(uverbs.raise_qp(handle, 1).is_err());
        assert!(uverbs.raise_srq(handle).is_err());
        for kind in [Kind::Pd, Kind::Mr, Kind::Cq, Kind::Srq, Kind::Qp] {
            assert!(uverbs.destroy(kind, handle).is_err());
        }
    }
    let pd = uverbs.alloc_pd().unwrap();
    let cq = uverbs.create_cq(0, 16, None).unwrap();
    // A number in use, another one of the same slot, and one of a slot that no process has.
    for qpn in [HELD_QPN, HELD_QPN + 1, 0x07_0001] {
        let request = QpRequest {
            qpn,
            user_handle: 0,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
        };
        let refused = uverbs.create_qp(&request).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(EPERM), "{qpn:#x}: {refused}");
    }
}

/// Pseudo-random numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u16) -> u16 {
        u16::try_from(self.next() % u64::from(limit)).unwrap()
    }

    fn fill(&mut self, octets: &mut [u8]) {
        octets.fill_with(|| self.next().to_le_bytes()[0]);
    }
}

/// A command of uverbs' write interface: the header of an existing command, followed by random
/// octets. The address of the answer is not mapped.
fn write_garbage(random: &mut Random, mut file: &File) {
    let words = 2 + random.below(30);
    let mut octets = vec![0; usize::from(words) * 4];
    random.fill(&mut octets);
    octets[..4].copy_from_slice(&u32::from(random.below(45)).to_ne_bytes());
    octets[4..6].copy_from_slice(&words.to_ne_bytes());
    octets[6..8].copy_from_slice(&random.below(40).to_ne_bytes());
    let _ = file.write(&octets);
}

/// A command of uverbs' ioctl interface: an existing object and method, also those of the driver,
/// with attributes that may be valid.
fn ioctl_garbage(random: &mut Random, file: &File) {
    let mut octets = Vec::new();
    let count = random.below(5);
    let own = |random: &mut Random| random.below(2) << 12;
    let head = MethodHead {
        length: u16::try_from(size_of::<MethodHead>()).unwrap()
            + count * u16::try_from(size_of::<MethodAttr>()).unwrap()
            + u16::from(random.below(20) == 0),
        object_id: random.below(20),
        method_id: random.below(4) | own(random),
        num_attrs: count,
        reserved1: 0,
        driver_id: DRIVER_ID,
        reserved2: 0,
    };
    octets.extend_from_slice(head.as_bytes());
    for _ in 0..count {
        let attr = MethodAttr {
            attr_id: random.below(8) | own(random),
            len: random.below(3) * 4,
            flags: random.below(2),
            reserved: 0,
            data: random.next() >> random.below(64),
        };
        octets.extend_from_slice(attr.as_bytes());
    }
    octets.push(0);
    // SAFETY: the kernel reads and writes as many octets as the header says, at most those of the
    // buffer.
    let _ = unsafe { libc::ioctl(file.as_raw_fd(), VERBS_IOCTL, octets.as_mut_ptr()) };
}

/// Messages of a faulty urdmad: each existing message, about endpoints that may exist.
fn agent_garbage(random: &mut Random, agent: Option<&Agent>) {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/urdma")
        .unwrap();
    let _ = file.write(&random.next().to_ne_bytes());
    let mut message = CmMessage::new_zeroed();
    random.fill(message.as_mut_bytes());
    let _ = file.write(message.as_bytes());
    let Some(agent) = agent else {
        return;
    };
    let asked = agent.receive().unwrap();
    message.id = asked
        .first()
        .map_or(u32::from(random.below(100)), |asked| asked.id);
    message.listener = u32::from(random.below(100));
    message.kind = cm_kind::LISTENING + u32::from(random.below(6));
    if message.kind == cm_kind::REQUEST {
        message.id |= u32::from(random.below(2)) << 31;
    }
    message.status = -i32::from(random.below(3) * 111);
    let _ = agent.send(&[message]);
}

/// Random input on all interfaces, while the kernel listens now and then.
fn garbage(seed: u64) {
    let mut random = Random(seed | 1);
    let agent = serve().ok();
    std::thread::spawn(|| {
        for port in 7000.. {
            // The results depend on the random input.
            let _ = RdmaCm::open().and_then(|cm| cm.listen(IP, port));
        }
    });
    for round in 0..2000_u32 {
        let file = uverbs_file();
        let opened = (round % 2 == 0).then(|| Uverbs::open(file.as_fd()).unwrap());
        for _ in 0..8 {
            write_garbage(&mut random, &file);
            ioctl_garbage(&mut random, &file);
            agent_garbage(&mut random, agent.as_ref());
        }
        drop(opened);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["objects"] => objects(),
        ["hold"] => hold(),
        ["limit", octets] => limit(octets.parse().unwrap()),
        ["stranger"] => stranger(),
        ["neighbour"] => neighbour(),
        ["version"] => version(),
        ["garbage", seed] => garbage(seed.parse().unwrap()),
        ["flood"] => flood::run(),
        ["silent"] => silent::run(),
        _ => panic!(
            "module_check objects | hold | limit OCTETS | stranger | \
             neighbour | version | garbage SEED | flood | silent"
        ),
    }
}
