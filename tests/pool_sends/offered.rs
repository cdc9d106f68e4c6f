//! Memory that a client offers, beside Sends: one end writes a message there, and then sends the
//! place.

use std::time::Instant;

use urdma_pool_verbs::{
    Element, Messages, Operation, RemoteRegionId, Request, Status, UserId, VirtualId,
};
use urdma_tests::{alone, CHECK_LIMIT};
use urdma_types::Rng;

use super::{address_in, config, new_client_with, Client, End, Hosts, Over, LIMIT, PEER, SERVICE};

const OFFERED: usize = 1 << 16;
const ROUNDS: u32 = 200;

fn client_that_offers(offered_octets: usize) -> Client {
    let messages = Messages {
        offered_octets,
        ..Messages::default()
    };
    new_client_with(&config(), &messages, &[SERVICE])
}

/// A one-sided request of one element, until it is complete.
fn execute(client: &mut Client, qp: VirtualId, request: &Request, element: Element) {
    client.post(qp, request, &[element]).unwrap();
    let began = Instant::now();
    let done = loop {
        if let Some(done) = client.poll(qp).unwrap() {
            break done;
        }
        assert!(began.elapsed() < LIMIT, "{request:?}");
        std::thread::yield_now();
    };
    assert_eq!(done.status, Status::Success);
}

fn request(operation: Operation, remote: RemoteRegionId, remote_addr: u64) -> Request {
    Request {
        id: 9,
        operation,
        remote,
        remote_addr,
        is_signaled: !matches!(operation, Operation::Write),
    }
}

/// The next message, which has arrived: its octets and its number.
fn next(client: &mut Client, end: &End) -> (Vec<u8>, u32) {
    let began = Instant::now();
    loop {
        if let Some(received) = end.received(client) {
            assert_eq!(received.status, Status::Success);
            let octets = end.octets(client, &received);
            end.receive(client, usize::try_from(received.id).unwrap());
            return (octets, received.immediate.unwrap());
        }
        assert!(began.elapsed() < LIMIT, "no message comes");
        std::thread::yield_now();
    }
}

/// Waits for the completion of the Send.
fn wait_sent(client: &mut Client, end: &End) {
    let began = Instant::now();
    loop {
        if let Some(done) = end.polled(client) {
            assert_eq!(done.status, Status::Success);
            return;
        }
        assert!(began.elapsed() < LIMIT, "the Send is not complete");
        std::thread::yield_now();
    }
}

/// Writes, and sends the offset as immediate data; reads, counts, and says how often.
pub(super) fn write() {
    let mut client = client_that_offers(0);
    let end = End::open(&mut client, UserId(1), address_in(PEER));
    let began = Instant::now();
    let (region, addr, len_octets) = loop {
        if let Some(offered) = client.offered_by_peer(end.qp) {
            break offered;
        }
        assert!(began.elapsed() < LIMIT, "the peer offers no memory");
        client.progress().unwrap();
    };
    assert_eq!(len_octets, OFFERED as u64);
    let mut rng = Rng::new(7);
    let place = client.register(UserId(1), 4096).unwrap();
    let element = |client: &Client, len: usize| Element {
        local: place,
        addr: client.addr(place).unwrap(),
        len_octets: u32::try_from(len).unwrap(),
    };
    for round in 0..ROUNDS {
        let mut octets = vec![0; 1 + rng.below_len(2000)];
        rng.fill(&mut octets);
        let offset = 8 + rng.below_len(OFFERED - 8 - octets.len());
        let at = addr + offset as u64;
        client.write(place, 0, &octets).unwrap();
        let written = element(&client, octets.len());
        let write = request(Operation::Write, region, at);
        client.post(end.qp, &write, &[written]).unwrap();
        end.send(
            &mut client,
            0,
            &octets,
            Some(u32::try_from(offset).unwrap()),
        );
        let (answer, number) = next(&mut client, &end);
        assert_eq!((answer.len(), number), (0, round));
        wait_sent(&mut client, &end);
        let read = request(Operation::Read, region, at);
        execute(&mut client, end.qp, &read, written);
        let mut back = vec![0; octets.len()];
        client.read(place, 0, &mut back).unwrap();
        assert_eq!(back, octets);
        let add = request(Operation::FetchAdd { add: 1 }, region, addr);
        let word = element(&client, 8);
        execute(&mut client, end.qp, &add, word);
    }
    println!("done");
    client.close(end.qp).unwrap();
    client.progress().unwrap();
}

/// Compares what is in the memory that it offers with each message.
pub(super) fn read() {
    let mut client = client_that_offers(OFFERED);
    let began = Instant::now();
    let end = loop {
        if let Some(end) = End::accept(&mut client, UserId(1)) {
            break end;
        }
        assert!(began.elapsed() < LIMIT, "nothing asks");
        std::thread::yield_now();
    };
    // It offers no memory.
    let peer = client.offered_by_peer(end.qp);
    assert!(peer.is_some_and(|(_, _, len_octets)| len_octets == 0));
    for round in 0..ROUNDS {
        let (octets, offset) = next(&mut client, &end);
        let mut written = vec![0; octets.len()];
        client.read_offered(offset as usize, &mut written).unwrap();
        assert!(written == octets, "round {round}");
        end.send(&mut client, 0, &[], Some(round));
        wait_sent(&mut client, &end);
    }
    let mut count = [0; 8];
    while u64::from_le_bytes(count) < u64::from(ROUNDS) {
        client.read_offered(0, &mut count).unwrap();
        client.progress().unwrap();
        assert!(began.elapsed() < LIMIT, "not all atomics");
    }
    assert_eq!(u64::from_le_bytes(count), u64::from(ROUNDS));
    let mut beyond = [0; 2];
    client.read_offered(OFFERED - 1, &mut beyond).unwrap_err();
    println!("done");
    // The peer may not have its last answer yet.
    loop {
        client.progress().unwrap();
        std::thread::yield_now();
    }
}

fn written_octets_are_there(hosts: Hosts) {
    let mut reads = hosts.start("reads", 0);
    let writes = hosts.start("writes", 1);
    hosts.let_go();
    let ended = writes.wait(CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    reads.wait_for_text("done", CHECK_LIMIT).unwrap();
    hosts.down([reads]);
}

#[test]
fn octets_written_before_a_send_are_there_when_it_has_come() {
    let _alone = alone();
    written_octets_are_there(Hosts::one());
}

#[test]
fn octets_written_over_an_initiator_before_a_send_are_there_when_it_has_come() {
    let _alone = alone();
    written_octets_are_there(Hosts::one().over(Over::Initiators));
}

#[test]
fn octets_written_from_another_host_are_there_when_the_send_has_come() {
    let _alone = alone();
    written_octets_are_there(Hosts::two(""));
}
