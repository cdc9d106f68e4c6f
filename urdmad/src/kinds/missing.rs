//! Capabilities that opening a port needs and the process lacks.

use caps::{CapSet, Capability};

/// The sentence for a kind of port; `None` if the process has all of them.
pub(super) fn missing_capabilities(kind: &str, needed: &[Capability]) -> Option<String> {
    let own = caps::read(None, CapSet::Effective).ok()?;
    let missing = needed.iter().filter(|capability| !own.contains(capability));
    let missing: Vec<String> = missing.map(ToString::to_string).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "a port of kind \"{kind}\" needs {}, which this user does not have: start urdmad as \
             root, or use kind = \"udp\"",
            missing.join(", ")
        )
    })
}
