//! Memory, completions and events of one simulated end.

use proto_trp::conn::{
    AtomicOp, Completion, Event, Host, NoSharedRecv, ProtectionError, RemoteAccess, RemoteAddr,
    Sge, SharedRecv, WindowBind,
};
use proto_trp::wire::SEGMENT_HEAD_LEN;
use std::collections::VecDeque;
use urdma_types::Psn;

/// Access rights of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The owner's receives and read sinks may write to it.
    pub local_write: bool,
    /// The peer may write to it.
    pub remote_write: bool,
    /// The peer may read it.
    pub remote_read: bool,
    /// The peer may do atomics in it.
    pub remote_atomic: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Rights = Rights {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
    };
}

#[derive(Debug)]
struct Region {
    base: u64,
    octets: Vec<u8>,
    rights: Rights,
    /// Belongs to another protection domain.
    foreign: bool,
}

/// The driver's side of one simulated end.
#[derive(Debug, Default)]
pub struct SimHost {
    regions: Vec<Option<Region>>,
    /// Completions in order.
    pub completions: VecDeque<Completion>,
    /// Events in order.
    pub events: VecDeque<Event>,
    /// The shared receive queue.
    pub shared_recvs: VecDeque<(u64, Vec<Sge>)>,
    /// The number by which the peer names that queue.
    pub shared_queue: u32,
    /// Keys that the peer has invalidated.
    pub invalidated: Vec<u32>,
    /// Keys that this end has invalidated; 0 is refused.
    pub invalidated_here: Vec<u32>,
    /// Keys of memory windows in the order in which they were bound; 0 is refused.
    pub bound: Vec<u32>,
    /// Every packet before this one was accepted.
    pub taken: Option<Psn>,
    /// Where atomics were executed, in order.
    pub atomics: Vec<u64>,
}

/// Regions lie this far apart in the simulated address space.
const SPACING: u64 = 1 << 32;

impl SimHost {
    /// Registers a region and returns its key; it begins at [`SimHost::base`].
    pub fn register(&mut self, octets: Vec<u8>, rights: Rights) -> u32 {
        self.register_in(octets, rights, false)
    }

    /// As [`SimHost::register`], in another protection domain if `foreign`.
    pub fn register_in(&mut self, octets: Vec<u8>, rights: Rights, foreign: bool) -> u32 {
        let index = self.regions.len();
        let key = Self::key(index);
        self.regions.push(Some(Region {
            base: Self::base(key),
            octets,
            rights,
            foreign,
        }));
        key
    }

    fn key(index: usize) -> u32 {
        u32::try_from(index + 1).unwrap_or(0) << 8 | 0x5a
    }

    /// Address of the first octet of a region.
    pub fn base(key: u32) -> u64 {
        u64::from(key >> 8) * SPACING
    }

    /// Deregisters a region.
    pub fn deregister(&mut self, key: u32) {
        if let Some(slot) = (key >> 8).checked_sub(1) {
            if let Some(region) = self.regions.get_mut(slot as usize) {
                *region = None;
            }
        }
    }

    /// The octets of a region.
    ///
    /// # Panics
    /// When there is no such region.
    pub fn octets(&self, key: u32) -> &[u8] {
        &self.region(key).expect("a registered region").octets
    }

    /// The octets of a region.
    ///
    /// # Panics
    /// When there is no such region.
    pub fn octets_mut(&mut self, key: u32) -> &mut [u8] {
        &mut self.region_mut(key).expect("a registered region").octets
    }

    fn region(&self, key: u32) -> Result<&Region, ProtectionError> {
        let slot = (key >> 8).wrapping_sub(1) as usize;
        let region = self.regions.get(slot).and_then(Option::as_ref);
        region
            .filter(|_| key & 0xff == 0x5a)
            .ok_or(ProtectionError::InvalidStag)
    }

    fn region_mut(&mut self, key: u32) -> Result<&mut Region, ProtectionError> {
        self.region(key)?;
        let slot = (key >> 8).wrapping_sub(1) as usize;
        self.regions[slot]
            .as_mut()
            .ok_or(ProtectionError::InvalidStag)
    }

    /// Calls `piece` with each run of a scatter-gather list that holds octets `offset..offset +
    /// len`.
    fn runs(
        sges: &[Sge],
        offset: u64,
        len: usize,
        mut piece: impl FnMut(&Sge, u64, usize, usize) -> Result<(), ProtectionError>,
    ) -> Result<(), ProtectionError> {
        let (mut skip, mut done) = (offset, 0);
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let here = usize::try_from(length - skip)
                .unwrap_or(usize::MAX)
                .min(len - done);
            if here > 0 {
                piece(sge, sge.addr + skip, done, here)?;
            }
            done += here;
            skip = 0;
        }
        if done == len {
            Ok(())
        } else {
            Err(ProtectionError::Bounds)
        }
    }

    fn store(&mut self, sges: &[Sge], offset: u64, octets: &[u8]) -> Result<(), ProtectionError> {
        Self::runs(sges, offset, octets.len(), |sge, addr, _, here| {
            let region = self.region(sge.lkey)?;
            if !region.rights.local_write {
                return Err(ProtectionError::Access);
            }
            region.slice(addr, here as u64).map(|_| ())
        })?;
        Self::runs(sges, offset, octets.len(), |sge, addr, done, here| {
            let region = self.region_mut(sge.lkey)?;
            let range = region.slice(addr, here as u64)?;
            region.octets[range].copy_from_slice(&octets[done..done + here]);
            Ok(())
        })
    }

    fn granted(
        &self,
        remote: RemoteAddr,
        len: u64,
        access: RemoteAccess,
    ) -> Result<&Region, ProtectionError> {
        let region = self.region(remote.stag)?;
        if region.foreign {
            return Err(ProtectionError::NotAssociated);
        }
        let allowed = match access {
            RemoteAccess::Write => region.rights.remote_write,
            RemoteAccess::Read => region.rights.remote_read,
            RemoteAccess::Atomic => region.rights.remote_atomic,
        };
        if !allowed {
            return Err(ProtectionError::Access);
        }
        region.slice(remote.to, len)?;
        Ok(region)
    }
}

impl Region {
    fn slice(&self, addr: u64, len: u64) -> Result<std::ops::Range<usize>, ProtectionError> {
        let end = addr.checked_add(len).ok_or(ProtectionError::Wrap)?;
        let start = addr.checked_sub(self.base).ok_or(ProtectionError::Bounds)?;
        let end = end - self.base;
        if end > self.octets.len() as u64 {
            return Err(ProtectionError::Bounds);
        }
        let index = |at: u64| usize::try_from(at).map_err(|_| ProtectionError::Bounds);
        Ok(index(start)?..index(end)?)
    }
}

impl Host for SimHost {
    type Body = [u8];

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), ProtectionError> {
        Self::runs(sges, offset, out.len(), |sge, addr, done, here| {
            let region = self.region(sge.lkey)?;
            let range = region.slice(addr, here as u64)?;
            out[done..done + here].copy_from_slice(&region.octets[range]);
            Ok(())
        })
    }

    fn scatter(
        &mut self,
        sges: &[Sge],
        offset: u64,
        body: &[u8],
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError> {
        self.store(sges, offset, &body[at..at + len])
    }

    fn scatter_u64(&mut self, sges: &[Sge], value: u64) -> Result<(), ProtectionError> {
        self.store(sges, 0, &value.to_ne_bytes())
    }

    fn check_remote(
        &mut self,
        remote: RemoteAddr,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), ProtectionError> {
        self.granted(remote, len, access).map(|_| ())
    }

    fn write_remote(
        &mut self,
        remote: RemoteAddr,
        body: &[u8],
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError> {
        self.write_kept(remote, &body[at..at + len])
    }

    fn peek(&mut self, body: &[u8], at: usize, out: &mut [u8; SEGMENT_HEAD_LEN]) {
        let len = out.len().min(body.len() - at);
        out[..len].copy_from_slice(&body[at..at + len]);
    }

    fn keep(&mut self, body: &[u8], at: usize, len: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&body[at..at + len]);
    }

    fn write_kept(&mut self, remote: RemoteAddr, octets: &[u8]) -> Result<(), ProtectionError> {
        let len = octets.len() as u64;
        self.granted(remote, len, RemoteAccess::Write)?;
        let region = self.region_mut(remote.stag)?;
        let range = region.slice(remote.to, len)?;
        region.octets[range].copy_from_slice(octets);
        Ok(())
    }

    fn read_remote(&mut self, remote: RemoteAddr, out: &mut [u8]) -> Result<(), ProtectionError> {
        let region = self.granted(remote, out.len() as u64, RemoteAccess::Read)?;
        out.copy_from_slice(&region.octets[region.slice(remote.to, out.len() as u64)?]);
        Ok(())
    }

    fn atomic(&mut self, remote: RemoteAddr, op: AtomicOp) -> Result<u64, ProtectionError> {
        self.granted(remote, 8, op.access())?;
        if remote.to & 7 != 0 {
            return Err(ProtectionError::Misaligned);
        }
        let region = self.region_mut(remote.stag)?;
        let range = region.slice(remote.to, 8)?;
        let word = &mut region.octets[range];
        let old = u64::from_ne_bytes(word.try_into().map_err(|_| ProtectionError::Bounds)?);
        word.copy_from_slice(&op.apply(old).to_ne_bytes());
        self.atomics.push(remote.to);
        Ok(old)
    }

    fn invalidate(&mut self, stag: u32) -> Result<(), ProtectionError> {
        self.region(stag)
            .map_err(|_| ProtectionError::CannotInvalidate)?;
        self.invalidated.push(stag);
        Ok(())
    }

    fn invalidate_local(&mut self, stag: u32) -> Result<(), ProtectionError> {
        if stag == 0 {
            return Err(ProtectionError::CannotInvalidate);
        }
        self.invalidated_here.push(stag);
        Ok(())
    }

    fn bind_window(&mut self, bind: &WindowBind) -> Result<(), ProtectionError> {
        if bind.key == 0 {
            return Err(ProtectionError::InvalidStag);
        }
        self.bound.push(bind.key);
        Ok(())
    }

    fn take_shared_recv(
        &mut self,
        queue: u32,
        sges: &mut [Sge],
    ) -> Result<SharedRecv, NoSharedRecv> {
        if queue != self.shared_queue {
            return Err(NoSharedRecv::NoQueue);
        }
        let taken = self.shared_recvs.pop_front();
        let (wr_id, list) = taken.ok_or(NoSharedRecv::Empty)?;
        sges[..list.len()].copy_from_slice(&list);
        Ok(SharedRecv {
            wr_id,
            sge_count: u8::try_from(list.len()).unwrap_or(0),
        })
    }

    fn complete_shared(&mut self, queue: u32, completion: Completion) {
        assert_eq!(queue, self.shared_queue);
        self.complete(completion);
    }

    fn taken(&mut self, next: Psn) {
        self.taken = Some(next);
    }

    fn complete(&mut self, completion: Completion) {
        self.completions.push_back(completion);
    }

    fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }
}
