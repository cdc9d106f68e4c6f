//! The interposed functions: `files` those that take a path, `stats` the stat family, `descriptors`
//! those that take a descriptor, `waits` those that sleep in a completion channel, `sets` those of
//! epoll sets, `polls` and `selects` those of lists of descriptors; `call` and `lists`: what they
//! have in common; `netlink` those of sockets of RDMA netlink; `actions` those that install
//! handlers of signals.
//!
//! In unit tests they are ordinary functions, so that the test program itself is not affected.

mod actions;
mod call;
mod descriptors;
mod files;
mod lists;
mod netlink;
mod polls;
mod selects;
mod sets;
mod stats;
mod waits;
