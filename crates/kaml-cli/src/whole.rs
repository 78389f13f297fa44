//! Files that get their name when they are whole, and not before.
//!
//! Lives here:       writing under a temporary name in the same directory, the rename, and removing temporary files of processes
//!                   that were killed.
//! Lives elsewhere:  what is written (`commands::create`, `commands::export`, `commands::record`, `restore`).
//!
//! A process locks each temporary file while it writes it. So a temporary file without a lock belongs to nobody, and the next
//! process that writes into the directory removes it.

use kaml_terminal::passing::Passing;
use rustix::fs::{AtFlags, CWD, FlockOperation, RenameFlags, Timespec, Timestamps, UTIME_OMIT, flock, utimensat};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What temporary names begin with; the number of the process and a counter follow.
const PREFIX: &str = ".kaml-export-";
/// A temporary file is locked within this time after it was made.
const LOCKED_AFTER: Duration = Duration::from_secs(60);
/// The kernel closes the files of an io_uring only after the process has ended, which takes this long on a busy machine. A lock that
/// is held for longer belongs to a process that cannot be seen from here.
const RELEASED_AFTER: Duration = Duration::from_secs(2);

/// Something under a temporary name. It is removed when it gets no other one.
pub struct Temporary {
    passing: Passing,
}

impl Temporary {
    /// Makes it in the directory of a path, under a name that nothing has.
    pub fn make<T>(path: &Path, make: impl Fn(&Path) -> Result<T>) -> Result<(Temporary, T)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_abandoned(path.parent().unwrap_or(Path::new("")));
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let at = path.with_file_name(format!("{PREFIX}{}-{number}", std::process::id()));
            match Passing::make(at, &make) {
                // A process that was killed may have had the same number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made.map(|(passing, made)| (Temporary { passing }, made)),
            }
        }
    }

    /// A file to be written, locked as long as it is open.
    pub fn file(path: &Path, mode: u32) -> Result<(Temporary, File)> {
        Temporary::make(path, |at| {
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(at)?;
            // On a file system without locks, age and process number decide.
            let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
            Ok(file)
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.passing.path()
    }

    /// Sets when it was modified: itself, if it is a link, not what that leads to.
    pub fn set_modified(&self, seconds: i64, nanoseconds: u32) -> Result<()> {
        set_modified(self.path(), seconds, nanoseconds)
    }

    /// Gives it its name, and replaces what may exist there.
    pub fn rename(self, path: &Path) -> Result<()> {
        std::fs::rename(self.path(), path)?;
        self.passing.keep();
        Ok(())
    }

    /// Gives it a name that nothing has.
    pub fn rename_new(self, path: &Path) -> Result<()> {
        match rustix::fs::renameat_with(CWD, self.path(), CWD, path, RenameFlags::NOREPLACE) {
            // The file system or the kernel has no such rename.
            Err(Errno::INVAL | Errno::NOSYS) if std::fs::symlink_metadata(path).is_err() => {
                std::fs::rename(self.path(), path)?;
            }
            renamed => renamed?,
        }
        self.passing.keep();
        Ok(())
    }
}

/// Sets when a path was modified: itself, if it is a link.
pub fn set_modified(path: &Path, seconds: i64, nanoseconds: u32) -> Result<()> {
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time(0, UTIME_OMIT), last_modification: time(seconds, nanoseconds.into()) };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Removes temporary files that processes left in a directory when they were killed; once for each directory.
pub fn remove_abandoned(directory: &Path) {
    static DONE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let mut done = DONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !done.insert(directory.to_owned()) {
        return;
    }
    // A directory that cannot be listed, or a file that cannot be removed, is no reason to write nothing.
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(pid_of) else { continue };
        if is_abandoned(&entry.path(), pid) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The process that made a temporary file of this name.
fn pid_of(name: &str) -> Option<i32> {
    let (pid, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Whether nobody will rename a temporary file any more.
fn is_abandoned(path: &Path, pid: i32) -> bool {
    let Ok(found) = std::fs::symlink_metadata(path) else { return false };
    let age = found.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
    let is_running = Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH));
    if !found.is_file() {
        return !found.is_dir() && (!is_running || age > LOCKED_AFTER);
    }
    let Ok(file) = File::open(path) else { return false };
    let begin = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if is_running || begin.elapsed() > RELEASED_AFTER => return false,
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(10)),
            _ => return !is_running || age > LOCKED_AFTER || pid.unsigned_abs() == std::process::id(),
        }
    }
}

/// A file that the user requested.
pub enum WholeFile {
    /// A pipe, a terminal or a device is no file that could be replaced.
    Direct(File),
    /// Next to the file that has the name.
    Temporary {
        /// What is being written.
        file: File,
        /// Where.
        temporary: Temporary,
        /// Its name.
        path: PathBuf,
    },
}

impl WholeFile {
    /// Begins one. What exists is kept until [`WholeFile::finish`]; after a symbolic link its target is meant.
    pub fn create(path: &Path) -> Result<WholeFile> {
        let found = std::fs::metadata(path).ok();
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            return File::create(path).map(WholeFile::Direct);
        }
        let path = if found.is_some() { path.canonicalize()? } else { path.to_owned() };
        match temporary_like(&path, found.as_ref()) {
            Ok((temporary, file)) => Ok(WholeFile::Temporary { file, temporary, path }),
            // What can be written only there is written there.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && found.is_some() => {
                File::create(path).map(WholeFile::Direct)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives it its name. Then it is durable: its owner may do away with what it was made from.
    pub fn finish(self) -> Result<()> {
        match self {
            // A file that can only be written in place is handled like any other.
            WholeFile::Direct(file) if file.metadata()?.is_file() => file.sync_all(),
            WholeFile::Direct(_) => Ok(()),
            WholeFile::Temporary { file, temporary, path } => {
                file.sync_all()?;
                temporary.rename(&path)?;
                sync_directory(&path)
            }
        }
    }

    /// What becomes of it without [`WholeFile::finish`].
    pub fn unfinished(&self) -> &'static str {
        match self {
            WholeFile::Direct(_) => "is half written",
            WholeFile::Temporary { .. } => "is not written",
        }
    }

    fn file(&mut self) -> &mut File {
        match self {
            WholeFile::Direct(file) | WholeFile::Temporary { file, .. } => file,
        }
    }
}

/// Makes a new name durable. Where a directory cannot be opened, it is durable soon.
pub fn sync_directory(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new("."))).map_or(Ok(()), |directory| directory.sync_all())
}

/// With the mode of the old file, or that of any new one.
fn temporary_like(path: &Path, old: Option<&Metadata>) -> Result<(Temporary, File)> {
    let (temporary, file) = Temporary::file(path, 0o666)?;
    if let Some(old) = old {
        file.set_permissions(old.permissions())?;
    }
    Ok((temporary, file))
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

    /// Goal:   a file that is not finished leaves what existed, and nothing next to it; one that is replaces what a link leads
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

    /// Goal:   temporary files of killed processes are removed; those that a process writes, and other files, are not.
    /// Method: unlocked files of a process that has ended, of our number, of a running process, old and new; a locked file; one
    ///         whose lock is released soon; a link; names that only look like temporary ones.
    #[test]
    fn abandoned_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let (ended, own, running) = (ended.id(), std::process::id(), std::os::unix::process::parent_id());
        let name = |pid: u32, number: &str| format!("{PREFIX}{pid}-{number}");
        let abandoned = [name(ended, "0"), name(own, "900"), name(running, "old")].map(|name| name.replace("old", "1"));
        let kept = [name(running, "0"), name(ended, "x"), format!("{PREFIX}x-1"), "kaml-export-1-1".into()];
        for name in abandoned.iter().chain(&kept) {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        let old = std::time::SystemTime::now() - 2 * LOCKED_AFTER;
        File::options().write(true).open(dir.path().join(&abandoned[2])).unwrap().set_modified(old).unwrap();
        symlink("nowhere", dir.path().join(name(ended, "7"))).unwrap();
        let locked = File::create(dir.path().join(name(ended, "8"))).unwrap();
        flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        let released = File::create(dir.path().join(name(ended, "9"))).unwrap();
        flock(&released, FlockOperation::NonBlockingLockExclusive).unwrap();
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(released);
        });
        remove_abandoned(dir.path());
        release.join().unwrap();
        let mut left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let mut expected: Vec<std::ffi::OsString> = kept.map(Into::into).into();
        expected.push(name(ended, "8").into());
        left.sort();
        expected.sort();
        assert_eq!(left, expected);
    }
}
