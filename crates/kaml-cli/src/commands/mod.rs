//! One module for each subcommand.

mod add;
mod backup;
mod cat;
mod check;
mod count;
mod create;
mod delete;
mod export;
mod follow;
mod identity;
mod import;
mod info;
mod list;
mod ls;
mod manual;
mod namespace;
mod quickstart;
mod quickstart_past;
pub mod record;
mod resize;
mod salvage;
pub mod serve;
mod top;
mod versions;
mod watch;

use crate::failure::Failure;
use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Store a directory tree, get killed in the middle, recover, verify every byte
    Quickstart(quickstart::Arguments),
    /// Create a device on a file or block device
    Create(create::Arguments),
    /// Show a device: geometry, space, wear, namespaces
    Info(info::Arguments),
    /// Change the size of a device
    Resize(resize::Arguments),
    /// Show the names by which hosts know a device, or change them
    Identity(identity::Arguments),
    /// Create, list, change and delete namespaces
    #[command(visible_alias = "ns")]
    Namespace(namespace::Arguments),
    /// Store a record, durably
    Put(record::PutArguments),
    /// Read a record
    Get(record::GetArguments),
    /// Add to a counter without reading it, durably
    Add(add::Arguments),
    /// Delete a record, or a range of them, durably
    Delete(delete::Arguments),
    /// List the keys of a namespace, and their values
    List(list::Arguments),
    /// Count the keys of a namespace
    Count(count::Arguments),
    /// Take, show or forget snapshots of a versioned namespace
    Snapshot(versions::SnapshotArguments),
    /// Show the versions of a key
    History(versions::HistoryArguments),
    /// Undo the last changes of a key
    Undo(versions::UndoArguments),
    /// Return a namespace to its state in a snapshot
    Rollback(versions::RollbackArguments),
    /// Show which keys differ between two snapshots, or since a snapshot
    Diff(versions::DiffArguments),
    /// Drop old versions by rules, and free their space
    Merge(versions::MergeArguments),
    /// Store a directory tree or JSON Lines
    Import(import::Arguments),
    /// List the files of a directory tree
    Ls(ls::Arguments),
    /// Write the contents of a file of a directory tree
    Cat(cat::Arguments),
    /// Restore a directory tree, or write JSON Lines
    Export(export::Arguments),
    /// Serve a device over NVMe/TCP, as a Key Value SSD that Linux attaches
    Serve(serve::Arguments),
    /// Watch a device: rates, latencies, space, collection, hosts
    Top(top::Arguments),
    /// Show what is committed, as it happens
    Watch(watch::Arguments),
    /// Keep a second device the same as one that is served
    Follow(follow::Arguments),
    /// Read everything on a device and verify its checksums
    Check(check::Arguments),
    /// Write everything on a device to a backup, or verify one
    Backup(backup::Arguments),
    /// Make a device of a backup, and of incremental ones after it
    Restore(backup::RestoreArguments),
    /// Copy everything readable of a damaged device to a new one
    Salvage(salvage::Arguments),
    /// Print what makes a shell complete commands and flags
    Completions(manual::CompletionsArguments),
    /// Write the man pages of all commands
    Man(manual::ManArguments),
    /// The child process of `quickstart`
    #[command(hide = true, name = quickstart::WRITER)]
    QuickstartWriter(quickstart::WriterArguments),
}

impl Command {
    /// Runs the command.
    pub fn run(self) -> Result<(), Failure> {
        match self {
            Command::Quickstart(arguments) => arguments.run(),
            Command::Create(arguments) => arguments.run(),
            Command::Info(arguments) => arguments.run(),
            Command::Resize(arguments) => arguments.run(),
            Command::Identity(arguments) => arguments.run(),
            Command::Namespace(arguments) => arguments.run(),
            Command::Put(arguments) => arguments.run(),
            Command::Add(arguments) => arguments.run(),
            Command::Get(arguments) => arguments.run(),
            Command::Delete(arguments) => arguments.run(),
            Command::List(arguments) => arguments.run(),
            Command::Count(arguments) => arguments.run(),
            Command::Snapshot(arguments) => arguments.run(),
            Command::History(arguments) => arguments.run(),
            Command::Undo(arguments) => arguments.run(),
            Command::Rollback(arguments) => arguments.run(),
            Command::Diff(arguments) => arguments.run(),
            Command::Merge(arguments) => arguments.run(),
            Command::Import(arguments) => arguments.run(),
            Command::Ls(arguments) => arguments.run(),
            Command::Cat(arguments) => arguments.run(),
            Command::Export(arguments) => arguments.run(),
            Command::Serve(arguments) => arguments.run(),
            Command::Top(arguments) => arguments.run(),
            Command::Watch(arguments) => arguments.run(),
            Command::Follow(arguments) => arguments.run(),
            Command::Check(arguments) => arguments.run(),
            Command::Backup(arguments) => arguments.run(),
            Command::Restore(arguments) => arguments.run(),
            Command::Salvage(arguments) => arguments.run(),
            Command::Completions(arguments) => arguments.run(),
            Command::Man(arguments) => arguments.run(),
            Command::QuickstartWriter(arguments) => arguments.run(),
        }
    }
}
