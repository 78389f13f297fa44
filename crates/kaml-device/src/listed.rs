//! Enums that list their variants, so a test which enumerates them can forget none.
//!
//! Lives here:       the macro [`listed`].
//! May be called by: states, events and purposes whose tables are tested as a whole.

/// Declares an enum without data, and `ALL`, the list of its variants in their order.
macro_rules! listed {
    (
        $(#[$outer:meta])*
        $visibility:vis enum $name:ident { $($(#[$inner:meta])* $variant:ident),+ $(,)? }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        $visibility enum $name { $($(#[$inner])* $variant),+ }

        #[cfg(test)]
        impl $name {
            /// All variants, in their order.
            pub(crate) const ALL: &[$name] = &[$($name::$variant),+];
        }
    };
}

pub(crate) use listed;
