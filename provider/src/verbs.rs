//! The plugin's interface to libibverbs: C entry points, validation, verbs objects.
//!
//! - [`device`]: registration, opening and closing the device, the table of operations; [`early`]:
//!   attaching before a device of the kernel module is opened;
//! - [`library`]: the copies of libibverbs in this process, among the objects that are [`loaded`]
//!   and have its [`symbols`];
//! - [`context`]: an opened device, and the objects that calls name; [`objects`]: the table of live
//!   objects, which control calls look objects up in;
//! - [`backend`]: the two device backends, as far as objects and events are concerned;
//! - [`query`]: attributes of the device and its port;
//! - [`pd`], [`mr`], [`mw`], [`dm`]: protection domains, memory regions, memory windows, device
//!   memory;
//! - [`qp`], [`cq`]: queue pairs and completion queues, each with its part of the data path;
//!   [`srq`]: shared receive queues;
//! - [`ah`]: address handles; [`xrc`]: XRC domains; [`dv`]: the calls of `infiniband/urdmadv.h`;
//!   [`reason`]: why the last of them was refused;
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
mod backend;
mod context;
mod cq;
mod device;
mod dm;
mod dv;
mod early;
mod errno;
mod event;
mod ffi;
mod library;
mod loaded;
mod mr;
mod mw;
mod objects;
mod pd;
mod qp;
mod query;
mod reason;
mod srq;
mod symbols;
mod xrc;
