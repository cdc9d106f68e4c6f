//! Calls on queue pairs that are not connections, by kind (`objects/kinds`).

mod datagram;
mod dc;
