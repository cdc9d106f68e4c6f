//! The completion channels and files of asynchronous events that are open, and their events.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urdma_abi::front::take;
use urdma_abi::spared;
use urdma_engine::{CompletionChannel, Driven};
use urdma_waiting::unread::Taken;

use super::answer::answer;

type Channels = HashMap<c_int, Arc<CompletionChannel>>;

/// Completion channels and asynchronous events by the descriptor that the application reads.
static CHANNELS: Mutex<Option<Channels>> = Mutex::new(None);

fn channels() -> MutexGuard<'static, Option<Channels>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The completion channel that the application reads from `read_fd`.
pub(crate) fn channel(read_fd: c_int) -> Option<Arc<CompletionChannel>> {
    channels().as_ref()?.get(&read_fd).cloned()
}

/// The engine of the channel that the application reads from `read_fd`.
pub(super) fn engine_of_channel(read_fd: c_int) -> Option<Arc<dyn Driven>> {
    channel(read_fd)?.engine()
}

/// All open channels.
pub(super) fn all() -> Vec<Arc<CompletionChannel>> {
    let channels = channels();
    channels.iter().flat_map(HashMap::values).cloned().collect()
}

/// The application reads asynchronous events from `read_fd`, and closes it. Without the stand-in,
/// which learns of the close, no thread drives the engine while it waits for one.
pub(crate) fn enter_async_events(read_fd: c_int, channel: &Arc<CompletionChannel>) {
    if spared::mark_async_events(read_fd) {
        channels()
            .get_or_insert_with(HashMap::new)
            .insert(read_fd, Arc::clone(channel));
    }
}

pub(super) unsafe extern "C" fn channel_open(read_fd: c_int, write_fd: c_int) -> i64 {
    answer(|| {
        // SAFETY: a call that succeeds takes ownership of the descriptor, and this one cannot fail
        // from here on.
        let channel = CompletionChannel::new(unsafe { OwnedFd::from_raw_fd(write_fd) });
        channels()
            .get_or_insert_with(HashMap::new)
            .insert(read_fd, channel);
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn channel_close(read_fd: c_int) -> i64 {
    answer(|| {
        let closed = channels().as_mut().and_then(|all| all.remove(&read_fd));
        Ok(closed.map_or(0, |channel| {
            channel.close();
            Arc::into_raw(channel) as i64
        }))
    })
}

pub(super) unsafe extern "C" fn channel_release(closed: i64) {
    // No address is negative, as an errno is.
    if closed > 0 {
        // SAFETY: `channel_close` has returned it, and this is its last use.
        drop(unsafe { Arc::from_raw(closed as *const CompletionChannel) });
    }
}

pub(super) unsafe extern "C" fn channel_has_read(read_fd: c_int) {
    answer(|| {
        if let Some(channel) = channel(read_fd) {
            channel.has_read();
        }
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn channel_take(read_fd: c_int, event: *mut u64) -> i64 {
    answer(|| {
        let Some(channel) = channel(read_fd) else {
            return Ok(take::NOT_IN_MEMORY);
        };
        Ok(match channel.unread().take() {
            Taken::Event(taken) => {
                // SAFETY: the stand-in passes a word of its own.
                unsafe { event.write(taken) };
                take::TAKEN
            }
            Taken::InSocket => take::NOT_IN_MEMORY,
            Taken::Nothing => take::NOTHING,
        })
    })
}

pub(super) unsafe extern "C" fn channel_has_received(read_fd: c_int) {
    answer(|| {
        if let Some(channel) = channel(read_fd) {
            channel.unread().has_received();
        }
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn send_events() {
    answer(|| {
        urdma_waiting::local_events::send_local_events();
        Ok(0)
    });
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn channel_opened_is_found_until_it_is_closed() {
        let (reader, writer) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        let read_fd = reader.as_raw_fd();
        assert!(channel(read_fd).is_none());
        // SAFETY: both descriptors are open; ownership of the second is passed.
        assert_eq!(unsafe { channel_open(read_fd, writer.into_raw_fd()) }, 0);
        assert!(channel(read_fd).is_some());
        // SAFETY: no precondition.
        let closed = unsafe { channel_close(read_fd) };
        assert!(channel(read_fd).is_none());
        let mut octet = [0];
        let mut read = || (&reader).read(&mut octet).map_err(|error| error.kind());
        assert_eq!(read(), Err(ErrorKind::WouldBlock), "it has not ended yet");
        // SAFETY: it was not passed before.
        unsafe { channel_release(closed) };
        assert_eq!(read(), Ok(0));
        // SAFETY: no precondition.
        assert_eq!(unsafe { channel_close(read_fd) }, 0);
    }
}
