//! Backups: everything on a device as of one moment, in a stream.
//!
//! Lives here:       the modules of backing up, verifying and restoring.
//! Lives elsewhere:  what the firmware does for a backup (`kaml_device`), the commands (`kaml-cli`).
//! Implements:       docs/ARCHITECTURE.md "Backups"; docs/formats/backup.md.

mod format;
mod list;
mod moment;
mod outline;
mod progress;
mod read;
mod restore;
mod write;

pub use read::{BackupBase, BackupInfo, verify_backup, verify_backup_file};
pub use restore::{RestoreReport, RestoreSource};
pub use write::BackupReport;
#[doc(hidden)]
pub use write::write_whole_backup;

/// The name of the namespace that a device has while it is being restored.
pub(crate) const UNFINISHED: &str = ".kaml-restore-unfinished";
