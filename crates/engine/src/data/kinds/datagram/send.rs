//! Datagrams out.

use proto_trp::conn::{Host, ProtectionError, QpState, Status, Time};
use proto_trp::wire::datagram::{is_group, DatagramHeader, HEADER_LEN};
use proto_trp::wire::{Meta, PacketHead};
use urdma_types::{source_port, udp_port, Ip16, Qpn, SlotId};

use crate::data::kinds::kind::Kind;
use crate::data::packet_room::{self, NoRoom};
use crate::objects::kinds::datagram::handle::{AddressHandle, HandleTarget};
use crate::objects::kinds::datagram::pair::{DatagramEntry, Queues};
use crate::objects::kinds::datagram::queue::Source;
use crate::objects::kinds::datagram::table::split;
use crate::objects::kinds::datagram::DatagramTable;
use crate::objects::qp_host::QpHost;
use crate::paths::lease::{LeasedBuffers, LeasedQueue, RouteId};
use crate::paths::packet_path::Written;
use crate::paths::path::{metadata, NextHop};
use crate::shard::Shard;

/// How long a message waits for room before it is lost, so that a stopped process does not block
/// its senders.
pub(super) const PATIENCE_NS: u64 = 100_000_000;
/// Messages that a queue pair may send before it is the next one's turn.
const TURN: u32 = 32;
/// The bit of a request's `Q_Key` that stands for the queue pair's own.
const OWN_QKEY: u32 = 1 << 31;

/// Where one message goes first.
#[derive(Clone, Copy)]
enum Egress {
    /// To a slot.
    Slot(SlotId, Meta),
    /// Out through the lease.
    Lease(RouteId),
    /// There is no such receiver: lost.
    Nowhere,
}

/// The outcome of sending one message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Gone,
    /// A full channel, or no buffer.
    NoRoom,
    Failed(Status),
}

impl Kind for DatagramTable {
    fn give_turn(shard: &mut Shard, index: u16, now: Time) {
        shard.transmit_datagrams(index, now);
    }
}

impl Shard {
    /// Gives a datagram queue pair one turn; what waits for room is tried again by the background
    /// thread.
    pub(crate) fn transmit_datagrams(&mut self, index: u16, now: Time) {
        if let Some(entry) = self.qps.kinds.datagrams.get(index) {
            entry.is_queued = false;
        }
        for _ in 0..TURN {
            let outcome = match self.qps.kinds.datagrams.get(index) {
                Some(entry) if entry.state == QpState::Rts && entry.sends.len() > 0 => {
                    self.send_oldest(index)
                }
                _ => return,
            };
            let Some(entry) = self.qps.kinds.datagrams.get(index) else {
                return;
            };
            let lost = entry
                .blocked_since
                .is_some_and(|since| now.as_ns().saturating_sub(since.as_ns()) > PATIENCE_NS);
            let status = match outcome {
                Sent::NoRoom if !lost => {
                    entry.blocked_since.get_or_insert(now);
                    self.is_blocked = true;
                    break;
                }
                Sent::NoRoom => Status::Success,
                Sent::Gone => {
                    entry.blocked_since = None;
                    Status::Success
                }
                Sent::Failed(status) => status,
            };
            let Some(entry) = self.qps.kinds.datagrams.get(index) else {
                return;
            };
            let (mut queues, mut host) = split(entry, &mut self.process);
            queues.complete_send(&mut host, status);
        }
        if let Some(lease) = &mut self.lease {
            self.is_blocked |= !lease.flush();
        }
        self.queue_datagrams(index);
    }

    /// Puts a queue pair that has something to send into the ready list.
    fn queue_datagrams(&mut self, index: u16) {
        if let Some(entry) = self.qps.kinds.datagrams.get(index) {
            if !entry.is_queued && entry.sends.len() > 0 {
                entry.is_queued = true;
                self.qps.ready.push_back(index);
            }
        }
    }

    /// Sends the oldest request of a queue pair, which has one.
    fn send_oldest(&mut self, index: u16) -> Sent {
        let path_mtu_octets = self.qps.kinds.datagrams.path_mtu_octets;
        let Some(entry) = self.qps.kinds.datagrams.get(index) else {
            return Sent::Gone;
        };
        let hop = match plan(entry, path_mtu_octets, self.lease.as_deref_mut()) {
            Ok(hop) => hop,
            Err(status) => return Sent::Failed(status),
        };
        let Some(packet) = OutgoingPacket::of(entry) else {
            return Sent::Gone;
        };
        match hop {
            Egress::Slot(to, meta) => self.send_datagram_to_slot(index, &packet, to, &meta),
            Egress::Lease(route) => self.send_datagram_leased(index, &packet, route),
            Egress::Nowhere => Sent::Gone,
        }
    }

    fn send_datagram_to_slot(
        &mut self,
        index: u16,
        packet: &OutgoingPacket,
        to: SlotId,
        meta: &Meta,
    ) -> Sent {
        match self.make_room(to, packet.len) {
            Ok(()) => {}
            Err(NoRoom::Full) => {
                self.counters.channel_full += 1;
                return Sent::NoRoom;
            }
            // There is no process in the slot: lost.
            Err(NoRoom::Dead | NoRoom::NoChannel) => return Sent::Gone,
        }
        let (Some(channel), Some(entry)) = (
            self.channels.get_mut(to),
            self.qps.kinds.datagrams.get(index),
        ) else {
            return Sent::Gone;
        };
        let room =
            packet_room::room(channel, packet.len).and_then(|room| room.get_mut(..packet.len));
        let Some(room) = room else {
            return Sent::NoRoom;
        };
        let (queues, mut host) = split(entry, &mut self.process);
        if packet.write(&queues, &mut host, room).is_err() {
            return Sent::Failed(Status::LocalProtectionError);
        }
        if let Some(capture) = &mut self.capture {
            capture.add(self.slot, to, &[room]);
        }
        let head = PacketHead::of(*meta);
        packet_room::publish(channel, packet.len, &head, packet.len);
        self.channels.note_doorbell(to);
        self.counters
            .note_datagram_sent(packet.len, packet.is_to_group());
        Sent::Gone
    }

    fn send_datagram_leased(
        &mut self,
        index: u16,
        packet: &OutgoingPacket,
        route: RouteId,
    ) -> Sent {
        let mut buffers = LeasedBuffers::new();
        if let Some(lease) = &mut self.lease {
            let _ = lease.alloc(route, 1, &mut buffers);
        }
        let Some(mut buffer) = buffers.pop() else {
            self.counters.no_buffer += 1;
            return Sent::NoRoom;
        };
        let room = buffer.data_mut().get_mut(..packet.len);
        let written = match (self.qps.kinds.datagrams.get(index), room) {
            (Some(entry), Some(room)) => {
                let (queues, mut host) = split(entry, &mut self.process);
                packet.write(&queues, &mut host, room)
            }
            _ => Err(ProtectionError::Bounds),
        };
        let Some(lease) = &mut self.lease else {
            return Sent::Gone;
        };
        if written.is_err() {
            lease.discard(buffer);
            return Sent::Failed(Status::LocalProtectionError);
        }
        let written = Written {
            len: packet.len,
            is_ecn_capable: false,
        };
        lease.send(buffer, written, route);
        self.counters
            .note_datagram_sent(packet.len, packet.is_to_group());
        Sent::Gone
    }
}

/// The oldest request as a packet.
struct OutgoingPacket {
    header: DatagramHeader,
    /// Octets of the packet.
    len: usize,
}

impl OutgoingPacket {
    /// The packet of the oldest request, which [`plan`] has found short enough.
    fn of(entry: &DatagramEntry) -> Option<Self> {
        let (request, _) = entry.sends.front()?;
        let handle = request.handle.as_deref()?;
        let qkey = if request.remote_qkey & OWN_QKEY == 0 {
            request.remote_qkey
        } else {
            entry.attributes.qkey
        };
        let destination_index = match handle.target {
            // R12-2
            //# A message to a multicast group (the destination GID is an IPv6 multicast address or
            //# an IPv4-mapped one) MUST have destination index 0 and be sent once, to the daemon's
            //# port, 21504.
            HandleTarget::Group => 0,
            HandleTarget::Host(_) => Qpn::from_u32(request.remote_qpn)?.index(),
        };
        Some(Self {
            header: DatagramHeader {
                destination_index,
                qkey,
                traffic_class: handle.traffic_class,
                source_qpn: entry.qp.number().to_u32(),
                imm: request.imm,
                solicited: request.solicited,
                source_gid: handle.source.0,
                destination_gid: handle.destination.0,
            },
            len: HEADER_LEN + usize::try_from(request.length).ok()?,
        })
    }

    fn is_to_group(&self) -> bool {
        is_group(&self.header.destination_gid)
    }

    /// Writes header and message of the oldest request into room of this length.
    fn write(
        &self,
        queues: &Queues<'_>,
        host: &mut QpHost<'_>,
        room: &mut [u8],
    ) -> Result<(), ProtectionError> {
        let Some((_, source)) = queues.sends.front() else {
            return Err(ProtectionError::Bounds);
        };
        let at = self.header.encode(room);
        let message = &mut room[at.map_err(|_| ProtectionError::Bounds)?..];
        match source {
            Source::Sges(sges) => host.gather(sges, 0, message),
            Source::Inline(octets) => {
                message.copy_from_slice(octets);
                Ok(())
            }
        }
    }
}

/// Checks the oldest request and chooses its first hop.
fn plan(
    entry: &mut DatagramEntry,
    path_mtu_octets: u32,
    lease: Option<&mut LeasedQueue>,
) -> Result<Egress, Status> {
    let Some((request, _)) = entry.sends.front() else {
        return Ok(Egress::Nowhere);
    };
    if request.unsupported.is_some() {
        return Err(Status::LocalQpOperationError);
    }
    let Some(handle) = request.handle.as_deref() else {
        return Ok(Egress::Nowhere);
    };
    if handle.pd != entry.qp.pd() {
        return Err(Status::LocalQpOperationError);
    }
    // R12-1
    //# A message MUST NOT be longer than the largest of 256, 512, 1024, 2048, 4096 octets that the
    //# path MTU less 100 octets holds, or 4096 octets within a host.
    if request.length > u64::from(path_mtu_octets) {
        return Err(Status::LocalLengthError);
    }
    let local = entry.qp.number();
    let (ip, mac, remote) = match (handle.target, Qpn::from_u32(request.remote_qpn)) {
        (HandleTarget::Group, _) => {
            return Ok(Egress::Slot(SlotId::DAEMON, group_meta(handle, local)))
        }
        (_, None) => return Ok(Egress::Nowhere),
        (HandleTarget::Host(NextHop::Local), Some(remote)) => {
            let meta = Meta {
                remote_ip: Ip16(handle.source.0),
                src_port: source_port(local),
                dst_port: udp_port(remote.slot()),
                ecn: 0,
                gid_index: handle.gid_index,
            };
            return Ok(Egress::Slot(remote.slot(), meta));
        }
        (HandleTarget::Host(NextHop::Remote { ip, mac }), Some(remote)) => (ip, mac, remote.slot()),
    };
    let meta = metadata(ip, (local, handle.gid_index), remote);
    let route = lease.and_then(|lease| {
        let open = || lease.open_route(mac, &meta);
        let key = (ip, remote, handle.gid_index);
        *entry.routes.entry(key).or_insert_with(open)
    });
    Ok(route.map_or(Egress::Slot(SlotId::DAEMON, meta), Egress::Lease))
}

/// Metadata of a message to a multicast group, which slot 0 distributes.
fn group_meta(handle: &AddressHandle, local: Qpn) -> Meta {
    Meta {
        remote_ip: Ip16(handle.destination.0),
        src_port: source_port(local),
        dst_port: udp_port(SlotId::DAEMON),
        ecn: 0,
        gid_index: handle.gid_index,
    }
}
