//! Check 1: what memory a request may name, and which memory requests in progress use.

use arrayvec::ArrayVec;

use crate::config::Config;
use crate::error::{CallError, PostError};
use crate::fault::{Fault, Faults};
use crate::per_element::PerElement;
use crate::slots::Slots;
use crate::types::{
    Element, LocalRegion, LocalRegionId, NodeId, Operation, RemoteRegion, RemoteRegionId, Request,
    Sge, UserId, ATOMIC_OCTETS, ELEMENTS_MAX,
};

#[derive(Debug)]
struct Local {
    region: LocalRegion,
    /// Requests that are not complete.
    uses: u32,
    /// It is deregistered when `uses` is 0, and takes no request until then.
    is_ending: bool,
}

/// An element that may be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) local: LocalRegionId,
    pub(crate) sge: Sge,
}

impl Piece {
    /// An element with the key of its region.
    #[inline(always)]
    pub(crate) fn new(element: &Element, lkey: u32) -> Self {
        let sge = Sge {
            addr: element.addr,
            len_octets: element.len_octets,
            lkey,
        };
        Self {
            local: element.local,
            sge,
        }
    }
}

/// Those of a Receive.
pub(crate) type Pieces = ArrayVec<Piece, ELEMENTS_MAX>;

/// The parts of elements that `len_octets` octets from an offset on are in, none of them empty.
pub(crate) fn cut<T: IntoIterator<Item = Piece>>(
    pieces: T,
    mut offset: u32,
    mut len_octets: u32,
) -> impl Iterator<Item = Piece> + use<T> {
    pieces.into_iter().filter_map(move |piece| {
        let skipped = offset.min(piece.sge.len_octets);
        offset -= skipped;
        let len = (piece.sge.len_octets - skipped).min(len_octets);
        len_octets -= len;
        let sge = Sge {
            addr: piece.sge.addr + u64::from(skipped),
            len_octets: len,
            ..piece.sge
        };
        (len > 0).then_some(Piece { sge, ..piece })
    })
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

    /// Notes that a segment uses the local region of an element.
    pub(crate) fn use_local(&mut self, piece: &Piece) {
        if let Some(local) = self.local.get_mut(piece.local.0) {
            local.uses += 1;
        }
    }

    /// Notes that one uses it no more; whether it is to be deregistered now.
    #[inline(always)]
    pub(crate) fn release(&mut self, id: LocalRegionId) -> bool {
        let Some(local) = self.local.get_mut(id.0) else {
            return false;
        };
        local.uses -= 1;
        local.is_ending && self.end_if_unused(id)
    }

    /// Removes a local region that is ending, unless it is used; whether it is to be deregistered
    /// now.
    #[inline(never)]
    fn end_if_unused(&mut self, id: LocalRegionId) -> bool {
        let is_unused = self.local.get(id.0).is_some_and(|local| local.uses == 0);
        is_unused && self.local.remove(id.0).is_some()
    }

    /// Notes that a request uses the local region of its only element, if it has one element.
    #[inline(always)]
    pub(crate) fn use_only(&mut self, pieces: PerElement<Piece>) {
        if let Some(only) = pieces.only() {
            self.use_local(&only);
        }
    }

    /// Notes that a request of this user uses local memory, if it may use it so; its key.
    #[inline(always)]
    fn use_element(
        &mut self,
        by: (UserId, Operation),
        element: &Element,
        faults: Faults,
    ) -> Result<u32, PostError> {
        let found = self.checked_element(by, element, faults)?;
        found.uses += 1;
        Ok(found.region.lkey)
    }

    /// The key of local memory, if a request of this user may use it so.
    #[inline(always)]
    pub(crate) fn check_element(
        &mut self,
        by: (UserId, Operation),
        element: &Element,
        faults: Faults,
    ) -> Result<u32, PostError> {
        let found = self.checked_element(by, element, faults)?;
        Ok(found.region.lkey)
    }

    /// The local memory of an element that a request of this user may use so.
    #[inline(always)]
    fn checked_element(
        &mut self,
        (user, operation): (UserId, Operation),
        element: &Element,
        faults: Faults,
    ) -> Result<&mut Local, PostError> {
        let Element {
            local: id,
            addr,
            len_octets,
        } = *element;
        let found = self.local.get_mut(id.0).ok_or(PostError::LocalRegion)?;
        let local = &found.region;
        if found.is_ending || (local.user != user && !faults.has(Fault::NoOwner)) {
            return Err(PostError::LocalRegion);
        }
        if !contains(local.addr, local.len_octets, addr, len_octets.into())
            && !faults.has(Fault::NoLocalBounds)
        {
            return Err(PostError::LocalBounds);
        }
        if operation.writes_locally() && !local.access.write {
            return Err(PostError::LocalAccess);
        }
        Ok(found)
    }

    /// Notes that a request of this user uses the local memory of its elements; the key of the
    /// first of them, 0 if there is none. The others are given to `add`. If one names memory that
    /// it may not use so, none is used; the caller takes those back that were added.
    pub(crate) fn use_elements(
        &mut self,
        by: (UserId, Operation),
        elements: &[Element],
        faults: Faults,
        add: impl FnMut(Piece),
    ) -> Result<u32, PostError> {
        let Some(first) = elements.first() else {
            return Ok(0);
        };
        let lkey = self.use_element(by, first, faults)?;
        if elements.len() > 1 {
            self.use_others(by, elements, faults, add)?;
        }
        Ok(lkey)
    }

    /// The same of the elements behind the first, which is used.
    fn use_others(
        &mut self,
        by: (UserId, Operation),
        elements: &[Element],
        faults: Faults,
        mut add: impl FnMut(Piece),
    ) -> Result<(), PostError> {
        for (at, element) in elements.iter().enumerate().skip(1) {
            match self.use_element(by, element, faults) {
                Ok(lkey) => add(Piece::new(element, lkey)),
                Err(_) if faults.has(Fault::FirstElementChecked) => {
                    let lkey = self.use_element(by, &elements[0], faults)?;
                    add(Piece::new(&elements[0], lkey));
                }
                Err(error) => {
                    if !faults.has(Fault::RefusedUseMemory) {
                        self.unuse(&elements[..at]);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes the uses of elements back, whose regions have not ended.
    #[cold]
    fn unuse(&mut self, elements: &[Element]) {
        for element in elements {
            if let Some(local) = self.local.get_mut(element.local.0) {
                local.uses -= 1;
            }
        }
    }

    /// Whether a request to this node names memory of it that it may use so; its key.
    #[inline(always)]
    pub(crate) fn check_remote(
        &self,
        node: NodeId,
        request: &Request,
        len_octets: u32,
        faults: Faults,
    ) -> Result<u32, PostError> {
        let remote = self.remote.get(request.remote.0);
        let remote = remote.ok_or(PostError::RemoteRegion)?;
        if remote.node != node && !faults.has(Fault::NoNode) {
            return Err(PostError::RemoteRegion);
        }
        let (at, len) = (request.remote_addr, len_octets.into());
        if !contains(remote.addr, remote.len_octets, at, len) && !faults.has(Fault::NoRemoteBounds)
        {
            return Err(PostError::RemoteBounds);
        }
        if !remote.access.permits(request.operation) && !faults.has(Fault::NoRights) {
            return Err(PostError::RemoteAccess);
        }
        Ok(remote.rkey)
    }
}

/// Whether the number of elements, the length and the alignment are possible; the length.
#[inline(always)]
pub(crate) fn check_shape(
    request: &Request,
    elements: &[Element],
    config: &Config,
    faults: Faults,
) -> Result<u32, PostError> {
    let len = match elements {
        // Every operation may have one.
        [only] => only.len_octets,
        _ => check_count(request.operation, elements, config, faults)?,
    };
    if request.operation.is_send() {
        return Err(PostError::Operation);
    }
    if !request.operation.is_atomic() {
        if len > config.message_octets_max {
            return Err(PostError::Length);
        }
        return Ok(len);
    }
    if len != ATOMIC_OCTETS {
        return Err(PostError::Length);
    }
    let is_aligned = request.remote_addr.is_multiple_of(u64::from(ATOMIC_OCTETS));
    is_aligned.then_some(len).ok_or(PostError::Alignment)
}

/// Whether an operation may have another number of elements than one; the length.
#[inline(never)]
fn check_count(
    operation: Operation,
    elements: &[Element],
    config: &Config,
    faults: Faults,
) -> Result<u32, PostError> {
    let most = match operation {
        Operation::Read => config.elements_max.min(config.read_elements_max),
        Operation::Write => config.elements_max,
        Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
            return Err(PostError::Elements)
        }
        Operation::Send { .. } => return Err(PostError::Operation),
    };
    if elements.len() > most as usize && !faults.has(Fault::ElementsUnbounded) {
        return Err(PostError::Elements);
    }
    length_of(elements)
}

/// Octets of all elements.
pub(crate) fn length_of(elements: &[Element]) -> Result<u32, PostError> {
    let lengths = elements.iter().map(|element| u64::from(element.len_octets));
    u32::try_from(lengths.sum::<u64>()).map_err(|_| PostError::Length)
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
