//! RocksDB's pessimistic `TransactionDB`, from the system's library.
//!
//! Reads of transactions take shared locks, so they are serializable as everybody else's; deadlocks are detected. A scan in a
//! transaction locks each record that it returns; the gaps between them stay open, because the C API has no range locks.
//! Commits are written to the log in groups, with one flush for each. Files are read and written past the page cache, and
//! the memory for caching is divided into two write buffers and the block cache. Tables are distinguished by the first byte of
//! a key.
#![allow(unsafe_code, reason = "a C library is called; `ffi` lists the demands of each call")]

use super::{Setup, engine_error};
use kaml_workloads::Error;
use kaml_workloads::engine::{
    Body, Cause, Counts, Each, Engine, Ranges, Record, Scan, Session, Stop, Table, Transaction,
};
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;
use std::time::Duration;

/// What `<rocksdb/c.h>` declares, as far as it is called here. All objects can be used from any thread, except a transaction.
/// An error completes as a string that is released with `rocksdb_free`.
mod ffi {
    use std::ffi::{c_char, c_double, c_int, c_uchar, c_void};

    macro_rules! opaque {
        ($($name:ident),*) => {$(
            #[repr(C)]
            pub(super) struct $name {
                _private: [u8; 0],
            }
        )*};
    }
    opaque!(Options, TableOptions, Cache, Filter, DbOptions, Db, WriteOptions, ReadOptions);
    opaque!(TxnOptions, Txn, Slice, Batch, FlushOptions, Iterator);

    #[link(name = "rocksdb")]
    unsafe extern "C" {
        pub(super) fn rocksdb_free(pointer: *mut c_void);
        pub(super) fn rocksdb_options_create() -> *mut Options;
        pub(super) fn rocksdb_options_destroy(options: *mut Options);
        pub(super) fn rocksdb_options_set_create_if_missing(options: *mut Options, yes: c_uchar);
        pub(super) fn rocksdb_options_increase_parallelism(options: *mut Options, threads: c_int);
        pub(super) fn rocksdb_options_set_compression(options: *mut Options, kind: c_int);
        pub(super) fn rocksdb_options_set_write_buffer_size(options: *mut Options, bytes: usize);
        pub(super) fn rocksdb_options_set_max_write_buffer_number(options: *mut Options, count: c_int);
        pub(super) fn rocksdb_options_set_use_direct_reads(options: *mut Options, yes: c_uchar);
        pub(super) fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(options: *mut Options, yes: c_uchar);
        pub(super) fn rocksdb_options_set_enable_blob_files(options: *mut Options, yes: c_uchar);
        pub(super) fn rocksdb_options_set_min_blob_size(options: *mut Options, bytes: u64);
        pub(super) fn rocksdb_options_set_enable_blob_gc(options: *mut Options, yes: c_uchar);
        pub(super) fn rocksdb_options_set_blob_cache(options: *mut Options, cache: *mut Cache);
        pub(super) fn rocksdb_options_set_block_based_table_factory(options: *mut Options, table: *mut TableOptions);
        pub(super) fn rocksdb_block_based_options_create() -> *mut TableOptions;
        pub(super) fn rocksdb_block_based_options_destroy(table: *mut TableOptions);
        pub(super) fn rocksdb_block_based_options_set_block_cache(table: *mut TableOptions, cache: *mut Cache);
        pub(super) fn rocksdb_block_based_options_set_filter_policy(table: *mut TableOptions, filter: *mut Filter);
        pub(super) fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: c_double) -> *mut Filter;
        pub(super) fn rocksdb_cache_create_lru(bytes: usize) -> *mut Cache;
        pub(super) fn rocksdb_cache_get_usage(cache: *mut Cache) -> usize;
        pub(super) fn rocksdb_cache_destroy(cache: *mut Cache);
        pub(super) fn rocksdb_transactiondb_options_create() -> *mut DbOptions;
        pub(super) fn rocksdb_transactiondb_options_destroy(options: *mut DbOptions);
        pub(super) fn rocksdb_transactiondb_open(
            options: *const Options,
            db_options: *const DbOptions,
            path: *const c_char,
            error: *mut *mut c_char,
        ) -> *mut Db;
        pub(super) fn rocksdb_transactiondb_close(db: *mut Db);
        pub(super) fn rocksdb_writeoptions_create() -> *mut WriteOptions;
        pub(super) fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, yes: c_uchar);
        pub(super) fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
        pub(super) fn rocksdb_readoptions_create() -> *mut ReadOptions;
        pub(super) fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
        pub(super) fn rocksdb_transaction_options_create() -> *mut TxnOptions;
        pub(super) fn rocksdb_transaction_options_set_deadlock_detect(options: *mut TxnOptions, yes: c_uchar);
        pub(super) fn rocksdb_transaction_options_set_lock_timeout(options: *mut TxnOptions, milliseconds: i64);
        pub(super) fn rocksdb_transaction_options_destroy(options: *mut TxnOptions);
        pub(super) fn rocksdb_transaction_begin(
            db: *mut Db,
            write: *const WriteOptions,
            options: *const TxnOptions,
            old: *mut Txn,
        ) -> *mut Txn;
        pub(super) fn rocksdb_transaction_commit(txn: *mut Txn, error: *mut *mut c_char);
        pub(super) fn rocksdb_transaction_rollback(txn: *mut Txn, error: *mut *mut c_char);
        pub(super) fn rocksdb_transaction_destroy(txn: *mut Txn);
        pub(super) fn rocksdb_transaction_get_pinned_for_update(
            txn: *mut Txn,
            read: *const ReadOptions,
            key: *const c_char,
            key_bytes: usize,
            exclusive: c_uchar,
            error: *mut *mut c_char,
        ) -> *mut Slice;
        pub(super) fn rocksdb_transaction_put(
            txn: *mut Txn,
            key: *const c_char,
            key_bytes: usize,
            value: *const c_char,
            value_bytes: usize,
            error: *mut *mut c_char,
        );
        pub(super) fn rocksdb_transaction_delete(
            txn: *mut Txn,
            key: *const c_char,
            key_bytes: usize,
            error: *mut *mut c_char,
        );
        pub(super) fn rocksdb_transactiondb_get_pinned(
            db: *mut Db,
            read: *const ReadOptions,
            key: *const c_char,
            key_bytes: usize,
            error: *mut *mut c_char,
        ) -> *mut Slice;
        pub(super) fn rocksdb_transactiondb_create_iterator(db: *mut Db, read: *const ReadOptions) -> *mut Iterator;
        pub(super) fn rocksdb_transaction_create_iterator(txn: *mut Txn, read: *const ReadOptions) -> *mut Iterator;
        pub(super) fn rocksdb_iter_destroy(iterator: *mut Iterator);
        pub(super) fn rocksdb_iter_valid(iterator: *const Iterator) -> c_uchar;
        pub(super) fn rocksdb_iter_seek(iterator: *mut Iterator, key: *const c_char, key_bytes: usize);
        pub(super) fn rocksdb_iter_seek_for_prev(iterator: *mut Iterator, key: *const c_char, key_bytes: usize);
        pub(super) fn rocksdb_iter_next(iterator: *mut Iterator);
        pub(super) fn rocksdb_iter_prev(iterator: *mut Iterator);
        pub(super) fn rocksdb_iter_key(iterator: *const Iterator, bytes: *mut usize) -> *const c_char;
        pub(super) fn rocksdb_iter_value(iterator: *const Iterator, bytes: *mut usize) -> *const c_char;
        pub(super) fn rocksdb_iter_get_error(iterator: *const Iterator, error: *mut *mut c_char);
        pub(super) fn rocksdb_pinnableslice_value(slice: *const Slice, bytes: *mut usize) -> *const c_char;
        pub(super) fn rocksdb_pinnableslice_destroy(slice: *mut Slice);
        pub(super) fn rocksdb_transactiondb_put(
            db: *mut Db,
            write: *const WriteOptions,
            key: *const c_char,
            key_bytes: usize,
            value: *const c_char,
            value_bytes: usize,
            error: *mut *mut c_char,
        );
        pub(super) fn rocksdb_writebatch_create() -> *mut Batch;
        pub(super) fn rocksdb_writebatch_put(
            batch: *mut Batch,
            key: *const c_char,
            key_bytes: usize,
            value: *const c_char,
            value_bytes: usize,
        );
        pub(super) fn rocksdb_writebatch_destroy(batch: *mut Batch);
        pub(super) fn rocksdb_transactiondb_write(
            db: *mut Db,
            write: *const WriteOptions,
            batch: *mut Batch,
            error: *mut *mut c_char,
        );
        pub(super) fn rocksdb_flushoptions_create() -> *mut FlushOptions;
        pub(super) fn rocksdb_flushoptions_destroy(options: *mut FlushOptions);
        pub(super) fn rocksdb_transactiondb_flush(db: *mut Db, options: *const FlushOptions, error: *mut *mut c_char);
        pub(super) fn rocksdb_transactiondb_property_int(db: *mut Db, name: *const c_char, value: *mut u64) -> c_int;
    }
}

/// Waiting longer for a lock than this gives a transaction up, as in KAML.
const LOCK_TIMEOUT_MS: i64 = 2000;
/// Each of two write buffers takes at most this share of the memory for caching, and at most this many bytes.
const WRITE_BUFFER_SHARE: u64 = 8;
const WRITE_BUFFER_BYTES_MAX: u64 = 64 << 20;
const BLOOM_BITS: f64 = 10.0;
/// With BlobDB, values from this length on are in blob files.
const BLOB_BYTES_MIN: u64 = 256;
/// Between two looks at compactions that are to end.
const SETTLE_STEP: Duration = Duration::from_millis(20);

/// A database; all its tables are in one.
pub(super) struct Rocksdb {
    db: *mut ffi::Db,
    cache: *mut ffi::Cache,
    read: *mut ffi::ReadOptions,
    write: *mut ffi::WriteOptions,
    transaction: *mut ffi::TxnOptions,
    /// Whether longer values are in files of their own (BlobDB).
    blobs: bool,
}

// SAFETY: a database, a cache and options that are not changed any more can be used from any thread at once.
unsafe impl Sync for Rocksdb {}

/// Calls with a place for an error, and returns it.
fn checked<R>(call: impl FnOnce(*mut *mut c_char) -> R) -> Result<R, String> {
    let mut error = null_mut();
    let answer = call(&raw mut error);
    if error.is_null() {
        return Ok(answer);
    }
    // SAFETY: an error is a string of ours now, released once.
    let text = unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        ffi::rocksdb_free(error.cast());
        text
    };
    Err(text)
}

/// The status is in the text alone.
fn stop(text: String) -> Stop {
    if text.contains("Deadlock") {
        Stop::Again(Cause::Deadlock)
    } else if text.contains("imed out") || text.contains("Timeout") {
        Stop::Again(Cause::Timeout)
    } else if text.contains("Resource busy") {
        Stop::Again(Cause::Conflict)
    } else {
        Stop::failed(text)
    }
}

struct Name([u8; 9]);

impl Name {
    fn new(table: Table, key: u64) -> Name {
        let mut name = [table.0 as u8; 9];
        name[1..].copy_from_slice(&key.to_be_bytes());
        Name(name)
    }

    fn pointer(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

const NAME_BYTES: usize = size_of::<Name>();

/// Shows what a slice has, and releases it; false if there is none.
fn show(slice: *mut ffi::Slice, see: &mut dyn FnMut(&[u8])) -> bool {
    if slice.is_null() {
        return false;
    }
    let mut bytes = 0;
    // SAFETY: the slice is ours; its bytes exist until it is released, which is done once.
    unsafe {
        let start = ffi::rocksdb_pinnableslice_value(slice, &raw mut bytes);
        see(if bytes == 0 { &[] } else { std::slice::from_raw_parts(start.cast(), bytes) });
        ffi::rocksdb_pinnableslice_destroy(slice);
    }
    true
}

/// An iterator over the records of a scan; it is released when it is dropped.
struct Cursor {
    iterator: *mut ffi::Iterator,
    scan: Scan,
}

impl Drop for Cursor {
    fn drop(&mut self) {
        // SAFETY: it is ours, and is released once.
        unsafe { ffi::rocksdb_iter_destroy(self.iterator) }
    }
}

impl Cursor {
    /// At the first record of a scan. The iterator is the cursor's, and what it iterates over lives longer.
    fn new(iterator: *mut ffi::Iterator, scan: Scan) -> Cursor {
        let start = Name::new(scan.table, if scan.reverse { scan.last } else { scan.first });
        // SAFETY: pointer and length are those of the key.
        unsafe {
            match scan.reverse {
                true => ffi::rocksdb_iter_seek_for_prev(iterator, start.pointer(), NAME_BYTES),
                false => ffi::rocksdb_iter_seek(iterator, start.pointer(), NAME_BYTES),
            }
        }
        Cursor { iterator, scan }
    }

    /// The key of the record; none at the end of the scan.
    fn key(&self) -> Result<Option<u64>, Stop> {
        let mut bytes = 0;
        // SAFETY: a valid iterator has a key, whose bytes exist until it moves.
        let name = unsafe {
            if ffi::rocksdb_iter_valid(self.iterator) == 0 {
                return checked(|e| ffi::rocksdb_iter_get_error(self.iterator, e)).map(|()| None).map_err(stop);
            }
            let start = ffi::rocksdb_iter_key(self.iterator, &raw mut bytes);
            std::slice::from_raw_parts(start.cast::<u8>(), bytes)
        };
        let Some((table, Some(key))) = name.split_first().map(|(table, key)| (*table, key.first_chunk())) else {
            return Err(Stop::wrong("a key is not of 9 bytes"));
        };
        let key = u64::from_be_bytes(*key);
        let is_inside = table == self.scan.table.0 as u8 && (self.scan.first..=self.scan.last).contains(&key);
        Ok(is_inside.then_some(key))
    }

    /// The value of the record that has the key.
    fn value(&self) -> &[u8] {
        let mut bytes = 0;
        // SAFETY: the iterator is at a record, and its bytes exist until the cursor moves, which takes it exclusively.
        unsafe {
            let start = ffi::rocksdb_iter_value(self.iterator, &raw mut bytes);
            if bytes == 0 { &[] } else { std::slice::from_raw_parts(start.cast(), bytes) }
        }
    }

    fn advance(&mut self) {
        // SAFETY: the iterator is at a record.
        unsafe {
            match self.scan.reverse {
                true => ffi::rocksdb_iter_prev(self.iterator),
                false => ffi::rocksdb_iter_next(self.iterator),
            }
        }
    }
}

impl Rocksdb {
    pub(super) fn create(setup: &Setup, blobs: bool) -> Result<Rocksdb, Error> {
        let buffer = (setup.cache_bytes / WRITE_BUFFER_SHARE).min(WRITE_BUFFER_BYTES_MAX) as usize;
        let path = CString::new(setup.dir.as_os_str().as_encoded_bytes()).map_err(engine_error)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // SAFETY: all objects are made here, and released once, after the database has taken what it needs of them.
        unsafe {
            let cache = ffi::rocksdb_cache_create_lru(setup.cache_bytes as usize - 2 * buffer);
            let table = ffi::rocksdb_block_based_options_create();
            ffi::rocksdb_block_based_options_set_block_cache(table, cache);
            let filter = ffi::rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS);
            ffi::rocksdb_block_based_options_set_filter_policy(table, filter); // it is the table's now
            let options = ffi::rocksdb_options_create();
            ffi::rocksdb_options_set_create_if_missing(options, 1);
            ffi::rocksdb_options_increase_parallelism(options, threads as i32);
            ffi::rocksdb_options_set_compression(options, 0);
            ffi::rocksdb_options_set_write_buffer_size(options, buffer);
            ffi::rocksdb_options_set_max_write_buffer_number(options, 2);
            ffi::rocksdb_options_set_use_direct_reads(options, 1);
            ffi::rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
            ffi::rocksdb_options_set_block_based_table_factory(options, table);
            if blobs {
                ffi::rocksdb_options_set_enable_blob_files(options, 1);
                ffi::rocksdb_options_set_min_blob_size(options, BLOB_BYTES_MIN);
                ffi::rocksdb_options_set_enable_blob_gc(options, 1);
                ffi::rocksdb_options_set_blob_cache(options, cache); // blocks and blobs share the memory
            }
            let db_options = ffi::rocksdb_transactiondb_options_create();
            let opened = checked(|e| ffi::rocksdb_transactiondb_open(options, db_options, path.as_ptr(), e));
            ffi::rocksdb_transactiondb_options_destroy(db_options);
            ffi::rocksdb_options_destroy(options);
            ffi::rocksdb_block_based_options_destroy(table);
            let db = match opened {
                Ok(db) => db,
                Err(text) => {
                    ffi::rocksdb_cache_destroy(cache);
                    return Err(engine_error(text));
                }
            };
            let write = ffi::rocksdb_writeoptions_create();
            ffi::rocksdb_writeoptions_set_sync(write, 1);
            let transaction = ffi::rocksdb_transaction_options_create();
            ffi::rocksdb_transaction_options_set_deadlock_detect(transaction, 1);
            ffi::rocksdb_transaction_options_set_lock_timeout(transaction, LOCK_TIMEOUT_MS);
            Ok(Rocksdb { db, cache, read: ffi::rocksdb_readoptions_create(), write, transaction, blobs })
        }
    }

    fn property(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: the database is open, and the number has a place.
        unsafe { ffi::rocksdb_transactiondb_property_int(self.db, name.as_ptr(), &raw mut value) };
        value
    }
}

impl Drop for Rocksdb {
    fn drop(&mut self) {
        // SAFETY: sessions borrow the database, so nobody uses any of these; each is released once.
        unsafe {
            ffi::rocksdb_transactiondb_close(self.db);
            ffi::rocksdb_transaction_options_destroy(self.transaction);
            ffi::rocksdb_writeoptions_destroy(self.write);
            ffi::rocksdb_readoptions_destroy(self.read);
            ffi::rocksdb_cache_destroy(self.cache);
        }
    }
}

impl Engine for Rocksdb {
    fn describe(&self) -> String {
        let values = if self.blobs { ", BlobDB" } else { "" };
        format!("RocksDB TransactionDB: group commit, direct I/O, block cache and write buffers{values}")
    }

    fn ranges(&self) -> Ranges {
        Ranges::Records
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        Ok(Box::new(RocksdbSession { rocksdb: self, txn: null_mut() }))
    }

    fn settle(&self) -> Result<(), Error> {
        // SAFETY: the database is open; the options are released once.
        unsafe {
            let options = ffi::rocksdb_flushoptions_create();
            let flushed = checked(|e| ffi::rocksdb_transactiondb_flush(self.db, options, e));
            ffi::rocksdb_flushoptions_destroy(options);
            flushed.map_err(engine_error)?;
        }
        let busy = [
            c"rocksdb.compaction-pending",
            c"rocksdb.num-running-compactions",
            c"rocksdb.num-running-flushes",
            c"rocksdb.mem-table-flush-pending",
        ];
        while busy.iter().any(|name| self.property(name) > 0) {
            std::thread::sleep(SETTLE_STEP);
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        // SAFETY: the cache lives as long as the database.
        let used = unsafe { ffi::rocksdb_cache_get_usage(self.cache) } as u64;
        let buffers = self.property(c"rocksdb.size-all-mem-tables");
        Counts { cache_misses: None, cache_bytes: Some(used + buffers) }
    }
}

/// One thread's transaction, which is used again for the next.
struct RocksdbSession<'a> {
    rocksdb: &'a Rocksdb,
    txn: *mut ffi::Txn,
}

impl Drop for RocksdbSession<'_> {
    fn drop(&mut self) {
        if !self.txn.is_null() {
            // SAFETY: it is this session's, and is released once; what is not committed is rolled back.
            unsafe { ffi::rocksdb_transaction_destroy(self.txn) }
        }
    }
}

impl Session for RocksdbSession<'_> {
    fn get(&mut self, table: Table, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let (name, r) = (Name::new(table, key), self.rocksdb);
        // SAFETY: the pointer and length are those of the key.
        let get = |e| unsafe { ffi::rocksdb_transactiondb_get_pinned(r.db, r.read, name.pointer(), NAME_BYTES, e) };
        Ok(show(checked(get).map_err(stop)?, see))
    }

    fn scan(&mut self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        let r = self.rocksdb;
        // SAFETY: the database lives longer than the iterator.
        let iterator = unsafe { ffi::rocksdb_transactiondb_create_iterator(r.db, r.read) };
        let (mut cursor, mut count) = (Cursor::new(iterator, scan), 0);
        while count < scan.limit
            && let Some(key) = cursor.key()?
        {
            each(key, cursor.value());
            count += 1;
            cursor.advance();
        }
        Ok(count)
    }

    fn put(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        let (name, r, start) = (Name::new(table, key), self.rocksdb, value.as_ptr().cast());
        // SAFETY: pointers and lengths are those of key and value.
        checked(|e| unsafe {
            ffi::rocksdb_transactiondb_put(r.db, r.write, name.pointer(), NAME_BYTES, start, value.len(), e);
        })
        .map_err(stop)
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<(), Stop> {
        let r = self.rocksdb;
        // SAFETY: the last transaction of this session, if there was one, has ended.
        self.txn = unsafe { ffi::rocksdb_transaction_begin(r.db, r.write, r.transaction, self.txn) };
        let txn = self.txn;
        let done = body(&mut RocksdbTransaction { txn, read: r.read })
            // SAFETY: the transaction is this session's.
            .and_then(|()| checked(|e| unsafe { ffi::rocksdb_transaction_commit(txn, e) }).map_err(stop));
        if done.is_err() {
            // SAFETY: the same.
            checked(|e| unsafe { ffi::rocksdb_transaction_rollback(txn, e) }).map_err(stop)?;
        }
        done
    }

    fn load(&mut self, table: Table, records: &[Record]) -> Result<(), Stop> {
        let r = self.rocksdb;
        // SAFETY: pointers and lengths are those of keys and values; the batch is released once.
        unsafe {
            let batch = ffi::rocksdb_writebatch_create();
            for (key, value) in records {
                let name = Name::new(table, *key);
                let (start, bytes) = (value.as_ptr().cast(), value.len());
                ffi::rocksdb_writebatch_put(batch, name.pointer(), NAME_BYTES, start, bytes);
            }
            let written = checked(|e| ffi::rocksdb_transactiondb_write(r.db, r.write, batch, e));
            ffi::rocksdb_writebatch_destroy(batch);
            written.map_err(stop)
        }
    }
}

struct RocksdbTransaction {
    txn: *mut ffi::Txn,
    read: *const ffi::ReadOptions,
}

impl RocksdbTransaction {
    fn get(&mut self, table: Table, key: u64, value: &mut Vec<u8>, exclusive: bool) -> Result<bool, Stop> {
        let (name, exclusive) = (Name::new(table, key), u8::from(exclusive));
        // SAFETY: pointer and length are those of the key, and the transaction in progress.
        let get = |e| unsafe {
            let (key, bytes) = (name.pointer(), NAME_BYTES);
            ffi::rocksdb_transaction_get_pinned_for_update(self.txn, self.read, key, bytes, exclusive, e)
        };
        Ok(show(checked(get).map_err(stop)?, &mut |found| found.clone_into(value)))
    }
}

impl Transaction for RocksdbTransaction {
    fn read(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        self.get(table, key, value, false)
    }

    fn read_for_update(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        self.get(table, key, value, true)
    }

    /// The iterator shows a snapshot, so each record is read again under its lock; one that was deleted is left out.
    fn scan(&mut self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        // SAFETY: the transaction lives longer than the iterator.
        let iterator = unsafe { ffi::rocksdb_transaction_create_iterator(self.txn, self.read) };
        let (mut cursor, mut count, mut value) = (Cursor::new(iterator, scan), 0, Vec::new());
        while count < scan.limit
            && let Some(key) = cursor.key()?
        {
            if self.get(scan.table, key, &mut value, scan.for_update)? {
                each(key, &value);
                count += 1;
            }
            cursor.advance();
        }
        Ok(count)
    }

    fn update(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        let (name, start) = (Name::new(table, key), value.as_ptr().cast());
        // SAFETY: key and value are as long as they say, and the transaction in progress.
        checked(|e| unsafe {
            ffi::rocksdb_transaction_put(self.txn, name.pointer(), NAME_BYTES, start, value.len(), e);
        })
        .map_err(stop)
    }

    fn insert(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.update(table, key, value)
    }

    fn delete(&mut self, table: Table, key: u64) -> Result<(), Stop> {
        let name = Name::new(table, key);
        // SAFETY: pointer and length are those of the key, and the transaction in progress.
        checked(|e| unsafe { ffi::rocksdb_transaction_delete(self.txn, name.pointer(), NAME_BYTES, e) }).map_err(stop)
    }
}
