//! A verbs application that waits: connected queue pairs, and one completion queue with a channel,
//! on which no completion arrives.
//!
//! ```text
//! urdma-perf-idle QUEUE_PAIRS
//! urdma-perf-idle plain         a process that has no device and sleeps
//! ```
//!
//! Prints a line before it waits; ends when it is killed.

#![allow(unsafe_code)]

use std::process::ExitCode;
use std::ptr;

use rdma_core_sys::verbs;
use urdma_perf::idle::{PLAIN, WAITING};
use urdma_perf::verbs_setup::{
    connect_to_itself, made, open, request_notification, wait_for_event,
};

const CQ_DEPTH: i32 = 16;

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        Some(PLAIN) => sleep_without_device(),
        Some(count) => count
            .parse()
            .map_err(|_| "usage: urdma-perf-idle QUEUE_PAIRS|plain".to_owned())
            .and_then(wait),
        None => wait(1),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-idle: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Loads libibverbs and looks for devices, nothing else.
fn sleep_without_device() -> Result<(), String> {
    // SAFETY: the count may be omitted.
    let list = unsafe { verbs::ibv_get_device_list(ptr::null_mut()) };
    println!("{WAITING}");
    std::hint::black_box(list);
    loop {
        std::thread::park();
    }
}

/// All objects exist until the process ends.
fn wait(queue_pairs: u32) -> Result<(), String> {
    let context = open()?;
    // SAFETY: the context is open.
    let pd = made("ibv_alloc_pd", unsafe { verbs::ibv_alloc_pd(context) })?;
    // SAFETY: the context is open.
    let channel = made("ibv_create_comp_channel", unsafe {
        verbs::ibv_create_comp_channel(context)
    })?;
    // SAFETY: context and channel are valid; no user context is given.
    let cq = unsafe { verbs::ibv_create_cq(context, CQ_DEPTH, ptr::null_mut(), channel, 0) };
    let cq = made("ibv_create_cq", cq)?;
    for _ in 0..queue_pairs {
        // Room for one work request each way.
        // SAFETY: all of them were made here.
        unsafe { connect_to_itself(context, pd, cq, 1)? };
    }
    // SAFETY: the queue was made here.
    unsafe { request_notification(cq)? };
    println!("{WAITING}");
    // SAFETY: the channel was made here.
    unsafe { wait_for_event(channel) }
}
