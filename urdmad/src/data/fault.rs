//! Impairment of the port's traffic: packets are lost, duplicated, delayed, corrupted or ECN-marked
//! at times that are drawn from a seed.
//!
//! A [`Line`] is one direction of the link, in this order: a queue before a link of limited rate,
//! which marks or drops; then a path that loses, corrupts, delays and duplicates. It has no clock:
//! the caller passes the time and asks for the next deadline. Packets in flight take memory,
//! [`HELD_OCTETS_MAX`] at most.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use urdma_ipc::fault::{Faults, Impairment};
use urdma_ipc::status::{FaultCounts, FaultStatus, LineStatus};
use urdma_types::Rng;

/// Octets of packets in flight at most: a path of 10 Gbit/s and 48 ms has 60 MB, with room for its
/// queue.
pub(crate) const HELD_OCTETS_MAX: usize = 128 << 20;
const ETHERNET_OCTETS: usize = 14;
/// Buffers kept for further packets at most: the packets in flight of a path of 10 Gbit/s and 48
/// ms, with room for its queue.
const SPARE_MAX: usize = 16_384;
/// Longest time that frames found at the port may have waited there: a time slice of another
/// process.
const LATE_NS_MAX: u64 = 4_000_000;

/// A packet in flight, ordered by departure time, then by arrival.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DelayedFrame {
    due_ns: u64,
    number: u64,
    frame: Vec<u8>,
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Line {
    impairment: Impairment,
    rng: Rng,
    /// When the link will have sent all packets of its queue.
    link_free_ns: u64,
    held: BinaryHeap<Reverse<DelayedFrame>>,
    held_octets: usize,
    next_number: u64,
    counts: FaultCounts,
    /// Frames that were found at the last poll of the port, and the time of that poll.
    found: Vec<Vec<u8>>,
    looked_ns: u64,
    /// Buffers of packets that have left, the most recent last: the allocator would return their
    /// memory to the kernel and fault it in again page by page.
    spare: Vec<Vec<u8>>,
}

impl Line {
    pub(crate) fn new(impairment: Impairment, seed: u64) -> Self {
        Self {
            impairment,
            rng: Rng::new(seed),
            link_free_ns: 0,
            held: BinaryHeap::new(),
            held_octets: 0,
            next_number: 0,
            counts: FaultCounts::default(),
            found: Vec::new(),
            looked_ns: 0,
            spare: Vec::new(),
        }
    }

    /// A frame was found at the port; it joins those since the last [`Line::take_found`].
    pub(crate) fn find(&mut self, frame: &[u8]) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.extend_from_slice(frame);
        self.found.push(buffer);
    }

    /// Queues the frames that were found, with arrival times spread evenly since the previous poll
    /// of the port: a real link would have gone on sending while this thread waited for a CPU, and
    /// a batch with one arrival time would meet a queue that does not exist. The delay of each,
    /// however, starts now: otherwise a frame sent a moment ago would arrive too early, and its
    /// sender would measure a round trip shorter than the path's.
    pub(crate) fn take_found(&mut self, now_ns: u64) {
        let since_ns = self.looked_ns.max(now_ns.saturating_sub(LATE_NS_MAX));
        self.looked_ns = now_ns;
        let mut found = std::mem::take(&mut self.found);
        let count = found.len() as u64;
        for (number, frame) in (1..).zip(found.drain(..)) {
            let came_ns = since_ns + (now_ns - since_ns) * number / count;
            self.take_in(came_ns, now_ns, frame);
        }
        self.found = found;
    }

    /// Queues a frame of `octets` that arrived at `now_ns` and that `write` writes.
    pub(crate) fn offer(&mut self, now_ns: u64, octets: usize, write: &mut dyn FnMut(&mut [u8])) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(octets, 0);
        write(&mut buffer);
        self.take_in(now_ns, now_ns, buffer);
    }

    /// Keeps the buffer of a packet that has left for reuse.
    fn keep(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Queues a frame that presumably arrived at `came_ns` and was found at `now_ns`.
    fn take_in(&mut self, came_ns: u64, now_ns: u64, mut frame: Vec<u8>) {
        self.counts.offered += 1;
        let Some((departs_ns, is_marked)) = self.queue(came_ns, frame.len()) else {
            self.counts.queue_full += 1;
            self.keep(frame);
            return;
        };
        let chance = self.impairment;
        if self.rng.happens(chance.loss_ppm) {
            self.counts.lost += 1;
            self.keep(frame);
            return;
        }
        if is_marked && mark(&mut frame) {
            self.counts.marked += 1;
        }
        if self.rng.happens(chance.corrupt_ppm) && frame.len() > ETHERNET_OCTETS {
            self.counts.corrupted += 1;
            let octet = ETHERNET_OCTETS + self.rng.below_len(frame.len() - ETHERNET_OCTETS);
            frame[octet] ^= 1 << self.rng.below(8);
        }
        let mut due_ns = departs_ns.max(now_ns).saturating_add(chance.delay_ns);
        if self.rng.happens(chance.reorder_ppm) {
            self.counts.reordered += 1;
            due_ns = due_ns.saturating_add(1 + self.rng.below(chance.reorder_by_ns));
        }
        if self.rng.happens(chance.duplicate_ppm) {
            self.counts.duplicated += 1;
            self.hold(due_ns, frame.clone());
        }
        self.hold(due_ns, frame);
    }

    /// When a queued frame will have left the link, and whether it is to be marked; `None`: the
    /// queue is full.
    fn queue(&mut self, now_ns: u64, octets: usize) -> Option<(u64, bool)> {
        let Some(rate_bit_s) = self.impairment.rate_bit_s else {
            return Some((now_ns, false));
        };
        let starts_ns = self.link_free_ns.max(now_ns);
        let waiting_bit = u128::from(starts_ns - now_ns) * u128::from(rate_bit_s) / 1_000_000_000;
        let waiting_octets = u64::try_from(waiting_bit / 8).unwrap_or(u64::MAX);
        // An empty queue accepts a frame of any length.
        let filled = waiting_octets.saturating_add(octets as u64);
        if waiting_octets > 0 && filled > self.impairment.queue_octets {
            return None;
        }
        let takes_ns = (octets as u128 * 8 * 1_000_000_000).div_ceil(u128::from(rate_bit_s));
        self.link_free_ns = starts_ns.saturating_add(u64::try_from(takes_ns).unwrap_or(u64::MAX));
        let waits_ns = starts_ns - now_ns;
        self.counts.waited_ns = self.counts.waited_ns.saturating_add(waits_ns);
        self.counts.waited_most_ns = self.counts.waited_most_ns.max(waits_ns);
        let is_marked = self
            .impairment
            .mark_octets
            .is_some_and(|most| waiting_octets > most);
        Some((self.link_free_ns, is_marked))
    }

    fn hold(&mut self, due_ns: u64, frame: Vec<u8>) {
        if self.held_octets + frame.len() > HELD_OCTETS_MAX {
            self.counts.no_room += 1;
            self.keep(frame);
            return;
        }
        self.held_octets += frame.len();
        let number = self.next_number;
        self.next_number += 1;
        self.held.push(Reverse(DelayedFrame {
            due_ns,
            number,
            frame,
        }));
    }

    /// Passes the next frame that has arrived by now to `sink`; false if there is none.
    pub(crate) fn release(&mut self, now_ns: u64, sink: &mut dyn FnMut(&[u8])) -> bool {
        if self.next_due_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return false;
        }
        let Some(Reverse(held)) = self.held.pop() else {
            return false;
        };
        self.held_octets -= held.frame.len();
        sink(&held.frame);
        self.keep(held.frame);
        true
    }

    /// When the next frame arrives, if one is in flight.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.held.peek().map(|Reverse(held)| held.due_ns)
    }

    pub(crate) fn status(&self) -> LineStatus {
        LineStatus {
            impairment: self.impairment,
            counts: self.counts,
            held_packets: self.held.len() as u64,
            held_octets: self.held_octets as u64,
        }
    }
}

/// Both directions of the port's link. A direction without impairment has no line and costs
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct FaultyLink {
    seed: u64,
    pub(crate) inbound: Option<Line>,
    pub(crate) outbound: Option<Line>,
}

impl FaultyLink {
    /// Sets the impairments. Packets in flight in a direction that changes are lost.
    pub(crate) fn set(&mut self, faults: &Faults) {
        let has_new_seed = self.seed != faults.seed;
        self.seed = faults.seed;
        let directions = [
            (&mut self.inbound, faults.inbound, 1),
            (&mut self.outbound, faults.outbound, 2),
        ];
        for (line, wanted, number) in directions {
            let is_same = line.as_ref().is_some_and(|line| line.impairment == wanted);
            if has_new_seed || !is_same {
                let seed = faults.seed.wrapping_mul(4).wrapping_add(number);
                *line = (!wanted.is_none()).then(|| Line::new(wanted, seed));
            }
        }
    }

    /// When the next frame of either direction arrives.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        let lines = [&self.inbound, &self.outbound].into_iter().flatten();
        lines.filter_map(Line::next_due_ns).min()
    }

    pub(crate) fn status(&self) -> FaultStatus {
        FaultStatus {
            seed: self.seed,
            inbound: self.inbound.as_ref().map(Line::status),
            outbound: self.outbound.as_ref().map(Line::status),
        }
    }
}

/// Sets CE in a frame of an ECN-capable sender; whether it did.
fn mark(frame: &mut [u8]) -> bool {
    let Some((ethernet, ip)) = frame.split_at_mut_checked(ETHERNET_OCTETS) else {
        return false;
    };
    match (ethernet[12], ethernet[13]) {
        (0x08, 0x00) if ip.len() >= 20 => {
            if ip[1] & 3 == 0 {
                return false;
            }
            let before = u16::from_be_bytes([ip[0], ip[1]]);
            ip[1] |= 3;
            let after = u16::from_be_bytes([ip[0], ip[1]]);
            // RFC 1624: HC' = ~(~HC + ~m + m')
            let sum = u32::from(!u16::from_be_bytes([ip[10], ip[11]]))
                + u32::from(!before)
                + u32::from(after);
            let folded = (sum & 0xffff) + (sum >> 16);
            let folded = (folded & 0xffff) + (folded >> 16);
            let [.., high, low] = (!folded).to_be_bytes();
            (ip[10], ip[11]) = (high, low);
            true
        }
        (0x86, 0xdd) if ip.len() >= 40 => {
            let is_capable = ip[1] & 0x30 != 0;
            if is_capable {
                ip[1] |= 0x30;
            }
            is_capable
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACKETS: u64 = 20_000;

    fn line(impairment: Impairment) -> Line {
        Line::new(impairment, 42)
    }

    /// All packets that leave, with their times, in order.
    fn rest(line: &mut Line) -> Vec<(u64, Vec<u8>)> {
        let mut out = Vec::new();
        while let Some(due_ns) = line.next_due_ns() {
            assert!(line.release(due_ns, &mut |frame| out.push((due_ns, frame.to_vec()))));
        }
        out
    }

    fn offer(line: &mut Line, now_ns: u64, frame: &[u8]) {
        line.offer(now_ns, frame.len(), &mut |buffer| {
            buffer.copy_from_slice(frame)
        });
    }

    /// The packets that leave when numbered frames enter one microsecond apart.
    fn passed(impairment: Impairment) -> (Vec<(u64, Vec<u8>)>, FaultCounts) {
        let mut line = line(impairment);
        for number in 0..PACKETS {
            let frame = [&[0; 14][..], &number.to_be_bytes()].concat();
            offer(&mut line, number * 1000, &frame);
        }
        let out = rest(&mut line);
        assert_eq!((line.held_octets, line.held.len()), (0, 0));
        (out, line.counts)
    }

    fn number(frame: &[u8]) -> u64 {
        u64::from_be_bytes(frame[14..22].try_into().unwrap())
    }

    /// Whether `count` of [`PACKETS`] is a tenth within seven standard deviations.
    fn is_a_tenth(count: u64) -> bool {
        count.abs_diff(PACKETS / 10) < 300
    }

    #[test]
    fn loss_takes_its_share_and_keeps_the_order() {
        let (out, counts) = passed(Impairment {
            loss_ppm: 100_000,
            ..Impairment::default()
        });
        assert!(is_a_tenth(counts.lost), "{counts:?}");
        assert_eq!(out.len() as u64 + counts.lost, PACKETS);
        assert!(out
            .windows(2)
            .all(|two| number(&two[0].1) < number(&two[1].1)));
    }

    #[test]
    fn duplicates_follow_their_originals() {
        let (out, counts) = passed(Impairment {
            duplicate_ppm: 100_000,
            ..Impairment::default()
        });
        assert!(is_a_tenth(counts.duplicated), "{counts:?}");
        let repeats = out.windows(2).filter(|two| two[0] == two[1]).count() as u64;
        assert_eq!(repeats, counts.duplicated);
    }

    #[test]
    fn reordered_frames_are_late_by_no_more_than_was_asked() {
        let (out, counts) = passed(Impairment {
            reorder_ppm: 100_000,
            reorder_by_ns: 50_000,
            ..Impairment::default()
        });
        assert!(is_a_tenth(counts.reordered), "{counts:?}");
        assert_eq!(out.len() as u64, PACKETS);
        let late: Vec<u64> = out
            .iter()
            .map(|(at_ns, f)| at_ns - number(f) * 1000)
            .collect();
        assert_eq!(
            late.iter().filter(|ns| **ns > 0).count() as u64,
            counts.reordered
        );
        assert!(late.iter().all(|ns| *ns <= 50_000));
        assert!(out
            .windows(2)
            .any(|two| number(&two[0].1) > number(&two[1].1)));
    }

    #[test]
    fn corruption_changes_one_bit_and_no_ethernet_header() {
        let mut line = line(Impairment {
            corrupt_ppm: 1_000_000,
            ..Impairment::default()
        });
        for _ in 0..1000 {
            offer(&mut line, 0, &[0; 60]);
        }
        for (_, frame) in rest(&mut line) {
            assert_eq!(frame[..14], [0; 14]);
            let bits: u32 = frame.iter().map(|octet| octet.count_ones()).sum();
            assert_eq!(bits, 1);
        }
        assert_eq!(line.counts.corrupted, 1000);
    }

    #[test]
    fn link_sends_at_its_rate_and_drops_what_its_queue_does_not_hold() {
        let mut line = line(Impairment {
            rate_bit_s: Some(1_000_000_000),
            queue_octets: 10_000,
            delay_ns: 5_000_000,
            ..Impairment::default()
        });
        for _ in 0..20 {
            offer(&mut line, 0, &[0; 1250]);
        }
        let times: Vec<u64> = rest(&mut line).iter().map(|(at_ns, _)| *at_ns).collect();
        let expected: Vec<u64> = (1..=8).map(|n| 5_000_000 + n * 10_000).collect();
        assert_eq!(times, expected);
        assert_eq!(line.counts.queue_full, 12);
        assert_eq!(line.counts.waited_most_ns, 70_000);
        assert_eq!(line.counts.mean_wait_ns(), 35_000);
        offer(&mut line, 80_000, &[0; 1250]);
        assert_eq!(rest(&mut line)[0].0, 80_000 + 10_000 + 5_000_000);
    }

    #[test]
    fn frames_found_together_have_come_one_after_the_other_since_the_last_look() {
        let mut line = line(Impairment {
            rate_bit_s: Some(1_000_000_000),
            delay_ns: 3_000,
            ..Impairment::default()
        });
        let times = |line: &mut Line| -> Vec<u64> {
            for _ in 0..10 {
                line.find(&[0; 1250]);
            }
            line.take_found(50_200_000);
            rest(line).iter().map(|(at_ns, _)| *at_ns).collect()
        };
        // A poll that finds nothing.
        line.take_found(50_000_000);
        // All but the last have left the link by now, and none is on the path for less than its
        // delay.
        let mut expected = vec![50_203_000; 9];
        expected.push(50_213_000);
        assert_eq!(times(&mut line), expected);
        assert_eq!(line.counts.waited_ns, 0);
        // At the same time: they meet a queue.
        let expected: Vec<u64> = (1..=10).map(|n| 50_213_000 + n * 10_000).collect();
        assert_eq!(times(&mut line), expected);
        assert_eq!(line.counts.waited_most_ns, 100_000);
    }

    /// A frame of `underlay` with these ECN bits.
    fn datagram(is_v6: bool, ecn: urdma_underlay::Ecn) -> Vec<u8> {
        use urdma_underlay::{Checksum, MacAddr, Route, Template, UdpPorts};
        let [source, destination] = if is_v6 {
            ["fd00::1", "fd00::2"]
        } else {
            ["10.0.0.1", "10.0.0.2"]
        };
        let template = Template::new(&Route {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            checksum: Checksum::Full,
        })
        .unwrap();
        let mut frame = vec![7; template.header_octets() + 100];
        let ports = UdpPorts {
            source: 50_000,
            destination: 21_505,
        };
        template.write(&mut frame, ports, ecn).unwrap();
        frame
    }

    #[test]
    fn full_queue_marks_those_who_can_be_told_and_their_checksums_stay_right() {
        use urdma_underlay::{parse, Ecn, LocalInterface, MacAddr};
        let addresses = ["10.0.0.2", "fd00::2"].map(|text| text.parse().unwrap());
        let receiver = LocalInterface::new(MacAddr([2, 0, 0, 0, 0, 2]), &addresses).unwrap();
        for is_v6 in [false, true] {
            let mut line = line(Impairment {
                rate_bit_s: Some(1_000_000),
                mark_octets: Some(200),
                ..Impairment::default()
            });
            for ecn in [Ecn::from_bits(2), Ecn::from_bits(1), Ecn::NotCapable] {
                for _ in 0..3 {
                    offer(&mut line, 0, &datagram(is_v6, ecn));
                }
            }
            let ecn: Vec<u8> = rest(&mut line)
                .iter()
                .map(|(_, frame)| parse(frame, &receiver).unwrap().ecn.bits())
                .collect();
            assert_eq!(ecn, [2, 2, 3, 3, 3, 3, 0, 0, 0]);
            assert_eq!(line.counts.marked, 4);
        }
    }

    #[test]
    fn memory_for_frames_under_way_is_bounded() {
        let mut line = line(Impairment {
            delay_ns: 1,
            ..Impairment::default()
        });
        let frame = vec![0; 1 << 20];
        for _ in 0..200 {
            offer(&mut line, 0, &frame);
        }
        assert_eq!(line.counts.no_room, 200 - 128);
        assert_eq!(line.status().held_octets, HELD_OCTETS_MAX as u64);
    }

    #[test]
    fn change_of_one_direction_leaves_the_other_alone() {
        let lossy = Impairment {
            loss_ppm: 1_000_000,
            ..Impairment::default()
        };
        let mut link = FaultyLink::default();
        let faults = Faults::default();
        link.set(&faults.with(urdma_ipc::fault::Direction::Out, lossy));
        offer(link.outbound.as_mut().unwrap(), 0, &[0; 60]);
        link.set(&faults.with(urdma_ipc::fault::Direction::Both, lossy));
        assert_eq!(link.status().outbound.unwrap().counts.lost, 1);
        assert_eq!(link.status().inbound.unwrap().counts.offered, 0);
        link.set(&faults);
        assert!(link.inbound.is_none() && link.outbound.is_none());
    }

    proptest! {
        #[test]
        fn every_frame_is_accounted_for_and_none_is_early(
            seed: u64,
            shares in proptest::array::uniform4(0u32..=1_000_000),
            delay_ns in 0u64..100_000,
            rate in proptest::option::of(1_000_000u64..100_000_000_000),
            queue_octets in 0u64..100_000,
            frames in proptest::collection::vec((0u64..5_000, 0usize..3000), 0..200),
        ) {
            let [loss_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm] = shares;
            let impairment = Impairment {
                loss_ppm,
                duplicate_ppm,
                reorder_ppm,
                corrupt_ppm,
                delay_ns,
                rate_bit_s: rate,
                queue_octets,
                ..Impairment::default()
            };
            let run = || {
                let mut line = Line::new(impairment, seed);
                let (mut now_ns, mut out) = (0, Vec::new());
                for (pause_ns, octets) in &frames {
                    now_ns += pause_ns;
                    offer(&mut line, now_ns, &vec![0; *octets]);
                    while line.release(now_ns, &mut |frame| out.push((now_ns, frame.to_vec()))) {}
                }
                let last_offer_ns = now_ns;
                out.extend(rest(&mut line));
                (out, line.counts, last_offer_ns)
            };
            let (out, counts, _) = run();
            let expected = counts.offered - counts.lost - counts.queue_full + counts.duplicated;
            prop_assert_eq!(counts.offered, frames.len() as u64);
            prop_assert_eq!(out.len() as u64, expected);
            prop_assert!(out.iter().all(|(at_ns, _)| *at_ns >= delay_ns));
            prop_assert_eq!(run().0, out);
        }
    }
}
