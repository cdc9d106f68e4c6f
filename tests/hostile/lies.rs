//! Attacks through the control socket.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::socket::Shutdown;
use urdma_ipc::capture::CaptureOptions;
use urdma_ipc::fault::{Direction, Impairment};
use urdma_ipc::message::Request;
use urdma_ipc::{CmPort, ControlError, PortSharing, PortTable, ProcessReport};

use crate::conversation::{Conversation, Outcome};
use crate::random::Random;
use crate::{Context, Tally, ARRIVED};

/// Ports and groups that are asked for at once.
const MANY: u32 = 300;
/// Counters of a report that is almost as long as urdmad takes one.
const COUNTERS: u32 = 200;
/// Processes whose reports together are longer than a packet can be.
const REPORTERS: usize = 60;

/// What only the owner and root may do.
pub(crate) fn forbidden(context: &Context) -> Result<Tally, String> {
    let mut tally = Tally::default();
    while !context.is_over() {
        let client = context.connect()?;
        let file = PathBuf::from("/tmp/urdma-hostile.pcapng");
        tally.refused(
            "a capture",
            client
                .capture_start(file, CaptureOptions::default())
                .is_ok(),
        )?;
        tally.refused("the end of a capture", client.capture_stop().is_ok())?;
        let faults = client.set_faults(Direction::Both, Impairment::default(), None);
        tally.refused("faults", faults.is_ok())?;
        tally.refused("the end of urdmad", client.shutdown().is_ok())?;
        tally.refused("the end of a slot", client.detach().is_ok())?;
    }
    Ok(tally)
}

/// Packets that are no messages, and conversations that end in every way. A conversation that is
/// not shut ends with a request, and urdmad has seen all of it once that is answered; it has seen
/// the packet for which it ends one.
pub(crate) fn garbage(context: &Context) -> Result<Tally, String> {
    const LAST: u64 = 2;
    let mut random = context.random.clone();
    let (mut seen, mut answered, mut ended) = (0, 0, 0);
    while !context.is_over() || answered == 0 || ended == 0 {
        let conversation = Conversation::open(context)?;
        if !random.once_in(8) {
            conversation.greet();
        }
        let packets = (0..1 + random.below(4)).map(|_| packet(&mut random));
        let sent = packets.filter(|packet| conversation.send(packet)).count();
        let way = random.one_of(&[None, None, Some(Shutdown::Read), Some(Shutdown::Write)]);
        if let Some(way) = way {
            conversation.shut(way);
            // urdmad finds that its answer cannot be sent, or that nothing more comes.
            conversation.ask(LAST, Request::Detach, &[]);
            conversation.await_end()?;
            continue;
        }
        conversation.ask(LAST, Request::Detach, &[]);
        match conversation.await_answer(LAST)? {
            Outcome::Answered => {
                answered += 1;
                seen += sent as u64;
                conversation.shut(Shutdown::Both);
            }
            Outcome::Ended => {
                ended += 1;
                seen += 1;
            }
            Outcome::NotAdmitted => {}
        }
    }
    Ok(Tally {
        tries: seen,
        refused: ended,
    })
}

/// One packet: octets, JSON of another shape, or requests out of order.
fn packet(random: &mut Random) -> Vec<u8> {
    const REQUESTS: [&str; 12] = [
        r#"{"id":1,"request":{"hello":{"version":1,"program":"x"}}}"#,
        r#"{"id":1,"request":{"hello":{"version":4294967295,"program":""}}}"#,
        r#"{"id":18446744073709551615,"request":"status"}"#,
        r#"{"id":-1,"request":"status"}"#,
        r#"{"id":1,"request":{"attach":{"want_lease":true}}}"#,
        r#"{"id":1,"request":"detach"}"#,
        r#"{"id":1,"request":{"offer_channel":{"slot":0}}}"#,
        r#"{"id":1,"request":{"offer_channel":{"slot":256}}}"#,
        r#"{"id":1,"request":{"qps_are_set":[{"qpn":4294967295,"succeeded":true}]}}"#,
        r#"{"id":1,"request":"no such request"}"#,
        r#"{"id":1,"request":"status","more":1}"#,
        "null",
    ];
    match random.below(5) {
        0 => {
            let mut octets = vec![0; 1 + random.below(300)];
            random.fill(&mut octets);
            octets
        }
        1 => vec![b'['; length(random)],
        2 => {
            let mut octets = random.one_of(&REQUESTS).as_bytes().to_vec();
            let at = random.below(octets.len());
            octets[at] = random.u8();
            octets
        }
        3 => {
            let (name, version) = ("x".repeat(length(random)), urdma_ipc::PROTOCOL_VERSION);
            let hello = format!(r#"{{"version":{version},"program":"{name}"}}"#);
            format!(r#"{{"id":1,"request":{{"hello":{hello}}}}}"#).into_bytes()
        }
        _ => random.one_of(&REQUESTS).as_bytes().to_vec(),
    }
}

/// A length that urdmad takes as a rule, or one that the kernel does.
fn length(random: &mut Random) -> usize {
    let longest = random.one_of(&[8_000, 190_000]);
    1 + random.below(longest)
}

/// Reports of many processes that are each as long as a request may be, and false.
pub(crate) fn reports(context: &Context) -> Result<Tally, String> {
    let counters: BTreeMap<String, u64> = (0..COUNTERS)
        .map(|number| (format!("counter {number}"), u64::MAX))
        .collect();
    let report = ProcessReport {
        qps: u32::MAX,
        counters,
        ..ProcessReport::default()
    };
    let mut tally = Tally::default();
    while !context.is_over() || tally.tries == 0 {
        let sessions: Result<Vec<_>, _> = (0..REPORTERS).map(|_| context.attach()).collect();
        let sessions = sessions?;
        let shown = std::thread::scope(|scope| {
            let asking = scope.spawn(|| context.connect()?.status().map_err(|e| e.to_string()));
            while !asking.is_finished() {
                for session in &sessions {
                    // It counts if urdmad wants one at the moment.
                    let _ = session.client.report(report.clone());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            asking.join()
        });
        let status = match shown {
            Ok(Ok(status)) => status,
            Ok(Err(reason)) => return Err(format!("no status is shown any more: {reason}")),
            Err(_) => return Err("the thread has failed".to_owned()),
        };
        if let Some(session) = sessions.iter().find(|session| !session.is_alive()) {
            return Err(format!("urdmad takes no report of slot {}", session.slot));
        }
        let reports = status.slots.iter().filter_map(|slot| slot.report.as_ref());
        for shown in reports.filter(|shown| shown.qps == report.qps) {
            tally.refused("a counter of any name", !shown.counters.is_empty())?;
        }
    }
    Ok(tally)
}

/// Requests for the status, whose answers are not read, until urdmad ends the conversation: it asks
/// every process once for all requests of a round.
pub(crate) fn statuses(context: &Context) -> Result<Tally, String> {
    const LAST: u64 = 1000;
    const ROUND: Duration = Duration::from_millis(50);
    let began = Instant::now();
    let mut witness = context.attach()?;
    let mut tally = Tally::default();
    while !context.is_over() || tally.tries == 0 {
        let conversation = Conversation::open(context)?;
        conversation.greet();
        let mut ids = 1..=LAST;
        ids.all(|id| conversation.ask(id, Request::Status, &[]));
        conversation.await_end()?;
        let last = conversation.await_answer(LAST)?;
        if last == Outcome::NotAdmitted {
            continue;
        }
        tally.refused("a thousand unread answers", last == Outcome::Answered)?;
        witness.listen(Duration::ZERO);
        let rounds = began.elapsed().as_millis() / ROUND.as_millis() + 1;
        let is_asked_more = u128::from(witness.reports_wanted) > rounds;
        tally.refused("a report more often than in each round", is_asked_more)?;
    }
    Ok(tally)
}

/// Ports, groups and addresses: as many as one process may have, and more.
pub(crate) fn requests(context: &Context) -> Result<Tally, String> {
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    let local = context.address()?;
    while !context.is_over() {
        let session = context.attach()?;
        let client = &session.client;
        for binding in 0..MANY {
            let wanted = CmPort {
                space: PortTable::Tcp,
                addr: local,
                port: 0,
                sharing: PortSharing::default(),
            };
            let bound = client.cm_bind_port(binding, wanted);
            let listening = bound.and_then(|_| client.cm_listen(binding, u32::MAX));
            expect_alive(&listening)?;
            let group = IpAddr::V4(Ipv4Addr::new(239, 1, random.u8(), random.u8()));
            expect_alive(&client.join_group(group))?;
            expect_alive(&client.resolve(local))?;
            tally.tries += 4;
            if context.is_over() {
                break;
            }
        }
        let own = client.cm_listen(MANY, 1);
        tally.refused("a port that is not bound", own.is_ok())?;
    }
    Ok(tally)
}

fn expect_alive<T>(outcome: &Result<T, ControlError>) -> Result<(), String> {
    match outcome {
        Ok(_) | Err(ControlError::Refused(_)) => Ok(()),
        Err(error) => Err(format!("urdmad does not answer: {error}")),
    }
}

/// Programs that are killed while they attack, one after the other: some at any time, and the
/// others once the processes that stay have seen their attack.
pub(crate) fn deaths(context: &Context) -> Result<Tally, String> {
    const ATTACKS: [&str; 4] = ["aimed", "random", "changes", "churn"];
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    while !context.is_over() {
        let attack = random.one_of(&ATTACKS);
        let mut child = context
            .again(attack, random.u64())
            .spawn()
            .map_err(|error| error.to_string())?;
        let must_arrive = tally.tries % 2 == 0;
        let mut printed = String::new();
        let mut output = child.stdout.take().map(BufReader::new);
        if let Some(output) = output.as_mut().filter(|_| must_arrive) {
            let read = output.read_line(&mut printed);
            read.map_err(|error| error.to_string())?;
        }
        std::thread::sleep(Duration::from_micros(u64::from(random.u16())));
        child.kill().map_err(|error| error.to_string())?;
        child.wait().map_err(|error| error.to_string())?;
        if must_arrive && printed.trim_end() != ARRIVED {
            return Err(format!("{attack} has not arrived: {printed}"));
        }
        tally.tries += 1;
    }
    Ok(tally)
}
