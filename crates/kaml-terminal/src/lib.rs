//! What the programs `kaml`, `kaml-bench` and `kaml-lab` share.
//!
//! Lives here:       exit codes (`failure`), Ctrl-C (`interrupt`), no memory (`memory`), tables, JSON and colour (`output`), sizes (`size`), progress bars
//!                   (`progress`), files that must not outlive a process (`passing`), flags that several programs have (`flags`).
//! Lives elsewhere:  what each program does.

pub mod failure;
pub mod flags;
pub mod interrupt;
pub mod memory;
pub mod output;
pub mod passing;
pub mod progress;
pub mod size;
