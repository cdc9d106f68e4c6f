//! Two connected ends, whatever joins them.

use super::host::SimHost;
use crate::conn::{Connection, Time};

/// Two connected ends, as applications see them.
pub trait Ends {
    /// The virtual clock.
    fn now(&self) -> Time;

    /// The memory, completions and events of an end.
    fn host(&self, end: usize) -> &SimHost;

    /// The memory, completions and events of an end.
    fn host_mut(&mut self, end: usize) -> &mut SimHost;

    /// Connection and host of an end; `None` if its process was killed or its queue pair destroyed.
    fn alive(&mut self, end: usize) -> Option<(&mut Connection, &mut SimHost)>;
}
