//! A flight recording: the last events of each connection of a process.
//!
//! The process writes it. urdmad keeps its descriptor, also for a while after the process has
//! ended, and does not read it; `urdma trace` reads it with pread(2). doc/tracing.md has the format
//! of the events.
//!
//! | offset | octets | content |
//! |---|---|---|
//! | 0 | 12 | magic `urdmaLOG`, version (4) |
//! | 4096 | 8 × 16,385 | of each track: the number of events that it has had |
//! | [`TRACK_0_AT`] | 32 × 4096 | track 0, of the process: a ring of events |
//! | [`TRACKS_AT`] | 32 × 16 × 16,384 | tracks 1 and up: rings of events |

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use crate::map::{magic, Mapping, RegionError, PAGE};
use crate::sync::{fence, AtomicU64, Ordering};

const MAGIC: &[u8; 8] = b"urdmaLOG";
const VERSION: u32 = 1;
/// Octets of the header.
pub const HEADER_OCTETS: usize = crate::map::TABLE_HEADER;
/// Words of an event; the first is the time, 0 while the event is being written.
pub const EVENT_WORDS: usize = 4;
/// Octets of an event.
pub const EVENT_OCTETS: usize = 8 * EVENT_WORDS;
/// Number of tracks, track 0 included.
pub const TRACKS: usize = 16_385;
/// Offset of the tracks' counts.
pub const COUNTS_AT: usize = PAGE;
/// Offset of track 0.
pub const TRACK_0_AT: usize = (COUNTS_AT + 8 * TRACKS).next_multiple_of(PAGE);
/// Events of track 0.
pub const TRACK_0_EVENTS: usize = 4096;
/// Offset of track 1.
pub const TRACKS_AT: usize = TRACK_0_AT + EVENT_OCTETS * TRACK_0_EVENTS;
/// Events of each other track.
pub const TRACK_EVENTS: usize = 16;
/// Length of a recording.
pub const TOTAL: usize = TRACKS_AT + EVENT_OCTETS * TRACK_EVENTS * (TRACKS - 1);

/// The header of a recording.
pub fn header() -> [u8; HEADER_OCTETS] {
    magic(MAGIC, VERSION)
}

/// Events of a track, a power of two.
pub const fn events_of(track: usize) -> usize {
    if track == 0 {
        TRACK_0_EVENTS
    } else {
        TRACK_EVENTS
    }
}

/// Offset of the first event of a track.
pub const fn offset_of(track: usize) -> usize {
    if track == 0 {
        TRACK_0_AT
    } else {
        TRACKS_AT + EVENT_OCTETS * TRACK_EVENTS * (track - 1)
    }
}

/// The recording of this process. Any thread may write; two that write to one track at once may
/// spoil an event.
#[derive(Debug)]
pub struct OwnRecording(Mapping);

impl OwnRecording {
    /// Creates an empty recording, which takes memory as it is used. The descriptor is for urdmad;
    /// the recording does not need it.
    ///
    /// # Errors
    /// What a system call says.
    pub fn create() -> Result<(Self, OwnedFd), RegionError> {
        let (mapping, fd) = Mapping::create(c"urdma-recording", TOTAL, &header(), 0)?;
        Ok((Self(mapping), fd))
    }

    /// Adds an event at `time`, which is not 0, to a track below [`TRACKS`]; the oldest one gives
    /// way.
    #[inline]
    pub fn add(&self, track: usize, time: u64, words: [u64; EVENT_WORDS - 1]) {
        let number = self.count(track).fetch_add(1, Ordering::Relaxed);
        let event = self.event(track, number);
        // A reader sees 0 or the earlier time while the words change.
        event[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, word) in event[1..].iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        event[0].store(time, Ordering::Release);
    }

    /// Counts an event in the second word of the track's last one, if that has the same first word;
    /// the time becomes `time`. Otherwise adds it with the count 1 and the third word `time`.
    #[inline]
    pub fn add_again(&self, track: usize, time: u64, word: u64) {
        let count = self.count(track).load(Ordering::Relaxed);
        if count > 0 {
            let last = self.event(track, count.wrapping_sub(1));
            if last[1].load(Ordering::Relaxed) == word {
                let times = last[2].load(Ordering::Relaxed).wrapping_add(1);
                last[2].store(times, Ordering::Relaxed);
                last[0].store(time, Ordering::Release);
                return;
            }
        }
        self.add(track, time, [word, 1, time]);
    }

    fn count(&self, track: usize) -> &AtomicU64 {
        debug_assert!(track < TRACKS, "no such track");
        let at = COUNTS_AT + 8 * track.min(TRACKS - 1);
        // SAFETY: there is a count for each track, at a multiple of 8 within the mapping, valid in
        // any bit pattern.
        unsafe { self.0.at(at).cast().as_ref() }
    }

    /// The place of a track's event of this number.
    #[inline]
    fn event(&self, track: usize, number: u64) -> &[AtomicU64; EVENT_WORDS] {
        let track = track.min(TRACKS - 1);
        let mask = events_of(track) - 1;
        // Only the low bits count.
        #[allow(clippy::cast_possible_truncation)]
        let place = number as usize & mask;
        let at = offset_of(track) + EVENT_OCTETS * place;
        // SAFETY: the track has so many events, at multiples of 32 within the mapping, which
        // consist of atomics, valid in any bit pattern.
        unsafe { self.0.at(at).cast().as_ref() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn read_words(file: &File, at: usize) -> [u64; EVENT_WORDS] {
        let mut octets = [0; EVENT_OCTETS];
        file.read_exact_at(&mut octets, at as u64).unwrap();
        std::array::from_fn(|word| {
            u64::from_ne_bytes(octets[8 * word..8 * word + 8].try_into().unwrap())
        })
    }

    #[test]
    fn last_events_of_a_track_stay_and_its_neighbours_are_untouched() {
        let (recording, fd) = OwnRecording::create().unwrap();
        let file = File::from(fd);
        assert_eq!(file.metadata().unwrap().len(), TOTAL as u64);
        let last = TRACKS - 1;
        for time in 1..=20 {
            recording.add(last, time, [time, 0, 7]);
        }
        assert_eq!(read_words(&file, offset_of(last)), [17, 17, 0, 7]);
        let end = offset_of(last) + EVENT_OCTETS * 3;
        assert_eq!(read_words(&file, end), [20, 20, 0, 7]);
        assert_eq!(read_words(&file, end + EVENT_OCTETS), [5, 5, 0, 7]);
        assert_eq!(read_words(&file, offset_of(last - 1)), [0; 4]);
        assert_eq!(read_words(&file, offset_of(0)), [0; 4]);
    }

    #[test]
    fn repeated_event_is_counted_in_one_place() {
        let (recording, fd) = OwnRecording::create().unwrap();
        let file = File::from(fd);
        recording.add(1, 10, [5, 0, 0]);
        for time in 11..=13 {
            recording.add_again(1, time, 6);
        }
        assert_eq!(read_words(&file, offset_of(1)), [10, 5, 0, 0]);
        assert_eq!(
            read_words(&file, offset_of(1) + EVENT_OCTETS),
            [13, 6, 3, 11]
        );
    }
}
