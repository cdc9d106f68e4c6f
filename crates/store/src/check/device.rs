//! The memory of a node, and the requests of a client that are being executed.

use urdma_pool::Operation as Verb;
use urdma_types::Rng;

use crate::geometry::word_at;
use crate::{Request, Requests};

/// The memory, in words.
pub(super) struct Memory {
    pub(super) words: Vec<u64>,
}

/// Requests of one client, with its buffer.
pub(super) struct Posted {
    requests: Requests,
    pub(super) buffer: Vec<u8>,
    /// Words of the first request that are not executed.
    left: Vec<usize>,
}

impl Posted {
    pub(super) fn new(buffer_len: usize) -> Self {
        Self {
            requests: Requests::new(),
            buffer: vec![0xa5; buffer_len],
            left: Vec::new(),
        }
    }

    pub(super) fn post(&mut self, requests: &Requests) {
        assert!(self.requests.is_empty() && !requests.is_empty());
        self.requests = requests.clone();
        self.begin();
    }

    fn begin(&mut self) {
        if let Some(first) = self.requests.first() {
            assert!(first.len_octets > 0 && first.len_octets.is_multiple_of(8));
            assert!(first.offset.is_multiple_of(8));
            self.left = (0..first.len_octets / 8).collect();
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.requests.is_empty()
    }

    /// Executes one word.
    pub(super) fn step(&mut self, memory: &mut Memory, rng: &mut Rng) {
        let Some(first) = self.requests.first().copied() else {
            return;
        };
        let word = self.left.swap_remove(rng.below_len(self.left.len()));
        self.execute(&first, word, memory);
        if self.left.is_empty() {
            self.requests.remove(0);
            self.begin();
        }
    }

    fn execute(&mut self, request: &Request, word: usize, memory: &mut Memory) {
        let at = request.buffer_offset / 8 + word;
        let in_buffer = at * 8..at * 8 + 8;
        let remote = &mut memory.words[request.offset as usize / 8 + word];
        let before = *remote;
        match request.verb {
            Verb::Read => {}
            Verb::Write => {
                *remote = word_at(&self.buffer, at);
                return;
            }
            Verb::CompareSwap { expected, swap } if before == expected => *remote = swap,
            Verb::CompareSwap { .. } => {}
            Verb::FetchAdd { add } => *remote = before.wrapping_add(add),
            Verb::Send { .. } => unreachable!("clients of a store send nothing"),
        }
        self.buffer[in_buffer].copy_from_slice(&before.to_ne_bytes());
    }
}
