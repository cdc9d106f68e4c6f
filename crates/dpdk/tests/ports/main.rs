//! Ports of several drivers without hugepages. Each end is a process of its own, because a process
//! can initialise DPDK only once.
//!
//! Needs root for network namespaces.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod child;
mod end;
mod veth;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use child::Role;
use veth::Veth;

type Case = (&'static str, fn());

const CASES: &[Case] = &[
    ("memif_in_plain_memory_passes_frames_of_mtu_9000", memif),
    (
        "memif_client_before_its_server_connects_later",
        client_first,
    ),
    (
        "memif_peer_killed_in_mid_traffic_does_no_harm_and_a_new_one_connects",
        killed_peer,
    ),
    (
        "memif_server_outlives_a_client_that_is_gone_before_it_is_accepted",
        client_gone_early,
    ),
    ("af_packet_on_a_veth_passes_frames", af_packet),
    ("af_xdp_on_a_veth_passes_frames", af_xdp),
    (
        "af_xdp_sends_from_every_buffer_of_its_pool",
        af_xdp_every_buffer,
    ),
    ("tap_on_a_bridge_passes_frames", tap),
    (
        "steering_on_a_driver_without_rules_is_unsupported",
        unsupported,
    ),
    ("configuration_that_a_port_cannot_have_is_refused", refused),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filter = match arguments.first().map(String::as_str) {
        Some("role-end") => return end::run(&arguments[1..]),
        Some("--list") => return ExitCode::SUCCESS,
        filter => filter.filter(|text| !text.starts_with('-')),
    };
    let mut failed = false;
    for (name, case) in CASES {
        if filter.is_some_and(|filter| !name.contains(filter)) {
            continue;
        }
        let passed = catch_unwind(case).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed |= !passed;
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// The directory of one case.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("urdma-ports-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn memif(&self, side: &str) -> String {
        format!(
            "net_memif0,role={side},socket={}/memif,socket-abstract=no,bsize=9728",
            self.0.display()
        )
    }

    /// One end with a device, in the network namespace of a veth's end if it is on one.
    fn end(&self, name: &str, device: &str, mtu: u16, namespace: &str) -> Role {
        let directory = self.0.to_str().unwrap();
        let role = Role::start(&[
            "role-end",
            name,
            device,
            &mtu.to_string(),
            directory,
            namespace,
        ]);
        role.expect("started");
        role
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Connects to a memif server as a client, and closes the connection at once.
fn connect_and_leave(server: &Path) {
    let mut address = libc::sockaddr_un {
        sun_family: libc::sa_family_t::try_from(libc::AF_UNIX).unwrap(),
        sun_path: [0; 108],
    };
    for (to, from) in address
        .sun_path
        .iter_mut()
        .zip(server.as_os_str().as_bytes())
    {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let octets = u32::try_from(size_of_val(&address)).unwrap();
    // SAFETY: the call has no preconditions.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0) };
    assert!(socket >= 0);
    // SAFETY: the descriptor was just opened and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: the address has that size, and its path ends with a zero octet.
    let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), octets) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Frames of these lengths pass both ways.
fn pass(a: &mut Role, b: &mut Role, lengths: &[usize]) {
    for role in [&mut *a, &mut *b] {
        assert_eq!(role.ask("wait-up"), "up");
    }
    for octets in lengths {
        for _ in 0..2 {
            assert_eq!(b.ask(&format!("receive {octets}")), "receiving");
            // Frames may be lost while the link comes up.
            loop {
                assert_eq!(a.ask(&format!("send {octets}")), "sent");
                if let Some(line) = b.line_soon() {
                    assert_eq!(line, "received");
                    break;
                }
            }
            std::mem::swap(a, b);
        }
    }
}

fn memif() {
    let directory = Directory::new();
    let mut a = directory.end("a", &directory.memif("server"), 9000, "");
    let mut b = directory.end("b", &directory.memif("client"), 9000, "");
    pass(&mut a, &mut b, &[60, 61, 1514, 4096, 9014]);
    a.finish();
    b.finish();
}

fn client_first() {
    let directory = Directory::new();
    let mut b = directory.end("b", &directory.memif("client"), 9000, "");
    sleep(Duration::from_millis(200));
    let mut a = directory.end("a", &directory.memif("server"), 9000, "");
    pass(&mut a, &mut b, &[60, 9014]);
}

fn client_gone_early() {
    let directory = Directory::new();
    let mut a = directory.end("a", &directory.memif("server"), 9000, "");
    a.stop();
    // As many connections as the backlog holds.
    for _ in 0..2 {
        connect_and_leave(&directory.0.join("memif"));
    }
    a.go_on();
    let mut b = directory.end("b", &directory.memif("client"), 9000, "");
    pass(&mut a, &mut b, &[60]);
}

fn killed_peer() {
    let directory = Directory::new();
    let sides = [
        ("a", directory.memif("server")),
        ("b", directory.memif("client")),
    ];
    for survivor in [0, 1] {
        let (stays, goes) = (&sides[survivor], &sides[1 - survivor]);
        let mut living = directory.end(stays.0, &stays.1, 9000, "");
        for round in 0..10 {
            let mut dying = directory.end(goes.0, &goes.1, 9000, "");
            pass(&mut living, &mut dying, &[60]);
            assert_eq!(living.ask("flood 400"), "flooding");
            assert_eq!(dying.ask("flood 10000"), "flooding");
            sleep(Duration::from_millis(40 + 9 * round));
            dying.kill();
            let line = living.line();
            assert!(line.starts_with("flooded"), "{line}");
            // The driver detects the end of the peer in a thread of its own.
            assert!((0..1000).any(|_| {
                sleep(Duration::from_millis(10));
                living.ask("available") == "available 4607"
            }));
        }
        living.finish();
    }
}

fn on_veth(device: impl Fn(&str) -> String, lengths: &[usize]) {
    let directory = Directory::new();
    let veth = Veth::new();
    let [near, far] = veth.ends();
    let mut a = directory.end("a", &device(near.interface), 1500, near.namespace);
    let mut b = directory.end("b", &device(far.interface), 1500, far.namespace);
    pass(&mut a, &mut b, lengths);
    a.finish();
    b.finish();
}

fn af_packet() {
    on_veth(
        |name| format!("net_af_packet0,iface={name},framesz=2048,blocksz=4096"),
        &[60, 1514],
    );
}

fn af_xdp() {
    on_veth(|name| format!("net_af_xdp0,iface={name}"), &[60, 1514]);
}

fn af_xdp_every_buffer() {
    const AT_ONCE: usize = 16;
    let directory = Directory::new();
    let veth = Veth::new();
    let [mut a, mut b] = veth.ends().map(|end| {
        let device = format!("net_af_xdp0,iface={}", end.interface);
        directory.end(end.namespace, &device, 1500, end.namespace)
    });
    pass(&mut a, &mut b, &[60]);
    let held: usize = a.ask("hold 60").parse().unwrap();
    assert!(held > 2000, "{held}");
    for _ in 0..held / AT_ONCE {
        assert_eq!(b.ask(&format!("receive-many {AT_ONCE}")), "receiving");
        assert_eq!(a.ask(&format!("send-held {AT_ONCE}")), "sent");
        b.expect("received");
    }
    a.finish();
    b.finish();
}

/// A bridge is used because the driver's `remote=` option needs the multiq queueing discipline,
/// which not every kernel has.
fn tap() {
    let directory = Directory::new();
    let veth = Veth::new();
    let [near, _] = veth.ends();
    let end = |name, interface: &str| {
        let device = format!("net_tap0,iface={interface}");
        directory.end(name, &device, 1500, near.namespace)
    };
    let (mut a, mut b) = (end("a", "tapa"), end("b", "tapb"));
    near.bridge(&["tapa", "tapb"]);
    pass(&mut a, &mut b, &[60, 1514]);
    a.finish();
    b.finish();
}

fn unsupported() {
    let directory = Directory::new();
    let mut a = directory.end("a", &directory.memif("server"), 1500, "");
    assert_eq!(a.ask("steer"), "steer: unsupported");
    assert_eq!(a.ask("interrupt"), "interrupt: unsupported");
}

fn refused() {
    let directory = Directory::new();
    let mut a = directory.end("a", &directory.memif("server"), 1500, "");
    assert_eq!(
        a.ask("queues 300"),
        "the port can have 1 to 255 queue pairs, not 300"
    );
    let answer = a.ask("mtu 9700");
    assert!(answer.contains("are too short for MTU 9700"), "{answer}");
}
