//! What a run could leave behind: processes, hugepages and their files, sockets and directories.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The state of the machine before the run, as far as a run can change it.
#[derive(Debug)]
pub(crate) struct Before {
    scratch: PathBuf,
    things: BTreeSet<String>,
}

impl Before {
    /// `scratch` is the directory of the run; it distinguishes the run's processes from others.
    pub(crate) fn take(scratch: &Path) -> Self {
        Self {
            scratch: scratch.to_path_buf(),
            things: things(),
        }
    }

    /// The differences to the state before the run.
    pub(crate) fn compare(&self) -> Vec<String> {
        let mut left: Vec<String> = things().difference(&self.things).cloned().collect();
        left.extend(processes(&self.scratch));
        if self.scratch.exists() {
            left.push(self.scratch.display().to_string());
        }
        left
    }
}

fn things() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (directory, prefix) in [
        ("/dev/hugepages", ""),
        ("/dev/shm", "urdma"),
        ("/run/urdma", ""),
        ("/var/run/dpdk", ""),
    ] {
        found.extend(entries(Path::new(directory), prefix));
    }
    if let Ok(count) = fs::read_to_string("/proc/sys/vm/nr_hugepages") {
        found.insert(format!("{} reserved hugepages", count.trim()));
    }
    found
}

fn entries(directory: &Path, prefix: &str) -> Vec<String> {
    let Ok(listing) = fs::read_dir(directory) else {
        return Vec::new();
    };
    listing
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path().display().to_string())
        .collect()
}

/// Every process that refers to `scratch`: a daemon in its command line, a program in its
/// environment.
fn processes(scratch: &Path) -> Vec<String> {
    let Ok(listing) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    listing
        .flatten()
        .filter(|entry| was_told_of(scratch, &entry.path()))
        .map(|entry| format!("process {}", entry.file_name().to_string_lossy()))
        .collect()
}

/// Whether the process of this directory of /proc has `scratch` in its command line or environment.
/// Both are empty once it has ended, even if its parent, often a container's init, has not reaped
/// it yet.
fn was_told_of(scratch: &Path, process: &Path) -> bool {
    let needle = scratch.display().to_string();
    ["cmdline", "environ"].iter().any(|file| {
        fs::read(process.join(file))
            .is_ok_and(|octets| String::from_utf8_lossy(&octets).contains(&needle))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use nix::sys::wait::{waitid, Id, WaitPidFlag};
    use nix::unistd::Pid;
    use urdma_harness::instance::Scratch;
    use urdma_harness::process::wait_until;

    use super::*;

    #[test]
    fn running_process_counts_and_ended_one_does_not_before_it_was_waited_for() {
        let scratch = Scratch::new("leftovers").unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .env("URDMA_RUN_DIR", scratch.path().join("one"))
            .spawn()
            .unwrap();
        let expected = format!("process {}", child.id());
        // `spawn` may return before readers of /proc find the new environment.
        wait_until("the process in the list", Duration::from_secs(30), || {
            processes(scratch.path()) == [expected.as_str()]
        })
        .unwrap();
        child.kill().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        assert_eq!(processes(scratch.path()), Vec::<String>::new());
        child.wait().unwrap();
    }
}
