//! The stand-in in a real process: each test runs itself again in a child process with the library
//! preloaded and a mock provider that logs every call.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::ffi::{c_int, CStr, CString};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

const MARK: &str = "STANDIN_TEST_INSIDE";
const UVERBS: &CStr = c"/dev/infiniband/uverbs0";
const RDMA_CM: &CStr = c"/dev/infiniband/rdma_cm";

/// Where cargo puts the libraries.
fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().and_then(Path::parent).unwrap().to_owned()
}

/// The library under test: in `$URDMA_BIN_DIR`, else beside the test programs. Cargo does not build
/// it for the tests.
fn standin() -> PathBuf {
    let dir = std::env::var_os("URDMA_BIN_DIR").map_or_else(target_dir, PathBuf::from);
    let path = dir.join("liburdma_standin.so");
    assert!(
        path.is_file(),
        "{} is missing: cargo build -p urdma-standin",
        path.display()
    );
    path
}

/// Waits for a child process, which must exit with status 0.
fn expect_ended_well(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child);
    assert_eq!(status, 0);
}

/// Runs `body` in a separate process with the stand-in; returns the log of the mock provider.
fn with_standin(test: &str, body: fn()) -> Vec<String> {
    with_environment(test, &[], body)
}

fn with_environment(test: &str, extra: &[(&str, &str)], body: fn()) -> Vec<String> {
    if std::env::var_os(MARK).is_some() {
        body();
        std::process::exit(0);
    }
    let dir = std::env::temp_dir().join(format!("standin-{test}-{}", std::process::id()));
    let class = dir.join("sysfs/class/infiniband/urdma0");
    std::fs::create_dir_all(&class).unwrap();
    std::fs::write(class.join("node_type"), "1: CA\n").unwrap();
    let log = dir.join("log");
    let output = Command::new("timeout")
        .arg("60")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .env("LD_PRELOAD", standin())
        .env("URDMA_RUN_DIR", &dir)
        .env_remove("SYSFS_PATH")
        .env(
            "URDMA_PROVIDER",
            target_dir().join("examples/libmock_provider.so"),
        )
        .env("MOCK_LOG", &log)
        .envs(extra.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("LD_PRELOAD"), "{said}");
    let lines = std::fs::read_to_string(&log).unwrap_or_default();
    std::fs::remove_dir_all(&dir).unwrap();
    lines.lines().map(str::to_owned).collect()
}

fn open(path: &CStr, flags: c_int) -> c_int {
    // SAFETY: `path` is a C string.
    unsafe { libc::open(path.as_ptr(), flags) }
}

/// Writes a command; its addresses, if it has any, must be valid.
fn write(fd: c_int, octets: &[u8]) -> isize {
    // SAFETY: `octets` is readable; the callers keep the variables alive whose addresses it holds.
    unsafe { libc::write(fd, octets.as_ptr().cast(), octets.len()) }
}

fn close(fd: c_int) -> c_int {
    // SAFETY: the tests own the descriptors that they close.
    unsafe { libc::close(fd) }
}

fn dup(fd: c_int) -> c_int {
    // SAFETY: dup touches no memory.
    unsafe { libc::dup(fd) }
}

fn close_range(first: u32, last: u32) -> c_int {
    // SAFETY: the processes of the tests use no descriptor of the range afterwards.
    unsafe { libc::close_range(first, last, 0) }
}

/// Forks; the child must call only functions that are safe after fork in a multi-threaded process.
fn fork() -> libc::pid_t {
    // SAFETY: the children of the tests make system calls and end in `exit_child`.
    unsafe { libc::fork() }
}

/// Ends a forked child with status 0 if `succeeded`.
fn exit_child(succeeded: bool) -> ! {
    // SAFETY: _exit runs no handlers and does not return.
    unsafe { libc::_exit(c_int::from(!succeeded)) }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

#[test]
fn rdma_cm_file_forwards_commands_and_errors() {
    let log = with_standin("rdma_cm_file_forwards_commands_and_errors", || {
        let fd = open(RDMA_CM, libc::O_RDWR | libc::O_CLOEXEC);
        assert!(fd >= 0);
        assert_eq!(write(fd, &[1; 24]), 24);
        assert_eq!(write(fd, &[99; 16]), -1);
        assert_eq!(errno(), libc::EXDEV);
        assert_eq!(close(fd), 0);
        assert_eq!(write(fd, &[1; 24]), -1);
        assert_eq!(errno(), libc::EBADF);
    });
    let expected = [
        "table",
        "cm_open",
        "cm_write 42 24 1",
        "cm_write 42 16 99",
        "cm_close 42",
    ];
    assert_eq!(log, expected);
}

#[test]
fn command_for_an_event_waits_for_it_unless_the_file_is_non_blocking() {
    let test = "command_for_an_event_waits_for_it_unless_the_file_is_non_blocking";
    let log = with_standin(test, || {
        let fd = open(RDMA_CM, libc::O_RDWR | libc::O_CLOEXEC);
        let waiter = std::thread::spawn(move || write(fd, &[12; 16]));
        // Whether or not the thread waits yet, this event is the first.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(write(fd, &[50; 8]), 8);
        assert_eq!(waiter.join().unwrap(), 16);
        // SAFETY: fcntl with F_SETFL touches no memory.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(write(fd, &[12; 16]), -1);
        assert_eq!(errno(), libc::EAGAIN);
    });
    assert_eq!(
        log,
        ["table", "cm_open", "cm_write 42 8 50", "cm_write 42 16 12"]
    );
}

/// Waits until a thread of this process is in poll(2); the test has a time limit.
fn wait_until_it_polls(thread: libc::pid_t) {
    wait_until_it_calls(thread, &[libc::SYS_poll, libc::SYS_ppoll]);
}

/// Waits until a thread of this process is in one of these system calls.
fn wait_until_it_calls(thread: libc::pid_t, numbers: &[libc::c_long]) {
    let call = format!("/proc/self/task/{thread}/syscall");
    let is_in = |number: &libc::c_long| {
        let call = std::fs::read_to_string(&call).unwrap();
        call.starts_with(&format!("{number} "))
    };
    while !numbers.iter().any(is_in) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn command_that_waits_for_an_event_outlives_its_closed_file() {
    let test = "command_that_waits_for_an_event_outlives_its_closed_file";
    let log = with_standin(test, || {
        let fd = open(RDMA_CM, libc::O_RDWR | libc::O_CLOEXEC);
        // SAFETY: an open descriptor.
        let copy = unsafe { libc::dup(fd) };
        let (send, thread) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            // SAFETY: gettid touches no memory.
            send.send(unsafe { libc::gettid() }).unwrap();
            write(fd, &[12; 16])
        });
        wait_until_it_polls(thread.recv().unwrap());
        // SAFETY: nothing else uses the descriptor but the waiting thread, as intended.
        assert_eq!(unsafe { libc::close(fd) }, 0);
        // A member of the file's set that is no event wakes the thread, whose descriptor is closed
        // by now.
        let mut interest = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: eventfd has no preconditions, and `interest` is one valid event.
        let failed = unsafe {
            let member = libc::eventfd(1, libc::EFD_CLOEXEC);
            libc::epoll_ctl(copy, libc::EPOLL_CTL_ADD, member, &raw mut interest)
        };
        assert_eq!(failed, 0);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiter.is_finished());
    });
    assert_eq!(log, ["table", "cm_open"]);
}

/// A GET_EVENT whose file another thread closes while the provider looks for an event, which it
/// then reports as `errno`.
fn wait_on_a_file_closed_meanwhile(errno: c_int) {
    let fd = open(RDMA_CM, libc::O_RDWR | libc::O_CLOEXEC);
    let mut closing = [51; 8];
    closing[1] = u8::try_from(errno).unwrap();
    assert_eq!(write(fd, &closing), 8);
    let (send, thread) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        // SAFETY: gettid touches no memory.
        send.send(unsafe { libc::gettid() }).unwrap();
        let mut get_event = [0; 24];
        get_event[0] = 12;
        get_event[4] = 16;
        let written = write(fd, &get_event);
        panic!("returned {written}, errno {}", crate::errno());
    });
    wait_until_it_polls(thread.recv().unwrap());
    assert_eq!(write(fd, &[1; 24]), -1);
    assert_eq!(crate::errno(), libc::EBADF);
    assert!(!waiter.is_finished());
}

#[test]
fn command_for_an_event_sleeps_if_its_file_is_closed_before_the_provider_looks() {
    let test = "command_for_an_event_sleeps_if_its_file_is_closed_before_the_provider_looks";
    let log = with_standin(test, || wait_on_a_file_closed_meanwhile(libc::EBADF));
    assert_eq!(log, ["table", "cm_open", "cm_write 42 8 51", "cm_close 42"]);
}

#[test]
fn command_for_an_event_sleeps_if_its_file_is_closed_before_it_begins_to_wait() {
    let test = "command_for_an_event_sleeps_if_its_file_is_closed_before_it_begins_to_wait";
    let log = with_standin(test, || wait_on_a_file_closed_meanwhile(libc::EAGAIN));
    assert_eq!(log, ["table", "cm_open", "cm_write 42 8 51", "cm_close 42"]);
}

// Its octets went into the descriptor behind the file, which refused them: EINVAL.
#[test]
fn command_for_an_event_that_begins_while_its_file_is_being_closed_sleeps() {
    let test = "command_for_an_event_that_begins_while_its_file_is_being_closed_sleeps";
    let log = with_standin(test, || {
        let fd = open(RDMA_CM, libc::O_RDWR | libc::O_CLOEXEC);
        assert_eq!(write(fd, &[52, 0, 0, 0, 0, 0, 0, 0]), 8);
        assert_eq!(close(fd), 0);
        assert_eq!(write(fd, &[1; 24]), -1);
        assert_eq!(crate::errno(), libc::EBADF);
    });
    assert_eq!(log, ["table", "cm_open", "cm_write 42 8 52", "cm_close 42"]);
}

/// Makes a completion channel and reads the event that the mock provider sends at once. Returns the
/// command too.
fn make_channel(fd: c_int) -> ([u8; 16], c_int) {
    let mut answer = u32::MAX;
    let mut command = [0_u8; 16];
    command[0] = 17;
    command[8..].copy_from_slice(&(&raw mut answer as usize).to_ne_bytes());
    assert_eq!(write(fd, &command), 16);
    let channel = c_int::try_from(answer).unwrap();
    let mut event = [0_u8; 16];
    // SAFETY: `event` has room for 16 octets.
    let got = unsafe { libc::read(channel, event.as_mut_ptr().cast(), 16) };
    assert_eq!((got, event[0]), (8, 7));
    (command, channel)
}

#[test]
fn uverbs_file_makes_channels_and_refuses_the_rest() {
    let log = with_standin("uverbs_file_makes_channels_and_refuses_the_rest", || {
        let fd = open(UVERBS, libc::O_RDWR | libc::O_CLOEXEC);
        let (mut command, channel) = make_channel(fd);
        assert_eq!(close(channel), 0);
        for refused in [&[0_u8; 16][..], &[17; 4], &[]] {
            assert_eq!(write(fd, refused), -1);
        }
        // The raw system call bypasses the hook: the kernel refuses it, since the file is open for
        // reading only.
        // SAFETY: `command` has 16 readable octets.
        let raw = unsafe { libc::syscall(libc::SYS_write, fd, command.as_ptr(), 16) };
        assert_eq!((raw, errno()), (-1, libc::EBADF));
        let part = libc::iovec {
            iov_base: command.as_mut_ptr().cast(),
            iov_len: 16,
        };
        // SAFETY: `part` is one valid iovec.
        let written = unsafe { libc::writev(fd, &raw const part, 1) };
        assert_eq!(written, -1);
        assert_eq!(close(fd), 0);
    });
    assert_eq!(
        log,
        [
            "table",
            "channel_open",
            "channel_close",
            "channel_release closed"
        ]
    );
}

#[test]
fn read_of_a_channel_that_another_thread_closes_sleeps_on() {
    let test = "read_of_a_channel_that_another_thread_closes_sleeps_on";
    let log = with_standin(test, || {
        let (_, channel) = make_channel(open(UVERBS, libc::O_RDWR | libc::O_CLOEXEC));
        let (send, thread) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            // SAFETY: gettid touches no memory.
            send.send(unsafe { libc::gettid() }).unwrap();
            let mut event = [0_u8; 16];
            // SAFETY: `event` has room for 16 octets.
            let got = unsafe { libc::read(channel, event.as_mut_ptr().cast(), 16) };
            panic!("returned {got}, errno {}", errno());
        });
        let thread = thread.recv().unwrap();
        wait_until_it_calls(thread, &[libc::SYS_read]);
        assert_eq!(close(channel), 0);
        wait_until_it_polls(thread);
        assert!(!waiter.is_finished());
    });
    // The file stays open for the read, as in the kernel.
    let closed = ["channel_close", "channel_release open"];
    assert_eq!(log, [&["table", "channel_open"][..], &closed].concat());
}

/// A uverbs method with one attribute; header and attribute have the kernel's layout.
fn method(fd: c_int, object: u64, data: &mut u64) -> c_int {
    // Total length in octets, object, method 0, one attribute.
    let mut words = [40 | object << 16 | 1 << 48, 0, 0, 0, 0];
    // SAFETY: `words` holds the header and the one attribute that the header announces.
    let outcome = unsafe { libc::ioctl(fd, 0xc018_1b01, words.as_mut_ptr()) };
    *data = words[4];
    outcome
}

#[test]
fn uverbs_file_gives_the_file_of_events_to_its_own_process_only() {
    const ASYNC_EVENT: u64 = 16;
    let log = with_standin(
        "uverbs_file_gives_the_file_of_events_to_its_own_process_only",
        || {
            let fd = open(UVERBS, libc::O_RDWR | libc::O_CLOEXEC);
            // SAFETY: fcntl with F_DUPFD_CLOEXEC touches no memory.
            let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
            let mut data = 0;
            assert_eq!(method(copy, ASYNC_EVENT, &mut data), 0);
            assert_eq!(data, 77);
            assert_eq!(method(copy, ASYNC_EVENT + 1, &mut data), -1);
            assert_eq!(errno(), libc::ENOTTY);
            let child = fork();
            if child == 0 {
                let refused = method(copy, ASYNC_EVENT, &mut data) == -1 && errno() == libc::EIO;
                exit_child(refused);
            }
            expect_ended_well(child);
        },
    );
    assert_eq!(log.len(), 2, "{log:?}");
    assert!(log[1].starts_with("async_open "), "{log:?}");
}

#[test]
fn device_files_look_like_character_devices() {
    let log = with_standin("device_files_look_like_character_devices", || {
        for (path, number) in [
            (UVERBS, libc::makedev(1, 3)),
            (RDMA_CM, libc::makedev(10, 58)),
        ] {
            let fd = open(path, libc::O_RDWR);
            // SAFETY: all zeros is a valid `struct stat`.
            let mut seen: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: `path` is a C string, `seen` is writable.
            let failed = unsafe { libc::stat(path.as_ptr(), &raw mut seen) };
            assert_eq!(failed, 0);
            assert_eq!(
                (seen.st_mode & libc::S_IFMT, seen.st_rdev),
                (libc::S_IFCHR, number)
            );
            // SAFETY: all zeros is a valid `struct stat`.
            let mut seen: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: `seen` is writable.
            let failed = unsafe { libc::fstat(fd, &raw mut seen) };
            assert_eq!(failed, 0);
            assert_eq!(
                (seen.st_mode & libc::S_IFMT, seen.st_rdev),
                (libc::S_IFCHR, number)
            );
            // SAFETY: `path` is a C string.
            let denied = unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) };
            assert_eq!(denied, 0);
            assert_eq!(close(fd), 0);
        }
        let metadata = std::fs::metadata(UVERBS.to_str().unwrap()).unwrap();
        assert!(std::os::unix::fs::FileTypeExt::is_char_device(
            &metadata.file_type()
        ));
    });
    assert_eq!(log, ["table", "cm_open", "cm_close 42"]);
}

#[test]
fn sysfs_is_read_from_the_run_directory() {
    with_standin("sysfs_is_read_from_the_run_directory", || {
        let device = Path::new("/sys/class/infiniband/urdma0");
        let text = std::fs::read_to_string(device.join("node_type")).unwrap();
        assert_eq!(text, "1: CA\n");
        let names: Vec<_> = std::fs::read_dir("/sys/class/infiniband")
            .unwrap()
            .collect();
        assert_eq!(names.len(), 1);
        let real = std::fs::canonicalize(device).unwrap();
        assert!(real.ends_with("sysfs/class/infiniband/urdma0"));
        assert!(std::fs::metadata("/sys/class/infiniband/other").is_err());
        assert!(std::fs::metadata("/sys/kernel").is_ok());
    });
}

#[test]
fn provider_registers_when_libibverbs_lists_devices() {
    let lines = with_standin("provider_registers_when_libibverbs_lists_devices", || {
        for (path, lists) in [
            ("/sys/class/infiniband_verbs", true),
            ("/sys/class/infiniband", false),
            ("/tmp", false),
            // As libibverbs asks with SYSFS_PATH set; the directory need not exist.
            ("/run/elsewhere/class/infiniband_verbs", true),
        ] {
            let log = std::env::var_os("MOCK_LOG").unwrap();
            let count = || std::fs::read_to_string(&log).map_or(0, |text| text.lines().count());
            let before = count();
            let path = CString::new(path).unwrap();
            // SAFETY: `path` is a C string.
            let directory = unsafe { libc::opendir(path.as_ptr()) };
            if !directory.is_null() {
                // SAFETY: the directory is open, and this is its last use.
                unsafe { libc::closedir(directory) };
            }
            assert_eq!(count() - before, usize::from(lists), "{path:?}");
        }
    });
    assert_eq!(lines, ["register", "register"]);
}

/// A socket of RDMA netlink or of another family.
fn netlink_socket(protocol: c_int) -> c_int {
    // SAFETY: socket touches no memory.
    unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol) }
}

/// Binds a netlink socket to a port of the kernel's choice, which is returned.
fn bind_netlink(fd: c_int) -> u32 {
    // SAFETY: all zeros is a valid address.
    let mut name: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    name.nl_family = u16::try_from(libc::AF_NETLINK).unwrap();
    let mut octets = 12;
    // SAFETY: an address of this function.
    let failed = unsafe { libc::bind(fd, (&raw const name).cast(), octets) };
    assert_eq!(failed, 0);
    // SAFETY: room for an address, and its length.
    let failed = unsafe { libc::getsockname(fd, (&raw mut name).cast(), &raw mut octets) };
    assert_eq!((failed, octets), (0, 12));
    name.nl_pid
}

/// A request of client NLDEV with a sequence number of 7, for all devices or for the first.
fn nldev(command: u16, flags: c_int, attributes: &[u32]) -> Vec<u8> {
    let len = u32::try_from(16 + 8 * attributes.len()).unwrap();
    let (kind, flags) = (
        5 << 10 | command,
        u16::try_from(libc::NLM_F_REQUEST | flags).unwrap(),
    );
    let mut request = len.to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    for (attribute, value) in [1u16, 3].iter().zip(attributes) {
        request.extend(8u16.to_ne_bytes());
        request.extend(attribute.to_ne_bytes());
        request.extend(value.to_ne_bytes());
    }
    request
}

/// Sends as libmnl does, to port `to`.
fn send_netlink(fd: c_int, to: u32, octets: &[u8]) -> isize {
    // SAFETY: all zeros is a valid address.
    let mut name: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    name.nl_family = u16::try_from(libc::AF_NETLINK).unwrap();
    name.nl_pid = to;
    let (start, name) = (octets.as_ptr().cast(), (&raw const name).cast());
    // SAFETY: octets and an address of this function.
    unsafe { libc::sendto(fd, start, octets.len(), 0, name, 12) }
}

/// Receives a datagram by a system call; empty if there is none.
fn receive(fd: c_int) -> Vec<u8> {
    let mut octets = vec![0; 4096];
    let none = std::ptr::null_mut::<u8>();
    // SAFETY: the buffer is writable.
    let len = unsafe {
        let (number, dontwait) = (libc::SYS_recvfrom, libc::MSG_DONTWAIT);
        libc::syscall(
            number,
            fd,
            octets.as_mut_ptr(),
            octets.len(),
            dontwait,
            none,
            none,
        )
    };
    octets.truncate(usize::try_from(len).unwrap_or(0));
    octets
}

/// Types of the messages in a datagram, and the error of an NLMSG_ERROR.
fn messages(datagram: &[u8], port: u32) -> Vec<(u16, i32)> {
    let word = |at: usize| u32::from_ne_bytes(datagram[at..at + 4].try_into().unwrap());
    let (mut found, mut at) = (Vec::new(), 0);
    while at < datagram.len() {
        assert_eq!((word(at + 8), word(at + 12)), (7, port));
        let kind = (word(at + 4) & 0xffff) as u16;
        found.push((
            kind,
            if kind == 2 {
                word(at + 16).cast_signed()
            } else {
                0
            },
        ));
        at += (word(at) as usize).next_multiple_of(4);
    }
    found
}

#[test]
fn rdma_netlink_answers_queries_of_devices_and_refuses_the_rest() {
    with_standin(
        "rdma_netlink_answers_queries_of_devices_and_refuses_the_rest",
        || {
            let fd = netlink_socket(20);
            let port = bind_netlink(fd);
            let ask = |request: &[u8]| {
                assert_eq!(
                    send_netlink(fd, 0, request),
                    isize::try_from(request.len()).unwrap()
                );
                let datagrams = [receive(fd), receive(fd)];
                assert!(receive(fd).is_empty());
                datagrams
            };
            let [all, nothing] = ask(&nldev(1, libc::NLM_F_DUMP, &[]));
            assert_eq!(messages(&all, port), [(5 << 10 | 1, 0), (3, 0)]);
            assert!(all.windows(7).any(|part| part == b"urdma0\0") && nothing.is_empty());
            let [one, ack] = ask(&nldev(1, libc::NLM_F_ACK, &[0]));
            assert_eq!(messages(&one, port), [(5 << 10 | 1, 0)]);
            assert_eq!(messages(&ack, port), [(2, 0)]);
            for (request, errno) in [
                (nldev(1, 0, &[1]), libc::EINVAL),
                (nldev(1, 0, &[]), libc::EINVAL),
                (nldev(5, 0, &[0, 9]), libc::EINVAL),
                (nldev(10, libc::NLM_F_DUMP, &[0]), libc::EOPNOTSUPP),
                (nldev(17, libc::NLM_F_DUMP, &[0]), libc::EOPNOTSUPP),
                (nldev(17, 0, &[0, 1]), libc::EINVAL),
                (nldev(3, 0, &[]), libc::EOPNOTSUPP),
            ] {
                let [refused, nothing] = ask(&request);
                assert_eq!(messages(&refused, port), [(2, -errno)]);
                assert!(nothing.is_empty());
            }
            // Cut off in the header, in the message and in an attribute.
            for len in 0..nldev(1, 0, &[0]).len() {
                let [refused, nothing] = ask(&nldev(1, 0, &[0])[..len]);
                assert!(refused.is_empty() && nothing.is_empty());
            }
            let mut cut = nldev(1, 0, &[0]);
            cut[16] = 200;
            assert_eq!(messages(&ask(&cut)[0], port), [(2, -libc::EINVAL)]);
        },
    );
}

#[test]
fn rdma_netlink_takes_no_message_of_another_socket() {
    with_standin("rdma_netlink_takes_no_message_of_another_socket", || {
        let (fd, other) = (netlink_socket(20), netlink_socket(libc::NETLINK_USERSOCK));
        let port = bind_netlink(fd);
        let forged = nldev(1, 0, &[0]);
        // Sent before the first request, it is discarded; sent later, it is refused.
        assert_eq!(send_netlink(other, port, &forged), 24);
        assert_eq!(send_netlink(fd, 0, &nldev(3, 0, &[])), 16);
        assert_eq!(messages(&receive(fd), port), [(2, -libc::EOPNOTSUPP)]);
        assert!(receive(fd).is_empty());
        assert_eq!(send_netlink(other, port, &forged), -1);
        assert_eq!(errno(), libc::ECONNREFUSED);
    });
}

#[test]
fn rdma_netlink_in_a_child_or_beside_libibverbs_is_refused_and_other_sockets_are_not() {
    let test = "rdma_netlink_in_a_child_or_beside_libibverbs_is_refused_and_other_sockets_are_not";
    with_standin(test, || {
        let fd = netlink_socket(20);
        bind_netlink(fd);
        let child = fork();
        if child == 0 {
            let sent = send_netlink(fd, 0, &nldev(1, libc::NLM_F_DUMP, &[]));
            let is_refused = sent == -1 && errno() == libc::ECONNREFUSED;
            exit_child(is_refused && netlink_socket(20) == -1 && errno() == libc::EPROTONOSUPPORT);
        }
        expect_ended_well(child);
        // Under another name, as Python wheels bring it.
        let shipped = format!(
            "/usr/lib/{}-linux-gnu/libibverbs.so.1",
            std::env::consts::ARCH
        );
        let copy = Path::new(&std::env::var("URDMA_RUN_DIR").unwrap()).join("libibverbs-0.so");
        std::fs::copy(shipped, &copy).unwrap();
        let path = CString::new(copy.to_str().unwrap()).unwrap();
        let before = netlink_socket(20);
        assert!(before >= 0);
        // SAFETY: a C string; loading the library has no precondition.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        assert_eq!((netlink_socket(20), errno()), (-1, libc::EPROTONOSUPPORT));
        // SAFETY: socket touches no memory.
        let unix = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) };
        assert!(unix >= 0);
    });
}

#[test]
fn copies_keep_the_file_open() {
    let log = with_standin("copies_keep_the_file_open", || {
        let fd = open(RDMA_CM, libc::O_RDWR);
        let copy = dup(fd);
        assert_eq!(close(fd), 0);
        assert_eq!(write(copy, &[1; 24]), 24);
        // SAFETY: descriptor 200 is not in use.
        assert_eq!(unsafe { libc::dup2(copy, 200) }, 200);
        assert_eq!(close_range(3, 199), 0);
        assert_eq!(write(200, &[2; 24]), 24);
        let other = open(c"/dev/zero", libc::O_RDONLY);
        // SAFETY: descriptor 200 is the copy from above, which is not used afterwards.
        assert_eq!(unsafe { libc::dup3(other, 200, 0) }, 200);
    });
    let expected = [
        "table",
        "cm_open",
        "cm_write 42 24 1",
        "cm_write 42 24 2",
        "cm_close 42",
    ];
    assert_eq!(log, expected);
}

#[test]
fn forked_child_cannot_use_its_parents_files() {
    let log = with_standin("forked_child_cannot_use_its_parents_files", || {
        let fd = open(RDMA_CM, libc::O_RDWR);
        let child = fork();
        if child == 0 {
            let refused = write(fd, &[1; 24]) == -1 && errno() == libc::EIO;
            let closed = close(fd) == 0;
            // The number is free again, and the child's next descriptor gets it.
            // SAFETY: eventfd has no preconditions.
            let again = unsafe { libc::eventfd(0, 0) };
            let usable = again == fd && write(again, &1_u64.to_ne_bytes()) == 8;
            exit_child(refused && closed && usable);
        }
        expect_ended_well(child);
        assert_eq!(write(fd, &[3; 24]), 24);
    });
    assert_eq!(log, ["table", "cm_open", "cm_write 42 24 3"]);
}

#[test]
fn vforked_child_that_closes_everything_leaves_the_parent_alone() {
    let log = with_standin(
        "vforked_child_that_closes_everything_leaves_the_parent_alone",
        || {
            let fd = open(RDMA_CM, libc::O_RDWR);
            let shell = CString::new("/bin/true").unwrap();
            let arguments = [shell.as_ptr(), std::ptr::null()];
            // SAFETY: until execv or _exit the child only makes system calls with arguments that
            // exist already; it changes no memory that the parent uses.
            #[allow(deprecated)]
            let child = unsafe { libc::vfork() };
            if child == 0 {
                close(fd);
                close_range(3, u32::MAX);
                // SAFETY: a C string, and an array of C strings that ends in null.
                unsafe { libc::execv(shell.as_ptr(), arguments.as_ptr()) };
                exit_child(false);
            }
            expect_ended_well(child);
            assert_eq!(write(fd, &[3; 24]), 24);
        },
    );
    assert_eq!(log, ["table", "cm_open", "cm_write 42 24 3"]);
}

#[test]
fn descriptor_that_changed_hands_is_written_to_as_what_it_is() {
    let log = with_standin(
        "descriptor_that_changed_hands_is_written_to_as_what_it_is",
        || {
            let fd = open(UVERBS, libc::O_RDWR);
            let file = tempfile();
            // SAFETY: both descriptors are open; the raw system call bypasses the hooks.
            unsafe { libc::syscall(libc::SYS_dup3, file.as_raw_fd(), fd, 0) };
            assert_eq!(write(fd, b"hello"), 5);
        },
    );
    assert!(log.is_empty());
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("standin-file-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

#[test]
fn missing_provider_gives_enodev() {
    let extra = [("URDMA_PROVIDER", "/nowhere/provider.so")];
    with_environment("missing_provider_gives_enodev", &extra, || {
        assert_eq!(open(RDMA_CM, libc::O_RDWR), -1);
        assert_eq!(errno(), libc::ENODEV);
    });
}

#[test]
fn provider_of_another_version_gives_enodev_and_a_message() {
    let name = "provider_of_another_version_gives_enodev_and_a_message";
    let log = with_environment(name, &[("MOCK_OF_ANOTHER_VERSION", "1")], || {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let stderr = dup(2);
        // SAFETY: dup2 on open descriptors.
        assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), 2) }, 2);
        drop(writer);
        let opened = (open(RDMA_CM, libc::O_RDWR), errno());
        // SAFETY: dup2 on open descriptors; it closes the last writer.
        assert_eq!(unsafe { libc::dup2(stderr, 2) }, 2);
        assert_eq!(opened, (-1, libc::ENODEV));
        let mut said = String::new();
        std::io::Read::read_to_string(&mut reader, &mut said).unwrap();
        assert!(said.contains("different versions of urdma"), "{said}");
    });
    assert!(!log.contains(&"cm_open".to_owned()), "{log:?}");
}

#[test]
fn without_run_directory_it_is_inert() {
    with_environment(
        "without_run_directory_it_is_inert",
        &[("URDMA_RUN_DIR", "")],
        || {
            assert_eq!(open(RDMA_CM, libc::O_RDWR), -1);
            assert_eq!(errno(), libc::ENOENT);
            assert!(std::fs::metadata("/sys/class/infiniband/urdma0").is_err());
        },
    );
}
