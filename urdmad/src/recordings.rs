//! The flight recordings of processes, also of some that have ended (doc/tracing.md).
//!
//! urdmad keeps descriptors and reads none of the memory behind them, which the processes can
//! write.

use std::collections::BTreeMap;
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
/// Recordings of processes that have ended, and their memory in octets.
#[derive(Debug, Default)]
struct Kept {
    recordings: usize,
    octets: u64,
}

/// Of all users.
const ALL_MAX: Kept = Kept {
    recordings: 64,
    octets: 64 << 20,
};
/// Of one other than the owner and root.
const OF_MEMBER_MAX: Kept = Kept {
    recordings: 16,
    octets: 16 << 20,
};

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

    /// Drops those that are old, and beyond the limits the oldest of the user that has most.
    pub(crate) fn drop_surplus(&mut self, now: Instant) {
        self.all.retain(|recording| {
            let is_young = |at| now.saturating_duration_since(at) < KEPT_FOR;
            let fits = recording.octets <= OF_MEMBER_MAX.octets;
            recording.ended.is_none_or(|(at, _)| fits && is_young(at))
        });
        while let Some(uid) = self.user_beyond_a_limit() {
            let of_user = |known: &Recording| known.ended.is_some() && known.info.uid == uid;
            let Some(oldest) = self.all.iter().position(of_user) else {
                return;
            };
            self.all.remove(oldest);
        }
    }

    /// A user whose recordings of ended processes exceed its limits, or the user that has most of
    /// what exceeds the limits of all together.
    fn user_beyond_a_limit(&self) -> Option<u32> {
        let (mut all, mut of_user) = (Kept::default(), BTreeMap::<u32, Kept>::new());
        for recording in self.all.iter().filter(|known| known.ended.is_some()) {
            for kept in [&mut all, of_user.entry(recording.info.uid).or_default()] {
                kept.recordings += 1;
                kept.octets += recording.octets;
            }
        }
        let is_member = |uid: u32| uid != self.owner && uid != 0;
        let mut users = of_user.iter();
        let of_member = users.find(|(uid, kept)| is_member(**uid) && kept.exceeds(&OF_MEMBER_MAX));
        let most = || {
            if all.recordings > ALL_MAX.recordings {
                of_user.iter().max_by_key(|(_, kept)| kept.recordings)
            } else {
                of_user.iter().max_by_key(|(_, kept)| kept.octets)
            }
        };
        let of_all = || most().filter(|_| all.exceeds(&ALL_MAX));
        of_member.or_else(of_all).map(|(uid, _)| *uid)
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

impl Kept {
    fn exceeds(&self, limit: &Self) -> bool {
        self.recordings > limit.recordings || self.octets > limit.octets
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
        let mut recordings = ended(&[(OWNER, ALL_MAX.recordings + 3)], now);
        let (recording, memory) = OwnRecording::create().unwrap();
        assert!(recordings.add(u64::MAX, info(OWNER), memory));
        recording.add(1, 1, [0; 3]);
        let numbers = |list: Vec<RecordingInfo>| -> Vec<u64> {
            list.iter().map(|info| info.number).collect()
        };
        let expected: Vec<u64> = (4..=ALL_MAX.recordings as u64 + 4).collect();
        assert_eq!(numbers(recordings.list(None, now)), expected);
        // The process that lives keeps its own.
        let later = now + KEPT_FOR;
        assert_eq!(
            numbers(recordings.list(None, later)),
            [ALL_MAX.recordings as u64 + 4]
        );
    }

    #[test]
    fn user_reads_own_recordings_only_and_displaces_no_others() {
        let now = Instant::now();
        let mut recordings = ended(&[(OWNER, 3), (MEMBER, ALL_MAX.recordings + 1)], now);
        assert_eq!(
            recordings.list(None, now).len(),
            3 + OF_MEMBER_MAX.recordings
        );
        assert_eq!(
            recordings.list(Some(MEMBER), now).len(),
            OF_MEMBER_MAX.recordings
        );
        assert!(recordings.memory(1, Some(MEMBER)).is_none());
        assert!(recordings.memory(1, Some(OWNER)).is_some());
        assert!(recordings.memory(1, None).is_some());
    }

    #[test]
    fn users_with_most_recordings_make_room_for_the_others() {
        const HONEST: [u32; 3] = [OWNER, MEMBER + 100, MEMBER + 101];
        let now = Instant::now();
        let few = HONEST.map(|uid| (uid, 6));
        let many: Vec<(u32, usize)> = (0..20).map(|user| (MEMBER + user, 40)).collect();
        for all in [[&few[..], &many].concat(), [&many[..], &few].concat()] {
            let mut recordings = ended(&all, now);
            assert_eq!(recordings.list(None, now).len(), ALL_MAX.recordings);
            for uid in HONEST {
                let kept = recordings.list(Some(uid), now).len();
                // All together are 23 users.
                assert!(kept >= ALL_MAX.recordings / 23, "{uid}: {kept}");
            }
        }
        // Four users, as many as their recordings alone are the limit of all.
        let mut recordings = ended(&[&few[..], &many[..4]].concat(), now);
        for uid in HONEST {
            assert_eq!(recordings.list(Some(uid), now).len(), 6);
        }
    }

    #[test]
    fn memory_of_another_length_is_not_kept_after_its_process() {
        let now = Instant::now();
        let mut recordings = Recordings::new(OWNER);
        let (_page, memory) = urdma_waiting::OwnPage::create().unwrap();
        assert!(recordings.add(1, info(OWNER), memory));
        assert_eq!(recordings.list(None, now).len(), 1);
        recordings.end(1, false, now);
        assert!(recordings.list(None, now).is_empty());
    }
}
