//! Queue pairs that are not connections on the path of data.
//!
//! | file | what it holds |
//! |---|---|
//! | `kind` | what the path of data asks of a kind |
//! | `dispatch` | asks the kind that has a queue pair |
//! | `datagram`, `dc` | the kinds (`objects/kinds`) |

mod datagram;
mod dc;
mod dispatch;
mod kind;
