//! What a thread needs that sleeps until there is something to do.
//!
//! | file | what it holds |
//! |---|---|
//! | `sleep_control` | when the background thread sleeps, and what wakes it |
//! | `start` | how far the start of that thread has come |
//! | `signals` | signals of a thread that sleeps in the application's name |

pub(crate) mod signals;
pub(crate) mod sleep_control;
pub(crate) mod start;
