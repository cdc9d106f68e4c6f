//! What the hostile peer does in each connection, and how the honest end refuses it.

use urdma_exs::Choice;

/// Octets of the honest end's ring.
pub(crate) const RING: u32 = 4096;
/// Octets of each of its receives.
pub(crate) const RECV: u32 = 64;

/// Marks immediate data of an indirect transfer.
const INDIRECT: u32 = 1 << 30;
const MALFORMED: &str = "a malformed control message";

/// One connection.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) choice: Choice,
    /// Receives that the honest end posts.
    pub(crate) recvs: usize,
    /// What the hostile end does (`main.c`).
    pub(crate) steps: Vec<String>,
    pub(crate) expected: Expected,
}

/// How the connection ends at the honest end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It violates the protocol: this text, counted, and told by ABORT.
    Refused(&'static str),
    /// The device of the honest end refuses a request, which breaks the connection.
    Broken,
    /// There is no connection, for this reason.
    Rejected(&'static str),
}

/// A control message: type, messages received, octets of the ring emptied, and the body.
fn control(code: u8, received: u32, emptied: u64, body: &[u64]) -> String {
    let body: String = body.iter().map(|word| format!("{word:016x}")).collect();
    format!("send={code:02x}000000{received:08x}{emptied:016x}{body}")
}

/// A message of a type that returns no credits.
fn message(code: u8, body: &[u64]) -> String {
    control(code, 0, 0, body)
}

/// An advert of a buffer of 16 octets.
fn advert(number: u64, phase: u64, estimate: u64) -> String {
    message(2, &[number, phase, estimate, 0x1000, 16, 0])
}

/// An RDMA Write of `count` octets to the beginning of a place, with immediate data.
fn write(place: &str, count: u32, immediate: u32) -> String {
    format!("write={place}:0:0:{count}:{immediate}")
}

fn case(recvs: usize, steps: &[String], expected: Expected) -> Case {
    // The honest end sends 8 octets, so that they are in the ring of the hostile one.
    let mut all = vec!["secret".to_owned()];
    all.extend((recvs > 0).then(|| "advert".to_owned()));
    all.extend_from_slice(steps);
    Case {
        choice: Choice::Dynamic,
        recvs,
        steps: all,
        expected,
    }
}

fn refused(recvs: usize, steps: &[String], text: &'static str) -> Case {
    case(recvs, steps, Expected::Refused(text))
}

fn broken(recvs: usize, step: &str) -> Case {
    case(recvs, &[step.to_owned()], Expected::Broken)
}

/// All connections, in their order.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = greetings();
    cases.extend(malformed());
    cases.extend(credits());
    cases.extend(adverts());
    cases.extend(transfers());
    cases.extend(out_of_turn());
    cases.extend(rings());
    cases.extend(outside());
    cases
}

fn greetings() -> Vec<Case> {
    let rejected = |octets: &str, text| Case {
        choice: Choice::Dynamic,
        recvs: 0,
        steps: vec![format!("hello={octets}")],
        expected: Expected::Rejected(text),
    };
    let tail = "0008000800000000";
    let ring = "00000000000010000000000000001000";
    vec![
        rejected("", "the greeting is malformed"),
        rejected(&format!("75455853010000{tail}00{ring}"), "version 1"),
        rejected(
            &format!("7545585302010000{tail}{ring}"),
            "one end is SOCK_STREAM",
        ),
        rejected(
            &format!("75455853020000000001{}{ring}", &tail[4..]),
            "a limit is too small",
        ),
        // A ring whose end has no address.
        rejected(
            &format!("7545585302000000{tail}{}", "f".repeat(32)),
            "the greeting is malformed",
        ),
    ]
}

fn malformed() -> Vec<Case> {
    let mut cases = Vec::new();
    for octets in [0, 1, 15, 17, 63] {
        let step = format!("send={}", "01".repeat(octets));
        cases.push(refused(0, &[step], MALFORMED));
    }
    // Longer than the slot of the honest end.
    cases.push(broken(0, &format!("send={}", "01".repeat(65))));
    let reserved = "send=01000001000000000000000000000000".to_owned();
    for step in [
        message(1, &[0]),
        message(2, &[0]),
        message(99, &[]),
        reserved,
    ] {
        cases.push(refused(0, &[step], MALFORMED));
    }
    let flags = message(2, &[0, 2, 8, 0x1000, 16, 4]);
    cases.push(refused(0, &[flags], MALFORMED));
    let code = message(7, &[1 << 32]);
    cases.push(refused(0, &[code], MALFORMED));
    let unknown = write("ring", 1, 1 << 31 | 1);
    cases.push(refused(0, &[unknown], "an unknown kind of immediate"));
    cases
}

fn credits() -> Vec<Case> {
    let slots = "more credits returned than were used";
    let ring = "credits beyond the ring";
    // The honest end may not say that its slots are free: no credit is returned to it.
    let updates = vec![message(1, &[]); 100];
    vec![
        refused(0, &[control(1, 200, 0, &[])], slots),
        refused(0, &[control(1, u32::MAX, 0, &[])], slots),
        refused(0, &[control(1, 1, 9, &[])], ring),
        refused(0, &[control(1, 1, u64::MAX, &[])], ring),
        refused(0, &[control(1, 1, 8, &[]), control(1, 1, 7, &[])], ring),
        refused(0, &updates, "more messages than receive slots"),
    ]
}

/// The honest end has sent 8 octets indirectly: phase 2 and position 8 are next.
fn adverts() -> Vec<Case> {
    let three = [advert(0, 2, 8), advert(1, 2, 9), advert(2, 2, 10)];
    let phase = "an advert of a wrong phase";
    let position = "an advert of an impossible position";
    let buffer = "an advert beyond its buffer";
    vec![
        refused(0, &three, "more adverts than permitted"),
        refused(0, &[advert(1, 2, 8)], "an advert out of sequence"),
        refused(0, &[advert(0, 3, 8)], phase),
        refused(0, &[advert(0, 4, 8)], phase),
        refused(0, &[advert(0, 2, 9)], position),
        refused(0, &[advert(0, 2, 8), advert(1, 2, 10)], position),
        refused(0, &[advert(0, 2, 8), advert(1, 2, 8)], position),
        refused(0, &[message(2, &[0, 2, 8, 0x1000, 0, 0])], buffer),
        refused(0, &[message(2, &[0, 2, 8, u64::MAX, 16, 0])], buffer),
    ]
}

fn transfers() -> Vec<Case> {
    let length = "an immediate with a false length";
    let overflow = "an indirect transfer beyond the ring";
    let unexpected = "a direct transfer without an advert of this phase";
    let mut without_ring = refused(
        1,
        &[write("advert", 1, INDIRECT | 1)],
        "an indirect transfer without a ring",
    );
    // It sends nothing without an advert.
    without_ring.steps.remove(0);
    without_ring.choice = Choice::Direct;
    vec![
        without_ring,
        refused(0, &[write("ring", 1, 1)], unexpected),
        refused(
            2,
            &[write("ring", 1, INDIRECT | 1), write("advert", 1, 1)],
            unexpected,
        ),
        refused(
            1,
            &[write("advert", RECV, RECV + 1)],
            "a direct transfer beyond its buffer",
        ),
        refused(1, &[write("advert", 5, 4)], length),
        refused(1, &[write("advert", 0, 4)], length),
        refused(1, &[write("advert", 0, 0)], length),
        refused(0, &[write("ring", 5, INDIRECT | 4)], length),
        refused(0, &[write("ring", 0, INDIRECT)], length),
        refused(0, &[write("ring", 1, INDIRECT | (RING + 1))], overflow),
        refused(
            0,
            &[
                write("ring", RING, INDIRECT | RING),
                write("ring", 1, INDIRECT | 1),
            ],
            overflow,
        ),
    ]
}

fn out_of_turn() -> Vec<Case> {
    let withdrawn = "a withdrawal answered that was not asked for";
    let withdrawal = "a withdrawal out of turn";
    let resumed = "a pause answered that was not made";
    let pause = "a pause out of turn";
    let after = "data after the end of the stream";
    let finish = || message(5, &[0]);
    let renewed = message(2, &[0, 2, 8, 0x1000, 16, 2]);
    vec![
        refused(0, &[message(4, &[0])], withdrawn),
        refused(1, &[message(4, &[0])], withdrawn),
        refused(0, &[message(3, &[0])], withdrawal),
        refused(0, &[message(8, &[1])], pause),
        refused(0, &[message(9, &[])], resumed),
        refused(0, &[renewed], resumed),
        refused(0, &[finish(), finish()], after),
        refused(0, &[finish(), write("ring", 1, INDIRECT | 1)], after),
        refused(0, &[finish(), write("ring", 1, 1)], after),
        refused(
            0,
            &[message(5, &[1])],
            "the end of the stream is not where its data ends",
        ),
    ]
}

/// The honest end has a ring of [`RING`] octets, numbered 0, and writes into one of 4096.
fn rings() -> Vec<Case> {
    let want = |octets| message(10, &[octets]);
    let ring = |number, octets| message(11, &[number, 0x1000, octets, 0]);
    let taken = |number| message(12, &[number]);
    let unwanted = "a ring asked for out of turn";
    let unasked = "a ring that was not asked for";
    let unoffered = "a ring taken that was not offered";
    let longer = u64::from(2 * RING);
    let finish = message(5, &[0]);
    vec![
        refused(0, &[want(0)], unwanted),
        refused(0, &[want(longer), want(longer)], unwanted),
        refused(0, &[finish, want(longer)], unwanted),
        refused(0, &[ring(1, 64)], unasked),
        refused(0, &[ring(1, 0)], unasked),
        refused(0, &[taken(1)], unoffered),
        refused(0, &[want(longer), taken(2)], unoffered),
        // A ring of the length that it has is refused.
        refused(0, &[want(u64::from(RING)), taken(1)], unoffered),
        refused(0, &[message(11, &[1, 0x1000, 64, 1])], MALFORMED),
        refused(0, &[message(11, &[1, 0x1000])], MALFORMED),
    ]
}

/// RDMA Writes outside of what the hostile end was told.
fn outside() -> Vec<Case> {
    let mut cases = vec![
        broken(0, &format!("write=ring:0:{RING}:8:-")),
        broken(0, &format!("write=ring:0:{}:8:-", RING - 4)),
        broken(0, "write=ring:0:-8:8:-"),
        broken(1, &format!("write=advert:0:{RECV}:1:-")),
        broken(1, "write=advert:0:-1:8:-"),
        broken(0, "write=secret:0:0:8:-"),
        broken(0, "read"),
    ];
    // Keys near that of the ring: other regions of the connection have them, or none.
    for plus in [-256, -2, -1, 1, 2, 3, 4, 256, 512] {
        cases.push(broken(0, &format!("write=secret:{plus}:0:8:-")));
    }
    // The honest end has the buffer of its receive again when it tells of the violation.
    let mut afterwards = vec!["send=".to_owned()];
    afterwards.extend(vec![format!("write=advert:0:0:{RECV}:-"); 1000]);
    cases.push(refused(1, &afterwards, MALFORMED));
    cases
}
