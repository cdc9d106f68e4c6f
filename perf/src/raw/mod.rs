//! Limits of this machine: two processes with nothing between them but memory, or nothing but a virtual wire.

pub mod arena;
pub mod eventfd;
pub mod fork;
pub mod memif;
pub mod ring;
