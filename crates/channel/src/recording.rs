//! A flight recording: the last events of each connection of a process.
//!
//! The process writes it. urdmad keeps its descriptor, also for a while after the process has
//! ended, and does not read it; `urdma trace` reads it with pread(2). doc/tracing.md has the format
//! of the events.
//!
//! | offset | octets | content |
//! |---|---|---|
//! | 0 | 12 | magic `urdmaLOG`, version (4) |
//! | 64 | 8 × 16,385 | of each track: where its writer is |
//! | [`TRACK_0_AT`] | 32 × 4096 | track 0, of the process: a ring of events |
//! | [`TRACKS_AT`] | 32 × 16 × 16,384 | tracks 1 and up: the first and the last events |
//!
//! Where a writer is: the place of the first event since the track was begun (8 bits), and the
//! number of events since then (56 bits). The first [`KEPT_EVENTS`] keep their places; those after
//! them take the other places in turn.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use urdma_memfd::{magic, Mapping, MemoryError, PAGE};

use crate::sync::{fence, AtomicU64, Ordering};

const MAGIC: &[u8; 8] = b"urdmaLOG";
const VERSION: u32 = 3;
/// Octets of the header.
pub const HEADER_OCTETS: usize = urdma_memfd::TABLE_HEADER;
/// Words of an event; the first is the time, 0 while the event is being written.
pub const EVENT_WORDS: usize = 4;
/// Octets of an event.
pub const EVENT_OCTETS: usize = 8 * EVENT_WORDS;
/// Number of tracks, track 0 included.
pub const TRACKS: usize = 16_385;
/// Offset of the words that say where the tracks' writers are.
pub const WRITERS_AT: usize = 64;
/// Offset of track 0.
pub const TRACK_0_AT: usize = (WRITERS_AT + 8 * TRACKS).next_multiple_of(PAGE);
/// Events of track 0.
pub const TRACK_0_EVENTS: usize = 4096;
/// Offset of track 1.
pub const TRACKS_AT: usize = TRACK_0_AT + EVENT_OCTETS * TRACK_0_EVENTS;
/// Events of each other track.
pub const TRACK_EVENTS: usize = 16;
/// Events of such a track that stay until it is begun again.
pub const KEPT_EVENTS: usize = 8;
/// Length of a recording.
pub const TOTAL: usize = TRACKS_AT + EVENT_OCTETS * TRACK_EVENTS * (TRACKS - 1);

/// The header of a recording.
pub fn header() -> [u8; HEADER_OCTETS] {
    magic(MAGIC, VERSION)
}

/// How many of a track's last events may be between two that are counted as one.
const LOOK_BACK: u64 = 4;
/// Bits of the place of the first event in a writer's word; the number of events is above them.
const FIRST_BITS: u32 = 8;
const ONE_EVENT: u64 = 1 << FIRST_BITS;

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
    pub fn create() -> Result<(Self, OwnedFd), MemoryError> {
        let (mapping, fd) = Mapping::create(c"urdma-recording", TOTAL, &header(), 0)?;
        Ok((Self(mapping), fd))
    }

    /// Begins a track other than track 0: its next events are the first, which stay. Events from
    /// before give way, the first ones first.
    pub fn begin(&self, track: usize) {
        debug_assert!(track > 0, "track 0 is begun once");
        let writer = self.writer(track);
        let at = writer.load(Ordering::Relaxed);
        let first = if at >> FIRST_BITS < TRACK_EVENTS as u64 {
            place(at) as u64
        } else {
            at % ONE_EVENT
        };
        writer.store(first, Ordering::Relaxed);
    }

    /// Adds an event at `time`, which is not 0, to a track below [`TRACKS`]; the oldest one that
    /// does not stay gives way.
    #[inline]
    pub fn add(&self, track: usize, time: u64, words: [u64; EVENT_WORDS - 1]) {
        let writer = self.writer(track);
        let at = writer.load(Ordering::Relaxed);
        // Not one atomic addition, which would lock the cache line.
        writer.store(at.wrapping_add(ONE_EVENT), Ordering::Relaxed);
        let event = self.event(track, at);
        // A reader sees 0 or the earlier time while the words change.
        event[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, word) in event[1..].iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        event[0].store(time, Ordering::Release);
    }

    /// Counts an event in the second word of one of the track's last, if that has the same first
    /// word; the time becomes `time`. Otherwise adds it with the count 1 and the third word `time`.
    /// So events that alternate take one place each.
    #[inline]
    pub fn add_again(&self, track: usize, time: u64, word: u64) {
        let at = self.writer(track).load(Ordering::Relaxed);
        for back in 1..=LOOK_BACK.min(at >> FIRST_BITS) {
            let earlier = self.event(track, at - back * ONE_EVENT);
            if earlier[1].load(Ordering::Relaxed) == word {
                let times = earlier[2].load(Ordering::Relaxed).wrapping_add(1);
                earlier[2].store(times, Ordering::Relaxed);
                earlier[0].store(time, Ordering::Release);
                return;
            }
        }
        self.add(track, time, [word, 1, time]);
    }

    #[inline]
    fn writer(&self, track: usize) -> &AtomicU64 {
        debug_assert!(track < TRACKS, "no such track");
        let at = WRITERS_AT + 8 * track.min(TRACKS - 1);
        // SAFETY: there is a word for each track, at a multiple of 8 within the mapping, valid in
        // any bit pattern.
        unsafe { self.0.at(at).cast().as_ref() }
    }

    /// The event of a track that a writer at `writer` writes.
    #[inline]
    fn event(&self, track: usize, writer: u64) -> &[AtomicU64; EVENT_WORDS] {
        let track = track.min(TRACKS - 1);
        let place = match track {
            0 => place_0(writer),
            _ => place(writer),
        };
        let at = offset_of(track) + EVENT_OCTETS * place;
        // SAFETY: `place` is below the events of a track, at multiples of 32 within the mapping,
        // which consist of atomics, valid in any bit pattern.
        unsafe { self.0.at(at).cast().as_ref() }
    }
}

/// The place in a track other than track 0 of the event that a writer at `writer` writes.
#[inline]
fn place(writer: u64) -> usize {
    let number = writer >> FIRST_BITS;
    let after_first = if number < TRACK_EVENTS as u64 {
        number
    } else {
        // The ring has as many places.
        number | KEPT_EVENTS as u64
    };
    // A place, below 16.
    #[allow(clippy::cast_possible_truncation)]
    let place = (writer.wrapping_add(after_first)) as usize % TRACK_EVENTS;
    place
}

/// The same in track 0, which is a ring.
#[inline]
fn place_0(writer: u64) -> usize {
    // Only the low bits count.
    #[allow(clippy::cast_possible_truncation)]
    let number = (writer >> FIRST_BITS) as usize;
    number % TRACK_0_EVENTS
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

    /// The first words of a track's events, in the order of their times.
    fn words_in_order(file: &File, track: usize) -> Vec<u64> {
        let places = (0..events_of(track)).map(|place| offset_of(track) + EVENT_OCTETS * place);
        let mut events: Vec<_> = places.map(|at| read_words(file, at)).collect();
        events.retain(|event| event[0] != 0);
        events.sort_unstable();
        events.iter().map(|event| event[1]).collect()
    }

    #[test]
    fn first_and_last_events_of_a_track_stay_and_its_neighbours_are_untouched() {
        let (recording, fd) = OwnRecording::create().unwrap();
        let file = File::from(fd);
        assert_eq!(file.metadata().unwrap().len(), TOTAL as u64);
        let last = TRACKS - 1;
        for time in 1..=1_000 {
            recording.add(last, time, [time, 0, 7]);
        }
        let expected: Vec<u64> = (1..=8).chain(993..=1_000).collect();
        assert_eq!(words_in_order(&file, last), expected);
        assert_eq!(read_words(&file, offset_of(last)), [1, 1, 0, 7]);
        assert_eq!(words_in_order(&file, last - 1), []);
        assert_eq!(words_in_order(&file, 0), []);
    }

    #[test]
    fn track_that_is_begun_again_keeps_the_last_events_from_before_as_long_as_there_is_room() {
        for before in [3, 8, 12, 16, 17, 23, 40, 1_000] {
            let (recording, fd) = OwnRecording::create().unwrap();
            let file = File::from(fd);
            (1..=before).for_each(|time| recording.add(5, time, [time, 0, 0]));
            recording.begin(5);
            let all = before + 1..=before + 100;
            for time in all.clone() {
                recording.add(5, time, [time, 0, 0]);
                let words = words_in_order(&file, 5);
                let since = time - before;
                let begin: Vec<u64> = all.clone().take(since.min(8) as usize).collect();
                let at = words.iter().position(|word| *word == begin[0]).unwrap();
                assert_eq!(words[at..at + begin.len()], begin, "{before}, {time}");
                assert_eq!(words.last(), Some(&time));
                // The places that the new events have not taken.
                let old = (before.min(16) as usize).min(16 - since.min(16) as usize);
                assert_eq!(at, old, "{before}, {time}: {words:?}");
            }
        }
    }

    #[test]
    fn track_0_is_a_ring() {
        let (recording, fd) = OwnRecording::create().unwrap();
        let file = File::from(fd);
        let all = 1..=3 * TRACK_0_EVENTS as u64 + 5;
        for time in all.clone() {
            recording.add(0, time, [time, 0, 0]);
        }
        let words = words_in_order(&file, 0);
        assert!(words.into_iter().eq(all.skip(2 * TRACK_0_EVENTS + 5)));
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

    #[test]
    fn repeated_events_that_alternate_are_counted_in_one_place_each() {
        let (recording, fd) = OwnRecording::create().unwrap();
        let file = File::from(fd);
        recording.add(1, 1, [5, 0, 0]);
        for time in 0..300 {
            recording.add_again(1, 10 + time, 6 + time % 3);
        }
        let second = offset_of(1) + EVENT_OCTETS;
        assert_eq!(words_in_order(&file, 1), [5, 6, 7, 8]);
        assert_eq!(read_words(&file, second), [307, 6, 100, 10]);
        // What came before the track was begun is another's.
        recording.begin(1);
        recording.add_again(1, 400, 6);
        assert_eq!(words_in_order(&file, 1), [5, 6, 7, 8, 6]);
    }
}
