//! The role of an application: loads the library as the engine does, and uses its table.

#![allow(unsafe_code)]

use std::ffi::{c_char, CStr, CString};
use std::io::{stdin, BufRead};
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::thread::yield_now;
use std::time::{Duration, Instant};
use urdma_types::Ip16;

use urdma_abi::lease::{
    Lease, LeaseCounters, LeaseParams, LeaseRoute, LeaseTable, RxDatagram, TxBuffer, TxDatagram,
};
use urdma_abi::library::{self, Visibility};

use crate::host;

const EMPTY_TX: TxBuffer = TxBuffer {
    buffer: null_mut(),
    data: null_mut(),
    capacity: 0,
};

const EMPTY_RX: RxDatagram = RxDatagram {
    buffer: null_mut(),
    data: null_mut(),
    octets: 0,
    source_port: 0,
    destination_port: 0,
    source: [0; 16],
    ecn: 0,
    local_index: 0,
};

/// Time limit for an action of a running peer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Set in measurements: each host has a CPU of its own.
pub(crate) const PIN_VARIABLE: &str = "URDMA_TEST_PIN";

/// Set if packets must go through the driver's burst functions.
pub(crate) const DRIVER_VARIABLE: &str = "URDMA_TEST_BY_DRIVER";

/// The version of the primary's DPDK, instead of the real one.
pub(crate) const DPDK_VARIABLE: &str = "URDMA_TEST_DPDK";

pub(crate) struct Leased {
    table: &'static LeaseTable,
    lease: *mut Lease,
    route: u32,
}

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let [name, directory, queue, lcore] = arguments else {
        return ExitCode::FAILURE;
    };
    if std::env::var_os(PIN_VARIABLE).is_some() {
        pin(usize::from(name != "a"));
    }
    let table = load();
    let before = ProcessSettings::look();
    let (queue, lcore) = (queue.parse().unwrap(), lcore.parse().unwrap());
    let start = Instant::now();
    let opened = open(table, name, directory, queue, lcore);
    let attach_us = start.elapsed().as_micros();
    let lease = match opened {
        Ok(lease) => lease,
        Err((errno, message)) => {
            println!("refused {errno} {message}");
            return ExitCode::SUCCESS;
        }
    };
    assert_eq!(
        ProcessSettings::look(),
        before,
        "attaching changed the process"
    );
    let mut leased = Leased {
        table,
        lease,
        route: 0,
    };
    leased.route = leased.open_route(name).unwrap();
    println!("attached {attach_us}");
    let mut sunk = 0;
    for line in stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "ping" => leased.ping(words[1].parse().unwrap(), words[2].parse().unwrap()),
            "echo" => leased.echo(words[1].parse().unwrap()),
            "flood" => leased.flood(words[1].parse().unwrap()),
            "hold" => leased.hold(words[1].parse().unwrap()),
            "drain" => leased.drain(),
            "sink" => sunk = leased.sink(),
            "stop" => println!("sunk {sunk}"),
            "refusals" => leased.refusals(name),
            "gaps" => leased.gaps(),
            "collect" => leased.collect(words[1].parse().unwrap()),
            "sleep" => leased.sleep(),
            "doze" => leased.doze(),
            "send" => {
                assert!(leased.send(leased.route, 64, 1), "packet not sent in time");
                println!("sent");
            }
            "interrupts" => println!("interrupts {}", leased.await_interrupt(Duration::ZERO)),
            "reopen" => {
                let refused = open(table, name, directory, queue, lcore).unwrap_err();
                // SAFETY: the lease is open, and no other call uses it.
                unsafe { (table.close)(leased.lease, 0) };
                leased.lease = open(table, name, directory, queue, lcore).unwrap();
                leased.route = leased.open_route(name).unwrap();
                println!("reopened {}", refused.0);
            }
            verb => panic!("{verb}?"),
        }
    }
    // SAFETY: the lease is open, and no other call uses it now or later.
    unsafe { (table.close)(leased.lease, 1) };
    ExitCode::SUCCESS
}

/// Whether a command has come since the last one was read.
fn is_command_waiting() -> bool {
    let mut input = libc::pollfd {
        fd: libc::STDIN_FILENO,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is to one structure, which lives during the call.
    unsafe { libc::poll(&mut input, 1, 0) == 1 }
}

fn pin(cpu: usize) {
    // SAFETY: all zeros is a valid set of CPUs.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the CPU's number is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set has the size that is passed.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}

fn load() -> &'static LeaseTable {
    let directory = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned();
    let path = [directory.clone(), directory.join("..")]
        .map(|directory| directory.join("liburdma_lease.so"))
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("no library in {}", directory.display()));
    library::load(&path, Visibility::Local).unwrap()
}

fn open(
    table: &LeaseTable,
    name: &str,
    directory: &str,
    queue: u16,
    lcore: u32,
) -> Result<*mut Lease, (i32, String)> {
    let dpdk = std::env::var(DPDK_VARIABLE);
    let dpdk = dpdk.unwrap_or_else(|_| dpdk::version().to_string_lossy().into_owned());
    let dpdk = CString::new(dpdk).unwrap();
    let prefix = CString::new(host::prefix(name)).unwrap();
    let directory = CString::new(directory).unwrap();
    let pool = CString::new(host::pool(queue)).unwrap();
    let device = CString::new(host::DEVICE).unwrap();
    let address = Ip16::new(host::address(name).into()).0;
    let params = LeaseParams {
        size: LeaseParams::OCTETS,
        lcore_id: lcore,
        dpdk: dpdk.as_ptr(),
        file_prefix: prefix.as_ptr(),
        runtime_dir: directory.as_ptr(),
        mempool: pool.as_ptr(),
        addresses: &address,
        address_count: 1,
        device: device.as_ptr(),
        queue,
        mtu: host::MTU,
        mac: host::mac(name),
        checksum: u8::from(std::env::var_os("URDMA_TEST_NO_CHECKSUM").is_none()),
        by_driver: u8::from(std::env::var_os(DRIVER_VARIABLE).is_some()),
    };
    let mut lease = null_mut();
    let mut message = [0 as c_char; 512];
    // SAFETY: the parameters, the pointer and the message buffer live during the call.
    let errno = unsafe { (table.open)(&params, &mut lease, message.as_mut_ptr(), message.len()) };
    if errno == 0 {
        return Ok(lease);
    }
    // SAFETY: the call has stored a string that ends within the buffer.
    let message = unsafe { CStr::from_ptr(message.as_ptr()) };
    Err((errno, message.to_string_lossy().into_owned()))
}

impl Leased {
    fn open_route(&self, own: &str) -> Result<u32, i32> {
        let other = if own == "a" { "b" } else { "a" };
        self.open_route_to(LeaseRoute {
            remote: Ip16::new(host::address(other).into()).0,
            remote_mac: host::mac(other),
            source_port: 50_000,
            destination_port: 21_505,
            local_index: 0,
        })
    }

    fn open_route_to(&self, route: LeaseRoute) -> Result<u32, i32> {
        let mut number = 0;
        // SAFETY: the lease is open; the route and the number live during the call.
        match unsafe { (self.table.route_open)(self.lease, &route, &mut number) } {
            0 => Ok(number),
            errno => Err(errno),
        }
    }

    fn alloc(&self) -> Option<TxBuffer> {
        let mut buffer = EMPTY_TX;
        // SAFETY: the lease is open; there is room for one buffer.
        (unsafe { (self.table.tx_alloc)(self.lease, self.route, &mut buffer, 1) } == 1)
            .then_some(buffer)
    }

    /// Sends `octets` octets of `fill`; false if they were not sent within [`PATIENCE`].
    fn send(&self, route: u32, octets: u32, fill: u8) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let buffer = loop {
            match self.alloc() {
                Some(buffer) => break buffer,
                None if Instant::now() > deadline => return false,
                None => yield_now(),
            }
        };
        assert!(octets <= buffer.capacity);
        // SAFETY: the buffer has that capacity.
        unsafe { buffer.data.write_bytes(fill, octets as usize) };
        let datagram = TxDatagram {
            buffer: buffer.buffer,
            octets,
            route,
            ecn: 2,
        };
        while Instant::now() < deadline {
            // SAFETY: the lease is open, and the buffer is owned.
            if unsafe { (self.table.tx_burst)(self.lease, &datagram, 1) } == 1 {
                return true;
            }
            yield_now();
        }
        // SAFETY: the buffer was not sent, so it is still owned.
        unsafe { (self.table.tx_free)(self.lease, &buffer.buffer, 1) };
        false
    }

    fn receive(&self, datagrams: &mut [RxDatagram; 32]) -> usize {
        // SAFETY: the lease is open; there is room for 32.
        unsafe { (self.table.rx_burst)(self.lease, datagrams.as_mut_ptr(), 32) as usize }
    }

    fn release(&self, datagrams: &[RxDatagram]) {
        let buffers: arrayvec::ArrayVec<_, 32> = datagrams.iter().map(|d| d.buffer).collect();
        let count = u32::try_from(buffers.len()).unwrap();
        // SAFETY: the buffers were just received and are given back once.
        unsafe { (self.table.rx_free)(self.lease, buffers.as_ptr(), count) };
    }

    /// Receives one datagram within [`PATIENCE`].
    fn one(&self, datagrams: &mut [RxDatagram; 32]) -> Option<RxDatagram> {
        let mut deadline = None;
        for poll in 0u64.. {
            if self.receive(datagrams) > 0 {
                return Some(datagrams[0]);
            }
            // Reading the clock each time would add to the measured time.
            if poll % 64 == 63 {
                yield_now();
                let now = Instant::now();
                if now > *deadline.get_or_insert(now + PATIENCE) {
                    break;
                }
            }
        }
        None
    }

    fn ping(&self, count: usize, octets: u32) {
        let mut datagrams = [EMPTY_RX; 32];
        let mut times_ns = Vec::with_capacity(count);
        for round in 0..count {
            let fill = u8::try_from(round % 251).unwrap();
            let start = Instant::now();
            assert!(
                self.send(self.route, octets, fill),
                "packet not sent in time"
            );
            let answer = self.one(&mut datagrams).expect("no answer");
            times_ns.push(start.elapsed().as_nanos());
            assert_eq!(answer.octets, octets);
            // SAFETY: the datagram is owned until it is released.
            let data = unsafe { std::slice::from_raw_parts(answer.data, octets as usize) };
            assert!(data.first() == data.last() && data.iter().all(|octet| *octet == fill));
            assert_eq!(
                (answer.source_port, answer.destination_port, answer.ecn),
                (50_000, 21_505, 2)
            );
            self.release(&[answer]);
        }
        times_ns.sort_unstable();
        let counters = self.counters();
        assert_eq!(counters.rx_dropped.iter().sum::<u64>(), 0);
        println!(
            "pong {} {}",
            times_ns[count / 2],
            times_ns[count * 99 / 100]
        );
    }

    /// Returns the first `count` datagrams to their sender.
    fn echo(&self, count: usize) {
        println!("echoing");
        let mut datagrams = [EMPTY_RX; 32];
        for _ in 0..count {
            let question = self.one(&mut datagrams).expect("no question");
            let octets = question.octets as usize;
            // SAFETY: the datagram is owned until it is released.
            let data = unsafe { std::slice::from_raw_parts(question.data, octets) };
            let fill = data.first().copied().unwrap_or(0);
            assert!(self.send(self.route, question.octets, fill));
            self.release(&[question]);
        }
        println!("echoed");
    }

    /// Sends and receives bursts at full rate for a number of milliseconds; holds some of the
    /// received buffers.
    fn flood(&self, milliseconds: u64) {
        println!("flooding");
        let deadline = Instant::now() + Duration::from_millis(milliseconds);
        let mut received = [EMPTY_RX; 32];
        let before = self.counters();
        while Instant::now() < deadline {
            let mut buffers = [EMPTY_TX; 32];
            // SAFETY: the lease is open; there is room for 32 buffers.
            let count =
                unsafe { (self.table.tx_alloc)(self.lease, self.route, buffers.as_mut_ptr(), 32) };
            let datagrams = buffers.map(|buffer| TxDatagram {
                buffer: buffer.buffer,
                octets: 8972,
                route: self.route,
                ecn: 0,
            });
            // SAFETY: the first `count` buffers are owned.
            let sent = unsafe { (self.table.tx_burst)(self.lease, datagrams.as_ptr(), count) };
            let left: Vec<_> = buffers[sent as usize..count as usize]
                .iter()
                .map(|buffer| buffer.buffer)
                .collect();
            let unsent = u32::try_from(left.len()).unwrap();
            // SAFETY: those were not sent and are still owned.
            unsafe { (self.table.tx_free)(self.lease, left.as_ptr(), unsent) };
            let got = self.receive(&mut received);
            self.release(&received[..got]);
            if sent == 0 && got == 0 {
                yield_now();
            }
        }
        let after = self.counters();
        println!(
            "flooded {} {}",
            after.tx_datagrams - before.tx_datagrams,
            after.rx_datagrams - before.rx_datagrams
        );
    }

    /// Counts the datagrams that arrive until the next command.
    fn sink(&self) -> usize {
        println!("sinking");
        let mut received = [EMPTY_RX; 32];
        let mut count = 0;
        while !is_command_waiting() {
            let got = self.receive(&mut received);
            self.release(&received[..got]);
            count += got;
            if got == 0 {
                yield_now();
            }
        }
        count
    }

    /// Discards datagrams that arrived for an earlier process.
    fn drain(&self) {
        let mut received = [EMPTY_RX; 32];
        let mut empty_polls = 0;
        while empty_polls < 1000 {
            let got = self.receive(&mut received);
            self.release(&received[..got]);
            empty_polls = if got == 0 { empty_polls + 1 } else { 0 };
        }
        println!("drained");
    }

    /// Allocates buffers and holds them.
    fn hold(&self, count: usize) {
        let held = (0..count).filter_map(|_| self.alloc()).count();
        println!("held {held}");
    }

    fn refusals(&self, own: &str) {
        let route = |remote: &str| {
            let remote: std::net::IpAddr = remote.parse().unwrap();
            self.open_route_to(LeaseRoute {
                remote: Ip16::new(remote).0,
                remote_mac: [2; 6],
                source_port: 1,
                destination_port: 2,
                local_index: 0,
            })
        };
        assert_eq!(route("fe80::1"), Err(libc::EINVAL), "no own IPv6 address");
        assert_eq!(route("255.255.255.255"), Err(libc::EINVAL));
        let extra = self.open_route(own).unwrap();
        // SAFETY: the lease is open.
        unsafe { (self.table.route_close)(self.lease, extra) };
        assert_eq!(
            self.open_route(own),
            Ok(extra),
            "the number is given out again"
        );
        // SAFETY: the lease is open.
        unsafe { (self.table.route_close)(self.lease, extra) };

        let before = self.counters();
        let send = |route, octets| {
            let datagram = TxDatagram {
                buffer: self.alloc().unwrap().buffer,
                octets,
                route,
                ecn: 0,
            };
            // SAFETY: the lease is open, and the buffer is owned.
            let consumed = unsafe { (self.table.tx_burst)(self.lease, &datagram, 1) };
            assert_eq!(consumed, 1);
        };
        send(extra, 1);
        send(u32::MAX, 1);
        send(self.route, 8973);
        send(self.route, u32::MAX);
        let after = self.counters();
        assert_eq!(after.tx_refused - before.tx_refused, 4);
        assert_eq!(after.tx_datagrams, before.tx_datagrams);
        println!("refused");
    }

    /// Allocates six buffers: sends the first, the fourth and the last, frees the second and the
    /// fifth; the third is too long.
    fn gaps(&self) {
        let mut buffers = [EMPTY_TX; 6];
        // SAFETY: the lease is open; there is room for six buffers.
        let count =
            unsafe { (self.table.tx_alloc)(self.lease, self.route, buffers.as_mut_ptr(), 6) };
        assert_eq!(count, 6);
        for (fill, buffer) in (1..).zip(&buffers) {
            // SAFETY: the buffer has room for a datagram of the longest size.
            unsafe { buffer.data.write_bytes(fill, 8972) };
        }
        let back = [buffers[1].buffer, buffers[4].buffer];
        // SAFETY: both are owned.
        unsafe { (self.table.tx_free)(self.lease, back.as_ptr(), 2) };
        let datagrams = [0, 2, 3, 5].map(|at| TxDatagram {
            buffer: buffers[at].buffer,
            octets: if at == 2 { 8973 } else { 8972 },
            route: self.route,
            ecn: 0,
        });
        let mut consumed = 0;
        let deadline = Instant::now() + PATIENCE;
        while consumed < datagrams.len() {
            assert!(Instant::now() < deadline, "packet not sent in time");
            let left = &datagrams[consumed..];
            let count = u32::try_from(left.len()).unwrap();
            // SAFETY: the buffers are owned.
            let taken = unsafe { (self.table.tx_burst)(self.lease, left.as_ptr(), count) };
            consumed += taken as usize;
        }
        println!("sent");
    }

    /// Receives datagrams, each filled with one value, and prints the values.
    fn collect(&self, count: usize) {
        let mut datagrams = [EMPTY_RX; 32];
        let mut fills = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while fills.len() < count {
            assert!(Instant::now() < deadline, "datagrams are missing");
            let got = self.receive(&mut datagrams);
            for datagram in &datagrams[..got] {
                // SAFETY: the datagram is owned until it is released.
                let data =
                    unsafe { std::slice::from_raw_parts(datagram.data, datagram.octets as usize) };
                assert!(data.len() == 8972 && data.iter().all(|octet| *octet == data[0]));
                fills.push(data[0].to_string());
            }
            self.release(&datagrams[..got]);
            if got == 0 {
                yield_now();
            }
        }
        println!("collected {}", fills.join(" "));
    }

    /// How many of the lease's descriptors have had an event within `limit`.
    fn await_interrupt(&self, limit: Duration) -> i32 {
        // SAFETY: the lease is open.
        let set = unsafe { (self.table.interrupts)(self.lease) };
        let limit_ms = i32::try_from(limit.as_millis()).unwrap();
        let mut events = [libc::epoll_event { events: 0, u64: 1 }; 2];
        // SAFETY: there is room for two events.
        let found = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 2, limit_ms) };
        assert!(found <= 0 || events[0].u64 == 0, "data of the event");
        found
    }

    /// Sleeps until an interrupt, and takes the datagram that has raised it.
    fn sleep(&self) {
        // SAFETY: the lease is open.
        if unsafe { (self.table.unmask)(self.lease) } != 0 {
            println!("no interrupts");
            return;
        }
        println!("asleep");
        let found = self.await_interrupt(PATIENCE);
        // SAFETY: the lease is open.
        unsafe { (self.table.mask)(self.lease) };
        let mut datagrams = [EMPTY_RX; 32];
        let got = self.receive(&mut datagrams);
        assert_eq!(got, 1);
        self.release(&datagrams[..got]);
        println!("woken {found}");
    }

    /// Sleeps as an engine to which nothing is sent, until the next command.
    fn doze(&self) {
        println!("dozing");
        while !is_command_waiting() {
            // SAFETY: the lease is open.
            let has_work = unsafe { (self.table.unmask)(self.lease) } != 0;
            let limit = if has_work { 3 } else { 100 };
            self.await_interrupt(Duration::from_millis(limit));
            // SAFETY: the lease is open.
            unsafe { (self.table.mask)(self.lease) };
            let mut datagrams = [EMPTY_RX; 32];
            let got = self.receive(&mut datagrams);
            self.release(&datagrams[..got]);
        }
    }

    fn counters(&self) -> LeaseCounters {
        let mut counters = LeaseCounters::default();
        // SAFETY: the lease is open; the pointer is to a local variable.
        unsafe { (self.table.counters)(self.lease, &mut counters) };
        counters
    }
}

/// The state of a process that the library must not change.
#[derive(Debug, PartialEq, Eq)]
struct ProcessSettings {
    cpus: Vec<usize>,
    signal_handlers: Vec<usize>,
    blocked_signals: Vec<bool>,
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    directory: PathBuf,
}

impl ProcessSettings {
    fn look() -> Self {
        // SAFETY: all zeros is valid for both sets.
        let (mut cpus, mut blocked): (libc::cpu_set_t, libc::sigset_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: the set has the size that is passed.
        unsafe { libc::sched_getaffinity(0, size_of_val(&cpus), &mut cpus) };
        // SAFETY: the call only reads the mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut blocked) };
        let signals = 1..=31;
        Self {
            // SAFETY: the CPU's number is below CPU_SETSIZE.
            cpus: (0..1024)
                .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &cpus) })
                .collect(),
            signal_handlers: signals.clone().map(handler).collect(),
            // SAFETY: the signal's number is valid.
            blocked_signals: signals
                .map(|n| unsafe { libc::sigismember(&blocked, n) } == 1)
                .collect(),
            environment: std::env::vars_os().collect(),
            directory: std::env::current_dir().unwrap(),
        }
    }
}

fn handler(signal: i32) -> usize {
    // SAFETY: all zeros is a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call only reads the action.
    unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    action.sa_sigaction
}
