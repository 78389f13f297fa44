//! What is on a block device or in a file already: signatures of file systems, partition tables, volumes, databases and disk images.
//!
//! Lives here:       the table of signatures, where they are looked for, and the name of what was found.
//! Lives elsewhere:  refusing to overwrite it (`format`).
//! Implements:       the places that `wipefs` of util-linux looks at, from the formats' own documentation.

use crate::sys;
use rustix::io::Errno;
use std::fs::File;

/// Where a signature is.
#[derive(Clone, Copy)]
enum At {
    /// This many bytes after the beginning.
    Begin(u64),
    /// This many bytes before the end.
    End(u64),
    /// This many bytes before the end, at or below the next multiple of the second number.
    EndAligned(u64, u64),
}

struct Signature {
    name: &'static str,
    at: At,
    magic: &'static [u8],
}

const fn begin(name: &'static str, at: u64, magic: &'static [u8]) -> Signature {
    Signature { name, at: At::Begin(at), magic }
}

const fn end(name: &'static str, before: u64, magic: &'static [u8]) -> Signature {
    Signature { name, at: At::End(before), magic }
}

const fn aligned(name: &'static str, before: u64, unit: u64, magic: &'static [u8]) -> Signature {
    Signature { name, at: At::EndAligned(before, unit), magic }
}

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// The more specific before the less specific: a partition table last, since file systems leave room for one.
const SIGNATURES: &[Signature] = &[
    // This project's own.
    begin("KAML device", 0, b"KAML"),
    begin("KAML device", 4 * K, b"KAML"),
    // Encryption, volume managers, arrays.
    begin("LUKS volume", 0, b"LUKS\xba\xbe"),
    begin("LUKS volume (second header)", 16 * K, b"SKUL\xba\xbe"),
    begin("LUKS volume (second header)", 32 * K, b"SKUL\xba\xbe"),
    begin("LUKS volume (second header)", 64 * K, b"SKUL\xba\xbe"),
    begin("LUKS volume (second header)", 128 * K, b"SKUL\xba\xbe"),
    begin("LUKS volume (second header)", 256 * K, b"SKUL\xba\xbe"),
    begin("LUKS volume (second header)", 512 * K, b"SKUL\xba\xbe"),
    begin("LUKS volume (second header)", M, b"SKUL\xba\xbe"),
    begin("LUKS volume (second header)", 2 * M, b"SKUL\xba\xbe"),
    begin("LUKS volume (second header)", 4 * M, b"SKUL\xba\xbe"),
    begin("BitLocker volume", 3, b"-FVE-FS-"),
    begin("LVM physical volume", 0, b"LABELONE"),
    begin("LVM physical volume", 512, b"LABELONE"),
    begin("LVM physical volume", 1024, b"LABELONE"),
    begin("LVM physical volume", 1536, b"LABELONE"),
    begin("LVM1 physical volume", 0, b"HM\x01\0"),
    begin("LVM1 physical volume", 0, b"HM\x02\0"),
    begin("device-mapper snapshot", 0, b"SnAp"),
    begin("dm-verity volume", 0, b"verity\0\0"),
    begin("dm-integrity volume", 0, b"integrt\0"),
    begin("md RAID member", 0, b"\xfc\x4e\x2b\xa9"),
    begin("md RAID member", 4 * K, b"\xfc\x4e\x2b\xa9"),
    aligned("md RAID member", 8 * K, 4 * K, b"\xfc\x4e\x2b\xa9"),
    aligned("md RAID member", 64 * K, 64 * K, b"\xfc\x4e\x2b\xa9"),
    end("DDF RAID member", 512, b"\xde\x11\xde\x11"),
    end("Intel RAID member", 1024, b"Intel Raid ISM Cfg Sig. "),
    end("Promise RAID member", 63 * 512, b"Promise Technology, Inc."),
    end("LSI RAID member", 512, b"$XIDE$"),
    end("Silicon Image RAID member", 512 - 0x60, b"\0\0\x5a\xa5"),
    begin("bcache device", 4 * K + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    begin("bcachefs", 4 * K + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    begin("bcachefs", M + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    aligned("DRBD device", 4 * K - 60, 1, b"\x83\x74\x02\x67"),
    aligned("DRBD device", 4 * K - 60, 1, b"\x83\x74\x02\x6b"),
    aligned("DRBD device", 4 * K - 60, 1, b"\x83\x74\x02\x6c"),
    aligned("DRBD device", 4 * K - 60, 1, b"\x83\x74\x02\x6d"),
    begin("VMFS volume", M, b"\x0d\xd0\x01\xc0"),
    begin("VMFS", 2 * M, b"\x5e\xf1\xab\x2f"),
    begin("Ceph BlueStore", 0, b"bluestore block device"),
    begin("VDO volume", 0, b"dmvdo001"),
    begin("Stratis volume", 528, b"!Stra0tis\x86\xff\x02^\x41rh"),
    begin("Oracle ASM disk", 32, b"ORCLDISK"),
    // File systems.
    begin("ext2/3/4 file system", K + 56, b"\x53\xef"),
    begin("XFS file system", 0, b"XFSB"),
    begin("btrfs file system", 64 * K + 64, b"_BHRfS_M"),
    begin("btrfs file system (second superblock)", 64 * M + 64, b"_BHRfS_M"),
    begin("F2FS file system", K, b"\x10\x20\xf5\xf2"),
    begin("F2FS file system (second superblock)", 5 * K, b"\x10\x20\xf5\xf2"),
    begin("NTFS file system", 3, b"NTFS    "),
    begin("ReFS file system", 3, b"ReFS\0\0\0\0"),
    begin("exFAT file system", 3, b"EXFAT   "),
    begin("FAT file system", 54, b"FAT12   "),
    begin("FAT file system", 54, b"FAT16   "),
    begin("FAT file system", 54, b"FAT     "),
    begin("FAT file system", 82, b"FAT32   "),
    begin("FAT file system", 82, b"MSWIN   "),
    begin("HFS+ file system", K, b"H+\0\x04"),
    begin("HFSX file system", K, b"HX\0\x05"),
    begin("HFS file system", K, b"BD"),
    begin("APFS container", 32, b"NXSB"),
    begin("ReiserFS file system", 8 * K + 52, b"ReIsErFs"),
    begin("ReiserFS file system", 8 * K + 20, b"ReIsErFs"),
    begin("ReiserFS file system", 64 * K + 52, b"ReIsErFs"),
    begin("ReiserFS file system", 64 * K + 52, b"ReIsEr2Fs"),
    begin("ReiserFS file system", 64 * K + 52, b"ReIsEr3Fs"),
    begin("Reiser4 file system", 64 * K, b"ReIsEr4"),
    begin("GFS2 file system", 64 * K, b"\x01\x16\x19\x70"),
    begin("OCFS2 file system", K, b"OCFSV2"),
    begin("OCFS2 file system", 2 * K, b"OCFSV2"),
    begin("OCFS2 file system", 4 * K, b"OCFSV2"),
    begin("OCFS2 file system", 8 * K, b"OCFSV2"),
    begin("OCFS file system", 8, b"OracleCFS"),
    begin("JFS file system", 32 * K, b"JFS1"),
    begin("NILFS2 file system", K + 6, b"\x34\x34"),
    aligned("NILFS2 file system (second superblock)", 4 * K - 6, 4 * K, b"\x34\x34"),
    begin("Minix file system", K + 16, b"\x7f\x13"),
    begin("Minix file system", K + 16, b"\x8f\x13"),
    begin("Minix file system", K + 16, b"\x68\x24"),
    begin("Minix file system", K + 16, b"\x78\x24"),
    begin("Minix file system", K + 24, b"\x5a\x4d"),
    begin("UFS file system", 8 * K + 1372, b"\x19\x01\x54\x19"),
    begin("UFS file system", 64 * K + 1372, b"\x19\x01\x54\x19"),
    begin("UFS file system", 8 * K + 1372, b"\x54\x19\x01\x00"),
    begin("UFS file system", 64 * K + 1372, b"\x54\x19\x01\x00"),
    begin("ISO 9660 file system", 32 * K + 1, b"CD001"),
    begin("UDF file system", 32 * K + 1, b"BEA01"),
    begin("UDF file system", 32 * K + 1, b"NSR0"),
    begin("SquashFS file system", 0, b"hsqs"),
    begin("SquashFS file system", 0, b"sqsh"),
    begin("EROFS file system", K, b"\xe2\xe1\xf5\xe0"),
    begin("CramFS file system", 0, b"\x45\x3d\xcd\x28"),
    begin("CramFS file system", 0, b"\x28\xcd\x3d\x45"),
    begin("RomFS file system", 0, b"-rom1fs-"),
    begin("zonefs file system", 0, b"SFOZ"),
    begin("UBI image", 0, b"UBI#"),
    begin("UBIFS image", 0, b"\x31\x18\x10\x06"),
    begin("BFS file system", 0, b"\xce\xfa\xad\x1b"),
    begin("VxFS file system", K, b"\xf5\xfc\x01\xa5"),
    begin("VxFS file system", 8 * K, b"\xa5\x01\xfc\xf5"),
    begin("HPFS file system", 8 * K, b"\x49\xe8\x95\xf9"),
    begin("BeFS file system", 32, b"1SFB"),
    begin("BeFS file system", 512 + 32, b"1SFB"),
    // ZFS labels: two at the beginning and two at the end, each with an array of uberblocks at its second half; see `zfs`.
    // Swap, by page sizes.
    begin("swap area", 4 * K - 10, b"SWAPSPACE2"),
    begin("swap area", 4 * K - 10, b"SWAP-SPACE"),
    begin("swap area", 8 * K - 10, b"SWAPSPACE2"),
    begin("swap area", 16 * K - 10, b"SWAPSPACE2"),
    begin("swap area", 32 * K - 10, b"SWAPSPACE2"),
    begin("swap area", 64 * K - 10, b"SWAPSPACE2"),
    begin("hibernation image", 4 * K - 10, b"S1SUSPEND"),
    begin("hibernation image", 4 * K - 10, b"S2SUSPEND"),
    begin("hibernation image", 4 * K - 10, b"LINHIB0001"),
    // Databases and disk images, which are files mostly and volumes sometimes.
    begin("SQLite database", 0, b"SQLite format 3\0"),
    begin("LMDB environment", 16, b"\xde\xc0\xef\xbe"),
    begin("redb database", 0, b"redb\x1a\x0a\xa9\x0d\x0a"),
    begin("Berkeley DB", 12, b"\x62\x31\x05\x00"),
    begin("Berkeley DB", 12, b"\x61\x15\x06\x00"),
    begin("GDBM database", 0, b"\xce\x9a\x57\x13"),
    begin("HDF5 file", 0, b"\x89HDF\r\n\x1a\n"),
    begin("Redis dump", 0, b"REDIS0"),
    begin("bolt database", 16, b"\xed\xda\x0c\xed"),
    end("RocksDB table", 8, b"\xf7\xcf\xf4\x85\xb7\x41\xe2\x88"),
    end("LevelDB table", 8, b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"),
    begin("QEMU image (qcow)", 0, b"QFI\xfb"),
    begin("VMware image", 0, b"KDMV"),
    begin("VMware image", 0, b"# Disk DescriptorFile"),
    begin("VirtualBox image", 64, b"\x7f\x10\xda\xbe"),
    begin("VHDX image", 0, b"vhdxfile"),
    end("VHD image", 512, b"conectix"),
    begin("VHD image", 0, b"conectix"),
    begin("gzip archive", 0, b"\x1f\x8b\x08"),
    begin("xz archive", 0, b"\xfd7zXZ\0"),
    begin("Zstandard archive", 0, b"\x28\xb5\x2f\xfd"),
    begin("bzip2 archive", 0, b"BZh"),
    begin("7-Zip archive", 0, b"7z\xbc\xaf\x27\x1c"),
    begin("zip archive", 0, b"PK\x03\x04"),
    begin("tar archive", 257, b"ustar"),
    begin("LTO or mt archive", 0, b"TAPE"),
    // Partition tables.
    begin("GUID partition table", 512, b"EFI PART"),
    begin("GUID partition table", 4 * K, b"EFI PART"),
    end("GUID partition table (backup)", 512, b"EFI PART"),
    end("GUID partition table (backup)", 4 * K, b"EFI PART"),
    begin("Apple partition map", 0, b"ER"),
    begin("Apple partition map", 512, b"PM"),
    begin("BSD disk label", 64, b"\x57\x45\x56\x82"),
    begin("BSD disk label", 512, b"\x57\x45\x56\x82"),
    begin("Sun disk label", 508, b"\xda\xbe"),
    begin("SGI disk label", 0, b"\x0b\xe5\xa9\x41"),
    begin("Amiga partition table", 0, b"RDSK"),
    begin("Atari partition table", 0x1c6, b"\x01GEM"),
    begin("MBR partition table or boot sector", 510, b"\x55\xaa"),
];

/// Bytes of a ZFS label, and where its uberblocks begin.
const ZFS_LABEL_BYTES: u64 = 256 * K;
const ZFS_UBERBLOCKS: u64 = 128 * K;
/// In the byte order of either kind of machine.
const ZFS_MAGIC: [[u8; 8]; 2] = [*b"\x0c\xb1\xba\0\0\0\0\0", *b"\0\0\0\0\0\xba\xb1\x0c"];

/// How much of both ends must be zero where no signature is known.
const ENDS_BYTES: u64 = M;

/// What exists already, in words: the first signature that matches, or that bytes are not zero. Nothing if both ends are zero and no
/// signature is found at any of its places.
pub(crate) fn find(file: &File, bytes: u64) -> Result<Option<String>, Errno> {
    for signature in SIGNATURES {
        if let Some(at) = signature.place(bytes)
            && is_at(file, bytes, at, signature.magic)?
        {
            return Ok(Some(format!("a signature of: {} (at byte {at})", signature.name)));
        }
    }
    if let Some(at) = zfs(file, bytes)? {
        return Ok(Some(format!("a signature of: ZFS pool member (at byte {at})")));
    }
    for from in [0, bytes.saturating_sub(ENDS_BYTES)] {
        if let Some(at) = first_not_zero(file, from, ENDS_BYTES.min(bytes - from))? {
            return Ok(Some(format!("data of an unknown kind (byte {at} is not zero)")));
        }
    }
    Ok(None)
}

impl Signature {
    fn place(&self, bytes: u64) -> Option<u64> {
        match self.at {
            At::Begin(at) => Some(at),
            At::End(before) => bytes.checked_sub(before),
            At::EndAligned(before, unit) => bytes.checked_sub(before).map(|at| at / unit * unit),
        }
    }
}

fn is_at(file: &File, bytes: u64, at: u64, magic: &[u8]) -> Result<bool, Errno> {
    if at.checked_add(magic.len() as u64).is_none_or(|end| end > bytes) {
        return Ok(false);
    }
    let mut found = vec![0; magic.len()];
    sys::read_exact(file, &mut found, at)?;
    Ok(found == magic)
}

/// A label has an uberblock in one of its slots of 1 KiB and more.
fn zfs(file: &File, bytes: u64) -> Result<Option<u64>, Errno> {
    let whole = bytes / ZFS_LABEL_BYTES * ZFS_LABEL_BYTES;
    let labels =
        [Some(0), Some(ZFS_LABEL_BYTES), whole.checked_sub(2 * ZFS_LABEL_BYTES), whole.checked_sub(ZFS_LABEL_BYTES)];
    for label in labels.into_iter().flatten() {
        let from = label + ZFS_UBERBLOCKS;
        if label + ZFS_LABEL_BYTES > bytes {
            continue;
        }
        let mut slots = vec![0; (ZFS_LABEL_BYTES - ZFS_UBERBLOCKS) as usize];
        sys::read_exact(file, &mut slots, from)?;
        let is_uberblock = |slot: &[u8]| ZFS_MAGIC.iter().any(|magic| slot.starts_with(magic));
        if let Some(slot) = slots.chunks(K as usize).position(is_uberblock) {
            return Ok(Some(from + slot as u64 * K));
        }
    }
    Ok(None)
}

fn first_not_zero(file: &File, from: u64, len: u64) -> Result<Option<u64>, Errno> {
    let mut found = vec![0; len as usize];
    sys::read_exact(file, &mut found, from)?;
    Ok(found.iter().position(|&byte| byte != 0).map(|at| from + at as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::fs::FileExt;

    const BYTES: u64 = 128 * M + 3 * 512;

    fn found_with(writes: &[(u64, &[u8])]) -> Option<String> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        writes.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        find(&file, BYTES).unwrap()
    }

    /// Goal:   each signature is found at its place, by a name that states what it is; nothing is found in zeroes.
    /// Method: every entry of the table on its own in a sparse file of 128 MiB and a few sectors.
    #[test]
    fn every_signature_is_found() {
        assert_eq!(found_with(&[]), None);
        for signature in SIGNATURES {
            let at = signature.place(BYTES).unwrap();
            let found = found_with(&[(at, signature.magic)]).unwrap_or_else(|| panic!("{}", signature.name));
            let same_place =
                |other: &&Signature| other.place(BYTES) == Some(at) && signature.magic.starts_with(other.magic);
            let names: BTreeSet<&str> = SIGNATURES.iter().filter(same_place).map(|other| other.name).collect();
            assert!(names.iter().any(|name| found.contains(name)), "{}: {found}", signature.name);
        }
    }

    /// Goal:   a ZFS pool member is found by any of its four labels, in either byte order.
    /// Method: one uberblock in some slot of each label.
    #[test]
    fn zfs_labels_are_found() {
        let whole = BYTES / ZFS_LABEL_BYTES * ZFS_LABEL_BYTES;
        for label in [0, ZFS_LABEL_BYTES, whole - 2 * ZFS_LABEL_BYTES, whole - ZFS_LABEL_BYTES] {
            for magic in ZFS_MAGIC {
                let found = found_with(&[(label + ZFS_UBERBLOCKS + 7 * K, &magic)]).unwrap();
                assert!(found.contains("ZFS"), "{found}");
            }
        }
    }

    /// Goal:   data of no known kind is found near both ends; a file system is named although its disk also has a boot sector.
    /// Method: a byte near each end; a FAT with the boot signature; files shorter than any signature's place.
    #[test]
    fn unknown_data_is_found_too() {
        for at in [0, 65_536, M - 1, BYTES - M, BYTES - 1] {
            assert!(found_with(&[(at, &[1])]).unwrap().contains(&format!("byte {at} is not zero")));
        }
        assert!(found_with(&[(510, b"\x55\xaa"), (82, b"FAT32   ")]).unwrap().contains("FAT"));
        for bytes in [0, 1, 511, 512, 4096, 262_144] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(bytes).unwrap();
            assert_eq!(find(&file, bytes).unwrap(), None);
        }
    }
}
