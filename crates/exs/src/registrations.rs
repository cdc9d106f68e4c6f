//! The memory regions of one connection.
//!
//! Each connection has its own domain, so that a key which one peer has been told is of no use to
//! another. An allocation is registered by the first send or receive that uses it; memory that is
//! only sent is not writable for the peer. The registration ends with the connection, or when the
//! next allocation is registered after all buffers of this one are gone.

use std::sync::Arc;

use urdma_stream::Part;

use crate::error::Error;
use crate::ffi::memory::{Buffer, Pages};
use crate::ffi::queue_pair::Local;
use crate::ffi::verbs::{Access, Domain, Region};

/// What a stream keeps of a send or receive while it is in progress.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) buffer: Buffer,
    /// The key by which a work request, or the peer, names the buffer.
    pub(crate) key: u32,
}

impl Posted {
    /// The octets of a part in a work request.
    #[inline]
    pub(crate) fn octets(&self, part: &Part) -> Local {
        let end = part.offset + u64::from(part.len_octets);
        assert!(end <= self.buffer.len() as u64, "a part is in its buffer");
        Local {
            addr: self.buffer.addr() + part.offset,
            len_octets: part.len_octets,
            lkey: self.key,
        }
    }
}

/// The regions of one allocation.
#[derive(Debug)]
struct Registered {
    pages: Arc<Pages>,
    sends: Option<Region>,
    receives: Option<Region>,
}

impl Registered {
    /// Whether only the registration keeps the allocation.
    fn is_unused(&self) -> bool {
        let regions = [&self.sends, &self.receives];
        let own = 1 + regions.into_iter().flatten().count();
        Arc::strong_count(&self.pages) <= own
    }
}

/// All regions of a connection that its user's buffers are in.
#[derive(Debug)]
pub(crate) struct Registrations {
    domain: Arc<Domain>,
    registered: Vec<Registered>,
    last_send: Last,
    last_receive: Last,
}

/// The allocation of the last operation of a direction, by its address, and its key. Most
/// operations are of the same allocation as the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    pages: usize,
    key: u32,
}

impl Last {
    fn new(buffer: &Buffer, key: u32) -> Self {
        let pages = Arc::as_ptr(buffer.pages()).addr();
        Self { pages, key }
    }

    fn key_of(self, buffer: &Buffer) -> Option<u32> {
        (self.pages == Arc::as_ptr(buffer.pages()).addr()).then_some(self.key)
    }
}

impl Registrations {
    pub(crate) fn new(domain: &Arc<Domain>) -> Self {
        Self {
            domain: Arc::clone(domain),
            registered: Vec::new(),
            last_send: Last::default(),
            last_receive: Last::default(),
        }
    }

    /// The local key of a buffer that is sent.
    #[inline]
    pub(crate) fn lkey(&mut self, buffer: &Buffer) -> Result<u32, Error> {
        match self.last_send.key_of(buffer) {
            Some(key) => Ok(key),
            None => self.lkey_of_other(buffer),
        }
    }

    /// The same if the buffer is of the allocation of the last one.
    #[inline]
    pub(crate) fn last_lkey(&self, buffer: &Buffer) -> Option<u32> {
        self.last_send.key_of(buffer)
    }

    #[inline(never)]
    fn lkey_of_other(&mut self, buffer: &Buffer) -> Result<u32, Error> {
        let index = self.find(buffer);
        let region = &mut self.registered[index].sends;
        let key = match region {
            Some(region) => region.lkey(),
            None => {
                let new = Region::new(&self.domain, buffer.pages(), Access::Read)?;
                region.insert(new).lkey()
            }
        };
        self.last_send = Last::new(buffer, key);
        Ok(key)
    }

    /// The remote key of a buffer that is received into.
    #[inline]
    pub(crate) fn rkey(&mut self, buffer: &Buffer) -> Result<u32, Error> {
        match self.last_receive.key_of(buffer) {
            Some(key) => Ok(key),
            None => self.rkey_of_other(buffer),
        }
    }

    #[inline(never)]
    fn rkey_of_other(&mut self, buffer: &Buffer) -> Result<u32, Error> {
        let index = self.find(buffer);
        let region = &mut self.registered[index].receives;
        let key = match region {
            Some(region) => region.rkey(),
            None => {
                let new = Region::new(&self.domain, buffer.pages(), Access::RemoteWrite)?;
                region.insert(new).rkey()
            }
        };
        self.last_receive = Last::new(buffer, key);
        Ok(key)
    }

    /// Ends the registration of an allocation that no operation uses.
    pub(crate) fn forget(&mut self, pages: &Arc<Pages>) {
        self.retain(|registered| !Arc::ptr_eq(&registered.pages, pages));
    }

    /// The place of the regions of a buffer's allocation. One that has none is added, without
    /// regions, in the place of those that no buffer is of.
    fn find(&mut self, buffer: &Buffer) -> usize {
        let pages = buffer.pages();
        let mut all = self.registered.iter();
        if let Some(index) = all.position(|registered| Arc::ptr_eq(&registered.pages, pages)) {
            return index;
        }
        self.retain(|registered| !registered.is_unused());
        self.registered.push(Registered {
            pages: Arc::clone(pages),
            sends: None,
            receives: None,
        });
        self.registered.len() - 1
    }

    /// Ends the registrations of which `is_kept` is not true. Their addresses can be those of other
    /// allocations afterwards.
    fn retain(&mut self, is_kept: impl FnMut(&Registered) -> bool) {
        self.registered.retain(is_kept);
        (self.last_send, self.last_receive) = Default::default();
    }
}
