//! Cookies: before a REQ from another host has any effect, its sender shows that it receives what
//! is sent to its address (doc/spec/trp.md, section 9).
//!
//! [`Cookies`] is the side of the host that receives REQs. It keeps nothing for a sender: a cookie
//! is a keyed hash. `KnownCookies` is the side of a process that sends REQs.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use urdma_types::{Ip16, Time};

use crate::wire::{Cookie, Req, ReqRoute};

/// Length of an epoch, 2^36 ns: 68.7 s. A cookie is valid in the epoch in which it is made and in
/// the next one.
const EPOCH_SHIFT: u32 = 36;
/// Pairs of addresses whose cookies are remembered.
const KNOWN_MAX: usize = 1024;

/// The cookies of one host for those that send REQs to it.
#[derive(Debug)]
pub struct Cookies {
    secret: [u64; 2],
}

impl Cookies {
    /// Cookies under `secret`, which is random and not used for anything else.
    pub fn new(secret: [u64; 2]) -> Self {
        Self { secret }
    }

    /// The cookie for the sender of a REQ at `now`, a time of the clock of this host.
    pub fn cookie(&self, now: Time, req: &ReqRoute) -> Cookie {
        self.of_epoch(epoch(now), req)
    }

    /// Whether a REQ has the cookie of its sender.
    pub fn accepts(&self, now: Time, req: &ReqRoute) -> bool {
        let now = epoch(now);
        let is_of = |epoch| self.of_epoch(epoch, req) == req.cookie;
        req.cookie != Cookie::NONE && (is_of(now) || now.checked_sub(1).is_some_and(is_of))
    }

    /// A keyed hash: `DefaultHasher` is SipHash, which is a pseudo-random function of what follows
    /// the secret. Only this process compares the results.
    fn of_epoch(&self, epoch: u64, req: &ReqRoute) -> Cookie {
        let mut hasher = DefaultHasher::new();
        let source = (Ip16::new(req.src.ip()).0, req.slot.number());
        let destination = Ip16::new(req.dst.ip()).0;
        // R9-12
        //# A cookie MUST be a keyed hash of the REQ's source address, its sender's slot, its
        //# destination address and a coarse time, under a secret of the daemon, and not 0; nothing
        //# is kept for it.
        (self.secret, epoch, source, destination).hash(&mut hasher);
        let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
        Cookie(u32::from_be_bytes([a, b, c, d]).max(1))
    }
}

fn epoch(now: Time) -> u64 {
    now.as_ns() >> EPOCH_SHIFT
}

/// The cookies that a process has received.
#[derive(Debug, Default)]
pub(crate) struct KnownCookies {
    /// By the addresses of this host and of the other one.
    known: HashMap<(IpAddr, IpAddr), Cookie>,
}

impl KnownCookies {
    /// The cookie for a REQ; it need not be valid any more.
    pub(crate) fn of(&self, req: &Req) -> Cookie {
        let known = self.known.get(&addresses(req));
        known.copied().unwrap_or(Cookie::NONE)
    }

    pub(crate) fn learn(&mut self, req: &Req, cookie: Cookie) {
        if self.known.len() >= KNOWN_MAX {
            // They are learnt again.
            self.known.clear();
        }
        self.known.insert(addresses(req), cookie);
    }
}

fn addresses(req: &Req) -> (IpAddr, IpAddr) {
    (req.src.ip(), req.dst.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Body, CommId, Head, Message, Nonce, QpInfo, MAX_MESSAGE};
    use urdma_types::{PortSpace, SlotId};

    const EPOCH_NS: u64 = 1 << EPOCH_SHIFT;
    const SOURCE: &str = "192.0.2.1:4000";
    const DESTINATION: &str = "192.0.2.2:7";

    fn route(src: &str, slot: u8, dst: &str, cookie: Cookie) -> ReqRoute {
        let message = Message {
            head: Head {
                local_id: CommId(1),
                remote_id: CommId::NONE,
                nonce: Nonce(2),
                slot: SlotId::new(slot).unwrap(),
            },
            body: Body::Req(Req {
                qp: QpInfo::default(),
                retry_count: 7,
                ack_timeout: 14,
                path_mtu: 3,
                port_space: PortSpace::TCP,
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                cookie,
            }),
            private_data: &[],
        };
        let mut buf = [0; MAX_MESSAGE];
        let len = message.write(&mut buf);
        ReqRoute::parse(&buf[..len]).unwrap()
    }

    #[test]
    fn cookie_is_accepted_from_its_sender_in_two_epochs() {
        let cookies = Cookies::new([1, 2]);
        for made in [0, EPOCH_NS - 1, 3 * EPOCH_NS + 5] {
            let asked = route(SOURCE, 3, DESTINATION, Cookie::NONE);
            let cookie = cookies.cookie(Time::from_ns(made), &asked);
            let accepts = |ns, src, slot, dst| {
                cookies.accepts(Time::from_ns(ns), &route(src, slot, dst, cookie))
            };
            let end = (made / EPOCH_NS + 2) * EPOCH_NS;
            assert!(accepts(made, SOURCE, 3, DESTINATION));
            // For all ports of the two hosts.
            assert!(accepts(end - 1, "192.0.2.1:5000", 3, "192.0.2.2:8"));
            assert!(!accepts(end, SOURCE, 3, DESTINATION));
            assert!(!accepts(made, "192.0.2.3:4000", 3, DESTINATION));
            assert!(!accepts(made, SOURCE, 4, DESTINATION));
            assert!(!accepts(made, SOURCE, 3, "192.0.2.3:7"));
        }
    }

    #[test]
    fn cookie_of_another_secret_and_none_are_not_accepted() {
        let now = Time::from_ns(5);
        let asked = route(SOURCE, 3, DESTINATION, Cookie::NONE);
        let cookie = Cookies::new([1, 2]).cookie(now, &asked);
        let other = Cookies::new([1, 3]);
        assert_ne!(other.cookie(now, &asked), cookie);
        assert!(!other.accepts(now, &route(SOURCE, 3, DESTINATION, cookie)));
        assert!(!other.accepts(now, &asked));
    }
}
