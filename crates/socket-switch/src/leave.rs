//! The calls that begin, suspend and end the use of rings.

use crate::block::{End, Word, TCP};
use crate::fault::{has, Fault};
use crate::host::{Event, Host, Refused, Waits};
use crate::lock::{lock_reader, lock_writer, release_locks, unlock, wake_sleepers};
use crate::mode::{downgrade, is_ring_wanted};
use crate::transfer::{has_octets, stamp};

/// How a demotion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demotion {
    /// Both directions are TCP's, with every octet that was sent.
    Done,
    /// The peer was killed and has left octets in the ring, which cannot get into TCP any more.
    /// A program that reads by TCP would miss them: the driver resets the connection.
    Stranded,
}

/// The first process of an end that has the shared words: the end may use rings.
pub fn join<H: Host>(h: &H) {
    h.add(Word::Refusals(h.end()), 1_u64.wrapping_neg());
}

/// Ends a demotion that was temporary.
pub fn resume<H: Host>(h: &H) {
    join(h);
}

/// Moves both directions to TCP, with every octet that is in a ring, and keeps them there until
/// [`resume`]: before exec of a program without the library, before a descriptor is given to such a
/// program (both without `resume`), and around calls that only the kernel can do. The driver waits
/// in [`Host::wait`]: a call that is repeated would refuse once more.
///
/// # Errors
/// [`Waits`]
pub fn demote<H: Host>(h: &H) -> Result<Demotion, Waits> {
    let me = h.end();
    let is_late = has(Fault::RefuseLate);
    if !is_late {
        h.add(Word::Refusals(me), 1);
    }
    settle(h)?;
    let demotion = if has(Fault::OneDirection) {
        Demotion::Done
    } else {
        demote_incoming(h)?
    };
    if is_late {
        h.add(Word::Refusals(me), 1);
    }
    Ok(demotion)
}

/// Waits until the incoming direction is TCP's.
fn demote_incoming<H: Host>(h: &H) -> Result<Demotion, Waits> {
    let me = h.end();
    while !is_incoming_tcp(h) {
        if h.is_peer_gone() {
            // The peer may have handed back its octets before it ended.
            return Ok(if is_incoming_tcp(h) {
                Demotion::Done
            } else {
                Demotion::Stranded
            });
        }
        h.store(Word::ReaderSleeps(me.peer()), 1);
        h.call_agents(me.peer());
        if h.load(Word::Mode(me.peer())) != TCP {
            h.wait(Event::Peer)?;
        }
    }
    Ok(Demotion::Done)
}

/// Whether the incoming direction is TCP's; it becomes so here if the ring is empty. Octets in the
/// ring have to come from the peer, which has the socket that sends.
fn is_incoming_tcp<H: Host>(h: &H) -> bool {
    let peer = h.end().peer();
    if !has(Fault::DemoteUnlocked) {
        lock_writer(h, peer);
    }
    lock_reader(h, peer);
    let head = h.load(Word::Head(peer));
    let is_empty = head == h.load(Word::Tail(peer));
    if is_empty {
        h.store(Word::Mode(peer), TCP);
        // Another thread of this end may wait for the mode.
        wake_sleepers(h, Word::ReaderSleeps(peer), h.end());
    }
    unlock(h, Word::Reader(peer));
    if !has(Fault::DemoteUnlocked) {
        unlock(h, Word::Writer(peer));
    }
    is_empty
}

/// What an agent of each process does when it starts, when the peer asks ([`Host::call_agents`]),
/// and when a process of either end has ended: releases locks of threads that were killed, and
/// gives the octets of the outgoing ring to TCP if one of the ends refuses rings.
///
/// # Errors
/// [`Waits`]
pub fn attend<H: Host>(h: &H) -> Result<(), Waits> {
    release_locks(h);
    if !is_ring_wanted(h) && !has(Fault::DeafAgent) {
        settle(h)?;
    }
    Ok(())
}

/// Whether a connection whose peer refuses rings is TCP's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The peer does not refuse rings, or a direction is its ring's.
    No,
    /// A sender that may have seen no refusal is at work.
    NotYet,
    /// Both directions are TCP's, and stay so until the peer calls [`resume`].
    Yes,
}

/// Whether both directions are TCP's for as long as the peer refuses rings. No lock is waited for:
/// a sender that takes its lock when the refusal is there does not upgrade, so each direction is
/// looked at when its lock has been seen free since.
pub fn is_over<H: Host>(h: &H) -> Over {
    if h.load(Word::Refusals(h.end().peer())) == 0 {
        return Over::No;
    }
    for sender in [End::First, End::Second] {
        if h.load(Word::Writer(sender)) != 0 {
            return Over::NotYet;
        }
        if h.load(Word::Mode(sender)) != TCP {
            return Over::No;
        }
    }
    Over::Yes
}

/// Gives the octets of the outgoing ring to TCP.
///
/// # Errors
/// [`Waits`]
pub fn settle<H: Host>(h: &H) -> Result<(), Waits> {
    while hand_back(h).is_err() {
        h.wait(Event::Writable)?;
    }
    Ok(())
}

fn hand_back<H: Host>(h: &H) -> Result<(), Refused> {
    lock_writer(h, h.end());
    let result = downgrade(h);
    unlock(h, Word::Writer(h.end()));
    result
}

/// How the kernel is to close the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// By an end of the stream, unless TCP has a reason to reset it.
    End,
    /// By a reset: the incoming ring has octets that are not read.
    Reset,
}

/// What close(2) and exit(3) do before the kernel's: give TCP the octets of the outgoing ring. As
/// far as TCP has room, if the connection is reset then.
///
/// # Errors
/// [`Waits`]
pub fn close<H: Host>(h: &H) -> Result<Closing, Waits> {
    let me = h.end();
    h.store(Word::Closes(me), 1);
    stamp(h);
    loop {
        let result = hand_back(h);
        if has_octets(h) && !has(Fault::CloseIsEnd) {
            return Ok(Closing::Reset);
        }
        if result.is_ok() {
            return Ok(Closing::End);
        }
        h.wait(Event::Writable)?;
    }
}

/// shutdown(2) with SHUT_WR. The octets of the ring precede the end in TCP.
///
/// # Errors
/// [`Waits`]
pub fn shutdown_write<H: Host>(h: &H) -> Result<(), Waits> {
    let me = h.end();
    loop {
        lock_writer(h, me);
        let result = if has(Fault::EndOverRing) {
            Ok(())
        } else {
            downgrade(h)
        };
        if result.is_ok() {
            h.tcp_shutdown_write();
        }
        unlock(h, Word::Writer(me));
        if result.is_ok() {
            return Ok(());
        }
        h.wait(Event::Writable)?;
    }
}
