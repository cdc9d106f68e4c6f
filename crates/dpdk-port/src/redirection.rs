//! Steering by the RSS redirection table of a NIC that has no flow rules.
//!
//! Such a NIC hashes the addresses and ports of a packet, and the low bits of the hash choose the
//! entry of a table that names the queue. The Toeplitz hash of RSS is linear: each bit of the input
//! that is set adds 32 consecutive bits of the key, the input's bit i those from i on. A key with a
//! single bit set therefore copies 32 consecutive bits of the input into the hash, in reverse. Here
//! that bit copies the low bits of the UDP destination port, which identify the slot, into the low
//! bits of the hash, and nothing else: each slot has an entry, independent of the sender.

use std::collections::BTreeMap;

use dpdk::Spreading;
use urdma_types::PORT_BASE;

/// Bits of the hash's input: addresses and ports of UDP over IPv4; the destination port is the end
/// of it.
const INPUT_BITS: u32 = 96;
/// Bits of the hash.
const HASH_BITS: u32 = 32;
/// Bits of the destination port.
const PORT_BITS: u32 = 16;

/// The queue of packets that belong to no single lessee.
const OWN_QUEUE: u16 = 0;

/// The lessees of the entries.
#[derive(Debug)]
pub(crate) struct Table {
    /// The table has 2 to the power of this many entries.
    bits: u32,
    key_octets: u8,
    /// UDP ports of the lessees by their queues.
    lessees: BTreeMap<u16, u16>,
}

impl Table {
    /// All entries name the daemon's queue; `None` for an unusable table or key.
    pub(crate) fn new(spreading: Spreading) -> Option<Self> {
        let bits = spreading.entries.ilog2();
        let is_usable = spreading.entries.is_power_of_two()
            && (1..=PORT_BITS).contains(&bits)
            && u32::from(spreading.key_octets) * 8 >= INPUT_BITS + HASH_BITS;
        is_usable.then_some(Self {
            bits,
            key_octets: spreading.key_octets,
            lessees: BTreeMap::new(),
        })
    }

    /// The key by which each slot's packets have their own entry.
    pub(crate) fn hash_key(&self) -> Vec<u8> {
        // The port's last bit becomes the highest of the hash's low bits.
        let position = INPUT_BITS + HASH_BITS - 1 - self.bits;
        (0..u32::from(self.key_octets))
            .map(|octet| {
                if octet == position / 8 {
                    0x80 >> (position % 8)
                } else {
                    0
                }
            })
            .collect()
    }

    /// Entries of the table.
    pub(crate) const fn entries(&self) -> usize {
        1 << self.bits
    }

    /// The entry of packets for a UDP port.
    fn entry(&self, udp_port: u16) -> usize {
        usize::from(udp_port.reverse_bits() >> (PORT_BITS - self.bits))
    }

    /// Steers the packets for `udp_port` to the lessee of `queue`, if no other has its entry.
    pub(crate) fn lend(&mut self, queue: u16, udp_port: u16) {
        self.lessees.insert(queue, udp_port);
    }

    /// The queue's lease has ended.
    pub(crate) fn reclaim(&mut self, queue: u16) {
        self.lessees.remove(&queue);
    }

    /// The queue of each entry. An entry that several lessees share, or a lessee and the daemon,
    /// names the daemon's queue, which forwards by slot; otherwise packets would wait for a process
    /// that they are not for.
    pub(crate) fn queues(&self) -> Vec<u16> {
        let mut queues = vec![None; self.entries()];
        queues[self.entry(PORT_BASE)] = Some(OWN_QUEUE);
        for (queue, udp_port) in &self.lessees {
            let named = &mut queues[self.entry(*udp_port)];
            *named = Some(if named.is_none() { *queue } else { OWN_QUEUE });
        }
        queues
            .into_iter()
            .map(|queue| queue.unwrap_or(OWN_QUEUE))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: u16) -> Table {
        Table::new(Spreading {
            entries,
            key_octets: 40,
        })
        .unwrap()
    }

    /// As in Microsoft's "RSS hashing functions".
    fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
        let bit = |octets: &[u8], index: usize| octets[index / 8] >> (7 - index % 8) & 1 == 1;
        let window = |from: usize| {
            (from..from + 32).fold(0u32, |bits, index| bits << 1 | u32::from(bit(key, index)))
        };
        (0..input.len() * 8)
            .filter(|index| bit(input, *index))
            .fold(0, |hash, index| hash ^ window(index))
    }

    fn input(source: [u8; 4], destination: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
        [
            &source[..],
            &destination,
            &ports.0.to_be_bytes(),
            &ports.1.to_be_bytes(),
        ]
        .concat()
    }

    /// The queue that a NIC chooses for a packet.
    fn chosen(table: &Table, source: [u8; 4], source_port: u16, udp_port: u16) -> u16 {
        let hash = toeplitz(
            &table.hash_key(),
            &input(source, [192, 0, 2, 1], (source_port, udp_port)),
        );
        table.queues()[hash as usize % table.entries()]
    }

    #[test]
    fn hash_of_the_tests_is_that_of_receive_side_scaling() {
        // Key and first IPv4 example of Microsoft's "Verifying the RSS hash calculation".
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
            0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
            0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let example = input([66, 9, 149, 187], [161, 142, 100, 80], (2794, 1766));
        assert_eq!(toeplitz(&key, &example), 0x51cc_c178);
    }

    #[test]
    fn lessee_gets_its_packets_from_all_hosts_and_no_others() {
        for entries in [64, 128, 512, 2048] {
            let mut table = table(entries);
            table.lend(3, PORT_BASE + 5);
            for source in [[10, 0, 0, 1], [192, 0, 2, 255], [255; 4]] {
                for source_port in [PORT_BASE, 0xC105, 0xFFFF, 1] {
                    for slot in 0..64 {
                        let queue = chosen(&table, source, source_port, PORT_BASE + slot);
                        assert_eq!(queue, if slot == 5 { 3 } else { 0 }, "{entries} {slot}");
                    }
                }
            }
        }
    }

    #[test]
    fn entry_is_the_daemons_again_when_the_lease_ends() {
        let mut table = table(128);
        table.lend(1, PORT_BASE + 5);
        table.lend(2, PORT_BASE + 6);
        table.reclaim(1);
        assert_eq!(chosen(&table, [1; 4], 7, PORT_BASE + 5), 0);
        assert_eq!(chosen(&table, [1; 4], 7, PORT_BASE + 6), 2);
    }

    #[test]
    fn entry_of_two_lessees_is_the_daemons_until_one_is_gone() {
        let mut table = table(128);
        table.lend(1, PORT_BASE + 5);
        table.lend(2, PORT_BASE + 5 + 128);
        table.lend(3, PORT_BASE + 6);
        assert_eq!(chosen(&table, [1; 4], 7, PORT_BASE + 5), 0);
        assert_eq!(chosen(&table, [1; 4], 7, PORT_BASE + 5 + 128), 0);
        assert_eq!(chosen(&table, [1; 4], 7, PORT_BASE + 6), 3);
        table.reclaim(1);
        assert_eq!(chosen(&table, [1; 4], 7, PORT_BASE + 5 + 128), 2);
    }

    #[test]
    fn lessee_with_the_daemons_entry_does_not_get_the_daemons_packets() {
        let mut table = table(128);
        table.lend(1, PORT_BASE + 128);
        assert_eq!(chosen(&table, [1; 4], 7, PORT_BASE), 0);
    }

    #[test]
    fn tables_and_keys_of_no_use_are_refused() {
        for (entries, key_octets) in [(100, 40), (1, 40), (128, 15)] {
            let spreading = Spreading {
                entries,
                key_octets,
            };
            assert!(Table::new(spreading).is_none(), "{spreading:?}");
        }
    }
}
