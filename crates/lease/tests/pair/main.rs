//! Two primaries connected by net_memif, like two daemons, and a secondary of each that exchanges
//! datagrams through the lease table.
//!
//! Each process is this program in another role, because a process can initialise DPDK only once.
//! Needs root for hugepages. `--measure` (after `--`) prints round trips and attach times instead.

#![allow(clippy::unwrap_used)]

mod cases;
#[allow(dead_code)] // not each of the programs that share it uses all of it
#[path = "../../../dpdk/tests/ports/child.rs"]
mod child;
mod host;
mod primary;
mod secondary;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("role-primary") => primary::run(&arguments[1..]),
        Some("role-secondary") => secondary::run(&arguments[1..]),
        Some("--measure") => cases::measure(),
        // Arguments of `cargo test`: a filter, or a request for the list.
        Some("--list") => ExitCode::SUCCESS,
        filter => cases::run(filter.filter(|text| !text.starts_with('-'))),
    }
}
