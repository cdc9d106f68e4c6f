//! The driver's side of a connection: access to application memory, and sinks for completions and
//! events.

use super::types::{
    Completion, Event, NoSharedRecv, RemoteAddr, Sge, SharedRecv, Trace, WindowBind,
};
use crate::wire::SEGMENT_HEAD_LEN;
use urdma_types::Psn;

/// Why an access to memory is refused; RFC 5040 section 4.8 has one code for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectionError {
    /// No region has this key, or only an older one had.
    InvalidStag,
    /// Outside the region or window.
    Bounds,
    /// The region does not grant the right.
    Access,
    /// The region belongs to another protection domain or queue pair.
    NotAssociated,
    /// Offset plus length runs over 2^64.
    Wrap,
    /// The operand of an atomic is not aligned to 8 octets.
    Misaligned,
    /// The key cannot be invalidated.
    CannotInvalidate,
}

/// The kind of a remote access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// Write.
    Write,
    /// Read.
    Read,
    /// 64-bit atomic.
    Atomic,
}

/// A 64-bit atomic operation with RFC 7306's masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds; a set bit of the mask stops the carry above that bit, 0 for a plain 64-bit addition.
    FetchAdd {
        /// Value to add.
        add: u64,
        /// Carry boundaries.
        mask: u64,
    },
    /// Swaps the bits of `swap_mask` when the bits of `compare_mask` are equal.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Value to store.
        swap: u64,
        /// Bits that are stored.
        swap_mask: u64,
    },
    /// Stores these octets; requires the right to write only.
    Write {
        /// The new value.
        octets: [u8; 8],
    },
}

impl AtomicOp {
    /// The required right.
    #[inline]
    pub const fn access(self) -> RemoteAccess {
        match self {
            AtomicOp::FetchAdd { .. } | AtomicOp::CompareSwap { .. } => RemoteAccess::Atomic,
            AtomicOp::Write { .. } => RemoteAccess::Write,
        }
    }

    /// The value that replaces `old` in memory.
    #[inline]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            AtomicOp::FetchAdd { add, mask } => masked_add(old, add, mask),
            AtomicOp::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                // RFC7306-5.1.2-1
                //# After a CmpSwap the memory has the swapped bits if the comparison matched, and
                //# else its old value.
                if (old ^ compare) & compare_mask == 0 {
                    (old & !swap_mask) | (swap & swap_mask)
                } else {
                    old
                }
            }
            AtomicOp::Write { octets } => u64::from_ne_bytes(octets),
        }
    }
}

/// Adds bit by bit, forgetting the carry out of every bit that is set in `mask` (RFC 7306 section
/// 5.1.1).
const fn masked_add(old: u64, add: u64, mask: u64) -> u64 {
    // Add everything below the boundary bits without their carries, then the boundary bits
    // themselves.
    let sum = (old & !mask).wrapping_add(add & !mask);
    sum ^ ((old ^ add) & mask)
}

/// The driver's side of a connection.
///
/// Every method that returns a `Result` makes the access check itself: key, protection domain,
/// rights, bounds, wrap. A host writes nothing if it returns a [`ProtectionError`]. Protection
/// domain and queue pair are known to the host only.
pub trait Host {
    /// A handle of a received datagram, which only the host can read. Offsets into it count from
    /// the first octet of the TRP header.
    type Body: ?Sized;

    /// Copies `out.len()` octets at `offset` in the concatenation of `sges` to `out`.
    ///
    /// # Errors
    /// The list may not be read, or is too short ([`ProtectionError::Bounds`]).
    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), ProtectionError>;

    /// Copies `len` octets of `body` from `at` into the concatenation of `sges`, the list of a
    /// receive request, at `offset`.
    ///
    /// # Errors
    /// The list lacks local write access or is too short.
    fn scatter(
        &mut self,
        sges: &[Sge],
        offset: u64,
        body: &Self::Body,
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError>;

    /// As [`Host::scatter`], into the list of a read of this end. The two differ where receive
    /// requests come from a shared queue, which may have a protection domain of its own.
    ///
    /// # Errors
    /// As there.
    fn scatter_response(
        &mut self,
        sges: &[Sge],
        offset: u64,
        body: &Self::Body,
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError> {
        self.scatter(sges, offset, body, at, len)
    }

    /// Stores an atomic's old value, in host order, into the first 8 octets of the concatenation of
    /// `sges`.
    ///
    /// # Errors
    /// The list lacks local write access or is too short.
    fn scatter_u64(&mut self, sges: &[Sge], value: u64) -> Result<(), ProtectionError>;

    /// Checks whether the peer has the right `access` to `len` octets.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn check_remote(
        &mut self,
        remote: RemoteAddr,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), ProtectionError>;

    /// Writes `len` octets of `body` from `at` to memory that the peer names.
    ///
    /// # Errors
    /// The peer may not write there.
    fn write_remote(
        &mut self,
        remote: RemoteAddr,
        body: &Self::Body,
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError>;

    /// Copies octets of `body` from `at` to `out`, as many as exist and fit; the rest of `out` is
    /// undefined.
    fn peek(&mut self, body: &Self::Body, at: usize, out: &mut [u8; SEGMENT_HEAD_LEN]);

    /// Appends `len` octets of `body` from `at` to `out`, which has room for them.
    fn keep(&mut self, body: &Self::Body, at: usize, len: usize, out: &mut Vec<u8>);

    /// As [`Host::write_remote`], from the reorder buffer.
    ///
    /// # Errors
    /// The peer may not write there.
    fn write_kept(&mut self, remote: RemoteAddr, octets: &[u8]) -> Result<(), ProtectionError>;

    /// Reads `out.len()` octets of memory that the peer names.
    ///
    /// # Errors
    /// The peer may not read there.
    fn read_remote(&mut self, remote: RemoteAddr, out: &mut [u8]) -> Result<(), ProtectionError>;

    /// Executes `op` on the 64-bit word that the peer names and returns the old value.
    ///
    /// # Errors
    /// The peer lacks the right, or the word is misaligned.
    fn atomic(&mut self, remote: RemoteAddr, op: AtomicOp) -> Result<u64, ProtectionError>;

    /// Invalidates a key on the peer's request.
    ///
    /// # Errors
    /// The key cannot be invalidated by this peer.
    fn invalidate(&mut self, stag: u32) -> Result<(), ProtectionError>;

    /// Invalidates a key for this end.
    ///
    /// # Errors
    /// This queue pair may not invalidate the key.
    fn invalidate_local(&mut self, stag: u32) -> Result<(), ProtectionError> {
        let _ = stag;
        Err(ProtectionError::CannotInvalidate)
    }

    /// Binds a memory window.
    ///
    /// # Errors
    /// The binding is not allowed.
    fn bind_window(&mut self, bind: &WindowBind) -> Result<(), ProtectionError> {
        let _ = bind;
        Err(ProtectionError::InvalidStag)
    }

    /// Takes the next work request of the shared receive queue `queue`, which the peer named last,
    /// 0 if it names none; fills `sges`.
    ///
    /// Only called for connections with [`super::ConnConfig::shared_recv`].
    ///
    /// # Errors
    /// [`NoSharedRecv`].
    fn take_shared_recv(
        &mut self,
        queue: u32,
        sges: &mut [Sge],
    ) -> Result<SharedRecv, NoSharedRecv> {
        let _ = (queue, sges);
        Err(NoSharedRecv::NoQueue)
    }

    /// As [`Host::complete`], for a work request that was taken from this shared receive queue.
    fn complete_shared(&mut self, queue: u32, completion: Completion) {
        let _ = queue;
        self.complete(completion);
    }

    /// Every packet of the peer's stream before `next` is accepted from now on, though it may not
    /// be acknowledged yet. Called before a packet has an effect, and again with the previous
    /// number if the packet is refused.
    fn taken(&mut self, next: Psn) {
        let _ = next;
    }

    /// A work request has completed, with a status for the application.
    ///
    /// Successful unsignaled requests are not reported.
    fn complete(&mut self, completion: Completion);

    /// An asynchronous event of the connection.
    fn event(&mut self, event: Event);

    /// Something that a tracer may want to know; nothing depends on it.
    #[inline]
    fn trace(&mut self, trace: Trace) {
        let _ = trace;
    }
}
