//! Links with a rate and a delay: they are filled, shared and not flooded. `make perf` runs more of them.

use proto_trp::sim::{LinkCase, LinkResult};

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

#[test]
fn marks_keep_the_queue_shorter_than_delay_does() {
    for case in [
        case(1_000, 1_000, 1500, 8, SECOND),
        case(10_000, 100, 1500, 1, SECOND / 2),
        case(10_000, 100, 1500, 8, SECOND / 2),
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
