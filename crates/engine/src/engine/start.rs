//! When the background thread starts.
//!
//! An engine with queue pairs and without a driver needs it at once. A program that opens an event
//! channel of rdma_cm waits next, and its threads drive in their waits (`threads/driver.rs`): while
//! they return to these, the background thread only sleeps. A program that connects, exchanges a
//! few messages and ends never needs it, and would pay for its start, its memory and its end.
//!
//! Its start is put off then, with the seat AWAY. The control thread, which runs since the attach,
//! looks every millisecond or two whether the seat is left alone, as the background thread does
//! after a bounded sleep. It starts the thread if so, and after [`LOOKS_MAX`] looks in any case. A
//! thread that leaves the seat for good starts it at once. If no start is asked for until the first
//! look, none is put off later: the control thread then sleeps until the next event.

use urdma_waiting::Signal;

use super::Engine;
use crate::thread::spawn_quiet;
use crate::types::{EngineError, LeaseState};
use crate::waiting::start::{Looks, AWAITED, IDLE, WATCHED};

/// Looks until the thread is started beside a driver too, which then need not be watched by the
/// control thread.
const LOOKS_MAX: u32 = 8;

impl Engine {
    /// Starts the background thread unless it runs or is to run. The first queue pair does, and so
    /// may a caller that expects one.
    ///
    /// # Errors
    /// [`EngineError::NoMemory`]: the system has no thread.
    pub fn start_background(&self) -> Result<(), EngineError> {
        if self.background.start.is_wanted() {
            return Ok(());
        }
        let _changes = self.background.start.lock();
        if self.background.start.is_wanted() {
            return Ok(());
        }
        self.spawn_background()
    }

    /// The same for a program that is about to wait: its thread would otherwise wait for this one
    /// to start and give way. The start is put off if the control thread looks whether the program
    /// does wait.
    pub(crate) fn start_background_beside_driver(&self) -> Result<(), EngineError> {
        let _changes = self.background.start.lock();
        if self.background.start.is_wanted() {
            return Ok(());
        }
        if self.may_have_driver() {
            self.sleep_control.seat.expect_driver();
            if self.background.start.change(WATCHED, AWAITED) {
                return Ok(());
            }
        }
        self.spawn_background()
    }

    /// Whether this engine and the kernel have what a driver needs: a leased queue without
    /// interrupts needs the exact timers of the background thread.
    pub(crate) fn may_have_driver(&self) -> bool {
        let is_leased = matches!(self.info.lease, LeaseState::Leased);
        (!is_leased || self.sleep_control.lease_set.is_some()) && Signal::is_supported()
    }

    /// The background thread is to drive from now on: starts it if that was put off.
    #[inline]
    pub(crate) fn start_awaited_background(&self) {
        if self.background.start.stage() == AWAITED {
            self.start_put_off();
        }
    }

    #[cold]
    fn start_put_off(&self) {
        let _changes = self.background.start.lock();
        if self.background.start.stage() == AWAITED {
            // The next look tries again if the system has no thread now.
            let _ = self.spawn_background();
        }
    }

    /// Starts it, with the lock of the stage.
    fn spawn_background(&self) -> Result<(), EngineError> {
        let engine = self.myself.upgrade().ok_or(EngineError::DeviceGone)?;
        let run = self.background.run;
        spawn_quiet("urdma-engine", move || run(engine)).map_err(|_| EngineError::NoMemory)?;
        self.background.start.set_started();
        Ok(())
    }

    /// The look of the control thread, if it is due: starts the background thread that is awaited
    /// if no thread of the program drives.
    pub(crate) fn look_for_driver(&self, looks: &mut Looks) {
        if looks.due_in().is_none_or(|left| !left.is_zero()) {
            return;
        }
        let changes = self.background.start.lock();
        self.background.start.change(WATCHED, IDLE);
        drop(changes);
        if self.background.start.stage() == AWAITED {
            looks.made += 1;
            let seat = &self.sleep_control.seat;
            if seat.is_left_alone(&mut looks.seat) {
                seat.recall();
                self.start_put_off();
            } else if looks.made >= LOOKS_MAX {
                self.start_put_off();
            }
        }
        looks.look_again(self.background.start.stage() == AWAITED);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::rig::{instance, parts};
    use crate::waiting::start::{IDLE, STARTED};

    /// An engine whose background thread is awaited, and the looks of its control thread.
    fn awaited() -> (Arc<Engine>, Looks) {
        let engine = Engine::start(parts(&instance(), 1)).unwrap();
        let looks = engine.background.start.watch();
        engine.start_background_beside_driver().unwrap();
        assert_eq!(stage(&engine), AWAITED);
        (engine, looks)
    }

    fn stage(engine: &Engine) -> u8 {
        engine.background.start.stage()
    }

    fn look(engine: &Engine, looks: &mut Looks) {
        looks.make_due();
        engine.look_for_driver(looks);
    }

    #[test]
    fn start_is_put_off_until_the_seat_is_left_alone_for_two_looks() {
        let (engine, mut looks) = awaited();
        engine.start_background().unwrap();
        look(&engine, &mut looks);
        assert_eq!(stage(&engine), AWAITED);
        engine.sleep_control.seat.touch();
        look(&engine, &mut looks);
        assert_eq!(stage(&engine), AWAITED);
        assert!(looks.due_in().is_some());
        look(&engine, &mut looks);
        assert_eq!(stage(&engine), STARTED);
        assert!(engine.sleep_control.seat.is_background());
        assert_eq!(looks.due_in(), None);
    }

    #[test]
    fn start_is_not_put_off_for_ever_beside_a_driver() {
        let (engine, mut looks) = awaited();
        let control = &engine.sleep_control;
        let signal = Signal::default();
        let seated = control.seat.sit(&control.page, &signal, 0).unwrap();
        for made in 1..=LOOKS_MAX {
            assert_eq!(stage(&engine), AWAITED, "{made}");
            look(&engine, &mut looks);
        }
        assert_eq!(stage(&engine), STARTED);
        assert!(control.seat.is_held(seated));
        control.seat.leave(seated, false);
    }

    #[test]
    fn start_is_not_put_off_after_the_first_look_or_for_a_queue_pair() {
        let engine = Engine::start(parts(&instance(), 1)).unwrap();
        let mut looks = engine.background.start.watch();
        look(&engine, &mut looks);
        assert_eq!((stage(&engine), looks.due_in()), (IDLE, None));
        engine.start_background_beside_driver().unwrap();
        assert_eq!(stage(&engine), STARTED);

        let engine = Engine::start(parts(&instance(), 2)).unwrap();
        engine.background.start.watch();
        engine.start_background().unwrap();
        assert_eq!(stage(&engine), STARTED);
    }
}
