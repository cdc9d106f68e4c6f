//! Queue pairs: their structure and calls, and the data path of requests.
//!
//! | file | what it holds |
//! |---|---|
//! | `structure` | what the application's pointer leads to |
//! | `layout` | libibverbs' structure of a queue pair, whose layout depends on the version |
//! | `calls` | creation, change, query, destruction |
//! | `attributes`, `transitions` | `ibv_qp_attr` checked and translated; the state table |
//! | `datagram`, `dc`, `rnic` | the differences of the other services, and of an RNIC |
//! | `post` | the data path: each request is validated, then executed |
//! | `request` | flags, lists and inline data of requests |
//! | `post_ex`, `builder` | requests that are built by calls |

pub(super) mod attributes;
pub(super) mod builder;
pub(super) mod calls;
pub(super) mod datagram;
pub(super) mod dc;
pub(super) mod layout;
pub(super) mod post;
pub(super) mod post_ex;
pub(super) mod request;
pub(super) mod rnic;
pub(super) mod structure;
pub(super) mod transitions;
