//! Capture of the frames that pass slot 0, into a pcapng file.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// An active capture.
#[derive(Debug)]
pub struct Capture {
    writer: urdma_capture::PcapngWriter<BufWriter<File>>,
    file: PathBuf,
    frames: u64,
    error: Option<io::Error>,
}

impl Capture {
    /// Creates `file`, which must not exist.
    ///
    /// # Errors
    /// It exists or cannot be written.
    pub fn create(file: &Path) -> io::Result<Self> {
        let out = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(file)?;
        Ok(Self {
            writer: urdma_capture::PcapngWriter::new(BufWriter::new(out))?,
            file: file.to_owned(),
            frames: 0,
            error: None,
        })
    }

    /// The file's path.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Adds an Ethernet frame with the current time; after the first error nothing more is written.
    pub fn add(&mut self, frame: &[u8]) {
        if self.error.is_some() {
            return;
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        match self
            .writer
            .frame(u64::try_from(now.as_nanos()).unwrap_or(0), frame)
        {
            Ok(()) => self.frames += 1,
            Err(error) => self.error = Some(error),
        }
    }

    /// Ends the capture; returns its number of frames.
    ///
    /// # Errors
    /// The first write error.
    pub fn finish(self) -> io::Result<u64> {
        match self.error {
            Some(error) => Err(error),
            None => self.writer.finish().map(|_| self.frames),
        }
    }
}
