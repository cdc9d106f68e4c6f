//! The reorder buffer: payloads of writes that arrived ahead of a missing packet.
//!
//! In verbs a later write may overwrite an earlier one, and programs poll memory to see that a
//! write has arrived and all writes before it as well. Therefore nothing is placed in memory before
//! the effects of all earlier packets.

/// Bound of the buffered octets: what 10 Gbit/s carry in 50 ms. A packet that does not fit is
/// dropped, and the peer retransmits it.
const OCTETS_MAX: usize = 64 << 20;
/// Bound of the capacity of free buffers, which stay allocated for the next loss.
const READY_MAX: usize = 1 << 20;

/// The buffers, by index.
#[derive(Debug, Default)]
pub(super) struct ReorderBuffer {
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
    /// Octets in use.
    octets: usize,
    /// Capacity of the free buffers, in octets.
    ready: usize,
}

impl ReorderBuffer {
    /// An empty buffer, into which the caller writes `len` octets; `None` if the bound is reached.
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

    /// The octets of a buffer.
    pub(super) fn octets(&self, index: u32) -> &[u8] {
        self.buffers.get(index as usize).map_or(&[], Vec::as_slice)
    }

    /// Frees a buffer that was taken for `len` octets.
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

    /// Frees everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reorder_buffer_octets_are_bounded_and_buffers_reused() {
        let mut reorder = ReorderBuffer::default();
        const LEN: usize = 1 << 16;
        let store = |reorder: &mut ReorderBuffer, octet: u8| {
            let (index, buffer) = reorder.take(LEN)?;
            buffer.resize(LEN, octet);
            Some(index)
        };
        let all: Vec<u32> = (0..).map_while(|_| store(&mut reorder, 1)).collect();
        assert_eq!(all.len(), OCTETS_MAX / LEN);
        for index in all {
            reorder.release(index, LEN);
        }
        assert_eq!((reorder.octets, reorder.ready), (0, READY_MAX));
        let again = store(&mut reorder, 2);
        assert_eq!(again.map(|index| reorder.octets(index)[LEN - 1]), Some(2));
        assert_eq!(reorder.buffers.len(), OCTETS_MAX / LEN);
    }
}
