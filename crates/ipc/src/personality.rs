//! The type of RDMA device as which an instance presents its device.

use serde::{Deserialize, Serialize};

/// The type of RDMA device as which an instance presents its device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Personality {
    /// A RoCE device: programs connect by the peer's GID and queue pair number, or by rdma_cm.
    #[default]
    Roce,
    /// An RNIC: reliable connections only, which only rdma_cm establishes.
    Iwarp,
}
