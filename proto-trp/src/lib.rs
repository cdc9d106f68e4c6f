//! The urdma wire protocol, sans-IO: TRP, DDP and RDMAP.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

pub mod conn;
pub mod limit;
pub mod sim;
pub mod wire;
