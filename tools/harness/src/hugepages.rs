//! Hugepages for leased queues: reserved as long as the guard lives, then released.
//!
//! A separate process (`hugepages.sh`) holds them, so that they are also released when the program
//! that reserved them is killed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use urdma_ipc::HugepageInfo;

use crate::Failure;

const COUNT_FILE: &str = "/proc/sys/vm/nr_hugepages";

/// Reserved hugepages of 2 MB and a mounted hugetlbfs.
#[derive(Debug)]
pub struct Hugepages {
    /// Has them until its standard input is closed.
    holder: Child,
    directory: PathBuf,
}

impl Hugepages {
    /// Reserves `wanted` pages beside those that there are, which others may count on, and makes
    /// sure that hugetlbfs is mounted.
    ///
    /// # Errors
    /// The caller is not root, or the kernel has not enough free memory in one piece.
    pub fn reserve(wanted: u64) -> Result<Self, Failure> {
        let explain = |error: std::io::Error| {
            Failure::new(format!("cannot reserve hugepages in {COUNT_FILE}: {error}"))
        };
        File::options()
            .write(true)
            .open(COUNT_FILE)
            .map_err(explain)?;
        if HugepageInfo::read()?.size_kb == 0 {
            return Err(Failure::new("this kernel has no hugepages"));
        }
        let holder = Command::new("sh")
            .args(["-c", include_str!("hugepages.sh"), "hugepages.sh"])
            .arg(wanted.to_string())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(explain)?;
        let mut guard = Self {
            holder,
            directory: PathBuf::new(),
        };
        let mut line = String::new();
        if let Some(said) = guard.holder.stdout.take() {
            BufReader::new(said).read_line(&mut line).map_err(explain)?;
        }
        let Some((added, directory)) = line.trim_end().split_once(' ') else {
            return Err(Failure::new(
                "hugepages can be neither reserved nor mounted",
            ));
        };
        let added = added.parse().unwrap_or(0);
        let free = HugepageInfo::read()?.free;
        if added < wanted && free < wanted {
            return Err(Failure::new(format!(
                "only {free} of {wanted} hugepages of 2 MB could be reserved: \
                 free some memory and try again"
            )));
        }
        guard.directory = PathBuf::from(directory);
        Ok(guard)
    }

    /// Where hugetlbfs is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        match self.holder.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("the process that reserved hugepages ended with {status}"),
            Err(error) => eprintln!("cannot wait for the reserved hugepages: {error}"),
        }
    }
}
