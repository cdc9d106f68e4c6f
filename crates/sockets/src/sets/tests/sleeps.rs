//! Sleeps of threads that wait for a set, and the bells that are rung for them.

use std::ptr::null;
use std::thread;
use std::time::{Duration, Instant};

use urdma_socket_switch::{recv, Taken};

use super::*;
use crate::host::tests::{call, join_both, put};
use crate::peer::Peer;

const MEMBERS: usize = 4;
/// Octets of each sender, and how long one may be on its way.
const ROUNDS: usize = 3000;
const LIMIT: Duration = Duration::from_secs(20);
const LIMIT_MS: c_int = 5_000;

/// A set whose members have their peers in one process.
struct Members {
    set: &'static Set,
    /// The sockets, by which the kernel reports nothing, and the other ends of these.
    sockets: Vec<(TcpStream, TcpStream, &'static Cell)>,
    ours: Vec<Arc<Connection>>,
    peers: Vec<Connection>,
}

impl Members {
    /// The data of a member is its index. What is reported of new registrations was taken.
    fn new() -> Self {
        // SAFETY: no argument but a flag.
        let epfd = unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) };
        adopt(epfd, lent::forks());
        let mut members = Self {
            set: known(epfd).unwrap(),
            sockets: Vec::new(),
            ours: Vec::new(),
            peers: Vec::new(),
        };
        let process = Arc::new(Peer::new(Own::bell().unwrap()));
        (0..MEMBERS).for_each(|index| members.add(index, &process));
        while !members.wait(0, || ()).is_empty() {}
        // A member that gets rings has rung its own bell.
        (0..MEMBERS).for_each(|member| assert_eq!(members.rings(member), 1));
        members
    }

    fn add(&mut self, index: usize, process: &Arc<Peer>) {
        let (socket, other, cell) = socket();
        let fd = socket.as_raw_fd();
        let mut event = epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: index as u64,
        };
        let add = (libc::EPOLL_CTL_ADD, fd);
        // SAFETY: an event.
        let added = unsafe { self.set.control(add, cell, None, &raw mut event) };
        assert_eq!(added, (0, true));
        let [mut ours, mut peer] = ends();
        ours.fd = fd;
        peer.peer = Arc::clone(process);
        join_both([&ours, &peer]);
        let ours = Arc::new(ours);
        cell.set_connection(Connection::into_raw(Arc::clone(&ours)));
        assert!(cell.change(cell.seen(), State::Rings));
        assert!(super::super::join(&ours, cell));
        // From now on TCP is quiet.
        put(&peer, b"a").unwrap();
        assert!(take(&ours));
        self.sockets.push((socket, other, cell));
        self.ours.push(ours);
        self.peers.push(peer);
    }

    /// A wait; `meanwhile` is called when the thread is about to sleep in the kernel. Returns the
    /// members that are reported, and these alone.
    fn wait(&self, limit_ms: c_int, meanwhile: impl FnOnce()) -> Vec<usize> {
        let mut list = [epoll_event { events: 0, u64: 0 }; 4 * MEMBERS];
        // SAFETY: an array of that length.
        let mut found = unsafe { Events::new(list.as_mut_ptr(), list.len()) };
        if self.set.look(&mut found, true) {
            meanwhile();
            let (rest, room) = found.rest();
            let limit = if found.count() == 0 { limit_ms } else { 0 };
            // SAFETY: the rest of the array.
            let count =
                unsafe { real::epoll_pwait(self.set.fd, rest, room as c_int, limit, null()) };
            assert!(limit == 0 || count > 0, "a wake-up was lost");
            self.set.end_sleep();
            self.set.sort(&mut found, usize::try_from(count).unwrap());
        }
        let count = found.count();
        let mut members: Vec<_> = list[..count]
            .iter()
            .map(|event| event.u64 as usize)
            .collect();
        members.sort_unstable();
        members
    }

    /// How often the bell of a member was rung since this was asked before.
    fn rings(&self, member: usize) -> u64 {
        let mut count = 0_u64;
        let bell = self.ours[member].bell.as_raw_fd();
        // SAFETY: an eventfd writes eight octets, and does not wait.
        unsafe { libc::read(bell, (&raw mut count).cast(), 8) };
        count
    }

    fn put(&self, member: usize) {
        put(&self.peers[member], b"a").unwrap();
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for (socket, _, cell) in &self.sockets {
            cell.enter();
            cell.end(true);
            part(socket.as_raw_fd(), cell, true);
            cell.leave();
        }
        self.set.end();
        // SAFETY: the set of `new`.
        unsafe { real::close(self.set.fd) };
    }
}

/// Takes an octet without asking for a wake-up.
fn take(connection: &Connection) -> bool {
    let taken = call(connection, |call| recv(call, 1, false));
    taken == Ok(Taken::Octets(1))
}

#[test]
fn one_bell_is_rung_for_a_sleep() {
    let members = Members::new();
    let rings = || (0..MEMBERS).map(|member| members.rings(member));
    for first in [2, 0, 2] {
        let found = members.wait(0, || {
            members.put(first);
            (0..MEMBERS).for_each(|member| members.put(member));
        });
        assert_eq!(found, [0, 1, 2, 3]);
        let expected = (0..MEMBERS).map(|member| u64::from(member == first));
        assert!(rings().eq(expected));
        // While the thread is awake.
        members.put(1);
        assert_eq!(rings().sum::<u64>(), 0);
        for ours in &members.ours {
            while take(ours) {}
        }
    }
}

#[test]
fn sleeping_thread_is_woken_when_the_member_leaves_whose_bell_is_rung_for_all() {
    let members = Members::new();
    let (socket, _, cell) = &members.sockets[0];
    let found = members.wait(LIMIT_MS, || {
        part(socket.as_raw_fd(), cell, true);
        members.put(0);
        members.put(1);
    });
    assert_eq!(found, [1]);
    assert_eq!([members.rings(0), members.rings(1)], [1, 0]);
}

#[test]
fn sleeping_thread_is_woken_when_another_one_takes_the_bell_that_is_rung_for_all() {
    let members = Members::new();
    let found = members.wait(LIMIT_MS, || {
        members.put(0);
        members.put(1);
        silence(&members.ours[0], -1);
        assert!(take(&members.ours[0]));
    });
    assert_eq!(found, [1]);
}

#[test]
fn thread_that_left_its_sleep_by_a_handler_finds_all_members_in_the_next_one() {
    let members = Members::new();
    let mut list = [epoll_event { events: 0, u64: 0 }; MEMBERS];
    // SAFETY: an array of that length.
    let mut found = unsafe { Events::new(list.as_mut_ptr(), MEMBERS) };
    assert!(members.set.look(&mut found, true));
    members.put(0);
    members.put(1);
    assert_eq!(members.wait(0, || ()), [0, 1]);
}

/// Sends octets to two members, each when those before were taken.
fn send_to(members: &Members, mine: [usize; 2]) {
    for round in 0..ROUNDS {
        // Both, or one of them.
        let these = &mine[(round & 4) / 4..];
        these.iter().for_each(|member| members.put(*member));
        let begin = Instant::now();
        let is_there = |member: &usize| members.ours[*member].has_octets();
        while these.iter().any(is_there) {
            assert!(begin.elapsed() < LIMIT, "a wake-up was lost");
            thread::yield_now();
        }
        if round % 16 == 0 {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn no_wake_up_of_several_threads_is_lost() {
    let members = Members::new();
    let is_over = AtomicBool::new(false);
    let forever = 1000 * LIMIT.as_secs() as c_int;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    for member in members.wait(forever, || ()) {
                        _ = is_over.load(SeqCst) || take(&members.ours[member]);
                    }
                }
            });
        }
        let members = &members;
        let senders = [[0, 1], [2, 3]].map(|mine| scope.spawn(move || send_to(members, mine)));
        let results = senders.map(thread::ScopedJoinHandle::join);
        is_over.store(true, SeqCst);
        // Not taken, so that both threads find it.
        members.put(0);
        results.into_iter().for_each(|result| result.unwrap());
    });
}
