//! Deliberate faults of a state machine, which its tests find.

/// Declares the type of the faults of one side of a protocol: `faults!(pub(crate) Faults of Fault)`
/// with the enum `Fault` of the crate. Outside of the crate's own tests it has none, and its checks
/// cost nothing.
#[macro_export]
macro_rules! faults {
    ($visible:vis $name:ident of $fault:ident) => {
        /// The faults of one side: none, but for tests.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        $visible struct $name {
            #[cfg(test)]
            $visible only: Option<$fault>,
        }

        impl $name {
            /// Whether the side has the fault.
            #[inline]
            $visible fn has(self, fault: $fault) -> bool {
                #[cfg(test)]
                return self.only == Some(fault);
                #[cfg(not(test))]
                {
                    let _ = fault;
                    false
                }
            }
        }
    };
}
