//! Threads that make progress: the engine's own, and those of the application that wait.
//!
//! | file | what it holds |
//! |---|---|
//! | `background` | the thread that makes progress when the application does not |
//! | `driver` | threads of the application that make progress while they wait for an event |
//! | `turns` | one turn of either |
//! | `lease_sleep` | the sleep until an interrupt of a leased queue pair |
//! | `watch` | processes of the host that are stopped |

pub(crate) mod background;
pub(crate) mod driver;
pub(crate) mod lease_sleep;
pub(crate) mod turns;
pub(crate) mod watch;
