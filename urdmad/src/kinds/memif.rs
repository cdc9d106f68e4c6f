//! net_memif: memory that two instances of this machine share.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::unistd::{access, AccessFlags};
use urdma_abi::port::kind;

use super::keys::is_plain_argument;
use super::{KeyError, Keys, Kind, Named, Needs, Role};

/// One end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memif {
    /// Whether this end listens.
    pub is_server: bool,
    /// The unix socket.
    pub socket: PathBuf,
}

impl Named for Memif {
    const NAME: &'static str = "memif";
    const DPDK: Option<u32> = Some(kind::MEMIF_SERVER);

    fn take(keys: &mut Keys) -> Result<Self, KeyError> {
        let role = keys.role.take().ok_or(KeyError::Missing("role"))?;
        let socket = keys.socket.take().ok_or(KeyError::Missing("socket"))?;
        if !is_plain_argument(&socket.to_string_lossy()) {
            let message = "must be a path without ',', '=' and spaces";
            return Err(KeyError::Wrong("socket", message));
        }
        Ok(Self {
            is_server: role == Role::Server,
            socket,
        })
    }
}

impl Kind for Memif {
    fn device(&self) -> Option<(u32, &Path)> {
        let number = match self.is_server {
            true => kind::MEMIF_SERVER,
            false => kind::MEMIF_CLIENT,
        };
        Some((number, &self.socket))
    }

    fn needs(&self) -> Needs {
        Needs::NOTHING
    }

    fn mtu(&self) -> u16 {
        9000
    }

    /// Its packets stay in memory.
    fn computes_checksums(&self) -> bool {
        false
    }

    fn cause(&self) -> Option<String> {
        unusable(&self.socket).filter(|_| self.is_server)
    }
}

/// Why a socket cannot be made.
fn unusable(socket: &Path) -> Option<String> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let shown = directory.display();
    if !directory.is_dir() {
        return Some(format!(
            "there is no directory {shown} for port.socket: mkdir -p {shown}"
        ));
    }
    if access(directory, AccessFlags::W_OK).is_err() {
        return Some(format!(
            "this user may not write to {shown}: name another place for port.socket"
        ));
    }
    // The type of the socket is another, so nothing is connected.
    let is_dead = |kind| matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound);
    let answer = UnixStream::connect(socket);
    let is_used = answer.map_or_else(|error| !is_dead(error.kind()), |_| true);
    is_used.then(|| {
        format!(
            "{} is in use, perhaps by another instance: let one of the two have \
             role = \"client\", or another port.socket",
            socket.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(socket: impl Into<PathBuf>) -> Option<String> {
        let socket = socket.into();
        let server = Memif {
            is_server: true,
            socket,
        };
        server.cause()
    }

    #[test]
    fn socket_without_a_directory_or_in_use_is_explained() {
        let said = cause("/no/such/socket").unwrap();
        assert!(said.contains("mkdir -p /no/such"), "{said}");
        let path = std::env::temp_dir().join(format!("urdma-cause-{}", std::process::id()));
        assert_eq!(cause(&path), None);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let said = cause(&path).unwrap();
        assert!(said.contains("in use"), "{said}");
        drop(listener);
        // A killed server leaves the file.
        assert_eq!(cause(&path), None);
        std::fs::remove_file(&path).unwrap();
    }
}
