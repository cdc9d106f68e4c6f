//! How messages and packets leave the process and come to it: channels within a host, packets over
//! urdmad or over a leased queue.
//!
//! | file | what it holds |
//! |---|---|
//! | `path` | how the peer of a queue pair is reached |
//! | `channels` | channels by the peer's slot; which of them a poll looks at |
//! | `packet_path` | the interface of a path for packets |
//! | `packet_body`, `origin` | a packet that has come: its octets, and where it is from |
//! | `lease` | the path over a leased queue pair |
//! | `lease_set` | the set of descriptors of a sleep with a lease |
//! | `batch` | requests that leave together |
//! | `capture` | packet captures |
//! | `in_process` | an instance within one process, without urdmad |
//! | `loopback` | two leased queue pairs in memory, for measurements |

pub(crate) mod batch;
pub(crate) mod capture;
pub(crate) mod channels;
pub(crate) mod in_process;
pub(crate) mod lease;
pub(crate) mod lease_set;
pub(crate) mod loopback;
pub(crate) mod origin;
pub(crate) mod packet_body;
pub(crate) mod packet_path;
pub(crate) mod path;
