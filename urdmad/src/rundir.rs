//! The run directory: created, locked, and removed with everything in it.
//!
//! The `pid` file is locked (flock) as long as urdmad lives, however it ends; the process that gets
//! the lock may remove what an earlier one left.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{chown, Uid};
use urdma_ipc::trust::Untrusted;
use urdma_ipc::RunDir;

use crate::config::Access;
use crate::process;

/// Files that urdmad creates in its run directory, the `pid` file last.
const CONTENTS: [&str; 6] = [
    "control.sock",
    "sysfs",
    "dpdk",
    "urdmad.log",
    "urdmad.log.1",
    "pid",
];
const TRIES: usize = 16;
/// Time limit and polling interval for an urdmad that is about to end.
const DYING_PATIENCE: Duration = Duration::from_secs(10);
const DYING_LOOK: Duration = Duration::from_millis(5);

/// Why the run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another urdmad uses it.
    #[error("instance \"{instance}\" runs already{}: see `urdma status`, or end it with \
        `urdma down`", process(.pid))]
    Running {
        /// The instance.
        instance: String,
        /// Its process id, if the file has it.
        pid: Option<u32>,
    },
    /// It holds files that urdmad has not created.
    #[error("{} is no run directory of urdmad: it holds {found}; name another one with \
        --run-dir", dir.display())]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// The files found.
        found: String,
    },
    /// The directory is another user's.
    #[error("{} belongs to another user: name another one with --run-dir", dir.display())]
    NotOurs {
        /// The directory.
        dir: PathBuf,
    },
    /// Clients would not trust it.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// A system call failed.
    #[error("cannot use {} as run directory: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

/// The locked run directory; removed when dropped.
#[derive(Debug)]
pub struct OwnedRunDir {
    run_dir: RunDir,
    /// Holds the lock.
    _pid_file: Flock<File>,
}

impl OwnedRunDir {
    /// Creates the run directory, or takes it over from a dead urdmad; those who have `access` may
    /// list it.
    ///
    /// # Errors
    /// Another urdmad uses it, or it cannot be created.
    pub fn acquire(run_dir: &RunDir, access: Access) -> Result<Self, RunDirError> {
        for _ in 0..TRIES {
            prepare(run_dir.path(), access)?;
            run_dir.trusted_users()?;
            refuse_foreign(run_dir.path())?;
            if let Some(pid_file) = lock_after_the_dying(run_dir)? {
                let owned = Self {
                    run_dir: run_dir.clone(),
                    _pid_file: pid_file,
                };
                owned.remove_all_but_pid();
                return Ok(owned);
            }
        }
        let error = io::Error::from(io::ErrorKind::ResourceBusy);
        Err(io_error(run_dir.path())(error))
    }

    /// Its path.
    pub fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }

    fn remove_all_but_pid(&self) {
        for name in CONTENTS.iter().filter(|name| **name != "pid") {
            remove(&self.run_dir.path().join(name));
        }
    }
}

impl Drop for OwnedRunDir {
    fn drop(&mut self) {
        self.remove_all_but_pid();
        remove(&self.run_dir.pid_file());
        if let Err(error) = fs::remove_dir(self.run_dir.path()) {
            tracing::warn!("cannot remove {}: {error}", self.run_dir.path().display());
        }
        // The parent directory is shared by instances: it is removed with the last one.
        if let Some(base) = self.run_dir.path().parent() {
            if base == urdma_ipc::paths::own_base() {
                let _ = fs::remove_dir(base);
            }
        }
    }
}

fn process(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> RunDirError + '_ {
    move |error| RunDirError::Io {
        path: path.to_owned(),
        error,
    }
}

fn prepare(dir: &Path, access: Access) -> Result<(), RunDirError> {
    if let Some(base) = dir.parent().filter(|base| !base.as_os_str().is_empty()) {
        make_base(base)?;
    }
    match DirBuilder::new().mode(0o711).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_owner(dir)?,
        Err(error) => return Err(io_error(dir)(error)),
    }
    // Readable by all, as /sys is: a process that has given up root goes on reading the tree.
    let mode = match access {
        Access::Owner => 0o711,
        Access::Group(_) => 0o751,
        Access::Everyone => 0o755,
    };
    if let Access::Group(group) = access {
        chown(dir, None, Some(group)).map_err(|errno| io_error(dir)(errno.into()))?;
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(mode)).map_err(io_error(dir))
}

/// The parent directory: /run/urdma can be entered by all, an ordinary user's only by that user.
fn make_base(base: &Path) -> Result<(), RunDirError> {
    if base.is_dir() {
        // Another user could have created /tmp/urdma-<uid> before.
        return if base == urdma_ipc::paths::own_base() {
            check_owner(base)
        } else {
            Ok(())
        };
    }
    let mode = if Uid::effective().is_root() {
        0o755
    } else {
        0o700
    };
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(base)
        .map_err(io_error(base))
}

fn check_owner(dir: &Path) -> Result<(), RunDirError> {
    let metadata = fs::symlink_metadata(dir).map_err(io_error(dir))?;
    if !metadata.is_dir() || metadata.uid() != Uid::effective().as_raw() {
        return Err(RunDirError::NotOurs {
            dir: dir.to_owned(),
        });
    }
    Ok(())
}

/// Nothing is removed from a directory with files that urdmad does not create.
fn refuse_foreign(dir: &Path) -> Result<(), RunDirError> {
    for entry in fs::read_dir(dir).map_err(io_error(dir))? {
        let name = entry.map_err(io_error(dir))?.file_name();
        if !CONTENTS.iter().any(|known| name == *known) {
            return Err(RunDirError::Foreign {
                dir: dir.to_owned(),
                found: name.to_string_lossy().into_owned(),
            });
        }
    }
    Ok(())
}

/// As [`lock`], but waits a moment for a killed urdmad to release its lock.
fn lock_after_the_dying(run_dir: &RunDir) -> Result<Option<Flock<File>>, RunDirError> {
    let deadline = Instant::now() + DYING_PATIENCE;
    loop {
        let locked = lock(run_dir);
        let Err(RunDirError::Running { pid: Some(pid), .. }) = &locked else {
            return locked;
        };
        let is_dying = i32::try_from(*pid).is_ok_and(process::is_dying);
        if !is_dying || Instant::now() >= deadline {
            return locked;
        }
        std::thread::sleep(DYING_LOOK);
    }
}

/// The locked pid file; `None` if the directory was removed meanwhile and must be created again.
fn lock(run_dir: &RunDir) -> Result<Option<Flock<File>>, RunDirError> {
    let path = run_dir.pid_file();
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        // Other users could lock a file that they can open.
        .mode(0o600)
        .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
        .open(&path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(&path)(error)),
    };
    let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(file) => file,
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            return Err(RunDirError::Running {
                instance: run_dir.instance(),
                pid: text.trim().parse().ok(),
            });
        }
        Err((_, errno)) => return Err(io_error(&path)(errno.into())),
    };
    // The previous holder of the lock may have removed the file before it was opened here.
    let ours = file.metadata().map_err(io_error(&path))?;
    if !fs::metadata(&path).is_ok_and(|there| there.ino() == ours.ino()) {
        return Ok(None);
    }
    file.set_len(0).map_err(io_error(&path))?;
    file.rewind().map_err(io_error(&path))?;
    writeln!(file, "{}", std::process::id()).map_err(io_error(&path))?;
    Ok(Some(file))
}

fn remove(path: &Path) {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    if let Err(error) = removed {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}
