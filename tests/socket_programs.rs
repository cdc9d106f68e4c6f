//! Debian's servers, and programs that use them, with TCP connections over rings (doc/sockets.md).
//!
//! `make test-all` installs their packages and runs these tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, Place, Scratch};
use urdma_harness::pair::serve;
use urdma_harness::process::{wait_until, Ended, Process};
use urdma_harness::servers::{self, Connections, PostgreSql};
use urdma_tests::rings::{
    are_offered_at_once, at_the_end, client, from_call, output, reasons, shell, status,
};
use urdma_tests::{alone, ports, OneHost, SHORT};
use urdma_types::Rng;

const LIMIT: Duration = Duration::from_secs(120);
const CHECKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tcp-rings");

/// An instance of root whose programs may be other users'.
fn of_everyone() -> OneHost {
    let one = OneHost::up_with(&["127.0.0.1"], "access = \"everyone\"\n");
    fs::set_permissions(one.scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    one
}

/// What `urdma status --json` says of the octets that rings have carried.
fn ring_octets(host: &Instance) -> u64 {
    host.status().unwrap()["sockets"]["ring_octets"]
        .as_u64()
        .unwrap()
}

/// A program over rings that is about to listen.
fn serving(one: &OneHost, argv: &[String], port: u16) -> Process {
    serve(&mut one.host.run_over_rings(argv).unwrap(), port).unwrap()
}

/// What a program over rings has printed.
fn run(one: &OneHost, argv: &[String]) -> Ended {
    Process::run(&mut one.host.run_over_rings(argv).unwrap(), LIMIT).unwrap()
}

/// A program whose short connections go over rings too: they are offered in their first call.
fn early(one: &OneHost, argv: &[String]) -> Command {
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    from_call(one, 1, &argv)
}

/// Runs a client that compares what a server returns by connections that come and go; returns how
/// many octets.
fn compare_early(one: &OneHost, server: &str, client: &str, port: u16) -> u64 {
    let server = serve(&mut early(one, &words(server)), port).unwrap();
    let said = Process::run(&mut early(one, &words(client)), LIMIT).unwrap();
    assert!(said.succeeded(), "{}", said.describe());
    stop(server);
    let octets = said.output.trim().strip_prefix("equal ").unwrap();
    octets.parse().unwrap()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Ends a program that may end by the signal.
fn stop(program: Process) {
    program.signal(Signal::SIGTERM).unwrap();
    program.wait(SHORT).unwrap();
}

/// When no connection is open any more, rings have carried `least` octets or more since `before`.
fn expect_carried(one: &OneHost, before: u64, least: u64) {
    at_the_end(one);
    let carried = ring_octets(&one.host) - before;
    let why = reasons(&client(one));
    assert!(carried >= least, "{carried} of {least}: {why:?}");
}

/// A client that compares what it gets, and begins when its connections have met; returns what it
/// says.
fn comparing(one: &OneHost, program: &str, port: u16, connections: u64) -> u64 {
    let begin = one.scratch.path().join("begin");
    let line = format!("{program} {port} 100 {}", begin.display());
    let process = shell(one, &line);
    let observer = client(one);
    let have_met = || status(&observer).joined == connections;
    wait_until("the meetings", SHORT, have_met).unwrap();
    fs::File::create(begin).unwrap();
    let said = output(process);
    let octets = said.trim().strip_prefix("equal ").unwrap();
    octets.parse().unwrap()
}

const SMALL: usize = 200;

/// Files `0` to `199` and `large` of a site.
fn make_site(site: &Path) {
    fs::create_dir(site).unwrap();
    let mut rng = Rng::new(38);
    let lengths = (0..SMALL).map(|name| (name.to_string(), 1 + 397 * name));
    for (name, len) in lengths.chain([("large".to_owned(), 8 << 20)]) {
        let mut content = vec![0; len];
        rng.fill(&mut content);
        fs::write(site.join(name), content).unwrap();
    }
}

/// Debian's nginx.
fn nginx(one: &OneHost, site: &Path, port: u16) -> Process {
    serving(
        one,
        &servers::nginx(one.scratch.path(), site, port).unwrap(),
        port,
    )
}

/// The same, with another limit of the requests of a connection, after which nginx closes it.
fn nginx_of_short_connections(one: &OneHost, site: &Path, port: u16, requests: u32) -> Process {
    let argv = servers::nginx(one.scratch.path(), site, port).unwrap();
    let config = Path::new(argv.last().unwrap());
    let before = fs::read_to_string(config).unwrap();
    let line = format!("tcp_nopush on; keepalive_requests {requests};");
    fs::write(config, before.replace("tcp_nopush on;", &line)).unwrap();
    serving(one, &argv, port)
}

/// Gets all files of a site by one connection.
fn get_by_curl(one: &OneHost, site: &Path, port: u16) {
    let got = one.scratch.path().join(format!("got-{port}"));
    fs::create_dir(&got).unwrap();
    let (into, last) = (got.display(), SMALL - 1);
    let url = format!("http://127.0.0.1:{port}");
    output(shell(
        one,
        &format!(
            "curl -sS --fail -o '{into}/#1' '{url}/[0-{last}]' -o {into}/large {url}/large \
             -o {into}/once-more {url}/large"
        ),
    ));
    fs::copy(site.join("large"), site.join("once-more")).unwrap();
    for file in fs::read_dir(site).unwrap() {
        let file = file.unwrap();
        let is_equal =
            fs::read(got.join(file.file_name())).unwrap() == fs::read(file.path()).unwrap();
        assert!(is_equal, "{:?}", file.path());
    }
    fs::remove_file(site.join("once-more")).unwrap();
}

/// Requests of wrk for a file; returns how many it made.
fn ask_by_wrk(one: &OneHost, port: u16, name: &str) -> u64 {
    let asked = run(one, &servers::wrk(port, name, 2, Connections::Kept));
    servers::read_wrk(&asked).unwrap().count
}

#[test]
#[ignore = "make test-all"]
fn nginx_sends_files_to_curl_and_wrk_over_rings() {
    let _alone = alone();
    let one = of_everyone();
    let site = one.scratch.path().join("site");
    make_site(&site);
    let port = ports();
    let server = nginx(&one, &site, port);
    get_by_curl(&one, &site, port);
    // The meeting takes some requests.
    expect_carried(&one, 0, 8 << 20);
    for name in ["1", "199", "large"] {
        let before = ring_octets(&one.host);
        let requests = ask_by_wrk(&one, port, name);
        let len = fs::metadata(site.join(name)).unwrap().len();
        expect_carried(&one, before, requests * len / 2);
    }
    server.signal(Signal::SIGQUIT).unwrap();
    output(server);
    one.down();
}

/// wrk counts each call of read(2) as an error that finds nothing when epoll has said otherwise.
#[test]
#[ignore = "make test-all"]
fn wrk_has_no_error_while_nginx_ends_each_connection_after_twenty_requests() {
    let _alone = alone();
    let one = of_everyone();
    let site = one.scratch.path().join("site");
    make_site(&site);
    let port = ports();
    let server = nginx_of_short_connections(&one, &site, port, 20);
    for name in ["1", "199"] {
        assert!(ask_by_wrk(&one, port, name) > 0);
    }
    assert!(ring_octets(&one.host) > 0);
    server.signal(Signal::SIGQUIT).unwrap();
    output(server);
    one.down();
}

/// lighttpd's connections end in the midst of what wrk does with them, soon after their ends have
/// met.
#[test]
#[ignore = "make test-all"]
fn wrk_has_no_error_while_lighttpd_ends_each_connection_after_twenty_requests() {
    let _alone = alone();
    let one = of_everyone();
    let site = one.scratch.path().join("site");
    make_site(&site);
    let port = ports();
    let config = one.scratch.path().join("lighttpd.conf");
    let text = format!(
        "server.document-root = \"{}\"\nserver.bind = \"127.0.0.1\"\nserver.port = {port}\n\
         server.username = \"www-data\"\nserver.max-keep-alive-requests = 20\n",
        site.display()
    );
    fs::write(&config, text).unwrap();
    let server = words(&format!("lighttpd -D -f {}", config.display()));
    let server = serve(&mut early(&one, &server), port).unwrap();
    for name in ["1", "199", "large"] {
        let wrk = servers::wrk(port, name, 3, Connections::Kept);
        let asked = Process::run(&mut early(&one, &wrk), LIMIT).unwrap();
        assert!(servers::read_wrk(&asked).unwrap().count > 0);
    }
    assert!(ring_octets(&one.host) > 0);
    stop(server);
    one.down();
}

/// Else haproxy lets no library start a thread (RLIMIT_NPROC).
#[test]
#[ignore = "make test-all"]
fn haproxy_passes_on_what_nginx_sends_over_rings() {
    let _alone = alone();
    let one = of_everyone();
    let site = one.scratch.path().join("site");
    make_site(&site);
    let [port, behind] = [ports(), ports()];
    let server = nginx(&one, &site, behind);
    let config = one.scratch.path().join("haproxy.cfg");
    let text = format!(
        "global\n  user haproxy\n  group haproxy\n  insecure-fork-wanted\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 50s\n  timeout server 50s\n\
         listen all\n  bind 127.0.0.1:{port}\n  server one 127.0.0.1:{behind}\n"
    );
    fs::write(&config, text).unwrap();
    let proxy = format!("haproxy -db -f {}", config.display());
    let proxy = serving(&one, &words(&proxy), port);
    get_by_curl(&one, &site, port);
    let requests = ask_by_wrk(&one, port, "199");
    stop(proxy);
    // Each octet goes from server to proxy, and on.
    let asked = requests * fs::metadata(site.join("199")).unwrap().len();
    expect_carried(&one, 0, asked);
    server.signal(Signal::SIGQUIT).unwrap();
    output(server);
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn memcached_keeps_values_that_come_over_rings() {
    let _alone = alone();
    let one = of_everyone();
    let port = ports();
    let server = serving(&one, &servers::memcached(port), port);
    let octets = comparing(&one, &format!("python3 {CHECKS}/memcached.py"), port, 8);
    expect_carried(&one, 0, octets / 10 * 9);
    stop(server);
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn node_serves_and_asks_over_rings() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = words(&format!("node {CHECKS}/node.js serve {port}"));
    let server = serving(&one, &server, port);
    let octets = comparing(&one, &format!("node {CHECKS}/node.js ask"), port, 8);
    // There and back.
    expect_carried(&one, 0, 2 * (octets / 10 * 9));
    stop(server);
    one.down();
}

/// The agent of a client keeps five connections, which the server ends after twenty requests.
#[test]
#[ignore = "make test-all"]
fn node_keeps_connections_that_end_over_rings() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = format!("node {CHECKS}/node.js serve-some {port}");
    let client = format!("node {CHECKS}/node.js share {port} 2000");
    let octets = compare_early(&one, &server, &client, port);
    // There and back.
    expect_carried(&one, 0, octets);
    one.down();
}

/// Fifty clients connect twenty times each; the server has a thread or a child for each connection.
#[test]
#[ignore = "make test-all"]
fn python_serves_clients_that_connect_again_over_rings() {
    let _alone = alone();
    for kind in ["threads", "forks"] {
        let one = OneHost::up();
        let port = ports();
        let server = format!("python3 {CHECKS}/reconnect.py serve {kind} {port}");
        let client = format!("python3 {CHECKS}/reconnect.py ask {port}");
        let octets = compare_early(&one, &server, &client, port);
        expect_carried(&one, 0, octets / 2);
        one.down();
    }
}

#[test]
#[ignore = "make test-all"]
fn iperf3_streams_go_over_rings() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = serving(&one, &servers::iperf3_server(port), port);
    for options in ["", "-R", "-P 4"] {
        let before = ring_octets(&one.host);
        let mut argv = servers::iperf3_client(port, 1);
        argv.extend(words(options));
        let octets = servers::read_iperf3(&run(&one, &argv)).unwrap().count;
        assert!(octets > 100 << 20, "{octets}");
        expect_carried(&one, before, octets / 2);
    }
    stop(server);
    one.down();
}

/// A connection is accepted by one process and used by a child.
#[test]
#[ignore = "make test-all"]
fn postgresql_and_pgbench_keep_balances() {
    const TRANSACTIONS: u64 = 500;
    /// More than half of the octets of a transaction's statements and their answers.
    const OCTETS: u64 = 400;
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let programs = PostgreSql::installed().unwrap();
    let (uid, gid) = (programs.user.uid, programs.user.gid);
    nix::unistd::chown(scratch.path(), Some(uid), Some(gid)).unwrap();
    let place = Place {
        namespace: None,
        user: Some(uid.as_raw()),
    };
    let host = Instance::up_at_place(place, scratch.path(), "one", &["127.0.0.1"], "").unwrap();
    let one = OneHost { host, scratch };
    let (data, port) = (one.scratch.path().join("data"), ports());
    let client = |name: &str, line: &str| {
        let arguments: Vec<&str> = line.split('|').collect();
        let ended = run(&one, &programs.client(name, port, &arguments));
        assert!(ended.succeeded(), "{line}: {}", ended.describe());
        ended
    };
    assert!(run(&one, &programs.initdb(&data)).succeeded());
    let mut server = serving(&one, &programs.server(&data, port), port);
    server.wait_for_text("ready to accept", SHORT).unwrap();
    client("pgbench", "-i|-q");
    let before = ring_octets(&one.host);
    let ended = client("pgbench", &format!("-c4|-j2|-t{TRANSACTIONS}"));
    // Connections that are offered at once meet while the server forks: those stay with TCP.
    let least = if are_offered_at_once() {
        0
    } else {
        4 * TRANSACTIONS * OCTETS
    };
    expect_carried(&one, before, least);
    servers::read_pgbench(&ended).unwrap();
    let sum = |column: &str, table: &str| format!("(select sum({column}) from pgbench_{table})");
    let [accounts, branches, tellers, history] = [
        sum("abalance", "accounts"),
        sum("bbalance", "branches"),
        sum("tbalance", "tellers"),
        sum("delta", "history"),
    ];
    let ask = format!(
        "select {accounts} = {history}, {branches} = {history}, {tellers} = {history}, \
         (select count(*) from pgbench_history)"
    );
    let said = client("psql", &format!("-t|-A|-c|{ask}")).output;
    assert_eq!(said.trim(), format!("t|t|t|{}", 4 * TRANSACTIONS));
    server.signal(Signal::SIGINT).unwrap();
    server.wait(SHORT).unwrap();
    one.down();
}
