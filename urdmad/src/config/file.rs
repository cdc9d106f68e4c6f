//! Reading a configuration file, of bounded length and without waiting for anybody who writes it.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Maximum length of a configuration.
const OCTETS_MAX: u64 = 1 << 20;

/// The text of a file.
///
/// # Errors
/// Why it cannot be used, as a sentence without a subject.
pub(super) fn read(file: &Path) -> Result<String, String> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer.
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    let cannot_be_read = |error| format!("cannot be read: {error}");
    let mut opened = options.open(file).map_err(cannot_be_read)?;
    if !opened.metadata().map_err(cannot_be_read)?.is_file() {
        return Err("is not a regular file: write the configuration into one".to_owned());
    }
    let mut text = String::new();
    let mut bounded = opened.by_ref().take(OCTETS_MAX + 1);
    bounded.read_to_string(&mut text).map_err(cannot_be_read)?;
    if text.len() as u64 > OCTETS_MAX {
        return Err(format!(
            "has more than {OCTETS_MAX} octets: name a file with a configuration"
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use urdma_harness::instance::Scratch;

    #[test]
    fn read_of_what_is_no_regular_file_is_refused_at_once() {
        let scratch = Scratch::new("config").unwrap();
        let fifo = scratch.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        for file in [&*fifo, Path::new("/dev/zero"), scratch.path()] {
            let reason = read(file).unwrap_err();
            assert!(reason.starts_with("is not a regular file: "), "{reason}");
        }
    }

    #[test]
    fn read_stops_at_the_maximum_length() {
        let scratch = Scratch::new("config").unwrap();
        let file = scratch.path().join("long.toml");
        let longest = "#".repeat(1 << 20);
        fs::write(&file, &longest).unwrap();
        assert_eq!(read(&file).unwrap(), longest);
        fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
        let reason = read(&file).unwrap_err();
        assert!(
            reason.starts_with("has more than 1048576 octets"),
            "{reason}"
        );
    }
}
