//! Octets and numbers of a seed.

use std::fmt::Write as _;

/// A generator (xorshift64*); the same seed gives the same octets.
#[derive(Debug)]
pub struct Pattern(u64);

impl Pattern {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number from 0 to `end` - 1.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap_or(0) % end.max(1)
    }

    /// Draws octets.
    pub fn fill(&mut self, octets: &mut [u8]) {
        for chunk in octets.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
    }
}

/// Octets as hexadecimal digits.
pub fn hex(octets: &[u8]) -> String {
    let mut digits = String::new();
    for octet in octets {
        // A string takes everything.
        let _ = write!(digits, "{octet:02x}");
    }
    digits
}
