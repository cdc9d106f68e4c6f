//! Two network namespaces with a veth pair between them.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The pair, removed when dropped.
pub(crate) struct Veth {
    namespaces: [String; 2],
}

/// One end of it.
pub(crate) struct VethEnd<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) interface: &'static str,
}

impl Veth {
    pub(crate) fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |end| format!("urdma-{}-{number}{end}", std::process::id());
        let veth = Self {
            namespaces: [name("a"), name("b")],
        };
        let [a, b] = &veth.namespaces;
        ip(&["netns", "add", a]);
        ip(&["netns", "add", b]);
        ip(&[
            "-n", a, "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", b,
        ]);
        for namespace in &veth.namespaces {
            ip(&["-n", namespace, "link", "set", "v0", "up"]);
        }
        veth
    }

    pub(crate) fn ends(&self) -> [VethEnd<'_>; 2] {
        [0, 1].map(|end| VethEnd {
            namespace: &self.namespaces[end],
            interface: "v0",
        })
    }
}

impl VethEnd<'_> {
    /// Bridges interfaces of the namespace.
    pub(crate) fn bridge(&self, interfaces: &[&str]) {
        ip(&["-n", self.namespace, "link", "add", "br0", "type", "bridge"]);
        for interface in interfaces {
            ip(&[
                "-n",
                self.namespace,
                "link",
                "set",
                interface,
                "master",
                "br0",
                "up",
            ]);
        }
        ip(&["-n", self.namespace, "link", "set", "br0", "up"]);
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            let _ = Command::new("ip")
                .args(["netns", "del", namespace])
                .status();
        }
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ip {} failed: this test needs root and iproute2",
        arguments.join(" ")
    );
}
