//! Waking the data thread, which sleeps on the bells of processes, when a datagram arrives.
//!
//! A thread waits until the sockets are readable, and then rings the data thread's own bell. It
//! watches only while the data thread sleeps: [`Watcher::arm`] lets it find one event, and a socket
//! that is readable by then is one.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The events' data.
const ARRIVED: u64 = 0;
const END: u64 = 1;

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    epoll: Arc<Epoll>,
    end: EventFd,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the thread, which calls `wake` when `sockets` becomes readable.
    ///
    /// # Errors
    /// As epoll_create1(2), eventfd(2), and pthread_create(3).
    pub(super) fn start(
        sockets: impl AsFd,
        wake: Box<dyn Fn() + Send>,
    ) -> Result<Self, std::io::Error> {
        let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        let end = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&end, EpollEvent::new(EpollFlags::EPOLLIN, END))?;
        epoll.add(sockets, once(EpollFlags::empty()))?;
        let watched = Arc::clone(&epoll);
        let thread = thread::Builder::new()
            .name("urdmad-sockets".to_owned())
            .spawn(move || watch(&watched, &wake))?;
        Ok(Self {
            epoll,
            end,
            thread: Some(thread),
        })
    }

    /// Wakes the data thread once when something arrives, or has arrived; false if it cannot.
    pub(super) fn arm(&self, sockets: impl AsFd) -> bool {
        let mut event = once(EpollFlags::EPOLLIN);
        self.epoll.modify(sockets, &mut event).is_ok()
    }

    /// Does not wake it any more.
    pub(super) fn disarm(&self, sockets: impl AsFd) {
        let mut event = once(EpollFlags::empty());
        // A wake-up in vain does no harm.
        let _ = self.epoll.modify(sockets, &mut event);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.end.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn once(flags: EpollFlags) -> EpollEvent {
    EpollEvent::new(flags | EpollFlags::EPOLLONESHOT, ARRIVED)
}

fn watch(epoll: &Epoll, wake: &dyn Fn()) {
    let mut events = [EpollEvent::empty(); 2];
    loop {
        match epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(found) if events[..found].iter().any(|event| event.data() == END) => return,
            Ok(_) => wake(),
            Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::sync::mpsc::{channel, RecvTimeoutError};
    use std::time::Duration;

    #[test]
    fn datagrams_wake_once_for_each_time_that_the_watcher_is_armed() {
        const SHORT: Duration = Duration::from_millis(50);
        const LIMIT: Duration = Duration::from_secs(10);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (wake, woken) = channel();
        let wake = Box::new(move || wake.send(()).unwrap());
        let watcher = Watcher::start(&socket, wake).unwrap();
        let send = || socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        send();
        assert_eq!(woken.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
        // What has arrived before counts.
        assert!(watcher.arm(&socket));
        woken.recv_timeout(LIMIT).unwrap();
        send();
        assert_eq!(woken.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
        socket.recv(&mut [0; 8]).unwrap();
        socket.recv(&mut [0; 8]).unwrap();
        assert!(watcher.arm(&socket));
        watcher.disarm(&socket);
        send();
        assert_eq!(woken.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
    }
}
