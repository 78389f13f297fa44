//! Memory of an index: one reserved range of 64-byte lines, handed out in pages of 64 lines, or a few more.
//!
//! Lives here:       the mapping, pages taken and released, huge pages, what counts as used memory.
//! Lives elsewhere:  what a line means (`table`, `shape`).
//! May be called by: the table and its writer.
//!
//! - The whole range is reserved at once and never moves, so a line number is an address and a reader needs no
//!   chunk table. Reserving costs address space only; memory is taken when a page is first written.
//! - Nothing is unmapped before the arena is dropped. A reader may look at a page that was released and is another
//!   segment's by now; what it reads are atomics, and its segment's version shows that it must start again.
//! - Segments are lists of pages, not runs, so given-back pages fit every later segment: there is no fragmentation.
//! - A few given-back pages are kept for the next segment. The memory of all others returns to the system; their address space
//!   remains reserved, and reads as zeros until a segment takes the page again.
//! - Below `SMALL_BYTES` memory comes in 4 KiB pages, so a small namespace is small; above, in huge pages, which make
//!   look-ups a quarter faster. Small pages are kept small: when the system collapses small pages into a huge one, a thread that
//!   comes by waits for as long as clearing that takes.
//!
//! Clearing a huge page takes the system up to a millisecond, and six when a host below has to find memory first, too long for
//! an insert. So a thread of its own, the only one of this crate, has the next pages ready before they are needed. Where it
//! comes late, pages are taken from the other end of the range, small ones, until it is done: touching those that it is
//! making ready would take as long.
//!
//! All of this crate's unsafe code is here: mapping memory, turning a line number into a reference, and comparing the words
//! of two lines at once.
#![allow(
    unsafe_code,
    reason = "mapping memory, referring to it and vectors of atomics cannot be expressed in safe Rust"
)]

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::*};
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::shape::Header;

/// A cache line of eight words: a bucket, what lies after one, or the bits of full buckets.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [AtomicU64; 8]);

pub(crate) const LINE_BYTES: usize = 64;
const _: () = assert!(size_of::<Line>() == LINE_BYTES && size_of::<Header>() == LINE_BYTES);
const _: () = assert!(align_of::<Header>() == align_of::<Line>());
/// Directory entries of a line.
pub(crate) const ENTRIES_PER_LINE: u64 = 16;
/// Buckets of a page.
pub(crate) const PAGE_LINES: u32 = 64;
const SYSTEM_PAGE_BYTES: usize = 4096;
const HUGE_BYTES: usize = 2 << 20;
/// Up to here memory is taken 4 KiB at a time: a huge page that is just begun then is at most 4 % of the index.
const SMALL_BYTES: usize = 48 << 20;
const HUGE_LINES: u32 = (HUGE_BYTES / LINE_BYTES) as u32;
const SMALL_LINES: u32 = (SMALL_BYTES / LINE_BYTES) as u32;
/// How long before its end the next huge page is made ready: twenty thousand inserts.
const LEAD_LINES: u32 = HUGE_LINES / 8;
/// Small pages are made ready so many lines at a time, and by nobody before an index has a megabyte.
const SMALL_STEP_LINES: u32 = (128 << 10) / LINE_BYTES as u32;
const READY_FROM_LINES: u32 = (1 << 20) / LINE_BYTES as u32;
/// Pages released whose memory is kept for the next segment: those of a few segments that are rebuilt.
const KEPT_PAGES: usize = 64;
/// The longest range: what 24-bit page numbers reach.
pub(crate) const RESERVED_BYTES_MAX: usize = 1 << 36;

impl Line {
    /// A line that nobody else knows.
    pub(crate) fn of(words: &[u64; 8]) -> Line {
        let line = Line::default();
        line.store(words);
        line
    }

    /// All words. A caller that reads next to the writer validates the segment's version afterwards.
    #[inline]
    pub(crate) fn load(&self) -> [u64; 8] {
        std::array::from_fn(|i| self.0[i].load(Relaxed))
    }

    #[inline]
    pub(crate) fn store(&self, words: &[u64; 8]) {
        self.0.iter().zip(words).for_each(|(word, &value)| word.store(value, Relaxed));
    }
}

/// Which words of two lines have these low halves: bit `i` for word `i` of the first, whose low half would be `low`, bit
/// `8 + i` for word `i` of the second, with `low | 1`. Next to a writer some may be missing or too many, as with loads of
/// single words.
#[inline]
#[cfg(target_arch = "x86_64")]
pub(crate) fn alike(first: &Line, second: &Line, low: u32) -> u32 {
    let found: u32;
    // SAFETY: reads two aligned lines and changes nothing but its registers; SSE2 is in every x86-64. To Rust it is sixteen
    // relaxed loads: a word may change meanwhile, and the reader validates the segment's version afterwards.
    unsafe {
        std::arch::asm!(
            "movd {a}, {low:e}",
            "movd {b}, {low_1:e}",
            "pshufd {a}, {a}, 0",
            "pshufd {b}, {b}, 0",
            // The low halves of four words at a time.
            "movaps {t0}, [{first}]",
            "movaps {t1}, [{first} + 32]",
            "shufps {t0}, [{first} + 16], 0x88",
            "shufps {t1}, [{first} + 48], 0x88",
            "movaps {t2}, [{second}]",
            "movaps {t3}, [{second} + 32]",
            "shufps {t2}, [{second} + 16], 0x88",
            "shufps {t3}, [{second} + 48], 0x88",
            "pcmpeqd {t0}, {a}",
            "pcmpeqd {t1}, {a}",
            "pcmpeqd {t2}, {b}",
            "pcmpeqd {t3}, {b}",
            // Sixteen answers of 32 bits as sixteen bytes, and as bits.
            "packssdw {t0}, {t1}",
            "packssdw {t2}, {t3}",
            "packsswb {t0}, {t2}",
            "pmovmskb {found:e}, {t0}",
            first = in(reg) first,
            second = in(reg) second,
            low = in(reg) low,
            low_1 = in(reg) low | 1,
            found = lateout(reg) found,
            a = out(xmm_reg) _, b = out(xmm_reg) _,
            t0 = out(xmm_reg) _, t1 = out(xmm_reg) _, t2 = out(xmm_reg) _, t3 = out(xmm_reg) _,
            options(readonly, nostack, preserves_flags),
        );
    }
    found
}

/// The same without vectors.
#[cfg(any(test, not(target_arch = "x86_64")))]
pub(crate) fn alike_by_words(first: &Line, second: &Line, low: u32) -> u32 {
    let of = |line: &Line, low| (0..8).fold(0, |all, i| all | u32::from(line.0[i].load(Relaxed) as u32 == low) << i);
    of(first, low) | of(second, low | 1) << 8
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use alike_by_words as alike;

/// The system refuses the address space of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no address space for an index: the system refuses {bytes} bytes (raise `ulimit -v`, or close other devices)")]
pub struct NoAddressSpace {
    /// The least that an index takes.
    pub bytes: u64,
}

/// The reserved range.
pub(crate) struct Arena {
    lines: NonNull<Line>,
    line_count: u32,
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    /// After the last line that was ever handed out.
    frontier: AtomicU32,
    /// After the last line that was made ready, 0 before the first.
    ready: AtomicU32,
}

// SAFETY: the mapping belongs to the arena alone and is given out only as `&Line`, which are atomics.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves address space for about `bytes`, or for as much as the system lets us have.
    ///
    /// # Errors
    /// If not even one huge page can be mapped.
    pub(crate) fn reserve(bytes: u64) -> Result<Arena, NoAddressSpace> {
        let mut bytes = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(HUGE_BYTES, RESERVED_BYTES_MAX - HUGE_BYTES);
        bytes = bytes.next_multiple_of(HUGE_BYTES);
        loop {
            let mapping_bytes = bytes + HUGE_BYTES; // room to align
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
            // SAFETY: a fresh private mapping at an address of the kernel's choice touches nobody's memory.
            match unsafe { mmap_anonymous(std::ptr::null_mut(), mapping_bytes, access, flags) } {
                Ok(mapping) => return Ok(Arena::of_mapping(mapping.cast(), mapping_bytes, bytes)),
                Err(_) if bytes > HUGE_BYTES => bytes = (bytes / 2).next_multiple_of(HUGE_BYTES),
                Err(_) => return Err(NoAddressSpace { bytes: mapping_bytes as u64 }),
            }
        }
    }

    fn of_mapping(mapping: *mut u8, mapping_bytes: usize, bytes: usize) -> Arena {
        let skipped = mapping.align_offset(HUGE_BYTES);
        assert!(skipped + bytes <= mapping_bytes, "the mapping has room to align");
        // SAFETY: still inside the mapping, by the assertion.
        let lines = unsafe { mapping.add(skipped) };
        let arena = Arena {
            lines: NonNull::new(lines.cast()).expect("mmap never answers null"),
            line_count: u32::try_from(bytes / LINE_BYTES).expect("RESERVED_BYTES_MAX fits 32-bit line numbers"),
            mapping: NonNull::new(mapping).expect("mmap never answers null"),
            mapping_bytes,
            frontier: AtomicU32::new(0),
            ready: AtomicU32::new(0),
        };
        arena.advise(&(0..arena.line_count), Advice::LinuxNoHugepage);
        arena
    }

    /// Returns the memory of whole system pages to the system; they read as zeros from now on. False if the system refuses.
    ///
    /// A reader that is late sees zeros as it would see stores of another segment: before a page is discarded, the version of
    /// the segment that had it has changed.
    fn discard(&self, bytes: &Range<usize>) -> bool {
        let is_whole = bytes.start.is_multiple_of(SYSTEM_PAGE_BYTES) && bytes.end.is_multiple_of(SYSTEM_PAGE_BYTES);
        assert!(is_whole && bytes.end <= self.line_count as usize * LINE_BYTES, "whole system pages of this arena");
        // SAFETY: the range lies in our private anonymous mapping and stays mapped. All accesses to it are atomic, and the
        // system's zeros are to them what stores of another thread would be.
        unsafe {
            let first = self.lines.as_ptr().cast::<u8>().add(bytes.start);
            madvise(first.cast(), bytes.len(), Advice::LinuxDontNeed).is_ok()
        }
    }

    /// Advice is a wish: without huge pages the index is slower, not wrong.
    fn advise(&self, lines: &Range<u32>, advice: Advice) {
        assert!(lines.end <= self.line_count, "advice is for lines of this arena");
        // SAFETY: the range lies in our mapping, and the advice given here does not change what memory holds.
        let _ =
            unsafe { madvise(self.lines.as_ptr().add(lines.start as usize).cast(), lines.len() * LINE_BYTES, advice) };
    }

    /// The lines that should be made ready next; none if there is time.
    fn wanted(&self) -> Option<Range<u32>> {
        let frontier = self.frontier.load(Relaxed);
        let step = |line| if line < SMALL_LINES { SMALL_STEP_LINES } else { HUGE_LINES };
        let next = self.ready.load(Relaxed).max(frontier / step(frontier) * step(frontier));
        let end = next + step(next);
        let soon = frontier + step(next).min(LEAD_LINES) > next;
        (soon && frontier >= READY_FROM_LINES && end <= self.line_count).then_some(next..end)
    }

    /// Has all lines ready that are needed soon.
    fn catch_up(&self) {
        while let Some(lines) = self.wanted() {
            self.make_ready(lines);
        }
    }

    /// Has lines ready. Nobody writes there meanwhile, if they are to be huge pages.
    fn make_ready(&self, lines: Range<u32>) {
        if lines.start >= SMALL_LINES {
            self.advise(&lines, Advice::LinuxHugepage);
        }
        self.advise(&lines, Advice::LinuxPopulateWrite);
        self.ready.store(lines.end, Release);
    }

    /// What lies below the frontier comes in huge pages when it is touched, unless it exists.
    fn have_ready_when_touched(&self) {
        let lines = self.ready.load(Relaxed).max(SMALL_LINES)..self.frontier.load(Relaxed).next_multiple_of(HUGE_LINES);
        if !lines.is_empty() && lines.end <= self.line_count {
            self.advise(&lines, Advice::LinuxHugepage);
            self.ready.store(lines.end, Release);
        }
    }

    /// Memory taken from the system in front: everything below the frontier, and what is ready after it.
    fn taken_bytes(&self) -> usize {
        let lines = self.frontier.load(Relaxed).max(self.ready.load(Acquire)) as usize;
        (lines * LINE_BYTES).next_multiple_of(SYSTEM_PAGE_BYTES)
    }

    /// The line with this number.
    #[inline]
    pub(crate) fn line(&self, line: u32) -> &Line {
        self.lines().line(line)
    }

    /// The same line as a segment's header.
    #[inline]
    pub(crate) fn header(&self, line: u32) -> &Header {
        self.lines().header(line)
    }

    /// The `i`th directory entry of the arena, of sixteen a line.
    #[inline]
    pub(crate) fn entry(&self, i: u64) -> &AtomicU32 {
        self.lines().entry(i)
    }

    /// All lines, in two words that a look-up can keep in registers.
    #[inline]
    pub(crate) fn lines(&self) -> Lines<'_> {
        Lines { first: self.lines, count: self.line_count, arena: PhantomData }
    }

    /// Asks the processor to fetch a line.
    #[inline]
    pub(crate) fn prefetch(&self, line: u32) {
        self.lines().prefetch(line);
    }
}

/// The lines of an arena.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    first: NonNull<Line>,
    count: u32,
    arena: PhantomData<&'a Arena>,
}

impl<'a> Lines<'a> {
    #[inline]
    pub(crate) fn line(self, line: u32) -> &'a Line {
        assert!(line < self.count, "line numbers come from this arena");
        // SAFETY: inside the mapping by the assertion, aligned, readable and writable as long as the arena lives; memory
        // never written reads as zeros, and every access goes through atomics.
        unsafe { &*self.first.as_ptr().add(line as usize) }
    }

    #[inline]
    pub(crate) fn header(self, line: u32) -> &'a Header {
        let line: *const Line = self.line(line);
        // SAFETY: of the same size and alignment, and atomics as well, which take any bits. A caller that writes the line or reads
        // it next to the writer does so by `Header`'s fields alone.
        unsafe { &*line.cast() }
    }

    #[inline]
    pub(crate) fn entry(self, i: u64) -> &'a AtomicU32 {
        assert!(i < u64::from(self.count) * ENTRIES_PER_LINE, "entries lie in this arena");
        // SAFETY: inside the mapping by the assertion, aligned, and as in `line`. Lines of a directory are written and read
        // by entries alone.
        unsafe { &*self.first.as_ptr().cast::<AtomicU32>().add(i as usize) }
    }

    /// Asks the processor to fetch a line.
    #[inline]
    pub(crate) fn prefetch(self, line: u32) {
        prefetch(self.first.as_ptr().wrapping_add(line as usize));
    }
}

impl Line {
    /// Asks the processor to fetch it.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(self);
    }
}

#[inline]
fn prefetch(line: *const Line) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, whatever the address; the address is not used otherwise.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}

/// Which pages are taken: the writer's side of an arena.
pub(crate) struct Pages {
    /// Lines of a page.
    lines: u32,
    /// Numbers of the pages released whose memory is kept.
    given_back: Vec<u32>,
    /// Numbers of the pages released whose memory has returned to the system.
    discarded: Vec<u32>,
    /// A bit for each of these.
    is_discarded: Vec<u64>,
    /// System memory that they do not take.
    discarded_bytes: usize,
    /// The number of the first page never handed out.
    frontier: u32,
    /// Pages taken from the end of the range.
    tail: u32,
    /// Pages are taken before any of them is written.
    is_loading: bool,
    /// Single lines still free in the newest page of headers and directories.
    singles: Range<u32>,
    preparer: Option<Preparer>,
}

impl Pages {
    /// All pages are free; each has so many lines.
    pub(crate) fn new(lines: u32) -> Pages {
        Pages {
            lines,
            given_back: vec![],
            discarded: vec![],
            is_discarded: vec![],
            discarded_bytes: 0,
            frontier: 0,
            tail: 0,
            is_loading: false,
            singles: 0..0,
            preparer: None,
        }
    }

    /// The number of a page that holds anything. Pages fresh from the system hold zeros; others their old contents.
    pub(crate) fn take(&mut self, arena: &Arc<Arena>) -> u32 {
        match self.given_back.pop().or_else(|| self.take_discarded()) {
            Some(page) => page,
            None => self.take_run(arena, 1),
        }
    }

    /// The number of a page of zeros.
    pub(crate) fn take_zeroed(&mut self, arena: &Arc<Arena>) -> u32 {
        let fresh = self.free_count() == 0;
        let page = self.take(arena);
        if !fresh {
            (page * self.lines..(page + 1) * self.lines).for_each(|line| arena.line(line).store(&[0; 8]));
        }
        page
    }

    /// A page that no segment of today refers to; readers of yesterday may still look at it.
    pub(crate) fn give_back(&mut self, arena: &Arena, page: u32) {
        if self.given_back.len() < KEPT_PAGES || !self.discard(arena, page) {
            self.given_back.push(page);
        }
    }

    /// Returns a page's memory to the system; false if the system refuses.
    fn discard(&mut self, arena: &Arena, page: u32) -> bool {
        let bytes = self.bytes_alone(page);
        if !bytes.is_empty() && !arena.discard(&bytes) {
            return false;
        }
        self.discarded_bytes += bytes.len();
        self.mark_discarded(page, true);
        self.discarded.push(page);
        true
    }

    fn take_discarded(&mut self) -> Option<u32> {
        let page = self.discarded.pop()?;
        self.mark_discarded(page, false);
        self.discarded_bytes -= self.bytes_alone(page).len();
        Some(page)
    }

    /// The system pages that nothing but this page and discarded ones has a part of.
    fn bytes_alone(&self, page: u32) -> Range<usize> {
        let page_bytes = self.lines as usize * LINE_BYTES;
        let (start, end) = (page as usize * page_bytes, (page as usize + 1) * page_bytes);
        let (down, up) = (start / SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES, end.next_multiple_of(SYSTEM_PAGE_BYTES));
        let start =
            if page > 0 && self.is_discarded(page - 1) { down } else { start.next_multiple_of(SYSTEM_PAGE_BYTES) };
        let end = if self.is_discarded(page + 1) { up } else { end / SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES };
        start..end.max(start)
    }

    fn is_discarded(&self, page: u32) -> bool {
        self.is_discarded.get(page as usize / 64).is_some_and(|bits| bits >> (page % 64) & 1 != 0)
    }

    fn mark_discarded(&mut self, page: u32, is_discarded: bool) {
        let (word, bit) = (page as usize / 64, page % 64);
        if self.is_discarded.len() <= word {
            self.is_discarded.resize(word + 1, 0);
        }
        self.is_discarded[word] = self.is_discarded[word] & !(1 << bit) | u64::from(is_discarded) << bit;
    }

    /// Pages released and not taken again.
    fn free_count(&self) -> usize {
        self.given_back.len() + self.discarded.len()
    }

    /// Lines of zeros that are never released: segment headers and directories.
    pub(crate) fn take_lines(&mut self, arena: &Arc<Arena>, count: u32) -> u32 {
        if self.singles.len() < count as usize {
            let pages = count.div_ceil(self.lines);
            let first = self.take_run(arena, pages) * self.lines;
            self.singles = first..first + pages * self.lines;
        }
        let first = self.singles.start;
        self.singles.start += count;
        first
    }

    /// Whether there is address space for this many pages, and lines that are taken at once.
    pub(crate) fn have_room(&self, arena: &Arena, pages: u32, lines: u32) -> bool {
        let fresh = pages.saturating_sub(u32::try_from(self.free_count()).unwrap_or(u32::MAX));
        let runs = fresh.saturating_add(lines.div_ceil(self.lines) + 1); // lines come in two runs: a header and a directory
        u64::from(self.frontier) + u64::from(self.tail) + u64::from(runs) <= u64::from(arena.line_count / self.lines)
    }

    fn take_run(&mut self, arena: &Arc<Arena>, pages: u32) -> u32 {
        let page_count = arena.line_count / self.lines;
        let end = self.frontier + pages;
        assert!(end + self.tail <= page_count, "the index has outgrown the {page_count} pages reserved");
        if self.is_late(arena, end * self.lines) {
            self.prepare(arena);
            self.tail += pages;
            return page_count - self.tail;
        }
        arena.frontier.store(end * self.lines, Relaxed);
        self.prepare(arena);
        std::mem::replace(&mut self.frontier, end)
    }

    /// Whether lines up to this one may be just about to be made ready, as huge pages.
    fn is_late(&self, arena: &Arena, end: u32) -> bool {
        let prepares = self.preparer.as_ref().is_some_and(|preparer| preparer.thread.is_some());
        end > SMALL_LINES && prepares && end > arena.ready.load(Acquire)
    }

    fn prepare(&mut self, arena: &Arc<Arena>) {
        if !self.is_loading && arena.wanted().is_some() {
            self.preparer.get_or_insert_with(|| Preparer::start(arena)).wake();
        }
    }

    /// Takes pages that nobody writes before all of them are taken: huge ones come when they are touched, by as many threads as
    /// will write them.
    pub(crate) fn take_all<T>(&mut self, arena: &Arc<Arena>, take: impl FnOnce(&mut Pages) -> T) -> T {
        self.is_loading = true;
        let taken = take(self);
        self.is_loading = false;
        arena.have_ready_when_touched();
        taken
    }

    /// Memory taken from the system.
    pub(crate) fn taken_bytes(&self, arena: &Arena) -> u64 {
        let tail_bytes = (self.tail * self.lines) as usize * LINE_BYTES;
        let lists = (self.given_back.capacity() + self.discarded.capacity()) * size_of::<u32>();
        let lists = lists + size_of_val(&*self.is_discarded);
        (arena.taken_bytes() + tail_bytes + lists - self.discarded_bytes) as u64
    }
}

/// The thread that has memory ready.
struct Preparer {
    thread: Option<Thread>,
    signal: Arc<Signal>,
}

#[derive(Default)]
struct Signal {
    woken: AtomicBool,
    stopped: AtomicBool,
}

impl Preparer {
    /// Without a thread, if the system gives none: then all pages are small.
    fn start(arena: &Arc<Arena>) -> Preparer {
        let (signal, arena) = (Arc::new(Signal::default()), Arc::downgrade(arena));
        let seen = Arc::clone(&signal);
        let started = thread::Builder::new().name("index memory".into()).spawn(move || prepare(&arena, &seen));
        Preparer { thread: started.ok().map(|handle| handle.thread().clone()), signal }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread
            && !self.signal.woken.swap(true, AcqRel)
        {
            thread.unpark();
        }
    }
}

impl Drop for Preparer {
    /// Readers may keep the arena for longer; nothing more is taken from it.
    fn drop(&mut self) {
        self.signal.stopped.store(true, Release);
        self.wake();
    }
}

/// Until the writer is no more, or the arena.
fn prepare(arena: &Weak<Arena>, signal: &Signal) {
    loop {
        while !signal.woken.swap(false, AcqRel) {
            thread::park();
        }
        let Some(arena) = arena.upgrade().filter(|_| !signal.stopped.load(Acquire)) else { return };
        arena.catch_up();
    }
}

#[cfg(test)]
mod tests;
