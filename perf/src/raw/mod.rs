//! Raw limits of this machine: two processes that share memory or a virtual link, without verbs and
//! protocol.

pub mod channel;
pub mod eventfd;
pub mod fork;
pub mod memif;
pub mod ring;
