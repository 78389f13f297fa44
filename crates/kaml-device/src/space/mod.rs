//! The space ledger: which purpose may have room now, and what lifts a refusal.
//!
//! Lives here:       purposes, floors, admission, the reasons for waiting and refusing; the numbers that only they need.
//! Lives elsewhere:  which block is collected and how records move (`gc`), what a block is doing (`blocks`), where a
//!                   record is placed (`writers`).
//! Implements:       docs/ARCHITECTURE.md "Space".
//!
//! - `facts`:     what room depends on, as a few small enums; `situation` computes them;
//! - `ask`:       requesting room, and what the caller of the firmware gets;
//! - `ledger`:    the numbers that only these questions need;
//! - `pace`:      when collection runs, what hosts may write meanwhile, when blocks are released and erased;
//! - `sizes`:     how much may be live, and how many free blocks hosts leave;
//! - `progress`:  whether anything can still continue by itself, and which purpose may use the last block.
//!
//! The firmware asks fifteen questions about room, and all of them are here:
//!
//! | may a command begin? | `admit_data`, `admit_to_ring`, `admit_blocks` |
//! |---|---|
//! | may a purpose open a block, and program more? | `floor`, `no_block_for`, `may_program` |
//! | should room be made, and how? | `victim_chunks_max`, `blocks_are_wanted`, `erased_ahead` |
//! | how full is the device? | `is_filled`, `check_room_for_buffer` |
//! | what if nothing else makes progress? | `may_rehome`, `may_use_last_block`, `note_deadlock`, `stop_at_dead_end` |

mod ask;
mod facts;
mod ledger;
mod pace;
mod progress;
mod situation;
mod sizes;
#[cfg(test)]
mod tests;

pub(crate) use facts::PROGRAMMING_BYTES_MAX;
pub(crate) use ledger::{LowMerge, Space, packed};
#[cfg(test)]
pub(crate) use situation::HELD_SIXTEENTHS;

use crate::listed::listed;
use facts::{Activity, Below, Budget, Collection, Data, Erased, Free, JournalTail, LastBlock, Metadata};
use facts::{Programs, Reclaimed, RootState, Situation};

listed! {
    /// What room is needed for.
    pub(crate) enum Purpose {
        /// Records of a host, placed as they are staged, or versions.
        Put,
        /// Versions of keys that exist, in namespaces that keep only newest ones: a merge drops as many.
        Overwrite,
        /// A large value, programmed before its Put.
        Large,
        /// A command on user versions that makes the timeline longer.
        Timeline,
        /// Deletes of a host. They take journal, and no page.
        Delete,
        /// Deletes in versioned namespaces: they are versions, too.
        Tombstone,
        /// A command on user versions that makes the timeline shorter.
        Forget,
        /// A row of versions that is sealed into a segment.
        Seal,
        /// A new segment of a merge.
        Merge,
        /// A checkpoint image of an index, or the block table.
        Image,
        /// Versions of a page buffer that are kept in metadata pages.
        Keep,
        /// A record that opening finds in the ring.
        Replay,
        /// A live record or segment that collection moves.
        Move,
        /// What was in the buffers of a block that failed.
        Rehome,
        /// A page of the journal.
        Journal,
    }
}

/// What room is needed for, and how the need compares with what is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Need {
    /// A command is to be accepted.
    Command(Data),
    /// Its records are to be staged in the ring, which has no room for them.
    Ring,
    /// It needs several erased blocks at once.
    Erased(Erased),
    /// A log has to open another block.
    Block,
}

/// What ends a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitFor {
    /// A staged Put is committed: it may replace a record.
    Commit,
    /// Page programs complete.
    Programs,
    /// A root releases ring space.
    Root,
    /// Collection releases blocks, or finds garbage.
    Collection,
    /// A merge of versions ends.
    Merge,
    /// What a deleted namespace pointed at is counted.
    Deletion,
}

/// Why there will be no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// Live data take all that may be live.
    Full,
    /// Collection cannot make progress, and nothing else continues.
    Deadlock,
    /// The medium has no space below the device.
    NoSpaceBelow,
    /// No block is left for what must be written before any becomes free. The device stops.
    NoBlocks,
}

/// Whether there is room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Granted,
    /// Not now: this lifts the refusal.
    Wait(WaitFor),
    /// Not before something is deleted, or the device below has space again.
    Never(Why),
}

impl Purpose {
    /// The free blocks that this purpose leaves to others: it opens a block only while there are more.
    fn floor(self, metadata: Metadata, last_block: LastBlock) -> Free {
        match (self, last_block) {
            // Without a page of the journal there may be no root, and without a root no block becomes free.
            (Purpose::Journal, _) => Free::None,
            (Purpose::Move | Purpose::Rehome, LastBlock::Allowed) => Free::None,
            // Without a block to move records to, collection releases none.
            (Purpose::Move | Purpose::Rehome | Purpose::Replay, LastBlock::Kept) | (Purpose::Replay, _) => Free::One,
            // What is in page buffers was accepted from hosts already.
            (Purpose::Seal | Purpose::Merge, _) => Free::Two,
            // Deletes fill the journal, which may take blocks that collection needs.
            (Purpose::Image | Purpose::Keep | Purpose::Delete | Purpose::Tombstone | Purpose::Forget, last_block) => {
                match (metadata, last_block) {
                    (Metadata::Whole, _) => Free::Three,
                    // No block becomes free before a checkpoint has replaced what was lost.
                    (Metadata::Lost, LastBlock::Kept) => Free::One,
                    (Metadata::Lost, LastBlock::Allowed) => Free::None,
                }
            }
            (Purpose::Put | Purpose::Overwrite | Purpose::Large | Purpose::Timeline, _) => Free::Reserve,
        }
    }

    /// The most programs that may be in progress when this purpose adds some.
    fn programs_max(self) -> Programs {
        match self {
            Purpose::Image => Programs::Few,
            Purpose::Move => Programs::Several,
            Purpose::Put | Purpose::Overwrite | Purpose::Large => Programs::Many,
            Purpose::Delete | Purpose::Tombstone => Programs::Many,
            Purpose::Seal | Purpose::Merge | Purpose::Keep => Programs::Many,
            Purpose::Timeline | Purpose::Forget => Programs::TooMany,
            Purpose::Replay | Purpose::Rehome | Purpose::Journal => Programs::TooMany,
        }
    }
}

impl Situation {
    /// Whether a purpose may have room now. Nothing else decides that.
    #[inline]
    fn ask(&self, purpose: Purpose, need: Need) -> Answer {
        match need {
            Need::Command(data) => self.ask_command(purpose, data),
            // Without a page for the journal there will be no root.
            Need::Ring if self.ask(Purpose::Journal, Need::Block) == Answer::Never(Why::NoBlocks) => self.never(),
            Need::Ring => self.wait(WaitFor::Root),
            Need::Erased(Erased::Few) => self.without_block(purpose),
            Need::Erased(Erased::FewForGood) => self.never(),
            Need::Block if self.free <= purpose.floor(self.metadata, self.last_block) => self.without_block(purpose),
            Need::Erased(Erased::Enough) | Need::Block => Answer::Granted,
        }
    }

    #[inline]
    fn ask_command(&self, purpose: Purpose, data: Data) -> Answer {
        let takes_pages = matches!(purpose, Purpose::Put | Purpose::Overwrite | Purpose::Large | Purpose::Timeline);
        if takes_pages {
            if self.below == Below::Full {
                return Answer::Never(Why::NoSpaceBelow);
            }
        } else {
            if self.collection == Collection::Running && self.free <= purpose.floor(self.metadata, self.last_block) {
                return self.wait(WaitFor::Collection);
            }
            if self.collection == Collection::Deadlocked && self.free == Free::None {
                return self.never(); // the journal that deletes need could not continue
            }
        }
        match data {
            Data::NeededByMerge => Answer::Wait(WaitFor::Merge),
            Data::Exceeds => Answer::Never(Why::Full),
            Data::ExceedsWithStaged => Answer::Wait(WaitFor::Commit),
            Data::ExceedsPageBuffer => self.without_block(purpose),
            Data::Fits if takes_pages && self.budget == Budget::Spent => self.without_block(purpose),
            Data::Fits if self.programs > purpose.programs_max() => self.wait(WaitFor::Programs),
            Data::Fits => Answer::Granted,
        }
    }

    /// The answer where a purpose finds no block. It is to wait only if the wait will end.
    fn without_block(&self, purpose: Purpose) -> Answer {
        let is_still = self.activity != Activity::UnderWay && self.below == Below::Room;
        let is_deadlocked = self.collection == Collection::Deadlocked;
        match purpose {
            Purpose::Journal if is_still && self.root == RootState::Idle && self.journal == JournalTail::Urgent => {
                Answer::Never(Why::NoBlocks)
            }
            Purpose::Journal => Answer::Wait(WaitFor::Root),
            Purpose::Image if is_still && self.metadata == Metadata::Lost => Answer::Never(Why::NoBlocks),
            Purpose::Rehome if is_still && self.reclaimed == Reclaimed::None => Answer::Never(Why::NoBlocks),
            // A merge is what others wait for, so it does not wait for itself.
            Purpose::Merge if is_deadlocked || self.activity == Activity::Idle => Answer::Never(Why::Deadlock),
            Purpose::Seal | Purpose::Merge | Purpose::Image | Purpose::Keep => Answer::Wait(WaitFor::Collection),
            Purpose::Replay | Purpose::Move | Purpose::Rehome => Answer::Wait(WaitFor::Collection),
            _ if !is_deadlocked => Answer::Wait(WaitFor::Collection),
            _ if self.is_merging => Answer::Wait(WaitFor::Merge),
            _ => self.never(),
        }
    }

    /// Nothing that continues by itself brings room, unless a namespace is being deleted: its blocks were not collected.
    fn never(&self) -> Answer {
        match self.is_deleting {
            true => Answer::Wait(WaitFor::Deletion),
            false => Answer::Never(Why::Deadlock),
        }
    }

    /// The wait ends with programs. While those find no space below, nobody knows when that is.
    fn wait(&self, what: WaitFor) -> Answer {
        match self.below {
            Below::Full => Answer::Never(Why::NoSpaceBelow),
            Below::Room => Answer::Wait(what),
        }
    }
}
