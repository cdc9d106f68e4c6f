//! What a connection sends, in the order of the calls.
//!
//! A file is sent in pieces of bounded memory. While some of it is not posted, later sends and the
//! end of the sending half wait.

use std::collections::VecDeque;

use urdma_exs::{
    outcome_errno, Buffer, CallError, Error, Failure, Outcome, Refused, SendId, Socket,
};

use crate::errno::Errno;
use crate::file::Part;
use crate::operation::Operation;

/// The octets of a file that are sent at once, and how many such pieces are in progress.
const PIECE: usize = 256 << 10;
const PIECES: usize = 4;

/// A part of a file, and buffers that are free.
#[derive(Debug)]
struct Pieces {
    part: Part,
    free: Vec<Buffer>,
}

/// A send in progress.
#[derive(Debug)]
struct Send {
    operation: Operation,
    /// The octets that are to be posted next, at the beginning of a buffer.
    ready: Option<(Buffer, usize)>,
    file: Option<Pieces>,
    in_progress: Vec<SendId>,
    /// Octets transferred.
    octets: u64,
    /// Why no more is posted.
    errno: i32,
}

/// The sends of a connection.
#[derive(Debug)]
pub(crate) struct Outgoing {
    most: usize,
    posted: VecDeque<Send>,
    /// Not posted as a whole; only of the first, a part may be.
    waiting: VecDeque<Send>,
    is_finish_due: bool,
}

impl Send {
    fn new(operation: Operation) -> Self {
        Self {
            operation,
            ready: None,
            file: None,
            in_progress: Vec::new(),
            octets: 0,
            errno: 0,
        }
    }

    fn is_posted(&self) -> bool {
        let is_read = self.file.as_ref().is_none_or(|file| file.part.left() == 0);
        self.errno != 0 || (is_read && self.ready.is_none())
    }

    fn is_complete(&self) -> bool {
        self.is_posted() && self.in_progress.is_empty()
    }

    fn end(self) {
        // Who has the event may deregister the memory.
        drop(self.ready);
        self.operation.end_transfer(self.errno, self.octets);
    }

    /// Posts what can be posted.
    fn post(&mut self, stream: &mut Socket) {
        while !self.is_posted() {
            if self.ready.is_none() {
                self.read();
            }
            let Some((buffer, len)) = self.ready.take() else {
                return;
            };
            match stream.send(buffer, len) {
                Ok(id) => self.in_progress.push(id),
                Err(Refused {
                    error: Error::Refused(CallError::QueueFull),
                    buffer,
                }) => {
                    self.ready = Some((buffer, len));
                    return;
                }
                Err(refused) => self.fail(Errno::from(refused.error).0),
            }
        }
    }

    /// Reads the next piece of the file unless enough of them are in progress.
    fn read(&mut self) {
        let Some(file) = &mut self.file else {
            return;
        };
        if self.in_progress.len() >= PIECES {
            return;
        }
        let len = file.part.left().min(PIECE);
        let buffer = file.free.pop().map_or_else(|| Buffer::new(len), Ok);
        let mut buffer = match buffer {
            Ok(buffer) => buffer,
            Err(error) => return self.fail(Errno::from(error).0),
        };
        match file.part.read(&mut buffer[..len]) {
            (_, Ok(())) => self.ready = Some((buffer, len)),
            (count, Err(Errno(errno))) => {
                // What was read is part of the stream; the next read fails again.
                match count {
                    0 => self.fail(errno),
                    count => self.ready = Some((buffer, count)),
                }
            }
        }
    }

    /// Posts no more.
    fn fail(&mut self, errno: i32) {
        if self.errno == 0 {
            self.errno = errno;
        }
        self.ready = None;
        self.file = None;
    }

    /// A part of it is complete.
    fn take_part(&mut self, buffer: Buffer, octets: u64, outcome: Outcome) {
        self.octets += octets;
        match (outcome_errno(outcome), &mut self.file) {
            (0, Some(file)) if file.part.left() > 0 => file.free.push(buffer),
            (0, _) => {}
            (errno, _) => self.fail(errno),
        }
    }
}

impl Outgoing {
    /// No send; at most `most` at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            posted: VecDeque::new(),
            waiting: VecDeque::new(),
            is_finish_due: false,
        }
    }

    pub(crate) fn send(
        &mut self,
        stream: &mut Socket,
        buffer: Buffer,
        operation: Operation,
    ) -> Result<(), Error> {
        let len = buffer.len();
        let mut send = Send::new(operation);
        if self.waiting.is_empty() {
            let sent = stream.send(buffer, len);
            send.in_progress
                .push(sent.map_err(|refused| refused.error)?);
            self.posted.push_back(send);
            return Ok(());
        }
        self.check(len)?;
        send.ready = Some((buffer, len));
        self.waiting.push_back(send);
        Ok(())
    }

    /// Sends a part of a file in pieces, on a stream of octets.
    pub(crate) fn send_file(
        &mut self,
        stream: &mut Socket,
        part: Part,
        operation: Operation,
    ) -> Result<(), Errno> {
        self.check(part.left())?;
        let mut send = Send::new(operation);
        send.file = Some(Pieces {
            part,
            free: Vec::new(),
        });
        if self.waiting.is_empty() {
            send.post(stream);
            if send.is_complete() {
                return Err(Errno(send.errno));
            }
        }
        self.waiting.push_back(send);
        self.pump(stream);
        Ok(())
    }

    /// What the stream does not check before octets are posted.
    fn check(&self, len: usize) -> Result<(), CallError> {
        if self.is_finish_due {
            return Err(CallError::Finished);
        }
        if len == 0 {
            return Err(CallError::BadBuffer);
        }
        match self.posted.len() + self.waiting.len() < self.most {
            true => Ok(()),
            false => Err(CallError::QueueFull),
        }
    }

    /// Finishes the sending half after all sends.
    pub(crate) fn finish(&mut self, stream: &mut Socket) -> Result<(), Error> {
        if self.waiting.is_empty() {
            return Ok(stream.finish()?);
        }
        self.is_finish_due = true;
        Ok(())
    }

    /// Posts as much as can be posted.
    fn pump(&mut self, stream: &mut Socket) {
        while let Some(first) = self.waiting.front_mut() {
            first.post(stream);
            if !first.is_posted() {
                return;
            }
            let first = self.waiting.pop_front();
            let first = first.expect("it is the first");
            match first.is_complete() {
                true => first.end(),
                false => self.posted.push_back(first),
            }
        }
        if std::mem::take(&mut self.is_finish_due) {
            // It fails if the stream has failed.
            let _ = stream.finish();
        }
    }

    /// The stream has completed a send, or a piece of one.
    pub(crate) fn take_sent(
        &mut self,
        stream: &mut Socket,
        id: SendId,
        buffer: Buffer,
        (octets, outcome): (u64, Outcome),
    ) {
        let has_it = |send: &Send| send.in_progress.contains(&id);
        let index = self.posted.iter().position(has_it);
        let send = match index {
            Some(index) => Some(&mut self.posted[index]),
            None => self.waiting.front_mut().filter(|send| has_it(send)),
        };
        if let Some(send) = send {
            send.in_progress.retain(|&part| part != id);
            send.take_part(buffer, octets, outcome);
        }
        if let Some(index) = index.filter(|&index| self.posted[index].is_complete()) {
            self.posted.remove(index).into_iter().for_each(Send::end);
        }
        self.pump(stream);
    }

    /// Cancels the sends of these operations: how many.
    pub(crate) fn cancel(
        &mut self,
        stream: &mut Socket,
        is_it: impl Fn(&Operation) -> bool,
    ) -> usize {
        let mut parts = Vec::new();
        let mut count = 0;
        for send in self.posted.iter_mut().chain(&mut self.waiting) {
            if is_it(&send.operation) {
                count += 1;
                if !send.is_posted() {
                    send.fail(libc::ECANCELED);
                }
                parts.extend(&send.in_progress);
            }
        }
        // The last first: the end of one lets the next be sent.
        for id in parts.into_iter().rev() {
            // One that is complete, or that a failure completes, has its event in any case.
            let _ = stream.cancel_send(id);
        }
        self.end_failed();
        self.pump(stream);
        count
    }

    /// The stream has failed.
    pub(crate) fn fail(&mut self, failure: Failure) {
        let errno = outcome_errno(Outcome::Failed(failure));
        self.waiting.iter_mut().for_each(|send| send.fail(errno));
        self.end_failed();
    }

    fn end_failed(&mut self) {
        let all = std::mem::take(&mut self.waiting);
        let (ended, left): (Vec<_>, Vec<_>) = all.into_iter().partition(Send::is_complete);
        self.waiting = left.into();
        ended.into_iter().for_each(Send::end);
    }
}
