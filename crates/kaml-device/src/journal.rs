//! The journal being written: changes in commit order, packed into pages.
//!
//! Lives here:       the page being filled, pages waiting for a block, the runs that hold the remainder.
//!                   What is in no run yet goes into the root, so a root needs neither padding nor a block.
//! Lives elsewhere:  the page format (`format::journal`), replay (`recovery`).
//! Implements:       docs/ARCHITECTURE.md "Metadata"; docs/formats/journal.md.

use crate::format::journal::{self, Change, ENTRY_BYTES};
use crate::format::range::KeyRange;
use crate::format::root::Run;
use kaml_index::FullKey;
use std::collections::VecDeque;

/// A run of journal pages and the number of the first entry in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalRun {
    pub(crate) run: Run,
    pub(crate) entries_end: u64,
}

struct Waiting {
    page: Vec<u8>,
    entry_count: usize,
    entries_end: u64,
}

pub(crate) struct Journal {
    page_bytes: usize,
    page: Vec<u8>,
    in_page: usize,
    /// Number of the next entry.
    next_entry: u64,
    /// Completed pages that are not in a block yet, with the entry number after each and its entries.
    waiting: VecDeque<Waiting>,
    /// They are more than a root takes.
    is_urgent: bool,
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
            is_urgent: false,
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

    /// Appends a change of a key, after the bytes of a long one.
    pub(crate) fn append_of(&mut self, key: &FullKey<'_>, change: &Change) {
        if let (
            Change::Moved { namespace, .. } | Change::Deleted { namespace, .. } | Change::Expires { namespace, .. },
            false,
        ) = (change, key.long_bytes().is_empty())
        {
            journal::key_bytes(*namespace, key.long_bytes()).for_each(|bytes| self.append(&bytes));
        }
        self.append(change);
    }

    /// Appends that the keys of a range are gone.
    pub(crate) fn append_range(&mut self, namespace: u32, range: &KeyRange) {
        journal::key_bytes(namespace, &range.encode()).for_each(|bytes| self.append(&bytes));
        self.append(&Change::RangeDeleted { namespace });
    }

    /// Completes the page being filled, if it holds anything.
    fn seal_page(&mut self) {
        if self.in_page == 0 {
            return;
        }
        journal::seal(&mut self.page, self.next_entry - self.in_page as u64, self.in_page);
        let page = std::mem::replace(&mut self.page, vec![0; self.page_bytes]);
        self.waiting.push_back(Waiting { page, entry_count: self.in_page, entries_end: self.next_entry });
        self.in_page = 0;
        self.pages_since_checkpoint += 1;
    }

    /// Completes the page being filled, so all entries can be given places.
    pub(crate) fn seal_tail(&mut self) {
        self.seal_page();
        self.is_urgent = !self.waiting.is_empty();
    }

    /// Whether the next root waits until all pages that wait have places.
    pub(crate) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Waiting pages that need places now: whole program units, which need no padding, or all.
    pub(crate) fn wanting_count(&self, pages_per_program: u32) -> usize {
        let unit = if self.is_urgent { 1 } else { pages_per_program as usize };
        self.waiting.len() / unit * unit
    }

    /// The next page that waits.
    pub(crate) fn waiting(&self) -> Option<&[u8]> {
        self.waiting.front().map(|waiting| waiting.page.as_slice())
    }

    /// The page from `waiting` was put there.
    pub(crate) fn placed(&mut self, block: u32, page: u32) {
        let entries_end = self.waiting.pop_front().expect("a page was waiting").entries_end;
        self.is_urgent &= !self.waiting.is_empty();
        match self.runs.last_mut() {
            Some(last) if last.run.block == block && last.run.page + last.run.page_count == page => {
                last.run.page_count += 1;
                last.entries_end = entries_end;
            }
            _ => self.runs.push(JournalRun { run: Run { block, page, page_count: 1 }, entries_end }),
        }
    }

    /// Bytes of the entries that have no place.
    pub(crate) fn tail_bytes(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(|waiting| waiting.entry_count).sum();
        (waiting + self.in_page) * ENTRY_BYTES
    }

    /// The entries that have no place, as they would are in pages.
    pub(crate) fn tail(&self) -> Vec<u8> {
        let waiting = self.waiting.iter().map(|waiting| (&waiting.page, waiting.entry_count));
        let pages = waiting.chain([(&self.page, self.in_page)]);
        pages.flat_map(|(page, count)| journal::entry_bytes(page, count)).copied().collect()
    }

    /// All pages that have a place.
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.runs.iter().map(|r| r.run).collect()
    }

    /// Drops pages whose entries are all before `entry`; returns the runs among them.
    pub(crate) fn trim(&mut self, entry: u64) -> Vec<Run> {
        self.waiting.retain(|waiting| waiting.entries_end > entry);
        self.is_urgent &= !self.waiting.is_empty();
        if self.next_entry <= entry {
            self.in_page = 0;
        }
        let keep = self.runs.iter().position(|r| r.entries_end > entry).unwrap_or(self.runs.len());
        self.pages_since_checkpoint = 0;
        self.runs.drain(..keep).map(|r| r.run).collect()
    }
}
