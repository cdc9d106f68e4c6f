//! Datagrams out: turns of queue pairs, and datagrams that belong to no queue pair.
//!
//! [`Shard::give_turns`] lets every queue pair in the ready list send up to [`TURN`] datagrams. The
//! loop of a turn, [`run_turn`], is the same for every [`TransmitPath`].

use proto_trp::conn::{Connection, Host, Time, TransmitPlan};
use proto_trp::wire::{Meta, PacketHead};
use urdma_cm::wire::ReqRoute;
use urdma_types::{Qpn, SlotId};

use super::daemon_path::DaemonPath;
use super::packet_room::NoRoom;
use crate::objects::entry::QpEntry;
use crate::objects::process::Process;
use crate::paths::lease::{LeasePath, RouteId};
use crate::paths::packet_body::{prefetch_write, CACHE_LINE};
use crate::paths::packet_path::{Refused, TransmitPath, Turn, Written, TURN};
use crate::paths::path::{metadata, PeerPath};
use crate::shard::traffic::PacketCounters;
use crate::shard::Shard;
use crate::types::{Gid, Info};

impl Shard {
    /// Sends a datagram of connection management to a slot of a host; false if there is no room for
    /// it at the moment.
    pub(crate) fn send_cm(
        &mut self,
        info: &Info,
        ip: std::net::IpAddr,
        to: SlotId,
        octets: &[u8],
    ) -> bool {
        // R3-5
        //# The IP source address MUST be the address by which the receiver knows the sender: that
        //# of the GID with which the queue pair or the address handle was set up; in a REQ the
        //# source address in its body; in a RESET the destination address of the packet that it
        //# answers.
        // A REQ comes from the address that it names.
        let source = ReqRoute::parse(octets).map(|request| Gid::from_ip(request.src.ip()));
        let index = info.gids.iter().position(|own| Some(own.gid) == source);
        let gid_index = index.and_then(|index| u8::try_from(index).ok());
        let meta = metadata(ip, (Qpn::new(self.slot, 0), gid_index.unwrap_or(0)), to);
        let first_hop = if info.addresses.contains(&ip) {
            to
        } else {
            SlotId::DAEMON
        };
        let head = PacketHead::of(meta);
        // What is sent to no process is lost, as in any network.
        let is_full = self.send_to_slot(first_hop, octets, &head) == Err(NoRoom::Full);
        self.channels.ring_doorbells();
        !is_full
    }

    /// Gives every queue pair that waits for room on a channel, or is in the ready list, one turn.
    #[inline]
    pub(super) fn give_turns(&mut self, now: Time) {
        self.batch.clear();
        let ready = self.qps.ready.len();
        if self.channels.has_waiting() {
            self.resume_all();
        }
        for _ in 0..ready {
            let Some(index) = self.qps.ready.pop_front() else {
                break;
            };
            if let Some(entry) = self.qps.connected.get_mut(index) {
                entry.is_queued = false;
                self.give_turn(index, now);
            } else {
                self.give_turn_of_kind(index, now);
            }
        }
    }

    /// Gives a queue pair one turn and publishes what it sent.
    #[inline]
    pub(crate) fn transmit(&mut self, index: u16, now: Time) {
        self.give_turn(index, now);
        self.publish();
    }

    /// Gives a queue pair one turn, and puts it into the ready list if it has more to send.
    #[inline]
    pub(super) fn give_turn(&mut self, index: u16, now: Time) {
        let Some(entry) = self.qps.connected.get_mut(index) else {
            return;
        };
        let turn = match entry.path {
            _ if self.is_dead => Turn::Done,
            Some(PeerPath::Channel(slot)) => {
                self.take_turn_on_channel(index, slot);
                Turn::Done
            }
            Some(PeerPath::Ended) => self.lose_peer(index),
            Some(PeerPath::Daemon(meta)) => self.transmit_to_daemon(index, now, meta),
            Some(PeerPath::Lease(route)) => self.transmit_leased(index, now, route),
            None => Turn::Done,
        };
        self.qps.set_timer(index);
        if turn != Turn::Done {
            self.qps.make_ready(index);
            self.is_blocked |= turn != Turn::More;
        }
    }

    /// Gives a queue pair a turn through urdmad.
    #[inline]
    fn transmit_to_daemon(&mut self, index: u16, now: Time, meta: Meta) -> Turn {
        let Some(entry) = self.qps.connected.get_mut(index) else {
            return Turn::Done;
        };
        // Without it nothing is sent, and the connection times out.
        let Some(channel) = self.channels.get_mut(SlotId::DAEMON) else {
            return Turn::Done;
        };
        let mut path = DaemonPath::new(channel, &mut self.capture, self.slot, meta);
        let shared = (&mut self.process, &mut self.counters);
        let turn = run_turn(entry, shared, now, &mut path);
        if path.has_sent {
            self.channels.note_doorbell(SlotId::DAEMON);
        }
        turn
    }

    /// Gives a queue pair a turn on a route of the lease.
    #[inline]
    fn transmit_leased(&mut self, index: u16, now: Time, route: RouteId) -> Turn {
        let (Some(entry), Some(lease)) = (self.qps.connected.get_mut(index), &mut self.lease)
        else {
            return Turn::Done;
        };
        let shared = (&mut self.process, &mut self.counters);
        let turn = run_turn(entry, shared, now, &mut LeasePath::new(lease, route));
        self.is_blocked |= !lease.flush();
        turn
    }
}

/// Sends what a queue pair may send on `path`, up to [`TURN`] datagrams.
#[inline]
pub(crate) fn run_turn<P: TransmitPath>(
    entry: &mut QpEntry,
    shared: (&mut Process, &mut PacketCounters),
    now: Time,
    path: &mut P,
) -> Turn {
    let turn = write_turn(entry, shared, now, path);
    path.finish();
    turn
}

#[inline]
fn write_turn<P: TransmitPath>(
    entry: &mut QpEntry,
    (process, counters): (&mut Process, &mut PacketCounters),
    now: Time,
    path: &mut P,
) -> Turn {
    let mut left = TURN;
    while left > 0 {
        let Some(plan) = entry.conn.plan_transmit() else {
            return Turn::Done;
        };
        let (conn, mut host) = entry.with_host(process);
        let sent = if plan.run() > 1 {
            path.begin_run(plan.room(), plan.run().min(left))
                .map(|rooms| conn.write_run(now, plan, rooms, &mut host))
                .map(|run| {
                    path.commit_run(&run);
                    run.count
                })
        } else {
            send_one(conn, plan, now, path, &mut host)
        };
        match sent {
            Ok(sent) => {
                counters.sent += u64::from(sent);
                left = left.saturating_sub(sent.max(1));
            }
            Err(Refused::Full) => {
                counters.channel_full += 1;
                return Turn::Blocked;
            }
            Err(Refused::NoBuffer) => {
                counters.no_buffer += 1;
                return Turn::Blocked;
            }
        }
    }
    Turn::More
}

/// Sends the datagram of a plan; gives the number of datagrams that were sent.
#[inline]
fn send_one<P: TransmitPath, H: Host>(
    conn: &mut Connection,
    plan: TransmitPlan,
    now: Time,
    path: &mut P,
    host: &mut H,
) -> Result<u16, Refused> {
    let room = path.begin(plan.room(), plan.is_followed())?;
    if plan.is_train() {
        prefetch_to_write(&room[..plan.room()]);
    }
    let Some(transmit) = conn.write_transmit(now, plan, room, host) else {
        path.discard();
        return Ok(0);
    };
    path.commit(Written {
        len: transmit.len,
        is_ecn_capable: transmit.ecn_capable,
    });
    Ok(1)
}

/// Prefetches the cache lines that are about to be written.
#[inline(never)]
fn prefetch_to_write(room: &[u8]) {
    for line in room.chunks(CACHE_LINE) {
        prefetch_write(line.as_ptr());
    }
}
