//! `urdma doctor`: what this machine offers, and what to do next.
//!
//! Every finding is read from files under a root, [`Machine`], so that tests can provide machines
//! of their own.

mod findings;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::{Error, Target};

/// Options of `urdma doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    target: Target,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grade {
    /// Present.
    Good,
    /// Missing, needed by some uses only.
    Without,
    /// Missing, and nothing works without it.
    Bad,
}

impl Grade {
    fn as_str(self) -> &'static str {
        match self {
            Self::Good => "yes",
            Self::Without => "no",
            Self::Bad => "MISSING",
        }
    }
}

/// One line of the report.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    what: &'static str,
    grade: Grade,
    /// The finding, as a sentence or a list.
    detail: String,
    /// The remedy; empty if none is needed.
    advice: String,
}

impl Finding {
    fn good(what: &'static str, detail: impl Into<String>) -> Self {
        Self {
            what,
            grade: Grade::Good,
            detail: detail.into(),
            advice: String::new(),
        }
    }

    fn without(what: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            what,
            grade: Grade::Without,
            detail: detail.into(),
            advice: advice.into(),
        }
    }

    fn bad(what: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            grade: Grade::Bad,
            ..Self::without(what, detail, advice)
        }
    }
}

/// A machine as its files describe it.
#[derive(Debug)]
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file without white space around it; empty if there is none.
    fn text(&self, path: &str) -> String {
        let text = fs::read_to_string(self.path(path)).unwrap_or_default();
        text.trim().to_owned()
    }

    /// The names in a directory, sorted; none if it does not exist.
    fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The last component of a link's target.
    fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

/// Prints the findings; fails if a requirement is missing.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<(), Error> {
    let machine = Machine {
        root: PathBuf::from("/"),
    };
    let mut found = findings::all(&machine);
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
        Err(error) => Finding::without(WHAT, error.to_string(), ""),
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

/// Whether a path can be opened for writing by this user.
fn may_write(path: &Path) -> bool {
    nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).is_ok()
}
