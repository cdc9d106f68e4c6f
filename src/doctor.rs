//! `urdma doctor`: what this machine offers, and what to do next.
//!
//! Every finding is read from files under a root, [`Machine`], so that tests can provide machines
//! of their own.

mod finding;
mod findings;
mod machine;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::error::Error;
use crate::libraries::companion;
use crate::target::Target;
use finding::{Finding, Grade};
use machine::Machine;

/// Options of `urdma doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    target: Target,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the findings; fails if a requirement is missing.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<(), Error> {
    let machine = Machine {
        root: PathBuf::from("/"),
    };
    let mut found = findings::all(&machine);
    found.push(port_kinds());
    found.push(instance(&args.target));
    if args.json {
        let list: Vec<serde_json::Value> = found.iter().map(as_json).collect();
        let text = serde_json::to_string_pretty(&list)
            .map_err(|error| Error::sentence(error.to_string()))?;
        println!("{text}");
    } else {
        print!("{}", render(&found));
    }
    match found.iter().find(|finding| finding.grade == Grade::Bad) {
        Some(finding) => Err(Error::sentence(format!(
            "{}: {}; {}",
            finding.what, finding.detail, finding.advice
        ))),
        None => Ok(()),
    }
}

/// Which kinds of ports urdmad can have, which depends on DPDK.
fn port_kinds() -> Finding {
    let listed = companion("urdmad").and_then(|urdmad| {
        let output = Command::new(urdmad).arg("--list-kinds").output();
        output.map_err(|error| Error::sentence(format!("cannot start urdmad: {error}")))
    });
    match listed {
        Ok(output) => findings::port_kinds(&String::from_utf8_lossy(&output.stdout)),
        Err(error) => Finding::bad("ports", error.to_string(), "make build"),
    }
}

/// Whether the instance that programs would use runs.
fn instance(target: &Target) -> Finding {
    const WHAT: &str = "instance";
    match target.connect().and_then(|client| Ok(client.status()?)) {
        Ok(status) => {
            let addresses: Vec<String> = status.addresses.iter().map(ToString::to_string).collect();
            let (name, pid, at) = (&status.instance, status.pid, addresses.join(", "));
            let running = format!("\"{name}\" runs, process {pid}, at {at}");
            let advice = if status.addresses.iter().all(IpAddr::is_loopback) {
                "for programs that leave out loopback interfaces (libfabric), let `address` in its \
                 configuration name an address of the host, or leave it out"
            } else {
                ""
            };
            Finding {
                advice: advice.to_owned(),
                ..Finding::good(WHAT, running)
            }
        }
        Err(error) => Finding::without(
            WHAT,
            error.to_string(),
            "for your own programs, `urdma up`; for those of all users, as a service: access = \
             \"everyone\" in /etc/urdma/default.toml, then `systemctl enable --now \
             urdmad@default`",
        ),
    }
}

fn as_json(finding: &Finding) -> serde_json::Value {
    serde_json::json!({
        "what": finding.what,
        "grade": finding.grade.as_str(),
        "detail": finding.detail,
        "advice": finding.advice,
    })
}

fn render(found: &[Finding]) -> String {
    let mut text = String::new();
    for finding in found {
        let Finding {
            what,
            grade,
            detail,
            advice,
        } = finding;
        text.push_str(&format!("{what:<18} {:<8} {detail}\n", grade.as_str()));
        if !advice.is_empty() {
            text.push_str(&format!("{:<18} {:<8} -> {advice}\n", "", ""));
        }
    }
    text
}
