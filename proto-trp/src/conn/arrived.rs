//! The receive state of an unreliable stream.

use super::num::len32;
use urdma_types::Psn;

/// A packet that is behind the expected one by no more than this is late. One that seems further
/// behind is far ahead: half of the number space was lost.
const LATE_PACKETS: i32 = 1 << 16;

/// Receive state of the peer's stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    /// The next expected number.
    expected: Psn,
    /// Octets of the write that is arriving, complete since the last gap.
    write_octets: u32,
    /// The same of the last write that has ended.
    pub(super) ended_write_octets: u32,
}

impl Default for Arrived {
    fn default() -> Self {
        Self::from(Psn::new(0))
    }
}

impl From<Psn> for Arrived {
    fn from(expected: Psn) -> Self {
        Self {
            expected,
            write_octets: 0,
            ended_write_octets: 0,
        }
    }
}

impl Arrived {
    /// Counts a packet; false for a late one.
    pub(super) fn admit(&mut self, psn: Psn) -> bool {
        let ahead = psn.distance(self.expected);
        // R13-4
        //# A packet that is behind by up to 65536 is late and MUST be dropped.
        if (-LATE_PACKETS..0).contains(&ahead) {
            return false;
        }
        if ahead != 0 {
            *self = Self::from(psn);
        }
        self.expected = psn.add(1);
        true
    }

    /// What has arrived of the last write does not count.
    pub(super) fn forget_writes(&mut self) {
        (self.write_octets, self.ended_write_octets) = (0, 0);
    }

    /// Octets of a write have been placed.
    pub(super) fn note_write(&mut self, octets: usize, last: bool) {
        self.write_octets = self.write_octets.saturating_add(len32(octets));
        if last {
            self.ended_write_octets = std::mem::take(&mut self.write_octets);
        }
    }
}
