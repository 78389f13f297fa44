//! What threads do to a device at the same time, each knowing what must come of it.
//!
//! Lives here:       commands of every kind on records, versions and blocks, one at a time and in flight, compared with models;
//!                   what an operator does meanwhile.
//! Lives elsewhere:  the threads and the device below (`main`, `lab`), what there must be of older versions (`pasts`).

use super::pasts::{KEEP_LAST, Pasts};
use kaml::{
    AsyncQueue, Batch, BlockOptions, Condition, Device, Error, Key, KeyKind, NamespaceChange, NamespaceId,
    NamespaceOptions, Retention, VersionOptions,
};
use std::collections::HashMap;
use std::ops::Range;

/// How much there is of everything.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Keys of each thread in each namespace.
    pub(crate) keys: u64,
    /// Longest value that goes the way of small ones, and of large ones.
    pub(crate) len_max: u64,
    pub(crate) large_len_max: u64,
    /// Blocks of each half of the disk, which share a unit if they are odd, and those of one command.
    pub(crate) blocks: u64,
    pub(crate) blocks_at_once: u64,
    /// Longest value that keeps its versions, and how these are kept.
    pub(crate) kept_len_max: u64,
    pub(crate) versions: VersionOptions,
    pub(crate) in_flight: usize,
    pub(crate) trouble: Trouble,
}

/// What commands may fail of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// There is no space for new data: refused, and nothing has changed.
    Full,
    /// The power goes: nobody knows whether the command was carried out, and there are no others after it.
    Cut,
    /// A read is refused, or a bit flips on its way: what needs it is refused, and nothing has changed. Space is short, too.
    Misread,
}

/// What became of a command that changes something.
enum Fate {
    Done,
    Refused,
    Unknown,
}

impl Trouble {
    fn has_little_space(self) -> bool {
        matches!(self, Trouble::Full | Trouble::Misread)
    }

    /// Whether it is the reason of an error, or that a namespace has gone.
    fn excuse(self, error: &Error, may_be_gone: bool) {
        let is_excused = match self {
            Trouble::None => false,
            Trouble::Full => is_full(error),
            Trouble::Misread => is_misread(error) || is_full(error),
            Trouble::Cut => true,
        };
        assert!(is_excused || may_be_gone && is_unknown(error), "{error}");
    }

    fn fate(self, result: Result<(), Error>) -> Fate {
        match (self, result) {
            (_, Ok(())) => Fate::Done,
            (Trouble::Full, Err(error)) if is_full(&error) => Fate::Refused,
            (Trouble::Misread, Err(error)) if is_misread(&error) || is_full(&error) => Fate::Refused,
            (Trouble::Cut, Err(_)) => Fate::Unknown,
            (_, Err(error)) => panic!("{error}"),
        }
    }
}

pub(crate) fn is_forgotten(error: &Error) -> bool {
    matches!(error.command(), Some(kaml_device::Error::Versions(kaml::VersionError::NoSnapshot { .. })))
}

fn is_misread(error: &Error) -> bool {
    use kaml::VersionError::{DamagedRecord, DamagedTable};
    use kaml_device::Error as E;
    match error.command() {
        Some(E::Corrupt { .. } | E::IndexDamaged { .. } | E::Medium(kaml_flash::MediumError::ReadFailed { .. })) => {
            true
        }
        Some(E::Versions(error)) => matches!(error, DamagedRecord(_) | DamagedTable(_)),
        _ => false,
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error.command(), Some(kaml_device::Error::Full { .. }))
}

/// Eight of them are a unit of the namespace.
const BLOCK_BYTES: usize = 512;
/// The namespace that comes and goes, its keys and blocks.
const SCRATCH: &str = "scratch";
const SCRATCH_KEYS: u64 = 20;
const SCRATCH_BLOCKS: u64 = 40;

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Most values are small, few are as long as take the way of large ones.
    fn value(&mut self, scale: &Scale) -> Content {
        let len = match self.below(100) {
            0..=69 => self.below(scale.len_max / 8),
            70..=96 => self.below(scale.len_max),
            _ => self.below(scale.large_len_max),
        };
        Content { seed: self.next(), len: len as usize }
    }
}

/// A value that can be made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    seed: u64,
    len: usize,
}

impl Content {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.seed.to_le_bytes().into_iter().cycle().take(self.len).collect();
        for (i, word) in (0u64..).zip(bytes.chunks_exact_mut(64)) {
            word[8..16].copy_from_slice(&i.to_le_bytes());
        }
        bytes
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Spaces {
    numbers: NamespaceId,
    text: NamespaceId,
    pub(crate) kept: NamespaceId,
    pub(crate) disk: NamespaceId,
}

impl Spaces {
    pub(crate) fn create(device: &Device, scale: &Scale) -> Spaces {
        let records = |keys| NamespaceOptions { keys, ..NamespaceOptions::default() };
        let blocks = BlockOptions::new(BLOCK_BYTES as u32, 2 * scale.blocks);
        let create = |name: &str, options| device.create_namespace(name, &options).unwrap();
        Spaces {
            numbers: create("numbers", records(KeyKind::U64)),
            text: create("text", records(KeyKind::Bytes)),
            kept: create("kept", NamespaceOptions { versions: Some(scale.versions), ..records(KeyKind::U64) }),
            disk: create("disk", NamespaceOptions { blocks: Some(blocks), ..NamespaceOptions::default() }),
        }
    }

    fn all(&self) -> [NamespaceId; 3] {
        [self.numbers, self.text, self.kept]
    }
}

type Address = (NamespaceId, Key);
type Change = (Address, Option<Content>);

/// The records of one thread as they must be.
pub(crate) struct Owner {
    thread: u64,
    rng: Rng,
    spaces: Spaces,
    scale: Scale,
    model: HashMap<Address, Content>,
    pasts: Pasts,
    /// Commands that were carried out whole or not at all.
    open: Vec<Vec<Change>>,
    /// The power is gone.
    is_over: bool,
    pub(crate) met: Met,
}

/// How often commands ended otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    /// Of these, those that turned out to be carried out.
    pub(crate) survived: u64,
}

impl std::ops::AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.survived += other.survived;
    }
}

impl Owner {
    pub(crate) fn new(thread: u64, rng: Rng, spaces: Spaces, scale: Scale) -> Owner {
        let (model, pasts) = (HashMap::new(), Pasts::new(spaces.kept));
        Owner { thread, rng, spaces, scale, model, pasts, open: Vec::new(), is_over: false, met: Met::default() }
    }

    fn key(&self, space: NamespaceId, number: u64) -> Key {
        match space == self.spaces.text {
            true => Key::new(format!("{}/{number:x}", self.thread).as_bytes()).unwrap(),
            false => Key::from(self.thread << 32 | number),
        }
    }

    fn any(&mut self) -> Address {
        let space = match self.rng.below(8) {
            0 => self.spaces.kept,
            draw => self.spaces.all()[draw as usize % 2],
        };
        let number = self.rng.below(self.keys_of(space));
        (space, self.key(space, number))
    }

    fn keys_of(&self, space: NamespaceId) -> u64 {
        if space == self.spaces.kept { self.scale.keys.div_ceil(8) } else { self.scale.keys }
    }

    fn value(&mut self, space: NamespaceId) -> Content {
        let value = self.rng.value(&self.scale);
        if space == self.spaces.kept {
            Content { len: self.rng.below(self.scale.kept_len_max) as usize, ..value }
        } else {
            value
        }
    }

    fn owns(&self, space: NamespaceId, key: &Key) -> bool {
        match space == self.spaces.text {
            true => key.as_bytes().starts_with(format!("{}/", self.thread).as_bytes()),
            false => key.as_u64().is_some_and(|key| key >> 32 == self.thread),
        }
    }

    /// Takes note of what became of a command.
    fn changed(&mut self, changes: Vec<Change>, result: Result<(), Error>) {
        match self.scale.trouble.fate(result) {
            Fate::Done => self.apply(changes),
            Fate::Refused => {
                let takes_space = |(at, content): &Change| content.is_some() || at.0 == self.spaces.kept;
                let may_be_refused = self.scale.trouble == Trouble::Misread || changes.iter().any(takes_space);
                assert!(may_be_refused, "deletes are accepted on full devices");
                self.met.refused += 1;
            }
            Fate::Unknown => {
                self.open.push(changes);
                (self.is_over, self.met.unknown) = (true, self.met.unknown + 1);
            }
        }
    }

    /// Takes note of a put under a condition.
    fn stored(&mut self, at: Address, value: Content, condition: Option<Condition>, result: Result<(), Error>) {
        let is_known = self.model.contains_key(&at);
        let holds = match condition {
            Some(Condition::IfAbsent) => !is_known,
            Some(Condition::IfPresent) => is_known,
            Some(Condition::Always | Condition::UnchangedSince(_)) | None => true,
        };
        match &result {
            Err(error) if matches!(error.command(), Some(kaml_device::Error::Conflict { .. })) => {
                assert!(!holds, "{at:?}: {error}");
            }
            _ => {
                assert!(result.is_err() || holds, "{at:?} was stored");
                self.changed(vec![(at, Some(value))], result);
            }
        }
    }

    fn apply(&mut self, changes: Vec<Change>) {
        for (at, content) in changes {
            if at.0 == self.spaces.kept {
                self.pasts.changed(at.1, content);
            }
            self.set(at, content);
        }
    }

    fn set(&mut self, at: Address, content: Option<Content>) {
        match content {
            Some(content) => self.model.insert(at, content),
            None => self.model.remove(&at),
        };
    }

    /// What a command found, unless the power is gone.
    fn found<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(found) => Some(found),
            Err(_) if self.scale.trouble == Trouble::Cut => {
                self.is_over = true;
                None
            }
            Err(error) if self.scale.trouble == Trouble::Misread && is_misread(&error) => {
                self.met.refused += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Sync commands, each checked against the model.
    pub(crate) fn step(&mut self, device: &Device) {
        if self.is_over {
            return;
        }
        let at = self.any();
        let ((space, key), known) = (at, self.model.get(&at).copied());
        match self.rng.below(100) {
            0..=44 if space == self.spaces.kept => self.look_back(device, at),
            0..=29 => {
                let value = self.value(space);
                self.changed(vec![(at, Some(value))], device.put(space, key, &value.bytes()));
            }
            30..=34 => {
                let value = self.value(space);
                let condition = if self.rng.below(2) == 0 { Condition::IfAbsent } else { Condition::IfPresent };
                let stored = device.put_if(space, key, &value.bytes(), condition);
                self.stored(at, value, Some(condition), stored);
            }
            35..=44 => self.changed(vec![(at, None)], device.delete(space, key)),
            45..=54 => self.write_batch(device),
            55..=59 => {
                if let Some(exists) = self.found(device.exists(space, key)) {
                    assert_eq!(exists, known.is_some(), "{space} {key}");
                }
            }
            60 => self.list(device, space),
            61..=66 => {
                if let Err(error) = trespass(device, &mut self.rng) {
                    self.scale.trouble.excuse(&error, true);
                }
            }
            _ => self.compare(device, at),
        }
    }

    fn write_batch(&mut self, device: &Device) {
        let changes = self.changes(9);
        let batch = batch_of(&changes);
        let written = match self.rng.below(2) {
            0 => device.write(&batch),
            _ => device.submit(&batch).and_then(|submitted| submitted.wait()),
        };
        self.changed(changes, written);
    }

    fn list(&mut self, device: &Device, space: NamespaceId) {
        let (mut own, mut after) = (0, None);
        loop {
            let Some(page) = self.found(device.list(space, after, 100)) else { return };
            for key in page.keys.iter().filter(|key| self.owns(space, key)) {
                assert!(self.model.contains_key(&(space, *key)), "{space} {key} is listed");
                own += 1;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(own, self.model.keys().filter(|(of, _)| *of == space).count(), "each key once");
    }

    /// A record that keeps its versions: changed, undone, looked back at, also as snapshots show it.
    fn look_back(&mut self, device: &Device, at: Address) {
        let (space, key) = at;
        match self.rng.below(10) {
            0..=3 => {
                let (at, content) = self.change_of(at);
                let changed = match content {
                    Some(content) => device.put(space, key, &content.bytes()),
                    None => device.delete(space, key),
                };
                self.changed(vec![(at, content)], changed);
            }
            4 => {
                let count = 1 + self.rng.below(u64::from(KEEP_LAST) - 1) as u32;
                if let Some(content) = self.pasts.undone(&key, count) {
                    let undone = device.undo(space, key, count);
                    if let Ok(is_value) = undone {
                        assert_eq!(is_value, content.is_some(), "{key}");
                    }
                    self.changed(vec![(at, content)], undone.map(drop));
                }
            }
            5 => match device.snapshot(space) {
                Err(error) if self.scale.trouble.has_little_space() && is_full(&error) => self.met.refused += 1,
                taken => {
                    if let Some(number) = self.found(taken) {
                        self.pasts.snapshot_taken(number, false);
                    }
                }
            },
            6 => {
                let shown = self.pasts.shown_in_snapshot(device, &key);
                self.found(shown);
            }
            7 => {
                let back = self.rng.below(u64::from(KEEP_LAST)) as u32;
                let shown = self.pasts.compare_back(device, &key, back);
                self.found(shown);
            }
            _ => {
                let compared = self.pasts.compare(device, &key);
                self.found(compared);
            }
        }
    }

    fn compare(&mut self, device: &Device, at: Address) {
        if let Some(found) = self.found(device.get(at.0, at.1)) {
            compare(&found, self.model.get(&at).copied(), at);
        }
    }

    pub(crate) fn compare_all(&mut self, device: &Device) {
        for space in self.spaces.all() {
            for number in 0..self.keys_of(space) {
                let at = (space, self.key(space, number));
                self.compare(device, at);
                if space == self.spaces.kept {
                    let compared = self.pasts.compare(device, &at.1);
                    self.found(compared);
                }
            }
            self.list(device, space);
        }
    }

    /// Everything is as it was in a snapshot again, which was taken while nothing was under way.
    fn rolled_back(&mut self, to: u32) {
        for (key, content) in self.pasts.rolled_back(to) {
            self.set((self.spaces.kept, key), content);
        }
    }

    /// Finds out what became of the commands that the power cut ended.
    pub(crate) fn resolve(&mut self, device: &Device) {
        self.is_over = false;
        for changes in std::mem::take(&mut self.open) {
            let last: HashMap<Address, Option<Content>> = changes.iter().copied().collect();
            let is_there =
                |at: &Address, content: Option<Content>| device.get(at.0, at.1).unwrap() == content.map(Content::bytes);
            if last.iter().all(|(at, content)| is_there(at, *content)) {
                self.met.survived += 1;
                self.apply(changes);
            } else {
                let before = |at| self.model.get(at).copied();
                assert!(last.keys().all(|at| is_there(at, before(at))), "a part of {last:?} is there");
            }
        }
    }

    /// Deletes everything but versions.
    pub(crate) fn delete_all(&mut self, device: &Device) {
        let kept = self.spaces.kept;
        let all: Vec<Address> = self.model.keys().filter(|(space, _)| *space != kept).copied().collect();
        all.into_iter().for_each(|at| self.changed(vec![(at, None)], device.delete(at.0, at.1)));
    }

    /// The same through a queue: many commands in flight, at most one for each key.
    pub(crate) fn queue_steps(&mut self, device: &Device, is_over: impl Fn() -> bool) {
        let depth = self.scale.in_flight;
        let mut queue = device.queue(depth as u32);
        let mut in_flight: HashMap<u64, Begun> = HashMap::new();
        let (mut token, mut answers) = (0, Vec::new());
        while !is_over() && !self.is_over || !in_flight.is_empty() {
            while in_flight.len() < depth && !self.is_over && !is_over() {
                let command = self.command();
                if in_flight.values().any(|other| other.meets(&command)) {
                    break;
                }
                token += 1;
                match command.begin(&mut queue, token) {
                    Ok(()) => _ = in_flight.insert(token, command),
                    Err(error) => self.ended(command, Err(error)),
                }
            }
            queue.poll(!in_flight.is_empty(), &mut answers);
            for answer in answers.drain(..) {
                let command = in_flight.remove(&answer.token).expect("answered once");
                self.ended(command, answer.result.map(|found| found.map(|bytes| bytes.into_vec())));
            }
        }
    }

    /// One for a queue.
    fn command(&mut self) -> Begun {
        let at = self.any();
        let value = self.value(at.0);
        match self.rng.below(20) {
            0..=7 => Begun::Put(at, value, None),
            8..=9 if at.0 == self.spaces.kept => Begun::Put(at, value, None),
            8 => Begun::Put(at, value, Some(Condition::IfAbsent)),
            9 => Begun::Put(at, value, Some(Condition::IfPresent)),
            10 => Begun::Batch(self.changes(5)),
            11 => Begun::Batch(vec![self.change_of(at)]),
            _ => Begun::Get(at),
        }
    }

    /// Changes of one batch, at most so many. Of records that keep their versions each is changed once.
    fn changes(&mut self, max: u64) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        for _ in 0..=self.rng.below(max) {
            let at = self.any();
            if at.0 != self.spaces.kept || changes.iter().all(|(other, _)| *other != at) {
                changes.push(self.change_of(at));
            }
        }
        changes
    }

    /// A new value, or a delete; of what keeps its versions only if there is something to delete, so that it can be told whether it
    /// was carried out.
    fn change_of(&mut self, at: Address) -> Change {
        let may_delete = at.0 != self.spaces.kept || self.model.contains_key(&at);
        let is_delete = self.rng.below(4) == 0 && may_delete;
        (at, (!is_delete).then(|| self.value(at.0)))
    }

    fn ended(&mut self, command: Begun, result: Result<Option<Vec<u8>>, Error>) {
        match command {
            Begun::Get(at) => {
                if let Some(found) = self.found(result) {
                    compare(&found, self.model.get(&at).copied(), at);
                }
            }
            Begun::Batch(changes) => self.changed(changes, result.map(drop)),
            Begun::Put(at, value, condition) => self.stored(at, value, condition, result.map(drop)),
        }
    }
}

/// A command of a queue on its way.
enum Begun {
    Get(Address),
    Put(Address, Content, Option<Condition>),
    Batch(Vec<Change>),
}

impl Begun {
    fn begin(&self, queue: &mut AsyncQueue, token: u64) -> Result<(), Error> {
        match self {
            Begun::Get((space, key)) => queue.get(token, *space, *key),
            Begun::Put((space, key), value, None) => queue.put(token, *space, *key, &value.bytes()),
            Begun::Put((space, key), value, Some(condition)) => {
                queue.put_if(token, *space, *key, &value.bytes(), *condition)
            }
            Begun::Batch(changes) => match changes[..] {
                [((space, key), None)] => queue.delete(token, space, key),
                _ => queue.write(token, &batch_of(changes)),
            },
        }
    }

    /// Whether both are about the same record.
    fn meets(&self, other: &Begun) -> bool {
        self.records().iter().any(|at| other.records().contains(at))
    }

    fn records(&self) -> Vec<Address> {
        match self {
            Begun::Get(at) | Begun::Put(at, ..) => vec![*at],
            Begun::Batch(changes) => changes.iter().map(|(at, _)| *at).collect(),
        }
    }
}

fn batch_of(changes: &[Change]) -> Batch {
    let mut batch = Batch::new();
    for ((space, key), content) in changes {
        match content {
            Some(content) => batch.put(*space, *key, &content.bytes()),
            None => batch.delete(*space, *key),
        };
    }
    batch
}

fn compare(found: &Option<Vec<u8>>, known: Option<Content>, at: Address) {
    let is_right = match (found, known) {
        (Some(found), Some(known)) => *found == known.bytes(),
        (None, None) => true,
        _ => false,
    };
    assert!(is_right, "{at:?}: {:?} bytes found, {known:?} stored", found.as_ref().map(Vec::len));
}

/// Blocks of a half of the disk as they must be: the stamp in each, or zeroes.
pub(crate) struct Disk {
    rng: Rng,
    /// Where the half begins.
    first: u64,
    stamps: Vec<u64>,
    scale: Scale,
    /// The writes and trims that a power cut ended.
    open: Vec<(Range<usize>, u64)>,
    pub(crate) met: Met,
}

impl Disk {
    pub(crate) fn new(rng: Rng, scale: &Scale, half: u64) -> Disk {
        let (first, stamps) = (half * scale.blocks, vec![0; scale.blocks as usize]);
        Disk { rng, first, stamps, scale: *scale, open: Vec::new(), met: Met::default() }
    }

    /// Everything is trimmed.
    pub(crate) fn trim_all(&mut self, device: &Device, disk: NamespaceId) {
        device.block_trim(disk, self.first, self.scale.blocks).unwrap();
        self.stamps.fill(0);
    }

    fn read(&self, device: &Device, disk: NamespaceId, blocks: &Range<usize>) -> Result<Vec<u8>, Error> {
        let mut data = vec![1; blocks.len() * BLOCK_BYTES];
        device.block_read(disk, self.first + blocks.start as u64, &mut data)?;
        Ok(data)
    }

    pub(crate) fn step(&mut self, device: &Device, disk: NamespaceId) {
        if !self.open.is_empty() {
            return;
        }
        let (blocks, stamp) = (self.any(), self.any_stamp());
        let (first, count) = (self.first + blocks.start as u64, blocks.len());
        let result = match stamp {
            None => self.read(device, disk, &blocks).map(Some),
            Some(0) => device.block_trim(disk, first, count as u64).map(|()| None),
            Some(stamp) => device.block_write(disk, first, &filled(stamp, count)).map(|()| None),
        };
        self.ended(device, disk, blocks, stamp, result);
    }

    /// The same through a queue: many commands in flight, on blocks of their own.
    pub(crate) fn queue_steps(&mut self, device: &Device, disk: NamespaceId, is_over: impl Fn() -> bool) {
        let depth = self.scale.in_flight;
        let mut queue = device.queue(depth as u32);
        let mut in_flight: HashMap<u64, (Range<usize>, Option<u64>)> = HashMap::new();
        let (mut token, mut answers) = (0, Vec::new());
        while self.open.is_empty() && !is_over() || !in_flight.is_empty() {
            while in_flight.len() < depth && self.open.is_empty() && !is_over() {
                let (blocks, stamp) = (self.any(), self.any_stamp());
                if in_flight.values().any(|(other, _)| other.start < blocks.end && blocks.start < other.end) {
                    break;
                }
                token += 1;
                let (first, count) = (self.first + blocks.start as u64, blocks.len());
                let begun = match stamp {
                    None => queue.submit_block_read(token, disk, first, count * BLOCK_BYTES),
                    Some(0) => queue.submit_block_trim(token, disk, first, count as u64),
                    Some(stamp) => queue.submit_block_write(token, disk, first, &filled(stamp, count)),
                };
                match begun {
                    Ok(()) => _ = in_flight.insert(token, (blocks, stamp)),
                    Err(error) => self.ended(device, disk, blocks, stamp, Err(error)),
                }
            }
            queue.poll(!in_flight.is_empty(), &mut answers);
            for answer in answers.drain(..) {
                let (blocks, stamp) = in_flight.remove(&answer.token).expect("answered once");
                self.ended(device, disk, blocks, stamp, answer.result.map(|found| found.map(|bytes| bytes.into_vec())));
            }
        }
    }

    fn any(&mut self) -> Range<usize> {
        let count = 1 + self.rng.below(self.scale.blocks_at_once) as usize;
        let first = self.rng.below((self.stamps.len() - count) as u64) as usize;
        first..first + count
    }

    /// What to write, 0 to trim; or to read.
    fn any_stamp(&mut self) -> Option<u64> {
        match self.rng.below(10) {
            0..=3 => Some(self.rng.next() | 1),
            4 => Some(0),
            _ => None,
        }
    }

    fn ended(
        &mut self,
        device: &Device,
        disk: NamespaceId,
        blocks: Range<usize>,
        stamp: Option<u64>,
        result: Result<Option<Vec<u8>>, Error>,
    ) {
        let Some(stamp) = stamp else {
            match result {
                Ok(data) => self.compare(blocks.start, &data.expect("a read has data")),
                Err(error) if self.scale.trouble == Trouble::Misread => assert!(is_misread(&error), "{error}"),
                Err(error) => assert!(self.scale.trouble == Trouble::Cut, "{error}"),
            }
            return;
        };
        match self.scale.trouble.fate(result.map(drop)) {
            Fate::Done => self.stamps[blocks].fill(stamp),
            Fate::Refused => {
                self.met.refused += 1;
                if stamp == 0 || self.scale.trouble == Trouble::Misread {
                    self.find_out(device, disk, blocks, stamp);
                }
            }
            Fate::Unknown => {
                self.met.unknown += 1;
                self.open.push((blocks, stamp));
            }
        }
    }

    /// Looks what became of a write, all or nothing, or of a trim (0), of which each block may have been trimmed.
    fn find_out(&mut self, device: &Device, disk: NamespaceId, blocks: Range<usize>, stamp: u64) {
        let stamp_of = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().unwrap());
        let mut tries = (0..100).map(|_| self.read(device, disk, &blocks));
        let read = tries.find(|read| read.is_ok() || self.scale.trouble != Trouble::Misread).expect("tried").unwrap();
        let found: Vec<u64> = read.chunks(BLOCK_BYTES).map(stamp_of).collect();
        let (stamps, is_trim) = (&mut self.stamps[blocks.clone()], stamp == 0);
        let changed = found.iter().filter(|found| **found == stamp).count();
        assert!(is_trim || changed == 0 || changed == stamps.len(), "a part of a write of blocks {blocks:?} is there");
        for (old, found) in stamps.iter_mut().zip(found) {
            assert!(found == *old || found == stamp, "{found} in blocks {blocks:?}");
            *old = found;
        }
        self.met.survived += u64::from(!is_trim && changed > 0);
    }

    pub(crate) fn resolve(&mut self, device: &Device, disk: NamespaceId) {
        for (blocks, stamp) in std::mem::take(&mut self.open) {
            self.find_out(device, disk, blocks, stamp);
        }
    }

    pub(crate) fn compare_all(&self, device: &Device, disk: NamespaceId) {
        for first in (0..self.stamps.len()).step_by(64) {
            let blocks = first..self.stamps.len().min(first + 64);
            let data = self.read(device, disk, &blocks).unwrap();
            self.compare(first, &data);
        }
    }

    fn compare(&self, first: usize, data: &[u8]) {
        for (number, (block, stamp)) in (first..).zip(data.chunks(BLOCK_BYTES).zip(&self.stamps[first..])) {
            let found = u64::from_le_bytes(block[..8].try_into().unwrap());
            assert!(
                block.chunks(8).all(|word| word == stamp.to_le_bytes()),
                "block {number}: {found:x}, not {stamp:x}"
            );
        }
    }
}

fn filled(stamp: u64, count: usize) -> Vec<u8> {
    stamp.to_le_bytes().into_iter().cycle().take(count * BLOCK_BYTES).collect()
}

/// What an operator might do meanwhile; answers why it could not be done, which the trouble allows.
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
            device.merge(spaces.kept, &keep, &mut |_, _| {}).map(drop)
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

/// Takes a snapshot while nothing is under way.
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

/// A namespace that comes and goes, of any kind, while others use it; one that a power cut left goes first.
fn come_and_go(device: &Device, rng: &mut Rng) -> Result<(), Error> {
    if let Ok(left) = device.namespace(SCRATCH) {
        device.delete_namespace(left)?;
    }
    let records = NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() };
    let versions = VersionOptions { buffer_bytes: 64 << 10, ..VersionOptions::default() };
    let options = match rng.below(3) {
        0 => records,
        1 => NamespaceOptions { versions: Some(versions), ..records },
        _ => BlockOptions::new(BLOCK_BYTES as u32, SCRATCH_BLOCKS).into(),
    };
    let scratch = device.create_namespace(SCRATCH, &options)?;
    let filled = (0..rng.below(60)).try_for_each(|number| match options.blocks {
        Some(_) => device.block_write(scratch, number % SCRATCH_BLOCKS, &[7; BLOCK_BYTES]),
        None => device.put(scratch, number % SCRATCH_KEYS, &[7; 3000]),
    });
    device.delete_namespace(scratch)?;
    filled?;
    assert!(is_unknown(&device.get(scratch, 1u64).unwrap_err()));
    Ok(())
}

/// Uses the namespace that comes and goes, if it is there. Whatever it holds was put by somebody.
fn trespass(device: &Device, rng: &mut Rng) -> Result<(), Error> {
    let Some(info) = device.namespaces().into_iter().find(|info| info.name == SCRATCH) else { return Ok(()) };
    let (key, block) = (rng.below(SCRATCH_KEYS), rng.below(SCRATCH_BLOCKS));
    if info.blocks.is_some() {
        let mut data = [1; BLOCK_BYTES];
        device.block_write(info.id, block, &[7; BLOCK_BYTES])?;
        device.block_read(info.id, block, &mut data)?;
        assert!(data == [7; BLOCK_BYTES] || data == [0; BLOCK_BYTES], "a block of others");
        return device.block_trim(info.id, block, 1);
    }
    match rng.below(6) {
        0 if info.versions.is_none() => device.put(info.id, key, &[7; 50_000]),
        1 => device.delete(info.id, key),
        2 => device.list(info.id, None, 100).map(drop),
        3 if info.versions.is_some() => device.snapshot(info.id).map(drop),
        4 => {
            let found = device.get(info.id, key)?;
            assert!(found.is_none_or(|found| found.iter().all(|byte| *byte == 7)), "a record of others");
            Ok(())
        }
        _ => device.put(info.id, key, &[7; 900]),
    }
}

fn is_unknown(error: &Error) -> bool {
    matches!(error.command(), Some(kaml_device::Error::UnknownNamespace(_)))
}
