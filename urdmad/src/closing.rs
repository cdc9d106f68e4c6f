//! Closing of what clients have sent. The last close(2) of a file may block as long as its sender
//! chooses: a socket that lingers, a file of a FUSE file system. Neither the control thread nor the
//! data thread closes such files.
//!
//! One thread has all sockets closed, those of clients with whatever is queued in them and those
//! that are offered, without lingering and in groups, and waits for none of them ([`ending`]).
//! Descriptors of other kinds, which no client may send, are closed by a thread for each client,
//! whose place in the quota stays taken in the meantime. The control thread is woken when the
//! socket of an offer is closed.

mod ending;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::unistd::{pipe2, read, write};
use urdma_ipc::packet::PacketSocket;

use self::ending::{Ending, GroupId, Outcome, GROUP_MAX};
use crate::shared::Shared;
use crate::sockets::OfferId;

/// Refused connections that wait for their closing; beyond, no connection is accepted.
const REFUSED_MAX: usize = 256;
/// Sockets of offers of one user that are not closed yet; at this number, its clients wait.
const OFFERS_MAX: usize = 64;
/// After how long is tried again what could not be had.
const RETRY_MS: u16 = 10;

/// The control thread's end of the closing thread, which ends after this one.
#[derive(Debug)]
pub(crate) struct Closer {
    queue: Sender<Leaving>,
    /// Wakes the closing thread. Declared after the queue, which has ended when this is closed.
    bell: OwnedFd,
    pending: Pending,
    /// The offers whose sockets are closed.
    closed: Receiver<OfferId>,
}

/// What is to be closed of one client.
#[derive(Debug)]
struct Leaving {
    socket: Option<OwnedFd>,
    fds: Vec<OwnedFd>,
    /// The offer whose socket this is.
    offer: Option<OfferId>,
    place: Arc<Place>,
}

/// What is not closed yet: the user, none for a refused connection, and whether it is an offer's.
type Owner = (Option<u32>, bool);

/// All that is not closed yet.
#[derive(Debug, Clone, Default)]
struct Pending(Arc<Mutex<Vec<Owner>>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Vec<Owner>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry of [`Pending`], removed when dropped.
#[derive(Debug)]
struct Place(Pending, Owner);

impl Drop for Place {
    fn drop(&mut self) {
        let mut pending = self.0.lock();
        if let Some(index) = pending.iter().position(|owner| *owner == self.1) {
            pending.swap_remove(index);
        }
    }
}

impl Closer {
    /// Starts the closing thread.
    ///
    /// # Errors
    /// Those of starting a thread, and of pipe2(2).
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let (queue, leaving) = channel();
        let (sender, closed) = channel();
        let (rung, bell) = new_pipe()?;
        let closing = Closing {
            queue: leaving,
            bell: rung,
            closed: sender,
            shared,
            ending: Ending::start(),
            waiting: Vec::new(),
            groups: BTreeMap::new(),
            next_group: 0,
        };
        thread::Builder::new()
            .name("urdmad-close".to_owned())
            .spawn(move || closing.run())?;
        Ok(Self {
            queue,
            bell,
            pending: Pending::default(),
            closed,
        })
    }

    /// Ends a connection of user `uid`, and has its socket closed, and descriptors that the client
    /// has sent.
    pub(crate) fn close(&self, uid: u32, socket: PacketSocket, fds: Vec<OwnedFd>) {
        self.end((Some(uid), false), socket, fds);
    }

    /// Ends a connection that has no place in the quota.
    pub(crate) fn close_refused(&self, socket: PacketSocket) {
        self.end((None, false), socket, Vec::new());
    }

    /// Has the TCP socket of an offer closed, which [`Self::closed`] returns afterwards.
    pub(crate) fn close_offered(&self, uid: u32, socket: OwnedFd, offer: OfferId) {
        let place = self.take_place((Some(uid), true));
        self.put(Leaving {
            socket: Some(socket),
            fds: Vec::new(),
            offer: Some(offer),
            place,
        });
    }

    /// The offers whose sockets have been closed since the last call.
    pub(crate) fn closed(&self) -> Vec<OfferId> {
        self.closed.try_iter().collect()
    }

    fn end(&self, owner: Owner, socket: PacketSocket, fds: Vec<OwnedFd>) {
        // First, so that a client which sees the end of its connection finds the place taken.
        let place = self.take_place(owner);
        socket.end();
        self.put(Leaving {
            socket: Some(socket.into()),
            fds,
            offer: None,
            place,
        });
    }

    fn take_place(&self, owner: Owner) -> Arc<Place> {
        self.pending.lock().push(owner);
        Arc::new(Place(self.pending.clone(), owner))
    }

    fn put(&self, leaving: Leaving) {
        // The thread ends after this queue only. A full pipe has woken it.
        let _ = self.queue.send(leaving);
        let _ = write(&self.bell, &[0]);
    }

    /// The user of each client that is not closed yet.
    pub(crate) fn users(&self) -> Vec<u32> {
        let pending = self.pending.lock();
        let clients = pending.iter().filter(|(_, is_offer)| !is_offer);
        clients.filter_map(|(uid, _)| *uid).collect()
    }

    /// Whether no more connections are to be accepted, since [`REFUSED_MAX`] that were refused are
    /// not closed yet; or any, if urdmad `is_short` of descriptors: those that are free then are
    /// those that closing has freed.
    pub(crate) fn is_behind(&self, is_short: bool) -> bool {
        let most = if is_short { 1 } else { REFUSED_MAX };
        let pending = self.pending.lock();
        pending.iter().filter(|(uid, _)| uid.is_none()).count() >= most
    }

    /// Whether nothing more is to be received from the clients of a user, since [`OFFERS_MAX`] of
    /// its offered sockets are not closed yet.
    pub(crate) fn is_crowded(&self, uid: u32) -> bool {
        let pending = self.pending.lock();
        let offers = pending.iter().filter(|owner| **owner == (Some(uid), true));
        offers.count() >= OFFERS_MAX
    }
}

/// The closing thread.
#[derive(Debug)]
struct Closing {
    queue: Receiver<Leaving>,
    bell: OwnedFd,
    /// To the control thread, which `shared` wakes.
    closed: Sender<OfferId>,
    shared: Arc<Shared>,
    ending: Ending,
    /// What no thread was left for, or the kernel did not take.
    waiting: Vec<Leaving>,
    groups: BTreeMap<GroupId, Group>,
    next_group: GroupId,
}

/// Sockets of one user that are being closed.
#[derive(Debug)]
struct Group {
    offers: Vec<OfferId>,
    places: Vec<Arc<Place>>,
}

impl Closing {
    fn run(mut self) {
        while self.wait() {
            self.waiting.extend(self.queue.try_iter());
            let waiting = std::mem::take(&mut self.waiting);
            let (sockets, other): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|it| it.socket.is_some());
            let left = self.close_sockets(sockets);
            let other = left.into_iter().chain(other);
            let other = other.filter_map(|leaving| match leaving.socket {
                None if leaving.fds.is_empty() => None,
                None => close_apart(leaving),
                Some(_) => Some(leaving),
            });
            self.waiting = other.collect();
        }
    }

    /// Waits for something to close, and reports the offers whose sockets are closed. False at the
    /// end.
    fn wait(&mut self) -> bool {
        let pipes = std::iter::once(self.bell.as_fd()).chain(self.ending.closed());
        let mut fds: Vec<PollFd<'_>> = pipes.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let timeout = match self.waiting.is_empty() {
            true => PollTimeout::NONE,
            false => PollTimeout::from(RETRY_MS),
        };
        // Only the kernel's lack of memory is an error.
        let _ = poll(&mut fds, timeout);
        let of_bell = fds[0].revents().unwrap_or(PollFlags::empty());
        for group in self.ending.take_closed() {
            if let Some(group) = self.groups.remove(&group) {
                self.has_closed(group);
            }
        }
        while read(&self.bell, &mut [0; 256]).is_ok_and(|octets| octets > 0) {}
        !of_bell.contains(PollFlags::POLLHUP)
    }

    /// Frees the places of sockets that are closed, and reports their offers.
    fn has_closed(&self, group: Group) {
        // First, since the control thread looks at the places when it is woken.
        drop(group.places);
        self.report(group.offers);
    }

    fn report(&self, offers: Vec<OfferId>) {
        if offers.is_empty() {
            return;
        }
        for offer in offers {
            // The control thread ends after this only if urdmad does.
            let _ = self.closed.send(offer);
        }
        self.shared.ring_control();
    }

    /// Has sockets closed, those of each user apart from others'; returns those that are to be
    /// tried again, and what else is to be closed.
    fn close_sockets(&mut self, all: Vec<Leaving>) -> Vec<Leaving> {
        let mut users = BTreeMap::<Option<u32>, Vec<Leaving>>::new();
        for leaving in all {
            let Place(_, (uid, _)) = *leaving.place;
            users.entry(uid).or_default().push(leaving);
        }
        let mut left = Vec::new();
        for mut of_user in users.into_values() {
            while !of_user.is_empty() {
                let mut some = of_user.split_off(of_user.len().saturating_sub(GROUP_MAX));
                self.close_group(&mut some);
                left.extend(some);
            }
        }
        left
    }

    fn close_group(&mut self, all: &mut [Leaving]) {
        let sockets = all.iter_mut().filter_map(|leaving| leaving.socket.take());
        let id = self.next_group;
        let outcome = self.ending.close(id, sockets.collect());
        if let Outcome::NotTaken(sockets) = outcome {
            for (leaving, socket) in all.iter_mut().zip(sockets) {
                leaving.socket = Some(socket);
            }
            return;
        }
        self.next_group += 1;
        let offers = all.iter_mut().filter_map(|leaving| leaving.offer.take());
        let group = Group {
            offers: offers.collect(),
            places: all
                .iter()
                .map(|leaving| Arc::clone(&leaving.place))
                .collect(),
        };
        match outcome {
            Outcome::Closing => _ = self.groups.insert(id, group),
            _ => self.has_closed(group),
        }
    }
}

/// The ends of a pipe for reading and writing.
fn new_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
}

/// Closes descriptors of any kind in a thread of its own; gives them back if there is none.
fn close_apart(client: Leaving) -> Option<Leaving> {
    let client = Arc::new(Mutex::new(Some(client)));
    let taken = Arc::clone(&client);
    let take = |client: &Mutex<Option<Leaving>>| {
        let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
        client.take()
    };
    let spawned = thread::Builder::new()
        .name("urdmad-close".to_owned())
        .spawn(move || drop(take(&taken)));
    match spawned {
        Ok(_) => None,
        Err(_) => take(&client),
    }
}

#[cfg(test)]
mod tests;
