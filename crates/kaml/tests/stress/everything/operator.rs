//! What happens to everybody.
//!
//! Lives here:       what an operator does meanwhile, and the namespace that is created and deleted while others use it.

use super::pasts::KEEP_LAST;
use super::{BLOCK_BYTES, Owner, Spaces, Trouble, is_forgotten, is_unknown};
use kaml::{
    BlockOptions, Device, Error, KeyKind, NamespaceChange, NamespaceKind, NamespaceOptions, Retention, VersionOptions,
};
use kaml_testkit::Rng;

/// The namespace that is created and deleted, its keys and blocks.
const SCRATCH: &str = "scratch";
const SCRATCH_KEYS: u64 = 20;
const SCRATCH_BLOCKS: u64 = 40;

/// What an operator might do meanwhile; returns why it could not be done, which the trouble allows.
pub(crate) fn disturb(device: &Device, spaces: Spaces, rng: &mut Rng, trouble: Trouble) -> Option<Error> {
    let any = [spaces.numbers, spaces.text, spaces.kept, spaces.disk][rng.below(4) as usize];
    let done = match rng.below(12) {
        0..=4 => device.unload_namespace(any).map(drop),
        5 => device.settle(),
        6 => {
            let logs = vec![0; rng.below(2) as usize];
            device.set_namespace(any, &NamespaceChange { logs: Some(logs), ..NamespaceChange::default() })
        }
        7 => come_and_go(device, rng),
        8 => {
            let (keep_snapshots, keep_internal) = (rng.below(4) > 0, rng.below(2) == 0);
            let keep = Retention { keep_last: KEEP_LAST, keep_since_ns: None, keep_snapshots, keep_internal };
            device.merge(spaces.kept, &keep, &mut kaml::to_the_end).map(drop)
        }
        9 => device.snapshot(spaces.kept).map(drop),
        10 => {
            device.stats();
            Ok(())
        }
        _ => device.check(&mut |_, _| {}).map(|report| {
            let may_have_some = matches!(trouble, Trouble::Cut | Trouble::Misread);
            assert!(report.problems.is_empty() || may_have_some, "{:?}", report.problems);
        }),
    };
    let error = done.err()?;
    trouble.excuse(&error, false);
    Some(error)
}

/// Takes a snapshot while nothing is in progress.
pub(crate) fn take_snapshot(device: &Device, spaces: Spaces, owners: &mut [Owner]) -> u32 {
    let number = device.snapshot(spaces.kept).unwrap();
    owners.iter_mut().for_each(|owner| owner.pasts.snapshot_taken(number, true));
    number
}

/// Rolls back to it, unless a merge has forgotten it.
pub(crate) fn roll_back(device: &Device, spaces: Spaces, owners: &mut [Owner], to: u32) {
    match device.roll_back(spaces.kept, to) {
        Ok(_) => owners.iter_mut().for_each(|owner| owner.rolled_back(to)),
        Err(error) => assert!(is_forgotten(&error), "{error}"),
    }
}

/// A namespace of any kind that is created and deleted while others use it; one that a power cut left is deleted first.
fn come_and_go(device: &Device, rng: &mut Rng) -> Result<(), Error> {
    if let Ok(left) = device.namespace(SCRATCH) {
        device.delete_namespace(left)?;
    }
    let records = NamespaceOptions::records(KeyKind::U64);
    let versions = VersionOptions { buffer_bytes: 64 << 10, ..VersionOptions::default() };
    let options = match rng.below(3) {
        0 => records,
        1 => NamespaceOptions::versions(KeyKind::U64, versions),
        _ => BlockOptions::new(BLOCK_BYTES as u32, SCRATCH_BLOCKS).into(),
    };
    let scratch = device.create_namespace(SCRATCH, &options)?;
    let filled = (0..rng.below(60)).try_for_each(|number| match options.kind {
        NamespaceKind::Blocks(_) => device.block_write(scratch, number % SCRATCH_BLOCKS, &[7; BLOCK_BYTES]),
        NamespaceKind::Records(_) | NamespaceKind::Versions(..) => {
            device.put(scratch, number % SCRATCH_KEYS, &[7; 3000])
        }
    });
    device.delete_namespace(scratch)?;
    filled?;
    assert!(is_unknown(&device.get(scratch, 1u64).unwrap_err()));
    Ok(())
}

/// Uses the namespace that is created and deleted, if it exists. Whatever it holds was put by somebody.
pub(super) fn trespass(device: &Device, rng: &mut Rng) -> Result<(), Error> {
    let Some(info) = device.namespaces().into_iter().find(|info| info.name == SCRATCH) else { return Ok(()) };
    let (key, block) = (rng.below(SCRATCH_KEYS), rng.below(SCRATCH_BLOCKS));
    if matches!(info.kind, NamespaceKind::Blocks(_)) {
        let mut data = [1; BLOCK_BYTES];
        device.block_write(info.id, block, &[7; BLOCK_BYTES])?;
        device.block_read(info.id, block, &mut data)?;
        assert!(data == [7; BLOCK_BYTES] || data == [0; BLOCK_BYTES], "a block of others");
        return device.block_trim(info.id, block, 1);
    }
    match rng.below(6) {
        0 if matches!(info.kind, NamespaceKind::Records(_)) => device.put(info.id, key, &[7; 50_000]),
        1 => device.delete(info.id, key),
        2 => device.list(info.id, None, 100).map(drop),
        3 if matches!(info.kind, NamespaceKind::Versions(..)) => device.snapshot(info.id).map(drop),
        4 => {
            let found = device.get(info.id, key)?;
            assert!(found.is_none_or(|found| found.iter().all(|byte| *byte == 7)), "a record of others");
            Ok(())
        }
        _ => device.put(info.id, key, &[7; 900]),
    }
}
