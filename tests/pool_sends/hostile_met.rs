//! A hostile peer over initiators: `pool-hostile/initiator.c` asks, and then sends to the target of
//! the honest end what no pool sends. Beside it, the users of an honest peer over initiators send
//! to the same end, and have no error.

use std::path::PathBuf;

use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::Process;
use urdma_tests::{alone, compile, ports, CHECK_LIMIT};

use super::cases::{
    data, echoed, hex, message, open, opened, wait, Case, Message, ACCEPT, BEGIN, BUFFERS, CLOSE,
    DATA, HEADER, OPEN, OWN, PART, RECEIVES, REFUSE, TAKEN,
};
use super::{Victim, MUTE, UNKNOWN};
use crate::{killed, Hosts, Over, SERVICE};

const LEAVE: u8 = 11;
const PROBE: u8 = 12;
/// Octets of what precedes a header, and of a buffer.
const LABEL: u32 = 16;
const BUFFER: u32 = 4096 + LABEL + HEADER;
/// The port of the hostile peer and that of the honest end, until they are known.
const OWN_PORT: &str = "OWN";
const HONEST_PORT: &str = "HONEST";

/// A question, which is a correct one but for some fields.
struct Ask {
    magic: [u8; 4],
    host: [u8; 4],
    port: &'static str,
    buffer_octets: u32,
    epoch: u32,
    number: u32,
    share: u16,
    /// The number of a target in place of the own one.
    target: Option<u32>,
    /// How much of it is sent.
    len: usize,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            magic: *b"upq2",
            host: [127, 0, 0, 1],
            port: OWN_PORT,
            buffer_octets: BUFFER,
            epoch: 7,
            number: 1,
            share: 32,
            target: None,
            len: 76,
        }
    }
}

impl Ask {
    fn step(&self) -> String {
        let address = [&self.magic[..], &[0; 10], &[0xff; 2], &self.host].concat();
        let target = self.target.map(u32::to_be_bytes);
        let terms = [
            &self.buffer_octets.to_be_bytes()[..],
            &self.epoch.to_be_bytes(),
            &self.number.to_be_bytes(),
            // The token of the hostile peer.
            &[9; 8],
            &self.share.to_be_bytes(),
            target.as_ref().map_or(&[], |target| &target[..]),
        ]
        .concat();
        let (address, terms) = (hex(&address), hex(&terms));
        format!("ask={address}{}{terms}:{}", self.port, self.len)
    }
}

fn ask() -> Vec<String> {
    vec![Ask::default().step()]
}

fn leave() -> Vec<String> {
    vec![message(LEAVE, "0", "0").step()]
}

/// What a virtual queue pair does that works.
fn works() -> Vec<String> {
    [opened(), echoed(0), leave()].concat()
}

/// Questions, and what is said to them.
fn asked(questions: &[Ask], prints: &'static str) -> Case {
    Case {
        steps: questions.iter().map(Ask::step).collect(),
        prints,
        ..Case::default()
    }
}

/// Messages that are dropped, and behind which a virtual queue pair works.
fn dropped(dropped: u64, steps: Vec<String>) -> Case {
    Case {
        steps: [ask(), steps, works()].concat(),
        prints: "leaves",
        dropped,
        ..Case::default()
    }
}

/// A message that says nothing but the number of buffers, in an odd way.
fn odd(ways: &[&str]) -> Vec<String> {
    let ways = ways.iter().map(|&way| way.to_owned());
    ways.chain([message(BUFFERS, "0", "0").step()]).collect()
}

/// Questions that no pool asks.
fn questions() -> Vec<Case> {
    let question = Ask::default;
    let refused = |asks: Ask| asked(&[asks], "refused\nleaves");
    let again = |number| Ask {
        number,
        ..question()
    };
    vec![
        // As of one that asks for the target of a node.
        asked(
            &[Ask {
                len: 0,
                ..question()
            }],
            "node\nleaves",
        ),
        asked(
            &[Ask {
                magic: *b"upq1",
                ..question()
            }],
            "node\nleaves",
        ),
        refused(Ask {
            len: 4,
            ..question()
        }),
        refused(Ask {
            len: 75,
            ..question()
        }),
        refused(Ask {
            host: [127, 0, 0, 2],
            ..question()
        }),
        refused(Ask {
            host: [0; 4],
            ..question()
        }),
        refused(Ask {
            port: "0000",
            ..question()
        }),
        refused(Ask {
            port: HONEST_PORT,
            ..question()
        }),
        refused(Ask {
            share: 3,
            ..question()
        }),
        refused(Ask {
            buffer_octets: BUFFER - 1,
            ..question()
        }),
        refused(Ask {
            buffer_octets: BUFFER + 1,
            ..question()
        }),
        refused(Ask {
            target: Some(1 << 24),
            ..question()
        }),
        asked(
            &[question(), question()],
            "answered another\nanswered same\nleaves",
        ),
        asked(&[again(5), again(4)], "answered another\nrefused\nleaves"),
        asked(
            &[
                again(5),
                Ask {
                    epoch: 8,
                    ..again(4)
                },
            ],
            "answered another\nanswered another\nleaves",
        ),
        // A newer one: what was told before is worth nothing.
        Case {
            steps: [
                [ask(), opened(), echoed(0), vec![again(2).step()]].concat(),
                odd(&["dead"]),
                [open(SERVICE).step(), wait(ACCEPT)].into(),
                leave(),
            ]
            .concat(),
            prints: "answered another\nanswered another\nleaves",
            dropped: 1,
            ..Case::default()
        },
    ]
}

/// Labels that are not right.
fn labels() -> Vec<Case> {
    let mut cases = vec![
        dropped(1, odd(&["stranger"])),
        // Numbers that have come: messages without effect, which take Receives of others.
        dropped(0, odd(&["shift=-1"])),
        dropped(0, [odd(&[]), odd(&["times=2000", "shift=-1"])].concat()),
        Case {
            steps: [
                ask(),
                opened(),
                odd(&["times=2000", "shift=-2"]),
                echoed(0),
                leave(),
            ]
            .concat(),
            prints: "leaves",
            ..Case::default()
        },
        dropped(1, odd(&["shift=1"])),
        dropped(300, odd(&["times=300", "shift=20000"])),
        dropped(1, odd(&["rest=1", "shift=0"])),
    ];
    for len in [0, 1, LABEL - 1] {
        cases.push(dropped(1, odd(&["shift=0", &format!("cut={len}")])));
    }
    cases
}

/// Messages that no pool sends.
fn malformed() -> Vec<Case> {
    let mut cases = Vec::new();
    for len in [LABEL, LABEL + 1, LABEL + HEADER - 1] {
        cases.push(dropped(1, odd(&[&format!("cut={len}")])));
    }
    for kind in [0, 13, 255] {
        cases.push(dropped(1, vec![message(kind, "0", "0").step()]));
    }
    let all_header = [
        OPEN, ACCEPT, REFUSE, RECEIVES, CLOSE, BUFFERS, TAKEN, LEAVE, PROBE,
    ];
    for kind in all_header {
        let long = Message {
            len: 1,
            ..message(kind, "0", "0")
        };
        cases.push(dropped(1, vec![long.step()]));
    }
    cases
}

/// Messages to virtual queue pairs that do not exist, or not for this peer.
fn strangers() -> Vec<Case> {
    let unknown = dropped(0, vec![open(UNKNOWN).step(), wait(REFUSE)]);
    let all = (0..=8).map(|slot| {
        let destination = format!("{slot:x}");
        // The honest end says that it has none.
        let answered = [ACCEPT, DATA, BEGIN, PART, TAKEN, RECEIVES];
        let answered = answered
            .into_iter()
            .flat_map(|kind| [message(kind, &destination, OWN).step(), wait(CLOSE)]);
        let closes = [
            message(CLOSE, &destination, OWN).step(),
            message(REFUSE, &destination, "0").step(),
        ];
        dropped(8, answered.chain(closes).collect())
    });
    all.chain([unknown]).collect()
}

/// Peers that lie about their buffers, do not take what they are sent, or leave.
fn exchanges() -> Vec<Case> {
    let lie = |buffers| {
        let lie = Message {
            buffers,
            ..message(BUFFERS, "0", "0")
        };
        dropped(1, vec![lie.step()])
    };
    let again = Ask {
        number: 2,
        ..Ask::default()
    };
    let left = [leave(), odd(&["shift=0"]), vec![again.step()]];
    let too_long = Case {
        steps: [
            ask(),
            opened(),
            vec![data(0, BUFFER - LABEL - HEADER + 1).step()],
        ]
        .concat(),
        prints: "failed",
        ..Case::default()
    };
    // Nothing takes what is sent to this target.
    let nowhere = Ask {
        target: Some(0x00ff_f000),
        ..Ask::default()
    };
    let nowhere = Case {
        steps: vec![nowhere.step(), open(MUTE).step()],
        prints: "leaves",
        victim: "mute ended",
        ..Case::default()
    };
    vec![
        lie(33),
        lie(-1),
        lie(20_000),
        dropped(1, left.concat()),
        too_long,
        nowhere,
    ]
}

/// The hosts, and the hostile program.
struct Bed {
    hosts: Hosts,
    program: PathBuf,
}

impl Bed {
    fn up() -> Self {
        let hosts = Hosts::one().over(Over::Initiators);
        let directory = hosts.scratch.path();
        let program = directory.join("pool-hostile-initiator");
        let sources = env!("CARGO_MANIFEST_DIR");
        let arguments = [
            format!("-I{sources}/../crates/dv/include"),
            format!("{sources}/pool-hostile/initiator.c"),
            format!("-Wl,-rpath,{}", directory.display()),
            format!("-L{}", directory.display()),
            "-lurdmadv".to_owned(),
            "-lrdmacm".to_owned(),
            "-libverbs".to_owned(),
        ];
        compile(&program, arguments);
        Self { hosts, program }
    }

    /// Has a peer with a port do what is in a case.
    fn start(&self, case: &Case, own: u16) -> Process {
        let (host, port) = self.hosts.addresses[0].split_once(':').unwrap();
        let honest: u16 = port.parse().unwrap();
        let steps = case.steps.iter().map(|step| {
            let step = step.replace(OWN_PORT, &format!("{own:04x}"));
            step.replace(HONEST_PORT, &format!("{honest:04x}"))
        });
        let steps: Vec<String> = steps.collect();
        let mut argv = vec![self.program.to_str().unwrap(), host, port];
        argv.extend(steps.iter().map(String::as_str));
        let mut command = self.hosts.hosts[0].run(LeasePolicy::Never, &argv).unwrap();
        Process::start(&mut command).unwrap()
    }

    /// Each peer in turn, and at the same time the users of an honest one.
    fn attack(self, cases: &[Case]) {
        let mut victim = Victim::start(&self.hosts);
        let mut survivor = self.hosts.start("asks", 1);
        survivor.wait_for_text("asks", CHECK_LIMIT).unwrap();
        for (case, own) in cases.iter().zip(ports()..) {
            victim.expect(self.start(case, own), case);
        }
        killed(&self.hosts);
        let ended = survivor.wait(CHECK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
        let printed = victim.end.printed();
        let counted = printed.lines().rfind(|line| line.starts_with("dropped"));
        let dropped = format!("dropped {} duplicates 0.", victim.dropped);
        assert_eq!(counted, Some(&*dropped));
        self.hosts.down([victim.end]);
    }
}

#[test]
fn hostile_questions_are_refused_and_others_go_on() {
    let _alone = alone();
    Bed::up().attack(&questions());
}

#[test]
fn hostile_messages_over_initiators_are_dropped_and_others_go_on() {
    let _alone = alone();
    let cases = [labels(), malformed(), strangers()].into_iter().flatten();
    Bed::up().attack(&cases.collect::<Vec<Case>>());
}

#[test]
fn hostile_exchanges_over_initiators_end_and_others_go_on() {
    let _alone = alone();
    Bed::up().attack(&exchanges());
}

/// A peer that posts none of the Receives that it has told of, and one that posts none again and
/// wants more answers than there may be. Both stay.
#[test]
fn peers_without_receives_keep_no_others_from_going_on() {
    let _alone = alone();
    let bed = Bed::up();
    let victim = Victim::start(&bed.hosts);
    let mut survivor = bed.hosts.start("asks", 1);
    survivor.wait_for_text("asks", CHECK_LIMIT).unwrap();
    let peers = ["deaf", "silent"].into_iter().zip([1, 300]).zip(ports()..);
    let peers = peers.map(|((receives, probes), own)| {
        let steps = [
            vec![receives.to_owned()],
            ask(),
            vec![format!("times={probes}"), message(PROBE, "0", "0").step()],
            ["say=it waits", "stay"].map(str::to_owned).into(),
        ];
        let case = Case {
            steps: steps.concat(),
            ..Case::default()
        };
        let mut peer = bed.start(&case, own);
        peer.wait_for_text("it waits", CHECK_LIMIT).unwrap();
        peer
    });
    let peers: Vec<Process> = peers.collect();
    killed(&bed.hosts);
    let ended = survivor.wait(CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    bed.hosts.down(peers.into_iter().chain([victim.end]));
}
