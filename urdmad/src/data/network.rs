//! The port's side of the data path: headers, neighbours, sending, receiving.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::time::Instant;
use urdma_types::Ip16;

use arrayvec::ArrayVec;
use proto_trp::limit::RateLimit;
use proto_trp::wire::trp::VERSION;
use proto_trp::wire::Meta;
use urdma_ipc::fault::Faults;
use urdma_ipc::status::FaultStatus;
use urdma_ipc::Resolution;
use urdma_underlay::{
    max_datagram, Checker, Checksum, Dropped, Ecn, Headers, LocalInterface, NeighbourResolution,
    UdpPorts, Verification, MAX_SOLICITATION_OCTETS,
};

use super::daemon_traffic::DaemonDatagram;
use super::from_process::FromProcess;
use super::inbound::{Arrived, Inbound, Request};
use super::neighbours::Neighbours;
use super::routes::{NoRoute, Routes};
use super::wire::Wire;
use crate::identity::Identity;
use crate::port::{PacketPort, PortReport, QueueError};
use crate::shared::{Reply, Shared};

/// Frames that wait for a neighbour's resolution at most.
const WAITING_MAX: usize = 64;
/// Datagrams of one burst at most that urdmad answers or parses.
const ARRIVED_MAX: usize = 64;
/// Connection requests that wait for their sender's resolution at most.
const REQUESTS_MAX: usize = 64;
/// Rate limit on resolutions that an unverified packet causes: a burst, then one per interval. At
/// this rate every entry of the table lasts for some tens of seconds, and entries in use are never
/// evicted.
const STRANGERS: RateLimit = RateLimit::new(64, 50_000_000);

/// Packets whose neighbour is being resolved.
type Waiting = VecDeque<(Meta, Box<[u8]>)>;

/// A port with its routes, neighbours and queues.
pub(crate) struct Network {
    wire: Wire,
    local: LocalInterface,
    /// Checks frames, and their checksums as the port says.
    checker: Checker,
    neighbours: Neighbours,
    routes: Routes,
    mtu: u16,
    waiting: Waiting,
    resolves: Vec<(IpAddr, Reply)>,
    /// [`Neighbours::changes`] when waiting frames and requests were last retried.
    seen_changes: u64,
    arrived: ArrayVec<Arrived, ARRIVED_MAX>,
    /// Requests whose senders are being resolved.
    requests: Vec<Request>,
    strangers: RateLimit,
}

impl Network {
    pub(crate) fn new(
        port: Box<dyn PacketPort>,
        checksum: bool,
        identity: &Identity,
        start: Instant,
    ) -> io::Result<Self> {
        let local = LocalInterface::new(port.mac(), &identity.all_addresses())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let verification = port.verification();
        let checksum = match (verification, checksum) {
            (Verification::Kernel, _) => Checksum::Left,
            (_, true) => Checksum::Full,
            (_, false) => Checksum::None,
        };
        let neighbours = Neighbours::new(local.clone(), port.resolver())?;
        Ok(Self {
            mtu: port.mtu(),
            checker: Checker::new(verification),
            wire: Wire::new(port, Some(start)),
            routes: Routes::new(local.clone(), checksum),
            neighbours,
            local,
            waiting: VecDeque::with_capacity(WAITING_MAX),
            resolves: Vec::new(),
            seen_changes: 0,
            arrived: ArrayVec::new(),
            requests: Vec::new(),
            strangers: STRANGERS,
        })
    }

    /// Receives a burst from the port, unless a slot is waited for; whether there was work.
    pub(crate) fn receive(&mut self, inbound: &mut Inbound<'_>) -> bool {
        let takes = !inbound.waits();
        let (local, neighbours, arrived) = (&self.local, &mut self.neighbours, &mut self.arrived);
        let checker = &mut self.checker;
        let (now_ns, shared) = (inbound.now_ns, inbound.shared);
        let has_other_versions = shared.has_other_versions();
        let worked = self.wire.receive(now_ns, takes, shared, |frame| {
            let new = match checker.check(frame, local) {
                Ok(received) => {
                    let payload = &frame[received.payload.clone()];
                    if has_other_versions && is_of_this_version(payload) {
                        shared.note_same_version(received.source.to_ip());
                    }
                    inbound.deliver(received, payload)
                }
                Err(Dropped::NeighbourTraffic) => {
                    neighbours.handle_frame(now_ns, frame);
                    shared.counters.rx_neighbour.bump();
                    None
                }
                Err(reason) => {
                    shared.counters.rx_dropped[reason.index()].bump();
                    None
                }
            };
            if let Some(new) = new {
                // The senders of surplus datagrams retransmit.
                let _ = arrived.try_push(new);
            }
        });
        if !self.arrived.is_empty() {
            self.take_all_arrived(inbound);
        }
        worked
    }

    #[cold]
    fn take_all_arrived(&mut self, inbound: &mut Inbound<'_>) {
        for arrived in std::mem::take(&mut self.arrived) {
            self.take_arrived(inbound, arrived);
        }
        self.flush(inbound.now_ns, inbound.shared);
    }

    /// Completes the handling of a datagram from another host; its answer is sent with the next
    /// [`Self::flush`].
    pub(crate) fn take_arrived(&mut self, inbound: &mut Inbound<'_>, arrived: Arrived) {
        match arrived {
            Arrived::Answer(answer) => {
                self.send_to_stranger(inbound.now_ns, &answer, inbound.shared);
            }
            Arrived::Request(request) => self.take_request(inbound, request),
        }
    }

    /// Delivers a request once its sender is proven and the sender's Ethernet address is known:
    /// otherwise `rdma_accept` would wait for the resolution, or for a forged sender.
    fn take_request(&mut self, inbound: &mut Inbound<'_>, request: Request) {
        let (now_ns, shared) = (inbound.now_ns, inbound.shared);
        let (source, is_proven) = (request.route.src.ip(), inbound.is_proven(&request));
        if !is_proven || inbound.has_listener(&request) {
            let found = if is_proven {
                self.neighbours.resolve(now_ns, source)
            } else {
                self.find_stranger(now_ns, source)
            };
            match found {
                NeighbourResolution::Known(_) => {}
                NeighbourResolution::Pending if self.may_wait(&request) => {
                    self.requests.push(request);
                    return;
                }
                _ => {
                    shared.counters.drop_request_unresolved.bump();
                    return;
                }
            }
        }
        // R9-11
        //# **Cookies.** A REQ from another host MUST have no effect but a COOKIE before its sender
        //# has shown, by a valid cookie, that it receives what is sent to its address: no state is
        //# created, no application sees it, and it is not refused.
        let answer = if is_proven {
            inbound.give_request(&request)
        } else {
            Some(inbound.ask_for_proof(&request))
        };
        if let Some(answer) = answer {
            self.send_to_stranger(now_ns, &answer, shared);
        }
    }

    fn may_wait(&self, request: &Request) -> bool {
        let is_waiting = self.requests.iter().any(|other| other.is_again(request));
        self.requests.len() < REQUESTS_MAX && !is_waiting
    }

    /// As [`Neighbours::resolve`] for an address from an unverified packet, which may be forged.
    fn find_stranger(&mut self, now_ns: u64, address: IpAddr) -> NeighbourResolution {
        if self.neighbours.has(address) || self.strangers.allows(now_ns) {
            self.neighbours.resolve(now_ns, address)
        } else {
            NeighbourResolution::Unreachable
        }
    }

    /// Sends an answer to a host to which no process need have a connection. It is dropped if the
    /// neighbour is not resolved; the host retransmits.
    fn send_to_stranger(&mut self, now_ns: u64, answer: &DaemonDatagram, shared: &Shared) {
        match self.find_stranger(now_ns, answer.remote) {
            NeighbourResolution::Known(_) => self.put_answer(now_ns, answer, shared),
            _ => shared.counters.drop_tx_unreachable.bump(),
        }
    }

    /// Sends neighbour solicitations and the frames that waited for a resolution; whether there was
    /// work.
    pub(crate) fn maintain(&mut self, inbound: &mut Inbound<'_>) -> bool {
        let (now_ns, shared) = (inbound.now_ns, inbound.shared);
        let mut question = [0; MAX_SOLICITATION_OCTETS];
        let mut worked = false;
        while let Some(octets) = self.neighbours.poll_transmit(now_ns, &mut question) {
            let write = |frame: &mut [u8]| frame.copy_from_slice(&question[..octets]);
            self.wire.transmit(now_ns, octets, write, shared);
            worked = true;
        }
        worked |= self.wire.release_due(now_ns, shared);
        if self.seen_changes != self.neighbours.changes() {
            self.seen_changes = self.neighbours.changes();
            self.neighbours_changed(inbound);
            worked = true;
        }
        if worked || self.wire.waits() {
            self.flush(now_ns, shared);
        }
        worked
    }

    /// Whether sent frames wait for the port, so that processes must wait too.
    #[inline]
    pub(crate) fn is_full(&self, now_ns: u64) -> bool {
        self.wire.is_full(now_ns)
    }

    /// When [`Self::maintain`] must be called next.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let due = [self.neighbours.next_deadline(), self.wire.next_due_ns()];
        due.into_iter().flatten().min()
    }

    #[cold]
    fn neighbours_changed(&mut self, inbound: &mut Inbound<'_>) {
        let (now_ns, shared) = (inbound.now_ns, inbound.shared);
        for (meta, packet) in std::mem::take(&mut self.waiting) {
            self.send_kept(now_ns, &meta, packet, shared);
        }
        for (ip, reply) in std::mem::take(&mut self.resolves) {
            self.resolve(now_ns, ip, reply, shared);
        }
        for request in std::mem::take(&mut self.requests) {
            self.take_request(inbound, request);
        }
        self.flush(now_ns, shared);
    }

    /// Sends packets of a process, or keeps them while their neighbour is being resolved; gives
    /// their number.
    pub(crate) fn send_packets(
        &mut self,
        now_ns: u64,
        mut packets: FromProcess<'_>,
        shared: &Shared,
    ) -> usize {
        let meta = packets.meta;
        let (mut stream, waiting) = self.stream(now_ns, &meta);
        let (mut count, mut forged) = (0, 0);
        while let Some(packet) = packets.next() {
            count += 1;
            let Some(packet) = packet else {
                forged += 1;
                continue;
            };
            match &mut stream {
                Ok(stream) => stream.send(packet.len(), |out| packet.write(out), shared),
                Err(reason) => {
                    let mut copy = vec![0; packet.len()].into_boxed_slice();
                    packet.write(&mut copy);
                    keep(waiting, &meta, copy, *reason, shared);
                }
            }
        }
        if forged > 0 {
            shared.counters.drop_forged_source.add(forged);
        }
        count
    }

    /// Sends a packet again that waited for its neighbour.
    fn send_kept(&mut self, now_ns: u64, meta: &Meta, packet: Box<[u8]>, shared: &Shared) {
        match self.stream(now_ns, meta) {
            (Ok(mut stream), _) => {
                stream.send(packet.len(), |out| out.copy_from_slice(&packet), shared);
            }
            (Err(reason), waiting) => keep(waiting, meta, packet, reason, shared),
        }
    }

    /// Sends a datagram of urdmad. It is dropped if the neighbour is not resolved; the protocol
    /// retransmits it.
    pub(crate) fn send_answer(&mut self, now_ns: u64, answer: &DaemonDatagram, shared: &Shared) {
        self.put_answer(now_ns, answer, shared);
        self.flush(now_ns, shared);
    }

    /// As [`Self::send_answer`], with the next [`Self::flush`].
    #[cold]
    fn put_answer(&mut self, now_ns: u64, answer: &DaemonDatagram, shared: &Shared) {
        let meta = Meta {
            remote_ip: Ip16::new(answer.remote),
            src_port: answer.ports.source,
            dst_port: answer.ports.destination,
            ecn: 0,
            gid_index: answer.gid_index,
        };
        let datagram = &answer.datagram;
        match self.stream(now_ns, &meta).0 {
            Ok(mut stream) => {
                stream.send(datagram.len(), |out| out.copy_from_slice(datagram), shared);
            }
            Err(_) => shared.counters.drop_tx_unreachable.bump(),
        }
    }

    /// The way of packets with these metadata, and the packets that wait for their neighbours.
    #[inline]
    fn stream(&mut self, now_ns: u64, meta: &Meta) -> (Result<Stream<'_>, NoRoute>, &mut Waiting) {
        let ends = (meta.remote_ip, meta.gid_index);
        let ports = UdpPorts {
            source: meta.src_port,
            destination: meta.dst_port,
        };
        let found = self.routes.find(now_ns, ends, &mut self.neighbours);
        let stream = found.map(|template| Stream {
            now_ns,
            octets_max: max_datagram(self.mtu, template.version()),
            header_octets: template.header_octets(),
            headers: Headers::new(template, ports, Ecn::from_bits(meta.ecn)),
            wire: &mut self.wire,
        });
        (stream, &mut self.waiting)
    }

    /// Sends the collected frames.
    pub(crate) fn flush(&mut self, now_ns: u64, shared: &Shared) {
        self.wire.flush(now_ns, shared);
    }

    /// Answers with the neighbour for `ip`, now or when its resolution has succeeded or failed.
    pub(crate) fn resolve(&mut self, now_ns: u64, ip: IpAddr, reply: Reply, shared: &Shared) {
        let source = self.local.source_for(ip, 0);
        let resolution = match (self.neighbours.resolve(now_ns, ip), source) {
            (NeighbourResolution::Known(mac), Some(source)) => {
                Resolution::Neighbour { mac: mac.0, source }
            }
            (NeighbourResolution::Pending, Some(_)) => return self.resolves.push((ip, reply)),
            _ => Resolution::NoHost,
        };
        shared.give_resolved(reply, resolution);
    }

    /// Prepares the port for the calling thread.
    pub(crate) fn enter(&mut self) {
        self.wire.port().enter();
    }

    pub(crate) fn lend(&mut self, queue: u16, udp_port: u16) -> Result<(), QueueError> {
        self.wire.port().lend(queue, udp_port)
    }

    pub(crate) fn reclaim(&mut self, queue: u16) -> Result<(), QueueError> {
        self.wire.port().reclaim(queue)
    }

    /// Tells the port which groups have members now or have none any more.
    pub(crate) fn change_groups(&mut self, shared: &Shared) {
        let changes = shared.groups().take_changes();
        for (group, has_members) in changes {
            self.wire.port().set_group(group, has_members);
        }
    }

    /// What wakes the calling thread from a sleep that [`Self::arm`] precedes.
    pub(crate) fn set_wake(&mut self, wake: Box<dyn Fn() + Send>) {
        self.wire.port().set_wake(wake);
    }

    /// Has a sleep end when a frame arrives; false if the port has to be polled.
    pub(crate) fn arm(&mut self) -> bool {
        self.wire.port().arm()
    }

    /// The sleep has ended.
    pub(crate) fn disarm(&mut self) {
        self.wire.port().disarm();
    }

    pub(crate) fn set_faults(&mut self, faults: &Faults) {
        self.wire.set_faults(faults);
    }

    pub(crate) fn report(&mut self) -> (PortReport, FaultStatus) {
        self.wire.report()
    }
}

/// Whether a datagram has the version of the protocol that this urdmad knows.
fn is_of_this_version(datagram: &[u8]) -> bool {
    let version = datagram.first().map(|first| first >> 4);
    version == Some(VERSION)
}

/// The way of packets from one host and port to another.
struct Stream<'a> {
    now_ns: u64,
    octets_max: usize,
    header_octets: usize,
    headers: Headers<'a>,
    wire: &'a mut Wire,
}

impl Stream<'_> {
    /// Sends a packet of `octets` octets, which `write` writes.
    #[inline]
    fn send(&mut self, octets: usize, write: impl Fn(&mut [u8]), shared: &Shared) {
        if octets > self.octets_max {
            return shared.counters.drop_tx_too_long.bump();
        }
        let (header_octets, headers) = (self.header_octets, &mut self.headers);
        let write = |frame: &mut [u8]| {
            write(&mut frame[header_octets..]);
            // It fits: its length was checked against the MTU.
            let _ = headers.write(frame);
        };
        self.wire
            .transmit(self.now_ns, header_octets + octets, write, shared);
    }
}

/// Keeps a packet without a route, if its neighbour is being resolved.
#[cold]
fn keep(waiting: &mut Waiting, meta: &Meta, packet: Box<[u8]>, reason: NoRoute, shared: &Shared) {
    let counters = &shared.counters;
    match reason {
        NoRoute::Pending if waiting.len() < WAITING_MAX => waiting.push_back((*meta, packet)),
        NoRoute::Pending => counters.drop_tx_waiting.bump(),
        NoRoute::Unreachable => counters.drop_tx_unreachable.bump(),
    }
}
