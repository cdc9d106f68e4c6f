//! net_memif: memory that two instances of this machine share.

use std::ffi::CStr;
use std::io::ErrorKind;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{access, AccessFlags};
use urdma_abi::port::LINK_OCTETS;
use urdma_underlay::MacAddr;

use super::keys::is_plain_argument;
use super::{KeyError, Keys, Kind, KindError, Named, Needs, Role};

const BUFFER_SMALL: u16 = 2048;
/// "Clean" in measurements; holds the largest frame.
const BUFFER_LARGE: u16 = 9728;

/// Entries of a ring, as a power of two: few enough that their buffers are still cached when the
/// peer reads them.
const RING_LOG2: u8 = 8;

/// Octets that the path of the socket may have so that the arguments are shorter than 128 octets.
/// DPDK sends them to secondaries in a field of that length: DPDK 25.11 refuses longer ones, older
/// versions cut them.
const PATH_MAX: usize = 30;

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
    const DRIVER: Option<&'static CStr> = Some(c"net_memif");

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
    fn arguments(&self, mtu: u16, mac: MacAddr) -> Result<Option<String>, KindError> {
        let role = if self.is_server { "server" } else { "client" };
        let fits_small = usize::from(mtu) + LINK_OCTETS <= usize::from(BUFFER_SMALL);
        let bsize = if fits_small {
            BUFFER_SMALL
        } else {
            BUFFER_LARGE
        };
        let socket = short_path(&self.socket)?;
        Ok(Some(format!(
            "net_memif0,role={role},id=0,socket={},socket-abstract=no,bsize={bsize},\
             rsize={RING_LOG2},mac={mac}",
            socket.display()
        )))
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

/// A path of at most [`PATH_MAX`] octets to the same socket, if the name in its directory is short.
///
/// A shorter path goes through a descriptor of the directory. It stays open as long as the daemon
/// runs, since the driver uses the path at each connection.
///
/// # Errors
/// The directory cannot be opened.
fn short_path(socket: &Path) -> Result<PathBuf, KindError> {
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Ok(socket.to_owned());
    };
    if socket.as_os_str().len() <= PATH_MAX {
        return Ok(socket.to_owned());
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let descriptor = nix::fcntl::open(directory, flags, Mode::empty()).map_err(|errno| {
        KindError::Directory {
            directory: directory.to_owned(),
            errno,
        }
    })?;
    let link = format!("/proc/self/fd/{}", descriptor.into_raw_fd());
    Ok(Path::new(&link).join(name))
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

    fn arguments(is_server: bool, socket: impl Into<PathBuf>, mtu: u16) -> String {
        let socket = socket.into();
        let mac = MacAddr([2, 0x11, 0x11, 0x33, 0x44, 0x55]);
        let kind = Memif { is_server, socket };
        kind.arguments(mtu, mac).unwrap().unwrap()
    }

    #[test]
    fn arguments_name_role_socket_and_a_buffer_for_the_mtu() {
        assert_eq!(
            arguments(true, "/tmp/m", 9000),
            "net_memif0,role=server,id=0,socket=/tmp/m,socket-abstract=no,bsize=9728,\
             rsize=8,mac=02:11:11:33:44:55"
        );
        let text = arguments(false, "/tmp/m", 1500);
        assert!(text.contains("role=client") && text.contains("bsize=2048"));
    }

    #[test]
    fn long_path_becomes_a_short_one_to_the_same_socket() {
        let directory = std::env::temp_dir().join(format!("{:0>100}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let long = directory.join("urdma.memif");
        let short = short_path(&long).unwrap();
        assert!(short.as_os_str().len() <= PATH_MAX, "{short:?}");
        std::fs::write(&short, "").unwrap();
        assert!(long.exists());
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(arguments(true, "/".repeat(PATH_MAX), 9000).len() < 128);
    }

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
