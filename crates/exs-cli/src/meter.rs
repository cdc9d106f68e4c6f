//! What a run has cost.

use std::time::{Duration, Instant};

use nix::sys::resource::{getrusage, UsageWho};
use urdma_exs::Socket;

/// Time and processor time since a moment.
#[derive(Debug)]
pub(crate) struct Meter {
    since: Instant,
    processor: Duration,
}

impl Meter {
    pub(crate) fn begin() -> Self {
        Self {
            since: Instant::now(),
            processor: processor_time(),
        }
    }

    /// Prints what `octets` octets have cost this end.
    #[allow(clippy::cast_precision_loss)] // Figures for people.
    pub(crate) fn print(&self, octets: u64) {
        let seconds = self.since.elapsed().as_secs_f64();
        let processor = processor_time().saturating_sub(self.processor);
        println!(
            "{octets} octets in {seconds:.3} s: {:.3} Gbit/s; {:.3} s of processor time, \
             {:.3} ns an octet",
            octets as f64 * 8.0 / seconds / 1e9,
            processor.as_secs_f64(),
            processor.as_secs_f64() * 1e9 / octets.max(1) as f64
        );
    }
}

/// User and system time of this process.
fn processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| {
            let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
            let micros = u64::try_from(time.tv_usec()).unwrap_or(0);
            Duration::from_secs(seconds) + Duration::from_micros(micros)
        })
        .sum()
}

/// Prints what an end has counted.
pub(crate) fn print_stats(socket: &Socket) {
    let stats = socket.stats();
    println!(
        "transfers: {} direct, {} indirect ({:.1} % direct); adverts: {} sent, {} stale; \
         {} pauses, {} rings taken, {} octets copied, {} control messages",
        stats.direct_transfers,
        stats.indirect_transfers,
        stats.direct_ratio() * 100.0,
        stats.adverts_sent,
        stats.adverts_stale,
        stats.pauses,
        stats.rings_taken,
        stats.copied_octets,
        stats.controls_sent
    );
}
