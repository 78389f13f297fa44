//! What only the memory medium does: lose its power, come back, be copied.

use kaml_flash::{AlignedBuf, BlockIndex, FormatOptions, Geometry, Io, Medium, MediumError, MemoryMedium, PageAddr};
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;

fn medium() -> MemoryMedium {
    MemoryMedium::new(Geometry::for_file(32 << 20, SECTOR_BYTES as u32, &FormatOptions::default()).unwrap())
}

fn program(medium: &MemoryMedium, block: u32, page: u32, byte: u8, urgent: bool) -> Result<(), MediumError> {
    let data = Arc::new(AlignedBuf::copy_of(&[byte; PAGE_BYTES]));
    let at = PageAddr { block: BlockIndex(block), page };
    medium.execute(&mut Io::Program { at, data, oob: vec![byte; 32], urgent })
}

/// The data and the OOB of a page, each of which these tests fill with one byte.
fn page(medium: &MemoryMedium, block: u32, page: u32) -> (u8, u8) {
    let geometry = medium.geometry();
    let chunk = geometry.chunk_at(BlockIndex(block), page * geometry.chunks_per_page());
    let mut io = Io::Read { at: chunk, into: AlignedBuf::zeroed(PAGE_BYTES) };
    medium.execute(&mut io).unwrap();
    let Io::Read { into: data, .. } = io else { unreachable!() };
    let mut io = Io::ReadOob { at: PageAddr { block: BlockIndex(block), page }, into: AlignedBuf::zeroed(32) };
    medium.execute(&mut io).unwrap();
    let Io::ReadOob { into: oob, .. } = io else { unreachable!() };
    assert!(data.iter().all(|&byte| byte == data[0]) && oob.iter().all(|&byte| byte == oob[0]));
    (data[0], oob[0])
}

fn persist(medium: &MemoryMedium, byte: u8) -> Result<(), MediumError> {
    medium.execute(&mut Io::Persist { offset: 0, data: AlignedBuf::copy_of(&[byte; 4096]), len: 4096, barrier: false })
}

fn barrier(medium: &MemoryMedium) -> Result<(), MediumError> {
    medium.execute(&mut Io::Persist { offset: 0, data: AlignedBuf::copy_of(&[7; 4096]), len: 4096, barrier: true })
}

/// Goal:   the operation during which power fails leaves a prefix of its sectors, and nothing later does anything.
/// Method: ten ring writes, cut at each of them in turn; after power comes back the ring shows which was the last.
#[test]
fn power_fails_during_the_chosen_operation() {
    for cut in 0..10u8 {
        let medium = medium();
        medium.cut_after(cut.into());
        let answers: Vec<_> = (1..=10).map(|byte| persist(&medium, byte)).collect();
        for (at, answer) in answers.iter().enumerate() {
            let expected = if at + 1 < cut.into() { Ok(()) } else { Err(MediumError::Gone) };
            assert_eq!(*answer, expected, "write {at}, cut {cut}");
        }
        assert!(medium.is_cut());
        let mut ring = AlignedBuf::zeroed(4096);
        assert_eq!(medium.read_ring(0, &mut ring), Err(MediumError::Gone));
        assert_eq!(medium.read_root(0, &mut ring), Err(MediumError::Gone));
        medium.power_on(u64::from(cut));
        medium.read_ring(0, &mut ring).unwrap();
        let half = 4096 / SECTOR_BYTES / 2 * SECTOR_BYTES;
        assert!(ring[..half].iter().all(|&byte| byte == cut), "cut {cut}");
        assert!(ring[half..].iter().all(|&byte| byte == cut.saturating_sub(1)), "cut {cut}");
        persist(&medium, 99).unwrap();
    }
}

/// Goal:   what was flushed, or was urgent before a barrier, survives every cut; every other page may be lost or
///         kept, data and OOB apart.
/// Method: many seeds; the survivors are checked in each, and each fate of the others must occur in some.
#[test]
fn only_what_was_not_flushed_may_be_lost() {
    let mut fates = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let medium = medium();
        program(&medium, 0, 0, 1, false).unwrap();
        medium.execute(&mut Io::Flush).unwrap();
        program(&medium, 0, 1, 2, false).unwrap();
        program(&medium, 0, 2, 3, true).unwrap();
        barrier(&medium).unwrap();
        medium.cut_after(1);
        assert_eq!(program(&medium, 0, 3, 4, false), Err(MediumError::Gone));
        medium.power_on(seed);
        assert_eq!(page(&medium, 0, 0), (1, 1), "seed {seed}");
        assert_eq!(page(&medium, 0, 2), (3, 3), "seed {seed}");
        fates.insert(page(&medium, 0, 1));
    }
    assert_eq!(fates, [(0, 0), (0, 2), (2, 0), (2, 2)].into());
}

/// Goal:   a ring write with barrier that power cuts off may exist whole while what it relies on does not.
/// Method: an urgent program, a barrier during which power fails; over many seeds the page exists in some only.
#[test]
fn a_barrier_cut_off_promises_nothing() {
    let mut fates = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let medium = medium();
        program(&medium, 0, 0, 1, true).unwrap();
        medium.cut_after(1);
        assert_eq!(barrier(&medium), Err(MediumError::Gone));
        medium.power_on(seed);
        let mut ring = AlignedBuf::zeroed(4096);
        medium.read_ring(0, &mut ring).unwrap();
        assert!(ring.iter().all(|&byte| byte == 7));
        fates.insert(page(&medium, 0, 0));
    }
    assert_eq!(fates, [(0, 0), (0, 1), (1, 0), (1, 1)].into());
}

/// Goal:   an erase that was not flushed may leave the block whole, erased, or in between; a flushed one is final.
/// Method: many seeds over a block of two flushed pages, erased.
#[test]
fn an_erase_may_be_undone_until_flushed() {
    let mut fates = std::collections::BTreeSet::new();
    for flush in [false, true] {
        for seed in 0..200 {
            let medium = medium();
            program(&medium, 0, 0, 1, true).unwrap();
            program(&medium, 0, 1, 2, true).unwrap();
            barrier(&medium).unwrap();
            medium.execute(&mut Io::Erase { block: BlockIndex(0), release: false }).unwrap();
            assert_eq!((page(&medium, 0, 0), page(&medium, 0, 1)), ((0, 0), (0, 0)));
            if flush {
                medium.execute(&mut Io::Flush).unwrap();
            }
            medium.cut_after(0);
            medium.power_on(seed);
            let fate = (page(&medium, 0, 0).0, page(&medium, 0, 1).0);
            if flush {
                assert_eq!(fate, (0, 0), "seed {seed}");
            } else {
                fates.insert(fate);
            }
        }
    }
    assert_eq!(fates, [(0, 0), (0, 2), (1, 0), (1, 2)].into());
}

/// Goal:   a clone is the same device, `clone_state` another one, and `reopen` forgets what was programmed.
/// Method: program through one handle, look through the others.
#[test]
fn handles_copies_and_reopening() {
    let medium = medium();
    let handle = medium.clone();
    program(&medium, 0, 0, 1, false).unwrap();
    let copy = medium.clone_state();
    program(&medium, 0, 1, 2, false).unwrap();
    assert_eq!((page(&handle, 0, 1), page(&copy, 0, 0), page(&copy, 0, 1)), ((2, 2), (1, 1), (0, 0)));
    program(&copy, 0, 1, 3, false).unwrap();
    assert_eq!(page(&medium, 0, 1), (2, 2));
    let reopened = medium.reopen();
    assert_eq!(page(&reopened, 0, 1), (2, 2));
    let at = PageAddr { block: BlockIndex(0), page: 2 };
    assert_eq!(program(&reopened, 0, 2, 3, false), Err(MediumError::OutOfOrder { at, expected: 0 }));
    program(&reopened, 0, 0, 4, false).unwrap();
}

/// Goal:   a shape that cannot be is refused, not built.
/// Method: no pages.
#[test]
fn bad_geometry_is_refused() {
    let geometry = Geometry { pages_per_block: 0, ..medium().geometry().clone() };
    assert_eq!(MemoryMedium::try_new(geometry).err().unwrap().what, "pages_per_block");
}

/// Goal:   memory that is used again shows nothing of its earlier life: not after the pages programmed since, not where a
///         program was cut off, not after a power cut.
/// Method: blocks full of one byte, erased and flushed; then a page or two of another block, over many seeds of a cut; and
///         the same with memory that was taken beforehand.
#[test]
fn memory_used_again_is_empty() {
    for seed in 0..40 {
        let medium = medium();
        if seed % 2 == 0 {
            medium.allocate();
        }
        let page_count = medium.geometry().pages_per_block;
        for block in 0..2 {
            (0..page_count).for_each(|page| program(&medium, block, page, 0xaa, false).unwrap());
            medium.execute(&mut Io::Erase { block: BlockIndex(block), release: false }).unwrap();
        }
        medium.execute(&mut Io::Flush).unwrap();
        program(&medium, 2, 0, 1, false).unwrap();
        assert_eq!(
            (page(&medium, 2, 0), page(&medium, 2, 1), page(&medium, 2, page_count - 1)),
            ((1, 1), (0, 0), (0, 0))
        );
        assert_eq!(page(&medium, 0, 0), (0, 0), "erased");
        medium.execute(&mut Io::Flush).unwrap();
        medium.cut_after(1);
        assert_eq!(program(&medium, 2, 1, 2, false), Err(MediumError::Gone));
        medium.power_on(seed);
        assert_eq!((page(&medium, 2, 0), page(&medium, 2, 2)), ((1, 1), (0, 0)), "seed {seed}");
        let chunk = medium.geometry().chunk_at(BlockIndex(2), medium.geometry().chunks_per_page());
        let mut io = Io::Read { at: chunk, into: AlignedBuf::zeroed(PAGE_BYTES) };
        medium.execute(&mut io).unwrap();
        let Io::Read { into: torn, .. } = io else { unreachable!() };
        assert!(torn.iter().all(|&byte| byte == 0 || byte == 2), "seed {seed}");
    }
}
