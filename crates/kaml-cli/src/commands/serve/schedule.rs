//! Snapshots of versioned namespaces by schedule, while their device is served.
//!
//! Lives here:       what a schedule states, when a snapshot is due, which ones are forgotten.
//! Lives elsewhere:  what a snapshot is (`kaml`), taking one by hand (`versions`), the configuration (`config`).
//! May be called by: `serve`.
//! Implements:       paper:Muninn 4.1 (a snapshot raises the version number, taken now and again).

use crate::failure::Failure;
use crate::ttl;
use kaml::{Device, Error};
use serde::Deserialize;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Each snapshot takes some bytes of a device's metadata for as long as it is kept.
const EVERY_MIN: Duration = Duration::from_secs(1);
/// A snapshot that could not be taken is tried again after this time, or after that of its schedule if that is shorter.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Take a snapshot of a namespace each time this time has gone by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub namespace: String,
    pub every: Duration,
    /// Forget the oldest ones above this number, those that were taken by hand included.
    pub keep: Option<NonZeroU32>,
}

/// One in the configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Stated {
    namespace: String,
    every: String,
    keep: Option<NonZeroU32>,
}

impl TryFrom<Stated> for Schedule {
    type Error = String;
    fn try_from(stated: Stated) -> Result<Schedule, String> {
        Ok(Schedule { namespace: stated.namespace, every: time(&stated.every)?, keep: stated.keep })
    }
}

/// `NAMESPACE=TIME` or `NAMESPACE=TIME,keep=COUNT`.
impl FromStr for Schedule {
    type Err = String;
    fn from_str(text: &str) -> Result<Schedule, String> {
        let wrong = || {
            format!(
                "`{text}` is no schedule: write NAMESPACE=TIME or NAMESPACE=TIME,keep=COUNT, such as notes=1h,keep=24"
            )
        };
        let (namespace, rest) = text.rsplit_once(",keep=").map_or((text, None), |(rest, keep)| (rest, Some(keep)));
        let keep = rest.map(|keep| keep.parse().map_err(|_| wrong())).transpose()?;
        let (namespace, every) = namespace.rsplit_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
        Ok(Schedule { namespace: namespace.to_owned(), every: time(every)?, keep })
    }
}

fn time(text: &str) -> Result<Duration, String> {
    match ttl::time(text) {
        Some(time) if time >= EVERY_MIN => Ok(time),
        Some(_) => Err(format!("`{text}` is too short for a schedule: at least 1s")),
        None => Err(format!("`{text}` is no time: write a whole number and s, m, h or d, such as 90s or 1h")),
    }
}

/// Refuses two schedules of one namespace.
pub fn check(schedules: &[Schedule]) -> Result<(), String> {
    let mut names: Vec<&str> = schedules.iter().map(|schedule| schedule.namespace.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("namespace `{}` has two schedules", pair[0])),
        None => Ok(()),
    }
}

/// The thread that takes snapshots; it ends when this is dropped.
pub struct Snapshots {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Snapshots {
    /// Takes snapshots from now on. None without schedules.
    pub fn start(device: &Device, schedules: &[Schedule]) -> Result<Option<Snapshots>, Failure> {
        if schedules.is_empty() {
            return Ok(None);
        }
        let now = Instant::now();
        let planned: Vec<Planned> = schedules.iter().map(|one| Planned::new(device, one.clone(), now)).collect();
        let (stop, stopped) = mpsc::channel();
        let device = device.clone();
        let run = move || {
            let mut planned = planned;
            loop {
                let next = planned.iter().map(|one| one.due).min().expect("there are schedules");
                match stopped.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
                let now = Instant::now();
                planned.iter_mut().filter(|one| one.due <= now).for_each(|one| one.run(&device, now));
            }
        };
        let thread = std::thread::Builder::new().name("kaml-snapshots".into()).spawn(run);
        let thread = thread.map_err(Failure::io("starting a thread for snapshots"))?;
        Ok(Some(Snapshots { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic");
        }
    }
}

/// A schedule, and when its next snapshot is due.
struct Planned {
    schedule: Schedule,
    due: Instant,
    /// What was reported last: a reason is not repeated each minute.
    reported: Option<String>,
}

impl Planned {
    /// The newest snapshot that exists counts, so a restart does not disturb a schedule. One that the clock has in the future counts as taken now.
    fn new(device: &Device, schedule: Schedule, now: Instant) -> Planned {
        let newest = device.namespace(&schedule.namespace).and_then(|id| Ok(device.version_stats(id)?.snapshots));
        let age = match newest.as_deref() {
            Ok([.., newest]) => age_of(newest.time_ns, SystemTime::now()),
            Ok([]) | Err(_) => schedule.every,
        };
        Planned { due: now + schedule.every.saturating_sub(age), schedule, reported: None }
    }

    fn run(&mut self, device: &Device, now: Instant) {
        let name = &self.schedule.namespace;
        match self.take(device) {
            Ok(version) => {
                tracing::info!(namespace = name, snapshot = version, "took a snapshot by schedule");
                self.reported = None;
                // Snapshots that were missed while the machine slept are not taken later.
                let next = self.due + self.schedule.every;
                self.due = if next > now { next } else { now + self.schedule.every };
                // The next turn forgets what this one could not.
                if let Err(error) = self.forget(device, 0) {
                    tracing::warn!(namespace = name, %error, "an old snapshot was not forgotten");
                }
            }
            Err(error) => {
                let reason = error.to_string();
                if self.reported.as_ref() != Some(&reason) {
                    tracing::warn!(namespace = name, %error, "a snapshot was not taken; it is tried again");
                    self.reported = Some(reason);
                }
                self.due = now + self.schedule.every.min(TRY_AGAIN);
            }
        }
    }

    /// The number of the new snapshot. If there can be no more snapshots, old ones go first.
    fn take(&self, device: &Device) -> Result<u32, Error> {
        let id = device.namespace(&self.schedule.namespace)?;
        match device.snapshot(id) {
            Err(Error::TooManySnapshots | Error::SnapshotsFull { .. }) if self.schedule.keep.is_some() => {
                self.forget(device, 1)?;
                device.snapshot(id)
            }
            taken => taken,
        }
    }

    /// Forgets the oldest snapshots, so that there are no more than are kept when `more` are taken.
    fn forget(&self, device: &Device, more: usize) -> Result<(), Error> {
        let Some(keep) = self.schedule.keep else { return Ok(()) };
        let id = device.namespace(&self.schedule.namespace)?;
        let snapshots = device.version_stats(id)?.snapshots;
        let too_many = (snapshots.len() + more).saturating_sub(keep.get() as usize);
        snapshots.iter().take(too_many).try_for_each(|snapshot| device.forget_snapshot(id, snapshot.version))
    }
}

/// How long ago this was.
fn age_of(time_ns: u64, now: SystemTime) -> Duration {
    now.duration_since(UNIX_EPOCH + Duration::from_nanos(time_ns)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml::{CreateOptions, Key, KeyKind, NamespaceOptions, VersionOptions};

    fn schedule(text: &str) -> Result<Schedule, String> {
        text.parse()
    }

    /// Goal:   a schedule is what it states, and each mistake is named.
    /// Method: some right and some wrong ones; names with the signs of the form in them.
    #[test]
    fn schedules_are_read() {
        let one = |namespace: &str, seconds, keep| {
            Ok(Schedule {
                namespace: namespace.into(),
                every: Duration::from_secs(seconds),
                keep: NonZeroU32::new(keep),
            })
        };
        assert_eq!(schedule("notes=1h"), one("notes", 3600, 0));
        assert_eq!(schedule("notes=90s,keep=24"), one("notes", 90, 24));
        assert_eq!(schedule("a=b=2d,keep=1"), one("a=b", 172_800, 1));
        for (wrong, named) in [
            ("notes", "is no schedule"),
            ("=1h", "is no schedule"),
            ("notes=1h,keep=0", "is no schedule"),
            ("notes=1h,keep=x", "is no schedule"),
            ("notes=1", "is no time"),
            ("notes=10ms", "too short"),
        ] {
            let said = schedule(wrong).unwrap_err();
            assert!(said.contains(named), "{wrong}: {said}");
        }
        assert!(check(&[schedule("a=1h").unwrap(), schedule("a=2h").unwrap()]).unwrap_err().contains("two schedules"));
        assert_eq!(check(&[schedule("a=1h").unwrap(), schedule("b=1h").unwrap()]), Ok(()));
    }

    /// Goal:   the number that is kept stays, and the oldest go; what cannot be done says why and is tried again; a restart keeps to the schedule.
    /// Method: a device in memory; `run` at moments of the test's choice.
    #[test]
    fn snapshots_are_taken_and_forgotten() {
        let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
        let now = Instant::now();
        let mut planned = Planned::new(&device, schedule("past=1h,keep=3").unwrap(), now);
        assert_eq!(planned.due, now, "without a snapshot one is due");
        planned.run(&device, now);
        assert!(planned.reported.is_some() && planned.due == now + TRY_AGAIN, "there is no namespace yet");
        let options: NamespaceOptions = VersionOptions::default().into();
        let past = device.create_namespace("past", &options).unwrap();
        for turn in 0..5_u64 {
            device.put(past, Key::from(turn), b"value").unwrap();
            planned.due = now + Duration::from_secs(3600 * turn);
            planned.run(&device, planned.due);
            assert_eq!((planned.due, &planned.reported), (now + Duration::from_secs(3600 * (turn + 1)), &None));
        }
        let kept: Vec<u32> = device.version_stats(past).unwrap().snapshots.iter().map(|one| one.version).collect();
        assert_eq!(kept, [3, 4, 5]);
        let late = planned.due + Duration::from_secs(5 * 3600 + 1);
        planned.run(&device, late);
        assert_eq!(planned.due, late + Duration::from_secs(3600), "one snapshot after five missed hours");
        let again = Planned::new(&device, schedule("past=1h").unwrap(), now);
        let left = again.due - now;
        assert!(left > Duration::from_secs(3500) && left <= Duration::from_secs(3600), "{left:?}");
        device.create_namespace("plain", &NamespaceOptions::records(KeyKind::U64)).unwrap();
        let mut wrong = Planned::new(&device, schedule("plain=1h").unwrap(), now);
        wrong.run(&device, now);
        assert!(wrong.reported.unwrap().contains("versions"));
        assert_eq!(age_of(u64::MAX / 2, SystemTime::now()), Duration::ZERO);
    }
}
