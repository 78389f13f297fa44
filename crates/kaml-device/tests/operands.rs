//! Operands and expected values, on flash in memory.

mod common;

use common::{Cut, Life, Rng, value};
use kaml_device::{
    Base, Body, Condition, Core, Error, Expires, FlashRead, Found, Key, KeyKind, Merge, MergeError, MergeStep,
    NamespaceOptions, Op, Operand, StageError, VersionOptions,
};
use kaml_flash::{AlignedBuf, Io, Medium, MemoryMedium, Packing};
use std::cell::RefCell;
use std::collections::BTreeMap;

const KEYS: u64 = 24;

/// A step of a batch.
#[derive(Clone, Copy, Debug)]
enum Step {
    Apply(u64, Operand),
    /// A counter, or a delete.
    Put(u64, Option<i64>),
}

/// Counters by key.
type Model = BTreeMap<u64, i64>;

/// What a batch makes of the model, and what its operands return; nothing if it is refused.
fn expected(model: &Model, steps: &[Step]) -> Option<(Model, Vec<i64>)> {
    let (mut model, mut values) = (model.clone(), Vec::new());
    for step in steps {
        match *step {
            Step::Put(key, Some(counter)) => drop(model.insert(key, counter)),
            Step::Put(key, None) => drop(model.remove(&key)),
            Step::Apply(key, operand) => {
                let old = model.get(&key).copied();
                let new = match operand {
                    Operand::Add(number) => old.unwrap_or(0).checked_add(number)?,
                    Operand::Max(number) => old.map_or(number, |old| old.max(number)),
                    Operand::Min(number) => old.map_or(number, |old| old.min(number)),
                };
                model.insert(key, new);
                values.push(new);
            }
        }
    }
    Some((model, values))
}

struct World {
    life: Life,
    space: u32,
    /// Values that had to be read from flash.
    reads: u64,
}

impl World {
    fn open(medium: &MemoryMedium, seed: u64, space: u32) -> Result<World, Error> {
        Ok(World { life: Life::open(medium, seed)?, space, reads: 0 })
    }

    fn new(medium: &MemoryMedium, seed: u64) -> World {
        Core::format(medium).unwrap();
        let mut world = World::open(medium, seed, 0).unwrap();
        world.space = world.life.core.create_namespace("n", &NamespaceOptions::records(KeyKind::U64)).unwrap();
        world.settle().unwrap();
        world
    }

    /// Everything leaves the write buffers.
    fn settle(&mut self) -> Result<(), Cut> {
        let request = self.life.core.request_root(true);
        self.life.until(|core| core.roots_done() >= request)
    }

    /// Commits a batch with operands, as a driver does: it reads what is on flash, next to the core.
    fn commit(&mut self, ops: &[Op<'_>], merges: &[Merge<'_>]) -> Result<Result<Vec<i64>, Error>, Cut> {
        let mut held: Vec<(usize, FlashRead, Vec<u8>)> = Vec::new();
        loop {
            let outcome = RefCell::new(Ok(Vec::new()));
            let bases: Vec<Base<'_>> =
                held.iter().map(|(merge, read, value)| Base { merge: *merge, at: read.at, value }).collect();
            let stage = |core: &mut Core| match core.stage_merging(ops, merges, &bases) {
                Ok(merged) => {
                    *outcome.borrow_mut() = Ok(merged.values);
                    Ok(merged.frame)
                }
                Err(MergeError::NeedValue(merge)) => {
                    *outcome.borrow_mut() = Err(merge);
                    Err(StageError::Refused(Error::EmptyBatch))
                }
                Err(MergeError::Stage(why)) => Err(why),
            };
            let committed = self.life.commit(stage)?;
            match (committed, outcome.into_inner()) {
                (_, Err(merge)) => {
                    let key = *merges[merge].key.key();
                    let Found::Flash(read) = self.life.core.reader().find(self.space, key).unwrap() else { continue };
                    let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
                    self.life.medium.execute(&mut io).unwrap();
                    let Io::Read { into, .. } = io else { unreachable!("still a read") };
                    let value = read.value(&into).unwrap().of(&into).to_vec();
                    self.reads += 1;
                    held.retain(|(other, ..)| *other != merge);
                    held.push((merge, read, value));
                }
                (Ok(()), Ok(values)) => return Ok(Ok(values)),
                (Err(error), Ok(_)) => return Ok(Err(error)),
            }
        }
    }

    fn apply(&mut self, steps: &[Step]) -> Result<Result<Vec<i64>, Error>, Cut> {
        let namespace = self.space;
        let values: Vec<Option<[u8; 8]>> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Put(_, counter) => Some(counter.map(i64::to_le_bytes)),
                Step::Apply(..) => None,
            })
            .collect();
        let (mut ops, mut merges) = (Vec::new(), Vec::new());
        for step in steps {
            match *step {
                Step::Put(key, _) => {
                    let body = match &values[ops.len()] {
                        Some(value) => Body::Value { value, crc32c: kaml_crc::crc32c(value) },
                        None => Body::Delete,
                    };
                    let (key, condition) = (Key::from(key).into(), Condition::Always);
                    ops.push(Op { namespace, key, body, condition, expires: Expires::Default });
                }
                Step::Apply(key, operand) => {
                    let (key, step) = (Key::from(key).into(), MergeStep::Apply(operand));
                    merges.push(Merge { at: ops.len(), namespace, key, step, expires: Expires::Default });
                }
            }
        }
        self.commit(&ops, &merges)
    }

    fn contents(&mut self) -> Model {
        let found = (0..KEYS).filter_map(|key| Some((key, self.life.get(self.space, key)?)));
        found.map(|(key, value)| (key, i64::from_le_bytes(value.try_into().unwrap()))).collect()
    }
}

fn batch(rng: &mut Rng) -> Vec<Step> {
    let number = |rng: &mut Rng| match rng.below(20) {
        0 => i64::MAX,
        1 => i64::MIN,
        _ => rng.below(2000) as i64 - 1000,
    };
    let step = |rng: &mut Rng| {
        let key = rng.below(KEYS);
        match rng.below(8) {
            0 => Step::Put(key, None),
            1 => Step::Put(key, Some(number(rng) / 2)),
            2 => Step::Apply(key, Operand::Max(number(rng) / 2)),
            3 => Step::Apply(key, Operand::Min(number(rng) / 2)),
            _ => Step::Apply(key, Operand::Add(number(rng))),
        }
    };
    // Long batches look uncommitted records up in another way.
    let count = if rng.below(10) == 0 { 30 } else { 1 + rng.below(4) };
    (0..count).map(|_| step(rng)).collect()
}

/// Goal:   operands give the right results whether the counter is committed, staged, in a buffer, on flash, or changed earlier in the batch; after each
///         power cut a batch is applied as a whole, once, or not at all.
/// Method: seeded batches of operands, puts and deletes over many lives of one device, compared with a model.
#[test]
fn operands_survive_power_cuts() {
    for seed in 1..=8 {
        let packing = if seed % 3 == 0 { Packing::WithinPage } else { Packing::Across };
        let medium = MemoryMedium::new(common::geometry(packing, 24));
        let mut world = World::new(&medium, seed);
        let (mut model, mut rng) = (Model::new(), Rng::new(seed * 31));
        let (mut refused, mut reads) = (0, 0);
        for life in 0..8 {
            medium.cut_after(1 + rng.below(1200));
            let mut under_way = None;
            for round in 0..400 {
                if round % 16 == 15 && world.settle().is_err() {
                    break;
                }
                let steps = batch(&mut rng);
                let after = expected(&model, &steps);
                match (world.apply(&steps), after) {
                    (Err(Cut), after) => {
                        under_way = after;
                        break;
                    }
                    (Ok(Ok(values)), Some((after, expected))) => {
                        assert_eq!(values, expected, "seed {seed} life {life}: {steps:?}");
                        model = after;
                    }
                    (Ok(Err(Error::CounterOverflow { .. })), None) => refused += 1,
                    (answer, after) => panic!("seed {seed} life {life}: {answer:?} {after:?} of {steps:?}"),
                }
            }
            reads += world.reads;
            let space = world.space;
            drop(world);
            medium.power_on(rng.draw());
            world = World::open(&medium, rng.draw(), space).unwrap();
            let found = world.contents();
            if let Some((after, _)) = under_way.filter(|(after, _)| *after == found) {
                model = after;
            }
            assert_eq!(found, model, "seed {seed} life {life}");
            world.life.audit();
        }
        assert!(refused > 0 && reads > 10, "seed {seed}: {refused} refused, {reads} read");
    }
}

/// Goal:   what is no counter, a sum that does not fit, and a value that is not expected refuse the whole batch, with what decided it; a refusal that
///         an uncommitted record decided waits for it; times of expiry are kept, and expired counters begin again.
/// Method: one batch of each, before and after what it depends on is committed.
#[test]
fn refusals_and_times() {
    let medium = MemoryMedium::new(common::geometry(Packing::Across, 24));
    let mut world = World::new(&medium, 1);
    let namespace = world.space;
    world.life.core.clock().advance_to(1000);
    let text = value(1, 100);
    let key = |number: u64| kaml_device::FullKey::from(Key::from(number));
    let put = |number, value: &'static [u8], expires| {
        let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
        Op { namespace, key: key(number), body, condition: Condition::Always, expires }
    };
    let merge = |number, step| Merge { at: 9, namespace, key: key(number), step, expires: Expires::Default };
    let add = |number, by| merge(number, MergeStep::Apply(Operand::Add(by)));
    let long =
        Op { body: Body::Value { value: &text, crc32c: kaml_crc::crc32c(&text) }, ..put(1, b"", Expires::Default) };
    world.commit(&[long], &[]).unwrap().unwrap();
    let refused = world.commit(&[put(2, b"two", Expires::Default)], &[add(1, 1)]).unwrap();
    assert!(matches!(refused, Err(Error::NotACounter { bytes: 100, .. })), "{refused:?}");
    assert_eq!(world.life.get(namespace, 2), None, "nothing of the batch is stored");
    // In the same batch, the put comes first.
    let after = world.commit(&[put(1, &[0; 8], Expires::Default)], &[add(1, 7)]).unwrap();
    assert_eq!(after, Ok(vec![7]));
    assert_eq!(world.life.get(namespace, 1), Some(7i64.to_le_bytes().to_vec()));
    // Decided by what is staged.
    world.life.core.stage(&[put(3, b"three", Expires::Default)]).unwrap();
    let frame = world.life.core.staging_frame();
    let staged = world.life.core.stage_merging(&[], &[add(3, 1)], &[]);
    assert!(
        matches!(&staged, Err(MergeError::Stage(StageError::RefusedAfter(at, Error::NotACounter { .. }))) if *at == frame)
    );
    let expect = |number, value| merge(number, MergeStep::Expect(value));
    for (number, value, holds) in [
        (3, Some(&b"three"[..]), true),
        (3, Some(b"tree"), false),
        (3, None, false),
        (4, None, true),
        (4, Some(b""), false),
    ] {
        let answer = world.commit(&[put(9, b"nine", Expires::Default)], &[expect(number, value)]).unwrap();
        assert_eq!(answer.is_ok(), holds, "{number} {value:?}: {answer:?}");
        let differs = matches!(answer, Err(Error::ValueDiffers { present, .. }) if present == (number == 3));
        assert!(holds || differs);
    }
    let empty = world.life.core.stage_merging(&[], &[expect(4, None)], &[]);
    assert_eq!(empty, Err(MergeError::Stage(StageError::Refused(Error::EmptyBatch))));

    // Times: kept, changed, begun again.
    let until = |world: &World, number| world.life.core.expiry_of(namespace, &key(number));
    world.commit(&[put(5, &[0; 8], Expires::At(2000))], &[add(5, 1)]).unwrap().unwrap();
    assert_eq!(until(&world, 5), Some(2000));
    world.settle().unwrap();
    assert_eq!(world.commit(&[], &[add(5, 1)]).unwrap(), Ok(vec![2]));
    assert_eq!((until(&world, 5), world.reads), (Some(2000), 1), "it was on flash");
    let later = Merge { expires: Expires::At(3000), ..add(5, 1) };
    assert_eq!(world.commit(&[], &[later]).unwrap(), Ok(vec![3]));
    assert_eq!(until(&world, 5), Some(3000));
    world.life.core.clock().advance_to(3000);
    assert_eq!(world.commit(&[], &[add(5, 1)]).unwrap(), Ok(vec![1]));
    assert_eq!(until(&world, 5), Some(0));

    let versions = world.life.core.create_namespace("v", &VersionOptions::default().into()).unwrap();
    world.settle().unwrap();
    let of_versions = Merge { namespace: versions, ..add(1, 1) };
    let refused = world.life.core.stage_merging(&[], &[of_versions], &[]);
    assert!(matches!(refused, Err(MergeError::Stage(StageError::Refused(Error::KeepsVersions(_))))), "{refused:?}");
}
