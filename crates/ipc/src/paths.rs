//! The run directory of an instance and the files in it.
//!
//! The run directory of root's instances is `/run/urdma/<instance>`. For other users it is
//! `$XDG_RUNTIME_DIR/urdma/<instance>`, or `/tmp/urdma-<uid>/<instance>` without that variable.
//! `URDMA_RUN_DIR` overrides both with the directory of one instance.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use crate::trust::{self, TrustedUsers, Untrusted};

/// Environment variable that names the run directory of the instance to use.
pub const RUN_DIR_VARIABLE: &str = "URDMA_RUN_DIR";
/// Environment variable that names the instance to use when [`RUN_DIR_VARIABLE`] is not set.
pub const INSTANCE_VARIABLE: &str = "URDMA_INSTANCE";
/// The default instance.
pub const DEFAULT_INSTANCE: &str = "default";
/// Base directory of root's instances.
pub const SYSTEM_BASE: &str = "/run/urdma";

const NAME_OCTETS_MAX: usize = 64;

/// The run directory of one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
    /// Whether the path was given, by argument or by [`RUN_DIR_VARIABLE`].
    is_named: bool,
}

impl RunDir {
    /// The run directory with an explicit path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            is_named: true,
        }
    }

    fn by_default(path: PathBuf) -> Self {
        Self {
            path,
            is_named: false,
        }
    }

    /// The run directory of the caller's own instance `instance`, whether it runs or not.
    pub fn own(instance: &str) -> Self {
        Self::by_default(own_base().join(instance))
    }

    /// The run directory for a client: `run_dir` if given, else `$URDMA_RUN_DIR`, else that of
    /// `instance`, `$URDMA_INSTANCE` or `default`. For a name it is the caller's own directory if
    /// it exists and only the caller can have created it, else the system's if that exists.
    pub fn find(run_dir: Option<&Path>, instance: Option<&str>) -> Self {
        if let Some(path) = run_dir {
            return Self::at(path);
        }
        let from_environment = |name| env::var_os(name).filter(|value| !value.is_empty());
        if instance.is_none() {
            if let Some(path) = from_environment(RUN_DIR_VARIABLE) {
                return Self::at(path);
            }
        }
        let instance = instance
            .map(str::to_owned)
            .or_else(|| from_environment(INSTANCE_VARIABLE)?.into_string().ok())
            .unwrap_or_else(|| DEFAULT_INSTANCE.to_owned());
        let own = Self::own(&instance);
        let system = Self::by_default(Path::new(SYSTEM_BASE).join(&instance));
        let own_counts = own.path.exists() && own.trusted_users().is_ok();
        if !own_counts && system.path.exists() {
            system
        } else {
            own
        }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The instance's name: the last component of the path.
    pub fn instance(&self) -> String {
        self.path.file_name().map_or_else(
            || DEFAULT_INSTANCE.to_owned(),
            |name| name.to_string_lossy().into_owned(),
        )
    }

    /// The control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.path.join(CONTROL_SOCKET_NAME)
    }

    /// The root of the tree that libibverbs and librdmacm read (`SYSFS_PATH`).
    pub fn sysfs(&self) -> PathBuf {
        self.path.join("sysfs")
    }

    /// The file with urdmad's process id, which urdmad keeps locked while it runs.
    pub fn pid_file(&self) -> PathBuf {
        self.path.join("pid")
    }

    /// The log of urdmad.
    pub fn log_file(&self) -> PathBuf {
        self.path.join("urdmad.log")
    }

    /// The users whose urdmad a client accepts here.
    ///
    /// # Errors
    /// Another user has created the directory or can change a component of its path.
    pub fn trusted_users(&self) -> Result<TrustedUsers, Untrusted> {
        // `urdma run` passes the directory to programs by its path, but any user can create the
        // caller's directory in /tmp.
        let is_guessable = self.path.starts_with(base_in_tmp(Uid::effective()));
        trust::check(&self.path, self.is_named && !is_guessable)
    }

    /// Names of the instances with a run directory beside this one, and of the system's instances
    /// if this is the caller's own, in order.
    pub fn existing_instances(&self) -> Vec<String> {
        let Some(base) = self.path.parent() else {
            return Vec::new();
        };
        let mut names = instances_below(base);
        if base == own_base() {
            names.extend(instances_below(Path::new(SYSTEM_BASE)));
        }
        names.sort();
        names.dedup();
        names
    }
}

/// Name of the control socket in a run directory.
pub const CONTROL_SOCKET_NAME: &str = "control.sock";

/// Whether `name` is a valid instance name: 1 to 64 of `A-Z a-z 0-9 . _ -`, not beginning with a
/// dot.
pub fn is_instance_name(name: &str) -> bool {
    (1..=NAME_OCTETS_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|octet| octet.is_ascii_alphanumeric() || b"._-".contains(&octet))
}

/// The parent directory of the caller's own instances.
pub fn own_base() -> PathBuf {
    let uid = Uid::effective();
    let runtime_dir = env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    base_for(uid, runtime_dir.map(PathBuf::from))
}

fn base_for(uid: Uid, runtime_dir: Option<PathBuf>) -> PathBuf {
    if uid.is_root() {
        PathBuf::from(SYSTEM_BASE)
    } else if let Some(runtime_dir) = runtime_dir {
        runtime_dir.join("urdma")
    } else {
        base_in_tmp(uid)
    }
}

fn base_in_tmp(uid: Uid) -> PathBuf {
    PathBuf::from(format!("/tmp/urdma-{uid}"))
}

fn instances_below(base: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(base) else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().join(CONTROL_SOCKET_NAME).exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_instance_name(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_as_root_is_the_system_directory() {
        assert_eq!(
            base_for(Uid::from_raw(0), Some("/x".into())),
            Path::new("/run/urdma")
        );
    }

    #[test]
    fn base_as_user_prefers_the_runtime_directory() {
        let user = Uid::from_raw(1000);
        assert_eq!(
            base_for(user, Some("/run/user/1000".into())),
            Path::new("/run/user/1000/urdma")
        );
        assert_eq!(base_for(user, None), Path::new("/tmp/urdma-1000"));
    }

    #[test]
    fn instance_name_with_path_parts_is_refused() {
        for good in ["default", "a", "host-1.b_c"] {
            assert!(is_instance_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", ".hidden", "ä", "a b"] {
            assert!(!is_instance_name(bad), "{bad}");
        }
        assert!(!is_instance_name(&"x".repeat(65)));
    }
}
