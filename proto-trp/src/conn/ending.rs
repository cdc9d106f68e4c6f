//! The end of a connection: by an error (Terminate), by the peer's end or silence, and by a RESET.

mod disconnect;
mod flush;
mod reset;
mod state;
mod terminate;
mod terminate_repeat;

pub(super) use state::Ending;
pub(super) use terminate::{tagged_cause, untagged_cause, Offender};
