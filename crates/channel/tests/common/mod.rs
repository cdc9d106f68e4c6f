//! Channels between two ends of this process, forged regions, a child process, random numbers.
#![allow(unsafe_code)]
#![allow(dead_code)] // no test uses all of it

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use urdma_channel::{
    CellOctets, Channel, ChannelConfig, Incoming, Kind, Layout, Next, OwnRegion, PeerRegion,
    CELL_DATA,
};
use urdma_waiting::{OwnPage, PeerPage};

pub(crate) const SIZE_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// The seed of this run: from `URDMA_SEED`, else from the clock; printed.
pub(crate) fn seed() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let given = std::env::var("URDMA_SEED")
        .ok()
        .and_then(|v| v.parse().ok());
    let seed = given.unwrap_or(u64::from(now.subsec_nanos()));
    println!("seed {seed}");
    seed
}

pub(crate) fn config(cells: u32, small_frames: u32, large_frames: u32) -> ChannelConfig {
    ChannelConfig {
        cells,
        small_frames,
        large_frames,
    }
}

/// A page of this process, and the view of its peers.
pub(crate) fn page() -> (OwnPage, PeerPage) {
    let (page, fd) = OwnPage::create().unwrap();
    (page, PeerPage::open(fd).unwrap())
}

/// A region, and the half that reads it.
pub(crate) fn region(config: &ChannelConfig) -> (OwnRegion, Incoming) {
    let (region, fd) = OwnRegion::create(config, 0).unwrap();
    (region, Incoming::new(PeerRegion::open(fd).unwrap()))
}

/// Both ends of a channel.
pub(crate) fn pair(config: &ChannelConfig) -> [Channel; 2] {
    let (to_q, from_p) = region(config);
    let (to_p, from_q) = region(config);
    let (mut p, mut q) = (Channel::new(to_q), Channel::new(to_p));
    p.attach(from_q, page().1);
    q.attach(from_p, page().1);
    [p, q]
}

/// Sends `text` in a cell; false without room for it.
pub(crate) fn send(channel: &mut Channel, kind: Kind, text: &[u8], owner: u32) -> bool {
    let Some(mut room) = channel.begin(kind, 0) else {
        return false;
    };
    room.octets_mut()[..text.len()].copy_from_slice(text);
    room.publish(text.len(), owner);
    channel.notify();
    true
}

/// Sends `text` in a frame; false without room for it.
pub(crate) fn send_long(channel: &mut Channel, text: &[u8], owner: u32) -> bool {
    let Some(mut room) = channel.begin(Kind::Work, text.len()) else {
        return false;
    };
    room.payload_mut().copy_from_slice(text);
    room.publish(0, owner);
    channel.notify();
    true
}

/// Takes a message: its octets, those of its frame, and whose messages its count completes.
pub(crate) fn take(channel: &mut Channel) -> Option<(Vec<u8>, Vec<u8>, Vec<u32>)> {
    let mut octets: CellOctets = [0xee; CELL_DATA];
    let mut owners = Vec::new();
    match channel.next(&mut octets, |owner| owners.push(owner)) {
        Next::Empty => None,
        Next::Corrupt => panic!("a corrupt cell"),
        Next::Message { len, payload, .. } => {
            let mut text = vec![0; payload.map_or(0, |payload| payload.len())];
            if let Some(payload) = payload {
                let incoming = channel.incoming().unwrap();
                assert!(incoming.copy_payload(payload, 0, &mut text));
            }
            Some((octets[..len].to_vec(), text, owners))
        }
    }
}

/// The owners that the peer's counts complete.
pub(crate) fn complete(channel: &mut Channel) -> Vec<u32> {
    let mut owners = Vec::new();
    channel.complete(|owner| owners.push(owner));
    owners
}

/// A memfd of this length and content.
pub(crate) fn memfd(octets: usize, content: &[u8], seals: libc::c_int, flags: u32) -> File {
    // SAFETY: the name is a C string.
    let raw = unsafe { libc::memfd_create(c"forged".as_ptr(), libc::MFD_ALLOW_SEALING | flags) };
    assert!(raw >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call has just made it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
    file.set_len(octets as u64).unwrap();
    if !content.is_empty() {
        file.write_all_at(content, 0).unwrap();
    }
    // SAFETY: seals the file from above.
    assert_eq!(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals) }, 0);
    file
}

/// A region whose writer stores what it likes.
pub(crate) struct Forged {
    pub(crate) file: File,
    pub(crate) layout: Layout,
}

impl Forged {
    pub(crate) fn new(config: &ChannelConfig) -> Self {
        let layout = Layout::new(config, 0).unwrap();
        let file = memfd(layout.total(), &layout.encode(), SIZE_SEALS, 0);
        Self { file, layout }
    }

    pub(crate) fn open(&self) -> Incoming {
        let fd = self.file.try_clone().unwrap().into();
        Incoming::new(PeerRegion::open(fd).unwrap())
    }

    pub(crate) fn put(&self, at: usize, word: u64) {
        self.file
            .write_all_at(&word.to_le_bytes(), at as u64)
            .unwrap();
    }

    pub(crate) fn put_counts(&self, settled: u32, written: u32) {
        self.put(128, u64::from(settled) << 32 | u64::from(written));
    }

    /// The cell of a position in the first lap.
    pub(crate) fn put_cell(&self, position: u32, len: u8, count: u32, frame: u16, octets: u32) {
        let at = self.layout.ring() + position as usize * 128;
        self.put(at + 8, u64::from(octets) << 32 | u64::from(frame));
        let sequence = u64::from(position + 1);
        self.put(at, sequence << 32 | u64::from(len) << 24 | u64::from(count));
    }
}

/// Runs `work` in a child process; returns its id.
pub(crate) fn fork(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child only works with what it has and ends without running anything else.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child.
        unsafe { libc::_exit(ended.is_err().into()) };
    }
    pid
}

/// Waits for a child; returns its status as waitpid(2) does.
pub(crate) fn wait(pid: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// How often a file is mapped by this process.
pub(crate) fn mappings_of(file: &File) -> usize {
    use std::os::unix::fs::MetadataExt;
    let inode = format!(" {} ", file.metadata().unwrap().ino());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:") && line.contains(&inode))
        .count()
}

pub(crate) fn raw(file: &impl AsRawFd) -> libc::c_int {
    file.as_raw_fd()
}
