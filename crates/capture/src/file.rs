//! A file of frames, which is whole when it ends early.

use std::fs::File;
use std::io::{self, Write};

use crate::PcapngWriter;

/// A pcapng file. An error ends it after the last frame that it has as a whole: a full disk costs
/// the frames that come later, and a reader of the file finds no part of one.
#[derive(Debug)]
pub struct FrameFile {
    file: File,
    /// What is not in the file yet.
    waiting: PcapngWriter<Vec<u8>>,
    waiting_frames: u64,
    /// How many octets may wait.
    room: usize,
    /// What the file has.
    octets: u64,
    frames: u64,
    has_failed: bool,
}

impl FrameFile {
    /// Begins the capture in an empty file. A frame waits for others in memory, until they have
    /// more than `room` octets together.
    ///
    /// # Errors
    /// Those of the file.
    pub fn new(file: File, room: usize) -> io::Result<Self> {
        let mut new = Self {
            file,
            waiting: PcapngWriter::new(Vec::new())?,
            waiting_frames: 0,
            room,
            octets: 0,
            frames: 0,
            has_failed: false,
        };
        new.flush()?;
        Ok(new)
    }

    /// Appends a frame as [`PcapngWriter::frame`] does.
    ///
    /// # Errors
    /// As there, and `BrokenPipe` after an error.
    pub fn frame(&mut self, time_ns: u64, frame: &[u8]) -> io::Result<()> {
        if self.has_failed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.waiting.frame(time_ns, frame)?;
        self.waiting_frames += 1;
        if self.waiting.out.len() > self.room {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the frames that wait.
    ///
    /// # Errors
    /// Those of the file, which has ended.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Err(error) = self.file.write_all(&self.waiting.out) {
            self.has_failed = true;
            return self.file.set_len(self.octets).and(Err(error));
        }
        self.octets += self.waiting.out.len() as u64;
        self.frames += self.waiting_frames;
        self.waiting.out.clear();
        self.waiting_frames = 0;
        Ok(())
    }

    /// Octets of the file, with those that wait.
    pub fn octets(&self) -> u64 {
        self.octets + self.waiting.out.len() as u64
    }

    /// Frames in the file, without those that wait.
    pub fn frames(&self) -> u64 {
        self.frames
    }
}
