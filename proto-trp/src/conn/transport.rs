//! What carries the segments of a connection.

use super::config::{ConnConfig, Path};

/// What carries the segments of a connection, known from RTR on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// The acknowledged stream of packets between hosts (RC).
    Stream,
    /// Packets between hosts that are not acknowledged (UC).
    Unreliable,
    /// A channel between two processes of one host (RC or UC).
    Channel,
}

impl Transport {
    /// That of a connection with this path.
    pub(super) const fn of(config: &ConnConfig, path: Path) -> Self {
        match (path, config.unreliable) {
            (Path::Channel, _) => Self::Channel,
            (Path::Network, false) => Self::Stream,
            (Path::Network, true) => Self::Unreliable,
        }
    }

    /// Whether it is the acknowledged stream.
    #[inline(always)]
    pub(super) fn is_stream(self) -> bool {
        self == Self::Stream
    }

    /// Whether it is a channel.
    #[inline(always)]
    pub(super) fn is_channel(self) -> bool {
        self == Self::Channel
    }

    /// Whether packets are not acknowledged.
    #[inline(always)]
    pub(super) fn is_unreliable(self) -> bool {
        self == Self::Unreliable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urdma_types::{Qpn, SlotId};

    #[test]
    fn transport_follows_the_path_and_then_the_service() {
        let of = |path, unreliable| {
            let mut config = ConnConfig::new(Qpn::new(SlotId::DAEMON, 1));
            config.unreliable = unreliable;
            Transport::of(&config, path)
        };
        assert_eq!(of(Path::Network, false), Transport::Stream);
        assert_eq!(of(Path::Network, true), Transport::Unreliable);
        for unreliable in [false, true] {
            assert_eq!(of(Path::Channel, unreliable), Transport::Channel);
        }
    }
}
