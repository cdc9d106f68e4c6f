//! What a process has sent and received, for the counters of the instance's port.

use std::ops::AddAssign;

macro_rules! traffic {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals since the process attached, of all its queue pairs, also of destroyed ones.
        /// Packets are those of the wire protocol, or messages in a channel.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Traffic {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Traffic {
            /// Number of totals.
            pub const COUNT: usize = [$(stringify!($name)),*].len();

            /// The totals, in the order of the fields.
            pub fn to_array(self) -> [u64; Self::COUNT] {
                [$(self.$name),*]
            }

            /// As [`Traffic::to_array`] has given them.
            pub fn from_array([$($name),*]: [u64; Self::COUNT]) -> Self {
                Self { $($name),* }
            }
        }
    };
}

traffic! {
    /// Packets sent.
    sent_packets,
    /// Their octets, from the transport's header on.
    sent_octets,
    /// Those to multicast groups among the packets sent.
    sent_to_groups,
    /// Packets received, also those that the queue pair discards.
    received_packets,
    /// Their octets, from the transport's header on.
    received_octets,
    /// Those to multicast groups among the packets received.
    received_of_groups,
    /// Packets that are malformed.
    malformed,
    /// Segments received more than once.
    duplicates,
    /// Segments that arrived ahead of a missing one.
    out_of_order,
    /// RNR NAKs sent.
    rnr_sent,
    /// RNR NAKs received.
    rnr_received,
}

impl Traffic {
    /// The totals of both combined, one by one.
    #[must_use]
    pub fn zip(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let mut totals = self.to_array();
        for (total, other) in totals.iter_mut().zip(other.to_array()) {
            *total = combine(*total, other);
        }
        Self::from_array(totals)
    }
}

impl AddAssign for Traffic {
    /// Adds the totals; they stay at the maximum.
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, u64::saturating_add);
    }
}
