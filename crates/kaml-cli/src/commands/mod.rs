//! One module for each subcommand.

mod bench;
mod bench_conflicts;
mod bench_database;
mod bench_serve;
mod check;
mod create;
mod experiment;
mod export;
mod import;
mod info;
mod list;
mod namespace;
mod quickstart;
mod quickstart_past;
mod record;
mod salvage;
mod serve;
mod sim;
mod versions;

use crate::failure::Failure;
use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Store a directory tree, be killed in the middle, recover, and verify every byte
    Quickstart(quickstart::Arguments),
    /// Make a device on a file or block device
    Create(create::Arguments),
    /// Show a device: geometry, space, wear, namespaces
    Info(info::Arguments),
    /// Create, list, change and delete namespaces
    #[command(visible_alias = "ns")]
    Namespace(namespace::Arguments),
    /// Store a record, durably
    Put(record::PutArguments),
    /// Read a record
    Get(record::GetArguments),
    /// Delete a record, durably
    Delete(record::DeleteArguments),
    /// List the keys of a namespace
    List(list::Arguments),
    /// Take, show or forget snapshots of a namespace that keeps versions
    Snapshot(versions::SnapshotArguments),
    /// Show the versions of a key
    History(versions::HistoryArguments),
    /// Undo the last changes of a key
    Undo(versions::UndoArguments),
    /// Make a namespace look as it did in a snapshot
    Rollback(versions::RollbackArguments),
    /// Show which keys differ between two snapshots, or since one
    Diff(versions::DiffArguments),
    /// Give the space of old versions back, by rules
    Merge(versions::MergeArguments),
    /// Store a directory tree or JSON Lines
    Import(import::Arguments),
    /// Restore a directory tree, or write JSON Lines
    Export(export::Arguments),
    /// Export a device over NVMe/TCP, as a Key Value SSD that Linux attaches
    Serve(serve::Arguments),
    /// Read everything on a device and verify its checksums
    Check(check::Arguments),
    /// Read what can still be read of a damaged device, into a new one
    Salvage(salvage::Arguments),
    /// Measure this machine's floors, its raw disk, and KAML on it
    Bench(bench::Arguments),
    /// Run the firmware on modelled flash, under power cuts and faults
    Sim(sim::Arguments),
    /// Repeat the paper's device experiments on a modelled board
    Experiment(experiment::Arguments),
    /// The child processes of `bench`
    #[command(hide = true, name = bench::CHILD)]
    BenchChild(bench::ChildArguments),
    /// The child process of `quickstart`
    #[command(hide = true, name = quickstart::WRITER)]
    QuickstartWriter(quickstart::WriterArguments),
}

impl Command {
    /// Does it.
    pub fn run(self) -> Result<(), Failure> {
        match self {
            Command::Quickstart(arguments) => arguments.run(),
            Command::Create(arguments) => arguments.run(),
            Command::Info(arguments) => arguments.run(),
            Command::Namespace(arguments) => arguments.run(),
            Command::Put(arguments) => arguments.run(),
            Command::Get(arguments) => arguments.run(),
            Command::Delete(arguments) => arguments.run(),
            Command::List(arguments) => arguments.run(),
            Command::Snapshot(arguments) => arguments.run(),
            Command::History(arguments) => arguments.run(),
            Command::Undo(arguments) => arguments.run(),
            Command::Rollback(arguments) => arguments.run(),
            Command::Diff(arguments) => arguments.run(),
            Command::Merge(arguments) => arguments.run(),
            Command::Import(arguments) => arguments.run(),
            Command::Export(arguments) => arguments.run(),
            Command::Serve(arguments) => arguments.run(),
            Command::Check(arguments) => arguments.run(),
            Command::Salvage(arguments) => arguments.run(),
            Command::Bench(arguments) => arguments.run(),
            Command::Sim(arguments) => arguments.run(),
            Command::Experiment(arguments) => arguments.run(),
            Command::BenchChild(arguments) => arguments.run(),
            Command::QuickstartWriter(arguments) => arguments.run(),
        }
    }
}
