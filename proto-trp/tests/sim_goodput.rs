//! Goodput under loss, relative to that without loss, and that of go-back-N.

use trp_sim::{for_each_seed, Flood, LinkModel, LossCase, Setup, World};

const RUN_NS: u64 = 100_000_000;

/// Goodput in thousandths of that without loss.
fn kept(case: &LossCase, seed: u64) -> u64 {
    let lossless = LossCase {
        loss_ppm: 0,
        reorders: false,
        ..*case
    };
    case.completed_octets(seed) * 1000 / lossless.completed_octets(1)
}

#[test]
fn goodput_under_loss_is_most_of_the_lossless() {
    for length in [65_536, 1 << 20] {
        for (loss_ppm, least) in [(100, 980), (1_000, 950), (10_000, 800), (50_000, 500)] {
            for reorders in [false, true] {
                let case = LossCase {
                    length,
                    loss_ppm,
                    reorders,
                    run_ns: RUN_NS,
                };
                for_each_seed(2, |seed| {
                    let (kept, line) = (
                        kept(&case, seed),
                        10_000_000_000 / 8 / 1000 * RUN_NS / 1_000_000,
                    );
                    let beside = case.completed_octets_go_back_n(seed) * 1000 / line;
                    println!(
                        "{case:?}: {kept} of 1000 of the lossless; go-back-N {beside} of the line"
                    );
                    assert!(kept >= least, "{case:?}: {kept} of 1000");
                });
            }
        }
    }
}

#[test]
fn shallow_queue_keeps_most_of_the_goodput() {
    let completed = |queue_octets| {
        let setup = Setup {
            link: LinkModel {
                bits_per_second: 10_000_000_000,
                delay_ns: 50_000,
                queue_octets,
                ..LinkModel::default()
            },
            ..Setup::default()
        };
        let mut world = World::new(&setup, 1);
        Flood::new(&mut world, 65_536, 64).run(&mut world, RUN_NS)
    };
    let (deep, shallow) = (completed(1_000_000), completed(60_000));
    println!("{} % of the lossless", shallow * 100 / deep);
    assert!(shallow * 10 >= deep * 7);
}
