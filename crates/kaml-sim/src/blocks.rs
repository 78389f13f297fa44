//! Hosts of block namespaces: writes and trims of blocks, until they are staged.
//!
//! Lives here:       drawing commands on blocks, what they change, where a block is read.
//! Lives elsewhere:  executing them (`world`), the comparison, to which a block is an address like a key (`model`).
//!
//! A block that holds zeroes counts as absent, so the model needs to know nothing of blocks.

use crate::check::Located;
use crate::host::Command;
use crate::model::{Address, Changes, Model};
use crate::rng::Rng;
use crate::scenario::Workload;
use crate::value::Value;
use kaml_device::{
    BlockChange, BlockOptions, BlockStep, Buffered, Core, Error, FindError, Found, Key, Reader, StageError,
};
use kaml_flash::Medium;
use std::ops::Range;

/// A write or a trim of blocks that waits to be staged.
#[derive(Debug)]
pub struct BlockPut {
    /// The namespace.
    pub space: u32,
    /// The blocks.
    pub blocks: Range<u64>,
    /// What they are to hold: the seed of each, or zeroes.
    seeds: Option<Vec<u64>>,
    options: BlockOptions,
    data: Vec<u8>,
    change: Option<Box<BlockChange>>,
}

impl BlockPut {
    /// The next command of some host of blocks; nothing if there are no block namespaces.
    pub fn draw(rng: &mut Rng, workload: &Workload, model: &Model, spaces: &[u32]) -> Option<Command> {
        let disks: Vec<u32> = spaces.iter().copied().filter(|id| model.disks.contains_key(id)).collect();
        let last = disks.len().checked_sub(1)? as u64;
        let space = disks[rng.below(last + 1) as usize];
        let options = model.disks[&space];
        let first = rng.below(workload.keys);
        if rng.below(100) < workload.get_percent {
            return Some(Command::Get((space, first)));
        }
        let count = rng.within(1, 20).min(workload.keys - first);
        let is_trim = rng.below(100) < workload.delete_percent;
        let seeds: Option<Vec<u64>> = (!is_trim).then(|| (0..count).map(|_| rng.draw()).collect());
        let value = |seed: &u64| Value { seed: *seed, len: options.block_bytes, expires: 0 }.noise();
        let data = seeds.iter().flatten().flat_map(value).collect();
        let blocks = first..first + count;
        Some(Command::Blocks(BlockPut { space, blocks, seeds, options, data, change: None }))
    }

    /// Whether it must wait: a trim passes over what is in progress, and the model knows one order only.
    pub fn must_wait(&self, model: &Model) -> bool {
        let touches = |address: &Address| address.0 == self.space && self.blocks.contains(&address.1);
        self.seeds.is_none() && model.unanswered.iter().any(|(_, changes)| changes.keys().any(touches))
    }

    /// Stages one Put of it; returns the frame and what it changes, if it was one.
    pub fn stage(
        &mut self,
        core: &mut Core,
        reader: &Reader,
    ) -> Result<(BlockStep, Option<(u64, Changes)>), StageError> {
        if self.change.is_none() {
            let (space, first, count) = (self.space, self.blocks.start, self.blocks.end - self.blocks.start);
            self.change = Some(Box::new(match self.seeds {
                Some(_) => BlockChange::write(reader, space, first, &self.data)?,
                None => BlockChange::trim(reader, space, std::slice::from_ref(&(first..first + count)))?,
            }));
        }
        let change = self.change.as_mut().expect("just made");
        let step = change.stage(core, &self.data)?;
        let put = change.last_put().map(|(frame, bytes)| (frame, self.changes(bytes)));
        Ok((step, put))
    }

    /// The content of a unit, for a write of a part of it.
    pub fn supply(&mut self, read: kaml_device::FlashRead, value: Vec<u8>) -> Result<(), Error> {
        self.change.as_mut().expect("it requested a read").supply(read, value)
    }

    /// What the model learns of some of its bytes.
    fn changes(&self, bytes: Range<u64>) -> Changes {
        let block_bytes = u64::from(self.options.block_bytes);
        let range = bytes.start / block_bytes..(bytes.end / block_bytes).min(self.blocks.end - self.blocks.start);
        let value = |i: u64| {
            self.seeds.as_ref().map(|seeds| Value { seed: seeds[i as usize], len: block_bytes as u32, expires: 0 })
        };
        range.map(|i| ((self.space, self.blocks.start + i), value(i))).collect()
    }
}

/// Where a block is, and which bytes of its unit.
pub(crate) fn find(
    core: &mut Core,
    reader: &Reader,
    medium: &dyn Medium,
    options: &BlockOptions,
    (space, block): Address,
) -> Result<(Located, Range<usize>), Error> {
    let span = options.spans(options.bytes_of(space, block, 1)?).next().expect("a block is in a unit");
    let located = loop {
        match reader.find_unit(space, span.unit) {
            Ok(Found::Absent) => break Located::Value(None),
            Ok(Found::Flash(read)) => break Located::Flash(read),
            Ok(Found::Buffered) => match core.read_buffered(space, Key::from(span.unit)) {
                Ok(Buffered::Absent) => break Located::Value(None),
                Ok(Buffered::Value(value)) => break Located::Value(block_of(&value, &span.in_unit)),
                Ok(Buffered::Packed(_)) => unreachable!("units are not compressed"),
                Ok(Buffered::Programmed(read)) => break Located::Flash(read),
                Err(FindError::Refused(error)) => return Err(error),
                Err(FindError::NeedIndex) => core.load_index(medium, space)?,
            },
            Err(FindError::Refused(error)) => return Err(error),
            Err(FindError::NeedIndex) => core.load_index(medium, space)?,
        }
    };
    Ok((located, span.in_unit))
}

/// A block of a unit, or nothing if it holds zeroes.
pub(crate) fn block_of(unit: &[u8], block: &Range<usize>) -> Option<Vec<u8>> {
    let bytes = &unit[block.clone()];
    bytes.iter().any(|byte| *byte != 0).then(|| bytes.to_vec())
}
