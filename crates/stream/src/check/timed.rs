//! Both ends over a link with a rate and a delay, in simulated time: how fast, and how direct.
//!
//! Octets are not carried here (`world` does that). A work request occupies its link for its length
//! and a header, takes effect after the delay, and completes after one delay more. Copies take no
//! time, so the figures are of the protocol alone.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Rng;
use crate::{Buffer, Choice, Config, Event, Stats, Stream, Transmit};

const HEADER_OCTETS: u64 = 64;

/// A link and what its users do: sends of one length, as many as are permitted at a time.
#[derive(Clone, Copy, Debug)]
struct Case {
    rtt_ns: u64,
    gbit_per_s: f64,
    choice: Choice,
    sends: usize,
    recvs: u16,
    len_octets: u64,
    /// Lengths are random, up to this one, and a quarter of the receives wait for all of it.
    is_random: bool,
    ring_octets: u64,
    /// The length to which it may grow.
    ring_max_octets: u64,
    /// Work requests complete when they leave, as those of a provider that writes into the memory
    /// of a peer on the same host.
    completes_early: bool,
    /// When the first send is posted, after the first receives.
    begins_ns: u64,
    pause_every: u32,
    /// How long the flow lasts.
    rtts: u64,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Of the rate of the link, without the time until the flow is steady.
    share: f64,
    /// The sender's.
    stats: Stats,
    /// The last length of the ring.
    ring_octets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Begins,
    TakesEffect,
    Completes,
    TimesOut,
}

/// When, an order among equals, what, and by which end it was posted.
type Due = (u64, u64, What, usize);

struct Timed {
    case: Case,
    ends: [Stream<()>; 2],
    now_ns: u64,
    count: u64,
    begun: bool,
    due: BinaryHeap<Reverse<Due>>,
    on_the_way: [std::collections::VecDeque<Transmit>; 2],
    free_at_ns: [u64; 2],
    /// The last of each end that is scheduled.
    timeouts: [Option<u64>; 2],
    open_sends: usize,
    open_recvs: u16,
    next_rkey: u32,
    received_octets: u64,
    /// The last ring of the receiver.
    ring_octets: u64,
    /// Of the lengths of sends and of receives.
    lengths: [Rng; 2],
}

impl Timed {
    fn new(case: Case) -> Self {
        let config = Config {
            choice: case.choice,
            recv_slots: 16_384,
            max_sends: case.sends,
            max_recvs: case.recvs,
            send_depth: 8192,
            pause_every: case.pause_every,
            advert_min_octets: 0,
            ring_max_octets: case.ring_max_octets,
            ..Config::default()
        };
        let ring = Buffer {
            addr: 0,
            len_octets: case.ring_octets,
            rkey: 1,
        };
        let peer = config.hello(ring);
        let end = || Stream::new(&config, ring, &peer).expect("the case fits");
        Self {
            case,
            ends: [end(), end()],
            now_ns: 0,
            count: 0,
            begun: false,
            due: BinaryHeap::new(),
            on_the_way: Default::default(),
            free_at_ns: [0; 2],
            timeouts: [None; 2],
            open_sends: 0,
            open_recvs: 0,
            next_rkey: 2,
            received_octets: 0,
            ring_octets: case.ring_octets,
            lengths: [Rng::new(1), Rng::new(2)],
        }
    }

    fn run(mut self) -> Measured {
        let end_ns = self.case.rtts * self.case.rtt_ns;
        let steady_ns = end_ns / 4;
        let mut before = None;
        self.serve(1);
        self.schedule(self.case.begins_ns, What::Begins, 0);
        while let Some(Reverse((at_ns, _, what, end))) = self.due.pop() {
            if at_ns > end_ns {
                break;
            }
            self.now_ns = at_ns;
            if at_ns >= steady_ns {
                before.get_or_insert((at_ns, self.received_octets));
            }
            match what {
                What::Begins => self.begun = true,
                What::TakesEffect => self.take_effect(end),
                What::TimesOut => {}
                What::Completes => self.ends[end].handle_sent(1, &mut self.now_ns),
            }
            self.serve(0);
            self.serve(1);
        }
        let (from_ns, before) = before.expect("something happens");
        let octets = (self.received_octets - before) as f64;
        let could = self.case.gbit_per_s / 8.0 * (self.now_ns - from_ns) as f64;
        Measured {
            share: octets / could,
            stats: self.ends[0].stats(),
            ring_octets: self.ring_octets,
        }
    }

    fn take_effect(&mut self, from: usize) {
        let sink = &mut self.ends[1 - from];
        match self.on_the_way[from].pop_front().expect("it was posted") {
            Transmit::Control(message) => sink.handle_control(message.as_slice(), &mut self.now_ns),
            Transmit::Write(piece) => match piece.immediate {
                Some(word) => sink.handle_immediate(word, piece.len_octets),
                None => Ok(()),
            },
        }
        .expect("the ends are correct");
        if !self.case.completes_early {
            self.schedule(self.now_ns + self.case.rtt_ns / 2, What::Completes, from);
        }
    }

    fn schedule(&mut self, at_ns: u64, what: What, end: usize) {
        self.count += 1;
        self.due.push(Reverse((at_ns, self.count, what, end)));
    }

    /// What the driver and the user of an end do when something has happened.
    fn serve(&mut self, end: usize) {
        loop {
            self.post(end);
            self.ends[end].poll_copies(|_, ()| {});
            self.offer_ring(end);
            while let Some(transmit) = self.ends[end].poll_transmit(&mut self.now_ns) {
                self.carry(end, transmit);
            }
            let Some(event) = self.ends[end].poll_event() else {
                break;
            };
            match event {
                Event::Sent { .. } => self.open_sends -= 1,
                Event::Received { octets, .. } => {
                    self.received_octets += octets;
                    self.open_recvs -= 1;
                }
                other => panic!("{other:?}"),
            }
        }
        let timeout = self.ends[end].poll_timeout();
        if timeout != self.timeouts[end] {
            self.timeouts[end] = timeout;
            if let Some(at_ns) = timeout {
                self.schedule(at_ns.max(self.now_ns), What::TimesOut, end);
            }
        }
    }

    fn offer_ring(&mut self, end: usize) {
        if let Some(len_octets) = self.ends[end].poll_ring() {
            self.ring_octets = len_octets;
            self.ends[end].offer_ring(Some(Buffer {
                addr: 0,
                len_octets,
                rkey: 1,
            }));
        }
    }

    /// End 0 sends, end 1 receives.
    fn post(&mut self, end: usize) {
        while end == 0 && self.begun && self.open_sends < self.case.sends {
            let len_octets = self.length(0);
            self.ends[0].send(len_octets, ()).expect("there is room");
            self.open_sends += 1;
        }
        while end == 1 && self.open_recvs < self.case.recvs {
            let len_octets = self.length(1);
            let waitall = self.case.is_random && self.lengths[1].percent(25);
            let rkey = self.next_rkey;
            self.next_rkey += 1;
            let buffer = Buffer {
                addr: 0,
                len_octets,
                rkey,
            };
            self.ends[1]
                .recv(buffer, (), waitall)
                .expect("there is room");
            self.open_recvs += 1;
        }
    }

    fn length(&mut self, end: usize) -> u64 {
        match self.case.is_random {
            true => self.lengths[end].between(1, self.case.len_octets),
            false => self.case.len_octets,
        }
    }

    fn carry(&mut self, end: usize, transmit: Transmit) {
        let octets = match &transmit {
            Transmit::Control(message) => message.as_slice().len() as u64,
            Transmit::Write(piece) => u64::from(piece.len_octets),
        };
        let takes_ns = (octets + HEADER_OCTETS) as f64 * 8.0 / self.case.gbit_per_s;
        let free_at_ns = self.free_at_ns[end].max(self.now_ns) + takes_ns as u64;
        self.free_at_ns[end] = free_at_ns;
        self.on_the_way[end].push_back(transmit);
        if self.case.completes_early {
            self.schedule(free_at_ns, What::Completes, end);
        }
        self.schedule(free_at_ns + self.case.rtt_ns / 2, What::TakesEffect, end);
    }
}

fn measure(name: &str, case: Case) -> Measured {
    let measured = Timed::new(case).run();
    println!(
        "{name}: {:?} rtt {} us, {} Gbit/s, {} sends of {} against {} receives: {:.3} of the link, \
         {:.1} % direct",
        case.choice,
        case.rtt_ns / 1000,
        case.gbit_per_s,
        case.sends,
        case.len_octets,
        case.recvs,
        measured.share,
        100.0 * measured.stats.direct_ratio(),
    );
    measured
}

/// 16 sends of 64 KB against 32 receives, 10 us apart.
const LOCAL: Case = Case {
    rtt_ns: 10_000,
    gbit_per_s: 40.0,
    choice: Choice::Dynamic,
    sends: 16,
    recvs: 32,
    len_octets: 64 << 10,
    is_random: false,
    ring_octets: 1 << 20,
    ring_max_octets: 0,
    completes_early: false,
    begins_ns: 10_000,
    pause_every: 0,
    rtts: 4000,
};

/// The dynamic choice sends nearly all directly, as fast as the direct one.
fn assert_direct(name: &str, case: Case) {
    let [dynamic, direct] = [Choice::Dynamic, Choice::Direct].map(|choice| {
        let case = Case { choice, ..case };
        measure(name, case)
    });
    assert!(dynamic.stats.direct_ratio() >= 0.95, "{dynamic:?}");
    assert!(
        dynamic.share >= 0.97 * direct.share,
        "{dynamic:?} {direct:?}"
    );
}

/// Half as many sends as receives: the receiver is always ahead, as in the paper.
#[test]
fn sends_16_against_receives_32_are_direct() {
    assert_direct("local", LOCAL);
}

/// A send of a random length takes 1.8 adverts on average, so the sender has none now and then. It
/// waits for the next then, since what is on the way keeps the link busy.
#[test]
fn sends_16_against_receives_32_of_random_lengths_are_direct() {
    for begins_ns in [0, 10_000] {
        let case = Case {
            len_octets: 256 << 10,
            is_random: true,
            ring_octets: 4 << 20,
            completes_early: true,
            begins_ns,
            pause_every: Config::default().pause_every,
            rtts: 20_000,
            ..LOCAL
        };
        assert_direct("random lengths", case);
    }
}

/// The first sends are posted before any advert has arrived. Only a pause makes the flow direct.
#[test]
fn sends_before_adverts_become_direct_by_a_pause() {
    let case = Case {
        begins_ns: 0,
        pause_every: Config::default().pause_every,
        ..LOCAL
    };
    let pausing = measure("sends first", case);
    let never = measure(
        "sends first, no pauses",
        Case {
            pause_every: 0,
            ..case
        },
    );
    assert!(pausing.stats.direct_ratio() >= 0.95, "{pausing:?}");
    assert!(pausing.share >= 0.97, "{pausing:?}");
    assert!(pausing.stats.pauses <= 2, "{pausing:?}");
    assert!(never.stats.direct_ratio() < 0.05, "{never:?}");
}

/// 32 receives of 128 KB are 0.70 of what 48 ms of 1 Gbit/s hold; 64 sends are more than that.
#[test]
fn distance_48_ms_dynamic_fills_the_link_where_direct_waits() {
    let case = Case {
        rtt_ns: 48_000_000,
        gbit_per_s: 1.0,
        choice: Choice::Dynamic,
        sends: 64,
        recvs: 32,
        len_octets: 128 << 10,
        is_random: false,
        ring_octets: 8 << 20,
        ring_max_octets: 0,
        completes_early: false,
        begins_ns: 48_000_000,
        pause_every: Config::default().pause_every,
        rtts: 60,
    };
    let dynamic = measure("distance", case);
    let [direct, indirect] = [Choice::Direct, Choice::Indirect].map(|choice| {
        let case = Case { choice, ..case };
        measure("distance", case)
    });
    assert!(dynamic.share >= 0.90, "{dynamic:?}");
    assert!((0.60..0.75).contains(&direct.share), "{direct:?}");
    assert!(
        dynamic.share >= 0.98 * indirect.share,
        "{dynamic:?} {indirect:?}"
    );
}

/// Round trips of 10 us to 200 ms, and up to 64 MB in flight, with a ring of one and a half times
/// that: the dynamic choice is as fast as the better of the others.
#[test]
fn links_dynamic_is_as_fast_as_the_better_choice() {
    let links = [
        (10_000, 40.0),
        (100_000, 40.0),
        (1_000_000, 10.0),
        (10_000_000, 10.0),
        (48_000_000, 1.0),
        (200_000_000, 2.56),
    ];
    for (rtt_ns, gbit_per_s) in links {
        let in_flight_octets = (rtt_ns as f64 * gbit_per_s / 8.0) as u64;
        for (sends, recvs) in [(16, 32), (32, 32), (64, 16)] {
            let case = Case {
                rtt_ns,
                gbit_per_s,
                choice: Choice::Dynamic,
                sends,
                recvs,
                len_octets: (in_flight_octets / 24).max(1000),
                is_random: false,
                ring_octets: in_flight_octets * 3 / 2 + 64_000,
                ring_max_octets: 0,
                completes_early: false,
                begins_ns: rtt_ns,
                pause_every: Config::default().pause_every,
                rtts: 40,
            };
            let [dynamic, direct, indirect] = [Choice::Dynamic, Choice::Direct, Choice::Indirect]
                .map(|choice| {
                    let case = Case { choice, ..case };
                    measure("link", case)
                });
            let best = direct.share.max(indirect.share);
            assert!(dynamic.share >= 0.95 * best, "{case:?} {dynamic:?} {best}");
        }
    }
}

/// A flow of sends only through the ring, over a link that holds `in_flight` octets.
fn growing(rtt_ns: u64, gbit_per_s: f64, ring_octets: u64) -> Measured {
    let case = Case {
        rtt_ns,
        gbit_per_s,
        choice: Choice::Indirect,
        sends: 256,
        recvs: 32,
        len_octets: 64 << 10,
        is_random: false,
        ring_octets,
        ring_max_octets: 64 << 20,
        completes_early: false,
        begins_ns: rtt_ns,
        pause_every: Config::default().pause_every,
        rtts: 80,
    };
    let measured = measure("growing", case);
    println!("the ring has {} KB at last", measured.ring_octets >> 10);
    measured
}

/// The ring grows to what the path holds: a little more than that, and not to its bound.
#[test]
fn ring_shorter_than_the_path_grows_to_it() {
    for (rtt_ns, gbit_per_s) in [(1_000_000, 10.0), (10_000_000, 10.0), (48_000_000, 1.0)] {
        let path_octets = (rtt_ns as f64 * gbit_per_s / 8.0) as u64;
        let measured = growing(rtt_ns, gbit_per_s, 256 << 10);
        assert!(measured.share >= 0.95, "{measured:?}");
        let ring = measured.ring_octets;
        assert!((path_octets..=4 * path_octets).contains(&ring), "{ring}");
        assert!(measured.stats.rings_taken > 0, "{measured:?}");
    }
}

/// The ring is full, and the link as well: a longer ring would gain nothing.
#[test]
fn ring_longer_than_the_path_stays() {
    for (rtt_ns, gbit_per_s) in [(10_000, 40.0), (1_000_000, 1.0)] {
        let measured = growing(rtt_ns, gbit_per_s, 4 << 20);
        assert_eq!(measured.stats.rings_taken, 0, "{measured:?}");
        assert!(measured.share >= 0.95, "{measured:?}");
    }
}
