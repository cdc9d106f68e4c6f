//! Two connections over a network, without the engine: packets of a stream of RDMA Writes, in
//! bursts as a leased queue carries them. `network.rs` has the engines too.

use std::hint::black_box;

use proto_trp::conn::{
    AtomicOp, Completion, ConnConfig, Connection, Datagram, Event, Host, Path, Payload,
    ProtectionError, RemoteAccess, RemoteAddr, RtrParams, RtsParams, SendFlags, SendOp, SendWr,
    Sge, Time, HEAD_OCTETS,
};
use proto_trp::wire::SEGMENT_HEAD_LEN;
use urdma_types::{Psn, Qpn};

use crate::end::SLOTS;

/// Length of a message in octets.
const MESSAGE_OCTETS: u32 = 65_536;
/// Messages that are posted and not complete.
const OUTSTANDING: u32 = 16;
/// Packets that a queue pair sends before it is the next one's turn.
const TURN: usize = 32;
/// Octets of the headers of IPv4 and UDP.
const IP_OCTETS: u32 = 28;
/// Virtual time between the bursts of the two ends.
const BURST_NS: u64 = 10_000;

/// One region at address 0, and the number of completions.
struct Flat {
    memory: Vec<u8>,
    completions: u32,
    taken: Psn,
}

impl Flat {
    #[inline]
    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, ProtectionError> {
        let start = usize::try_from(addr).map_err(|_| ProtectionError::Wrap)?;
        let end = start.checked_add(len).ok_or(ProtectionError::Wrap)?;
        if end > self.memory.len() {
            return Err(ProtectionError::Bounds);
        }
        Ok(start..end)
    }
}

impl Host for Flat {
    type Body = [u8];

    #[inline]
    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), ProtectionError> {
        let sge = sges.first().ok_or(ProtectionError::Bounds)?;
        let range = self.range(sge.addr + offset, out.len())?;
        out.copy_from_slice(&self.memory[range]);
        Ok(())
    }

    fn scatter(
        &mut self,
        _: &[Sge],
        _: u64,
        _: &[u8],
        _: usize,
        _: usize,
    ) -> Result<(), ProtectionError> {
        Err(ProtectionError::Access)
    }

    fn scatter_u64(&mut self, _: &[Sge], _: u64) -> Result<(), ProtectionError> {
        Err(ProtectionError::Access)
    }

    fn check_remote(
        &mut self,
        remote: RemoteAddr,
        len: u64,
        _: RemoteAccess,
    ) -> Result<(), ProtectionError> {
        let len = usize::try_from(len).map_err(|_| ProtectionError::Bounds)?;
        self.range(remote.to, len).map(|_| ())
    }

    #[inline]
    fn write_remote(
        &mut self,
        remote: RemoteAddr,
        body: &[u8],
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError> {
        self.write_kept(remote, &body[at..at + len])
    }

    fn peek(&mut self, body: &[u8], at: usize, out: &mut [u8; SEGMENT_HEAD_LEN]) {
        let len = out.len().min(body.len() - at);
        out[..len].copy_from_slice(&body[at..at + len]);
    }

    fn keep(&mut self, body: &[u8], at: usize, len: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&body[at..at + len]);
    }

    #[inline]
    fn write_kept(&mut self, remote: RemoteAddr, octets: &[u8]) -> Result<(), ProtectionError> {
        let range = self.range(remote.to, octets.len())?;
        self.memory[range].copy_from_slice(octets);
        Ok(())
    }

    fn read_remote(&mut self, _: RemoteAddr, _: &mut [u8]) -> Result<(), ProtectionError> {
        Err(ProtectionError::Access)
    }

    fn atomic(&mut self, _: RemoteAddr, _: AtomicOp) -> Result<u64, ProtectionError> {
        Err(ProtectionError::Access)
    }

    fn invalidate(&mut self, _: u32) -> Result<(), ProtectionError> {
        Err(ProtectionError::CannotInvalidate)
    }

    #[inline]
    fn taken(&mut self, next: Psn) {
        self.taken = next;
    }

    #[inline]
    fn complete(&mut self, _: Completion) {
        self.completions += 1;
    }

    fn event(&mut self, _: Event) {}
}

/// One direction of a link: the packets of one burst.
struct Burst {
    buffers: Vec<Vec<u8>>,
    lengths: Vec<usize>,
}

impl Burst {
    fn new(octets: u32) -> Self {
        Self {
            buffers: vec![vec![0; octets as usize]; TURN],
            lengths: Vec::with_capacity(TURN),
        }
    }
}

/// One end.
struct Peer {
    conn: Connection,
    host: Flat,
    /// When its timer expires.
    deadline: Option<Time>,
}

impl Peer {
    fn new(which: usize, max_datagram_octets: u32) -> Result<Self, String> {
        let qpn = |which: usize| Qpn::new(SLOTS[which], 1);
        let mut conn = Connection::new(ConnConfig::new(qpn(which)));
        let rtr = RtrParams {
            remote_qpn: qpn(1 - which),
            remote_psn: Psn::new(7),
            max_datagram_octets,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            path: Path::Network,
        };
        let rts = RtsParams {
            local_psn: Psn::new(7),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            keepalive_ns: 0,
        };
        let connected = conn
            .to_init()
            .and_then(|()| conn.to_rtr(Time::ZERO, &rtr))
            .and_then(|()| conn.to_rts(Time::ZERO, &rts));
        connected.map_err(|error| format!("{error:?}"))?;
        Ok(Self {
            conn,
            host: Flat {
                memory: vec![1; MESSAGE_OCTETS as usize],
                completions: 0,
                taken: Psn::new(0),
            },
            deadline: None,
        })
    }

    /// Takes a burst.
    #[inline]
    fn take(&mut self, now: Time, burst: &mut Burst) {
        for (buffer, &len) in burst.buffers.iter().zip(&burst.lengths) {
            let mut head = [0; HEAD_OCTETS];
            head.copy_from_slice(&buffer[..HEAD_OCTETS]);
            let datagram = Datagram {
                head: &head[..len.min(HEAD_OCTETS)],
                len,
                body: &buffer[..],
                congestion_experienced: false,
            };
            let handled = self.conn.handle_datagram(now, &datagram, &mut self.host);
            assert!(handled.is_ok(), "both ends are connected");
            self.deadline = self.conn.next_deadline();
            black_box(self.conn.may_have_tx());
        }
        burst.lengths.clear();
    }

    /// Sends what may be sent.
    #[inline]
    fn turn(&mut self, now: Time, burst: &mut Burst) {
        let mut rooms = burst.buffers.iter_mut();
        while rooms.len() > 0 {
            let Some(plan) = self.conn.plan_transmit() else {
                break;
            };
            let room = plan.room();
            if plan.run() > 1 {
                let left = rooms.by_ref().map(|buffer| &mut buffer[..room]);
                let run = self.conn.write_run(now, plan, left, &mut self.host);
                (1..run.count).for_each(|_| burst.lengths.push(run.each));
                burst.lengths.push(run.last);
            } else if let Some(buffer) = rooms.next() {
                let sent = self
                    .conn
                    .write_transmit(now, plan, buffer, &mut self.host)
                    .expect("the payload can be read");
                burst.lengths.push(sent.len);
            }
        }
        self.deadline = self.conn.next_deadline();
    }

    #[inline]
    fn post(&mut self, now: Time) {
        let sges = [Sge {
            addr: 0,
            length: MESSAGE_OCTETS,
            lkey: 1,
        }];
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Write {
                remote: RemoteAddr { stag: 1, to: 0 },
            },
            imm: None,
            flags: SendFlags {
                signaled: true,
                ..SendFlags::default()
            },
            shared_queue: 0,
            payload: Payload::Sges(&sges),
        };
        self.conn
            .post_send(|| now, black_box(&wr), &mut self.host)
            .expect("the send request is accepted");
    }
}

/// What the sending end does between two bursts of the other.
#[inline(never)]
fn sender(end: &mut Peer, now: Time, messages: u32, acks: &mut Burst, packets: &mut Burst) {
    end.take(now, acks);
    let posted = end.host.completions + end.conn.sends_outstanding();
    for _ in posted..messages.min(end.host.completions + OUTSTANDING) {
        end.post(now);
    }
    end.turn(now, packets);
}

/// What the receiving end does with a burst.
#[inline(never)]
fn receiver(end: &mut Peer, now: Time, packets: &mut Burst, acks: &mut Burst) {
    end.take(now, packets);
    end.turn(now, acks);
}

/// Writes messages over a path with this MTU; returns the number of packets of the sender.
///
/// # Errors
/// The ends cannot be connected, or nothing is sent before all messages are.
pub(crate) fn run(mtu: u32, messages: u32) -> Result<u64, String> {
    let octets = mtu - IP_OCTETS;
    let (mut one, mut two) = (Peer::new(0, octets)?, Peer::new(1, octets)?);
    let (mut packets, mut acks) = (Burst::new(octets), Burst::new(octets));
    let mut now = Time::from_ns(BURST_NS);
    loop {
        sender(&mut one, now, messages, &mut acks, &mut packets);
        if one.host.completions == messages {
            return Ok(one.conn.stats().tx_datagrams);
        }
        now = now.plus_ns(BURST_NS);
        if packets.lengths.is_empty() {
            // The receiver delays its acknowledgement.
            let due = two.deadline.ok_or("nothing is sent")?;
            now = now.max(due);
            two.conn.handle_timeout(now, &mut two.host);
        }
        receiver(&mut two, now, &mut packets, &mut acks);
        now = now.plus_ns(BURST_NS);
    }
}
