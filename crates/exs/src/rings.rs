//! The rings of one end, into which the peer writes: that of the greeting, and those that replace
//! it when the peer asks for another length. There are two while the older one holds octets.

use std::collections::VecDeque;
use std::sync::Arc;

use urdma_stream::RingNo;

use crate::error::Error;
use crate::ffi::memory::Buffer;
use crate::ffi::verbs::{Access, Domain, Region};

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
