//! The plugin's face to libibverbs: C entry points, validation, verbs objects.
//!
//! - [`backend`]: the stand-in and the kernel module, as far as objects and events are concerned;
//! - [`library`]: the copies of libibverbs in this process; [`device`]: opening and closing the
//!   device, the table of operations;
//! - [`query`]: what the device and its port say of themselves;
//! - [`pd`], [`mr`], [`mw`], [`dm`]: protection domains, memory regions, memory windows, device
//!   memory; [`cq`], [`poll_ex`]: completion queues; [`srq`]: shared receive queues; [`qp`]: queue
//!   pairs, with [`attributes`] (`ibv_qp_attr` checked and translated) and [`transitions`] (the
//!   state table);
//! - [`objects`]: which objects there are, so that calls can be refused that name others;
//! - [`ah`]: address handles; [`datagram`]: what is different for the datagram service;
//! - [`post`]: the data path: each request validated, then executed; [`post_ex`]: requests put
//!   together by calls;
//! - [`event`]: asynchronous events, and what destroying an object does to events that nobody has
//!   read;
//! - [`errno`]: errors to errno; [`ffi`]: what every thunk does at the C boundary.
//!
//! Every object of libibverbs is the first field of one of ours, allocated in a box whose address
//! libibverbs and the application keep. What C may write to is inside an `UnsafeCell`. Nothing is
//! logged on the data path.

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
