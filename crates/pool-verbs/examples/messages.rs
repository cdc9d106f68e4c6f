//! Two processes exchange a message: `messages 127.0.0.1:20000` answers, and
//! `messages 127.0.0.1:20001 127.0.0.1:20000` asks.

use std::net::SocketAddr;

use urdma_pool_verbs::{
    Client, Config, Depths, Element, Error, Messages, SendRequest, Status, UserId, VirtualId,
};

const SERVICE: u32 = 1;
const USER: UserId = UserId(1);
const DEPTHS: Depths = Depths {
    requests: 1,
    receives: 1,
};
const HALF: usize = 64;

/// The end at `own`, which asks `peer` if there is one; the message that it receives.
pub(crate) fn exchange(own: SocketAddr, peer: Option<SocketAddr>) -> Result<Vec<u8>, Error> {
    let mut client = Client::new(own.ip(), &Config::default())?;
    client.offer_messages(own, &Messages::default())?;
    client.listen(SERVICE)?;
    // The first half is for the Receive, the second one for the Send.
    let memory = client.register(USER, 2 * HALF)?;
    let addr = client.addr(memory)?;
    let half = |n: usize| Element {
        local: memory,
        addr: addr + (n * HALF) as u64,
        len_octets: 64,
    };
    let qp: VirtualId = match peer {
        Some(peer) => client.open_service(USER, (peer, SERVICE), DEPTHS)?,
        None => loop {
            if let Some(accepted) = client.accept(SERVICE, USER, DEPTHS)? {
                break accepted;
            }
        },
    };
    client.post_receive(qp, 1, &[half(0)])?;
    client.write(
        memory,
        HALF,
        if peer.is_some() {
            b"question"
        } else {
            b"answer  "
        },
    )?;
    let send = SendRequest {
        id: 2,
        immediate: Some(3),
        is_signaled: true,
    };
    client.post_send(qp, &send, &[half(1)])?;
    let received = loop {
        if let Some(received) = client.poll_received(qp)? {
            break received;
        }
    };
    let mut message = vec![0; 8];
    if received.status == Status::Success {
        client.read(memory, 0, &mut message)?;
    }
    // The Send is complete when it has arrived at the other client.
    while client.poll(qp)?.is_none() {}
    Ok(message)
}

fn main() -> Result<(), Error> {
    let mut addresses = std::env::args()
        .skip(1)
        .filter_map(|address| address.parse().ok());
    let Some(own) = addresses.next() else {
        eprintln!("messages OWN [PEER]");
        return Ok(());
    };
    let message = exchange(own, addresses.next())?;
    println!("received {}", String::from_utf8_lossy(&message));
    Ok(())
}
