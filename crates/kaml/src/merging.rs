//! Merges of versioned namespaces, step by step beside everybody else.
//!
//! Lives here:       row after row: plan, write, install; how much of the time a merge takes.
//! Lives elsewhere:  what is kept (`kaml_versions`), the firmware's part (`kaml_device`), the command (`versions`).
//! Implements:       paper:Muninn 4.4.1; docs/versioned.md "Merge".

use crate::driver::Shared;
use crate::queue::finish_ring_writes;
use crate::sync::{Instant, JoinHandle, MutexGuard, sleep, spawn};
use crate::versions::MergeReport;
use crate::{Error, NamespaceId};
use kaml_device::{StageError, segment_image};
use kaml_versions::{Merged, Retention, merge, plan_merge};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// So many times as long as it worked a merge rests while others use the device. It competes for cores and flash, a segment at
/// a time; with this the 99 % latency of the others stays within twice what it is alone.
const RESTS: u32 = 6;
/// The longest rest.
const REST_MAX: Duration = Duration::from_millis(250);

/// When a merge works and when it rests.
pub(crate) struct Pace {
    began: Instant,
    /// Commands of others as of the last rest.
    commands: u64,
}

impl Pace {
    fn new(shared: &Shared) -> Pace {
        Pace { began: Instant::now(), commands: shared.commands() }
    }

    /// Between two pieces of work: rests if anybody else used the device during the last one, unless hosts are about to wait
    /// for the space that the merge gives back.
    pub(crate) fn rest(&mut self, shared: &Shared) {
        if shared.commands() != self.commands && !shared.lock().is_nearly_full() {
            sleep((self.began.elapsed() * RESTS).min(REST_MAX));
        }
        *self = Pace::new(shared);
    }
}

/// The thread of the merge that goes on because space is low.
#[derive(Default)]
pub(crate) struct LowMerge(Option<JoinHandle<()>>);

impl LowMerge {
    /// Begins one. The one before it has said that it is over.
    pub(crate) fn start(&mut self, shared: &Arc<Shared>, namespace: NamespaceId, retention: Retention) {
        self.join();
        let of = shared.clone();
        let run = move || of.merge_when_low(namespace, &retention);
        match spawn("kaml-merge", run) {
            Ok(thread) => self.0 = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "space is low, and no thread can be had to merge");
                shared.lock().end_low_merge();
            }
        }
    }

    /// Waits until it is over.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.0.take() {
            thread.join().expect("merges do not panic");
        }
    }
}

/// A namespace that is being merged, until this is dropped: also if whoever is told of the progress panics.
struct Merging<'a>(&'a Shared, NamespaceId);

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        self.0.lock().end_merge(self.1);
    }
}

impl Shared {
    /// Nobody else merges until the answer is dropped.
    pub(crate) fn merge_alone(&self) -> MutexGuard<'_, ()> {
        finish_ring_writes(self);
        self.merging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets and Puts so far.
    fn commands(&self) -> u64 {
        self.get_latency.count() + self.put_latency.count()
    }

    /// Merges a namespace. Nobody else merges meanwhile.
    pub(crate) fn merge_settled(
        &self,
        namespace: NamespaceId,
        retention: &Retention,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<MergeReport, Error> {
        // What a crash would bring back from the commit ring cannot be dropped: as little as possible.
        let mut core = self.lock();
        let request = core.request_root(true);
        self.wait_root(core, request)?;
        let _merging = Merging(self, namespace);
        self.merge_rows(namespace, retention, progress)
    }

    /// Merges a namespace for lack of space; called on a thread of its own.
    fn merge_when_low(&self, namespace: NamespaceId, retention: &Retention) {
        let alone = self.merge_alone();
        let merged = match self.ends_merges.load(Ordering::Acquire) {
            true => Ok(MergeReport::default()),
            false => self.merge_settled(namespace, retention, &mut |_, _| {}),
        };
        match merged {
            Ok(report) => tracing::info!(namespace, dropped = report.dropped, "merged because space is low"),
            Err(error) => tracing::warn!(namespace, %error, "space is low, and a merge did not come to its end"),
        }
        self.lock().end_low_merge();
        drop(alone);
        self.wake_background();
    }

    fn merge_rows(
        &self,
        namespace: NamespaceId,
        retention: &Retention,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<MergeReport, Error> {
        let limit = self.merge_limit(namespace)?;
        let mut reading = self.reading(namespace)?;
        reading.pace = Some(Pace::new(self));
        let rows = reading.reader.row_count();
        let mut report = MergeReport::default();
        for row in 0..rows {
            if self.ends_merges.load(Ordering::Acquire) {
                break;
            }
            progress(row, rows);
            self.begin_merge(namespace, row)?;
            let plan = plan_merge(&mut reading, row, retention, limit)?;
            report.add(&plan);
            for run in (0..plan.run_count()).rev() {
                let merged = merge(&mut reading, &plan, run)?;
                report.segments_written += merged.segments.len() as u64;
                let pace = reading.pace.as_mut().expect("merges have a pace");
                self.install(namespace, &merged, pace)?;
            }
        }
        progress(rows, rows);
        Ok(report)
    }

    /// What a merge must not drop.
    pub(crate) fn merge_limit(&self, namespace: NamespaceId) -> Result<u64, Error> {
        let mut core = self.lock();
        loop {
            match core.merge_limit(namespace) {
                Ok(limit) => return Ok(limit),
                Err(StageError::Refused(error)) => return Err(error.into()),
                Err(StageError::NeedIndex(id)) => core = self.load_index(core, id)?,
                Err(StageError::Busy) => unreachable!("nothing that it waits for"),
            }
        }
    }

    /// Waits until the segments of a row are settled, and closes its last group.
    fn begin_merge(&self, namespace: NamespaceId, row: u32) -> Result<(), Error> {
        let mut core = self.lock();
        let no_space_count = core.no_space_count();
        loop {
            match core.begin_merge(namespace, row) {
                Ok(()) => return Ok(()),
                Err(StageError::Refused(error)) => return Err(error.into()),
                Err(StageError::NeedIndex(id)) => core = self.load_index(core, id)?,
                Err(StageError::Busy) => core = self.wait_for_programs(core, no_space_count)?,
            }
        }
    }

    /// Programs the segments of a merge, then puts them in place of the old ones.
    fn install(&self, namespace: NamespaceId, merged: &Merged, pace: &mut Pace) -> Result<(), Error> {
        let mut tickets = Vec::with_capacity(merged.segments.len());
        let installed = self.place_all(namespace, merged, (&mut tickets, pace)).and_then(|()| {
            let mut core = self.lock();
            let no_space_count = core.no_space_count();
            while !tickets.iter().all(|ticket| core.is_segment_programmed(*ticket)) {
                core = self.wait_for_programs(core, no_space_count)?;
            }
            Ok(core.install_merge(namespace, merged, &tickets)?)
        });
        if installed.is_err() {
            self.lock().forget_merged(&tickets);
        }
        installed
    }

    fn place_all(
        &self,
        namespace: NamespaceId,
        merged: &Merged,
        (tickets, pace): (&mut Vec<u64>, &mut Pace),
    ) -> Result<(), Error> {
        for sealed in &merged.segments {
            let image = segment_image(sealed);
            let mut core = self.lock();
            let no_space_count = core.no_space_count();
            loop {
                match core.place_merged(namespace, sealed, &image) {
                    Ok(ticket) => break tickets.push(ticket),
                    Err(StageError::Refused(error)) => return Err(error.into()),
                    Err(StageError::NeedIndex(id)) => core = self.load_index(core, id)?,
                    Err(StageError::Busy) => core = self.wait_for_programs(core, no_space_count)?,
                }
            }
            drop(core);
            self.wake_background();
            pace.rest(self);
        }
        Ok(())
    }
}
