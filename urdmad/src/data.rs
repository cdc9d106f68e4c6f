//! The data thread: slot 0's channels, the port, and slot 0's own traffic.
//!
//! - [`channels`]: packets from and to processes; `patience`: how long a process that is behind is
//!   waited for; `from_process`: whose packets they say they are.
//! - [`network`]: the port's side: headers, neighbours, sending; `inbound`: frames from the port to
//!   slots, and copies for members of multicast groups.
//! - [`daemon_traffic`]: connection requests and RESETs.
//! - `turns`: whose packets are sent next.
//! - [`wire`]: the port; `fault`: the impairments that `urdma fault` applies to its frames.
//! - [`command`]: commands of the control thread.
//! - [`InProcess`]: a data path without thread and clients, and [`loopback_ports`], a link in
//!   memory; for measurements.
//!
//! Without a port the thread sleeps until a process rings. With one that wakes it, of kind `udp`,
//! it does the same after a short time of polling. With any other port it
//! polls: after the last packet it spins for a short time with sched_yield(2), then sleeps for
//! growing intervals of at most some milliseconds. A process that sends wakes it at once.

pub(crate) mod channels;
pub(crate) mod command;
mod daemon_traffic;
mod fault;
mod from_process;
mod in_process;
mod inbound;
mod kernel_neighbours;
mod loopback;
mod neighbours;
mod network;
mod pace;
mod patience;
mod routes;
mod turns;
mod wire;

pub(crate) use daemon_traffic::DaemonDatagram;
pub use in_process::{InProcess, Offer};
pub use loopback::loopback_ports;

use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proto_trp::wire::datagram::{group_of, HEADER_LEN, MESSAGE_MAX};
use proto_trp::wire::{Meta, PacketHead};
use urdma_channel::{CellOctets, CELL_DATA};
use urdma_cm::cookie::Cookies;
use urdma_ipc::Resolution;
use urdma_types::{slot_of_port, Ip16, SlotId};
use urdma_waiting::{Bells, OwnPage};

use crate::identity::Identity;
use crate::port::{PacketPort, QueueError};
use crate::shared::{NotGiven, Shared};
use crate::user_limits::UserLimits;
use channels::{Channels, Octets, Taken};
use command::{Command, DataHandle, Inbox};
use from_process::FromProcess;
use inbound::{Inbound, Limits, Origin};
use network::Network;
use pace::{Pace, Rest};
use patience::Patience;
use turns::{Turn, Turns};

/// Octets of the longest packet that is not only sent: a datagram to a group, one of a leased
/// queue, connection management.
const COPY_OCTETS: usize = if HEADER_LEN + MESSAGE_MAX > 9216 {
    HEADER_LEN + MESSAGE_MAX
} else {
    9216
};
/// A copy of such a packet.
type Copied = [u8; COPY_OCTETS];

/// A sleep of up to this length is not worth a wake-up by the port, which takes another thread.
const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// Timer slack of the data thread.
const TIMER_SLACK_NS: u64 = 1_000;

/// State of the data thread.
struct DataPlane {
    page: Arc<OwnPage>,
    channels: Channels,
    turns: Turns,
    /// Room for a copy; absent while that is handled.
    copied: Option<Box<Copied>>,
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    inbox: Inbox,
    network: Option<Network>,
    patience: Patience,
    limits: Limits,
    cookies: Cookies,
    request_limits: UserLimits,
    pace: Pace,
    start: Instant,
}

/// Starts the thread, which sleeps as `page` says.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn start(
    page: OwnPage,
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    port: Option<(Box<dyn PacketPort>, bool)>,
    requests_per_second: u32,
) -> io::Result<DataHandle> {
    let shared_here = Arc::clone(&shared);
    let mut plane = DataPlane::new(page, shared_here, identity, port, requests_per_second)?;
    let handle = plane.inbox.handle(Arc::clone(&plane.page));
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
    fn new(
        page: OwnPage,
        shared: Arc<Shared>,
        identity: Arc<Identity>,
        port: Option<(Box<dyn PacketPort>, bool)>,
        requests_per_second: u32,
    ) -> io::Result<Self> {
        let page = Arc::new(page);
        let start = Instant::now();
        let network = match port {
            Some((port, checksum)) => Some(Network::new(port, checksum, &identity, start)?),
            None => None,
        };
        Ok(Self {
            channels: Channels::new(Arc::clone(&page)),
            page,
            turns: Turns::default(),
            copied: Some(Box::new([0; COPY_OCTETS])),
            shared,
            identity,
            inbox: Inbox::new(),
            network,
            patience: Patience::default(),
            limits: Limits::default(),
            cookies: Cookies::new([getrandom::u64()?, getrandom::u64()?]),
            request_limits: UserLimits::per_second(requests_per_second),
            pace: Pace::default(),
            start,
        })
    }

    fn run(&mut self) {
        // The default timer slack is 50 us, which would be most of a round trip. If prctl(2) fails,
        // the default stays.
        let _ = nix::sys::prctl::set_timerslack(TIMER_SLACK_NS);
        if let Some(network) = &mut self.network {
            network.enter();
            let page = Arc::clone(&self.page);
            network.set_wake(Box::new(move || page.unpark()));
        }
        let mut bells = Bells::default();
        while self.handle_commands() {
            let now_ns = self.now_ns();
            let is_full = self.is_full(now_ns);
            let worked = self.pass(now_ns, is_full);
            if is_full {
                thread::yield_now();
            }
            if worked || is_full {
                self.pace.worked(now_ns);
                continue;
            }
            match self.rest(now_ns) {
                Some(Rest::Yield) => {
                    thread::yield_now();
                    self.pace.yielded(now_ns, self.now_ns());
                }
                Some(Rest::Sleep(sleep)) => self.sleep(now_ns, &mut bells, Some(sleep)),
                None => self.sleep(now_ns, &mut bells, None),
            }
        }
        let now_ns = self.now_ns();
        if let Some(network) = &mut self.network {
            network.flush(now_ns, &self.shared);
        }
    }

    /// Takes packets from the processes and from the port; whether there were any. While the port
    /// is full, processes wait, and receiving from the port continues.
    #[inline]
    fn pass(&mut self, now_ns: u64, is_full: bool) -> bool {
        let mut worked = !is_full && self.take_polled(now_ns);
        if let (mut inbound, Some(network)) = self.split(now_ns) {
            worked |= network.receive(&mut inbound);
            worked |= network.maintain(&mut inbound);
        }
        self.channels.ring();
        worked
    }

    /// Sleeps until a process rings, a command comes, a frame arrives at a port that can say so, or
    /// the time is over: `limit` for a port that is polled.
    fn sleep(&mut self, now_ns: u64, bells: &mut Bells, limit: Option<Duration>) {
        self.channels.listen(bells, self.patience.waited_for());
        // A slot that is waited for is looked at again soon, and the port is not.
        let is_waiting = self.patience.waited_for().is_some();
        let is_short = limit.is_some_and(|limit| limit <= SHORT_SLEEP);
        let network = self.network.as_mut();
        let is_armed = network
            .filter(|_| !(is_waiting || is_short))
            .is_some_and(Network::arm);
        let limit = if is_armed {
            self.until_due(now_ns)
        } else {
            limit
        };
        let (inbox, channels) = (&self.inbox, &self.channels);
        self.page
            .park(bells, limit, || inbox.has_news() || channels.have_work());
        if let Some(network) = self.network.as_mut().filter(|_| is_armed) {
            network.disarm();
        }
    }

    /// The time until the port's next deadline.
    fn until_due(&self, now_ns: u64) -> Option<Duration> {
        let due_ns = self.network.as_ref()?.next_deadline()?;
        Some(Duration::from_nanos(due_ns.saturating_sub(now_ns)))
    }

    /// Whether the port accepts no more frames for the moment.
    fn is_full(&self, now_ns: u64) -> bool {
        let network = self.network.as_ref();
        network.is_some_and(|network| network.is_full(now_ns))
    }

    /// The parts that deliver datagrams to slots, and the port's side.
    fn split(&mut self, now_ns: u64) -> (Inbound<'_>, Option<&mut Network>) {
        let inbound = Inbound {
            channels: &mut self.channels,
            patience: &mut self.patience,
            shared: &self.shared,
            identity: &self.identity,
            limits: &mut self.limits,
            cookies: &self.cookies,
            now_ns,
        };
        (inbound, self.network.as_mut())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How an idle thread waits; `None`: sleep until it is woken.
    fn rest(&mut self, now_ns: u64) -> Option<Rest> {
        self.network.as_ref()?;
        let rest = self.pace.rest(now_ns);
        // While a slot that is behind is waited for, deadlines do not shorten the sleep.
        let is_waiting = self.patience.waited_for().is_some();
        let Some(until_due) = self.until_due(now_ns).filter(|_| !is_waiting) else {
            return Some(rest);
        };
        Some(match rest {
            Rest::Sleep(sleep) => Rest::Sleep(sleep.min(until_due)),
            Rest::Yield => Rest::Yield,
        })
    }

    /// Takes packets from the processes whose channels it is time to look at, until the port is
    /// full; false if there were none.
    fn take_polled(&mut self, now_ns: u64) -> bool {
        let mut worked = false;
        self.turns.resume(&mut self.channels.open);
        while let Some(slot) = self.turns.next(&mut self.channels.open) {
            let mut turn = self.turns.begin(&self.channels.open, slot);
            self.take_burst(now_ns, slot, &mut turn);
            self.turns.end(slot, &turn);
            let has_sent = turn.packets() > 0;
            self.channels.open.note(slot, has_sent);
            worked |= has_sent;
            if let Some(network) = self.network.as_mut().filter(|_| has_sent) {
                network.flush(now_ns, &self.shared);
                if network.is_full(now_ns) {
                    break;
                }
            }
        }
        worked
    }

    /// Takes packets from a process while its turn goes on.
    fn take_burst(&mut self, now_ns: u64, from: SlotId, turn: &mut Turn) {
        let mut cell: CellOctets = [0; CELL_DATA];
        while turn.goes_on() {
            let (head, octets) = match self.channels.take(from, &mut cell) {
                Taken::Nothing => break,
                Taken::Corrupt => {
                    self.shared.counters.corrupt_cells.bump();
                    self.shared.report_offender(from);
                    break;
                }
                Taken::Packets(head, octets) => (head, octets),
            };
            let len = octets.len();
            let meta = head.meta;
            let is_for_daemon = slot_of_port(meta.dst_port) == Some(SlotId::DAEMON);
            if head.is_passed_on || is_for_daemon || self.identity.has_gid(meta.remote_ip) {
                turn.charge(1, len);
                let copied = self.copied.as_mut();
                let copied = copied.and_then(|copied| copied.get_mut(..len));
                // C7.1-5
                //# A message of several packets is for another host or from one; urdmad drops
                //# others.
                let is_alone = head.packet_octets == 0;
                if is_alone && copied.is_some_and(|copied| octets.copy_to(copied)) {
                    self.handle_copied(now_ns, from, &head, len);
                } else {
                    self.shared.counters.drop_not_for_daemon.bump();
                }
            } else {
                let packets = FromProcess::new(from, &head, octets);
                let sent = match &mut self.network {
                    Some(network) => network.send_packets(now_ns, packets, &self.shared),
                    None => drop_without_port(packets, &self.shared),
                };
                turn.charge(sent.max(1), len);
            }
        }
        if turn.packets() > 0 {
            self.channels.settle(from);
            let packets = turn.packets() as u64;
            self.shared.counters.from_processes.add(packets);
        }
    }

    /// Handles a packet of a process that is not only sent, whose octets were copied.
    fn handle_copied(&mut self, now_ns: u64, from: SlotId, head: &PacketHead, octets: usize) {
        let Some(copied) = self.copied.take() else {
            return;
        };
        self.handle_packet(now_ns, from, head, &copied[..octets]);
        self.copied = Some(copied);
    }

    fn handle_packet(&mut self, now_ns: u64, from: SlotId, head: &PacketHead, packet: &[u8]) {
        let meta = &head.meta;
        if head.is_passed_on {
            return self.passed_on(now_ns, from, meta, packet);
        }
        let packets = FromProcess::new(from, head, Octets::Copy(packet));
        if !packets.are_own() {
            return self.shared.counters.drop_forged_source.bump();
        }
        if let Some(request) = daemon_traffic::request_in(packet, meta) {
            let shared = &self.shared;
            let uid = shared.user(from);
            if !self.request_limits.allows(now_ns, uid) {
                shared.counters.drop_request_limit.bump();
                return;
            }
            if self.identity.owns(request.dst.ip()) {
                self.local_request(now_ns, &request, head, packet);
                return;
            }
        }
        if slot_of_port(meta.dst_port) == Some(SlotId::DAEMON) {
            if let Some(group) = group_of(packet, packet.len()).map(Ip16) {
                let (mut inbound, network) = self.split(now_ns);
                inbound.copy_to_members(group, Origin::Process, meta, packet);
                let is_from_here = meta.remote_ip == group;
                if let (true, Some(network)) = (is_from_here, network) {
                    network.send_packets(now_ns, packets, inbound.shared);
                }
                return;
            }
        }
        if self.identity.has_gid(meta.remote_ip) {
            self.pass_on(head, packet);
            return;
        }
        match &mut self.network {
            Some(network) => network.send_packets(now_ns, packets, &self.shared),
            None => drop_without_port(packets, &self.shared),
        };
    }

    /// A datagram from another host that arrived on a leased queue.
    #[cold]
    fn passed_on(&mut self, now_ns: u64, from: SlotId, meta: &Meta, packet: &[u8]) {
        // C7.1-3
        //# PASSED_ON marks a packet that came from another host by a leased queue and is for
        //# another slot; urdmad takes it only from a process that has a lease, and delivers it.
        if !self.shared.is_lessee(from) {
            return self.shared.counters.drop_passed_on.bump();
        }
        let (mut inbound, network) = self.split(now_ns);
        let arrived = match slot_of_port(meta.dst_port) {
            Some(SlotId::DAEMON) => inbound.for_daemon(meta, None, packet),
            Some(slot) => inbound.deliver_to(slot, meta, packet),
            None => None,
        };
        if let (Some(arrived), Some(network)) = (arrived, network) {
            network.take_arrived(&mut inbound, arrived);
            network.flush(now_ns, inbound.shared);
        }
    }

    /// A connection request from a process of this host.
    fn local_request(
        &mut self,
        now_ns: u64,
        request: &urdma_cm::wire::ReqRoute,
        head: &PacketHead,
        packet: &[u8],
    ) {
        let (channels, shared) = (&mut self.channels, &self.shared);
        if !self.identity.owns(request.src.ip()) {
            shared.counters.drop_request_source.bump();
            return;
        }
        let put = |slot| match slot {
            SlotId::DAEMON => give_to_control(head, packet, shared).is_ok(),
            slot => channels.put_local(slot, head, packet).is_ok(),
        };
        if let Some(reject) = daemon_traffic::dispatch((shared, &self.identity), request, put) {
            self.send_own(now_ns, &reject);
        }
    }

    /// Sends a datagram of slot 0.
    fn send_own(&mut self, now_ns: u64, answer: &daemon_traffic::DaemonDatagram) {
        if self.identity.owns(answer.remote) {
            daemon_traffic::send_to_slot(&mut self.channels, answer, &self.identity);
            self.channels.ring();
        } else if let Some(network) = &mut self.network {
            network.send_answer(now_ns, answer, &self.shared);
        }
    }

    /// Processes address one another directly; a packet that goes through slot 0 is delivered all
    /// the same.
    fn pass_on(&mut self, head: &PacketHead, packet: &[u8]) {
        let passed = match slot_of_port(head.meta.dst_port) {
            // A full queue has its own counter.
            Some(SlotId::DAEMON) => {
                give_to_control(head, packet, &self.shared) != Err(NotGiven::NotForControl)
            }
            Some(slot) => self.channels.put_local(slot, head, packet).is_ok(),
            None => false,
        };
        if !passed {
            self.shared.counters.drop_not_for_daemon.bump();
        }
    }

    /// Takes the last packets of a slot's process, which has ended.
    fn close(&mut self, slot: SlotId) {
        let now_ns = self.now_ns();
        loop {
            let mut turn = Turn::alone();
            self.take_burst(now_ns, slot, &mut turn);
            if turn.packets() == 0 {
                break;
            }
        }
        self.turns.forget(slot);
        if let Some(network) = &mut self.network {
            network.flush(now_ns, &self.shared);
        }
        self.channels.close(slot);
        self.patience.forget(slot);
        self.channels.ring();
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
            (Command::Open { slot, region }, _) => self.channels.open(slot, region),
            (Command::Attach { slot, peer }, _) => self.channels.attach(slot, *peer),
            (Command::Close { slot, done }, _) => {
                self.close(slot);
                let _ = done.send(());
                self.shared.ring_control();
            }
            (Command::Resolve { ip, reply }, Some(network)) => {
                network.resolve(now_ns, ip, reply, &self.shared);
            }
            (Command::Send(answer), _) => self.send_own(now_ns, &answer),
            (Command::Resolve { reply, .. }, None) => {
                self.shared.give_resolved(reply, Resolution::NoHost);
            }
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
                let _ = done.send(Err(QueueError::None));
            }
            (Command::GroupsChanged, Some(network)) => network.change_groups(&self.shared),
            (Command::Report { done }, Some(network)) => {
                let _ = done.send(network.report());
                self.shared.ring_control();
            }
            (Command::SetFaults { faults, done }, Some(network)) => {
                network.set_faults(&faults);
                let _ = done.send(());
            }
            (Command::Report { .. } | Command::SetFaults { .. } | Command::GroupsChanged, _) => {}
        }
    }
}

/// Counts packets for which there is no port; gives their number.
#[cold]
fn drop_without_port(mut packets: FromProcess<'_>, shared: &Shared) -> usize {
    let dropped = std::iter::from_fn(|| packets.next()).count();
    shared.counters.drop_tx_no_port.add(dropped as u64);
    dropped
}

/// Gives the control thread a packet of connection management that is for slot 0.
fn give_to_control(head: &PacketHead, packet: &[u8], shared: &Shared) -> Result<(), NotGiven> {
    shared.give_cm_datagram(head.meta.remote_ip.to_ip(), packet)
}
