//! Files that stand under their name when they are whole, and not before.
//!
//! Lives here:       writing beside the name, and the rename.
//! Lives elsewhere:  what is written (`commands::export`, `commands::record`, `restore`).

use std::fs::{File, Metadata, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// How a file is called until it is whole.
pub const PREFIX: &str = ".kaml-export-";

/// A file that somebody asked for.
pub enum WholeFile {
    /// A pipe, a terminal or a device is no file that could be replaced.
    Direct(File),
    /// Beside what stands under the name.
    Beside {
        /// What is being written.
        file: NamedTempFile,
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
            Ok(file) => Ok(WholeFile::Beside { file, path }),
            // What may be written only there is written there.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && found.is_some() => {
                File::create(path).map(WholeFile::Direct)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives it its name.
    pub fn finish(self) -> Result<()> {
        match self {
            WholeFile::Direct(_) => Ok(()),
            WholeFile::Beside { file, path } => file.persist(path).map(drop).map_err(|error| error.error),
        }
    }

    fn file(&mut self) -> &mut File {
        match self {
            WholeFile::Direct(file) => file,
            WholeFile::Beside { file, .. } => file.as_file_mut(),
        }
    }
}

/// With the mode of the old file, or that of any new one.
fn beside(path: &Path, old: Option<&Metadata>) -> Result<NamedTempFile> {
    let any = Permissions::from_mode(0o666);
    let made = Builder::new().prefix(PREFIX).permissions(any).tempfile_in(directory_of(path));
    // The name in the error would be one that nobody gave.
    let made = made.map_err(|error| error.raw_os_error().map_or(error, Error::from_raw_os_error))?;
    if let Some(old) = old {
        made.as_file().set_permissions(old.permissions())?;
    }
    Ok(made)
}

/// Where a path is.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
    use std::os::unix::fs::symlink;

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
