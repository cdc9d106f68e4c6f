//! The rings of posted work requests. Nothing allocates after `new`.

use std::sync::Arc;

use proto_trp::conn::{CompletionOp, Payload, PostError, RecvWr, SendFlags, Sge};

use super::handle::AddressHandle;
use urdma_zeroed::{zeroed, ZeroedSlice};

/// A send request of a datagram queue pair.
#[derive(Clone, Copy, Debug)]
pub struct DatagramWr<'a> {
    /// The application's name for it.
    pub wr_id: u64,
    /// Immediate data in host order.
    pub imm: Option<u32>,
    /// Modifiers; a fence means nothing here.
    pub flags: SendFlags,
    /// The message.
    pub payload: Payload<'a>,
    /// Where to.
    pub handle: &'a Arc<AddressHandle>,
    /// The receiver's queue pair; not looked at for a multicast group.
    pub remote_qpn: u32,
    /// The receiver's `Q_Key`; with its highest bit set, the sender's own is used.
    pub remote_qkey: u32,
}

/// A posted send request.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendRequest {
    pub(super) wr_id: u64,
    pub(crate) imm: Option<u32>,
    pub(super) signaled: bool,
    pub(crate) solicited: bool,
    /// Octets of the message.
    pub(crate) length: u64,
    sge_count: usize,
    is_inline: bool,
    /// What it is, if the service has no such request.
    pub(crate) unsupported: Option<CompletionOp>,
    pub(crate) handle: Option<Arc<AddressHandle>>,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// Where the octets of a request are.
pub(crate) enum Source<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

// A place that was never used is not read; its handle is none, which is dropped.
zeroed!(SendRequest, RecvRequest);

/// Ring of send requests.
#[derive(Debug)]
pub(crate) struct SendRing {
    requests: ZeroedSlice<SendRequest>,
    sges: ZeroedSlice<Sge>,
    inline: ZeroedSlice<u8>,
    max_sge: usize,
    max_inline: usize,
    head: usize,
    len: usize,
}

impl SendRing {
    pub(crate) fn new(depth: u32, max_sge: u32, max_inline: u32) -> Self {
        let (depth, max_sge, max_inline) = (depth as usize, max_sge as usize, max_inline as usize);
        Self {
            requests: ZeroedSlice::new(depth),
            sges: ZeroedSlice::new(depth * max_sge),
            inline: ZeroedSlice::new(depth * max_inline),
            max_sge,
            max_inline,
            head: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, wr: &DatagramWr<'_>) -> Result<(), PostError> {
        let slot = self.place_for_next()?;
        let (length, sge_count, is_inline) = match wr.payload {
            Payload::Sges(sges) => {
                let room = &mut self.sges[slot * self.max_sge..][..self.max_sge];
                let room = room.get_mut(..sges.len()).ok_or(PostError::TooManySges)?;
                room.copy_from_slice(sges);
                let length = sges.iter().map(|sge| u64::from(sge.length)).sum();
                (length, sges.len(), false)
            }
            Payload::Inline(parts) => {
                let mut room = &mut self.inline[slot * self.max_inline..][..self.max_inline];
                let mut length = 0;
                for part in parts {
                    let (into, rest) = room
                        .split_at_mut_checked(part.len())
                        .ok_or(PostError::InlineTooLong)?;
                    into.copy_from_slice(part);
                    length += part.len() as u64;
                    room = rest;
                }
                (length, 0, true)
            }
        };
        self.requests[slot] = SendRequest {
            wr_id: wr.wr_id,
            imm: wr.imm,
            signaled: wr.flags.signaled,
            solicited: wr.flags.solicited,
            length,
            sge_count,
            is_inline,
            unsupported: None,
            handle: Some(Arc::clone(wr.handle)),
            remote_qpn: wr.remote_qpn,
            remote_qkey: wr.remote_qkey,
        };
        self.len += 1;
        Ok(())
    }

    /// Adds a request that the service does not have.
    #[cold]
    pub(crate) fn push_unsupported(
        &mut self,
        wr_id: u64,
        op: CompletionOp,
    ) -> Result<(), PostError> {
        let slot = self.place_for_next()?;
        self.requests[slot] = SendRequest {
            wr_id,
            unsupported: Some(op),
            ..SendRequest::default()
        };
        self.len += 1;
        Ok(())
    }

    /// Where the next request goes.
    fn place_for_next(&self) -> Result<usize, PostError> {
        if self.len == self.requests.len() {
            return Err(PostError::QueueFull);
        }
        Ok((self.head + self.len) % self.requests.len())
    }

    /// The oldest request and its octets.
    pub(crate) fn front(&self) -> Option<(&SendRequest, Source<'_>)> {
        if self.len == 0 {
            return None;
        }
        let request = &self.requests[self.head];
        let source = if request.is_inline {
            let octets = &self.inline[self.head * self.max_inline..];
            // What was pushed fits, so its length is one of an array.
            Source::Inline(&octets[..usize::try_from(request.length).unwrap_or(0)])
        } else {
            Source::Sges(&self.sges[self.head * self.max_sge..][..request.sge_count])
        };
        Some((request, source))
    }

    /// Takes the oldest request out.
    pub(crate) fn pop(&mut self) -> Option<SendRequest> {
        if self.len == 0 {
            return None;
        }
        let request = std::mem::take(&mut self.requests[self.head]);
        self.head = (self.head + 1) % self.requests.len();
        self.len -= 1;
        Some(request)
    }
}

/// A posted receive request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvRequest {
    pub(super) wr_id: u64,
    sge_count: usize,
}

/// Ring of receive requests.
#[derive(Debug)]
pub(crate) struct RecvRing {
    requests: ZeroedSlice<RecvRequest>,
    sges: ZeroedSlice<Sge>,
    max_sge: usize,
    head: usize,
    len: usize,
}

impl RecvRing {
    pub(crate) fn new(depth: u32, max_sge: u32) -> Self {
        let (depth, max_sge) = (depth as usize, max_sge as usize);
        Self {
            requests: ZeroedSlice::new(depth),
            sges: ZeroedSlice::new(depth * max_sge),
            max_sge,
            head: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.len == self.requests.len() {
            return Err(PostError::QueueFull);
        }
        let slot = (self.head + self.len) % self.requests.len();
        let room = &mut self.sges[slot * self.max_sge..][..self.max_sge];
        let room = room
            .get_mut(..wr.sges.len())
            .ok_or(PostError::TooManySges)?;
        room.copy_from_slice(wr.sges);
        self.requests[slot] = RecvRequest {
            wr_id: wr.wr_id,
            sge_count: wr.sges.len(),
        };
        self.len += 1;
        Ok(())
    }

    /// The list of the oldest request.
    pub(crate) fn front(&self) -> Option<&[Sge]> {
        if self.len == 0 {
            return None;
        }
        let count = self.requests[self.head].sge_count;
        Some(&self.sges[self.head * self.max_sge..][..count])
    }

    /// Takes the oldest request out; its list stays where it is until the next push.
    pub(crate) fn pop(&mut self) -> Option<(RecvRequest, &[Sge])> {
        if self.len == 0 {
            return None;
        }
        let slot = self.head;
        let request = self.requests[slot];
        self.head = (self.head + 1) % self.requests.len();
        self.len -= 1;
        Some((
            request,
            &self.sges[slot * self.max_sge..][..request.sge_count],
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(lengths: &[u32]) -> Vec<Sge> {
        let sge = |&length: &u32| Sge {
            addr: 0,
            length,
            lkey: 1,
        };
        lengths.iter().map(sge).collect()
    }

    #[test]
    fn recv_ring_keeps_order_across_its_end() {
        let mut ring = RecvRing::new(3, 2);
        for id in 0..10 {
            ring.push(&RecvWr {
                wr_id: id,
                sges: &list(&[1, 2]),
            })
            .unwrap();
            if id > 0 {
                assert_eq!(ring.front().map(<[Sge]>::len), Some(2));
                let (request, sges) = ring.pop().unwrap();
                assert_eq!((request.wr_id, sges.len()), (id - 1, 2));
            }
        }
        assert_eq!(ring.len(), 1);
    }

    #[test]
    fn recv_ring_refuses_what_does_not_fit() {
        let mut ring = RecvRing::new(1, 1);
        let (one, two) = (list(&[1]), list(&[1, 1]));
        let wr = |sges| RecvWr { wr_id: 1, sges };
        assert_eq!(ring.push(&wr(&two)), Err(PostError::TooManySges));
        ring.push(&wr(&one)).unwrap();
        assert_eq!(ring.push(&wr(&one)), Err(PostError::QueueFull));
    }

    #[test]
    fn recv_ring_of_no_depth_takes_nothing() {
        let mut ring = RecvRing::new(0, 1);
        let wr = RecvWr {
            wr_id: 1,
            sges: &[],
        };
        assert_eq!(ring.push(&wr), Err(PostError::QueueFull));
        assert!(ring.front().is_none() && ring.pop().is_none());
    }
}
