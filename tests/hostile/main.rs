//! A process that attacks the other processes of its instance, and urdmad.
//!
//! It attaches as any process does, and then keeps no rule of doc/spec/channel.md. Each attack runs
//! for the given seconds and prints one line: its name, what was tried how often, and how much of
//! it was refused. The exit status is 1 if something was possible that must not be.
//!
//! | file | attacks |
//! |---|---|
//! | `escape` | on the memory that others have given away, and on their processes |
//! | `messages` | through the memory of channels |
//! | `offers` | by offers of channels |
//! | `lies` | through the control socket |
//! | `ports` | by ports of rdma_cm |
//! | `linger` | by descriptors whose close takes long |
//! | `recordings` | by flight recordings |
//! | `corrupt` | a peer of verbs-check that ends its channel |
//! | `attach`, `conversation` | slots and channels; packets on the control socket |
//! | `forge`, `random`, `memory` | cells; numbers; memory |
#![allow(clippy::unwrap_used)] // a program for tests

mod attach;
mod conversation;
mod corrupt;
mod escape;
mod forge;
mod lies;
mod linger;
mod memory;
mod messages;
mod offers;
mod ports;
mod random;
mod recordings;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use clap::Parser;
use urdma_ipc::{ControlClient, RunDir};

use attach::Session;
use forge::Connection;
use random::Random;

/// Attacks that need no peer of their own, by name.
const ATTACKS: [(&str, Attack); 27] = [
    ("escape", escape::escape),
    ("random", messages::random),
    ("aimed", messages::aimed),
    ("frames", messages::frames),
    ("holes", messages::holes),
    ("counts", messages::counts),
    ("changes", messages::changes),
    ("datagrams", messages::datagrams),
    ("flood", messages::flood),
    ("silent", messages::silent),
    ("answered", messages::answered),
    ("bells", messages::bells),
    ("churn", offers::churn),
    ("crowd", offers::crowd),
    ("repeats", offers::repeats),
    ("descriptors", offers::descriptors),
    ("unread", offers::unread),
    ("quotas", offers::quotas),
    ("lingering", linger::lingering),
    ("offered", linger::offered),
    ("forbidden", lies::forbidden),
    ("garbage", lies::garbage),
    ("reports", lies::reports),
    ("statuses", lies::statuses),
    ("requests", lies::requests),
    ("ports", ports::ports),
    ("recordings", recordings::recordings),
];
/// Programs that run attacks, and one that runs none.
const OTHERS: [(&str, Attack); 2] = [("deaths", lies::deaths), ("spin", messages::spin)];

/// Programs that keep others of their user from attacks; not in the list.
const HELPERS: [(&str, Attack); 1] = [("jam", offers::jam)];

/// The name by which attacks know one another.
const PROGRAM: &str = "hostile";

/// The line that an attack prints once its victims have seen it, if others wait for that.
const ARRIVED: &str = "arrived";

type Attack = fn(&Context) -> Result<Tally, String>;

#[derive(Parser)]
struct Arguments {
    /// The run directory of the instance.
    #[arg(long)]
    run_dir: PathBuf,
    /// Its name, `corrupt`, or `list` to print the names.
    #[arg(long)]
    attack: String,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// A connection of others: two queue pair numbers and two first PSNs.
    #[arg(long)]
    connection: Vec<String>,
    /// Where `corrupt` meets verbs-check.
    #[arg(long)]
    meet: Option<PathBuf>,
}

/// How often an attack was tried and refused.
#[derive(Debug, Default)]
struct Tally {
    tries: u64,
    refused: u64,
}

impl Tally {
    /// Counts a try that must fail.
    fn refused(&mut self, what: &str, was_possible: bool) -> Result<(), String> {
        self.tries += 1;
        if was_possible {
            return Err(format!("{what} was possible"));
        }
        self.refused += 1;
        Ok(())
    }
}

/// A process of another user.
#[derive(Debug, Clone, Copy)]
struct Target {
    slot: u8,
    pid: i32,
}

/// What every attack knows.
#[derive(Debug)]
struct Context {
    run_dir: RunDir,
    random: Random,
    until: Instant,
    connections: Vec<Connection>,
    arguments: Vec<String>,
}

impl Context {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// A connection to urdmad once the quotas have room.
    fn connect(&self) -> Result<ControlClient, String> {
        let connect = || ControlClient::connect(&self.run_dir, PROGRAM);
        let connected = attach::once_admitted(conversation::CLOSING, connect);
        connected.map_err(|error| error.to_string())
    }

    fn attach(&self) -> Result<Session, String> {
        Session::attach(&self.run_dir).map_err(|error| format!("no slot: {error}"))
    }

    /// An address of the instance.
    fn address(&self) -> Result<IpAddr, String> {
        let status = self.connect()?.status();
        let status = status.map_err(|error| format!("no status: {error}"))?;
        let address = status.addresses.first();
        address
            .copied()
            .ok_or("the instance has no address".to_owned())
    }

    /// The attached processes of other users that do not attack, and urdmad.
    fn processes(&self) -> Result<Vec<Target>, String> {
        let status = self.connect()?.status();
        let status = status.map_err(|error| format!("no status: {error}"))?;
        let own = nix::unistd::Uid::effective().as_raw();
        let urdmad = Target {
            slot: 0,
            pid: i32::try_from(status.pid).unwrap_or(0),
        };
        let others = status.slots.iter().filter(|slot| slot.uid != own);
        let honest = others.filter(|slot| slot.program != PROGRAM);
        let honest = honest.map(|slot| Target {
            slot: slot.slot,
            pid: slot.pid,
        });
        Ok(honest.chain([urdmad]).collect())
    }

    /// The slots of these.
    fn slots(&self) -> Result<Vec<u8>, String> {
        Ok(self.processes()?.iter().map(|target| target.slot).collect())
    }

    /// Those of them that stay attached, and urdmad: what is in /proc of a process that is about to
    /// end can be opened and is empty.
    fn lasting_processes(&self) -> Result<Vec<Target>, String> {
        let lasting: Vec<u8> = self.lasting_slots().chain([0]).collect();
        let mut processes = self.processes()?;
        processes.retain(|process| lasting.contains(&process.slot));
        Ok(processes)
    }

    /// The slots of processes that stay attached: an offer to a slot that becomes free is refused,
    /// and may be repeated.
    fn lasting_slots(&self) -> impl Iterator<Item = u8> + '_ {
        self.connections.iter().map(Connection::slot)
    }

    /// Prints [`ARRIVED`], the first time.
    fn announce(&self) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| println!("{ARRIVED}"));
    }

    /// This program again, with another attack that lasts until it is killed.
    fn again(&self, attack: &str, seed: u64) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(&self.arguments)
            .args(["--attack", attack, "--seconds", "3600", "--seed"])
            .arg(seed.to_string())
            .stdout(Stdio::piped());
        command
    }
}

fn run(arguments: &Arguments) -> Result<Tally, String> {
    let mut passed_on = vec![
        "--run-dir".to_owned(),
        arguments.run_dir.display().to_string(),
    ];
    let mut connections = Vec::new();
    for text in &arguments.connection {
        connections.extend(Connection::parse(text).ok_or("not a connection")?);
        passed_on.extend(["--connection".to_owned(), text.clone()]);
    }
    let context = Context {
        run_dir: RunDir::at(&arguments.run_dir),
        random: Random::new(arguments.seed),
        until: Instant::now() + Duration::from_secs_f64(arguments.seconds),
        connections,
        arguments: passed_on,
    };
    if arguments.attack == "corrupt" {
        let meet = arguments.meet.as_ref().ok_or("corrupt needs --meet")?;
        return corrupt::corrupt(&context, meet);
    }
    let mut attacks = ATTACKS.iter().chain(&OTHERS).chain(&HELPERS);
    let (_, attack) = attacks
        .find(|(name, _)| *name == arguments.attack)
        .ok_or_else(|| format!("there is no attack {}", arguments.attack))?;
    attack(&context)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.attack == "list" {
        for (name, _) in ATTACKS.iter().chain(&OTHERS) {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    }
    let name = &arguments.attack;
    match run(&arguments) {
        Ok(Tally { tries, refused }) => {
            println!("{name}: {tries} tries, {refused} refused as they must be");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            println!("{name}: {reason} (seed {})", arguments.seed);
            ExitCode::FAILURE
        }
    }
}
