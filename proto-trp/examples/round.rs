//! Measures the hot path: nanoseconds per message in two connections joined in memory, without
//! rings and wake-ups.
//!
//! `cargo run --release -p proto-trp --example round`
//!
//! With the argument `channel` and a number it only sends that many messages over a channel, for
//! valgrind to count instructions.

use proto_trp::conn::{
    AtomicOp, Completion, ConnConfig, Connection, Datagram, Event, Handled, Host, Message, Path,
    Payload, ProtectionError, RecvWr, RemoteAccess, RemoteAddr, RtrParams, RtsParams, SendFlags,
    SendOp, SendWr, Sge, Time, HEAD_OCTETS,
};
use proto_trp::wire::message::CELL_LEN;
use proto_trp::wire::SEGMENT_HEAD_LEN;
use std::hint::black_box;
use std::time::{Duration, Instant};
use urdma_types::{Psn, Qpn, SlotId};

/// One region at address 0, and counters.
struct Flat {
    memory: Vec<u8>,
    completions: u64,
}

impl Flat {
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
        let range = self.range(sges[0].addr + offset, out.len())?;
        out.copy_from_slice(&self.memory[range]);
        Ok(())
    }

    #[inline]
    fn scatter(
        &mut self,
        sges: &[Sge],
        offset: u64,
        body: &[u8],
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError> {
        let range = self.range(sges[0].addr + offset, len)?;
        self.memory[range].copy_from_slice(&body[at..at + len]);
        Ok(())
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

    fn write_kept(&mut self, remote: RemoteAddr, octets: &[u8]) -> Result<(), ProtectionError> {
        let range = self.range(remote.to, octets.len())?;
        self.memory[range].copy_from_slice(octets);
        Ok(())
    }

    fn read_remote(&mut self, remote: RemoteAddr, out: &mut [u8]) -> Result<(), ProtectionError> {
        let range = self.range(remote.to, out.len())?;
        out.copy_from_slice(&self.memory[range]);
        Ok(())
    }

    fn atomic(&mut self, _: RemoteAddr, _: AtomicOp) -> Result<u64, ProtectionError> {
        Err(ProtectionError::Access)
    }

    fn invalidate(&mut self, _: u32) -> Result<(), ProtectionError> {
        Err(ProtectionError::CannotInvalidate)
    }

    #[inline]
    fn complete(&mut self, _: Completion) {
        self.completions += 1;
    }

    fn event(&mut self, _: Event) {}
}

const MAX_DATAGRAM: u32 = 8_972;

fn pair(path: Path) -> [(Connection, Flat); 2] {
    let qpn = |index| Qpn::new(SlotId::DAEMON, index);
    [(1, 2), (2, 1)].map(|(own, other)| {
        let mut conn = Connection::new(ConnConfig {
            window_packets: 64,
            ..ConnConfig::new(qpn(own))
        });
        let rtr = RtrParams {
            remote_qpn: qpn(other),
            remote_psn: Psn::new(u32::from(other)),
            max_datagram_octets: MAX_DATAGRAM,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            path,
        };
        let rts = RtsParams {
            local_psn: Psn::new(u32::from(own)),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            keepalive_ns: 0,
        };
        conn.to_init().expect("INIT");
        conn.to_rtr(Time::ZERO, &rtr).expect("RTR");
        conn.to_rts(Time::ZERO, &rts).expect("RTS");
        let host = Flat {
            memory: vec![1; 1 << 20],
            completions: 0,
        };
        (conn, host)
    })
}

/// Processor time of this thread; wall-clock time if the kernel does not report it.
fn busy(since: Instant) -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    ns.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

/// Moves every datagram from one end to the other; returns their number.
fn carry(
    now: Time,
    from: &mut (Connection, Flat),
    to: &mut (Connection, Flat),
    frame: &mut [u8],
) -> u64 {
    let mut datagrams = 0;
    while let Some(plan) = from.0.plan_transmit() {
        let Some(sent) = from.0.write_transmit(now, plan, frame, &mut from.1) else {
            continue;
        };
        let mut head = [0; HEAD_OCTETS];
        let head_len = sent.len.min(HEAD_OCTETS);
        head[..head_len].copy_from_slice(&frame[..head_len]);
        let datagram = Datagram {
            head: &head[..head_len],
            len: sent.len,
            body: &frame[..sent.len],
            congestion_experienced: false,
        };
        let reset = to.0.handle_datagram(now, &datagram, &mut to.1);
        assert!(reset.is_ok(), "both ends are connected");
        datagrams += 1;
    }
    datagrams
}

fn measure(name: &str, op: SendOp, length: u32, signal_every: u64, rounds: u64) {
    let [mut a, mut b] = pair(Path::Network);
    let mut frame = vec![0; MAX_DATAGRAM as usize];
    let sge = [Sge {
        addr: 4096,
        length,
        lkey: 1,
    }];
    let mut datagrams = 0;
    let clock = Instant::now();
    let begin = busy(clock);
    for round in 0..rounds {
        let now = Time::from_ns(1_000 + round * 500);
        if op == SendOp::Send {
            let recv = RecvWr {
                wr_id: round,
                sges: &sge,
            };
            b.0.post_recv(black_box(&recv), &mut b.1)
                .expect("post_recv");
        }
        let send = SendWr {
            wr_id: round,
            op,
            imm: None,
            flags: SendFlags {
                signaled: round % signal_every == signal_every - 1,
                ..SendFlags::default()
            },
            shared_queue: 0,
            payload: Payload::Sges(&sge),
        };
        a.0.post_send(|| now, black_box(&send), &mut a.1)
            .expect("post_send");
        datagrams += carry(now, &mut a, &mut b, &mut frame);
        datagrams += carry(now, &mut b, &mut a, &mut frame);
    }
    let elapsed = busy(clock) - begin;
    let ns = elapsed.as_secs_f64() * 1e9 / rounds as f64;
    println!(
        "{name:<40} {ns:>8.1} ns, {:.2} datagrams per message, {:.2} GB/s",
        datagrams as f64 / rounds as f64,
        f64::from(length) / ns
    );
    assert!(a.1.completions >= rounds / signal_every - 1);
}

type End = (Connection, Flat);

#[inline(never)]
fn post_recv(end: &mut End, sge: &[Sge]) {
    let recv = RecvWr {
        wr_id: 1,
        sges: sge,
    };
    end.0.post_recv(&recv, &mut end.1).expect("post_recv");
}

#[inline(never)]
fn post_send(end: &mut End, sge: &[Sge]) {
    let send = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        imm: None,
        flags: SendFlags {
            signaled: true,
            ..SendFlags::default()
        },
        shared_queue: 0,
        payload: Payload::Sges(sge),
    };
    end.0
        .post_send(|| Time::ZERO, &send, &mut end.1)
        .expect("post_send");
}

#[inline(never)]
fn write(end: &mut End, position: u64, cell: &mut [u8; CELL_LEN]) -> usize {
    let plan = end.0.plan_message().expect("a message");
    let written = end
        .0
        .write_message(plan, position, cell, &mut [], &mut end.1);
    written.expect("a message").cell_octets
}

#[inline(never)]
fn take(end: &mut End, cell: &[u8]) {
    let message = Message::parse(SlotId::DAEMON, cell, 0, cell).expect("a valid message");
    let handled = end.0.handle_message(|| Time::ZERO, &message, &mut end.1);
    assert!(matches!(handled, Handled::Settled), "a settled message");
}

#[inline(never)]
fn settled(end: &mut End, count: u64) {
    end.0.settled(count, &mut end.1);
}

/// Sends 64 octets over a channel, as often as `rounds` says.
fn channel(rounds: u64) -> f64 {
    let [mut a, mut b] = pair(Path::Channel);
    let sge = [Sge {
        addr: 4096,
        length: 64,
        lkey: 1,
    }];
    let mut cell = [0; CELL_LEN];
    let clock = Instant::now();
    let begin = busy(clock);
    for round in 0..rounds {
        post_recv(&mut b, black_box(&sge));
        post_send(&mut a, black_box(&sge));
        let len = write(&mut a, round, &mut cell);
        take(&mut b, &cell[..len]);
        // The cell of an answer says so.
        settled(&mut a, round + 1);
    }
    let elapsed = busy(clock) - begin;
    assert_eq!((a.1.completions, b.1.completions), (rounds, rounds));
    elapsed.as_secs_f64() * 1e9 / rounds as f64
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments
        .next()
        .is_some_and(|argument| argument == "channel")
    {
        let rounds = arguments.next().and_then(|number| number.parse().ok());
        channel(rounds.unwrap_or(1));
        return;
    }
    println!("send 64 over a channel: {:.1} ns", channel(2_000_000));
    let write = SendOp::Write {
        remote: RemoteAddr {
            stag: 1,
            to: 65_536,
        },
    };
    let read = SendOp::Read {
        remote: RemoteAddr {
            stag: 1,
            to: 65_536,
        },
    };
    for _ in 0..2 {
        measure("send 64, acknowledged each", SendOp::Send, 64, 1, 2_000_000);
        measure(
            "send 64, signaled every 16",
            SendOp::Send,
            64,
            16,
            2_000_000,
        );
        measure("write 64, acknowledged each", write, 64, 1, 2_000_000);
        measure("write 64, signaled every 16", write, 64, 16, 2_000_000);
        measure("read 64", read, 64, 1, 2_000_000);
        measure("write 65536, signaled", write, 65_536, 1, 50_000);
    }
}
