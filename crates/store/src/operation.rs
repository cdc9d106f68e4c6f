//! Operations: each says which requests to post, and takes what they brought.

use arrayvec::ArrayVec;
use urdma_pool::Operation as Verb;

use crate::block::{self, block_len, BLOCK_HEADER_LEN};
use crate::blocks::Blocks;
use crate::error::OperationError;
use crate::fault::{Fault, Faults};
use crate::geometry::{word_at, Geometry, Places, BUCKET_LEN, BUCKET_SLOTS};
use crate::slot::{BlockId, Slot};

/// How often an operation begins anew, because other clients have interfered, before it gives up.
pub const ATTEMPTS_MAX: u32 = 256;
/// How often it reads the buckets again before it takes a tentative slot away from a client that
/// may be about to commit it.
const PATIENCE: u32 = 4;
/// Slots of both buckets.
const SLOTS: usize = 2 * BUCKET_SLOTS;

/// Where the words before atomics are placed in the buffer of an operation, behind the buckets.
const WORD_AT: usize = 2 * BUCKET_LEN;
/// Where the block is that was read. The one to write is behind it.
const BLOCK_AT: usize = WORD_AT + BUCKET_LEN;

impl Geometry {
    /// The length of the buffer that an operation needs, from which requests write and into which
    /// they read.
    pub fn buffer_len(&self) -> usize {
        self.own_block_at() + self.block_len()
    }

    fn block_len(&self) -> usize {
        self.block_octets as usize
    }

    fn own_block_at(&self) -> usize {
        BLOCK_AT + self.block_len()
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it does. Reads and the words before atomics are placed into the buffer.
    pub verb: Verb,
    /// The offset in the node's memory.
    pub offset: u64,
    /// The offset in the buffer.
    pub buffer_offset: usize,
    /// The length, a multiple of 8.
    pub len_octets: usize,
}

/// Requests that are executed in this order, as those of one queue pair are.
pub type Requests = ArrayVec<Request, 2>;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'b> {
    /// The key has this value, which is in the buffer.
    Found(&'b [u8]),
    /// The key has no value.
    Absent,
    /// The key has the value; whether it had another one before.
    Stored {
        /// Whether it had.
        replaced: bool,
    },
    /// The key has no value; whether it had one before.
    Deleted {
        /// Whether it had.
        found: bool,
    },
}

/// What is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'b> {
    /// To post [`Operation::requests`], and to call [`Operation::handle`] once all are complete.
    Requests,
    /// Nothing: the operation has ended.
    Done(Outcome<'b>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Put,
    Delete,
}

/// The requests that are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Takes an extent.
    Extent,
    /// Reads both buckets.
    Buckets,
    /// Reads the block of a slot that may be the key's.
    Compare(usize, Slot),
    /// Puts another block, or none, into the committed slot of the key.
    Replace(Slot),
    /// Puts a tentative slot into an empty one.
    Install(usize),
    /// Commits the tentative slot.
    Commit,
    /// Takes the own tentative slot back.
    Withdraw,
    /// Takes another client's tentative slot away.
    Kill(Slot),
}

/// A get, put or delete of one key.
///
/// ```text
///  Extent --> Buckets <------ another client has interfered --------+
///               |                                                   |
///               v                                                   |
///            Compare, for each slot with the fingerprint ---------->+
///               |                                                   |
///   found:      +--> Replace --> done (put, delete) --------------->+
///   not found,  +--> Install --> Buckets --> Compare                |
///   put:                            |                               |
///     found committed:              +--> Withdraw ----------------->+
///     found tentative:              +--> Kill --------------------->+
///     not found:                    +--> Commit --> done ---------->+
/// ```
#[derive(Debug)]
pub struct Operation<'o> {
    kind: Kind,
    geometry: Geometry,
    places: Places,
    key: &'o [u8],
    value: &'o [u8],
    stage: Stage,
    requests: Requests,
    /// The block of a put.
    own: Option<BlockId>,
    /// The slot in which the own block is tentative.
    installed: Option<usize>,
    slots: [u64; SLOTS],
    /// From which slot on the fingerprint is compared.
    next: usize,
    attempts: u32,
    attempts_max: u32,
    patience: u32,
    faults: Faults,
}

impl<'o> Operation<'o> {
    /// Begins to look up the value of a key.
    pub fn get(geometry: &Geometry, key: &'o [u8]) -> Self {
        Self::new(Kind::Get, geometry, key, &[])
    }

    /// Begins to delete a key.
    pub fn delete(geometry: &Geometry, key: &'o [u8]) -> Self {
        Self::new(Kind::Delete, geometry, key, &[])
    }

    /// Begins to give a key a value.
    ///
    /// # Errors
    /// If a block has no room for them.
    pub fn put(
        geometry: &Geometry,
        key: &'o [u8],
        value: &'o [u8],
    ) -> Result<Self, OperationError> {
        if block_len(key, value) > geometry.block_len() {
            return Err(OperationError::TooLong {
                has: key.len() + value.len(),
                room: geometry.block_len() - BLOCK_HEADER_LEN,
            });
        }
        Ok(Self::new(Kind::Put, geometry, key, value))
    }

    fn new(kind: Kind, geometry: &Geometry, key: &'o [u8], value: &'o [u8]) -> Self {
        let mut new = Self {
            kind,
            geometry: *geometry,
            places: geometry.places(key),
            key,
            value,
            stage: Stage::Buckets,
            requests: Requests::new(),
            own: None,
            installed: None,
            slots: [0; SLOTS],
            next: 0,
            attempts: 0,
            attempts_max: ATTEMPTS_MAX,
            patience: 0,
            faults: Faults::default(),
        };
        new.read_buckets();
        new
    }

    /// The same with faults and fewer attempts.
    #[cfg(test)]
    pub(crate) fn with(mut self, faults: Faults, attempts_max: u32) -> Self {
        (self.faults, self.attempts_max) = (faults, attempts_max);
        self
    }

    /// The requests to post. Those that write take their octets from the buffer.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Takes the buffer after all requests are complete. An operation whose requests fail is
    /// dropped: it has been executed or not, and a put may have lost a block to the store.
    ///
    /// # Errors
    /// If the operation has failed; it has changed nothing.
    pub fn handle<'b>(
        &mut self,
        blocks: &mut Blocks,
        buffer: &'b mut [u8],
    ) -> Result<Step<'b>, OperationError> {
        let word = word_at(buffer, WORD_AT / 8);
        self.requests.clear();
        let done = match self.stage {
            Stage::Extent => {
                blocks.add(&self.geometry, word)?;
                self.read_buckets();
                None
            }
            Stage::Buckets => {
                for (n, slot) in self.slots.iter_mut().enumerate() {
                    *slot = word_at(buffer, n);
                }
                self.next = 0;
                self.compare_next(blocks, buffer)?
            }
            Stage::Compare(place, slot) => return self.compared(place, slot, blocks, buffer),
            Stage::Replace(slot) => self.has_replaced(slot, word, blocks)?,
            Stage::Install(place) => self.has_installed(place, word, blocks)?,
            Stage::Commit => self.has_committed(word, blocks)?,
            Stage::Withdraw => {
                self.installed = None;
                self.begin_anew(blocks)?;
                None
            }
            Stage::Kill(slot) => {
                if word == slot.word() && self.faults.has(Fault::KilledTaken) {
                    blocks.give(slot.id());
                }
                self.begin_anew(blocks)?;
                None
            }
        };
        Ok(done.map_or(Step::Requests, Step::Done))
    }

    /// The tentative slot of the own block.
    fn own_slot(&self) -> Option<Slot> {
        self.own
            .map(|id| Slot::tentative(self.places.fingerprint, id))
    }

    fn slot_offset(&self, place: usize) -> u64 {
        let bucket = self.places.buckets[place / BUCKET_SLOTS];
        Geometry::bucket_offset(bucket) + (place % BUCKET_SLOTS) as u64 * 8
    }

    fn request(&mut self, verb: Verb, offset: u64, buffer_offset: usize, len_octets: usize) {
        self.requests.push(Request {
            verb,
            offset,
            buffer_offset,
            len_octets,
        });
    }

    fn read_buckets(&mut self) {
        self.stage = Stage::Buckets;
        for (n, bucket) in self.places.buckets.into_iter().enumerate() {
            let offset = Geometry::bucket_offset(bucket);
            self.request(Verb::Read, offset, n * BUCKET_LEN, BUCKET_LEN);
        }
    }

    fn swap(&mut self, stage: Stage, place: usize, expected: u64, swap: u64) {
        self.stage = stage;
        let verb = Verb::CompareSwap { expected, swap };
        self.request(verb, self.slot_offset(place), WORD_AT, 8);
    }

    /// Reads the buckets again, since they have changed. If that has happened too often, ends
    /// without having changed anything.
    fn begin_anew(&mut self, blocks: &mut Blocks) -> Result<(), OperationError> {
        self.attempts += 1;
        if self.attempts <= self.attempts_max {
            self.read_buckets();
            return Ok(());
        }
        match (self.installed, self.own_slot()) {
            (Some(place), Some(slot)) if !self.faults.has(Fault::AbandonedKept) => {
                self.swap(Stage::Withdraw, place, slot.word(), 0);
                Ok(())
            }
            _ => self.fail(OperationError::Contended, blocks).map(drop),
        }
    }

    /// Ends without having changed anything: the block is free.
    fn fail(
        &mut self,
        error: OperationError,
        blocks: &mut Blocks,
    ) -> Result<Option<Outcome<'static>>, OperationError> {
        if let Some(id) = self.own.take() {
            blocks.give(id);
        }
        Err(error)
    }

    /// Compares the next slot that may be the key's, or goes on without one.
    fn compare_next(
        &mut self,
        blocks: &mut Blocks,
        buffer: &mut [u8],
    ) -> Result<Option<Outcome<'static>>, OperationError> {
        let end = match self.faults.has(Fault::OneBucket) {
            true => BUCKET_SLOTS,
            false => SLOTS,
        };
        for place in self.next..end {
            let Some(slot) = Slot::decode(self.slots[place]) else {
                continue;
            };
            if !self.may_be_of_the_key(place, slot) {
                continue;
            }
            if slot.id().index >= self.geometry.blocks {
                return self.fail(OperationError::Corrupt, blocks);
            }
            self.next = place + 1;
            self.stage = Stage::Compare(place, slot);
            let offset = self.geometry.block_offset(slot.id().index);
            self.request(Verb::Read, offset, BLOCK_AT, self.geometry.block_len());
            return Ok(None);
        }
        self.not_found(blocks, buffer)
    }

    /// Whether a slot is another one than the own, with the fingerprint, that counts now: before a
    /// commit, tentative ones do, too.
    fn may_be_of_the_key(&self, place: usize, slot: Slot) -> bool {
        let reads_all = self.installed.is_some() && !self.faults.has(Fault::TentativeIgnored);
        let reads_all = reads_all || self.faults.has(Fault::TentativeRead);
        slot.fingerprint() == self.places.fingerprint
            && (reads_all || !slot.is_tentative())
            && self.installed != Some(place)
    }

    /// A block was read.
    fn compared<'b>(
        &mut self,
        place: usize,
        slot: Slot,
        blocks: &mut Blocks,
        buffer: &'b mut [u8],
    ) -> Result<Step<'b>, OperationError> {
        let read = &buffer[BLOCK_AT..BLOCK_AT + self.geometry.block_len()];
        let Some((key, value)) = block::decode(read, slot.id(), self.faults) else {
            // The block is free, so that the slot is another one by now.
            self.begin_anew(blocks)?;
            return Ok(Step::Requests);
        };
        if key != self.key && !self.faults.has(Fault::KeyIgnored) {
            let done = self.compare_next(blocks, buffer)?;
            return Ok(done.map_or(Step::Requests, Step::Done));
        }
        if self.kind == Kind::Get {
            let at = BLOCK_AT + BLOCK_HEADER_LEN + key.len();
            let end = at + value.len();
            return Ok(Step::Done(Outcome::Found(&buffer[at..end])));
        }
        match (self.installed.zip(self.own_slot()), slot.is_tentative()) {
            (None, _) => self.replace(place, slot, blocks, buffer),
            (Some((own, _)), false) if self.faults.has(Fault::NotWithdrawn) => self.commit(own),
            (Some((own, word)), false) => self.swap(Stage::Withdraw, own, word.word(), 0),
            // Of two clients that insert the key, the one with the later slot waits, but not for
            // one that has ended.
            (Some((own, _)), true) => self.kill(place, slot, place > own),
        }
        Ok(Step::Requests)
    }

    /// Takes a tentative slot away, now or later.
    fn kill(&mut self, place: usize, slot: Slot, now: bool) {
        if now || self.patience == PATIENCE {
            self.patience = 0;
            self.swap(Stage::Kill(slot), place, slot.word(), 0);
        } else {
            self.patience += 1;
            self.read_buckets();
        }
    }

    /// A committed slot has the key.
    fn replace(&mut self, place: usize, slot: Slot, blocks: &mut Blocks, buffer: &mut [u8]) {
        let swap = match self.kind {
            Kind::Put => {
                if !self.has_block(blocks, buffer) {
                    return;
                }
                self.write_own_block();
                self.own_slot().map_or(0, |own| own.committed().word())
            }
            Kind::Get | Kind::Delete => 0,
        };
        if self.faults.has(Fault::FreedEarly) {
            blocks.give(slot.id());
        }
        self.swap(Stage::Replace(slot), place, slot.word(), swap);
    }

    fn has_installed(
        &mut self,
        place: usize,
        word: u64,
        blocks: &mut Blocks,
    ) -> Result<Option<Outcome<'static>>, OperationError> {
        if word != 0 {
            self.begin_anew(blocks)?;
            return Ok(None);
        }
        self.installed = Some(place);
        if self.faults.has(Fault::CommittedAtOnce) {
            return Ok(Some(Outcome::Stored { replaced: false }));
        }
        match self.faults.has(Fault::NotReadAgain) {
            true => self.commit(place),
            false => self.read_buckets(),
        }
        Ok(None)
    }

    fn has_committed(
        &mut self,
        word: u64,
        blocks: &mut Blocks,
    ) -> Result<Option<Outcome<'static>>, OperationError> {
        let was_killed = Some(word) != self.own_slot().map(Slot::word);
        self.installed = None;
        if was_killed && !self.faults.has(Fault::CommitUnchecked) {
            self.begin_anew(blocks)?;
            return Ok(None);
        }
        self.own = None;
        Ok(Some(Outcome::Stored { replaced: false }))
    }

    fn has_replaced(
        &mut self,
        slot: Slot,
        word: u64,
        blocks: &mut Blocks,
    ) -> Result<Option<Outcome<'static>>, OperationError> {
        if word != slot.word() && !self.faults.has(Fault::ReplacementUnchecked) {
            self.begin_anew(blocks)?;
            return Ok(None);
        }
        self.own = None;
        if !self.faults.has(Fault::ReplacedKept) && !self.faults.has(Fault::FreedEarly) {
            blocks.give(slot.id());
        }
        Ok(Some(match self.kind {
            Kind::Put => Outcome::Stored { replaced: true },
            Kind::Get | Kind::Delete => Outcome::Deleted { found: true },
        }))
    }

    /// No slot that counts has the key.
    fn not_found(
        &mut self,
        blocks: &mut Blocks,
        buffer: &mut [u8],
    ) -> Result<Option<Outcome<'static>>, OperationError> {
        match (self.kind, self.installed) {
            (Kind::Get, _) => return Ok(Some(Outcome::Absent)),
            (Kind::Delete, _) => return Ok(Some(Outcome::Deleted { found: false })),
            (Kind::Put, Some(place)) => self.commit(place),
            (Kind::Put, None) => {
                if self.has_block(blocks, buffer) {
                    return self.install(blocks);
                }
            }
        }
        Ok(None)
    }

    /// Puts the tentative slot into an empty one, of the bucket that has more of them.
    fn install(&mut self, blocks: &mut Blocks) -> Result<Option<Outcome<'static>>, OperationError> {
        let empty = |half: &[u64]| half.iter().filter(|slot| **slot == 0).count();
        let (home, other) = self.slots.split_at(BUCKET_SLOTS);
        let from = if empty(other) > empty(home) {
            BUCKET_SLOTS
        } else {
            0
        };
        let found = (from..SLOTS).find(|place| self.slots[*place] == 0);
        let Some(place) = found else {
            return self.make_room(blocks);
        };
        self.write_own_block();
        let slot =
            self.own_slot()
                .map_or(0, |slot| match self.faults.has(Fault::CommittedAtOnce) {
                    true => slot.committed().word(),
                    false => slot.word(),
                });
        self.swap(Stage::Install(place), place, 0, slot);
        Ok(None)
    }

    /// Takes a tentative slot away, of whichever key: its client may have ended, and inserts again
    /// if it has not.
    fn make_room(
        &mut self,
        blocks: &mut Blocks,
    ) -> Result<Option<Outcome<'static>>, OperationError> {
        let slots = self.slots.iter().enumerate();
        let mut slots = slots.filter_map(|(place, word)| Some((place, Slot::decode(*word)?)));
        let found = slots.find(|(_, slot)| slot.is_tentative());
        match found.filter(|_| !self.faults.has(Fault::TentativeKept)) {
            Some((place, slot)) => {
                self.kill(place, slot, false);
                Ok(None)
            }
            None => self.fail(OperationError::Full, blocks),
        }
    }

    fn commit(&mut self, place: usize) {
        if let Some(slot) = self.own_slot() {
            self.swap(Stage::Commit, place, slot.word(), slot.committed().word());
        }
    }

    /// Whether a put has a block, which is in the buffer then. If there is none, takes an extent
    /// first, after which the buckets are read again.
    fn has_block(&mut self, blocks: &mut Blocks, buffer: &mut [u8]) -> bool {
        if self.own.is_some() {
            return true;
        }
        self.own = blocks.take();
        let Some(id) = self.own else {
            self.stage = Stage::Extent;
            let verb = Verb::FetchAdd { add: 1 };
            self.request(verb, Geometry::extents_offset(), WORD_AT, 8);
            return false;
        };
        let to = &mut buffer[self.geometry.own_block_at()..];
        block::encode(id, self.key, self.value, to);
        true
    }

    fn write_own_block(&mut self) {
        let Some(id) = self.own else { return };
        let offset = self.geometry.block_offset(id.index);
        let len = block_len(self.key, self.value);
        self.request(Verb::Write, offset, self.geometry.own_block_at(), len);
    }
}
