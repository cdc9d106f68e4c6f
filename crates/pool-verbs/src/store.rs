//! A key-value store in the memory of a node (`urdma-store`), over virtual queue pairs.

use std::net::SocketAddr;

use thiserror::Error as ThisError;
use urdma_pool::{
    Completion, Element, LocalRegionId, Operation as Verb, RemoteRegionId, Request, Status, UserId,
    VirtualId,
};
use urdma_store::{
    Blocks, Geometry, GeometryError, Operation, OperationError, Outcome, Step, HEADER_LEN,
};

use crate::client::Client;
use crate::error::Error;
use crate::node::Node;

/// Requests of an operation at a time.
const DEPTH: u32 = 2;

/// A call that failed.
#[derive(Debug, ThisError)]
pub enum StoreError {
    /// A call of the client or the node.
    #[error(transparent)]
    Pool(#[from] Error),
    /// There is no store, or none is possible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The operation has failed, and has changed nothing.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A request failed: the operation may have been executed or not. The store can be used again.
    #[error("a request of the operation ended with {0:?}; it may have been executed or not")]
    Request(Status),
}

/// A virtual queue pair to a node, and memory for its requests.
#[derive(Debug)]
struct Path {
    id: VirtualId,
    remote: RemoteRegionId,
    remote_addr: u64,
    local: LocalRegionId,
    local_addr: u64,
    /// What is to be written, and what was read: a copy of the registered memory.
    buffer: Vec<u8>,
}

/// A store as a client works on it: by requests of one virtual queue pair, one operation at a time.
#[derive(Debug)]
pub struct Store {
    path: Path,
    geometry: Geometry,
    blocks: Blocks,
}

impl Store {
    /// A node at an address that offers an empty store.
    ///
    /// # Errors
    /// If the geometry is not possible, or the node cannot be created.
    pub fn offer(at: SocketAddr, geometry: &Geometry) -> Result<Node, StoreError> {
        let header = geometry.header()?;
        let len = usize::try_from(geometry.len_octets()).map_err(|_| GeometryError::Range)?;
        let node = Node::listen(at, len)?;
        node.write(0, &header)?;
        Ok(node)
    }

    /// Opens the store of the node at an address, for a user of the client.
    ///
    /// # Errors
    /// If the node cannot be reached, or has no store. Nothing is left open then.
    pub fn open(client: &mut Client, user: UserId, at: SocketAddr) -> Result<Self, StoreError> {
        let (id, remote, remote_addr) = client.open(user, at, DEPTH)?;
        let opened = Self::read_header(client, user, id, (remote, remote_addr));
        if opened.is_err() {
            client.close(id)?;
        }
        opened
    }

    fn read_header(
        client: &mut Client,
        user: UserId,
        id: VirtualId,
        (remote, remote_addr): (RemoteRegionId, u64),
    ) -> Result<Self, StoreError> {
        let local = client.register(user, HEADER_LEN)?;
        let mut path = Path {
            id,
            remote,
            remote_addr,
            local,
            local_addr: client.addr(local)?,
            buffer: vec![0; HEADER_LEN],
        };
        let header = urdma_store::Request {
            verb: Verb::Read,
            offset: 0,
            buffer_offset: 0,
            len_octets: HEADER_LEN,
        };
        let read = path.execute(client, &[header]);
        client.deregister(local)?;
        read?;
        let region = client.pool().remote(remote);
        let has = region.map_or(0, |region| region.len_octets);
        let header = path.buffer.first_chunk().ok_or(GeometryError::NoStore)?;
        let geometry = Geometry::new(header, has)?;
        path.buffer = vec![0; geometry.buffer_len()];
        path.local = client.register(user, path.buffer.len())?;
        path.local_addr = client.addr(path.local)?;
        Ok(Self {
            path,
            geometry,
            blocks: Blocks::default(),
        })
    }

    /// What the store is.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The value of a key.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn get(&mut self, client: &mut Client, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let geometry = self.geometry;
        self.run(
            client,
            Operation::get(&geometry, key),
            |outcome| match outcome {
                Outcome::Found(value) => Some(value.to_vec()),
                _ => None,
            },
        )
    }

    /// Gives a key a value; whether it had one before.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put(
        &mut self,
        client: &mut Client,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, StoreError> {
        let geometry = self.geometry;
        let operation = Operation::put(&geometry, key, value)?;
        self.run(client, operation, |outcome| {
            matches!(outcome, Outcome::Stored { replaced: true })
        })
    }

    /// Deletes a key; whether it had a value.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn delete(&mut self, client: &mut Client, key: &[u8]) -> Result<bool, StoreError> {
        let geometry = self.geometry;
        self.run(client, Operation::delete(&geometry, key), |outcome| {
            matches!(outcome, Outcome::Deleted { found: true })
        })
    }

    /// Ends the use of the store. The free blocks of this client are lost to it.
    ///
    /// # Errors
    /// If a call of verbs fails.
    pub fn close(self, client: &mut Client) -> Result<(), StoreError> {
        client.close(self.path.id)?;
        Ok(client.deregister(self.path.local)?)
    }

    fn run<T>(
        &mut self,
        client: &mut Client,
        mut operation: Operation<'_>,
        take: impl FnOnce(Outcome<'_>) -> T,
    ) -> Result<T, StoreError> {
        loop {
            let requests = operation.requests().clone();
            self.path.execute(client, &requests)?;
            let step = operation.handle(&mut self.blocks, &mut self.path.buffer)?;
            if let Step::Done(outcome) = step {
                return Ok(take(outcome));
            }
        }
    }
}

impl Path {
    /// Posts requests, and waits until all are complete. What they write is taken from the buffer,
    /// and what they read is in it.
    fn execute(
        &mut self,
        client: &mut Client,
        requests: &[urdma_store::Request],
    ) -> Result<(), StoreError> {
        for (n, request) in requests.iter().enumerate() {
            let octets = request.buffer_offset..request.buffer_offset + request.len_octets;
            if request.verb == Verb::Write {
                client.write(self.local, octets.start, &self.buffer[octets])?;
            }
            let (request, element) = self.request(n as u64, request);
            client.post(self.id, &request, &[element])?;
        }
        for _ in requests {
            let completion = self.wait(client)?;
            if completion.status != Status::Success {
                return self.recover(client, completion.status);
            }
        }
        for request in requests {
            let octets = request.buffer_offset..request.buffer_offset + request.len_octets;
            if request.verb != Verb::Write {
                client.read(self.local, octets.start, &mut self.buffer[octets])?;
            }
        }
        Ok(())
    }

    fn request(&self, id: u64, request: &urdma_store::Request) -> (Request, Element) {
        let element = Element {
            local: self.local,
            addr: self.local_addr + request.buffer_offset as u64,
            len_octets: u32::try_from(request.len_octets).unwrap_or(u32::MAX),
        };
        let request = Request {
            id,
            operation: request.verb,
            remote: self.remote,
            remote_addr: self.remote_addr + request.offset,
            is_signaled: true,
        };
        (request, element)
    }

    fn wait(&self, client: &mut Client) -> Result<Completion, Error> {
        loop {
            if let Some(completion) = client.poll(self.id)? {
                return Ok(completion);
            }
            std::thread::yield_now();
        }
    }

    /// Has the virtual queue pair work again after a request has failed.
    fn recover(&self, client: &mut Client, status: Status) -> Result<(), StoreError> {
        while client.pool().outstanding(self.id) > 0 {
            self.wait(client)?;
        }
        client.reset(self.id)?;
        Err(StoreError::Request(status))
    }
}
