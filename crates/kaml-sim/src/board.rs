//! Boards as files: the shape of the flash, and what flash, link and cores take; each number has its source or is marked as
//! assumed.
//!
//! Lives here:       the file format, the presets.
//! Lives elsewhere:  what the numbers do (`timing`, `controller`, kaml-flash's `Geometry`).
//! Implements:       paper:KAML IV.A, V.A (preset `kaml-2017`).

use crate::controller::{ControllerTiming, LinkTiming};
use crate::timing::NandTiming;
use kaml_flash::{Geometry, GeometryError, Packing};
use serde::Deserialize;
use std::ops::RangeInclusive;

/// A board.
#[derive(Clone, Debug, PartialEq)]
pub struct Board {
    /// Its name on the command line.
    pub name: String,
    /// The shape of its flash.
    pub geometry: Geometry,
    /// What flash, channels and the battery-backed buffer take.
    pub flash: NandTiming,
    /// The way to the host.
    pub link: LinkTiming,
    /// The cores between the two.
    pub controller: ControllerTiming,
}

/// Why a board is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BoardError {
    /// The text is not a board.
    #[error("not a board: {0}")]
    Syntax(#[from] toml::de::Error),
    /// No flash has this shape.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A list that is chosen from has nothing.
    #[error("board: {0} must not be empty")]
    Nothing(&'static str),
    /// A number that no board has.
    #[error("board: {name} is {value}, but must be from {least} to {most}")]
    OutOfRange {
        /// Of the number.
        name: &'static str,
        /// The contents of the file.
        value: u64,
        /// The least that there can be.
        least: u64,
        /// The most.
        most: u64,
    },
}

/// Refuses a number outside a range.
pub(crate) fn in_range(name: &'static str, value: u64, range: RangeInclusive<u64>) -> Result<(), BoardError> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(BoardError::OutOfRange { name, value, least: *range.start(), most: *range.end() }),
    }
}

/// The longest that anything on a board takes: ten seconds.
pub(crate) const NS_MAX: u64 = 10_000_000_000;
/// More than any rate: 1 PB/s.
pub(crate) const BYTES_PER_US_MAX: u64 = 1_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    geometry: Shape,
    flash: NandTiming,
    link: LinkTiming,
    controller: ControllerTiming,
}

/// As [`Geometry`], which does not know of files.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    channel_count: u32,
    dies_per_channel: u32,
    blocks_per_die: u32,
    pages_per_block: u32,
    page_bytes: u32,
    oob_bytes: u32,
    chunk_bytes: u32,
    pages_per_program: u32,
    packing: PackingName,
    ring_bytes: u64,
    sector_bytes: u32,
    root_bytes: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PackingName {
    Across,
    WithinPage,
}

const PRESETS: [&str; 2] = [include_str!("../boards/kaml-2017.toml"), include_str!("../boards/tlc.toml")];

impl Board {
    /// Those that come with the laboratory: `kaml-2017`, the paper's board, and `tlc`, a present drive.
    pub fn presets() -> Vec<Board> {
        PRESETS.iter().map(|text| Board::parse(text).expect("a test reads all presets")).collect()
    }

    /// The preset of that name.
    pub fn preset(name: &str) -> Option<Board> {
        Board::presets().into_iter().find(|board| board.name == name)
    }

    /// Reads a board from the text of its file.
    pub fn parse(text: &str) -> Result<Board, BoardError> {
        let File { name, geometry, flash, link, controller } = toml::from_str(text)?;
        let geometry = Geometry::from(geometry);
        geometry.check()?;
        flash.check().and(link.check()).and(controller.check())?;
        Ok(Board { name, geometry, flash, link, controller })
    }

    /// The same board with fewer or more erase blocks on each die.
    pub fn with_blocks_per_die(mut self, blocks_per_die: u32) -> Result<Board, BoardError> {
        self.geometry.blocks_per_die = blocks_per_die;
        self.geometry.check()?;
        Ok(self)
    }
}

impl From<Shape> for Geometry {
    fn from(shape: Shape) -> Geometry {
        Geometry {
            channel_count: shape.channel_count,
            dies_per_channel: shape.dies_per_channel,
            blocks_per_die: shape.blocks_per_die,
            pages_per_block: shape.pages_per_block,
            page_bytes: shape.page_bytes,
            oob_bytes: shape.oob_bytes,
            chunk_bytes: shape.chunk_bytes,
            pages_per_program: shape.pages_per_program,
            packing: match shape.packing {
                PackingName::Across => Packing::Across,
                PackingName::WithinPage => Packing::WithinPage,
            },
            ring_bytes: shape.ring_bytes,
            sector_bytes: shape.sector_bytes,
            root_bytes: shape.root_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Faults, Keep, Options, SimMedium, SimQueue, Timing};
    use kaml_flash::{AlignedBuf, BlockIndex, Io, Medium, PageAddr, Queue, Wait};
    use std::sync::Arc;

    /// A small paper board without spread, so times are sums.
    fn exact() -> (Board, SimMedium) {
        let mut board = Board::preset("kaml-2017").unwrap().with_blocks_per_die(4).unwrap();
        board.flash.spread_percent = 0;
        let timing = Timing::Board(board.flash.clone());
        let options = Options { timing, faults: Faults::default(), keep: Keep::Runs, blank: 0xFF, seed: 1 };
        let medium = SimMedium::new(board.geometry.clone(), options).unwrap();
        (board, medium)
    }

    fn program(board: &Board, block: u32) -> Io {
        let data = Arc::new(AlignedBuf::zeroed(board.geometry.page_bytes as usize));
        let at = PageAddr { block: BlockIndex(block), page: 0 };
        Io::Program { at, data, oob: vec![1; board.geometry.oob_bytes as usize], urgent: false }
    }

    fn read(board: &Board, block: u32) -> Io {
        Io::Read { at: board.geometry.chunk_at(BlockIndex(block), 0), into: AlignedBuf::zeroed(512) }
    }

    /// Virtual time until all of these are done, submitted at once.
    fn takes(medium: &SimMedium, ios: Vec<Io>) -> u64 {
        let mut queue = SimQueue::new(medium);
        let begin = medium.now_ns();
        ios.into_iter().zip(1..).for_each(|(io, id)| queue.submit(id, io));
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.reap(Wait::ForNs(1 << 40), &mut done);
        }
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
        medium.now_ns() - begin
    }

    /// Goal:   presets are read, the paper's numbers are the paper's, and a wrong file is refused with its reason.
    /// Method: sizes of the presets; a misspelt field, a shape that cannot be, a list of nothing.
    #[test]
    fn files_are_boards() {
        let paper = Board::preset("kaml-2017").unwrap();
        let bytes = paper.geometry.block_bytes() * u64::from(paper.geometry.block_count());
        assert!((374_000_000_000..376_000_000_000).contains(&bytes), "{bytes}");
        assert_eq!((paper.geometry.die_count(), paper.geometry.chunks_per_page()), (64, 64));
        assert_eq!(Board::preset("tlc").unwrap().geometry.chunks_per_page(), 64);
        assert!(Board::preset("none").is_none());
        let change = |from: &str, to: &str| Board::parse(&PRESETS[0].replace(from, to));
        assert!(matches!(change("planes", "plains"), Err(BoardError::Syntax(_))));
        assert!(matches!(change("page_bytes = 8192", "page_bytes = 8191"), Err(BoardError::Geometry(_))));
        assert_eq!(change("[75_000]", "[]"), Err(BoardError::Nothing("read_ns")));
        for (from, name, value) in [
            ("channel_bytes_per_us = 200", "channel_bytes_per_us", 0),
            ("spread_percent = 10", "spread_percent", 101),
            ("program_wear_percent = 15", "program_wear_percent", 101),
            ("[75_000]", "read_ns", NS_MAX + 1),
            ("command_cores = 3", "command_cores", 1 << 40),
        ] {
            assert!(PRESETS[0].contains(from), "{from}");
            let to = if from.starts_with('[') { format!("[{value}]") } else { format!("{name} = {value}") };
            let Err(BoardError::OutOfRange { name: which, value: found, .. }) = change(from, &to) else {
                panic!("{to}")
            };
            assert_eq!((which, found), (name, value));
        }
    }

    /// Goal:   an operation alone takes the times of the file: sensing and transfer, transfer and cells, an erase.
    /// Method: one of each on an idle board without spread.
    #[test]
    fn one_operation_takes_its_parts() {
        let (board, medium) = exact();
        let flash = &board.flash;
        let transfer = |bytes: u64| flash.channel_command_ns + bytes * 1000 / flash.channel_bytes_per_us;
        assert_eq!(takes(&medium, vec![program(&board, 0)]), transfer(8192 + 256) + flash.program_ns[0]);
        assert_eq!(takes(&medium, vec![read(&board, 0)]), flash.read_ns[0] + transfer(512));
        let erase = Io::Erase { block: BlockIndex(0), release: false };
        assert_eq!(takes(&medium, vec![erase]), flash.erase_ns);
    }

    /// Goal:   pages that are programmed together are of one kind, and the kinds take turns.
    /// Method: four pages at once on two planes: a lower and an upper pair.
    #[test]
    fn kinds_of_pages_take_turns() {
        let (board, medium) = exact();
        let flash = &board.flash;
        let at = PageAddr { block: BlockIndex(0), page: 0 };
        let io = Io::Program { at, data: Arc::new(AlignedBuf::zeroed(4 * 8192)), oob: vec![0; 4 * 256], urgent: false };
        let transfer = flash.channel_command_ns + 2 * (8192 + 256) * 1000 / flash.channel_bytes_per_us;
        assert_eq!(takes(&medium, vec![io]), 2 * transfer + flash.program_ns[0] + flash.program_ns[1]);
    }

    /// Goal:   pages are read together that have the same place in their planes, and no others.
    /// Method: two pages at once on two planes, from an even page on and from an odd one.
    #[test]
    fn pages_of_one_place_are_read_together() {
        let (board, medium) = exact();
        let flash = &board.flash;
        let two_from = |page: u32| {
            let chunk = page * board.geometry.chunks_per_page();
            let at = board.geometry.chunk_at(BlockIndex(0), chunk);
            vec![Io::Read { at, into: AlignedBuf::zeroed(2 * 8192) }]
        };
        let transfer = |pages: u64| flash.channel_command_ns + pages * 8192 * 1000 / flash.channel_bytes_per_us;
        assert_eq!(takes(&medium, two_from(0)), flash.read_ns[0] + transfer(2));
        assert_eq!(takes(&medium, two_from(1)), 2 * (flash.read_ns[0] + transfer(1)));
    }

    /// Goal:   dies work side by side, chips of one channel take turns on its bus, one die does one thing at a time.
    /// Method: two programs on two channels, on two dies of one channel, two reads on one die.
    #[test]
    fn dies_and_channels_are_shared() {
        let (board, medium) = exact();
        let flash = &board.flash;
        let transfer = |bytes: u64| flash.channel_command_ns + bytes * 1000 / flash.channel_bytes_per_us;
        let one = transfer(8192 + 256) + flash.program_ns[0];
        assert_eq!(takes(&medium, vec![program(&board, 0), program(&board, 1)]), one);
        let behind = board.geometry.channel_count;
        let both = takes(&medium, vec![program(&board, 2), program(&board, 2 + behind)]);
        assert_eq!(both, one + transfer(8192 + 256));
        let read_ns = flash.read_ns[0] + transfer(512);
        assert_eq!(takes(&medium, vec![read(&board, 0), read(&board, 0)]), 2 * read_ns);
    }

    /// Goal:   worn cells erase more slowly and program faster, as the file specifies.
    /// Method: erase a block to its rated number, time both.
    #[test]
    fn wear_changes_times() {
        let (mut board, _) = exact();
        board.flash.rated_erases = 10;
        let timing = Timing::Board(board.flash.clone());
        let options = Options { timing, faults: Faults::default(), keep: Keep::Runs, blank: 0xFF, seed: 1 };
        let medium = SimMedium::new(board.geometry.clone(), options).unwrap();
        let erase = || Io::Erase { block: BlockIndex(0), release: false };
        for _ in 0..10 {
            medium.execute(&mut erase()).unwrap();
        }
        assert_eq!(takes(&medium, vec![erase()]), 2 * board.flash.erase_ns);
        let transfer = board.flash.channel_command_ns + (8192 + 256) * 1000 / board.flash.channel_bytes_per_us;
        let worn = board.flash.program_ns[0] * 85 / 100;
        assert_eq!(takes(&medium, vec![program(&board, 0)]), transfer + worn);
    }
}
