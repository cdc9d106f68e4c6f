//! The interposed functions: `files` those that take a path, `stats` the stat family, `descriptors`
//! those that take a descriptor, `waits` those that sleep in a completion channel, `sets` those of
//! epoll sets, `polls` those of lists of descriptors; `call`: what the last two have in common.
//!
//! In unit tests they are ordinary functions, so that the test program itself is not affected.

mod call;
mod descriptors;
mod files;
mod polls;
mod sets;
mod stats;
mod waits;
