//! Connections that the program's or urdmad's configuration keeps with TCP.

use std::fs::File;
use std::net::{TcpListener, TcpStream};

use urdma_harness::process::{wait_until, Process};
use urdma_ipc::message::Event;
use urdma_ipc::SocketReason;
use urdma_tests::rings::{client, output, status};
use urdma_tests::{alone, ports, OneHost, SHORT};

use crate::{joined, offer, ENDS};

#[test]
fn connection_that_is_excluded_stays_with_tcp() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let begin = one.scratch.path().join("begin");
    File::create(&begin).unwrap();
    let exclude = |rules: &str, words: &str| {
        let mut command = one.host.subcommand("run").unwrap();
        command.args(["--sockets", "--sockets-from", "0", "--sockets-exclude"]);
        command.args([rules, "--", "python3", ENDS]);
        command.args(words.split(' '));
        Process::start(&mut command).unwrap()
    };
    let observer = client(&one);
    let ping = format!("ping {port} 20 {} /dev/null", begin.display());
    let excluded = format!("10.0.0.0/8,127.0.0.1:{port}");
    for (rules, joined, counts) in [("10.0.0.0/8", 1, 0), (&*excluded, 1, 2)] {
        let mut server = exclude(rules, &format!("echo {port}"));
        server.wait_for_text("ready", SHORT).unwrap();
        assert!(output(exclude(rules, &ping)).contains("done"));
        output(server);
        let count = || status(&observer).reasons[&SocketReason::Excluded];
        wait_until("the counts", SHORT, || count() == counts).unwrap();
        assert_eq!(status(&observer).joined, joined);
    }

    let refused = exclude(&format!("{port},localhost"), &ping)
        .wait(SHORT)
        .unwrap();
    let says = "for '--sockets-exclude <RULES>': \"localhost\": write a port";
    assert!(
        !refused.succeeded() && refused.output.contains(says),
        "{}",
        refused.describe()
    );
    one.down();
}

/// How many threads each process has whose command line has some words.
fn threads(words: &str) -> Vec<usize> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let of = |process: std::fs::DirEntry| {
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let tasks = std::fs::read_dir(process.path().join("task")).ok()?;
        line.contains(words).then(|| tasks.count())
    };
    processes.filter_map(of).collect()
}

/// An end of `ends.py`, all of whose connections are excluded.
fn excluded(one: &OneHost, words: &str) -> Process {
    let mut command = one.host.subcommand("run").unwrap();
    command.args(["--sockets", "--sockets-exclude", "0.0.0.0/0"]);
    command.args(["--", "python3", ENDS]).args(words.split(' '));
    let mut process = Process::start(&mut command).unwrap();
    if words.starts_with("echo") || words.starts_with("serve") {
        process.wait_for_text("ready", SHORT).unwrap();
    }
    process
}

#[test]
fn program_whose_connections_are_excluded_has_no_other_thread() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let file = |name: &str| one.scratch.path().join(name);
    let (begin, again) = (file("begin"), file("again"));
    let words = [
        format!("echo {port}"),
        format!("ping {port} 20 {} {}", begin.display(), again.display()),
    ];
    let [server, user] = words.each_ref().map(|words| excluded(&one, words));
    let observer = client(&one);
    let is_told = || status(&observer).reasons[&SocketReason::Excluded] == 2;
    File::create(&begin).unwrap();
    wait_until("the counts", SHORT, is_told).unwrap();
    for words in &words {
        wait_until("one thread", SHORT, || threads(words) == [1]).unwrap();
    }
    File::create(&again).unwrap();
    assert!(output(user).contains("done"));
    output(server);
    assert!(is_told());
    one.down();
}

/// Regression: what a process without an agent's thread counted after the end of urdmad was lost.
#[test]
fn next_urdmad_knows_what_is_excluded_after_the_end_of_one() {
    const CONNECTIONS: u64 = 5;
    /// Those of the urdmad that is killed.
    const BEFORE: u64 = 2;
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let dir = one.scratch.path();
    let words = [
        format!("serve {port} {CONNECTIONS}"),
        format!("reasons {port} {}", dir.display()),
    ];
    let [server, user] = words.each_ref().map(|words| excluded(&one, words));
    let mut observer = client(&one);
    let mut known = 0;
    for number in 0..CONNECTIONS {
        if number == BEFORE {
            one.host.kill_and_restart().unwrap();
            (observer, known) = (client(&one), 0);
        }
        // The one before ends, and this one begins.
        if number > 0 {
            File::create(dir.join((number - 1).to_string())).unwrap();
        }
        known += 2;
        let are_known = || status(&observer).reasons[&SocketReason::Excluded] == known;
        wait_until("the counts", SHORT, are_known).unwrap();
        wait_until("one thread", SHORT, || threads(&words[1]) == [1]).unwrap();
    }
    File::create(dir.join((CONNECTIONS - 1).to_string())).unwrap();
    output(user);
    output(server);
    assert_eq!(status(&observer).reasons[&SocketReason::Excluded], known);
    one.down();
}

/// An end of `ends.py` whose socket is offered at once.
fn end(one: &OneHost, words: &str) -> Process {
    let mut command = one.host.subcommand("run").unwrap();
    command.args(["--sockets", "--sockets-from", "0", "--", "python3", ENDS]);
    command.args(words.split(' '));
    Process::start(&mut command).unwrap()
}

#[test]
fn connection_that_urdmad_excludes_stays_with_tcp() {
    const ADDRESS: &str = "127.0.0.9";
    let _alone = alone();
    let port = ports();
    let rules = format!("[sockets]\nexclude = [\"{port}\", \"{ADDRESS}\"]\n");
    let one = OneHost::up_with(&["127.0.0.1"], &rules);
    let begin = one.scratch.path().join("begin");
    File::create(&begin).unwrap();
    let mut server = end(&one, &format!("echo {port}"));
    server.wait_for_text("ready", SHORT).unwrap();
    let pings = end(
        &one,
        &format!("ping {port} 20 {} /dev/null", begin.display()),
    );
    assert!(output(pings).contains("done"));
    output(server);

    let observer = client(&one);
    let clients = [client(&one), client(&one)];
    for (address, is_excluded) in [(ADDRESS, true), ("127.0.0.1", false)] {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (there, _) = listener.accept().unwrap();
        let sockets = [here, there];
        let ids = [0, 1].map(|end| offer(&clients[end], &sockets[end]));
        for (client, offer) in clients.iter().zip(ids) {
            if is_excluded {
                let event = client.next_event(Some(SHORT)).unwrap().unwrap().0;
                assert_eq!(event, Event::SocketRefused { offer });
            } else {
                assert_eq!(joined(client).0.offer, offer);
            }
        }
    }
    let status = status(&observer);
    assert_eq!(
        (status.joined, status.reasons[&SocketReason::Excluded]),
        (1, 4)
    );
    let mut command = one.host.subcommand("status").unwrap();
    let shown = output(Process::start(&mut command).unwrap());
    let line = shown
        .lines()
        .find(|line| line.starts_with("sockets_excluded"));
    assert_eq!(
        line.unwrap().split_whitespace().last(),
        Some("4"),
        "{shown}"
    );
    one.down();
}
