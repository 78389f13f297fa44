//! Damaged device files: nothing stale is served for good, and what is whole can be read.

use kaml::{
    BlockOptions, CreateOptions, Device, Durability, Key, KeyKind, NamespaceOptions, OpenOptions, VersionOptions,
};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions as FileOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// All values that a key ever had, in order; nothing: deleted.
type Past = BTreeMap<Key, Vec<Option<Vec<u8>>>>;

/// A device file as a SIGKILL leaves it, and what was acknowledged.
struct Crashed {
    dir: tempfile::TempDir,
    image: Vec<u8>,
    /// By namespace name.
    spaces: BTreeMap<String, Past>,
    disk: Vec<u8>,
}

const BLOCK: usize = 512;

impl Crashed {
    fn new() -> Crashed {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.kaml");
        let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(32 << 20) };
        let device = Device::create(&path, &options).unwrap();
        let mut spaces: BTreeMap<String, Past> = BTreeMap::new();
        let mut random = Random(7);
        let numbers = NamespaceOptions::records(KeyKind::U64);
        device.create_namespace("numbers", &numbers).unwrap();
        device.create_namespace("names", &NamespaceOptions::default()).unwrap();
        device
            .create_namespace("pasts", &VersionOptions { buffer_bytes: 64 << 10, ..Default::default() }.into())
            .unwrap();
        let disk_id = device.create_namespace("disk", &BlockOptions::new(BLOCK as u32, 512).into()).unwrap();
        let mut disk = vec![0; BLOCK * 512];
        for round in 0..6000u64 {
            let name = ["numbers", "names", "pasts"][random.below(3) as usize];
            let number = random.below(400);
            let key = if name == "names" { Key::new(format!("k{number}").as_bytes()).unwrap() } else { number.into() };
            let id = device.namespace(name).unwrap();
            let past = spaces.entry(name.to_owned()).or_default().entry(key).or_default();
            if random.below(8) == 0 {
                device.delete(id, key).unwrap();
                past.push(None);
            } else {
                let len = [40, 200, 900, 3000][random.below(4) as usize]
                    + if name != "pasts" && random.below(200) == 0 { 70_000 } else { 0 };
                let value: Vec<u8> = (0..len).map(|i| (i as u64 * 31 + round * 7 + number) as u8).collect();
                device.put(id, key, &value).unwrap();
                past.push(Some(value));
            }
            if random.below(4) == 0 {
                let at = random.below(512) as usize;
                let data = [round as u8 | 1; BLOCK];
                device.block_write(disk_id, at as u64, &data).unwrap();
                disk[at * BLOCK..(at + 1) * BLOCK].copy_from_slice(&data);
            }
            if round == 3000 {
                device.unload_namespace(device.namespace("numbers").unwrap()).unwrap();
            }
            if round % 1000 == 400 {
                device.settle().unwrap();
            }
        }
        let image = fs::read(&path).unwrap();
        drop(device);
        Crashed { dir, image, spaces, disk }
    }

    /// Where a magic is, at multiples of four.
    fn places_of(&self, magic: &[u8; 4]) -> Vec<usize> {
        self.image.chunks_exact(4).enumerate().filter(|(_, bytes)| bytes == magic).map(|(at, _)| at * 4).collect()
    }

    /// A file with one bit flipped.
    fn with_flipped(&self, at: usize, bit: u32) -> PathBuf {
        self.with(at, &[self.image[at] ^ (1 << bit)])
    }

    /// A file with other bytes in a place.
    fn with(&self, at: usize, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join("damaged.kaml");
        fs::write(&path, &self.image).unwrap();
        let file = FileOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(bytes, at as u64).unwrap();
        path
    }

    /// Checks what a device returns. Only with `gaps` in the ring may there be an older content, or none.
    fn verify(&self, device: &Device, what: &str, gaps: bool, may_resurrect: &dyn Fn(u32) -> bool) -> Found {
        let mut found = Found::default();
        for (name, past) in &self.spaces {
            let Ok(id) = device.namespace(name) else {
                found.missing += 1;
                continue;
            };
            for (key, contents) in past {
                let newest = contents.last().unwrap();
                match device.get(id, *key) {
                    Err(_) => found.errors += 1,
                    Ok(value) if value == *newest => found.right += 1,
                    Ok(Some(value)) if newest.is_none() && may_resurrect(id) => {
                        assert!(contents.contains(&Some(value)), "{what}: {name} {key}: never stored");
                        found.back += 1;
                    }
                    Ok(value) => {
                        assert!(
                            gaps && (value.is_none() || contents.contains(&value)),
                            "{what}: {name} {key} is stale"
                        );
                        found.stale += 1;
                    }
                }
            }
        }
        let Ok(id) = device.namespace("disk") else { return found };
        for (block, data) in self.disk.chunks(BLOCK).enumerate() {
            let mut bytes = [0; BLOCK];
            match device.block_read(id, block as u64, &mut bytes) {
                Err(_) => found.errors += 1,
                Ok(()) if bytes == data => found.right += 1,
                Ok(()) => {
                    assert!(gaps, "{what}: block {block} is stale");
                    found.stale += 1;
                }
            }
        }
        found
    }
}

impl Crashed {
    /// Gives a namespace up: all others are whole then, now and after closing, and what is accounted as live is theirs.
    fn verify_without(&self, path: &Path, name: &str) {
        let (mut device, gone) = Device::open_without(path, name).unwrap();
        assert_eq!(gone.name, name);
        for _ in 0..2 {
            let found = self.verify(&device, &format!("without {name}"), false, &|_| false);
            let missing = u64::from(name != "disk"); // which is not counted
            assert_eq!((found.errors, found.missing), (0, missing), "without {name}: {found:?}");
            assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
            device.close().unwrap();
            device = Device::open(path, &OpenOptions::default()).unwrap();
        }
        assert!(Device::open_without(path, name).is_err(), "the file is locked");
        drop(device);
        assert!(Device::open_without(path, name).is_err(), "there is none");
    }
}

#[derive(Default, Debug)]
struct Found {
    right: u64,
    errors: u64,
    stale: u64,
    back: u64,
    missing: u64,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Goal:   a device in order is salvaged whole, and not touched.
/// Method: the file that a SIGKILL leaves, its bytes before and after.
#[test]
fn whole_devices_are_salvaged_untouched() {
    let crashed = Crashed::new();
    let path = crashed.dir.path().join("whole.kaml");
    fs::write(&path, &crashed.image).unwrap();
    let (device, report) = Device::salvage(&path, &mut |_, _| {}).unwrap();
    assert_eq!((report.problems, report.rebuilt, report.dropped), (vec![], vec![], vec![]));
    let found = crashed.verify(&device, "whole", false, &|_| false);
    assert_eq!((found.errors, found.missing), (0, 0), "{found:?}");
    assert!(device.put(1, 5, b"new").is_err(), "nothing can be written");
    drop(device);
    assert!(fs::read(&path).unwrap() == crashed.image, "the file was changed");
}

/// Goal:   of a device whose beginning was overwritten everything is read that did not exist; opening states what happened.
/// Method: a device that was closed and one as a SIGKILL leaves it, overwritten from byte 0 or from the roots on: up to the roots,
///         the ring, the first blocks.
#[test]
fn overwritten_beginnings_are_salvaged() {
    let crashed = Crashed::new();
    let at = |magic: &[u8; 4]| crashed.places_of(magic);
    let (roots, frames) = (at(b"KRT1"), at(b"KRF2"));
    let (ring, blocks) = (frames[0], frames[frames.len() - 1].next_multiple_of(64 << 10));
    assert_eq!(roots.len(), 3, "two slots and the mirror");
    assert!(roots[1] < ring && blocks < roots[2]);
    let closed = crashed.dir.path().join("closed.kaml");
    fs::write(&closed, &crashed.image).unwrap();
    Device::open(&closed, &OpenOptions::default()).unwrap().close().unwrap();
    let closed = fs::read(&closed).unwrap();
    for (is_closed, image) in [(false, &crashed.image), (true, &closed)] {
        for from in [0, roots[0]] {
            for to in [8192, ring, (ring + blocks) / 2, blocks, blocks + (1 << 20)] {
                let path = crashed.dir.path().join("overwritten.kaml");
                fs::write(&path, image).unwrap();
                FileOptions::new()
                    .write(true)
                    .open(&path)
                    .unwrap()
                    .write_all_at(&vec![0xe5; to - from.min(to)], from as u64)
                    .unwrap();
                let what = format!("bytes {from} to {to}, closed: {is_closed}");
                let refused = Device::open(&path, &OpenOptions::default()).map(drop);
                assert_eq!(refused.is_err(), from < to, "{what}");
                let Err(error) = refused else { continue };
                let said = if from == 0 { "the superblock at the end is whole" } else { "both root slots are damaged" };
                assert!(error.to_string().contains(said), "{what}: {error}");
                let (device, report) = Device::salvage(&path, &mut |_, _| {}).unwrap();
                let has_lost_records = to > ring && !is_closed || to > blocks;
                let found = crashed.verify(&device, &what, has_lost_records, &|id| report.rebuilt.contains(&id));
                println!("{what}: {found:?}");
                assert!(to > blocks || found.errors == 0, "{what}: {found:?}");
                assert!(to > blocks || found.missing == 0, "{what}: {found:?}");
                let is_in_order = to <= roots[0] || is_closed;
                assert!(to > blocks || report.rebuilt.is_empty() == is_in_order, "{what}");
                assert!(found.right > 900, "{what}: {found:?}");
            }
        }
    }
}

/// Goal:   of a device that was cut short everything is read that is left; opening states how much is missing.
/// Method: a device that was closed and one as a SIGKILL leaves it, cut in each eighth, in the middle of a sector, within the ring
///         and before it.
#[test]
fn devices_cut_short_are_salvaged() {
    let crashed = Crashed::new();
    let path = crashed.dir.path().join("cut.kaml");
    fs::write(&path, &crashed.image).unwrap();
    Device::open(&path, &OpenOptions::default()).unwrap().close().unwrap();
    let closed = fs::read(&path).unwrap();
    let ring = crashed.places_of(b"KRF2")[0];
    for (is_closed, image) in [(false, &crashed.image), (true, &closed)] {
        let eighths = (1..8).map(|eighth| image.len() / 8 * eighth);
        for left in [image.len() - 1, image.len() - 4096].into_iter().chain(eighths.rev()).chain([ring + 5000, ring]) {
            fs::write(&path, &image[..left]).unwrap();
            let what = format!("{left} bytes, closed: {is_closed}");
            let said = format!("cut short: {left} bytes are left of {}", image.len());
            let refused = Device::open(&path, &OpenOptions::default()).map(drop).unwrap_err();
            assert!(refused.to_string().contains(&said), "{what}: {refused}");
            let (device, report) = Device::salvage(&path, &mut |_, _| {}).unwrap();
            assert!(report.problems[0].contains(&said), "{what}: {:?}", report.problems[0]);
            let is_all_there = report.problems.len() == 1;
            let found = crashed.verify(&device, &what, !is_all_there, &|id| report.rebuilt.contains(&id));
            println!("{what}: {found:?}, {} problems", report.problems.len());
            // Where a record lies depends on how threads took turns. One that lies in what is gone is an error.
            assert!(!is_all_there || found.missing == 0, "{what}: {found:?}");
            let is_nearly_whole = left >= image.len() - 4096;
            assert!(!is_nearly_whole || is_all_there && found.errors == 0, "{what}: {found:?} {:?}", report.problems);
            assert!(left < image.len() / 2 || found.right > 300, "{what}: {found:?}");
            drop(device);
            assert!(fs::read(&path).unwrap() == image[..left], "{what}: the file was changed");
        }
        fs::write(&path, &image[..8192]).unwrap();
        let refused = Device::salvage(&path, &mut |_, _| {}).map(drop).unwrap_err().to_string();
        assert!(refused.contains("both root slots"), "{refused}");
    }
}

/// Goal:   opening for reading answers everything that was acknowledged, also after a SIGKILL, and changes nothing.
/// Method: the file that a SIGKILL leaves, write-protected, its bytes before and after; `check`, then a command that writes.
#[test]
fn reading_changes_nothing() {
    let crashed = Crashed::new();
    let path = crashed.dir.path().join("protected.kaml");
    fs::write(&path, &crashed.image).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    for _ in 0..2 {
        let device = Device::open(&path, &options).unwrap();
        let found = crashed.verify(&device, "protected", false, &|_| false);
        assert_eq!((found.errors, found.missing), (0, 0), "{found:?}");
        assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
        let refused = device.put(1, 5, b"new").unwrap_err();
        assert!(matches!(refused, kaml::Error::ReadOnly), "{refused}");
        device.close().unwrap();
        assert!(fs::read(&path).unwrap() == crashed.image, "the file was changed");
    }
}

/// Goal:   after any one bit flips, opening fails or everything that completes is right; and salvage reads everything
///         that is whole, with nothing stale that it does not warn of. If a namespace is damaged, all others exist without it.
/// Method: bits in what each kind of metadata begins with, in the newest frames of the ring, and in pages of records.
#[test]
fn any_flipped_bit() {
    let crashed = Crashed::new();
    let mut random = Random(11);
    let mut places: Vec<usize> = Vec::new();
    for magic in [b"KAML", b"KRT1", b"KJP1", b"KIX1", b"KDX1", b"KVD2", b"KVT1", b"OOB2"] {
        let all = crashed.places_of(magic);
        assert!(!all.is_empty(), "no {}", String::from_utf8_lossy(magic));
        places.extend([all[0], all[all.len() / 2], all[all.len() - 1]]);
    }
    let mut frames = crashed.places_of(b"KRF2");
    frames.sort_by_key(|at| crashed.image[at + 32..at + 40].iter().rev().copied().collect::<Vec<u8>>());
    // The last one may be in flight when power fails, so damage there looks like a cut.
    places.extend([2, 3, 4, 5, 10, 30, 60].map(|back| frames[frames.len() - back]));
    let written: Vec<usize> = (0..crashed.image.len()).step_by(4096).filter(|at| crashed.image[*at] != 0).collect();
    places.extend((0..6).map(|_| written[random.below(written.len() as u64) as usize]));
    let (mut refused, mut scanned, mut gaps, mut given_up) = (0, 0, 0, 0);
    for place in places {
        let at = place + random.below(64) as usize;
        let what = format!("byte {at}");
        let path = crashed.with_flipped(at, random.below(8) as u32);
        let (device, report) = Device::salvage(&path, &mut |_, _| {}).unwrap_or_else(|error| panic!("{what}: {error}"));
        let gap = report.problems.iter().any(|problem| problem.contains("Puts are missing"));
        let pasts_are_old = report.problems.iter().any(|problem| problem.contains("as of its last checkpoint"));
        let found = crashed.verify(&device, &what, gap || pasts_are_old, &|id| report.rebuilt.contains(&id));
        assert!(found.errors < 150 && found.missing <= 1, "{what}: {found:?}, {report:?}");
        assert!(found.right > found.stale + found.back + found.errors, "{what}: {found:?}");
        (scanned, gaps) = (scanned + u32::from(!report.rebuilt.is_empty()), gaps + u32::from(gap));
        drop(device);
        match Device::open(&path, &OpenOptions::default()) {
            Err(error) => {
                refused += 1;
                let kaml::Error::IndexDamaged { name, .. } = &error else { continue };
                crashed.verify_without(&path, name);
                given_up += 1;
            }
            Ok(device) => drop(crashed.verify(&device, &format!("{what}, opened"), false, &|_| false)),
        }
    }
    println!("{refused} refused, {scanned} scanned, {gaps} with gaps in the ring, {given_up} without a namespace");
    assert!(refused > 5 && scanned > 0 && gaps > 0 && given_up > 1, "{refused} {scanned} {gaps} {given_up}");
}

/// Goal:   a large value that is damaged takes no Put along that was acknowledged after it.
/// Method: one, and two small ones after it; a bit of it flips before the device is opened after a SIGKILL. The small ones exist, it
///         is refused.
#[test]
fn damaged_large_values_take_nothing_along() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.kaml");
    let device = Device::create(&path, &CreateOptions::new(32 << 20)).unwrap();
    let numbers = NamespaceOptions::records(KeyKind::U64);
    let space = device.create_namespace("numbers", &numbers).unwrap();
    let large: Vec<u8> = (0..50_000u32).map(|i| ((i * i) >> 7) as u8).collect();
    device.put(space, 1, &large).unwrap();
    device.put(space, 2, b"two").unwrap();
    device.put(space, 3, b"three").unwrap();
    let mut image = fs::read(&path).unwrap();
    device.close().unwrap();
    let at = image.windows(1000).position(|bytes| bytes == &large[20_000..21_000]).unwrap();
    image[at] ^= 1;
    fs::write(&path, &image).unwrap();
    for _ in 0..2 {
        let device = Device::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(device.get(space, 2).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(device.get(space, 3).unwrap().as_deref(), Some(&b"three"[..]));
        let refused = device.get(space, 1).unwrap_err();
        assert!(matches!(refused, kaml::Error::Corrupt { .. }), "{refused}");
        device.close().unwrap();
    }
}

/// Goal:   after any one write to the disk was lost, or went elsewhere, opening fails or everything that completes is right.
/// Method: sectors with each kind of metadata, and with records, versions and blocks: zeroed, or replaced by others of the same kind.
#[test]
fn any_lost_sector() {
    const SECTOR: usize = 4096;
    /// Which of the sectors are of directories and of tables of segments: what exists twice, and what can be made again.
    const DIRECTORIES: std::ops::Range<usize> = 17..20;
    const TABLES: std::ops::Range<usize> = 20..26;
    let crashed = Crashed::new();
    let mut random = Random(13);
    let sector_of = |at: usize| at / SECTOR * SECTOR;
    let mut lost: Vec<(usize, usize)> = Vec::new();
    for (magic, count) in
        [(b"KJP1", 8), (b"KAML", 3), (b"KIX1", 3), (b"KDX1", 3), (b"KVD2", 3), (b"KVT1", 6), (b"OOB2", 3)]
    {
        let mut all: Vec<usize> = crashed.places_of(magic).into_iter().map(sector_of).collect();
        all.dedup();
        for _ in 0..count {
            lost.push((all[random.below(all.len() as u64) as usize], all[random.below(all.len() as u64) as usize]));
        }
    }
    let written: Vec<usize> =
        (0..crashed.image.len()).step_by(SECTOR).filter(|at| crashed.image[*at..at + 512] != [0; 512]).collect();
    let is_ring = |at: usize| crashed.image[at..at + SECTOR].chunks_exact(4).any(|bytes| bytes == b"KRF2");
    let is_root = |at: usize| crashed.image[at..at + 4] == *b"KRT1";
    let data: Vec<usize> = written.into_iter().filter(|at| !is_ring(*at) && !is_root(*at)).collect();
    for _ in 0..20 {
        lost.push((data[random.below(data.len() as u64) as usize], data[random.below(data.len() as u64) as usize]));
    }
    let roots = crashed.places_of(b"KRT1");
    lost.extend([(roots[0], roots[1]), (roots[1], roots[0])]);
    let (mut refused, mut errors, mut mended) = (0, 0, 0);
    for (number, (at, other)) in lost.into_iter().enumerate() {
        for (what, bytes) in [("zeroed", &[0; SECTOR][..]), ("replaced", &crashed.image[other..other + SECTOR])] {
            let what = format!("byte {at} {what}, by {other}");
            let path = crashed.with(at, bytes);
            match Device::open(&path, &OpenOptions::default()) {
                Err(error) => {
                    let of_versions = DIRECTORIES.contains(&number) || TABLES.contains(&number);
                    assert!(!of_versions, "{what}: {error}");
                    refused += 1;
                }
                Ok(device) => errors += crashed.verify(&device, &what, false, &|_| false).errors,
            }
            if number < 8 || TABLES.contains(&number) {
                let (device, report) = Device::salvage(&path, &mut |_, _| {}).unwrap();
                let is_told = report.problems.iter().any(|problem| problem.contains("as of its last checkpoint"));
                let found =
                    crashed.verify(&device, &format!("{what}, salvaged"), is_told, &|id| report.rebuilt.contains(&id));
                let is_mended =
                    report.problems.iter().any(|problem| problem.contains("it was made again from the segment"));
                assert!(!is_mended || (found.missing, found.errors) == (0, 0), "{what}: {found:?}");
                mended += u32::from(is_mended);
            }
        }
    }
    println!("{refused} refused, {errors} reads refused, {mended} with tables made again");
    assert!(mended > 3, "{mended}");
    // How many reads are refused depends on what the drawn sectors hold: between none and some twenty.
    assert!(refused > 10, "{refused} {errors}");
}
