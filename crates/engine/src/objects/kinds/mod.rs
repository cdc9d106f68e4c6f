//! Kinds of queue pairs beside connections.
//!
//! | file | what it holds |
//! |---|---|
//! | `datagram` | unreliable datagrams: queue pairs, address handles, multicast groups |
//! | `dc` | initiators and targets of the dynamically connected transport |
//! | `handled` | what is to be done after a packet |
//!
//! A kind is a table here, which takes its indices from the same numbers as connections do; what
//! the path of data does with it (`data/kinds`); and its calls (`engine/kinds`). Each of the three
//! folders lists the kinds in its `mod.rs`. Beside them only `data/receive.rs` knows unreliable
//! datagrams, by the type of their packets, and `daemon/report.rs` counts targets and contexts.

pub(crate) mod datagram;
pub(crate) mod dc;
pub(crate) mod handled;

use proto_trp::conn::Time;

use crate::objects::index_table::FirstIndex;
use crate::objects::process::Process;
use crate::types::Info;

/// What callers of the engine use of the kinds.
pub(crate) mod public {
    pub use super::datagram::{AddressHandle, DatagramAttributes, DatagramModify, DatagramWr};
    pub use super::dc::DcRole;
}

/// Passes the tables of all kinds, with their names, to a macro.
macro_rules! with_kinds {
    ($then:ident) => {
        $then! {
            datagrams: crate::objects::kinds::datagram::DatagramTable,
            dc: crate::objects::kinds::dc::DcTable,
        }
    };
}
pub(crate) use with_kinds;

macro_rules! declare {
    ($($name:ident: $table:path,)+) => {
        /// The queue pairs that are not connections, by kind.
        pub(crate) struct Kinds {
            $(pub(crate) $name: $table,)+
        }

        impl Kinds {
            /// No queue pairs; their indices begin with `first`.
            pub(crate) fn new(first: FirstIndex) -> Self {
                Self {
                    $($name: <$table>::new(first),)+
                }
            }

            /// Takes what the tables need of the instance.
            pub(crate) fn begin(&mut self, info: &Info) {
                $(self.$name.begin(info);)+
            }

            /// Fails every queue pair: urdmad has ended.
            pub(crate) fn fail_all(&mut self, now: Time, process: &mut Process) {
                $(self.$name.fail_all(now, process);)+
            }
        }
    };
}

with_kinds!(declare);
