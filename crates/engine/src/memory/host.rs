//! Application memory: copies between it and packets, with the checks before each copy.
//!
//! The application may only name memory that it has registered. `populate.rs` checks at
//! registration that it is mapped; what is unmapped later is in `engine/unmapped.rs`. Keys that the
//! fast check refuses go to `checked_copy.rs`.

#![allow(unsafe_code)]

use proto_trp::conn::{
    AtomicOp, Completion, Event, Host, NoSharedRecv, ProtectionError, RemoteAccess, RemoteAddr,
    Sge, SharedRecv, Trace, WindowBind,
};
use proto_trp::wire::SEGMENT_HEAD_LEN;
use urdma_types::Psn;

use super::address::{atomic_at, pointer, store_last};
use crate::objects::direct::Direct;
use crate::objects::events::{AsyncEvent, AsyncKind};
use crate::objects::mr::MrTable;
use crate::objects::note::Note;
use crate::objects::qp::{Counts, Qp};
use crate::objects::qp_host::{ListKind, QpHost};
use crate::objects::srq::NotTaken;
use crate::objects::trace::of_connection;
use crate::objects::xrc::XrcRole;
use crate::paths::packet_body::PacketBody;
use crate::types::{Access, Pd, WorkCompletion};

/// Copies the octets of a list of one element to `out`, which is at least as long; false if the
/// list may not be read, or is of a kind that `checked_copy.rs` copies.
#[inline(always)]
#[must_use]
pub(crate) fn gather_one(regions: &MrTable, qp: &Qp, sge: &Sge, out: &mut [u8]) -> bool {
    let len = u64::from(sge.length);
    let Ok(address) = regions.check(sge.lkey, sge.addr, len, qp.pd(), Access::LOCAL) else {
        return false;
    };
    let octets = sge.length as usize;
    let out = out[..octets].as_mut_ptr();
    // SAFETY: `out` has `octets` octets; they are registered memory, so readable, which packet
    // memory never is.
    unsafe { std::ptr::copy_nonoverlapping(pointer(address).cast_const(), out, octets) };
    true
}

/// Copies octets to the beginning of a receive request's only element, which is at least as long;
/// false if the list may not be written, or is of a kind that `checked_copy.rs` copies.
#[inline(always)]
#[must_use]
pub(crate) fn scatter_one(regions: &MrTable, qp: &Qp, sge: &Sge, octets: &[u8]) -> bool {
    scatter(regions, qp.recv_pd(), sge, octets)
}

/// As [`scatter_one`], of the whole response to a read.
#[inline(always)]
#[must_use]
pub(crate) fn scatter_response_one(regions: &MrTable, qp: &Qp, sge: &Sge, octets: &[u8]) -> bool {
    scatter(regions, qp.pd(), sge, octets)
}

#[inline(always)]
fn scatter(regions: &MrTable, pd: Pd, sge: &Sge, octets: &[u8]) -> bool {
    let len = octets.len();
    let Ok(address) = regions.check(sge.lkey, sge.addr, len as u64, pd, Access::LOCAL_WRITE) else {
        return false;
    };
    // SAFETY: the octets are registered with local write access, and a slice of this crate is not.
    unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), pointer(address), len) };
    true
}

/// Copies memory that the peer names to `out`; false if the peer may not read it, or it is of a
/// kind that `checked_copy.rs` copies.
#[inline(always)]
#[must_use]
pub(crate) fn read_one(
    regions: &MrTable,
    (qp, access): (&Qp, Access),
    remote: RemoteAddr,
    out: &mut [u8],
) -> bool {
    let needed = Access::REMOTE_READ;
    let found = regions.check(remote.stag, remote.to, out.len() as u64, qp.pd(), needed);
    // RFC5040-5.2.1-7
    //# The responder checks source STag and offset of a Read Request, unless its length is 0.
    let (Ok(address), true) = (found, access.contains(needed)) else {
        return false;
    };
    let from = pointer(address).cast_const();
    // SAFETY: the octets are registered with remote read access, and a slice of this crate is not.
    unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    true
}

/// Executes an atomic on a word that the peer names, and returns the old value; `None`, and nothing
/// is done, if the operation may not tell it, the peer may not do this, the word is not aligned, or
/// it is in memory of a kind that `checked_copy.rs` copies.
#[inline(always)]
#[must_use]
pub(crate) fn execute_one(
    regions: &MrTable,
    (qp, access): (&Qp, Access),
    remote: RemoteAddr,
    op: AtomicOp,
) -> Option<u64> {
    let needed = Access::REMOTE_ATOMIC;
    if op.access() != RemoteAccess::Atomic || !access.contains(needed) {
        return None;
    }
    let found = regions.check(remote.stag, remote.to, 8, qp.pd(), needed);
    let address = found.ok().filter(|address| address % 8 == 0)?;
    // SAFETY: eight octets of registered memory with the remote access that the operation needs.
    Some(unsafe { atomic_at(address, op) })
}

/// Writes octets, of which there are some, to memory that the peer names, the last one last; false
/// if the peer may not write there, or it is of a kind that `checked_copy.rs` copies.
#[inline(always)]
#[must_use]
pub(crate) fn write_one(
    regions: &MrTable,
    (qp, access): (&Qp, Access),
    remote: RemoteAddr,
    octets: &[u8],
) -> bool {
    let needed = Access::REMOTE_WRITE;
    let Some((last, first)) = octets.split_last() else {
        return false;
    };
    let len = octets.len() as u64;
    let found = regions.check(remote.stag, remote.to, len, qp.pd(), needed);
    // R11-5
    //# **Receiver.** Whatever the error, a receiver MUST NOT place an octet outside of what the
    //# checks allow.
    let (Ok(address), true) = (found, access.contains(needed)) else {
        return false;
    };
    // SAFETY: the octets are registered with remote write access, and a slice of this crate is not.
    unsafe { std::ptr::copy_nonoverlapping(first.as_ptr(), pointer(address), first.len()) };
    store_last(address + first.len() as u64, *last);
    true
}

/// A send request has completed.
#[inline(always)]
pub(crate) fn complete_send(
    direct: &mut Direct,
    (qp, counts): (&Qp, &mut Counts),
    remote_qpn: u32,
    completion: Completion,
) {
    let waits = direct.push(qp.send_cq(), &qp.work_completion(remote_qpn, completion));
    counts.send_pushed = counts.send_pushed.wrapping_add(u32::from(waits));
}

impl QpHost<'_> {
    #[inline]
    fn local(&self, sge: &Sge, at: u64, len: u64, list: ListKind) -> Result<u64, ProtectionError> {
        let address = sge.addr.checked_add(at).ok_or(ProtectionError::Wrap)?;
        let (pd, needed) = (list.pd(self.qp), list.needs());
        self.regions.check(sge.lkey, address, len, pd, needed)
    }

    #[inline]
    fn remote(
        &self,
        remote: RemoteAddr,
        len: u64,
        access: RemoteAccess,
    ) -> Result<u64, ProtectionError> {
        let needed = Self::rights(access);
        // R11-5
        //# **Receiver.** Whatever the error, a receiver MUST NOT place an octet outside of what the
        //# checks allow.
        if !self.access.contains(needed) {
            return Err(ProtectionError::Access);
        }
        self.regions
            .check(remote.stag, remote.to, len, self.qp.pd(), needed)
    }

    /// Splits `len` octets from `offset` of the list into pieces: calls `piece(address, begin,
    /// octets)` for each, in order.
    #[inline]
    pub(super) fn pieces(
        &self,
        sges: &[Sge],
        mut offset: u64,
        len: usize,
        list: ListKind,
        mut piece: impl FnMut(u64, usize, usize),
    ) -> Result<(), ProtectionError> {
        let mut done = 0;
        for sge in sges {
            if done == len {
                break;
            }
            let length = u64::from(sge.length);
            if offset >= length {
                offset -= length;
                continue;
            }
            let octets = (length - offset).min((len - done) as u64);
            let address = self.local(sge, offset, octets, list)?;
            // `octets` is at most `len - done`.
            let octets = usize::try_from(octets).map_err(|_| ProtectionError::Bounds)?;
            piece(address, done, octets);
            done += octets;
            offset = 0;
        }
        if done == len {
            Ok(())
        } else {
            Err(ProtectionError::Bounds)
        }
    }

    /// As [`QpHost::pieces`], but nothing is called before everything has been checked.
    #[inline]
    fn checked_pieces(
        &self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        list: ListKind,
        piece: impl FnMut(u64, usize, usize),
    ) -> Result<(), ProtectionError> {
        if sges.len() > 1 {
            self.pieces(sges, offset, len, list, |_, _, _| {})?;
        }
        self.pieces(sges, offset, len, list, piece)
    }

    /// Writes `len` octets at `from` to memory that the peer names, the last one last.
    ///
    /// # Safety
    /// They are readable.
    #[inline]
    unsafe fn write_octets(
        &mut self,
        remote: RemoteAddr,
        from: *const u8,
        len: usize,
    ) -> Result<(), ProtectionError> {
        let Ok(address) = self.remote(remote, len as u64, RemoteAccess::Write) else {
            // SAFETY: the caller's promise.
            return unsafe { self.write_checked(remote, from, len) };
        };
        let Some(last) = len.checked_sub(1) else {
            return Ok(());
        };
        // SAFETY: readable by the caller's promise, writable since registered with remote write
        // access; packet memory and registered memory do not overlap.
        let octet = unsafe {
            std::ptr::copy_nonoverlapping(from, pointer(address), last);
            from.add(last).read()
        };
        store_last(address + last as u64, octet);
        Ok(())
    }

    /// Copies `len` octets of `body` from `at` into the concatenation of a list from an offset on.
    // A part of its two callers, which know the kind of list.
    #[inline(always)]
    fn scatter_to(
        &mut self,
        list: ListKind,
        (sges, offset): (&[Sge], u64),
        body: &PacketBody<'_>,
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError> {
        let scattered = self.checked_pieces(sges, offset, len, list, |address, begin, octets| {
            // SAFETY: the octets are registered with local write access.
            unsafe { body.copy_to(at + begin, pointer(address), octets) };
        });
        match scattered {
            Ok(()) => Ok(()),
            Err(_) => self.scatter_checked(list, sges, offset, body.piece(at, len), len),
        }
    }

    /// Copies `octets`, which are none of the application's, to the beginning of the concatenation
    /// of `sges`.
    pub(crate) fn scatter_octets(
        &mut self,
        list: ListKind,
        sges: &[Sge],
        octets: &[u8],
    ) -> Result<(), ProtectionError> {
        self.scatter_checked(list, sges, 0, octets.as_ptr(), octets.len())
    }

    /// Takes the oldest request from the queue pair's shared receive queue if its list is `wanted`
    /// and the completion queue has room.
    ///
    /// # Errors
    /// The request stays where it is.
    pub(crate) fn take_shared_recv_if(
        &self,
        sges: &mut [Sge],
        wanted: impl FnOnce(&[Sge]) -> bool,
    ) -> Result<SharedRecv, NotTaken> {
        let srq = self.qp.srq().ok_or(NotTaken::Empty)?;
        if !self.qp.recv_cq().takes_shared() {
            return Err(NotTaken::Empty);
        }
        srq.take_if(sges, wanted)
    }

    /// A datagram was received.
    pub(crate) fn complete_datagram(&mut self, completion: &WorkCompletion) {
        self.counts.recv_pushed = self.counts.recv_pushed.wrapping_add(1);
        self.qp.recv_cq().push(completion);
    }
}

impl<'a> Host for QpHost<'a> {
    type Body = PacketBody<'a>;

    #[inline]
    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), ProtectionError> {
        let len = out.len();
        let to = out.as_mut_ptr();
        let gathered = self.pieces(
            sges,
            offset,
            len,
            ListKind::Source,
            |address, begin, octets| {
                // SAFETY: the pieces together are `len` octets, so `begin` is within `out`.
                let to = unsafe { to.add(begin) };
                // SAFETY: the octets are registered memory, so readable; `out` is packet memory,
                // which is never registered.
                unsafe { std::ptr::copy_nonoverlapping(pointer(address).cast_const(), to, octets) };
            },
        );
        match gathered {
            Ok(()) => Ok(()),
            Err(_) => self.gather_checked(sges, offset, out),
        }
    }

    #[inline]
    fn scatter(
        &mut self,
        sges: &[Sge],
        offset: u64,
        body: &PacketBody<'a>,
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError> {
        self.scatter_to(ListKind::Receive, (sges, offset), body, at, len)
    }

    #[inline]
    fn scatter_response(
        &mut self,
        sges: &[Sge],
        offset: u64,
        body: &PacketBody<'a>,
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError> {
        self.scatter_to(ListKind::Response, (sges, offset), body, at, len)
    }

    fn scatter_u64(&mut self, sges: &[Sge], value: u64) -> Result<(), ProtectionError> {
        self.scatter_octets(ListKind::Response, sges, &value.to_ne_bytes())
    }

    #[inline]
    fn check_remote(
        &mut self,
        remote: RemoteAddr,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), ProtectionError> {
        match self.remote(remote, len, access) {
            Ok(_) => Ok(()),
            Err(_) => self.find_remote(remote, len, access).map(|_| ()),
        }
    }

    #[inline]
    fn write_remote(
        &mut self,
        remote: RemoteAddr,
        body: &PacketBody<'a>,
        at: usize,
        len: usize,
    ) -> Result<(), ProtectionError> {
        // SAFETY: the octets of a datagram, of which `piece` asserts that these are some.
        unsafe { self.write_octets(remote, body.piece(at, len), len) }
    }

    #[inline]
    fn peek(&mut self, body: &PacketBody<'a>, at: usize, out: &mut [u8; SEGMENT_HEAD_LEN]) {
        body.peek(at, out);
    }

    fn keep(&mut self, body: &PacketBody<'a>, at: usize, len: usize, out: &mut Vec<u8>) {
        out.reserve(len);
        // SAFETY: there is room for `len` octets more behind those of the vector, which is
        // never registered.
        unsafe {
            body.copy_to(at, out.as_mut_ptr().add(out.len()), len);
            out.set_len(out.len() + len);
        }
    }

    fn write_kept(&mut self, remote: RemoteAddr, octets: &[u8]) -> Result<(), ProtectionError> {
        // SAFETY: a slice is readable for its length, and borrowed until this returns.
        unsafe { self.write_octets(remote, octets.as_ptr(), octets.len()) }
    }

    #[inline]
    fn read_remote(&mut self, remote: RemoteAddr, out: &mut [u8]) -> Result<(), ProtectionError> {
        let Ok(address) = self.remote(remote, out.len() as u64, RemoteAccess::Read) else {
            return self.read_checked(remote, out);
        };
        let from = pointer(address).cast_const();
        // SAFETY: the octets are registered with remote read access; `out` is packet memory.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn atomic(&mut self, remote: RemoteAddr, op: AtomicOp) -> Result<u64, ProtectionError> {
        let address = match self.remote(remote, 8, op.access()) {
            Ok(address) => address,
            Err(_) => self.word_checked(remote, op.access())?,
        };
        // R10-8, RFC7306-5.1-1
        //# The operand MUST be aligned to 8 octets.
        //# An atomic on an address that is not aligned to 8 octets changes no memory, is reported
        //# as an error, and causes a Terminate (sections 5.1.1, 5.1.2 and 8.2).
        if address % 8 != 0 {
            return Err(ProtectionError::Misaligned);
        }
        // SAFETY: eight octets of registered memory with the remote access that the operation
        // needs.
        Ok(unsafe { atomic_at(address, op) })
    }

    fn invalidate(&mut self, stag: u32) -> Result<(), ProtectionError> {
        self.invalidate_local(stag)
    }

    fn invalidate_local(&mut self, stag: u32) -> Result<(), ProtectionError> {
        let qpn = self.qp.number().to_u32();
        self.regions.invalidate(stag, self.qp.pd(), qpn)
    }

    fn bind_window(&mut self, bind: &WindowBind) -> Result<(), ProtectionError> {
        let qpn = self.qp.number().to_u32();
        self.regions.bind(bind, self.qp.pd(), qpn)
    }

    #[cold]
    fn take_shared_recv(
        &mut self,
        queue: u32,
        sges: &mut [Sge],
    ) -> Result<SharedRecv, NoSharedRecv> {
        if let XrcRole::Target(domain) = self.qp.xrc() {
            return domain.take(queue, sges);
        }
        if self.qp.srq().is_none() {
            return Err(NoSharedRecv::NoQueue);
        }
        self.take_shared_recv_if(sges, |_| true)
            .map_err(|_| NoSharedRecv::Empty)
    }

    fn complete_shared(&mut self, queue: u32, completion: Completion) {
        if let XrcRole::Target(domain) = self.qp.xrc() {
            self.counts.recv_pushed = self.counts.recv_pushed.wrapping_add(1);
            let completion = self.qp.work_completion(self.remote_qpn, completion);
            domain.complete(queue, &completion);
        } else {
            self.complete(completion);
        }
    }

    #[inline(always)]
    fn taken(&mut self, next: Psn) {
        if let Some(delivery) = self.delivery {
            delivery.record().advance(next.to_u32());
        }
    }

    // A part of its callers, as `Cq::push` is of it.
    #[inline(always)]
    fn complete(&mut self, completion: Completion) {
        let cq = if completion.is_send() {
            self.counts.send_pushed = self.counts.send_pushed.wrapping_add(1);
            self.qp.send_cq()
        } else {
            self.counts.recv_pushed = self.counts.recv_pushed.wrapping_add(1);
            self.qp.recv_cq()
        };
        cq.push(&self.qp.work_completion(self.remote_qpn, completion));
    }

    #[inline]
    fn trace(&mut self, trace: Trace) {
        of_connection(self.qp, trace);
    }

    #[cold]
    fn event(&mut self, event: Event) {
        let qpn = self.qp.number();
        let kind = match event {
            Event::Established => {
                self.notes.push(Note::QpData(qpn));
                AsyncKind::CommunicationEstablished
            }
            Event::Fatal => AsyncKind::QpFatal,
            Event::RemoteInvalidRequest => AsyncKind::QpRequestError,
            Event::RemoteAccessError => AsyncKind::QpAccessError,
            Event::SqDrained if !self.qp.wants_drained() => return,
            Event::SqDrained => AsyncKind::SqDrained,
            Event::LastRecvReached => AsyncKind::LastRecvReached,
            Event::PeerGone | Event::PeerClosed => {
                if event == Event::PeerGone {
                    self.qp.recorder().peer_gone(qpn.to_u32());
                }
                // The end of the peer is not an event of verbs; connection management reports it.
                self.notes.push(Note::QpGone(qpn));
                return;
            }
        };
        self.qp.events().async_event(AsyncEvent {
            kind,
            element: Some(self.qp.cookie()),
        });
    }
}
