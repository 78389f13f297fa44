//! Compressed values: the methods, and the bytes that a record has of one.
//!
//! Lives here:       compressing, decompressing, a guess at bytes that cannot be compressed.
//! Lives elsewhere:  when a value is compressed and kept so (`packing`), which records have one (`format::record`).
//! Implements:       docs/formats/record.md "Compressed values".
//!
//! Both directions are done on a caller's thread, whose contexts are used again. What is read is a claim: nothing is reserved for it beyond
//! what its method can make of as many bytes, and it counts only if it is as long as it states.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use zstd_safe::{CCtx, DCtx};

/// How the values of a namespace are stored. A record states how it is stored itself, so this concerns records that are put from now on.
///
/// # Examples
/// ```
/// use kaml_device::{Compression, KeyKind, NamespaceOptions};
///
/// let documents = NamespaceOptions::records(KeyKind::Any).with_compression(Compression::Zstd);
/// assert_eq!("zstd".parse(), Ok(documents.compression));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// LZ4: fast, for values with repetitions.
    Lz4,
    /// Zstandard: smaller than LZ4, in more time.
    Zstd,
}

impl Compression {
    /// All of them.
    pub const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

    /// Its number in roots, in records and on the wire.
    #[doc(hidden)]
    pub fn code(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => 1,
            Compression::Zstd => 2,
        }
    }

    /// The method with a number.
    #[doc(hidden)]
    pub fn of_code(code: u8) -> Option<Compression> {
        Compression::ALL.into_iter().find(|method| method.code() == code)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        })
    }
}

/// A word that names no method of compression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a method of compression: use none, lz4 or zstd")]
pub struct UnknownCompression(String);

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(name: &str) -> Result<Compression, UnknownCompression> {
        let found = Compression::ALL.into_iter().find(|method| method.to_string() == name);
        found.ok_or_else(|| UnknownCompression(name.to_owned()))
    }
}

/// The level of Zstandard: one of the fast ones. JSON of 1 KiB takes 3.5 µs and becomes 0.41 of its size; level 1 takes 7.2 µs and makes it 0.33, which
/// costs more than a tenth of a durable put.
const ZSTD_LEVEL: i32 = -1;
/// Ends what is stored of a compressed value: its length in bits 0 to 29, its method in bits 30 and 31.
const FOOTER_BYTES: usize = 4;
const LENGTH_BITS: u32 = 30;
/// Longer values are stored as they are.
pub(crate) const PACKED_VALUE_MAX: usize = (1 << LENGTH_BITS) - 1;
/// What a byte of each method can become at most, rounded up: a byte that continues a length of LZ4, and a block of 128 KiB of Zstandard
/// in four bytes.
const LZ4_GROWTH_MAX: usize = 256;
const ZSTD_GROWTH_MAX: usize = 1 << 15;

/// What a thread compresses with.
#[derive(Default)]
struct Contexts {
    to_lz4: Option<CompressTable>,
    to_zstd: Option<CCtx<'static>>,
    of_zstd: Option<DCtx<'static>>,
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::default();
}

/// Calls `with` with the contexts of the thread; with new ones if the thread is about to end.
fn with_contexts<T>(mut with: impl FnMut(&mut Contexts) -> T) -> T {
    let used = CONTEXTS.try_with(|contexts| with(&mut contexts.borrow_mut()));
    used.unwrap_or_else(|_| with(&mut Contexts::default()))
}

/// Compresses a value into `packed`, in place of what is there. Returns false, with nothing of use in it, if it would take more than
/// `bytes_max`.
pub(crate) fn pack(method: Compression, value: &[u8], bytes_max: usize, packed: &mut Vec<u8>) -> bool {
    packed.clear();
    let Some(room) = bytes_max.checked_sub(FOOTER_BYTES).filter(|_| value.len() <= PACKED_VALUE_MAX) else {
        return false;
    };
    let len = match method {
        Compression::None => None,
        Compression::Lz4 => {
            packed.resize(get_maximum_output_size(value.len()), 0);
            with_contexts(|contexts| {
                let table = contexts.to_lz4.get_or_insert_with(CompressTable::small);
                // A large table would slow down small values.
                if value.len() < usize::from(u16::MAX) && matches!(table, CompressTable::Large(_)) {
                    *table = CompressTable::small();
                }
                compress_into_with_table(value, packed.as_mut_slice(), table).ok()
            })
        }
        Compression::Zstd => {
            packed.reserve(bytes_max);
            with_contexts(|contexts| {
                let context = match &mut contexts.to_zstd {
                    Some(context) => context,
                    none => none.insert(CCtx::try_create()?),
                };
                context.compress(packed, value, ZSTD_LEVEL).ok()
            })
        }
    };
    let Some(len) = len.filter(|len| *len <= room) else { return false };
    packed.truncate(len);
    let footer = value.len() as u32 | u32::from(method.code()) << LENGTH_BITS;
    packed.extend_from_slice(&footer.to_le_bytes());
    true
}

/// What is stored of a compressed value, taken apart.
struct Packed<'a> {
    method: Compression,
    bytes: &'a [u8],
    value_bytes: usize,
}

impl<'a> Packed<'a> {
    fn of(packed: &'a [u8]) -> Result<Packed<'a>, &'static str> {
        let (bytes, footer) = packed.split_last_chunk::<FOOTER_BYTES>().ok_or("it is too short to be compressed")?;
        let footer = u32::from_le_bytes(*footer);
        let value_bytes = (footer & PACKED_VALUE_MAX as u32) as usize;
        let method = Compression::of_code((footer >> LENGTH_BITS) as u8);
        let growth_max = match method {
            Some(Compression::Lz4) => LZ4_GROWTH_MAX,
            Some(Compression::Zstd) => ZSTD_GROWTH_MAX,
            Some(Compression::None) | None => return Err("its method of compression is unknown"),
        };
        if value_bytes / growth_max > bytes.len() {
            return Err("it is longer than what is stored can become");
        }
        Ok(Packed { method: method.unwrap_or_default(), bytes, value_bytes })
    }
}

/// Bytes of the value that is stored so; nothing if no compressed value is.
pub(crate) fn unpacked_bytes(packed: &[u8]) -> Option<u64> {
    Packed::of(packed).ok().map(|packed| packed.value_bytes as u64)
}

/// Decompresses what is stored of a compressed value into `value`, in place of what is there.
///
/// # Errors
/// What is wrong with it; `value` is empty then.
#[doc(hidden)]
pub fn unpack(packed: &[u8], value: &mut Vec<u8>) -> Result<(), &'static str> {
    value.clear();
    let Packed { method, bytes, value_bytes } = Packed::of(packed)?;
    if value.try_reserve_exact(value_bytes).is_err() {
        return Err("there is no memory for its value");
    }
    let len = match method {
        Compression::None => None,
        Compression::Lz4 => {
            value.resize(value_bytes, 0);
            decompress_into(bytes, value).ok()
        }
        Compression::Zstd => with_contexts(|contexts| {
            let context = match &mut contexts.of_zstd {
                Some(context) => context,
                none => none.insert(DCtx::try_create()?),
            };
            context.decompress(value, bytes).ok()
        }),
    };
    if len == Some(value_bytes) {
        return Ok(());
    }
    value.clear();
    Err(if len.is_some() { "its value has another length" } else { "it cannot be decompressed" })
}

/// Bytes of a value that are looked at to guess whether it can be compressed.
const SAMPLE_BYTES: usize = 512;
/// In how many places.
const SAMPLE_PIECES: usize = 8;

/// Whether a value looks as if no method saves anything: its bytes are as evenly spread as random ones. Looks at parts of it.
pub(crate) fn looks_random(value: &[u8]) -> bool {
    if value.len() < SAMPLE_BYTES {
        return false;
    }
    let mut counts = [0u16; 256];
    let piece = SAMPLE_BYTES / SAMPLE_PIECES;
    let step = (value.len() - piece) / (SAMPLE_PIECES - 1);
    for start in (0..SAMPLE_PIECES).map(|number| number * step) {
        value[start..start + piece].iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    }
    let squares: u32 = counts.iter().map(|count| u32::from(*count) * u32::from(*count)).sum();
    squares < RANDOM_SQUARES_MAX
}

/// The sum of the squares of how often each byte occurs in a sample. Of random bytes it is 512 + 512·511/256 = 1534 on average, with a
/// standard deviation of 45; of base64 4600, of JSON more than 9000.
const RANDOM_SQUARES_MAX: u32 = 1800;

#[cfg(test)]
mod tests;
