//! The configuration of an instance: TOML text to one validated [`Config`].
//!
//! Unknown keys are refused. Every error names the file, the line and the key. Without a file an
//! instance has the addresses of the host and no port.

mod addresses;
mod file;
mod number;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{Gid, Group};
use serde::Deserialize;
use toml::Spanned;
use urdma_ipc::fault::{self, Direction, Faults, Impairment};
use urdma_ipc::paths::{is_instance_name, DEFAULT_INSTANCE};
use urdma_ipc::socket_rules::SocketRuleError;
use urdma_ipc::{Personality, SocketRule, SocketRules};
use urdma_kernel::abi::DEVICE_OCTETS;

use self::number::Number;
pub use crate::kinds::PortKind;
use crate::kinds::{KeyError, Keys, KindName, Role};

/// Maximum MTU of a port: such a packet with its headers fits one packet buffer.
pub const MTU_MAX: u16 = 9600;
/// Minimum MTU of a port, that of IPv6.
pub const MTU_MIN: u16 = 1280;
const LEASE_QUEUES_MAX: u16 = 64;

/// Processes that can be attached at the same time; slot 0 is urdmad.
const SLOTS_MAX: u16 = urdma_types::MAX_SLOTS as u16 - 1;

/// A validated configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The instance's name; `None` if the file does not name it.
    pub instance: Option<String>,
    /// The instance's addresses, at least one, without duplicates; `None`: those of the host.
    pub addresses: Option<Vec<IpAddr>>,
    /// The personality of the instance's device.
    pub personality: Personality,
    /// Processes that can be attached at the same time.
    pub slots: u16,
    /// Who may use the instance, beside root.
    pub access: Access,
    /// Limits per user and process.
    pub quota: Quota,
    /// The port, if the instance has one.
    pub port: Option<PortConfig>,
    /// Impairments of the port's frames.
    pub faults: Faults,
    /// The kernel module's device that the instance serves, if any.
    pub kernel_device: Option<String>,
    /// Whether urdmad gives up capabilities and system calls after its start.
    pub sandbox: Sandbox,
    /// Where metrics are served over HTTP, a loopback address; nowhere by default.
    pub metrics: Option<SocketAddr>,
    /// TCP connections that get no rings.
    pub sockets_excluded: SocketRules,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            instance: None,
            addresses: None,
            personality: Personality::default(),
            slots: SLOTS_MAX,
            access: Access::default(),
            quota: Quota::default(),
            port: None,
            faults: Faults::default(),
            kernel_device: None,
            sandbox: Sandbox::default(),
            metrics: None,
            sockets_excluded: SocketRules::default(),
        }
    }
}

/// Who may use an instance, beside root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// The user of urdmad.
    #[default]
    Owner,
    /// That user, and the members of a group.
    Group(Gid),
    /// Every user of the host.
    Everyone,
}

impl Access {
    /// The group whose members may use the instance, if it is limited to one.
    pub fn group(self) -> Option<Gid> {
        match self {
            Self::Group(gid) => Some(gid),
            Self::Owner | Self::Everyone => None,
        }
    }
}

/// Whether urdmad gives up capabilities and system calls after its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// It does.
    #[default]
    On,
    /// It does not, for debugging.
    Off,
}

/// Limits per user and process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Attached processes of one user; `None`: no limit but its share of all slots.
    pub slots_per_user: Option<u16>,
    /// CM ports of one process.
    pub cm_ports_per_process: u32,
    /// Open control connections, attached or not, of all users; the owner and root have some more.
    pub connections: u16,
    /// Connections of one user but the owner and root; `None`: no limit but its share of all.
    pub connections_per_user: Option<u16>,
    /// Connection requests of one user in a second.
    pub requests_per_second: u32,
}

/// A port of the instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// The kind, with its parameters.
    pub kind: PortKind,
    /// IP MTU, octets.
    pub mtu: u16,
    /// Queue pairs that processes may lease.
    pub lease_queues: u16,
    /// Group whose members may lease them, beside the owner and root; `None`: every user.
    pub lease_group: Option<LeaseGroup>,
    /// Hugepages that DPDK allocates at the start if queues can be leased, MB; `None`: as much as
    /// they need.
    pub hugepages_mb: Option<u32>,
    /// Whether urdmad computes UDP checksums; default: yes, but not on net_memif, whose packets
    /// stay in memory. Never on UDP sockets, where the kernel does.
    pub checksum: bool,
}

/// A group that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseGroup {
    /// Its name.
    pub name: String,
    /// Its id.
    pub gid: Gid,
}

/// An error in a configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    file: PathBuf,
    line: Option<usize>,
    key: Option<String>,
    message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ", key \"{key}\"")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Why an instance does not make faults.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultsRefused {
    /// It has no port.
    #[error("this instance has no port at which faults could be made")]
    NoPort,
    /// The kernel would compute checksums of what was changed.
    #[error(
        "the kernel computes the checksums of a port of kind \"{0}\", so that a changed octet \
         would reach programs: leave \"corrupt\" out, or use another kind of port"
    )]
    KernelChecksums(&'static str),
    /// Nothing would find what was changed.
    #[error(
        "without checksums a changed octet would reach programs: set checksum = true in [port], \
         at both hosts"
    )]
    NoChecksums,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            slots_per_user: None,
            cm_ports_per_process: 4096,
            connections: 512,
            connections_per_user: None,
            requests_per_second: 10_000,
        }
    }
}

impl Config {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// It cannot be read, or the error and its place.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = file::read(file).map_err(|error| ConfigError {
            file: file.to_owned(),
            line: None,
            key: None,
            message: error.to_string(),
        })?;
        Self::parse(file, &text)
    }

    /// Validates `text`, which errors call `file`.
    ///
    /// # Errors
    /// The error and its place.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = Source { file, text };
        let raw: RawConfig = toml::from_str(text).map_err(|error| {
            // serde adds its own type to a number of more than 64 bits.
            let message = error.message().replace("` as i128", "`");
            source.error_in(error.span(), message)
        })?;
        raw.validate(&source)
    }

    /// Checks whether this configuration allows `faults`.
    ///
    /// # Errors
    /// It does not.
    pub fn allows(&self, faults: &Faults) -> Result<(), FaultsRefused> {
        let Some(port) = &self.port else {
            return Err(FaultsRefused::NoPort);
        };
        if faults.corrupt() && is_without_dpdk(Some(&port.kind)) {
            return Err(FaultsRefused::KernelChecksums(port.kind.name()));
        }
        if faults.corrupt() && !port.checksum {
            return Err(FaultsRefused::NoChecksums);
        }
        Ok(())
    }

    /// The instance's name.
    pub fn instance_name(&self) -> &str {
        self.instance.as_deref().unwrap_or(DEFAULT_INSTANCE)
    }
}

struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn error<T>(&self, at: &Spanned<T>, message: impl Into<String>) -> ConfigError {
        self.error_in(Some(at.span()), message.into())
    }

    fn error_in(&self, span: Option<Range<usize>>, message: String) -> ConfigError {
        let before = span.and_then(|span| self.text.get(..span.start));
        ConfigError {
            file: self.file.to_owned(),
            line: before.map(|before| 1 + before.matches('\n').count()),
            key: before.and_then(|before| self.key_at(before.len())),
            message,
        }
    }

    /// The key, with its table, whose line holds or precedes the octet at `position`.
    fn key_at(&self, position: usize) -> Option<String> {
        let line_end = self.text[position..]
            .find('\n')
            .map_or(self.text.len(), |length| position + length);
        let mut key: Option<&str> = None;
        for line in self.text[..line_end].lines().rev().map(str::trim) {
            if let Some(table) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
            {
                if !table.contains([',', '"']) {
                    return Some(key.map_or(table.to_owned(), |key| format!("{table}.{key}")));
                }
            }
            if let (None, Some((name, _))) = (key, line.split_once('=')) {
                key = Some(name.trim());
            }
        }
        key.map(str::to_owned)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    instance: Option<Spanned<String>>,
    address: Option<Spanned<Vec<IpAddr>>>,
    personality: Option<Personality>,
    slots: Option<Spanned<Number>>,
    access: Option<Spanned<RawAccess>>,
    group: Option<Spanned<String>>,
    #[serde(default)]
    quota: RawQuota,
    port: Option<RawPort>,
    fault: Option<Spanned<RawFault>>,
    kernel: Option<RawKernel>,
    sandbox: Option<Sandbox>,
    metrics: Option<RawMetrics>,
    #[serde(default)]
    sockets: RawSockets,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [sockets] of keys")]
struct RawSockets {
    #[serde(default)]
    exclude: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [metrics] of keys")]
struct RawMetrics {
    listen: Spanned<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [quota] of keys")]
struct RawQuota {
    slots_per_user: Option<Spanned<Number>>,
    cm_ports_per_process: Option<Spanned<Number>>,
    connections: Option<Spanned<Number>>,
    connections_per_user: Option<Spanned<Number>>,
    requests_per_second: Option<Spanned<Number>>,
}

const FOREIGN_KEY: &str = "this kind of port has no such key";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [port] of keys")]
struct RawPort {
    kind: Spanned<KindName>,
    role: Option<Spanned<Role>>,
    socket: Option<Spanned<PathBuf>>,
    netdev: Option<Spanned<String>>,
    device: Option<Spanned<String>>,
    mtu: Option<Spanned<Number>>,
    lease_queues: Option<Spanned<Number>>,
    lease_group: Option<Spanned<String>>,
    hugepages_mb: Option<Spanned<Number>>,
    checksum: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [kernel] of keys")]
struct RawKernel {
    device: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [fault] of keys")]
struct RawFault {
    direction: Option<Direction>,
    seed: Option<Spanned<Number>>,
    loss: Option<Spanned<String>>,
    duplicate: Option<Spanned<String>>,
    reorder: Option<Spanned<String>>,
    reorder_by: Option<Spanned<String>>,
    corrupt: Option<Spanned<String>>,
    delay: Option<Spanned<String>>,
    rate: Option<Spanned<String>>,
    queue: Option<Spanned<String>>,
    mark: Option<Spanned<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawAccess {
    Owner,
    Group,
    Everyone,
}

impl RawConfig {
    fn validate(self, source: &Source<'_>) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        if let Some(instance) = self.instance {
            if !is_instance_name(instance.get_ref()) {
                let message =
                    "must be 1 to 64 of letters, digits, '.', '_' and '-', not beginning with '.'";
                return Err(source.error(&instance, message));
            }
            config.instance = Some(instance.into_inner());
        }
        if let Some(address) = self.address {
            addresses::check(address.get_ref())
                .map_err(|error| source.error(&address, error.to_string()))?;
            config.addresses = Some(address.into_inner());
        }
        config.personality = self.personality.unwrap_or_default();
        config.sandbox = self.sandbox.unwrap_or_default();
        if let Some(RawMetrics { listen }) = self.metrics {
            let address = addresses::of_metrics(listen.get_ref());
            config.metrics =
                Some(address.map_err(|error| source.error(&listen, error.to_string()))?);
        }
        let rules = self.sockets.exclude.iter().map(|rule| {
            let text = rule.get_ref();
            let refused = |error: SocketRuleError| format!("\"{text}\": {error}");
            let parsed = text.parse::<SocketRule>().map_err(refused);
            parsed.map_err(|message| source.error(rule, message))
        });
        config.sockets_excluded = rules.collect::<Result<_, _>>()?;
        if let Some(slots) = self.slots {
            config.slots = in_range(source, &slots, 1, SLOTS_MAX)?;
        }
        config.access = access(source, self.access.as_ref(), self.group.as_ref())?;
        self.quota.validate(source, &mut config.quota)?;
        if let Some(port) = self.port {
            config.port = port.validate(source, config.access)?;
        }
        let is_host_apart = config
            .port
            .as_ref()
            .is_some_and(|port| !port.kind.get().shares_addresses());
        if is_host_apart && config.addresses.is_none() {
            // On a network the host's addresses belong to the kernel.
            config.addresses = Some(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]);
        }
        if let Some(fault) = self.fault {
            let span = fault.span();
            config.faults = fault.into_inner().validate(source)?;
            config
                .allows(&config.faults)
                .map_err(|error| source.error_in(Some(span), error.to_string()))?;
        }
        if let Some(kernel) = self.kernel {
            let device = kernel.device;
            if !is_instance_name(device.get_ref()) || device.get_ref().len() >= DEVICE_OCTETS {
                return Err(source.error(&device, "is not a name that an RDMA device can have"));
            }
            if config.access == Access::Everyone {
                let message = "the kernel admits the users of one group to its device: instead of \
                               access = \"everyone\", name a \"group\" of all users";
                return Err(source.error(&device, message));
            }
            config.kernel_device = Some(device.into_inner());
        }
        Ok(config)
    }
}

impl RawQuota {
    fn validate(self, source: &Source<'_>, quota: &mut Quota) -> Result<(), ConfigError> {
        if let Some(slots) = self.slots_per_user {
            quota.slots_per_user = Some(in_range(source, &slots, 1, u16::MAX)?);
        }
        if let Some(ports) = self.cm_ports_per_process {
            quota.cm_ports_per_process = in_range(source, &ports, 1, 65_535)?;
        }
        if let Some(connections) = self.connections {
            quota.connections = in_range(source, &connections, 2, 4096)?;
        }
        if let Some(connections) = self.connections_per_user {
            quota.connections_per_user = Some(in_range(source, &connections, 1, 4096)?);
        }
        if let Some(requests) = self.requests_per_second {
            quota.requests_per_second = in_range(source, &requests, 1, 1_000_000)?;
        }
        Ok(())
    }
}

impl RawFault {
    fn validate(self, source: &Source<'_>) -> Result<Faults, ConfigError> {
        let none = Impairment::default();
        let share = |text| value(source, text, 0, fault::parse_share);
        let impairment = Impairment {
            loss_ppm: share(&self.loss)?,
            duplicate_ppm: share(&self.duplicate)?,
            reorder_ppm: share(&self.reorder)?,
            reorder_by_ns: value(
                source,
                &self.reorder_by,
                none.reorder_by_ns,
                fault::parse_time,
            )?,
            corrupt_ppm: share(&self.corrupt)?,
            delay_ns: value(source, &self.delay, 0, fault::parse_time)?,
            rate_bit_s: value(source, &self.rate, None, |text| {
                fault::parse_rate(text).map(Some)
            })?,
            queue_octets: value(source, &self.queue, none.queue_octets, fault::parse_octets)?,
            mark_octets: value(source, &self.mark, None, |text| {
                fault::parse_octets(text).map(Some)
            })?,
        };
        let seed = match &self.seed {
            Some(seed) => in_range(source, seed, 0, u64::MAX)?,
            None => 0,
        };
        let faults = Faults {
            seed,
            ..Faults::default()
        };
        Ok(faults.with(self.direction.unwrap_or_default(), impairment))
    }
}

/// A value with a unit, or the default.
fn value<T, E: ToString>(
    source: &Source<'_>,
    text: &Option<Spanned<String>>,
    default: T,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, ConfigError> {
    match text {
        Some(text) => parse(text.get_ref()).map_err(|error| source.error(text, error.to_string())),
        None => Ok(default),
    }
}

impl RawPort {
    fn validate(
        self,
        source: &Source<'_>,
        access: Access,
    ) -> Result<Option<PortConfig>, ConfigError> {
        let Some(kind) = self.port_kind(source)? else {
            return Ok(None);
        };
        let mtu = match &self.mtu {
            Some(mtu) => in_range(source, mtu, MTU_MIN, MTU_MAX)?,
            None => kind.get().mtu(),
        };
        let lease_queues = match &self.lease_queues {
            Some(queues) => in_range(source, queues, 0, LEASE_QUEUES_MAX)?,
            None => 0,
        };
        let lease_group = match &self.lease_group {
            Some(group) => Some(LeaseGroup {
                name: group.get_ref().clone(),
                gid: find_group(group).map_err(|error| source.error(group, error.to_string()))?,
            }),
            None => None,
        };
        if let (Access::Everyone, Some(queues), None, 1..) =
            (access, &self.lease_queues, &lease_group, lease_queues)
        {
            let message = "a process with a lease can change the packets of all others: with \
                           access = \"everyone\", name a \"lease_group\", or lease nothing";
            return Err(source.error(queues, message));
        }
        let hugepages_mb = match &self.hugepages_mb {
            Some(memory) => Some(in_range(source, memory, 16, 65_536)?),
            None => None,
        };
        Ok(Some(PortConfig {
            mtu,
            lease_queues,
            lease_group,
            hugepages_mb,
            checksum: match (&self.checksum, &kind) {
                (Some(checksum), _) => *checksum.get_ref(),
                (None, kind) => kind.get().computes_checksums(),
            },
            kind,
        }))
    }

    /// The port of the configured kind, which takes its keys; those that are left are of others.
    fn port_kind(&self, source: &Source<'_>) -> Result<Option<PortKind>, ConfigError> {
        fn value<T: Clone>(key: Option<&Spanned<T>>) -> Option<T> {
            key.map(|value| value.get_ref().clone())
        }

        let mut keys = Keys {
            role: value(self.role.as_ref()),
            socket: value(self.socket.as_ref()),
            netdev: value(self.netdev.as_ref()),
            device: value(self.device.as_ref()),
        };
        let wrong = |error| match error {
            KeyError::Missing(key) => {
                source.error(&self.kind, format!("this kind of port needs \"{key}\""))
            }
            KeyError::Wrong(key, message) => source.error_in(self.span(key), message.to_owned()),
        };
        let port = PortKind::take(*self.kind.get_ref(), &mut keys).map_err(wrong)?;
        let foreign = [
            keys.role.map(|_| "role"),
            keys.socket.map(|_| "socket"),
            keys.netdev.map(|_| "netdev"),
            keys.device.map(|_| "device"),
        ];
        let mut foreign = foreign.into_iter().flatten();
        let first = match foreign.next() {
            Some(key) => self.span(key),
            None => self
                .key_of_dpdk()
                .filter(|_| is_without_dpdk(port.as_ref())),
        };
        match first {
            Some(span) => Err(source.error_in(Some(span), FOREIGN_KEY.to_owned())),
            None => Ok(port),
        }
    }

    /// Where a key that kinds take has its value.
    fn span(&self, key: &str) -> Option<Range<usize>> {
        match key {
            "role" => self.role.as_ref().map(Spanned::span),
            "socket" => self.socket.as_ref().map(Spanned::span),
            "netdev" => self.netdev.as_ref().map(Spanned::span),
            _ => self.device.as_ref().map(Spanned::span),
        }
    }

    /// Where a key is that a port without DPDK does not have: it has no queue pairs to lease, and
    /// its checksums are the kernel's.
    fn key_of_dpdk(&self) -> Option<Range<usize>> {
        let numbers = self.lease_queues.as_ref().map(Spanned::span);
        let groups = self.lease_group.as_ref().map(Spanned::span);
        let memory = self.hugepages_mb.as_ref().map(Spanned::span);
        let checksums = self.checksum.as_ref().map(Spanned::span);
        numbers.or(groups).or(memory).or(checksums)
    }
}

fn is_without_dpdk(port: Option<&PortKind>) -> bool {
    port.is_some_and(|port| !port.is_of_dpdk())
}

fn in_range<T>(
    source: &Source<'_>,
    value: &Spanned<Number>,
    least: T,
    most: T,
) -> Result<T, ConfigError>
where
    T: PartialOrd + fmt::Display + TryFrom<i128>,
{
    let Number(number) = *value.get_ref();
    match T::try_from(number) {
        Ok(number) if number >= least && number <= most => Ok(number),
        _ => Err(source.error(value, format!("must be {least} to {most}, not {number}"))),
    }
}

/// Who may use the instance, by both keys.
fn access(
    source: &Source<'_>,
    access: Option<&Spanned<RawAccess>>,
    group: Option<&Spanned<String>>,
) -> Result<Access, ConfigError> {
    let Some(group) = group else {
        return match access.map(|access| (access, access.get_ref())) {
            None | Some((_, RawAccess::Owner)) => Ok(Access::Owner),
            Some((_, RawAccess::Everyone)) => Ok(Access::Everyone),
            Some((access, RawAccess::Group)) => {
                Err(source.error(access, "needs the key \"group\", which names the group"))
            }
        };
    };
    if let Some(access) = access.filter(|access| *access.get_ref() != RawAccess::Group) {
        let message = "contradicts the key \"group\": leave one of the two out";
        return Err(source.error(access, message));
    }
    let gid = find_group(group).map_err(|error| source.error(group, error.to_string()))?;
    Ok(Access::Group(gid))
}

/// Why a group cannot be named.
#[derive(Debug, thiserror::Error)]
enum GroupError {
    #[error("there is no group \"{0}\": make it with groupadd")]
    None(String),
    #[error("cannot look up group \"{name}\": {}", .errno.desc())]
    System { name: String, errno: Errno },
}

fn find_group(name: &Spanned<String>) -> Result<Gid, GroupError> {
    let name = name.get_ref();
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid),
        Ok(None) => Err(GroupError::None(name.clone())),
        Err(errno) => Err(GroupError::System {
            name: name.clone(),
            errno,
        }),
    }
}

#[cfg(test)]
mod tests;
