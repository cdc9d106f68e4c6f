//! The sender's side of payload by reference (`cma.rs`): a datagram that names where its payload
//! is.

use proto_trp::conn::Sge;
use urdma_arena::Referred;

use super::cma::ENTRY;
use super::memory::{ListKind, QpHost};

/// Messages up to this length are referred to: longer ones do not fit into a core's cache twice,
/// and then two cores that copy are faster than one.
pub(super) const REFERRED_MESSAGE_MAX: u64 = 512 * 1024;

impl QpHost<'_> {
    /// Writes where the `out.len()` octets are that begin `offset` octets into the list to the
    /// beginning of `out`, instead of them. None when they are to be gathered: the message is too
    /// long, or some of them are not plainly there.
    #[inline(never)]
    pub(super) fn refer(&self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Option<Referred> {
        let message: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if message > REFERRED_MESSAGE_MAX {
            return None;
        }
        let len = out.len();
        let mut entries = out.chunks_exact_mut(ENTRY);
        let mut count = 0u8;
        let mut put = |first: u64, second: u64| {
            if let Some(entry) = entries.next() {
                entry[..ENTRY / 2].copy_from_slice(&first.to_ne_bytes());
                entry[ENTRY / 2..].copy_from_slice(&second.to_ne_bytes());
                count += 1;
            }
        };
        let (at, word) = self.qp.witness();
        put(at, word);
        // `out` is long, a list has few pieces: there is room for all.
        self.pieces(sges, offset, len, ListKind::Source, |address, _, octets| {
            put(address, octets as u64);
        })
        .ok()?;
        Some(Referred {
            octets: u32::try_from(len).ok()?,
            entries: count,
        })
    }
}
