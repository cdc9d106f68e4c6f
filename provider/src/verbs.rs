//! The plugin's interface to libibverbs: C entry points, validation, verbs objects.
//!
//! - [`device`]: registration, opening and closing the device, the table of operations;
//! - [`library`]: the copies of libibverbs in this process; [`verbs_qp`]: libibverbs' structure of
//!   a queue pair, whose layout depends on the version;
//! - [`context`]: an opened device, and the objects that calls name; [`objects`]: the table of live
//!   objects, which control calls look objects up in;
//! - [`backend`]: the two device backends, as far as objects and events are concerned;
//! - [`query`]: attributes of the device and its port;
//! - [`pd`], [`mr`], [`mw`], [`dm`]: protection domains, memory regions, memory windows, device
//!   memory;
//! - [`completion_queue`], [`cq`], [`poll_ex`]: completion queues: the structure, the calls, and
//!   polling one completion at a time; [`srq`]: shared receive queues;
//! - [`queue_pair`], [`qp`]: queue pairs: the structure and the calls, with [`attributes`]
//!   (`ibv_qp_attr` checked and translated) and [`transitions`] (the state table); [`rnic`]: the
//!   differences of an RNIC;
//! - [`ah`]: address handles; [`datagram`]: the differences of unreliable datagrams; [`xrc`]: XRC
//!   domains; [`dc`]: the differences of the dynamically connected transport; [`dv`]: the calls of
//!   `infiniband/urdmadv.h`; [`reason`]: why the last of them was refused;
//! - [`post`]: the data path: each request is validated, then executed; [`request`]: flags, lists
//!   and inline data of requests; [`post_ex`], [`builder`]: requests that are built by calls;
//! - [`event`]: asynchronous events, and the removal of unread ones when an object is destroyed;
//!   [`async_event`]: counts those that libibverbs has read;
//! - [`errno`]: errors to errno; [`ffi`]: the C boundary, common to all entry points.
//!
//! The files depend on one another in one direction. The structures of queues are below the data
//! path, and the calls that create and destroy queues are above it. [`device`], which names all
//! calls in the table of operations, is used by no other file.
//!
//! The public structure of libibverbs is the first field of each object. Objects are boxed;
//! libibverbs and the application keep the address. Fields that C may write are in an `UnsafeCell`.
//! Nothing is logged on the data path.

mod ah;
mod async_event;
mod attributes;
mod backend;
mod builder;
mod completion_queue;
mod context;
mod cq;
mod datagram;
mod dc;
mod device;
mod dm;
mod dv;
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
mod queue_pair;
mod reason;
mod request;
mod rnic;
mod srq;
mod transitions;
mod verbs_qp;
mod xrc;
