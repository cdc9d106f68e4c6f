//! The options and the counters of `urdma capture`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Which frames a capture has, and how they are divided into files. By default all, in one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CaptureOptions {
    /// Only connection management.
    pub only_cm: bool,
    /// Only packets from or to this address.
    pub host: Option<IpAddr>,
    /// Only packets from or to this slot, of whichever of the two hosts.
    pub slot: Option<u8>,
    /// Octets after which another file is begun; `None` for no limit.
    pub file_octets: Option<u64>,
    /// Files that are kept; the oldest is removed for another one. `None` for all.
    pub files: Option<u32>,
}

impl CaptureOptions {
    /// Whether frames are left out.
    pub fn has_filter(&self) -> bool {
        self.only_cm || self.host.is_some() || self.slot.is_some()
    }
}

/// What became of the frames of a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureCounts {
    /// Frames in the files, those included that were removed.
    pub frames: u64,
    /// Frames that are missing because they came faster than the disk takes them.
    pub dropped: u64,
    /// Frames that the filter left out.
    pub filtered: u64,
    /// Files that were written.
    pub files: u32,
}
