//! The journal being written: changes in commit order, packed into pages.
//!
//! Lives here:       the page being filled, pages waiting for a block, the runs that hold the rest.
//! Lives elsewhere:  the page format (`format::journal`), replay (`recovery`).
//! Implements:       design section 6.

use crate::format::journal::{self, Change};
use crate::format::root::Run;
use std::collections::VecDeque;

/// A run of journal pages and the number of the first entry in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalRun {
    pub(crate) run: Run,
    pub(crate) entries_end: u64,
}

pub(crate) struct Journal {
    page_bytes: usize,
    page: Vec<u8>,
    in_page: usize,
    /// Number of the next entry.
    next_entry: u64,
    /// Whole pages that are not in a block yet, with the entry number behind each.
    waiting: VecDeque<(Vec<u8>, u64)>,
    runs: Vec<JournalRun>,
    pub(crate) pages_since_checkpoint: u64,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("next_entry", &self.next_entry)
            .field("waiting", &self.waiting.len())
            .field("pages", &self.runs.iter().map(|r| r.run.page_count).sum::<u32>())
            .field("pages_since_checkpoint", &self.pages_since_checkpoint)
            .finish_non_exhaustive()
    }
}

impl Journal {
    pub(crate) fn new(page_bytes: u32, next_entry: u64, runs: Vec<JournalRun>) -> Journal {
        Journal {
            page_bytes: page_bytes as usize,
            page: vec![0; page_bytes as usize],
            in_page: 0,
            next_entry,
            waiting: VecDeque::new(),
            pages_since_checkpoint: runs.iter().map(|r| u64::from(r.run.page_count)).sum(),
            runs,
        }
    }

    pub(crate) fn next_entry(&self) -> u64 {
        self.next_entry
    }

    pub(crate) fn append(&mut self, change: &Change) {
        journal::write_entry(&mut self.page, self.in_page, change);
        self.in_page += 1;
        self.next_entry += 1;
        if self.in_page == journal::entries_per_page(self.page_bytes) {
            self.seal_page();
        }
    }

    /// Completes the page being filled, if it holds anything.
    pub(crate) fn seal_page(&mut self) {
        if self.in_page == 0 {
            return;
        }
        journal::seal(&mut self.page, self.next_entry - self.in_page as u64, self.in_page);
        let full = std::mem::replace(&mut self.page, vec![0; self.page_bytes]);
        self.waiting.push_back((full, self.next_entry));
        self.in_page = 0;
        self.pages_since_checkpoint += 1;
    }

    /// The next page that needs a place.
    pub(crate) fn waiting(&self) -> Option<&[u8]> {
        self.waiting.front().map(|(page, _)| page.as_slice())
    }

    /// The page from `waiting` was put there.
    pub(crate) fn placed(&mut self, block: u32, page: u32) {
        let (_, entries_end) = self.waiting.pop_front().expect("a page was waiting");
        match self.runs.last_mut() {
            Some(last) if last.run.block == block && last.run.page + last.run.page_count == page => {
                last.run.page_count += 1;
                last.entries_end = entries_end;
            }
            _ => self.runs.push(JournalRun { run: Run { block, page, page_count: 1 }, entries_end }),
        }
    }

    /// All pages that have a place.
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.runs.iter().map(|r| r.run).collect()
    }

    /// Drops runs whose entries are all before `entry`; answers them.
    pub(crate) fn trim(&mut self, entry: u64) -> Vec<Run> {
        let keep = self.runs.iter().position(|r| r.entries_end > entry).unwrap_or(self.runs.len());
        self.pages_since_checkpoint = 0;
        self.runs.drain(..keep).map(|r| r.run).collect()
    }
}
