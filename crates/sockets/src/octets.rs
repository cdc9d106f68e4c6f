//! The buffers of a call.

use libc::{iovec, size_t};

/// Parts that one call of the kernel's moves.
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

    /// The only part, if there is one that is not empty.
    #[inline]
    pub(crate) fn only_part(self) -> Option<iovec> {
        let part = self.part(0);
        (self.count == 1 && part.iov_len > 0).then_some(part)
    }

    /// All octets.
    pub(crate) fn len(self) -> usize {
        (0..self.count)
            .map(|index| self.part(index).iov_len)
            .fold(0, usize::saturating_add)
    }

    /// Those from octet `done` on.
    pub(crate) fn after(self, done: usize) -> Window {
        Window {
            octets: self,
            skip: done,
        }
    }
}

/// Octets of a call from one on.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    octets: Octets,
    skip: usize,
}

impl Window {
    /// No octets.
    pub(crate) const NONE: Self = Self {
        octets: Octets {
            parts: std::ptr::null(),
            count: 0,
        },
        skip: 0,
    };

    /// Octets in it.
    pub(crate) fn len(&self) -> u64 {
        self.octets.len().saturating_sub(self.skip) as u64
    }

    /// Those behind the first `skip` octets.
    pub(crate) fn after(&self, skip: u64) -> Self {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        self.octets.after(self.skip.saturating_add(skip))
    }

    /// The parts of the first `len` octets; none is empty.
    pub(crate) fn parts(&self, len: usize) -> impl Iterator<Item = iovec> {
        let Self { octets, mut skip } = *self;
        let mut left = len;
        let parts = (0..octets.count).map_while(move |index| {
            if left == 0 {
                return None;
            }
            let part = octets.part(index);
            let skipped = skip.min(part.iov_len);
            skip -= skipped;
            let len = left.min(part.iov_len - skipped);
            left -= len;
            Some(iovec {
                // SAFETY: within the part.
                iov_base: unsafe { part.iov_base.add(skipped) },
                iov_len: len,
            })
        });
        parts.filter(|part| part.iov_len > 0)
    }

    /// The first parts of the first `len` octets, as many as one call of the kernel's moves here,
    /// and their number.
    pub(crate) fn first(&self, len: u64) -> ([iovec; PARTS], usize) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (mut parts, mut count) = ([NO_PART; PARTS], 0);
        for (place, part) in parts.iter_mut().zip(self.parts(len)) {
            *place = part;
            count += 1;
        }
        (parts, count)
    }
}
