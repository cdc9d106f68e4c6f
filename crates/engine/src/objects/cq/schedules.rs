//! Programs that sleep until a completion queue has an event, under every schedule of a few
//! completions: none sleeps on while a completion waits that it should learn of.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use super::{Cq, CqConfig, Notify};
use crate::objects::events::CompletionSink;
use crate::types::WorkCompletion;

/// Completions in a schedule, and steps of the program within which they come.
const COMPLETIONS: usize = 3;
const STEPS: usize = 24;
const QUEUES: usize = 2;

/// A completion channel: the events that the program has not read.
#[derive(Debug, Default)]
struct Events(AtomicU32);

impl CompletionSink for Events {
    fn notify(&self, _: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a program does with its queues in a loop, one step after the other.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Arms a queue.
    Arm(usize),
    /// Takes one completion, and again if there was one.
    Poll(usize),
    /// Reads all events; goes on with the step of this number if there were none.
    ReadAll(usize),
    /// Goes on with the step of this number.
    GoTo(usize),
    /// Sleeps until there is an event.
    Sleep,
}

/// As the manual page of `ibv_get_cq_event` has it: arm, then poll once more.
const ARMS_THEN_POLLS: &[Step] = &[
    Step::Arm(0),
    Step::Arm(1),
    Step::Poll(0),
    Step::Poll(1),
    Step::Sleep,
    Step::ReadAll(0),
    Step::GoTo(0),
];

/// As UCX does: read the events and poll if there were any, else arm; then sleep.
const POLLS_THEN_ARMS: &[Step] = &[
    Step::ReadAll(4),
    Step::Poll(0),
    Step::Poll(1),
    Step::GoTo(0),
    Step::Arm(0),
    Step::Arm(1),
    Step::Sleep,
    Step::GoTo(0),
];

/// Polls without a look at the events, and arms before each sleep.
const POLLS_ARMS_SLEEPS: &[Step] = &[
    Step::Poll(0),
    Step::Poll(1),
    Step::Arm(0),
    Step::Arm(1),
    Step::Sleep,
    Step::ReadAll(0),
    Step::GoTo(0),
];

struct Program {
    steps: &'static [Step],
    at: usize,
    events: Arc<Events>,
    queues: [Arc<Cq>; QUEUES],
    notify: Notify,
    polled: usize,
    /// Times that an event ended a sleep.
    wake_ups: usize,
}

impl Program {
    fn new(steps: &'static [Step], notify: Notify) -> Self {
        let events = Arc::new(Events::default());
        let queues = [(); QUEUES].map(|()| {
            let channel: Arc<dyn CompletionSink> = events.clone();
            let config = CqConfig {
                channel: Some(channel),
                ..CqConfig::with_depth(16)
            };
            let cq = Cq::new(config).unwrap();
            cq.attach(16).unwrap();
            cq
        });
        Self {
            steps,
            at: 0,
            events,
            queues,
            notify,
            polled: 0,
            wake_ups: 0,
        }
    }

    /// Makes a step; false if the program sleeps.
    fn step(&mut self) -> bool {
        let mut next = self.at + 1;
        match self.steps[self.at] {
            Step::Arm(queue) => self.queues[queue].arm(self.notify),
            Step::Poll(queue) => {
                let taken = self.queues[queue].pop(1, |_| {});
                self.polled += taken;
                next -= taken;
            }
            Step::ReadAll(otherwise) => {
                if self.events.0.swap(0, Ordering::Relaxed) == 0 {
                    next = otherwise;
                }
            }
            Step::GoTo(step) => next = step,
            Step::Sleep => {
                if self.events.0.load(Ordering::Relaxed) == 0 {
                    return false;
                }
                self.wake_ups += 1;
            }
        }
        self.at = next;
        true
    }
}

/// Runs a program in every schedule: completion i comes before step `times[i]` of the program, or
/// when it sleeps, in queue `i % 2`. `check` gets the program when it sleeps for good.
fn in_every_schedule(program: impl Fn() -> Program, solicited: bool, check: impl Fn(&Program)) {
    let mut times = [0; COMPLETIONS];
    loop {
        let mut program = program();
        let mut come = 0;
        let mut steps = 0;
        loop {
            while come < COMPLETIONS && times[come] <= steps {
                push(&program, come, solicited);
                come += 1;
            }
            if program.step() {
                steps += 1;
                assert!(steps < 10 * STEPS, "the program does not come to rest");
            } else if come < COMPLETIONS {
                push(&program, come, solicited);
                come += 1;
            } else {
                break;
            }
        }
        check(&program);
        // The next ascending list of moments.
        let Some(last) = times.iter().rposition(|time| *time < STEPS) else {
            return;
        };
        let moment = times[last] + 1;
        times[last..].fill(moment);
    }
}

fn push(program: &Program, number: usize, solicited: bool) {
    let mut completion = WorkCompletion::NONE;
    completion.completion.solicited = solicited;
    program.queues[number % QUEUES].push(&completion);
}

// Regression: a completion that came between the last poll and the arming raised no event, and a
// program that does not poll after arming, as UCX's, slept for ever.
#[test]
fn no_program_sleeps_while_a_completion_waits() {
    for steps in [ARMS_THEN_POLLS, POLLS_THEN_ARMS, POLLS_ARMS_SLEEPS] {
        for notify in [Notify::Any, Notify::Solicited] {
            in_every_schedule(
                || Program::new(steps, notify),
                true,
                |program| assert_eq!(program.polled, COMPLETIONS, "{steps:?}"),
            );
        }
    }
}

#[test]
fn no_program_has_more_wake_ups_than_completions() {
    for steps in [ARMS_THEN_POLLS, POLLS_THEN_ARMS, POLLS_ARMS_SLEEPS] {
        in_every_schedule(
            || Program::new(steps, Notify::Any),
            false,
            |program| assert!(program.wake_ups <= COMPLETIONS, "{steps:?}"),
        );
    }
}

#[test]
fn completions_that_are_not_solicited_end_no_sleep_for_solicited_ones() {
    in_every_schedule(
        || Program::new(POLLS_ARMS_SLEEPS, Notify::Solicited),
        false,
        |program| assert_eq!(program.wake_ups, 0),
    );
}
