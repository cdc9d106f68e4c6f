//! The urdma wire protocol, sans-IO: TRP, DDP and RDMAP.
//!
//! - [`wire`]: layouts of headers, parsers and encoders.
//! - [`conn`]: the connection engine of RC and UC queue pairs.
//! - [`dc`]: the dynamically connected transport, on connections of `conn`.
//! - [`limit`]: the rate limit of answers to packets without a connection.
//! - [`sim`]: the deterministic simulator that tests and fuzz targets use.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

pub mod conn;
pub mod dc;
pub mod limit;
pub mod sim;
pub mod wire;
