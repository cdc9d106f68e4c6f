//! Byte streams over verbs (`urdma-exs`): both ends sleep when they have nothing to do.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::calls::Counted;
use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::{wait_until, Ended, Process};
use urdma_tests::{alone, expect_all_taken_back, ports, up_with_faults, OneHost, NOTICE, SHORT};

/// How long one end may run.
const LIMIT: Duration = Duration::from_secs(1800);

/// Starts `urdma-stream` on a host.
fn start(host: &Instance, arguments: &[&str]) -> Process {
    let program = binary_dir().unwrap().join("urdma-stream");
    let mut argv = vec![program.to_str().unwrap()];
    argv.extend(arguments);
    Process::start(&mut host.run(LeasePolicy::Never, &argv).unwrap()).unwrap()
}

/// Starts a server for one client, and returns its address too.
fn serve(host: &Instance, options: &[&str]) -> (Process, String) {
    let address = format!("{}:{}", host.address(), ports());
    let mut arguments = vec!["server", &address, "--one"];
    arguments.extend(options);
    let mut serving = start(host, &arguments);
    serving.wait_for_text("listening", SHORT).unwrap();
    (serving, address)
}

/// Both ends of a blast, started; the server first.
fn both(
    [server, client]: [&Instance; 2],
    octets: u64,
    options: &[&str],
    of_server: &[&str],
) -> [Process; 2] {
    let (serving, address) = serve(server, of_server);
    let octets = octets.to_string();
    let mut arguments = vec!["blast", &address, "--octets", &octets];
    arguments.extend(options);
    [serving, start(client, &arguments)]
}

/// Passes octets from a client to a server; both must have the same digest. Returns what the client
/// has printed.
fn pass(hosts: [&Instance; 2], octets: u64, options: &[&str]) -> String {
    pass_between(hosts, octets, options, &[])
}

/// As [`pass`], with options of the server.
fn pass_between(
    hosts: [&Instance; 2],
    octets: u64,
    options: &[&str],
    of_server: &[&str],
) -> String {
    let [serving, asking] = both(hosts, octets, options, of_server);
    let asked = asking.wait(LIMIT).unwrap();
    assert!(
        asked.succeeded(),
        "client: {}; server: {}",
        asked.describe(),
        serving.printed()
    );
    let served = serving.wait(SHORT).unwrap();
    assert!(served.succeeded(), "server: {}", served.describe());
    let digest = |printed: &str| {
        let line = printed.lines().find(|line| line.starts_with("sha256 "));
        line.unwrap().to_owned()
    };
    assert_eq!(digest(&asked.output), digest(&served.output));
    asked.output
}

/// How many transfers of a kind an end has counted.
fn count(printed: &str, kind: &str) -> u64 {
    let counts = printed.lines().find(|line| line.starts_with("transfers: "));
    let words: Vec<&str> = counts.unwrap().split([' ', ',']).collect();
    let at = words.iter().position(|&word| word == kind).unwrap();
    words[at - 1].parse().unwrap()
}

#[test]
fn gigabyte_over_one_host_arrives() {
    let _alone = alone();
    let one = OneHost::up();
    pass([&one.host, &one.host], 1 << 30, &[]);
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn stream_over_two_hosts_arrives() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    pass([&hosts.a, &hosts.b], 64 << 20, &[]);
    hosts.down().unwrap();
}

#[test]
fn every_way_of_transfer_arrives() {
    let _alone = alone();
    let one = OneHost::up();
    let hosts = [&one.host, &one.host];
    let small_ring = ["--ring-octets", "100003"];
    let direct = pass(hosts, 100 << 20, &["--transfers", "direct"]);
    assert_eq!(count(&direct, "indirect"), 0);
    assert!(count(&direct, "direct") > 100);
    let indirect = pass(hosts, 100 << 20, &["--transfers", "indirect"]);
    assert_eq!(count(&indirect, "direct"), 0);
    assert!(count(&indirect, "indirect") > 100);
    pass_between(hosts, 20 << 20, &["--seed", "5"], &small_ring);
    // Sends that exceed what one transfer, the ring, and one RDMA Write carry.
    pass(
        hosts,
        100 << 20,
        &["--max-octets", "30000000", "--sends", "3", "--recvs", "3"],
    );
    // Sends that are shorter than a control message.
    pass(hosts, 100_000, &["--max-octets", "60"]);
    expect_all_taken_back(&one.host);
    one.down();
}

/// The ring that the client is offered at first holds a part of what the path holds.
#[test]
fn ring_grows_over_a_long_path() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let [a, b] = up_with_faults(&scratch, "[fault]\ndelay = \"10ms\"\n");
    let indirect = ["--transfers", "indirect", "--sends", "64"];
    let small_ring = ["--ring-octets", "262144", "--ring-max-octets", "4194304"];
    let grown = pass_between([&a, &b], 100 << 20, &indirect, &small_ring);
    println!("{grown}");
    assert!((1..=4).contains(&count(&grown, "rings")), "{grown}");
    let fixed = ["--ring-octets", "4194304", "--ring-max-octets", "0"];
    let kept = pass_between([&a, &b], 100 << 20, &indirect, &fixed);
    println!("{kept}");
    assert_eq!(count(&kept, "rings"), 0, "{kept}");
    for host in [a, b] {
        expect_all_taken_back(&host);
        host.down().unwrap();
    }
}

#[test]
fn streams_that_are_short_end_at_both_ends() {
    let _alone = alone();
    let one = OneHost::up();
    for seed in 1..=20_u64 {
        let seed = seed.to_string();
        pass([&one.host, &one.host], 1000, &["--seed", &seed]);
    }
    one.down();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    for seed in 1..=20_u64 {
        let seed = seed.to_string();
        pass([&hosts.a, &hosts.b], 1000, &["--seed", &seed]);
    }
    hosts.down().unwrap();
}

#[test]
fn messages_are_sent_back() {
    let _alone = alone();
    let one = OneHost::up();
    for octets in ["1", "64", "1000000"] {
        let (serving, address) = serve(&one.host, &[]);
        let asking = ["ping", &address, "--octets", octets, "--count", "100"];
        let asked = start(&one.host, &asking).wait(SHORT).unwrap();
        assert!(asked.succeeded(), "{}", asked.describe());
        assert!(asked.output.contains("100 round trips"), "{}", asked.output);
        let served = serving.wait(SHORT).unwrap();
        assert!(served.succeeded(), "{}", served.describe());
    }
    // A request for more memory than a server allocates.
    let (serving, address) = serve(&one.host, &[]);
    let too_much = [
        "blast",
        &address,
        "--recvs",
        "1025",
        "--max-octets",
        "1048576",
    ];
    let asked = start(&one.host, &too_much).wait(SHORT).unwrap();
    assert!(
        asked.output.contains("octets of buffers"),
        "{}",
        asked.describe()
    );
    drop(serving);
    one.down();
}

/// Short sends of a blast, and octets of each.
const SENDS: u64 = 200_000;
const SEND_OCTETS: u64 = 64;
/// Sleeps before the first transfer and after the last, of all threads.
const OTHER_SLEEPS: u64 = 500;

/// The calls in which threads of a receiver sleep. Over this provider poll(2) for a completion
/// queue is futex_waitv(2) in most cases.
const SLEEPS: [&str; 4] = ["poll", "ppoll", "futex_waitv", "epoll_wait"];

#[test]
#[ignore = "make test-all"]
fn short_sends_wake_a_sleeping_receiver_at_most_once_for_a_transfer() {
    let _alone = alone();
    let one = OneHost::up();
    let address = format!("{}:{}", one.host.address(), ports());
    let program = binary_dir().unwrap().join("urdma-stream");
    let argv = [program.to_str().unwrap(), "server", &address, "--one"];
    let command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let mut serving = Counted::start(&command).unwrap();
    { serving.process() }
        .wait_for_text("listening", SHORT)
        .unwrap();
    let numbers = [SENDS * SEND_OCTETS, SEND_OCTETS].map(|number| number.to_string());
    let [octets, each] = &numbers;
    let mut arguments = vec!["blast", &address, "--octets", octets, "--max-octets", each];
    arguments.extend(["--fixed", "--unchecked", "--sends", "64"]);
    let asked = start(&one.host, &arguments).wait(LIMIT).unwrap();
    expect_success(&asked);
    let (served, calls) = serving.wait(SHORT).unwrap();
    expect_success(&served);
    let transfers: u64 = ["direct", "indirect"]
        .map(|kind| count(&asked.output, kind))
        .iter()
        .sum();
    println!("{SENDS} sends of {SEND_OCTETS} octets are {transfers} transfers; receiver: {calls}");
    let sleeps: f64 = SLEEPS.iter().map(|name| calls.of(name)).sum();
    let most = u32::try_from(transfers + OTHER_SLEEPS).unwrap();
    assert!(sleeps <= f64::from(most), "{sleeps} sleeps");
    one.down();
}

/// Passes standard input of one pipe to standard output of the other, in both directions.
#[test]
fn pipe_passes_octets_of_both_ends() {
    let _alone = alone();
    let one = OneHost::up();
    let directory = one.scratch.path();
    let program = binary_dir().unwrap().join("urdma-stream");
    let address = format!("{}:{}", one.host.address(), ports());
    let octets: Vec<u8> = (0..3_000_001_u32)
        .map(|number| (number ^ number >> 9).to_le_bytes()[0])
        .collect();
    let names = ["long", "short", "from-long", "from-short"];
    let [long, short, from_long, from_short] = names.map(|name| directory.join(name));
    fs::write(&long, &octets).unwrap();
    fs::write(&short, "a few octets").unwrap();
    let pipe = |input: &Path, output: &Path, listen: &str| {
        let script = format!(
            "exec {} pipe {listen} {address} <{} >{}",
            program.display(),
            input.display(),
            output.display()
        );
        let argv = ["sh", "-c", &script];
        Process::start(&mut one.host.run(LeasePolicy::Never, &argv).unwrap()).unwrap()
    };
    let mut listening = pipe(&short, &from_long, "--listen");
    listening.wait_for_text("listening", SHORT).unwrap();
    let connecting = pipe(&long, &from_short, "");
    for end in [connecting, listening] {
        let ended = end.wait(SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    assert_eq!(fs::read(&from_short).unwrap(), b"a few octets");
    assert!(fs::read(&from_long).unwrap() == octets, "other octets");
    expect_all_taken_back(&one.host);
    one.down();
}

/// Kills one end of a stream in progress `after` both transfer; the other must end with an error.
fn kill_one(hosts: [&Instance; 2], victim_is_server: bool, after: Duration) {
    let [mut serving, mut asking] = both(hosts, 1 << 40, &[], &[]);
    serving.wait_for_text("receiving", SHORT).unwrap();
    asking.wait_for_text("sending", SHORT).unwrap();
    std::thread::sleep(after);
    let (victim, survivor) = match victim_is_server {
        true => (serving, asking),
        false => (asking, serving),
    };
    victim.signal(Signal::SIGKILL).unwrap();
    let ended = survivor.wait(NOTICE).unwrap();
    assert!(!ended.succeeded());
    assert!(
        ended.output.contains("stream ended"),
        "{}",
        ended.describe()
    );
    for host in hosts {
        expect_all_taken_back(host);
    }
}

/// Kills ends of streams at random moments, `rounds` times on one host and between two.
fn kill_ends(rounds: u32) {
    let _alone = alone();
    let mut random = std::process::id();
    let mut kill = |hosts: [&Instance; 2]| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let after = Duration::from_micros(u64::from(random >> 16));
        kill_one(hosts, random & 1 << 15 != 0, after);
    };
    let one = OneHost::up();
    for _ in 0..rounds {
        kill([&one.host, &one.host]);
    }
    one.down();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    for _ in 0..rounds {
        kill([&hosts.a, &hosts.b]);
    }
    hosts.down().unwrap();
}

#[test]
fn kill_of_one_end_is_an_error_at_the_other() {
    kill_ends(4);
}

#[test]
#[ignore = "make test-all"]
fn thousand_kills_of_one_end_are_errors_at_the_other_and_leave_nothing() {
    kill_ends(500);
}

/// Passes octets over a link that loses, duplicates and reorders one packet of a hundred.
fn pass_over_a_bad_link(octets: u64) {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let fault = "[fault]\nloss = \"1%\"\nduplicate = \"1%\"\nreorder = \"1%\"\nseed = 3\n";
    let [a, b] = up_with_faults(&scratch, fault);
    pass([&a, &b], octets, &[]);
    for host in [a, b] {
        host.down().unwrap();
    }
}

#[test]
fn stream_over_a_bad_link_arrives() {
    pass_over_a_bad_link(50 << 20);
}

#[test]
#[ignore = "make test-all"]
fn ten_gigabytes_over_a_bad_link_arrive() {
    pass_over_a_bad_link(10 << 30);
}

#[test]
fn abort_is_told_with_its_code_by_both_ends() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    for [server, client] in [[&hosts.a, &hosts.a], [&hosts.a, &hosts.b]] {
        let ends = both([server, client], 10 << 20, &["--abort", "7"], &[]);
        let [served, asked] = ends.map(|end| end.wait(NOTICE).unwrap());
        let told = "stream ended: the peer aborted the stream with code 7";
        assert!(served.output.contains(told), "{}", served.describe());
        let told = "stream ended: the stream was aborted with code 7";
        assert!(asked.output.contains(told), "{}", asked.describe());
        expect_all_taken_back(server);
        expect_all_taken_back(client);
    }
    hosts.down().unwrap();
}

/// Starts a receiver of files, and returns its address too.
fn receive(host: &Instance, directory: &Path, options: &[&str]) -> (Process, String) {
    let address = format!("{}:{}", host.address(), ports());
    let mut arguments = vec!["receive", &address, directory.to_str().unwrap()];
    arguments.extend(options);
    let mut receiving = start(host, &arguments);
    receiving.wait_for_text("listening", SHORT).unwrap();
    (receiving, address)
}

fn send(host: &Instance, address: &str, files: &[&Path]) -> Ended {
    let mut arguments = vec!["send", address];
    arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
    start(host, &arguments).wait(LIMIT).unwrap()
}

fn expect_success(ended: &Ended) {
    assert!(ended.succeeded(), "{}", ended.describe());
}

#[test]
fn files_are_copied_and_not_replaced_unless_asked_for() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    let [from, to] = ["from", "to"].map(|name| scratch.path().join(name));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    let files = [("none", 0), ("one", 1), ("a name", 5_000_003)].map(|(name, octets)| {
        let path = from.join(name);
        fs::write(&path, vec![name.len().to_le_bytes()[0]; octets]).unwrap();
        path
    });
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let (receiving, address) = receive(&hosts.a, &to, &["--one"]);
    expect_success(&send(&hosts.b, &address, &files));
    expect_success(&receiving.wait(SHORT).unwrap());
    for file in &files {
        let copy = to.join(file.file_name().unwrap());
        assert!(
            fs::read(file).unwrap() == fs::read(&copy).unwrap(),
            "{copy:?}"
        );
    }
    assert_eq!(fs::read_dir(&to).unwrap().count(), files.len());
    let (receiving, address) = receive(&hosts.a, &to, &[]);
    let refused = send(&hosts.b, &address, &files[1..2]);
    assert!(!refused.succeeded());
    assert!(
        refused.output.contains("--overwrite"),
        "{}",
        refused.describe()
    );
    drop(receiving);
    fs::write(files[1], "other octets").unwrap();
    let (receiving, address) = receive(&hosts.a, &to, &["--overwrite", "--one"]);
    expect_success(&send(&hosts.b, &address, &files[1..2]));
    expect_success(&receiving.wait(SHORT).unwrap());
    assert_eq!(fs::read(to.join("one")).unwrap(), b"other octets");
    let missing = send(&hosts.b, "127.0.0.1:9", &[Path::new("/no/file")]);
    assert!(!missing.succeeded());
    hosts.down().unwrap();
}

#[test]
fn copy_that_was_killed_is_continued() {
    let _alone = alone();
    let one = OneHost::up();
    let path = one.scratch.path().join("long");
    let to = one.scratch.path().join("to");
    fs::create_dir(&to).unwrap();
    let (part, copy) = (to.join("long.part"), to.join("long"));
    let octets = 1_u64 << 30;
    File::create(&path).unwrap().set_len(octets).unwrap();
    let (receiving, address) = receive(&one.host, &to, &[]);
    let sending = start(&one.host, &["send", &address, path.to_str().unwrap()]);
    let is_begun = || fs::metadata(&part).is_ok_and(|part| part.len() > 1 << 20);
    wait_until("octets of the file", SHORT, is_begun).unwrap();
    sending.signal(Signal::SIGKILL).unwrap();
    drop(sending);
    // The receiver keeps the file until it knows of the end.
    wait_until("the continued copy", SHORT, || {
        let sent = send(&one.host, &address, &[&path]);
        assert!(
            sent.succeeded() || sent.output.contains("another sender"),
            "{}",
            sent.describe()
        );
        assert!(
            !sent.succeeded() || sent.output.contains("resumed at"),
            "{}",
            sent.describe()
        );
        sent.succeeded()
    })
    .unwrap();
    assert_eq!(fs::metadata(&copy).unwrap().len(), octets);
    assert!(!part.exists());
    // What is not the beginning of the file is not continued.
    fs::remove_file(&copy).unwrap();
    fs::write(&part, "other octets").unwrap();
    File::create(&path).unwrap().set_len(1000).unwrap();
    let sent = send(&one.host, &address, &[&path]);
    expect_success(&sent);
    assert!(!sent.output.contains("resumed"), "{}", sent.describe());
    assert!(fs::read(&copy).unwrap() == [0; 1000]);
    drop(receiving);
    one.down();
}
