//! What calls of the table return.

use std::panic::{catch_unwind, AssertUnwindSafe};

use urdma_abi::cancel::Disabled;
use urdma_ucma::Errno;

/// Runs a call without cancellation; an error becomes a negative errno, a panic `-EIO`.
pub(super) fn answer(call: impl FnOnce() -> Result<i64, Errno>) -> i64 {
    let _uncancelled = Disabled::new();
    answer_uncancelled(call)
}

/// The same for a caller that has disabled cancellation.
pub(super) fn answer_uncancelled(call: impl FnOnce() -> Result<i64, Errno>) -> i64 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => -i64::from(errno),
        Err(_) => -i64::from(libc::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_of_a_refusal_or_a_panic_is_a_negative_errno() {
        assert_eq!(answer(|| Ok(5)), 5);
        assert_eq!(answer(|| Err(libc::EINVAL)), -i64::from(libc::EINVAL));
        assert_eq!(
            answer(|| panic!("expected by the test")),
            -i64::from(libc::EIO)
        );
    }
}
