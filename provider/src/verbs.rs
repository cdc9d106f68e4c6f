//! The plugin's interface to libibverbs: C entry points, validation, verbs objects.
//!
//! - [`library`]: the copies of libibverbs in this process;
//! - [`device`]: registration, opening and closing the device, the table of operations;
//! - [`backend`]: the two device backends, as far as objects and events are concerned;
//! - [`query`]: attributes of the device and its port;
//! - [`pd`], [`mr`], [`mw`], [`dm`]: protection domains, memory regions, memory windows, device
//!   memory;
//! - [`cq`], [`poll_ex`]: completion queues; [`srq`]: shared receive queues;
//! - [`qp`]: queue pairs, with [`attributes`] (`ibv_qp_attr` checked and translated) and
//!   [`transitions`] (the state table); [`rnic`]: the differences of an RNIC;
//! - [`ah`]: address handles; [`datagram`]: the differences of unreliable datagrams; [`xrc`]: XRC
//!   domains;
//! - [`objects`]: the table of live objects, which control calls look objects up in;
//! - [`post`]: the data path: each request is validated, then executed; [`post_ex`]: requests that
//!   are built by calls;
//! - [`event`]: asynchronous events, and the removal of unread ones when an object is destroyed;
//! - [`errno`]: errors to errno; [`ffi`]: the C boundary, common to all entry points.
//!
//! The public structure of libibverbs is the first field of each object. Objects are boxed;
//! libibverbs and the application keep the address. Fields that C may write are in an `UnsafeCell`.
//! Nothing is logged on the data path.

mod ah;
mod attributes;
mod backend;
mod cq;
mod datagram;
mod device;
mod dm;

mod errno;
mod event;
mod ffi;
mod library;
mod mr;
mod mw;
mod objects;
mod pd;
mod poll_ex;
mod post;
mod post_ex;
mod qp;
mod query;
mod rnic;
mod srq;
mod transitions;
mod xrc;
