//! Rows of the TPC workloads as values: a fixed struct, then filler up to the size that the table is given.
//!
//! Lives here:       making, reading and changing them.
//! Lives elsewhere:  the structs, next to their workloads.

use crate::Error;
use crate::engine::{Session, Stop, Table, Transaction, must_read};
use crate::keys::Rng;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a row must be.
pub(crate) trait Row: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {}
impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned> Row for T {}

/// A row in at least `bytes` bytes. The filler does not compress, so no engine gains by it.
pub(crate) fn make(row: &impl Row, bytes: usize, seed: u64) -> Vec<u8> {
    let row = row.as_bytes();
    let mut value = Vec::with_capacity(row.len().max(bytes) + 8);
    value.extend_from_slice(row);
    let mut rng = Rng::new(seed);
    while value.len() < bytes {
        value.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    value.truncate(row.len().max(bytes));
    value
}

/// The row in a value.
pub(crate) fn read<T: Row>(value: &[u8]) -> Result<&T, Stop> {
    T::ref_from_prefix(value).map(|(row, _)| row).map_err(|_| too_short::<T>(value))
}

/// The row in a value, to be changed there.
pub(crate) fn change<T: Row>(value: &mut [u8]) -> Result<&mut T, Stop> {
    let bytes = value.len();
    match T::mut_from_prefix(value) {
        Ok((row, _)) => Ok(row),
        Err(_) => Err(Stop::wrong(format!("a row of {bytes} bytes where {} are needed", size_of::<T>()))),
    }
}

fn too_short<T>(value: &[u8]) -> Stop {
    Stop::wrong(format!("a row of {} bytes where {} are needed", value.len(), size_of::<T>()))
}

/// Reads a row outside transactions; none if it does not exist.
pub(crate) fn find<T: Row + Copy>(session: &mut dyn Session, table: Table, key: u64) -> Result<Option<T>, Error> {
    let mut row = None;
    session.get(table, key, &mut |value| row = Some(read::<T>(value).copied())).map_err(Stop::into_error)?;
    row.transpose().map_err(Stop::into_error)
}

/// Reads a row outside transactions that must exist.
pub(crate) fn get<T: Row + Copy>(session: &mut dyn Session, table: Table, key: u64) -> Result<T, Error> {
    find(session, table, key)?.ok_or_else(|| Error::Wrong(format!("table {}: row {key} is missing", table.0)))
}

/// Reads a row that must exist, changes it and writes it back; returns what `with` does.
pub(crate) fn update<T: Row, R>(
    txn: &mut dyn Transaction,
    table: Table,
    key: u64,
    value: &mut Vec<u8>,
    with: impl FnOnce(&mut T) -> R,
) -> Result<R, Stop> {
    must_read(txn, table, key, value, true)?;
    let answer = with(change::<T>(value)?);
    txn.update(table, key, value)?;
    Ok(answer)
}
