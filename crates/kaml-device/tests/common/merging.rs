//! Merges of versioned namespaces as a driver executes them, on one thread.

use super::common::{Cut, Life};
use kaml_device::{Core, Error, FindError, StageError, VersionReader, segment_image};
use kaml_flash::MemoryMedium;
use kaml_versions::{
    Error as Damage, MergePlan, Merged, Retention, SegmentAt, Source, Version, Versions, merge, plan_merge,
};
use std::ops::Range;

/// The versions of a device, read as a driver reads them.
pub(crate) struct Reading<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) medium: &'a MemoryMedium,
    pub(crate) reader: VersionReader,
    pub(crate) namespace: u32,
}

impl Source for Reading<'_> {
    type Error = Error;

    fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, Error> {
        self.core.load_index(self.medium, self.namespace)?;
        self.reader.look(look).map_err(|error| match error {
            FindError::Refused(error) => error,
            FindError::NeedIndex => unreachable!("just loaded"),
        })
    }

    fn read<T>(
        &mut self,
        at: SegmentAt,
        bytes: Range<usize>,
        take: impl FnMut(&[u8]) -> Result<T, Damage>,
    ) -> Result<T, Error> {
        self.core.read_part(self.medium, self.namespace, at, &bytes, take)
    }

    fn large(&mut self, _: &Version, number: u64) -> Result<Option<Vec<u8>>, Error> {
        loop {
            match self.core.read_large(self.medium, self.namespace, number) {
                Ok(found) => return Ok(found),
                Err(FindError::Refused(error)) => return Err(error),
                Err(FindError::NeedIndex) => self.core.load_large_values(self.medium, self.namespace)?,
            }
        }
    }
}

/// What stopped a merge.
#[derive(Debug)]
pub(crate) enum Stopped {
    Cut,
    Full,
}

impl From<Cut> for Stopped {
    fn from(Cut: Cut) -> Stopped {
        Stopped::Cut
    }
}

impl Life {
    pub(crate) fn reading(&mut self, namespace: u32) -> Reading<'_> {
        let reader = self.core.reader().versions(namespace).unwrap();
        Reading { core: &mut self.core, medium: &self.medium, reader, namespace }
    }

    /// Merges all rows, in pieces of at most so many segments; returns the number of versions dropped.
    pub(crate) fn merge(
        &mut self,
        namespace: u32,
        retention: &Retention,
        segments_max: impl Fn(&Core) -> usize,
    ) -> Result<u64, Stopped> {
        self.core.load_index(&self.medium, namespace).expect("whole");
        self.core.prepare_merge(namespace);
        let request = self.core.request_root(true);
        self.until(|core| core.roots_done() >= request)?;
        let is_thorough = self.core.needs_thorough_merge();
        let merged = self.merge_rows(namespace, retention, is_thorough, segments_max);
        if !matches!(merged, Err(Stopped::Cut))
            && let Some(request) = self.core.end_merge(namespace)
        {
            self.until(|core| core.roots_done() >= request)?;
        }
        merged
    }

    fn merge_rows(
        &mut self,
        namespace: u32,
        retention: &Retention,
        is_thorough: bool,
        segments_max: impl Fn(&Core) -> usize,
    ) -> Result<u64, Stopped> {
        let mut dropped = 0;
        for row in 0..self.core.reader().versions(namespace).unwrap().row_count() {
            let scope = loop {
                match self.core.begin_merge(namespace, row, is_thorough) {
                    Ok(scope) => break scope,
                    Err(StageError::Busy) => self.background(true)?,
                    Err(StageError::NeedIndex(id)) => self.core.load_index(&self.medium, id).expect("whole"),
                    Err(StageError::Refused(error) | StageError::RefusedAfter(_, error)) => panic!("{error}"),
                }
            };
            let mut plan = plan_merge(&mut self.reading(namespace), row, retention, &scope).unwrap();
            let planned = plan.dropped;
            let mut max = segments_max(&self.core);
            while let Some(merged) = merge(&mut self.reading(namespace), &plan, max).unwrap() {
                match self.install(namespace, &merged, &mut plan) {
                    Err(Stopped::Full) if max > 2 => max = 2,
                    installed => {
                        installed?;
                        max = segments_max(&self.core);
                    }
                }
            }
            self.core.drop_buffered(namespace, &plan).unwrap();
            dropped += planned;
        }
        Ok(dropped)
    }

    fn install(&mut self, namespace: u32, merged: &Merged, plan: &mut MergePlan) -> Result<(), Stopped> {
        let mut tickets = Vec::new();
        for sealed in &merged.segments {
            let ticket = loop {
                match self.core.place_merged(namespace, sealed, &segment_image(sealed)) {
                    Ok(ticket) => break ticket,
                    Err(StageError::Refused(Error::Full { .. })) => {
                        self.core.forget_merged(&tickets);
                        return Err(Stopped::Full);
                    }
                    Err(StageError::Busy) => self.background(true)?,
                    Err(other) => panic!("{other:?}"),
                }
            };
            tickets.push(ticket);
        }
        self.until(|core| tickets.iter().all(|ticket| core.is_segment_programmed(*ticket)))?;
        self.core.install_merge(namespace, merged, &tickets).unwrap();
        plan.note_installed(merged);
        Ok(())
    }
}
