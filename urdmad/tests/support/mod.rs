//! The real urdmad in a scratch directory, and clients of it.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, missing_docs)]

use std::collections::VecDeque;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{unshare, CloneFlags};
use nix::sys::resource::{setrlimit, Resource};
use nix::unistd::{setresuid, Uid};
use proto_trp::wire::message::{CELL_LEN, CELL_PAYLOAD_LEN, MESSAGE_HEAD_LEN};
use proto_trp::wire::{Meta, PacketHead};
use urdma_channel::{
    Channel, ChannelConfig, Incoming, Kind, Next, OwnRecords, OwnRegion, PeerRegion,
};
use urdma_cm::wire::Cookie;
use urdma_ipc::{Attached, CmPort, ControlClient, Event, PortSharing, PortTable, RunDir, Status};
use urdma_types::{source_port, Ip16, Qpn, SlotId};
use urdma_waiting::{Bells, OwnPage, PeerPage};

/// Longer than anything takes on the busiest machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A scratch directory; removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let template = std::env::temp_dir().join("urdmad-test-XXXXXX");
        Self(nix::unistd::mkdtemp(&template).unwrap())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Has the calling thread, and the programs that it starts, see a small file system at `dir`.
pub fn mount_small(dir: &Path) {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let small = ["-t", "tmpfs", "-o", "size=4m", "small"].map(Path::new);
    let private = ["--make-rprivate", "/"].map(Path::new);
    for arguments in [&private[..], &[&small[..], &[dir]].concat()] {
        let mounted = Command::new("mount").args(arguments).status().unwrap();
        assert!(mounted.success());
    }
}

/// Takes all room that there is; returns the file.
pub fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("rest");
    let mut rest = File::create(&path).unwrap();
    while rest.write(&[0; 512]).is_ok() {}
    path
}

/// A running urdmad; killed when dropped.
pub struct Daemon {
    pub child: Child,
    pub run_dir: RunDir,
}

/// The crate of DPDK's ports: a dependency so that cargo builds its library.
const LIBRARY_CRATE: &str = "urdma_dpdk";

/// The library of DPDK's ports, which cargo puts beside the program of a test.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name(format!("{DLL_PREFIX}{LIBRARY_CRATE}{DLL_SUFFIX}"))
}

pub fn command(dir: &Path, name: &str, config: &str) -> Command {
    let file = dir.join(format!("{name}.toml"));
    fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_urdmad"));
    command
        .arg("--run-dir")
        .arg(dir.join(name))
        .args(["--instance", name, "--config"])
        .arg(&file)
        .env_remove("URDMA_RUN_DIR")
        .env_remove("NOTIFY_SOCKET")
        .env("URDMA_DPDK_LIB", library())
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    command
}

impl Daemon {
    pub fn start(dir: &Path, name: &str, config: &str) -> Self {
        Self::wait_for(dir, name, command(dir, name, config))
    }

    /// As [`Self::start`], with a limit of open files, which is also that of descriptors on their
    /// way: the kernel compares it with those that processes of the sender's real user have sent.
    /// That is `user` here, while urdmad has the rights of root.
    pub fn start_limited((user, most): (u32, u64), dir: &Path, name: &str, config: &str) -> Self {
        let mut command = command(dir, name, config);
        let limit = move || {
            setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
            let root = Uid::from_raw(0);
            setresuid(Uid::from_raw(user), root, root)?;
            Ok(())
        };
        // SAFETY: both are system calls alone (no other threads after fork), which may be made
        // between fork and exec.
        unsafe { command.pre_exec(limit) };
        Self::wait_for(dir, name, command)
    }

    fn wait_for(dir: &Path, name: &str, mut command: Command) -> Self {
        let mut daemon = Self {
            child: command.spawn().unwrap(),
            run_dir: RunDir::at(dir.join(name)),
        };
        let start = Instant::now();
        while ControlClient::connect(&daemon.run_dir, "test").is_err() {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("urdmad ended with {status}: {}", daemon.errors());
            }
            assert!(
                start.elapsed() < LIMIT,
                "urdmad does not answer: {}",
                daemon.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        daemon
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        let _ = self.child.stderr.take().unwrap().read_to_string(&mut text);
        text
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.run_dir.log_file()).unwrap_or_default()
    }

    pub fn client(&self) -> ControlClient {
        ControlClient::connect(&self.run_dir, "test").unwrap()
    }

    pub fn status(&self) -> Status {
        self.client().status().unwrap()
    }

    pub fn attach(&self) -> Process {
        Process::attach(&self.run_dir)
    }

    /// Ends it and checks that nothing is left.
    pub fn stop(mut self) {
        self.client().shutdown().unwrap();
        assert!(self.child.wait().unwrap().success());
        assert!(!self.run_dir.path().exists());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a provider process has.
pub struct Process {
    pub client: ControlClient,
    pub attached: Attached,
    pub records: OwnRecords,
    channel: Channel,
    page: OwnPage,
    /// Packets of the last message.
    taken: VecDeque<Packet>,
}

/// A packet that a process has received.
pub struct Packet {
    pub meta: Meta,
    pub octets: Vec<u8>,
}

impl Process {
    pub fn attach(run_dir: &RunDir) -> Self {
        let client = ControlClient::connect(run_dir, "test").unwrap();
        Self::with(client)
    }

    pub fn with(client: ControlClient) -> Self {
        let (attached, memory) = client.attach(false).unwrap();
        let (region, region_fd) =
            OwnRegion::create(&ChannelConfig::PACKETS, attached.slot).unwrap();
        let (page, page_fd) = OwnPage::create().unwrap();
        let (records, records_fd) = OwnRecords::create().unwrap();
        let fds = [region_fd.as_fd(), page_fd.as_fd(), records_fd.as_fd()];
        client.offer_channel(0, None, &fds).unwrap();
        let mut channel = Channel::new(region);
        let incoming = Incoming::new(PeerRegion::open(memory.region).unwrap());
        channel.attach(incoming, PeerPage::open(memory.page).unwrap());
        Self {
            client,
            attached,
            records,
            channel,
            page,
            taken: VecDeque::new(),
        }
    }

    /// The next event, without its descriptors.
    pub fn next_event(&self) -> Option<Event> {
        let event = self.client.next_event(Some(LIMIT)).unwrap();
        event.map(|(event, _)| event)
    }

    /// Binds a CM port that it calls `binding`, and listens on it.
    pub fn listen(&self, binding: u32, port: CmPort) -> u16 {
        let bound = self.client.cm_bind_port(binding, port).unwrap();
        self.client.cm_listen(binding, 5).unwrap();
        bound
    }

    pub fn slot(&self) -> SlotId {
        SlotId::new(self.attached.slot).unwrap()
    }

    /// Sends a packet of this process to urdmad, as soon as there is room.
    pub fn send(&mut self, meta: &Meta, octets: &[u8]) {
        eventually("a packet is sent", || self.try_send(meta, octets));
    }

    /// Sends a packet of this process to urdmad if there is room.
    pub fn try_send(&mut self, meta: &Meta, octets: &[u8]) -> bool {
        let meta = Meta {
            src_port: source_port(Qpn::new(self.slot(), 1)),
            ..*meta
        };
        self.try_send_as(&PacketHead::of(meta), octets)
    }

    /// Sends a packet with any head if there is room.
    pub fn try_send_as(&mut self, head: &PacketHead, octets: &[u8]) -> bool {
        let mut cell = [0; MESSAGE_HEAD_LEN];
        head.encode(&mut cell);
        if octets.len() <= CELL_PAYLOAD_LEN {
            self.try_write(&[&cell, octets].concat(), &[])
        } else {
            self.try_write(&cell, octets)
        }
    }

    /// Writes a message if there is room.
    pub fn try_write(&mut self, in_cell: &[u8], in_frame: &[u8]) -> bool {
        self.channel.complete(|_| ());
        let Some(mut room) = self.channel.begin(Kind::Work, in_frame.len()) else {
            return false;
        };
        room.octets_mut()[..in_cell.len()].copy_from_slice(in_cell);
        room.payload_mut().copy_from_slice(in_frame);
        room.publish(in_cell.len(), 0);
        self.channel.notify();
        true
    }

    /// The next packet, if there is one.
    pub fn poll(&mut self) -> Option<Packet> {
        if let Some(packet) = self.taken.pop_front() {
            return Some(packet);
        }
        let mut cell = [0; CELL_LEN];
        let Next::Message { len, payload, .. } = self.channel.next(&mut cell, |_| ()) else {
            return None;
        };
        let head = PacketHead::parse(&cell[..len]).unwrap();
        let mut octets = cell[MESSAGE_HEAD_LEN..len].to_vec();
        if let Some(payload) = payload {
            octets = vec![0; payload.len()];
            let incoming = self.channel.incoming().unwrap();
            assert!(incoming.copy_payload(payload, 0, &mut octets));
        }
        self.channel.settle();
        self.channel.notify();
        let packets = head.packets(octets.len());
        self.taken.extend(packets.map(|(at, len)| Packet {
            meta: head.meta,
            octets: octets[at..at + len].to_vec(),
        }));
        self.taken.pop_front()
    }

    /// Waits for a packet.
    pub fn receive(&mut self) -> Option<Packet> {
        let start = Instant::now();
        let mut bells = Bells::default();
        while start.elapsed() < LIMIT {
            if let Some(packet) = self.poll() {
                return Some(packet);
            }
            self.page.listen(&mut bells);
            self.channel.listen(&mut bells);
            let limit = Some(Duration::from_millis(100));
            self.page.park(&bells, limit, || self.channel.has_work());
        }
        None
    }
}

/// Waits until `is_so`.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What the threads of a process have done so far.
struct Activity {
    /// How often one of them went to sleep.
    sleeps: u64,
    cpu: Duration,
}

impl Activity {
    fn of(pid: u32) -> Self {
        let mut sum = Self {
            sleeps: 0,
            cpu: Duration::ZERO,
        };
        for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let task = task.unwrap().path();
            let first_number = |file: &str, prefix: &str| -> Option<u64> {
                let text = fs::read_to_string(task.join(file)).ok()?;
                let mut lines = text.lines();
                let number =
                    lines.find_map(|line| line.strip_prefix(prefix)?.split_whitespace().next());
                Some(number.unwrap().parse().unwrap())
            };
            // A thread may have ended meanwhile.
            let sleeps = first_number("status", "voluntary_ctxt_switches:");
            if let (Some(sleeps), Some(cpu)) = (sleeps, first_number("schedstat", "")) {
                sum.sleeps += sleeps;
                sum.cpu += Duration::from_nanos(cpu);
            }
        }
        sum
    }
}

/// Waits for a second in which the process goes to sleep `sleeps_max` times at most and uses less
/// than a twentieth of a core. What else the machine does makes single seconds worse, but does not
/// keep an idle process busy in all of them.
pub fn expect_idle(pid: u32, sleeps_max: u64) {
    eventually("the process is idle", || {
        let before = Activity::of(pid);
        std::thread::sleep(Duration::from_secs(1));
        let after = Activity::of(pid);
        let sleeps = after.sleeps.checked_sub(before.sleeps);
        let (Some(sleeps), Some(cpu)) = (sleeps, after.cpu.checked_sub(before.cpu)) else {
            // A thread has ended, and its sum is missing.
            return false;
        };
        println!("in a second: {sleeps} sleeps, {cpu:?} of a core");
        sleeps <= sleeps_max && cpu < Duration::from_millis(50)
    });
}

/// UDP destination port of a slot.
/// A CM port as an id without options asks for it.
pub fn cm_port(addr: &str, port: u16) -> CmPort {
    CmPort {
        space: PortTable::Tcp,
        addr: addr.parse().unwrap(),
        port,
        sharing: PortSharing::default(),
    }
}

pub fn udp_port(slot: u8) -> u16 {
    urdma_types::PORT_BASE + u16::from(slot)
}

pub fn meta(remote: &str, slot: u8) -> Meta {
    Meta {
        remote_ip: Ip16::new(remote.parse().unwrap()),
        src_port: 0xc001,
        dst_port: udp_port(slot),
        ecn: 2,
        gid_index: 0,
    }
}

/// A connection request from `src` (slot `slot`) to `dst`.
pub fn request(src: &str, slot: u8, dst: &str) -> Vec<u8> {
    request_with(Cookie::NONE, src, slot, dst)
}

/// The same with a cookie.
pub fn request_with(cookie: Cookie, src: &str, slot: u8, dst: &str) -> Vec<u8> {
    use urdma_cm::wire::{Body, CommId, Head, Message, Nonce, QpInfo, Req, MAX_MESSAGE};
    use urdma_types::{PortSpace, Qpn, SlotId};
    let slot = SlotId::new(slot).unwrap();
    let message = Message {
        head: Head {
            local_id: CommId(77),
            remote_id: CommId::NONE,
            nonce: Nonce(0x1234),
            slot,
        },
        body: Body::Req(Req {
            qp: QpInfo {
                qpn: Qpn::new(slot, 1).into(),
                ..QpInfo::default()
            },
            retry_count: 7,
            ack_timeout: 14,
            path_mtu: 3,
            port_space: PortSpace::TCP,
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            cookie,
        }),
        private_data: b"private",
    };
    let mut octets = [0; MAX_MESSAGE];
    let length = message.write(&mut octets);
    octets[..length].to_vec()
}

/// The cookie with which the datagram answers [`request`].
pub fn cookie_in(octets: &[u8]) -> Cookie {
    use urdma_cm::wire::{Body, CommId, Message};
    let message = Message::parse(octets).unwrap();
    assert_eq!(message.head.remote_id, CommId(77));
    let Body::Cookie(cookie) = message.body else {
        panic!("{message:?}");
    };
    cookie
}

/// Whether the datagram is the refusal of [`request`].
pub fn is_reject(octets: &[u8]) -> bool {
    use urdma_cm::wire::{Body, CommId, Message, RejReason};
    let message = Message::parse(octets).unwrap();
    message.head.remote_id == CommId(77) && message.body == Body::Rej(RejReason::INVALID_SERVICE_ID)
}
