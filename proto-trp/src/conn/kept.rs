//! Payloads of writes that arrived ahead of a missing packet, until their turn comes.
//!
//! Verbs let a later write overwrite an earlier one, and programs look at memory to see that a write has come and all before it with it: so nothing is
//! written to memory before everything that was asked earlier.

/// Octets that are kept at most: what 10 Gbit/s carry in 50 ms. A packet for which there is no room is sent again by the peer.
const OCTETS_MAX: usize = 64 << 20;
/// Octets of buffers that are held ready for the next loss.
const READY_MAX: usize = 1 << 20;

/// The payloads, by index.
#[derive(Debug, Default)]
pub(super) struct Kept {
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
    /// Octets in use.
    octets: usize,
    /// Octets that free buffers have room for.
    ready: usize,
}

impl Kept {
    /// An empty buffer for `len` octets, which the caller puts there; nothing when too much is kept already.
    pub(super) fn take(&mut self, len: usize) -> Option<(u32, &mut Vec<u8>)> {
        if len > OCTETS_MAX - self.octets {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.buffers.push(Vec::new());
                super::num::len32(self.buffers.len() - 1)
            }
        };
        let buffer = self.buffers.get_mut(index as usize)?;
        self.ready -= buffer.capacity();
        self.octets += len;
        buffer.reserve_exact(len);
        Some((index, buffer))
    }

    /// What was put into a buffer.
    pub(super) fn octets(&self, index: u32) -> &[u8] {
        self.buffers.get(index as usize).map_or(&[], Vec::as_slice)
    }

    /// A buffer that was taken for `len` octets is no longer needed.
    pub(super) fn release(&mut self, index: u32, len: usize) {
        let Some(buffer) = self.buffers.get_mut(index as usize) else {
            return;
        };
        self.octets -= len;
        buffer.clear();
        if self.ready + buffer.capacity() > READY_MAX {
            *buffer = Vec::new();
        }
        self.ready += buffer.capacity();
        self.free.push(index);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_octets_are_bounded_and_their_buffers_used_again() {
        let mut kept = Kept::default();
        const LEN: usize = 1 << 16;
        let keep = |kept: &mut Kept, octet: u8| {
            let (index, buffer) = kept.take(LEN)?;
            buffer.resize(LEN, octet);
            Some(index)
        };
        let all: Vec<u32> = (0..).map_while(|_| keep(&mut kept, 1)).collect();
        assert_eq!(all.len(), OCTETS_MAX / LEN);
        for index in all {
            kept.release(index, LEN);
        }
        assert_eq!((kept.octets, kept.ready), (0, READY_MAX));
        let again = keep(&mut kept, 2);
        assert_eq!(again.map(|index| kept.octets(index)[LEN - 1]), Some(2));
        assert_eq!(kept.buffers.len(), OCTETS_MAX / LEN);
    }
}
