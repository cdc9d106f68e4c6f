//! Links with a rate and a delay are filled and shared, with a short queue. `make perf` runs more
//! of them.

use trp_sim::{for_each_seed, Flood, LinkCase, LinkModel, LinkResult, Setup, World};

const SECOND: u64 = 1_000_000_000;

fn run(case: LinkCase) -> LinkResult {
    let result = case.run();
    println!("{case:?}\n  {result:?}");
    result
}

fn case(mbps: u64, rtt_us: u64, mtu: u32, flows: usize, run_ns: u64) -> LinkCase {
    LinkCase {
        mbps,
        rtt_us,
        mtu,
        flows,
        stagger_ns: 0,
        marks: false,
        wake_us: 0,
        seed: 0,
        run_ns,
    }
}

#[test]
fn one_queue_pair_fills_the_link_and_keeps_its_queue_short() {
    for case in [
        case(1_000, 100, 1500, 1, SECOND),
        case(1_000, 1_000, 9000, 1, SECOND),
        case(1_000, 48_000, 1500, 1, 6 * SECOND),
        case(10_000, 100, 1500, 1, SECOND / 2),
        case(10_000, 10_000, 9000, 1, 2 * SECOND),
        case(10_000, 48_000, 9000, 1, 3 * SECOND),
    ] {
        let result = run(case);
        assert!(result.line >= 0.9, "{case:?}: {result:?}");
        assert!(result.wait_p99 < 2.0, "{case:?}: {result:?}");
        assert_eq!(result.dropped, 0, "{case:?}");
    }
}

#[test]
fn eight_queue_pairs_share_the_link_equally() {
    for case in [
        case(1_000, 1_000, 1500, 8, 2 * SECOND),
        case(1_000, 48_000, 1500, 8, 12 * SECOND),
        case(10_000, 100, 1500, 8, SECOND / 2),
        case(10_000, 1_000, 9000, 8, SECOND),
    ] {
        for stagger_ns in [0, case.rtt_us * 50_000] {
            let case = LinkCase { stagger_ns, ..case };
            let result = run(case);
            assert!(result.line >= 0.9, "{case:?}: {result:?}");
            assert!(result.jain >= 0.95, "{case:?}: {result:?}");
            assert!(result.wait_p99 < 2.0, "{case:?}: {result:?}");
        }
    }
}

// With starts 7 or 20 ms apart Jain's index was 0.93, and a queue of two round trips stood: each
// connection took the others' queue for a part of its base RTT, and those with a long base RTT
// drained at other times.
#[test]
fn eight_queue_pairs_that_begin_one_after_the_other_on_a_long_path_share_it() {
    for stagger_ms in [0, 1, 7, 20] {
        let case = LinkCase {
            stagger_ns: stagger_ms * 1_000_000,
            ..case(1_000, 10_000, 9000, 8, 5 * SECOND / 2)
        };
        let result = run(case);
        assert!(result.line >= 0.9, "{case:?}: {result:?}");
        assert!(result.jain >= 0.95, "{case:?}: {result:?}");
        assert!(result.wait_p50 < 1.0, "{case:?}: {result:?}");
    }
}

#[test]
fn marks_keep_the_queue_shorter_than_delay_does() {
    for case in [
        case(1_000, 1_000, 1500, 8, SECOND),
        case(10_000, 100, 1500, 1, SECOND / 2),
        case(10_000, 100, 1500, 8, SECOND / 2),
        // The share of the rate was 0.85.
        case(1_000, 1_000, 9000, 1, SECOND),
    ] {
        let case = LinkCase {
            marks: true,
            ..case
        };
        let result = run(case);
        assert!(result.line >= 0.9, "{case:?}: {result:?}");
        assert!(result.jain >= 0.95, "{case:?}: {result:?}");
        assert!(result.wait_p99 < 0.5, "{case:?}: {result:?}");
    }
}

#[test]
fn ends_that_sleep_when_idle_fill_the_link() {
    for_each_seed(10, |seed| {
        let case = LinkCase {
            wake_us: 300,
            seed,
            ..case(2_000, 500, 1500, 1, SECOND / 4)
        };
        let result = run(case);
        assert!(result.line >= 0.8, "{case:?}: {result:?}");
    });
}

// The window stayed at one packet until the minimum RTT expired, 10 to 20 seconds later.
#[test]
fn path_that_becomes_longer_is_filled_again_within_a_second() {
    const MBPS: u64 = 2_000;
    let link = |rtt_us: u64| LinkModel {
        bits_per_second: MBPS * 1_000_000,
        delay_ns: rtt_us * 500,
        queue_octets: 500_000,
        ..LinkModel::default()
    };
    for_each_seed(3, |seed| {
        for (before_us, after_us) in [(150, 650), (250, 1_000), (500, 5_000)] {
            let setup = Setup {
                link: link(before_us),
                ..Setup::default()
            };
            let mut world = World::new(&setup, seed);
            let mut flood = Flood::new(&mut world, 65_536, 128);
            flood.run(&mut world, SECOND / 4);
            for direction in &mut world.links {
                direction.model = link(after_us);
            }
            flood.run(&mut world, SECOND);
            let octets = flood.run(&mut world, SECOND / 4);
            let part = octets * 100 / (MBPS * 1_000_000 / 8 / 4);
            println!("{before_us} to {after_us} us: {part} % of the rate");
            assert!(part >= 80, "{before_us} to {after_us} us: {part} %");
        }
    });
}
