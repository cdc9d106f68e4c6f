//! Instances of urdma, through its command line.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::process::{Ended, Process};
use crate::Failure;

/// How long `urdma up` and `urdma down` may take.
const CONTROL_LIMIT: Duration = Duration::from_secs(60);

/// The path of a program's packets to other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeasePolicy {
    /// Through urdmad.
    Never,
    /// Through a leased queue pair; without one the program fails.
    Require,
}

impl LeasePolicy {
    fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Require => "require",
        }
    }
}

/// The directory of `urdma`, `urdmad` and the libraries: `$URDMA_BIN_DIR`, else the directory of
/// the running program or the one above it (cargo puts tests into `deps/`).
///
/// # Errors
/// No `urdma` in any of them.
pub fn binary_dir() -> Result<PathBuf, Failure> {
    if let Some(dir) = std::env::var_os("URDMA_BIN_DIR") {
        return Ok(PathBuf::from(dir));
    }
    let program = std::env::current_exe()?;
    program
        .ancestors()
        .skip(1)
        .take(3)
        .find(|dir| dir.join("urdma").is_file())
        .map(Path::to_path_buf)
        .ok_or_else(|| {
            Failure::new(format!(
                "no urdma beside {}: build the workspace first (make build)",
                program.display()
            ))
        })
}

/// The `urdma` command.
///
/// # Errors
/// It has not been built.
pub fn urdma() -> Result<Command, Failure> {
    Ok(Command::new(binary_dir()?.join("urdma")))
}

/// Copies of programs that every user can execute; removed when this is dropped. A build may be
/// where only its owner can enter, such as root's home. An installation has copies too, which the
/// kernel maps in larger units than what a linker has written through a mapping.
#[derive(Debug)]
pub struct Copies(Scratch);

impl Copies {
    /// Copies what one host needs: `urdma`, `urdmad` and their libraries.
    ///
    /// # Errors
    /// They have not been built, or cannot be copied.
    pub fn of_urdma() -> Result<Self, Failure> {
        let copies = Self(Scratch::new("programs")?);
        fs::set_permissions(copies.path(), fs::Permissions::from_mode(0o755))?;
        let built = binary_dir()?;
        for file in [
            "urdma",
            "urdmad",
            "liburdma_provider.so",
            "liburdma_standin.so",
            "liburdma_sockets.so",
        ] {
            copies.of(&built.join(file))?;
        }
        Ok(copies)
    }

    /// The copy of a program, made with the first call.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn of(&self, program: &Path) -> Result<PathBuf, Failure> {
        let copy = self.path().join(program.file_name().unwrap_or_default());
        if !copy.exists() {
            fs::copy(program, &copy).map_err(|error| {
                Failure::new(format!("cannot copy {}: {error}", program.display()))
            })?;
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        }
        Ok(copy)
    }

    /// Their directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A process that takes an instance down if the program that started it ends without doing so.
#[derive(Debug)]
struct Keeper(Child);

impl Keeper {
    /// Runs `down` if this program ends before the guard is dropped.
    fn start(down: &Command) -> Result<Self, Failure> {
        // A signal to the group of this program must not end it. A line on standard input means
        // that nothing is to be done.
        let script = "trap '' HUP INT TERM; read -r line || exec \"$@\" >/dev/null 2>&1";
        let keeper = Command::new("sh")
            .args(["-c", script, "keeper"])
            .arg(down.get_program())
            .args(down.get_args())
            .process_group(0)
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start sh: {error}")))?;
        Ok(Self(keeper))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            // It can only have been killed; then it does nothing either.
            let _ = stdin.write_all(b"\n");
        }
        let _ = self.0.wait();
    }
}

/// Where and as whom an instance and its programs run.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// A network namespace other than the caller's.
    pub namespace: Option<String>,
    /// A user, who has no capabilities, other than the caller.
    pub user: Option<u32>,
}

impl Place {
    fn in_namespace(name: &str) -> Self {
        Self {
            namespace: Some(name.to_owned()),
            user: None,
        }
    }

    /// A program with its arguments.
    fn command(&self, program: &Path) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(["ip", "netns", "exec", namespace].map(Into::into));
        }
        if let Some(user) = self.user {
            let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
            let without = ["--clear-groups", "--inh-caps=-all", "--no-new-privs"];
            words.extend(["setpriv", &uid, &gid].map(Into::into));
            words.extend(without.map(Into::into));
        }
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }
}

/// A running instance; it is taken down when dropped.
#[derive(Debug)]
pub struct Instance {
    run_dir: PathBuf,
    config: PathBuf,
    address: String,
    place: Place,
    is_up: bool,
    /// Dropped when the instance is down.
    keeper: Option<Keeper>,
    /// What runs in the place of the build's programs if the user is another one.
    copies: Option<Copies>,
}

impl Instance {
    /// Starts an instance with the name `name` and the address `address`, below `dir`; `port` is
    /// the `[port]` table of the configuration or empty.
    ///
    /// # Errors
    /// The message of `urdma up`.
    pub fn up(dir: &Path, name: &str, address: &str, port: &str) -> Result<Self, Failure> {
        Self::up_at(dir, name, &[address], port)
    }

    /// The same with several addresses; programs get the first.
    ///
    /// # Errors
    /// The message of `urdma up`.
    pub fn up_at(dir: &Path, name: &str, addresses: &[&str], port: &str) -> Result<Self, Failure> {
        Self::up_at_place(Place::default(), dir, name, addresses, port)
    }

    /// The same in the network namespace `namespace`, in which its programs run too.
    ///
    /// # Errors
    /// The message of `urdma up`.
    pub fn up_in(
        namespace: &str,
        dir: &Path,
        name: &str,
        address: &str,
        port: &str,
    ) -> Result<Self, Failure> {
        Self::up_at_place(Place::in_namespace(namespace), dir, name, &[address], port)
    }

    /// An instance in the network namespace `namespace` without configured addresses; programs get
    /// `address`, one of the namespace's.
    ///
    /// # Errors
    /// The message of `urdma up`.
    pub fn up_at_host_addresses(
        namespace: &str,
        dir: &Path,
        name: &str,
        address: &str,
    ) -> Result<Self, Failure> {
        let place = Place::in_namespace(namespace);
        let mut instance = Self::up_at_place(place, dir, name, &[], "")?;
        instance.address = address.to_owned();
        Ok(instance)
    }

    /// An instance with several addresses in a place; programs get the first, and run there too.
    /// Without addresses the configuration has no key for them.
    ///
    /// # Errors
    /// The message of `urdma up`.
    pub fn up_at_place(
        place: Place,
        dir: &Path,
        name: &str,
        addresses: &[&str],
        port: &str,
    ) -> Result<Self, Failure> {
        let run_dir = dir.join(name);
        let config = dir.join(format!("{name}.toml"));
        let mut text = format!("instance = \"{name}\"\n");
        if !addresses.is_empty() {
            text += &format!("address = {addresses:?}\n");
        }
        fs::write(&config, text + port)?;
        let copies = place.user.map(|_| Copies::of_urdma()).transpose()?;
        let mut instance = Self {
            run_dir,
            config,
            address: addresses.first().copied().unwrap_or_default().to_owned(),
            place,
            is_up: true,
            keeper: None,
            copies,
        };
        instance.keeper = Some(Keeper::start(&instance.subcommand("down")?)?);
        instance.start_daemon()?;
        Ok(instance)
    }

    fn start_daemon(&self) -> Result<(), Failure> {
        let mut command = self.subcommand("up")?;
        // The run directory has the name of the instance.
        let name = self.run_dir.file_name().unwrap_or_default();
        command.arg("--instance").arg(name);
        command.arg("--config").arg(&self.config);
        let ended = Process::run(&mut command, CONTROL_LIMIT)?;
        if ended.succeeded() {
            Ok(())
        } else {
            Err(Failure::new(format!(
                "urdma up failed, {}",
                ended.describe()
            )))
        }
    }

    /// Kills its urdmad and starts another, which takes over the previous one's resources.
    ///
    /// # Errors
    /// There was none, or the message of `urdma up`.
    pub fn kill_and_restart(&self) -> Result<(), Failure> {
        let pid = i32::try_from(self.daemon_pid()?)
            .map_err(|_| Failure::new("process id out of range"))?;
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        )
        .map_err(|error| Failure::new(format!("cannot kill urdmad: {error}")))?;
        self.start_daemon()
    }

    /// The instance's address, for programs.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The instance's run directory.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// `urdma <name>` for this instance.
    ///
    /// # Errors
    /// `urdma` has not been built.
    pub fn subcommand(&self, name: &str) -> Result<Command, Failure> {
        Ok(match &self.copies {
            Some(copies) => self.subcommand_of(copies.path(), name),
            None => self.subcommand_of(&binary_dir()?, name),
        })
    }

    /// The same of the `urdma` in a directory.
    fn subcommand_of(&self, programs: &Path, name: &str) -> Command {
        let mut command = self.place.command(&programs.join("urdma"));
        command.arg(name).arg("--run-dir").arg(&self.run_dir);
        command
    }

    /// `urdma run -- argv...` for this instance. Another user runs a copy of a program that is
    /// given by its path.
    ///
    /// # Errors
    /// `urdma` has not been built, or the program cannot be copied.
    pub fn run<S: AsRef<OsStr>>(&self, lease: LeasePolicy, argv: &[S]) -> Result<Command, Failure> {
        let mut command = self.subcommand("run")?;
        command.args(["--lease", lease.as_str(), "--"]);
        match (&self.copies, argv.split_first()) {
            (Some(copies), Some((program, arguments))) if is_path(program.as_ref()) => {
                command.arg(copies.of(Path::new(program))?).args(arguments)
            }
            _ => command.args(argv),
        };
        Ok(command)
    }

    /// `urdma run -- argv...` with the libraries of `copies`.
    pub fn run_with<S: AsRef<OsStr>>(
        &self,
        copies: &Copies,
        lease: LeasePolicy,
        argv: &[S],
    ) -> Command {
        let mut command = self.subcommand_of(copies.path(), "run");
        command.args(["--lease", lease.as_str(), "--"]).args(argv);
        command
    }

    /// `urdma run --sockets -- argv...` for this instance.
    ///
    /// # Errors
    /// `urdma` has not been built.
    pub fn run_over_rings<S: AsRef<OsStr>>(&self, argv: &[S]) -> Result<Command, Failure> {
        let mut command = self.subcommand("run")?;
        command.args(["--sockets", "--"]).args(argv);
        Ok(command)
    }

    /// The output of `urdma status --json`.
    ///
    /// # Errors
    /// urdmad does not answer.
    pub fn status(&self) -> Result<serde_json::Value, Failure> {
        let ended = Process::run(self.subcommand("status")?.arg("--json"), CONTROL_LIMIT)?;
        if !ended.succeeded() {
            return Err(Failure::new(ended.describe()));
        }
        serde_json::from_str(&ended.output)
            .map_err(|error| Failure::new(format!("status is no JSON: {error}")))
    }

    /// Runs `urdma fault` with these options; returns its result.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn fault<S: AsRef<OsStr>>(&self, options: &[S]) -> Result<Ended, Failure> {
        Process::run(self.subcommand("fault")?.args(options), CONTROL_LIMIT)
    }

    /// The process id of the instance's urdmad.
    ///
    /// # Errors
    /// There is no pid file.
    pub fn daemon_pid(&self) -> Result<u32, Failure> {
        fs::read_to_string(self.run_dir.join("pid"))?
            .trim()
            .parse()
            .map_err(|_| Failure::new("the pid file holds no number"))
    }

    /// Takes the instance down and checks that it leaves nothing behind.
    ///
    /// # Errors
    /// The message of `urdma down`, or what it left.
    pub fn down(mut self) -> Result<(), Failure> {
        self.is_up = false;
        let ended = self.down_command()?;
        if !ended.succeeded() {
            return Err(Failure::new(format!(
                "urdma down failed, {}",
                ended.describe()
            )));
        }
        if self.run_dir.exists() {
            return Err(Failure::new(format!(
                "urdma down left {}",
                self.run_dir.display()
            )));
        }
        Ok(())
    }

    fn down_command(&self) -> Result<Ended, Failure> {
        Process::run(&mut self.subcommand("down")?, CONTROL_LIMIT)
    }
}

/// Whether a program's name is not looked up in PATH.
fn is_path(program: &OsStr) -> bool {
    Path::new(program).components().count() > 1
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.is_up {
            if let Err(failure) = self.down_command() {
                eprintln!("{}: {failure}", self.run_dir.display());
            }
        }
    }
}

/// A new directory below the system's temporary directory; removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory whose name starts with `urdma-` and `purpose`.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn new(purpose: &str) -> Result<Self, Failure> {
        let template = std::env::temp_dir().join(format!("urdma-{purpose}-XXXXXX"));
        nix::unistd::mkdtemp(&template)
            .map(Self)
            .map_err(|error| Failure::new(format!("cannot make {}: {error}", template.display())))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Whether two hosts on this machine can lease queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    /// Forwarding only; needs no hugepages.
    Forwarded,
    /// This number of leasable queue pairs per host; needs hugepages.
    Leased(u16),
}

/// Hosts a (127.0.0.1) and b (127.0.0.2), two instances joined by net_memif.
#[derive(Debug)]
pub struct TwoHosts {
    /// 127.0.0.1
    pub a: Instance,
    /// 127.0.0.2
    pub b: Instance,
}

impl TwoHosts {
    /// Starts both below `dir`.
    ///
    /// # Errors
    /// The message of `urdma up`.
    pub fn up(dir: &Path, queues: Queues, mtu: u16) -> Result<Self, Failure> {
        Self::up_at(dir, queues, mtu, [&["127.0.0.1"], &["127.0.0.2"]])
    }

    /// The same with other or additional addresses.
    ///
    /// # Errors
    /// The message of `urdma up`.
    pub fn up_at(
        dir: &Path,
        queues: Queues,
        mtu: u16,
        addresses: [&[&str]; 2],
    ) -> Result<Self, Failure> {
        let socket = dir.join("memif.sock");
        let lease_queues = match queues {
            Queues::Forwarded => 0,
            Queues::Leased(count) => count,
        };
        let port = |role: &str| {
            format!(
                "[port]\nkind = \"memif\"\nrole = \"{role}\"\nsocket = \"{}\"\n\
                 mtu = {mtu}\nlease_queues = {lease_queues}\n",
                socket.display()
            )
        };
        let a = Instance::up_at(dir, "a", addresses[0], &port("server"))?;
        let b = Instance::up_at(dir, "b", addresses[1], &port("client"))?;
        Ok(Self { a, b })
    }

    /// Takes both down.
    ///
    /// # Errors
    /// See [`Instance::down`].
    pub fn down(self) -> Result<(), Failure> {
        let b = self.b.down();
        self.a.down().and(b)
    }
}
