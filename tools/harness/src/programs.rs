//! The catalogue: Debian's verbs programs, with the command lines of server and client and the
//! output of a successful run.

mod ibverbs;
mod job;
mod perftest;
mod qperf;
mod rdmacm;

pub use ibverbs::{pingpong, rc_pingpong};
pub use job::{is_content_of_rping, words, Figure, Job, Ready};
pub use perftest::{perftest, perftest_matrix, Selection};
pub use qperf::qperf;
pub use rdmacm::{mckey, rdma_client, rdmacm_utils, rping, rstream, ucmatose, udaddy};

/// Datagram programs with one message in flight, which succeed where bursts may be lost.
pub fn lossy_datagrams(first_port: u16, server: &str) -> Vec<Job> {
    vec![
        pingpong("ibv_ud_pingpong", false, first_port, server).with(&["-s", "1024"]),
        pingpong("ibv_ud_pingpong", true, first_port + 1, server).with(&["-s", "1024"]),
        perftest("ib_send_lat", 64, false, first_port + 2, server).with(&["-c", "UD"]),
        perftest("ib_send_lat", 64, true, first_port + 3, server).with(&["-c", "UD"]),
        udaddy(server),
    ]
}

/// Datagram programs for paths without loss while both ends run.
pub fn datagrams(first_port: u16, server: &str) -> Vec<Job> {
    let mut jobs = lossy_datagrams(first_port, server);
    jobs.push(perftest("ib_send_bw", 4096, false, first_port + 10, server).with(&["-c", "UD"]));
    jobs
}

/// All programs of the demo, for each path, on ports from `first_port` on.
pub fn main_job(first_port: u16, server: &str) -> Vec<Job> {
    const PERFTEST: [(&str, u32); 6] = [
        ("ib_send_lat", 64),
        ("ib_write_lat", 64),
        ("ib_read_lat", 64),
        ("ib_send_bw", 65536),
        ("ib_write_bw", 65536),
        ("ib_read_bw", 65536),
    ];
    let mut ports = first_port..;
    let mut port = move || ports.next().unwrap_or(first_port);
    let mut jobs = Vec::new();
    for rdma_cm in [false, true] {
        for (tool, size_octets) in PERFTEST {
            jobs.push(perftest(tool, size_octets, rdma_cm, port(), server));
        }
    }
    jobs.push(rc_pingpong(false, port(), server));
    jobs.push(rc_pingpong(true, port(), server));
    jobs.push(rping(port(), server));
    jobs.push(ucmatose(port(), server));
    jobs.push(rdma_client(port(), server));
    jobs
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn perftest_latency_output_gives_typical() {
        let output =
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n\
            \x2064      1000          0.61           12.0         0.71     \t       0.72\n---\n";
        let job = perftest("ib_send_lat", 64, false, 1, "127.0.0.1");
        let figure = job.read(output).unwrap().unwrap();
        assert!((figure.value - 0.71).abs() < 1e-9);
        assert_eq!(figure.unit, "us");
    }

    #[test]
    fn perftest_bandwidth_output_gives_average() {
        let output =
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n\
            \x2065536      1000             9000.0            8000.5\t\t   0.13\n";
        let job = perftest("ib_write_bw", 65536, true, 1, "127.0.0.1");
        assert!((job.read(output).unwrap().unwrap().value - 8000.5).abs() < 1e-9);
        let rate = job.as_message_rate().read(output).unwrap().unwrap();
        assert!((rate.value - 0.13).abs() < 1e-9);
    }

    #[test]
    fn pingpong_output_gives_half_round_trip() {
        let output = "8192000 bytes in 0.01 seconds = 6553.60 Mbit/sec\n\
             1000 iters in 0.01 seconds = 10.00 usec/iter\n";
        let job = rc_pingpong(false, 1, "127.0.0.1");
        assert!((job.read(output).unwrap().unwrap().value - 5.0).abs() < 1e-9);
    }

    #[test]
    fn output_without_result_is_a_failure() {
        for job in main_job(1000, "127.0.0.1") {
            assert!(job.read("Couldn't connect").is_err(), "{}", job.label);
        }
    }
}
