//! Files that stand under their name when they are whole, and not before.
//!
//! Lives here:       writing beside the name, and the rename.
//! Lives elsewhere:  what is written (`commands::export`, `commands::record`, `restore`).

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Something that has no name of its own yet; it goes when it gets none.
pub struct Beside {
    at: PathBuf,
}

impl Beside {
    /// Makes it in the directory of a path, under a name that nothing has.
    pub fn make<T>(path: &Path, make: impl Fn(&Path) -> Result<T>) -> Result<(Beside, T)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let at = path.with_file_name(format!(".kaml-export-{}-{number}", std::process::id()));
            match make(&at) {
                // It may be left from a process that was killed and had the same number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made.map(|made| (Beside { at }, made)),
            }
        }
    }

    /// A file to be written.
    pub fn file(path: &Path, mode: u32) -> Result<(Beside, File)> {
        Beside::make(path, |at| OpenOptions::new().write(true).create_new(true).mode(mode).open(at))
    }

    /// Sets when it was modified: itself, if it is a link, not what that leads to.
    pub fn set_modified(&self, seconds: i64, nanoseconds: u32) -> Result<()> {
        let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        let times =
            Timestamps { last_access: time(0, UTIME_OMIT), last_modification: time(seconds, nanoseconds.into()) };
        Ok(utimensat(CWD, &self.at, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Gives it its name, in the place of what may stand there.
    pub fn rename(self, path: &Path) -> Result<()> {
        std::fs::rename(&self.at, path)?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.at);
    }
}

/// A file that somebody asked for.
pub enum WholeFile {
    /// A pipe, a terminal or a device is no file that could be replaced.
    Direct(File),
    /// Beside what stands under the name.
    Beside {
        /// What is being written.
        file: File,
        /// Where.
        beside: Beside,
        /// Its name.
        path: PathBuf,
    },
}

impl WholeFile {
    /// Begins one. What stands there stays until [`WholeFile::finish`]; behind a symbolic link its target is meant.
    pub fn create(path: &Path) -> Result<WholeFile> {
        let found = std::fs::metadata(path).ok();
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            return File::create(path).map(WholeFile::Direct);
        }
        let path = if found.is_some() { path.canonicalize()? } else { path.to_owned() };
        match beside(&path, found.as_ref()) {
            Ok((beside, file)) => Ok(WholeFile::Beside { file, beside, path }),
            // What may be written only there is written there.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && found.is_some() => {
                File::create(path).map(WholeFile::Direct)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives it its name. Then it is durable: its owner may do away with what it was made from.
    pub fn finish(self) -> Result<()> {
        match self {
            // What may be written only where it stands is a file like any other.
            WholeFile::Direct(file) if file.metadata()?.is_file() => file.sync_all(),
            WholeFile::Direct(_) => Ok(()),
            WholeFile::Beside { file, beside, path } => {
                file.sync_all()?;
                beside.rename(&path)?;
                // Where a directory cannot be opened, it is durable soon.
                let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                File::open(directory.unwrap_or(Path::new("."))).map_or(Ok(()), |directory| directory.sync_all())
            }
        }
    }

    /// What becomes of it without [`WholeFile::finish`].
    pub fn unfinished(&self) -> &'static str {
        match self {
            WholeFile::Direct(_) => "is half written",
            WholeFile::Beside { .. } => "is not written",
        }
    }

    fn file(&mut self) -> &mut File {
        match self {
            WholeFile::Direct(file) | WholeFile::Beside { file, .. } => file,
        }
    }
}

/// With the mode of the old file, or that of any new one.
fn beside(path: &Path, old: Option<&Metadata>) -> Result<(Beside, File)> {
    let (beside, file) = Beside::file(path, 0o666)?;
    if let Some(old) = old {
        file.set_permissions(old.permissions())?;
    }
    Ok((beside, file))
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.file().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Goal:   a file that is not finished leaves what was there, and nothing beside it; one that is replaces what a link leads
    ///         to, with the same mode.
    /// Method: both, through a link and without anything there.
    #[test]
    fn files_are_whole_or_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let [old, link, new] = ["old", "link", "new"].map(|name| dir.path().join(name));
        std::fs::write(&old, "old").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o640)).unwrap();
        symlink("old", &link).unwrap();
        for path in [&link, &new] {
            WholeFile::create(path).unwrap().write_all(b"half").unwrap();
        }
        assert_eq!(
            (std::fs::read(&old).unwrap(), std::fs::read_dir(dir.path()).unwrap().count()),
            (b"old".to_vec(), 2)
        );
        for path in [&link, &new] {
            let mut file = WholeFile::create(path).unwrap();
            file.write_all(b"whole").unwrap();
            file.finish().unwrap();
        }
        assert_eq!(
            (std::fs::read(&old).unwrap(), std::fs::read(&new).unwrap()),
            (b"whole".to_vec(), b"whole".to_vec())
        );
        let mode = |path: &Path| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&old), mode(&link), mode(&new) & 0o700), (0o640, 0o777, 0o600));
        assert!(WholeFile::create(Path::new("/dev/full")).unwrap().write_all(b"x").is_err());
    }
}
