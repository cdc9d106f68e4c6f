//! The slots that were sent to in this burst and need a doorbell.

use urdma_arena::Endpoint;
use urdma_types::SlotId;

/// A set of slots.
#[derive(Debug, Default)]
pub(crate) struct Doorbells([u64; 4]);

impl Doorbells {
    /// Adds `slot`; false if the set had it.
    #[inline]
    pub(crate) fn note(&mut self, slot: SlotId) -> bool {
        let index = usize::from(slot.number());
        let (word, bit) = (&mut self.0[index / 64], 1 << (index % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Rings the doorbells of the set and empties it.
    #[inline]
    pub(crate) fn ring(&mut self, endpoint: &mut Endpoint) {
        for (word, base) in self.0.iter_mut().zip([0u8, 64, 128, 192]) {
            while *word != 0 {
                let bit = u8::try_from(word.trailing_zeros()).unwrap_or(0);
                *word &= *word - 1;
                if let Some(slot) = SlotId::new(base + bit) {
                    endpoint.ring_doorbell(slot);
                }
            }
        }
    }
}
