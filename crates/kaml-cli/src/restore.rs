//! A tree made again from its records, in a directory where an older one may stand.
//!
//! Lives here:       making files, directories and links; their modes and times.
//! Lives elsewhere:  the records (`tree`), flags and progress (`commands::export`).
//!
//! Invariants
//! - files and links come under their names whole, by a rename: what is interrupted leaves what stood there;
//! - nothing is made outside the root: no link is followed below it, and the device is never replaced;
//! - a directory that does not let us in is made to for as long as that takes, and is then as its record says, or as it was.

use crate::failure::Failure;
use crate::store::Identity;
use crate::tree::{Kind, Metadata, Tree};
use crate::whole::Beside;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// What we need of a directory: to list it, to make something in it, to go through it.
const MODE_OPEN: u32 = 0o700;

/// One export of a tree.
pub struct Restore<'a> {
    tree: &'a Tree<'a>,
    root: &'a Path,
    device: Option<Identity>,
    /// The modes that directories had before they were opened for us.
    opened: Mutex<BTreeMap<PathBuf, u32>>,
}

impl Restore<'_> {
    /// Under `root`, which is there; `device` is where the records come from.
    pub fn new<'a>(tree: &'a Tree<'a>, root: &'a Path, device: Option<Identity>) -> Restore<'a> {
        Restore { tree, root, device, opened: Mutex::default() }
    }

    /// Makes a path again; answers the bytes of contents. Directories get their mode and time from [`Restore::finish`], when
    /// nothing is made in them any more.
    pub fn path(&self, metadata: &Metadata) -> Result<u64, Failure> {
        let path = metadata.relative_path()?;
        if metadata.kind == Kind::Directory {
            self.directory(&path)?;
            return Ok(0);
        }
        self.directory(path.parent().unwrap_or(Path::new("")))?;
        let path = self.root.join(path);
        let found = std::fs::symlink_metadata(&path).ok();
        if found.is_some_and(|found| Some((found.dev(), found.ino())) == self.device) {
            return Err(Failure::Usage(format!("{}: is the device itself", path.display())));
        }
        match metadata.kind {
            Kind::Link => self.link(metadata, &path)?,
            Kind::File | Kind::Directory => self.file(metadata, &path)?,
        }
        Ok(metadata.bytes)
    }

    /// Gives directories their modes and times.
    pub fn finish(self, mut directories: Vec<Metadata>) -> Result<(), Failure> {
        // The deepest first: nothing may be done below one whose time is set, and it may not let us in any more.
        directories.sort_by_key(|metadata: &Metadata| std::cmp::Reverse(metadata.path.matches('/').count()));
        for metadata in directories {
            let path = self.root.join(metadata.relative_path()?);
            let failed = Failure::io(path.display());
            let directory = File::open(&path).map_err(&failed)?;
            directory.set_permissions(Permissions::from_mode(metadata.mode)).map_err(&failed)?;
            directory.set_modified(metadata.modified()).map_err(&failed)?;
            self.opened().remove(&path);
        }
        Ok(())
    }

    fn file(&self, metadata: &Metadata, path: &Path) -> Result<(), Failure> {
        let failed = Failure::io(path.display());
        let (beside, mut file) = Beside::file(path, 0o600).map_err(&failed)?;
        self.tree.read(metadata, |piece| file.write_all(piece).map_err(&failed))?;
        file.set_permissions(Permissions::from_mode(metadata.mode)).map_err(&failed)?;
        file.set_modified(metadata.modified()).map_err(&failed)?;
        beside.rename(path).map_err(failed)
    }

    fn link(&self, metadata: &Metadata, path: &Path) -> Result<(), Failure> {
        let failed = Failure::io(path.display());
        let mut target = Vec::new();
        self.tree.read(metadata, |piece| {
            target.extend_from_slice(piece);
            Ok(())
        })?;
        let link = |name: &Path| std::os::unix::fs::symlink(OsStr::from_bytes(&target), name);
        let (beside, ()) = Beside::make(path, link).map_err(&failed)?;
        // Not every file system has times of links.
        let _ = beside.set_modified(metadata.mtime_s, metadata.mtime_ns);
        beside.rename(path).map_err(failed)
    }

    /// Makes a directory and those above it, where they are missing, and has them let us in.
    fn directory(&self, path: &Path) -> Result<(), Failure> {
        let mut at = self.root.to_owned();
        for part in path.components() {
            at.push(part);
            match std::fs::create_dir(&at) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(Failure::io(at.display())(error)),
                _ => self.open(&at)?,
            }
        }
        Ok(())
    }

    fn open(&self, path: &Path) -> Result<(), Failure> {
        let mut opened = self.opened();
        let failed = Failure::io(path.display());
        let found = std::fs::symlink_metadata(path).map_err(&failed)?;
        if !found.is_dir() {
            let what = if found.is_symlink() { "a symbolic link, and is not followed" } else { "no directory" };
            return Err(Failure::Failed(format!("{}: is {what}", path.display())));
        }
        let mode = found.mode() & 0o7777;
        if mode & MODE_OPEN != MODE_OPEN {
            std::fs::set_permissions(path, Permissions::from_mode(mode | MODE_OPEN)).map_err(&failed)?;
            opened.insert(path.to_owned(), mode);
        }
        Ok(())
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, u32>> {
        self.opened.lock().expect("nothing panics under this lock")
    }
}

impl Drop for Restore<'_> {
    /// Directories that no record speaks of, or that it did not come to, are as they were.
    fn drop(&mut self) {
        for (path, mode) in self.opened().iter().rev() {
            let _ = std::fs::set_permissions(path, Permissions::from_mode(*mode)); // one that has gone needs none
        }
    }
}
