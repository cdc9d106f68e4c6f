//! Hugepages for leased queues: reserved for as long as the guard lives, then given back.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{mount, umount, MsFlags};

use crate::Failure;

const COUNT_FILE: &str = "/proc/sys/vm/nr_hugepages";
const MOUNT_POINT: &str = "/dev/hugepages";

/// Reserved hugepages of 2 MB and a mounted hugetlbfs.
#[derive(Debug)]
pub struct Hugepages {
    count_before: Option<u64>,
    mounted_here: bool,
    directory: PathBuf,
}

impl Hugepages {
    /// Makes sure that `wanted` pages are free and that hugetlbfs is mounted.
    ///
    /// # Errors
    /// The caller is not root, or the kernel has not enough free memory in one piece.
    pub fn reserve(wanted: u64) -> Result<Self, Failure> {
        let (total, free) = (meminfo("HugePages_Total")?, meminfo("HugePages_Free")?);
        let mut guard = Self {
            count_before: None,
            mounted_here: false,
            directory: PathBuf::from(MOUNT_POINT),
        };
        if free < wanted {
            let target = total + wanted - free;
            fs::write(COUNT_FILE, target.to_string()).map_err(|error| {
                Failure::new(format!("cannot reserve hugepages in {COUNT_FILE}: {error}"))
            })?;
            guard.count_before = Some(total);
            let now_free = meminfo("HugePages_Free")?;
            if now_free < wanted {
                return Err(Failure::new(format!(
                    "only {now_free} of {wanted} hugepages of 2 MB could be reserved: free some memory and try again"
                )));
            }
        }
        match mounted_hugetlbfs()? {
            Some(directory) => guard.directory = directory,
            None => guard.mount()?,
        }
        Ok(guard)
    }

    /// Where hugetlbfs is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn mount(&mut self) -> Result<(), Failure> {
        fs::create_dir_all(MOUNT_POINT)?;
        mount(
            Some("hugetlbfs"),
            MOUNT_POINT,
            Some("hugetlbfs"),
            MsFlags::empty(),
            None::<&str>,
        )
        .map_err(|error| {
            Failure::new(format!("cannot mount hugetlbfs at {MOUNT_POINT}: {error}"))
        })?;
        self.mounted_here = true;
        Ok(())
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        if self.mounted_here {
            // Busy means that somebody else uses it by now: it stays mounted for them.
            if umount(MOUNT_POINT).is_ok() {
                let _ = fs::remove_dir(MOUNT_POINT);
            }
        }
        if let Some(count) = self.count_before {
            if let Err(error) = fs::write(COUNT_FILE, count.to_string()) {
                eprintln!("cannot give hugepages back in {COUNT_FILE}: {error}");
            }
        }
    }
}

fn meminfo(field: &str) -> Result<u64, Failure> {
    fs::read_to_string("/proc/meminfo")?
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|value| value.trim().parse().ok())
        .ok_or_else(|| Failure::new("this kernel has no hugepages"))
}

fn mounted_hugetlbfs() -> Result<Option<PathBuf>, Failure> {
    Ok(fs::read_to_string("/proc/mounts")?
        .lines()
        .find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let directory = fields.next()?;
            (fields.next()? == "hugetlbfs").then(|| PathBuf::from(directory))
        }))
}
