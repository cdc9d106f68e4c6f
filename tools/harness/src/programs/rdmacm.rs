//! rdmacm-utils.

use std::net::IpAddr;

use super::job::{words, Job, Ready};

/// A program whose client prints `text` on success.
fn cm_job(label: &str, size_octets: u32, port: u16, calls: [String; 2], text: &'static str) -> Job {
    let [server, client] = calls.map(|line| words(&line));
    Job {
        size_octets,
        ..Job::saying(label, server, client, Ready::Cm(port), text)
    }
}

/// `rping`, 100 rounds with the data checked by rping.
pub fn rping(port: u16, server: &str) -> Job {
    let call = |role: &str| format!("rping {role} -a {server} -p {port} -C 100 -V");
    let calls = [call("-s"), call("-v -c")];
    cm_job("rping", 64, port, calls, "ping data: rdma-ping-99")
}

/// `ucmatose`: 10 connections with 10 messages each way.
pub fn ucmatose(port: u16, server: &str) -> Job {
    let call = |role: &str| {
        format!(
            "ucmatose {} {role} {server} -p {port} -c 10 -C 10 -S 4096",
            family(server)
        )
    };
    let calls = [call("-b"), call("-s")];
    cm_job("ucmatose", 4096, port, calls, "return status 0")
}

/// `udaddy`: the same for datagrams, at its fixed port.
pub fn udaddy(server: &str) -> Job {
    let call = |role: &str| {
        format!(
            "udaddy {} {role} {server} -c 10 -C 10 -S 1024",
            family(server)
        )
    };
    cm_job(
        "udaddy",
        1024,
        7174,
        [call("-b"), call("-s")],
        "return status 0",
    )
}

/// `mckey`: 10 messages to a group of the same IP version as `server`, with separate flags for each
/// end.
pub fn mckey(server: &str, receiver_flags: &str, sender_flags: &str) -> Job {
    let group = if server.contains(':') {
        IpAddr::from([0xff0e, 0, 0, 0, 0, 0, 0x7572, 0x646d])
    } else {
        IpAddr::from([239, 117, 114, 100])
    };
    let call = |flags: &str| format!("mckey -m {group} {flags}");
    let receiver = call(receiver_flags);
    Job::saying(
        receiver.trim(),
        words(&receiver),
        words(&format!("{} -s", call(sender_flags))),
        Ready::Group(group),
        "return status 0",
    )
}

/// The flag with which `ucmatose` and similar programs accept an IPv6 address.
fn family(server: &str) -> &'static str {
    if server.contains(':') {
        "-f ipv6"
    } else {
        ""
    }
}

/// `rdma_server` and `rdma_client`: one message each way.
pub fn rdma_client(port: u16, server: &str) -> Job {
    let call = |program: &str| format!("{program} -s {server} -p {port}");
    let calls = [call("rdma_server"), call("rdma_client")];
    cm_job("rdma_client", 16, port, calls, "rdma_client: end 0")
}

/// `rdma_xserver` and `rdma_xclient`, over RC by default; the server listens on all IPv4 addresses.
fn rdma_xclient(port: u16, server: &str) -> Job {
    let calls = [
        format!("rdma_xserver -p {port}"),
        format!("rdma_xclient -s {server} -p {port}"),
    ];
    cm_job("rdma_xclient", 16, port, calls, "rdma_xclient: end 0")
}

/// `cmtime`: 50 concurrent connections; the server does not end.
fn cmtime(port: u16, server: &str) -> Job {
    let call = |role: &str| format!("cmtime {role} {server} -p {port} -c 50");
    cm_job("cmtime", 0, port, [call("-b"), call("-s")], "disconnect").served_forever()
}

/// `rstream` or `riostream`: rsockets, 64 messages of 1000 octets each way.
fn rsocket(program: &str, option: &str, port: u16, server: &str) -> Job {
    let call = |role: &str| format!("{program} {role} {server} -p {port} -S 1000 -C 64 {option}");
    let label = format!("{program} {option}");
    let mut job = cm_job(label.trim(), 1000, port, [call("-b"), call("-s")], "custom");
    if ["-T s", "-T f"].contains(&option) {
        // Kernel sockets, for comparison.
        job.ready = Ready::Tcp(port);
    }
    job
}

/// `rstream` without options.
pub fn rstream(port: u16, server: &str) -> Job {
    rsocket("rstream", "", port, server)
}

/// Every program of rdmacm-utils whose address and port can be chosen, with its options.
///
/// Not included are `rping -q`, whose server may still wait for an acknowledgement when the client
/// has ended, and `-T a` of the streams, which treat the peer's close as an error although it has
/// sent all data before.
pub fn rdmacm_utils(first_port: u16, server: &str) -> Vec<Job> {
    const STREAM: [&str; 8] = ["", "-T s", "-T b", "-T n", "-T r", "-T v", "-T f", "-k 5"];
    const IO_STREAM: [&str; 4] = ["", "-T b", "-T n", "-T v"];
    let mut ports = first_port..;
    let mut port = move || ports.next().unwrap_or(first_port);
    let mut jobs = vec![
        rping(port(), server),
        rping(port(), server).with(&["-q"]),
        ucmatose(port(), server),
        ucmatose(port(), server).with(&["-m"]),
        ucmatose(port(), server).with(&["-a", "14", "-t", "8"]),
        udaddy(server),
        rdma_client(port(), server),
        cmtime(port(), server),
        mckey(server, "", "-o"),
        mckey(server, "-l", "-l"),
    ];
    if !server.contains(':') {
        jobs.push(rdma_xclient(port(), server));
        jobs.push(rdma_xclient(port(), server).with(&["-c", "x"]));
    }
    jobs.extend(STREAM.map(|option| rsocket("rstream", option, port(), server)));
    jobs.extend(IO_STREAM.map(|option| rsocket("riostream", option, port(), server)));
    jobs
}
