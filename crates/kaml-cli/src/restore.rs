//! A tree made again from its records, in a directory where an older one may stand.
//!
//! Lives here:       making files, directories, links and whatever else a tree has; their owners, attributes, modes and times.
//! Lives elsewhere:  the records (`tree`), flags and progress (`commands::export`).
//!
//! Invariants
//! - everything but directories comes under its name whole, by a rename: an interruption leaves what existed before;
//! - nothing is made outside the root: no link is followed below it, and the device is never replaced;
//! - a directory without permission to enter gets it for as long as needed, and then has the mode of its record, or its old one;
//! - set-user-ID and set-group-ID bits, and attributes that grant something, are set only on what belongs to the user and the group that the
//!   record names.

use crate::failure::Failure;
use crate::store::Identity;
use crate::tree::{Kind, Metadata, Node, Tree};
use crate::walk::{as_path, shown};
use crate::whole::Temporary;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, XattrFlags, chownat, fsetxattr, lsetxattr, makedev, mknodat,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What we need of a directory: to list it, to make something in it, to go through it.
const MODE_OPEN: u32 = 0o700;
/// Runs what is executed as its owner.
const SET_USER_ID: u32 = 0o4000;
/// Runs what is executed as its group.
const SET_GROUP_ID: u32 = 0o2000;
/// Zeros of this many bytes become a hole of a sparse file.
const HOLE_BYTES: usize = 4096;

/// One export of a tree.
pub struct Restore<'a> {
    tree: &'a Tree<'a>,
    root: &'a Path,
    device: Option<Identity>,
    keeps_owner: bool,
    /// Set-user-ID and set-group-ID bits that were not set.
    set_id_dropped: AtomicU64,
    /// Extended attributes that were not set.
    attributes_dropped: AtomicU64,
}

/// The modes that directories had before they were opened for us. A process exports one tree.
static OPENED: Mutex<BTreeMap<PathBuf, u32>> = Mutex::new(BTreeMap::new());

fn opened() -> std::sync::MutexGuard<'static, BTreeMap<PathBuf, u32>> {
    OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Gives directories that were opened for us the modes that they had.
pub fn close_directories() {
    for (path, mode) in std::mem::take(&mut *opened()).iter().rev() {
        let _ = std::fs::set_permissions(path, Permissions::from_mode(*mode)); // one that has gone needs none
    }
}

impl Restore<'_> {
    /// Under `root`, which exists; `device` is where the records come from. What is made belongs to the owners that the
    /// records name, as far as the system allows, if it `keeps_owner`.
    pub fn new<'a>(tree: &'a Tree<'a>, root: &'a Path, device: Option<Identity>, keeps_owner: bool) -> Restore<'a> {
        let (set_id_dropped, attributes_dropped) = (AtomicU64::new(0), AtomicU64::new(0));
        Restore { tree, root, device, keeps_owner, set_id_dropped, attributes_dropped }
    }

    /// How many files and directories were made without their set-user-ID or set-group-ID bit, and how many extended attributes were not set.
    pub fn dropped(&self) -> (u64, u64) {
        (self.set_id_dropped.load(Ordering::Relaxed), self.attributes_dropped.load(Ordering::Relaxed))
    }

    /// Where a path of the tree is made.
    pub fn place_of(&self, path: &[u8]) -> PathBuf {
        self.root.join(as_path(self.tree.below(path).unwrap_or(path)))
    }

    /// Makes a path again; returns the bytes of contents. Directories get their owner, mode and time from [`Restore::finish`], when nothing is
    /// made in them any more.
    pub fn path(&self, node: &Node) -> Result<u64, Failure> {
        let below = self.below(&node.path)?;
        if node.metadata.kind == Kind::Directory {
            self.directory(below)?;
            return Ok(0);
        }
        self.directory(below.parent().unwrap_or(Path::new("")))?;
        let path = self.root.join(below);
        let found = std::fs::symlink_metadata(&path).ok();
        if found.is_some_and(|found| Some((found.dev(), found.ino())) == self.device) {
            return Err(Failure::Usage(format!("{}: is the device itself", shown(&path))));
        }
        let metadata = &node.metadata;
        let special = |kind, device| self.special(metadata, &path, kind, device).map(|()| 0);
        match &metadata.kind {
            Kind::File | Kind::Pieces(_) | Kind::Directory => self.file(node, &path),
            Kind::HardLink(first) => self.hard_link(node, first.as_bytes(), &path),
            Kind::Link(target) => self.link(metadata, target.as_bytes(), &path).map(|()| 0),
            Kind::Fifo => special(FileType::Fifo, 0),
            Kind::CharacterDevice(major, minor) => special(FileType::CharacterDevice, makedev(*major, *minor)),
            Kind::BlockDevice(major, minor) => special(FileType::BlockDevice, makedev(*major, *minor)),
        }
    }

    /// A path of the tree relative to the root; refused if it would lead out of it.
    fn below<'p>(&self, path: &'p [u8]) -> Result<&'p Path, Failure> {
        let below = self.tree.below(path).filter(|below| crate::tree::is_path(below));
        below.map(as_path).ok_or_else(|| Failure::Failed(format!("`{}` leads out of the tree", shown(as_path(path)))))
    }

    /// Gives directories their owners, modes and times; shows which ones it cannot.
    pub fn finish(&self, mut directories: Vec<Node>, mut failed: impl FnMut(&Node, Failure)) {
        // The deepest first: nothing may change below a directory whose time is set, and it may forbid entering by then.
        directories.sort_by_key(|node| std::cmp::Reverse(node.path.iter().filter(|byte| **byte == b'/').count()));
        for node in directories {
            if let Err(failure) = self.finish_directory(&node) {
                failed(&node, failure);
            }
        }
    }

    fn finish_directory(&self, node: &Node) -> Result<(), Failure> {
        let path = self.root.join(self.below(&node.path)?);
        let failed = Failure::io(shown(&path));
        self.own(&File::open(&path).map_err(&failed)?, &node.metadata).map_err(&failed)?;
        if let Some((seconds, nanoseconds)) = node.metadata.modified {
            crate::whole::set_modified(&path, seconds, nanoseconds).map_err(&failed)?;
        }
        opened().remove(&path);
        Ok(())
    }

    fn file(&self, node: &Node, path: &Path) -> Result<u64, Failure> {
        let failed = Failure::io(shown(path));
        let (temporary, file) = Temporary::file(path, 0o600).map_err(&failed)?;
        let named = |error| match error {
            Failure::Failed(what) if !what.contains(&shown(path)) => {
                Failure::Failed(format!("{}: {what}", shown(path)))
            }
            error => error,
        };
        let mut write = |at, bytes: &[u8]| match node.metadata.is_sparse {
            true => write_data(&file, at, bytes).map_err(&failed),
            false => file.write_all_at(bytes, at).map_err(&failed),
        };
        let bytes = self.tree.read(node, 0..u64::MAX, &mut write).map_err(named)?;
        file.set_len(bytes).map_err(&failed)?;
        self.finish_file(&node.metadata, &file, temporary, path).map_err(failed)?;
        Ok(bytes)
    }

    /// What has its owner, mode and time, and then its name.
    fn finish_file(&self, metadata: &Metadata, file: &File, temporary: Temporary, path: &Path) -> std::io::Result<()> {
        self.own(file, metadata)?;
        if let Some((seconds, nanoseconds)) = metadata.modified {
            temporary.set_modified(seconds, nanoseconds)?;
        }
        temporary.rename(path)
    }

    fn link(&self, metadata: &Metadata, target: &[u8], path: &Path) -> Result<(), Failure> {
        let failed = Failure::io(shown(path));
        let link = |name: &Path| std::os::unix::fs::symlink(OsStr::from_bytes(target), name);
        let (temporary, ()) = Temporary::make(path, link).map_err(&failed)?;
        if let Some((uid, gid)) = metadata.owner.filter(|_| self.keeps_owner) {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            let _ = chownat(CWD, temporary.path(), uid, gid, AtFlags::SYMLINK_NOFOLLOW); // as far as that is allowed
        }
        self.set_attributes(metadata, self.keeps_owner, |name, value| {
            lsetxattr(temporary.path(), name, value, XattrFlags::empty()).is_ok()
        });
        if let Some((seconds, nanoseconds)) = metadata.modified {
            let _ = temporary.set_modified(seconds, nanoseconds); // not every file system has times of links
        }
        temporary.rename(path).map_err(failed)
    }

    /// Another name of a file that was made before. Where that is impossible, and for a part of a tree, a copy.
    fn hard_link(&self, node: &Node, first: &[u8], path: &Path) -> Result<u64, Failure> {
        let file = self.tree.resolve(node)?;
        if let Ok(below) = self.below(first)
            && self.directory(below.parent().unwrap_or(Path::new(""))).is_ok()
        {
            let first = self.root.join(below);
            let identity = |path: &Path| std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()));
            if identity(&first).is_some() && identity(&first) == identity(path) {
                return Ok(0);
            }
            if let Ok((temporary, ())) = Temporary::make(path, |at| std::fs::hard_link(&first, at)) {
                return temporary.rename(path).map(|()| 0).map_err(Failure::io(shown(path)));
            }
        }
        match &file.metadata.kind {
            Kind::Link(target) => self.link(&file.metadata, target.as_bytes(), path).map(|()| 0),
            Kind::File | Kind::Pieces(_) => self.file(&file, path),
            _ => Err(Failure::Failed(format!("{}: cannot be linked", shown(path)))),
        }
    }

    fn special(&self, metadata: &Metadata, path: &Path, kind: FileType, device: u64) -> Result<(), Failure> {
        let failed = Failure::io(shown(path));
        let make = |at: &Path| Ok(mknodat(CWD, at, kind, Mode::from_raw_mode(0o600), device)?);
        let (temporary, ()) = Temporary::make(path, make).map_err(&failed)?;
        let flags = (OFlags::PATH | OFlags::NOFOLLOW).bits() as i32;
        let held = File::options().read(true).custom_flags(flags).open(temporary.path()).map_err(&failed)?;
        self.finish_file(metadata, &held, temporary, path).map_err(failed)
    }

    /// Gives something that is no link its owner, as far as the system allows, its attributes and its mode. First the owner: changing it takes
    /// set-ID bits and capabilities away. Last the mode: an access control list changes it.
    fn own(&self, file: &File, metadata: &Metadata) -> std::io::Result<()> {
        let is_owned = |found: &std::fs::Metadata| {
            metadata.owner.map_or((false, false), |(uid, gid)| (uid == found.uid(), gid == found.gid()))
        };
        let change_owner = |uid: Option<u32>, gid| {
            chownat(file, "", uid.map(Uid::from_raw), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)
        };
        if let Some((uid, gid)) = metadata.owner.filter(|_| self.keeps_owner)
            && is_owned(&file.metadata()?) != (true, true)
            && change_owner(Some(uid), gid).is_err()
        {
            // Anybody may give a file to a group that he is in.
            let _ = change_owner(None, gid);
        }
        let (has_user, has_group) = is_owned(&file.metadata()?);
        let refused = if has_user { 0 } else { SET_USER_ID } | if has_group { 0 } else { SET_GROUP_ID };
        if metadata.mode & refused != 0 {
            self.set_id_dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.set_attributes(metadata, has_user && has_group, |name, value| {
            fsetxattr(file, name, value, XattrFlags::empty()).is_ok()
        });
        let mode = Permissions::from_mode(metadata.mode & !refused);
        match file.set_permissions(mode.clone()) {
            // Something that cannot be opened is held by its place alone.
            Err(error) if error.raw_os_error() == Some(Errno::BADF.raw_os_error()) => {
                std::fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)
            }
            set => set,
        }
    }

    /// Sets extended attributes, as far as the system allows; those that grant something only on what has its owner.
    fn set_attributes(&self, metadata: &Metadata, is_owned: bool, set: impl Fn(&[u8], &[u8]) -> bool) {
        for (name, value) in &metadata.attributes {
            let name = name.as_bytes();
            let grants_nothing = name.starts_with(b"user.") || name.starts_with(b"system.");
            let is_set = (grants_nothing || is_owned) && set(name, value.as_bytes());
            self.attributes_dropped.fetch_add(u64::from(!is_set), Ordering::Relaxed);
        }
    }

    /// Makes a directory and those above it, where they are missing, and has them let us in.
    fn directory(&self, path: &Path) -> Result<(), Failure> {
        let mut at = self.root.to_owned();
        for part in path.components() {
            at.push(part);
            match std::fs::create_dir(&at) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(Failure::io(shown(&at))(error)),
                _ => self.open(&at)?,
            }
        }
        Ok(())
    }

    fn open(&self, path: &Path) -> Result<(), Failure> {
        let failed = Failure::io(shown(path));
        let found = std::fs::symlink_metadata(path).map_err(&failed)?;
        if !found.is_dir() {
            let what = if found.is_symlink() { "a symbolic link, and is not followed" } else { "no directory" };
            return Err(Failure::Failed(format!("{}: is {what}", shown(path))));
        }
        let mode = found.mode() & 0o7777;
        if mode & MODE_OPEN != MODE_OPEN {
            std::fs::set_permissions(path, Permissions::from_mode(mode | MODE_OPEN)).map_err(&failed)?;
            opened().entry(path.to_owned()).or_insert(mode);
        }
        Ok(())
    }
}

/// Writes what is not zero; the file has holes elsewhere.
fn write_data(file: &File, at: u64, bytes: &[u8]) -> std::io::Result<()> {
    for (number, part) in bytes.chunks(HOLE_BYTES).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            file.write_all_at(part, at + (number * HOLE_BYTES) as u64)?;
        }
    }
    Ok(())
}

impl Drop for Restore<'_> {
    /// Directories that no record speaks of, or that it did not come to, are as they were.
    fn drop(&mut self) {
        close_directories();
    }
}
