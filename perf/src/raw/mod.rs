//! Raw limits of this machine: two processes that share memory or a virtual link, without verbs and
//! protocol.

pub mod channel;
pub mod eventfd;
pub mod fork;
pub mod memif;
pub mod ring;

/// What the programs that measure raw limits measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Half a round trip, in microseconds.
    Latency,
    /// Octets of payload that arrive, one way, GB/s.
    Stream,
}

impl Mode {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Stream => "stream",
        }
    }
}
