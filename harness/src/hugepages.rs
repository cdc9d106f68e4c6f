//! Hugepages for leased queues: reserved for as long as the guard lives, then given back.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{mount, umount, MsFlags};
use urdma_ipc::HugepageInfo;

use crate::Failure;

const COUNT_FILE: &str = "/proc/sys/vm/nr_hugepages";
const MOUNT_POINT: &str = "/dev/hugepages";

/// Reserved hugepages of 2 MB and a mounted hugetlbfs.
#[derive(Debug)]
pub struct Hugepages {
    /// Pages that were added to the kernel's.
    added: u64,
    mounted_here: bool,
    directory: PathBuf,
}

impl Hugepages {
    /// Reserves `wanted` pages beside those that there are, which others may count on, and makes sure that hugetlbfs is mounted.
    ///
    /// # Errors
    /// The caller is not root, or the kernel has not enough free memory in one piece.
    pub fn reserve(wanted: u64) -> Result<Self, Failure> {
        let mut guard = Self {
            added: 0,
            mounted_here: false,
            directory: PathBuf::from(MOUNT_POINT),
        };
        guard.added = change_count(|before| before + wanted)?;
        let HugepageInfo { free, mount, .. } = info()?;
        let added = guard.added;
        if added < wanted && free < wanted {
            return Err(Failure::new(format!(
                "only {free} of {wanted} hugepages of 2 MB could be reserved: free some memory and try again"
            )));
        }
        match mount {
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
        let added = self.added;
        if let Err(error) = change_count(|count| count.saturating_sub(added)) {
            eprintln!("{error}");
        }
    }
}

/// Sets the number of reserved pages, which other runs may do at the same time; gives by how many it has grown.
fn change_count(change: impl FnOnce(u64) -> u64) -> Result<u64, Failure> {
    let explain = |error: std::io::Error| {
        Failure::new(format!("cannot reserve hugepages in {COUNT_FILE}: {error}"))
    };
    let file = File::options()
        .write(true)
        .open(COUNT_FILE)
        .map_err(explain)?;
    let mut locked =
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| explain(errno.into()))?;
    let before = info()?.total;
    locked
        .write_all(change(before).to_string().as_bytes())
        .map_err(explain)?;
    Ok(info()?.total.saturating_sub(before))
}

fn info() -> Result<HugepageInfo, Failure> {
    let info = HugepageInfo::read()?;
    if info.size_kb == 0 {
        return Err(Failure::new("this kernel has no hugepages"));
    }
    Ok(info)
}
