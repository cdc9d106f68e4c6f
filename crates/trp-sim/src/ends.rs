//! Two connected ends, whatever joins them.

use proto_trp::conn::{Connection, PostError, SendWr, Time};

use super::host::SimHost;

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

    /// Posts a send request to an end that is alive.
    ///
    /// # Errors
    /// It was not accepted; [`PostError::InvalidState`] if the end is not alive.
    fn post_send(&mut self, end: usize, wr: &SendWr<'_>) -> Result<(), PostError> {
        let now = self.now();
        let (conn, host) = self.alive(end).ok_or(PostError::InvalidState)?;
        conn.post_send(|| now, wr, host).map(|_| ())
    }
}
