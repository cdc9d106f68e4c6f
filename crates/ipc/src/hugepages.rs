//! The hugepages of the machine.

use std::fs;
use std::io;
use std::path::PathBuf;

/// Hugepages of the kernel's default size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HugepageInfo {
    /// Number of free pages.
    pub free: u64,
    /// Size of a page in KB; 0 if the kernel has no hugepages.
    pub size_kb: u64,
    /// The first mount point of hugetlbfs.
    pub mount: Option<PathBuf>,
}

impl HugepageInfo {
    /// The hugepages of this machine.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn read() -> io::Result<Self> {
        let (meminfo, mounts) = ("/proc/meminfo", "/proc/mounts");
        Ok(Self::parse(
            &fs::read_to_string(meminfo)?,
            &fs::read_to_string(mounts)?,
        ))
    }

    /// Free memory in MB.
    pub fn free_mb(&self) -> u64 {
        self.free * self.size_kb / 1024
    }

    /// The hugepages of the machine with this /proc/meminfo and /proc/mounts. Missing values are 0
    /// or `None`.
    pub fn parse(meminfo: &str, mounts: &str) -> Self {
        let field = |name: &str| -> u64 {
            let mut values = meminfo.lines().filter_map(|line| {
                let value = line.strip_prefix(name)?.strip_prefix(':')?;
                value.split_whitespace().next()?.parse().ok()
            });
            values.next().unwrap_or(0)
        };
        let mut mounted = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let directory = fields.next()?;
            (fields.next()? == "hugetlbfs").then(|| PathBuf::from(directory))
        });
        Self {
            free: field("HugePages_Free"),
            size_kb: field("Hugepagesize"),
            mount: mounted.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const MEMINFO: &str = "MemTotal:       24682000 kB\nHugePages_Total:     300\n\
        HugePages_Free:      200\nHugePages_Rsvd:        1\nHugepagesize:       2048 kB\n";
    const MOUNTS: &str = "proc /proc proc rw 0 0\nnone /mnt/huge hugetlbfs rw 0 0\n\
        none /dev/hugepages hugetlbfs rw 0 0\n";

    #[test]
    fn fields_and_the_first_mount_are_read() {
        let pages = HugepageInfo::parse(MEMINFO, MOUNTS);
        assert_eq!((pages.free, pages.size_kb), (200, 2048));
        assert_eq!(pages.free_mb(), 400);
        assert_eq!(pages.mount.as_deref(), Some(Path::new("/mnt/huge")));
    }

    #[test]
    fn kernel_without_hugepages_has_none() {
        let pages = HugepageInfo::parse("MemTotal: 1 kB\n", "hugetlbfs /proc proc rw 0 0\nshort\n");
        assert_eq!(pages, HugepageInfo::default());
    }
}
