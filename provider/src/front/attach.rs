//! Attaching to an instance, with messages to the user.

use std::sync::{Arc, Once};

use urdma_engine::{Engine, LeaseState};
use urdma_ipc::RunDir;
use urdma_ucma::Errno;

/// Attaches to the instance that the environment names; prints a failure to standard error.
///
/// # Errors
/// The errno of the failure.
pub(crate) fn attach() -> Result<Arc<Engine>, Errno> {
    attach_to(&RunDir::find(None, None))
}

/// Attaches to the instance with this run directory; prints a failure to standard error.
///
/// # Errors
/// The errno of the failure.
pub(crate) fn attach_to(run_dir: &RunDir) -> Result<Arc<Engine>, Errno> {
    let engine = Engine::attach(run_dir).map_err(|error| {
        eprintln!("urdma: {error}");
        error.errno()
    })?;
    say_if_forwarded(&engine);
    Ok(engine)
}

/// Prints once why this process has no leased queue; only if the instance has a port.
fn say_if_forwarded(engine: &Engine) {
    static SAID: Once = Once::new();
    if let LeaseState::Forwarded(why) = &engine.info().lease {
        if engine.info().mtu > 0 {
            SAID.call_once(|| eprintln!("urdma: no leased queue, urdmad forwards: {why}"));
        }
    }
}
