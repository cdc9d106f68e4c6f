//! Long messages inside a host in one copy (cross memory attach), receiving side. The payload of a
//! SEND or WRITE stays in the sender's memory, its frame names the location, and the receiver has
//! the kernel copy it from there to its destination (doc/adr/0008-one-copy-inside-a-host.md).
//!
//! A frame that refers to payload ends with [`ENTRY`]s in its place: address and value of the queue
//! pair's witness, then address and length of each piece. A witness is a word with an unguessable
//! value. It is read behind the payload by the same system call, and the octets count only if its
//! value is the one in the frame. They are then those of that very process (process numbers are
//! reused, and differ between pid namespaces), and of a request that had not ended: a queue pair
//! changes its witness before it returns failed requests.
//!
//! A peer refers to payload only if this process states in the slot table that it can read the
//! peer's memory, which it tests when it connects ([`Cma::probe`]). A payload that nevertheless
//! cannot be read counts as lost. Retransmissions are always copied.

use std::cell::Cell;

use arrayvec::ArrayVec;
use proto_trp::conn::PlaceError;
use proto_trp::wire::{trp, PacketType};
use urdma_arena::{Endpoint, Referred, RxFrame, Witness};
use urdma_types::SlotId;

use super::address::pointer;
use super::random::random_u64;
use super::types::LIMITS;

#[cfg(test)]
mod tests;

/// Payload of at least this length stays in place: below, two copies are faster than the system
/// call.
pub(super) const REFER_FROM: usize = 32 * 1024;
/// The `refer_from` of a host that copies all payload.
pub(super) const NEVER: usize = usize::MAX;
/// Octets of an entry: two words.
pub(super) const ENTRY: usize = 16;
/// Pieces of a payload and its witness; as many destinations, and one for the last octet of a
/// write.
const VECTORS_MAX: usize = LIMITS.max_sge as usize + 2;
/// Unreadable payloads of a peer after which it is asked to copy.
const FAULTS_MAX: u32 = 4;

type Vectors = ArrayVec<libc::iovec, VECTORS_MAX>;
/// Copies from the memory of a process to vectors of this one: gives the octets copied, or the
/// error's number.
type Read = fn(u32, &Vectors, &Vectors) -> Result<usize, i32>;

/// What is known of the memory of a peer.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// Its witness when this was tested.
    witness: Witness,
    is_readable: bool,
    /// Payloads that could not be read.
    faults: u32,
}

/// Which peers this process reads; a part of the shard.
pub(super) struct Cma {
    is_on: bool,
    /// The word by which peers test that they can read this process' memory; never moves.
    _witness: Box<u64>,
    /// By slot.
    peers: Vec<Option<Peer>>,
    read: Read,
}

impl Cma {
    /// No peer is known. Peers that test find this process readable, if `is_on`.
    pub(super) fn new(is_on: bool, endpoint: &Endpoint) -> Self {
        let witness = Box::new(random_u64());
        if is_on {
            endpoint.show_witness(
                std::ptr::from_ref(&*witness).expose_provenance() as u64,
                *witness,
            );
        }
        Self {
            is_on,
            _witness: witness,
            peers: Vec::new(),
            read: read_by_kernel,
        }
    }

    /// Tests whether the memory of the process in `slot` can be read, and publishes the result.
    pub(super) fn probe(&mut self, endpoint: &Endpoint, slot: SlotId) {
        let Some(witness) = endpoint.arena().witness(slot).filter(|_| self.is_on) else {
            return;
        };
        let index = usize::from(slot.number());
        if self.peers.len() <= index {
            self.peers.resize(index + 1, None);
        }
        if self.peers[index].is_some_and(|peer| peer.witness == witness) {
            return;
        }
        let is_readable = self.sees(witness);
        self.peers[index] = Some(Peer {
            witness,
            is_readable,
            faults: 0,
        });
        endpoint.set_reads(slot, is_readable);
    }

    /// Whether the peer's witness word can be read.
    fn sees(&self, witness: Witness) -> bool {
        let mut seen = 0u64;
        let (mut own, mut far) = (Vectors::new(), Vectors::new());
        own.push(vector(
            std::ptr::from_mut(&mut seen).cast(),
            size_of::<u64>(),
        ));
        far.push(vector(pointer(witness.at), size_of::<u64>()));
        (self.read)(witness.pid, &own, &far) == Ok(size_of::<u64>()) && seen == witness.word
    }

    /// Drops what is kept for the process in `slot`, which has ended.
    pub(super) fn forget(&mut self, endpoint: &Endpoint, slot: SlotId) {
        if let Some(peer) = self.peers.get_mut(usize::from(slot.number())) {
            *peer = None;
            endpoint.set_reads(slot, false);
        }
    }

    /// The length from which payload of a datagram for `to` may stay in place: that process must be
    /// able to read it.
    #[inline]
    pub(super) fn refer_from(&self, endpoint: &Endpoint, to: SlotId) -> usize {
        let arena = endpoint.arena();
        if self.is_on && arena.reads(to, endpoint.slot()) {
            REFER_FROM
        } else {
            NEVER
        }
    }

    /// Opens the payload that a frame from `slot` refers to; None when the frame is inconsistent or
    /// that process' memory cannot be read.
    pub(super) fn open(
        &mut self,
        endpoint: &Endpoint,
        slot: SlotId,
        frame: &RxFrame,
        referred: Referred,
    ) -> Option<RemotePayload> {
        let index = usize::from(slot.number());
        if self.peers.get(index).copied().flatten().is_none() {
            // The peer relies on what an earlier process in this slot published.
            self.probe(endpoint, slot);
        }
        let peer = self.peers.get(index).copied().flatten()?;
        if !peer.is_readable {
            return None;
        }
        RemotePayload::parse(frame, referred, peer.witness.pid, self.read)
    }

    /// Notes a payload that could not be read; after some of them the peer is asked to copy.
    #[cold]
    pub(super) fn note(&mut self, endpoint: &Endpoint, slot: SlotId, error: i32) {
        let Some(Some(peer)) = self.peers.get_mut(usize::from(slot.number())) else {
            return;
        };
        peer.faults += 1;
        if peer.faults >= FAULTS_MAX || matches!(error, libc::EPERM | libc::ENOSYS) {
            peer.is_readable = false;
            endpoint.set_reads(slot, false);
        }
    }

    /// Slots of peers from which long messages are copied twice, because their memory cannot be
    /// read.
    pub(super) fn unreadable(&self) -> Vec<u8> {
        let peers = (0..).zip(&self.peers);
        peers
            .filter_map(|(slot, peer)| peer.filter(|peer| !peer.is_readable).map(|_| slot))
            .collect()
    }
}

/// Why a payload could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// The error of the system call; EFAULT also when it stopped half-way.
    Error(i32),
    /// The request to which it belongs has ended, or its process.
    Ended,
}

/// Payload in another process' memory.
#[derive(Debug)]
pub(super) struct RemotePayload {
    pid: u32,
    begin: usize,
    octets: usize,
    /// The pieces, and the witness.
    pieces: Vectors,
    word: u64,
    read: Read,
    missing: Cell<Option<Missing>>,
}

impl RemotePayload {
    fn parse(frame: &RxFrame, referred: Referred, pid: u32, read: Read) -> Option<Self> {
        let mut first = [0; trp::HEADER_LEN];
        // The list is copied before it is looked at, as everything from shared memory.
        let mut list = [0; ENTRY * VECTORS_MAX];
        let list = list.get_mut(..ENTRY * usize::from(referred.entries))?;
        let begin = frame.len().checked_sub(list.len())?;
        if !frame.copy_to_slice(0, &mut first) || !frame.copy_to_slice(begin, list) {
            return None;
        }
        if first[trp::field::VERSION_TYPE] != PacketType::Data.first_octet() {
            return None;
        }
        let mut words = list.chunks_exact(ENTRY).map(|entry| {
            let (first, second) = entry.split_at(ENTRY / 2);
            (word_of(first), word_of(second))
        });
        let (witness_at, word) = words.next()?;
        let mut pieces = Vectors::new();
        let mut octets = 0usize;
        for (at, len) in words {
            let len = usize::try_from(len).ok()?;
            octets = octets.checked_add(len)?;
            pieces.try_push(vector(pointer(at), len)).ok()?;
        }
        let witness = vector(pointer(witness_at), size_of::<u64>());
        pieces.try_push(witness).ok()?;
        (octets == referred.octets as usize).then_some(Self {
            pid,
            begin,
            octets,
            pieces,
            word,
            read,
            missing: Cell::new(None),
        })
    }

    /// Octets of the datagram before the payload.
    pub(super) fn begin(&self) -> usize {
        self.begin
    }

    /// Octets of the payload.
    pub(super) fn len(&self) -> usize {
        self.octets
    }

    /// The error that made it unreadable, if it concerns the peer's memory as a whole.
    pub(super) fn error(&self) -> Option<i32> {
        match self.missing.get() {
            Some(Missing::Error(error)) => Some(error),
            Some(Missing::Ended) | None => None,
        }
    }

    /// Copies the payload, which is to be the `len` octets at `at` of its datagram, to `places`,
    /// which hold as many.
    ///
    /// # Safety
    /// The places are writable.
    pub(super) unsafe fn copy_to(
        &self,
        at: usize,
        len: usize,
        places: &mut Destinations,
    ) -> Result<(), PlaceError> {
        // An inconsistent datagram has no payload either.
        if at != self.begin || len != self.octets || places.octets != len {
            return Err(PlaceError::NoPayload);
        }
        let mut word = 0u64;
        let seen = vector(std::ptr::from_mut(&mut word).cast(), size_of::<u64>());
        places.vectors.push(seen);
        let missing = match (self.read)(self.pid, &places.vectors, &self.pieces) {
            Ok(octets) if octets == len + size_of::<u64>() => {
                if word == self.word {
                    return Ok(());
                }
                Missing::Ended
            }
            Ok(_) => Missing::Error(libc::EFAULT),
            Err(error) => Missing::Error(error),
        };
        self.missing.set(Some(missing));
        Err(PlaceError::NoPayload)
    }

    /// A copy of the payload.
    pub(super) fn to_vec(&self, at: usize, len: usize) -> Result<Vec<u8>, PlaceError> {
        let mut octets = vec![0; self.octets];
        let mut places = Destinations::new();
        places.push(octets.as_mut_ptr(), octets.len());
        // SAFETY: a vector is writable for its length.
        unsafe { self.copy_to(at, len, &mut places)? };
        Ok(octets)
    }
}

/// Where a payload is copied to.
pub(super) struct Destinations {
    vectors: Vectors,
    octets: usize,
}

impl Destinations {
    pub(super) fn new() -> Self {
        Self {
            vectors: Vectors::new(),
            octets: 0,
        }
    }

    /// Adds a destination; a list of a work request has no more than there is room for.
    pub(super) fn push(&mut self, at: *mut u8, octets: usize) {
        self.vectors.push(vector(at, octets));
        self.octets += octets;
    }
}

/// Octets by which the frame is shorter than the datagram.
#[inline]
pub(super) fn octets_saved(referred: Referred) -> usize {
    referred.octets as usize - ENTRY * usize::from(referred.entries)
}

fn word_of(octets: &[u8]) -> u64 {
    octets.try_into().map_or(0, u64::from_ne_bytes)
}

fn vector(at: *mut u8, octets: usize) -> libc::iovec {
    libc::iovec {
        iov_base: at.cast(),
        iov_len: octets,
    }
}

fn read_by_kernel(pid: u32, own: &Vectors, far: &Vectors) -> Result<usize, i32> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| libc::ESRCH)?;
    // Both are at most VECTORS_MAX.
    let (own_count, far_count) = (own.len() as libc::c_ulong, far.len() as libc::c_ulong);
    // SAFETY: `own` are places that `Destinations` or this file's functions were given as writable;
    // the kernel checks what is in the other process.
    let octets =
        unsafe { libc::process_vm_readv(pid, own.as_ptr(), own_count, far.as_ptr(), far_count, 0) };
    usize::try_from(octets).map_err(|_| {
        let error = std::io::Error::last_os_error();
        error.raw_os_error().unwrap_or(libc::EFAULT)
    })
}
