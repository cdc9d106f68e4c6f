//! The interposed functions: `files` those that take a path, `stats` the stat family, `descriptors`
//! those that take a descriptor, `waits` those that sleep in a completion channel, `sets` those of
//! epoll sets.
//!
//! In unit tests they are ordinary functions, so that the test program itself is not affected.

mod descriptors;
mod files;
mod sets;
mod stats;
mod waits;
