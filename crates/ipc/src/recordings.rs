//! The flight recordings that urdmad has (doc/tracing.md).

use serde::{Deserialize, Serialize};

/// The recording of a process, or of urdmad.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingInfo {
    /// Names it in [`crate::Request::Recording`]; not used again.
    pub number: u64,
    /// The slot; 0 is urdmad.
    pub slot: u8,
    /// Process id.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// The program's name, as the client reported it.
    pub program: String,
    /// Its end, if the process has ended.
    pub ended: Option<Ended>,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Seconds since then.
    pub ago_s: u64,
    /// It ended without detaching: it exited, crashed or was killed.
    pub is_death: bool,
}
