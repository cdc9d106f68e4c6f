//! What is compared with what, and what is good: the table of issue 3, and figures for information beside it.

use crate::probes::*;
use crate::spec::{Compare, Goal, Spec};

const fn row(
    name: &'static str,
    ours: crate::samples::Probe,
    compare: Compare,
    goal: Goal,
) -> Spec {
    Spec {
        name,
        ours,
        compare,
        goal,
    }
}

/// Every row of the report.
pub(crate) const SPECS: &[Spec] = {
    use Compare::{Above, Alone, BestOf, With};
    use Goal::{AtLeast, AtMost, None};
    &[
        row(
            "64 B send, one host / raw ring",
            SEND_ONE_HOST,
            With(RAW_RING),
            AtMost(1.5),
        ),
        row(
            "64 B write, one host / raw ring",
            WRITE_LAT_ONE_HOST,
            With(RAW_RING),
            AtMost(1.5),
        ),
        row(
            "64 B send, one host / UCX",
            SEND_ONE_HOST,
            With(UCX_LATENCY),
            None,
        ),
        row(
            "64 B send, one host / TCP",
            SEND_ONE_HOST,
            With(TCP_LATENCY),
            None,
        ),
        row("64 B arena frame / raw ring", ARENA, With(RAW_RING), None),
        row(
            "64 B send, one host, events, above 2 wake-ups",
            EVENTS_ONE_HOST,
            Above(RAW_WAKE_UPS),
            AtMost(2.0),
        ),
        row(
            "64 B send, leased / raw memif",
            SEND_LEASED,
            With(MEMIF_LATENCY),
            AtMost(1.5),
        ),
        row(
            "64 B send, leased / TCP",
            SEND_LEASED,
            With(TCP_LATENCY),
            None,
        ),
        row(
            "64 B send, forwarded / raw memif",
            SEND_FORWARDED,
            With(MEMIF_LATENCY),
            AtMost(8.0),
        ),
        row(
            "64 B send, forwarded / TCP",
            SEND_FORWARDED,
            With(TCP_LATENCY),
            None,
        ),
        row(
            "64 B send, forwarded, events / TCP",
            EVENTS_FORWARDED,
            With(TCP_LATENCY),
            None,
        ),
        row(
            "64 B send rate, one host / raw ring",
            SEND_RATE_ONE_HOST,
            With(RAW_RING_RATE),
            AtLeast(0.4),
        ),
        row(
            "64 B write rate, one host / raw ring",
            WRITE_RATE_ONE_HOST,
            With(RAW_RING_RATE),
            AtLeast(0.4),
        ),
        row(
            "64 B send rate, one host / UCX",
            SEND_RATE_ONE_HOST,
            With(UCX_RATE),
            AtLeast(1.0),
        ),
        row(
            "64 B send rate, leased / raw memif",
            SEND_RATE_LEASED,
            With(MEMIF_RATE),
            AtLeast(0.4),
        ),
        row(
            "64 B write rate, leased / raw memif",
            WRITE_RATE_LEASED,
            With(MEMIF_RATE),
            AtLeast(0.4),
        ),
        row(
            "64 KB write, one host / UCX tag",
            WRITE_ONE_HOST,
            With(UCX_STREAM),
            AtLeast(1.0),
        ),
        row(
            "1 MB write, one host / UCX tag",
            WRITE_1M_ONE_HOST,
            With(UCX_STREAM_1M),
            AtLeast(1.0),
        ),
        row(
            "64 KB write, one host / raw two copies",
            WRITE_ONE_HOST,
            With(RAW_STREAM),
            AtLeast(0.8),
        ),
        row(
            "1 MB write, one host / raw two copies",
            WRITE_1M_ONE_HOST,
            With(RAW_STREAM),
            AtLeast(0.8),
        ),
        row(
            "64 KB write, one host / TCP",
            WRITE_ONE_HOST,
            With(TCP_STREAM),
            AtLeast(2.5),
        ),
        row(
            "1 MB write, one host / TCP",
            WRITE_1M_ONE_HOST,
            With(TCP_STREAM),
            AtLeast(2.5),
        ),
        row(
            "64 KB write, one host / UCX put, one copy",
            WRITE_ONE_HOST,
            With(UCX_PUT),
            None,
        ),
        row(
            "64 KB write, leased / raw memif",
            WRITE_LEASED,
            With(MEMIF_STREAM),
            AtLeast(0.85),
        ),
        row(
            "1 MB write, leased / raw memif",
            WRITE_1M_LEASED,
            With(MEMIF_STREAM),
            AtLeast(0.85),
        ),
        row(
            "64 KB read, leased / raw memif",
            READ_LEASED,
            With(MEMIF_STREAM),
            AtLeast(0.85),
        ),
        row(
            "1 MB read, leased / raw memif",
            READ_1M_LEASED,
            With(MEMIF_STREAM),
            AtLeast(0.85),
        ),
        row(
            "64 KB send, leased / raw memif",
            SEND_BW_LEASED,
            With(MEMIF_STREAM),
            AtLeast(0.85),
        ),
        row(
            "1 MB send, leased / raw memif",
            SEND_BW_1M_LEASED,
            With(MEMIF_STREAM),
            AtLeast(0.85),
        ),
        row(
            "64 KB write, forwarded / raw memif",
            WRITE_FORWARDED,
            With(MEMIF_STREAM),
            None,
        ),
        row(
            "64 KB write, MTU 1500 / raw memif",
            WRITE_1500,
            With(MEMIF_STREAM_1500),
            AtLeast(0.7),
        ),
        row(
            "1 MB write, MTU 1500 / raw memif",
            WRITE_1M_1500,
            With(MEMIF_STREAM_1500),
            AtLeast(0.7),
        ),
        row(
            "64 KB read, MTU 1500 / raw memif",
            READ_1500,
            With(MEMIF_STREAM_1500),
            AtLeast(0.7),
        ),
        row(
            "64 KB send, MTU 1500 / raw memif",
            SEND_BW_1500,
            With(MEMIF_STREAM_1500),
            AtLeast(0.7),
        ),
        row(
            "64 B write rate, 1 QP / best of the sweep",
            QPS_1,
            BestOf(&QP_SWEEP),
            AtLeast(0.9),
        ),
        row(
            "64 B write rate, 10 QPs / best",
            QPS_10,
            BestOf(&QP_SWEEP),
            AtLeast(0.9),
        ),
        row(
            "64 B write rate, 100 QPs / best",
            QPS_100,
            BestOf(&QP_SWEEP),
            AtLeast(0.9),
        ),
        row(
            "64 B write rate, 1000 QPs / best",
            QPS_1000,
            BestOf(&QP_SWEEP),
            AtLeast(0.9),
        ),
        row(
            "64 B write rate, 4000 QPs / best",
            QPS_4000,
            BestOf(&QP_SWEEP),
            AtLeast(0.9),
        ),
        row(
            "64 B writes, two threads with domains / one",
            TWO_THREADS,
            With(ONE_THREAD),
            AtLeast(1.7),
        ),
        row(
            "64 B writes, two threads that share a lock / one",
            TWO_THREADS_SHARED,
            With(ONE_THREAD),
            None,
        ),
        row("memory of a QP", RESIDENT_QP, Alone, AtMost(16.0)),
        row(
            "CPU, application on a completion channel",
            IDLE_APPLICATION,
            Alone,
            AtMost(0.2),
        ),
        row(
            "CPU, urdmad without a port",
            IDLE_DAEMON,
            Alone,
            AtMost(0.2),
        ),
        row(
            "CPU, urdmad with a memif port",
            IDLE_DAEMON_PORT,
            Alone,
            AtMost(0.2),
        ),
        row(
            "memory, attached above plain",
            RESIDENT_ATTACHED,
            Above(RESIDENT_PLAIN),
            AtMost(8.0),
        ),
        row(
            "memory, with a lease above plain",
            RESIDENT_LEASED,
            Above(RESIDENT_PLAIN),
            AtMost(24.0),
        ),
        row(
            "attach without a lease",
            DEVINFO_URDMA,
            Above(DEVINFO_PLAIN),
            AtMost(3.0),
        ),
        row(
            "attach with a lease",
            DEVINFO_LEASED,
            Above(DEVINFO_PLAIN),
            AtMost(25.0),
        ),
        row(
            "goodput at 1 % loss / lossless, simulated",
            SIM_LOSSY,
            With(SIM_LOSSLESS),
            AtLeast(0.8),
        ),
        row(
            "spurious RETRY_EXC in 10,000 seeds, simulated",
            SIM_GIVEN_UP,
            Alone,
            AtMost(0.0),
        ),
    ]
};
