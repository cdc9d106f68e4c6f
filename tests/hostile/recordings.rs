//! Attacks by flight recordings.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::SealFlag;
use nix::sys::memfd::MFdFlags;
use urdma_channel::recording::{header, TOTAL, TRACK_0_AT};

use crate::attach::Session;
use crate::conversation::{once_taken, CLOSING};
use crate::memory::{memfd, Memory, SEALS};
use crate::{Context, Tally};

/// Records written before the events of the session are taken.
const RECORDS: usize = 2000;
/// Octets of a record.
const RECORD: usize = 32;

/// A recording of random records, written while others read it, and kept by urdmad when this
/// process has ended; then descriptors that are no recordings.
pub(crate) fn recordings(context: &Context) -> Result<Tally, String> {
    let mut random = context.random.clone();
    let mut tally = Tally::default();
    for fd in strange_descriptors() {
        let mut session = context.attach()?;
        offer(&session, &fd)?;
        tally.refused("a strange recording", session.listen(CLOSING))?;
    }
    let (memory, fd) = Memory::create(TOTAL).map_err(|errno| errno.to_string())?;
    memory.store(0, &header());
    let mut session = context.attach()?;
    offer(&session, &fd)?;
    while !context.is_over() {
        for _ in 0..RECORDS {
            let record = TRACK_0_AT + RECORD * random.below((TOTAL - TRACK_0_AT) / RECORD);
            // Kinds that exist, and the extreme arguments.
            let kind = (random.u64() & !0xff) | (random.u64() % 40);
            let extreme = random.one_of(&[0, 1, u64::MAX, u64::MAX / 2]);
            for (word, value) in [random.u64(), kind, extreme, random.u64()]
                .into_iter()
                .enumerate()
            {
                memory.store64(record + 8 * word, value);
            }
        }
        tally.tries += 1;
        if !session.listen(Duration::from_millis(1)) {
            return Err("urdmad closed the connection of a process with a recording".to_owned());
        }
    }
    // A second one.
    offer(&session, &fd)?;
    tally.refused("a second recording", session.listen(CLOSING))?;
    Ok(tally)
}

fn offer(session: &Session, fd: &OwnedFd) -> Result<(), String> {
    once_taken(|| session.client.offer_recording(fd.as_fd()))
        .map_err(|error| format!("a recording cannot be offered: {error}"))
}

/// Descriptors that are not accepted.
fn strange_descriptors() -> Vec<OwnedFd> {
    let unsealed = memfd(TOTAL, SealFlag::empty(), MFdFlags::empty());
    let growing = memfd(TOTAL, SEALS - SealFlag::F_SEAL_GROW, MFdFlags::empty());
    let pipe = std::io::pipe().map(|(reader, _)| reader.into());
    let file = File::open("/dev/zero").map(OwnedFd::from);
    let memory = [unsealed, growing].into_iter().flatten();
    memory.chain([pipe, file].into_iter().flatten()).collect()
}
