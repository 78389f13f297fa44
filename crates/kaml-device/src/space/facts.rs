//! What room depends on, as a few small enums: a test can enumerate all situations.
//!
//! Lives here:       the facts.
//! Lives elsewhere:  computing them (`situation`), what follows from them (`space`).

use crate::listed::listed;

listed! {
    /// Free blocks, erased or not, in the steps that floors distinguish.
    pub(super) enum Free {
        None,
        One,
        Two,
        Three,
        /// More than three, and not more than hosts leave to others.
        Reserve,
        More,
    }
}

listed! {
    /// Page programs in progress.
    pub(super) enum Programs {
        /// At most [`IMAGE_BYTES_MAX`].
        Few,
        /// At most [`MOVE_BYTES_MAX`].
        Several,
        /// At most [`PROGRAMMING_BYTES_MAX`].
        Many,
        TooMany,
    }
}

listed! {
    /// Space below the device, for example in the file system that holds its file.
    pub(super) enum Below {
        Room,
        /// Some programs or erases wait for space.
        Full,
    }
}

listed! {
    /// What hosts may write while collection runs.
    pub(super) enum Budget {
        Left,
        Spent,
    }
}

listed! {
    pub(super) enum Collection {
        Resting,
        /// It empties blocks.
        Running,
        /// Free blocks are short, and nothing that continues by itself will change that.
        Deadlocked,
    }
}

listed! {
    pub(super) enum Metadata {
        Whole,
        /// A checkpoint must replace it before the next root.
        Lost,
    }
}

listed! {
    /// Whether a purpose that leaves the last block to others may take it nevertheless.
    pub(super) enum LastBlock {
        Kept,
        Allowed,
    }
}

listed! {
    pub(super) enum Activity {
        /// Operations are in flight or about to be, or an index is being loaded.
        UnderWay,
        /// No operation is in flight, but there is something to do.
        Still,
        /// Nothing is in flight or due.
        Idle,
    }
}

listed! {
    pub(super) enum RootState {
        Idle,
        Committing,
    }
}

listed! {
    /// Entries of the journal that are in no page yet.
    pub(super) enum JournalTail {
        FitsRoot,
        /// They need pages before the next root.
        Urgent,
    }
}

listed! {
    /// Blocks that a root which forgets the oldest frames can release.
    pub(super) enum Reclaimed {
        None,
        Some,
    }
}

listed! {
    /// What a command needs of the room for live data.
    pub(super) enum Data {
        Fits,
        /// The page buffer of its namespace has no room.
        ExceedsPageBuffer,
        /// It fits, unless what is staged replaces no record.
        ExceedsWithStaged,
        /// A merge that continues needs what remains: it writes new segments before it releases old ones.
        NeededByMerge,
        Exceeds,
    }
}

listed! {
    /// Erased blocks, for a Put of several blocks.
    pub(super) enum Erased {
        Enough,
        Few,
        /// Nothing that continues by itself brings more.
        FewForGood,
    }
}

/// What the answer depends on, besides purpose and need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Situation {
    pub(super) free: Free,
    pub(super) programs: Programs,
    pub(super) below: Below,
    pub(super) budget: Budget,
    pub(super) collection: Collection,
    /// A driver merges versions because space is low.
    pub(super) is_merging: bool,
    /// Records of a deleted namespace still count as live.
    pub(super) is_deleting: bool,
    pub(super) metadata: Metadata,
    pub(super) last_block: LastBlock,
    // Needed only by work in the background, and by those that wait for a root:
    pub(super) activity: Activity,
    pub(super) root: RootState,
    pub(super) journal: JournalTail,
    pub(super) reclaimed: Reclaimed,
}

/// Bytes of programs in progress beyond which hosts wait, and what hosts wait for.
pub(crate) const PROGRAMMING_BYTES_MAX: u64 = 32 << 20;
/// The same for collection.
const MOVE_BYTES_MAX: u64 = 8 << 20;
/// The same for checkpoint images.
const IMAGE_BYTES_MAX: u64 = 4 << 20;
impl Free {
    #[inline]
    pub(super) fn of(count: u32, reserve: u32) -> Free {
        match count {
            0 => Free::None,
            1 => Free::One,
            2 => Free::Two,
            3 => Free::Three,
            count if count <= reserve => Free::Reserve,
            _ => Free::More,
        }
    }

    /// The most blocks that this step means. Only floors are converted: no floor is as high as [`Free::More`].
    pub(super) fn blocks(self, reserve: u32) -> u32 {
        match self {
            Free::None => 0,
            Free::One => 1,
            Free::Two => 2,
            Free::Three => 3,
            Free::Reserve => reserve,
            Free::More => u32::MAX,
        }
    }
}

impl Programs {
    #[inline]
    pub(super) fn of(bytes: u64) -> Programs {
        match bytes {
            bytes if bytes <= IMAGE_BYTES_MAX => Programs::Few,
            bytes if bytes <= MOVE_BYTES_MAX => Programs::Several,
            bytes if bytes <= PROGRAMMING_BYTES_MAX => Programs::Many,
            _ => Programs::TooMany,
        }
    }
}

impl LastBlock {
    pub(super) fn of(is_allowed: bool) -> LastBlock {
        if is_allowed { LastBlock::Allowed } else { LastBlock::Kept }
    }
}
