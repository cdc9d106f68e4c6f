//! What the process has: sockets, queues and registered memory.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use urdma_exs::LINGER;

use crate::errno::{lock, Errno};
use crate::operation::{Event, Registered};
use crate::queue::Queue;
use crate::sockets::Sockets;

/// The library in a process.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) sockets: Arc<Sockets>,
    queues: RwLock<HashMap<RawFd, Arc<Queue<Event>>>>,
    memory: RwLock<HashMap<usize, Arc<Registered>>>,
    next_mhandle: AtomicUsize,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// A child of a fork has no thread.
    process: u32,
}

impl Library {
    fn new() -> Result<Self, Errno> {
        let (sockets, thread) = Sockets::start()?;
        Ok(Self {
            sockets,
            queues: RwLock::default(),
            memory: RwLock::default(),
            next_mhandle: AtomicUsize::new(1),
            thread: Mutex::new(Some(thread)),
            process: process::id(),
        })
    }

    /// The library of this process, which the first call makes.
    pub(crate) fn of_process() -> Result<&'static Self, Errno> {
        static LIBRARY: Mutex<Option<&'static Library>> = Mutex::new(None);
        let mut library = lock(&LIBRARY);
        match *library {
            Some(library) => Ok(library),
            None => {
                let made: &'static Self = Box::leak(Box::new(Self::new()?));
                Ok(*library.insert(made))
            }
        }
    }

    pub(crate) fn create_queue(&self, depth: usize) -> Result<RawFd, Errno> {
        let queue = Queue::new(depth)?;
        let number = queue.number();
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        queues.insert(number, queue);
        Ok(number)
    }

    pub(crate) fn queue(&self, number: RawFd) -> Result<Arc<Queue<Event>>, Errno> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let found = queues.get(&number).ok_or(Errno(libc::EBADF))?;
        Ok(Arc::clone(found))
    }

    pub(crate) fn delete_queue(&self, number: RawFd) -> Result<(), Errno> {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        queues.get(&number).ok_or(Errno(libc::EBADF))?.delete()?;
        queues.remove(&number);
        Ok(())
    }

    pub(crate) fn register(&self, registered: Registered) -> usize {
        let mhandle = self.next_mhandle.fetch_add(1, Ordering::Relaxed);
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        memory.insert(mhandle, Arc::new(registered));
        mhandle
    }

    pub(crate) fn memory(&self, mhandle: usize) -> Result<Arc<Registered>, Errno> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        let found = memory.get(&mhandle).ok_or(Errno(libc::EINVAL))?;
        Ok(Arc::clone(found))
    }

    /// Ends a registration: EBUSY while an operation uses it.
    pub(crate) fn deregister(&self, mhandle: usize) -> Result<(), Errno> {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        let found = memory.get(&mhandle).ok_or(Errno(libc::EINVAL))?;
        // Operations get it from the table only, which is locked.
        if Arc::strong_count(found) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        let removed = memory.remove(&mhandle);
        drop(memory);
        if let Some(registered) = removed {
            self.sockets.forget_memory(&registered.memory);
        }
        Ok(())
    }

    /// The end of the process: closed sockets tell their peers, then the thread ends, before the
    /// libraries that it calls do.
    pub(crate) fn end(&self) {
        if self.process != process::id() {
            return;
        }
        self.sockets.wait_for_ends(LINGER);
        self.sockets.reactor.stop();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic of the thread has ended the process.
            let _ = thread.join();
        }
    }
}
