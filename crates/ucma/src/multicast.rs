//! Multicast groups that ids join.
//!
//! Joining returns the parameters for sending to the group, as the kernel's rdma_cm does for
//! RoCE v2, and has no other effect: reception starts when librdmacm or the application attaches a
//! queue pair (`ibv_attach_mcast`), which the engine implements. A send-only member is therefore
//! treated like any other.

use std::net::IpAddr;

use urdma_cm::PrivateData;
use urdma_types::RawQpn;

use crate::abi::{self, event, join};
use crate::command::{body_of, Command};
use crate::driver::Errno;
use crate::handle::{CmId, MembershipId};
use crate::ids::{IdState, Membership, Queued, UcmaState};
use crate::param::{datagram_param, no_ece, way};
use crate::service::Service;
use crate::sockaddr;

impl Command<'_> {
    pub(crate) fn join_ip_mcast(&mut self) -> Result<(), Errno> {
        let body: abi::JoinIpMcast = body_of(self.body)?;
        let (group, _) = sockaddr::group(&body.addr.octets)?;
        self.join(CmId(body.id), body.uid, body.response, group)
    }

    pub(crate) fn join_mcast(&mut self) -> Result<(), Errno> {
        let body: abi::JoinMcast = body_of(self.body)?;
        let (group, size) = sockaddr::group(&body.addr.octets)?;
        if body.addr_size != size
            || ![join::FULL_MEMBER, join::SEND_ONLY].contains(&body.join_flags)
        {
            return Err(libc::EINVAL);
        }
        self.join(CmId(body.id), body.uid, body.response, group)
    }

    fn join(&mut self, number: CmId, uid: u64, response: u64, group: IpAddr) -> Result<(), Errno> {
        let room = self.room_for::<u32>()?;
        self.require_device()?;
        let id = self.state.id(self.file, number)?;
        let is_bound = matches!(id.state, IdState::Bound | IdState::AddrResolved);
        if !id.has_device || !is_bound || id.service != Service::Datagram || !group.is_multicast() {
            return Err(libc::EINVAL);
        }
        let src = id.src;
        let membership = self.state.add_membership(Membership {
            id: number,
            uid,
            events_reported: 0,
        });
        let answered = self.caller.put(response, room, &membership.0);
        if answered.is_err() {
            self.state.memberships.remove(&membership);
            return answered;
        }
        let way = way(&self.state.device, src, group);
        let (conn, rest) = datagram_param(RawQpn::MULTICAST, way, &PrivateData::EMPTY);
        self.state.enqueue(
            self.file,
            Queued {
                id: number,
                membership: Some(membership),
                event: event::MULTICAST_JOIN,
                status: 0,
                conn,
                rest,
                ece: no_ece(),
                request: None,
            },
        );
        Ok(())
    }

    pub(crate) fn leave_mcast(&mut self) -> Result<(), Errno> {
        let room = self.room_for::<u32>()?;
        let body: abi::DestroyId = body_of(self.body)?;
        let left = MembershipId(body.id);
        let membership = self.state.memberships.get(&left).ok_or(libc::ENOENT)?;
        let (id, reported) = (membership.id, membership.events_reported);
        self.state.id(self.file, id)?;
        self.state.memberships.remove(&left);
        self.state
            .remove_events(self.file, |queued| queued.membership == Some(left));
        self.caller.put(body.response, room, &reported)
    }
}

impl UcmaState {
    fn add_membership(&mut self, membership: Membership) -> MembershipId {
        let number = loop {
            self.next_membership = self.next_membership.wrapping_add(1);
            let number = MembershipId(self.next_membership);
            if !self.memberships.contains_key(&number) {
                break number;
            }
        };
        self.memberships.insert(number, membership);
        number
    }
}
