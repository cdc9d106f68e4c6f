//! A node's registration at a metadata service: a connection, for as long as which it is in the
//! table.
//!
//! ```text
//!   Waiting -- its time has come --> Connecting       Connecting -- accepted --> Registered
//!   Connecting -- refused, too slow --> Waiting       Registered -- the service ends --> Waiting
//! ```

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use urdma_node_table::Region;

use crate::error::Error;
use crate::ffi::{Domain, Event, Id, Queue, Service};
use crate::metadata::{decode_table, Hello, Refusal};

/// How long a connection to a metadata service may take.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Between two attempts. The end of the node before may not have reached the service yet.
const RETRY_AFTER: Duration = Duration::from_millis(200);

#[derive(Debug)]
enum State {
    Waiting { until: Instant },
    Connecting { cm: Id, until: Instant },
    Registered { cm: Id },
}

/// A registration at one service.
#[derive(Debug)]
pub(crate) struct Registration {
    service: SocketAddr,
    /// The address of the node, from which the connection has to come.
    from: SocketAddr,
    hello: Vec<u8>,
    state: State,
    /// Why the last attempt failed.
    error: Option<Error>,
}

impl Registration {
    /// Of the node at an address.
    pub(crate) fn new(service: SocketAddr, from: SocketAddr, hello: &Hello) -> Self {
        Self {
            service,
            from,
            hello: hello.encode(),
            state: State::Waiting {
                until: Instant::now(),
            },
            error: None,
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, State::Registered { .. })
    }

    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Goes on without waiting for anything.
    pub(crate) fn turn(&mut self, domain: &Rc<Domain>, queue: &Rc<Queue>) {
        if let Err(error) = self.try_turn(domain, queue) {
            self.error = Some(error);
            let until = Instant::now() + RETRY_AFTER;
            self.state = State::Waiting { until };
        }
    }

    fn try_turn(&mut self, domain: &Rc<Domain>, queue: &Rc<Queue>) -> Result<(), Error> {
        match &mut self.state {
            State::Waiting { until } if *until > Instant::now() => Ok(()),
            State::Waiting { .. } => {
                let cm = Id::new(Service::Connection)?;
                cm.bind(SocketAddr::new(self.from.ip(), 0))?;
                cm.resolve_address(self.service)?;
                let until = Instant::now() + CONNECT_LIMIT;
                self.state = State::Connecting { cm, until };
                Ok(())
            }
            State::Connecting { cm, until } => {
                let (until, service) = (*until, self.service);
                if connect(cm, (domain, queue), &self.hello, service, until)?.is_some() {
                    self.error = None;
                    let waiting = State::Waiting { until };
                    if let State::Connecting { cm, .. } =
                        std::mem::replace(&mut self.state, waiting)
                    {
                        self.state = State::Registered { cm };
                    }
                }
                Ok(())
            }
            State::Registered { cm } => match cm.has_ended() {
                true => Err(Error::Unreachable(self.service)),
                false => Ok(()),
            },
        }
    }
}

/// Takes the next steps of a connection to a metadata service, whose address is being resolved; the
/// region of its table once it is complete.
pub(crate) fn connect(
    cm: &mut Id,
    (domain, queue): (&Rc<Domain>, &Rc<Queue>),
    hello: &[u8],
    service: SocketAddr,
    until: Instant,
) -> Result<Option<Region>, Error> {
    loop {
        match cm.next_event()? {
            Some(Event::AddressResolved) => cm.resolve_route()?,
            Some(Event::RouteResolved) => {
                domain.expect(cm)?;
                cm.create_queue_pair(domain, queue, 1)?;
                cm.connect(hello)?;
            }
            Some(Event::Established(private)) => {
                let refusal = Refusal::Protocol;
                let refused = Error::Refused {
                    at: service,
                    refusal,
                };
                return decode_table(&private).ok_or(refused).map(Some);
            }
            Some(Event::Rejected(private)) if private.iter().all(|octet| *octet == 0) => {
                // Nobody listens, or whoever does is no metadata service.
                return Err(Error::Unreachable(service));
            }
            Some(Event::Rejected(private)) => {
                let refusal = Refusal::decode(&private);
                return Err(Error::Refused {
                    at: service,
                    refusal,
                });
            }
            Some(Event::Ended) => return Err(Error::Unreachable(service)),
            Some(Event::Request(_) | Event::Answer(_) | Event::Other) => {}
            None if until <= Instant::now() => return Err(Error::Unreachable(service)),
            None => return Ok(None),
        }
    }
}
