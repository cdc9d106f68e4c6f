//! The interposed functions: `transfers` those that move octets, `polls` poll and ppoll,
//! `selects` select and pselect, `epolls` epoll,
//! `descriptors` those that make, copy, close and change descriptors, `actions` those that install
//! handlers of signals, `threads` those that begin or cancel threads and block signals, `kernel`
//! those before which rings are given up.
//!
//! In unit tests they are ordinary functions, so that the test program itself is not affected.

mod actions;
mod descriptors;
mod epolls;
mod kernel;
mod polls;
mod selects;
mod threads;
mod transfers;
