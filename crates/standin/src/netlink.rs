//! Answers to the queries of RDMA netlink (NETLINK_RDMA, client NLDEV) by which programs such as
//! iproute2's `rdma` find devices: from the files of the sysfs tree, as the kernel would give them.
//!
//! GET and PORT_GET describe devices and ports, STAT_GET a port's counters, SYS_GET the system.
//! RES_GET names the device without counts, since its objects are in the memory of processes. Other
//! commands are refused with EOPNOTSUPP.

use std::ffi::{c_int, CString};
use std::fs;
use std::path::{Path, PathBuf};

/// `struct nlmsghdr`: length, type, flags, sequence number, port number.
const HEADER_OCTETS: usize = 16;
/// Alignment of messages and attributes, octets.
const ALIGNMENT: usize = 4;
/// Length and type of an attribute.
const ATTRIBUTE_HEADER_OCTETS: usize = 4;
/// Bits of an attribute's type that are flags.
const ATTRIBUTE_FLAGS: u16 = 0xc000;
/// `NLM_F_CAPPED`: an error repeats the header of the request only.
const CAPPED: u16 = 0x100;
/// `RDMA_NL_NLDEV`, in a message's type.
const NLDEV: u16 = 5 << 10;

/// `enum rdma_nldev_command`.
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const RES_GET: u16 = 9;
    pub(super) const STAT_GET: u16 = 17;
}

/// `enum rdma_nldev_attr`.
mod attribute {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const DEV_NAME: u16 = 2;
    pub(super) const PORT_INDEX: u16 = 3;
    pub(super) const FW_VERSION: u16 = 5;
    pub(super) const NODE_GUID: u16 = 6;
    pub(super) const SYS_IMAGE_GUID: u16 = 7;
    pub(super) const PORT_STATE: u16 = 12;
    pub(super) const PORT_PHYS_STATE: u16 = 13;
    pub(super) const DEV_NODE_TYPE: u16 = 14;
    pub(super) const RES_SUMMARY: u16 = 15;
    pub(super) const NDEV_INDEX: u16 = 50;
    pub(super) const NDEV_NAME: u16 = 51;
    pub(super) const SYS_NETNS_MODE: u16 = 66;
    pub(super) const DEV_PROTOCOL: u16 = 67;
    pub(super) const STAT_RES: u16 = 75;
    pub(super) const HWCOUNTERS: u16 = 80;
    pub(super) const HWCOUNTER_ENTRY: u16 = 81;
    pub(super) const HWCOUNTER_NAME: u16 = 82;
    pub(super) const HWCOUNTER_VALUE: u16 = 83;
}

/// A request without its attributes.
#[derive(Clone, Copy)]
struct Request<'a> {
    header: &'a [u8; HEADER_OCTETS],
    kind: u16,
    flags: u16,
}

/// The datagrams that answer a datagram of a program: requests, one after the other. `port` is the
/// program's netlink port, `sysfs` the tree.
pub(crate) fn answers(mut octets: &[u8], port: u32, sysfs: &Path) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    while let Some((header, rest)) = octets.split_first_chunk::<HEADER_OCTETS>() {
        let len = u32_at(header, 0) as usize;
        let Some(body) = len
            .checked_sub(HEADER_OCTETS)
            .and_then(|len| rest.get(..len))
        else {
            break;
        };
        let request = Request {
            header,
            kind: u16_at(header, 4),
            flags: u16_at(header, 6),
        };
        if i32::from(request.flags) & libc::NLM_F_REQUEST != 0 {
            answer(request, body, port, sysfs, &mut answers);
        }
        octets = rest
            .get(body.len().next_multiple_of(ALIGNMENT)..)
            .unwrap_or_default();
    }
    answers
}

fn answer(request: Request, body: &[u8], port: u32, sysfs: &Path, answers: &mut Vec<Vec<u8>>) {
    let is_dump = i32::from(request.flags) & libc::NLM_F_DUMP == libc::NLM_F_DUMP;
    let outcome = contents(request.kind, is_dump, body, sysfs);
    if let (true, Ok(contents)) = (
        is_dump && request.kind != NLDEV + command::SYS_GET,
        &outcome,
    ) {
        let mut datagram = Vec::new();
        for content in contents {
            put_message(
                &mut datagram,
                request,
                request.kind,
                libc::NLM_F_MULTI,
                port,
                content,
            );
        }
        let done = number(libc::NLMSG_DONE);
        put_message(
            &mut datagram,
            request,
            done,
            libc::NLM_F_MULTI,
            port,
            &[0; 4],
        );
        answers.push(datagram);
        return;
    }
    for content in outcome.as_ref().into_iter().flatten() {
        let mut datagram = Vec::new();
        put_message(&mut datagram, request, request.kind, 0, port, content);
        answers.push(datagram);
    }
    if outcome.is_err() || i32::from(request.flags) & libc::NLM_F_ACK != 0 {
        let error = outcome.err().map_or(0, |errno: c_int| -errno);
        let content = [&error.to_ne_bytes()[..], request.header].concat();
        let (mut datagram, kind) = (Vec::new(), number(libc::NLMSG_ERROR));
        put_message(
            &mut datagram,
            request,
            kind,
            i32::from(CAPPED),
            port,
            &content,
        );
        answers.push(datagram);
    }
}

/// The attributes of each message that answers a request; fails with an errno.
fn contents(kind: u16, is_dump: bool, body: &[u8], sysfs: &Path) -> Result<Vec<Vec<u8>>, c_int> {
    if i32::from(kind) < libc::NLMSG_MIN_TYPE {
        return Ok(Vec::new());
    }
    let Some(command @ 0..0x400) = kind.checked_sub(NLDEV) else {
        return Err(libc::EINVAL);
    };
    let devices = Device::all(sysfs);
    let one = || {
        let index = find(body, attribute::DEV_INDEX).ok_or(libc::EINVAL)?;
        devices
            .iter()
            .find(|device| device.index == index)
            .ok_or(libc::EINVAL)
    };
    let one_port = || {
        let (device, port) = (one()?, find(body, attribute::PORT_INDEX));
        let port = port.filter(|port| (1..=device.ports).contains(port));
        Ok::<_, c_int>((device, port.ok_or(libc::EINVAL)?))
    };
    match (command, is_dump) {
        (command::GET, true) => Ok(devices.iter().map(Device::describe).collect()),
        (command::GET, false) => Ok(vec![one()?.describe()]),
        (command::RES_GET, true) => Ok(devices.iter().map(Device::resources).collect()),
        (command::RES_GET, false) => Ok(vec![one()?.resources()]),
        (command::PORT_GET, true) => {
            let device = one()?;
            Ok((1..=device.ports)
                .map(|port| device.describe_port(port))
                .collect())
        }
        (command::PORT_GET, false) => {
            let (device, port) = one_port()?;
            Ok(vec![device.describe_port(port)])
        }
        // With a resource it asks for the counters of queue pairs.
        (command::STAT_GET, false) if find(body, attribute::STAT_RES).is_none() => {
            let (device, port) = one_port()?;
            let statistics = device.statistics(port).ok_or(libc::EOPNOTSUPP)?;
            Ok(vec![statistics])
        }
        // The device can be used from each network namespace that sees the run directory.
        (command::SYS_GET, _) => Ok(vec![Attributes::new().u8(attribute::SYS_NETNS_MODE, 1).0]),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// A device in the sysfs tree.
struct Device {
    index: u32,
    name: String,
    path: PathBuf,
    ports: u32,
}

impl Device {
    /// All devices, in the order of their names.
    fn all(sysfs: &Path) -> Vec<Self> {
        let paths = entries(&sysfs.join("class/infiniband"));
        let named = (0..).zip(paths);
        named
            .map(|(index, path)| Self {
                index,
                name: name_of(&path),
                ports: u32::try_from(entries(&path.join("ports")).len()).unwrap_or(0),
                path,
            })
            .collect()
    }

    fn identify(&self) -> Attributes {
        Attributes::new()
            .u32(attribute::DEV_INDEX, self.index)
            .text(attribute::DEV_NAME, &self.name)
    }

    fn describe(&self) -> Vec<u8> {
        let node_type = leading_number(&self.text("node_type"));
        // The kernel's node types: 1 is a channel adapter, 4 an RNIC.
        let protocol = if node_type == 4 { "iw" } else { "roce" };
        let attributes = self
            .identify()
            .u32(attribute::PORT_INDEX, self.ports)
            .text(attribute::FW_VERSION, &self.text("fw_ver"))
            .u64(attribute::NODE_GUID, guid(&self.text("node_guid")))
            .u64(
                attribute::SYS_IMAGE_GUID,
                guid(&self.text("sys_image_guid")),
            )
            .u8(attribute::DEV_NODE_TYPE, node_type)
            .text(attribute::DEV_PROTOCOL, protocol);
        attributes.0
    }

    fn describe_port(&self, port: u32) -> Vec<u8> {
        let state = |name: &str| leading_number(&self.text(&format!("ports/{port}/{name}")));
        let attributes = self
            .identify()
            .u32(attribute::PORT_INDEX, port)
            .u8(attribute::PORT_STATE, state("state"))
            .u8(attribute::PORT_PHYS_STATE, state("phys_state"));
        match self.netdev() {
            Some((index, name)) => {
                let attributes = attributes.u32(attribute::NDEV_INDEX, index);
                attributes.text(attribute::NDEV_NAME, &name).0
            }
            None => attributes.0,
        }
    }

    /// The hardware counters of a port; `None` if it has none.
    fn statistics(&self, port: u32) -> Option<Vec<u8>> {
        let files = entries(&self.path.join(format!("ports/{port}/hw_counters")));
        let counters = files.iter().filter_map(|file| {
            // How long values are kept is no counter.
            let name = Some(name_of(file)).filter(|name| name != "lifespan")?;
            let value = fs::read_to_string(file).ok()?.trim().parse().ok()?;
            Some((name, value))
        });
        let table = counters.fold(Attributes::new(), |table, (name, value)| {
            let entry = Attributes::new()
                .text(attribute::HWCOUNTER_NAME, &name)
                .u64(attribute::HWCOUNTER_VALUE, value);
            table.put(attribute::HWCOUNTER_ENTRY, &entry.0)
        });
        let attributes = self.identify().u32(attribute::PORT_INDEX, port);
        let has_counters = !table.0.is_empty();
        has_counters.then(|| attributes.put(attribute::HWCOUNTERS, &table.0).0)
    }

    fn resources(&self) -> Vec<u8> {
        self.identify().put(attribute::RES_SUMMARY, &[]).0
    }

    /// Number and name of the network interface, if it is in the namespace of this process.
    fn netdev(&self) -> Option<(u32, String)> {
        let name = name_of(entries(&self.path.join("device/net")).first()?);
        let c_name = CString::new(name.as_str()).ok()?;
        // SAFETY: a C string.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        (index != 0).then_some((index, name))
    }

    /// A file of the device; empty if there is none.
    fn text(&self, file: &str) -> String {
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        text.trim_end().to_owned()
    }
}

/// The paths in a directory, in the order of their names; none if it does not exist.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = found.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The number of a text such as `4: ACTIVE`.
fn leading_number(text: &str) -> u8 {
    let number = text.split(':').next().unwrap_or_default();
    number.parse().unwrap_or(0)
}

/// The number of a GUID such as `0200:00ff:fe00:0001`.
fn guid(text: &str) -> u64 {
    u64::from_str_radix(&text.replace(':', ""), 16).unwrap_or(0)
}

/// Attributes of a message.
struct Attributes(Vec<u8>);

impl Attributes {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn put(mut self, kind: u16, value: &[u8]) -> Self {
        let len = number(ATTRIBUTE_HEADER_OCTETS + value.len());
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
        self
    }

    fn u8(self, kind: u16, value: u8) -> Self {
        self.put(kind, &[value])
    }

    fn u32(self, kind: u16, value: u32) -> Self {
        self.put(kind, &value.to_ne_bytes())
    }

    fn u64(self, kind: u16, value: u64) -> Self {
        self.put(kind, &value.to_ne_bytes())
    }

    fn text(self, kind: u16, value: &str) -> Self {
        self.put(kind, &[value.as_bytes(), &[0]].concat())
    }
}

/// The first 32-bit attribute of this kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<u32> {
    while let Some((header, rest)) = attributes.split_first_chunk::<ATTRIBUTE_HEADER_OCTETS>() {
        let (len, kind) = (usize::from(u16_at(header, 0)), u16_at(header, 2));
        let value = rest.get(..len.checked_sub(ATTRIBUTE_HEADER_OCTETS)?)?;
        if kind & !ATTRIBUTE_FLAGS == wanted {
            return value.first_chunk().map(|value| u32::from_ne_bytes(*value));
        }
        attributes = rest.get(value.len().next_multiple_of(ALIGNMENT)..)?;
    }
    None
}

/// Appends a message.
fn put_message(
    datagram: &mut Vec<u8>,
    request: Request,
    kind: u16,
    flags: c_int,
    port: u32,
    content: &[u8],
) {
    let len = u32::try_from(HEADER_OCTETS + content.len()).unwrap_or(u32::MAX);
    datagram.extend(len.to_ne_bytes());
    datagram.extend(kind.to_ne_bytes());
    datagram.extend(number(flags).to_ne_bytes());
    datagram.extend(&request.header[8..12]);
    datagram.extend(port.to_ne_bytes());
    datagram.extend(content);
    datagram.resize(datagram.len().next_multiple_of(ALIGNMENT), 0);
}

/// A number of the protocol's 16-bit fields.
fn number<T: TryInto<u16>>(value: T) -> u16 {
    value.try_into().unwrap_or(u16::MAX)
}

fn u16_at(octets: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([octets[at], octets[at + 1]])
}

fn u32_at(octets: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
}
