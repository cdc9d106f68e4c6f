//! Whether a client can trust a run directory, and the urdmad in it.
//!
//! Programs of an instance share memory with its urdmad, so a client must not use a run directory
//! that another user has created in place of its own. Below `/run`, and below directories in which
//! all users may create files (`/tmp`), each component of the path is checked: it belongs to root
//! or to the caller, it is not a symbolic link, and other users cannot rename the files in it. The
//! owner of a directory that was named explicitly is also trusted. Other paths are not checked,
//! since only their owners can have created them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Uid, User};
use thiserror::Error;

/// The directory below which all components are checked.
const RUNTIME_BASE: &str = "/run";
const STICKY: u32 = 0o1000;
const GROUP_WRITE: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// The kernel's limit of symbolic links in a path.
const SYMLINKS_MAX: usize = 40;

/// The error of a run directory that is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("will not use the instance in {}: {fault}, and another user could read and change the \
    memory of your programs: name another run directory with --run-dir or \
    URDMA_RUN_DIR", dir.display())]
pub struct Untrusted {
    /// The run directory.
    pub dir: PathBuf,
    /// The reason.
    pub fault: Fault,
}

/// The reason for which a run directory is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// A component belongs to neither root nor the caller.
    #[error("{} belongs to {}", .0.display(), UserName(*.1))]
    Owner(PathBuf, u32),
    /// Other users may rename the files in a component.
    #[error("{} can be changed by other users", .0.display())]
    Writable(PathBuf),
    /// A component is a symbolic link.
    #[error("{} is a symbolic link", .0.display())]
    Symlink(PathBuf),
    /// The process behind the control socket runs as another user.
    #[error("its urdmad is run by {}", UserName(*.0))]
    Daemon(u32),
}

/// A user in a message: the name, or the number.
struct UserName(u32);

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match User::from_uid(Uid::from_raw(self.0)) {
            Ok(Some(user)) => write!(f, "user \"{}\"", user.name),
            _ => write!(f, "user {}", self.0),
        }
    }
}

/// The users whose urdmad a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedUsers {
    caller: u32,
    /// The owner of the run directory, if it was named explicitly.
    owner: Option<u32>,
}

impl TrustedUsers {
    /// Whether `uid` is one of these users.
    pub fn include(self, uid: u32) -> bool {
        uid == 0 || uid == self.caller || Some(uid) == self.owner
    }
}

/// Checks the existing components of the path of the run directory `dir`, which was named
/// explicitly or is the default one.
///
/// # Errors
/// A user who is not trusted has created a component or can change it.
pub fn check(dir: &Path, is_named: bool) -> Result<TrustedUsers, Untrusted> {
    let caller = Uid::effective().as_raw();
    let exposed = exposed_components(dir);
    let owner = fs::symlink_metadata(dir)
        .ok()
        .map(|metadata| metadata.uid());
    let users = TrustedUsers {
        caller,
        owner: owner.filter(|_| is_named),
    };
    let fault = exposed
        .into_iter()
        .find_map(|(path, metadata)| fault_of(path, &metadata, users));
    match fault {
        Some(fault) => Err(Untrusted {
            dir: dir.to_owned(),
            fault,
        }),
        None => Ok(users),
    }
}

fn fault_of(path: PathBuf, metadata: &Metadata, users: TrustedUsers) -> Option<Fault> {
    let (uid, gid, mode) = (metadata.uid(), metadata.gid(), metadata.mode());
    if metadata.is_symlink() {
        return Some(Fault::Symlink(path));
    }
    if !users.include(uid) {
        return Some(Fault::Owner(path, uid));
    }
    // In a sticky directory only owners can rename files. A group with the number of the user is
    // that user's private group.
    let group_may = mode & GROUP_WRITE != 0 && gid != uid;
    let others_may = mode & OTHERS_WRITE != 0 || group_may;
    (others_may && mode & STICKY == 0).then_some(Fault::Writable(path))
}

/// The existing components of the path `dir` that other users can have created.
fn exposed_components(dir: &Path) -> Vec<(PathBuf, Metadata)> {
    let Ok(absolute) = std::path::absolute(dir) else {
        return Vec::new();
    };
    let mut left = names(&absolute);
    let mut place = PathBuf::from("/");
    let mut is_exposed = false;
    let mut symlinks = 0;
    let mut exposed = Vec::new();
    while let Some(name) = left.pop_front() {
        if name == ".." {
            place.pop();
            continue;
        }
        let next = place.join(name);
        let Ok(metadata) = fs::symlink_metadata(&next) else {
            break;
        };
        if metadata.is_symlink() && !is_exposed {
            symlinks += 1;
            let Ok(target) = fs::read_link(&next) else {
                break;
            };
            if symlinks > SYMLINKS_MAX {
                break;
            }
            if target.is_absolute() {
                place = PathBuf::from("/");
            }
            for name in names(&target).into_iter().rev() {
                left.push_front(name);
            }
            continue;
        }
        if is_exposed {
            exposed.push((next.clone(), metadata.clone()));
        }
        is_exposed |= next == Path::new(RUNTIME_BASE) || metadata.mode() & OTHERS_WRITE != 0;
        place = next;
    }
    exposed
}

/// The components of a path without the root.
fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink, PermissionsExt};

    const STRANGER: u32 = 64_001;

    /// A directory in one in which all users may create files; removed when dropped.
    struct Place(PathBuf);

    impl Place {
        fn new() -> Self {
            let open = nix::unistd::mkdtemp(&std::env::temp_dir().join("urdma-trust-XXXXXX"));
            let place = Self(open.unwrap());
            place.allow("", 0o1777);
            fs::create_dir_all(place.path("base/run")).unwrap();
            place
        }

        fn path(&self, below: &str) -> PathBuf {
            self.0.join(below)
        }

        fn allow(&self, below: &str, mode: u32) {
            fs::set_permissions(self.path(below), fs::Permissions::from_mode(mode)).unwrap();
        }

        fn fault(&self, is_named: bool) -> Option<Fault> {
            check(&self.path("base/run"), is_named)
                .err()
                .map(|untrusted| untrusted.fault)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn directories_of_the_caller_in_a_sticky_one_are_trusted() {
        let place = Place::new();
        assert_eq!(place.fault(false), None);
        assert_eq!(place.fault(true), None);
    }

    #[test]
    fn directory_that_others_may_write_to_is_refused() {
        let place = Place::new();
        place.allow("base", 0o757);
        let refused = Some(Fault::Writable(place.path("base")));
        assert_eq!(place.fault(false), refused);
        assert_eq!(place.fault(true), refused);
        place.allow("base", 0o1757);
        assert_eq!(place.fault(true), None);
    }

    #[test]
    fn symbolic_link_is_refused() {
        let place = Place::new();
        fs::rename(place.path("base"), place.path("elsewhere")).unwrap();
        symlink(place.path("elsewhere"), place.path("base")).unwrap();
        let refused = Some(Fault::Symlink(place.path("base")));
        assert_eq!(place.fault(true), refused);
    }

    #[test]
    fn symbolic_link_on_the_way_to_an_open_directory_hides_nothing() {
        let place = Place::new();
        place.allow("base", 0o757);
        // `/proc/self` is a relative link, and its `root` is an absolute one.
        let below_root = place.path("base/run");
        let detour = Path::new("/proc/self/root").join(below_root.strip_prefix("/").unwrap());
        let untrusted = check(&detour, true).unwrap_err();
        assert_eq!(untrusted.fault, Fault::Writable(place.path("base")));
    }

    #[test]
    fn directory_of_a_stranger_is_trusted_only_if_it_was_named() {
        let place = Place::new();
        let give = |below: &str| chown(place.path(below), Some(STRANGER), None).unwrap();
        give("base/run");
        let refused = Some(Fault::Owner(place.path("base/run"), STRANGER));
        assert_eq!(place.fault(false), refused);
        assert_eq!(place.fault(true), None);
        // The owner of the parent directory can replace the directory.
        give("base");
        chown(place.path("base/run"), Some(0), None).unwrap();
        let refused = Some(Fault::Owner(place.path("base"), STRANGER));
        assert_eq!(place.fault(true), refused);
    }

    #[test]
    fn daemon_is_trusted_if_root_the_caller_or_the_owner_runs_it() {
        let users = |owner| TrustedUsers { caller: 7, owner };
        assert!(users(None).include(0) && users(None).include(7));
        assert!(!users(None).include(8));
        assert!(users(Some(8)).include(8) && !users(Some(8)).include(9));
    }
}
