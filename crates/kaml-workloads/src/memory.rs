//! Resident memory while a device is filled; in a process of its own, so that nothing else is counted.
//!
//! Lives here:       the child that fills and watches, and what it tells.
//! Lives elsewhere:  the command line that runs the child (`kaml-cli`).
//!
//! The formula that is held: resident = the process with an empty device + index + buffers, where the index is what the
//! device says it takes (`Stats::index_bytes`) and buffers are at most `Stats::buffer_bytes_max`.

use crate::{Error, figures, micro};
use kaml::{CreateOptions, Device};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How often the memory is looked at.
const STEPS: u64 = 20;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Bytes of values to store.
    pub bytes: u64,
    /// Bytes of each.
    pub value_bytes: usize,
    /// The program and its first arguments that run [`child`]; the device's path, bytes and value bytes follow.
    pub program: PathBuf,
    /// See `program`.
    pub arguments: Vec<String>,
}

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// Resident before the device was made.
    pub start_bytes: u64,
    /// Resident after each step.
    pub resident_bytes: Vec<u64>,
    /// Highest at any moment.
    pub resident_bytes_max: u64,
    /// Of the index, after each step.
    pub index_bytes: Vec<u64>,
    /// The device's own limit for its buffers.
    pub buffer_bytes_max: u64,
}

impl MemoryFigures {
    /// Resident beyond the start and the index, at its highest: must not exceed the buffers.
    pub fn beyond_index_bytes_max(&self) -> u64 {
        let beyond = |(resident, index): (&u64, &u64)| resident.saturating_sub(self.start_bytes + index);
        self.resident_bytes.iter().zip(&self.index_bytes).map(beyond).max().unwrap_or(0)
    }
}

/// Fills a new device at `path` and watches.
pub fn child(path: &Path, bytes: u64, value_bytes: usize) -> Result<MemoryFigures, Error> {
    let resident = || figures::resident_bytes().ok_or_else(|| Error::Parameters("/proc/self/status is missing".into()));
    let (start_bytes, _) = resident()?;
    // Half as much again, so that the device is never so full that it has to work hard.
    let device = Device::create(path, &CreateOptions::new((bytes + bytes / 2).max(1 << 30)))?;
    let namespace = micro::namespace(&device, "bench")?;
    let records = bytes / value_bytes.max(8) as u64;
    let (mut resident_bytes, mut index_bytes) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let range = records * step / STEPS..records * (step + 1) / STEPS;
        micro::fill_range(&device, namespace, value_bytes, range)?;
        resident_bytes.push(resident()?.0);
        index_bytes.push(device.stats().index_bytes);
    }
    let buffer_bytes_max = device.stats().buffer_bytes_max;
    let (_, resident_bytes_max) = resident()?;
    device.close()?;
    Ok(MemoryFigures { start_bytes, resident_bytes, resident_bytes_max, index_bytes, buffer_bytes_max })
}

/// Runs the child on a new device at `path`; the file is left to the caller.
pub fn run(path: &Path, memory: &Memory) -> Result<MemoryFigures, Error> {
    let output = Command::new(&memory.program)
        .args(&memory.arguments)
        .arg(path)
        .args([memory.bytes.to_string(), memory.value_bytes.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(Error::io("starting the child process"))?;
    let told = serde_json::from_slice(&output.stdout);
    told.map_err(|error| Error::Wrong(format!("the filling child ended with {}: {error}", output.status)))
}
