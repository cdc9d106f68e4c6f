//! The port and its impairments: every frame passes here, and is captured here.

use std::time::Instant;

use urdma_ipc::fault::Faults;
use urdma_ipc::status::FaultStatus;

use super::fault::{FaultyLink, Line};
use crate::port::{PacketPort, PortReport};
use crate::shared::Shared;

/// Frames of one burst, from a slot that sends alone and from a line.
pub(super) const BURST: usize = 32;

/// Bursts received in one poll of a port with impairments, at most.
const BURSTS_MAX: usize = 16;

/// How long frames wait for a port that accepts none before they are dropped: the process at the
/// other end of a virtual link may be waiting for a CPU.
const PATIENCE_NS: u64 = 10_000_000;

/// A port and the impairments of its frames.
pub(crate) struct Wire {
    port: Box<dyn PacketPort>,
    faults: FaultyLink,
    /// The port has frames that it has not sent.
    has_given: bool,
    /// When the port stopped accepting frames.
    full_since_ns: Option<u64>,
    /// The origin of the caller's times; `None`: they are not this machine's clock.
    start: Option<Instant>,
}

impl Wire {
    pub(crate) fn new(port: Box<dyn PacketPort>, start: Option<Instant>) -> Self {
        Self {
            port,
            start,
            faults: FaultyLink::default(),
            has_given: false,
            full_since_ns: None,
        }
    }

    /// The port itself.
    pub(crate) fn port(&mut self) -> &mut dyn PacketPort {
        &mut *self.port
    }

    /// Passes the frames that have arrived to `sink`, a burst at most, or none if the caller takes
    /// none; whether there was work.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        takes: bool,
        shared: &Shared,
        mut sink: impl FnMut(&[u8]),
    ) -> bool {
        let counters = &shared.counters;
        let mut octets = 0;
        let mut arrive = |frame: &[u8]| {
            octets += frame.len() as u64;
            shared.with_capture(|capture| capture.add(frame));
            sink(frame);
        };
        let (found, packets) = match &mut self.faults.inbound {
            None if takes => {
                let found = self.port.receive(&mut arrive);
                (found, found)
            }
            None => (0, 0),
            Some(line) => {
                // Lost frames count as work, since more may follow.
                let found = find(line, &mut *self.port, || time_of(self.start, now_ns));
                let due = takes.then(|| drain(line, now_ns, &mut arrive));
                (found, due.unwrap_or(0))
            }
        };
        if packets > 0 {
            counters.rx_packets.add(packets as u64);
            counters.rx_octets.add(octets);
        }
        packets > 0 || found > 0
    }

    /// Sends a frame of `octets` that `write` writes, with the next [`Wire::flush`] or when its
    /// delay has passed.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now_ns: u64,
        octets: usize,
        mut write: impl FnMut(&mut [u8]),
        shared: &Shared,
    ) {
        match &mut self.faults.outbound {
            None => {
                transmit(&mut *self.port, octets, write, shared);
                self.has_given = true;
            }
            Some(line) => line.offer(time_of(self.start, now_ns), octets, &mut write),
        }
    }

    /// Sends the delayed frames that are due; whether there were any.
    #[inline]
    pub(crate) fn release_due(&mut self, now_ns: u64, shared: &Shared) -> bool {
        let Some(line) = &mut self.faults.outbound else {
            return false;
        };
        let port = &mut *self.port;
        let mut released = false;
        let mut has_more = true;
        while has_more && port.has_room() {
            has_more = line.release(now_ns, &mut |due| {
                let write = |frame: &mut [u8]| frame.copy_from_slice(due);
                transmit(port, due.len(), write, shared);
            });
            released |= has_more;
        }
        self.has_given |= released;
        released
    }

    /// When the next delayed frame of either direction is due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.faults.next_due_ns()
    }

    /// Hands the collected frames to the port. Frames that it does not accept wait, and are dropped
    /// after a time limit.
    pub(crate) fn flush(&mut self, now_ns: u64, shared: &Shared) {
        if !self.has_given {
            return;
        }
        if self.port.flush() {
            self.has_given = false;
            self.full_since_ns = None;
            return;
        }
        let since_ns = *self.full_since_ns.get_or_insert(now_ns);
        if !is_waited_for(since_ns, now_ns) {
            self.has_given = false;
            let dropped = self.port.discard();
            shared.counters.drop_tx_port_full.add(dropped as u64);
        }
    }

    /// Whether frames wait for the port, which must be flushed again soon.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.has_given && self.full_since_ns.is_some()
    }

    /// Whether the port accepts no more frames for the moment.
    #[inline]
    pub(crate) fn is_full(&self, now_ns: u64) -> bool {
        self.full_since_ns
            .is_some_and(|since_ns| is_waited_for(since_ns, now_ns))
    }

    pub(crate) fn set_faults(&mut self, faults: &Faults) {
        self.faults.set(faults);
    }

    pub(crate) fn report(&mut self) -> (PortReport, FaultStatus) {
        (self.port.report(), self.faults.status())
    }
}

/// Whether the time limit of a port that is full since then has not passed.
fn is_waited_for(since_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(since_ns) < PATIENCE_NS
}

#[inline]
fn transmit(
    port: &mut dyn PacketPort,
    octets: usize,
    write: impl FnOnce(&mut [u8]),
    shared: &Shared,
) {
    let counters = &shared.counters;
    let Ok(frame) = port.transmit(octets) else {
        return counters.drop_tx_no_buffer.bump();
    };
    write(frame);
    shared.with_capture(|capture| capture.add(frame));
    counters.tx_packets.bump();
    counters.tx_octets.add(octets as u64);
}

/// The current time, for a frame whose way over the link begins now: the thread may have waited for
/// a CPU since `now_ns`, and a frame sent in between would arrive too early.
fn time_of(start: Option<Instant>, now_ns: u64) -> u64 {
    start.map_or(now_ns, |start| {
        u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    })
}

/// Queues the frames that have arrived at the port on a line, at the current time; returns their
/// number.
fn find(line: &mut Line, port: &mut dyn PacketPort, now_ns: impl Fn() -> u64) -> usize {
    let mut offered = 0;
    for _ in 0..BURSTS_MAX {
        let found = port.receive(&mut |frame| line.find(frame));
        offered += found;
        if found == 0 {
            break;
        }
    }
    line.take_found(now_ns());
    offered
}

/// Passes the due frames of a line to `sink`, a burst at most; returns their number.
fn drain(line: &mut Line, now_ns: u64, sink: &mut dyn FnMut(&[u8])) -> usize {
    (0..BURST)
        .take_while(|_| line.release(now_ns, sink))
        .count()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::port::{NoBuffer, QueueError, Resolver};

    /// A port that accepts a set number of frames, and that has received some.
    struct Narrow {
        come: usize,
        frame: [u8; 60],
        waiting: usize,
        takes: Arc<Mutex<usize>>,
    }

    impl PacketPort for Narrow {
        fn enter(&mut self) {}

        fn mac(&self) -> urdma_underlay::MacAddr {
            urdma_underlay::MacAddr([0; 6])
        }

        fn resolver(&self) -> Resolver<'_> {
            Resolver::DataThread
        }

        fn mtu(&self) -> u16 {
            1500
        }

        fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> usize {
            let count = self.come.min(BURST);
            self.come -= count;
            (0..count).for_each(|_| sink(&[0; 60]));
            count
        }

        fn has_room(&mut self) -> bool {
            self.waiting < 4
        }

        fn transmit(&mut self, octets: usize) -> Result<&mut [u8], NoBuffer> {
            if !self.has_room() {
                return Err(NoBuffer);
            }
            self.waiting += 1;
            Ok(&mut self.frame[..octets])
        }

        fn flush(&mut self) -> bool {
            let mut takes = self.takes.lock().unwrap();
            let taken = self.waiting.min(*takes);
            *takes -= taken;
            self.waiting -= taken;
            self.waiting == 0
        }

        fn discard(&mut self) -> usize {
            std::mem::take(&mut self.waiting)
        }

        fn lend(&mut self, _: u16, _: u16) -> Result<(), QueueError> {
            Err(QueueError::None)
        }

        fn reclaim(&mut self, _: u16) -> Result<(), QueueError> {
            Err(QueueError::None)
        }

        fn report(&mut self) -> PortReport {
            PortReport::default()
        }
    }

    /// A port that accepts this many frames, the number that it still accepts, and the counters.
    fn narrow(takes: usize) -> (Wire, Arc<Mutex<usize>>, Shared) {
        let takes = Arc::new(Mutex::new(takes));
        let port = Narrow {
            come: 0,
            frame: [0; 60],
            waiting: 0,
            takes: Arc::clone(&takes),
        };
        (
            Wire::new(Box::new(port), None),
            takes,
            Shared::new().unwrap(),
        )
    }

    #[test]
    fn full_port_is_waited_for_and_only_one_that_stays_full_loses_frames() {
        let (mut wire, takes, shared) = narrow(2);
        let dropped = || shared.counters.drop_tx_port_full.value();
        let send = |wire: &mut Wire, now_ns| {
            wire.transmit(now_ns, 60, |_| (), &shared);
            wire.flush(now_ns, &shared);
        };
        for now_ns in 1..=3 {
            assert!(!wire.is_full(now_ns));
            send(&mut wire, now_ns);
        }
        assert!(wire.is_full(4));
        // It accepts the frames that waited.
        *takes.lock().unwrap() = 1;
        wire.flush(5, &shared);
        assert!(!wire.is_full(5));
        // It accepts no more.
        send(&mut wire, 6);
        assert!(wire.is_full(6 + PATIENCE_NS - 1));
        assert_eq!(dropped(), 0);
        assert!(wire.waits());
        wire.flush(6 + PATIENCE_NS, &shared);
        assert!(!wire.waits() && !wire.is_full(6 + PATIENCE_NS));
        assert_eq!(dropped(), 1);
        // No frame waits for it until it accepts frames again.
        wire.flush(6 + PATIENCE_NS, &shared);
        send(&mut wire, 7 + PATIENCE_NS);
        assert!(!wire.is_full(7 + PATIENCE_NS));
        assert_eq!(dropped(), 2);
    }

    #[test]
    fn frames_stay_where_they_are_while_none_is_taken() {
        let delayed = urdma_ipc::fault::Impairment {
            delay_ns: 10,
            ..Default::default()
        };
        for inbound in [None, Some(delayed)] {
            let port = Narrow {
                come: 100,
                frame: [0; 60],
                waiting: 0,
                takes: Arc::default(),
            };
            let (mut wire, shared) = (Wire::new(Box::new(port), None), Shared::new().unwrap());
            if let Some(delayed) = inbound {
                let direction = urdma_ipc::fault::Direction::In;
                wire.set_faults(&Faults::default().with(direction, delayed));
            }
            let mut arrived = 0;
            let mut receive = |now_ns, takes| {
                let before = arrived;
                wire.receive(now_ns, takes, &shared, |_| arrived += 1);
                arrived - before
            };
            assert_eq!([receive(0, false), receive(20, false)], [0, 0]);
            let bursts: Vec<usize> = (0..5).map(|_| receive(30, true)).collect();
            assert_eq!(bursts, [BURST, BURST, BURST, 4, 0]);
            assert_eq!(shared.counters.rx_packets.value(), 100);
        }
    }

    // The thread had waited for a CPU after it read the clock: a path of 500 us showed round trips
    // of 190.
    #[test]
    fn delay_counts_from_when_a_frame_is_in_hand() {
        const WAITED: Duration = Duration::from_secs(1);
        let port = Narrow {
            come: 1,
            frame: [0; 60],
            waiting: 0,
            takes: Arc::new(Mutex::new(0)),
        };
        let start = Instant::now().checked_sub(WAITED).unwrap();
        let mut wire = Wire::new(Box::new(port), Some(start));
        let shared = Shared::new().unwrap();
        let delayed = urdma_ipc::fault::Impairment {
            delay_ns: 10,
            ..Default::default()
        };
        for direction in [
            urdma_ipc::fault::Direction::In,
            urdma_ipc::fault::Direction::Out,
        ] {
            wire.set_faults(&Faults::default().with(direction, delayed));
            if direction == urdma_ipc::fault::Direction::In {
                wire.receive(0, true, &shared, |_| ());
            } else {
                wire.transmit(0, 60, |_| (), &shared);
            }
            assert!(u128::from(wire.next_due_ns().unwrap()) > WAITED.as_nanos());
        }
    }

    #[test]
    fn delayed_frames_that_are_due_wait_for_a_full_port() {
        let (mut wire, takes, shared) = narrow(0);
        let delayed = urdma_ipc::fault::Impairment {
            delay_ns: 10,
            ..Default::default()
        };
        let faults = Faults::default().with(urdma_ipc::fault::Direction::Out, delayed);
        wire.set_faults(&faults);
        for _ in 0..10 {
            wire.transmit(0, 60, |_| (), &shared);
        }
        // The port has four.
        assert!(wire.release_due(10, &shared));
        assert_eq!(shared.counters.tx_packets.value(), 4);
        assert!(!wire.release_due(11, &shared));
        assert_eq!(wire.next_due_ns(), Some(10));
        *takes.lock().unwrap() = 10;
        for _ in 0..3 {
            wire.flush(12, &shared);
            wire.release_due(12, &shared);
        }
        assert_eq!(shared.counters.tx_packets.value(), 10);
        assert_eq!(shared.counters.drop_tx_no_buffer.value(), 0);
    }
}
