//! Compressing the values of a Put, on the caller's thread and before any lock is taken.
//!
//! Lives here:       the compressed values of a Put, until it is staged.
//! Lives elsewhere:  whether and how a value is compressed (`kaml_device::Reader::pack`), the Put itself (`driver`, `queue`).
//! Implements:       docs/ARCHITECTURE.md "Compression".

use super::Shared;
use kaml_device::{Body, Op};
use std::cell::RefCell;
use std::ops::Range;

/// The values of a Put that are stored compressed.
pub(crate) struct Packed {
    bytes: Vec<u8>,
    /// Of each operation: where its compressed value lies, and the CRC32C of that.
    places: Vec<Option<(Range<usize>, u32)>>,
}

thread_local! {
    /// One compressed value.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a thread keeps of it.
const SCRATCH_BYTES_MAX: usize = 1 << 20;

impl Shared {
    /// Compresses the values of operations whose namespaces request that, where it saves room. Nothing if it does nowhere.
    #[inline]
    pub(crate) fn pack(&self, ops: &[Op<'_>]) -> Option<Packed> {
        if self.reader.compresses() { self.pack_values(ops) } else { None }
    }

    fn pack_values(&self, ops: &[Op<'_>]) -> Option<Packed> {
        let mut packed: Option<Packed> = None;
        // A thread that ends has no scratch any more.
        let mut scratch = SCRATCH.try_with(RefCell::take).unwrap_or_default();
        for (number, op) in ops.iter().enumerate() {
            let Body::Value { value, .. } = op.body else { continue };
            if !self.reader.pack(op, value, &mut scratch) {
                continue;
            }
            let Packed { bytes, places } =
                packed.get_or_insert_with(|| Packed { bytes: Vec::new(), places: Vec::with_capacity(ops.len()) });
            places.resize(number, None);
            let start = bytes.len();
            bytes.extend_from_slice(&scratch);
            places.push(Some((start..bytes.len(), kaml_crc::crc32c(&scratch))));
        }
        if scratch.capacity() <= SCRATCH_BYTES_MAX {
            let _ = SCRATCH.try_with(|kept| kept.replace(scratch));
        }
        packed
    }
}

impl Packed {
    /// The operations with their compressed values in place of the others.
    pub(crate) fn ops<'a>(&'a self, ops: &[Op<'a>]) -> Vec<Op<'a>> {
        let places = self.places.iter().chain(std::iter::repeat(&None));
        let stored = |(op, place): (&Op<'a>, &Option<(Range<usize>, u32)>)| match place {
            Some((range, crc32c)) => {
                Op { body: Body::Packed { value: &self.bytes[range.clone()], crc32c: *crc32c }, ..*op }
            }
            None => *op,
        };
        ops.iter().zip(places).map(stored).collect()
    }
}
