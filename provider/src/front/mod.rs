//! The C table through which the stand-in reaches the engine.
//!
//! | file | what it holds |
//! |---|---|
//! | `attach` | attaching to an instance |
//! | `channels`, `cm` | completion channels and rdma_cm files that are open |
//! | `async_files` | files of asynchronous events of imported contexts |
//! | `sets` | what epoll sets have of them |
//! | `waits` | calls in which the application sleeps |
//! | `answer` | what the calls return |

mod answer;
mod async_files;
mod attach;
mod channels;
mod cm;
mod sets;
mod waits;

use std::panic::catch_unwind;

use urdma_abi::cancel::Disabled;
use urdma_abi::front::{FrontTable, FRONT_ABI, FRONT_SIZE};

use async_files::async_open;
use channels::{
    channel_close, channel_has_read, channel_has_received, channel_open, channel_release,
    channel_take, send_events,
};
use cm::{cm_close, cm_open, cm_write};
use sets::{set_close, set_join, set_join_cm, set_part};
use waits::{
    channel_poll, channel_wait, channel_waker, cm_poll, cm_waker, has_waited, interrupt,
    interrupts, set_poll, set_wait, set_waker, set_was_woken,
};

pub(crate) use async_files::{offer_async_file, withdraw_async_file};
pub(crate) use attach::{attach, attach_to};
pub(crate) use channels::{channel, enter_async_events};

static TABLE: FrontTable = FrontTable {
    abi: FRONT_ABI,
    size: FRONT_SIZE,
    cm_open,
    cm_write,
    cm_close,
    channel_open,
    channel_close,
    channel_release,
    async_open,
    channel_wait,
    channel_has_read,
    channel_take,
    channel_has_received,
    send_events,
    set_join,
    set_part,
    set_join_cm,
    set_close,
    set_waker,
    set_wait,
    set_poll,
    set_was_woken,
    channel_waker,
    channel_poll,
    cm_waker,
    cm_poll,
    has_waited,
    interrupts,
    interrupt,
};

/// Returns the stand-in's table. If urdmad cannot be used, prints the reason to standard error and
/// returns null.
#[no_mangle]
pub(crate) extern "C" fn urdma_front_table() -> *const FrontTable {
    let _uncancelled = Disabled::new();
    match catch_unwind(attach) {
        Ok(Ok(_)) => &TABLE,
        Ok(Err(_)) | Err(_) => std::ptr::null(),
    }
}
