//! The rings of one end, into which the peer writes: that of the greeting, and those that replace
//! it when the peer asks for another length. There are two while the older one holds octets.

use std::collections::VecDeque;
use std::sync::Arc;

use urdma_stream::{RingCopy, RingNo};

use crate::error::Error;
use crate::ffi::memory::Buffer;
use crate::ffi::verbs::{Access, Domain, Region};
use crate::registrations::Posted;

#[derive(Debug)]
struct Ring {
    number: RingNo,
    /// While the peer may write into it.
    region: Option<Region>,
    buffer: Buffer,
}

/// Rings in the order of their numbers, which are consecutive.
#[derive(Debug, Default)]
pub(crate) struct Rings(VecDeque<Ring>);

impl Rings {
    /// Makes the next ring; what the peer is told of it.
    pub(crate) fn add(
        &mut self,
        domain: &Arc<Domain>,
        octets: usize,
    ) -> Result<urdma_stream::Buffer, Error> {
        let buffer = Buffer::new(octets)?;
        let region = Region::new(domain, buffer.pages(), Access::RemoteWrite)?;
        let told = urdma_stream::Buffer {
            addr: buffer.addr(),
            len_octets: buffer.len() as u64,
            rkey: region.rkey(),
        };
        let number = self.0.back().map_or(0, |last| last.number.0 + 1);
        self.0.push_back(Ring {
            number: RingNo(number),
            region: Some(region),
            buffer,
        });
        Ok(told)
    }

    /// The memory of a ring.
    #[inline]
    pub(crate) fn buffer(&self, number: RingNo) -> Option<&Buffer> {
        let first = self.0.front()?.number.0;
        let place = usize::try_from(number.0.checked_sub(first)?).ok()?;
        Some(&self.0.get(place)?.buffer)
    }

    /// Frees the rings before one.
    pub(crate) fn free_before(&mut self, oldest: RingNo) {
        while self.0.front().is_some_and(|ring| ring.number < oldest) {
            self.0.pop_front();
        }
    }

    /// Ends all registrations; the memory is left.
    pub(crate) fn deregister(&mut self) {
        for ring in &mut self.0 {
            ring.region = None;
        }
    }
}

/// What copies octets out of one of the rings.
#[inline]
pub(crate) fn copy_from(rings: &Rings) -> impl FnMut(&RingCopy, &mut Posted) + use<'_> {
    let mut last = None;
    move |copy, posted| {
        let ring = match last {
            Some((number, ring)) if number == copy.ring => ring,
            _ => {
                let ring = rings.buffer(copy.ring);
                ring.expect("a copy is from a ring that is in use")
            }
        };
        last = Some((copy.ring, ring));
        let in_memory = |number| usize::try_from(number).expect("a place in memory");
        let [at, from_at, len] = [copy.offset, copy.ring_offset, copy.len_octets].map(in_memory);
        posted.buffer.copy_from(at, ring, from_at, len);
    }
}
