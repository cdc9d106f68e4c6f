//! Why a command failed.

use urdma_ipc::ControlError;

/// Why a command failed, as a sentence.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("{0}")]
    Sentence(String),
}

impl Error {
    /// An error described by `text`.
    pub(crate) fn sentence(text: impl Into<String>) -> Self {
        Self::Sentence(text.into())
    }
}
