//! Reading a recording. Its writer is another process, which may be hostile, may write meanwhile
//! or may have died: every value is copied once, and a record that means nothing is left out.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::unistd::{lseek64, Whence};
use urdma_channel::recording::{
    header, EVENT_OCTETS, EVENT_WORDS, HEADER_OCTETS, TOTAL, TRACK_0_AT,
};
use urdma_trace::Event;

/// The events of a recording, in order of time.
///
/// # Errors
/// The file is no recording of this version, or a system call fails. urdmad accepts only memfds,
/// whose reading never blocks.
pub(super) fn read(file: &File) -> io::Result<Vec<Event>> {
    let mut found = [0; HEADER_OCTETS];
    file.read_exact_at(&mut found, 0)?;
    if found != header() || file.metadata()?.len() != TOTAL as u64 {
        let message = "its memory is no recording of this version of urdma";
        return Err(io::Error::other(message));
    }
    let mut events = Vec::new();
    let mut at = TRACK_0_AT;
    while let Some((begin, end)) = next_data(file, at)? {
        read_range(file, begin, end, &mut events)?;
        at = end;
    }
    events.sort_by_key(|event: &Event| (event.time_ns, event.link));
    Ok(events)
}

/// The next octets from `at` on that have memory. What was never written has none, and most of a
/// recording is that.
fn next_data(file: &File, at: usize) -> io::Result<Option<(usize, usize)>> {
    let seek = |from: usize, whence| {
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        lseek64(file, from, whence).map(|at| usize::try_from(at).unwrap_or(TOTAL))
    };
    let begin = match seek(at, Whence::SeekData) {
        Ok(begin) => begin.max(at),
        Err(Errno::ENXIO) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let end = seek(begin, Whence::SeekHole)?.min(TOTAL);
    Ok((begin < end).then_some((begin, end)))
}

/// Appends the events between two offsets, both of which are multiples of a page.
fn read_range(file: &File, begin: usize, end: usize, events: &mut Vec<Event>) -> io::Result<()> {
    let mut octets = vec![0; end - begin];
    file.read_exact_at(&mut octets, begin as u64)?;
    let records = octets.chunks_exact(EVENT_OCTETS);
    events.extend(records.filter_map(|record| Event::from_words(words_of(record))));
    Ok(())
}

fn words_of(record: &[u8]) -> [u64; EVENT_WORDS] {
    let mut words = [0; EVENT_WORDS];
    for (word, octets) in words.iter_mut().zip(record.chunks_exact(8)) {
        *word = octets.try_into().map_or(0, u64::from_ne_bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use urdma_channel::OwnRecording;

    use super::*;
    use urdma_trace::recorder::Message;
    use urdma_trace::{CmMessage, CmState, Direction, Kind, Link, Recorder};

    fn now_ns() -> u64 {
        7
    }

    #[test]
    fn events_of_many_queue_pairs_are_read() {
        let (recording, memory) = OwnRecording::create().unwrap();
        let recorder = Recorder::new(recording, now_ns);
        for qpn in 1..=0xffff {
            recorder.qp_create(0x0003_0000 | qpn, 2);
        }
        let events = read(&File::from(memory)).unwrap();
        assert_eq!(events.len(), 0xffff);
        assert!(events.iter().all(|event| event.time_ns == 7));
        assert_eq!(events[0].link.qpn, 0x0003_0001);
    }

    #[test]
    fn beginning_of_a_connection_is_there_after_a_lossy_path() {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NOW_NS: AtomicU64 = AtomicU64::new(0);
        let (recording, memory) = OwnRecording::create().unwrap();
        let recorder = Recorder::new(recording, || NOW_NS.fetch_add(10, Ordering::Relaxed));
        let qpn = 0x0003_0001;
        let link = Link { conn: 7, qpn };
        recorder.qp_create(qpn, 2);
        let message = Message {
            message: CmMessage::Req,
            direction: Direction::Sent,
            port: 7471,
            tries: 1,
            reason: 0,
            peer: [192, 0, 2, 1].into(),
        };
        recorder.cm_message(link, &message);
        recorder.qp_modify(qpn, (1, 2), ([0; 16], 5));
        recorder.qp_modify(qpn, (2, 3), ([0; 16], 5));
        recorder.cm_state(link, CmState::RtuGated, CmState::Established);
        let beginning = read(&File::from(memory.try_clone().unwrap())).unwrap();
        for backoff in 0..100 {
            recorder.rto(qpn, backoff, 1);
            recorder.sent_again(qpn);
            recorder.sent_again(qpn);
            // The application sends nothing at times.
            recorder.qp_modify(qpn, (3, 4), ([0; 16], 5));
            recorder.qp_modify(qpn, (4, 3), ([0; 16], 5));
        }
        recorder.qp_error(qpn, 12);
        let events = read(&File::from(memory)).unwrap();
        assert_eq!(events[..beginning.len()], beginning);
        let kinds: Vec<Kind> = beginning.iter().map(|event| event.kind).collect();
        use Kind::{Established, Message as Sent, Peer, QpCreate, QpError, QpModify};
        let expected = [QpCreate, Peer, Sent, Peer, QpModify, QpModify, Established];
        assert_eq!(kinds, expected);
        assert_eq!(events.last().unwrap().kind, QpError);
    }

    #[test]
    fn memory_of_another_kind_is_refused() {
        let (_page, memory) = urdma_waiting::OwnPage::create().unwrap();
        let error = read(&File::from(memory)).unwrap_err();
        assert!(error.to_string().contains("no recording"), "{error}");
    }
}
