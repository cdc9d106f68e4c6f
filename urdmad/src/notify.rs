//! Telling the service manager how it goes (sd_notify).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state` (`READY=1`, `STOPPING=1`) to `$NOTIFY_SOCKET`; does nothing without one.
pub fn notify(state: &str) {
    if let Some(socket) = env::var_os("NOTIFY_SOCKET") {
        if let Err(error) = send(socket.as_bytes(), state) {
            tracing::warn!("cannot tell the service manager {state}: {error}");
        }
    }
}

fn send(socket: &[u8], state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
