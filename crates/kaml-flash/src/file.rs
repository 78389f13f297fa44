//! A file or block device as flash, commit ring and root slots.
//!
//! Lives here:       opening, the state all users of one device share, operations executed one at a time.
//! Lives elsewhere:  formatting (`format`), which superblock counts (`copies`), the steps of each operation (`plan`), many in flight (`uring`).
//! Implements:       docs/ARCHITECTURE.md "The medium contract".
//!
//! What is used of the file system: `O_DIRECT` where it can be had, one DSYNC write for the ring (into bytes written
//! before, a third of the cost of bytes merely allocated), `fdatasync` for flushes, holes for released blocks.

use crate::blocks::{Blocks, block_failure};
use crate::copies::{read_damaged, read_superblocks, replace_identity};
use crate::format;
use crate::inline::InlineQueue;
use crate::layout::Layout;
use crate::lock::{LockError, LockedFile, open_claimed};
use crate::plan::{Need, Plan, ScratchPool, UrgentOob};
use crate::superblock::Superblock;
use crate::trace::FileTrace;
use crate::uring::UringQueue;
use crate::{
    AlignedBuf, Begun, BlockIndex, Durability, FormatError, FormatOptions, Geometry, Io, Medium, MediumError,
    OpenError, Queue, sys,
};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How to open a formatted file or block device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Overrides the durability chosen when formatting.
    pub durability: Option<Durability>,
    /// Share the device with other readers and change nothing.
    pub read_only: bool,
    /// Use io_uring for queues, where the kernel has it.
    pub io_uring: bool,
    /// Bypass the page cache, where the file system can.
    pub direct: bool,
    /// How long to wait for a device that someone else has open, beyond the fraction of a second that is always waited.
    pub wait: Duration,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { durability: None, read_only: false, io_uring: true, direct: true, wait: Duration::ZERO }
    }
}

/// A formatted file or block device. A clone is another handle; the device stays locked until all of them and all of
/// their queues are gone.
///
/// `execute` of an erase, a flush or a program may wait for an OOB write that some queue has in flight. The owner of a
/// queue reaps it before it calls `execute` for such an operation itself.
#[derive(Clone)]
pub struct FileMedium {
    media: Arc<Media>,
}

/// What all users of one device share.
pub(crate) struct Media {
    pub(crate) file: LockedFile,
    /// As of opening.
    pub(crate) geometry: Geometry,
    /// The same with the most blocks: for checks of what does not depend on how many there are just now.
    pub(crate) widest: Geometry,
    /// Of `geometry`: blocks that are added follow it.
    pub(crate) layout: Layout,
    pub(crate) blocks: Blocks,
    pub(crate) urgent: Urgent,
    pub(crate) durability: Durability,
    path: PathBuf,
    /// As it is now.
    pub(crate) superblock: Mutex<Superblock>,
    uuid: [u8; 16],
    identity: [u8; 16],
    created_s: u64,
    read_only: bool,
    io_uring: bool,
    /// A queue was refused its ring, and this was logged.
    ring_refused: AtomicBool,
    pub(crate) punches: AtomicBool,
    /// The root's mirror can be written.
    mirrors: AtomicBool,
    /// The file through the page cache, where the ring is written to that alone.
    cached: Option<File>,
    /// Fallbacks taken, for people.
    notes: Mutex<Vec<String>>,
    /// Where changes of the file are noted, if anybody needs to know.
    pub(crate) trace: Option<Arc<FileTrace>>,
}

impl FileMedium {
    /// Formats a file or block device and opens it.
    pub fn create(path: impl AsRef<Path>, options: &FormatOptions) -> Result<Self, FormatError> {
        Self::create_with(path, options, &|_| true, &mut |_, _| {})
    }

    /// As [`FileMedium::create`], but changes nothing where `has_room` returns false; `progress` receives bytes written and bytes in all while blocks are written ahead
    /// ([`FormatOptions::prewrite`]).
    pub fn create_with(
        path: impl AsRef<Path>,
        options: &FormatOptions,
        has_room: &dyn Fn(&Geometry) -> bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, FormatError> {
        let path = path.as_ref();
        let (file, superblock) = format::create(path, options, has_room, progress)?;
        Self::assemble(path, file, superblock, &OpenOptions::default(), None).map_err(|(what, errno)| FormatError::Io {
            path: path.into(),
            what,
            source: errno.into(),
        })
    }

    /// Opens a formatted file or block device.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, OpenError> {
        Self::open_traced(path.as_ref(), options, None)
    }

    /// As [`FileMedium::open`]; all that changes the file from now on is noted, but for what goes through a mapping
    /// ([`Durability::Process`]).
    pub fn open_traced(path: &Path, options: &OpenOptions, trace: Option<Arc<FileTrace>>) -> Result<Self, OpenError> {
        let file = open_locked(path, options.read_only, options.wait)?;
        let superblock = read_superblocks(path, &*file, options.read_only)?;
        Self::assemble(path, file, superblock, options, trace).map_err(|failed| not_opened(path, failed))
    }

    /// What others know the device by. Opens the device for reading while this looks.
    ///
    /// # Errors
    /// As [`FileMedium::open`].
    pub fn identity_of(path: impl AsRef<Path>) -> Result<[u8; 16], OpenError> {
        let path = path.as_ref();
        let file = open_locked(path, true, Duration::ZERO)?;
        Ok(read_superblocks(path, &*file, true)?.identity())
    }

    /// Gives a device that nobody has open another identity, drawn at random, and returns it: a copy of a device needs one before
    /// both are used by one host. Nothing else changes, and nothing else must be in order. A power cut leaves the old identity or the
    /// new one.
    ///
    /// # Errors
    /// As [`FileMedium::open`]; [`OpenError::Io`] also if the disk does not take it.
    pub fn renew_identity(path: impl AsRef<Path>) -> Result<[u8; 16], OpenError> {
        let path = path.as_ref();
        let file = open_locked(path, false, Duration::ZERO)?;
        let failed = |what, source| OpenError::Io { path: path.into(), what, source };
        let identity = format::random_uuid().map_err(|source| failed("drawing an identity", source))?;
        replace_identity(path, &*file, identity)?;
        Ok(identity)
    }

    /// As [`FileMedium::open`] for reading, also where the superblocks at the beginning are damaged and the one at the end, or
    /// wherever the end was, is whole; and where the file was cut short, whose missing bytes cannot be read then. Returns also why
    /// it cannot be opened otherwise, if these are why.
    pub fn open_damaged(path: impl AsRef<Path>) -> Result<(Self, Option<OpenError>), OpenError> {
        let (path, options) = (path.as_ref(), OpenOptions { read_only: true, ..OpenOptions::default() });
        let file = open_locked(path, true, Duration::ZERO)?;
        let (superblock, why) = read_damaged(path, &*file)?;
        let medium = Self::assemble(path, file, superblock, &options, None);
        Ok((medium.map_err(|failed| not_opened(path, failed))?, why))
    }

    fn assemble(
        path: &Path,
        file: LockedFile,
        superblock: Superblock,
        options: &OpenOptions,
        trace: Option<Arc<FileTrace>>,
    ) -> Result<Self, (&'static str, Errno)> {
        let mut notes = Vec::new();
        if options.direct
            && let Err(why) = use_direct(&file, &superblock.geometry)
        {
            notes.push(format!("buffered I/O ({why})"));
        }
        let mut io_uring = options.io_uring;
        if io_uring && let Err(error) = UringQueue::probe() {
            notes.push(format!("no io_uring ({error})"));
            io_uring = false;
        }
        for note in &notes {
            tracing::warn!(path = %path.display(), "{note}");
        }
        let (geometry, layout) = (superblock.geometry.clone(), Layout::of(&superblock.geometry));
        let durability = options.durability.unwrap_or(superblock.durability);
        let cached = match durability {
            Durability::Process if !options.read_only => {
                Some(sys::reopen_cached(&file, path).map_err(|errno| ("opening the commit ring", errno))?)
            }
            _ => None,
        };
        let media = Media {
            file,
            punches: (!superblock.prewritten).into(),
            mirrors: true.into(),
            blocks: Blocks::new(geometry.block_count()),
            urgent: Urgent::default(),
            layout,
            widest: geometry.widest(),
            geometry,
            durability,
            path: path.into(),
            uuid: superblock.uuid,
            identity: superblock.identity(),
            created_s: superblock.created_s,
            superblock: Mutex::new(superblock),
            read_only: options.read_only,
            io_uring,
            ring_refused: false.into(),
            cached,
            notes: notes.into(),
            trace,
        };
        Ok(Self { media: Arc::new(media) })
    }

    pub(crate) fn media(&self) -> &Media {
        &self.media
    }

    /// The durability in force.
    pub fn durability(&self) -> Durability {
        self.media.durability
    }

    /// When the device was formatted, in seconds since 1970.
    pub fn created_s(&self) -> u64 {
        self.media.created_s
    }

    /// Bytes of the file or device that it takes.
    pub fn capacity_bytes(&self) -> u64 {
        self.media.superblock().capacity_bytes
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.media.path
    }
}

fn open_locked(path: &Path, read_only: bool, wait: Duration) -> Result<LockedFile, OpenError> {
    let failed = |what, source| OpenError::Io { path: path.into(), what, source };
    let kind = std::fs::metadata(path).map_err(|error| failed("opening", error))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(OpenError::NotADevice { path: path.into() });
    }
    let mut how = File::options();
    how.read(true).write(!read_only);
    let claim = kind.is_block_device() && !read_only;
    let file = open_claimed(path, &mut how, claim, wait).map_err(|error| match error {
        LockError::InUse(holder) => OpenError::InUse { path: path.into(), holder },
        LockError::Failed(errno) => failed("opening", errno.into()),
    })?;
    match LockedFile::new(file, read_only, wait) {
        Ok(file) => Ok(file),
        Err(LockError::InUse(holder)) => Err(OpenError::InUse { path: path.into(), holder }),
        Err(LockError::Failed(errno)) => Err(failed("locking", errno.into())),
    }
}

fn not_opened(path: &Path, (what, errno): (&'static str, Errno)) -> OpenError {
    OpenError::Io { path: path.into(), what, source: errno.into() }
}

fn use_direct(file: &File, geometry: &Geometry) -> Result<(), String> {
    let sector_bytes = sys::sector_bytes(file);
    if sector_bytes > geometry.sector_bytes {
        return Err(format!(
            "formatted for sectors of {} bytes, here direct I/O takes {sector_bytes}",
            geometry.sector_bytes
        ));
    }
    sys::set_direct(file).map_err(|errno| format!("direct I/O refused: {errno}"))
}

impl Media {
    pub(crate) fn root(&self, slot: u8) -> u64 {
        self.layout.roots_offset + u64::from(slot) * u64::from(self.geometry.root_bytes)
    }

    /// Where the root's mirror lies, if there is one.
    pub(crate) fn mirror(&self) -> Option<u64> {
        self.superblock().tail.map(|tail| tail.mirror_offset)
    }

    pub(crate) fn check_writable(&self, io: &Io) -> Result<(), MediumError> {
        let what = match io {
            Io::Read { .. } | Io::ReadOob { .. } => return Ok(()),
            Io::Program { .. } => "program",
            Io::Erase { .. } => "erase",
            Io::Persist { .. } => "commit ring write",
            Io::WriteRoot { .. } => "root write",
            Io::Flush => "flush",
            Io::Resize { .. } => "change of size",
        };
        if self.read_only {
            return Err(MediumError::NotDurable { what, error: "the device is opened read-only".into() });
        }
        Ok(())
    }

    /// Makes a block's range contiguous, and a full file system visible before the block is in use.
    pub(crate) fn allocate(&self, block: BlockIndex) -> Result<(), MediumError> {
        if self.superblock().prewritten {
            return Ok(());
        }
        sys::allocate(&self.file, self.layout.block(block), self.layout.block_stride_bytes)
            .map_err(|errno| block_failure(block, "program", errno))
    }

    pub(crate) fn can_punch(&self) -> bool {
        self.punches.load(Ordering::Relaxed)
    }

    /// Remembers that holes cannot be had here, and reports it once.
    pub(crate) fn note_no_punch(&self, errno: Errno) {
        if self.punches.swap(false, Ordering::Relaxed) {
            self.note(format!("erased blocks keep their space (no holes: {errno})"));
        }
    }

    /// Logs one time that the mirror is missing: the device works without it.
    pub(crate) fn note_no_mirror(&self, errno: Errno) {
        if self.mirrors.swap(false, Ordering::Relaxed) {
            self.note(format!("the root's mirror cannot be written ({errno})"));
        }
    }

    /// Writes the ring through the page cache, where that is all it takes. A mapping would be a little faster, but a page that
    /// has no block, in a sparse copy or on a file system that copies on write, would end the process when the file system is full.
    pub(crate) fn write_cached(&self, offset: u64, bytes: &[u8]) -> Option<Result<(), Errno>> {
        let file = self.cached.as_ref()?;
        Some(sys::write_all(file, bytes, self.layout.ring_offset + offset, false))
    }

    /// A queue lost its ring; new ones are not given any.
    pub(crate) fn note_ring_lost(&self, why: &str) {
        if !self.ring_refused.swap(true, Ordering::Relaxed) {
            self.note(format!("a queue lost io_uring ({why})"));
        }
    }

    /// Logs that a copy of the superblock could not be written.
    pub(crate) fn note_bad_copy(&self, errno: Errno) {
        self.note(format!("superblock copy B cannot be written ({errno})"));
    }

    fn note(&self, note: String) {
        tracing::warn!(path = %self.path.display(), "{note}");
        self.notes.lock().expect("no panic under this lock").push(note);
    }

    /// Does one step's work on this thread.
    pub(crate) fn carry_out(&self, need: Need, plan: &mut Plan, io: &mut Io) -> Result<(), Errno> {
        match need {
            Need::Read { at, len, place } => sys::read_exact(&self.file, &mut plan.read_buffer(io, place)[..len], at),
            Need::Write { at, len, place, dsync } => {
                sys::write_all(&self.file, &plan.write_buffer(io, place)[..len], at, dsync)
            }
            Need::Sync => sys::sync_data(&self.file),
            Need::Punch { at, len } => sys::punch_hole(&self.file, at, len),
            Need::Turn(block) => {
                if self.blocks.wait_turn(block) {
                    Ok(())
                } else {
                    Err(Errno::TIMEDOUT)
                }
            }
            Need::Prepare => self.prepare_resize(plan),
            Need::Finish => self.finish_resize(plan),
            Need::Done => Ok(()),
        }
    }

    /// Carries an operation on from what it needs next to its end.
    fn go_on(&self, mut need: Need, plan: &mut Plan, io: &mut Io, pool: &mut ScratchPool) -> Result<(), MediumError> {
        while need != Need::Done {
            let outcome = self.carry_out(need, plan, io);
            need = plan.step(self, io, outcome, pool)?;
        }
        Ok(())
    }

    fn read_region(&self, what: String, at: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        sys::read_exact(&self.file, into, at)
            .map_err(|errno| MediumError::ReadFailed { what, error: errno.to_string() })
    }
}

/// OOB that programs in progress on callers' threads need, for a queue that helps.
#[derive(Default)]
pub(crate) struct Urgent {
    wanted: Mutex<Vec<UrgentOob>>,
    count: AtomicUsize,
}

impl Urgent {
    fn wanted(&self) -> MutexGuard<'_, Vec<UrgentOob>> {
        self.wanted.lock().expect("no panic under this lock")
    }

    fn add(&self, oob: UrgentOob) {
        let mut wanted = self.wanted();
        wanted.push(oob);
        self.count.store(wanted.len(), Ordering::Release);
    }

    /// One to be written now.
    pub(crate) fn take(&self) -> Option<UrgentOob> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut wanted = self.wanted();
        let taken = wanted.pop();
        self.count.store(wanted.len(), Ordering::Release);
        taken
    }

    /// Its program has no more need of it than it can see to itself.
    fn forget(&self, oob: UrgentOob) {
        let mut wanted = self.wanted();
        wanted.retain(|other| *other != oob);
        self.count.store(wanted.len(), Ordering::Release);
    }
}

thread_local! {
    static SCRATCH: RefCell<ScratchPool> = RefCell::default();
}

/// Lends the thread's buffers; one that ends, and closes a device that it held, has none any more.
fn with_scratch<R>(work: impl FnOnce(&mut ScratchPool) -> R) -> R {
    let mut work = Some(work);
    let mut once = |pool: &mut ScratchPool| work.take().expect("called once")(pool);
    match SCRATCH.try_with(|pool| once(&mut pool.borrow_mut())) {
        Ok(done) => done,
        Err(_) => once(&mut ScratchPool::default()),
    }
}

impl Medium for FileMedium {
    fn geometry(&self) -> &Geometry {
        &self.media.geometry
    }

    fn uuid(&self) -> [u8; 16] {
        self.media.uuid
    }

    fn identity(&self) -> [u8; 16] {
        self.media.identity
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        with_scratch(|pool| {
            let mut plan = Plan::new();
            let need = plan.step(&self.media, io, Ok(()), pool)?;
            self.media.go_on(need, &mut plan, io, pool)
        })
    }

    fn begin<'a>(&'a self, io: &'a mut Io) -> Result<Begun<'a>, MediumError> {
        let mut plan = Plan::leaving_oob();
        let mut need = with_scratch(|pool| plan.step(&self.media, io, Ok(()), pool))?;
        let oob = plan.urgent_oob(io);
        oob.into_iter().for_each(|oob| self.media.urgent.add(oob));
        Ok(Box::new(move || {
            if let Some(oob) = oob {
                let outcome = self.media.carry_out(need, &mut plan, io);
                self.media.urgent.forget(oob);
                need = with_scratch(|pool| plan.step(&self.media, io, outcome, pool))?;
            }
            with_scratch(|pool| self.media.go_on(need, &mut plan, io, pool))
        }))
    }

    fn blocks_in(&self, capacity_bytes: u64) -> Option<u32> {
        Some(self.media.blocks_in(capacity_bytes))
    }

    fn capacity_bytes(&self) -> Option<u64> {
        Some(self.media.superblock().capacity_bytes)
    }

    fn grows_up_to(&self) -> Option<u64> {
        self.media.grows_up_to()
    }

    fn queue(&self, depth: u32) -> Box<dyn Queue> {
        if self.media.io_uring {
            match UringQueue::new(Arc::clone(&self.media), depth) {
                Ok(queue) => return Box::new(queue),
                // A process may run out of rings for a while: only the first refusal is news.
                Err(error) if !self.media.ring_refused.swap(true, Ordering::Relaxed) => {
                    self.media.note(format!("a queue without io_uring ({error})"));
                }
                Err(_) => {}
            }
        }
        Box::new(InlineQueue::new(self.clone()))
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.media.geometry.check_root("read", slot, into)?;
        self.media.read_region(format!("root slot {slot}"), self.media.root(slot), into)
    }

    fn read_mirror(&self, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.media.geometry.check_root("read", 0, into)?;
        match self.media.mirror() {
            Some(at) => self.media.read_region("the root's mirror".into(), at, into),
            None => {
                into.fill(0);
                Ok(())
            }
        }
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.media.geometry.check_ring("read", offset, into.len(), into.len())?;
        let file = self.media.cached.as_ref().unwrap_or(&self.media.file);
        sys::read_exact(file, into, self.media.layout.ring_offset + offset).map_err(|errno| MediumError::ReadFailed {
            what: format!("commit ring at {offset}"),
            error: errno.to_string(),
        })
    }

    /// Writing to the page cache is copying.
    fn persists_at_once(&self) -> bool {
        self.media.cached.is_some()
    }

    fn describe(&self) -> String {
        let media = &*self.media;
        let kind = if sys::is_block_device(&media.file).unwrap_or(false) { "block device" } else { "file" };
        let durable = match media.durability {
            Durability::Power if sys::is_in_memory(&media.file) => "as durable as a file system in memory",
            Durability::Power => "survives power loss",
            Durability::Process => "survives the end of the process, not power loss",
        };
        let mode = if media.read_only { ", read-only" } else { "" };
        let mut words = format!(
            "{kind} {}, {} bytes, sectors of {}, {durable}{mode}",
            media.path.display(),
            media.superblock().capacity_bytes,
            media.geometry.sector_bytes
        );
        for note in media.notes.lock().expect("no panic under this lock").iter() {
            words += "; ";
            words += note;
        }
        words
    }
}
