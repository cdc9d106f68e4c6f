//! `make perf`: how fast urdma is beside raw limits of this machine and beside its peers, measured interleaved in one call.
//!
//! | module | what it holds |
//! |---|---|
//! | [`samples`] | repeated measurements and their medians |
//! | [`raw`] | limits: a shared-memory ring and a copied stream between two processes; net_memif; our own arena alone |
//! | [`peers`] | qperf over loopback TCP, UCX over shared memory |
//! | [`product`] | Debian's perftest through `urdma run` |
//! | [`simulator`] | the protocol alone, in virtual time |
//! | [`idle`] | processor time and memory of idle processes |
//! | [`threads`], [`verbs_setup`] | threads with queues of their own; how verbs programs begin |
//! | [`attach`] | what opening the device costs |
//! | [`probes`] | every probe's name and unit |
//! | [`workloads`] | what perftest is asked to do |
//! | [`part`], [`plan`] | what can be measured by itself; what is measured, in which order |
//! | [`spec`], [`goals`], [`rows`] | what is compared with what, the goals, the verdicts |
//! | [`report`], [`plot`] | table, JSON, SVG |
//! | [`lossy`] | goodput of perftest over ports that lose, beside go-back-N |
//! | [`links`], [`shares`] | one queue pair, and eight, over links of limited rate that take time |
//! | [`bench`], [`lines`] | the sweeps of `urdma bench`, line charts |
//!
//! Every number is what a program printed or a clock said in this call; what cannot be measured is reported as not available, with the
//! reason. The machine is shared with whatever else runs on it, so each probe runs several times, in turn with the others, and the
//! median counts.

pub mod attach;
pub mod bench;
mod goals;
pub mod idle;
pub mod lines;
pub mod links;
pub mod lossy;
pub mod part;
pub mod peers;
pub mod plan;
pub mod plot;
pub mod probes;
pub mod product;
pub mod raw;
pub mod report;
pub mod rows;
pub mod samples;
pub mod shares;
pub mod simulator;
pub mod spec;
pub mod threads;
pub mod verbs_setup;
pub mod workloads;
