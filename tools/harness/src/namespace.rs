//! Network namespaces as hosts: created by `ip netns`, joined by a veth pair, removed when dropped.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::process::Process;
use crate::Failure;

/// How long one call of `ip` may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Maximum length of the name of a network interface.
const NAME_MAX: usize = 15;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Two network namespaces and the veth pair between them.
#[derive(Debug)]
pub struct Namespaces {
    names: [String; 2],
    netdevs: [String; 2],
}

impl Namespaces {
    /// Creates two namespaces; the veth interface of each is up and has no address.
    ///
    /// # Errors
    /// The caller is not root, or the message of `ip`.
    pub fn new() -> Result<Self, Failure> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("{}-{number}", std::process::id());
        let both = |prefix: &str| ["a", "b"].map(|end| format!("{prefix}{end}{unique}"));
        let spaces = Self {
            names: both("urdma-"),
            // A process id has up to 7 digits.
            netdevs: both("uv").map(|name| name.chars().take(NAME_MAX).collect()),
        };
        for name in &spaces.names {
            ip(&["netns", "add", name])?;
        }
        let ([a, b], [from, to]) = (&spaces.names, &spaces.netdevs);
        ip(&[
            "link", "add", from, "netns", a, "type", "veth", "peer", "name", to, "netns", b,
        ])?;
        for end in 0..2 {
            spaces.ip(end, &["link", "set", "lo", "up"])?;
            spaces.ip(end, &["link", "set", &spaces.netdevs[end], "up"])?;
        }
        Ok(spaces)
    }

    /// The name of namespace 0 or 1.
    pub fn name(&self, end: usize) -> &str {
        &self.names[end]
    }

    /// The veth interface in namespace 0 or 1.
    pub fn netdev(&self, end: usize) -> &str {
        &self.netdevs[end]
    }

    /// Runs `ip arguments...` in namespace 0 or 1; returns its output.
    ///
    /// # Errors
    /// The message of `ip`.
    pub fn ip(&self, end: usize, arguments: &[&str]) -> Result<String, Failure> {
        ip(&[&["-n", self.name(end)], arguments].concat())
    }

    /// Runs a program in namespace 0 or 1; returns its output.
    ///
    /// # Errors
    /// It fails.
    pub fn run(&self, end: usize, argv: &[&str]) -> Result<String, Failure> {
        ip(&[&["netns", "exec", self.name(end)], argv].concat())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(failure) = ip(&["netns", "del", name]) {
                eprintln!("cannot remove network namespace {name}: {failure}");
            }
        }
    }
}

fn ip(arguments: &[&str]) -> Result<String, Failure> {
    let ended = Process::run(Command::new("ip").args(arguments), LIMIT)?;
    if ended.succeeded() {
        return Ok(ended.output);
    }
    let what = arguments.join(" ");
    Err(Failure::new(format!("ip {what}: {}", ended.describe())))
}
