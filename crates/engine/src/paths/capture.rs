//! `URDMA_CAPTURE=file`: the messages and packets that this process writes to its channels, as a
//! pcapng file for Wireshark.
//!
//! Inside a host there are no Ethernet, IP and UDP headers, so they are synthesised: the addresses
//! are the instance's first one, the ports are those of the slots. The content of the UDP datagram
//! is a packet of TRP (its first octet is 16 or more), or a message of a channel (less). Each
//! process writes what it sends, so one file per process (`%p` in the name is the process id) shows
//! each message once. The engines of a process share the file.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use urdma_abi::cancel::Disabled;
use urdma_capture::FrameFile;
use urdma_types::{udp_port, SlotId};
use urdma_underlay::{Checksum, Ecn, MacAddr, Route, Template, UdpPorts, MAX_HEADER_OCTETS};

use crate::types::AttachError;

/// Environment variable that names the file.
const VARIABLE: &str = "URDMA_CAPTURE";
/// Longest datagram that fits an IPv6 packet. What a message has beyond that is not shown.
const MAX_DATAGRAM: usize = 65_535 - 48;

/// A file of captures.
type Output = Arc<Mutex<FrameFile>>;
/// No frame waits in memory, since no code runs when the process is killed.
const WAITING_OCTETS_MAX: usize = 0;

/// The files that this process writes. They stay open, so that an engine which starts later does
/// not overwrite what is in them.
static OUTPUTS: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

struct Opened {
    /// A forked child writes a file of its own.
    process: u32,
    path: PathBuf,
    output: Output,
}

/// The capture of an engine.
pub(crate) struct Capture {
    output: Output,
    template: Template,
    packet: Vec<u8>,
}

impl Capture {
    /// The capture that the environment asks for, if any.
    pub(crate) fn from_environment(ip: IpAddr) -> Result<Option<Box<Self>>, AttachError> {
        let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let name = name.to_string_lossy();
        let path = PathBuf::from(name.replace("%p", &std::process::id().to_string()));
        Self::create(&path, ip).map(Some).map_err(|why| {
            AttachError::Environment(format!(
                "{VARIABLE}: cannot write {}: {why}",
                path.display()
            ))
        })
    }

    fn create(path: &Path, ip: IpAddr) -> io::Result<Box<Self>> {
        let mac = MacAddr([0x02, 0, 0, 0, 0, 1]);
        let template = Template::new(&Route {
            source_mac: mac,
            destination_mac: mac,
            source: ip,
            destination: ip,
            checksum: Checksum::Full,
        });
        let template = template.map_err(io::Error::other)?;
        Ok(Box::new(Self {
            output: open(path)?,
            template,
            packet: Vec::with_capacity(MAX_HEADER_OCTETS + 65_536),
        }))
    }

    /// Adds a message, which is in parts. A full disk ends the capture, of which all threads and
    /// engines of the process have one, and nothing else.
    pub(crate) fn add(&mut self, from: SlotId, to: SlotId, parts: &[&[u8]]) {
        let _uncancelled = Disabled::new();
        let headers = self.template.header_octets();
        self.packet.clear();
        self.packet.resize(headers, 0);
        for part in parts {
            self.packet.extend_from_slice(part);
        }
        self.packet.truncate(headers + MAX_DATAGRAM);
        let ports = UdpPorts {
            source: udp_port(from),
            destination: udp_port(to),
        };
        if self
            .template
            .write(&mut self.packet, ports, Ecn::from_bits(0))
            .is_err()
        {
            return;
        }
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanoseconds = since_epoch.map_or(0, |time| time.as_nanos());
        let _ = output.frame(u64::try_from(nanoseconds).unwrap_or(0), &self.packet);
    }
}

/// The file of a name, which is created unless an engine of this process has done so.
fn open(path: &Path) -> io::Result<Output> {
    let process = std::process::id();
    let mut outputs = OUTPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = outputs
        .iter()
        .find(|opened| opened.process == process && opened.path == path);
    if let Some(opened) = found {
        return Ok(Arc::clone(&opened.output));
    }
    let file = FrameFile::new(File::create(path)?, WAITING_OCTETS_MAX)?;
    let output = Arc::new(Mutex::new(file));
    outputs.push(Opened {
        process,
        path: path.to_owned(),
        output: Arc::clone(&output),
    });
    Ok(output)
}
