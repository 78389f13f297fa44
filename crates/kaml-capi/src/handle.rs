//! Handles: numbers that name open objects.
//!
//! Lives here:       the tables that a handle is looked up in, and what a handle's number is made of.
//! Lives elsewhere:  the objects that they name (`device`, `ranges`, `snapshots`, `store`, `txn`).
//!
//! C keeps handles as long as it likes, copies them, and uses them after they were closed. A freed pointer could not be distinguished
//! from a stale one; a number is. It names a slot and the generation of the slot, which grows with each use, and its
//! kind, so a transaction is not taken for a device.
//!
//! ```text
//! bits   63..60   59..20       19..0
//!        kind     generation   slot
//! ```
//!
//! After a fork what was open is the parent's, whose threads the child does not have: the child's handles of it are not open, and
//! what it opens itself is its own. The child waits for no lock of another thread, because its owner does not exist there: the thread that
//! forks holds the tables over the fork, and a slot whose lock somebody had is left alone.
//!
//! A call holds a lock of its slot (shared, for devices and stores) until it returns. Closing takes the lock only if nobody
//! has it, so nothing is ever closed under a call that uses it, and closing never waits for a call.
//!
//! Many threads call with one device or store at the same time, and a lock that they share is a cache line that they take from
//! each other. Slots of these kinds therefore have several *doors*, each with its own lock and its own pointer to the object. A thread
//! always uses the same door; closing locks all of them.

use crate::changes::READERS;
use crate::device::DEVICES;
use crate::failure::Failure;
use crate::ranges::RANGES;
use crate::snapshots::SNAPSHOTS;
use crate::status::kaml_status::{KAML_BAD_HANDLE, KAML_IN_USE, KAML_TOO_MANY};
use crate::store::STORES;
use crate::txn::TRANSACTIONS;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard, TryLockError};

const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 40;
const SLOTS_MAX: usize = 1 << SLOT_BITS;
/// Slots are made so many at a time, and never move.
const CHUNK_SLOTS: usize = 1 << 10;
const CHUNKS_MAX: usize = SLOTS_MAX / CHUNK_SLOTS;
/// Doors of a slot whose object is used by many threads at the same time.
pub(crate) const SHARED: usize = 16;
/// A slot is left alone when its generations are used up: after 10^12 uses.
const GENERATION_MAX: u64 = (1 << GENERATION_BITS) - 1;
const _: () = assert!(4 + GENERATION_BITS + SLOT_BITS == u64::BITS);

/// Forks between this process and the one that opened the first handle.
static FORKS: AtomicU64 = AtomicU64::new(0);
static NOTICES_FORKS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Which door of each slot this thread uses, modulo their number. No value yet: `usize::MAX`.
    static DOOR: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The tables, while this thread forks. Never dropped, so it exists at the end of a thread, too.
    static HELD: Cell<Option<ManuallyDrop<[MutexGuard<'static, Free>; 6]>>> = const { Cell::new(None) };
}

/// Has the tables held over each fork from now on, and forks counted in the child.
fn notice_forks() {
    extern "C" fn prepare() {
        HELD.set(HELD.take().or_else(|| {
            Some(ManuallyDrop::new([
                DEVICES.free(),
                STORES.free(),
                TRANSACTIONS.free(),
                RANGES.free(),
                SNAPSHOTS.free(),
                READERS.free(),
            ]))
        }));
    }
    extern "C" fn release() {
        drop(HELD.take().map(ManuallyDrop::into_inner));
    }
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        release();
    }
    // Nobody waits for the first one: that wait, too, might be inherited. Running twice does no harm.
    if !NOTICES_FORKS.load(Ordering::Acquire) {
        // SAFETY: what is called takes and releases locks that no thread holds while it forks, and adds to an atomic. Without memory
        // for it children are not notified; they must not use what was open anyway.
        let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(release), Some(count)) };
        NOTICES_FORKS.store(true, Ordering::Release);
    }
}

/// What a handle means. No kind is zero, so a handle of zeros is never open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device = 1,
    Store = 2,
    Transaction = 3,
    Range = 4,
    Snapshot = 5,
    Changes = 6,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Store => "store",
            Kind::Transaction => "transaction",
            Kind::Range => "iterator",
            Kind::Snapshot => "snapshot",
            Kind::Changes => "reader of changes",
        }
    }
}

struct Slot<T, const DOORS: usize> {
    /// Changes under the locks of all doors only; read before them too, so a stale handle never meets a call of its slot's next user.
    generation: AtomicU64,
    /// Forks before it was opened.
    forks: AtomicU64,
    /// Made when the slot is first used: they take up to 2 KiB.
    doors: OnceLock<Box<[Door<T>; DOORS]>>,
}

/// On cache lines of its own, and of the line that processors fetch with it.
#[repr(align(128))]
struct Door<T>(RwLock<Option<Arc<T>>>);

type LockedDoor<'a, T> = RwLockWriteGuard<'a, Option<Arc<T>>>;

#[derive(Default)]
struct Free {
    slots: Vec<u32>,
    /// Slots from here on were never used.
    fresh: usize,
}

/// All open handles of a kind.
pub(crate) struct Registry<T, const DOORS: usize> {
    kind: Kind,
    chunks: [OnceLock<Box<[Slot<T, DOORS>]>>; CHUNKS_MAX],
    free: Mutex<Free>,
}

impl<T, const DOORS: usize> Registry<T, DOORS> {
    pub(crate) const fn new(kind: Kind) -> Registry<T, DOORS> {
        let free = Mutex::new(Free { slots: Vec::new(), fresh: 0 });
        Registry { kind, chunks: [const { OnceLock::new() }; CHUNKS_MAX], free }
    }

    /// Opens a handle.
    pub(crate) fn insert(&self, value: T) -> Result<u64, Failure> {
        notice_forks();
        let (at, slot, mut doors) = loop {
            let (at, slot) = self.take_slot()?;
            if let Some(doors) = slot.lock() {
                break (at, slot, doors);
            }
        };
        let value = Arc::new(value);
        doors.iter_mut().for_each(|door| **door = Some(value.clone()));
        slot.forks.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(((self.kind as u64) << (64 - 4)) | (slot.generation.load(Ordering::Acquire) << SLOT_BITS) | at as u64)
    }

    /// Calls with the object of a handle, while other calls run.
    pub(crate) fn with<R>(&self, handle: u64, body: impl FnOnce(&T) -> Result<R, Failure>) -> Result<R, Failure> {
        let (slot, generation) = self.slot(handle)?;
        let content = slot.door().0.read().unwrap_or_else(PoisonError::into_inner);
        match &*content {
            Some(value) if slot.is_at(generation) => body(value),
            Some(_) | None => Err(self.not_open(handle)),
        }
    }

    /// Closes a handle if `check` allows it, and returns its object.
    pub(crate) fn take(&self, handle: u64, check: impl FnOnce(&T) -> Result<(), Failure>) -> Result<T, Failure> {
        let (slot, generation) = self.slot(handle)?;
        let in_use = || {
            let what = self.kind.name();
            Failure::new(KAML_IN_USE, format!("another thread is in a call with this {what}"))
        };
        let mut doors = slot.try_lock().ok_or_else(in_use)?;
        if !slot.is_at(generation) {
            return Err(self.not_open(handle));
        }
        check(doors[0].as_deref().ok_or_else(|| self.not_open(handle))?)?;
        // The last door's pointer is the last one.
        let value = doors.iter_mut().map(|door| door.take()).reduce(|_, last| last).flatten();
        let value = value.and_then(Arc::into_inner).expect("no call is inside, and each door has a pointer");
        slot.generation.store(generation + 1, Ordering::Release);
        let used_up = generation + 1 == GENERATION_MAX;
        drop(doors);
        if !used_up {
            self.free().slots.push((handle as usize % SLOTS_MAX) as u32);
        }
        Ok(value)
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_slot(&self) -> Result<(usize, &Slot<T, DOORS>), Failure> {
        let mut free = self.free();
        let at = match free.slots.pop() {
            Some(slot) => slot as usize,
            None if free.fresh == SLOTS_MAX => {
                let what = self.kind.name();
                return Err(Failure::new(KAML_TOO_MANY, format!("{SLOTS_MAX} {what} handles are open already")));
            }
            None => {
                free.fresh += 1;
                free.fresh - 1
            }
        };
        // Under the lock, so no fork comes in between.
        Ok((at, &self.chunks[at / CHUNK_SLOTS].get_or_init(new_chunk)[at % CHUNK_SLOTS]))
    }

    /// The slot of a handle that is open, or was a moment ago.
    #[inline(always)]
    fn slot(&self, handle: u64) -> Result<(&Slot<T, DOORS>, u64), Failure> {
        if handle >> (64 - 4) != self.kind as u64 {
            return Err(self.not_open(handle));
        }
        let at = handle as usize % SLOTS_MAX;
        let chunk = self.chunks[at / CHUNK_SLOTS].get().ok_or_else(|| self.not_open(handle))?;
        let (slot, generation) = (&chunk[at % CHUNK_SLOTS], (handle >> SLOT_BITS) & GENERATION_MAX);
        if slot.forks.load(Ordering::Relaxed) != FORKS.load(Ordering::Relaxed) {
            return Err(self.of_parent(handle));
        }
        if slot.is_at(generation) { Ok((slot, generation)) } else { Err(self.not_open(handle)) }
    }

    #[cold]
    #[inline(never)]
    fn of_parent(&self, handle: u64) -> Failure {
        let what = self.kind.name();
        let text = format!("{handle:#x} is a {what} of the process that this one was forked from");
        Failure::new(KAML_BAD_HANDLE, text)
    }

    #[cold]
    #[inline(never)]
    fn not_open(&self, handle: u64) -> Failure {
        let what = self.kind.name();
        Failure::new(KAML_BAD_HANDLE, format!("{handle:#x} is not an open {what} (closed already, or never opened)"))
    }
}

impl<T> Registry<T, 1> {
    /// Calls with the object of a handle, one call at a time.
    pub(crate) fn with_mut<R>(
        &self,
        handle: u64,
        body: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let (slot, generation) = self.slot(handle)?;
        let mut content = slot.door().0.write().unwrap_or_else(PoisonError::into_inner);
        match content.as_mut().and_then(Arc::get_mut) {
            Some(value) if slot.is_at(generation) => body(value),
            Some(_) | None => Err(self.not_open(handle)),
        }
    }
}

impl<T, const DOORS: usize> Slot<T, DOORS> {
    fn is_at(&self, generation: u64) -> bool {
        self.generation.load(Ordering::Acquire) == generation
    }

    fn doors(&self) -> &[Door<T>; DOORS] {
        self.doors.get_or_init(|| Box::new([const { Door(RwLock::new(None)) }; DOORS]))
    }

    /// The door that this thread uses.
    fn door(&self) -> &Door<T> {
        if DOORS == 1 {
            return &self.doors()[0];
        }
        let mut at = DOOR.get();
        if at == usize::MAX {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            at = NEXT.fetch_add(1, Ordering::Relaxed) % SHARED;
            DOOR.set(at);
        }
        &self.doors()[at % DOORS]
    }

    /// Locks all doors if no call is inside. If several threads try, the one that locks the first door continues.
    fn try_lock(&self) -> Option<[LockedDoor<'_, T>; DOORS]> {
        let mut locked = [const { None }; DOORS];
        for (place, door) in locked.iter_mut().zip(self.doors()) {
            *place = match door.0.try_write() {
                Ok(content) => Some(content),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => return None,
            };
        }
        Some(locked.map(|door| door.expect("each was locked")))
    }

    /// Locks a free slot, which only calls with stale handles of it still look at, for a moment. None: it is held by such a
    /// thread of the process that this one was forked from, and never ends.
    fn lock(&self) -> Option<[LockedDoor<'_, T>; DOORS]> {
        self.try_lock().or_else(|| {
            let is_of_this_process = self.forks.load(Ordering::Relaxed) == FORKS.load(Ordering::Relaxed);
            is_of_this_process
                .then(|| self.doors().each_ref().map(|door| door.0.write().unwrap_or_else(PoisonError::into_inner)))
        })
    }
}

fn new_chunk<T, const DOORS: usize>() -> Box<[Slot<T, DOORS>]> {
    (0..CHUNK_SLOTS)
        .map(|_| Slot { generation: AtomicU64::new(0), forks: AtomicU64::new(0), doors: OnceLock::new() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::kaml_status;
    use std::collections::HashSet;
    use std::sync::Barrier;

    fn status<R>(result: Result<R, Failure>) -> Option<kaml_status> {
        result.err().map(|failure| failure.status)
    }

    /// Goal:   a handle means its value until it is closed, and for nothing ever after, also when its slot is used
    ///         again; a handle of another kind and any other number mean nothing.
    /// Method: open and close in one slot many times, and ask every handle that ever was.
    #[test]
    fn stale_and_foreign_handles_are_refused() {
        let numbers = Registry::<i32, SHARED>::new(Kind::Store);
        let mut stale: Vec<u64> = vec![0, 1, u64::MAX, (1 << 60) | 5, (2 << 60) | 5, (2 << 60) | (7 << 40)];
        for round in 0..100 {
            let handle = numbers.insert(round).expect("there is room");
            assert_eq!(numbers.with(handle, |value| Ok(*value)).expect("it is open"), round);
            for old in &stale {
                assert_eq!(status(numbers.with(*old, |_| Ok(()))), Some(KAML_BAD_HANDLE), "{old:#x}");
                assert_eq!(status(numbers.take(*old, |_| Ok(()))), Some(KAML_BAD_HANDLE), "{old:#x}");
            }
            assert_eq!(numbers.take(handle, |_| Ok(())).expect("it is open"), round);
            stale.push(handle);
        }
        let unique: HashSet<u64> = stale.iter().copied().collect();
        assert_eq!(unique.len(), stale.len());
        let devices = Registry::<i32, 1>::new(Kind::Device);
        devices.insert(1).expect("there is room");
        assert_eq!(status(devices.with(2 << 60, |_| Ok(()))), Some(KAML_BAD_HANDLE));
    }

    /// Goal:   what is refused stays open, and nothing is closed under a call.
    /// Method: a check that states no; a close from within a call of another thread.
    #[test]
    fn nothing_is_closed_in_use() {
        let numbers = Registry::<i32, SHARED>::new(Kind::Device);
        let handle = numbers.insert(5).expect("there is room");
        assert_eq!(
            status(numbers.take(handle, |_| Err(Failure::argument("no")))),
            Some(kaml_status::KAML_BAD_ARGUMENT)
        );
        let (inside, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                numbers.with(handle, |_| {
                    inside.wait();
                    done.wait();
                    Ok(())
                })
            });
            inside.wait();
            assert_eq!(status(numbers.take(handle, |_| Ok(()))), Some(KAML_IN_USE));
            assert_eq!(numbers.with(handle, |value| Ok(*value)).expect("calls go side by side"), 5);
            done.wait();
        });
        assert_eq!(numbers.take(handle, |_| Ok(())).expect("nobody is inside"), 5);
    }

    /// Goal:   a stale handle is refused at once and with the right status while another thread is in a call with the slot's
    ///         next user; it neither waits for that call nor takes it for its own.
    /// Method: open, close, open again in the same slot, and ask the old handle from within a call with the new one.
    #[test]
    fn stale_handles_do_not_wait() {
        let numbers = Registry::<i32, 1>::new(Kind::Transaction);
        let old = numbers.insert(1).expect("there is room");
        numbers.take(old, |_| Ok(())).expect("it is open");
        let new = numbers.insert(2).expect("there is room");
        assert_eq!(old as usize % SLOTS_MAX, new as usize % SLOTS_MAX);
        let inside = numbers.with_mut(new, |_| {
            assert_eq!(status(numbers.take(old, |_| Ok(()))), Some(KAML_BAD_HANDLE));
            assert_eq!(status(numbers.with(old, |_| Ok(()))), Some(KAML_BAD_HANDLE));
            assert_eq!(status(numbers.with_mut(old, |_| Ok(()))), Some(KAML_BAD_HANDLE));
            Ok(())
        });
        assert!(inside.is_ok());
    }

    /// Goal:   a full table reports it, and continues when a handle is closed.
    /// Method: open as many as there are slots.
    #[test]
    fn a_full_table_says_so() {
        let numbers = Registry::<usize, 1>::new(Kind::Transaction);
        let first = numbers.insert(0usize).expect("there is room");
        (1..SLOTS_MAX).for_each(|number| assert!(numbers.insert(number).is_ok()));
        assert_eq!(status(numbers.insert(0)), Some(KAML_TOO_MANY));
        numbers.take(first, |_| Ok(())).expect("it is open");
        assert!(numbers.insert(0).is_ok());
    }
}
