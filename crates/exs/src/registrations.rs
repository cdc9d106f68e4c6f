//! The memory regions of one connection.
//!
//! Each connection has its own domain, so that a key which one peer has been told is of no use to
//! another. An allocation is registered by the first send or receive that uses it; memory that is
//! only sent is not writable for the peer. The registration ends with the connection, or when the
//! next allocation is registered after all buffers of this one are gone.

use std::sync::Arc;

use crate::error::Error;
use crate::ffi::memory::{Buffer, Pages};
use crate::ffi::verbs::{Access, Domain, Region};

/// What a stream keeps of a send or receive while it is in progress.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) buffer: Buffer,
    /// The key by which a work request, or the peer, names the buffer.
    pub(crate) key: u32,
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
}

impl Registrations {
    pub(crate) fn new(domain: &Arc<Domain>) -> Self {
        Self {
            domain: Arc::clone(domain),
            registered: Vec::new(),
        }
    }

    /// The local key of a buffer that is sent.
    #[inline]
    pub(crate) fn lkey(&mut self, buffer: &Buffer) -> Result<u32, Error> {
        let registered = find(&mut self.registered, buffer);
        if let Some(region) = &registered.sends {
            return Ok(region.lkey());
        }
        let region = Region::new(&self.domain, buffer.pages(), Access::Read)?;
        Ok(registered.sends.insert(region).lkey())
    }

    /// The remote key of a buffer that is received into.
    #[inline]
    pub(crate) fn rkey(&mut self, buffer: &Buffer) -> Result<u32, Error> {
        let registered = find(&mut self.registered, buffer);
        if let Some(region) = &registered.receives {
            return Ok(region.rkey());
        }
        let region = Region::new(&self.domain, buffer.pages(), Access::RemoteWrite)?;
        Ok(registered.receives.insert(region).rkey())
    }

    /// Ends the registration of an allocation that no operation uses.
    pub(crate) fn forget(&mut self, pages: &Arc<Pages>) {
        self.registered.retain(|r| !Arc::ptr_eq(&r.pages, pages));
    }
}

#[inline]
fn find<'a>(all: &'a mut Vec<Registered>, buffer: &Buffer) -> &'a mut Registered {
    let pages = buffer.pages();
    let found = all.iter().position(|r| Arc::ptr_eq(&r.pages, pages));
    let index = found.unwrap_or_else(|| add(all, pages));
    &mut all[index]
}

/// Adds an allocation without regions, in the place of those that no buffer is of. Few operations
/// do, and the others are to be short.
#[cold]
fn add(all: &mut Vec<Registered>, pages: &Arc<Pages>) -> usize {
    all.retain(|registered| !registered.is_unused());
    all.push(Registered {
        pages: Arc::clone(pages),
        sends: None,
        receives: None,
    });
    all.len() - 1
}
