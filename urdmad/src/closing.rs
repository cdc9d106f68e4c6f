//! Closing of what clients have sent. The last close(2) of a file may block as long as its sender
//! chooses: a socket that lingers, a file of a FUSE file system. Neither the control thread nor the
//! data thread closes such files.
//!
//! The socket of a client is closed with whatever is queued in it. One thread closes the sockets of
//! all clients while another one that is about to end has copies of them: the kernel closes the
//! files of a thread that ends without lingering. Descriptors that urdmad has received are closed
//! by a thread for each client, whose place in the quota stays taken in the meantime. The control
//! thread is woken when the socket of an offer is closed.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use urdma_ipc::packet::PacketSocket;

use crate::shared::Shared;
use crate::sockets::OfferId;

/// Refused connections that wait for their closing; beyond, no connection is accepted.
const REFUSED_MAX: usize = 256;

/// The control thread's end of the closing thread.
#[derive(Debug)]
pub(crate) struct Closer {
    queue: Sender<Leaving>,
    pending: Pending,
    /// The offers whose sockets are closed.
    closed: Receiver<OfferId>,
}

/// How a thread reports that the socket of an offer is closed.
#[derive(Debug, Clone)]
struct Report {
    closed: Sender<OfferId>,
    shared: Arc<Shared>,
}

impl Report {
    fn closed(&self, offer: OfferId) {
        // The control thread ends after this only if urdmad does.
        let _ = self.closed.send(offer);
        self.shared.ring_control();
    }
}

/// What is to be closed of one client.
#[derive(Debug)]
struct Leaving {
    socket: Option<PacketSocket>,
    fds: Vec<OwnedFd>,
    /// The offer whose socket is among the descriptors.
    offer: Option<OfferId>,
    /// Declared last: the place is free when all of the above is closed.
    _place: Place,
}

/// The user of each client that is not closed yet, none for a refused connection.
#[derive(Debug, Clone, Default)]
struct Pending(Arc<Mutex<Vec<Option<u32>>>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<u32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry of [`Pending`], removed when dropped.
#[derive(Debug)]
struct Place(Pending, Option<u32>);

impl Drop for Place {
    fn drop(&mut self) {
        let mut pending = self.0.lock();
        if let Some(index) = pending.iter().position(|uid| *uid == self.1) {
            pending.swap_remove(index);
        }
    }
}

impl Closer {
    /// Starts the closing thread.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let (queue, leaving) = channel();
        let (sender, closed) = channel();
        let report = Report {
            closed: sender,
            shared,
        };
        thread::Builder::new()
            .name("urdmad-close".to_owned())
            .spawn(move || close_all(&leaving, &report))?;
        Ok(Self {
            queue,
            pending: Pending::default(),
            closed,
        })
    }

    /// Ends a connection of user `uid`, and has its socket closed, and descriptors that the client
    /// has sent.
    pub(crate) fn close(&self, uid: u32, socket: Option<PacketSocket>, fds: Vec<OwnedFd>) {
        self.put(Some(uid), socket, fds, None);
    }

    /// Has the socket of an offer closed, which [`Self::closed`] returns afterwards.
    pub(crate) fn close_offered(&self, uid: u32, socket: OwnedFd, offer: OfferId) {
        self.put(Some(uid), None, vec![socket], Some(offer));
    }

    /// The offers whose sockets have been closed since the last call.
    pub(crate) fn closed(&self) -> Vec<OfferId> {
        self.closed.try_iter().collect()
    }

    /// Ends a connection that has no place in the quota.
    pub(crate) fn close_refused(&self, socket: PacketSocket) {
        self.put(None, Some(socket), Vec::new(), None);
    }

    fn put(
        &self,
        uid: Option<u32>,
        socket: Option<PacketSocket>,
        fds: Vec<OwnedFd>,
        offer: Option<OfferId>,
    ) {
        // First, so that a client which sees the end of its connection finds the place taken.
        self.pending.lock().push(uid);
        if let Some(socket) = &socket {
            socket.end();
        }
        let leaving = Leaving {
            socket,
            fds,
            offer,
            _place: Place(self.pending.clone(), uid),
        };
        // The thread ends after this queue only.
        let _ = self.queue.send(leaving);
    }

    /// The user of each client that is not closed yet.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.pending.lock().iter().copied().flatten().collect()
    }

    /// Whether so many refused connections are not closed yet that no more are to be accepted.
    pub(crate) fn is_behind(&self) -> bool {
        let pending = self.pending.lock();
        pending.iter().filter(|uid| uid.is_none()).count() >= REFUSED_MAX
    }
}

/// The closing thread.
fn close_all(queue: &Receiver<Leaving>, report: &Report) {
    let mut waiting: Vec<Leaving> = Vec::new();
    while let Ok(first) = queue.recv() {
        waiting.push(first);
        waiting.extend(queue.try_iter());
        let sockets = waiting.iter_mut().filter_map(|client| client.socket.take());
        close_sockets(sockets.collect());
        waiting.retain(|client| !client.fds.is_empty());
        let close = |client| close_apart(client, report.clone());
        waiting = waiting.into_iter().filter_map(close).collect();
    }
}

/// Closes sockets without lingering for what is queued in them, if the kernel can give a thread a
/// descriptor table of its own (Linux 5.9).
fn close_sockets(sockets: Vec<PacketSocket>) {
    if sockets.is_empty() {
        return;
    }
    let (copied, is_copied) = sync_channel::<()>(1);
    let (closed, are_closed) = sync_channel::<()>(0);
    let ending = thread::Builder::new()
        .name("urdmad-end".to_owned())
        .spawn(move || {
            let has_copies = copy_descriptor_table();
            drop(copied);
            if has_copies {
                let _ = are_closed.recv();
            }
        });
    if ending.is_ok() {
        let _ = is_copied.recv();
    }
    drop(sockets);
    drop(closed);
}

/// Gives the calling thread a descriptor table of its own, with copies of all descriptors; whether
/// that succeeded.
fn copy_descriptor_table() -> bool {
    const BEYOND_ALL: libc::c_uint = libc::c_uint::MAX;
    // SAFETY: the call takes three integers, closes no descriptor that exists, and touches no
    // memory.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            BEYOND_ALL,
            BEYOND_ALL,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    rc == 0
}

/// Closes descriptors of any kind in a thread of its own; gives them back if there is none.
fn close_apart(client: Leaving, report: Report) -> Option<Leaving> {
    let client = Arc::new(Mutex::new(Some(client)));
    let taken = Arc::clone(&client);
    let take = |client: &Mutex<Option<Leaving>>| {
        let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
        client.take()
    };
    let close = move || {
        let client = take(&taken);
        let offer = client.as_ref().and_then(|client| client.offer);
        drop(client);
        if let Some(offer) = offer {
            report.closed(offer);
        }
    };
    let spawned = thread::Builder::new()
        .name("urdmad-close".to_owned())
        .spawn(close);
    match spawned {
        Ok(_) => None,
        Err(_) => take(&client),
    }
}
