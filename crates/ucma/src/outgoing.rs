//! Datagrams of connection management that are to be sent.
//!
//! A datagram for which there is no room is kept and tried again: the connection manager would
//! repeat it only after its retry time. Datagrams to other peers overtake it.

use std::time::Duration;

use urdma_cm::wire::MAX_MESSAGE;
use urdma_cm::{ConnectionManager, Peer};
use urdma_types::Time;

use crate::driver::Driver;

/// Time between two attempts.
const RETRY: Duration = Duration::from_micros(100);
/// How long a datagram is kept: the connection manager's shortest retry time.
const KEPT: Duration = Duration::from_millis(50);
/// Datagrams that are kept. More are lost, as in any network.
const KEPT_MAX: usize = 4096;

/// A datagram.
#[derive(Debug)]
struct Packet {
    to: Peer,
    len: usize,
    octets: [u8; MAX_MESSAGE],
    /// When it is lost at last.
    until: Time,
}

/// Datagrams in their order.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    packets: Vec<Packet>,
}

impl Outgoing {
    /// Takes what was kept, and what the manager has to send.
    pub(crate) fn take(&mut self, now: Time, manager: &mut ConnectionManager) -> Self {
        let mut taken = std::mem::take(self);
        taken.packets.retain(|packet| now < packet.until);
        while manager.has_transmit() {
            let mut octets = [0; MAX_MESSAGE];
            let Some(transmit) = manager.poll_transmit(&mut octets) else {
                break;
            };
            if taken.packets.is_empty() {
                // As a rule there is one; room for four would be no small block of the allocator.
                taken.packets.reserve_exact(1);
            }
            taken.packets.push(Packet {
                to: transmit.to,
                len: transmit.len,
                octets,
                until: now.plus(KEPT),
            });
        }
        taken
    }

    /// Sends them; those for which there is no room remain.
    pub(crate) fn send(&mut self, driver: &dyn Driver) {
        let mut full: Vec<Peer> = Vec::new();
        self.packets.retain(|packet| {
            if full.contains(&packet.to) {
                return true;
            }
            let is_sent = driver.transmit(packet.to, &packet.octets[..packet.len]);
            if !is_sent {
                full.push(packet.to);
            }
            !is_sent
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Keeps datagrams that were not sent, before later ones.
    pub(crate) fn put_back(&mut self, unsent: Self) {
        let later = std::mem::replace(&mut self.packets, unsent.packets);
        self.packets.extend(later);
        self.packets.truncate(KEPT_MAX);
    }

    /// When to try again; [`Time::NEVER`] if there is nothing to send.
    pub(crate) fn next_try(&self, now: Time) -> Time {
        if self.is_empty() {
            Time::NEVER
        } else {
            now.plus(RETRY)
        }
    }
}
