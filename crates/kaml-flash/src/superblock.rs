//! The superblock: what a formatted file or block device contains about itself.
//!
//! Lives here:       the bytes of one copy, encoding, and the check that turns raw bytes into a [`Superblock`].
//! Lives elsewhere:  where copies and regions lie (`layout`), which copy wins (`copies`).
//! May be called by: `copies`, `file`, `format`.
//! Format page:      docs/formats/superblock.md

use crate::layout::{Layout, SUPERBLOCK_OFFSETS, Tail};
use crate::{Geometry, Packing};
use rustix::io::Errno;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a device. The line ends and the end-of-file character betray a transfer that changed text.
pub(crate) const MAGIC: [u8; 8] = *b"KAML\r\n\x1a\n";
/// The highest version this code reads, for devices that grow, or have got another size.
pub(crate) const VERSION: u32 = 4;
/// The version of devices that have got another identity.
const WITH_IDENTITY: u32 = 3;
/// What this code formats.
const WITHOUT_IDENTITY: u32 = 2;
/// The first version. Such devices have no tail.
const WITHOUT_TAIL: u32 = 1;
/// Bytes of one copy: the largest sector direct I/O may demand.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;

/// One copy on the medium.
///
/// | offset | bytes | field                | meaning                                                          |
/// |-------:|------:|----------------------|------------------------------------------------------------------|
/// |      0 |     8 | `magic`              | `"KAML\r\n\x1a\n"`; in every version                             |
/// |      8 |     4 | `version`            | 1 to 4; in every version                                         |
/// |     12 |     4 | `reserved0`          | zero                                                             |
/// |     16 |    16 | `uuid`               | drawn at random when formatted                                   |
/// |     32 |     8 | `created_s`          | when formatted, seconds since 1970                               |
/// |     40 |     8 | `capacity_bytes`     | bytes of the file or device that the layout may use              |
/// |     48 |     8 | `roots_offset`       | first byte of root slot 0; slot 1 follows it                     |
/// |     56 |     8 | `ring_offset`        | first byte of the commit ring                                    |
/// |     64 |     8 | `blocks_offset`      | first byte of block 0                                            |
/// |     72 |     8 | `block_stride_bytes` | from one block to the next: its data, then its OOB area          |
/// |     80 |     8 | `ring_bytes`         | geometry                                                         |
/// |     88 |     4 | `root_bytes`         | geometry                                                         |
/// |     92 |     4 | `sector_bytes`       | geometry                                                         |
/// |     96 |     4 | `channel_count`      | geometry                                                         |
/// |    100 |     4 | `dies_per_channel`   | geometry                                                         |
/// |    104 |     4 | `blocks_per_die`     | geometry                                                         |
/// |    108 |     4 | `pages_per_block`    | geometry                                                         |
/// |    112 |     4 | `page_bytes`         | geometry                                                         |
/// |    116 |     4 | `oob_bytes`          | geometry                                                         |
/// |    120 |     4 | `chunk_bytes`        | geometry                                                         |
/// |    124 |     4 | `pages_per_program`  | geometry                                                         |
/// |    128 |     1 | `packing`            | 0 across pages, 1 within a page                                  |
/// |    129 |     1 | `durability`         | 0 power, 1 process                                               |
/// |    130 |     1 | `prewritten`         | 1 when every block was written once and keeps its space          |
/// |    131 |     5 | `reserved1`          | zero when written, refused when not zero                         |
/// |    136 |     8 | `mirror_offset`      | first byte of the root's mirror; zero if there is none           |
/// |    144 |    16 | `identity`           | what others know the device by; before version 3 zero            |
/// |    160 |     8 | `grows_up_to`        | bytes up to which the device grows by itself; 0 if it does not   |
/// |    168 |  3924 | `reserved2`          | zero when written, refused when not zero                         |
/// |   4092 |     4 | `crc32c`             | over bytes 0..4092; in every version                             |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    reserved0: U32,
    uuid: [u8; 16],
    created_s: U64,
    capacity_bytes: U64,
    roots_offset: U64,
    ring_offset: U64,
    blocks_offset: U64,
    block_stride_bytes: U64,
    ring_bytes: U64,
    root_bytes: U32,
    sector_bytes: U32,
    channel_count: U32,
    dies_per_channel: U32,
    blocks_per_die: U32,
    pages_per_block: U32,
    page_bytes: U32,
    oob_bytes: U32,
    chunk_bytes: U32,
    pages_per_program: U32,
    packing: u8,
    durability: u8,
    prewritten: u8,
    reserved1: [u8; 5],
    mirror_offset: U64,
    identity: [u8; 16],
    grows_up_to: U64,
    reserved2: [u8; 3924],
    crc32c: U32,
}

const CRC_OFFSET: usize = offset_of!(Raw, crc32c);

const _: () = {
    assert!(size_of::<Raw>() == SUPERBLOCK_BYTES);
    assert!(offset_of!(Raw, version) == 8 && offset_of!(Raw, uuid) == 16 && offset_of!(Raw, created_s) == 32);
    assert!(offset_of!(Raw, capacity_bytes) == 40 && offset_of!(Raw, roots_offset) == 48);
    assert!(offset_of!(Raw, ring_offset) == 56 && offset_of!(Raw, blocks_offset) == 64);
    assert!(offset_of!(Raw, block_stride_bytes) == 72 && offset_of!(Raw, ring_bytes) == 80);
    assert!(offset_of!(Raw, root_bytes) == 88 && offset_of!(Raw, sector_bytes) == 92);
    assert!(offset_of!(Raw, channel_count) == 96 && offset_of!(Raw, pages_per_program) == 124);
    assert!(offset_of!(Raw, mirror_offset) == 136 && offset_of!(Raw, identity) == 144);
    assert!(offset_of!(Raw, grows_up_to) == 160);
    assert!(offset_of!(Raw, packing) == 128 && offset_of!(Raw, prewritten) == 130);
    assert!(CRC_OFFSET == 4092, "every version keeps its checksum here");
};

/// What "durable" has to outlive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// Loss of power.
    #[default]
    Power,
    /// The end of the process, by whatever signal; not loss of power or a crash of the kernel.
    Process,
}

/// A checked superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    pub(crate) uuid: [u8; 16],
    /// What others know the device by, if that is no longer its UUID.
    pub(crate) identity: Option<[u8; 16]>,
    pub(crate) created_s: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) geometry: Geometry,
    pub(crate) durability: Durability,
    /// Every block was written once and keeps its space.
    pub(crate) prewritten: bool,
    /// What lies after the blocks, on devices that were formatted since there is something.
    pub(crate) tail: Option<Tail>,
    /// Bytes up to which the device grows by itself; 0 if its size was changed by command. Nothing if it has the size that it was
    /// formatted with.
    pub(crate) grows_up_to: Option<u64>,
}

/// What one copy turned out to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BadCopy {
    /// The magic is missing: these bytes were never a superblock.
    Foreign,
    /// A whole superblock of a version this code does not know.
    Newer { found: u32 },
    /// A superblock once; why it no longer counts.
    Damaged { why: String },
    /// The disk refused to read this copy.
    Unreadable { errno: Errno },
}

impl Superblock {
    /// What others know the device by.
    pub(crate) fn identity(&self) -> [u8; 16] {
        self.identity.unwrap_or(self.uuid)
    }

    /// Where its copies lie.
    pub(crate) fn places(&self) -> impl DoubleEndedIterator<Item = u64> {
        SUPERBLOCK_OFFSETS.into_iter().chain(self.tail.map(|tail| tail.superblock_offset))
    }

    /// Whether the copy at the end of the device that it describes exists.
    pub(crate) fn is_at_end(&self, offset: u64) -> bool {
        self.tail.is_some_and(|tail| tail.superblock_offset == offset)
    }

    /// The bytes of one copy.
    pub(crate) fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let (geometry, layout) = (&self.geometry, Layout::of(&self.geometry));
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = match (self.grows_up_to, self.identity, self.tail) {
            (Some(_), ..) => VERSION,
            (None, Some(_), _) => WITH_IDENTITY,
            (None, None, Some(_)) => WITHOUT_IDENTITY,
            (None, None, None) => WITHOUT_TAIL,
        }
        .into();
        raw.identity = self.identity.unwrap_or_default();
        raw.uuid = self.uuid;
        raw.created_s = self.created_s.into();
        raw.capacity_bytes = self.capacity_bytes.into();
        raw.roots_offset = layout.roots_offset.into();
        raw.ring_offset = layout.ring_offset.into();
        raw.blocks_offset = layout.blocks_offset.into();
        raw.block_stride_bytes = layout.block_stride_bytes.into();
        raw.ring_bytes = geometry.ring_bytes.into();
        raw.root_bytes = geometry.root_bytes.into();
        raw.sector_bytes = geometry.sector_bytes.into();
        raw.channel_count = geometry.channel_count.into();
        raw.dies_per_channel = geometry.dies_per_channel.into();
        raw.blocks_per_die = geometry.blocks_per_die.into();
        raw.pages_per_block = geometry.pages_per_block.into();
        raw.page_bytes = geometry.page_bytes.into();
        raw.oob_bytes = geometry.oob_bytes.into();
        raw.chunk_bytes = geometry.chunk_bytes.into();
        raw.pages_per_program = geometry.pages_per_program.into();
        raw.packing = match geometry.packing {
            Packing::Across => 0,
            Packing::WithinPage => 1,
        };
        raw.durability = match self.durability {
            Durability::Power => 0,
            Durability::Process => 1,
        };
        raw.prewritten = self.prewritten.into();
        raw.grows_up_to = self.grows_up_to.unwrap_or(0).into();
        raw.mirror_offset = self.tail.map_or(0, |tail| tail.mirror_offset).into();
        raw.crc32c = kaml_crc::crc32c(&raw.as_bytes()[..CRC_OFFSET]).into();
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Turns the raw bytes of one copy into a superblock whose every number is consistent with the others.
    pub(crate) fn check(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Self, BadCopy> {
        let raw = Raw::ref_from_bytes(bytes).expect("an unaligned type of exactly this size");
        if raw.magic != MAGIC {
            return Err(BadCopy::Foreign);
        }
        let crc = kaml_crc::crc32c(&bytes[..CRC_OFFSET]);
        if crc != raw.crc32c.get() {
            return damaged(format!("checksum is {:08x}, the bytes make {crc:08x}", raw.crc32c.get()));
        }
        if raw.version.get() > VERSION {
            return Err(BadCopy::Newer { found: raw.version.get() });
        }
        if raw.version.get() == 0 {
            return damaged("version is 0".into());
        }
        let mut reserved = raw.reserved1.iter().chain(&raw.reserved2);
        if raw.reserved0.get() != 0 || reserved.any(|&byte| byte != 0) {
            return damaged("reserved bytes are not zero".into());
        }
        let identity = match raw.version.get() {
            WITH_IDENTITY if raw.identity == [0; 16] => return damaged("the identity is missing".into()),
            WITH_IDENTITY | VERSION => Some(raw.identity).filter(|identity| *identity != [0; 16]),
            _ if raw.identity != [0; 16] => return damaged("reserved bytes are not zero".into()),
            _ => None,
        };
        let grows_up_to = match (raw.version.get(), raw.grows_up_to.get()) {
            (VERSION, limit) if limit == 0 || limit >= raw.capacity_bytes.get() => Some(limit),
            (VERSION, limit) => return damaged(format!("grows_up_to is {limit}, less than the capacity")),
            (_, 0) => None,
            _ => return damaged("reserved bytes are not zero".into()),
        };
        let superblock = Self {
            uuid: raw.uuid,
            identity,
            created_s: raw.created_s.get(),
            capacity_bytes: raw.capacity_bytes.get(),
            geometry: raw.geometry()?,
            durability: match raw.durability {
                0 => Durability::Power,
                1 => Durability::Process,
                other => return damaged(format!("durability is {other}, must be 0 or 1")),
            },
            prewritten: match raw.prewritten {
                0 => false,
                1 => true,
                other => return damaged(format!("prewritten is {other}, must be 0 or 1")),
            },
            tail: match raw.version.get() {
                WITHOUT_TAIL => None,
                WITH_IDENTITY if raw.mirror_offset.get() == 0 => None,
                _ => Tail::of(raw.capacity_bytes.get(), raw.root_bytes.get()),
            },
            grows_up_to,
        };
        raw.check_layout(&superblock)?;
        Ok(superblock)
    }
}

impl Raw {
    fn geometry(&self) -> Result<Geometry, BadCopy> {
        let geometry = Geometry {
            channel_count: self.channel_count.get(),
            dies_per_channel: self.dies_per_channel.get(),
            blocks_per_die: self.blocks_per_die.get(),
            pages_per_block: self.pages_per_block.get(),
            page_bytes: self.page_bytes.get(),
            oob_bytes: self.oob_bytes.get(),
            chunk_bytes: self.chunk_bytes.get(),
            pages_per_program: self.pages_per_program.get(),
            packing: match self.packing {
                0 => Packing::Across,
                1 => Packing::WithinPage,
                other => return damaged(format!("packing is {other}, must be 0 or 1")),
            },
            ring_bytes: self.ring_bytes.get(),
            sector_bytes: self.sector_bytes.get(),
            root_bytes: self.root_bytes.get(),
        };
        match geometry.check() {
            Ok(()) => Ok(geometry),
            Err(error) => damaged(error.to_string()),
        }
    }

    /// Offsets are written for readers without this code; here they must be what the geometry makes them.
    fn check_layout(&self, superblock: &Superblock) -> Result<(), BadCopy> {
        let layout = Layout::of(&superblock.geometry);
        for (what, found, expected) in [
            ("roots_offset", self.roots_offset.get(), layout.roots_offset),
            ("ring_offset", self.ring_offset.get(), layout.ring_offset),
            ("blocks_offset", self.blocks_offset.get(), layout.blocks_offset),
            ("block_stride_bytes", self.block_stride_bytes.get(), layout.block_stride_bytes),
            ("mirror_offset", self.mirror_offset.get(), superblock.tail.map_or(0, |tail| tail.mirror_offset)),
        ] {
            if found != expected {
                return damaged(format!("{what} is {found}, the geometry makes it {expected}"));
            }
        }
        let geometry = &superblock.geometry;
        let unit_bytes = u64::from(geometry.page_bytes) * u64::from(geometry.pages_per_program);
        if !unit_bytes.is_multiple_of(geometry.sector_bytes.into()) {
            return damaged(format!(
                "a program of {unit_bytes} bytes is not whole sectors of {}",
                geometry.sector_bytes
            ));
        }
        let end = superblock.tail.map_or(superblock.capacity_bytes, |tail| tail.mirror_offset);
        if end < layout.end || superblock.capacity_bytes > i64::MAX as u64 {
            return damaged(format!(
                "capacity_bytes is {}, the blocks end at {}",
                superblock.capacity_bytes, layout.end
            ));
        }
        Ok(())
    }
}

fn damaged<T>(why: String) -> Result<T, BadCopy> {
    Err(BadCopy::Damaged { why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FormatOptions;
    use proptest::prelude::*;

    fn sample() -> Superblock {
        let options = FormatOptions { capacity_bytes: 64 << 20, ..FormatOptions::default() };
        Superblock {
            uuid: *b"0123456789abcdef",
            identity: None,
            created_s: 1_795_000_000,
            capacity_bytes: 64 << 20,
            geometry: Geometry::for_file(64 << 20, 512, &options).unwrap(),
            durability: Durability::Process,
            prewritten: false,
            tail: Tail::of(64 << 20, 256 << 10),
            grows_up_to: None,
        }
    }

    /// As devices were formatted before they had a tail.
    fn old_sample() -> Superblock {
        let mut superblock = Superblock { tail: None, ..sample() };
        superblock.geometry.blocks_per_die = 110;
        superblock
    }

    fn reseal(bytes: &mut [u8; SUPERBLOCK_BYTES]) {
        let crc = kaml_crc::crc32c(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Goal:   version 1 stays readable for good.
    /// Method: compare the bytes of a known superblock with the ones frozen here, field by field in hexadecimal.
    #[test]
    fn golden_bytes_of_version_1() {
        let bytes = old_sample().encode();
        let hex: String = bytes[..132].iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = concat!(
            "4b414d4c0d0a1a0a",                 // magic
            "0100000000000000",                 // version, reserved0
            "30313233343536373839616263646566", // uuid
            "c086fd6a00000000",                 // created_s
            "0000000400000000",                 // capacity_bytes 64 MiB
            "0000010000000000",                 // roots_offset 64 KiB
            "0000090000000000",                 // ring_offset
            "0000490000000000",                 // blocks_offset
            "00a0080000000000",                 // block_stride_bytes
            "0000400000000000",                 // ring_bytes 4 MiB
            "00000400",                         // root_bytes 256 KiB
            "00020000",                         // sector_bytes
            "01000000",                         // channel_count
            "01000000",                         // dies_per_channel
            "6e000000",                         // blocks_per_die
            "88000000",                         // pages_per_block
            "00100000",                         // page_bytes
            "20000000",                         // oob_bytes
            "40000000",                         // chunk_bytes
            "01000000",                         // pages_per_program
            "00010000",                         // packing, durability, prewritten, reserved
        );
        assert_eq!(hex, golden);
        assert!(bytes[132..CRC_OFFSET].iter().all(|&byte| byte == 0));
        assert_eq!(u32::from_le_bytes(bytes[CRC_OFFSET..].try_into().unwrap()), GOLDEN_CRC);
        assert_eq!(Superblock::check(&bytes), Ok(old_sample()));
    }

    const GOLDEN_CRC: u32 = 0xbbf9_7801;

    /// Goal:   version 2 stays readable for good.
    /// Method: what differs from version 1, frozen here.
    #[test]
    fn golden_bytes_of_version_2() {
        let mut bytes = sample().encode();
        assert_eq!(Superblock::check(&bytes), Ok(sample()));
        assert_eq!(bytes[8], 2);
        assert_eq!(bytes[136..144], (0x3fb_f000_u64).to_le_bytes(), "64 MiB less 256 KiB less 4 KiB");
        assert_eq!(sample().places().collect::<Vec<_>>(), [0, 4096, (64 << 20) - 4096]);
        assert_eq!(bytes[CRC_OFFSET..], GOLDEN_CRC_2.to_le_bytes());
        let old = old_sample().encode();
        bytes[8] = 1;
        bytes[104] = 110;
        bytes[136..144].fill(0);
        assert_eq!(bytes[..CRC_OFFSET], old[..CRC_OFFSET]);
    }

    const GOLDEN_CRC_2: u32 = 0x983f_ea2d;

    /// Goal:   version 3 stays readable for good.
    /// Method: what differs from versions 2 and 1, frozen here.
    #[test]
    fn golden_bytes_of_version_3() {
        let identity = Some(*b"fedcba9876543210");
        for old in [sample(), old_sample()] {
            let renewed = Superblock { identity, ..old.clone() };
            let mut bytes = renewed.encode();
            assert_eq!(Superblock::check(&bytes), Ok(renewed.clone()));
            assert_eq!((renewed.identity(), old.identity()), (*b"fedcba9876543210", old.uuid));
            assert_eq!((bytes[8], &bytes[144..160]), (3, &b"fedcba9876543210"[..]));
            bytes[8] = old.encode()[8];
            bytes[144..160].fill(0);
            assert_eq!(bytes[..CRC_OFFSET], old.encode()[..CRC_OFFSET]);
        }
        let mut bytes = Superblock { identity, ..sample() }.encode();
        bytes[144..160].fill(0);
        reseal(&mut bytes);
        assert!(matches!(Superblock::check(&bytes), Err(BadCopy::Damaged { .. })), "an identity is missing");
        let mut bytes = sample().encode();
        bytes[144] = 1;
        reseal(&mut bytes);
        assert!(matches!(Superblock::check(&bytes), Err(BadCopy::Damaged { .. })), "version 2 has none");
    }

    /// Goal:   version 4 stays readable for good.
    /// Method: what differs from versions 2 and 3, frozen here; limits that make no sense, and a limit in an older version.
    #[test]
    fn golden_bytes_of_version_4() {
        for identity in [None, Some(*b"fedcba9876543210")] {
            for limit in [0, 64 << 20, 8 << 30, u64::MAX] {
                let old = Superblock { identity, ..sample() };
                let grown = Superblock { grows_up_to: Some(limit), ..old.clone() };
                let mut bytes = grown.encode();
                assert_eq!(Superblock::check(&bytes), Ok(grown));
                assert_eq!((bytes[8], &bytes[160..168]), (4, &limit.to_le_bytes()[..]));
                bytes[8] = old.encode()[8];
                bytes[160..168].fill(0);
                assert_eq!(bytes[..CRC_OFFSET], old.encode()[..CRC_OFFSET]);
            }
        }
        let mut bytes = Superblock { grows_up_to: Some(1 << 30), ..sample() }.encode();
        assert_eq!(bytes[CRC_OFFSET..], GOLDEN_CRC_4.to_le_bytes());
        for (at, byte) in [(163, 1), (8, 2), (136, 1)] {
            let good = std::mem::replace(&mut bytes[at], byte);
            reseal(&mut bytes);
            assert!(matches!(Superblock::check(&bytes), Err(BadCopy::Damaged { .. })), "byte {at}");
            bytes[at] = good;
        }
    }

    const GOLDEN_CRC_4: u32 = 0x0e19_477f;

    /// Goal:   no single damaged byte passes for a superblock.
    /// Method: change every byte in turn, by one bit and wholly.
    #[test]
    fn every_changed_byte_is_noticed() {
        let good = sample().encode();
        for at in 0..SUPERBLOCK_BYTES {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = good;
                bytes[at] ^= flip;
                let found = Superblock::check(&bytes);
                let foreign = at < MAGIC.len();
                assert_eq!(found == Err(BadCopy::Foreign), foreign, "byte {at}");
                assert!(found.is_err(), "byte {at} changed by {flip:#x} passed");
            }
        }
    }

    /// Goal:   a superblock of a later version is distinguished from a damaged one.
    /// Method: raise the version and seal again.
    #[test]
    fn newer_version_is_named() {
        let mut bytes = sample().encode();
        bytes[8] = VERSION as u8 + 1;
        reseal(&mut bytes);
        assert_eq!(Superblock::check(&bytes), Err(BadCopy::Newer { found: VERSION + 1 }));
    }

    proptest! {
        /// Goal:   no bytes at all make the check panic, and what passes is what encoding writes.
        /// Method: change random fields of a good copy, seal it so that the checksum lets it through, check.
        #[test]
        fn sealed_nonsense_never_panics(changes in prop::collection::vec((8usize..173, any::<u8>()), 0..40)) {
            let mut bytes = sample().encode();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            reseal(&mut bytes);
            if let Ok(superblock) = Superblock::check(&bytes) {
                prop_assert_eq!(superblock.encode(), bytes);
            }
        }

        /// Goal:   the same for bytes that were never a superblock.
        /// Method: random bytes after a good magic or none.
        #[test]
        fn raw_nonsense_never_panics(
            mut bytes in prop::collection::vec(any::<u8>(), SUPERBLOCK_BYTES),
            magic in any::<bool>(),
        ) {
            if magic {
                bytes[..8].copy_from_slice(&MAGIC);
            }
            let mut bytes: [u8; SUPERBLOCK_BYTES] = bytes.try_into().unwrap();
            prop_assert!(Superblock::check(&bytes).is_err());
            reseal(&mut bytes);
            prop_assert!(Superblock::check(&bytes).is_err());
        }
    }
}
