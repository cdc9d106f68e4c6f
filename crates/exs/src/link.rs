//! The verbs objects of one connection.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use urdma_stream::wire::{ControlOctets, Hello, CONTROL_MAX_LEN};
use urdma_stream::{Choice, Config, Kind, RingNo, SetupError, Stream};

use crate::control::Slots;
use crate::error::Error;
use crate::ffi::cm::Id;
use crate::ffi::queue_pair::{Batch, Local, Operation, QueuePair};
use crate::ffi::verbs::{Completion, CompletionQueue, Domain, Found};
use crate::registrations::{Posted, Registrations};
use crate::rings::Rings;

/// Marks the work request of a receive; the other bits are its slot.
const RECEIVE: u64 = 1 << 63;

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// Of the receive with this slot.
    Receive(usize),
    /// Of the work request with this number in the send queue.
    Send(u64),
}

/// Which kind of completion this is.
pub(crate) fn of(completion: &Completion) -> Of {
    let id = completion.id;
    if id & RECEIVE == 0 {
        return Of::Send(id);
    }
    Of::Receive(usize::try_from(id & !RECEIVE).unwrap_or(usize::MAX))
}

/// Queue pair, completion queue and registered memory of a connection. The fields are dropped in
/// this order: the queue pair first, after which the peer cannot write into any memory.
#[derive(Debug)]
pub(crate) struct Link {
    qp: QueuePair,
    queue: Arc<CompletionQueue>,
    pub(crate) registrations: Registrations,
    received: Slots,
    sent: Slots,
    rings: Rings,
    /// The first ring as the peer is told of it; without octets if there is none.
    ring: urdma_stream::Buffer,
    domain: Arc<Domain>,
    config: Config,
}

impl Link {
    /// The objects for an identifier that is bound to a device. All receives are posted.
    pub(crate) fn new(id: &Arc<Id>, config: &Config, ring_octets: usize) -> Result<Self, Error> {
        let domain = Arc::new(Domain::new(id)?);
        let mut config = *config;
        config.gather_max = config.gather_max.min(domain.max_elements()?);
        let depths = [config.send_depth, usize::from(config.recv_slots)];
        let queue = Arc::new(CompletionQueue::new(&domain, depths[0] + depths[1])?);
        let has_ring = config.kind == Kind::Octets && config.choice != Choice::Direct;
        let mut rings = Rings::default();
        let ring = match has_ring {
            true => rings.add(&domain, ring_octets)?,
            false => Default::default(),
        };
        let link = Self {
            qp: QueuePair::new(id, &domain, &queue, depths, config.gather_max)?,
            queue,
            registrations: Registrations::new(&domain),
            received: Slots::new(&domain, depths[1])?,
            sent: Slots::new(&domain, depths[0])?,
            rings,
            ring,
            config,
            domain,
        };
        link.post_recvs(0..link.received.len())?;
        Ok(link)
    }

    pub(crate) fn id(&self) -> &Id {
        self.qp.id()
    }

    /// The greeting of this end.
    pub(crate) fn hello(&self) -> Hello {
        self.config.hello(self.ring)
    }

    /// The protocol with the peer that sent this greeting.
    pub(crate) fn stream(&self, peer: &Hello) -> Result<Stream<Posted>, SetupError> {
        Stream::new(&self.config, self.ring, peer)
    }

    /// The descriptors that [`Link::arm`] and connection management make readable.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.queue.fd(), self.id().fd()]
    }

    pub(crate) fn arm(&self) -> Result<(), Error> {
        self.queue.arm()
    }

    pub(crate) fn take_event(&self) -> bool {
        self.queue.take_event()
    }

    pub(crate) fn poll(&self, found: &mut Found) -> Result<(), Error> {
        self.queue.poll(found)
    }

    pub(crate) fn post(&self, batch: &mut Batch) -> Result<(), Error> {
        self.qp.post(batch)
    }

    /// Posts a work request of one element, which is signaled.
    #[inline]
    pub(crate) fn post_one(
        &self,
        id: u64,
        local: Local,
        operation: Operation,
    ) -> Result<(), Error> {
        self.qp.post_one(id, local, operation)
    }

    /// Posts receives into these slots.
    pub(crate) fn post_recvs(&self, slots: impl Iterator<Item = usize>) -> Result<(), Error> {
        let received = &self.received;
        self.qp
            .post_recvs(slots.map(|slot| (RECEIVE | slot as u64, received.whole(slot))))
    }

    /// How many slots there are for receives.
    pub(crate) fn slots(&self) -> usize {
        self.received.len()
    }

    /// A copy of the message in the slot of a receive.
    pub(crate) fn message(&self, slot: usize) -> [u8; CONTROL_MAX_LEN] {
        self.received.read(slot)
    }

    /// Puts a message into the slot of the work request with this number.
    pub(crate) fn control(&mut self, number: u64, message: &ControlOctets) -> Local {
        let count = self.sent.len() as u64;
        let slot = usize::try_from(number % count).expect("less than the number of slots");
        self.sent.write(slot, message)
    }

    /// The rings.
    pub(crate) fn rings(&self) -> &Rings {
        &self.rings
    }

    /// Makes a ring that the peer has asked for.
    pub(crate) fn add_ring(&mut self, octets: u64) -> Result<urdma_stream::Buffer, Error> {
        self.rings
            .add(&self.domain, usize::try_from(octets).unwrap_or(usize::MAX))
    }

    /// Frees the rings before one.
    pub(crate) fn free_rings(&mut self, oldest: RingNo) {
        self.rings.free_before(oldest);
    }

    /// Destroys all objects; what is left is the memory of the rings.
    pub(crate) fn into_rings(mut self) -> Rings {
        // From here on the peer can write into no memory of this end.
        drop(self.qp);
        self.rings.deregister();
        self.rings
    }
}
