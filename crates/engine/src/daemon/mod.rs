//! The process' side of urdmad.
//!
//! | file | what it holds |
//! |---|---|
//! | `attach` | construction of engines, and the engines of the process |
//! | `lanes` | further engines of a process, for threads that share no lock |
//! | `control` | the thread that receives events from urdmad |
//! | `report` | what a process reports of itself to urdmad |

pub(crate) mod attach;
pub(crate) mod control;
mod lanes;
pub(crate) mod report;
