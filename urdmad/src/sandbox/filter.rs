//! The system calls that urdmad makes after its start. All others fail with EPERM, and the kernel
//! logs them where it has an audit log (type 1326, with the number of the call).
//!
//! The lists include the calls that other versions of the C library, of the standard library and of
//! DPDK make for the same purpose. A call that is missing fails and does not end urdmad.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libc::c_long;
use nix::sys::prctl::set_no_new_privs;
use nix::unistd::getpid;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::error::SandboxError;
use crate::kinds::{Internet, Needs};

/// Calls that are allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // Files: the run directory, the log, captures, /proc, databases of users.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_fchmod,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_memfd_create,
    libc::SYS_membarrier,
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    // Waiting and time.
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    FUTEX_WAKE,
    FUTEX_WAIT,
    FUTEX_REQUEUE,
    libc::SYS_sched_yield,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Threads and signals of this process.
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getcpu,
    // What is asked about this process, the machine, and clients.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_pidfd_open,
    // Sockets: clients, other instances, the kernel's neighbours.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
];

/// The calls of futexes since Linux 6.7, the same on all architectures.
const FUTEX_WAKE: c_long = 454;
const FUTEX_WAIT: c_long = 455;
const FUTEX_REQUEUE: c_long = 456;

/// Older calls, which newer architectures lack.
#[cfg(target_arch = "x86_64")]
const ALLOWED_BY_ARCH: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_access,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_pipe,
    libc::SYS_signalfd,
    libc::SYS_getrlimit,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_BY_ARCH: &[c_long] = &[];

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Filters the system calls of all threads, and of those that they create.
///
/// # Errors
/// The kernel refuses it.
pub(super) fn install(needs: Needs) -> Result<(), SandboxError> {
    // If two filters refuse a call, the later one decides how; so this one allows clone3.
    set_no_new_privs().map_err(SandboxError::NewPrivileges)?;
    apply(&program(without_clone3())?, 0)?;
    apply(&program(allowlist(needs)?)?, libc::SECCOMP_FILTER_FLAG_LOG)
}

fn program(
    (rules, otherwise, action): (Rules, SeccompAction, SeccompAction),
) -> Result<BpfProgram, BackendError> {
    let arch = TargetArch::try_from(ARCH)?;
    SeccompFilter::new(rules, otherwise, action, arch).and_then(BpfProgram::try_from)
}

/// The flags of clone3(2) are in memory, which a filter cannot read. Without it the C library uses
/// clone(2).
fn without_clone3() -> (Rules, SeccompAction, SeccompAction) {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    (rules, SeccompAction::Allow, missing)
}

fn allowlist(needs: Needs) -> Result<(Rules, SeccompAction, SeccompAction), BackendError> {
    let allowed = [ALLOWED, ALLOWED_BY_ARCH, needs.calls].concat();
    let mut rules: Rules = allowed.into_iter().map(|call| (call, Vec::new())).collect();
    let limited = limited(needs.internet)?;
    rules.extend(limited);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    Ok((rules, refuse, SeccompAction::Allow))
}

/// Calls that are allowed with some arguments.
fn limited(internet: Internet) -> Result<Rules, BackendError> {
    let write_and_execute = libc::PROT_WRITE | libc::PROT_EXEC;
    // Of both at most one.
    let mappings = [0, libc::PROT_WRITE, libc::PROT_EXEC]
        .map(|protection| rule(vec![masked(2, write_and_execute, protection)?]));
    let mut sockets = vec![
        rule(vec![equal(0, libc::AF_UNIX)?])?,
        rule(vec![equal(0, libc::AF_NETLINK)?])?,
    ];
    if internet != Internet::No {
        let datagrams = || masked(1, 0xf, libc::SOCK_DGRAM);
        sockets.push(rule(vec![equal(0, libc::AF_INET)?, datagrams()?])?);
        if internet == Internet::Both {
            sockets.push(rule(vec![equal(0, libc::AF_INET6)?, datagrams()?])?);
        }
    }
    let prctl = [libc::PR_SET_TIMERSLACK, libc::PR_SET_NAME, libc::PR_SET_VMA]
        .map(|option| rule(vec![equal(0, option)?]));
    // Input for the terminal that urdmad was started from.
    let no_terminal = vec![unequal(1, libc::TIOCSTI)?, unequal(1, libc::TIOCLINUX)?];
    // Of this process, and no new limits.
    let own_limits = [0, getpid().as_raw()].map(|pid| rule(vec![equal(0, pid)?, no_pointer(2)?]));
    Ok(BTreeMap::from([
        (
            libc::SYS_mmap,
            mappings.into_iter().collect::<Result<_, _>>()?,
        ),
        (
            libc::SYS_mprotect,
            vec![rule(vec![masked(2, libc::PROT_EXEC, 0)?])?],
        ),
        (libc::SYS_socket, sockets),
        (
            libc::SYS_prctl,
            prctl.into_iter().collect::<Result<_, _>>()?,
        ),
        (libc::SYS_ioctl, vec![rule(no_terminal)?]),
        (
            libc::SYS_prlimit64,
            own_limits.into_iter().collect::<Result<_, _>>()?,
        ),
        (
            libc::SYS_tgkill,
            vec![rule(vec![equal(0, getpid().as_raw())?])?],
        ),
        (
            libc::SYS_clone,
            vec![rule(vec![masked(
                0,
                libc::CLONE_THREAD,
                libc::CLONE_THREAD,
            )?])?],
        ),
    ]))
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions)
}

type Condition = Result<SeccompCondition, BackendError>;

/// Argument `index`, a C int, is `value`.
fn equal(index: u8, value: i32) -> Condition {
    int(index, SeccompCmpOp::Eq, value.unsigned_abs().into())
}

/// Argument `index`, a C int, is not `value`.
fn unequal(index: u8, value: u64) -> Condition {
    int(index, SeccompCmpOp::Ne, value)
}

/// The bits `mask` of argument `index` are those of `value`.
fn masked(index: u8, mask: i32, value: i32) -> Condition {
    let mask = SeccompCmpOp::MaskedEq(mask.unsigned_abs().into());
    int(index, mask, value.unsigned_abs().into())
}

fn int(index: u8, operator: SeccompCmpOp, value: u64) -> Condition {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
}

fn no_pointer(index: u8) -> Condition {
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

/// Installs a filter in all threads; a kernel that does not know the flags (before 4.17) gets it
/// without them.
///
/// SPEC_ALLOW keeps kernels before 5.16 from slowing the threads down against attacks by code that
/// they execute themselves; urdmad executes no code of others.
fn apply(program: &BpfProgram, flags: libc::c_ulong) -> Result<(), SandboxError> {
    let length = u16::try_from(program.len()).map_err(|_| seccompiler::Error::EmptyFilter)?;
    let filter = libc::sock_fprog {
        len: length,
        // The kernel only reads it.
        filter: program.as_ptr().cast_mut().cast(),
    };
    let always = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let (call, mode) = (libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER);
    // SAFETY: the instructions have the kernel's layout and live until the call returns.
    let result = unsafe { libc::syscall(call, mode, always | flags, &raw const filter) };
    match result {
        0 => Ok(()),
        1.. => Err(SandboxError::OtherFilter(result)),
        _ => Ok(seccompiler::apply_filter_all_threads(program)?),
    }
}

#[cfg(test)]
mod tests {
    use urdma_channel::{ChannelConfig, Incoming, OwnRegion, PeerRegion};
    use urdma_memfd::MemoryError;
    use urdma_waiting::{Bells, OwnPage, Parked};

    use super::*;
    use crate::kinds::{AfXdp, Kind, Tap, Udp};
    use nix::errno::Errno;
    use nix::sys::wait::{waitpid, WaitStatus};
    use nix::unistd::{fork, ForkResult};
    use std::time::{Duration, Instant};

    /// Runs `check` in a process with the filter, which ends with the number of the failed check.
    fn filtered(needs: Needs, check: impl FnOnce() -> i32) {
        // SAFETY: the child allocates, which the C library allows after a fork, takes no lock that
        // another thread of this program may hold, and ends without a destructor.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
            ForkResult::Child => {
                let failed = match install(needs) {
                    Ok(()) => check(),
                    Err(_) => 255,
                };
                // SAFETY: the call does not return.
                unsafe { libc::_exit(failed) }
            }
        }
    }

    fn is_refused(result: c_long) -> bool {
        result < 0 && Errno::last() == Errno::EPERM
    }

    /// Whether a call with these arguments, none of which the kernel may read or write, is refused.
    fn refuses(number: c_long, arguments: [c_long; 3]) -> bool {
        let [a, b, c] = arguments;
        // SAFETY: the arguments are integers or null pointers.
        is_refused(unsafe { libc::syscall(number, a, b, c, 0, 0) })
    }

    fn socket(family: i32, kind: i32) -> c_long {
        // SAFETY: the call takes integers.
        unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) }.into()
    }

    fn map(protection: i32) -> c_long {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the mapping is new and not used.
        unsafe { libc::syscall(libc::SYS_mmap, 0, 4096, protection, flags, -1, 0) }
    }

    /// The number of the first condition that does not hold, from 1; 0 if all do.
    fn first_broken(conditions: &[bool]) -> i32 {
        let broken = conditions.iter().position(|holds| !holds);
        broken.map_or(0, |index| i32::try_from(index + 1).unwrap_or(254))
    }

    #[test]
    fn calls_that_urdmad_does_not_make_are_refused() {
        filtered(Needs::NOTHING, || {
            let parent = nix::unistd::getppid().as_raw().into();
            let (write, execute) = (libc::PROT_WRITE, libc::PROT_EXEC);
            first_broken(&[
                refuses(libc::SYS_execve, [0, 0, 0]),
                refuses(libc::SYS_kill, [parent, 0, 0]),
                refuses(libc::SYS_tgkill, [parent, parent, 0]),
                refuses(libc::SYS_ptrace, [0, 0, 0]),
                refuses(libc::SYS_process_vm_writev, [parent, 0, 0]),
                refuses(libc::SYS_bpf, [0, 0, 0]),
                refuses(libc::SYS_unshare, [0, 0, 0]),
                refuses(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0]),
                refuses(libc::SYS_prlimit64, [parent, libc::RLIMIT_NOFILE.into(), 0]),
                is_refused(map(write | execute)),
                is_refused(socket(libc::AF_INET, libc::SOCK_DGRAM)),
                is_refused(socket(libc::AF_PACKET, libc::SOCK_RAW)),
            ])
        });
    }

    /// Whether memory for a process can be made, memory of a process mapped, and a bell waited for.
    fn shares_memory() -> bool {
        let share = || {
            let (_region, fd) = OwnRegion::create(&ChannelConfig::PACKETS, 0)?;
            let incoming = Incoming::new(PeerRegion::open(fd)?);
            let (page, _fd) = OwnPage::create()?;
            let mut bells = Bells::default();
            page.listen(&mut bells);
            incoming.listen(&mut bells);
            let begin = Instant::now();
            let parked = page.park(&bells, Some(Duration::from_millis(20)), || false);
            // A call that is refused returns at once.
            let has_slept = begin.elapsed() >= Duration::from_millis(20);
            Ok::<_, MemoryError>(parked == Parked::Timeout && has_slept)
        };
        share().unwrap_or(false)
    }

    #[test]
    fn calls_that_urdmad_makes_are_allowed() {
        let netdev = "tap".to_owned();
        filtered(Tap { netdev }.needs(), || {
            first_broken(&[
                // By clone(2), since clone3(2) seems to be missing.
                std::thread::spawn(|| ()).join().is_ok(),
                map(libc::PROT_WRITE) > 0,
                map(libc::PROT_EXEC) > 0,
                socket(libc::AF_UNIX, libc::SOCK_SEQPACKET) >= 0,
                socket(libc::AF_NETLINK, libc::SOCK_RAW) >= 0,
                socket(libc::AF_INET, libc::SOCK_DGRAM) >= 0,
                is_refused(socket(libc::AF_INET, libc::SOCK_STREAM)),
                nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).is_ok(),
                std::fs::read("/proc/self/status").is_ok(),
                shares_memory(),
            ])
        });
    }

    #[test]
    fn udp_port_may_make_sockets_of_both_ip_versions_and_no_others() {
        filtered(Udp.needs(), || {
            first_broken(&[
                socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK) >= 0,
                socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK) >= 0,
                is_refused(socket(libc::AF_INET, libc::SOCK_STREAM)),
                is_refused(socket(libc::AF_INET6, libc::SOCK_STREAM)),
                is_refused(socket(libc::AF_INET6, libc::SOCK_RAW)),
                is_refused(socket(libc::AF_PACKET, libc::SOCK_DGRAM)),
            ])
        });
    }

    #[test]
    fn program_of_an_af_xdp_port_can_be_removed() {
        let netdev = "eth0".to_owned();
        filtered(AfXdp { netdev }.needs(), || {
            first_broken(&[!refuses(libc::SYS_bpf, [-1, 0, 0])])
        });
    }
}
