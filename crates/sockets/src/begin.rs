//! The begin of a call on a descriptor: who does it, and when rings are used first.

use std::sync::atomic::Ordering::SeqCst;

use urdma_socket_switch::join;

use crate::connection::Connection;
use crate::host::Call;
use crate::octets::Window;
use crate::sets;
use crate::table::{Cell, Seen, State};

/// Who does a call that has begun.
#[derive(Clone, Copy)]
pub(crate) enum Begun {
    /// The word from before the call.
    Kernel(Seen),
    Rings(&'static Connection),
}

impl Begun {
    /// Ends the call.
    #[inline]
    pub(crate) fn leave(self, cell: &Cell) {
        match self {
            Self::Kernel(entered) => cell.leave_since(entered),
            Self::Rings(_) => cell.leave(),
        }
    }
}

/// Begins a call, which uses rings from now on if they are there and no other call is in progress.
pub(crate) fn begin(cell: &'static Cell) -> Begun {
    let seen = cell.enter();
    if seen.state() == State::Ready && seen.users() == 0 {
        use_rings(cell);
    }
    begun(cell, seen, cell.seen().state() == State::Rings)
}

/// Begins a call on a socket that has no rings, and gets none until the call leaves; `None`, and
/// nothing has begun, on others. `seen` is its word, and the result that from before the call. Most
/// calls of short connections are such.
#[inline]
pub(crate) fn begin_without_rings(cell: &'static Cell, seen: Seen) -> Option<Seen> {
    seen.has_no_rings().then(|| begin_unless_rings(cell))?
}

/// The same, if the socket has just had none.
#[inline]
pub(crate) fn begin_unless_rings(cell: &'static Cell) -> Option<Seen> {
    // Rings are used first while no call is in progress.
    let entered = cell.enter();
    if entered.has_no_rings() {
        return Some(entered);
    }
    cell.leave_since(entered);
    None
}

/// Begins a call without a change of what is used.
pub(crate) fn begin_as_is(cell: &'static Cell) -> Begun {
    let seen = cell.enter();
    begun(cell, seen, seen.state() == State::Rings)
}

fn begun(cell: &'static Cell, entered: Seen, has_rings: bool) -> Begun {
    if !has_rings {
        return Begun::Kernel(entered);
    }
    // SAFETY: the state was `Rings` after this call had entered, so the connection stays until it
    // leaves.
    match unsafe { cell.connection().as_ref() } {
        Some(connection) => Begun::Rings(connection),
        None => Begun::Kernel(entered),
    }
}

/// Uses rings if this call is the only one.
fn use_rings(cell: &'static Cell) {
    let seen = cell.seen();
    if seen.state() == State::Ready && seen.users() == 1 && cell.change(seen, State::Rings) {
        if let Begun::Rings(connection) = begun(cell, seen, true) {
            joined(cell, connection);
        }
    }
}

/// This end uses rings, if its set can look at them.
pub(crate) fn joined(cell: &Cell, connection: &Connection) {
    let nothing = Window::NONE;
    if sets::join(connection, cell) && !connection.has_joined.swap(true, SeqCst) {
        join(&Call::new(connection, &nothing, 0));
    }
}
