//! A client's connection to a metadata service, over which it reads the table.
//!
//! ```text
//!   Down -- its time has come --> Connecting     Connecting -- accepted, header read --> Ready
//!   Connecting -- refused, too slow --> Down     Ready -- a READ fails, is too slow --> Down
//!   Ready -- the service ends --> Down           Ready -- another table --> Ready, or Down
//! ```

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use urdma_node_table::{
    Answer, BadTable, Directory, Lookup, NodeKey, Read, Region, Step, BUCKET_LEN, HEADER_LEN,
};
use urdma_pool::Status;

use crate::error::Error;
use crate::ffi::{Domain, Id, Memory, Queue, Service};
use crate::metadata::Hello;
use crate::registration::{connect, CONNECT_LIMIT};

/// How long a READ may take. A service that is slower is not used until it has been connected to
/// again.
const READ_LIMIT: Duration = Duration::from_millis(250);
/// Between two attempts to connect.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest hints that are read: those of 262,144 buckets.
const HINTS_MAX: u32 = 1 << 19;
/// Polls between two looks at the clock, and yields of the processor.
const POLLS: u32 = 256;

/// The table of a service.
#[derive(Debug)]
struct Table {
    region: Region,
    directory: Directory,
}

/// A connection, with queue and memory of its own: whatever is in flight when it is given up ends
/// with it.
#[derive(Debug)]
struct Link {
    /// Dropped before the memory that it writes.
    cm: Id,
    memory: Memory,
    queue: Rc<Queue>,
    domain: Rc<Domain>,
}

#[derive(Debug)]
enum State {
    Down { until: Instant },
    Connecting { link: Link, until: Instant },
    Ready { link: Link, table: Table },
}

/// A metadata service, as a client sees it.
#[derive(Debug)]
pub(crate) struct Replica {
    service: SocketAddr,
    state: State,
    error: Option<Error>,
}

impl Link {
    fn new(domain: &Rc<Domain>, to: SocketAddr) -> Result<Self, Error> {
        let cm = Id::new(Service::Connection)?;
        cm.resolve_address(to)?;
        Ok(Self {
            cm,
            memory: Memory::new(domain, HEADER_LEN.max(BUCKET_LEN))?,
            domain: Rc::clone(domain),
            queue: Queue::new(domain, 1)?,
        })
    }

    /// Reads octets of the table into the beginning of the memory, and waits.
    fn fetch(&self, memory: &Memory, region: Region, read: Read) -> Result<(), Error> {
        let from = (region.addr.wrapping_add(read.offset_octets), region.rkey);
        if !self.cm.read(0, memory, from, read.len_octets) {
            return Err(Error::from_errno("ibv_post_send", libc::EINVAL));
        }
        let began = Instant::now();
        loop {
            let mut status = None;
            for _ in 0..POLLS {
                self.queue.poll(|_, found| status = Some(found))?;
                match status {
                    Some(Status::Success) => return Ok(()),
                    Some(_) => return Err(Error::from_errno("ibv_poll_cq", libc::EIO)),
                    None => {}
                }
            }
            if began.elapsed() > READ_LIMIT {
                return Err(Error::from_errno("ibv_poll_cq", libc::ETIMEDOUT));
            }
            std::thread::yield_now();
        }
    }

    /// The header or a bucket.
    fn line<const LEN: usize>(
        &self,
        region: Region,
        offset_octets: u64,
    ) -> Result<[u8; LEN], Error> {
        let mut octets = [0; LEN];
        let len_octets = u32::try_from(LEN).unwrap_or(0);
        let read = Read {
            offset_octets,
            len_octets,
        };
        self.fetch(&self.memory, region, read)?;
        self.memory.read(0, &mut octets)?;
        Ok(octets)
    }

    /// The hints, which are longer than the memory of the connection.
    fn hints(&self, region: Region, read: Read) -> Result<Vec<u8>, Error> {
        let mut octets = vec![0; read.len_octets as usize];
        let memory = Memory::new(&self.domain, octets.len())?;
        self.fetch(&memory, region, read)?;
        memory.read(0, &mut octets)?;
        Ok(octets)
    }

    /// Reads header and hints.
    fn table(&self, region: Region) -> Result<Table, Error> {
        let header: [u8; HEADER_LEN] = self.line(region, 0)?;
        let mut directory = Directory::new(&header, region.len_octets)?;
        let hints = directory.hints();
        if hints.len_octets <= HINTS_MAX {
            directory.handle_hints(&self.hints(region, hints)?)?;
        }
        Ok(Table { region, directory })
    }

    /// Looks a node up.
    fn look_up(&self, table: &mut Table, key: NodeKey) -> Result<Answer, Error> {
        let mut lookup = Lookup::new(&table.directory, key);
        loop {
            let octets: [u8; BUCKET_LEN] = self.line(table.region, lookup.read().offset_octets)?;
            match lookup.handle(&mut table.directory, &octets) {
                Step::Read(again) => lookup = again,
                Step::Done(answer) => return Ok(answer),
            }
        }
    }
}

impl Replica {
    pub(crate) fn new(service: SocketAddr) -> Self {
        Self {
            service,
            state: State::Down {
                until: Instant::now(),
            },
            error: None,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Whether it may become ready without another attempt.
    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.state, State::Connecting { .. })
    }

    /// Why the service was last given up.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    fn give_up(&mut self, error: Error) {
        self.error = Some(error);
        let until = Instant::now() + RETRY_AFTER;
        self.state = State::Down { until };
    }

    /// Connects, or goes on connecting, and sees whether the connection has ended. It waits only
    /// for header and hints of a service that has just accepted.
    pub(crate) fn turn(&mut self, domain: &Rc<Domain>) {
        if let Err(error) = self.try_turn(domain) {
            self.give_up(error);
        }
    }

    fn try_turn(&mut self, domain: &Rc<Domain>) -> Result<(), Error> {
        match &mut self.state {
            State::Down { until } if *until > Instant::now() => Ok(()),
            State::Down { .. } => {
                let link = Link::new(domain, self.service)?;
                let until = Instant::now() + CONNECT_LIMIT;
                self.state = State::Connecting { link, until };
                self.try_turn(domain)
            }
            State::Connecting { link, until } => {
                let (until, hello) = (*until, Hello::Client.encode());
                let objects = (domain, &link.queue);
                let Some(region) = connect(&mut link.cm, objects, &hello, self.service, until)?
                else {
                    return Ok(());
                };
                let table = link.table(region)?;
                let down = State::Down { until };
                if let State::Connecting { link, .. } = std::mem::replace(&mut self.state, down) {
                    self.state = State::Ready { link, table };
                }
                Ok(())
            }
            State::Ready { link, .. } => match link.cm.has_ended() {
                true => Err(Error::Unreachable(self.service)),
                false => Ok(()),
            },
        }
    }

    /// Looks a node up; none if the service cannot be asked now.
    pub(crate) fn look_up(&mut self, key: NodeKey) -> Option<Answer> {
        let State::Ready { link, table } = &mut self.state else {
            return None;
        };
        let found = match link.look_up(table, key) {
            Ok(Answer::Bad(BadTable::OtherTable)) => {
                // A service has a table for as long as it lives, but others may not.
                let read = link.table(table.region);
                read.and_then(|read| {
                    *table = read;
                    link.look_up(table, key)
                })
            }
            found => found,
        };
        match found {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.give_up(error);
                None
            }
        }
    }
}
