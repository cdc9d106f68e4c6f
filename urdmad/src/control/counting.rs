//! The counters of the port: the totals of all processes, for programs that open the files.

use std::time::{Duration, Instant};

use urdma_ipc::Event;

use super::state::Control;
use crate::port_counters::{Figures, LIFESPAN_MS};
use crate::slots::Token;

/// Time limit for processes to store their totals; of slower ones those count that they have stored
/// before.
const COUNT_LIMIT: Duration = Duration::from_millis(100);
/// Totals are read again after this time.
const LIFESPAN: Duration = Duration::from_millis(LIFESPAN_MS);

impl Control {
    /// Programs have opened counters, or may have; in sysfs of the kernel, or the files.
    pub(super) fn note_readers(&mut self) {
        if let Some(files) = &self.counter_files {
            files.take_signals();
        }
        self.counting.has_readers = true;
    }

    /// A process has stored its totals.
    pub(super) fn take_count(&mut self, token: Token) {
        self.counting.missing.remove(&token);
        let client = self.clients.get_mut(&token);
        if let Some(tally) = client.and_then(|client| client.tally.as_mut()) {
            tally.asked_at = None;
        }
    }

    /// Keeps the totals of a process that has ended.
    pub(super) fn keep_traffic(&mut self, token: Token) {
        self.counting.missing.remove(&token);
        let client = self.clients.get_mut(&token);
        if let Some(mut tally) = client.and_then(|client| client.tally.take()) {
            self.counting.total += tally.take_new(Instant::now());
        }
    }

    /// Gives the counters to the programs that wait for them, if the totals are young enough or all
    /// processes have stored theirs; else asks the processes.
    pub(super) fn answer_readers(&mut self, now: Instant) {
        if !self.counting.has_readers {
            return;
        }
        let is_young = |at: Instant| now.saturating_duration_since(at) < LIFESPAN;
        match self.counting.deadline {
            None if self.counting.counted_at.is_some_and(is_young) => return self.show_counters(),
            None => self.ask_for_counts(now),
            Some(_) => {}
        }
        let is_late = self
            .counting
            .deadline
            .is_none_or(|deadline| deadline <= now);
        if self.counting.missing.is_empty() || is_late {
            self.count(now);
            self.show_counters();
        }
    }

    fn ask_for_counts(&mut self, now: Instant) {
        self.counting.deadline = Some(now + COUNT_LIMIT);
        for (token, client) in &mut self.clients {
            let Some(tally) = &mut client.tally else {
                continue;
            };
            // A process that has been silent for long is stopped, and is not waited for each time.
            let is_silent = |at: Instant| now.saturating_duration_since(at) >= COUNT_LIMIT;
            let is_asked = tally.asked_at.is_some();
            if !tally.asked_at.is_some_and(is_silent) {
                self.counting.missing.insert(*token);
            }
            if !is_asked {
                tally.asked_at = Some(now);
                client.tell(Event::CountWanted);
            }
        }
    }

    fn count(&mut self, now: Instant) {
        let tallies = self.clients.values_mut();
        for tally in tallies.filter_map(|client| client.tally.as_mut()) {
            self.counting.total += tally.take_new(now);
        }
        self.counting.counted_at = Some(now);
        self.counting.deadline = None;
        self.counting.missing.clear();
    }

    fn show_counters(&mut self) {
        self.counting.has_readers = false;
        let figures = Figures {
            traffic: self.counting.total,
            data: &self.shared.counters,
        };
        let counters = figures.counters();
        if let Some(files) = &mut self.counter_files {
            files.answer(&counters);
        }
        self.kernel.give_counters(&counters);
    }
}
