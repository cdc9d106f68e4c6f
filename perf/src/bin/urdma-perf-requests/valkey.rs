//! Streams of octets over RDMA, as Valkey's connection type makes them.
//!
//! Each end has a buffer, which it announces to the other by a SEND. The other end writes into it
//! by RDMA WRITE WITH IMMEDIATE, whose immediate data is the number of octets, until the buffer is
//! full. The buffer is announced again when its owner has taken all of it.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use nix::fcntl::{fcntl, FcntlArg, OFlag};
use rdma_core_sys::verbs;
use urdma_perf::verbs_setup::{post, post_receive, post_send};

use crate::cm::{self, Id, News};
use crate::endpoint::{Endpoint, Memory};
use crate::stream::{self, Stream};
use crate::text;

/// Work requests of each direction.
const DEPTH: u32 = 1024;
/// Writes of which one has a completion.
const WRITES_A_COMPLETION: u32 = DEPTH / 2;
/// Octets of the buffer of an end.
const BUFFER: u32 = 1 << 20;
/// Octets of an announcement: address and key of the buffer, and what Valkey has beside them.
const ANNOUNCEMENT: u32 = 32;

/// Offset of the announcement that is sent, after those that receive requests may get.
const TO_SEND: u32 = DEPTH * ANNOUNCEMENT;

/// A connection.
struct Connection {
    endpoint: Endpoint,
    announcements: Memory,
    /// What has arrived, how much of it, and how much was taken.
    incoming: Memory,
    arrived: u32,
    taken: u32,
    /// A copy of the peer's buffer, and how much of it was sent.
    outgoing: Memory,
    sent: u32,
    /// Address and key of the peer's buffer.
    peer: Option<(u64, u32)>,
    writes: u32,
}

impl Connection {
    fn new(id: Id) -> Result<Self, String> {
        let endpoint = Endpoint::new(id, DEPTH)?;
        let flags = FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
        fcntl(endpoint.descriptor(), flags).map_err(text)?;
        let connection = Self {
            announcements: endpoint.memory(TO_SEND + ANNOUNCEMENT)?,
            incoming: endpoint.memory(BUFFER)?,
            outgoing: endpoint.memory(BUFFER)?,
            endpoint,
            arrived: 0,
            taken: 0,
            sent: 0,
            peer: None,
            writes: 0,
        };
        (0..DEPTH).try_for_each(|place| connection.post_receive(place * ANNOUNCEMENT))?;
        Ok(connection)
    }

    /// Posts a receive request for an announcement, whose `wr_id` is the offset.
    fn post_receive(&self, offset: u32) -> Result<(), String> {
        let to = self.announcements.sge(offset, ANNOUNCEMENT);
        // SAFETY: the queue pair lives.
        unsafe { post_receive(self.endpoint.qp(), offset.into(), to) }
    }

    /// Tells the peer where to write.
    fn announce(&self) -> Result<(), String> {
        let place = self.announcements.at(TO_SEND);
        // SAFETY: the place is ours; the announcement before has arrived.
        unsafe {
            place.cast::<u64>().write(self.incoming.at(0) as u64);
            place.add(8).cast::<u32>().write(self.incoming.rkey);
        }
        let from = self.announcements.sge(TO_SEND, ANNOUNCEMENT);
        // SAFETY: the queue pair lives.
        unsafe { post_send(self.endpoint.qp(), from) }
    }

    /// Takes the announcement of the peer.
    fn note_peer(&mut self, offset: u32) {
        let place = self.announcements.at(offset);
        // SAFETY: the place is ours, and its receive request is complete.
        let (address, key) = unsafe {
            (
                place.cast::<u64>().read(),
                place.add(8).cast::<u32>().read(),
            )
        };
        self.peer = Some((address, key));
        self.sent = 0;
    }

    /// Does what a completion asks for.
    fn complete(&mut self, wc: &verbs::ibv_wc) -> Result<(), String> {
        let offset = u32::try_from(wc.wr_id).map_err(text)?;
        match wc.opcode {
            verbs::IBV_WC_RECV_RDMA_WITH_IMM => {
                // SAFETY: the completion is that of a write with immediate data.
                let octets = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
                if octets > BUFFER - self.arrived {
                    return Err("more has arrived than there is room for".into());
                }
                self.arrived += octets;
            }
            verbs::IBV_WC_RECV => self.note_peer(offset),
            _ => return Ok(()),
        }
        self.post_receive(offset)
    }
}

impl Stream for Connection {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.endpoint.descriptor()
    }

    fn receive(&mut self, to: &mut Vec<u8>) -> Result<(), String> {
        self.endpoint.take_event()?;
        self.endpoint.arm()?;
        // One at a time, and once more when there is none, as Valkey does.
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut found: [verbs::ibv_wc; 1] = unsafe { std::mem::zeroed() };
        while self.endpoint.poll(&mut found)? > 0 {
            self.complete(&found[0])?;
        }
        let (start, count) = (self.incoming.at(self.taken), self.arrived - self.taken);
        // SAFETY: the peer has written so many octets, and does not write there again before the
        // buffer is announced again.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(start, count as usize) });
        self.taken = self.arrived;
        if self.taken == BUFFER {
            (self.arrived, self.taken) = (0, 0);
            self.announce()?;
        }
        Ok(())
    }

    fn send(&mut self, octets: &[u8]) -> Result<usize, String> {
        let octets = &octets[..octets.len().min((BUFFER - self.sent) as usize)];
        let count = u32::try_from(octets.len()).map_err(text)?;
        let Some((address, rkey)) = self.peer.filter(|_| count > 0) else {
            return Ok(0);
        };
        let to = self.outgoing.at(self.sent);
        // SAFETY: there is room for so many octets, of which no request has been posted yet.
        unsafe { to.copy_from_nonoverlapping(octets.as_ptr(), octets.len()) };
        let mut from = self.outgoing.sge(self.sent, count);
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut wr: verbs::ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.opcode = verbs::IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.__bindgen_anon_1.imm_data = count.to_be();
        (wr.sg_list, wr.num_sge) = (&mut from, 1);
        wr.wr.rdma.remote_addr = address + u64::from(self.sent);
        wr.wr.rdma.rkey = rkey;
        self.writes += 1;
        if self.writes.is_multiple_of(WRITES_A_COMPLETION) {
            wr.send_flags = verbs::IBV_SEND_SIGNALED;
        }
        // SAFETY: the queue pair lives; the request refers to what lives.
        unsafe { post(self.endpoint.qp(), &mut wr)? };
        self.sent += count;
        Ok(octets.len())
    }
}

/// Connects to a server.
pub(crate) fn connect(to: (Ipv4Addr, u16)) -> Result<Box<dyn Stream>, String> {
    let connection = cm::connect(to, Connection::new)?;
    connection.announce()?;
    Ok(Box::new(connection))
}

/// A server's port.
pub(crate) struct Listener {
    port: cm::Port,
    /// Connections that are accepted and not complete.
    accepted: Vec<(Id, Connection)>,
}

impl Listener {
    pub(crate) fn new(address: Ipv4Addr) -> Result<Self, String> {
        let port = cm::Port::new(address)?;
        let accepted = Vec::new();
        Ok(Self { port, accepted })
    }
}

impl stream::Listener for Listener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.port.descriptor()
    }

    fn port(&self) -> Result<u16, String> {
        Ok(self.port.number())
    }

    fn accept(&mut self) -> Result<Option<Box<dyn Stream>>, String> {
        match self.port.next()? {
            News::Request(id) => {
                self.accepted.push((id, Connection::new(id)?));
                cm::accept(id)?;
                Ok(None)
            }
            News::Established(id) => {
                let at = self.accepted.iter().position(|(of, _)| *of == id);
                let at = at.ok_or("a connection was established that was not accepted")?;
                let (_, connection) = self.accepted.swap_remove(at);
                connection.announce()?;
                Ok(Some(Box::new(connection)))
            }
        }
    }
}
