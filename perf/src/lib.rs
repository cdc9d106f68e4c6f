//! `make perf`: urdma next to the raw limits of the machine and to its peers, measured interleaved
//! in one call.
//!
//! | module | content |
//! |---|---|
//! | [`samples`], [`probes`] | repeated measurements and their medians; name and unit of each |
//! | [`raw`] | limits: a ring and a copied stream between two processes, net_memif, a channel |
//! | [`peers`] | qperf over loopback TCP, UCX over shared memory |
//! | [`workloads`], [`product`] | the runs of Debian's perftest; how they run through `urdma run` |
//! | [`simulator`] | the protocol alone, in virtual time |
//! | [`instructions`] | instructions of the engine for a message |
//! | [`idle`], [`attach`] | idle processes: processor time, memory; time of opening the device |
//! | [`threads`], [`verbs_setup`] | threads with their own queues; first steps of verbs programs |
//! | [`writes`] | writes over verbs alone, of the memory of a stream |
//! | [`processes`] | up to as many processes as an instance has slots, connected to one |
//! | [`asleep`], [`ucx`], [`valkey`] | ping-pongs, connections, Valkey asleep, next to TCP |
//! | [`tcp_programs`] | Debian's servers over rings, next to TCP |
//! | [`connections`] | connections: rates, steps, cost of tracing |
//! | [`cold`] | a new process with one connection |
//! | `compile` | programs in C that are measured |
//! | [`streams`], [`stream_sweep`], [`stream_programs`] | byte streams, next to rsockets and TCP |
//! | [`stream_instructions`] | instructions of a round trip through a byte stream |
//! | [`socket_instructions`] | instructions of TCP connections that have no rings |
//! | [`lossy`] | goodput of perftest over links that lose packets, next to go-back-N |
//! | [`links`], [`shares`] | one queue pair, and eight, over links of limited rate and delay |
//! | [`pool`], [`elastic`] | virtual queue pairs: opening, reads, memory; short processes |
//! | [`pool_instructions`] | instructions of a READ over a virtual queue pair |
//! | [`store`] | a key-value store over virtual queue pairs |
//! | [`part`], [`plan`] | what can be measured alone; the order of the measurements |
//! | [`spec`], `goals`, [`rows`] | comparisons and their goals; their results |
//! | [`processors`] | whether the machine's processors are near each other |
//! | [`report`] | table and JSON |
//! | [`plot`], [`lines`], `axis`, `picture` | bar charts and line charts, as SVG |
//! | [`mod@bench`] | the sweeps of `urdma bench` |
//!
//! Each value is what a program printed or a clock showed in this call. What cannot be measured is
//! reported as not available, with the reason. Other work may run on the machine; each probe
//! therefore runs several times, in turn with the others, and the median counts.

pub mod asleep;
pub mod attach;
mod axis;
pub mod bench;
pub mod cold;
mod compile;
pub mod connections;
pub mod elastic;
mod goals;
pub mod idle;
pub mod instructions;
pub mod lines;
pub mod links;
pub mod lossy;
pub mod part;
pub mod peers;
mod picture;
pub mod plan;
pub mod plot;
pub mod pool;
pub mod pool_instructions;
pub mod pool_messages;
pub mod probes;
pub mod processes;
pub mod processors;
pub mod product;
pub mod raw;
pub mod report;
pub mod rows;
pub mod samples;
pub mod shares;
pub mod simulator;
pub mod socket_instructions;
pub mod sockets;
pub mod spec;
pub mod store;
pub mod store_load;
pub mod stream_instructions;
pub mod stream_programs;
pub mod stream_sweep;
pub mod streams;
pub mod tcp_programs;
pub mod threads;
pub mod ucx;
pub mod valkey;
pub mod verbs_setup;
pub mod workloads;
pub mod writes;
