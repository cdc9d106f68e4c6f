//! A client that reads the log, and what its answers may be.

use super::log::Moment;
use super::world::World;
use super::{key, Finding, Rng};
use crate::fault::Faults;
use crate::{Answer, BadTable, Directory, Found, Lookup, Read, Step, HEADER_LEN, READS_MAX};

const HEADER: Read = Read {
    offset_octets: 0,
    len_octets: HEADER_LEN as u32,
};

pub(super) struct Client<'w> {
    world: &'w World,
    faults: Faults,
    now: Moment,
    /// How many stores pass during one READ, at most.
    width: u64,
    /// Of each node, the latest state that was seen: none before it is seen again.
    seen: Vec<usize>,
}

impl<'w> Client<'w> {
    pub(super) fn new(world: &'w World, faults: Faults, now: Moment, width: u64) -> Self {
        Self {
            world,
            faults,
            now,
            width,
            seen: vec![0; world.states.len()],
        }
    }

    /// Lets stores pass.
    pub(super) fn wait(&mut self, stores: u64) {
        self.now = (self.now + stores).min(self.world.now());
    }

    /// A READ takes its words from now on; then it is later.
    fn read(&mut self, read: Read, rng: &mut Rng) -> Vec<u8> {
        let begin = self.now;
        self.wait(rng.between(0, self.width));
        let log = self.world.table().memory();
        log.read(read, begin, self.now, rng)
    }

    /// Reads the header, and the hints if `hints` says so. There is none while a table is created.
    pub(super) fn open(
        &mut self,
        hints: bool,
        rng: &mut Rng,
    ) -> Result<Option<Directory>, Finding> {
        let begin = self.now;
        let header = self.read(HEADER, rng);
        let octets = self.world.table().geometry().len_octets().max(1 << 16);
        let opened = Directory::new_with(&header, octets, self.faults);
        let created = self.world.created.iter();
        let mut created = created.filter(|created| created.begin <= self.now);
        match opened {
            Ok(mut directory) => {
                let geometry = directory.geometry();
                if !created.any(|created| created.geometry == geometry) {
                    return Err(format!("there was no table of {geometry:?}"));
                }
                if hints {
                    let octets = self.read(directory.hints(), rng);
                    directory
                        .handle_hints(&octets)
                        .map_err(|bad| bad.to_string())?;
                }
                Ok(Some(directory))
            }
            Err(BadTable::NoTable) if created.any(|created| created.end >= begin) => Ok(None),
            Err(bad) => Err(format!("header at {begin} to {}: {bad}", self.now)),
        }
    }

    /// Looks up a node and judges the answer. Returns it with the number of READs.
    pub(super) fn look_up(
        &mut self,
        directory: &mut Directory,
        node: usize,
        rng: &mut Rng,
    ) -> Result<(Answer, u32), Finding> {
        let begin = self.now;
        let mut lookup = Lookup::new(directory, key(node as u32));
        let mut reads = 0;
        let answer = loop {
            reads += 1;
            if reads > READS_MAX {
                return Err(format!(
                    "a look-up of node {node} has more than {READS_MAX} READs"
                ));
            }
            let octets = self.read(lookup.read(), rng);
            match lookup.handle(directory, &octets) {
                Step::Read(again) => lookup = again,
                Step::Done(answer) => break answer,
            }
        };
        let epoch = directory.geometry().epoch;
        match answer {
            Answer::Found(found) => self.judge(node, begin, Some(found))?,
            Answer::Absent => self.judge(node, begin, None)?,
            Answer::Retry(_) if self.now > begin || self.is_within_change() => {}
            Answer::Bad(BadTable::OtherTable) if self.is_replaced(epoch) => {}
            Answer::Retry(_) | Answer::Bad(_) => {
                return Err(format!(
                    "node {node} at {begin} to {}: {answer:?}",
                    self.now
                ))
            }
        }
        Ok((answer, reads))
    }

    /// Whether the owner has begun a change and not ended it.
    fn is_within_change(&self) -> bool {
        let states = self.world.states.iter().flatten();
        let changes = states.map(|state| (state.begin, state.end));
        let created = self.world.created.iter();
        let mut all = changes.chain(created.map(|created| (created.begin, created.end)));
        all.any(|(begin, end)| begin <= self.now && self.now < end)
    }

    /// Whether a later table was begun.
    fn is_replaced(&self, epoch: u16) -> bool {
        let mut created = self.world.created.iter();
        created.any(|created| created.geometry.epoch > epoch && created.begin <= self.now)
    }

    /// An answer has to be a state that the node had during the look-up, and not before one that
    /// was seen earlier.
    fn judge(&mut self, node: usize, begin: Moment, found: Option<Found>) -> Result<(), Finding> {
        let states = &self.world.states[node];
        let until = |index: usize| states.get(index + 1).map_or(Moment::MAX, |next| next.end);
        let possible = (self.seen[node]..states.len()).find(|index| {
            let state = &states[*index];
            state.found == found && state.begin <= self.now && until(*index) >= begin
        });
        self.seen[node] = possible.ok_or_else(|| {
            format!(
                "node {node} at {begin} to {}: {found:?}, after state {} of {states:?}",
                self.now, self.seen[node]
            )
        })?;
        Ok(())
    }
}
