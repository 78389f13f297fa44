//! How a life ends.

use crate::check::Violation;

/// Why a life ended.
#[derive(Debug)]
pub enum End {
    /// Power is gone.
    Cut,
    /// A ring write, root write or flush failed: the device takes nothing any more until it is opened again.
    Stopped,
    /// A promise is broken.
    Violation(Violation),
}

impl From<Violation> for End {
    fn from(violation: Violation) -> End {
        End::Violation(violation)
    }
}
