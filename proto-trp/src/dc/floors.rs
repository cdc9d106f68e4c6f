//! What a target keeps of connections beyond their contexts: for each group of initiators, the
//! highest epoch that was accepted or refused. Its size is fixed.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::ends::DcSource;

/// Groups of initiators; those of one group cost one another a round trip to connect, and nothing
/// else.
const GROUPS: usize = 4096;
/// How far an epoch may be above the floor of its group, so that no packet uses the numbers up.
const EPOCH_STEP_MAX: u64 = 1 << 16;

/// Tokens and floors of one target.
#[derive(Debug)]
pub(super) struct Floors {
    secret: [u64; 2],
    floors: Box<[u64]>,
}

impl Floors {
    /// The floors of a new target; `secret` is random and not used again.
    pub(super) fn new(secret: [u64; 2]) -> Self {
        Self {
            secret,
            floors: vec![0; GROUPS].into(),
        }
    }

    /// A keyed hash: `DefaultHasher` is SipHash, which is a pseudo-random function of what follows
    /// the secret. Only this process compares the results.
    fn hash(&self, purpose: u8, source: &DcSource) -> u64 {
        let mut hasher = DefaultHasher::new();
        (
            self.secret,
            purpose,
            source.address,
            source.initiator.to_u32(),
        )
            .hash(&mut hasher);
        hasher.finish()
    }

    /// The token of an initiator; never 0.
    pub(super) fn token(&self, source: &DcSource) -> u32 {
        // R17.2-1
        //# The **token** of an initiator MUST be a keyed hash of its IP address and QPN under that
        //# secret, and not 0; no state is kept for it.
        let [a, b, c, d, ..] = self.hash(0, source).to_be_bytes();
        u32::from_be_bytes([a, b, c, d]).max(1)
    }

    fn group(&self, source: &DcSource) -> usize {
        let [.., a, b] = self.hash(1, source).to_be_bytes();
        usize::from(u16::from_be_bytes([a, b])) % GROUPS
    }

    /// The highest epoch that is not accepted any more.
    pub(super) fn floor(&self, source: &DcSource) -> u64 {
        self.floors[self.group(source)]
    }

    /// Whether a connection with this epoch may begin.
    pub(super) fn admits(&self, source: &DcSource, epoch: u64) -> bool {
        let floor = self.floor(source);
        // R17.2-3, R17.2-4
        //# An epoch that is not above the floor MUST NOT begin a context: it is refused.
        //# So MUST be one that is more than 65536 above the floor: no packet can use the numbers
        //# up.
        epoch > floor && epoch - floor <= EPOCH_STEP_MAX
    }

    /// No connection with this epoch, which is admitted, begins from now on.
    pub(super) fn raise(&mut self, source: &DcSource, epoch: u64) {
        let group = self.group(source);
        self.floors[group] = self.floors[group].max(epoch);
    }
}
