//! Records of one thread.
//!
//! Lives here:       commands on records and versions, one at a time and in flight, compared with a model.
//! Lives elsewhere:  what there must be of older versions (`pasts`).

use super::operator::trespass;
use super::pasts::{KEEP_LAST, Pasts};
use super::{Address, Change, Content, Fate, Met, Scale, Spaces, Trouble, is_misread};
use kaml::{AsyncQueue, Batch, Condition, Device, Error, Key, NamespaceId};
use kaml_testkit::Rng;
use std::collections::HashMap;

/// The records of one thread as they must be.
pub(crate) struct Owner {
    thread: u64,
    rng: Rng,
    spaces: Spaces,
    scale: Scale,
    model: HashMap<Address, Content>,
    pub(super) pasts: Pasts,
    /// Commands that were executed whole or not at all.
    open: Vec<Vec<Change>>,
    /// The power is gone.
    is_over: bool,
    pub(crate) met: Met,
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
        let value = super::value(&mut self.rng, &self.scale);
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
                let trouble = matches!(self.scale.trouble, Trouble::Misread | Trouble::NoSpace);
                let may_be_refused = trouble || changes.iter().any(takes_space);
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
            Err(error) if matches!(error, kaml::Error::Conflict { .. }) => {
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
            let keys = page.keys.iter().map(|key| key.as_short().expect("keys are short"));
            for key in keys.filter(|key| self.owns(space, key)) {
                assert!(self.model.contains_key(&(space, key)), "{space} {key} is listed");
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
                Err(error) if self.scale.trouble.lacks_space(&error) => self.met.refused += 1,
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

    /// Everything is as it was in a snapshot again, which was taken while nothing was in progress.
    pub(super) fn rolled_back(&mut self, to: u32) {
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
                assert!(last.keys().all(|at| is_there(at, before(at))), "a part of {last:?} exists");
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
                let command = in_flight.remove(&answer.token).expect("completed one time");
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

    /// Changes of one batch, at most this many. Of records that keep their versions each is changed once.
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

    /// A new value, or a delete; of what keeps its versions only if there is something to delete, so it can be determined whether it
    /// was executed.
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
