//! Construction of engines: attaching to urdmad, and the list of the engines of the process.

#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{mpsc, Arc, Mutex, Once, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use urdma_abi::cancel::Disabled;
use urdma_channel::{ChannelConfig, Directory, OwnRecords, OwnRegion};
use urdma_ipc::{ControlClient, HostMemory, LeaseAnswer, Personality, RunDir};
use urdma_memfd::MemoryError;
use urdma_types::{Ip16, SlotId};

use crate::clock;
use crate::engine::control_socket::{self, ControlSocket};
use crate::engine::unmapped;
use crate::engine::{Background, Engine, Lanes};
use crate::lock::SpinLock;
use crate::objects::qp::PolledTable;
use crate::objects::trace;
use crate::paths::capture::Capture;
use crate::paths::channels::{open_peer, Channels, SharedPage};
use crate::paths::in_process::InProcess;
use crate::paths::lease::LeasedQueue;
use crate::shard::Shard;
use crate::threads::background;
use crate::types::{AttachError, Gid, GidEntry, Info, LeaseState, LIMITS};
use crate::waiting::sleep_control::SleepControl;
use crate::waiting::start::Start;

/// Environment variable: `never`, `try` or `require`.
const LEASE_VARIABLE: &str = "URDMA_LEASE";
/// Whether events of connections are recorded.
const RECORDER_VARIABLE: &str = "URDMA_RECORDER";
/// The engines of this process by run directory; one whose urdmad is gone is replaced.
static ENGINES: Mutex<Vec<(PathBuf, Arc<Engine>)>> = Mutex::new(Vec::new());

/// What the processes of an instance share.
#[derive(Debug)]
pub enum Host {
    /// All engines are in this process.
    InProcess(Arc<InProcess>),
    /// What urdmad shows.
    Memory(HostMemory),
    /// What an urdmad shows that the caller plays.
    Played(PlayedDaemon),
}

/// An urdmad without a control socket, which the caller plays; for measurements.
#[derive(Debug)]
pub struct PlayedDaemon {
    /// What it shows.
    pub memory: HostMemory,
    /// The Ethernet address at which it reaches every other host.
    pub next_hop: [u8; 6],
    /// Is sent what the engine offers to slot 0: region, page, delivery records, and the socket
    /// that wakes the process.
    pub offers: mpsc::Sender<Vec<OwnedFd>>,
}

/// What an engine is constructed from; an urdmad is not required.
#[derive(Debug)]
pub struct Parts {
    /// The instance.
    pub host: Host,
    /// This engine's slot in it.
    pub slot: SlotId,
    /// EUI-64 of the device.
    pub node_guid: u64,
    /// How the device presents itself.
    pub personality: Personality,
    /// The GID table.
    pub gids: Vec<GidEntry>,
    /// The instance's addresses.
    pub addresses: Vec<IpAddr>,
    /// IP MTU of the port, 0 without one.
    pub mtu: u16,
    /// The control socket of urdmad, if there is an urdmad, and its run directory.
    pub control: Option<(ControlClient, RunDir)>,
}

impl Parts {
    /// An engine in `slot` of an instance of this process, without urdmad and without a port.
    ///
    /// The instance has the GID `gid` and the address 127.0.0.1; its engines with the same GID
    /// reach one another.
    pub fn in_process(instance: &Arc<InProcess>, slot: SlotId, gid: Gid) -> Self {
        Self {
            host: Host::InProcess(Arc::clone(instance)),
            slot,
            node_guid: 1,
            personality: Personality::Roce,
            gids: vec![GidEntry { gid, netdev: None }],
            addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            mtu: 0,
            control: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseWish {
    Never,
    Try,
    Require,
}

fn lease_wish() -> Result<LeaseWish, AttachError> {
    let wishes = [
        ("try", LeaseWish::Try),
        ("never", LeaseWish::Never),
        ("require", LeaseWish::Require),
    ];
    chosen(LEASE_VARIABLE, &wishes)
}

/// The choice that an environment variable names; the first when it is not set or empty.
fn chosen<T: Copy>(variable: &str, choices: &[(&str, T)]) -> Result<T, AttachError> {
    let value = std::env::var_os(variable).unwrap_or_default();
    let found = choices
        .iter()
        .find(|(name, _)| value.is_empty() || value == *name);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let names = names.join(" or ");
        AttachError::Environment(format!("{variable} must be {names}, not {value:?}"))
    })
}

impl Engine {
    /// The engine of the instance in `run_dir`: the existing one, or a new one.
    ///
    /// # Errors
    /// urdmad does not run, refuses, or the process cannot use its memory; the message says what to
    /// do.
    pub fn attach(run_dir: &RunDir) -> Result<Arc<Engine>, AttachError> {
        let path = run_dir.path();
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, left): (Vec<_>, Vec<_>) = std::mem::take(&mut *engines)
            .into_iter()
            .partition(|(_, engine)| engine.is_usable());
        *engines = kept;
        // The threads of an engine that the parent process had do not exist here, so it cannot be
        // ended.
        let (inherited, ended): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(_, engine)| engine.is_forked());
        std::mem::forget(inherited);
        drop(ended);
        if let Some((_, engine)) = engines.iter().find(|(there, _)| *there == path) {
            return Ok(Arc::clone(engine));
        }
        let engine = attach_anew(run_dir, lease_wish()?, None)?;
        engines.push((path, Arc::clone(&engine)));
        Ok(engine)
    }

    /// An engine in a slot, without a lease; no one else may use the slot.
    ///
    /// # Errors
    /// Memory cannot be mapped, or a thread cannot be started.
    pub fn start(parts: Parts) -> Result<Arc<Engine>, AttachError> {
        clock::measure_pace();
        start(parts, None, LeaseState::NotAsked, None, None)
    }

    /// As [`Engine::start`], but without the background thread: progress happens in calls only, and
    /// timers do not run. The cost of a call can be counted this way.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_without_thread(parts: Parts) -> Result<Arc<Engine>, AttachError> {
        Self::start_leased_without_thread(parts, None)
    }

    /// As [`Engine::start_without_thread`], with a leased queue pair.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_leased_without_thread(
        parts: Parts,
        lease: Option<LeasedQueue>,
    ) -> Result<Arc<Engine>, AttachError> {
        clock::measure_pace();
        let engine = start(parts, None, LeaseState::NotAsked, lease, None)?;
        // The thread counts as started.
        engine.background.start.set_started();
        Ok(engine)
    }
}

/// A new engine in the instance in `run_dir`: a further lane of `lanes`, or the first engine of its
/// process.
pub(super) fn attach_anew(
    run_dir: &RunDir,
    wish: LeaseWish,
    lanes: Option<&Arc<Lanes>>,
) -> Result<Arc<Engine>, AttachError> {
    let attaching =
        ControlClient::begin_attach(run_dir, &program_name(), wish != LeaseWish::Never)?;
    // While urdmad makes room.
    clock::measure_pace();
    let own = OwnMemory::create()?;
    let (control, attached, memory) = attaching.finish()?;
    let gids = attached.gids.iter();
    let addresses: Vec<_> = gids.map(|entry| Ip16(entry.gid).to_ip()).collect();
    let (state, lease) = take_lease(wish, &attached.lease, &addresses)?;
    let slot = SlotId::new(attached.slot).ok_or_else(|| {
        AttachError::Memory(io::Error::new(
            io::ErrorKind::InvalidData,
            "urdmad named a slot that cannot be",
        ))
    })?;
    let gids = attached.gids.into_iter().map(|entry| GidEntry {
        gid: Gid(entry.gid),
        netdev: entry.netdev,
    });
    let parts = Parts {
        host: Host::Memory(memory),
        slot,
        node_guid: attached.node_guid,
        personality: attached.personality,
        gids: gids.collect(),
        addresses: attached.addresses,
        mtu: attached.mtu,
        control: Some((control, run_dir.clone())),
    };
    start(parts, Some(own), state, lease, lanes)
}

/// Opens the lease that urdmad granted. Without one urdmad forwards the packets, and the reason is
/// in the state.
fn take_lease(
    wish: LeaseWish,
    answer: &LeaseAnswer,
    addresses: &[IpAddr],
) -> Result<(LeaseState, Option<LeasedQueue>), AttachError> {
    let why = match answer {
        LeaseAnswer::NotAsked => return Ok((LeaseState::NotAsked, None)),
        LeaseAnswer::Granted(params) => match LeasedQueue::open(params, addresses) {
            Ok(lease) => return Ok((LeaseState::Leased, Some(lease))),
            Err(why) => why.to_string(),
        },
        LeaseAnswer::Refused(why) => why.clone(),
    };
    if wish == LeaseWish::Require {
        return Err(AttachError::LeaseRequired(why));
    }
    Ok((LeaseState::Forwarded(why), None))
}

/// An engine of its parts, and of `own` if that was created already.
pub(super) fn start(
    parts: Parts,
    own: Option<OwnMemory>,
    lease_state: LeaseState,
    lease: Option<LeasedQueue>,
    lanes: Option<&Arc<Lanes>>,
) -> Result<Arc<Engine>, AttachError> {
    control_socket::watch_forks();
    watch_exit();
    let Ground {
        channels,
        records,
        in_process,
        next_hop,
    } = Ground::lay(parts.host, own, parts.slot, parts.control.as_ref())?;
    let directory = Arc::clone(channels.directory());
    let page = Arc::clone(channels.page());
    let mut shard = Shard::new(channels, records, parts.slot, clock::now());
    shard.lease = lease.map(Box::new);
    let lease_set = match (&mut shard.lease, page.socket()) {
        (Some(lease), Some(socket)) => lease.add_wake_socket(socket.descriptor()),
        _ => None,
    };
    if chosen(RECORDER_VARIABLE, &[("on", true), ("off", false)])? {
        shard.recorder = trace::recorder(parts.control.as_ref().map(|(control, _)| control));
    }
    let recorder = shard.recorder.clone();
    if let Some(&ip) = parts.addresses.first() {
        shard.capture = Capture::from_environment(ip)?;
    }
    let info = Info {
        slot: parts.slot,
        node_guid: parts.node_guid,
        personality: parts.personality,
        gids: parts.gids,
        addresses: parts.addresses,
        mtu: parts.mtu,
        lease: lease_state,
        limits: LIMITS,
    };
    shard.qps.kinds.begin(&info);
    let (control, run_dir) = parts.control.unzip();
    let engine = Arc::new_cyclic(|myself| Engine {
        info,
        shard: SpinLock::new(shard),
        polled: PolledTable::new(),
        sleep_control: SleepControl::new(page, lease_set),
        directory,
        in_process,
        next_hop,
        is_dead: AtomicBool::new(false),
        contended_polls: AtomicU32::new(0),
        has_batch: AtomicBool::new(false),
        control: control.map(ControlSocket::new),
        run_dir,
        lanes: lanes.map_or_else(|| Lanes::new(myself.clone()), Arc::clone),
        sinks: Mutex::new(Vec::new()),
        cm: OnceLock::new(),
        recorder,
        reported: Mutex::default(),
        delivery: Mutex::default(),
        background: Background {
            start: Start::default(),
            run: background::run,
        },
        xrc_domains: Mutex::default(),
        memberships: Mutex::default(),
        forks: control_socket::forks(),
        myself: myself.clone(),
    });
    unmapped::watch(&engine.shard);
    engine.start_control().map_err(AttachError::Thread)?;
    if let Some(instance) = &engine.in_process {
        instance.join(Weak::clone(&engine.myself) as _);
    }
    Ok(engine)
}

fn memory(error: MemoryError) -> AttachError {
    AttachError::Memory(match error {
        MemoryError::System(_, error) => error,
        other => io::Error::other(other),
    })
}

/// What a process creates for urdmad, whatever its slot: its page, and the region and the delivery
/// records of the channel to urdmad, with the descriptors of the two.
pub(super) struct OwnMemory {
    page: SharedPage,
    region: (OwnRegion, OwnedFd),
    records: (OwnRecords, OwnedFd),
}

impl OwnMemory {
    fn create() -> Result<Self, AttachError> {
        // Processes differ in it, as `Layout::new` asks.
        let [stagger, ..] = std::process::id().to_ne_bytes();
        Ok(Self {
            page: SharedPage::create().map_err(memory)?,
            region: OwnRegion::create(&ChannelConfig::PACKETS, stagger).map_err(memory)?,
            records: OwnRecords::create().map_err(memory)?,
        })
    }
}

/// What an engine shares with other processes.
struct Ground {
    channels: Channels,
    records: Option<Arc<OwnRecords>>,
    in_process: Option<Arc<InProcess>>,
    /// The Ethernet address of all other hosts, behind an urdmad that is played.
    next_hop: Option<[u8; 6]>,
}

impl Ground {
    /// Maps the memory of the instance; with an urdmad, opens the channel to it.
    fn lay(
        host: Host,
        own: Option<OwnMemory>,
        slot: SlotId,
        control: Option<&(ControlClient, RunDir)>,
    ) -> Result<Self, AttachError> {
        let (shown, played) = match host {
            Host::InProcess(instance) => {
                let directory = Arc::new(instance.assign(slot).map_err(memory)?);
                let page = SharedPage::create().map_err(memory)?;
                return Ok(Self {
                    channels: Channels::new(slot, directory, page),
                    records: None,
                    in_process: Some(instance),
                    next_hop: None,
                });
            }
            Host::Memory(shown) => (shown, None),
            Host::Played(daemon) => (daemon.memory, Some((daemon.next_hop, daemon.offers))),
        };
        let OwnMemory {
            page,
            region,
            records: (records, records_fd),
        } = own.map_or_else(OwnMemory::create, Ok)?;
        let directory = Arc::new(Directory::open(shown.directory).map_err(memory)?);
        let of_daemon = open_peer(vec![shown.region, shown.page]).map_err(memory)?;
        let mut channels = Channels::new(slot, directory, page);
        let offer = channels.insert(SlotId::DAEMON, 0, region).map_err(memory)?;
        channels.attach(SlotId::DAEMON, 0, None, of_daemon);
        let (next_hop, offers) = played.unzip();
        if let Some(offer) = offer {
            let mut fds = offer.into_fds();
            fds.insert(2, records_fd);
            if let Some((control, _)) = control {
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                control.offer_channel(SlotId::DAEMON.number(), None, &fds)?;
            } else if let Some(offers) = offers {
                // A caller that does not take it plays an urdmad that never answers.
                let _ = offers.send(fds);
            }
        }
        Ok(Self {
            channels,
            records: Some(Arc::new(records)),
            in_process: None,
            next_hop,
        })
    }
}

fn program_name() -> String {
    std::env::args_os().next().map_or_else(
        || "unknown".to_owned(),
        |name| {
            let path = PathBuf::from(name);
            path.file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        },
    )
}

/// Registers, once, an exit handler that sends what was put off until the application's next call.
fn watch_exit() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the function takes no argument and never unwinds; the plugin is never unloaded.
        unsafe { libc::atexit(settle_at_exit) };
    });
}

/// How long an exit waits for a thread that holds the lock. A longer wait means that the exiting
/// thread itself holds it, in a signal handler.
const EXIT_PATIENCE: Duration = Duration::from_millis(100);

/// Acknowledges what has arrived before the process exits, and sends what was put off to the
/// application's next call (see `data/progress.rs`). A capture ends here too, so that its last
/// packet is whole.
extern "C" fn settle_at_exit() {
    let _uncancelled = Disabled::new();
    let Ok(engines) = ENGINES.try_lock() else {
        return;
    };
    let begin = Instant::now();
    let engines = engines.iter().map(|(_, engine)| Arc::clone(engine));
    let lanes = engines
        .clone()
        .flat_map(|engine| engine.lanes.others().collect::<Vec<_>>());
    for engine in engines.chain(lanes).filter(|engine| !engine.is_forked()) {
        let mut shard = engine.shard.try_lock();
        while shard.is_none() && begin.elapsed() < EXIT_PATIENCE {
            std::thread::yield_now();
            shard = engine.shard.try_lock();
        }
        if let Some(shard) = &mut shard {
            if !shard.is_dead {
                shard.drain(&engine.info);
                shard.qps.acknowledge_all();
            }
            shard.flush();
            shard.capture = None;
        }
    }
}
