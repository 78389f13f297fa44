//! Merges of versioned namespaces, step by step while others run.
//!
//! Lives here:       row after row: plan, write, install; how much of the time a merge takes, and whether it continues.
//! Lives elsewhere:  what is kept (`kaml_versions`), the firmware's part (`kaml_device`), the command (`versions`).
//! Implements:       paper:Muninn 4.4.1; docs/versioned.md "Merge".

use crate::driver::{By, Shared};
use crate::queue::finish_ring_writes;
use crate::sync::{Instant, JoinHandle, sleep, spawn};
use crate::versions::{MergeReport, Reading, to_the_end};
use crate::{Error, NamespaceId};
use kaml_device::{Core, StageError, segment_image};
use kaml_versions::{MergePlan, MergeScope, Merged, Retention, merge, plan_merge};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// This many times as long as it worked a merge rests while others use the device. It competes for cores and flash, a segment at
/// a time; with this the 99 % latency of the others stays within twice what it is alone.
const RESTS: u32 = 6;
/// The longest rest.
const REST_MAX: Duration = Duration::from_millis(250);

/// How long a merge waits before it looks again whether another one has ended.
const TURN_WAIT: Duration = Duration::from_millis(10);
/// The smallest piece of a merge: fewer segments would gain nothing.
const SEGMENTS_MIN: usize = 2;
/// The longest time that a merge waits at first for rows that are about to be sealed. Puts can fill rows for ever.
const SEALS_WAIT: Duration = Duration::from_secs(1);
/// A merge settles so many times for rows that were sealed after it began. Each time may write the whole page buffer.
const SETTLES_MAX: u32 = 16;
/// Of what a merge reads.
const PACED: &str = "merges have a pace";

/// When a merge works, when it rests, and whether it continues.
pub(crate) struct Pace<'a> {
    shared: &'a Shared,
    /// Is notified of the rows that are done, and of all; returns whether to continue.
    progress: &'a mut dyn FnMut(u32, u32) -> ControlFlow<()>,
    rows_done: u32,
    rows: u32,
    began: Instant,
    /// Commands of others as of the last rest.
    commands: u64,
}

impl<'a> Pace<'a> {
    /// Of a merge of a namespace that begins now.
    pub(crate) fn new(
        shared: &'a Shared,
        namespace: NamespaceId,
        progress: &'a mut dyn FnMut(u32, u32) -> ControlFlow<()>,
    ) -> Result<Pace<'a>, Error> {
        let rows = shared.reading(namespace)?.reader.row_count();
        let (began, commands) = (Instant::now(), shared.commands());
        Ok(Pace { shared, progress, rows_done: 0, rows, began, commands })
    }

    /// Between two pieces of work: rests if anybody else used the device during the last one, unless hosts are about to wait
    /// for the space that the merge releases.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the merge is to end.
    pub(crate) fn rest(&mut self) -> Result<(), Error> {
        if self.shared.commands() != self.commands && !self.shared.lock().is_nearly_full() {
            sleep((self.began.elapsed() * RESTS).min(REST_MAX));
        }
        self.ask()?;
        (self.began, self.commands) = (Instant::now(), self.shared.commands());
        Ok(())
    }

    /// The same without a rest.
    pub(crate) fn ask(&mut self) -> Result<(), Error> {
        let is_closing = self.shared.ends_merges.load(Ordering::Acquire);
        let asked = (self.progress)(self.rows_done, self.rows);
        if is_closing || asked.is_break() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

/// The thread of the merge that continues because space is low.
#[derive(Default)]
pub(crate) struct LowMerge(Option<JoinHandle<()>>);

impl LowMerge {
    /// Begins one. The one before it has ended.
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

/// The one merge that may continue, until this is dropped.
pub(crate) struct Turn<'a>(&'a Shared);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_merging.store(false, Ordering::Release);
    }
}

/// A namespace that is being merged, until this is dropped: also if a caller that is notified of the progress panics.
struct Merging<'a>(&'a Shared, NamespaceId);

impl Merging<'_> {
    /// It is over. Waits until the large values are released that it dropped.
    fn end(self) -> Result<(), Error> {
        let mut core = self.0.lock();
        match core.end_merge(self.1) {
            Some(request) => self.0.wait_root(core, request),
            None => Ok(()),
        }
    }
}

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        self.0.lock().end_merge(self.1);
    }
}

/// New segments of a merge on their way to flash. Those that are not installed when this is dropped are given up.
struct Placed<'a>(&'a Shared, Vec<u64>);

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        self.0.lock().forget_merged(&self.1);
    }
}

/// The core's part of finding the scope of a row: [`Core::merge_scope`] or [`Core::begin_merge`].
type CoreScope = fn(&mut Core, NamespaceId, u32, bool) -> Result<MergeScope, StageError>;

/// What one merge, or one dry run, must not touch.
struct Scopes<'a> {
    shared: &'a Shared,
    namespace: NamespaceId,
    is_thorough: bool,
    scope: CoreScope,
    /// From which sequence versions of each row were in the page buffer when it began.
    buffered_from: Vec<u64>,
    settles_left: u32,
}

impl Scopes<'_> {
    /// Of a row. Waits until its segments are journaled, and settles again if it was sealed after the last time.
    fn of_row(&mut self, row: u32) -> Result<MergeScope, Error> {
        loop {
            let scope = |core: &mut Core| (self.scope)(core, self.namespace, row, self.is_thorough);
            let scope = self.shared.visit_with(By::Store, scope, self.shared.clear_until_no_space())?.1;
            let is_held = self.shared.lock().merge_is_held(self.namespace, row);
            if !is_held || !self.settle_again() {
                return Ok(MergeScope { buffered_from: self.buffered_from[row as usize], ..scope });
            }
        }
    }

    /// Settles for a row that was sealed after the last time. False if that is not worth it: the next merge drops the others.
    fn settle_again(&mut self) -> bool {
        if self.settles_left == 0 || self.shared.lock().is_nearly_full() {
            return false;
        }
        self.settles_left -= 1;
        self.shared.settle_for_merge(self.namespace).is_ok()
    }
}

impl Shared {
    /// Nobody else merges until the answer is dropped.
    pub(crate) fn merge_alone(&self) -> Turn<'_> {
        self.merge_in_turn(|| true).expect("it waits for ever")
    }

    /// The same; waits as long as it is asked to.
    pub(crate) fn merge_in_turn(&self, mut waits: impl FnMut() -> bool) -> Option<Turn<'_>> {
        finish_ring_writes(self);
        while waits() {
            if !self.is_merging.swap(true, Ordering::AcqRel) {
                return Some(Turn(self));
            }
            sleep(TURN_WAIT);
        }
        None
    }

    /// Gets and Puts so far.
    fn commands(&self) -> u64 {
        self.get_latency.count() + self.put_latency.count()
    }

    /// Merges a namespace. Nobody else merges meanwhile.
    pub(crate) fn merge_settled<'a>(
        &'a self,
        namespace: NamespaceId,
        retention: &Retention,
        pace: Pace<'a>,
    ) -> Result<MergeReport, Error> {
        self.lock().writable()?;
        let is_thorough = self.settle_for_merge(namespace)?;
        let merging = Merging(self, namespace);
        let mut scopes = self.scopes(namespace, is_thorough, Core::begin_merge)?;
        let merged = self.each_row(namespace, pace, |reading, row, report| {
            let mut is_first = true;
            loop {
                let scope = scopes.of_row(row)?;
                let plan = plan_merge(reading, row, retention, &scope)?;
                if std::mem::take(&mut is_first) {
                    report.add_looked_at(&plan);
                }
                let is_whole = self.execute(namespace, plan, (reading, report))?;
                if is_whole || !scopes.settle_again() {
                    return Ok(());
                }
            }
        });
        let ended = merging.end();
        merged.and_then(|report| ended.map(|()| report))
    }

    /// Rewrites the runs of a row, piece by piece. Where there is no room for one, a smaller one may have it. Returns whether all is gone that
    /// the plan drops: what was sealed meanwhile is not.
    fn execute(
        &self,
        namespace: NamespaceId,
        mut plan: MergePlan,
        (reading, report): (&mut Reading<'_>, &mut MergeReport),
    ) -> Result<bool, Error> {
        let mut segments_max = self.lock().merge_segments_max(namespace);
        while let Some(merged) = merge(reading, &plan, segments_max)? {
            match self.install(namespace, &merged, reading.pace.as_mut().expect(PACED)) {
                Err(error) if error.is_full() && segments_max > SEGMENTS_MIN => segments_max = SEGMENTS_MIN,
                installed => {
                    installed?;
                    plan.note_installed(&merged);
                    report.add_merged(&merged);
                    segments_max = self.lock().merge_segments_max(namespace);
                }
            }
        }
        let (dropped, bytes) = self.lock().drop_buffered(namespace, &plan)?;
        report.add_dropped(dropped, bytes);
        Ok(dropped == plan.buffered_drops())
    }

    /// What a crash would bring back from the commit ring cannot be dropped: makes that as little as possible. Returns whether space is
    /// so short that the merge should be thorough. On a device that is only read there is nothing to prepare.
    fn settle_for_merge(&self, namespace: NamespaceId) -> Result<bool, Error> {
        self.buffered_from(namespace)?; // its versions are in memory now
        let mut core = self.lock();
        if !core.is_read_only() {
            let (began, no_space_count) = (Instant::now(), core.no_space_count());
            while core.seals_are_due(namespace) && began.elapsed() < SEALS_WAIT {
                core = self.wait_for_programs(core, no_space_count)?;
            }
            core.prepare_merge(namespace);
            let request = core.request_root(true);
            self.wait_root(core, request)?;
            core = self.lock();
        }
        Ok(core.needs_thorough_merge())
    }

    /// What that would come to.
    pub(crate) fn preview_merge<'a>(
        &'a self,
        namespace: NamespaceId,
        retention: &Retention,
        pace: Pace<'a>,
    ) -> Result<MergeReport, Error> {
        let is_thorough = self.settle_for_merge(namespace)?;
        let scope: CoreScope = |core, namespace, row, is_thorough| core.merge_scope(namespace, row, is_thorough);
        let mut scopes = self.scopes(namespace, is_thorough, scope)?;
        self.each_row(namespace, pace, |reading, row, report| {
            let scope = scopes.of_row(row)?;
            let plan = plan_merge(reading, row, retention, &scope)?;
            report.add_looked_at(&plan);
            report.add_planned(&plan);
            Ok(())
        })
    }

    /// Acts on one row after another, until all are done or it is asked to end.
    fn each_row<'a>(
        &'a self,
        namespace: NamespaceId,
        pace: Pace<'a>,
        mut act: impl FnMut(&mut Reading<'a>, u32, &mut MergeReport) -> Result<(), Error>,
    ) -> Result<MergeReport, Error> {
        let mut reading = self.reading(namespace)?;
        let rows = pace.rows;
        reading.pace = Some(pace);
        let mut report = MergeReport::default();
        let done = (0..=rows).try_for_each(|row| {
            let pace = reading.pace.as_mut().expect(PACED);
            pace.rows_done = row;
            pace.ask()?;
            if row < rows { act(&mut reading, row, &mut report) } else { Ok(()) }
        });
        match done {
            Ok(()) | Err(Error::Cancelled) => Ok(report),
            Err(error) => Err(error),
        }
    }

    /// Merges a namespace because there is no space; called on a thread of its own.
    fn merge_when_low(&self, namespace: NamespaceId, retention: &Retention) {
        let alone = self.merge_alone();
        let merged = match self.ends_merges.load(Ordering::Acquire) {
            true => Ok(MergeReport::default()),
            false => Pace::new(self, namespace, &mut to_the_end)
                .and_then(|pace| self.merge_settled(namespace, retention, pace)),
        };
        match merged {
            Ok(report) => tracing::info!(namespace, dropped = report.dropped, "merged because space is low"),
            Err(error) => tracing::warn!(namespace, %error, "space is low, and a merge did not come to its end"),
        }
        self.lock().end_low_merge();
        drop(alone);
        self.wake_background();
    }

    /// What a merge that begins now must not touch. `scope` is the core's part of it.
    fn scopes(&self, namespace: NamespaceId, is_thorough: bool, scope: CoreScope) -> Result<Scopes<'_>, Error> {
        let buffered_from = self.buffered_from(namespace)?;
        Ok(Scopes { shared: self, namespace, is_thorough, scope, buffered_from, settles_left: SETTLES_MAX })
    }

    fn buffered_from(&self, namespace: NamespaceId) -> Result<Vec<u64>, Error> {
        self.visit(By::Store, |core| core.buffered_from(namespace)).map(|(_, from)| from)
    }

    /// Programs the segments of a merge, then puts them in place of the old ones.
    fn install(&self, namespace: NamespaceId, merged: &Merged, pace: &mut Pace<'_>) -> Result<(), Error> {
        let mut placed = Placed(self, Vec::with_capacity(merged.segments.len()));
        self.place_all(namespace, merged, (&mut placed.1, pace))?;
        let mut core = self.lock();
        let no_space_count = core.no_space_count();
        while !placed.1.iter().all(|ticket| core.is_segment_programmed(*ticket)) {
            core = self.wait_for_programs(core, no_space_count)?;
        }
        Ok(core.install_merge(namespace, merged, &placed.1)?)
    }

    fn place_all(
        &self,
        namespace: NamespaceId,
        merged: &Merged,
        (tickets, pace): (&mut Vec<u64>, &mut Pace<'_>),
    ) -> Result<(), Error> {
        for sealed in &merged.segments {
            let image = segment_image(sealed);
            let place = |core: &mut Core| core.place_merged(namespace, sealed, &image);
            let (core, ticket) = self.visit_with(By::Store, place, self.clear_until_no_space())?;
            tickets.push(ticket);
            drop(core);
            self.wake_background();
            pace.rest()?;
        }
        Ok(())
    }
}
