//! Unreliable datagrams on their way.
//!
//! | file | what it holds |
//! |---|---|
//! | `lifecycle` | creation, states, end |
//! | `send`, `receive` | out, in |

mod lifecycle;
mod receive;
mod send;
