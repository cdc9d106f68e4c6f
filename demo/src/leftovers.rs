//! What a run could leave behind: processes, hugepages and their files, sockets and directories of ours.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The state of the machine before the run, as far as a run of ours could change it.
#[derive(Debug)]
pub(crate) struct Before(BTreeSet<String>);

impl Before {
    pub(crate) fn take() -> Self {
        Self(things())
    }

    /// What is there now and was not before.
    pub(crate) fn compare(&self) -> Vec<String> {
        things().difference(&self.0).cloned().collect()
    }
}

fn things() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (directory, prefix) in [
        ("/dev/hugepages", ""),
        ("/tmp", "urdma-"),
        ("/dev/shm", "urdma"),
        ("/run/urdma", ""),
        ("/var/run/dpdk", ""),
    ] {
        found.extend(entries(Path::new(directory), prefix));
    }
    found.extend(processes());
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

/// Every process called urdmad, or one that maps our plugin.
fn processes() -> Vec<String> {
    let Ok(listing) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    listing
        .flatten()
        .filter(|entry| runs_something_of_ours(&entry.path()))
        .map(|entry| format!("process {}", entry.file_name().to_string_lossy()))
        .collect()
}

/// Whether the process of this directory of /proc is one of ours and runs: one that has ended maps nothing, even if its parent, often the
/// container's init, has not waited for it yet.
fn runs_something_of_ours(process: &Path) -> bool {
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    maps.contains("liburdma") || (name.trim() == "urdmad" && !maps.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::process::Command;

    use nix::sys::wait::{waitid, Id, WaitPidFlag};
    use nix::unistd::Pid;
    use urdma_harness::instance::Scratch;

    use super::*;

    #[test]
    fn running_daemon_counts_and_ended_one_does_not_before_anybody_waited_for_it() {
        let scratch = Scratch::new("leftovers").unwrap();
        let program = scratch.path().join("urdmad");
        symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("60").spawn().unwrap();
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        assert!(runs_something_of_ours(&process));
        child.kill().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        assert!(process.exists());
        assert!(!runs_something_of_ours(&process));
        child.wait().unwrap();
    }
}
