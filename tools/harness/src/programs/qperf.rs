//! qperf.

use super::job::{words, Job, Ready};

/// The RC tests, which it connects through rdma_cm (`-cm 1`); otherwise it addresses peers by LID,
/// which Ethernet does not have.
const TESTS: [&str; 12] = [
    "rc_lat",
    "rc_bw",
    "rc_bi_bw",
    "rc_rdma_read_lat",
    "rc_rdma_read_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_poll_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// `qperf` with each of its RC tests for a second, with one server each.
pub fn qperf(first_port: u16, server: &str) -> Vec<Job> {
    let job = |(port, test): (u16, &str)| {
        let common = format!("qperf -lp {port}");
        let client = format!("{common} -t 1 -cm 1 {server} {test}");
        let label = format!("qperf {test}");
        Job::saying(
            &label,
            words(&common),
            words(&client),
            Ready::Tcp(port),
            " = ",
        )
        .served_forever()
    };
    (first_port..).zip(TESTS).map(job).collect()
}
