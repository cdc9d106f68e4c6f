//! Attacks by offers of channels.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::sys::memfd::MFdFlags;
use nix::sys::socket::{sendmsg, ControlMessage, MsgFlags};
use urdma_channel::ChannelConfig;
use urdma_ipc::message::Request;
use urdma_ipc::RefusalKind;
use urdma_ipc::{ControlClient, ControlError};
use urdma_waiting::WakeSocket;

use crate::attach::{page, Region, Session};
use crate::conversation::{Conversation, Outcome, CLOSING};
use crate::memory::{memfd, SEALS};
use crate::{Context, Tally, PROGRAM};

/// The last slot that an instance can have.
const LAST_SLOT: u8 = 253;
/// The conversations and the slots that one user may have: half of all, of which a sixteenth of
/// the slots is no part.
const CONVERSATIONS_OF_USER_MAX: usize = 256;
const SLOTS_OF_USER_MAX: usize = 119;

/// A slot, an offer to every other one, and another slot, as fast as possible.
pub(crate) fn churn(context: &Context) -> Result<Tally, String> {
    let region = Region::create(&ChannelConfig::default());
    let mut tally = Tally::default();
    while !context.is_over() {
        let mut session = context.attach()?;
        offer_to_all(context, &session, &region)?;
        tally.tries += await_passed(context, &mut session, &region)?;
    }
    Ok(tally)
}

/// Offers a channel to each process; the kernel takes the offers to those that stay.
fn offer_to_all(context: &Context, session: &Session, region: &Region) -> Result<(), String> {
    let fds = [&region.fd, session.page_fd()].map(AsFd::as_fd);
    // An offer to urdmad has one descriptor more, and one to itself ends the connection.
    for slot in (1..=LAST_SLOT).filter(|slot| *slot != session.slot) {
        if context.lasting_slots().any(|lasting| lasting == slot) {
            session.offer(slot, &fds)?;
        } else {
            // The kernel may refuse it, and most slots are free.
            let _ = session.client.offer_channel(slot, None, &fds);
        }
    }
    Ok(())
}

/// Waits until urdmad has passed on the offers to these slots, and offers again what it has
/// refused: it does not pass on those to a user whose processes read none.
fn await_passed_to(
    session: &mut Session,
    slots: &[u8],
    offer: impl Fn(&Session, u8) -> Result<(), String>,
) -> Result<(), String> {
    let deadline = Instant::now() + CLOSING;
    let is_meant = |slot: &u8| slots.contains(slot);
    let is_done = |session: &Session| slots.iter().all(|slot| session.passed.contains(slot));
    while !is_done(session) {
        let is_answered =
            |session: &Session| session.refused.iter().any(is_meant) || is_done(session);
        let left = deadline.saturating_duration_since(Instant::now());
        if !session.listen_until(left, is_answered) {
            let (own, passed) = (session.slot, &session.passed);
            let state = match session.is_alive() {
                true => "answers",
                false => "has disconnected this process",
            };
            return Err(format!(
                "slot {own}: of offers to {slots:?} those to {passed:?} have been passed on; \
                 urdmad {state}"
            ));
        }
        let refused = std::mem::take(&mut session.refused);
        for slot in refused.into_iter().filter(is_meant) {
            offer(session, slot)?;
        }
    }
    Ok(())
}

/// Offers a channel with a region, without a socket.
fn offer_region(session: &Session, slot: u8, region: &Region) -> Result<(), String> {
    session.offer(slot, &[&region.fd, session.page_fd()].map(AsFd::as_fd))
}

/// Waits until urdmad has passed on the offers to the processes that stay; counts all of them.
fn await_passed(context: &Context, session: &mut Session, region: &Region) -> Result<u64, String> {
    let lasting: Vec<u8> = context.lasting_slots().collect();
    await_passed_to(session, &lasting, |session, slot| {
        offer_region(session, slot, region)
    })?;
    context.announce();
    Ok(session.passed.len() as u64)
}

/// As many processes as the user may have, each of which has every other process keep a socket that
/// wakes it.
pub(crate) fn crowd(context: &Context) -> Result<Tally, String> {
    let region = Region::create(&ChannelConfig::default());
    let mut tally = Tally::default();
    let mut sessions: Vec<(Session, WakeSocket)> = Vec::new();
    while sessions.len() < SLOTS_OF_USER_MAX && !context.is_over() {
        let Ok(mut session) = Session::attach_at_once(&context.run_dir) else {
            break;
        };
        let socket = WakeSocket::create().map_err(|error| error.to_string())?;
        let lasting: Vec<u8> = context.lasting_slots().collect();
        let offer = |session: &Session, slot| {
            let waker = socket.for_peer().map_err(|error| error.to_string())?;
            let fds = [&region.fd, session.page_fd(), &waker].map(AsFd::as_fd);
            session.offer(slot, &fds)
        };
        for slot in &lasting {
            offer(&session, *slot)?;
        }
        await_passed_to(&mut session, &lasting, offer)?;
        context.announce();
        tally.tries += session.passed.len() as u64;
        sessions.push((session, socket));
    }
    Ok(tally)
}

/// The same channel again, a channel to oneself, and a second deposit.
pub(crate) fn repeats(context: &Context) -> Result<Tally, String> {
    let region = Region::create(&ChannelConfig::default());
    let mut tally = Tally::default();
    while !context.is_over() {
        for slot in context.lasting_slots() {
            let mut session = context.attach()?;
            let offer = |session: &Session, slot| offer_region(session, slot, &region);
            offer(&session, slot)?;
            await_passed_to(&mut session, &[slot], offer)?;
            offer(&session, slot)?;
            tally.refused("a second offer", session.listen(CLOSING))?;
        }
        let mut session = context.attach()?;
        offer_region(&session, session.slot, &region)?;
        tally.refused("an offer to itself", session.listen(CLOSING))?;
        let mut session = context.attach()?;
        let fds = [&region.fd, session.page_fd()].map(AsFd::as_fd);
        for _ in 0..2 {
            session.deposit(&fds)?;
        }
        tally.refused("a second deposit", session.listen(CLOSING))?;
    }
    Ok(tally)
}

/// Descriptors that are no regions, or no regions of a channel.
pub(crate) fn descriptors(context: &Context) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let good = Region::create(&ChannelConfig::default());
    let (_, good_page) = page();
    while !context.is_over() {
        let Some(slot) = context.lasting_slots().next() else {
            return Err("there is no other process".to_owned());
        };
        for bad in no_regions()? {
            for fds in [[&bad, &good_page], [&good.fd, &bad]] {
                let mut session = context.attach()?;
                session.offer(slot, &fds.map(AsFd::as_fd))?;
                tally.refused("a descriptor that is no region", session.listen(CLOSING))?;
                let mut session = context.attach()?;
                session.deposit(&fds.map(AsFd::as_fd))?;
                tally.refused("a deposit that is no region", session.listen(CLOSING))?;
            }
        }
        for count in [0, 1, 3, 200] {
            let fds = vec![good.fd.as_fd(); count];
            let closed = send_offer(context, slot, &fds);
            tally.refused("another number of descriptors", !closed?)?;
        }
        // urdmad passes on what is sealed; the other process does not use it.
        for odd in odd_regions()? {
            let mut session = context.attach()?;
            session.offer(slot, &[&odd, &good_page].map(AsFd::as_fd))?;
            session.listen(Duration::from_millis(2));
            tally.tries += 1;
        }
    }
    Ok(tally)
}

/// Descriptors that urdmad must not pass on.
fn no_regions() -> Result<Vec<OwnedFd>, String> {
    let pipe = nix::unistd::pipe().map_err(|errno| errno.to_string())?;
    let mut found = vec![pipe.0, pipe.1];
    for path in ["/", "/dev/null", "/dev/zero", "/proc/self/exe"] {
        found.push(File::open(path).map_err(|error| error.to_string())?.into());
    }
    for missing in SEALS.iter() {
        let without = SEALS.difference(missing);
        found.push(memfd(8192, without, MFdFlags::empty()).map_err(|errno| errno.to_string())?);
    }
    let endless = memfd(1 << 30, SEALS, MFdFlags::empty());
    found.push(endless.map_err(|errno| errno.to_string())?);
    let unsealed = SealFlag::empty();
    found.push(memfd(8192, unsealed, MFdFlags::empty()).map_err(|errno| errno.to_string())?);
    Ok(found)
}

/// Sealed memfds that no reader accepts: of other lengths, without a header, of hugepages.
fn odd_regions() -> Result<Vec<OwnedFd>, String> {
    let mut found = Vec::new();
    for octets in [0, 1, 27, 4096, 16 << 20] {
        found.push(memfd(octets, SEALS, MFdFlags::empty()).map_err(|errno| errno.to_string())?);
    }
    // Only where the kernel has hugepages.
    found.extend(memfd(2 << 20, SEALS, MFdFlags::MFD_HUGETLB));
    Ok(found)
}

/// Sends an offer with any number of descriptors; returns whether urdmad closed the connection.
fn send_offer(context: &Context, slot: u8, fds: &[BorrowedFd<'_>]) -> Result<bool, String> {
    const ATTACH: u64 = 1;
    let deadline = Instant::now() + CLOSING;
    loop {
        let conversation = Conversation::open(context)?;
        conversation.greet();
        conversation.ask(ATTACH, Request::Attach { want_lease: false }, &[]);
        match conversation.await_answer(ATTACH)? {
            Outcome::Answered => {
                conversation.ask(
                    2,
                    Request::OfferChannel {
                        slot,
                        generation: None,
                    },
                    fds,
                );
                return Ok(conversation.await_answer(2)? == Outcome::Ended);
            }
            Outcome::NotAdmitted if Instant::now() < deadline => {}
            _ => return Err("urdmad has not seen the offer".to_owned()),
        }
    }
}

/// As many processes as the user may have, which offer channels to all and read nothing: the
/// descriptors stay in their sockets. Each reads in the end whether its offers have been passed on.
pub(crate) fn unread(context: &Context) -> Result<Tally, String> {
    let region = Region::create(&ChannelConfig::default());
    let mut tally = Tally::default();
    while !context.is_over() {
        let mut all = Vec::new();
        while let Ok(session) = Session::attach_at_once(&context.run_dir) {
            all.push(session);
        }
        let mut offerers = 0;
        for session in &all {
            offer_to_all(context, session, &region)?;
            offerers += 1;
            if context.is_over() {
                break;
            }
        }
        // The others meet in the meantime.
        std::thread::sleep(Duration::from_millis(500));
        for session in all.iter_mut().take(offerers) {
            tally.tries += await_passed(context, session, &region)?;
            session.given.clear();
        }
    }
    Ok(tally)
}

/// More slots, and more conversations without one, than a user may have.
pub(crate) fn quotas(context: &Context) -> Result<Tally, String> {
    let mut tally = Tally::default();
    while !context.is_over() || tally.tries < 2 {
        let (want_slots, most) = match tally.tries % 2 {
            0 => (true, SLOTS_OF_USER_MAX),
            _ => (false, CONVERSATIONS_OF_USER_MAX),
        };
        let mut held: Vec<ControlClient> = Vec::new();
        let refusal = loop {
            if held.len() > most {
                return Err(format!("one user has {} conversations", held.len()));
            }
            let opened = ControlClient::connect(&context.run_dir, PROGRAM);
            let attached = opened.and_then(|client| {
                if want_slots {
                    client.attach(false)?;
                }
                Ok(client)
            });
            match attached {
                Ok(client) => held.push(client),
                Err(ControlError::Refused(refusal)) => break refusal,
                Err(error) => return Err(error.to_string()),
            }
        };
        context.announce();
        let is_limit = matches!(
            refusal.kind,
            RefusalKind::QuotaExceeded | RefusalKind::NoFreeSlot
        );
        tally.refused("a place beyond the quota", !is_limit)?;
    }
    Ok(tally)
}

/// Keeps as many descriptors on their way as the kernel lets this user, so that other processes of
/// the user can send none, and closes them, in turn.
pub(crate) fn jam(context: &Context) -> Result<Tally, String> {
    const PART: Duration = Duration::from_millis(10);
    let file = File::open("/dev/null").map_err(|error| error.to_string())?;
    let fds = vec![file.as_raw_fd(); 253];
    let rights = [ControlMessage::ScmRights(&fds)];
    let mut tally = Tally::default();
    while !context.is_over() {
        let mut pairs = Vec::new();
        let refused = loop {
            let pair = UnixStream::pair().map_err(|error| error.to_string())?;
            let refused = loop {
                let (octets, flags) = ([IoSlice::new(b"x")], MsgFlags::MSG_DONTWAIT);
                let sent = sendmsg::<()>(pair.0.as_raw_fd(), &octets, &rights, flags, None);
                if let Err(errno) = sent {
                    break errno;
                }
            };
            pairs.push(pair);
            if refused != Errno::EAGAIN {
                break refused;
            }
        };
        if refused != Errno::ETOOMANYREFS {
            return Err(format!("the kernel does not limit descriptors: {refused}"));
        }
        context.announce();
        tally.tries += 1;
        std::thread::sleep(PART);
        drop(pairs);
        std::thread::sleep(PART);
    }
    Ok(tally)
}
