//! Labels between the steps that a process takes in shared memory, so that tests can stop it at
//! each of them.

/// Called between any two steps in shared memory; the product's implementation, [`Live`], is empty.
pub trait Steps {
    /// The step called `label` has just been done.
    fn at(label: &'static str);
}

/// No test: nothing happens between steps.
#[derive(Debug)]
pub struct Live;

impl Steps for Live {
    #[inline(always)]
    fn at(_label: &'static str) {}
}
