//! One user that takes what it gets, among 63 that each have one request at a time.

use std::collections::VecDeque;

use crate::fault::Fault;
use crate::{
    Access, Action, Config, Element, LocalRegion, Operation, Pool, Posted, RemoteRegion, Request,
    Status, UserId, VirtualId,
};

const OTHERS: usize = 63;
const SHORT: u32 = 4096;

/// A pool over one queue pair that executes one request at a time.
struct Line {
    pool: Pool,
    request: Request,
    element: Element,
    posted: VecDeque<u64>,
}

impl Line {
    fn new(fault: Option<Fault>) -> Self {
        let mut pool = Pool::new(&Config::default()).unwrap();
        pool.faults.only = fault;
        let node = pool.add_node().unwrap();
        let (addr, len_octets, access) = (0, 1 << 40, Access::ALL);
        let local = LocalRegion {
            user: UserId(0),
            addr,
            len_octets,
            lkey: 1,
            access,
        };
        let remote = RemoteRegion {
            node,
            addr,
            len_octets,
            rkey: 1,
            access,
        };
        let request = Request {
            id: 0,
            operation: Operation::Read,
            remote: pool.add_remote(remote).unwrap(),
            remote_addr: 0,
            is_signaled: true,
        };
        let element = Element {
            local: pool.add_local(local).unwrap(),
            addr: 0,
            len_octets: SHORT,
        };
        let first = pool.open(UserId(0), node, 1, Access::ALL).unwrap();
        let Some(Action::Connect(physical, _)) = pool.poll_action() else {
            panic!("no queue pair is asked for");
        };
        pool.handle_connected(physical);
        pool.close(first).unwrap();
        Self {
            pool,
            request,
            element,
            posted: VecDeque::new(),
        }
    }

    fn open(&mut self, depth: u32) -> VirtualId {
        let node = self.pool.physicals[0].node.unwrap();
        self.pool.open(UserId(0), node, depth, Access::ALL).unwrap()
    }

    fn fill(&mut self, id: VirtualId, len_octets: u32) {
        let element = Element {
            len_octets,
            ..self.element
        };
        while self.pool.post(id, &self.request, &[element]).is_ok() {}
    }

    /// One request is executed.
    fn turn(&mut self) {
        let posted = &mut self.posted;
        self.pool.transmit(|work, _| {
            assert!(work.is_signaled);
            posted.push_back(work.wr_id);
            Posted::Accepted
        });
        let wr_id = self.posted.pop_front().unwrap();
        self.pool.handle_completion(wr_id, Status::Success);
    }
}

/// Octets that the others get while one user keeps a thousand requests of this length, of the
/// octets that all get.
fn share_of_others(greedy_octets: u32, polls: bool, fault: Option<Fault>) -> f64 {
    let mut line = Line::new(fault);
    let greedy = line.open(1000);
    let others: Vec<VirtualId> = (0..OTHERS).map(|_| line.open(1)).collect();
    let mut octets = [0_u64; 2];
    for _ in 0..20_000 {
        line.fill(greedy, greedy_octets);
        for other in &others {
            line.fill(*other, SHORT);
        }
        line.turn();
        if polls {
            octets[0] += line
                .pool
                .poll(greedy)
                .map_or(0, |done| u64::from(done.len_octets));
        }
        for other in &others {
            octets[1] += line
                .pool
                .poll(*other)
                .map_or(0, |done| u64::from(done.len_octets));
        }
    }
    octets[1] as f64 / octets.iter().sum::<u64>() as f64
}

#[test]
fn user_with_many_or_long_requests_gets_one_share() {
    let fair = OTHERS as f64 / (OTHERS + 1) as f64;
    for greedy_octets in [64, SHORT, 1 << 20] {
        let share = share_of_others(greedy_octets, true, None);
        assert!(
            share > 0.95 * fair,
            "{share} of {fair} with {greedy_octets} octets"
        );
    }
}

#[test]
fn user_that_never_polls_holds_nobody_up() {
    assert!(share_of_others(SHORT, false, None) > 0.999);
}

#[test]
fn finds_a_lead_without_bound() {
    assert!(share_of_others(SHORT, true, Some(Fault::LeadUnbounded)) < 0.7);
}
