//! Reading a backup: piece by piece, each checked before anything of it is used.
//!
//! Lives here:       the pieces of a stream, verifying a whole backup, the keys of an earlier one.
//! Lives elsewhere:  the bytes (`format`), what a restore does with them (`restore`), an earlier one on its way to a device (`outline`).

use super::format::{
    Cursor, Described, Entry, Head, ListedKey, PIECE_BYTES_MAX, Piece, PieceHeader, PieceKind, TRAILER_BYTES, Totals,
    decode_trailer, decode_version,
};
use super::outline::Places;
use crate::error::Error;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

/// Bytes that are taken from the system at a time.
const READ_BYTES: usize = 1 << 20;

/// What a backup is and has.
///
/// # Examples
/// See [`Device::backup`](crate::Device::backup).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Its number, which an incremental one names as its base.
    pub backup: [u8; 16],
    /// The identity of the device.
    pub device: [u8; 16],
    /// The backup that it adds to, if it is incremental.
    pub base: Option<[u8; 16]>,
    /// Its moment: nanoseconds since 1970, by the clock of the host.
    pub time_ns: u64,
    /// Bytes of live records on the device at that moment, in whole chunks.
    pub live_bytes: u64,
    /// Bytes of flash that the device offered.
    pub capacity_bytes: u64,
    /// The namespaces.
    pub namespaces: Vec<String>,
    /// Records and units of blocks in it.
    pub records: u64,
    /// Versions in it.
    pub versions: u64,
    /// Keys in it that were deleted since its base.
    pub deleted: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Reads a backup and checks everything in it: each piece, their order, what is in them, and the totals at its end. `name` is what errors
/// call it.
///
/// # Errors
/// - [`Error::NotABackup`], [`Error::NewerVersion`] if this build reads no such thing.
/// - [`Error::BackupIncomplete`] if it ends early; [`Error::BackupDamaged`] if anything of it is not as it was written.
/// - [`Error::Io`] if it cannot be read.
pub fn verify_backup(input: &mut dyn Read, name: &str) -> Result<BackupInfo, Error> {
    let mut pieces = Pieces::new(BufReader::with_capacity(READ_BYTES, input), name);
    let head = pieces.head()?;
    let namespaces = pieces.namespaces(&head)?;
    let known = |id: u32| namespaces.iter().any(|namespace| namespace.id == id);
    while let Some((kind, bytes)) = pieces.next()? {
        let is_sound = contents_are_sound(kind, &bytes, &known);
        pieces.require(is_sound, "a piece has contents that no backup has")?;
    }
    let totals = pieces.totals;
    Ok(BackupInfo {
        backup: head.backup,
        device: head.device,
        base: head.base,
        time_ns: head.time_ns,
        live_bytes: head.live_bytes,
        capacity_bytes: head.capacity,
        namespaces: namespaces.into_iter().map(|namespace| namespace.name).collect(),
        records: totals.records,
        versions: totals.versions,
        deleted: totals.deleted,
        bytes: pieces.offset,
    })
}

/// As [`verify_backup`], of a file.
///
/// # Errors
/// As [`verify_backup`].
pub fn verify_backup_file(path: impl AsRef<Path>) -> Result<BackupInfo, Error> {
    let path = path.as_ref();
    verify_backup(&mut open(path)?, &path.display().to_string())
}

pub(super) fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| io_error(&path.display().to_string(), "open", source))
}

pub(super) fn io_error(name: &str, what: &'static str, source: std::io::Error) -> Error {
    Error::Io { path: name.into(), what, source: Arc::new(source) }
}

fn contents_are_sound(kind: PieceKind, bytes: &[u8], known: &dyn Fn(u32) -> bool) -> bool {
    let mut rest = Cursor(bytes);
    match kind {
        PieceKind::Records => {
            while !rest.is_empty() {
                if Entry::decode(&mut rest).is_none_or(|entry| !known(entry.namespace)) {
                    return false;
                }
            }
            true
        }
        PieceKind::Versions => {
            while !rest.is_empty() {
                if decode_version(&mut rest).is_none_or(|(namespace, ..)| !known(namespace)) {
                    return false;
                }
            }
            true
        }
        PieceKind::Reset => rest.u32().is_some_and(known) && rest.is_empty(),
        PieceKind::Deleted | PieceKind::Keys => {
            if !rest.u32().is_some_and(known) {
                return false;
            }
            while !rest.is_empty() {
                if ListedKey::decode(&mut rest).is_none() {
                    return false;
                }
            }
            true
        }
        PieceKind::Head | PieceKind::Namespace | PieceKind::End => false,
    }
}

/// The pieces of a backup, in their order.
pub(super) struct Pieces<R> {
    input: R,
    name: String,
    backup: [u8; 16],
    number: u64,
    /// Bytes that were read.
    pub(super) offset: u64,
    headers_crc: u32,
    /// What its last piece says, after that was read.
    pub(super) totals: Totals,
    /// A piece that was read and not taken.
    next: Option<(PieceKind, Vec<u8>)>,
    is_over: bool,
    /// The pieces before were skipped, so the totals cannot be compared.
    is_tail: bool,
    /// Bytes of the pieces that precede records, all together, and of any other piece, at most.
    pub(super) part_bytes_max: usize,
}

impl<R: Read> Pieces<R> {
    pub(super) fn new(input: R, name: &str) -> Pieces<R> {
        Pieces {
            input,
            name: name.to_owned(),
            backup: [0; 16],
            number: 0,
            offset: 0,
            headers_crc: 0,
            totals: Totals::default(),
            next: None,
            is_over: false,
            is_tail: false,
            part_bytes_max: PIECE_BYTES_MAX,
        }
    }

    /// The same over another input that continues where this one is.
    fn map_input<S>(self, map: impl FnOnce(R) -> S) -> Pieces<S> {
        let Pieces { input, name, backup, number, offset, headers_crc, totals, next, is_over, is_tail, part_bytes_max } =
            self;
        let input = map(input);
        Pieces { input, name, backup, number, offset, headers_crc, totals, next, is_over, is_tail, part_bytes_max }
    }

    /// What errors call the backup.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn damaged(&self, why: &str) -> Error {
        Error::BackupDamaged { name: self.name.clone(), offset: self.offset, why: why.to_owned() }
    }

    pub(super) fn require(&self, is_sound: bool, why: &str) -> Result<(), Error> {
        if is_sound { Ok(()) } else { Err(self.damaged(why)) }
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        match self.input.read_exact(bytes) {
            Ok(()) => {
                self.offset += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(self.incomplete()),
            Err(error) => Err(io_error(&self.name, "read", error)),
        }
    }

    fn incomplete(&self) -> Error {
        Error::BackupIncomplete { name: self.name.clone(), bytes: self.offset }
    }

    /// The next piece as it is in the stream.
    fn piece(&mut self) -> Result<(PieceKind, Vec<u8>), Error> {
        let mut header = [0; PieceHeader::BYTES];
        self.fill(&mut header)?;
        let piece = PieceHeader::check(&header, &self.backup).map_err(|why| self.damaged(why))?;
        self.require(piece.number == self.number, "a piece is missing, or not in its place")?;
        self.require(piece.len <= self.part_bytes_max, "a piece is too long")?;
        // Memory follows what is there, whatever the header claims.
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(piece.len as u64).read_to_end(&mut bytes);
        let read = read.map_err(|error| io_error(&self.name, "read", error))?;
        self.offset += read as u64;
        if read < piece.len {
            return Err(self.incomplete());
        }
        self.check_contents(&piece, &bytes)?;
        if piece.kind != PieceKind::End {
            self.headers_crc = kaml_crc::crc32c_append(self.headers_crc, &header);
        }
        self.number += 1;
        Ok((piece.kind, bytes))
    }

    fn check_contents(&self, piece: &Piece, bytes: &[u8]) -> Result<(), Error> {
        self.require(kaml_crc::crc32c(bytes) == piece.crc, "the checksum of a piece's contents does not match")
    }

    /// The head, which is the first piece.
    pub(super) fn head(&mut self) -> Result<Head, Error> {
        let not_a_backup = |name: &str| Error::NotABackup { name: name.to_owned() };
        let (kind, bytes) = match self.piece() {
            Err(Error::BackupDamaged { offset, .. }) if offset == PieceHeader::BYTES as u64 => {
                return Err(not_a_backup(&self.name));
            }
            Err(Error::BackupIncomplete { bytes: 0, .. }) => return Err(not_a_backup(&self.name)),
            piece => piece?,
        };
        if kind != PieceKind::Head {
            return Err(not_a_backup(&self.name));
        }
        let head = match Head::decode(&bytes) {
            Ok(head) => head,
            Err(Some(found)) => {
                let what = format!("{}: version of the backup", self.name);
                return Err(Error::NewerVersion { what, found, supported: super::format::VERSION });
            }
            Err(None) => return Err(self.damaged("its head has contents that no backup has")),
        };
        self.backup = head.backup;
        Ok(head)
    }

    /// The namespaces, whose pieces follow the head.
    pub(super) fn namespaces(&mut self, head: &Head) -> Result<Vec<Described>, Error> {
        let mut namespaces: Vec<Described> = Vec::new();
        for _ in 0..head.namespaces {
            let (kind, bytes) = self.piece()?;
            let namespace = Described::decode(&bytes).filter(|_| kind == PieceKind::Namespace);
            let namespace = namespace.ok_or_else(|| self.damaged("a piece that should describe a namespace"))?;
            let is_in_order = namespaces.last().is_none_or(|last| last.id < namespace.id);
            self.require(is_in_order, "its namespaces are not in order")?;
            self.require(self.offset <= self.part_bytes_max as u64, "its namespaces take more than any device has")?;
            namespaces.push(namespace);
        }
        Ok(namespaces)
    }

    /// The next piece is the one of this number, of the lists of keys.
    pub(super) fn begin_tail(&mut self, number: u64) {
        (self.number, self.is_tail) = (number, true);
    }

    /// The next piece, or nothing after the last one, whose totals match.
    pub(super) fn next(&mut self) -> Result<Option<(PieceKind, Vec<u8>)>, Error> {
        if let Some(next) = self.next.take() {
            return Ok(Some(next));
        }
        if self.is_over {
            return Ok(None);
        }
        let (kind, bytes) = self.piece()?;
        if kind != PieceKind::End {
            self.count(kind, &bytes);
            return Ok(Some((kind, bytes)));
        }
        self.is_over = true;
        let totals = Totals::decode(&bytes).ok_or_else(|| self.damaged("its end mark"))?;
        if self.is_tail {
            return Ok(None);
        }
        let counted = Totals { pieces: self.number - 1, crc: self.headers_crc, ..self.totals };
        self.require(Totals { bytes: 0, ..totals } == Totals { bytes: 0, ..counted }, "its totals do not match")?;
        self.totals = totals;
        let mut trailer = [0; TRAILER_BYTES];
        self.fill(&mut trailer)?;
        self.require(decode_trailer(&self.backup, &trailer).is_some(), "the checksum of its trailer does not match")?;
        let more = (&mut self.input).take(1).read_to_end(&mut Vec::new());
        let more = more.map_err(|error| io_error(&self.name, "read", error))?;
        self.require(more == 0, "something follows its end")?;
        Ok(None)
    }

    /// Counts what a piece has, as far as it can be read.
    fn count(&mut self, kind: PieceKind, bytes: &[u8]) {
        let mut rest = Cursor(bytes);
        match kind {
            PieceKind::Records => {
                while Entry::decode(&mut rest).is_some() {
                    self.totals.records += 1;
                }
            }
            PieceKind::Versions => {
                while decode_version(&mut rest).is_some() {
                    self.totals.versions += 1;
                }
            }
            PieceKind::Deleted => {
                rest.u32();
                while ListedKey::decode(&mut rest).is_some() {
                    self.totals.deleted += 1;
                }
            }
            PieceKind::Head | PieceKind::Namespace | PieceKind::Reset | PieceKind::Keys | PieceKind::End => {}
        }
    }
}

/// An earlier backup that an incremental one adds to.
///
/// # Examples
/// See [`Device::backup`](crate::Device::backup).
pub struct BackupBase {
    pub(super) name: String,
    pub(super) head: Head,
    pub(super) namespaces: Vec<Described>,
    pub(super) tail: Pieces<Box<dyn Read + Send>>,
    /// The piece of keys that is being read: its namespace, its bytes, how many of them were taken.
    pub(super) keys: Option<(u32, Vec<u8>, usize)>,
    /// Nothing if it is no file.
    pub(super) places: Option<Places>,
}

impl BackupBase {
    /// Opens a backup to add to. Only its head and its list of keys are read.
    ///
    /// # Errors
    /// As [`verify_backup`].
    pub fn open(path: impl AsRef<Path>) -> Result<BackupBase, Error> {
        let (path, name) = (path.as_ref(), path.as_ref().display().to_string());
        let mut pieces = Pieces::new(BufReader::new(open(path)?), &name);
        let head = pieces.head()?;
        let namespaces = pieces.namespaces(&head)?;
        let front = 0..pieces.offset;
        let (tail, end) = pieces.skip_to_tail()?;
        let file = tail.input.get_ref().try_clone().map_err(|error| io_error(&name, "open", error))?;
        let places = Some(Places { file: Arc::new(file), front, tail: tail.offset..end });
        let tail = tail.map_input(|input| Box::new(input) as Box<dyn Read + Send>);
        Ok(BackupBase { name, head, namespaces, tail, keys: None, places })
    }

    /// The next key of a namespace, in the order of its index; nothing after the last one. Namespaces are asked for in their order.
    pub(super) fn next_key(&mut self, namespace: u32) -> Result<Option<ListedKey>, Error> {
        loop {
            if let Some((of, bytes, taken)) = &mut self.keys {
                if *of > namespace {
                    return Ok(None);
                }
                let mut rest = Cursor(&bytes[*taken..]);
                if *of == namespace && !rest.is_empty() {
                    let key = ListedKey::decode(&mut rest);
                    *taken = bytes.len() - rest.0.len();
                    return key.map(Some).ok_or_else(|| self.tail.damaged("a list of keys"));
                }
            }
            self.keys = match self.tail.next()? {
                None => return Ok(None),
                Some((PieceKind::Keys, bytes)) => {
                    let of = Cursor(&bytes).u32().ok_or_else(|| self.tail.damaged("a list of keys"))?;
                    Some((of, bytes, 4))
                }
                Some(_) => None,
            };
        }
    }
}

impl Pieces<BufReader<File>> {
    /// The pieces of the tail, without those before it, and where the last one ends.
    fn skip_to_tail(mut self) -> Result<(Pieces<BufReader<File>>, u64), Error> {
        let failed = |error| io_error(&self.name, "read", error);
        let end = self.input.seek(SeekFrom::End(0)).map_err(failed)?;
        let at = end.checked_sub(TRAILER_BYTES as u64).ok_or_else(|| self.incomplete())?;
        self.input.seek(SeekFrom::Start(at)).map_err(failed)?;
        let mut trailer = [0; TRAILER_BYTES];
        self.offset = at;
        self.fill(&mut trailer)?;
        self.offset = end;
        let Some((tail, number)) = decode_trailer(&self.backup, &trailer) else { return Err(self.incomplete()) };
        self.input.seek(SeekFrom::Start(tail)).map_err(|error| io_error(&self.name, "read", error))?;
        self.offset = tail;
        self.begin_tail(number);
        Ok((self, at))
    }
}

/// The keys that a backup names as deleted, of namespaces that know long keys by digests.
pub(super) fn deleted_digests(path: &Path) -> Result<Vec<(u32, [u8; 16])>, Error> {
    let mut base = BackupBase::open(path)?;
    let mut digests = Vec::new();
    while let Some((kind, bytes)) = base.tail.next()? {
        let mut rest = Cursor(&bytes);
        let Some(namespace) = rest.u32().filter(|_| kind == PieceKind::Deleted) else { continue };
        while let Some(key) = ListedKey::decode(&mut rest) {
            if let ListedKey::Digest(digest) = key {
                digests.push((namespace, digest));
            }
        }
    }
    Ok(digests)
}
