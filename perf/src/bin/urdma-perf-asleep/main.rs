//! Processes that sleep while they wait, over RDMA and over TCP:
//!
//! ```text
//! urdma-perf-asleep server SOCKET
//! urdma-perf-asleep client SOCKET TRANSPORT ADDRESS MILLISECONDS WORK
//! urdma-perf-asleep busy PROCESSOR
//!
//! TRANSPORT: rdma, tcp
//! WORK: sleep; poll; set IDLE; steps; connections AT_ONCE THREADS; established COUNT
//! ```
//!
//! The server listens on ADDRESS as soon as the client has told it over SOCKET what the work is.
//! `sleep`, `poll` and `set`, which sleeps in epoll_wait(2) beside IDLE descriptors, are ping-pongs
//! of 64 octets. With `connections`, the client connects and
//! disconnects, and so it does with `steps`, one at a time. The client prints the result of
//! MILLISECONDS after a warm-up. With `established` it makes COUNT connections, and prints how
//! much resident memory the end has for each that has grown more. `busy` keeps a processor busy
//! until it is killed.

mod cm;
mod connections;
mod endpoint;
mod established;
mod ping_pong;
mod sets;
mod steps;

use std::io::{BufRead, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;
use urdma_perf::asleep::{Transport, Work, BUSY, LISTENING, PROCESSOR_US, STEP_US};
use urdma_perf::raw::fork::pin;

/// The warm-up takes this share of the time of the measurement.
const WARM_UP: u32 = 5;
const USAGE: &str = "usage: urdma-perf-asleep server SOCKET\n       \
    urdma-perf-asleep client SOCKET rdma|tcp ADDRESS MILLISECONDS \
    sleep|poll|set IDLE|steps|connections AT_ONCE THREADS|established COUNT\n       \
    urdma-perf-asleep busy PROCESSOR";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match *arguments.as_slice() {
        ["server", socket] => serve(socket),
        ["client", socket, transport, address, milliseconds, ref work @ ..] => {
            match (milliseconds.parse(), Task::new(transport, address, work)) {
                (Ok(milliseconds), Some(task)) => {
                    measure(socket, &task, Duration::from_millis(milliseconds))
                }
                _ => Err(USAGE.into()),
            }
        }
        ["busy", processor] => match processor.parse() {
            Ok(processor) => be_busy(processor),
            Err(_) => Err(USAGE.into()),
        },
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-asleep: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What both ends have to know.
struct Task {
    transport: Transport,
    address: Ipv4Addr,
    work: Work,
}

impl Task {
    fn new(transport: &str, address: &str, work: &[&str]) -> Option<Self> {
        Some(Self {
            transport: Transport::from_name(transport)?,
            address: address.parse().ok()?,
            work: Work::from_words(work)?,
        })
    }

    /// As a line that [`Task::from_line`] reads.
    fn line(&self) -> String {
        let words = self.work.words().join(" ");
        format!("{} {} {words}", self.transport.name(), self.address)
    }

    fn from_line(line: &str) -> Option<Self> {
        match *line.split_whitespace().collect::<Vec<_>>() {
            [transport, address, ref work @ ..] => Self::new(transport, address, work),
            _ => None,
        }
    }
}

/// The connection over which the ends agree. It ends with the measurement.
type Control = BufReader<UnixStream>;

fn next_line(control: &mut Control) -> Result<String, String> {
    let mut line = String::new();
    match control.read_line(&mut line).map_err(text)? {
        0 => Err("the other end has ended".into()),
        _ => Ok(line),
    }
}

/// Waits until the other end ends the connection.
fn wait_for_end(control: &mut Control) -> Result<(), String> {
    match control.read_line(&mut String::new()).map_err(text)? {
        0 => Ok(()),
        _ => Err("the other end has sent a line too many".into()),
    }
}

fn serve(socket: &str) -> Result<(), String> {
    let listener = UnixListener::bind(socket).map_err(text)?;
    println!("{LISTENING}");
    let mut control = BufReader::new(listener.accept().map_err(text)?.0);
    let line = next_line(&mut control)?;
    let task = Task::from_line(&line).ok_or_else(|| format!("not understood: {line}"))?;
    let end = control.get_ref().try_clone().map_err(text)?;
    let mut tell = |port: u16| {
        let told = writeln!(control.get_ref(), "{port} {}", std::process::id());
        told.map_err(text)
    };
    match task.work {
        Work::PingPong(wait) => {
            ping_pong::answer(task.transport, task.address, wait, &mut tell)?;
            // The client has received the last answer then.
            wait_for_end(&mut control)
        }
        Work::Connections { .. } | Work::Established { .. } | Work::Steps => {
            connections::serve(task.transport, task.address, tell, end)
        }
    }
}

fn measure(socket: &str, task: &Task, time: Duration) -> Result<(), String> {
    let mut control = BufReader::new(UnixStream::connect(socket).map_err(text)?);
    writeln!(control.get_ref(), "{}", task.line()).map_err(text)?;
    let line = next_line(&mut control)?;
    let (port, server) = line
        .trim()
        .split_once(' ')
        .ok_or("the server named no port")?;
    let to = (task.address, port.parse().map_err(text)?);
    let server = server.parse().map_err(text)?;
    match task.work {
        Work::Established { count } => print_memory(task, to, server, count)?,
        _ => print_times(task, to, server, time)?,
    }
    // The server ends before this process does, so that no connection of its breaks.
    let ended = control.get_ref().shutdown(std::net::Shutdown::Write);
    ended.map_err(text)?;
    wait_for_end(&mut control)
}

fn print_times(
    task: &Task,
    to: (Ipv4Addr, u16),
    server: i32,
    time: Duration,
) -> Result<(), String> {
    let clocks = Clocks::new(server)?;
    let mut client = Client::connect(task, to)?;
    client.run_for(time / WARM_UP)?;
    let before = clocks.now()?;
    let (messages, took) = client.run_for(time)?;
    let used = clocks.now()? - before;
    client.end()?;
    let value = match task.work {
        Work::Connections { .. } => messages as f64 / took.as_secs_f64(),
        _ => took.as_secs_f64() * 1e6 / messages as f64,
    };
    println!("{}{value:.4}", task.work.result());
    if let Client::Steps(client) = &client {
        for (step, time_us) in client.steps_us(messages).iter().enumerate() {
            println!("{STEP_US}{step} {time_us:.4}");
        }
    }
    print_processor_time(used, messages);
    Ok(())
}

fn print_memory(task: &Task, to: (Ipv4Addr, u16), server: i32, count: u32) -> Result<(), String> {
    if task.transport == Transport::Tcp {
        return Err("connections that stay are those of RDMA".into());
    }
    let clocks = Clocks::new(server)?;
    let before = clocks.now()?;
    let octets = established::octets_each(to, server, count)?;
    println!("{}{octets:.0}", task.work.result());
    print_processor_time(clocks.now()? - before, count.into());
    Ok(())
}

fn print_processor_time(used: Duration, messages: u64) {
    let used_us = used.as_secs_f64() * 1e6;
    println!("{PROCESSOR_US}{:.4}", used_us / messages as f64);
}

/// The client's end of the work.
enum Client {
    PingPong(Box<dyn ping_pong::End>),
    Connections(Vec<connections::Clients>),
    Steps(steps::Client),
}

impl Client {
    fn connect(task: &Task, to: (Ipv4Addr, u16)) -> Result<Self, String> {
        match task.work {
            Work::PingPong(wait) => {
                ping_pong::connect(task.transport, to, wait).map(Self::PingPong)
            }
            Work::Connections { at_once, threads } => (0..threads)
                .map(|_| connections::Clients::new(task.transport, to, at_once))
                .collect::<Result<_, _>>()
                .map(Self::Connections),
            Work::Established { .. } => Err("has no time".into()),
            Work::Steps if task.transport == Transport::Tcp => {
                Err("the steps are those of RDMA".into())
            }
            Work::Steps => steps::Client::new(to).map(Self::Steps),
        }
    }

    /// Works for some time; returns the number of connections or messages, and the time it took.
    fn run_for(&mut self, time: Duration) -> Result<(u64, Duration), String> {
        match self {
            Self::PingPong(end) => {
                let (round_trips, took) = ping_pong::play_for(time, end.as_mut())?;
                Ok((2 * round_trips, took))
            }
            Self::Connections(clients) => connections::connect_for(clients, time),
            Self::Steps(client) => client.connect_for(time),
        }
    }

    /// Tells the server, if it does not notice the end of the control connection.
    fn end(&mut self) -> Result<(), String> {
        match self {
            Self::Connections(_) | Self::Steps(_) => Ok(()),
            Self::PingPong(end) => ping_pong::end(end.as_mut()),
        }
    }
}

/// Processor time of all threads of both ends, user and system.
struct Clocks([ClockId; 2]);

impl Clocks {
    fn new(server: i32) -> Result<Self, String> {
        let server = ClockId::pid_cpu_clock_id(Pid::from_raw(server));
        Ok(Self([
            server.map_err(text)?,
            ClockId::CLOCK_PROCESS_CPUTIME_ID,
        ]))
    }

    fn now(&self) -> Result<Duration, String> {
        let times = self.0.iter().map(|clock| clock.now().map(Duration::from));
        times.sum::<Result<_, _>>().map_err(text)
    }
}

fn be_busy(processor: usize) -> Result<(), String> {
    pin(processor)?;
    println!("{BUSY}");
    loop {
        std::hint::spin_loop();
    }
}
