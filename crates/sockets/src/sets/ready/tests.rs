//! Random schedules beside a set of the kernel's with sockets of which the same happens.

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use super::*;

const MEMBERS: usize = 3;
const STEPS: usize = 400;
const SEEDS: u64 = 200;

/// Octets of a member, which is always ready for writing.
#[derive(Default)]
struct Octets {
    unread: Cell<u64>,
    arrived: Cell<u64>,
    stamp: Cell<u64>,
    /// The sleep for which it is armed, or 0.
    armed: Cell<Option<u64>>,
}

impl Source for Rc<Octets> {
    fn ready(&self, events: u32) -> u32 {
        let readable = if self.unread.get() > 0 { IN } else { 0 };
        events & (readable | OUT)
    }

    fn arrived(&self) -> u64 {
        self.arrived.get()
    }

    fn stamp(&self) -> u64 {
        self.stamp.get()
    }

    fn arm(&self, events: u32, sleep: u64) {
        self.armed.set((events & IN != 0).then_some(sleep));
    }

    fn disarm(&self) {
        let stays = |sleep: &u64| *sleep == 0;
        self.armed.set(self.armed.get().filter(stays));
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

struct Both {
    ready: Ready<Rc<Octets>>,
    octets: Vec<Rc<Octets>>,
    kernel: c_int,
    sockets: Vec<[UnixStream; 2]>,
    /// The number of the last sleep, and of that for which the peer has rung.
    sleep: u64,
    rung: u64,
    /// The peer has rung since the last wait.
    is_told: bool,
}

impl Both {
    fn new() -> Self {
        let mut both = Self {
            ready: Ready::new(),
            octets: (0..MEMBERS).map(|_| Rc::default()).collect(),
            // SAFETY: the flags are valid.
            kernel: unsafe { libc::epoll_create1(0) },
            sockets: (0..MEMBERS)
                .map(|_| UnixStream::pair().unwrap().into())
                .collect(),
            sleep: 0,
            rung: 0,
            is_told: false,
        };
        let event = epoll_event { events: IN, u64: 0 };
        for member in 0..MEMBERS {
            both.sockets[member][0].set_nonblocking(true).unwrap();
            assert_eq!(both.ask(member, libc::EPOLL_CTL_ADD, event), Ok(()));
            let source = Rc::clone(&both.octets[member]);
            both.ready.insert(member as c_int, source, event);
        }
        both
    }

    fn ask(&self, member: usize, op: c_int, event: epoll_event) -> Result<(), c_int> {
        let fd = self.sockets[member][0].as_raw_fd();
        let mut event = event;
        // SAFETY: an event.
        match unsafe { libc::epoll_ctl(self.kernel, op, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
        }
    }

    fn arrive(&mut self, member: usize) {
        let octets = &self.octets[member];
        octets.unread.set(octets.unread.get() + 2);
        octets.arrived.set(octets.arrived.get() + 2);
        let is_asked = |sleep: &u64| *sleep == 0 || *sleep != self.rung;
        let is_rung = match octets.armed.take().filter(is_asked) {
            Some(sleep) => {
                self.rung = sleep.max(self.rung);
                self.is_told = true;
                true
            }
            None => false,
        };
        // What a member was armed for before its interest changed is one event too many.
        let wanted = self.ready.member(member as c_int).unwrap().wanted();
        if is_rung && wanted.is_some_and(|event| event.events & IN != 0) {
            self.ready.notice(member as c_int);
        }
        self.sockets[member][1].write_all(b"ab").unwrap();
    }

    fn read(&mut self, member: usize, len: u64) {
        let unread = &self.octets[member].unread;
        let len = len.min(unread.get());
        unread.set(unread.get() - len);
        let mut taken = vec![0; len as usize];
        self.sockets[member][0].read_exact(&mut taken).unwrap();
    }

    fn control(&mut self, member: usize, rng: &mut Rng) {
        let ops = [
            libc::EPOLL_CTL_ADD,
            libc::EPOLL_CTL_MOD,
            libc::EPOLL_CTL_DEL,
        ];
        let op = ops[rng.below(3) as usize];
        let kinds = [0, EDGE, ONE_SHOT, EDGE | ONE_SHOT];
        let event = epoll_event {
            events: [IN, OUT, IN | OUT][rng.below(3) as usize] | kinds[rng.below(4) as usize],
            u64: rng.below(100),
        };
        let ours = self.ready.control(member as c_int, op, event);
        assert_eq!(ours, self.ask(member, op, event));
    }

    /// What both report.
    fn wait(&mut self, is_last: bool) -> [Vec<(u64, u32)>; 2] {
        let mut lists = [[epoll_event { events: 0, u64: 0 }; MEMBERS]; 2];
        // SAFETY: an array of `MEMBERS` entries.
        let mut events = unsafe { Events::new(lists[0].as_mut_ptr(), MEMBERS) };
        if std::mem::take(&mut self.is_told) {
            self.ready.wake();
        }
        self.ready.look(&mut events, None, || 0);
        if is_last && events.count() == 0 {
            self.sleep += 1;
            self.ready.look(&mut events, Some(self.sleep), || 0);
        }
        let ours = events.count();
        let (at, room) = (lists[1].as_mut_ptr(), MEMBERS as c_int);
        // SAFETY: an array of `MEMBERS` entries.
        let kernels = unsafe { libc::epoll_wait(self.kernel, at, room, 0) };
        let counts = [ours, kernels as usize];
        [0, 1].map(|index| {
            let list = lists[index][..counts[index]].iter();
            let mut list: Vec<_> = list.map(|event| (event.u64, event.events)).collect();
            list.sort_unstable();
            list
        })
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        // SAFETY: the set of `new`.
        unsafe { libc::close(self.kernel) };
    }
}

#[test]
fn reports_are_those_of_a_set_of_the_kernel() {
    for seed in 1..=SEEDS {
        let (mut both, mut rng) = (Both::new(), Rng(seed));
        for step in 0..STEPS {
            let member = rng.below(MEMBERS as u64) as usize;
            match rng.below(8) {
                0 | 1 => both.arrive(member),
                2 => both.read(member, 1),
                3 => both.read(member, u64::MAX),
                4 | 5 => both.control(member, &mut rng),
                _ => {
                    let [ours, kernels] = both.wait(rng.below(2) == 0);
                    assert_eq!(ours, kernels, "seed {seed}, step {step}");
                }
            }
        }
    }
}

#[test]
fn armed_members_are_not_looked_at() {
    let mut both = Both::new();
    for _ in 0..=MISSES {
        assert_eq!(both.wait(false)[0], []);
    }
    assert!(!both.ready.has_queued());
    both.arrive(1);
    assert_eq!(both.ready.queue, [1]);
    assert_eq!(both.wait(true)[0], [(0, IN)]);
}

#[test]
fn edge_of_room_is_reported_after_input_alone_was() {
    /// Ready for reading, and for writing from some time on.
    struct Full(Rc<Cell<bool>>);
    impl Source for Full {
        fn ready(&self, events: u32) -> u32 {
            events & if self.0.get() { IN | OUT } else { IN }
        }
        fn arrived(&self) -> u64 {
            0
        }
        fn stamp(&self) -> u64 {
            0
        }
        fn arm(&self, _: u32, _: u64) {}
        fn disarm(&self) {}
    }
    let has_room = Rc::new(Cell::new(false));
    let mut ready = Ready::new();
    let events = IN | OUT | EDGE;
    ready.insert(
        5,
        Full(Rc::clone(&has_room)),
        epoll_event { events, u64: 0 },
    );
    let mut looked = || {
        let mut list = [epoll_event { events: 0, u64: 0 }; 1];
        // SAFETY: an array of one entry.
        let mut events = unsafe { Events::new(list.as_mut_ptr(), 1) };
        ready.look(&mut events, None, || 0);
        (events.count(), list[0].events)
    };
    assert_eq!(looked(), (1, IN));
    assert_eq!(looked(), (0, 0));
    has_room.set(true);
    assert_eq!(looked(), (1, IN | OUT));
    assert_eq!(looked(), (0, 0));
}

/// Members by their descriptors, and the time, which grows with each look.
struct Timed {
    ready: Ready<Rc<Octets>>,
    octets: Vec<Rc<Octets>>,
    now: u64,
}

impl Timed {
    /// None has octets.
    fn new() -> Self {
        let octets: Vec<Rc<Octets>> = (0..MEMBERS).map(|_| Rc::default()).collect();
        let mut ready = Ready::new();
        for (fd, octets) in octets.iter().enumerate() {
            let event = epoll_event {
                events: IN,
                u64: fd as u64,
            };
            ready.insert(fd as c_int, Rc::clone(octets), event);
        }
        let now = 100;
        Self { ready, octets, now }
    }

    /// A member gets octets at a time that its peer says.
    fn arrive(&self, member: usize, at: u64) {
        let octets = &self.octets[member];
        octets.unread.set(1);
        octets.stamp.set(at);
    }

    /// What a look reports with room for `room` events.
    fn look(&mut self, room: usize) -> Vec<u64> {
        let mut list = [epoll_event { events: 0, u64: 0 }; MEMBERS];
        // SAFETY: `room` entries of an array.
        let mut events = unsafe { Events::new(list.as_mut_ptr(), room) };
        self.now += 100;
        self.ready.look(&mut events, None, || self.now);
        let count = events.count();
        list[..count].iter().map(|event| event.u64).collect()
    }
}

#[test]
fn members_are_reported_in_the_order_of_their_octets() {
    let mut set = Timed::new();
    assert!(set.look(MEMBERS).is_empty());
    for (member, at) in [(1, 110), (2, 120), (0, 130)] {
        set.arrive(member, at);
    }
    assert_eq!(set.look(MEMBERS), [1, 2, 0]);
    // 1 has another octet since it was reported, and the others one that is not read.
    set.arrive(1, set.now + 10);
    assert_eq!(set.look(MEMBERS), [2, 0, 1]);
    set.octets[2].unread.set(0);
    set.arrive(2, set.now + 10);
    assert_eq!(set.look(1), [0]);
    assert_eq!(set.look(1), [1]);
    assert_eq!(set.look(1), [2]);
}

#[test]
fn what_the_kernel_reports_is_behind_what_it_has_reported_before() {
    let mut set = Timed::new();
    set.arrive(2, 110);
    set.arrive(1, 0);
    set.ready.delay(1, 110);
    set.arrive(0, 105);
    assert_eq!(set.look(MEMBERS), [0, 1, 2]);
    set.ready.delay(1, 250);
    assert_eq!(set.look(MEMBERS), [0, 2, 1]);
}

#[test]
fn wrong_times_of_a_peer_keep_no_member_from_being_reported() {
    for wrong in [0, u64::MAX] {
        let mut set = Timed::new();
        let mut counts = [0; MEMBERS];
        for _ in 0..10 * MEMBERS {
            // One has the same octets all the time, and another one new ones.
            set.arrive(0, wrong);
            set.arrive(1, 5);
            set.arrive(2, set.now + 1);
            for member in set.look(1) {
                counts[member as usize] += 1;
            }
        }
        assert_eq!(counts, [10; MEMBERS], "{wrong}");
    }
}

#[test]
fn octets_that_come_before_the_peer_is_asked_are_found() {
    /// Ready when the peer is asked to tell of that.
    struct Late(Cell<bool>);
    impl Source for Late {
        fn ready(&self, events: u32) -> u32 {
            events & if self.0.get() { IN } else { 0 }
        }
        fn arrived(&self) -> u64 {
            0
        }
        fn stamp(&self) -> u64 {
            0
        }
        fn arm(&self, _: u32, _: u64) {
            self.0.set(true);
        }
        fn disarm(&self) {}
    }
    let mut ready = Ready::new();
    let event = epoll_event { events: IN, u64: 3 };
    ready.insert(0, Late(Cell::new(false)), event);
    let mut list = [event; 1];
    // SAFETY: an array of one entry.
    let mut events = unsafe { Events::new(list.as_mut_ptr(), 1) };
    ready.look(&mut events, Some(1), || 0);
    assert_eq!(events.count(), 1);
}
