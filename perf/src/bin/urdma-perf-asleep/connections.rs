//! Connections that are made and ended all the time, by one thread at the server and one or more
//! at the client.
//!
//! A connection over RDMA is complete when both ends have had their ESTABLISHED and the client has
//! disconnected: with identifier, addresses, route and queue pair, as a program makes them. One
//! over TCP is complete when the server has accepted it and the client has read the end of the
//! stream.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{listen, setsockopt, sockopt::Linger, Backlog};
use rdma_core_sys::{rdmacm, verbs};
use urdma_perf::asleep::Transport;
use urdma_perf::verbs_setup::made;

use crate::cm::{self, Events, Id, Port};
use crate::{text, wait_for_end, Control};

/// What all queue pairs of a process share. It exists until the process ends.
pub(crate) struct Shared {
    pd: *mut verbs::ibv_pd,
    cq: *mut verbs::ibv_cq,
}

// SAFETY: any thread may use a protection domain and a completion queue.
unsafe impl Send for Shared {}

impl Shared {
    fn new(id: Id) -> Result<Self, String> {
        // SAFETY: the identifier lives and has a device, whose context is open.
        let context = unsafe { (*id).verbs };
        // SAFETY: the context is open.
        let pd = made("ibv_alloc_pd", unsafe { verbs::ibv_alloc_pd(context) })?;
        // SAFETY: the context is open; no user context and no channel is given.
        let cq = unsafe { verbs::ibv_create_cq(context, 1, ptr::null_mut(), ptr::null_mut(), 0) };
        let cq = made("ibv_create_cq", cq)?;
        Ok(Self { pd, cq })
    }
}

/// Makes a queue pair for an identifier, and before the first what they share.
pub(crate) fn make_queue_pair(id: Id, shared: &mut Option<Shared>) -> Result<(), String> {
    let shared = match shared {
        Some(shared) => shared,
        none => none.insert(Shared::new(id)?),
    };
    cm::make_queue_pair(id, shared.pd, shared.cq, 1)
}

/// Accepts all connections until the client ends `control`. A thread of its own then ends the
/// process, since this one waits for the next event.
pub(crate) fn serve(
    transport: Transport,
    address: Ipv4Addr,
    tell: impl FnOnce(u16) -> Result<(), String>,
    control: UnixStream,
) -> Result<(), String> {
    match transport {
        Transport::Tcp => {
            let listener = TcpListener::bind((address, 0)).map_err(text)?;
            // The standard library's backlog is shorter than the number of connections at once.
            listen(&listener, Backlog::MAXCONN).map_err(text)?;
            tell(listener.local_addr().map_err(text)?.port())?;
            thread::spawn(move || end_with(control));
            loop {
                drop(listener.accept().map_err(text)?);
            }
        }
        Transport::Rdma => {
            let port = Port::new(address)?;
            tell(port.number())?;
            thread::spawn(move || end_with(control));
            let mut shared = None;
            loop {
                serve_event(port.events(), &mut shared)?;
            }
        }
    }
}

/// Ends the process with the client's measurement.
fn end_with(control: UnixStream) {
    let code = match wait_for_end(&mut Control::new(control)) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("urdma-perf-asleep: {reason}");
            1
        }
    };
    std::process::exit(code);
}

fn serve_event(events: &Events, shared: &mut Option<Shared>) -> Result<(), String> {
    let event = events.next()?;
    match event.kind {
        rdmacm::RDMA_CM_EVENT_CONNECT_REQUEST => {
            make_queue_pair(event.id, shared)?;
            cm::accept(event.id)
        }
        rdmacm::RDMA_CM_EVENT_ESTABLISHED => Ok(()),
        rdmacm::RDMA_CM_EVENT_DISCONNECTED => {
            cm::disconnect(event.id)?;
            cm::destroy(event.id)
        }
        _ => Err(event.unexpected()),
    }
}

/// Each of `clients` connects for some time, in a thread of its own; returns the number of
/// connections, and the longest time it took.
pub(crate) fn connect_for(
    clients: &mut [Clients],
    time: Duration,
) -> Result<(u64, Duration), String> {
    if let [client] = clients {
        return client.connect_for(time);
    }
    thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .map(|client| scope.spawn(|| client.connect_for(time)))
            .collect();
        let mut all = (0, Duration::ZERO);
        for thread in threads {
            let (connections, took) = thread.join().map_err(|_| "a thread has panicked")??;
            all = (all.0 + connections, all.1.max(took));
        }
        Ok(all)
    })
}

/// The connecting end, which has up to a number of connections at once, in one thread.
pub(crate) struct Clients {
    at_once: usize,
    to: (Ipv4Addr, u16),
    over: Over,
}

enum Over {
    Tcp(VecDeque<TcpStream>),
    Rdma {
        events: Events,
        shared: Option<Shared>,
        in_progress: usize,
    },
}

impl Clients {
    pub(crate) fn new(
        transport: Transport,
        to: (Ipv4Addr, u16),
        at_once: u32,
    ) -> Result<Self, String> {
        let over = match transport {
            Transport::Tcp => Over::Tcp(VecDeque::new()),
            Transport::Rdma => Over::Rdma {
                events: Events::new()?,
                shared: None,
                in_progress: 0,
            },
        };
        let at_once = usize::try_from(at_once).map_err(text)?.max(1);
        Ok(Self { at_once, to, over })
    }

    /// Connects for some time, then ends all connections; returns the number of connections, and
    /// the time it took.
    pub(crate) fn connect_for(&mut self, time: Duration) -> Result<(u64, Duration), String> {
        let begin = Instant::now();
        let mut complete = 0;
        while begin.elapsed() < time {
            while self.in_progress() < self.at_once {
                self.begin()?;
            }
            complete += self.advance()?;
        }
        while self.in_progress() > 0 {
            complete += self.advance()?;
        }
        Ok((complete, begin.elapsed()))
    }

    fn in_progress(&self) -> usize {
        match &self.over {
            Over::Tcp(streams) => streams.len(),
            Over::Rdma { in_progress, .. } => *in_progress,
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        match &mut self.over {
            Over::Tcp(streams) => {
                streams.push_back(TcpStream::connect(self.to).map_err(text)?);
            }
            Over::Rdma {
                events,
                in_progress,
                ..
            } => {
                cm::resolve_address(events.id()?, self.to)?;
                *in_progress += 1;
            }
        }
        Ok(())
    }

    /// Waits for the next step of a connection; returns the number of those that are complete.
    fn advance(&mut self) -> Result<u64, String> {
        match &mut self.over {
            Over::Tcp(streams) => {
                let mut stream = streams.pop_front().ok_or("no connection")?;
                stream.read(&mut [0]).map_err(text)?;
                // A socket in TIME_WAIT would keep its port for a minute.
                let at_once = libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                };
                setsockopt(&stream, Linger, &at_once).map_err(text)?;
                Ok(1)
            }
            Over::Rdma {
                events,
                shared,
                in_progress,
            } => {
                let ended = advance_event(events, shared)?;
                *in_progress -= usize::from(ended);
                Ok(ended.into())
            }
        }
    }
}

/// Takes an event of a client that disconnects at once; whether its connection has ended.
fn advance_event(events: &Events, shared: &mut Option<Shared>) -> Result<bool, String> {
    match next_step(events, shared)? {
        Step::Resolved => Ok(false),
        Step::Established(id) => cm::disconnect(id).map(|()| false),
        Step::Ended => Ok(true),
    }
}

/// What has happened to a connection of a client.
pub(crate) enum Step {
    /// Its address or route is known; it goes on.
    Resolved,
    Established(Id),
    /// It is disconnected and destroyed.
    Ended,
}

/// Takes an event of a client, and goes on with its connection.
pub(crate) fn next_step(events: &Events, shared: &mut Option<Shared>) -> Result<Step, String> {
    let event = events.next()?;
    match event.kind {
        rdmacm::RDMA_CM_EVENT_ADDR_RESOLVED => cm::resolve_route(event.id)?,
        rdmacm::RDMA_CM_EVENT_ROUTE_RESOLVED => {
            make_queue_pair(event.id, shared)?;
            cm::begin_to_connect(event.id)?;
        }
        rdmacm::RDMA_CM_EVENT_ESTABLISHED => return Ok(Step::Established(event.id)),
        rdmacm::RDMA_CM_EVENT_DISCONNECTED => {
            cm::destroy(event.id)?;
            return Ok(Step::Ended);
        }
        _ => return Err(event.unexpected()),
    }
    Ok(Step::Resolved)
}
