//! Media that break a promise, to see that the checkers notice. Compiled only with the feature `broken`.
//!
//! Lives here:       the list.
//! Lives elsewhere:  where a promise is broken (`engine`), firmware that breaks its own (`kaml_device::Broken`).

/// A promise that the medium does not keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BrokenMedium {
    /// Some ring writes complete and not executed.
    SkipsPersists,
    /// Flushes complete and cover nothing: a root is durable before what it points at.
    IgnoresFlushes,
    /// Barriers do not cover urgent programs.
    LosesUrgency,
}

impl BrokenMedium {
    /// All of them.
    pub const ALL: [BrokenMedium; 3] =
        [BrokenMedium::SkipsPersists, BrokenMedium::IgnoresFlushes, BrokenMedium::LosesUrgency];
}
