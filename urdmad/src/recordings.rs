//! The flight recordings of processes, also of some that have ended (doc/tracing.md).
//!
//! urdmad keeps descriptors and reads none of the memory behind them, which the processes can
//! write.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::time::{clock_gettime, ClockId};
use nix::unistd::Uid;
use urdma_channel::{recording, OwnRecording};
use urdma_ipc::{Ended, RecordingInfo};
use urdma_trace::Recorder;

use crate::slots::Token;

/// How long the recording of a process that has ended is kept.
const KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// Recordings of processes that have ended: of all users, and of one other than the owner and root.
const KEPT_MAX: usize = 64;
const KEPT_OF_MEMBER_MAX: usize = 16;
/// Memory of recordings of processes that have ended, octets, in the same way.
const OCTETS_MAX: u64 = 64 << 20;
const OCTETS_OF_MEMBER_MAX: u64 = 16 << 20;

/// No connection has this token.
const DAEMON: Token = 0;

/// The recordings, in the order in which they were offered.
#[derive(Debug)]
pub(crate) struct Recordings {
    owner: u32,
    next: u64,
    all: Vec<Recording>,
}

#[derive(Debug)]
struct Recording {
    info: RecordingInfo,
    /// The connection of the process while it has a slot.
    token: Option<Token>,
    ended: Option<(Instant, bool)>,
    /// Its memory, as it was at the end of the process.
    octets: u64,
    memory: OwnedFd,
}

impl Recordings {
    /// None yet; `owner` is the user of this instance.
    pub(crate) fn new(owner: u32) -> Self {
        Self {
            owner,
            next: 1,
            all: Vec::new(),
        }
    }

    /// With the recording of urdmad itself, to which `recorder` writes from now on. Without memory
    /// for one nothing is recorded.
    pub(crate) fn of_daemon(recorder: &mut Recorder) -> Self {
        let uid = Uid::effective().as_raw();
        let mut recordings = Self::new(uid);
        if let Ok((recording, memory)) = OwnRecording::create() {
            *recorder = Recorder::new(recording, now_ns);
            let info = RecordingInfo {
                pid: std::process::id().cast_signed(),
                uid,
                program: "urdmad".to_owned(),
                ..RecordingInfo::default()
            };
            recordings.add(DAEMON, info, memory);
        }
        recordings
    }

    /// Takes the recording of the process with the connection `token`; false if it has one.
    pub(crate) fn add(&mut self, token: Token, info: RecordingInfo, memory: OwnedFd) -> bool {
        if self.all.iter().any(|known| known.token == Some(token)) {
            return false;
        }
        let info = RecordingInfo {
            number: self.next,
            ..info
        };
        self.next += 1;
        self.all.push(Recording {
            info,
            token: Some(token),
            ended: None,
            octets: 0,
            memory,
        });
        true
    }

    /// The process with this connection has ended.
    pub(crate) fn end(&mut self, token: Token, is_death: bool, now: Instant) {
        let of_process = |known: &&mut Recording| known.token == Some(token);
        if let Some(recording) = self.all.iter_mut().find(of_process) {
            recording.token = None;
            recording.ended = Some((now, is_death));
            recording.octets = octets_of(recording.memory.as_fd());
        }
        self.drop_surplus(now);
    }

    /// Drops those that are old, and the oldest beyond the limits.
    pub(crate) fn drop_surplus(&mut self, now: Instant) {
        let owner = self.owner;
        let mut all = Allowance::new(KEPT_MAX, OCTETS_MAX);
        let mut members: Vec<(u32, Allowance)> = Vec::new();
        // From the newest to the oldest.
        self.all.reverse();
        self.all.retain(|recording| {
            let Some((at, _)) = recording.ended else {
                return true;
            };
            let uid = recording.info.uid;
            let is_young = now.saturating_duration_since(at) < KEPT_FOR;
            let fits_member = uid == owner || uid == 0 || {
                let known = members.iter().position(|(member, _)| *member == uid);
                let place = known.unwrap_or_else(|| {
                    let allowance = Allowance::new(KEPT_OF_MEMBER_MAX, OCTETS_OF_MEMBER_MAX);
                    members.push((uid, allowance));
                    members.len() - 1
                });
                members[place].1.take(recording.octets)
            };
            is_young && fits_member && all.take(recording.octets)
        });
        self.all.reverse();
    }

    /// Those of `uid`, or all.
    pub(crate) fn list(&mut self, uid: Option<u32>, now: Instant) -> Vec<RecordingInfo> {
        self.drop_surplus(now);
        let readable = self.all.iter().filter(|known| known.is_of(uid));
        let infos = readable.map(|known| RecordingInfo {
            ended: known.ended.map(|(at, is_death)| Ended {
                ago_s: now.saturating_duration_since(at).as_secs(),
                is_death,
            }),
            ..known.info.clone()
        });
        infos.collect()
    }

    /// The memory of a recording of `uid`, or of any user.
    pub(crate) fn memory(&self, number: u64, uid: Option<u32>) -> Option<BorrowedFd<'_>> {
        let mut readable = self.all.iter().filter(|known| known.is_of(uid));
        let found = readable.find(|known| known.info.number == number)?;
        Some(found.memory.as_fd())
    }
}

impl Recording {
    fn is_of(&self, uid: Option<u32>) -> bool {
        uid.is_none_or(|uid| uid == self.info.uid)
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// What is left of a limit.
struct Allowance {
    recordings: usize,
    octets: u64,
}

impl Allowance {
    fn new(recordings: usize, octets: u64) -> Self {
        Self { recordings, octets }
    }

    fn take(&mut self, octets: u64) -> bool {
        let fits = self.recordings > 0 && octets <= self.octets;
        if fits {
            self.recordings -= 1;
            self.octets -= octets;
        }
        fits
    }
}

/// The memory that a memfd has; more than any limit if it is longer than a recording.
fn octets_of(memory: BorrowedFd<'_>) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let metadata = memory
        .try_clone_to_owned()
        .and_then(|file| File::from(file).metadata());
    match metadata {
        Ok(metadata) if metadata.len() == recording::TOTAL as u64 => metadata.blocks() * 512,
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;
    const MEMBER: u32 = 1001;

    fn info(uid: u32) -> RecordingInfo {
        RecordingInfo {
            uid,
            ..RecordingInfo::default()
        }
    }

    /// Recordings of `counts` processes of the users, which have ended.
    fn ended(counts: &[(u32, usize)], now: Instant) -> Recordings {
        let mut recordings = Recordings::new(OWNER);
        let mut token = 0;
        for (uid, count) in counts {
            for _ in 0..*count {
                token += 1;
                let (recording, memory) = OwnRecording::create().unwrap();
                recording.add(1, 1, [0; 3]);
                assert!(recordings.add(token, info(*uid), memory));
                recordings.end(token, true, now);
            }
        }
        recordings
    }

    #[test]
    fn recordings_of_ended_processes_are_kept_for_a_while_and_the_newest_only() {
        let now = Instant::now();
        let mut recordings = ended(&[(OWNER, KEPT_MAX + 3)], now);
        let (recording, memory) = OwnRecording::create().unwrap();
        assert!(recordings.add(u64::MAX, info(OWNER), memory));
        recording.add(1, 1, [0; 3]);
        let numbers = |list: Vec<RecordingInfo>| -> Vec<u64> {
            list.iter().map(|info| info.number).collect()
        };
        let expected: Vec<u64> = (4..=KEPT_MAX as u64 + 4).collect();
        assert_eq!(numbers(recordings.list(None, now)), expected);
        // The process that lives keeps its own.
        let later = now + KEPT_FOR;
        assert_eq!(numbers(recordings.list(None, later)), [KEPT_MAX as u64 + 4]);
    }

    #[test]
    fn user_reads_own_recordings_only_and_displaces_no_others() {
        let now = Instant::now();
        let mut recordings = ended(&[(OWNER, 3), (MEMBER, KEPT_MAX + 1)], now);
        assert_eq!(recordings.list(None, now).len(), 3 + KEPT_OF_MEMBER_MAX);
        assert_eq!(recordings.list(Some(MEMBER), now).len(), KEPT_OF_MEMBER_MAX);
        assert!(recordings.memory(1, Some(MEMBER)).is_none());
        assert!(recordings.memory(1, Some(OWNER)).is_some());
        assert!(recordings.memory(1, None).is_some());
    }

    #[test]
    fn memory_of_another_length_is_not_kept_after_its_process() {
        let now = Instant::now();
        let mut recordings = Recordings::new(OWNER);
        let (_page, memory) = urdma_channel::OwnPage::create().unwrap();
        assert!(recordings.add(1, info(OWNER), memory));
        assert_eq!(recordings.list(None, now).len(), 1);
        recordings.end(1, false, now);
        assert!(recordings.list(None, now).is_empty());
    }
}
