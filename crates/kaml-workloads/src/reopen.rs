//! Reopening: after SIGKILL and after a clean close, with many records, on small and large devices.
//!
//! Lives here:       loading in a child that kills itself, timing the opening.
//! Lives elsewhere:  the command line that runs the child (`kaml-cli`).

use crate::Error;
use crate::micro;
use kaml::{CreateOptions, Device, OpenOptions};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Bytes of the values of small records.
pub const SMALL_VALUE_BYTES: usize = 16;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Reopen {
    /// Bytes of the device.
    pub capacity: u64,
    /// Small records that the child loads.
    pub records: u64,
    /// The program and its first arguments that run [`child`]; the device's path and the number of records follow.
    pub program: PathBuf,
    /// See `program`.
    pub arguments: Vec<String>,
}

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReopenFigures {
    /// Bytes of the device.
    pub capacity: u64,
    /// Records on it.
    pub records: u64,
    /// Loading, in the child.
    pub load_seconds: f64,
    /// Opening after the child was killed.
    pub after_kill_seconds: f64,
    /// The first Get after that, which may have to load the index.
    pub first_get_after_kill_seconds: f64,
    /// Opening after a clean close.
    pub after_close_seconds: f64,
    /// The first Get after that.
    pub first_get_after_close_seconds: f64,
}

/// Records that the child puts again one by one, so the commit ring ends with as many frames.
const SINGLE_PUTS: u64 = 20_000;

/// The child: loads, puts some records again one by one, then kills itself without closing.
pub fn child(path: &Path, records: u64) -> Result<(), Error> {
    let device = Device::open(path, &OpenOptions::default())?;
    let namespace = device.namespace("bench")?;
    micro::fill(&device, namespace, SMALL_VALUE_BYTES, records)?;
    micro::put_singly(&device, namespace, SMALL_VALUE_BYTES, SINGLE_PUTS.min(records))?;
    let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    Err(Error::Wrong(format!("still alive after SIGKILL: {killed:?}")))
}

/// Makes a device at `path`, has it loaded and killed, and times the openings; the file is left to the caller.
pub fn run(path: &Path, reopen: &Reopen) -> Result<ReopenFigures, Error> {
    let device = Device::create(path, &CreateOptions { force: true, ..CreateOptions::new(reopen.capacity) })?;
    micro::namespace(&device, "bench")?;
    device.close()?;
    let started = Instant::now();
    let records = reopen.records.to_string();
    let status = Command::new(&reopen.program)
        .args(&reopen.arguments)
        .args([path.as_os_str(), OsStr::new(&records)])
        .stdin(Stdio::null())
        .status()
        .map_err(Error::io("starting the child process"))?;
    if std::os::unix::process::ExitStatusExt::signal(&status) != Some(9) {
        return Err(Error::Wrong(format!("the loading child ended with {status}, not by SIGKILL")));
    }
    let load_seconds = started.elapsed().as_secs_f64();
    let (after_kill_seconds, first_get_after_kill_seconds) = open_and_get(path, reopen.records)?;
    let (after_close_seconds, first_get_after_close_seconds) = open_and_get(path, reopen.records)?;
    Ok(ReopenFigures {
        capacity: reopen.capacity,
        records: reopen.records,
        load_seconds,
        after_kill_seconds,
        first_get_after_kill_seconds,
        after_close_seconds,
        first_get_after_close_seconds,
    })
}

/// Opens, gets one record, then verifies a sample and the count, and closes.
fn open_and_get(path: &Path, records: u64) -> Result<(f64, f64), Error> {
    let started = Instant::now();
    let device = Device::open(path, &OpenOptions::default())?;
    let opened = started.elapsed().as_secs_f64();
    let namespace = device.namespace("bench")?;
    let started = Instant::now();
    let missing = |number: u64| Error::Wrong(format!("record {number} was lost"));
    device.get(namespace, records / 2)?.ok_or_else(|| missing(records / 2))?;
    let got = started.elapsed().as_secs_f64();
    for number in (0..records).step_by((records / 1000).max(1) as usize) {
        let value = device.get(namespace, number)?.ok_or_else(|| missing(number))?;
        if value.len() != SMALL_VALUE_BYTES || value[..8] != number.to_le_bytes() {
            return Err(Error::Wrong(format!("record {number} has another's value")));
        }
    }
    let count = device.namespaces().iter().find(|info| info.id == namespace).map(|info| info.record_count);
    if count != Some(records) {
        return Err(Error::Wrong(format!("{count:?} records counted, {records} were acknowledged")));
    }
    device.close()?;
    Ok((opened, got))
}
