//! The client's side: what it knows of a table, and look-ups.
//!
//! ```text
//!   begin -- the hints say home --> Home        begin -- the hints say other --> Guess
//!   Guess -- found --> Found                    Guess -- not found --> Home
//!   Home -- found --> Found                     Home -- the bucket's hint is clear --> Absent
//!   Home -- its hint is set --> Other
//!   Other -- found --> Found                    Other -- not found --> Again
//!   Again -- found --> Found                    Again -- the version of Home --> Absent
//!   Again -- another version: as Home
//!   any -- torn --> the same READ again         any -- the last READ --> Retry
//! ```
//!
//! `Again` is for an entry that was moved from the other bucket to its home between two READs: the
//! move has written the home.

use crate::bucket::{Bucket, BUCKET_READ, HINT_BITS};
use crate::error::{BadTable, RetryCause};
use crate::fault::{Fault, Faults};
use crate::geometry::{Geometry, Places, HEADER_LEN};
use crate::node::{Found, NodeKey};
use crate::number::{number, number_16};

/// The most READs of one look-up.
pub const READS_MAX: u32 = 8;

/// Octets of the table that the client has to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// From the begin of the table: of a bucket a multiple of 128, else of 64.
    pub offset_octets: u64,
    /// Their number.
    pub len_octets: u32,
}

/// What a client knows of a table: its geometry, and hints, which save READs but decide nothing.
#[derive(Clone, Debug)]
pub struct Directory {
    geometry: Geometry,
    /// Of each bucket; empty until they are read.
    hints: Vec<u16>,
    faults: Faults,
}

/// Big-endian words of a header or a bucket.
fn words<const N: usize>(octets: &[u8]) -> Result<[u64; N], BadTable> {
    expect_len(octets, 8 * N as u64)?;
    let mut words = [0; N];
    for (word, octets) in words.iter_mut().zip(octets.chunks_exact(8)) {
        *word = number(octets);
    }
    Ok(words)
}

fn expect_len(octets: &[u8], expected: u64) -> Result<(), BadTable> {
    let actual = octets.len() as u64;
    match actual == expected {
        true => Ok(()),
        false => Err(BadTable::Length { expected, actual }),
    }
}

impl Directory {
    /// Begins with the header, the first [`HEADER_LEN`] octets of a region of `region_octets`.
    ///
    /// # Errors
    /// If there is no table, or one that does not fit into the region.
    pub fn new(header: &[u8], region_octets: u64) -> Result<Self, BadTable> {
        Self::new_with(header, region_octets, Faults::default())
    }

    pub(crate) fn new_with(
        header: &[u8],
        region_octets: u64,
        faults: Faults,
    ) -> Result<Self, BadTable> {
        let geometry = Geometry::decode(&words(header)?, faults)?;
        let (table, memory) = (geometry.len_octets(), region_octets);
        if table > memory {
            return Err(BadTable::Bounds { table, memory });
        }
        Ok(Self {
            geometry,
            hints: Vec::new(),
            faults,
        })
    }

    /// The geometry of the table.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The hints of all buckets: a client that does not read them needs more READs later.
    pub fn hints(&self) -> Read {
        Read {
            offset_octets: HEADER_LEN as u64,
            len_octets: self.geometry.hints_len(),
        }
    }

    /// Takes the hints. They may be of several moments.
    ///
    /// # Errors
    /// If the length is another one than that of [`Self::hints`].
    pub fn handle_hints(&mut self, octets: &[u8]) -> Result<(), BadTable> {
        expect_len(octets, self.geometry.hints_len().into())?;
        let hints = octets.chunks_exact((HINT_BITS / 8) as usize);
        self.hints = hints.map(number_16).collect();
        Ok(())
    }
}

/// What a look-up reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Guess,
    Home,
    Other { home_version: u16 },
    Again { home_version: u16 },
}

/// A look-up that needs a READ.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    geometry: Geometry,
    key: NodeKey,
    places: Places,
    stage: Stage,
    reads: u32,
    faults: Faults,
}

/// What follows a READ.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Another READ.
    Read(Lookup),
    /// The answer.
    Done(Answer),
}

/// The answer of a look-up: what the table had at some moment between its first READ and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The node is in the table.
    Found(Found),
    /// It is not.
    Absent,
    /// The table changed too often meanwhile.
    Retry(RetryCause),
    /// The table cannot be used.
    Bad(BadTable),
}

impl Lookup {
    /// Looks up a node.
    pub fn new(directory: &Directory, key: NodeKey) -> Self {
        let places = directory.geometry.places(key);
        let hints = directory.hints.get(places.home as usize);
        let is_away = hints.is_some_and(|hints| hints & 1 << places.bit != 0);
        Self {
            geometry: directory.geometry,
            key,
            places,
            stage: if is_away { Stage::Guess } else { Stage::Home },
            reads: 0,
            faults: directory.faults,
        }
    }

    /// The READs whose result was taken.
    pub fn reads(&self) -> u32 {
        self.reads
    }

    /// What the next READ is to read: a bucket.
    pub fn read(&self) -> Read {
        Read {
            offset_octets: self.geometry.bucket_offset(self.bucket()),
            len_octets: BUCKET_READ,
        }
    }

    fn bucket(&self) -> u32 {
        match self.stage {
            Stage::Home | Stage::Again { .. } => self.places.home,
            Stage::Guess | Stage::Other { .. } => self.places.other,
        }
    }

    /// Takes what was read. Hints of the bucket go into the directory, if it has any.
    pub fn handle(mut self, directory: &mut Directory, octets: &[u8]) -> Step {
        if !self.faults.has(Fault::ReadsUncounted) {
            self.reads += 1;
        }
        let bucket = match self.decode(octets) {
            Ok(Some(bucket)) => bucket,
            Ok(None) => return self.read_again(RetryCause::Torn),
            Err(bad) => return Step::Done(Answer::Bad(bad)),
        };
        if directory.geometry == self.geometry {
            if let Some(hints) = directory.hints.get_mut(self.bucket() as usize) {
                *hints = bucket.hints;
            }
        }
        if let Some(entry) = bucket
            .entries
            .iter()
            .flatten()
            .find(|entry| entry.key == self.key)
        {
            return Step::Done(Answer::Found(entry.found));
        }
        self.missed(&bucket)
    }

    /// The bucket that was read; none if it was being written.
    fn decode(&self, octets: &[u8]) -> Result<Option<Bucket>, BadTable> {
        let Some(bucket) = Bucket::decode(&words(octets)?, self.faults)? else {
            return Ok(None);
        };
        if bucket.epoch != self.geometry.epoch && !self.faults.has(Fault::EpochIgnored) {
            return Err(BadTable::OtherTable);
        }
        let mut before = None;
        for entry in bucket.entries.iter().flatten() {
            let places = self.geometry.places(entry.key);
            let belongs = [places.home, places.other].contains(&self.bucket());
            if !belongs || before == Some(entry.key) {
                return Err(BadTable::Entry);
            }
            before = Some(entry.key);
        }
        Ok(Some(bucket))
    }

    /// The bucket does not have the key.
    fn missed(mut self, bucket: &Bucket) -> Step {
        let Bucket { version, hints, .. } = *bucket;
        let is_away = hints & 1 << self.places.bit != 0;
        self.stage = match self.stage {
            Stage::Guess if self.faults.has(Fault::GuessTrusted) => {
                return Step::Done(Answer::Absent)
            }
            Stage::Guess => Stage::Home,
            Stage::Other { .. } if self.faults.has(Fault::HomeNotReread) => {
                return Step::Done(Answer::Absent)
            }
            Stage::Other { home_version } => Stage::Again { home_version },
            Stage::Again { home_version } if home_version == version => {
                return Step::Done(Answer::Absent)
            }
            Stage::Home | Stage::Again { .. } if !is_away => return Step::Done(Answer::Absent),
            Stage::Home | Stage::Again { .. } => Stage::Other {
                home_version: version,
            },
        };
        self.read_again(RetryCause::Changed)
    }

    fn read_again(self, cause: RetryCause) -> Step {
        match self.reads < READS_MAX {
            true => Step::Read(self),
            false => Step::Done(Answer::Retry(cause)),
        }
    }
}
