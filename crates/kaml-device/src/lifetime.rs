//! How long records live, and the class of block they go to because of it.
//!
//! Lives here:       the classes of blocks, what lifespan or age belongs to which.
//! Lives elsewhere:  when a block was written (`blocks`), requesting a class (`staging`, `gc`), open blocks (`writers`).
//! Implements:       paper:SepBIT (FAST 2022), with classes that puts and collection share.
//!
//! A block whose records die together is emptied by them: collecting it costs nothing. When a record will die is not
//! known, but two things are. A put that replaces a record ends a life, and the next one will be about as long. A
//! record that collection finds alive has an age, and will probably live about as long again. Both are counted in
//! records that hosts have written meanwhile, and compared with how long blocks of the shortest lives last.

use kaml_flash::Geometry;

/// What a block is filled with; records of different lifetimes do not share blocks. The numbers are on the medium.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Class {
    /// Records that will soon be replaced; also those of which nothing is known.
    Hot = 1,
    /// Large records, programmed before they are committed.
    Direct = 2,
    /// Records that nobody has replaced for long.
    Cold = 3,
    /// The journal.
    Journal = 4,
    /// Index snapshots and block tables.
    Snapshot = 5,
    /// Records that live a few times as long as hot ones.
    Warm = 6,
    /// Records that live many times as long as hot ones.
    Cool = 7,
    /// Segments of versioned namespaces.
    Segment = 8,
}

impl Class {
    /// How many there are.
    pub(crate) const COUNT: usize = Class::Segment as usize;

    /// Its number from 0 on.
    pub(crate) fn place(self) -> usize {
        self as usize - 1
    }

    pub(crate) fn is_metadata(self) -> bool {
        matches!(self, Class::Journal | Class::Snapshot)
    }
}

/// From short lives to long ones. Puts take all but the last, collection all but the first.
const FOUR: [Class; 4] = [Class::Hot, Class::Warm, Class::Cool, Class::Cold];
const TWO: [Class; 2] = [Class::Hot, Class::Cold];
/// Blocks of a die from which on four classes gain more than their open blocks cost.
const BLOCKS_FOR_FOUR: u32 = 40;
/// A class's lifespans end at this many times those of the one before.
const STEP: u64 = 4;
/// The mean life of hot blocks follows the last few of them: one counts 1/16.
const HOT_LIFE_SHIFT: u32 = 4;

/// The classes of records on a device of this shape.
pub(crate) fn record_classes(geometry: &Geometry) -> &'static [Class] {
    if geometry.blocks_per_die >= BLOCKS_FOR_FOUR { &FOUR } else { &TWO }
}

/// What has been learned of lifetimes since the device was opened.
#[derive(Debug)]
pub(crate) struct Lifetimes {
    classes: &'static [Class],
    /// The newest record's sequence: the time.
    now: u64,
    /// From opening to emptying of hot blocks, smoothed; nothing until one was emptied.
    hot_life: Option<u64>,
}

impl Lifetimes {
    pub(crate) fn new(geometry: &Geometry) -> Lifetimes {
        Lifetimes { classes: record_classes(geometry), now: 0, hot_life: None }
    }

    /// The classes of records, as of opening: a device that is resized keeps them until it is opened again.
    pub(crate) fn classes(&self) -> &'static [Class] {
        self.classes
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// A record with this sequence was written or moved.
    pub(crate) fn advance(&mut self, sequence: u64) {
        self.now = self.now.max(sequence);
    }

    /// A hot block that was opened then is empty now.
    pub(crate) fn hot_block_emptied(&mut self, opened_at: u64) {
        let life = (self.now - opened_at).max(1);
        self.hot_life = Some(match self.hot_life {
            None => life,
            Some(mean) => mean - (mean >> HOT_LIFE_SHIFT) + (life >> HOT_LIFE_SHIFT),
        });
    }

    /// Whether lifespans of replaced records make a difference to the class of a put.
    pub(crate) fn tells_puts_apart(&self) -> bool {
        self.hot_life.is_some() && self.classes.len() > 2
    }

    /// The class of a put that replaces a record which was written then, or none.
    pub(crate) fn of_put(&self, replaced: Option<u64>) -> Class {
        let lifespan = replaced.map_or(u64::MAX, |written| self.now.saturating_sub(written));
        let step = self.hot_life.map_or(0, |limit| self.step(lifespan, limit));
        self.classes[step.min(self.classes.len() - 2)]
    }

    /// The class of a record that was written then and is still alive.
    pub(crate) fn of_moved(&self, written: u64) -> Class {
        let last = self.classes.len() - 1;
        let age = self.now.saturating_sub(written);
        let step = self.hot_life.map_or(last, |limit| self.step(age, limit));
        self.classes[step.clamp(1, last)]
    }

    fn step(&self, span: u64, hot_life: u64) -> usize {
        let limits = std::iter::successors(Some(hot_life), |limit| Some(limit.saturating_mul(STEP)));
        limits.take(self.classes.len() - 1).take_while(|limit| span >= *limit).count()
    }

    /// Where a moved record may go if there is no block of its class: colder classes first.
    pub(crate) fn alternatives(&self, to: Class) -> impl Iterator<Item = Class> + use<> {
        self.classes.iter().rev().copied().filter(move |class| *class != to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetimes(blocks_per_die: u32) -> Lifetimes {
        let geometry = Geometry { blocks_per_die, pages_per_block: 64, channel_count: 1, ..crate::small::geometry() };
        let mut lifetimes = Lifetimes::new(&geometry);
        lifetimes.advance(1_000_000);
        lifetimes
    }

    /// Goal:   before anything is known puts are hot and moved records cold; then spans decide, each class ending at
    ///         four times the one before; puts are never cold and moved records never hot.
    /// Method: spans on both sides of each limit.
    #[test]
    fn spans_choose_classes() {
        use Class::{Cold, Cool, Hot, Warm};
        let mut four = lifetimes(BLOCKS_FOR_FOUR);
        assert!(!four.tells_puts_apart());
        assert_eq!((four.of_put(None), four.of_put(Some(0)), four.of_moved(999_999)), (Hot, Hot, Cold));
        four.hot_block_emptied(999_000);
        assert!(four.tells_puts_apart());
        let at = |span: u64| (four.of_put(Some(1_000_000 - span)), four.of_moved(1_000_000 - span));
        let found = [0, 999, 1000, 3999, 4000, 15_999, 16_000, 1_000_000].map(at);
        let hot = [(Hot, Warm); 2];
        let rest = [(Warm, Warm), (Warm, Warm), (Cool, Cool), (Cool, Cool), (Cool, Cold), (Cool, Cold)];
        assert_eq!((&found[..2], &found[2..]), (&hot[..], &rest[..]));
        assert_eq!(four.of_put(None), Cool);

        let mut two = lifetimes(BLOCKS_FOR_FOUR - 1);
        two.hot_block_emptied(999_000);
        assert!(!two.tells_puts_apart());
        assert_eq!((two.of_put(None), two.of_put(Some(0)), two.of_moved(999_999)), (Hot, Hot, Cold));
    }

    /// Goal:   the mean follows a change of the workload and never becomes zero.
    /// Method: many long lives, then many short ones.
    #[test]
    fn the_mean_life_follows() {
        let mut lifetimes = lifetimes(BLOCKS_FOR_FOUR);
        (0..100).for_each(|_| lifetimes.hot_block_emptied(900_000));
        assert!(lifetimes.hot_life.is_some_and(|life| (99_000..=100_000).contains(&life)));
        (0..200).for_each(|_| lifetimes.hot_block_emptied(1_000_000));
        assert!(lifetimes.hot_life.is_some_and(|life| (1..32).contains(&life)));
    }
}
