//! What the device of an instance shows itself as.

use serde::{Deserialize, Serialize};

/// What the device of an instance shows itself as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Personality {
    /// A RoCE device: programs connect by a peer's GID and queue pair number.
    #[default]
    Roce,
    /// An RNIC: reliable connections only, made by rdma_cm only.
    Iwarp,
}
