//! The buffers of a call.

use libc::{iovec, size_t};

/// Parts that one attempt of a call moves.
const PARTS: usize = 16;
/// `UIO_MAXIOV` of the kernel.
const PARTS_MAX: usize = 1024;
const NO_PART: iovec = iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// The parts that a call names.
#[derive(Clone, Copy)]
pub(crate) struct Octets {
    parts: *const iovec,
    count: usize,
}

impl Octets {
    /// Those of an array, or `None` if the kernel is to judge it.
    ///
    /// # Safety
    /// The array is the caller's, and lives as long as this.
    pub(crate) unsafe fn new(parts: *const iovec, count: size_t) -> Option<Self> {
        let is_valid = !parts.is_null() && (1..=PARTS_MAX).contains(&count);
        is_valid.then_some(Self { parts, count })
    }

    fn part(self, index: usize) -> iovec {
        // SAFETY: within the array of the caller.
        unsafe { *self.parts.add(index) }
    }

    /// All octets.
    pub(crate) fn len(self) -> usize {
        (0..self.count)
            .map(|index| self.part(index).iov_len)
            .fold(0, usize::saturating_add)
    }

    /// The parts from octet `done` on, as many as an attempt moves.
    pub(crate) fn after(self, done: usize) -> Window {
        let mut window = Window {
            parts: [NO_PART; PARTS],
            count: 0,
        };
        let mut skip = done;
        for index in 0..self.count {
            let part = self.part(index);
            let skipped = skip.min(part.iov_len);
            skip -= skipped;
            if part.iov_len == skipped {
                continue;
            }
            if window.count == PARTS {
                break;
            }
            window.parts[window.count] = iovec {
                // SAFETY: within the part.
                iov_base: unsafe { part.iov_base.add(skipped) },
                iov_len: part.iov_len - skipped,
            };
            window.count += 1;
        }
        window
    }
}

/// Parts that are not empty.
pub(crate) struct Window {
    parts: [iovec; PARTS],
    count: usize,
}

impl Window {
    /// No octets.
    pub(crate) const NONE: Self = Self {
        parts: [NO_PART; PARTS],
        count: 0,
    };

    /// Octets in it.
    pub(crate) fn len(&self) -> u64 {
        let parts = self.parts[..self.count].iter();
        parts.fold(0, |sum, part| sum.saturating_add(part.iov_len as u64))
    }

    /// The parts behind the first `skip` octets.
    pub(crate) fn after(&self, skip: u64) -> Self {
        let octets = Octets {
            parts: self.parts.as_ptr(),
            count: self.count,
        };
        octets.after(usize::try_from(skip).unwrap_or(usize::MAX))
    }

    /// The parts of the first `len` octets, and their number.
    pub(crate) fn first(&self, len: u64) -> ([iovec; PARTS], usize) {
        let mut left = usize::try_from(len).unwrap_or(usize::MAX);
        let mut parts = self.parts;
        let mut count = 0;
        for part in &mut parts[..self.count] {
            if left == 0 {
                break;
            }
            part.iov_len = part.iov_len.min(left);
            left -= part.iov_len;
            count += 1;
        }
        (parts, count)
    }
}
