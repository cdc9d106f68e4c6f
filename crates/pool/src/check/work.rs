//! Work requests: whether one may be posted, and what follows if the queue pair is in ERR.

use super::device::{Broken, Device};
use super::model::Model;
use super::Finding;
use crate::{
    Config, Element, LocalRegion, LocalRegionId, RemoteRegion, RemoteRegionId, Sge, Status,
    Transmit,
};

/// Of each request's local memory.
pub(super) const STRIDE: u64 = 4096;

#[derive(Debug)]
pub(super) struct Local {
    pub(super) id: LocalRegionId,
    pub(super) region: LocalRegion,
    /// Requests may name it; then it is registered for a while.
    pub(super) is_usable: bool,
    pub(super) is_registered: bool,
}

#[derive(Debug)]
pub(super) struct Remote {
    pub(super) id: RemoteRegionId,
    pub(super) region: RemoteRegion,
    pub(super) is_known: bool,
    /// The node still permits what it has.
    pub(super) is_valid: bool,
}

pub(super) fn fail<T>(finding: impl Into<String>) -> Result<T, Finding> {
    Err(finding.into())
}

/// Whether a work request may be posted; the serial of its request.
pub(super) fn check_work(
    (work, elements): (&Transmit, &[Sge]),
    device: &Device,
    model: &Model,
    (locals, remotes): (&[Local], &[Remote]),
    config: &Config,
) -> Result<u64, Finding> {
    let remote = &remotes[work.rkey as usize - 1];
    let local_of = |element: &Sge| &locals[element.lkey as usize - 1];
    // A request without an element goes to its own part of the remote region.
    let (begin, addr) = match elements.first() {
        Some(first) => (local_of(first).region.addr, first.addr),
        None => (remote.region.addr, work.remote_addr),
    };
    let serial = addr.wrapping_sub(begin) / STRIDE;
    let (request, expected) = model.posted(serial)?;
    let owner = model.owner(serial).unwrap();
    let qp = device.queue_pairs.iter().find(|qp| qp.id == work.physical);
    let qp = qp.ok_or("a work request for a queue pair that does not exist")?;
    let posted = elements.iter().map(|element| {
        let local = local_of(element);
        let is_own = local.is_registered && local.region.user == owner.user;
        is_own.then_some(Element {
            local: local.id,
            addr: element.addr,
            len_octets: element.len_octets,
        })
    });
    let Some(posted) = posted.collect::<Option<Vec<Element>>>() else {
        return fail("a work request names memory that is not its user's");
    };
    let reaches = qp.node.is_none_or(|node| node == work.node);
    if remote.region.node != work.node || owner.node != work.node || !reaches {
        return fail("a work request goes to another node");
    }
    if (work.operation, work.remote_addr) != (request.operation, request.remote_addr)
        || posted != expected
        || (request.is_signaled && !work.is_signaled)
    {
        return fail("a work request differs from the request");
    }
    let own = qp
        .posted
        .iter()
        .filter(|posted| model.owner(posted.serial).unwrap().id == owner.id);
    if own.count() >= config.in_flight_max as usize {
        return fail("a virtual queue pair has more requests in flight than it may");
    }
    Ok(serial)
}

/// A work request that is posted to a queue pair which is in ERR: whether it has been executed is
/// not known to the pool.
pub(super) fn excuse_flushed(
    model: &mut Model,
    device: &Device,
    serial: u64,
    work: &Transmit,
    broken: Option<Broken>,
) {
    let owner = model.owner_index(serial).unwrap();
    let at = device
        .queue_pairs
        .iter()
        .position(|qp| qp.id == work.physical);
    let mut sent = at.into_iter().flat_map(|at| device.sent(at));
    if !work.operation.has_effect() {
        return;
    }
    match broken {
        None | Some(Broken::Refusal) => {}
        Some(Broken::Event) => model.excuse(owner, Status::Flushed),
        Some(Broken::Silence) => {
            if sent.any(|sent| model.owner_index(sent.serial) == Some(owner)) {
                model.excuse(owner, Status::RetryExceeded);
            }
        }
    }
}
