//! Runs of `urdma-stream` and of rsockets' `rstream`, both through `urdma run`.

use std::path::Path as FilePath;
use std::time::Duration;

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::pair::is_ready;
use urdma_harness::process::{wait_until, Process};
use urdma_harness::programs::{words, Ready};
use urdma_harness::Failure;

use crate::asleep::Wait;

pub(crate) const PROGRAM: &str = "urdma-stream";
const LISTENING: &str = "listening";
/// The option of `urdma-stream` by which an end polls for longer than any run takes.
const AWAKE: &str = "--poll-us 1000000000";
const START_LIMIT: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(60);

/// How the sender chooses between transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfers {
    /// By the protocol.
    Dynamic,
    /// Direct ones only.
    Direct,
    /// Indirect ones only.
    Indirect,
}

impl Transfers {
    const fn name(self) -> &'static str {
        match self {
            Self::Dynamic => "dynamic",
            Self::Direct => "direct",
            Self::Indirect => "indirect",
        }
    }
}

/// A stream from a client to a server.
#[derive(Clone, Copy, Debug)]
pub struct Blast {
    /// How the sender chooses.
    pub transfers: Transfers,
    /// Sends in progress.
    pub sends: u32,
    /// Receives in progress.
    pub recvs: u32,
    /// The greatest length of both.
    pub max_octets: u32,
    /// Whether each has that length; if not, lengths are random.
    pub is_fixed: bool,
    /// Octets of the server's ring.
    pub ring_octets: u32,
    /// Octets that are sent.
    pub octets: u64,
    /// How both ends wait.
    pub wait: Wait,
}

/// The option of `urdma-stream` by which an end waits so. An end that polls does so for 10
/// microseconds, then it sleeps.
const fn wait_option(wait: Wait) -> &'static str {
    match wait {
        Wait::Sleep | Wait::Set(_) => "--poll-us 0",
        Wait::Poll => "--poll-us 10",
    }
}

/// What a stream has cost.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// 10^9 octets a second.
    pub gigabytes_s: f64,
    /// Processor time of the receiver in microseconds for 10^6 octets.
    pub receiver_us: f64,
    /// Share of the transfers that are direct.
    pub direct: f64,
}

impl Blast {
    /// Runs server and client.
    ///
    /// # Errors
    /// A program failed, hung, or printed no figure.
    pub fn run(
        &self,
        [server, client]: [&Instance; 2],
        programs: &FilePath,
        port: u16,
    ) -> Result<Figures, Failure> {
        let program = programs.join(PROGRAM).display().to_string();
        let address = format!("{}:{port}", server.address());
        let wait = wait_option(self.wait);
        let argv = words(&format!(
            "{program} server {address} --one --ring-octets {} {wait}",
            self.ring_octets
        ));
        let serving = serve(server, &argv)?;
        let mut argv = words(&format!(
            "{program} blast {address} --unchecked --transfers {} --sends {} --recvs {} \
             --max-octets {} --octets {} {wait}",
            self.transfers.name(),
            self.sends,
            self.recvs,
            self.max_octets,
            self.octets
        ));
        argv.extend(self.is_fixed.then(|| "--fixed".to_owned()));
        let [served, asked] = finish(serving, client, &argv)?;
        let figures = || {
            let octets = self.octets as f64;
            Some(Figures {
                gigabytes_s: number_before(&asked, "Gbit/s;")? / 8.0,
                receiver_us: number_before(&served, "s of processor time")? * 1e12 / octets,
                direct: direct(&asked)?,
            })
        };
        figures().ok_or_else(|| Failure::new("urdma-stream printed no figure"))
    }
}

/// Half of the mean round trip of `count` messages of `octets` through a stream, in microseconds.
///
/// # Errors
/// A program failed, hung, or printed no figure.
pub fn ping(
    host: &Instance,
    programs: &FilePath,
    port: u16,
    [octets, count]: [u32; 2],
    wait: Wait,
) -> Result<f64, Failure> {
    let program = programs.join(PROGRAM).display().to_string();
    let address = format!("{}:{port}", host.address());
    let wait = wait_option(wait);
    let serving = serve(
        host,
        &words(&format!("{program} server {address} --one {wait}")),
    )?;
    let argv = words(&format!(
        "{program} ping {address} --octets {octets} --count {count} {wait}"
    ));
    let [_, asked] = finish(serving, host, &argv)?;
    number_before(&asked, "on average")
        .ok_or_else(|| Failure::new("urdma-stream printed no figure"))
}

/// Round trips of messages, whose client runs under another program: `under` is that with its
/// arguments. Neither end sleeps.
///
/// # Errors
/// A program failed or hung.
pub(crate) fn ping_under(
    host: &Instance,
    programs: &FilePath,
    port: u16,
    [octets, count]: [u32; 2],
    under: &[String],
) -> Result<(), Failure> {
    let program = programs.join(PROGRAM).display().to_string();
    let address = format!("{}:{port}", host.address());
    let serving = serve(
        host,
        &words(&format!("{program} server {address} --one {AWAKE}")),
    )?;
    let mut argv = under.to_vec();
    argv.extend(words(&format!(
        "{program} ping {address} --octets {octets} --count {count} {AWAKE}"
    )));
    finish(serving, host, &argv).map(drop)
}

/// Runs a flow of `sends` sends of `octets`, the command line of either end behind `under`, the
/// server's first. Neither end sleeps, however long the other takes.
///
/// # Errors
/// A program failed or hung.
pub(crate) fn flow_under(
    host: &Instance,
    programs: &FilePath,
    port: u16,
    [octets, sends]: [u32; 2],
    under: [&[String]; 2],
) -> Result<(), Failure> {
    let program = programs.join(PROGRAM).display().to_string();
    let address = format!("{}:{port}", host.address());
    let all = u64::from(octets) * u64::from(sends);
    let lines = [
        format!("{program} server {address} --one {AWAKE}"),
        format!(
            "{program} blast {address} --fixed --unchecked --sends 64 --recvs 128 \
             --max-octets {octets} --octets {all} {AWAKE}"
        ),
    ];
    let argv = |end: usize| [under[end], &words(&lines[end])].concat();
    finish(serve(host, &argv(0))?, host, &argv(1)).map(drop)
}

/// Microseconds of a transfer of rstream: `rounds` times, each end sends `transfers` of `octets`.
///
/// # Errors
/// A program failed, hung, or printed no figure.
pub fn rstream(
    host: &Instance,
    port: u16,
    octets: u32,
    rounds: u32,
    transfers: u64,
) -> Result<f64, Failure> {
    let call = |role: &str| {
        words(&format!(
            "rstream {role} {} -p {port} -S {octets} -I {rounds} -C {transfers}",
            host.address()
        ))
    };
    let mut serving = Process::start(&mut host.run(LeasePolicy::Never, &call("-b"))?)?;
    wait_until("listening", START_LIMIT, || {
        !serving.is_running() || is_ready(Ready::Cm(port), host)
    })?;
    let [_, asked] = finish(serving, host, &call("-s"))?;
    let line = asked.lines().find(|line| line.starts_with("custom"));
    line.and_then(|line| line.split_whitespace().last()?.parse().ok())
        .ok_or_else(|| Failure::new("rstream printed no figure"))
}

/// Starts a server of `urdma-stream`.
fn serve(host: &Instance, argv: &[String]) -> Result<Process, Failure> {
    let mut serving = Process::start(&mut host.run(LeasePolicy::Never, argv)?)?;
    serving.wait_for_text(LISTENING, START_LIMIT)?;
    Ok(serving)
}

/// Runs a client, and waits for its server; what server and client have printed.
fn finish(serving: Process, client: &Instance, argv: &[String]) -> Result<[String; 2], Failure> {
    let asked = Process::run(&mut client.run(LeasePolicy::Never, argv)?, LIMIT)?;
    if !asked.succeeded() {
        return Err(Failure::new(format!(
            "client {}; server: {}",
            asked.describe(),
            serving.printed().trim()
        )));
    }
    let served = serving.wait(LIMIT)?;
    match served.succeeded() {
        true => Ok([served.output, asked.output]),
        false => Err(Failure::new(format!("server {}", served.describe()))),
    }
}

/// The number in front of some words.
fn number_before(printed: &str, what: &str) -> Option<f64> {
    let before = printed.split_once(what)?.0;
    before.split_whitespace().last()?.parse().ok()
}

/// The share of direct transfers that a sender has printed.
fn direct(printed: &str) -> Option<f64> {
    let counts = printed.split_once("transfers: ")?.1;
    let direct = number_before(counts, "direct")?;
    let indirect = number_before(counts, "indirect")?;
    Some(direct / (direct + indirect).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_in_the_words_of_urdma_stream() {
        let printed = "4000 octets in 1.050 s: 30.476 Gbit/s; 0.372 s of processor time, 0.093 \
                       ns an octet\ntransfers: 30 direct, 10 indirect (75.0 % direct); adverts: 2 \
                       sent, 4 stale\n";
        assert_eq!(number_before(printed, "Gbit/s;"), Some(30.476));
        assert_eq!(number_before(printed, "s of processor time"), Some(0.372));
        assert_eq!(direct(printed), Some(0.75));
        let printed = "50 round trips; half of one in us: 1.2 least, 3.97 typical, 4.5 on average";
        assert_eq!(number_before(printed, "on average"), Some(4.5));
        assert_eq!(number_before("", "Gbit/s;"), None);
    }
}
