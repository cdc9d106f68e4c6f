//! Enumerations whose values have a name in reports.

/// Declares an enumeration with the name of each value.
macro_rules! named {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident {
            $($(#[$doc:meta])* $value:ident = $name:literal,)*
        }
    ) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[$doc])* $value,)*
        }

        impl $type {
            /// All of them, in this order.
            pub const ALL: &[Self] = &[$(Self::$value),*];

            /// Its name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }
        }
    };
}

pub(crate) use named;
