//! A server and a client of one program, each on its host.

use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use crate::instance::{Instance, LeasePolicy};
use crate::process::{wait_until, Process};
use crate::programs::{Figure, Job, Ready};
use crate::Failure;

/// Time limit until a server listens.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of a client.
const CLIENT_LIMIT: Duration = Duration::from_secs(180);
/// Time limit of a server after the end of its client.
const SERVER_LIMIT: Duration = Duration::from_secs(60);

/// Runs `job` with its server on `server` and its client on `client`.
///
/// # Errors
/// The failure as a sentence: a program did not start, failed, hung, or printed something
/// unexpected.
pub fn run(
    job: &Job,
    server: &Instance,
    client: &Instance,
    lease: LeasePolicy,
) -> Result<Option<Figure>, Failure> {
    let mut listening = Process::start(&mut server.run(lease, &job.server)?)?;
    let ready = wait_until("listening", READY_LIMIT, || {
        !listening.is_running() || is_ready(job.ready, server)
    });
    if !listening.is_running() || ready.is_err() {
        let printed = listening.printed();
        return Err(Failure::new(format!(
            "server did not listen: {}",
            printed.trim()
        )));
    }
    let client_ended = Process::start(&mut client.run(lease, &job.client)?)?.wait(CLIENT_LIMIT)?;
    if !job.is_content(&client_ended) {
        return Err(Failure::new(format!("client {}", client_ended.describe())));
    }
    let figure = job.read(&client_ended.output)?;
    if job.serves_forever() {
        return if listening.is_running() {
            Ok(figure)
        } else {
            let printed = listening.printed();
            Err(Failure::new(format!("server ended: {}", printed.trim())))
        };
    }
    let server_ended = listening.wait(SERVER_LIMIT)?;
    if !job.is_content(&server_ended) {
        return Err(Failure::new(format!("server {}", server_ended.describe())));
    }
    Ok(figure)
}

/// Starts a server, and waits until it accepts TCP connections on a port.
///
/// # Errors
/// It cannot be started, ends, or does not listen in time.
pub fn serve(command: &mut Command, port: u16) -> Result<Process, Failure> {
    let mut server = Process::start(command)?;
    let id = server.id();
    wait_until("a listener", READY_LIMIT, || {
        !server.is_running() || listens_on_tcp(id, port)
    })?;
    match server.is_running() {
        true => Ok(server),
        false => Err(Failure::new(format!(
            "server did not listen: {}",
            server.printed().trim()
        ))),
    }
}

/// Whether a server on the host `server` accepts clients.
pub fn is_ready(ready: Ready, server: &Instance) -> bool {
    match ready {
        Ready::Tcp(port) => server
            .daemon_pid()
            .is_ok_and(|daemon| listens_on_tcp(daemon, port)),
        Ready::Group(group) => has_member(server, group),
        Ready::Cm(port) => server.status().is_ok_and(|status| {
            status["listeners"].as_array().is_some_and(|listeners| {
                listeners.iter().any(|listener| {
                    listener["port"].as_u64() == Some(u64::from(port))
                        && !listener["backlog"].is_null()
                })
            })
        }),
    }
}

/// Whether a process of an instance is a member of a multicast group.
fn has_member(instance: &Instance, group: IpAddr) -> bool {
    let group = group.to_string();
    instance.status().is_ok_and(|status| {
        status["groups"]
            .as_array()
            .is_some_and(|groups| groups.iter().any(|known| known["group"] == group.as_str()))
    })
}

/// Whether any socket in the network namespace of `process` is in LISTEN (state 0A) on `port`.
fn listens_on_tcp(process: u32, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        fs::read_to_string(format!("/proc/{process}/net/{table}")).is_ok_and(|sockets| {
            sockets.lines().skip(1).any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields.next().is_some_and(|local| local.ends_with(&suffix))
                    && fields.nth(1) == Some("0A")
            })
        })
    })
}
