//! The checker: processes of both ends under random schedules, their octets against a model.
//!
//! `tcp` is the kernel's connection; `world` gives it, the shared words and the rings to the calls
//! of each thread, one access at a time, and watches every octet; `processes` starts calls, forks,
//! executes, passes descriptors, kills; `schedules` runs it with random configurations and asserts
//! that it finds each deliberate fault; `orders` has orders of events that random schedules seldom
//! meet. A failing seed is printed; `URDMA_SEED` runs it alone.

mod orders;
mod processes;
mod schedules;
mod tcp;
mod world;

use urdma_types::Rng;

/// What a schedule found.
type Finding = String;
