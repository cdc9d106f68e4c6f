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
use urdma_pool::Status;

use crate::error::Error;
use crate::ffi::{Domain, Event, Id, Memory, Queue, Service};
use crate::metadata::{decode_table, Hello, Refusal};
use crate::probe::{Probe, PROBE_LEN};

/// How long a connection to a metadata service may take.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Between two attempts. The end of the node before may not have reached the service yet.
const RETRY_AFTER: Duration = Duration::from_millis(200);

#[derive(Debug)]
enum State {
    Waiting { until: Instant },
    Connecting { cm: Id, until: Instant },
    Registered { cm: Id, probe: Probe },
}

/// A registration at one service.
#[derive(Debug)]
pub(crate) struct Registration {
    service: SocketAddr,
    /// The address of the node, from which the connection has to come.
    from: SocketAddr,
    hello: Vec<u8>,
    state: State,
    /// Of the connection.
    queue: Rc<Queue>,
    domain: Rc<Domain>,
    /// Where probes read to.
    probed: Memory,
    /// Why the last attempt failed.
    error: Option<Error>,
}

impl Registration {
    /// Of the node at an address.
    ///
    /// # Errors
    /// If a call of verbs fails.
    pub(crate) fn new(
        domain: &Rc<Domain>,
        service: SocketAddr,
        from: SocketAddr,
        hello: &Hello,
    ) -> Result<Self, Error> {
        Ok(Self {
            service,
            from,
            hello: hello.encode(),
            state: State::Waiting {
                until: Instant::now(),
            },
            queue: Queue::new(domain, 1)?,
            domain: Rc::clone(domain),
            probed: Memory::new(domain, PROBE_LEN)?,
            error: None,
        })
    }

    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, State::Registered { .. })
    }

    /// The connection to the service, if there is one.
    pub(crate) fn id(&self) -> Option<&Id> {
        match &self.state {
            State::Waiting { .. } => None,
            State::Connecting { cm, .. } | State::Registered { cm, .. } => Some(cm),
        }
    }

    /// After how long it goes on, if nothing comes from the connection before.
    pub(crate) fn due(&self) -> Duration {
        let now = Instant::now();
        match &self.state {
            State::Waiting { until } | State::Connecting { until, .. } => {
                until.saturating_duration_since(now)
            }
            State::Registered { probe, .. } => probe.due(now),
        }
    }

    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Goes on without waiting for anything.
    pub(crate) fn turn(&mut self) {
        if let Err(error) = self.try_turn() {
            self.error = Some(error);
            let until = Instant::now() + RETRY_AFTER;
            self.state = State::Waiting { until };
        }
    }

    fn try_turn(&mut self) -> Result<(), Error> {
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
                let objects = (&self.domain, &self.queue);
                if let Some(region) = connect(cm, objects, &self.hello, service, until)? {
                    self.error = None;
                    let waiting = State::Waiting { until };
                    if let State::Connecting { cm, .. } =
                        std::mem::replace(&mut self.state, waiting)
                    {
                        let probe = Probe::new(region);
                        self.state = State::Registered { cm, probe };
                    }
                }
                Ok(())
            }
            State::Registered { cm, probe } => {
                let mut is_alive = !cm.has_ended();
                self.queue.poll(|_, status| {
                    is_alive &= status == Status::Success;
                    probe.answered();
                })?;
                match is_alive && probe.send(Instant::now(), 0, cm, &self.probed) {
                    true => Ok(()),
                    false => Err(Error::Unreachable(self.service)),
                }
            }
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
                cm.create_queue_pair(domain, queue, 1, 1)?;
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
                // There is no listener, or it is that of another service.
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
