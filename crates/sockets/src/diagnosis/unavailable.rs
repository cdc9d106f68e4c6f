//! Why there is no diagnosis.

use std::{fmt, io};

/// Why there is no diagnosis.
#[allow(dead_code)] // each kind of processor has some of the reasons
pub(super) enum Unavailable {
    Processor,
    OtherLibrary,
    OldLibrary,
    Kernel(io::Error),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => f.write_str("it needs a processor of the kind x86-64"),
            Self::OtherLibrary => f.write_str("it needs the GNU C library"),
            Self::OldLibrary => f.write_str("it needs glibc 2.34 or later"),
            Self::Kernel(error) => write!(f, "it needs Linux 5.11 or later ({error})"),
        }
    }
}
