//! Attacks through the control socket.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::socket::{send, shutdown, MsgFlags, Shutdown};
use urdma_ipc::capture::CaptureOptions;
use urdma_ipc::fault::{Direction, Impairment};
use urdma_ipc::message::{FromClient, Request};
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::{CmPort, ControlClient, ControlError, PortSharing, PortTable, ProcessReport};

use crate::random::Random;
use crate::{Context, Tally};

/// Ports and groups that are asked for at once.
const MANY: u32 = 300;
/// Counters of a report that is almost as long as urdmad takes one.
const COUNTERS: u32 = 200;
/// Processes whose reports together are longer than a packet can be.
const REPORTERS: usize = 60;

fn connect(context: &Context) -> Result<ControlClient, String> {
    ControlClient::connect(&context.run_dir, "hostile").map_err(|error| error.to_string())
}

/// What only the owner and root may do.
pub(crate) fn forbidden(context: &Context) -> Result<Tally, String> {
    let mut tally = Tally::default();
    while !context.is_over() {
        let client = connect(context)?;
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

/// Packets that are no messages, and conversations that end in every way.
pub(crate) fn garbage(context: &Context) -> Result<Tally, String> {
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    while !context.is_over() {
        let path = context.run_dir.control_socket();
        let socket = PacketSocket::connect(&path).map_err(|errno| errno.to_string())?;
        for _ in 0..1 + random.below(4) {
            let packet = packet(&mut random);
            // A closed connection, or a packet that the kernel does not take.
            let _ = send(socket.as_fd().as_raw_fd(), &packet, MsgFlags::MSG_NOSIGNAL);
            tally.tries += 1;
        }
        let ways = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
        if random.once_in(2) {
            let _ = shutdown(socket.as_fd().as_raw_fd(), random.one_of(&ways));
        }
    }
    Ok(tally)
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
        r#"{"id":1,"request":{"qp_is_set":{"qpn":4294967295,"succeeded":true}}}"#,
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
        1 => vec![b'['; 1 + random.below(190_000)],
        2 => {
            let mut octets = random.one_of(&REQUESTS).as_bytes().to_vec();
            let at = random.below(octets.len());
            octets[at] = random.u8();
            octets
        }
        3 => {
            let name = "x".repeat(random.below(190_000));
            format!(r#"{{"id":1,"request":{{"hello":{{"version":1,"program":"{name}"}}}}}}"#)
                .into_bytes()
        }
        _ => random.one_of(&REQUESTS).as_bytes().to_vec(),
    }
}

/// Reports of many processes that are each as long as urdmad takes them, and false.
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
    while !context.is_over() {
        let sessions: Result<Vec<_>, _> = (0..REPORTERS).map(|_| context.attach()).collect();
        let sessions = sessions?;
        let shown = std::thread::scope(|scope| {
            let asking = scope.spawn(|| connect(context)?.status().map_err(|e| e.to_string()));
            while !asking.is_finished() {
                for session in &sessions {
                    // It counts if urdmad wants one at the moment.
                    let _ = session.client.report(report.clone());
                    tally.tries += 1;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            asking.join()
        });
        match shown {
            Ok(Ok(_)) => {}
            Ok(Err(reason)) => return Err(format!("no status is shown any more: {reason}")),
            Err(_) => return Err("the thread has failed".to_owned()),
        }
    }
    Ok(tally)
}

/// Requests for the status, whose answers are not read: urdmad asks every process each time.
pub(crate) fn statuses(context: &Context) -> Result<Tally, String> {
    let mut tally = Tally::default();
    while !context.is_over() {
        let path = context.run_dir.control_socket();
        let socket = PacketSocket::connect(&path).map_err(|errno| errno.to_string())?;
        let hello = Request::Hello {
            version: urdma_ipc::PROTOCOL_VERSION,
            program: "hostile".to_owned(),
        };
        let mut sent = socket.try_send(
            &FromClient {
                id: 0,
                request: hello,
            },
            &[],
        );
        for id in 1..1000 {
            let request = Request::Status;
            sent = sent.and_then(|()| socket.send(&FromClient { id, request }, &[]));
            tally.tries += 1;
        }
    }
    Ok(tally)
}

/// Ports, groups and addresses: as many as one process may have, and more.
pub(crate) fn requests(context: &Context) -> Result<Tally, String> {
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
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

/// Programs that are killed while they attack, one after the other.
pub(crate) fn deaths(context: &Context) -> Result<Tally, String> {
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    while !context.is_over() {
        let mut child = context
            .again(
                random.one_of(&["aimed", "random", "changes", "churn"]),
                random.u64(),
            )
            .spawn()
            .map_err(|error| error.to_string())?;
        std::thread::sleep(Duration::from_micros(u64::from(random.u16())));
        child.kill().map_err(|error| error.to_string())?;
        child.wait().map_err(|error| error.to_string())?;
        tally.tries += 1;
    }
    Ok(tally)
}
