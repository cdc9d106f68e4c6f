//! Sends and Receives of pools: a pool that sends each message back, and new ones that ask it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use urdma_pool_verbs::{
    Client, Depths, Element, Error, LocalRegionId, Messages, SendRequest, Status, Transport,
    UserId, VirtualId,
};

use crate::pool::{config, LISTENING, MESSAGE_OCTETS};

const SERVICE: u32 = 1;
const USER: UserId = UserId(1);
const DEPTHS: Depths = Depths {
    requests: 4,
    receives: 4,
};
const LIMIT: Duration = Duration::from_secs(30);

/// One end of a virtual queue pair, with a Receive of a message and room for one to be sent.
struct End {
    qp: VirtualId,
    local: LocalRegionId,
    addr: u64,
}

impl End {
    fn new(client: &mut Client, qp: VirtualId) -> Result<Self, Error> {
        let local = client.register(USER, 2 * MESSAGE_OCTETS as usize)?;
        let addr = client.addr(local)?;
        let end = Self { qp, local, addr };
        end.receive(client)?;
        Ok(end)
    }

    fn element(&self, at: u32) -> Element {
        Element {
            local: self.local,
            addr: self.addr + u64::from(at),
            len_octets: MESSAGE_OCTETS,
        }
    }

    fn receive(&self, client: &mut Client) -> Result<(), Error> {
        client.post_receive(self.qp, 1, &[self.element(0)])
    }

    fn send(&self, client: &mut Client) -> Result<(), Error> {
        let request = SendRequest {
            id: 2,
            immediate: None,
            is_signaled: false,
        };
        client.post_send(self.qp, &request, &[self.element(MESSAGE_OCTETS)])
    }

    /// What has become of the Receive, if it is complete.
    fn received(&self, client: &mut Client) -> Result<Option<Status>, Error> {
        let received = client.poll_received(self.qp)?;
        Ok(received.map(|received| received.status))
    }

    /// Sends a message and waits for its answer.
    fn ask(&self, client: &mut Client) -> Result<Status, Error> {
        self.send(client)?;
        let began = Instant::now();
        loop {
            if let Some(status) = self.received(client)? {
                if status == Status::Success {
                    self.receive(client)?;
                }
                return Ok(status);
            }
            if began.elapsed() > LIMIT {
                return Ok(Status::RetryExceeded);
            }
        }
    }
}

fn new_client(at: SocketAddr, transport: Transport) -> Result<Client, Error> {
    let mut client = Client::new(at.ip(), &config(transport))?;
    client.offer_messages(at, &Messages::default())?;
    Ok(client)
}

/// Sends each message back, until it is killed.
///
/// # Errors
/// If a call fails.
pub fn answer(at: SocketAddr, transport: Transport) -> Result<(), Error> {
    let mut client = new_client(at, transport)?;
    client.listen(SERVICE)?;
    println!("{LISTENING}");
    let mut ends: Vec<End> = Vec::new();
    loop {
        if let Some(qp) = client.accept(SERVICE, USER, DEPTHS)? {
            ends.push(End::new(&mut client, qp)?);
        }
        let mut ended = None;
        for (at, end) in ends.iter().enumerate() {
            match end.received(&mut client)? {
                Some(Status::Success) => {
                    end.receive(&mut client)?;
                    end.send(&mut client)?;
                }
                Some(_) => ended = Some(at),
                None => {}
            }
        }
        if let Some(at) = ended {
            let end = ends.swap_remove(at);
            client.close(end.qp)?;
            client.deregister(end.local)?;
        }
    }
}

/// What new pools find at one that answers.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Nanoseconds from the call that opens a virtual queue pair to the first answer, of each pool.
    pub first_ns: Vec<i64>,
    /// Nanoseconds of a round trip, each of the last pool.
    pub round_ns: Vec<i64>,
}

/// New pools at `own`, one after the other, each of which asks once, and the last one `rounds`
/// times.
///
/// # Errors
/// If a call fails, or an answer does not come.
pub fn ask(
    own: SocketAddr,
    to: SocketAddr,
    transport: Transport,
    (pools, rounds): (usize, usize),
) -> Result<Asked, String> {
    let text = |error: Error| error.to_string();
    let elapsed = |began: Instant| i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX);
    let mut asked = Asked::default();
    for n in 0..pools {
        let mut client = new_client(own, transport).map_err(text)?;
        let began = Instant::now();
        let qp = client.open_service(USER, (to, SERVICE), DEPTHS);
        let end = End::new(&mut client, qp.map_err(text)?).map_err(text)?;
        let mut ask = || match end.ask(&mut client).map_err(text)? {
            Status::Success => Ok(()),
            status => Err(format!("a message is not answered: {status:?}")),
        };
        ask()?;
        asked.first_ns.push(elapsed(began));
        let rounds = if n + 1 == pools { rounds } else { 0 };
        for _ in 0..rounds {
            let began = Instant::now();
            ask()?;
            asked.round_ns.push(elapsed(began));
        }
        client.close(end.qp).map_err(text)?;
    }
    Ok(asked)
}
