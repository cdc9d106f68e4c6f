//! The scheduler's groups of threads, which keep other sessions from running on some kernels.

/// The scheduler groups no threads by session, until this is dropped (doc/limits.md, "Groups of the
/// scheduler").
#[derive(Debug)]
pub struct WithoutAutogroups {
    before: String,
}

impl WithoutAutogroups {
    const SETTING: &str = "/proc/sys/kernel/sched_autogroup_enabled";

    /// Changes the machine's setting; `None` if it has none, or if this process may not change it.
    pub fn set() -> Option<Self> {
        let before = std::fs::read_to_string(Self::SETTING).ok()?;
        std::fs::write(Self::SETTING, "0").ok()?;
        Some(Self { before })
    }
}

impl Drop for WithoutAutogroups {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::SETTING, &self.before);
    }
}
