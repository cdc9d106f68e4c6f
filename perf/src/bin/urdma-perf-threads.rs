//! Threads of one process, each with a completion queue and a queue pair that is connected to
//! itself:
//!
//! ```text
//! urdma-perf-threads THREADS domains|shared
//! ```
//!
//! With thread domains they share no lock, without them they share all. Prints the slots of the
//! queue pairs, and the rate of all threads in millions of messages a second.

#![allow(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rdma_core_sys::verbs;
use urdma_perf::threads::{Sharing, RATE, SLOTS};
use urdma_perf::verbs_setup::{connect_to_itself, made, open, poll, register, Write};

/// Duration of the measurement.
const TIME: Duration = Duration::from_secs(1);
const OCTETS: u32 = 64;
/// Outstanding requests of a thread.
const OUTSTANDING: u32 = 32;
const BATCH: usize = 16;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [threads, sharing] => match (threads.parse(), Sharing::from_name(sharing)) {
            (Ok(threads), Some(sharing)) => measure(threads, sharing),
            _ => Err("usage: urdma-perf-threads THREADS domains|shared".into()),
        },
        _ => Err("usage: urdma-perf-threads THREADS domains|shared".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-threads: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// The objects of one thread.
struct Lane {
    cq: *mut verbs::ibv_cq,
    qp: *mut verbs::ibv_qp,
    memory: Box<[u8; OCTETS as usize]>,
    key: u32,
}

// SAFETY: the objects may be used by any thread, and each is used by one.
unsafe impl Send for Lane {}

fn measure(threads: u32, sharing: Sharing) -> Result<(), String> {
    let context = open()?;
    // SAFETY: the context is open.
    let pd = made("ibv_alloc_pd", unsafe { verbs::ibv_alloc_pd(context) })?;
    let lanes = (0..threads).map(|_| Lane::new(context, pd, sharing));
    let lanes = lanes.collect::<Result<Vec<_>, _>>()?;
    let slots: Vec<String> = lanes.iter().map(|lane| lane.slot().to_string()).collect();
    println!("{SLOTS}{}", slots.join(" "));
    let (begin, end) = (Barrier::new(lanes.len() + 1), AtomicBool::new(false));
    let (counts, elapsed) = std::thread::scope(|scope| {
        let (begin, end) = (&begin, &end);
        let running: Vec<_> = lanes
            .into_iter()
            .map(|lane| scope.spawn(move || lane.write_until(begin, end)))
            .collect();
        begin.wait();
        let start = Instant::now();
        std::thread::sleep(TIME);
        end.store(true, Ordering::Relaxed);
        let counts: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        (counts, start.elapsed())
    });
    let mut total = 0;
    for count in counts {
        total += count.map_err(|_| "a thread has panicked")??;
    }
    println!("{RATE}{:.4}", total as f64 / elapsed.as_secs_f64() / 1e6);
    Ok(())
}

impl Lane {
    fn new(
        context: *mut verbs::ibv_context,
        pd: *mut verbs::ibv_pd,
        sharing: Sharing,
    ) -> Result<Self, String> {
        let domain = match sharing {
            Sharing::Domains => parent_domain(context, pd)?,
            Sharing::Shared => pd,
        };
        let cq = completion_queue(context, (sharing == Sharing::Domains).then_some(domain))?;
        // SAFETY: the context is open, and the others were made in it.
        let qp = unsafe { connect_to_itself(context, domain, cq, OUTSTANDING)? };
        let mut memory = Box::new([0; OCTETS as usize]);
        // SAFETY: the memory lives as long as the process uses the region.
        let region = unsafe { register(pd, &mut memory[..])? };
        // SAFETY: the region was just made.
        let key = unsafe { (*region).lkey };
        Ok(Self {
            cq,
            qp,
            memory,
            key,
        })
    }

    /// The slot that the queue pair's number contains.
    fn slot(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { (*self.qp).qp_num >> 16 }
    }

    /// Writes from `begin` until `end`; returns the number of completed writes.
    fn write_until(mut self, begin: &Barrier, end: &AtomicBool) -> Result<u64, String> {
        begin.wait();
        let (mut done, mut outstanding) = (0, 0);
        while !end.load(Ordering::Relaxed) {
            while outstanding < OUTSTANDING {
                self.post()?;
                outstanding += 1;
            }
            let completed = self.poll()?;
            outstanding -= completed;
            done += u64::from(completed);
        }
        // The memory is freed with this thread: no write may be outstanding.
        while outstanding > 0 {
            outstanding -= self.poll()?;
        }
        Ok(done)
    }

    fn post(&mut self) -> Result<(), String> {
        let addr = self.memory.as_mut_ptr() as u64;
        let write = Write {
            id: 0,
            from: verbs::ibv_sge {
                addr,
                length: OCTETS,
                lkey: self.key,
            },
            to: (addr, self.key),
        };
        // SAFETY: the queue pair lives.
        unsafe { write.post(self.qp) }
    }

    fn poll(&self) -> Result<u32, String> {
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut found: [verbs::ibv_wc; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: the completion queue lives.
        let count = unsafe { poll(self.cq, &mut found)? };
        u32::try_from(count).map_err(|_| "too many completions".into())
    }
}

/// The extended operations of a context, which the header's inline functions call.
///
/// # Errors
/// The provider of the context has no extended operations.
fn extended(context: *mut verbs::ibv_context) -> Result<&'static verbs::verbs_context, String> {
    // SAFETY: the context is open, and stays so.
    if unsafe { (*context).abi_compat } as usize != usize::MAX {
        return Err("the context has no extended operations".into());
    }
    let offset = std::mem::offset_of!(verbs::verbs_context, context);
    // SAFETY: the mark says that the context is a member of an extended one.
    Ok(unsafe { &*context.byte_sub(offset).cast() })
}

/// Makes a parent domain with a thread domain of its own.
fn parent_domain(
    context: *mut verbs::ibv_context,
    pd: *mut verbs::ibv_pd,
) -> Result<*mut verbs::ibv_pd, String> {
    let calls = extended(context)?;
    let alloc_td = calls.alloc_td.ok_or("no thread domains")?;
    let alloc_parent = calls.alloc_parent_domain.ok_or("no parent domains")?;
    let mut td_attr = verbs::ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: the provider's own functions, with its context and attributes that live.
    let td = made("ibv_alloc_td", unsafe { alloc_td(context, &mut td_attr) })?;
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut attr: verbs::ibv_parent_domain_init_attr = unsafe { std::mem::zeroed() };
    (attr.pd, attr.td) = (pd, td);
    // SAFETY: the provider's own function, with its context and attributes that live.
    made("ibv_alloc_parent_domain", unsafe {
        alloc_parent(context, &mut attr)
    })
}

/// Makes a completion queue, in a parent domain if one is given.
fn completion_queue(
    context: *mut verbs::ibv_context,
    domain: Option<*mut verbs::ibv_pd>,
) -> Result<*mut verbs::ibv_cq, String> {
    let create = extended(context)?
        .create_cq_ex
        .ok_or("no extended completion queues")?;
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut attr: verbs::ibv_cq_init_attr_ex = unsafe { std::mem::zeroed() };
    attr.cqe = 2 * OUTSTANDING;
    if let Some(domain) = domain {
        attr.comp_mask = verbs::IBV_CQ_INIT_ATTR_MASK_PD;
        attr.parent_domain = domain;
    }
    // SAFETY: the provider's own function, with its context and attributes that live.
    let cq = made("ibv_create_cq_ex", unsafe { create(context, &mut attr) })?;
    // The extended structure begins with the plain one.
    Ok(cq.cast())
}
