//! Which slots have been sent to in this burst and must be woken.

use urdma_arena::Endpoint;
use urdma_types::SlotId;

/// A set of slots.
#[derive(Debug, Default)]
pub(crate) struct Doorbells([u64; 4]);

impl Doorbells {
    /// Puts `slot` into the set; whether it was not in it.
    #[inline]
    pub(crate) fn note(&mut self, slot: SlotId) -> bool {
        let index = usize::from(slot.number());
        let (word, bit) = (&mut self.0[index / 64], 1 << (index % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Wakes those that sleep, and forgets all.
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
