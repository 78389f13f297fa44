//! Reading what the firmware has written for itself: roots, streams, journal pages.
//!
//! Lives here:       the whole one of two roots, runs of pages, streams; reading again what does not match.
//! Lives elsewhere:  what is in them (`format`), what opening does with it (`recovery`, `salvage`).
//! Implements:       docs/formats/root.md, docs/formats/journal.md "When a page counts".

use crate::error::Error;
use crate::error::RootError;
use crate::format::journal::{self, Change};
use crate::format::root::{DecodeError, HEADER_BYTES, Root, Run, Stream};
use kaml_flash::{AlignedBuf, BlockIndex, Io, Medium, MediumError};
use std::ops::Range;

/// How often something is read that does not match its checksum, before it counts as damaged or torn: a bit that flipped on its
/// way is right next time.
pub(crate) const READS_MAX: u32 = 4;
/// Bytes of a root slot that are read first: enough to know how many more there are.
pub(crate) const ROOT_PEEK_BYTES: usize = 4096;
const _: () = assert!(HEADER_BYTES <= ROOT_PEEK_BYTES);

/// Bytes read at a time from metadata pages.
const READ_BYTES: usize = 1 << 20;

/// A root, and what is wrong with the slots.
pub(crate) struct FoundRoot {
    pub(crate) root: Root,
    /// The slot that should hold it and does not, or that cannot be read.
    pub(crate) restore: Option<u8>,
    /// A newer one may be in an unreadable place.
    doubt: Option<RootError>,
}

impl FoundRoot {
    /// The root, if it is the newest one.
    pub(crate) fn certain(self) -> Result<FoundRoot, RootError> {
        match self.doubt {
            Some(doubt) => Err(doubt),
            None => Ok(self),
        }
    }

    /// The root, and why it may not be the newest one.
    pub(crate) fn with_doubt(self) -> (Root, Option<RootError>) {
        (self.root, self.doubt)
    }
}

/// The newest whole root.
pub(crate) fn read_root(medium: &dyn Medium) -> Result<Root, Error> {
    Ok(find_root(medium)?.certain()?.root)
}

/// The newest whole root: the newer one of both slots. Where one of them is damaged or torn it would have been the newer one, if the
/// mirror is. One that cannot be read may be whole: then the mirror, which is never older than a slot, decides.
pub(crate) fn find_root(medium: &dyn Medium) -> Result<FoundRoot, Error> {
    let slots = [read_slot(medium, 0)?, read_slot(medium, 1)?];
    let (slot, damage, root) = match slots {
        [Ok(a), Ok(b)] => {
            let root = if a.generation > b.generation { a } else { b };
            return Ok(FoundRoot { root, restore: None, doubt: None });
        }
        [Err(DecodeError::Newer(found)), _] | [_, Err(DecodeError::Newer(found))] => {
            let newer = DecodeError::Newer(found);
            return Err(DecodeError::both(&newer, &newer).into());
        }
        [Err(damage), Ok(root)] => (0, damage, root),
        [Ok(root), Err(damage)] => (1, damage, root),
        [Err(a), Err(b)] => return Err(DecodeError::both(&a, &b).into()),
    };
    let mirror = read_mirror(medium).ok().flatten();
    let told = mirror.as_ref().is_some_and(|mirror| mirror.generation >= root.generation);
    // The mirror is written with a root, and so when all that it names is durable.
    if let Some(mirror) = mirror.filter(|mirror| mirror.generation > root.generation) {
        return Ok(FoundRoot { root: mirror, restore: Some(slot), doubt: None });
    }
    Ok(match damage {
        DecodeError::Unreadable(why) => {
            let doubt = (!told).then_some(RootError::Unreadable { slot, why });
            FoundRoot { root, restore: Some(slot), doubt }
        }
        // A root that was being written.
        DecodeError::Broken(_) | DecodeError::Newer(_) => FoundRoot { root, restore: None, doubt: None },
    })
}

fn read_slot(medium: &dyn Medium, slot: u8) -> Result<Result<Root, DecodeError>, Error> {
    read_root_from(medium, &|into| medium.read_root(slot, into))
}

/// The copy of a root that is far from the slots.
pub(crate) fn read_mirror(medium: &dyn Medium) -> Result<Option<Root>, Error> {
    Ok(read_root_from(medium, &|into| medium.read_mirror(into))?.ok())
}

/// Reads what is in a place for roots.
type ReadPlace<'a> = &'a dyn Fn(&mut AlignedBuf) -> Result<(), MediumError>;

fn read_root_from(medium: &dyn Medium, read: ReadPlace<'_>) -> Result<Result<Root, DecodeError>, Error> {
    let mut root = read_root_once(medium, read)?;
    for _ in 1..READS_MAX {
        if matches!(root, Err(DecodeError::Broken(_) | DecodeError::Unreadable(_))) {
            root = read_root_once(medium, read)?;
        }
    }
    Ok(root)
}

/// Reads more than what was written, or, if something after that cannot be read, no more.
fn read_root_once(medium: &dyn Medium, read: ReadPlace<'_>) -> Result<Result<Root, DecodeError>, Error> {
    let read = |bytes| match read_root_by(medium, read, bytes) {
        Err(MediumError::ReadFailed { error, .. }) => Ok(Err(DecodeError::Unreadable(error))),
        found => found,
    };
    Ok(match read(ROOT_PEEK_BYTES)? {
        Err(DecodeError::Unreadable(_)) => read(medium.geometry().sector_bytes as usize)?,
        found => found,
    })
}

/// Reads multiples of this many bytes.
fn read_root_by(
    medium: &dyn Medium,
    read: ReadPlace<'_>,
    unit: usize,
) -> Result<Result<Root, DecodeError>, MediumError> {
    let max = medium.geometry().root_bytes as usize;
    let mut bytes = AlignedBuf::zeroed(unit.min(max));
    read(&mut bytes)?;
    let total = Root::total_bytes(&bytes);
    if total > max {
        return Ok(Err(DecodeError::Broken("longer than its slot")));
    }
    if total > bytes.len() {
        bytes = AlignedBuf::zeroed(total.next_multiple_of(unit).min(max));
        read(&mut bytes)?;
    }
    Ok(Root::decode(&bytes, medium.uuid()))
}

/// Calls `each` with the page number and bytes of every page of a run.
pub(crate) fn read_run(medium: &dyn Medium, run: &Run, each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error> {
    let geometry = medium.geometry();
    let page_bytes = geometry.page_bytes as usize;
    let step = (READ_BYTES / page_bytes).max(1) as u32;
    let mut page = run.page;
    let end = run.page + run.page_count;
    while page < end {
        let count = step.min(end - page);
        let at = geometry.chunk_at(BlockIndex(run.block), page * geometry.chunks_per_page());
        let mut io = Io::Read { at, into: AlignedBuf::zeroed(count as usize * page_bytes) };
        medium.execute(&mut io)?;
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        into.chunks(page_bytes).zip(page..).for_each(|(bytes, page)| each(page, bytes));
        page += count;
    }
    Ok(())
}

/// The changes of each page of a run of the journal, with the number of the first.
pub(crate) fn read_journal(medium: &dyn Medium, run: &Run) -> Result<Vec<(u64, Vec<Change>)>, Error> {
    read_again(|| {
        let (mut pages, mut bad) = (Vec::new(), None);
        read_run(medium, run, &mut |page, bytes| match journal::check(bytes) {
            Some(changes) => pages.push(changes),
            None => bad = bad.or(Some(page)),
        })?;
        let damaged = |page| Error::MetadataDamaged(format!("journal page {page} of block {}", run.block));
        bad.map_or(Ok(pages), |page| Err(damaged(page)))
    })
}

/// Reads until that succeeds, but not forever.
pub(crate) fn read_again<T>(mut read: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    match (1..READS_MAX).find_map(|_| read().ok()) {
        Some(found) => Ok(found),
        None => read(),
    }
}

pub(crate) fn read_stream(medium: &dyn Medium, stream: &Stream) -> Result<Vec<u8>, Error> {
    Ok(read_stream_unless(medium, stream, &|| false)?.expect("nothing stops it"))
}

/// As [`read_stream`], but gives up once `stop` returns true; it then returns nothing.
pub(crate) fn read_stream_unless(
    medium: &dyn Medium,
    stream: &Stream,
    stop: &dyn Fn() -> bool,
) -> Result<Option<Vec<u8>>, Error> {
    read_again(|| read_stream_once(medium, stream, stop))
}

fn read_stream_once(medium: &dyn Medium, stream: &Stream, stop: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>, Error> {
    let page_bytes = u64::from(medium.geometry().page_bytes);
    let pages: u64 = stream.runs.iter().map(|r| u64::from(r.page_count)).sum();
    if stream.bytes > pages * page_bytes {
        return Err(Error::MetadataDamaged("a stream is longer than its pages".to_owned()));
    }
    let mut bytes = Vec::with_capacity((pages * page_bytes) as usize);
    for run in &stream.runs {
        if stop() {
            return Ok(None);
        }
        read_run(medium, run, &mut |_, page| bytes.extend_from_slice(page))?;
    }
    bytes.truncate(stream.bytes as usize);
    match kaml_crc::crc32c(&bytes) == stream.crc32c {
        true => Ok(Some(bytes)),
        false => {
            let first = stream.runs.first().map_or(0, |r| r.block);
            Err(Error::MetadataDamaged(format!("a stream from block {first} on does not match its checksum")))
        }
    }
}

/// Some bytes of a stream, whose checksum is not looked at.
pub(crate) fn read_stream_range(medium: &dyn Medium, stream: &Stream, range: Range<u64>) -> Result<Vec<u8>, Error> {
    let page_bytes = u64::from(medium.geometry().page_bytes);
    let (first, end) = (range.start / page_bytes, range.end.div_ceil(page_bytes));
    let mut bytes = Vec::with_capacity(((end - first) * page_bytes) as usize);
    let mut begin = 0; // of a run, in pages of the stream
    for run in &stream.runs {
        let run_end = begin + u64::from(run.page_count);
        let wanted = first.max(begin)..end.min(run_end);
        if !wanted.is_empty() {
            let page = run.page + (wanted.start - begin) as u32;
            let part = Run { page, page_count: (wanted.end - wanted.start) as u32, ..*run };
            read_run(medium, &part, &mut |_, page| bytes.extend_from_slice(page))?;
        }
        begin = run_end;
    }
    if begin < end {
        return Err(Error::MetadataDamaged("a stream is longer than its pages".to_owned()));
    }
    bytes.drain(..(range.start - first * page_bytes) as usize);
    bytes.truncate((range.end - range.start) as usize);
    Ok(bytes)
}

/// What can be read of a stream, page by page; the remainder is zeroes.
pub(crate) fn read_damaged_stream(medium: &dyn Medium, stream: &Stream) -> Vec<u8> {
    let page_bytes = medium.geometry().page_bytes as usize;
    let mut bytes = Vec::new();
    for run in &stream.runs {
        for page in run.page..run.page + run.page_count {
            let single = Run { block: run.block, page, page_count: 1 };
            let from = bytes.len();
            let _ = read_run(medium, &single, &mut |_, page| bytes.extend_from_slice(page));
            bytes.resize(from + page_bytes, 0);
        }
    }
    bytes.truncate(stream.bytes as usize);
    bytes
}
