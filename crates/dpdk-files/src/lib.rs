//! The files of a DPDK primary: hugepages and the runtime directory.
//!
//! This crate needs no DPDK: urdmad removes what a killed urdmad has left before it knows whether
//! it will use DPDK.

#![allow(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

/// The mount points of hugetlbfs.
fn hugetlbfs_mounts() -> Vec<PathBuf> {
    fs::read_to_string("/proc/mounts")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let directory = fields.next()?;
            (fields.next()? == "hugetlbfs").then(|| PathBuf::from(directory))
        })
        .collect()
}

/// The parent of DPDK's runtime directories, one per file prefix.
fn default_runtime_directory() -> PathBuf {
    // SAFETY: the call cannot fail and accesses no memory.
    let root = unsafe { libc::getuid() } == 0;
    let directory = match std::env::var_os("RUNTIME_DIRECTORY") {
        Some(directory) => directory.into(),
        None if root => PathBuf::from("/var/run"),
        None => {
            std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
        }
    };
    directory.join("dpdk")
}

/// Removes the hugepage files and the runtime directory of a primary that has ended, also by a
/// crash.
///
/// `runtime_directory` is the one in which DPDK's directory is; `None`: DPDK's default. The primary
/// must not run.
pub fn remove_leftovers(file_prefix: &str, runtime_directory: Option<&Path>) {
    let marker = format!("{file_prefix}map_");
    for mount in hugetlbfs_mounts() {
        for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&marker) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
    let runtime = runtime_directory.map_or_else(default_runtime_directory, |directory| {
        directory.join("dpdk")
    });
    if !file_prefix.is_empty() && !file_prefix.contains('/') && !file_prefix.starts_with('.') {
        let _ = fs::remove_dir_all(runtime.join(file_prefix));
        // Succeeds only if no other primary has a directory here.
        let _ = fs::remove_dir(runtime);
    }
}
