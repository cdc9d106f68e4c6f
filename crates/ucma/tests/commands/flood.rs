//! A flood of REQs, answers and REJs while two threads accept, disconnect and destroy. librdmacm
//! frees an id when it has received as many events of it as DESTROY_ID reports: one event too many
//! refers to freed memory, and librdmacm waits for one event too few for ever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex};

use urdma_cm::wire::{
    Body, CommId, Cookie, Head, Message, Nonce, QpInfo, RejReason, Req, MAX_MESSAGE,
};
use urdma_types::{PortSpace, RawQpn, Rng, SlotId};
use urdma_ucma::abi::event;

use crate::rig::{Channel, Host, HOST};

const LISTENER: u64 = 1;
const LAST: u64 = 2;
const FIRST_CHILD: u64 = 1000;
/// REQs at least, and more until there were enough connections: the threads that accept may get
/// less of the processor than the flood.
const REQUESTS: u32 = 3000;
const CONNECTIONS: usize = 100;
/// Ids that a worker keeps open.
const KEPT: usize = 20;
const PORT: u16 = 7471;

/// Events of each id by its uid: those fetched, and the number that DESTROY_ID reported.
#[derive(Default)]
struct Tally(Mutex<HashMap<u64, (u32, Option<u32>)>>);

impl Tally {
    fn fetched(&self, uid: u64) {
        self.0.lock().unwrap().entry(uid).or_default().0 += 1;
    }

    fn destroyed(&self, uid: u64, reported: u32) {
        self.0.lock().unwrap().entry(uid).or_default().1 = Some(reported);
    }

    fn connections(&self) -> usize {
        let tally = self.0.lock().unwrap();
        tally.keys().filter(|uid| **uid >= FIRST_CHILD).count()
    }
}

fn write(message: &Message<'_>) -> Vec<u8> {
    let mut octets = [0; MAX_MESSAGE];
    let length = message.write(&mut octets);
    octets[..length].to_vec()
}

fn request(number: u32) -> Vec<u8> {
    write(&Message {
        head: Head {
            local_id: CommId(number),
            remote_id: CommId::NONE,
            nonce: Nonce(number.into()),
            slot: SlotId::new(9).unwrap(),
        },
        body: Body::Req(Req {
            qp: QpInfo {
                qpn: RawQpn::new(0x09_0001 + number).unwrap(),
                ..QpInfo::default()
            },
            retry_count: 7,
            ack_timeout: 14,
            path_mtu: 3,
            port_space: PortSpace::TCP,
            src: (HOST, 50_000).into(),
            dst: (HOST, PORT).into(),
            cookie: Cookie::NONE,
        }),
        private_data: &[],
    })
}

/// The answer of the other end to a message.
fn answer(octets: &[u8], random: &mut Rng) -> Option<Vec<u8>> {
    let message = Message::parse(octets).ok()?;
    let Body::Rep(qp) = message.body else {
        return None;
    };
    let body = match random.below(4) {
        0 => Body::Rej(RejReason::INVALID_COMM_ID),
        1 => Body::Dreq(qp.qpn),
        2 => Body::Rtu,
        _ => return None,
    };
    Some(write(&Message {
        head: Head {
            local_id: message.head.remote_id,
            remote_id: message.head.local_id,
            slot: SlotId::new(9).unwrap(),
            ..message.head
        },
        body,
        private_data: &[],
    }))
}

/// The network: sends REQs and answers, and advances the time.
fn flood(host: &Host, server: &Channel, tally: &Tally, seed: u64) {
    let mut random = Rng::new(seed);
    for number in 1.. {
        if number > REQUESTS {
            if tally.connections() > CONNECTIONS {
                break;
            }
            std::thread::yield_now();
        }
        server.ucma.handle_datagram(HOST, &request(number));
        let sent: Vec<_> = host.packets.lock().unwrap().drain(..).collect();
        for (_, octets) in sent {
            if let Some(answer) = answer(&octets, &mut random) {
                server.ucma.handle_datagram(HOST, &answer);
            }
        }
        if random.below(8) == 0 {
            host.now_ns.fetch_add(20_000_000, Ordering::Relaxed);
            server.ucma.handle_timeout();
        }
    }
}

/// A thread of the application: accepts requests, and keeps some of them open for a while.
fn work(server: &Channel, requests: &Mutex<Receiver<u32>>, tally: &Tally, seed: u64) {
    static NEXT: AtomicU64 = AtomicU64::new(FIRST_CHILD);
    let mut random = Rng::new(seed);
    let mut kept = Vec::new();
    let destroy = |(id, uid)| tally.destroyed(uid, server.destroy(id).unwrap());
    loop {
        let Ok(id) = requests.lock().unwrap().recv() else {
            break;
        };
        let uid = NEXT.fetch_add(1, Ordering::Relaxed);
        let qpn = 0x01_0000 + u32::try_from(uid).unwrap();
        if random.below(4) == 0 || server.accept(id, uid, qpn, 1).is_err() {
            // The id has no uid yet, so it has no events.
            assert_eq!(server.destroy(id), Ok(0));
            continue;
        }
        if random.below(3) == 0 {
            let _ = server.disconnect(id);
        }
        kept.push((id, uid));
        while kept.len() > usize::try_from(random.below(KEPT as u64)).unwrap() {
            let at = usize::try_from(random.below(kept.len() as u64)).unwrap();
            destroy(kept.swap_remove(at));
        }
    }
    kept.into_iter().for_each(destroy);
}

#[test]
fn every_event_of_an_id_comes_before_it_is_destroyed_and_none_after() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let host = Arc::new(Host::default());
    let server = Channel::new(&host, 1);
    let listener = server.create(LISTENER);
    server.bind(listener, &format!("0.0.0.0:{PORT}")).unwrap();
    server.listen(listener, 0).unwrap();
    let tally = Tally::default();
    let (sender, requests) = channel();
    let requests = Mutex::new(requests);
    let (server, tally, requests) = (&server, &tally, &requests);
    std::thread::scope(|scope| {
        for worker in 1..=2 {
            scope.spawn(move || work(server, requests, tally, seed + worker));
        }
        let events = scope.spawn(move || loop {
            server.wait();
            let got = match server.event() {
                Ok(got) => got,
                // The event was removed with its id.
                Err(libc::EAGAIN) => continue,
                Err(errno) => panic!("GET_EVENT: errno {errno}"),
            };
            assert_ne!(got.uid, 0, "event {} of an id without a name", got.event);
            tally.fetched(got.uid);
            match (got.uid, got.event) {
                (LAST, _) => return,
                (LISTENER, event::CONNECT_REQUEST) => sender.send(got.id).unwrap(),
                _ => {}
            }
        });
        flood(&host, server, tally, seed);
        tally.destroyed(LISTENER, server.destroy(listener).unwrap());
        let last = server.create(LAST);
        server.resolve(last, "127.0.0.1:1").unwrap();
        events.join().unwrap();
    });
    let tally = tally.0.lock().unwrap();
    for (uid, (fetched, reported)) in tally.iter().filter(|(uid, _)| **uid != LAST) {
        assert_eq!(Some(*fetched), *reported, "events of {uid}");
    }
}
