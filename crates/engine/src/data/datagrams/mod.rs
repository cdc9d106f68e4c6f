//! Unreliable datagrams on their way: what the shard does with the queue pairs of
//! `objects::datagram`.

mod lifecycle;
mod receive;
mod send;
