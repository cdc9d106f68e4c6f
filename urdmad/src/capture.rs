//! Capture of the frames that pass slot 0, into pcapng files.
//!
//! The data thread copies the frames that the filter admits into a queue, and a thread of the
//! capture writes them, so that the data thread never waits for a disk. What the queue has no room
//! for is counted.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_queue::ArrayQueue;
use proto_trp::wire::trp::PacketType;
use urdma_capture::FrameFile;
use urdma_ipc::capture::{CaptureCounts, CaptureOptions};
use urdma_types::{Ip16, PORT_BASE};

/// Frames and octets that wait for the writing thread.
const WAITING_MAX: usize = 16_384;
const WAITING_OCTETS_MAX: usize = 16 << 20;
/// Octets that the thread writes at once.
const BUFFERED_OCTETS: usize = 64 << 10;
/// How often that thread looks for frames.
const INTERVAL: Duration = Duration::from_millis(10);
/// The first source port of slots' packets.
const SOURCE_PORT_BASE: u16 = 0xc000;

/// An active capture.
#[derive(Debug)]
pub struct Capture {
    options: CaptureOptions,
    file: PathBuf,
    counts: CaptureCounts,
    waiting: Arc<Waiting>,
    writing: JoinHandle<io::Result<Written>>,
}

/// Frames with their times, nanoseconds after the Unix epoch, between the two threads.
#[derive(Debug)]
struct Waiting {
    frames: ArrayQueue<(u64, Box<[u8]>)>,
    octets: AtomicUsize,
    is_over: AtomicBool,
}

/// What the thread has written.
#[derive(Debug, Default)]
struct Written {
    frames: u64,
    files: u32,
}

impl Capture {
    /// Creates `file`, which must not exist.
    ///
    /// # Errors
    /// It exists or cannot be written, or there is no thread.
    pub fn create(file: &Path, options: CaptureOptions) -> io::Result<Self> {
        let waiting = Arc::new(Waiting {
            frames: ArrayQueue::new(WAITING_MAX),
            octets: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let files = Files::begin(file.to_owned(), &options)?;
        let queue = Arc::clone(&waiting);
        let writing = thread::Builder::new()
            .name("urdmad-capture".to_owned())
            .spawn(move || write_frames(&queue, files))?;
        Ok(Self {
            options,
            file: file.to_owned(),
            counts: CaptureCounts::default(),
            waiting,
            writing,
        })
    }

    /// The path of the first file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Adds an Ethernet frame with the current time.
    pub fn add(&mut self, frame: &[u8]) {
        if self.options.has_filter() && !admits(&self.options, frame) {
            self.counts.filtered += 1;
            return;
        }
        let waiting = &self.waiting;
        let octets = waiting.octets.load(Ordering::Relaxed) + frame.len();
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(0);
        if octets > WAITING_OCTETS_MAX || waiting.frames.push((time_ns, frame.into())).is_err() {
            self.counts.dropped += 1;
            return;
        }
        waiting.octets.fetch_add(frame.len(), Ordering::Relaxed);
    }

    /// Ends the capture once everything that waits is written.
    ///
    /// # Errors
    /// The first write error, with the number of frames before it.
    pub fn finish(self) -> io::Result<CaptureCounts> {
        self.waiting.is_over.store(true, Ordering::Release);
        self.writing.thread().unpark();
        let written = self.writing.join();
        let written = written.unwrap_or_else(|_| Err(io::Error::other("its thread has failed")))?;
        Ok(CaptureCounts {
            frames: written.frames,
            files: written.files,
            ..self.counts
        })
    }
}

/// Writes what comes until the capture is over or a file takes no more, which the log says at once.
fn write_frames(waiting: &Waiting, mut files: Files) -> io::Result<Written> {
    let ended = write_until_over(waiting, &mut files);
    let written = files.written();
    ended.map_err(|error| {
        let frames = written.frames;
        let file = files.first.display();
        tracing::warn!("the capture in {file} has ended after {frames} frames: {error}");
        io::Error::new(
            error.kind(),
            format!("it has the first {frames} frames: {error}"),
        )
    })?;
    Ok(written)
}

fn write_until_over(waiting: &Waiting, files: &mut Files) -> io::Result<()> {
    loop {
        // Frames that were added before the end are written.
        let is_over = waiting.is_over.load(Ordering::Acquire);
        while let Some((time_ns, frame)) = waiting.frames.pop() {
            waiting.octets.fetch_sub(frame.len(), Ordering::Relaxed);
            files.write(time_ns, &frame)?;
        }
        files.open.flush()?;
        if is_over {
            return Ok(());
        }
        thread::park_timeout(INTERVAL);
    }
}

/// The files of a capture: `file`, `file.1`, `file.2` and so on.
#[derive(Debug)]
struct Files {
    first: PathBuf,
    octets_max: u64,
    files_max: u32,
    open: FrameFile,
    /// What the files before this one have.
    written: Written,
}

impl Files {
    fn begin(first: PathBuf, options: &CaptureOptions) -> io::Result<Self> {
        Ok(Self {
            open: open(&first)?,
            first,
            octets_max: options.file_octets.unwrap_or(u64::MAX),
            files_max: options.files.unwrap_or(u32::MAX).max(1),
            written: Written {
                frames: 0,
                files: 1,
            },
        })
    }

    fn write(&mut self, time_ns: u64, frame: &[u8]) -> io::Result<()> {
        if self.open.octets() >= self.octets_max {
            self.begin_next()?;
        }
        self.open.frame(time_ns, frame)
    }

    fn begin_next(&mut self) -> io::Result<()> {
        let number = self.written.files;
        let next = open(&self.path(number))?;
        self.open.flush()?;
        self.written.frames += self.open.frames();
        self.open = next;
        self.written.files += 1;
        if let Some(oldest) = number.checked_sub(self.files_max) {
            fs::remove_file(self.path(oldest))?;
        }
        Ok(())
    }

    fn path(&self, number: u32) -> PathBuf {
        if number == 0 {
            return self.first.clone();
        }
        let mut path = self.first.clone().into_os_string();
        path.push(format!(".{number}"));
        path.into()
    }

    fn written(&self) -> Written {
        Written {
            frames: self.written.frames + self.open.frames(),
            ..self.written
        }
    }
}

fn open(path: &Path) -> io::Result<FrameFile> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(path)?;
    FrameFile::new(file, BUFFERED_OCTETS)
}

/// What filters know of a frame.
struct Facts<'a> {
    addresses: [Ip16; 2],
    source_port: u16,
    destination_port: u16,
    datagram: &'a [u8],
}

/// Addresses, ports and content of a UDP datagram; `None` for other frames.
fn facts(frame: &[u8]) -> Option<Facts<'_>> {
    const UDP: u8 = 17;
    let packet = frame.get(14..)?;
    let (addresses, udp) = match frame.get(12..14)? {
        [0x08, 0x00] if packet.get(9) == Some(&UDP) => {
            let header = usize::from(packet[0] & 0xf) * 4;
            let ip = |at: usize| -> Option<Ip16> {
                let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
                Some(Ip16::new(octets.into()))
            };
            ([ip(12)?, ip(16)?], packet.get(header..)?)
        }
        [0x86, 0xdd] if packet.get(6) == Some(&UDP) => {
            let ip = |at: usize| -> Option<Ip16> {
                let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
                Some(Ip16(octets))
            };
            ([ip(8)?, ip(24)?], packet.get(40..)?)
        }
        _ => return None,
    };
    let (ports, datagram) = (udp.get(..4)?, udp.get(8..)?);
    Some(Facts {
        addresses,
        source_port: u16::from_be_bytes([ports[0], ports[1]]),
        destination_port: u16::from_be_bytes([ports[2], ports[3]]),
        datagram,
    })
}

/// Whether a filter admits a frame.
fn admits(options: &CaptureOptions, frame: &[u8]) -> bool {
    let Some(facts) = facts(frame) else {
        return false;
    };
    let is_cm = || {
        let first = facts.datagram.first();
        first.is_some_and(|octet| PacketType::of(*octet) == Ok(PacketType::Cm))
    };
    let has_slot = |slot: u8| {
        let [_, low] = facts.source_port.to_be_bytes();
        let is_source = facts.source_port >= SOURCE_PORT_BASE && low == slot;
        is_source || facts.destination_port == PORT_BASE + u16::from(slot)
    };
    (!options.only_cm || is_cm())
        && options
            .host
            .is_none_or(|host| facts.addresses.contains(&Ip16::new(host)))
        && options.slot.is_none_or(has_slot)
}
