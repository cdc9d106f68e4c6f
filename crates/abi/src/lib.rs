//! The C interfaces between urdma's shared libraries.
//!
//! - [`front`]: the table through which the stand-in calls the provider;
//! - [`lease`]: the table through which the engine calls `liburdma_lease.so`;
//! - [`port`]: the table through which urdmad calls `liburdma_dpdk.so`;
//! - [`dv`]: the functions of the provider that `liburdmadv.so` calls;
//! - [`address`]: socket addresses that a C program passes;
//! - [`library`]: loading of a library that provides a table;
//! - [`next`]: the functions behind those that a preloaded library replaces;
//! - [`spared`]: descriptors of a library that stay open when the program closes descriptors that
//!   it did not open;
//! - [`cancel`]: thread cancellation, which each library disables while its own code runs;
//! - [`event_socket`](event_socket::event_socket): the socket pair of a completion channel;
//! - [`signals`]: signals, whose handlers do not run while a thread holds locks of a library;
//! - [`handlers`]: these handlers, which are put off until then;
//! - [`faults`]: the handler of SIGSEGV of a library that repairs some faults.

#![allow(unsafe_code)]

pub mod address;
pub mod cancel;
pub mod dv;
pub mod event_socket;
pub mod faults;
pub mod front;
pub mod handlers;
pub mod lease;
pub mod library;
pub mod next;
pub mod port;
pub mod signals;
pub mod spared;
