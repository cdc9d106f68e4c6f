//! Completion queues.
//!
//! | file | what it holds |
//! |---|---|
//! | `structure` | what the application's pointer leads to |
//! | `calls` | creation, change, arming, destruction |
//! | `poll` | the data path of completions |
//! | `poll_ex` | polling of one completion at a time |

pub(super) mod calls;
pub(super) mod poll;
pub(super) mod poll_ex;
pub(super) mod structure;
