//! Random messages of a hostile process, as the fuzzer makes them.

use trp_sim::{for_each_seed, fuzz_messages};
use urdma_types::Rng;

#[test]
fn random_messages_do_no_harm() {
    for_each_seed(3_000, |seed| {
        let mut rng = Rng::new(seed ^ 0xbad);
        let mut octets = vec![0; rng.below_len(2_000)];
        rng.fill(&mut octets);
        fuzz_messages(&octets);
    });
}
