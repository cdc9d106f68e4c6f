//! Registered memory for messages.
//!
//! A connection has a block: buffers, one for each Receive of its share, and headers of the Sends
//! in flight. A block is used again once the queue pair of its connection is destroyed, and then
//! has another generation, so that a late completion of a Receive counts for no other connection.
//! Over initiators, all blocks are those of the target, and each initiator has headers of its own.

use std::rc::Rc;

use arrayvec::ArrayVec;
use urdma_pool::{MessageConfig, Sge, Transport, HEADER_OCTETS_MAX};

use crate::error::Error;
use crate::ffi::{Domain, Id, Memory, Queue, Target, POLLED};

/// Buffers begin at multiples of this many octets, a cache line.
const ALIGNMENT: u32 = 64;

/// A message in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// The block.
    pub(crate) block: usize,
    /// The number of the buffer.
    pub(crate) buffer: u32,
    /// None: its Receive has failed, and with it the connection.
    pub(crate) len_octets: Option<usize>,
}

#[derive(Debug)]
struct Block {
    memory: Memory,
    generation: u32,
}

/// Headers of the Sends in flight of an initiator.
#[derive(Debug)]
pub(crate) struct Headers {
    memory: Memory,
    places: u32,
}

impl Headers {
    /// Writes the header of the work request with a number.
    ///
    /// # Errors
    /// If it is longer than its place.
    pub(crate) fn write(&self, wr_id: u64, header: &[u8]) -> Result<Sge, Error> {
        write_header(&self.memory, (0, self.places), wr_id, header)
    }
}

/// Writes the header of the work request with a number to its place, behind the first octets of
/// memory, where it stays until as many requests are posted as there are places.
fn write_header(
    memory: &Memory,
    (first, places): (usize, u32),
    wr_id: u64,
    header: &[u8],
) -> Result<Sge, Error> {
    let number = usize::try_from(wr_id % u64::from(places)).unwrap_or(0);
    let offset = first + number * HEADER_OCTETS_MAX;
    memory.write(offset, header)?;
    Ok(memory.element(offset, u32::try_from(header.len()).unwrap_or(0)))
}

/// All blocks of a client.
#[derive(Debug)]
pub(crate) struct Buffers {
    share: u32,
    buffer_octets: u32,
    /// Octets before those of the user in a buffer.
    header_octets: usize,
    /// Headers of a block, or of an initiator: a power of two.
    headers: u32,
    blocks: Vec<Block>,
    free: Vec<usize>,
    /// The completion queue of all Receives.
    queue: Rc<Queue>,
    domain: Rc<Domain>,
}

impl Buffers {
    /// For this many connections, or other clients that initiators reach, with send queues of
    /// `sq_depth`.
    ///
    /// # Errors
    /// If the completion queue cannot be created.
    pub(crate) fn new(
        domain: &Rc<Domain>,
        (config, transport): (&MessageConfig, Transport),
        sq_depth: u32,
        connections: u32,
    ) -> Result<Self, Error> {
        let share = u32::from(config.share);
        Ok(Self {
            share,
            buffer_octets: config.buffer_octets,
            header_octets: transport.header_octets(),
            headers: sq_depth.next_power_of_two(),
            blocks: Vec::new(),
            free: Vec::new(),
            queue: Queue::new(domain, share.saturating_mul(connections))?,
            domain: Rc::clone(domain),
        })
    }

    /// The completion queue of Receives, and how many a connection has.
    pub(crate) fn receives(&self) -> (&Rc<Queue>, u32) {
        (&self.queue, self.share)
    }

    /// How many times [`Self::poll`] is called until it has given all that have arrived before the
    /// first one.
    pub(crate) fn polls_max(&self) -> usize {
        (self.share as usize * self.blocks.len()).div_ceil(POLLED)
    }

    fn stride(&self) -> usize {
        self.buffer_octets.next_multiple_of(ALIGNMENT) as usize
    }

    /// A block that no connection has.
    ///
    /// # Errors
    /// If there is none, and no further one can be registered.
    pub(crate) fn take(&mut self) -> Result<usize, Error> {
        if let Some(block) = self.free.pop() {
            return Ok(block);
        }
        let buffers = self.share as usize * self.stride();
        let len_octets = buffers + self.headers as usize * HEADER_OCTETS_MAX;
        let memory = Memory::own(&self.domain, len_octets)?;
        self.blocks.push(Block {
            memory,
            generation: 0,
        });
        Ok(self.blocks.len() - 1)
    }

    /// Headers for an initiator.
    ///
    /// # Errors
    /// If they cannot be registered.
    pub(crate) fn headers(&self) -> Result<Headers, Error> {
        let len_octets = self.headers as usize * HEADER_OCTETS_MAX;
        Ok(Headers {
            memory: Memory::own(&self.domain, len_octets)?,
            places: self.headers,
        })
    }

    /// Posts Receives to a target until it has those for messages of as many other clients.
    ///
    /// # Errors
    /// If no further ones can be registered, or posted.
    pub(crate) fn reserve(&mut self, target: &Target, peers: u32) -> Result<(), Error> {
        while self.blocks.len() < peers as usize {
            let block = u32::try_from(self.take()?).unwrap_or(u32::MAX);
            let first = block.saturating_mul(self.share);
            for buffer in first..first + self.share {
                self.post_to(buffer, target)?;
            }
        }
        Ok(())
    }

    /// Posts a Receive for a buffer to a target.
    ///
    /// # Errors
    /// If it does not take it.
    pub(crate) fn post_to(&self, buffer: u32, target: &Target) -> Result<(), Error> {
        let receive = self.receive(buffer).ok_or(Error::Memory)?;
        match target.post_receive(receive.0, receive.1) {
            true => Ok(()),
            false => Err(Error::from_errno("ibv_post_srq_recv", libc::ENOMEM)),
        }
    }

    /// Takes a block back. The queue pair of its connection is destroyed.
    pub(crate) fn give_back(&mut self, block: usize) {
        self.blocks[block].generation = self.blocks[block].generation.wrapping_add(1);
        self.free.push(block);
    }

    /// The block of a buffer, and the offset of the buffer there.
    fn place_of(&self, buffer: u32) -> Option<(usize, usize)> {
        let block = (buffer / self.share) as usize;
        let offset = (buffer % self.share) as usize * self.stride();
        (block < self.blocks.len()).then_some((block, offset))
    }

    /// The block of a buffer.
    pub(crate) fn block_of(&self, buffer: u32) -> Option<usize> {
        self.place_of(buffer).map(|(block, _)| block)
    }

    /// Posts Receives for all buffers of a block; `false`: the queue pair does not take them.
    pub(crate) fn post_all(&self, block: usize, cm: &Id) -> bool {
        let first = u32::try_from(block).map(|block| block * self.share);
        first.is_ok_and(|first| (first..first + self.share).all(|buffer| self.post(buffer, cm)))
    }

    /// Posts a Receive for a buffer of the connection; `false`: the queue pair does not take it.
    pub(crate) fn post(&self, buffer: u32, cm: &Id) -> bool {
        let receive = self.receive(buffer);
        receive.is_some_and(|(wr_id, element)| cm.post_receive(wr_id, element))
    }

    /// The number and the element of the Receive for a buffer.
    fn receive(&self, buffer: u32) -> Option<(u64, Sge)> {
        let (block, offset) = self.place_of(buffer)?;
        let Block { memory, generation } = &self.blocks[block];
        let wr_id = u64::from(*generation) << 32 | u64::from(buffer);
        Some((wr_id, memory.element(offset, self.buffer_octets)))
    }

    /// The messages that have arrived, in order; none if there are no completions of Receives.
    ///
    /// # Errors
    /// If the queue cannot be polled.
    pub(crate) fn poll(&self) -> Result<Option<ArrayVec<Arrived, POLLED>>, Error> {
        let filled = self.queue.poll_receives()?;
        if filled.is_empty() {
            return Ok(None);
        }
        let arrived = filled.iter().filter_map(|filled| {
            let [g3, g2, g1, g0, buffer @ ..] = filled.wr_id.to_be_bytes();
            let buffer = u32::from_be_bytes(buffer);
            let (block, _) = self.place_of(buffer)?;
            let is_current = self.blocks[block].generation == u32::from_be_bytes([g3, g2, g1, g0]);
            let len_octets = filled.len_octets.map(|len_octets| len_octets as usize);
            let arrived = Arrived {
                block,
                buffer,
                len_octets,
            };
            is_current.then_some(arrived)
        });
        Ok(Some(arrived.collect()))
    }

    /// The first octets of a message, up to those of a header.
    pub(crate) fn first(&self, buffer: u32, len_octets: usize) -> ArrayVec<u8, HEADER_OCTETS_MAX> {
        let mut first = [0; HEADER_OCTETS_MAX];
        let len = len_octets.min(self.header_octets);
        let place = self.place_of(buffer);
        let is_read = place.is_some_and(|(block, offset)| {
            let memory = &self.blocks[block].memory;
            memory.read(offset, &mut first[..len]).is_ok()
        });
        first[..len].iter().copied().filter(|_| is_read).collect()
    }

    /// Copies the octets behind the header to elements, whose memory `find` has by its key.
    ///
    /// # Errors
    /// If an element is not in that memory.
    pub(crate) fn copy<'a>(
        &self,
        buffer: u32,
        elements: &[Sge],
        find: impl Fn(u32) -> Option<&'a Memory>,
    ) -> Result<(), Error> {
        let (block, offset) = self.place_of(buffer).ok_or(Error::Memory)?;
        let mut from = offset + self.header_octets;
        for element in elements {
            let to = find(element.lkey).ok_or(Error::Memory)?;
            let at = element.addr.checked_sub(to.addr()).ok_or(Error::Memory)?;
            let at = usize::try_from(at).map_err(|_| Error::Memory)?;
            let len = element.len_octets as usize;
            self.blocks[block].memory.copy(from, (to, at), len)?;
            from += len;
        }
        Ok(())
    }

    /// Writes the header of the work request with a number to its place in a block.
    ///
    /// # Errors
    /// If the block has no such place.
    pub(crate) fn header(&self, block: usize, wr_id: u64, header: &[u8]) -> Result<Sge, Error> {
        let memory = &self.blocks.get(block).ok_or(Error::Memory)?.memory;
        let first = self.share as usize * self.stride();
        write_header(memory, (first, self.headers), wr_id, header)
    }
}
