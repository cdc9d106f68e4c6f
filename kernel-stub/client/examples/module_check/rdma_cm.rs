//! The kernel's rdma_cm, without librdmacm; the layouts are those of `rdma/rdma_user_cm.h`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use zerocopy::IntoBytes;

mod command {
    pub(super) const CREATE_ID: u32 = 0;
    pub(super) const BIND_IP: u32 = 2;
    pub(super) const LISTEN: u32 = 7;
}

/// `RDMA_PS_TCP`
const TCP: u64 = 0x106;
const AF_INET: u16 = 2;

/// An event channel.
pub(crate) struct RdmaCm {
    file: File,
}

impl RdmaCm {
    pub(crate) fn open() -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true);
        let file = file.open("/dev/infiniband/rdma_cm")?;
        Ok(Self { file })
    }

    /// Listens until the channel is closed.
    pub(crate) fn listen(&self, ip: [u8; 4], port: u16) -> io::Result<()> {
        let id = self.create_id()?;
        let mut body = [0; 40];
        body[8..36].copy_from_slice(&address(ip, port));
        body[36..].copy_from_slice(&id.to_ne_bytes());
        self.command(command::BIND_IP, &body, 0)?;
        self.command(command::LISTEN, [id, 16].as_bytes(), 0)
    }

    fn create_id(&self) -> io::Result<u32> {
        let mut id = 0_u32;
        let body = [0, &raw mut id as u64, TCP];
        self.command(command::CREATE_ID, body.as_bytes(), 4)?;
        Ok(id)
    }

    fn command(&self, number: u32, body: &[u8], answer_octets: usize) -> io::Result<()> {
        let length = |octets: usize| u16::try_from(octets).unwrap().to_ne_bytes();
        let mut octets = number.to_ne_bytes().to_vec();
        octets.extend_from_slice(&length(body.len()));
        octets.extend_from_slice(&length(answer_octets));
        octets.extend_from_slice(body);
        (&self.file).write(&octets).map(drop)
    }
}

/// An IPv4 address in the place of an IPv6 one.
fn address(ip: [u8; 4], port: u16) -> [u8; 28] {
    let mut octets = [0; 28];
    octets[..2].copy_from_slice(&AF_INET.to_ne_bytes());
    octets[2..4].copy_from_slice(&port.to_be_bytes());
    octets[4..8].copy_from_slice(&ip);
    octets
}
