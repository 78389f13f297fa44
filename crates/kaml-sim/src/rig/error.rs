//! Why an experiment or a replay ends early.
//!
//! Lives here:       the errors of a test rig.

use kaml_device::Error;
use kaml_flash::MediumError;

/// Why an experiment ended early.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// The firmware refused a command.
    #[error(transparent)]
    Device(#[from] Error),
    /// The modelled flash refused an operation.
    #[error("flash: {0}")]
    Flash(#[from] MediumError),
    /// The board cannot be.
    #[error(transparent)]
    Board(#[from] kaml_flash::GeometryError),
    /// Nothing moves any more.
    #[error("a command waits forever: {0}")]
    Stuck(String),
    /// A command completed with something else than was stored.
    #[error("{0}")]
    Wrong(String),
}
