//! Reading a configuration file, of bounded length and in bounded time.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use thiserror::Error;

/// Maximum length of a configuration.
const OCTETS_MAX: u64 = 1 << 20;
/// How long a pipe may take to be written.
const WRITER_LIMIT: Duration = Duration::from_secs(10);

/// Why a file cannot be used; its name precedes the message.
#[derive(Debug, Error)]
pub(super) enum FileError {
    /// It cannot be opened or read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// It is a directory, a device or a socket.
    #[error("is neither a regular file nor a pipe: name one of these")]
    Kind,
    /// It is longer than a configuration.
    #[error("has more than {OCTETS_MAX} octets: name a file with a configuration")]
    TooLong,
    /// It is not text.
    #[error("cannot be read: {0}")]
    NotText(#[from] std::string::FromUtf8Error),
    /// It is a pipe that is not written to.
    #[error(
        "is a pipe to which no program has written a configuration within {} s: start the program \
         that does", .0.as_secs()
    )]
    NoWriter(Duration),
}

/// The text of a file or of a pipe.
///
/// # Errors
/// It cannot be used.
pub(super) fn read(file: &Path) -> Result<String, FileError> {
    read_within(file, WRITER_LIMIT)
}

fn read_within(file: &Path, limit: Duration) -> Result<String, FileError> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer.
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    let mut opened = options.open(file)?;
    let kind = opened.metadata()?.file_type();
    let octets = if kind.is_fifo() {
        read_pipe(&opened, limit)?
    } else if kind.is_file() {
        let mut octets = Vec::new();
        let mut bounded = opened.by_ref().take(OCTETS_MAX + 1);
        bounded.read_to_end(&mut octets)?;
        octets
    } else {
        return Err(FileError::Kind);
    };
    if octets.len() as u64 > OCTETS_MAX {
        return Err(FileError::TooLong);
    }
    Ok(String::from_utf8(octets)?)
}

/// What is written to a pipe, which may have no writer yet, up to more than the maximum length.
fn read_pipe(mut pipe: &File, limit: Duration) -> Result<Vec<u8>, FileError> {
    const LOOK: Duration = Duration::from_millis(5);
    let until = Instant::now() + limit;
    let mut octets = Vec::new();
    let mut part = [0; 4096];
    while octets.len() as u64 <= OCTETS_MAX {
        match pipe.read(&mut part) {
            Ok(0) if !octets.is_empty() => break,
            Ok(count @ 1..) => octets.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            Ok(_) | Err(_) if Instant::now() < until => sleep(LOOK),
            Ok(_) | Err(_) => return Err(FileError::NoWriter(limit)),
        }
    }
    Ok(octets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use urdma_harness::instance::Scratch;

    #[test]
    fn read_of_what_is_neither_file_nor_pipe_is_refused_at_once() {
        let scratch = Scratch::new("config").unwrap();
        for file in [Path::new("/dev/zero"), scratch.path()] {
            let reason = read(file).unwrap_err().to_string();
            assert!(reason.starts_with("is neither "), "{reason}");
        }
    }

    #[test]
    fn read_of_a_pipe_waits_for_its_writer_and_not_for_ever() {
        let scratch = Scratch::new("config").unwrap();
        let fifo = scratch.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let reason = read_within(&fifo, Duration::from_millis(20))
            .unwrap_err()
            .to_string();
        assert!(reason.starts_with("is a pipe to which "), "{reason}");
        // Opening it to write waits for the reader.
        let writer = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::write(fifo, "slots = 3\n")
        });
        assert_eq!(read(&fifo).unwrap(), "slots = 3\n");
        writer.join().unwrap().unwrap();
        let writer = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::write(fifo, "#".repeat(2 << 20))
        });
        let reason = read(&fifo).unwrap_err().to_string();
        assert!(reason.starts_with("has more than "), "{reason}");
        // The rest cannot be written.
        assert!(writer.join().unwrap().is_err());
    }

    #[test]
    fn read_stops_at_the_maximum_length() {
        let scratch = Scratch::new("config").unwrap();
        let file = scratch.path().join("long.toml");
        let longest = "#".repeat(1 << 20);
        fs::write(&file, &longest).unwrap();
        assert_eq!(read(&file).unwrap(), longest);
        fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
        let reason = read(&file).unwrap_err().to_string();
        assert!(
            reason.starts_with("has more than 1048576 octets"),
            "{reason}"
        );
    }
}
