//! The root: where everything else is found when the device is opened.
//!
//! Lives here:       the root's content, encoding, checked decoding.
//! Implements:       docs/formats/root.md.
//!
//! A root is replaced as a whole, in the slot that does not hold the present one. The newest whole root counts.

use super::crc32c_append;
use super::record::NAMESPACE_MAX;
use crate::compression::Compression;
use crate::error::RootError;
use crate::layout::{BlockOptions, Layout, VersionLayout};
use crate::secret::Secret;
use crate::versioned::merge_policy::MergePolicy;
use kaml_index::KeyKind;
use kaml_versions::{BLOOM_HASHES_MAX, BloomParameters, Index, Parameters, ValueShape};

/// Pages of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) block: u32,
    pub(crate) page: u32,
    pub(crate) page_count: u32,
}

/// A byte stream kept in metadata pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) runs: Vec<Run>,
    pub(crate) bytes: u64,
    pub(crate) crc32c: u32,
    /// Of the image of an index: bytes of the [list of parts](super::part_list) at its end; 0 if it has none.
    pub(crate) list_bytes: u32,
}

/// A namespace as the root knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NamespaceRoot {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) layout: Layout,
    /// Dies the namespace appends to; empty: all.
    pub(crate) logs: Vec<u32>,
    /// Records when the snapshot was taken.
    pub(crate) record_count: u64,
    /// The index as it was at journal entry `snapshot_entry`, or nothing if it was empty then.
    pub(crate) snapshot: Option<Stream>,
    /// Journal entries before this are part of the snapshot.
    pub(crate) snapshot_entry: u64,
    /// Of a versioned namespace: the versions with sequences before `kept_before` that were in its buffer, or nothing if
    /// there were none.
    pub(crate) kept: Option<Stream>,
    pub(crate) kept_before: u64,
    /// It is merged when space runs low.
    pub(crate) merge_when_low: Option<MergePolicy>,
    /// No record of it expires before, in milliseconds since 1970; `u64::MAX` if none does.
    pub(crate) next_expiry: u64,
    /// Its records expire after so many milliseconds by default; 0: they do not.
    pub(crate) default_ttl_ms: u64,
    /// How its values are compressed.
    pub(crate) compression: Compression,
    /// It has the large values of this versioned namespace.
    pub(crate) values_of: Option<u32>,
}

/// Everything in a root.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Root {
    /// Counts roots; the larger of two whole ones is the present one.
    pub(crate) generation: u64,
    /// Counts openings for writing.
    pub(crate) epoch: u64,
    /// Nothing was written after this root.
    pub(crate) clean: bool,
    /// Ring frames before this are no longer needed.
    pub(crate) ring_tail: u64,
    pub(crate) next_sequence: u64,
    pub(crate) next_namespace: u32,
    pub(crate) namespaces: Vec<NamespaceRoot>,
    /// The block table as it was at journal entry `blocks_entry`.
    pub(crate) blocks: Option<Stream>,
    pub(crate) blocks_entry: u64,
    /// Durable journal pages, in order; the first entry that is kept and the number after the last.
    pub(crate) journal: Vec<Run>,
    pub(crate) journal_entries_end: u64,
    /// The last of these entries, which are in no page yet, as they would be stored there.
    pub(crate) journal_tail: Vec<u8>,
    /// Since the device was created: puts, deletes, host bytes, record chunks, relocated chunks, ring bytes, page bytes,
    /// erases.
    pub(crate) lifetime: [u64; 8],
    /// Known to nobody outside: where indexes place keys follows from it. 0 if none was drawn.
    pub(crate) index_seed: u64,
    /// What frames and pages are authenticated with; nothing on a device that no build with tags has opened yet.
    pub(crate) secret: Option<Secret>,
    /// The device's clock, in milliseconds since 1970; 0 if no record ever expired.
    pub(crate) clock_ms: u64,
}

const MAGIC: [u8; 4] = *b"KRT1";
/// Version 2 knows block namespaces, version 4 versioned ones, version 5 journal entries in the root, version 6 merges when
/// space runs low, version 8 versioned namespaces with the paper's index, version 10 directories that exist twice, version 11 the
/// seed of indexes, version 12 the secret and the command that forgets many snapshots at once, version 13 keys above 16 bytes and ordered namespaces, version 14 records that expire, version 15 large values of versioned namespaces, version 16 short
/// headers of records, version 17 lists of parts, version 18 compressed values, version 19 namespaces that keep only newest versions; an
/// older root is one without them. There are
/// no versions 3 and 7, which one flipped bit would make older ones. Opening writes a root before it takes commands, so an older build
/// refuses a device that has any of these.
const VERSION: u32 = 19;
/// The first version whose checksum covers the header, too, as that of every later one must: otherwise a flipped bit would make it a
/// later version, and the device would be refused although the other root is whole.
const WITH_HEADER_CHECKED: u32 = 9;
/// The first version with journal entries in the root. A flipped bit that makes it an older one leaves bytes over.
const WITH_TAIL: u32 = 5;
/// The first version with the seed of indexes.
const WITH_SEED: u32 = 11;
/// The first version with the secret.
const WITH_SECRET: u32 = 12;
/// The first version with the device's clock, and with what namespaces have on expiry.
const WITH_EXPIRY: u32 = 14;
/// The first version with lists of parts.
const WITH_PARTS: u32 = 17;
/// The first version with how namespaces compress.
const WITH_COMPRESSION: u32 = 18;
/// The first version with namespaces that keep only newest versions.
const WITH_NEWEST_ONLY: u32 = 19;
/// Bits of what is kept when space runs low.
const KEEPS_INTERNAL: u32 = 1;
const NEWEST_ONLY: u32 = 2;
/// Added to the kind of a versioned namespace that is merged when space runs low.
const WITH_POLICY: u32 = 2;
/// Added to the kind of a versioned namespace with the paper's index.
const WITH_BLOOM: u32 = 4;
/// The kinds of namespaces with keys above 16 bytes, after those of versioned ones.
const ANY: u32 = 11;
const ORDERED: u32 = 12;
/// The kind of a namespace that has the large values of another one, whose number follows.
const VALUES: u32 = 13;
/// Before the body: magic, version, body length, CRC32C, 16 bytes of uuid.
pub(crate) const HEADER_BYTES: usize = 32;

impl Root {
    /// The bytes, not padded.
    pub(crate) fn encode(&self, uuid: [u8; 16]) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(4096));
        w.0.resize(HEADER_BYTES, 0);
        w.u64(self.generation);
        w.u64(self.epoch);
        w.u32(self.clean.into());
        w.u64(self.ring_tail);
        w.u64(self.next_sequence);
        w.u32(self.next_namespace);
        w.u32(self.namespaces.len() as u32);
        for namespace in &self.namespaces {
            namespace.encode(&mut w);
        }
        w.stream(self.blocks.as_ref());
        w.u64(self.blocks_entry);
        w.runs(&self.journal);
        w.u64(self.journal_entries_end);
        w.u32(self.journal_tail.len() as u32);
        w.0.extend_from_slice(&self.journal_tail);
        self.lifetime.iter().for_each(|value| w.u64(*value));
        w.u64(self.index_seed);
        w.0.extend_from_slice(&self.secret.map_or([0; Secret::BYTES], |secret| secret.key));
        w.u64(self.secret.map_or(0, |secret| secret.since_epoch));
        w.u64(self.clock_ms);
        for namespace in &self.namespaces {
            w.u64(namespace.next_expiry);
            w.u64(namespace.default_ttl_ms);
        }
        for namespace in &self.namespaces {
            w.u32(namespace.snapshot.as_ref().map_or(0, |snapshot| snapshot.list_bytes));
        }
        w.0.extend(self.namespaces.iter().map(|namespace| namespace.compression.code()));
        let len = (w.0.len() - HEADER_BYTES) as u32;
        w.0[..4].copy_from_slice(&MAGIC);
        w.0[4..8].copy_from_slice(&VERSION.to_le_bytes());
        w.0[8..12].copy_from_slice(&len.to_le_bytes());
        w.0[16..32].copy_from_slice(&uuid);
        let sum = checksum(VERSION, &w.0);
        w.0[12..16].copy_from_slice(&sum.to_le_bytes());
        w.0
    }

    /// Bytes of the whole root whose header is `header`, so a reader knows how much to read.
    pub(crate) fn total_bytes(header: &[u8]) -> usize {
        header.get(8..12).map_or(0, |b| u32::from_le_bytes(b.try_into().expect("four bytes")) as usize) + HEADER_BYTES
    }

    /// The root that is in `bytes`.
    pub(crate) fn decode(bytes: &[u8], uuid: [u8; 16]) -> Result<Root, DecodeError> {
        let header = bytes.get(..HEADER_BYTES).ok_or(DecodeError::Broken("cut short"))?;
        if header[..4] != MAGIC {
            return Err(DecodeError::Broken("no root here"));
        }
        let version = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        if matches!(version, 0 | 3 | 7) {
            return Err(DecodeError::Broken("such a version never was"));
        }
        if header[16..32] != uuid {
            return Err(DecodeError::Broken("belongs to another device"));
        }
        let root = bytes.get(..Self::total_bytes(header)).ok_or(DecodeError::Broken("cut short"))?;
        if checksum(version, root).to_le_bytes() != header[12..16] {
            return Err(DecodeError::Broken("checksum does not match"));
        }
        if version > VERSION {
            return Err(DecodeError::Newer(version));
        }
        let mut r = Reader(&root[HEADER_BYTES..]);
        Root::decode_body(&mut r, version).ok_or(DecodeError::Broken("fields out of range"))
    }

    fn decode_body(r: &mut Reader<'_>, version: u32) -> Option<Root> {
        let mut root = Root {
            generation: r.u64()?,
            epoch: r.u64()?,
            clean: r.u32()? == 1,
            ring_tail: r.u64()?,
            next_sequence: r.u64()?,
            next_namespace: r.u32()?,
            ..Root::default()
        };
        for _ in 0..r.u32()? {
            root.namespaces.push(NamespaceRoot::decode(r, version)?);
        }
        root.blocks = r.stream()?;
        root.blocks_entry = r.u64()?;
        root.journal = r.runs()?;
        root.journal_entries_end = r.u64()?;
        if version >= WITH_TAIL {
            let len = r.u32()? as usize;
            root.journal_tail = r.take(len)?.to_vec();
        }
        for value in &mut root.lifetime {
            *value = r.u64()?;
        }
        if version >= WITH_SEED {
            root.index_seed = r.u64()?;
        }
        if version >= WITH_SECRET {
            let key: [u8; Secret::BYTES] = r.take(Secret::BYTES)?.try_into().expect("as many bytes");
            let since_epoch = r.u64()?;
            root.secret = (key != [0; Secret::BYTES]).then_some(Secret { key, since_epoch });
        }
        if version >= WITH_EXPIRY {
            root.clock_ms = r.u64()?;
            for namespace in &mut root.namespaces {
                (namespace.next_expiry, namespace.default_ttl_ms) = (r.u64()?, r.u64()?);
            }
        }
        if version >= WITH_PARTS {
            for namespace in &mut root.namespaces {
                match (r.u32()?, &mut namespace.snapshot) {
                    (0, _) => {}
                    (list, Some(snapshot)) if u64::from(list) < snapshot.bytes => snapshot.list_bytes = list,
                    (_, _) => return None,
                }
            }
        }
        if version >= WITH_COMPRESSION {
            for namespace in &mut root.namespaces {
                namespace.compression = Compression::of_code(r.u8()?)?;
            }
        }
        r.0.is_empty().then_some(root)
    }
}

/// The checksum of a root of this version: of all bytes but its own.
fn checksum(version: u32, root: &[u8]) -> u32 {
    let header = match version {
        ..WITH_HEADER_CHECKED => 0,
        _ => crc32c_append(kaml_crc::crc32c(&root[..12]), &root[16..HEADER_BYTES]),
    };
    crc32c_append(header, &root[HEADER_BYTES..])
}

/// Why one slot does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("{0}")]
    Broken(&'static str),
    #[error("version {0}")]
    Newer(u32),
    /// The medium refuses to read the slot.
    #[error("cannot be read: {0}")]
    Unreadable(String),
}

impl DecodeError {
    /// The error of a device whose slots both fail.
    pub(crate) fn both(a: &DecodeError, b: &DecodeError) -> RootError {
        match (a, b) {
            (DecodeError::Newer(found), _) | (_, DecodeError::Newer(found)) => {
                RootError::NewerVersion { found: *found, supported: VERSION }
            }
            (a, b) => RootError::Damaged(a.to_string(), b.to_string()),
        }
    }
}

impl NamespaceRoot {
    /// All streams that it names.
    pub(crate) fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.snapshot.iter().chain(&self.kept)
    }

    fn encode(&self, w: &mut Writer) {
        w.u32(self.id);
        match (self.layout, self.values_of) {
            (Layout::Records(_), Some(owner)) => {
                w.u32(VALUES);
                w.u32(owner);
            }
            (Layout::Records(KeyKind::U64), None) => w.u32(0),
            (Layout::Records(KeyKind::Bytes), None) => w.u32(1),
            (Layout::Records(KeyKind::Any), None) => w.u32(ANY),
            (Layout::Records(KeyKind::Ordered), None) => w.u32(ORDERED),
            (Layout::Blocks(blocks), _) => {
                w.u32(2);
                w.u32(blocks.block_bytes);
                w.u32(blocks.unit_bytes);
                w.u64(blocks.block_count);
            }
            (Layout::Versions(VersionLayout { keys, parameters: p }), _) => {
                let kind = if keys == KeyKind::U64 { 3 } else { 4 };
                let policy = if self.merge_when_low.is_some() { WITH_POLICY } else { 0 };
                let bloom = if matches!(p.index, Index::Bloom(_)) { WITH_BLOOM } else { 0 };
                w.u32(kind + policy + bloom);
                w.parameters(&p);
            }
        }
        w.u32(self.name.len() as u32);
        w.0.extend_from_slice(self.name.as_bytes());
        w.u32(self.logs.len() as u32);
        self.logs.iter().for_each(|log| w.u32(*log));
        w.u64(self.record_count);
        w.stream(self.snapshot.as_ref());
        w.u64(self.snapshot_entry);
        match self.layout {
            Layout::Versions(_) => {
                w.stream(self.kept.as_ref());
                w.u64(self.kept_before);
            }
            Layout::Records(_) | Layout::Blocks(_) => {}
        }
        if let Some(policy) = self.merge_when_low {
            w.u32(policy.keep_last);
            let internal = if policy.keep_internal { KEEPS_INTERNAL } else { 0 };
            w.u32(internal | if policy.newest_only { NEWEST_ONLY } else { 0 });
            w.u64(policy.keep_for_ns);
        }
    }

    fn decode(r: &mut Reader<'_>, version: u32) -> Option<NamespaceRoot> {
        let id = r.u32().filter(|id| *id <= NAMESPACE_MAX)?;
        let kind = r.u32()?;
        let values_of = if kind == VALUES { Some(r.u32()?) } else { None };
        let layout = match kind {
            0 => Layout::Records(KeyKind::U64),
            1 => Layout::Records(KeyKind::Bytes),
            2 => {
                let (block_bytes, unit_bytes, block_count) = (r.u32()?, r.u32()?, r.u64()?);
                let blocks = BlockOptions { block_bytes, block_count, unit_bytes };
                blocks.check().ok()?;
                Layout::Blocks(blocks)
            }
            3..=10 => Layout::Versions(VersionLayout {
                keys: if kind % 2 == 1 { KeyKind::U64 } else { KeyKind::Bytes },
                parameters: r.parameters(kind > 2 + WITH_BLOOM)?,
            }),
            ANY => Layout::Records(KeyKind::Any),
            ORDERED => Layout::Records(KeyKind::Ordered),
            VALUES => Layout::Records(KeyKind::U64),
            _ => return None,
        };
        let name_len = r.u32()? as usize;
        let name = std::str::from_utf8(r.take(name_len)?).ok()?.to_owned();
        let mut logs = Vec::new();
        for _ in 0..r.u32()? {
            logs.push(r.u32()?);
        }
        let record_count = r.u64()?;
        let (snapshot, snapshot_entry) = (r.stream()?, r.u64()?);
        let (kept, kept_before, has_policy) = match layout {
            Layout::Versions(_) => (r.stream()?, r.u64()?, (kind - 3) & WITH_POLICY != 0),
            Layout::Records(_) | Layout::Blocks(_) => (None, 0, false),
        };
        let merge_when_low = match has_policy {
            true => Some(r.policy(version)?),
            false => None,
        };
        Some(NamespaceRoot {
            id,
            name,
            layout,
            logs,
            record_count,
            snapshot,
            snapshot_entry,
            kept,
            kept_before,
            merge_when_low,
            next_expiry: u64::MAX,
            default_ttl_ms: 0,
            compression: Compression::None,
            values_of,
        })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    /// The shape of a versioned namespace.
    fn parameters(&mut self, p: &Parameters) {
        let shape = match &p.index {
            Index::Columns(shape) => [shape.choices, shape.fingerprint_bits],
            Index::Bloom(_) => [0, 0],
        };
        [p.page_bytes, p.segment_pages, p.rows].iter().chain(&shape).for_each(|v| self.u32(*v));
        self.u64(p.buffer_bytes);
        self.u64(p.seed);
        if let Index::Bloom(b) = &p.index {
            b.filter_keys.iter().for_each(|v| self.u32(*v));
            let rest = [b.overflow_keys, b.false_positives_ppm, b.growth_permille, b.combined];
            rest.iter().for_each(|v| self.u32(*v));
        }
    }
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn runs(&mut self, runs: &[Run]) {
        self.u32(runs.len() as u32);
        for run in runs {
            self.u32(run.block);
            self.u32(run.page);
            self.u32(run.page_count);
        }
    }
    fn stream(&mut self, stream: Option<&Stream>) {
        self.u32(stream.is_some().into());
        if let Some(stream) = stream {
            self.runs(&stream.runs);
            self.u64(stream.bytes);
            self.u32(stream.crc32c);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// What is kept of versions when space runs low. A bit of a later version could mean that more is kept, so unknown bits are damage.
    fn policy(&mut self, version: u32) -> Option<MergePolicy> {
        let (keep_last, bits, keep_for_ns) = (self.u32()?, self.u32()?, self.u64()?);
        let known = if version >= WITH_NEWEST_ONLY { KEEPS_INTERNAL | NEWEST_ONLY } else { KEEPS_INTERNAL };
        let (keep_internal, newest_only) = (bits & KEEPS_INTERNAL != 0, bits & NEWEST_ONLY != 0);
        (bits & !known == 0).then_some(MergePolicy { keep_last, keep_for_ns, keep_internal, newest_only })
    }

    /// The shape of a versioned namespace, if it makes sense.
    fn parameters(&mut self, has_bloom: bool) -> Option<Parameters> {
        let (page_bytes, segment_pages, rows) = (self.u32()?, self.u32()?, self.u32()?);
        let shape = ValueShape { choices: self.u32()?, fingerprint_bits: self.u32()? };
        let (buffer_bytes, seed) = (self.u64()?, self.u64()?);
        let index = if has_bloom { Index::Bloom(self.bloom()?) } else { Index::Columns(shape) };
        let parameters = Parameters { page_bytes, segment_pages, rows, buffer_bytes, index, seed };
        parameters.check().ok().map(|()| parameters)
    }
    fn bloom(&mut self) -> Option<BloomParameters> {
        let mut filter_keys = [0; BLOOM_HASHES_MAX];
        for keys in &mut filter_keys {
            *keys = self.u32()?;
        }
        let (overflow_keys, false_positives_ppm) = (self.u32()?, self.u32()?);
        let (growth_permille, combined) = (self.u32()?, self.u32()?);
        Some(BloomParameters { filter_keys, overflow_keys, false_positives_ppm, growth_permille, combined })
    }
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }
    fn runs(&mut self) -> Option<Vec<Run>> {
        let count = self.u32()?;
        (0..count).map(|_| Some(Run { block: self.u32()?, page: self.u32()?, page_count: self.u32()? })).collect()
    }
    fn stream(&mut self) -> Option<Option<Stream>> {
        match self.u32()? {
            0 => Some(None),
            1 => Some(Some(Stream { runs: self.runs()?, bytes: self.u64()?, crc32c: self.u32()?, list_bytes: 0 })),
            _ => None,
        }
    }
}
