//! The `kaml-lab` command line: the firmware on modelled flash, and the papers' experiments.
//!
//! Lives here:       flags, files, the live display.
//! Lives elsewhere:  what is simulated and checked (`kaml-sim`); exit codes, output and signals (`kaml-terminal`).
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` marks the door of each module")]

mod experiment;
mod plan;
mod replay;
mod reproduce;
mod sim;
mod workload;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The laboratory of KAML: the firmware on modelled NAND, in virtual time, with faults and power cuts.
#[derive(Parser)]
#[command(name = "kaml-lab", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "Examples:
  kaml-lab sim run --seeds 14                      power cuts and faults, from seeds
  kaml-lab experiment fig5 --out figures           a figure of the KAML paper
  kaml-lab experiment muninn-fig9 --out figures    a figure of the Muninn paper
  kaml-lab reproduce kaml --out kaml               all figures of a paper, and its claims
  kaml-lab replay hm_0.csv --format msr            a trace of a real workload
  kaml-lab workload mixed.toml                     a workload of your own
  kaml-lab plan muninn --keys 50M                  reads and memory of versions, by the paper's equations

The same board and seed give the same results on every machine. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the firmware on modelled flash, under power cuts and faults
    Sim(sim::Arguments),
    /// Repeat the papers' device experiments on a modelled board
    Experiment(experiment::Arguments),
    /// Repeat the evaluation of a paper: figures, tables, and the claims that are met or missed
    Reproduce(reproduce::Arguments),
    /// Replay a trace of a real workload on a modelled board
    Replay(replay::Arguments),
    /// Execute a workload from a file on a modelled board
    Workload(workload::Arguments),
    /// Compute what the parameters of a paper's design cost
    Plan(plan::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Sim(arguments) => arguments.run(),
        Command::Experiment(arguments) => arguments.run(),
        Command::Reproduce(arguments) => arguments.run(),
        Command::Replay(arguments) => arguments.run(),
        Command::Workload(arguments) => arguments.run(),
        Command::Plan(arguments) => arguments.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
