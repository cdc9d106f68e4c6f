//! The state of another process in `/proc`: whether it is about to end.

use std::fs;

/// `PF_EXITING` among a process' flags.
const EXITING: u32 = 4;
/// SIGKILL in a set of pending signals.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// Whether a process is about to end: it executes no more code of its own, though its descriptors
/// may still be open. A process that is not visible counts as alive.
pub(crate) fn is_dying(pid: i32) -> bool {
    let read = |file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let has_begun =
        flags_of(&String::from_utf8_lossy(&read("stat"))).is_some_and(|flags| flags & EXITING != 0);
    has_begun || is_killed(&String::from_utf8_lossy(&read("status")))
}

/// The flags in `/proc/PID/stat`. The program's name, in parentheses before them, may have any
/// characters.
fn flags_of(stat: &str) -> Option<u32> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(6)?.parse().ok()
}

/// Whether a SIGKILL is pending, by `/proc/PID/status`.
fn is_killed(status: &str) -> bool {
    let pending = |line: &str| {
        let set = line
            .strip_prefix("SigPnd:")
            .or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    };
    status
        .lines()
        .filter_map(pending)
        .any(|set| set & KILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn process_is_dying_from_its_kill_until_it_is_reaped() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(!is_dying(pid));
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_dying(pid) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(!is_dying(pid));
    }

    #[test]
    fn name_of_a_program_is_not_taken_for_its_flags() {
        let stat = "7 (a) R 1 2 3) S 1 7 7 0 -1 4194308 100 0";
        assert_eq!(flags_of(stat), Some(4_194_308));
        assert_eq!(flags_of("7 (a"), None);
    }

    #[test]
    fn killed_process_that_waits_for_a_processor_is_dying() {
        assert!(is_killed(
            "Name:\ta\nSigPnd:\t0000000000000100\nShdPnd:\t0\n"
        ));
        assert!(is_killed("SigPnd:\t0\nShdPnd:\t0000000000000101\n"));
        assert!(!is_killed(
            "SigPnd:\t0000000000000001\nSigBlk:\t0000000000000100\n"
        ));
    }
}
