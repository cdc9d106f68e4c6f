//! Locations of the executables and libraries: beside `urdma` (a build directory) or in
//! `../lib/urdma` (an installation).

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{statvfs, FsFlags};
use rdma_core_sys::abi::KNOWN;

use crate::error::Error;

const PLUGIN: &str = "liburdma_provider.so";
const STANDIN: &str = "liburdma_standin.so";
const SOCKETS: &str = "liburdma_sockets.so";

/// How all files of one urdma come to be where it looks for them.
const INSTALL: &str = "install the package or the wheel again, unpack the tarball again, or \
                       `make build`";

/// The files that `urdma run` passes to a program.
#[derive(Debug)]
pub(crate) struct Libraries {
    /// `.../liburdma_provider.so`
    pub(crate) plugin: PathBuf,
    /// `.../liburdma`, the form that IBV_DRIVERS expects.
    pub(crate) driver: PathBuf,
    /// `.../liburdma_standin.so`
    pub(crate) standin: PathBuf,
    /// The directory of all.
    dir: PathBuf,
}

impl Libraries {
    /// Finds them.
    pub(crate) fn find() -> Result<Self, Error> {
        let beside = executable_dir()?;
        let installed = beside.join("../lib/urdma");
        let dir = [beside, installed]
            .into_iter()
            .find(|dir| dir.join(STANDIN).is_file())
            .ok_or_else(|| {
                Error::sentence(format!(
                    "{STANDIN} is neither beside urdma nor in ../lib/urdma: {INSTALL}"
                ))
            })?;
        let [plugin, standin] = [PLUGIN, STANDIN].map(|name| dir.join(name));
        check(&plugin)?;
        check(&standin)?;
        let driver = dir.join("liburdma");
        name_plugin(&driver);
        Ok(Self {
            plugin,
            driver,
            standin,
            dir,
        })
    }

    /// `.../liburdma_sockets.so`
    pub(crate) fn sockets(&self) -> Result<PathBuf, Error> {
        let sockets = self.dir.join(SOCKETS);
        check(&sockets)?;
        Ok(sockets)
    }
}

/// The program called `name` that belongs to this `urdma`.
pub(crate) fn companion(name: &str) -> Result<PathBuf, Error> {
    let path = executable_dir()?.join(name);
    check(&path)?;
    Ok(path)
}

/// Checks that a file of this `urdma` is there, and that this machine executes it: what the dynamic
/// loader and `execve` say otherwise does not tell what to do.
fn check(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    if !path.is_file() {
        return Err(Error::sentence(format!("{shown} is missing: {INSTALL}")));
    }
    if statvfs(path).is_ok_and(|file_system| file_system.flags().contains(FsFlags::ST_NOEXEC)) {
        return Err(Error::sentence(format!(
            "{shown} is on a file system that is mounted noexec: copy urdma's files to another one"
        )));
    }
    // A file that cannot be read is left to the one that executes it.
    match (kind_of(path), kind_of(Path::new("/proc/self/exe"))) {
        (Ok(kind), Ok(own)) if kind != own => Err(Error::sentence(format!(
            "{shown} is for another processor than this urdma: {INSTALL}"
        ))),
        _ => Ok(()),
    }
}

/// Of an ELF file the class, the order of octets, and the processor.
fn kind_of(path: &Path) -> io::Result<(u8, u8, [u8; 2])> {
    let mut header = [0; 20];
    fs::File::open(path)?.read_exact(&mut header)?;
    Ok((header[4], header[5], [header[18], header[19]]))
}

fn executable_dir() -> Result<PathBuf, Error> {
    let urdma = std::env::current_exe().map_err(|error| {
        Error::sentence(format!(
            "cannot tell where urdma itself is: /proc is needed: {error}"
        ))
    })?;
    let path = fs::canonicalize(&urdma).map_err(|error| not_reached(&urdma, &error))?;
    Ok(path.parent().map(Path::to_path_buf).unwrap_or_default())
}

/// `urdma` itself, which runs, cannot be looked at.
fn not_reached(urdma: &Path, error: &io::Error) -> Error {
    let urdma = urdma.display();
    Error::sentence(match error.kind() {
        ErrorKind::PermissionDenied => format!(
            "no permission to enter the directory of {urdma}, which has urdma's libraries: \
             use a copy that all users may read, for example by `make install`"
        ),
        _ => format!("cannot look at {urdma}, which is urdma itself: {error}"),
    })
}

/// Creates the links by which libibverbs finds the plugin, one for each private provider ABI. In a
/// directory that is not writable they are missing, which does no harm while the stand-in loads the
/// plugin first.
fn name_plugin(driver: &Path) {
    for abi in KNOWN {
        let name = format!("{}-rdmav{}.so", driver.display(), abi.number);
        let _ = symlink(PLUGIN, name);
    }
}
