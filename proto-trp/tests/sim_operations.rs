//! Random sequences of valid and invalid operations: nothing panics, every request completes once,
//! no memory is accessed without the right.

use trp_sim::{for_each_seed, fuzz_operations};
use urdma_types::Rng;

#[test]
fn operations_at_random_complete_once() {
    for_each_seed(1_500, |seed| {
        let mut rng = Rng::new(seed);
        let mut octets = vec![0; 64 + rng.below_len(1500)];
        rng.fill(&mut octets);
        // Two thirds of the runs are without loss from the start, half of them without jitter.
        if seed % 3 != 0 {
            octets[4] = 0;
        }
        fuzz_operations(&octets);
    });
}
