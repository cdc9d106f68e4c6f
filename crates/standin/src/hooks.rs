//! The interposed functions: `files` those that take a path, `stats` the stat family, `descriptors`
//! those that take a descriptor, `waits` those that sleep in a completion channel.
//!
//! In unit tests they are ordinary functions, so that the test program itself is not affected.

mod descriptors;
mod files;
mod stats;
mod waits;
