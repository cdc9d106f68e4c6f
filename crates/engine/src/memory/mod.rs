//! Copies between packets and the memory of the application.
//!
//! | file | what it holds |
//! |---|---|
//! | `host` | what a connection asks of the process: access checks and copies |
//! | `address` | addresses of the application |
//! | `checked_copy` | copies of memory whose pages may be missing |
//! | `populate` | whether memory is mapped |

pub(crate) mod address;
pub(crate) mod checked_copy;
pub(crate) mod host;
pub(crate) mod populate;
