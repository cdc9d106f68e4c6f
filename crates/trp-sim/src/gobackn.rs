//! Go-back-N over the same link, for comparison: the receiver accepts packets in order only, as in
//! Linux' soft-RoCE (rxe) and most RoCE NICs.
//!
//! The receiver accepts the expected packet, acknowledges the last packet of each message and those
//! that request it, answers the first packet that is out of order with one NAK, and drops packets
//! until the missing one arrives. The sender goes back to the packet that a NAK names; the loss of
//! a tail or of retransmitted packets is found by the acknowledge timeout alone. There is no
//! congestion control; the caller sets the window so that the link is filled without loss, as TRP
//! does.

use proto_trp::conn::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use urdma_types::Rng;

use super::link::{Link, LinkModel};

/// The parameters of a run of go-back-N.
#[derive(Clone, Copy, Debug)]
pub struct GoBackN {
    /// Both directions.
    pub link: LinkModel,
    /// Octets of payload in a packet.
    pub payload_octets: u64,
    /// Octets of headers in front of it, without Ethernet, IP and UDP.
    pub header_octets: u64,
    /// Maximum number of packets in flight.
    pub window: u64,
    /// Packets of one message.
    pub message_packets: u64,
    /// Silence after which the sender goes back to the oldest packet.
    pub timeout_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Packet {
    Data {
        seq: u64,
        ack_requested: bool,
    },
    /// Everything before it has arrived; `missed` when a packet after it has.
    Ack {
        expected: u64,
        missed: bool,
    },
}

/// Octets of an acknowledgement.
const ACK_OCTETS: u64 = 20;
/// Packets after which the sender requests an acknowledgement within a message.
const ASK_EVERY: u64 = 16;

struct Run {
    model: GoBackN,
    links: [Link; 2],
    rng: Rng,
    now: Time,
    order: u64,
    arrivals: BinaryHeap<Reverse<(Time, u64, Packet)>>,
    una: u64,
    next: u64,
    expected: u64,
    /// The receiver has sent a NAK for the missing packet.
    nak_sent: bool,
    silent_since: Time,
}

impl GoBackN {
    /// Octets of payload that are acknowledged in `ns` of virtual time.
    pub fn acknowledged_octets(self, seed: u64, ns: u64) -> u64 {
        let mut run = Run {
            model: self,
            links: [Link::new(self.link), Link::new(self.link)],
            rng: Rng::new(seed),
            now: Time::ZERO,
            order: 0,
            arrivals: BinaryHeap::new(),
            una: 0,
            next: 0,
            expected: 0,
            nak_sent: false,
            silent_since: Time::ZERO,
        };
        while run.now < Time::from_ns(ns) {
            run.step();
        }
        run.una * self.payload_octets
    }
}

impl Run {
    fn step(&mut self) {
        while self.next < self.una + self.model.window {
            let seq = self.next;
            self.next += 1;
            let ack_requested = self.next.is_multiple_of(self.model.message_packets)
                || self.next.is_multiple_of(ASK_EVERY);
            let octets = self.model.payload_octets + self.model.header_octets;
            self.carry(0, octets, Packet::Data { seq, ack_requested });
        }
        let timeout = self.silent_since.plus_ns(self.model.timeout_ns);
        match self.arrivals.peek() {
            Some(Reverse((at, ..))) if *at <= timeout => {}
            _ => {
                self.now = timeout;
                self.silent_since = timeout;
                self.next = self.una;
                return;
            }
        }
        if let Some(Reverse((at, _, packet))) = self.arrivals.pop() {
            self.now = at;
            match packet {
                Packet::Data { seq, ack_requested } => self.on_data(seq, ack_requested),
                Packet::Ack { expected, missed } => self.on_ack(expected, missed),
            }
        }
    }

    fn on_data(&mut self, seq: u64, ack_requested: bool) {
        let answers = match seq.cmp(&self.expected) {
            std::cmp::Ordering::Equal => {
                self.expected += 1;
                self.nak_sent = false;
                ack_requested
            }
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => !std::mem::replace(&mut self.nak_sent, true),
        };
        if answers {
            let missed = seq > self.expected;
            let expected = self.expected;
            self.carry(1, ACK_OCTETS, Packet::Ack { expected, missed });
        }
    }

    fn on_ack(&mut self, expected: u64, missed: bool) {
        if expected > self.una {
            self.una = expected;
            self.next = self.next.max(expected);
            self.silent_since = self.now;
        }
        if missed && expected == self.una {
            self.next = expected;
            self.silent_since = self.now;
        }
    }

    fn carry(&mut self, direction: usize, octets: u64, packet: Packet) {
        let octets = vec![0; usize::try_from(octets).unwrap_or(0)];
        for flight in self.links[direction].carry(self.now, &octets, &mut self.rng) {
            self.order += 1;
            let arrival = (flight.arrives, self.order, packet);
            self.arrivals.push(Reverse(arrival));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(loss_ppm: u32) -> u64 {
        let model = GoBackN {
            link: LinkModel {
                bits_per_second: 10_000_000_000,
                delay_ns: 50_000,
                loss_ppm,
                ..LinkModel::default()
            },
            payload_octets: 1024,
            header_octets: 16,
            window: 128,
            message_packets: 64,
            timeout_ns: 67_000_000,
        };
        let line = 10_000_000_000 / 8 / 5;
        model.acknowledged_octets(1, 200_000_000) * 100 / line
    }

    #[test]
    fn go_back_n_fills_a_lossless_link_and_suffers_from_loss() {
        let (clean, few, many) = (share(0), share(1_000), share(10_000));
        assert!((85..=94).contains(&clean), "{clean} % of the line");
        assert!(
            few < clean && many < few && many > 0,
            "{clean} {few} {many}"
        );
    }
}
