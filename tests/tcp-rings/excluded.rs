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
