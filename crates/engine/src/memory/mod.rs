//! Copies between packets and the memory of the application.
//!
//! | file | what it holds |
//! |---|---|
//! | `host` | what a connection asks of the process: access checks and copies (unsafe) |
//! | `address` | addresses of the application (unsafe) |
//! | `checked_copy` | copies of memory whose pages may be missing (unsafe) |
//! | `populate` | whether memory is mapped (unsafe) |

pub(crate) mod address;
pub(crate) mod checked_copy;
pub(crate) mod host;
pub(crate) mod populate;
