//! What urdmad gives up once it has started: capabilities that its port does not need any more, new
//! privileges, and system calls that it does not use.
//!
//! All threads are included, those of DPDK too, which exist by then: [`capabilities`] reaches them
//! by a signal, and the kernel applies [`filter`] to all of them (TSYNC).

mod capabilities;
mod error;
mod filter;

use crate::config::{Config, Sandbox};
use crate::kinds::Needs;

/// Applies the restrictions to the whole process, and logs what is in force. A kernel that does not
/// support one of them is no error.
pub(crate) fn enter(config: &Config) {
    if config.sandbox == Sandbox::Off {
        tracing::warn!("sandbox = \"off\": urdmad keeps all capabilities and system calls");
        return;
    }
    let port = config.port.as_ref();
    let needs = port.map_or(Needs::NOTHING, |port| port.kind.get().needs());
    let kept = match capabilities::keep(&needs.capabilities.iter().copied().collect()) {
        Ok(kept) => kept,
        Err(reason) => {
            tracing::warn!("urdmad keeps capabilities that it does not need: {reason}");
            "not reduced".to_owned()
        }
    };
    match filter::install(needs) {
        Ok(()) => tracing::info!(
            "sandbox: system calls are filtered; no new privileges; capabilities: {kept}"
        ),
        Err(reason) => {
            tracing::warn!("sandbox: system calls are not filtered: {reason}; capabilities: {kept}")
        }
    }
}
