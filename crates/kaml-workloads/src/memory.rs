//! Resident memory while a device is filled; in a process of its own, so nothing else is counted.
//!
//! Lives here:       the child that fills and watches, and what it prints.
//! Lives elsewhere:  the command line that runs the child (`kaml-cli`).
//!
//! The formula that is held: resident = the process with an empty device + index + buffers, where the index is what the
//! device reports (`Stats::index_bytes`) and buffers are at most `Stats::buffer_bytes_max`.

use crate::{Error, figures, micro};
use kaml::{CreateOptions, Device};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How often the memory is looked at.
const STEPS: u64 = 20;

/// The options of a run.
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
    /// Highest in each step, at any moment.
    pub resident_bytes_highest: Vec<u64>,
    /// Highest at any moment of all.
    pub resident_bytes_max: u64,
    /// Memory of the index, after each step.
    pub index_bytes: Vec<u64>,
    /// The device's own limit for its buffers.
    pub buffer_bytes_max: u64,
}

impl MemoryFigures {
    /// Resident beyond the start and the index, at its highest at any moment: must not exceed the buffers. The index is that
    /// after the step, so its growth is not counted.
    pub fn beyond_index_bytes_max(&self) -> u64 {
        let beyond = |(resident, index): (&u64, &u64)| resident.saturating_sub(self.start_bytes + index);
        self.resident_bytes_highest.iter().zip(&self.index_bytes).map(beyond).max().unwrap_or(0)
    }
}

/// Fills a new device at `path` and watches.
pub fn child(path: &Path, bytes: u64, value_bytes: usize) -> Result<MemoryFigures, Error> {
    let resident = || figures::resident_bytes().ok_or_else(|| Error::Parameters("/proc/self/status is missing".into()));
    let (start_bytes, _) = resident()?;
    // Half as much again, so the device is never so full that it has to work hard.
    let device = Device::create(path, &CreateOptions::new((bytes + bytes / 2).max(1 << 30)))?;
    let namespace = micro::namespace(&device, "bench")?;
    let records = bytes / value_bytes.max(8) as u64;
    let (mut resident_bytes, mut resident_bytes_highest, mut index_bytes) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..STEPS {
        let range = records * step / STEPS..records * (step + 1) / STEPS;
        micro::fill_range(&device, namespace, value_bytes, range)?;
        let (now, highest) = resident()?;
        resident_bytes.push(now);
        resident_bytes_highest.push(highest);
        figures::reset_resident_peak(); // for the next step; the first has what making the device took
        index_bytes.push(device.stats().index_bytes);
    }
    let buffer_bytes_max = device.stats().buffer_bytes_max;
    let resident_bytes_max = resident_bytes_highest.iter().copied().max().unwrap_or(0);
    device.close()?;
    Ok(MemoryFigures {
        start_bytes,
        resident_bytes,
        resident_bytes_highest,
        resident_bytes_max,
        index_bytes,
        buffer_bytes_max,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   memory that was taken and released within a step is counted.
    /// Method: figures with such a peak; those of a small device, whose peaks are not below what is resident after a step.
    #[test]
    fn peaks_within_steps_count() {
        let figures = MemoryFigures {
            start_bytes: 100,
            resident_bytes: vec![150, 160],
            resident_bytes_highest: vec![190, 170],
            resident_bytes_max: 190,
            index_bytes: vec![10, 20],
            buffer_bytes_max: 50,
        };
        assert_eq!(figures.beyond_index_bytes_max(), 80);
        let dir = std::env::temp_dir();
        let scratch = kaml_terminal::passing::Passing::directory(&dir).unwrap();
        let figures = child(&scratch.path().join("memory.kaml"), 8 << 20, 4096).unwrap();
        let mut steps = figures.resident_bytes.iter().zip(&figures.resident_bytes_highest);
        assert_eq!(figures.resident_bytes_highest.len() as u64, STEPS);
        // Other tests of this process take memory as well, and reset its peak.
        assert!(steps.any(|(after, highest)| highest >= after), "{figures:?}");
        assert!(figures.resident_bytes_max > 0);
    }
}
