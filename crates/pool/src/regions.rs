//! Check 1: what memory a request may name, and which memory requests in progress use.

use crate::error::{CallError, PostError};
use crate::fault::{Fault, Faults};
use crate::slots::Slots;
use crate::types::{
    Access, LocalRegion, LocalRegionId, NodeId, Operation, RemoteRegion, RemoteRegionId, Request,
    UserId, ATOMIC_OCTETS,
};

#[derive(Debug)]
struct Local {
    region: LocalRegion,
    /// Requests that are not complete.
    uses: u32,
    /// It is deregistered when `uses` is 0, and takes no request until then.
    is_ending: bool,
}

/// The keys of a request that may be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// All regions.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    local: Slots<Local>,
    remote: Slots<RemoteRegion>,
}

impl Regions {
    pub(crate) fn add_local(&mut self, region: LocalRegion) -> Result<LocalRegionId, CallError> {
        check_end(region.addr, region.len_octets)?;
        let local = Local {
            region,
            uses: 0,
            is_ending: false,
        };
        let id = self.local.add(local).map(LocalRegionId);
        id.ok_or(CallError::Limit("local regions"))
    }

    pub(crate) fn add_remote(&mut self, region: RemoteRegion) -> Result<RemoteRegionId, CallError> {
        check_end(region.addr, region.len_octets)?;
        let id = self.remote.add(region).map(RemoteRegionId);
        id.ok_or(CallError::Limit("remote regions"))
    }

    pub(crate) fn remote(&self, id: RemoteRegionId) -> Option<&RemoteRegion> {
        self.remote.get(id.0)
    }

    pub(crate) fn remove_remote(&mut self, id: RemoteRegionId) -> Result<(), CallError> {
        let removed = self.remote.remove(id.0);
        removed.map(drop).ok_or(CallError::Unknown)
    }

    /// Ends a local region; whether no request uses it, so that it is to be deregistered now.
    pub(crate) fn end_local(
        &mut self,
        id: LocalRegionId,
        faults: Faults,
    ) -> Result<bool, CallError> {
        let local = self.local.get_mut(id.0).filter(|local| !local.is_ending);
        let local = local.ok_or(CallError::Unknown)?;
        local.is_ending = true;
        if local.uses > 0 && !faults.has(Fault::ReleasedEarly) {
            return Ok(false);
        }
        Ok(self.local.remove(id.0).is_some())
    }

    /// Notes that a request uses a local region.
    pub(crate) fn use_local(&mut self, id: LocalRegionId) {
        if let Some(local) = self.local.get_mut(id.0) {
            local.uses += 1;
        }
    }

    /// Notes that one uses it no more; whether it is to be deregistered now.
    pub(crate) fn release(&mut self, id: LocalRegionId) -> bool {
        let Some(local) = self.local.get_mut(id.0) else {
            return false;
        };
        local.uses -= 1;
        local.uses == 0 && local.is_ending && self.local.remove(id.0).is_some()
    }

    /// Whether a request of this user to this node names memory that it may use so; its keys.
    pub(crate) fn check(
        &self,
        user: UserId,
        node: NodeId,
        request: &Request,
        faults: Faults,
    ) -> Result<Keys, PostError> {
        let len = u64::from(request.len_octets);
        let local = self.local.get(request.local.0);
        let local = local.filter(|local| {
            let is_own = local.region.user == user || faults.has(Fault::NoOwner);
            is_own && !local.is_ending
        });
        let local = local.ok_or(PostError::LocalRegion)?.region;
        if !contains(local.addr, local.len_octets, request.local_addr, len)
            && !faults.has(Fault::NoLocalBounds)
        {
            return Err(PostError::LocalBounds);
        }
        if request.operation != Operation::Write && !local.access.write {
            return Err(PostError::LocalAccess);
        }
        let remote = self.remote.get(request.remote.0);
        let remote = remote.filter(|remote| remote.node == node || faults.has(Fault::NoNode));
        let remote = remote.ok_or(PostError::RemoteRegion)?;
        if !contains(remote.addr, remote.len_octets, request.remote_addr, len)
            && !faults.has(Fault::NoRemoteBounds)
        {
            return Err(PostError::RemoteBounds);
        }
        if !remote.access.includes(needed(request.operation)) && !faults.has(Fault::NoRights) {
            return Err(PostError::RemoteAccess);
        }
        Ok(Keys {
            lkey: local.lkey,
            rkey: remote.rkey,
        })
    }
}

/// The right at the node that an operation needs.
pub(crate) fn needed(operation: Operation) -> Access {
    Access {
        write: operation == Operation::Write,
        read: operation == Operation::Read,
        atomic: operation.is_atomic(),
    }
}

/// Whether the length and the alignment are possible.
pub(crate) fn check_shape(request: &Request, message_octets_max: u32) -> Result<(), PostError> {
    if !request.operation.is_atomic() {
        let is_possible = request.len_octets <= message_octets_max;
        return is_possible.then_some(()).ok_or(PostError::Length);
    }
    if request.len_octets != ATOMIC_OCTETS {
        return Err(PostError::Length);
    }
    let is_aligned = request.remote_addr.is_multiple_of(u64::from(ATOMIC_OCTETS));
    is_aligned.then_some(()).ok_or(PostError::Alignment)
}

fn check_end(addr: u64, len_octets: u64) -> Result<(), CallError> {
    let end = addr.checked_add(len_octets);
    end.map(drop).ok_or(CallError::BadRegion)
}

/// Whether `len` octets at `at` are in a region, whose end has an address.
fn contains(addr: u64, len_octets: u64, at: u64, len: u64) -> bool {
    let offset = at.checked_sub(addr);
    let end = offset.and_then(|offset| offset.checked_add(len));
    end.is_some_and(|end| end <= len_octets)
}
