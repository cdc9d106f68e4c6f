//! `urdma trace`: the last events of connections, and why they failed.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Scratch};
use urdma_harness::process::{wait_until, Process};
use urdma_tests::{
    alone, check, check_alone, expect_all_taken_back, kill_one_end, lossy_hosts, ports, stream,
    OneHost, CHECK_LIMIT, SHORT, VERBS_CHECK,
};

/// What `urdma trace` prints of an instance.
fn trace(host: &Instance, options: &[&str]) -> String {
    let mut command = host.subcommand("trace").unwrap();
    let ended = Process::run(command.args(options), SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    ended.output
}

/// Checks that each part is in a line after the one of the part before.
fn expect_in_order(text: &str, parts: &[&str]) {
    let mut lines = text.lines();
    for part in parts {
        let found = lines.any(|line| line.contains(part));
        assert!(found, "no '{part}' (after those before it) in:\n{text}");
    }
}

#[test]
fn connect_without_a_listener_is_explained_at_both_ends() {
    let _alone = alone();
    let one = OneHost::up();
    let rping = ["rping", "-c", "-a", "127.0.0.1", "-p", "7999", "-C", "1"];
    let mut command = one.host.run(LeasePolicy::Never, &rping).unwrap();
    assert!(!Process::run(&mut command, SHORT).unwrap().succeeded());
    expect_all_taken_back(&one.host);
    let text = trace(&one.host, &[]);
    expect_in_order(
        &text,
        &[
            "urdmad, process",
            "a connection request for port 7999, at which nothing listens: rejected",
            "(rping) of user",
            "peer 127.0.0.1: rejected: nothing listens at port 7999 of the peer",
            "queue pair created (RC)",
            "sent REQ (connection request) for port 7999",
            "rejected: nothing listens at port 7999 of the peer",
            "INIT to ERR",
        ],
    );
    // Selections leave out what they do not name.
    assert!(trace(&one.host, &["--failed"]).contains("rejected: nothing listens"));
    assert!(trace(&one.host, &["--conn", "127.0.0.1"]).contains("sent REQ"));
    assert_eq!(trace(&one.host, &["--conn", "192.0.2.1"]), "");
    assert_eq!(trace(&one.host, &["--pid", "1"]), "");
    one.down();
}

#[test]
fn rejection_by_an_application_is_told_apart() {
    let _alone = alone();
    let one = OneHost::up();
    check_alone(&one.host, "cm");
    let text = trace(&one.host, &["--failed"]);
    for part in [
        "rejected: the peer's application refused the connection (rdma_reject)",
        "rejected: nothing listens at port",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
    // Connections that worked.
    expect_in_order(
        &trace(&one.host, &[]),
        &[
            "sent REQ",
            "received REP",
            "INIT to RTR",
            "RTR to RTS",
            "established",
            "disconnected",
        ],
    );
    one.down();
}

#[test]
fn process_without_a_recorder_has_no_events() {
    let _alone = alone();
    let one = OneHost::up();
    let mut command = one
        .host
        .run(LeasePolicy::Never, &[VERBS_CHECK, "cm"])
        .unwrap();
    let off = Process::run(command.env("URDMA_RECORDER", "off"), CHECK_LIMIT).unwrap();
    assert!(off.succeeded(), "{}", off.describe());
    let text = trace(&one.host, &[]);
    assert!(
        text.contains("attached") && !text.contains("queue pair"),
        "{text}"
    );
    let wrong = Process::run(command.env("URDMA_RECORDER", "no"), CHECK_LIMIT).unwrap();
    let reason = "URDMA_RECORDER must be on or off";
    assert!(wrong.output.contains(reason), "{}", wrong.describe());
    one.down();
}

#[test]
fn killed_process_is_shown_after_its_death_and_its_peer_says_why() {
    let _alone = alone();
    let one = OneHost::up();
    let scratch = one.scratch.path();
    let ends = stream(&one.host, &one.host, LeasePolicy::Never, scratch);
    let victim = ends.0.id();
    kill_one_end(ends, true);
    expect_all_taken_back(&one.host);
    let dead = trace(&one.host, &["--pid", &victim.to_string()]);
    expect_in_order(
        &dead,
        &[
            "ended",
            "queue pair created (RC)",
            "the peer is 127.0.0.1",
            "INIT to RTR",
            "RTR to RTS",
        ],
    );
    assert!(
        dead.contains("without detaching (exit, crash or signal)"),
        "{dead}"
    );
    let failed = trace(&one.host, &["--failed"]);
    assert!(failed.contains("the peer's process has ended"), "{failed}");
    one.down();
}

#[test]
fn events_of_a_running_process_are_followed() {
    let _alone = alone();
    let one = OneHost::up();
    let mut command = one.host.subcommand("trace").unwrap();
    let mut following = Process::start(command.arg("--follow")).unwrap();
    let scratch = one.scratch.path();
    check("data", &one.host, &one.host, LeasePolicy::Never, scratch);
    following
        .wait_for_text("queue pair destroyed", SHORT)
        .unwrap();
    let text = following.printed();
    expect_in_order(
        &text,
        &[
            "queue pair created (RC)",
            "RTR to RTS",
            "queue pair destroyed",
        ],
    );
    following.signal(Signal::SIGKILL).unwrap();
    following.wait(SHORT).unwrap();
    one.down();
}

#[test]
fn packets_sent_again_are_counted_by_connection() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let [a, b] = lossy_hosts(scratch.path());
    check("data", &a, &b, LeasePolicy::Never, scratch.path());
    let sent_again = |host: &Instance| trace(host, &[]).contains("packets sent again");
    assert!(sent_again(&a) && sent_again(&b), "{}", trace(&b, &[]));
    for host in [a, b] {
        host.down().unwrap();
    }
}

#[test]
fn hostile_recording_crashes_neither_urdmad_nor_the_reader() {
    let _alone = alone();
    let one = OneHost::up();
    let mut command = Command::new(binary_dir().unwrap().join("urdma-hostile"));
    command.arg("--run-dir").arg(one.host.run_dir());
    command.args(["--attack", "recordings", "--seconds", "3"]);
    let mut hostile = Process::start(&mut command).unwrap();
    wait_until("the hostile recording", SHORT, || {
        trace(&one.host, &[]).contains("(hostile)")
    })
    .unwrap();
    while hostile.is_running() {
        trace(&one.host, &[]);
        trace(&one.host, &["--failed"]);
    }
    let ended = hostile.wait(SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    // It is kept, and others are shown beside it.
    let text = trace(&one.host, &[]);
    assert!(text.contains("(hostile)"), "{text}");
    let rping = [
        "rping",
        "-c",
        "-a",
        "127.0.0.1",
        "-p",
        &ports().to_string(),
        "-C",
        "1",
    ];
    let mut command = one.host.run(LeasePolicy::Never, &rping).unwrap();
    Process::run(&mut command, SHORT).unwrap();
    assert!(trace(&one.host, &[]).contains("(rping)"));
    one.down();
}

/// The answer of a server on loopback to `request`.
/// Clients of the metrics that ask for nothing: each may take two seconds.
const IDLE_CONNECTIONS: usize = 200;

fn http(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(SHORT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits until the metrics have what two ends of a stream make.
fn expect_metrics(mut text: impl FnMut() -> String) {
    let has_all = || {
        let text = text();
        [
            "urdma_attached 2\n",
            "# TYPE urdma_process_queue_pairs gauge\n",
            "program=\"verbs-check\"} 1\n",
            "counter=\"datagrams_sent\"} ",
            "urdma_dropped_total{reason=",
        ]
        .iter()
        .all(|part| text.contains(part))
    };
    wait_until("metrics of both ends", SHORT, has_all).unwrap();
}

#[test]
fn metrics_come_by_the_control_socket_and_by_http() {
    let _alone = alone();
    let port = ports();
    let keys = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    let one = OneHost::up_with(&["127.0.0.1"], &keys);
    let scratch = one.scratch.path();
    let (serving, asking) = stream(&one.host, &one.host, LeasePolicy::Never, scratch);
    // Clients that send nothing, or half a request, do not keep others out.
    let silent = (0..IDLE_CONNECTIONS).map(|number| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        if number % 2 == 0 {
            // An error means that a further one has ended it.
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
        }
        stream
    });
    let silent: Vec<_> = silent.collect();
    let answer = http(port, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    drop(silent);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let printed = || {
        let mut command = one.host.subcommand("metrics").unwrap();
        let printed = Process::run(&mut command, SHORT).unwrap();
        assert!(printed.succeeded(), "{}", printed.describe());
        printed.output
    };
    // On a busy machine a process may be too late with its report.
    expect_metrics(printed);
    expect_metrics(|| http(port, "GET /metrics HTTP/1.1\r\n\r\n"));
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(3900));
    assert!(http(port, &long).starts_with("HTTP/1.1 200"));
    assert!(http(port, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(http(port, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(http(port, "\0\u{1}\r\n\r\n").starts_with("HTTP/1.1 400"));
    kill_one_end((serving, asking), true);
    one.down();
}

#[test]
fn metrics_are_served_on_loopback_only() {
    let scratch = Scratch::new("test").unwrap();
    let keys = "[metrics]\nlisten = \"0.0.0.0:9464\"\n";
    let failure = Instance::up(scratch.path(), "a", "127.0.0.1", keys).unwrap_err();
    for part in ["a.toml, line 4", "metrics.listen", "loopback"] {
        assert!(failure.0.contains(part), "no '{part}' in: {failure}");
    }
}

#[test]
fn top_shows_rates_of_processes_and_connections() {
    let _alone = alone();
    let one = OneHost::up();
    let scratch = one.scratch.path();
    let ends = stream(&one.host, &one.host, LeasePolicy::Never, scratch);
    let shows_all = || {
        let mut command = one.host.subcommand("top").unwrap();
        let ended = Process::run(command.args(["--count", "1"]), SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
        let has = |words: &[&str]| {
            let mut lines = ended.output.lines();
            lines.any(|line| words.iter().all(|word| line.contains(word)))
        };
        let is_idle = |line: &str| line.contains(" 0.0 MB/s out, 0.0 in");
        let mut lines = ended.output.lines();
        (has(&["verbs-check", "awake"]) || has(&["verbs-check", "asleep"]))
            && (has(&["MB/s out", "to 127.0.0.1"]) || has(&["MB/s out", "to fe80"]))
            && lines.any(|line| line.contains("MB/s out") && !is_idle(line))
    };
    // On a busy machine a process may be too late with its report.
    wait_until("rates of both ends", SHORT, shows_all).unwrap();
    kill_one_end(ends, true);
    one.down();
}
