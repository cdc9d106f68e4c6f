//! What no correct peer sends: each is refused by name, counted, and ends the stream; random
//! messages never panic, and never make an end touch octets outside of its buffers.

use super::{for_each_seed, Rng};
use crate::wire::{Advert, Body, Control, Hello, Immediate};
use crate::{
    AdvertNo, Buffer, Choice, Config, Event, Failure, Kind, PeerError, Phase, RingCopy, RingNo,
    Seq, SetupError, Stream, Transmit, ABORT_PROTOCOL,
};

const RING: Buffer = Buffer {
    addr: 0x1000,
    len_octets: 64,
    rkey: 1,
};

fn config() -> Config {
    Config {
        recv_slots: 8,
        max_recvs: 2,
        advert_min_octets: 0,
        ..Config::default()
    }
}

fn end_with(config: &Config) -> Stream<()> {
    Stream::new(config, RING, &config.hello(RING)).unwrap()
}

fn end() -> Stream<()> {
    end_with(&config())
}

fn buffer(len_octets: u64) -> Buffer {
    Buffer {
        addr: 0x8000,
        len_octets,
        rkey: 7,
    }
}

fn advert(number: u64, phase: u64, estimate: u64) -> Advert {
    Advert {
        number: AdvertNo(number),
        phase: Phase(phase),
        estimate: Seq(estimate),
        buffer: buffer(10),
        waitall: false,
        renewed: false,
    }
}

fn tell(stream: &mut Stream<()>, body: Body) -> Result<(), PeerError> {
    tell_with(stream, 0, 0, body)
}

fn tell_with(s: &mut Stream<()>, received: u32, emptied: u64, body: Body) -> Result<(), PeerError> {
    let control = Control {
        received,
        emptied,
        body,
    };
    s.handle_control(control.encode().as_slice(), &mut 0)
}

fn direct(stream: &mut Stream<()>, len: u32) -> Result<(), PeerError> {
    stream.handle_immediate(Immediate::Direct(len).encode(), len)
}

fn indirect(stream: &mut Stream<()>, len: u32) -> Result<(), PeerError> {
    stream.handle_immediate(Immediate::Indirect(len).encode(), len)
}

/// Everything that an end wants to do.
fn drain(stream: &mut Stream<()>) -> (Vec<RingCopy>, Vec<Transmit>, Vec<Event<()>>) {
    let mut copies = Vec::new();
    stream.poll_copies(|copy, ()| copies.push(*copy));
    let transmits = std::iter::from_fn(|| stream.poll_transmit(&mut 0)).collect();
    let events = std::iter::from_fn(|| stream.poll_event()).collect();
    (copies, transmits, events)
}

/// The end refuses `what` with `error`, counts it, sends an abort and nothing else, and keeps its
/// buffers until the connection has ended.
fn assert_refused(
    mut stream: Stream<()>,
    error: PeerError,
    what: impl Fn(&mut Stream<()>) -> Result<(), PeerError>,
) {
    drain(&mut stream);
    assert_eq!(what(&mut stream), Err(error));
    assert_eq!(stream.stats().refused, 1);
    let (copies, transmits, events) = drain(&mut stream);
    assert_eq!(copies, []);
    let abort = transmits.as_slice();
    let [Transmit::Control(message)] = abort else {
        panic!("{abort:?}");
    };
    let said = Control::decode(message.as_slice()).unwrap().body;
    assert_eq!(said, Body::Abort(ABORT_PROTOCOL));
    let failure = Failure::Peer(error);
    assert_eq!(stream.poll_failure(), Some(failure));
    assert_eq!(stream.poll_failure(), None);
    assert!(!events
        .iter()
        .any(|event| matches!(event, Event::Received { .. })));
    stream.handle_disconnected();
    let (_, transmits, events) = drain(&mut stream);
    assert_eq!(transmits, []);
    let failed = |event: &Event<()>| match *event {
        Event::Sent { outcome, .. } | Event::Received { outcome, .. } => {
            outcome == crate::Outcome::Failed(failure)
        }
        Event::Closed => false,
    };
    assert!(events.iter().all(failed), "{events:?}");
}

fn receiving(len_octets: u64) -> Stream<()> {
    let mut stream = end();
    stream.recv(buffer(len_octets), (), false).unwrap();
    stream
}

#[test]
fn control_malformed_is_refused() {
    let lengths = [0, 15, 17, 63, 65];
    for len in lengths {
        assert_refused(end(), PeerError::Malformed, |s| {
            s.handle_control(&vec![0; len], &mut 0)
        });
    }
    let good = Control {
        received: 0,
        emptied: 0,
        body: Body::Advert(advert(0, 0, 0)),
    };
    let good = good.encode();
    // The type, the reserved octets, and the first octet of the flags.
    for at in [0, 1, 2, 3, 60] {
        let mut octets = good.as_slice().to_vec();
        octets[at] |= 0x80;
        assert_refused(end(), PeerError::Malformed, |s| {
            s.handle_control(&octets, &mut 0)
        });
    }
    assert_refused(end(), PeerError::UnknownImmediate, |s| {
        s.handle_immediate(1 << 31 | 1, 1)
    });
}

#[test]
fn advert_out_of_turn_is_refused() {
    let refused = |error, advert| {
        assert_refused(end(), error, |s| tell(s, Body::Advert(advert)));
    };
    refused(PeerError::AdvertSequence, advert(1, 0, 0));
    refused(PeerError::AdvertPhase, advert(0, 1, 0));
    refused(PeerError::AdvertPhase, advert(0, 2, 0));
    refused(PeerError::AdvertEstimate, advert(0, 0, 1));
    let mut empty = advert(0, 0, 0);
    empty.buffer.len_octets = 0;
    refused(PeerError::AdvertBuffer, empty);
    let mut beyond = advert(0, 0, 0);
    beyond.buffer.len_octets = u64::MAX - 10;
    refused(PeerError::AdvertBuffer, beyond);
}

#[test]
fn advert_after_another_must_follow_it() {
    let after_first = |error, second| {
        let mut stream = end();
        tell(&mut stream, Body::Advert(advert(0, 0, 0))).unwrap();
        assert_refused(stream, error, |s| tell(s, Body::Advert(second)));
    };
    after_first(PeerError::AdvertEstimate, advert(1, 0, 0));
    after_first(PeerError::AdvertEstimate, advert(1, 0, 2));
    after_first(PeerError::AdvertSequence, advert(0, 0, 1));
}

#[test]
fn adverts_beyond_the_limit_are_refused() {
    let mut stream = end();
    tell(&mut stream, Body::Advert(advert(0, 0, 0))).unwrap();
    tell(&mut stream, Body::Advert(advert(1, 0, 1))).unwrap();
    assert_refused(stream, PeerError::TooManyAdverts, |s| {
        tell(s, Body::Advert(advert(2, 0, 2)))
    });
}

#[test]
fn credits_that_were_not_used_are_refused() {
    assert_refused(end(), PeerError::CreditBeyondSlots, |s| {
        tell_with(s, 1, 0, Body::Update)
    });
    assert_refused(end(), PeerError::CreditBeyondSlots, |s| {
        tell_with(s, u32::MAX, 0, Body::Update)
    });
    assert_refused(end(), PeerError::CreditBeyondRing, |s| {
        tell_with(s, 0, 1, Body::Update)
    });
    let mut stream = end();
    stream.send(20, ()).unwrap();
    drain(&mut stream);
    tell_with(&mut stream, 1, 20, Body::Update).unwrap();
    assert_refused(stream, PeerError::CreditBeyondRing, |s| {
        tell_with(s, 1, 19, Body::Update)
    });
}

#[test]
fn messages_beyond_the_slots_are_refused() {
    let mut stream = end();
    // The end does not return credits as long as it is not asked what to send.
    for _ in 0..config().recv_slots {
        tell(&mut stream, Body::Update).unwrap();
    }
    assert_eq!(tell(&mut stream, Body::Update), Err(PeerError::SlotOverrun));
}

#[test]
fn direct_without_advert_is_refused() {
    assert_refused(end(), PeerError::UnexpectedDirect, |s| direct(s, 1));
    // The ring holds octets, so the receive behind them has no advert.
    let mut stream = end();
    indirect(&mut stream, 5).unwrap();
    assert_refused(stream, PeerError::UnexpectedDirect, |s| direct(s, 1));
    // The phase is indirect, so the advert is stale.
    let mut stream = receiving(10);
    stream.recv(buffer(10), (), false).unwrap();
    drain(&mut stream);
    indirect(&mut stream, 1).unwrap();
    drain(&mut stream);
    assert_refused(stream, PeerError::UnexpectedDirect, |s| direct(s, 1));
}

#[test]
fn direct_beyond_the_buffer_is_refused() {
    assert_refused(receiving(10), PeerError::DirectOverflow, |s| direct(s, 11));
}

#[test]
fn length_that_the_write_contradicts_is_refused() {
    let word = Immediate::Direct(4).encode();
    assert_refused(receiving(10), PeerError::FalseLength, |s| {
        s.handle_immediate(word, 5)
    });
    assert_refused(receiving(10), PeerError::FalseLength, |s| {
        s.handle_immediate(word, 0)
    });
    assert_refused(receiving(10), PeerError::FalseLength, |s| direct(s, 0));
    assert_refused(receiving(10), PeerError::FalseLength, |s| indirect(s, 0));
}

#[test]
fn ring_overflow_is_refused() {
    assert_refused(end(), PeerError::RingOverflow, |s| indirect(s, 65));
    // Octets that were copied are free only when the peer has been told.
    let mut stream = receiving(1);
    indirect(&mut stream, 64).unwrap();
    assert!(stream.poll_copy(|_, ()| {}));
    assert_eq!(indirect(&mut stream, 1), Err(PeerError::RingOverflow));
    let without = Config {
        choice: Choice::Direct,
        ..config()
    };
    assert_refused(end_with(&without), PeerError::UnexpectedIndirect, |s| {
        indirect(s, 1)
    });
}

#[test]
fn withdrawals_out_of_turn_are_refused() {
    let from = AdvertNo(0);
    assert_refused(end(), PeerError::UnexpectedWithdrawn, |s| {
        tell(s, Body::Withdrawn(from))
    });
    assert_refused(end(), PeerError::UnexpectedWithdraw, |s| {
        tell(s, Body::Withdraw(from))
    });
    let mut stream = receiving(10);
    drain(&mut stream);
    stream.cancel_recv(crate::RecvId(0)).unwrap();
    drain(&mut stream);
    assert_refused(stream, PeerError::UnexpectedWithdrawn, |s| {
        tell(s, Body::Withdrawn(AdvertNo(1)))
    });
}

#[test]
fn pauses_out_of_turn_are_refused() {
    let pause = |at| Body::Pause(Seq(at));
    assert_refused(end(), PeerError::UnexpectedPause, |s| tell(s, pause(1)));
    assert_refused(end(), PeerError::UnexpectedResume, |s| {
        tell(s, Body::Resume)
    });
    let mut renewed = advert(0, 0, 0);
    renewed.renewed = true;
    assert_refused(end(), PeerError::UnexpectedResume, |s| {
        tell(s, Body::Advert(renewed))
    });
    // The first pause waits for the ring, which a receive is about to empty.
    let mut stream = receiving(10);
    indirect(&mut stream, 1).unwrap();
    tell(&mut stream, pause(1)).unwrap();
    assert_eq!(tell(&mut stream, pause(1)), Err(PeerError::UnexpectedPause));
}

#[test]
fn rings_out_of_turn_are_refused() {
    let want = |s: &mut Stream<()>, octets| tell(s, Body::Want(octets));
    let ring = |s: &mut Stream<()>, number, ring| tell(s, Body::Ring(RingNo(number), ring));
    let taken = |s: &mut Stream<()>, number| tell(s, Body::Taken(RingNo(number)));
    let finished = || {
        let mut stream = end();
        tell(&mut stream, Body::Finish(Seq(0))).unwrap();
        stream
    };
    assert_refused(end(), PeerError::UnexpectedWant, |s| want(s, 0));
    assert_refused(finished(), PeerError::UnexpectedWant, |s| want(s, 128));
    let mut wanting = end();
    want(&mut wanting, 128).unwrap();
    assert_refused(wanting, PeerError::UnexpectedWant, |s| want(s, 128));
    let without = Config {
        choice: Choice::Direct,
        ..config()
    };
    assert_refused(end_with(&without), PeerError::UnexpectedWant, |s| {
        want(s, 128)
    });
    let offering = || {
        let mut stream = end();
        want(&mut stream, 128).unwrap();
        assert_eq!(stream.poll_ring(), Some(128));
        stream.offer_ring(Some(buffer(128)));
        stream
    };
    // It is not offered before RING is sent.
    assert_eq!(taken(&mut offering(), 1), Err(PeerError::UnexpectedTaken));
    assert_refused(offering(), PeerError::UnexpectedTaken, |s| taken(s, 2));
    assert_refused(offering(), PeerError::UnexpectedTaken, |s| taken(s, 0));
    assert_refused(finished(), PeerError::UnexpectedTaken, |s| taken(s, 1));
    let mut wanting = end();
    want(&mut wanting, 128).unwrap();
    wanting.offer_ring(None);
    assert_refused(wanting, PeerError::UnexpectedTaken, |s| taken(s, 1));
    // What TAKEN has made free is the new ring, and no more.
    let mut taking = offering();
    drain(&mut taking);
    indirect(&mut taking, 10).unwrap();
    taken(&mut taking, 1).unwrap();
    assert_refused(taking, PeerError::RingOverflow, |s| indirect(s, 129));

    let wishing = || {
        let mut stream = end();
        stream.sender().ring().wish(128);
        stream
    };
    let beyond = Buffer {
        addr: u64::MAX - 10,
        ..buffer(128)
    };
    assert_refused(end(), PeerError::UnexpectedRing, |s| ring(s, 1, buffer(9)));
    assert_refused(wishing(), PeerError::UnexpectedRing, |s| {
        ring(s, 2, buffer(9))
    });
    assert_refused(wishing(), PeerError::RingBuffer, |s| ring(s, 1, beyond));
    let mut granted = wishing();
    drain(&mut granted);
    ring(&mut granted, 1, buffer(9)).unwrap();
    assert_refused(granted, PeerError::UnexpectedRing, |s| {
        ring(s, 1, buffer(9))
    });
}

#[test]
fn data_after_the_end_is_refused() {
    assert_refused(end(), PeerError::FalseFinish, |s| {
        tell(s, Body::Finish(Seq(1)))
    });
    let finished = || {
        let mut stream = end();
        tell(&mut stream, Body::Finish(Seq(0))).unwrap();
        stream
    };
    assert_refused(finished(), PeerError::AfterFinish, |s| {
        tell(s, Body::Finish(Seq(0)))
    });
    assert_refused(finished(), PeerError::AfterFinish, |s| direct(s, 1));
    assert_refused(finished(), PeerError::AfterFinish, |s| indirect(s, 1));
}

#[test]
fn ends_that_do_not_fit_make_no_stream() {
    let other = |change: fn(&mut Hello)| {
        let mut hello = config().hello(RING);
        change(&mut hello);
        Stream::<()>::new(&config(), RING, &hello).err()
    };
    assert_eq!(
        other(|hello| hello.kind = Kind::Messages),
        Some(SetupError::Kind)
    );
    assert_eq!(other(|hello| hello.recv_slots = 7), Some(SetupError::Limit));
    assert_eq!(
        other(|hello| hello.max_adverts = 0),
        Some(SetupError::Limit)
    );
    let choice = |choice| Config { choice, ..config() };
    let indirect = choice(Choice::Indirect).hello(RING);
    let direct = choice(Choice::Direct);
    assert_eq!(
        Stream::<()>::new(&direct, RING, &indirect).err(),
        Some(SetupError::Choice)
    );
    let none = Buffer::default();
    let no_ring = choice(Choice::Indirect);
    assert_eq!(
        Stream::<()>::new(&no_ring, none, &indirect).err(),
        Some(SetupError::Limit)
    );
}

#[test]
fn greeting_malformed_is_refused() {
    let good = config().hello(RING).encode();
    assert_eq!(Hello::decode(&good), Ok(config().hello(RING)));
    assert_eq!(Hello::decode(&good[..31]), Err(SetupError::Malformed));
    let with = |at: usize, octet: u8| {
        let mut octets = good;
        octets[at] = octet;
        Hello::decode(&octets).err()
    };
    assert_eq!(with(0, 0), Some(SetupError::Malformed));
    assert_eq!(with(4, 1), Some(SetupError::Version(1)));
    assert_eq!(with(5, 2), Some(SetupError::Malformed));
    assert_eq!(with(6, 3), Some(SetupError::Malformed));
    assert_eq!(with(7, 1), Some(SetupError::Malformed));
    let mut octets = good;
    octets[16..32].fill(0xff);
    assert_eq!(Hello::decode(&octets).err(), Some(SetupError::Malformed));
}

fn random_body(rng: &mut Rng) -> Body {
    let small = |rng: &mut Rng| match rng.below(8) {
        0 => rng.bits(),
        _ => rng.below(6),
    };
    match rng.below(13) {
        10 => Body::Want(small(rng)),
        11 => Body::Taken(RingNo(small(rng))),
        12 => Body::Ring(RingNo(small(rng)), buffer(small(rng))),
        8 => Body::Pause(Seq(small(rng))),
        9 => Body::Resume,
        0 => Body::Withdraw(AdvertNo(small(rng))),
        1 => Body::Withdrawn(AdvertNo(small(rng))),
        2 => Body::Finish(Seq(small(rng))),
        3 => Body::Update,
        4 if rng.percent(10) => Body::Stop,
        _ => {
            let mut advert = advert(small(rng), small(rng), small(rng));
            advert.buffer.len_octets = small(rng);
            advert.waitall = rng.percent(50);
            advert.renewed = rng.percent(20);
            Body::Advert(advert)
        }
    }
}

/// Messages near the correct ones, so that an end goes far before it refuses one.
#[test]
fn random_messages_touch_nothing_outside() {
    for_each_seed(4000, |seed| {
        let mut rng = Rng::new(seed);
        let mut stream = end();
        let mut rings = vec![RING.len_octets];
        for _ in 0..200 {
            stream
                .recv(buffer(rng.between(1, 8)), (), rng.percent(30))
                .ok();
            stream.send(rng.between(1, 8), ()).ok();
            match rng.below(12) {
                0 => drop(stream.cancel_recv(crate::RecvId(rng.below(9)))),
                1 => drop(stream.cancel_send(crate::SendId(rng.below(9)))),
                _ => {}
            }
            let mut trial = Control {
                received: rng.below(4) as u32,
                emptied: rng.below(16),
                body: random_body(&mut rng),
            };
            if rng.percent(5) {
                trial.received = rng.bits() as u32;
                trial.emptied = rng.bits();
            }
            let len = rng.between(1, 8) as u32;
            match rng.below(3) {
                0 => drop(stream.handle_control(trial.encode().as_slice(), &mut 0)),
                1 => drop(direct(&mut stream, len)),
                _ => drop(indirect(&mut stream, len)),
            }
            if let Some(octets) = stream.poll_ring() {
                rings.push(octets);
                stream.offer_ring(Some(buffer(octets)));
            }
            let (copies, transmits, _) = drain(&mut stream);
            for copy in copies {
                let ring = &rings[copy.ring.0 as usize];
                assert!(copy.ring_offset + copy.len_octets <= *ring);
                assert!(copy.offset + copy.len_octets <= 8);
            }
            stream.handle_sent(rng.below(transmits.len() as u64 + 1) as usize, &mut 0);
        }
        assert!(stream.stats().refused <= 1);
        stream.handle_disconnected();
    });
}

#[test]
fn control_messages_survive_the_wire() {
    for_each_seed(500, |seed| {
        let mut rng = Rng::new(seed);
        let mut body = random_body(&mut rng);
        if rng.percent(10) {
            body = Body::Abort(rng.bits() as u32);
        }
        let control = Control {
            received: rng.bits() as u32,
            emptied: rng.bits(),
            body,
        };
        assert_eq!(Control::decode(control.encode().as_slice()), Ok(control));
        let noise: Vec<u8> = (0..rng.below(80)).map(|_| rng.bits() as u8).collect();
        if let Ok(read) = Control::decode(&noise) {
            assert_eq!(read.encode().as_slice(), noise);
        }
    });
}
