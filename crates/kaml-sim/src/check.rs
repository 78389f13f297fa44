//! Is everything there that completed, and nothing else? Are the accounts exact?
//!
//! Lives here:       reading a device whole and comparing it, what a fault excuses.
//! Lives elsewhere:  what must exist (`model`), when this is checked (`run`).

use crate::blocks;
use crate::medium::SimMedium;
use crate::model::{Address, Comparison, Model, Phase};
use crate::scenario::Workload;
use crate::versions::{self, Past};
use kaml_device::FullKey;
use kaml_device::{
    BlockAudit, Buffered, Core, Error, FindError, FlashRead, Found, KeyBuf, KeyKind, NamespaceKind, Reader, SpaceReader,
};
use kaml_flash::{AlignedBuf, FileMedium, Io, Medium, MediumError, Overlay};
use std::collections::BTreeSet;
use std::ops::Range;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Violation {
    what: String,
}

impl Violation {
    /// What was seen.
    pub fn new(what: String) -> Violation {
        Violation { what }
    }
}

/// A medium that is tested, and what it may do to data.
pub trait Tested: Medium {
    /// Whether flash itself is the reason of an error, so the firmware may return it.
    fn excuses(&self, _error: &Error) -> bool {
        false
    }

    /// Whether its faults may lose data.
    fn loses_data(&self) -> bool {
        false
    }

    /// From now on no read fails and no bit flips, or they do again.
    fn spare_reads(&self, _spared: bool) {}
}

impl Tested for FileMedium {}

impl Tested for Overlay {}

impl Tested for SimMedium {
    fn excuses(&self, error: &Error) -> bool {
        is_excused(error, self)
    }

    fn loses_data(&self) -> bool {
        self.faults().lose_data()
    }

    fn spare_reads(&self, spared: bool) {
        SimMedium::spare_reads(self, spared);
    }
}

/// Whether flash itself is the reason of an error, so the firmware may return it.
pub fn is_excused(error: &Error, medium: &SimMedium) -> bool {
    let faults = medium.faults();
    let lossy = faults.disturb_reads();
    let has_failed = || !medium.bad_blocks().is_empty() || faults.die_dies_at.is_some();
    match error {
        Error::Medium(error) | Error::Stopped(error) => match error {
            MediumError::NoSpace { .. } => faults.no_space_ppm > 0,
            MediumError::ReadFailed { .. } => lossy,
            MediumError::NotDurable { .. } => faults.not_durable_ppm > 0,
            // The last good block failed.
            MediumError::WornOut { .. } => has_failed(),
            // This many are gone that what remains is of no use.
            MediumError::BlockFailed { .. } => medium.bad_blocks().len() > 4 || faults.die_dies_at.is_some(),
            MediumError::OutOfOrder { .. } | MediumError::BadRange { .. } | MediumError::Gone => false,
            MediumError::NotResized { .. } => false,
        },
        Error::Corrupt { .. }
        | Error::SegmentDamaged { .. }
        | Error::IndexDamaged { .. }
        | Error::MetadataDamaged(_) => lossy,
        Error::Versions(kaml_versions::Error::DamagedRecord(_) | kaml_versions::Error::DamagedTable(_)) => lossy,
        // The limits depend on the shape, which a seed draws without regard to them; they are to be what the options set.
        Error::Full { live_bytes, capacity_bytes } => has_failed() || live_bytes * 10 >= capacity_bytes * 8,
        Error::SnapshotsFull { bytes, max, .. } => bytes > max,
        Error::BatchTooLarge { bytes, max, .. } => bytes > max,
        Error::ValueTooLarge { bytes, max, .. } => bytes > max,
        _ => false,
    }
}

/// Where a Get finds its record.
pub enum Located {
    /// One read away.
    Flash(FlashRead),
    /// In memory, or nowhere.
    Value(Option<Vec<u8>>),
}

/// Looks a key up as a driver does.
pub fn find(core: &mut Core, reader: &Reader, medium: &dyn Medium, space: u32, key: &KeyBuf) -> Result<Located, Error> {
    let key = &reader.key(key.into()).map_err(Error::Key)?;
    loop {
        match reader.find(space, key) {
            Ok(Found::Absent) => return Ok(Located::Value(None)),
            Ok(Found::Flash(read)) => return Ok(Located::Flash(read)),
            Ok(Found::Buffered) => match core.read_buffered(space, key) {
                Ok(Buffered::Absent) => return Ok(Located::Value(None)),
                Ok(Buffered::Value(value)) => return Ok(Located::Value(Some(value))),
                Ok(Buffered::Packed(packed)) => return Ok(Located::Value(Some(packed.unpack()?))),
                Ok(Buffered::Programmed(read)) => return Ok(Located::Flash(read)),
                Err(FindError::Refused(error)) => return Err(error),
                Err(FindError::NeedIndex) => core.load_index(medium, space)?,
            },
            Err(FindError::Refused(error)) => return Err(error),
            Err(FindError::NeedIndex) => match find_by_image(core, medium, space, key) {
                Some(found) => return Ok(found),
                None => core.load_index(medium, space)?,
            },
        }
    }
}

/// Looks a key up by the image of an index that is not in memory; none if the index has to be loaded.
fn find_by_image(core: &mut Core, medium: &dyn Medium, space: u32, key: &FullKey<'_>) -> Option<Located> {
    let image = core.flash_index(space, 0)?;
    let Some(slot) = image.find(medium, key).ok()? else { return Some(Located::Value(None)) };
    Some(match core.read_found(&image, *key, slot).ok()?? {
        Buffered::Absent => Located::Value(None),
        Buffered::Value(value) => Located::Value(Some(value)),
        Buffered::Packed(packed) => Located::Value(Some(packed.unpack().ok()?)),
        Buffered::Programmed(read) => Located::Flash(read),
    })
}

/// Looks a key or a block up; for a block, also which bytes of its unit it is.
pub fn locate(
    core: &mut Core,
    reader: &Reader,
    medium: &dyn Medium,
    model: &Model,
    (space, number): Address,
) -> Result<(Located, Option<Range<usize>>), Error> {
    match model.disks.get(&space) {
        None if model.pasts.contains_key(&space) => {
            Ok((versions::located(core, medium, model, (space, number))?, None))
        }
        None => Ok((find(core, reader, medium, space, &model.key((space, number)))?, None)),
        Some(options) => {
            let (located, bytes) = blocks::find(core, reader, medium, options, (space, number))?;
            Ok((located, Some(bytes)))
        }
    }
}

/// The value that was read, or the block that it holds.
pub fn value_of(read: &FlashRead, bytes: &[u8], block: Option<&Range<usize>>) -> Result<Option<Vec<u8>>, Error> {
    let found = read.value(bytes)?;
    let value = found.of(bytes);
    Ok(block.map_or_else(|| Some(value.to_vec()), |block| blocks::block_of(value, block)))
}

/// Reads a value or a block at once.
pub fn get(
    core: &mut Core,
    reader: &Reader,
    medium: &dyn Medium,
    model: &Model,
    address: Address,
) -> Result<Option<Vec<u8>>, Error> {
    let (located, block) = locate(core, reader, medium, model, address)?;
    match located {
        Located::Value(value) => Ok(value),
        Located::Flash(read) => {
            let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
            medium.execute(&mut io)?;
            let Io::Read { into, .. } = io else { unreachable!("still a read") };
            value_of(&read, &into, block.as_ref())
        }
    }
}

/// Compares all namespaces and all keys, settles what the model left open, and checks every block. Returns how many
/// records flash has lost.
pub fn contents(
    core: &mut Core,
    medium: &impl Tested,
    model: &mut Model,
    workload: &Workload,
) -> Result<u64, Violation> {
    spaces(core, model)?;
    core.clock().advance_to(model.now); // that of the host was not set back
    medium.spare_reads(true);
    let reader = core.reader();
    let mut lost = 0;
    let mut comparison = Comparison::new(model);
    for space in model.spaces.keys() {
        for number in 0..workload.keys {
            match get(core, &reader, medium, model, (*space, number)) {
                Ok(found) => comparison.compare((*space, number), found.as_deref()).map_err(Violation::new)?,
                Err(error) if medium.loses_data() && medium.excuses(&error) => lost += 1,
                Err(error) => return Err(Violation::new(format!("namespace {space} key {number}: {error}"))),
            }
        }
    }
    let excused = |error: &Error| medium.loses_data() && medium.excuses(error);
    lost += versions::histories(core, medium, model, &mut comparison, workload.keys, excused)?;
    let came_through = comparison.came_through();
    model.adopt(came_through);
    if lost == 0 {
        orders(core, medium, model)?;
    }
    lost += versions::snapshots(core, medium, model, workload.keys, excused)?;
    if !medium.loses_data() {
        accounts(core, medium, model)?;
    }
    medium.spare_reads(false);
    Ok(lost)
}

/// Ordered namespaces list the keys that exist, in their order.
fn orders(core: &mut Core, medium: &dyn Medium, model: &Model) -> Result<(), Violation> {
    for (space, _) in model.strings.iter().filter(|(_, keys)| **keys == KeyKind::Ordered) {
        core.load_index(medium, *space).map_err(|error| Violation::new(error.to_string()))?;
        let reader = core.reader();
        let Ok(SpaceReader::Records(records)) = reader.of(*space) else {
            return Err(Violation::new(format!("namespace {space} holds no records")));
        };
        let index = records.ordered().map_err(|error| Violation::new(format!("namespace {space}: {error:?}")))?;
        let found: Vec<Box<[u8]>> = index.iter().map(|(key, _)| key).collect();
        let expected: BTreeSet<KeyBuf> =
            model.records.keys().filter(|(id, _)| id == space).map(|address| model.key(*address)).collect();
        if !found.iter().map(|key| &key[..]).eq(expected.iter().map(KeyBuf::as_bytes)) {
            return Err(Violation::new(format!("namespace {space} is not listed in the order of its keys")));
        }
    }
    Ok(())
}

/// Namespaces that must be there are, and no others than may be.
fn spaces(core: &Core, model: &mut Model) -> Result<(), Violation> {
    let found = core.namespaces();
    for info in &found {
        match model.spaces.get(&info.id) {
            Some((name, _)) if *name == info.name => {}
            _ => return Err(Violation::new(format!("namespace {} {:?} should not exist", info.id, info.name))),
        }
        if let Some(logs) = model.logs.get_mut(&info.id)
            && !logs.adopt(&info.logs)
        {
            return Err(Violation::new(format!(
                "namespace {} has logs {:?}, which were not requested",
                info.id, info.logs
            )));
        }
    }
    for (id, (name, phase)) in model.spaces.clone() {
        let there = found.iter().any(|info| info.id == id);
        match (phase, there) {
            (Phase::There, true) => {}
            (Phase::There, false) => return Err(Violation::new(format!("namespace {id} {name:?} is gone"))),
            (Phase::Creating | Phase::Deleting, true) => model.spaces.get_mut(&id).expect("just seen").1 = Phase::There,
            (Phase::Creating | Phase::Deleting, false) => model.remove_space(id),
        }
    }
    Ok(())
}

/// Each block holds what is accounted for it, and together they hold all records.
fn accounts(core: &mut Core, medium: &dyn Medium, model: &Model) -> Result<(), Violation> {
    for space in model.spaces.keys() {
        core.load_index(medium, *space).map_err(|error| Violation::new(format!("namespace {space}: {error}")))?;
    }
    let mut records = 0;
    for block in core.blocks_in_use() {
        let judgement = BlockAudit::read(&core.reader(), medium, block).judge(core);
        if let Some(problem) = judgement.problems.first() {
            return Err(Violation::new(problem.clone()));
        }
        records += judgement.records;
    }
    let (mut indexed, mut units) = (0, 0);
    for info in core.namespaces() {
        match info.kind {
            NamespaceKind::Records(_) => indexed += info.record_count,
            NamespaceKind::Blocks(_) => units += info.record_count,
            NamespaceKind::Versions(..) => {}
        }
    }
    // Units may hold nothing but zeroes, which the model does not know.
    let is_record = |space: &u32| !model.disks.contains_key(space) && !model.pasts.contains_key(space);
    let there = model.records.keys().filter(|(space, _)| is_record(space)).count() as u64;
    if indexed != there {
        return Err(Violation::new(format!("the indexes count {indexed} records, there are {there}")));
    }
    for info in core.namespaces() {
        let versions = model.pasts.get(&info.id).and_then(Past::version_count);
        if versions.is_some_and(|versions| versions != info.record_count) {
            let (id, counted) = (info.id, info.record_count);
            return Err(Violation::new(format!("namespace {id} counts {counted} versions, there are {versions:?}")));
        }
    }
    let indexed = indexed + units + core.large_version_values();
    if core.is_idle() && records != indexed {
        return Err(Violation::new(format!("the indexes count {indexed} records, blocks hold {records}")));
    }
    Ok(())
}
