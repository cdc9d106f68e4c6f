//! A virtual machine of QEMU as a program of an instance.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{json, Value};
use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::{wait_until, Ended, Process};

use crate::{OneHost, SHORT};

/// The memory of a machine.
const MEMORY_MIB: u64 = 64;
/// Below are the areas of the firmware, whose contents migration does not keep octet by octet.
const LOW_MEMORY_OCTETS: u64 = 1 << 20;

/// QEMU under `urdma run`, controlled by its monitor protocol (QMP).
#[derive(Debug)]
pub struct Machine {
    process: Process,
    control: BufReader<UnixStream>,
    dir: PathBuf,
    name: &'static str,
}

/// Builds `qemu-guest` into `dir`.
pub fn build_guest(dir: &Path) -> PathBuf {
    let guest = dir.join("guest");
    let built = Command::new("cc")
        .args(["-m32", "-nostdlib", "-static", "-no-pie"])
        .args(["-Wl,--build-id=none,-Ttext=0x100000", "-o"])
        .arg(&guest)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/qemu-guest/main.S"))
        .status()
        .unwrap();
    assert!(built.success(), "qemu-guest does not build");
    guest
}

impl Machine {
    /// Starts a machine with `guest` and further options of QEMU.
    ///
    /// Its processor is emulated, so that the test needs no virtualization by the hardware.
    pub fn start(one: &OneHost, name: &'static str, guest: &Path, options: &[&str]) -> Self {
        let dir = one.scratch.path().to_owned();
        let socket = dir.join(format!("{name}.qmp"));
        let argv = [
            "qemu-system-x86_64 -accel tcg -nodefaults -display none -m",
            &MEMORY_MIB.to_string(),
            &format!("-kernel {}", guest.display()),
            &format!("-serial file:{}/{name}.serial", dir.display()),
            &format!("-qmp unix:{},server=on,wait=off", socket.display()),
            &options.join(" "),
        ]
        .join(" ");
        let argv: Vec<&str> = argv.split_whitespace().collect();
        let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
        let process = Process::start(&mut command).unwrap();
        wait_until("the machine's monitor", SHORT, || {
            UnixStream::connect(&socket).is_ok()
        })
        .unwrap();
        let control = UnixStream::connect(&socket).unwrap();
        control.set_read_timeout(Some(SHORT)).unwrap();
        let mut machine = Self {
            process,
            control: BufReader::new(control),
            dir,
            name,
        };
        machine.ask("qmp_capabilities", json!({}));
        machine
    }

    /// The result of a command of QMP; panics if it is refused.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.control.get_mut(), "{request}").unwrap();
        loop {
            let mut line = String::new();
            self.control.read_line(&mut line).unwrap();
            let mut answer: Value = serde_json::from_str(&line).unwrap();
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            // The greeting and events come between the answers.
            if let Some(result) = answer.get_mut("return") {
                return result.take();
            }
        }
    }

    /// "running", "paused", "postmigrate" and others.
    pub fn state(&mut self) -> String {
        let status = self.ask("query-status", json!({}));
        status["status"].as_str().unwrap().to_owned()
    }

    /// How often the guest has changed its memory here.
    pub fn rounds(&self) -> u64 {
        let serial = self.dir.join(format!("{}.serial", self.name));
        fs::metadata(serial).map_or(0, |file| file.len())
    }

    /// The memory from the first MiB on.
    pub fn memory(&mut self) -> Vec<u8> {
        let file = self.dir.join(format!("{}.memory", self.name));
        let size = (MEMORY_MIB << 20) - LOW_MEMORY_OCTETS;
        let arguments = json!({ "val": LOW_MEMORY_OCTETS, "size": size, "filename": &file });
        self.ask("pmemsave", arguments);
        fs::read(file).unwrap()
    }

    /// Ends QEMU.
    pub fn quit(self) -> Ended {
        self.process.signal(Signal::SIGTERM).unwrap();
        self.process.wait(SHORT).unwrap()
    }
}
