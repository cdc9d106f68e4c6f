//! The machine that the findings are about.

use std::fs;
use std::path::{Path, PathBuf};

/// A machine as its files describe it.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) root: PathBuf,
}

impl Machine {
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file without white space around it; empty if there is none.
    pub(super) fn text(&self, path: &str) -> String {
        let text = fs::read_to_string(self.path(path)).unwrap_or_default();
        text.trim().to_owned()
    }

    /// The names in a directory, sorted; none if it does not exist.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The last component of a link's target.
    pub(super) fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

/// Whether a path can be opened for writing by this user.
pub(super) fn may_write(path: &Path) -> bool {
    nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).is_ok()
}
