//! What a power cut may leave of a file, from the trace of what was written to it and synced.
//!
//! Lives here:       versions of each sector, which of them are durable, choosing a legal state, writing it to a file.
//! Lives elsewhere:  the trace (`kaml_flash::FileTrace`), opening and checking the state (`check`).
//! Implements:       docs/simulation.md "The file medium".
//!
//! A disk keeps the sectors of what was not synced in any combination: a sector holds its durable version or any later one,
//! whatever the others hold. Writes to the same sector reach it in the order in which they began.

use crate::rng::Rng;
use kaml_flash::{FileChange, FileEvent};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// A promise that a disk does not keep, to see that the checkers notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BrokenDisk {
    /// A sync makes nothing durable.
    IgnoresSyncs,
    /// A DSYNC write is durable only after a sync.
    IgnoresDsync,
}

struct Version {
    /// The change that made it; 0: what existed before the trace.
    number: u64,
    /// Nothing: zeroes.
    bytes: Option<Arc<[u8]>>,
    /// When its change ended, in events.
    ended: Option<u64>,
}

/// A file under a trace.
pub struct FileStates {
    file_bytes: u64,
    sector_bytes: usize,
    /// Durable version first. Sectors without an entry hold zeroes.
    sectors: BTreeMap<u64, VecDeque<Version>>,
    /// Sectors of several versions.
    open: BTreeSet<u64>,
    /// Changes in progress: what, and the event that began it.
    begun: BTreeMap<u64, (FileChange, u64)>,
    event: u64,
    broken: Option<BrokenDisk>,
}

/// States of a moment up to which all of them are tried.
const STATES_EXHAUSTED: u64 = 16;

impl FileStates {
    /// A file as it is now, all of it durable.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(path: &Path, sector_bytes: u32, broken: Option<BrokenDisk>) -> io::Result<FileStates> {
        let bytes = std::fs::read(path)?;
        let sector_bytes = sector_bytes as usize;
        let version = |bytes: &[u8]| VecDeque::from([Version { number: 0, bytes: Some(bytes.into()), ended: Some(0) }]);
        let sectors = bytes.chunks(sector_bytes).enumerate().filter(|(_, bytes)| bytes.iter().any(|b| *b != 0));
        Ok(FileStates {
            file_bytes: bytes.len() as u64,
            sector_bytes,
            sectors: sectors.map(|(sector, bytes)| (sector as u64, version(bytes))).collect(),
            open: BTreeSet::new(),
            begun: BTreeMap::new(),
            event: 0,
            broken,
        })
    }

    /// Takes the next event of the trace.
    pub fn note(&mut self, event: FileEvent) {
        self.event += 1;
        match event {
            FileEvent::Begin(number, change) => {
                match &change {
                    FileChange::Write { at, bytes, .. } => {
                        let sector_bytes = self.sector_bytes;
                        assert!(at.is_multiple_of(sector_bytes as u64) && bytes.len().is_multiple_of(sector_bytes));
                        for (i, bytes) in bytes.chunks(sector_bytes).enumerate() {
                            self.change(at / sector_bytes as u64 + i as u64, number, Some(bytes.into()));
                        }
                    }
                    FileChange::Punch { .. } => {
                        self.range(&change).for_each(|sector| self.change(sector, number, None));
                    }
                    FileChange::Sync => {}
                }
                self.begun.insert(number, (change, self.event));
            }
            FileEvent::End(number, succeeded) => {
                let (change, began) = self.begun.remove(&number).expect("what ends has begun");
                if succeeded {
                    self.end(number, &change, began);
                }
            }
        }
    }

    fn range(&self, change: &FileChange) -> std::ops::Range<u64> {
        let (at, len) = match change {
            FileChange::Write { at, bytes, .. } => (*at, bytes.len() as u64),
            FileChange::Punch { at, len } => (*at, *len),
            FileChange::Sync => (0, 0),
        };
        let sector_bytes = self.sector_bytes as u64;
        at / sector_bytes..(at + len) / sector_bytes
    }

    fn change(&mut self, sector: u64, number: u64, bytes: Option<Arc<[u8]>>) {
        let zeroes = || VecDeque::from([Version { number: 0, bytes: None, ended: Some(0) }]);
        let versions = self.sectors.entry(sector).or_insert_with(zeroes);
        versions.push_back(Version { number, bytes, ended: None });
        self.open.insert(sector);
    }

    fn end(&mut self, number: u64, change: &FileChange, began: u64) {
        match change {
            FileChange::Sync if self.broken == Some(BrokenDisk::IgnoresSyncs) => {}
            FileChange::Sync => {
                for sector in std::mem::take(&mut self.open) {
                    self.keep_from(sector, |version| version.ended.is_some_and(|ended| ended < began));
                }
            }
            FileChange::Write { dsync, .. } => {
                let is_durable = *dsync && self.broken != Some(BrokenDisk::IgnoresDsync);
                self.range(change).for_each(|sector| self.ended(sector, number, is_durable));
            }
            FileChange::Punch { .. } => self.range(change).for_each(|sector| self.ended(sector, number, false)),
        }
    }

    fn ended(&mut self, sector: u64, number: u64, is_durable: bool) {
        let event = self.event;
        let versions = self.sectors.get_mut(&sector).expect("it was changed");
        for version in versions.iter_mut().filter(|version| version.number == number) {
            version.ended = Some(event);
        }
        if is_durable {
            self.open.remove(&sector);
            self.keep_from(sector, |version| version.number == number);
        }
    }

    /// The last version for which `is_durable` returns true is durable, and those before it are gone.
    fn keep_from(&mut self, sector: u64, is_durable: impl Fn(&Version) -> bool) {
        let versions = self.sectors.get_mut(&sector).expect("it was changed");
        if let Some(first) = versions.iter().rposition(is_durable) {
            versions.drain(..first);
        }
        if versions.len() > 1 {
            self.open.insert(sector);
        }
    }

    /// How many states a cut at this moment may leave, if they are few.
    fn few(&self) -> Option<u64> {
        let counts = self.open.iter().map(|sector| self.sectors[sector].len() as u64);
        counts.into_iter().try_fold(1, |product, count| Some(product * count).filter(|n| *n <= STATES_EXHAUSTED))
    }

    /// How many states a cut at this moment may leave, or how many to sample if they are many.
    pub fn count(&self) -> u64 {
        self.few().unwrap_or(STATES_EXHAUSTED)
    }

    /// Writes one of the states of this moment to another file: the `which`-th of all of them, or, where they are many, a
    /// sample.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path, which: u64, choice: &mut Rng) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.file_bytes)?;
        let pick = Pick::choose(self, which, choice);
        let mut rest = which;
        for (sector, versions) in &self.sectors {
            let version = match versions.len() {
                1 => 0,
                count => pick.version(versions, &mut rest, choice).min(count - 1),
            };
            if let Some(bytes) = &versions[version].bytes {
                file.write_all_at(bytes, sector * self.sector_bytes as u64)?;
            }
        }
        Ok(())
    }
}

/// How a state is chosen.
enum Pick {
    /// By number, all of them in turn.
    Number,
    /// Nothing that was not durable.
    Oldest,
    /// Everything.
    Newest,
    /// What began before this change.
    Before(u64),
    /// Everything but this change.
    Without(u64),
    /// Nothing but this change.
    Only(u64),
    /// Each sector by itself.
    Any,
}

impl Pick {
    fn choose(states: &FileStates, which: u64, choice: &mut Rng) -> Pick {
        if states.few().is_some() {
            return Pick::Number;
        }
        let numbers = || states.open.iter().flat_map(|sector| states.sectors[sector].iter().skip(1)).map(|v| v.number);
        let numbers: Vec<u64> = numbers().collect::<BTreeSet<u64>>().into_iter().collect();
        let one = |choice: &mut Rng| numbers[choice.below(numbers.len() as u64) as usize];
        match which % 6 {
            0 => Pick::Oldest,
            1 => Pick::Newest,
            2 => Pick::Before(one(choice)),
            3 => Pick::Without(one(choice)),
            4 => Pick::Only(one(choice)),
            _ => Pick::Any,
        }
    }

    fn version(&self, versions: &VecDeque<Version>, rest: &mut u64, choice: &mut Rng) -> usize {
        let count = versions.len();
        let last = |is: &dyn Fn(&Version) -> bool| versions.iter().skip(1).rposition(is).map_or(0, |i| i + 1);
        match self {
            Pick::Number => {
                let version = *rest % count as u64;
                *rest /= count as u64;
                version as usize
            }
            Pick::Oldest => 0,
            Pick::Newest => count - 1,
            Pick::Before(number) => last(&|version| version.number < *number),
            Pick::Without(number) => last(&|version| version.number != *number),
            Pick::Only(number) => last(&|version| version.number == *number),
            Pick::Any => choice.below(count as u64) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn write(at: u64, byte: u8, dsync: bool) -> FileChange {
        FileChange::Write { at: at * 512, bytes: vec![byte; 512].into(), dsync }
    }

    /// Goal:   a sync covers what ended before it began, DSYNC its own bytes, and everything else is in some state.
    /// Method: four sectors, one for each case; the bytes of all states.
    #[test]
    fn states_are_what_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let (path, out) = (dir.path().join("base"), dir.path().join("state"));
        std::fs::write(&path, vec![9; 4 * 512]).unwrap();
        let found = |broken| {
            let mut states = FileStates::of(&path, 512, broken).unwrap();
            let begin = |number, change| FileEvent::Begin(number, change);
            let end = |number| FileEvent::End(number, true);
            let events = [
                begin(1, write(0, 1, false)),
                end(1),
                begin(2, write(1, 1, false)),
                begin(3, FileChange::Sync),
                end(2),
                end(3),
                begin(4, write(2, 1, true)),
                end(4),
                begin(5, FileChange::Punch { at: 3 * 512, len: 512 }),
            ];
            events.into_iter().for_each(|event| states.note(event));
            let mut seen = BTreeMap::new();
            for which in 0..states.count() {
                states.write(&out, which, &mut Rng::new(which)).unwrap();
                let bytes = std::fs::read(&out).unwrap();
                *seen.entry([0, 1, 2, 3].map(|sector| bytes[sector * 512])).or_insert(0) += 1;
            }
            seen.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(found(None), [[1, 1, 1, 0], [1, 1, 1, 9], [1, 9, 1, 0], [1, 9, 1, 9]]);
        assert_eq!(found(Some(BrokenDisk::IgnoresSyncs)).len(), 8);
        assert_eq!(found(Some(BrokenDisk::IgnoresDsync)).len(), 8);
    }
}
