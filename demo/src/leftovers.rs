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
        .filter(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let maps = fs::read_to_string(entry.path().join("maps")).unwrap_or_default();
            name.trim() == "urdmad" || maps.contains("liburdma")
        })
        .map(|entry| format!("process {}", entry.file_name().to_string_lossy()))
        .collect()
}
