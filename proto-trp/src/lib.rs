//! The urdma wire protocol, sans-IO: TRP, DDP and RDMAP.
//!
//! - [`wire`]: layouts of headers, parsers and encoders.
//! - [`conn`]: the connection engine of RC and UC queue pairs.
//! - [`dc`]: the dynamically connected transport, on connections of `conn`.
//! - [`limit`]: the rate limit of answers to packets without a connection.
//!
//! The simulator that tests and fuzz targets use is `crates/trp-sim`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

// The simulator names this crate as its users do.
#[cfg(test)]
extern crate self as proto_trp;

pub mod conn;
pub mod dc;
pub mod limit;
/// The simulator, for tests of what is private to the protocol.
#[cfg(test)]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::wrong_self_convention
)]
#[path = "../../crates/trp-sim/src/lib.rs"]
mod sim;
pub mod wire;
