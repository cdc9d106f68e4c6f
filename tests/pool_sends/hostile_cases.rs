//! What hostile peers do, and what the honest end makes of it.

use super::{MUTE, NARROW, OFFERED, UNKNOWN};
use crate::SERVICE;

/// Numbers of kinds of messages.
pub(super) const OPEN: u8 = 1;
pub(super) const ACCEPT: u8 = 2;
pub(super) const REFUSE: u8 = 3;
pub(super) const DATA: u8 = 4;
pub(super) const BEGIN: u8 = 5;
pub(super) const PART: u8 = 6;
pub(super) const RECEIVES: u8 = 7;
pub(super) const CLOSE: u8 = 8;
pub(super) const BUFFERS: u8 = 9;
pub(super) const TAKEN: u8 = 10;

/// Octets of a buffer, and of a header.
const BUFFER: u32 = 4096 + HEADER;
pub(super) const HEADER: u32 = 32;

pub(super) fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// Key, address and length of memory of no octets.
const NO_MEMORY: [u8; 20] = [0; 20];
/// Memory whose end has no address.
const NO_END: [u8; 20] = [0xff; 20];

fn terms(share: u16, buffer_octets: u32) -> Vec<u8> {
    let name = [7, 7, 7, 7, 0, 0, 0, 0];
    [
        &share.to_be_bytes()[..],
        &buffer_octets.to_be_bytes(),
        &name,
    ]
    .concat()
}

/// The port at which a peer says that it listens.
#[derive(Debug)]
enum At {
    /// Nothing listens there.
    Own,
    /// That of the honest end.
    Honest,
    None,
}

/// The private data of a request, which is a correct one but for some fields.
#[derive(Debug)]
pub(super) struct Hello {
    magic: [u8; 4],
    host: [u8; 4],
    at: At,
    share: u16,
    buffer_octets: u32,
    memory: [u8; 20],
    /// How much of it is sent.
    len: usize,
}

impl Default for Hello {
    fn default() -> Self {
        Self {
            magic: *b"upq1",
            host: [127, 0, 0, 1],
            at: At::Own,
            share: 32,
            buffer_octets: BUFFER,
            memory: NO_MEMORY,
            len: 56,
        }
    }
}

impl Hello {
    /// To the honest end at an address, of a peer with a port.
    pub(super) fn encode(&self, honest: &str, own: u16) -> String {
        let (_, honest) = honest.split_once(':').unwrap();
        let port = match self.at {
            At::Own => own,
            At::Honest => honest.parse().unwrap(),
            At::None => 0,
        };
        let octets = [
            &self.magic[..],
            &[0; 10],
            &[0xff; 2],
            &self.host,
            &port.to_be_bytes(),
            &terms(self.share, self.buffer_octets),
            &self.memory,
        ]
        .concat();
        hex(&octets[..self.len])
    }
}

/// One connection of a hostile peer.
#[derive(Debug, Default)]
pub(super) struct Case {
    /// Over initiators, its steps ask.
    pub(super) hello: Hello,
    /// What it does (`main.c`, `initiator.c`).
    pub(super) steps: Vec<String>,
    /// What it prints.
    pub(super) prints: &'static str,
    /// By how much the counters of the honest end increase.
    pub(super) dropped: u64,
    pub(super) duplicates: u64,
    /// What the honest end prints.
    pub(super) victim: &'static str,
}

/// A message, the fields of which are 0 unless they are named.
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) destination: String,
    pub(super) source: &'static str,
    pub(super) sequence: u32,
    pub(super) receives: u32,
    /// Beyond those that are posted.
    pub(super) buffers: i32,
    pub(super) immediate: u32,
    pub(super) len: u32,
}

pub(super) fn message(kind: u8, destination: &str, source: &'static str) -> Message {
    Message {
        kind,
        flags: 0,
        destination: destination.to_owned(),
        source,
        sequence: 0,
        receives: 0,
        buffers: 0,
        immediate: 0,
        len: 0,
    }
}

impl Message {
    pub(super) fn step(&self) -> String {
        let Self {
            kind,
            flags,
            destination,
            source,
            sequence,
            receives,
            buffers,
            immediate,
            len,
        } = self;
        format!(
            "message={kind}:{flags}:{destination}:{source}:{sequence}:{receives}:{buffers}:\
             {immediate}:{len}"
        )
    }
}

/// The end of the hostile peer, and that of the honest one.
pub(super) const OWN: &str = "a1";
const PEER: &str = "d0";

pub(super) fn open(service: u32) -> Message {
    message(OPEN, &format!("{service:x}"), OWN)
}

pub(super) fn data(sequence: u32, len: u32) -> Message {
    Message {
        sequence,
        len,
        receives: 100,
        ..message(DATA, PEER, OWN)
    }
}

pub(super) fn wait(kind: u8) -> String {
    format!("wait={kind}")
}

fn opened_to(service: u32) -> Vec<String> {
    vec![open(service).step(), wait(ACCEPT)]
}

/// A virtual queue pair to the service that sends messages back.
pub(super) fn opened() -> Vec<String> {
    opened_to(SERVICE)
}

/// A message that comes back.
pub(super) fn echoed(sequence: u32) -> Vec<String> {
    vec![data(sequence, 100).step(), wait(DATA)]
}

/// Messages that are dropped, and after which a virtual queue pair works: the last of those that
/// are waited for is its own.
fn dropped(dropped: u64, steps: Vec<String>) -> Case {
    Case {
        steps: [steps, opened(), echoed(0)].concat(),
        prints: "leaves",
        dropped,
        ..Case::default()
    }
}

/// A message to a virtual queue pair that works, which is dropped; then the virtual queue pair
/// works, or is closed.
fn at_end(steps: Vec<String>, behind: Vec<String>) -> Case {
    Case {
        steps: [opened(), steps, behind].concat(),
        prints: "leaves",
        dropped: 1,
        ..Case::default()
    }
}

/// All of them, in their order.
pub(super) fn all() -> Vec<Case> {
    let mut cases = requests();
    cases.extend(malformed());
    cases.extend(strangers());
    cases.extend(out_of_turn());
    cases.extend(lengths());
    cases.extend(segments());
    cases.extend(credits());
    cases.extend(accesses());
    cases
}

/// Requests to connect that no pool makes.
fn requests() -> Vec<Case> {
    let rejected = |hello| Case {
        hello,
        prints: "rejected",
        ..Case::default()
    };
    let hello = Hello::default;
    vec![
        rejected(Hello { len: 0, ..hello() }),
        rejected(Hello { len: 23, ..hello() }),
        rejected(Hello {
            magic: *b"upl1",
            ..hello()
        }),
        rejected(Hello {
            host: [127, 0, 0, 2],
            ..hello()
        }),
        rejected(Hello {
            host: [0; 4],
            ..hello()
        }),
        rejected(Hello {
            at: At::Honest,
            ..hello()
        }),
        rejected(Hello {
            at: At::None,
            ..hello()
        }),
        rejected(Hello {
            share: 3,
            ..hello()
        }),
        rejected(Hello {
            buffer_octets: BUFFER - 1,
            ..hello()
        }),
        rejected(Hello {
            memory: NO_END,
            ..hello()
        }),
    ]
}

fn malformed() -> Vec<Case> {
    let mut cases = Vec::new();
    for len in [0, 1, HEADER - 1] {
        cases.push(dropped(1, vec![format!("octets=:{len}")]));
    }
    // Whole buffers of octets without a meaning.
    cases.push(dropped(1, vec![format!("octets=:{BUFFER}")]));
    for kind in [0, 11, 255] {
        cases.push(dropped(1, vec![message(kind, "0", "0").step()]));
    }
    for flags in [1, 2, 128] {
        cases.push(dropped(
            1,
            vec![Message {
                flags,
                ..open(SERVICE)
            }
            .step()],
        ));
    }
    let unused = [
        Message {
            sequence: 1,
            ..open(SERVICE)
        },
        Message {
            immediate: 1,
            ..open(SERVICE)
        },
        message(OPEN, "100000007", OWN),
        message(REFUSE, "1", OWN),
        message(BUFFERS, "0", "1"),
        Message {
            receives: 1,
            ..message(CLOSE, "1", "1")
        },
        Message {
            immediate: 1,
            ..data(0, 0)
        },
        Message {
            flags: 3,
            ..data(0, 0)
        },
    ];
    cases.extend(
        unused
            .iter()
            .map(|message| dropped(1, vec![message.step()])),
    );
    for kind in [OPEN, ACCEPT, REFUSE, RECEIVES, CLOSE, BUFFERS, TAKEN] {
        let long = Message {
            len: 1,
            ..message(kind, "7", "0")
        };
        cases.push(dropped(1, vec![long.step()]));
    }
    cases
}

/// Messages to virtual queue pairs that do not exist, or not for this peer.
fn strangers() -> Vec<Case> {
    let mut cases = Vec::new();
    for destination in ["0", "1", "ffffffffffffffff"] {
        // The honest end says that it has none.
        for kind in [ACCEPT, DATA, BEGIN, PART, TAKEN, RECEIVES] {
            let unknown = message(kind, destination, OWN).step();
            cases.push(dropped(1, vec![unknown, wait(CLOSE)]));
        }
        for (kind, source) in [(REFUSE, "0"), (CLOSE, OWN)] {
            cases.push(dropped(1, vec![message(kind, destination, source).step()]));
        }
    }
    // Beside the right one: the next place, the next generation and the one before.
    for destination in ["d1", "d100000000", "dffffffff00000000"] {
        let near = message(DATA, destination, OWN).step();
        cases.push(at_end(vec![near, wait(CLOSE)], echoed(0)));
    }
    let other = Message {
        receives: 9,
        ..message(RECEIVES, PEER, "a2")
    };
    cases.push(at_end(vec![other.step(), wait(CLOSE)], echoed(0)));
    cases.push(at_end(vec![message(CLOSE, PEER, "a2").step()], echoed(0)));
    let accepts = message(ACCEPT, PEER, "a2").step();
    cases.push(at_end(vec![accepts, wait(CLOSE)], echoed(0)));
    cases.push(at_end(vec![message(REFUSE, PEER, "0").step()], echoed(0)));
    cases
}

/// A peer that knows the number of an end of another one.
pub(super) fn of_another(named: &str) -> Case {
    let steps = [
        message(DATA, named, OWN).step(),
        wait(CLOSE),
        message(CLOSE, named, OWN).step(),
        message(ACCEPT, named, OWN).step(),
        wait(CLOSE),
        message(REFUSE, named, "0").step(),
    ];
    dropped(4, steps.into())
}

/// Sends that are repeated, or that skip others; opens that are repeated; what follows a close.
fn out_of_turn() -> Vec<Case> {
    let again = || data(0, 7).step();
    let repeated = Case {
        steps: [opened(), echoed(0), vec![again(), again()], echoed(1)].concat(),
        prints: "leaves",
        duplicates: 2,
        ..Case::default()
    };
    let opens = || open(SERVICE).step();
    let opened_again = Case {
        steps: [vec![opens(), opens()], opened(), vec![opens()], echoed(0)].concat(),
        prints: "leaves",
        ..Case::default()
    };
    let close = message(CLOSE, PEER, OWN).step();
    let unknown = Case {
        steps: vec![open(UNKNOWN).step(), wait(REFUSE)],
        prints: "leaves",
        ..Case::default()
    };
    vec![
        repeated,
        opened_again,
        unknown,
        at_end(vec![data(1, 7).step()], vec![wait(CLOSE)]),
        at_end(vec![data(u32::MAX / 2, 7).step()], vec![wait(CLOSE)]),
        at_end(vec![close, data(0, 7).step()], vec![wait(CLOSE)]),
    ]
}

/// Messages that are longer than a buffer or a Receive, and more than there are Receives.
fn lengths() -> Vec<Case> {
    let long = Case {
        steps: [
            opened(),
            vec![data(0, BUFFER - HEADER + 1).step(), "end".to_owned()],
        ]
        .concat(),
        prints: "failed",
        ..Case::default()
    };
    let mute = Case {
        steps: [opened_to(MUTE), vec![data(0, 0).step(), wait(CLOSE)]].concat(),
        prints: "leaves",
        dropped: 1,
        victim: "mute ended",
        ..Case::default()
    };
    let narrow = |sends: &[Message], dropped, victim| Case {
        steps: [
            opened_to(NARROW),
            sends.iter().map(Message::step).collect(),
            vec![wait(CLOSE)],
        ]
        .concat(),
        prints: "leaves",
        dropped,
        victim,
        ..Case::default()
    };
    vec![
        long,
        mute,
        narrow(&[data(0, 17)], 0, "narrow LocalLength"),
        narrow(
            &[data(0, 16), data(1, 4096)],
            0,
            "narrow Success\nnarrow LocalLength",
        ),
        narrow(&[data(0, 16), data(1, 16), data(2, 0)], 1, "narrow ended"),
    ]
}

/// A segment of a Send: its offset, or, of the first one, the length of the Send.
fn segment(kind: u8, sequence: u32, immediate: u32, len: u32) -> String {
    let message = Message {
        immediate,
        ..data(sequence, len)
    };
    Message { kind, ..message }.step()
}

/// Segments that lie about the length of their Send, skip others or are repeated, and answers for
/// Sends that are not there.
fn segments() -> Vec<Case> {
    let begin = |all, len| segment(BEGIN, 0, all, len);
    let part = |offset, len| segment(PART, 0, offset, len);
    let taken = |sequence| segment(TAKEN, sequence, 0, 0);
    let ends = |steps: Vec<String>| at_end(steps, vec![wait(CLOSE)]);
    let begun = |step| ends(vec![begin(200, 100), wait(TAKEN), step]);
    let refused = |all, len| Case {
        dropped: 0,
        ..ends(vec![begin(all, len)])
    };
    let whole = Case {
        steps: [
            opened(),
            vec![begin(300, 100), wait(TAKEN), begin(300, 100), part(0, 100)],
            vec![part(100, 100), part(100, 100), part(100, 0)],
            vec![
                data(0, 100).step(),
                wait(DATA),
                begin(300, 100),
                part(100, 9),
            ],
            vec![data(0, 100).step()],
            echoed(1),
        ]
        .concat(),
        prints: "leaves",
        duplicates: 7,
        ..Case::default()
    };
    let narrow = Case {
        steps: [opened_to(NARROW), vec![begin(17, 8), wait(CLOSE)]].concat(),
        prints: "leaves",
        victim: "narrow LocalLength",
        ..Case::default()
    };
    vec![
        whole,
        narrow,
        refused(20_001, 4096),
        refused(u32::MAX, 0),
        // All of a Send is no first segment of it.
        ends(vec![begin(100, 100)]),
        ends(vec![begin(0, 0)]),
        ends(vec![begin(99, 100)]),
        // Nothing has begun, or a Send is skipped.
        ends(vec![part(0, 100)]),
        ends(vec![segment(BEGIN, 1, 200, 100)]),
        // Octets are skipped, or the last ones are not in the last message.
        begun(part(101, 10)),
        begun(part(u32::MAX, 10)),
        begun(part(100, 100)),
        begun(part(100, 4096)),
        begun(segment(PART, 1, 100, 10)),
        // The last message is too short or too long, or of another Send.
        begun(data(0, 99).step()),
        begun(data(0, 101).step()),
        begun(data(0, 4096).step()),
        begun(data(1, 100).step()),
        // Nothing was sent.
        at_end(vec![taken(0)], echoed(0)),
        at_end(vec![taken(1)], echoed(0)),
        at_end(vec![taken(u32::MAX)], echoed(0)),
    ]
}

/// Peers that lie about their buffers, or do not take what they are sent.
fn credits() -> Vec<Case> {
    let lie = |buffers| {
        dropped(
            1,
            vec![Message {
                buffers,
                ..message(BUFFERS, "0", "0")
            }
            .step()],
        )
    };
    let unanswered = |buffers, times: u32, behind: &str| Case {
        steps: vec![
            "silent".to_owned(),
            Message {
                buffers,
                ..message(BUFFERS, "0", "0")
            }
            .step(),
            format!("times={times}"),
            Message {
                buffers,
                ..open(UNKNOWN)
            }
            .step(),
            behind.to_owned(),
        ],
        prints: "",
        ..Case::default()
    };
    vec![
        lie(33),
        lie(-1),
        lie(20_000),
        // More answers than there may be.
        unanswered(0, 300, "end"),
        // It claims Receives that it does not post.
        unanswered(32, 70, "say=it leaves"),
    ]
}

/// RDMA Writes within and beyond the memory that the honest end offers.
fn accesses() -> Vec<Case> {
    let write = |from: i64, len: usize, prints| Case {
        steps: [opened(), echoed(0), vec![format!("write={from}:{len}")]].concat(),
        prints,
        ..Case::default()
    };
    vec![
        write(0, OFFERED, "leaves"),
        write(1, OFFERED, "failed: remote access error"),
        write(-1, 1, "failed: remote access error"),
        write(OFFERED as i64, 1, "failed: remote access error"),
    ]
}

/// How a hostile end accepts a connection and a virtual queue pair, and what the one that has
/// opened it says.
pub(super) struct Acceptance {
    pub(super) hello: String,
    pub(super) steps: Vec<String>,
    /// Of the one that opens.
    pub(super) role: &'static str,
    pub(super) opener: Vec<&'static str>,
}

fn acceptance(memory: [u8; 20], share: u16, buffer_octets: u32) -> String {
    hex(&[&b"upl1"[..], &memory, &terms(share, buffer_octets)].concat())
}

pub(super) fn acceptances() -> Vec<Acceptance> {
    let refused = |hello: String| Acceptance {
        hello,
        steps: vec!["end".to_owned()],
        role: "opens",
        opener: vec![
            "Refused dropped 0.",
            "sent RetryExceeded",
            "received Flushed",
        ],
    };
    let unreachable = |hello: String| Acceptance {
        opener: vec![
            "Closed dropped 0.",
            "sent RetryExceeded",
            "received Flushed",
        ],
        ..refused(hello)
    };
    let accepting = |steps: &[String], opener: &[&'static str]| Acceptance {
        hello: acceptance(NO_MEMORY, 32, BUFFER),
        steps: [&[wait(OPEN)], steps, &["end".to_owned()]].concat(),
        role: "opens",
        opener: opener.to_vec(),
    };
    let accept = || {
        Message {
            receives: 4,
            ..message(ACCEPT, PEER, OWN)
        }
        .step()
    };
    let ends_well = |number| [number, "sent Success"];
    let answering = |steps: &[Message], opener: &[&'static str]| {
        let answers: Vec<String> = steps.iter().map(Message::step).collect();
        let steps = [vec![accept(), wait(BEGIN)], answers].concat();
        Acceptance {
            role: "opens long",
            ..accepting(&steps, opener)
        }
    };
    let taken = |sequence| Message {
        sequence,
        ..message(TAKEN, PEER, OWN)
    };
    let refusing = |sequence| Message {
        sequence,
        flags: 2,
        ..message(CLOSE, PEER, OWN)
    };
    vec![
        // A Send in segments is taken, for once and for all.
        answering(&[taken(0)], &ends_well("Open dropped 0.")),
        answering(&[taken(0), taken(0)], &ends_well("Open dropped 0.")),
        // Another one is, of which nothing was sent; then nothing more of this one is.
        answering(&[taken(1)], &["Open dropped 1."]),
        answering(&[taken(u32::MAX), taken(0)], &ends_well("Open dropped 1.")),
        answering(
            &[refusing(0)],
            &["Closed dropped 0.", "sent RemoteInvalidRequest"],
        ),
        answering(&[refusing(1)], &["Closed dropped 0.", "sent RetryExceeded"]),
        unreachable(String::new()),
        unreachable(hex(b"upl")),
        unreachable(acceptance(NO_END, 32, BUFFER)),
        refused(acceptance(NO_MEMORY, 3, BUFFER)),
        refused(acceptance(NO_MEMORY, 32, BUFFER + 1)),
        accepting(&[accept()], &ends_well("Open dropped 0.")),
        // Before the service has accepted it, nothing has its number.
        accepting(
            &[data(0, 5).step(), wait(CLOSE), accept()],
            &ends_well("Open dropped 1."),
        ),
        accepting(
            &[message(ACCEPT, "d1", OWN).step(), wait(CLOSE), accept()],
            &ends_well("Open dropped 1."),
        ),
        accepting(
            &[accept(), message(ACCEPT, PEER, "a2").step(), wait(CLOSE)],
            &["Open dropped 1."],
        ),
        accepting(
            &[accept(), message(REFUSE, PEER, "0").step()],
            &["Open dropped 1."],
        ),
        accepting(
            &[message(REFUSE, PEER, "0").step()],
            &[
                "Refused dropped 0.",
                "sent RetryExceeded",
                "received Flushed",
            ],
        ),
        accepting(
            &[accept(), message(CLOSE, PEER, OWN).step()],
            &["Closed dropped 0.", "received Flushed"],
        ),
        // Receives that are not there: the Send waits for no Receive of a virtual queue pair.
        accepting(
            &[
                accept(),
                data(0, 4096).step(),
                data(1, 0).step(),
                data(7, 0).step(),
            ],
            &["received Success", "Closed dropped 1.", "received Flushed"],
        ),
    ]
}
