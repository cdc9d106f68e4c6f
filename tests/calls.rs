//! System calls of programs that sleep while they wait, over urdma and over TCP. They depend little
//! on the machine, and have bars. `doc/wakeups.md` has a table of them.
//!
//! `scripts/valkey.sh` builds Valkey, since Debian's packages have no RDMA, and
//! `scripts/libfabric.sh` the tests of libfabric, of which they have none.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use urdma_harness::calls::{Calls, Counted};
use urdma_harness::over::Over;
use urdma_harness::pair::is_ready;
use urdma_harness::process::wait_until;
use urdma_harness::programs::{words, Ready};
use urdma_harness::valkey::{Load, Run, Valkey};
use urdma_tests::{alone, ports, OneHost, SHORT};

/// How long a client may run.
const LIMIT: Duration = Duration::from_secs(60);
/// The directory in which `make test-all` builds Valkey.
const VALKEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/valkey");
/// The directory in which `make test-all` builds libfabric's tests.
const LIBFABRIC: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../target/libfabric/installed/bin"
);
/// Round trips of the longer run of a ping-pong, and of the shorter one.
const ROUND_TRIPS: [u32; 2] = [6_000, 2_000];

/// The most calls of an end for a request or a round trip, sched_yield(2) not counted.
struct Bar {
    what: &'static str,
    server: f64,
    client: f64,
}

/// Bars are about one and a half times the calls of 2026-11-24, and fall as these do.
const BARS: [Bar; 9] = [
    bar("Valkey, 1 client", 3.0, 8.0),
    bar("Valkey, 1 client, 16 in a row", 0.3, 0.65),
    bar("Valkey, 50 clients", 2.0, 6.0),
    bar("Valkey, 50 clients, 16 in a row", 0.2, 0.4),
    bar("UCX, ud_verbs", f64::INFINITY, 27.0),
    bar("UCX, rc_verbs", f64::INFINITY, 15.0),
    bar("rsockets", 9.0, 9.0),
    bar("libfabric", 4.5, 4.5),
    bar("Valkey over rings, 50 clients", 1.5, 1.5),
];

const fn bar(what: &'static str, server: f64, client: f64) -> Bar {
    Bar {
        what,
        server,
        client,
    }
}

/// Calls of the server and of the client.
type Ends = [Calls; 2];

/// Prints the calls of ends that have a bar, and returns those over urdma that exceed it.
fn compare(what: &str, over_urdma: &Ends, over_tcp: &Ends) -> Vec<String> {
    let bar = BARS.iter().find(|bar| bar.what == what).unwrap();
    let mut exceeded = Vec::new();
    for (end, name, most) in [(0, "server", bar.server), (1, "client", bar.client)] {
        if most.is_infinite() {
            continue;
        }
        let (ours, tcp) = (&over_urdma[end], &over_tcp[end]);
        println!("{what}, {name}, urdma: {ours}");
        println!("{what}, {name}, TCP: {tcp}");
        if ours.without_yields() > most {
            exceeded.push(format!("{what}, {name}: at most {most}: {ours}"));
        }
    }
    exceeded
}

/// The calls of each of the requests that the longer of two runs has more.
fn of_each([long, short]: [u32; 2], mut run: impl FnMut(u32) -> Ends) -> Ends {
    let [of_long, of_short] = [long, short].map(&mut run);
    let [server, client] = [0, 1].map(|end| of_long[end].of_each(&of_short[end], long - short));
    [server, client]
}

#[test]
#[ignore = "make test-all"]
fn valkey_makes_few_calls() {
    let _alone = alone();
    let valkey = Valkey::built_in(Path::new(VALKEY)).unwrap();
    let one = OneHost::up();
    let mut exceeded = Vec::new();
    let (urdma, rings) = (Over::Urdma(&one.host), Over::Rings(&one.host));
    for (what, over, clients, in_a_row, requests) in [
        ("Valkey, 1 client", urdma, 1, 1, 30_000),
        ("Valkey, 1 client, 16 in a row", urdma, 1, 16, 240_000),
        ("Valkey, 50 clients", urdma, 50, 1, 120_000),
        ("Valkey, 50 clients, 16 in a row", urdma, 50, 16, 600_000),
        ("Valkey over rings, 50 clients", rings, 50, 1, 120_000),
    ] {
        let [over_urdma, over_tcp] = [over, Over::Tcp].map(|over| {
            let load = Load {
                clients,
                in_a_row,
                requests,
            };
            let run = Run {
                over,
                port: ports(),
                load,
                dir: one.scratch.path(),
            };
            valkey.calls(run).unwrap()
        });
        exceeded.extend(compare(what, &over_urdma, &over_tcp));
    }
    one.down();
    assert!(exceeded.is_empty(), "{}", exceeded.join("\n"));
}

/// A ping-pong of two programs that end by themselves.
fn ping_pong_ends(one: &OneHost, over: Over<'_>, ready: Ready, argv: [&str; 2]) -> Ends {
    let start = |line| Counted::start(&over.command(&words(line)).unwrap()).unwrap();
    let mut serving = start(argv[0]);
    wait_until("listening", SHORT, || {
        is_ready(ready, &one.host) || !serving.process().is_running()
    })
    .unwrap();
    let asking = start(argv[1]);
    let (ended, client) = asking.wait(LIMIT).unwrap();
    assert!(ended.succeeded(), "{}: {}", argv[1], ended.describe());
    let (ended, server) = serving.wait(SHORT).unwrap();
    assert!(ended.succeeded(), "{}: {}", argv[0], ended.describe());
    [server, client]
}

/// `ucx_perftest` whose ends sleep, without a warm-up, over a transport of UCX and a device.
fn ucx(one: &OneHost, over: Over<'_>, transport: &str, device: &str) -> Ends {
    of_each(ROUND_TRIPS, |round_trips| {
        let port = ports();
        let server = format!(
            "env UCX_TLS={transport},self UCX_NET_DEVICES={device} ucx_perftest -p {port} -E sleep"
        );
        let client = format!("{server} 127.0.0.1 -t tag_lat -s 8 -w 0 -n {round_trips}");
        ping_pong_ends(one, over, Ready::Tcp(port), [&server, &client])
    })
}

// Both ends do the same; only the server makes calls while it waits for its client.
#[test]
#[ignore = "make test-all"]
fn ucx_that_sleeps_makes_few_calls() {
    let _alone = alone();
    let one = OneHost::up();
    let over_tcp = ucx(&one, Over::Tcp, "tcp", "lo");
    let mut exceeded = Vec::new();
    for (what, transports) in [
        ("UCX, ud_verbs", "ud_verbs"),
        ("UCX, rc_verbs", "rc_verbs,ud_verbs:aux"),
    ] {
        let over_urdma = ucx(&one, Over::Urdma(&one.host), transports, "urdma0:1");
        exceeded.extend(compare(what, &over_urdma, &over_tcp));
    }
    one.down();
    assert!(exceeded.is_empty(), "{}", exceeded.join("\n"));
}

/// rsockets poll for a while before they sleep if no file says that they should not.
const RSTREAM: &str = "\
set -e
mount -t tmpfs none /etc/rdma
mkdir /etc/rdma/rsocket
echo 0 >/etc/rdma/rsocket/polling_time
exec rstream \"$@\"
";

/// `rstream` with blocking calls.
fn rstream(one: &OneHost, over: Over<'_>) -> Ends {
    let script = one.scratch.path().join("rstream.sh");
    fs::write(&script, RSTREAM).unwrap();
    let rstream = format!("unshare --mount sh {}", script.display());
    of_each(ROUND_TRIPS, |round_trips| {
        let port = ports();
        let (sockets, ready) = match over {
            Over::Urdma(_) => ("", Ready::Cm(port)),
            _ => (" -T s", Ready::Tcp(port)),
        };
        let server = format!("{rstream} -p {port} -T b{sockets}");
        let client = format!("{server} -s 127.0.0.1 -S 64 -C 1 -I {round_trips}");
        let server = format!("{server} -S 64 -C 1 -I {round_trips}");
        ping_pong_ends(one, over, ready, [&server, &client])
    })
}

#[test]
#[ignore = "make test-all"]
fn rsockets_that_sleep_make_few_calls() {
    let _alone = alone();
    let one = OneHost::up();
    let [over_urdma, over_tcp] =
        [Over::Urdma(&one.host), Over::Tcp].map(|over| rstream(&one, over));
    let exceeded = compare("rsockets", &over_urdma, &over_tcp);
    one.down();
    assert!(exceeded.is_empty(), "{}", exceeded.join("\n"));
}

/// Makes so many connections over which an octet goes, and one back.
const SHORT_CONNECTIONS: &str = "
import socket, sys
listener = socket.create_server(('127.0.0.1', 0))
for _ in range(int(sys.argv[1])):
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    for sender, receiver in (client, server), (server, client):
        sender.sendall(b'x')
        assert receiver.recv(1) == b'x'
    client.close()
    server.close()
";

// They were three at each end: for the protocol of the socket, and the mask of signals in close.
#[test]
#[ignore = "make test-all"]
fn connections_that_end_before_they_have_rings_make_no_further_calls() {
    let _alone = alone();
    let one = OneHost::up();
    let [over_rings, over_tcp] = [Over::Rings(&one.host), Over::Tcp].map(|over| {
        let [long, short] = [1_500_u32, 500].map(|connections| {
            let mut argv = words("python3 -c");
            argv.extend([SHORT_CONNECTIONS.to_owned(), connections.to_string()]);
            let counted = Counted::start(&over.command(&argv).unwrap()).unwrap();
            let (ended, calls) = counted.wait(LIMIT).unwrap();
            assert!(ended.succeeded(), "{}", ended.describe());
            calls
        });
        long.of_each(&short, 1_000)
    });
    one.down();
    let more = over_rings.without_yields() - over_tcp.without_yields();
    assert!(more < 0.1, "{over_rings}; by TCP: {over_tcp}");
}

/// `fi_msg_pingpong` whose ends poll, arm and wait for a descriptor.
fn libfabric(one: &OneHost, over: Over<'_>) -> Ends {
    of_each(ROUND_TRIPS, |round_trips| {
        let port = ports();
        let (provider, ready) = match over {
            Over::Urdma(_) => ("verbs", Ready::Cm(port)),
            _ => ("tcp", Ready::Tcp(port)),
        };
        let program = format!("{LIBFABRIC}/fi_msg_pingpong -p {provider} -c fd -S 64");
        let server = format!("{program} -I {round_trips} -B {port}");
        let client = format!("{program} -I {round_trips} -P {port} 127.0.0.1");
        ping_pong_ends(one, over, ready, [&server, &client])
    })
}

#[test]
#[ignore = "make test-all"]
fn libfabric_that_sleeps_makes_few_calls() {
    let _alone = alone();
    let one = OneHost::up();
    let [over_urdma, over_tcp] =
        [Over::Urdma(&one.host), Over::Tcp].map(|over| libfabric(&one, over));
    let exceeded = compare("libfabric", &over_urdma, &over_tcp);
    one.down();
    assert!(exceeded.is_empty(), "{}", exceeded.join("\n"));
}
