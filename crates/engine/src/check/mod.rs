//! The checker: threads of a program and of its engine, under random schedules.
//!
//! `scheduler` runs one thread at a time and changes to another one where threads touch what they
//! share: the engine's lock, the lock of a completion queue, and the counts that are read without
//! one. Time is virtual. `reads` has threads that post, poll, sleep and make progress while another
//! one moves the queue pair to ERR, and asserts that each request completes once and in order, and
//! that schedules find each deliberate fault. A failing seed is printed; `URDMA_SEED` runs it
//! alone, `URDMA_SIM_SEEDS` runs more. `channels` has threads that open the channel to one slot.
//!
//! Threads see the accesses of the others in one order. What processors reorder is the subject of
//! the models of `urdma-channel` (`make loom`).

mod channels;
mod reads;
mod scheduler;

pub(crate) use scheduler::{fault, now_ns, point, random, Scheduler};
