//! The checker: clients of one store under random schedules, against a register for each key.
//!
//! `device` executes the requests of each client in order, READs and WRITEs word by word, in any
//! order of the words, while others execute theirs. `history` keeps when each operation began and
//! ended, and finds whether there is an order in which a register would have given the same
//! outcomes. `schedules` runs clients with random configurations, ends some of them at any word,
//! and asserts that each deliberate fault is found. A failing seed is printed; `URDMA_SEED` runs it
//! alone.

mod device;
mod history;
mod schedules;

/// What the clients did wrong.
type Finding = String;
