//! What epoll sets of the application have of ours.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use urdma_engine::{CompletionChannel, Driven};
use urdma_waiting::unread::Member;

use super::answer::answer;
use super::channels::channel;
use super::cm::engine_of_cm;

/// `EPOLLIN` as the stand-in passes it.
const EPOLLIN: u32 = libc::EPOLLIN.cast_unsigned();

/// What an epoll set of the application has of ours.
#[derive(Default)]
struct Set {
    /// Those that are reported when they have an event.
    channels: Vec<Weak<CompletionChannel>>,
    /// The handles of files of rdma_cm that were added.
    cm_files: Vec<i64>,
}

/// Sets by their descriptors.
static SETS: Mutex<Option<HashMap<c_int, Set>>> = Mutex::new(None);

fn sets() -> MutexGuard<'static, Option<HashMap<c_int, Set>>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The engine of a channel of a set, or of a file of rdma_cm if there is no channel; and whether
/// there is one.
pub(super) fn engine_of_set(set: c_int) -> (Option<Arc<dyn Driven>>, bool) {
    let mut sets = sets();
    let Some(set) = sets.as_mut().and_then(|sets| sets.get_mut(&set)) else {
        return (None, false);
    };
    while let Some(first) = set.channels.first() {
        match first.upgrade() {
            Some(channel) => return (channel.engine(), true),
            None => set.channels.swap_remove(0),
        };
    }
    let engine = set.cm_files.iter().find_map(|handle| engine_of_cm(*handle));
    (engine, false)
}

pub(super) unsafe extern "C" fn set_join(set: c_int, read_fd: c_int, events: u32, data: u64) {
    answer(|| {
        if let Some(channel) = channel(read_fd) {
            let mut sets = sets();
            let known = sets.get_or_insert_default().entry(set).or_default();
            let channels = &mut known.channels;
            let (this, is_open) = (Arc::downgrade(&channel), |other: &Weak<_>| {
                other.strong_count() > 0
            });
            channels.retain(|other| is_open(other) && !other.ptr_eq(&this));
            // A thread that is not to see the channel's events does not wait for them.
            if events & EPOLLIN != 0 {
                channels.push(this);
            }
            channel.unread().join(Member { set, events, data });
        }
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn set_part(set: c_int, read_fd: c_int) {
    answer(|| {
        if let Some(channel) = channel(read_fd) {
            let mut sets = sets();
            if let Some(known) = sets.as_mut().and_then(|sets| sets.get_mut(&set)) {
                known
                    .channels
                    .retain(|other| !other.ptr_eq(&Arc::downgrade(&channel)));
            }
            channel.unread().part(set);
        }
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn set_join_cm(set: c_int, handle: i64) {
    answer(|| {
        let mut sets = sets();
        let known = sets.get_or_insert_default().entry(set).or_default();
        known.cm_files.retain(|other| *other != handle);
        known.cm_files.push(handle);
        Ok(0)
    });
}

pub(super) unsafe extern "C" fn set_close(set: c_int) {
    answer(|| {
        let known = sets().as_mut().and_then(|sets| sets.remove(&set));
        let channels = known.iter().flat_map(|known| &known.channels);
        let open = channels.filter_map(Weak::upgrade);
        open.for_each(|channel| channel.unread().part(set));
        Ok(0)
    });
}
