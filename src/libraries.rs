//! Where our executables and libraries are: beside `urdma` (a build directory) or in `../lib/urdma` (an installation).

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::Error;

/// What libibverbs puts behind a driver's name; the number is the private provider ABI, learned when this was built.
const PLUGIN_SUFFIX: &str = concat!("-rdmav", env!("URDMA_PABI"), ".so");
/// The plugin as cargo names it.
const PLUGIN_BUILT: &str = "liburdma_provider.so";
const STANDIN: &str = "liburdma_standin.so";

/// The files that `urdma run` points a program at.
#[derive(Debug)]
pub(crate) struct Libraries {
    /// `.../liburdma-rdmav34.so`
    pub(crate) plugin: PathBuf,
    /// `.../liburdma`, as IBV_DRIVERS wants it.
    pub(crate) driver: PathBuf,
    /// `.../liburdma_standin.so`
    pub(crate) standin: PathBuf,
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
                    "{STANDIN} is neither beside urdma nor in ../lib/urdma: build it with `make build`, or install with `make install`"
                ))
            })?;
        let driver = dir.join("liburdma");
        let plugin = dir.join(format!("liburdma{PLUGIN_SUFFIX}"));
        name_plugin(&dir, &plugin)?;
        Ok(Self {
            plugin,
            driver,
            standin: dir.join(STANDIN),
        })
    }
}

/// The program called `name` that belongs to this `urdma`.
pub(crate) fn companion(name: &str) -> Result<PathBuf, Error> {
    let path = executable_dir()?.join(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::sentence(format!(
            "{} is missing: build it with `make build`",
            path.display()
        )))
    }
}

fn executable_dir() -> Result<PathBuf, Error> {
    std::env::current_exe()
        .and_then(fs::canonicalize)
        .ok()
        .and_then(|path| path.parent().map(Path::to_path_buf))
        .ok_or_else(|| Error::sentence("cannot tell where urdma itself is: /proc is needed"))
}

/// Cargo cannot give a library a name with a hyphen: in a build directory the plugin gets its name by a link.
fn name_plugin(dir: &Path, plugin: &Path) -> Result<(), Error> {
    if plugin.exists() {
        return Ok(());
    }
    if !dir.join(PLUGIN_BUILT).is_file() {
        return Err(Error::sentence(format!(
            "{} is missing: build it with `make build`",
            plugin.display()
        )));
    }
    match symlink(PLUGIN_BUILT, plugin) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(Error::sentence(format!(
            "cannot name the plugin {}: {error}; run `urdma run -- true` once as the user who built it",
            plugin.display()
        ))),
        _ => Ok(()),
    }
}
