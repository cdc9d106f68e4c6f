//! Processes that are all connected to one, the target:
//!
//! ```text
//! urdma-perf-processes COUNT...     the target, which starts the others
//! urdma-perf-processes client       another; its standard input is a socket of the target
//! ```
//!
//! The numbers ascend. For each, processes are added until it is reached. A new one exchanges
//! a few messages with the target and sleeps until it is told to send: all connections are in use,
//! and two processes at a time take processor time. Then the target prints a line: the number,
//! latency of sends and of writes (us) and rate of sends and of writes (millions a second) between
//! the first process and the target, and the rate of sends of all processes in turn.
//!
//! The target runs on the first core and the others on the second, as the ends of the raw ring.
//! Otherwise, a process whose turn it is may wait for the core of the target while the one before
//! still has the other.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::ptr;
use std::time::{Duration, Instant};

use rdma_core_sys::verbs;
use serde::{Deserialize, Serialize};
use urdma_perf::processes::RESULT;
use urdma_perf::raw::fork::{pin, typical_half_round_trip, Mark};
use urdma_perf::verbs_setup::{
    connect, gid, made, open, poll, post_receive, post_send, queue_pair, register, Place, Write,
};

const OCTETS: u32 = 64;
/// Receive requests of a queue pair, and room for its send requests.
const DEPTH: u32 = 256;
/// Outstanding requests of a stream. There are always receive requests left for it.
const OUTSTANDING: u32 = 128;
const CQ_DEPTH: i32 = 2048;
const BATCH: usize = 16;
/// Messages of a rate of one pair.
const MESSAGES: u32 = 1_000_000;
/// Messages of one process until it is another's turn: enough to hide that its caches are cold.
const MESSAGES_OF_A_TURN: u32 = 5_000;
/// Turns of all processes together, twice as many as there can be processes.
const TURNS: usize = 504;
/// Round trips with a process that is added.
const FEW: u32 = 32;
/// Limit of a wait for a message.
const LIMIT: Duration = Duration::from_secs(20);
/// Empty polls between two looks at the clock.
const POLLS_A_LOOK: u32 = 1 << 20;
/// The argument of a process that the target starts.
const CLIENT: &str = "client";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let counts: Result<Vec<usize>, _> = arguments.iter().map(|count| count.parse()).collect();
    let outcome = match (arguments.as_slice(), counts) {
        ([role], _) if role == CLIENT => follow(),
        ([_, ..], Ok(counts)) => measure(&counts),
        _ => Err("usage: urdma-perf-processes COUNT...".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-processes: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The address of an end of a connection, and its memory that may be written.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Hello {
    place: Place,
    address: u64,
    key: u32,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Operation {
    Send,
    Write,
}

/// What the target orders, as one line of JSON.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Order {
    /// Reply with an empty line; then answer each message by the same operation, up to one that is
    /// marked as the last.
    Answer(Operation),
    /// Send this number of messages.
    Send(u32),
    /// Send a message, write this number of times, and send another.
    Write(u32),
}

fn write_line<T: Serialize>(stream: &mut BufReader<UnixStream>, value: &T) -> Result<(), String> {
    let line = serde_json::to_string(value).map_err(text)?;
    writeln!(stream.get_mut(), "{line}").map_err(text)
}

/// The next line; `None` when the other end has ended.
fn read_line<T>(stream: &mut BufReader<UnixStream>) -> Result<Option<T>, String>
where
    T: for<'de> Deserialize<'de>,
{
    let mut line = String::new();
    match stream.read_line(&mut line).map_err(text)? {
        0 => Ok(None),
        _ => serde_json::from_str(&line).map(Some).map_err(text),
    }
}

/// Memory of a process: the message that it sends, and the place of those that it receives.
#[repr(C, align(128))]
struct Memory([u8; 2 * Memory::TARGET]);

impl Memory {
    /// Offset of the second part, in lines of the cache of its own.
    const TARGET: usize = 128;
}

/// The verbs objects of a process, which exist until it ends.
struct End {
    pd: *mut verbs::ibv_pd,
    cq: *mut verbs::ibv_cq,
    gid: [u8; 16],
    memory: *mut u8,
    key: u32,
    qps: Vec<*mut verbs::ibv_qp>,
    found: [verbs::ibv_wc; BATCH],
    /// Requests to send and to write without a completion.
    outstanding: u32,
    /// Messages received and not yet used.
    received: u32,
    /// The octet of the last message of a ping-pong.
    seen: u8,
}

impl End {
    fn new() -> Result<Self, String> {
        let context = open()?;
        // SAFETY: the context is open; neither user context nor channel is given.
        let (pd, cq, gid) = unsafe {
            (
                made("ibv_alloc_pd", verbs::ibv_alloc_pd(context))?,
                made(
                    "ibv_create_cq",
                    verbs::ibv_create_cq(context, CQ_DEPTH, ptr::null_mut(), ptr::null_mut(), 0),
                )?,
                gid(context)?,
            )
        };
        let memory = Box::leak(Box::new(Memory([0; 2 * Memory::TARGET])));
        // SAFETY: the memory is never freed.
        let region = unsafe { register(pd, &mut memory.0)? };
        Ok(Self {
            pd,
            cq,
            gid,
            memory: memory.0.as_mut_ptr(),
            // SAFETY: the region was just made.
            key: unsafe { (*region).lkey },
            qps: Vec::new(),
            // SAFETY: all zeroes is a valid value of this plain structure.
            found: unsafe { std::mem::zeroed() },
            outstanding: 0,
            received: 0,
            seen: 0,
        })
    }

    fn target(&self) -> *mut u8 {
        self.memory.wrapping_add(Memory::TARGET)
    }

    /// Makes a queue pair and returns what its peer has to know.
    fn add(&mut self) -> Result<Hello, String> {
        // SAFETY: domain and queue live.
        let qp = unsafe { queue_pair(self.pd, self.cq, DEPTH)? };
        self.qps.push(qp);
        Ok(Hello {
            place: Place {
                gid: self.gid,
                // SAFETY: the queue pair was just made.
                number: unsafe { (*qp).qp_num },
            },
            address: self.target() as u64,
            key: self.key,
        })
    }

    /// Connects the queue pair that was made last and gives it receive requests.
    fn meet(&self, peer: &Hello) -> Result<(), String> {
        let index = self.qps.len() - 1;
        // SAFETY: the queue pair lives.
        unsafe { connect(self.qps[index], &peer.place)? };
        (0..DEPTH).try_for_each(|_| self.receive(index))
    }

    fn sge(&self, start: *mut u8) -> verbs::ibv_sge {
        verbs::ibv_sge {
            addr: start as u64,
            length: OCTETS,
            lkey: self.key,
        }
    }

    fn receive(&self, index: usize) -> Result<(), String> {
        // SAFETY: the queue pair lives.
        unsafe { post_receive(self.qps[index], index as u64, self.sge(self.target())) }
    }

    /// Polls once; each message that has arrived is replaced by another receive request.
    #[inline]
    fn poll(&mut self) -> Result<(), String> {
        // SAFETY: the completion queue lives.
        let count = unsafe { poll(self.cq, &mut self.found)? };
        for place in 0..count {
            let wc = &self.found[place];
            if wc.opcode & verbs::IBV_WC_RECV == 0 {
                self.outstanding -= 1;
            } else {
                let index = usize::try_from(wc.wr_id).map_err(text)?;
                self.received += 1;
                self.receive(index)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn poll_until(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let (mut polls, mut begin) = (0u32, None);
        while !is_done(self) {
            self.poll()?;
            polls += 1;
            if polls == POLLS_A_LOOK {
                polls = 0;
                if begin.get_or_insert_with(Instant::now).elapsed() > LIMIT {
                    return Err("no message has arrived for 20 s".into());
                }
            }
        }
        Ok(())
    }

    /// Posts a request over a queue pair when there is room for it.
    #[inline]
    fn post(&mut self, index: usize, peer: &Hello, operation: Operation) -> Result<(), String> {
        self.poll_until(|end| end.outstanding < OUTSTANDING)?;
        let (qp, from) = (self.qps[index], self.sge(self.memory));
        match operation {
            // SAFETY: the queue pair lives.
            Operation::Send => unsafe { post_send(qp, from)? },
            Operation::Write => {
                let to = (peer.address, peer.key);
                // SAFETY: the queue pair lives.
                unsafe { Write { id: 0, from, to }.post(qp)? };
            }
        }
        self.outstanding += 1;
        Ok(())
    }

    /// Prepares a ping-pong.
    fn clear(&mut self) {
        (self.received, self.seen) = (0, 0);
        // SAFETY: the octet is in our memory, and no message is on its way.
        unsafe { self.last_octet().write_volatile(0) };
    }

    /// The last octet of what is received.
    fn last_octet(&self) -> *mut u8 {
        self.target().wrapping_add(OCTETS as usize - 1)
    }

    /// Passes a message with `octet`.
    #[inline]
    fn pass(
        &mut self,
        index: usize,
        peer: &Hello,
        operation: Operation,
        octet: u8,
    ) -> Result<(), String> {
        // SAFETY: the octet is in our memory; the message before has been answered.
        unsafe { self.memory.add(OCTETS as usize - 1).write(octet) };
        self.post(index, peer, operation)
    }

    /// Waits for a message of a ping-pong and returns its octet.
    #[inline]
    fn take(&mut self, operation: Operation) -> Result<u8, String> {
        // SAFETY: the octet is in our memory, which the engine may write at any time.
        let octet = |end: &Self| unsafe { end.last_octet().read_volatile() };
        match operation {
            Operation::Send => {
                self.poll_until(|end| end.received > 0)?;
                self.received -= 1;
            }
            Operation::Write => self.poll_until(|end| octet(end) != end.seen)?,
        }
        self.seen = octet(self);
        Ok(self.seen)
    }
}

/// A process that does what the target orders.
fn follow() -> Result<(), String> {
    // SAFETY: asks for a signal to this process, nothing else.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let mut stream = BufReader::new(UnixStream::from(stdin.map_err(text)?));
    pin(1)?;
    let mut end = End::new()?;
    let hello = end.add()?;
    write_line(&mut stream, &hello)?;
    let peer: Hello = read_line(&mut stream)?.ok_or("the target has ended")?;
    end.meet(&peer)?;
    while let Some(order) = read_line(&mut stream)? {
        match order {
            Order::Answer(operation) => {
                end.clear();
                writeln!(stream.get_mut()).map_err(text)?;
                loop {
                    let octet = end.take(operation)?;
                    end.pass(0, &peer, operation, octet)?;
                    if octet == Mark::Last.octet() {
                        break;
                    }
                }
            }
            Order::Send(count) => {
                (0..count).try_for_each(|_| end.post(0, &peer, Operation::Send))?;
            }
            Order::Write(count) => {
                end.post(0, &peer, Operation::Send)?;
                (0..count).try_for_each(|_| end.post(0, &peer, Operation::Write))?;
                end.post(0, &peer, Operation::Send)?;
            }
        }
        end.poll_until(|end| end.outstanding == 0)?;
    }
    Ok(())
}

/// A process that the target has started, and the connection to it. It ends with its socket.
struct Client {
    stream: BufReader<UnixStream>,
    peer: Hello,
    /// Number of its queue pair here.
    index: usize,
    child: Child,
}

impl Client {
    fn start(end: &mut End) -> Result<Self, String> {
        let (ours, theirs) = UnixStream::pair().map_err(text)?;
        let child = Command::new(std::env::current_exe().map_err(text)?)
            .arg(CLIENT)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .map_err(text)?;
        let mut stream = BufReader::new(ours);
        let hello = end.add()?;
        let peer = read_line(&mut stream)?.ok_or("a process has ended")?;
        end.meet(&peer)?;
        write_line(&mut stream, &hello)?;
        let mut client = Self {
            stream,
            peer,
            index: end.qps.len() - 1,
            child,
        };
        client.exchange_few(end)?;
        Ok(client)
    }

    /// Exchanges a few messages, so that the connection is in use in both directions.
    fn exchange_few(&mut self, end: &mut End) -> Result<(), String> {
        self.begin(end, Operation::Send)?;
        let mut round_trip = self.round_trip(end, Operation::Send);
        (0..FEW).try_for_each(|_| round_trip(Mark::More))?;
        round_trip(Mark::Last)
    }

    fn tell(&mut self, order: Order) -> Result<(), String> {
        write_line(&mut self.stream, &order)
    }

    /// Begins a ping-pong, of which the target sends the first message.
    fn begin(&mut self, end: &mut End, operation: Operation) -> Result<(), String> {
        end.clear();
        self.tell(Order::Answer(operation))?;
        self.stream
            .read_line(&mut String::new())
            .map(drop)
            .map_err(text)
    }

    /// A round trip of the ping-pong. Each message has another octet than the one before.
    fn round_trip<'a>(
        &'a self,
        end: &'a mut End,
        operation: Operation,
    ) -> impl FnMut(Mark) -> Result<(), String> + 'a {
        let mut octet = 1;
        move |mark| {
            octet = match (mark, octet) {
                (Mark::Last, _) => Mark::Last.octet(),
                (Mark::More, 1) => 2,
                (Mark::More, _) => 1,
            };
            end.pass(self.index, &self.peer, operation, octet)?;
            end.take(operation).map(drop)
        }
    }

    /// Half the round trip, in microseconds.
    fn latency_us(&mut self, end: &mut End, operation: Operation) -> Result<f64, String> {
        self.begin(end, operation)?;
        let mut round_trip = self.round_trip(end, operation);
        let mut outcome = Ok(());
        let half = typical_half_round_trip(|mark| {
            if outcome.is_ok() {
                outcome = round_trip(mark);
            }
        });
        outcome.map(|()| half)
    }

    /// Rate of a stream to the target, in millions of messages a second.
    fn rate(&mut self, end: &mut End, operation: Operation) -> Result<f64, String> {
        let (order, last) = match operation {
            Operation::Send => (Order::Send(MESSAGES), MESSAGES),
            Operation::Write => (Order::Write(MESSAGES), 2),
        };
        end.received = 0;
        self.tell(order)?;
        end.poll_until(|end| end.received > 0)?;
        let begin = Instant::now();
        end.poll_until(|end| end.received == last)?;
        Ok(f64::from(MESSAGES) / begin.elapsed().as_secs_f64() / 1e6)
    }

    /// Lets the process send its share; returns the time from the first message to the last.
    ///
    /// The time in which the process wakes up does not count: it is the scheduler's, and one
    /// process alone has less of it.
    fn turn(&mut self, end: &mut End) -> Result<Duration, String> {
        end.received = 0;
        self.tell(Order::Send(MESSAGES_OF_A_TURN))?;
        end.poll_until(|end| end.received > 0)?;
        let begin = Instant::now();
        end.poll_until(|end| end.received == MESSAGES_OF_A_TURN)?;
        Ok(begin.elapsed())
    }
}

fn measure(counts: &[usize]) -> Result<(), String> {
    pin(0)?;
    let mut end = End::new()?;
    let mut clients: Vec<Client> = Vec::new();
    for &count in counts {
        while clients.len() < count {
            clients.push(Client::start(&mut end)?);
        }
        let first = clients.first_mut().ok_or("there is no process")?;
        let latencies = [
            first.latency_us(&mut end, Operation::Send)?,
            first.latency_us(&mut end, Operation::Write)?,
        ];
        let rates = [
            first.rate(&mut end, Operation::Send)?,
            first.rate(&mut end, Operation::Write)?,
            rate_in_turn(&mut clients, &mut end)?,
        ];
        let figures = latencies.iter().chain(&rates);
        let figures: Vec<String> = figures.map(|figure| format!("{figure:.4}")).collect();
        println!("{RESULT}{count} {}", figures.join(" "));
    }
    for Client {
        stream, mut child, ..
    } in clients
    {
        drop(stream);
        child.wait().map_err(text)?;
    }
    Ok(())
}

/// Rate of all processes that send one after the other, in millions of messages a second.
fn rate_in_turn(clients: &mut [Client], end: &mut End) -> Result<f64, String> {
    let count = clients.len();
    for client in clients.iter_mut() {
        client.turn(end)?;
    }
    let turns = (0..TURNS).map(|turn| clients[turn % count].turn(end));
    let took: Duration = turns.sum::<Result<_, _>>()?;
    let messages = TURNS as f64 * f64::from(MESSAGES_OF_A_TURN);
    Ok(messages / took.as_secs_f64() / 1e6)
}
