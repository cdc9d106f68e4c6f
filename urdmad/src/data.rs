//! The data thread: slot 0's ring, the port, and slot 0's own traffic.
//!
//! - [`network`]: the port's side: headers, neighbours, sending; `inbound`: frames from the port to
//!   slots, and copies for members of multicast groups.
//! - [`daemon_traffic`]: connection requests and RESETs.
//! - `request_limits`: how many connection requests a user may send.
//! - [`wire`]: the port; `fault`: the impairments that `urdma fault` applies to its frames.
//! - [`command`]: commands of the control thread.
//!
//! Without a port the thread sleeps on slot 0's park word until a process sends. With a port it
//! polls: after the last packet it spins for a short time with sched_yield(2), then sleeps for
//! growing intervals of at most some milliseconds. A process that sends wakes it at once.

mod allowances;
pub(crate) mod command;
mod daemon_traffic;
mod doorbells;
mod fault;
mod inbound;
mod kernel_neighbours;
mod neighbours;
mod network;
mod pace;
mod request_limits;
mod routes;
mod wire;

pub(crate) use daemon_traffic::DaemonDatagram;

use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use urdma_types::{slot_of_port, Ip16, SlotId};

use arrayvec::ArrayVec;
use proto_trp::wire::datagram::{group_of, HEADER_LEN, MESSAGE_MAX};
use urdma_arena::{Arena, Endpoint, Meta, RxFrame, Special};
use urdma_ipc::Resolution;

use crate::identity::Identity;
use crate::port::PacketPort;
use crate::shared::{NotGiven, Shared};
use allowances::Allowances;
use command::{Command, DataHandle, Inbox};
use doorbells::Doorbells;
use inbound::{Inbound, Limits};
use network::Network;
use pace::{Pace, Rest};
use request_limits::RequestLimits;
use wire::BURST;

/// Octets of the longest datagram to a group.
const DATAGRAM_OCTETS_MAX: usize = HEADER_LEN + MESSAGE_MAX;

/// Timer slack of the data thread.
const TIMER_SLACK_NS: u64 = 1_000;

/// State of the data thread.
struct DataPlane {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    inbox: Inbox,
    network: Option<Network>,
    allowances: Allowances,
    doorbells: Doorbells,
    limits: Limits,
    request_limits: RequestLimits,
    pace: Pace,
    start: Instant,
}

/// Attaches to slot 0 and starts the thread.
///
/// # Errors
/// Slot 0 cannot be attached or the thread cannot be started.
pub(crate) fn start(
    arena: &Arena,
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    port: Option<(Box<dyn PacketPort>, bool)>,
    requests_per_second: u32,
) -> io::Result<DataHandle> {
    let endpoint = Endpoint::attach(arena, SlotId::DAEMON)?;
    let parker = endpoint.parker();
    let inbox = Inbox::new();
    let handle = inbox.handle(parker);
    let start = Instant::now();
    let network = match port {
        Some((port, checksum)) => Some(Network::new(port, checksum, &identity, start)?),
        None => None,
    };
    let mut plane = DataPlane {
        endpoint,
        shared: Arc::clone(&shared),
        identity,
        inbox,
        network,
        allowances: Allowances::default(),
        doorbells: Doorbells::default(),
        limits: Limits::default(),
        request_limits: RequestLimits::new(requests_per_second),
        pace: Pace::default(),
        start,
    };
    let thread = thread::Builder::new()
        .name("urdmad-data".to_owned())
        .spawn(move || {
            // The control thread ends the daemon when this thread ends without a stop request.
            let _ = catch_unwind(AssertUnwindSafe(|| plane.run()));
            drop(plane);
            shared.ring_control();
        })?;
    Ok(handle.with_thread(thread))
}

impl DataPlane {
    fn run(&mut self) {
        let parker = self.endpoint.parker();
        // The default timer slack is 50 us, which would be most of a round trip. If prctl(2) fails,
        // the default stays.
        let _ = nix::sys::prctl::set_timerslack(TIMER_SLACK_NS);
        if let Some(network) = &mut self.network {
            network.enter();
        }
        while self.handle_commands() {
            let now_ns = self.now_ns();
            self.allowances.forget();
            // While the port is full, processes wait at slot 0's ring; receiving from the port
            // continues.
            let is_full = self.is_full(now_ns);
            let mut worked = !is_full && self.take_burst(now_ns);
            if let (mut inbound, Some(network)) = self.split(now_ns) {
                worked |= network.receive(&mut inbound);
                worked |= network.maintain(&mut inbound);
            }
            self.doorbells.ring(&mut self.endpoint);
            if is_full {
                thread::yield_now();
            }
            if worked || is_full {
                self.pace.worked(now_ns);
                continue;
            }
            let has_commands = self.inbox.news();
            match self.rest(now_ns) {
                Some(Rest::Yield) => {
                    thread::yield_now();
                    self.pace.yielded(now_ns, self.now_ns());
                }
                Some(Rest::Sleep(sleep)) => {
                    parker.park(Some(sleep), has_commands);
                }
                None => {
                    parker.park(None, has_commands);
                }
            }
        }
        let now_ns = self.now_ns();
        if let Some(network) = &mut self.network {
            network.flush(now_ns, &self.shared);
        }
    }

    /// Whether the port accepts no more frames for the moment.
    fn is_full(&self, now_ns: u64) -> bool {
        let network = self.network.as_ref();
        network.is_some_and(|network| network.is_full(now_ns))
    }

    /// The parts that deliver datagrams to slots, and the port's side.
    fn split(&mut self, now_ns: u64) -> (Inbound<'_>, Option<&mut Network>) {
        let inbound = Inbound {
            endpoint: &mut self.endpoint,
            allowances: &mut self.allowances,
            shared: &self.shared,
            identity: &self.identity,
            doorbells: &mut self.doorbells,
            limits: &mut self.limits,
            now_ns,
        };
        (inbound, self.network.as_mut())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How an idle thread waits; `None`: sleep until it is woken.
    fn rest(&mut self, now_ns: u64) -> Option<Rest> {
        let network = self.network.as_ref()?;
        let rest = self.pace.rest(now_ns);
        // While a slot that is behind is waited for, deadlines do not shorten the sleep.
        let due_ns = network
            .next_deadline()
            .filter(|_| !self.allowances.was_waiting());
        let Some(due_ns) = due_ns else {
            return Some(rest);
        };
        let until_due = Duration::from_nanos(due_ns.saturating_sub(now_ns));
        Some(match rest {
            Rest::Sleep(sleep) => Rest::Sleep(sleep.min(until_due)),
            Rest::Yield => Rest::Yield,
        })
    }

    /// Receives a burst from slot 0's ring; false if it was empty.
    fn take_burst(&mut self, now_ns: u64) -> bool {
        let mut burst = ArrayVec::<RxFrame, BURST>::new();
        let count = self.endpoint.recv_burst(&mut burst);
        if count == 0 {
            return false;
        }
        self.shared.counters.from_processes.add(count as u64);
        for frame in burst.drain(..) {
            self.handle_frame(now_ns, frame);
        }
        if let Some(network) = &mut self.network {
            network.flush(now_ns, &self.shared);
        }
        true
    }

    fn handle_frame(&mut self, now_ns: u64, frame: RxFrame) {
        let meta = frame.meta();
        if frame.special() == Some(Special::PassedOn) {
            self.passed_on(now_ns, &frame, &meta);
            return;
        }
        if let Some(request) = daemon_traffic::request_in(&frame, &meta) {
            let shared = &self.shared;
            let uid = shared.user(frame.from());
            let is_attached = |uid| shared.has_user(uid);
            if !self.request_limits.allows(now_ns, uid, is_attached) {
                shared.counters.drop_request_limit.bump();
                return;
            }
            if self.identity.owns(request.dst.ip()) {
                self.local_request(now_ns, &request, frame);
                return;
            }
        }
        if slot_of_port(meta.dst_port) == Some(SlotId::DAEMON) {
            if let Some(group) = self.copy_to_group(now_ns, &frame, &meta) {
                let is_from_here = meta.remote_ip == group;
                if let (true, Some(network)) = (is_from_here, &mut self.network) {
                    network.send_frame(now_ns, frame, &meta, &self.shared);
                }
                return;
            }
        }
        let remote = meta.remote_ip.to_ip();
        if self.identity.owns(remote) {
            self.pass_on(meta.dst_port, frame);
            return;
        }
        match &mut self.network {
            Some(network) => network.send_frame(now_ns, frame, &meta, &self.shared),
            None => self.shared.counters.drop_tx_no_port.bump(),
        }
    }

    /// A datagram from another host that arrived on a leased queue.
    #[cold]
    fn passed_on(&mut self, now_ns: u64, frame: &RxFrame, meta: &Meta) {
        let mut copy = [0; DATAGRAM_OCTETS_MAX];
        let (mut inbound, network) = self.split(now_ns);
        let arrived =
            copy_of(frame, &mut copy).and_then(|datagram| inbound.for_daemon(meta, None, datagram));
        if let (Some(arrived), Some(network)) = (arrived, network) {
            network.take_arrived(&mut inbound, arrived);
        }
    }

    /// Copies a datagram of a local member to the group's members on this host; returns the group.
    fn copy_to_group(&mut self, now_ns: u64, frame: &RxFrame, meta: &Meta) -> Option<Ip16> {
        let mut copy = [0; DATAGRAM_OCTETS_MAX];
        let datagram = copy_of(frame, &mut copy)?;
        let group = group_of(datagram, datagram.len()).map(Ip16)?;
        let (mut inbound, _) = self.split(now_ns);
        inbound.copy_to_members(group, meta, datagram);
        Some(group)
    }

    /// A connection request from a process of this host.
    fn local_request(&mut self, now_ns: u64, request: &urdma_cm::wire::ReqRoute, frame: RxFrame) {
        let (endpoint, shared) = (&mut self.endpoint, &self.shared);
        if !self.identity.owns(request.src.ip()) {
            shared.counters.drop_request_source.bump();
            return;
        }
        let put = |slot| match slot {
            SlotId::DAEMON => daemon_traffic::give_to_control(&frame, shared).is_ok(),
            slot => endpoint.forward(slot, frame).is_ok(),
        };
        if let Some(reject) = daemon_traffic::dispatch((shared, &self.identity), request, put) {
            self.send_own(now_ns, &reject);
        }
    }

    /// Sends a datagram of slot 0.
    fn send_own(&mut self, now_ns: u64, answer: &daemon_traffic::DaemonDatagram) {
        if self.identity.owns(answer.remote) {
            daemon_traffic::send_to_slot(&mut self.endpoint, answer, &self.identity);
        } else if let Some(network) = &mut self.network {
            network.send_answer(now_ns, answer, &self.shared);
        }
    }

    /// Processes address local slots directly; a frame that goes through slot 0 is forwarded all
    /// the same.
    fn pass_on(&mut self, dst_port: u16, frame: RxFrame) {
        let passed = match slot_of_port(dst_port) {
            // A full queue has its own counter.
            Some(SlotId::DAEMON) => {
                daemon_traffic::give_to_control(&frame, &self.shared)
                    != Err(NotGiven::NotForControl)
            }
            Some(slot) => self.endpoint.forward(slot, frame).is_ok(),
            None => false,
        };
        if !passed {
            self.shared.counters.drop_not_for_daemon.bump();
        }
    }

    /// Handles the control thread's commands; false when the thread is to end.
    fn handle_commands(&mut self) -> bool {
        if !self.inbox.take_news() {
            return true;
        }
        let must_stop = self.inbox.must_stop();
        while let Some(command) = self.inbox.pop() {
            self.handle_command(command);
        }
        !must_stop
    }

    fn handle_command(&mut self, command: Command) {
        let now_ns = self.now_ns();
        // The caller may have timed out: an answer that cannot be sent is discarded.
        match (command, &mut self.network) {
            (Command::Resolve { ip, reply }, Some(network)) => network.resolve(now_ns, ip, reply),
            (Command::Send(answer), _) => self.send_own(now_ns, &answer),
            (Command::Resolve { reply, .. }, None) => reply.resolved(Resolution::NoHost),
            (
                Command::Lend {
                    queue,
                    udp_port,
                    done,
                },
                Some(network),
            ) => {
                let _ = done.send(network.lend(queue, udp_port));
            }
            (Command::Reclaim { queue, done }, Some(network)) => {
                let _ = done.send(network.reclaim(queue));
            }
            (Command::Lend { done, .. } | Command::Reclaim { done, .. }, None) => {
                let _ = done.send(Err("the instance has no port".to_owned()));
            }
            (Command::Report { done }, Some(network)) => {
                let _ = done.send(network.report());
            }
            (Command::SetFaults { faults, done }, Some(network)) => {
                network.set_faults(&faults);
                let _ = done.send(());
            }
            (Command::Report { .. } | Command::SetFaults { .. }, _) => {}
        }
    }
}

/// A copy of a frame's datagram, if it fits.
fn copy_of<'a>(frame: &RxFrame, copy: &'a mut [u8; DATAGRAM_OCTETS_MAX]) -> Option<&'a [u8]> {
    let datagram = copy.get_mut(..frame.len())?;
    frame.copy_to_slice(0, datagram).then_some(&*datagram)
}
