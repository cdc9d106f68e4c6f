//! The daemon's life cycle: start, serve, stop.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use nix::fcntl::{fcntl, FcntlArg};
use nix::sys::eventfd::EventFd;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{umask, Mode};
use nix::unistd::{chown, close, Uid};
use urdma_channel::OwnDirectory;
use urdma_ipc::packet::PacketListener;
use urdma_ipc::status::Counters;
use urdma_ipc::{Event, RunDir};
use urdma_waiting::OwnPage;

use crate::closing::Closer;
use crate::config::{Access, Config};
use crate::control::attaches::Attaches;
use crate::control::reaping::Reaping;
use crate::control::spare::Spare;
use crate::control::statuses::Statuses;
use crate::control::{Control, Ended};
use crate::counter_files::CounterFiles;
use crate::data;
use crate::identity::Identity;
use crate::kernel::KernelDevice;
use crate::lease::{Leases, NotLeasable};
use crate::log::{self, Log};
use crate::metrics;
use crate::notify::notify;
use crate::port::{self, OpenPort, PortError, PortRequest};
use crate::recordings::Recordings;
use crate::rundir::{OwnedRunDir, RunDirError};
use crate::sandbox;
use crate::shared::Shared;
use crate::slots::{SlotLimits, Slots};
use crate::sockets::Sockets;
use crate::sysfs;

/// Options of the daemon.
#[derive(Debug)]
pub struct Options {
    /// The configuration.
    pub config: Config,
    /// The run directory.
    pub run_dir: RunDir,
    /// Log to standard error instead of the run directory.
    pub foreground: bool,
}

/// Why the daemon could not start or continue.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// See [`RunDirError`].
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The port cannot be used.
    #[error("cannot open the port: {0}")]
    Port(#[from] PortError),
    /// A system call failed.
    #[error("cannot {doing}: {error}")]
    System {
        /// The attempted action.
        doing: String,
        /// The error.
        error: io::Error,
    },
    /// The data thread ended by itself.
    #[error("the data thread has failed: see {}", .0.display())]
    DataThread(PathBuf),
}

fn system<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> DaemonError {
    move |error| DaemonError::System {
        doing: doing.into(),
        error: error.into(),
    }
}

/// More descriptors than the sockets of all clients have room for at the kernel's default limits.
const DESCRIPTORS: u64 = 1 << 19;
/// Descriptors for which the kernel has a table from the start: those of 800 clients.
const TABLE: u32 = 1 << 12;

/// Runs an instance until it is stopped.
///
/// # Errors
/// Why it could not start, or had to end.
pub fn run(options: &Options) -> Result<(), DaemonError> {
    umask(Mode::from_bits_truncate(0o022));
    raise_descriptor_limit();
    grow_descriptor_table();
    let signals = block_signals().map_err(system("wait for signals"))?;
    let owned = OwnedRunDir::acquire(&options.run_dir, options.config.access)?;
    let log = log_file(options).map_err(system("write the log"))?;
    start_log(options, log.as_ref()).map_err(system("write the log"))?;
    let mut control = start(options, &owned)?;
    if !options.foreground {
        // `urdma up` requests a signal at its own end, which arrives once the control socket
        // exists.
        set_pdeathsig(None).map_err(system("outlive the program that started it"))?;
    }
    let listener = listen(options).map_err(system("make the control socket"))?;
    if let Some(log) = &log {
        // The starting process reads standard error only until now.
        nix::unistd::dup2_stderr(log).map_err(system("write the log"))?;
    }
    if let Some(address) = options.config.metrics {
        metrics::serve(address, options.run_dir.clone())
            .map_err(system(format!("serve metrics at {address}")))?;
    }
    sandbox::enter(&options.config);
    tracing::info!("instance \"{}\" is ready", control.instance);
    notify("READY=1");
    let outcome = control.run(&listener, &signals);
    notify("STOPPING=1");
    tracing::info!("instance \"{}\" ends", control.instance);
    control.tell_all(&Event::Shutdown);
    // First no new clients; then the data thread ends and with it the port; then the files are
    // removed. The clients' sockets close last, which shows that the instance has ended.
    drop(listener);
    control.data.stop();
    drop(owned);
    control.close_all();
    match outcome.map_err(system("wait for clients"))? {
        Ended::Asked => Ok(()),
        Ended::DataThreadLost => Err(DaemonError::DataThread(options.run_dir.log_file())),
    }
}

/// Creates all parts of an instance but its control socket.
pub(crate) fn start(options: &Options, owned: &OwnedRunDir) -> Result<Control, DaemonError> {
    let config = &options.config;
    let run_dir = owned.run_dir();
    let path = fs::canonicalize(run_dir.path()).map_err(system("find the run directory"))?;
    let identity = Arc::new(Identity::new(&path, config.addresses.as_deref()));
    sysfs::write(&run_dir.sysfs(), &identity, config.personality)
        .map_err(system("write the sysfs tree"))?;
    let memory = |error| system("make the shared memory")(io::Error::other(error));
    let directory = OwnDirectory::create().map_err(memory)?;
    let (page, page_fd) = OwnPage::create().map_err(memory)?;
    let mut shared = Shared::new().map_err(system("make an eventfd"))?;
    let recordings = Recordings::of_daemon(&mut shared.recorder);
    let shared = Arc::new(shared);
    port::remove_leftovers(&path);
    let (data_port, device, leases) = match &config.port {
        Some(_) => open_port(options, &path, &identity)?,
        None => {
            let leases = Leases::new(Err(NotLeasable::NoPort));
            (None, None, leases)
        }
    };
    let data = data::start(
        page,
        Arc::clone(&shared),
        Arc::clone(&identity),
        data_port,
        config.quota.requests_per_second,
    )
    .map_err(system("start the data thread"))?;
    if !config.faults.are_none() && data.set_faults(config.faults).is_err() {
        return Err(DaemonError::DataThread(run_dir.log_file()));
    }
    let closer = Closer::start(Arc::clone(&shared)).map_err(system("start the closing thread"))?;
    let mut kernel = KernelDevice::new(
        config,
        path.clone(),
        &identity,
        getrandom::u64().map_err(system("get random numbers"))?,
    );
    kernel.record_with(shared.recorder.clone());
    if config.kernel_device.is_some() {
        shared.manage_connections();
    }
    Ok(Control {
        instance: config
            .instance
            .clone()
            .unwrap_or_else(|| run_dir.instance()),
        run_dir: path,
        slots: slots(config),
        config: config.clone(),
        identity,
        directory,
        page: page_fd,
        kernel,
        shared,
        data,
        leases,
        faults: config.faults,
        device,
        clients: std::collections::BTreeMap::new(),
        next_token: 1,
        recordings,
        closer,
        sockets: Sockets::new(config.sockets_excluded.clone()),
        attaches: Attaches::new(),
        reaping: Reaping::default(),
        spare: Spare::new(),
        statuses: Statuses::default(),
        counters: Counters::default(),
        counter_files: offer_counters(run_dir),
        counting: Default::default(),
        ready_at: Instant::now(),
        is_ending: false,
    })
}

/// The counters of the port, if the file system of the run directory can offer them.
fn offer_counters(run_dir: &RunDir) -> Option<CounterFiles> {
    let (port, scratch) = (sysfs::port(&run_dir.sysfs()), run_dir.sysfs().join("new"));
    match CounterFiles::create(&port, &scratch) {
        Ok(files) => Some(files),
        Err(error) => {
            tracing::info!("sysfs has no counters of the port: {error}");
            None
        }
    }
}

fn slots(config: &Config) -> Slots {
    let processes = config.slots;
    let owner = Uid::effective().as_raw();
    let configured = config.quota.slots_per_user;
    let is_shared = config.access != Access::Owner;
    let limits = SlotLimits::new(processes, owner, configured, is_shared);
    Slots::new(processes, limits)
}

type Opened = (
    Option<(Box<dyn port::PacketPort>, bool)>,
    Option<(String, String)>,
    Leases,
);

/// Opens the configured port: the data thread's side and whether it computes checksums; name and
/// Ethernet address; leases.
fn open_port(options: &Options, path: &Path, identity: &Identity) -> Result<Opened, DaemonError> {
    let Some(config) = &options.config.port else {
        return Err(PortError::None.into());
    };
    let log = options.run_dir.log_file();
    let OpenPort {
        port,
        device,
        leases,
    } = port::open(&PortRequest {
        config,
        run_dir: path,
        addresses: &identity.addresses,
        slots: options.config.slots,
        node_guid: identity.node_guid,
        log: (!options.foreground).then_some(&log),
    })?;
    if let Err(reason) = &leases {
        tracing::info!("no queue pair can be leased: {reason}");
    }
    let device = (device, port.mac().to_string());
    Ok((
        Some((port, config.checksum)),
        Some(device),
        Leases::new(leases),
    ))
}

/// Directs SIGTERM, SIGINT and SIGHUP to the control thread's signalfd, in all threads started
/// later.
fn block_signals() -> nix::Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGHUP);
    signals.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Each client takes up to five descriptors. The limit is also that of descriptors on their way to
/// clients, two for each offered channel: one that is low lets clients which read nothing keep the
/// others from opening channels.
fn raise_descriptor_limit() {
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    // Only with CAP_SYS_RESOURCE may it go beyond the limit that it was started with.
    let wanted = hard.max(DESCRIPTORS);
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_err() {
        // A failure only means fewer clients.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Has the kernel make the table of descriptors large enough, before there are threads: to make it
/// larger when there are some, the kernel waits for a grace period of RCU, and with it the control
/// thread and all clients that start meanwhile.
fn grow_descriptor_table() {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1, |(limit, _)| limit);
    let last = u64::from(TABLE).min(limit).saturating_sub(1);
    // A failure only means that the table grows later.
    if let (Ok(last), Ok(any)) = (last.try_into(), EventFd::new()) {
        let _ = fcntl(&any, FcntlArg::F_DUPFD_CLOEXEC(last)).and_then(close);
    }
}

fn listen(options: &Options) -> io::Result<PacketListener> {
    let path = options.run_dir.control_socket();
    let listener = PacketListener::bind(&path)?;
    chown(&path, None, options.config.access.group())?;
    let mode = match options.config.access {
        Access::Owner | Access::Group(_) => 0o660,
        Access::Everyone => 0o666,
    };
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

fn log_file(options: &Options) -> io::Result<Option<File>> {
    if options.foreground {
        return Ok(None);
    }
    let path = options.run_dir.log_file();
    let file = log::open(&path)?;
    chown(&path, None, options.config.access.group())?;
    Ok(Some(file))
}

fn start_log(options: &Options, file: Option<&File>) -> io::Result<()> {
    let log = match file {
        Some(file) => Log::file(file.try_clone()?, &options.run_dir.log_file()),
        None => Log::stderr(),
    };
    // A second daemon in one process (in tests) uses the first one's log.
    let _ = tracing_subscriber::fmt()
        .with_target(false)
        .with_ansi(false)
        .with_writer(log)
        .try_init();
    Ok(())
}
