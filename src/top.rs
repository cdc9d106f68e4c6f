//! `urdma top`: rates, retransmissions and queues of processes and their busiest connections.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use urdma_ipc::status::{ConnectionReport, SlotStatus};
use urdma_ipc::{ProcessCounter, Status};

use crate::error::Error;
use crate::status::{dc_line, socket_programs};
use crate::target::Target;

/// Options of `urdma top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    target: Target,
    /// Seconds between two pictures
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
    /// End after this number of pictures; without it, Ctrl-C ends it
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Connections of each process that are shown
    #[arg(long, default_value_t = 8)]
    connections: usize,
}

/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Shows the rates until the end.
pub(crate) fn top(args: &TopArgs) -> Result<(), Error> {
    let client = args.target.connect()?;
    let mut out = io::stdout();
    let clear = if out.is_terminal() { CLEAR } else { "" };
    let mut before = (Instant::now(), client.status()?);
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        std::thread::sleep(Duration::from_secs(args.interval.into()));
        let now = (Instant::now(), client.status()?);
        let seconds = now.0.duration_since(before.0).as_secs_f64();
        let text = picture(&before.1, &now.1, seconds, args.connections);
        match out.write_all(format!("{clear}{text}").as_bytes()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            other => other.map_err(|error| Error::sentence(error.to_string()))?,
        }
        before = now;
        shown += 1;
    }
    Ok(())
}

/// The counters of a process that are shown as rates, with their headings.
const RATES: [(&str, ProcessCounter); 4] = [
    ("sent/s", ProcessCounter::DatagramsSent),
    ("recv/s", ProcessCounter::DatagramsReceived),
    ("again/s", ProcessCounter::SegmentsSentAgain),
    ("timeouts/s", ProcessCounter::ProbeTimeouts),
];

fn picture(before: &Status, now: &Status, seconds: f64, connections: usize) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_picture(&mut text, before, now, seconds, connections);
    text
}

fn write_picture(
    text: &mut String,
    before: &Status,
    now: &Status,
    seconds: f64,
    connections: usize,
) -> std::fmt::Result {
    writeln!(
        text,
        "instance {}, {} of {} slots; {}",
        now.instance,
        now.slots.len(),
        now.slots_total,
        port_rates(before, now, seconds)
    )?;
    write!(
        text,
        "{:>4} {:>8} {:<18} {:>6} {:<6}",
        "slot", "process", "program", "QPs", "state"
    )?;
    for (heading, _) in RATES {
        write!(text, " {heading:>10}")?;
    }
    writeln!(text)?;
    write_sockets(text, before, now, seconds, connections)?;
    for slot in &now.slots {
        let same = |other: &&SlotStatus| (other.slot, other.pid) == (slot.slot, slot.pid);
        let earlier = before.slots.iter().find(same);
        write_process(text, earlier, slot, seconds)?;
        if let Some(report) = &slot.report {
            text.push_str(&dc_line(report));
        }
        write_connections(text, earlier, slot, seconds, connections)?;
    }
    Ok(())
}

/// TCP connections over rings, and why others have none.
fn write_sockets(
    text: &mut String,
    before: &Status,
    now: &Status,
    seconds: f64,
    connections: usize,
) -> std::fmt::Result {
    let (before, now) = (&before.sockets, &now.sockets);
    if now.offered == 0 && now.processes.is_empty() {
        return Ok(());
    }
    let moved = rate(Some(&before.ring_octets), Some(&now.ring_octets), seconds);
    write!(
        text,
        "sockets: {} connections over rings, {:.1} MB/s; {} wait for their peer",
        now.open,
        moved / 1e6,
        now.waiting
    )?;
    for (reason, count) in &now.reasons {
        let new = rate(before.reasons.get(reason), Some(count), seconds);
        if new > 0.0 {
            write!(text, ", {} {new:.0}/s", reason.name())?;
        }
    }
    writeln!(text)?;
    text.push_str(&socket_programs(now));
    for connection in now.connections.iter().take(connections) {
        let mut earlier = before.connections.iter();
        let earlier = earlier.find(|other| other.number == connection.number);
        let earlier = earlier.map(|other| other.ring_octets);
        let moved = rate(earlier.as_ref(), Some(&connection.ring_octets), seconds);
        let ([here, there], [one, other]) = (connection.addresses, connection.pids);
        writeln!(
            text,
            "         {here} ({one}) - {there} ({other}): {:.1} MB/s{}",
            moved / 1e6,
            if connection.is_on_rings {
                ""
            } else {
                ", by TCP"
            }
        )?;
    }
    Ok(())
}

/// Packets of the port per second, and the drops by reason.
fn port_rates(before: &Status, now: &Status, seconds: f64) -> String {
    let (before, now) = (&before.counters.data, &now.counters.data);
    let rate_of = |name: &str| rate(before.get(name), now.get(name), seconds);
    let mut text = format!(
        "port: {:.0} packets/s in, {:.0} out",
        rate_of("rx_packets"),
        rate_of("tx_packets")
    );
    for name in now.keys().filter(|name| name.starts_with("drop_")) {
        let drops = rate_of(name);
        if drops > 0.0 {
            let _ = write!(text, ", {name} {drops:.0}/s");
        }
    }
    text
}

/// The increase of a counter per second; that of a process that is new is unknown.
fn rate(before: Option<&u64>, now: Option<&u64>, seconds: f64) -> f64 {
    let (Some(before), Some(now)) = (before, now) else {
        return 0.0;
    };
    // Counters of a few seconds are far below 2^53.
    let increase = now.saturating_sub(*before) as f64;
    increase / seconds.max(f64::MIN_POSITIVE)
}

fn write_process(
    text: &mut String,
    before: Option<&SlotStatus>,
    slot: &SlotStatus,
    seconds: f64,
) -> std::fmt::Result {
    let report = slot.report.as_ref();
    let state = match report {
        None => "silent",
        Some(report) if report.sleeping => "asleep",
        Some(_) => "awake",
    };
    let qps = report.map_or(0, |report| report.qps);
    write!(
        text,
        "{:>4} {:>8} {:<18} {qps:>6} {state:<6}",
        slot.slot, slot.pid, slot.program
    )?;
    let none = BTreeMap::new();
    let counters = |slot: Option<&SlotStatus>| {
        let report = slot.and_then(|slot| slot.report.clone());
        report.map_or_else(|| none.clone(), |report| report.counters)
    };
    let (before, now) = (counters(before), counters(Some(slot)));
    for (_, counter) in RATES {
        let name = counter.name();
        let rate = rate(before.get(name), now.get(name), seconds);
        write!(text, " {rate:>10.0}")?;
    }
    writeln!(text)
}

fn write_connections(
    text: &mut String,
    before: Option<&SlotStatus>,
    slot: &SlotStatus,
    seconds: f64,
    connections: usize,
) -> std::fmt::Result {
    let Some(report) = &slot.report else {
        return Ok(());
    };
    let earlier = before.and_then(|slot| slot.report.as_ref());
    for connection in report.connections.iter().take(connections) {
        let same = |other: &&ConnectionReport| other.qpn == connection.qpn;
        let earlier = earlier.and_then(|report| report.connections.iter().find(same));
        let per_second = |field: fn(&ConnectionReport) -> u64| {
            rate(
                earlier.map(field).as_ref(),
                Some(&field(connection)),
                seconds,
            )
        };
        let peer = connection
            .peer
            .map_or_else(|| "?".to_owned(), |peer| peer.to_string());
        writeln!(
            text,
            "       {:#08x} to {peer} {:#08x}: {:.1} MB/s out, {:.1} in, {:.0} sent again/s, \
             {} sends and {} receives posted{}",
            connection.qpn,
            connection.remote_qpn,
            per_second(|connection| connection.sent) / 1e6,
            per_second(|connection| connection.received) / 1e6,
            per_second(|connection| connection.sent_again),
            connection.sends,
            connection.recvs,
            path_of(connection),
        )?;
    }
    Ok(())
}

/// Window and round-trip time of a connection to another host.
fn path_of(connection: &ConnectionReport) -> String {
    match connection.window {
        0 => String::new(),
        window => format!(", window {window} packets, RTT {} us", connection.rtt_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urdma_ipc::status::{SocketConnection, SocketProcess};
    use urdma_ipc::{ProcessReport, SocketReason, SocketStatus};

    fn status(packets: u64, octets: u64) -> Status {
        let connection = ConnectionReport {
            qpn: 0x1_0002,
            peer: Some([10, 0, 0, 2].into()),
            remote_qpn: 0x3_0004,
            sent: octets,
            sends: 5,
            window: 32,
            rtt_us: 120,
            ..ConnectionReport::default()
        };
        let report = ProcessReport {
            qps: 1,
            dc_targets: 1,
            dc_contexts: 7,
            sleeping: true,
            counters: [("datagrams_sent".to_owned(), packets)].into(),
            connections: vec![connection],
            ..ProcessReport::default()
        };
        Status {
            instance: "a".to_owned(),
            slots: vec![SlotStatus {
                slot: 1,
                program: "writer".to_owned(),
                report: Some(report),
                ..SlotStatus::default()
            }],
            ..Status::default()
        }
    }

    #[test]
    fn rates_are_differences_by_time() {
        let text = picture(&status(100, 0), &status(300, 4_000_000), 2.0, 8);
        let process = text.lines().find(|line| line.contains("writer")).unwrap();
        let fields: Vec<&str> = process.split_whitespace().collect();
        assert_eq!(fields[4..6], ["asleep", "100"], "{process}");
        for part in [
            "\n       1 DC targets, 7 contexts\n",
            "0x010002 to 10.0.0.2 0x030004: 2.0 MB/s out, 0.0 in",
            "5 sends and 0 receives posted, window 32 packets, RTT 120 us",
        ] {
            assert!(text.contains(part), "no '{part}' in:\n{text}");
        }
    }

    #[test]
    fn sockets_have_rates_programs_and_reasons() {
        let with = |octets, count| {
            let mut status = Status::default();
            let port = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
            status.sockets = SocketStatus {
                offered: 3,
                open: 1,
                waiting: 2,
                ring_octets: octets,
                reasons: [(SocketReason::Dup, count)].into(),
                connections: vec![SocketConnection {
                    number: 4,
                    addresses: [port(10), port(20)],
                    pids: [7, 8],
                    ring_octets: octets,
                    is_on_rings: true,
                }],
                processes: vec![SocketProcess {
                    pid: 7,
                    program: "server".to_owned(),
                    open: 1,
                    waiting: 2,
                    reasons: [(SocketReason::Dup, count)].into(),
                }],
                ..SocketStatus::default()
            };
            status
        };
        let text = picture(&with(0, 5), &with(4_000_000, 9), 2.0, 8);
        for line in [
            "sockets: 1 connections over rings, 2.0 MB/s; 2 wait for their peer, dup 2/s",
            "         server (7): 1 with rings, 2 wait, dup 9",
            "         127.0.0.1:10 (7) - 127.0.0.1:20 (8): 2.0 MB/s",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(!picture(&status(0, 0), &status(0, 0), 1.0, 8).contains("sockets"));
    }

    #[test]
    fn process_that_is_new_has_no_rates_yet() {
        let before = Status::default();
        let text = picture(&before, &status(300, 4_000_000), 2.0, 0);
        let process = text.lines().find(|line| line.contains("writer")).unwrap();
        assert!(process.trim_end().ends_with(" 0"), "{process}");
        assert!(!text.contains("MB/s"));
    }
}
