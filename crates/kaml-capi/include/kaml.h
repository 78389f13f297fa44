// kaml.h: the C API of libkaml, a key-value SSD in software.
//
// A device keeps records of 1 to 16 byte keys, or 1 to 1024, and values of any bytes in namespaces, on a file or block
// device. Namespaces of KAML_KEYS_ORDERED are read by ranges of keys, with kaml_range_open. A Put of any number of
// records is atomic, and durable when it returns. kaml_snapshot_open opens a snapshot of all records. A store over a
// device adds a cache and serializable transactions. docs/c-api.md has the whole story; examples/first.c is the shortest
// program.
//
// Every call returns KAML_OK or the reason why not; kaml_last_error has the message of this thread's last failure.
//
// Ownership. What you pass in stays yours, is only read, and is not kept: it may be gone when the call returns. What is
// stored through `void **value` is yours, and you free it with kaml_free, from any thread, even after the device is
// closed. Strings that the library returns are not freed. Handles are numbers, not pointers: copy them as you like; one
// that was closed is refused, not followed.
//
// Threads. Everything can be called from any thread at once. A transaction is used by one thread at a time; more than
// one wait for each other. Handles do not survive fork.
//
// Pointers. Null and misaligned pointers are refused with KAML_BAD_ARGUMENT, except where a call allows them to be
// null. Nothing may change what a call reads while it runs. The place of a result is set only if KAML_OK is
// returned, unless a call states otherwise.


#ifndef KAML_H
#define KAML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KAML_VERSION "0.1.0"

// What to begin with. All that is 0 is the default.
#define KAML_CREATE_OPTIONS_INIT { sizeof(kaml_create_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define KAML_OPEN_OPTIONS_INIT { sizeof(kaml_open_options), 0, 0, 0, 0 }
#define KAML_NAMESPACE_OPTIONS_INIT { sizeof(kaml_namespace_options), 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define KAML_STORE_OPTIONS_INIT { sizeof(kaml_store_options), 0, 0, 0, 0, 0, 0, 0, NULL }
#define KAML_RETENTION_INIT { sizeof(kaml_retention), 0, 0, 1, 0, 0 }
#define KAML_CURSOR_INIT { 0, { 0 } }
#define KAML_DEVICE_INFO_INIT { sizeof(kaml_device_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }, { 0 } }
#define KAML_DEVICE_STATISTICS_INIT { sizeof(kaml_device_statistics), \
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
    { 0, 0, 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0, 0, 0 } }
#define KAML_DEVICE_SNAPSHOT_USAGE_INIT { sizeof(kaml_device_snapshot_usage), 0, 0, 0, 0, 0 }
#define KAML_BACKUP_REPORT_INIT { sizeof(kaml_backup_report), 0, 0, 0, 0, 0, 0, 0 }
#define KAML_CHECK_REPORT_INIT { sizeof(kaml_check_report), 0, 0, 0, 0, 0 }


// As the device was created; `KAML_DURABLE_POWER` when creating.
#define KAML_DURABLE_DEFAULT 0

// What is durable survives the loss of power.
#define KAML_DURABLE_POWER 1

// What is durable survives the end of the process, but not the loss of power; much faster.
#define KAML_DURABLE_PROCESS 2

// Every key with its address in memory, 10 to 30 bytes for each.
#define KAML_INDEX_MEMORY 0

// About two bytes of memory for each stored record. For keys of at most 16 bytes; without order, times to live, compression and counters.
#define KAML_INDEX_FLASH 1

// Keys of 1 to 16 bytes.
#define KAML_KEYS_BYTES 0

// Keys of exactly 8 bytes: big-endian integers (`kaml_key_u64`). They take less memory.
#define KAML_KEYS_U64 1

// Keys of 1 to 1024 bytes, in no order.
#define KAML_KEYS_ANY 2

// Keys of 1 to 1024 bytes, in their order.
#define KAML_KEYS_ORDERED 3

// Values are stored as they are.
#define KAML_COMPRESSION_NONE 0

// Values are compressed with LZ4 where that saves room.
#define KAML_COMPRESSION_LZ4 1

// Values are compressed with Zstandard where that saves room.
#define KAML_COMPRESSION_ZSTD 2

// A plain put is durable when it returns.
#define KAML_WRITE_THROUGH 0

// A plain put is durable at the next `kaml_store_flush`.
#define KAML_WRITE_BACK 1

// The longest name of a namespace, with the zero byte that ends it.
#define KAML_NAME_BYTES 256

// The identity of a device, in hexadecimal digits, with the zero byte that ends it.
#define KAML_UUID_BYTES 33

// The longest description of a device, with the zero byte that ends it.
#define KAML_DESCRIPTION_BYTES 1024

// Store, whether the key exists or not.
#define KAML_PUT 0

// Store a key that does not exist; else nothing of the batch is stored.
#define KAML_PUT_IF_ABSENT 1

// Store a key that exists; else nothing of the batch is stored.
#define KAML_PUT_IF_PRESENT 2

// Delete, whether the key exists or not. The value is not looked at.
#define KAML_PUT_DELETE 3

// Delete a key that exists; else nothing of the batch is stored. The value is not looked at.
#define KAML_PUT_DELETE_IF_PRESENT 4

// The longest key of a namespace of `KAML_KEYS_BYTES`; others take up to `KAML_LONG_KEY_BYTES_MAX`.
#define KAML_KEY_BYTES_MAX 16

// From the end of the range downwards.
#define KAML_RANGE_REVERSE 1

// Keys without their values: no value is read, and `value` is null.
#define KAML_RANGE_KEYS_ONLY 2

// The range does not contain its bound `from`. Without this flag it does.
#define KAML_RANGE_FROM_EXCLUDED 4

// The range contains its bound `to`. Without this flag it does not.
#define KAML_RANGE_TO_INCLUDED 8

// The longest key of a namespace of `KAML_KEYS_ANY` or `KAML_KEYS_ORDERED`, in bytes.
#define KAML_LONG_KEY_BYTES_MAX 1024

// Add `number` to a counter. A key that does not exist counts as 0.
#define KAML_ADD 16

// The larger of a counter and `number`, which is the result if the key does not exist.
#define KAML_MAX 17

// The smaller of a counter and `number`, which is the result if the key does not exist.
#define KAML_MIN 18

// Store nothing, and let the whole batch fail with `KAML_VALUE_DIFFERS` unless the key had this value before the batch.
#define KAML_EXPECT 19

// The same unless the key did not exist. The value is not looked at.
#define KAML_EXPECT_ABSENT 20

// A time to live, or a time, that never comes.
#define KAML_NEVER UINT64_MAX

// A namespace exists; `key` is its name. The stream begins with one for each namespace, and has one when a namespace is created or changed.
#define KAML_CHANGE_NAMESPACE 1

// A namespace was deleted; `key` is its name.
#define KAML_CHANGE_NAMESPACE_DELETED 2

// A record was stored, or in a namespace of blocks a unit.
#define KAML_CHANGE_PUT 3

// A key was deleted, whether it existed or not.
#define KAML_CHANGE_DELETE 4

// The keys from `key` to `value` were deleted; a null one means no bound. `flags` are those of `kaml_range_open`.
#define KAML_CHANGE_DELETE_RANGE 5

// A version was stored; `value` is null if it states that the key is deleted.
#define KAML_CHANGE_VERSION 6

// A command on the user versions of a namespace; `command` is what it does.
#define KAML_CHANGE_VERSION_COMMAND 7

// A snapshot was taken.
#define KAML_COMMAND_SNAPSHOT 1

// The namespace was returned to its state in `snapshot`.
#define KAML_COMMAND_ROLL_BACK 2

// `snapshot` was forgotten.
#define KAML_COMMAND_FORGET 3

// `snapshot` and all before it were forgotten.
#define KAML_COMMAND_FORGET_THROUGH 4

// Bytes of a position.
#define KAML_POSITION_BYTES 32

// What every call returns. Numbers keep their meaning in later versions; later versions may add some.
typedef enum kaml_status {
    // It worked.
    KAML_OK = 0,
    // No record has that key.
    KAML_NOT_FOUND = 1,
    // A record has that key already.
    KAML_EXISTS = 2,
    // The record has another value than the expected one, or does not exist.
    KAML_VALUE_DIFFERS = 3,
    // The transaction waited for others that waited for it. It was aborted; run it again.
    KAML_DEADLOCK = 10,
    // A lock was not granted in time. The transaction was aborted; run it again.
    KAML_LOCK_TIMEOUT = 11,
    // What the transaction read did not become durable. It was aborted; run it again.
    KAML_DEPENDENCY_LOST = 12,
    // With a durability delay: commits that had returned could not be stored and are undone. Nothing is committed before
    // `kaml_store_acknowledge_lost`.
    KAML_COMMITS_LOST = 13,
    // A null or misaligned pointer, an option or a length that makes no sense.
    KAML_BAD_ARGUMENT = 20,
    // Not a handle, one of another kind, or one that was closed or freed.
    KAML_BAD_HANDLE = 21,
    // The state of the transaction does not allow the call.
    KAML_BAD_STATE = 22,
    // In use: a handle by another thread, a device by a store, a store by transactions.
    KAML_IN_USE = 23,
    // The namespace does not take keys of this length.
    KAML_BAD_KEY = 24,
    // A value above the limit of the device.
    KAML_VALUE_TOO_LARGE = 25,
    // More than one Put takes.
    KAML_BATCH_TOO_LARGE = 26,
    // The value is longer than the buffer; its length was returned.
    KAML_BUFFER_TOO_SMALL = 27,
    // No namespace has that name or id.
    KAML_UNKNOWN_NAMESPACE = 28,
    // A namespace has that name already.
    KAML_NAMESPACE_EXISTS = 29,
    // A name that a namespace cannot have.
    KAML_BAD_NAME = 30,
    // Too many namespaces, transactions or handles.
    KAML_TOO_MANY = 31,
    // A cache too small to work.
    KAML_CACHE_TOO_SMALL = 32,
    // The system refused memory or a thread.
    KAML_NO_RESOURCES = 33,
    // No snapshot has that number, or the key has fewer versions.
    KAML_NO_VERSION = 34,
    // A callback of the caller requested the end.
    KAML_CANCELLED = 35,
    // A snapshot, or an iterator, has expired: what it keeps of overwritten records was in the way. Open another one.
    KAML_SNAPSHOT_TOO_OLD = 36,
    // The device is full; delete something first.
    KAML_FULL = 40,
    // The file system below the device is full.
    KAML_NO_SPACE = 41,
    // The device is open for reading only.
    KAML_READ_ONLY = 42,
    // A write failed earlier: nothing is accepted until the device is opened again.
    KAML_STOPPED = 44,
    // Stored bytes do not match their checksum.
    KAML_CORRUPT = 45,
    // The system failed to read or write.
    KAML_IO = 46,
    // There is no KAML device.
    KAML_NOT_A_DEVICE = 50,
    // Created by a later version of this software.
    KAML_NEWER_VERSION = 51,
    // Open in another process, or twice in this one.
    KAML_LOCKED = 52,
    // Something exists already, and `force` was not set.
    KAML_NOT_EMPTY = 53,
    // The file, or the directory for a new file, does not exist.
    KAML_NO_FILE = 54,
    // The system does not allow this user to read, write or create the file.
    KAML_NO_PERMISSION = 55,
    // An error in this library; please report it with its message.
    KAML_INTERNAL = 99,
} kaml_status;

// How a device is created. Begin with `KAML_CREATE_OPTIONS_INIT`; 0 is the default of every field.
typedef struct kaml_create_options {
    // Filled in by `KAML_CREATE_OPTIONS_INIT`.
    size_t struct_size;
    // `KAML_DURABLE_...`.
    uint32_t durability;
    // 1: format over what exists.
    uint32_t force;
    // 1: write every block once now, so later puts are a quarter faster from the start.
    uint32_t prewrite;
    // Dies, which is the number of logs.
    uint32_t die_count;
    // Data bytes of an erase block.
    uint64_t block_bytes;
    // Bytes of the commit ring.
    uint64_t ring_bytes;
    // Bytes of a chunk.
    uint32_t chunk_bytes;
    // 1: the file grows by itself when it runs low on space, as far as its file system lets it; `capacity_bytes` is its first size, from which the
    // largest value and the largest Put follow.
    uint32_t grows;
    // With `grows`: the file grows to so many bytes at most; 0: as far as its file system lets it.
    uint64_t grow_up_to_bytes;
} kaml_create_options;

// A device: a number, copied as you like. Zeros are never open.
typedef struct kaml_device {
    // Private to the library.
    uint64_t id;
} kaml_device;

// How a device is opened. Begin with `KAML_OPEN_OPTIONS_INIT`; 0 is the default of every field.
typedef struct kaml_open_options {
    // Filled in by `KAML_OPEN_OPTIONS_INIT`.
    size_t struct_size;
    // `KAML_DURABLE_...`.
    uint32_t durability;
    // 1: change nothing, and share the device with other readers.
    uint32_t read_only;
    // 1: do without io_uring.
    uint32_t no_io_uring;
    // 1: go through the page cache.
    uint32_t no_direct;
} kaml_open_options;

// What a namespace is. Begin with `KAML_NAMESPACE_OPTIONS_INIT`; 0 is the default of every field.
typedef struct kaml_namespace_options {
    // Filled in by `KAML_NAMESPACE_OPTIONS_INIT`.
    size_t struct_size;
    // `KAML_KEYS_...`.
    uint32_t keys;
    // How many `logs` there are; 0: all logs of the device.
    uint32_t log_count;
    // The logs it appends to.
    const uint32_t *logs;
    // 1: it keeps every version of every record.
    uint32_t versioned;
    // `KAML_INDEX_...`: where its index is. Not of a versioned namespace.
    uint32_t index_place;
    // Of a versioned namespace: bytes of its page buffer, memory and part of the commit ring.
    uint64_t version_buffer_bytes;
    // For a versioned namespace: 1: old versions are dropped when space runs low, except those that the fields below keep
    // or snapshots see. 0: nothing is ever dropped by itself.
    uint32_t merge_when_low;
    // Number of the newest versions of each key that are kept then; 0 is 1.
    uint32_t keep_last;
    // Everything put in this many nanoseconds before is kept then; 0: no such rule.
    uint64_t keep_for_ns;
    // 1: the newest version of each key among those that were put around the same time is kept then.
    uint32_t keep_internal;
    // `KAML_COMPRESSION_...`. Not of a versioned namespace.
    uint32_t compression;
    // Records expire so many milliseconds after they are put, unless a put requests something else; 0: they do not. Not of a versioned namespace.
    uint64_t time_to_live_ms;
} kaml_namespace_options;

// A namespace of a device; never given to another one.
typedef uint32_t kaml_namespace_id;

// A namespace, as a listing reports it.
typedef struct kaml_namespace_info {
    // Records that the device has in it, or versions of all records.
    uint64_t record_count;
    // Its id.
    kaml_namespace_id namespace_id;
    // `KAML_KEYS_...`.
    uint32_t keys;
    // 1: it keeps every version of every record, or has its index on flash.
    uint32_t versioned;
    // 1: it holds logical blocks, not records.
    uint32_t blocks;
    // Its name.
    char name[KAML_NAME_BYTES];
} kaml_namespace_info;

// What a device is. Begin with `KAML_DEVICE_INFO_INIT`.
typedef struct kaml_device_info {
    // Filled in by `KAML_DEVICE_INFO_INIT`.
    size_t struct_size;
    // Bytes of all pages.
    uint64_t flash_bytes;
    // Data bytes of an erase block.
    uint64_t block_bytes;
    // Bytes of the commit ring.
    uint64_t ring_bytes;
    // Erase blocks.
    uint32_t block_count;
    // Channels.
    uint32_t channel_count;
    // Dies of all channels, which is the number of logs.
    uint32_t die_count;
    // Bytes of a page.
    uint32_t page_bytes;
    // Bytes of a chunk; records take whole chunks.
    uint32_t chunk_bytes;
    // Bytes of the smallest durable write.
    uint32_t sector_bytes;
    // `KAML_DURABLE_POWER` or `KAML_DURABLE_PROCESS`, as it was opened.
    uint32_t durability;
    // 1: the last close was clean.
    uint32_t was_clean;
    // Journal entries that were replayed when it was opened.
    uint64_t replayed_journal_entries;
    // Ring records that were replayed when it was opened.
    uint64_t replayed_ring_records;
    // Its identity: 32 hexadecimal digits.
    char uuid[KAML_UUID_BYTES];
    // A description of the medium, with its path and any fallback, such as missing io_uring; truncated if it is longer.
    char description[KAML_DESCRIPTION_BYTES];
} kaml_device_info;

// Latencies of one kind of command since the device was opened, in nanoseconds, to two digits; all 0 if there was none.
typedef struct kaml_latency {
    // Commands.
    uint64_t count;
    // Mean.
    double mean_ns;
    // Median.
    uint64_t p50_ns;
    // 90th percentile.
    uint64_t p90_ns;
    // 99th percentile.
    uint64_t p99_ns;
    // 99.9th percentile.
    uint64_t p999_ns;
    // Longest.
    uint64_t max_ns;
} kaml_latency;

// The state of a device, and counts since it was opened. Begin with `KAML_DEVICE_STATISTICS_INIT`.
typedef struct kaml_device_statistics {
    // Filled in by `KAML_DEVICE_STATISTICS_INIT`.
    size_t struct_size;
    // Bytes that may be live: records in whole chunks.
    uint64_t capacity_bytes;
    // Bytes of them that are: records and versions that are kept.
    uint64_t live_bytes;
    // Bytes that may still become live.
    uint64_t free_bytes;
    // Bytes of memory of all loaded indexes.
    uint64_t index_bytes;
    // Bytes of memory of frames and write buffers, at most.
    uint64_t buffer_bytes_max;
    // Bytes of values that were put.
    uint64_t host_bytes;
    // Bytes of records that were put, in whole chunks, headers included.
    uint64_t record_bytes;
    // Bytes of records that garbage collection moved, in whole chunks.
    uint64_t relocated_bytes;
    // Bytes left empty at the end of program units and blocks.
    uint64_t padded_bytes;
    // Bytes written to the commit ring.
    uint64_t ring_bytes;
    // Bytes programmed into pages, metadata included.
    uint64_t page_bytes;
    // Bytes programmed into OOB areas.
    uint64_t oob_bytes;
    // Bytes of journal, snapshots of indexes and roots.
    uint64_t metadata_bytes;
    // Bytes read from the medium for Gets.
    uint64_t read_bytes;
    // Reads of the medium for Gets.
    uint64_t read_count;
    // Values put.
    uint64_t put_count;
    // Deletes.
    uint64_t delete_count;
    // Gets that have completed.
    uint64_t get_count;
    // Blocks erased.
    uint64_t erase_count;
    // Programs that failed.
    uint64_t program_failures;
    // Damaged records that garbage collection found.
    uint64_t damaged_records;
    // Nanoseconds that opening took.
    uint64_t open_ns;
    // `page_bytes` divided by `record_bytes`; 0 before the first record.
    double write_amplification;
    // Erases of a block since the device was created, the mean of all blocks.
    double erase_mean;
    // Of the block with the fewest.
    uint32_t erase_min;
    // Of the block with the most.
    uint32_t erase_max;
    // Erase blocks.
    uint32_t block_count;
    // Blocks that are free or about to be.
    uint32_t free_blocks;
    // Blocks that are never used again.
    uint32_t bad_blocks;
    // 1: a failed write stopped the device: it accepts no more changes (`KAML_STOPPED`).
    uint32_t stopped;
    // Of Puts and deletes, one for each batch.
    struct kaml_latency put_latency;
    // Of Gets.
    struct kaml_latency get_latency;
} kaml_device_statistics;

// Called during a check: with each problem, as a sentence that is valid until the callback returns, and with a null
// `problem` for progress in blocks (`block_count` is 0 before they are counted). Return 0 to continue; anything else ends
// the check. It runs on the thread that called `kaml_check` and can make any call. It has to return: no exception and no
// `longjmp` may leave it.
typedef int (*kaml_check_callback)(void *context,
                                   uint64_t blocks_done,
                                   uint64_t block_count,
                                   const char *problem);

// What a check found. Begin with `KAML_CHECK_REPORT_INIT`.
typedef struct kaml_check_report {
    // Filled in by `KAML_CHECK_REPORT_INIT`.
    size_t struct_size;
    // Blocks that were read.
    uint64_t blocks;
    // Records that are whole.
    uint64_t records;
    // Versions that are whole, of namespaces that keep them.
    uint64_t versions;
    // Bytes of all these values.
    uint64_t value_bytes;
    // Problems; 0 for a device in order.
    uint64_t problem_count;
} kaml_check_report;

// A key of at most 16 bytes that the library returns.
typedef struct kaml_key {
    // Its bytes, followed by zeros.
    uint8_t bytes[KAML_KEY_BYTES_MAX];
    // How many there are.
    uint32_t length;
} kaml_key;

// A record of a Put: belongs to the caller, and is only read.
typedef struct kaml_record {
    // The namespace.
    kaml_namespace_id namespace_id;
    // `KAML_PUT...`: 0 stores.
    uint32_t action;
    // The key.
    const void *key;
    // Its bytes, 1 to `KAML_KEY_BYTES_MAX`, or to `KAML_LONG_KEY_BYTES_MAX` where the namespace takes longer keys.
    size_t key_length;
    // The value; may be null if it has no bytes.
    const void *value;
    // Its bytes.
    size_t value_length;
} kaml_record;

// How far a listing, or a history, has come. Begin with `KAML_CURSOR_INIT`.
typedef struct kaml_cursor {
    // 0: at the beginning, 1: in between, 2: at the end.
    uint32_t state;
    // Private to the library.
    uint8_t place[24];
} kaml_cursor;

// An iterator over a range: a number, copied as you like. Zeros are never open.
typedef struct kaml_range {
    // Private to the library.
    uint64_t id;
} kaml_range;

// A record of a batch that the library returns. Key and value are in the memory of the batch: `kaml_free` of the first item frees all.
typedef struct kaml_item {
    // The key.
    const void *key;
    // Its bytes, 1 to `KAML_LONG_KEY_BYTES_MAX`.
    size_t key_length;
    // The value; null if keys alone were requested.
    const void *value;
    // Its bytes.
    size_t value_length;
} kaml_item;

// A snapshot of a whole device: a number, copied as you like. Zeros are never open.
typedef struct kaml_device_snapshot {
    // Private to the library.
    uint64_t id;
} kaml_device_snapshot;

// What open snapshots keep, those of iterators included. Begin with `KAML_DEVICE_SNAPSHOT_USAGE_INIT`.
typedef struct kaml_device_snapshot_usage {
    // Filled in by `KAML_DEVICE_SNAPSHOT_USAGE_INIT`.
    size_t struct_size;
    // Moments of which snapshots are open. Snapshots of one moment count once.
    uint64_t open_count;
    // Moments whose snapshots expired since the device was opened.
    uint64_t expired_count;
    // Bytes of overwritten and deleted records that are kept on flash, in whole chunks.
    uint64_t kept_bytes;
    // Overwritten and deleted records that are kept, and keys that did not exist.
    uint64_t entry_count;
    // Bytes of memory for them.
    uint64_t memory_bytes;
} kaml_device_snapshot_usage;

// A version of a record.
typedef struct kaml_version_info {
    // Its place in the order of all changes of the device.
    uint64_t sequence;
    // When it was put: nanoseconds since 1970.
    uint64_t time_ns;
    // The user version that it belongs to; the snapshot of that number and later ones see it, or something newer.
    uint32_t user_version;
    // Bytes of its value.
    uint32_t value_length;
    // 1: the record was deleted then.
    uint32_t deleted;
    // 1: a rollback hid it.
    uint32_t hidden;
} kaml_version_info;

// A snapshot.
typedef struct kaml_snapshot_info {
    // When it was taken: nanoseconds since 1970.
    uint64_t time_ns;
    // Its number.
    uint32_t snapshot;
    // 0.
    uint32_t reserved;
} kaml_snapshot_info;

// What a merge keeps besides the newest version of each key: whatever one of the rules keeps. Begin with
// `KAML_RETENTION_INIT`, which keeps what snapshots see.
typedef struct kaml_retention {
    // Filled in by `KAML_RETENTION_INIT`.
    size_t struct_size;
    // Everything put at this time (nanoseconds since 1970) or later; 0: no such rule.
    uint64_t keep_since_ns;
    // So many of the newest versions of each key; 0 is 1.
    uint32_t keep_last;
    // 1: what any snapshot sees. 0: all snapshots are forgotten first.
    uint32_t keep_snapshots;
    // 1: the newest version of each key among those put around the same time.
    uint32_t keep_internal;
    // 1: change nothing, only show what would go.
    uint32_t dry_run;
} kaml_retention;

// What a merge did, or would do.
typedef struct kaml_merge_report {
    // Versions that were looked at.
    uint64_t versions;
    // Those of them that the rules keep.
    uint64_t kept;
    // Those that went.
    uint64_t dropped;
    // Their bytes.
    uint64_t dropped_bytes;
    // Segments released.
    uint64_t segments_read;
    // Segments that took their place; not known in a dry run.
    uint64_t segments_written;
} kaml_merge_report;

// Hears of a merge while it continues, many times in each row: rows that are done, and all rows. 0: continue; anything else ends the
// merge. It is called by the thread that called `kaml_merge_with_progress` and may make any call but a merge of the same device,
// which would wait for this one. It has to return: no exception and no `longjmp` may leave it.
typedef int (*kaml_merge_callback)(void *context, uint32_t rows_done, uint32_t row_count);

// How many neighbouring keys of a namespace share a lock.
typedef struct kaml_lock_width {
    // The namespace.
    uint32_t namespace_id;
    // Keys that share a lock, at least 1.
    uint32_t records_per_lock;
} kaml_lock_width;

// How a store caches and locks. Begin with `KAML_STORE_OPTIONS_INIT`; 0 is the default of every field.
typedef struct kaml_store_options {
    // Filled in by `KAML_STORE_OPTIONS_INIT`.
    size_t struct_size;
    // `KAML_WRITE_...`: what plain puts are. A transaction is durable when it is committed, in either mode.
    uint32_t write_mode;
    // Neighbouring keys that share a lock; 0 is 1.
    uint32_t records_per_lock;
    // 1: release locks when a commit's place in the durable order is fixed, not when it is durable. Commits still
    // return when they are durable.
    uint32_t early_release;
    // Longest wait for a lock; 0 is two seconds.
    uint32_t lock_timeout_ms;
    // Transactions that may be open at once; 0 is 1024.
    uint32_t transactions_max;
    // How many `lock_widths` there are.
    uint32_t lock_width_count;
    // 0: a transaction is durable when its commit returns. Else commits return at once and become durable after about this many
    // microseconds, in order and many together: a crash loses the last of them, whole. `kaml_store_flush` waits for all.
    uint64_t durability_delay_us;
    // Namespaces whose `records_per_lock` differs.
    const struct kaml_lock_width *lock_widths;
} kaml_store_options;

// A store: a number, copied as you like. Zeros are never open.
typedef struct kaml_store {
    // Private to the library.
    uint64_t id;
} kaml_store;

// A transaction: a number, copied as you like. Zeros are never open.
typedef struct kaml_txn {
    // Private to the library.
    uint64_t id;
} kaml_txn;

// An operation of `kaml_write`: belongs to the caller, and is only read. Set all of it to zeros first.
typedef struct kaml_operation {
    // The namespace.
    kaml_namespace_id namespace_id;
    // `KAML_PUT...`, or one of `KAML_ADD`, `KAML_MAX`, `KAML_MIN`, `KAML_EXPECT`, `KAML_EXPECT_ABSENT`.
    uint32_t action;
    // The key.
    const void *key;
    // Its bytes.
    size_t key_length;
    // The value, of actions that have one; may be null if it has no bytes.
    const void *value;
    // Its bytes.
    size_t value_length;
    // For `KAML_ADD`, `KAML_MAX` and `KAML_MIN`.
    int64_t number;
    // The record expires so many milliseconds after it is put. 0: after the time to live of its namespace; a counter that exists keeps its time.
    // `KAML_NEVER`: it does not expire.
    uint64_t time_to_live_ms;
    // It expires at this time, in milliseconds since 1970; 0: as `time_to_live_ms` specifies.
    uint64_t expires_at_ms;
} kaml_operation;

// What is in a backup. Begin with `KAML_BACKUP_REPORT_INIT`.
typedef struct kaml_backup_report {
    // Filled in by `KAML_BACKUP_REPORT_INIT`.
    size_t struct_size;
    // Namespaces in it.
    uint64_t namespace_count;
    // Records and units of blocks in it. A few that moved meanwhile may count twice.
    uint64_t record_count;
    // Versions in it.
    uint64_t version_count;
    // Keys in it that were deleted since the backup that it adds to.
    uint64_t deleted_count;
    // Bytes of it.
    uint64_t bytes;
    // 1: it adds to an earlier backup.
    uint32_t incremental;
    // 0.
    uint32_t reserved;
} kaml_backup_report;

// Hears of a backup or a restore while it continues, at least once for each megabyte that it writes or reads: bytes that are done, and bytes in all. They are
// bytes of the device for a backup, and of the files for a restore; the last part of a backup adds none. 0: continue; anything else ends it. It is called by
// the thread that made the call. It may make any call but a merge of the same device, which would wait for the backup. It has to return: no exception and no
// `longjmp` may leave it.
typedef int (*kaml_backup_callback)(void *context, uint64_t bytes_done, uint64_t byte_count);

// A place in the change stream of a device: store it to continue there, also after the device was opened again.
typedef struct kaml_position {
    // Its bytes.
    uint8_t bytes[KAML_POSITION_BYTES];
} kaml_position;

// A reader of the change stream: a number, copied as you like. Zeros are never open.
typedef struct kaml_changes {
    // Private to the library.
    uint64_t id;
} kaml_changes;

// A change that was committed. Key and value are in the memory of the array: `kaml_free` of the first change frees all.
typedef struct kaml_change {
    // `KAML_CHANGE_...`; others come with later versions.
    uint32_t kind;
    // The namespace.
    kaml_namespace_id namespace_id;
    // The key; null where there is none.
    const void *key;
    // Its bytes.
    size_t key_length;
    // The value; null where there is none.
    const void *value;
    // Its bytes.
    size_t value_length;
    // Of a put: when the record expires, in milliseconds since 1970, or `KAML_NEVER`. No change shows that it has expired.
    uint64_t expires_at_ms;
    // Of versions and commands on them: the number in the order of all versions; else 0.
    uint64_t sequence;
    // Of versions and commands on them: when it was put, in nanoseconds since 1970; else 0.
    uint64_t time_ns;
    // Of versions: the user version that it belongs to; else 0.
    uint32_t user_version;
    // Of deleted ranges: `KAML_RANGE_FROM_EXCLUDED`, `KAML_RANGE_TO_INCLUDED`.
    uint32_t flags;
    // Of commands on user versions: `KAML_COMMAND_...`, others come with later versions; else 0.
    uint32_t command;
    // Of commands on user versions: the snapshot that it is about; 0 for one that is taken, and if there is none.
    uint32_t snapshot;
} kaml_change;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What a status means, in general: a string that is never freed. `kaml_last_error` states what happened.
const char *kaml_strerror(int status);

// Whether a transaction that ended with this status can succeed if it runs again from its beginning.
bool kaml_is_retryable(int status);

// The message of the last call of this thread that did not return `KAML_OK`, with names and numbers; an empty string if
// none did. Valid until the next call of this thread fails, or restores a message; never freed by the caller.
const char *kaml_last_error(void);

// Restores a message that was copied from `kaml_last_error`. It is for destructors and finalizers, whose own calls can
// fail between a call and the look at its message. `message` is copied; null is the empty string.
void kaml_set_last_error(const char *message);

// The version of the library that is loaded, `"1.2.3"`; `KAML_VERSION` is that of the header, which may be older.
const char *kaml_version(void);

// Frees a value that the library returned. A null pointer is ignored.
void kaml_free(void *value);

// Creates a device on a new file or on a block device, and opens it. A `capacity_bytes` of 0 is the whole of a block device; a file then
// takes up to 353 MiB and then grows by itself. `options` may be null.
enum kaml_status kaml_create(const char *path,
                             uint64_t capacity_bytes,
                             const struct kaml_create_options *options,
                             struct kaml_device *device);

// Opens a device, or creates it first if its file does not exist or is empty. A device that exists keeps its capacity and its
// options. `capacity_bytes` is as for `kaml_create`. `options` may be null.
enum kaml_status kaml_open_or_create(const char *path,
                                     uint64_t capacity_bytes,
                                     const struct kaml_create_options *options,
                                     struct kaml_device *device);

// Creates a device in memory, for tests. Closing it drops it. `options` may be null.
enum kaml_status kaml_create_in_memory(uint64_t capacity_bytes,
                                       const struct kaml_create_options *options,
                                       struct kaml_device *device);

// Opens a device. After a crash this recovers everything that was acknowledged. `options` may be null.
enum kaml_status kaml_open(const char *path,
                           const struct kaml_open_options *options,
                           struct kaml_device *device);

// Closes a device, so it opens quickly the next time. The handle is closed whatever the call returns, except `KAML_IN_USE`
// (a store is open over it, or another thread is in a call with it) and `KAML_BAD_HANDLE`; after another error the device
// recovers when it is next opened.
enum kaml_status kaml_close(struct kaml_device device);

// As `kaml_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
enum kaml_status kaml_abandon(struct kaml_device device);

// The largest value, and the largest sum of one Put, in which a large value counts 48 bytes.
enum kaml_status kaml_limits(struct kaml_device device, uint64_t *value_bytes_max, uint64_t *batch_bytes_max);

// Creates a namespace; durable when it returns. `name` has 1 to 255 bytes of UTF-8; `options` may be null.
enum kaml_status kaml_create_namespace(struct kaml_device device,
                                       const char *name,
                                       const struct kaml_namespace_options *options,
                                       kaml_namespace_id *namespace_id);

// Finds a namespace by its name. The id needs no closing.
enum kaml_status kaml_namespace(struct kaml_device device, const char *name, kaml_namespace_id *namespace_id);

// Lists the namespaces of a device in the order of their ids, up to `namespace_count_max` of them. `*namespace_count` is how
// many there are, also if they are more.
enum kaml_status kaml_namespaces(struct kaml_device device,
                                 struct kaml_namespace_info *namespaces,
                                 size_t namespace_count_max,
                                 size_t *namespace_count);

// The logs that a namespace appends to, up to `log_count_max` of them. `*log_count` is how many there are, also if they are more; 0: it uses all logs of the
// device.
enum kaml_status kaml_logs(struct kaml_device device,
                           kaml_namespace_id namespace_id,
                           uint32_t *logs,
                           size_t log_count_max,
                           size_t *log_count);

// Has a namespace append to these logs from now on, while it is in use; durable when it returns. A device has one log for each die (`kaml_info`), numbered
// from 0. With a `log_count` of 0 it uses all of them. Records that are stored already remain in their logs until they are overwritten or collected.
// `KAML_BAD_ARGUMENT` for a log that the device does not have, or that is named twice.
//
//     const uint32_t first[2] = { 0, 1 };
//     if (kaml_set_logs(device, users, first, 2)) goto failed;
enum kaml_status kaml_set_logs(struct kaml_device device,
                               kaml_namespace_id namespace_id,
                               const uint32_t *logs,
                               size_t log_count);

// Deletes a namespace with everything in it; durable when it returns. It also works while a store is open over the device:
// transactions that use the namespace then fail.
enum kaml_status kaml_delete_namespace(struct kaml_device device,
                                       kaml_namespace_id namespace_id);

// Reports what a device is. Reads no flash.
enum kaml_status kaml_info(struct kaml_device device, struct kaml_device_info *info);

// Reports the state of a device, and counts since it was opened. `kaml_namespaces` shows the number of records in each
// namespace. Reads no flash, but visits every block: call it once a second, not for each Put.
enum kaml_status kaml_statistics(struct kaml_device device,
                                 struct kaml_device_statistics *statistics);

// Reads everything that is durable and checks it: records and versions against their checksums and the indexes, live data
// against the accounts. Returns `KAML_OK` also if there are problems: `problem_count` is their number, and `callback` gets
// each. Other threads can continue meanwhile; records that they change during the check are not judged. `KAML_CANCELLED`
// if the callback requested the end, without a report; `KAML_STOPPED` if the device accepts no more changes: open it again
// first. `callback` and `report` may be null; `context` is passed to the callback and not used otherwise.
enum kaml_status kaml_check(struct kaml_device device,
                            kaml_check_callback callback,
                            void *context,
                            struct kaml_check_report *report);

// The key of a number, for namespaces of `KAML_KEYS_U64`: 8 bytes, big-endian.
struct kaml_key kaml_key_u64(uint64_t number);

// Reads a value. The caller owns `*value` and frees it with `kaml_free`; it is null if there is none (`KAML_NOT_FOUND`).
enum kaml_status kaml_get(struct kaml_device device,
                          kaml_namespace_id namespace_id,
                          const void *key,
                          size_t key_length,
                          void **value,
                          size_t *value_length);

// Reads a value into a buffer of the caller. If it does not fit, the call returns `KAML_BUFFER_TOO_SMALL`, the buffer does
// not change, and `*value_length` is the length of the value.
enum kaml_status kaml_get_into(struct kaml_device device,
                               kaml_namespace_id namespace_id,
                               const void *key,
                               size_t key_length,
                               void *buffer,
                               size_t buffer_bytes,
                               size_t *value_length);

// Whether a key exists: `KAML_OK` or `KAML_NOT_FOUND`. Reads no flash, except in a versioned namespace.
enum kaml_status kaml_exists(struct kaml_device device,
                             kaml_namespace_id namespace_id,
                             const void *key,
                             size_t key_length);

// Stores records in any namespaces, all or none; durable when it returns. Later records of one key win over earlier ones.
// Conditions are judged by the state before the call. In a versioned namespace they read flash.
enum kaml_status kaml_put(struct kaml_device device,
                          const struct kaml_record *records,
                          size_t record_count);

// Stores one record; durable when it returns.
enum kaml_status kaml_put_one(struct kaml_device device,
                              kaml_namespace_id namespace_id,
                              const void *key,
                              size_t key_length,
                              const void *value,
                              size_t value_length);

// Deletes a record, whether it exists or not; durable when it returns.
enum kaml_status kaml_delete(struct kaml_device device,
                             kaml_namespace_id namespace_id,
                             const void *key,
                             size_t key_length);

// Lists the keys of a namespace in no particular order, up to `key_count_max` with each call. A `*key_count` of 0 is the
// end. Every key that exists all the time is listed exactly once. Unflushed records of a store are not listed. Keys above 16 bytes
// need `kaml_list_keys`: here they return `KAML_BAD_ARGUMENT`, and the cursor is kept.
enum kaml_status kaml_list(struct kaml_device device,
                           kaml_namespace_id namespace_id,
                           struct kaml_cursor *cursor,
                           struct kaml_key *keys,
                           size_t key_count_max,
                           size_t *key_count);

// Begins to read the records of an ordered namespace whose keys are in a range, in the order of their bytes. The range contains `from` and does not
// contain `to`; flags change that (`KAML_RANGE_...`, 0 for none). A null bound with a length of 0 is no bound. A range that ends before it begins is
// empty. Close the iterator with `kaml_range_close`; closing the device closes it, too.
//
// The iterator sees the records as they are when the first batch is read, whatever is put or deleted meanwhile. Unflushed records of a store are not
// among them. `KAML_BAD_ARGUMENT` if the namespace is not ordered, `KAML_BAD_KEY` for a bound above `KAML_LONG_KEY_BYTES_MAX`.
//
//     kaml_range range;
//     kaml_item *items;
//     size_t count;
//     status = kaml_range_open(device, users, "a", 1, "b", 1, 0, &range);
//     while (!status && !(status = kaml_range_next(range, 256, &items, &count)) && count > 0) {
//         for (size_t at = 0; at < count; at++) use(items[at].key, items[at].key_length);
//         kaml_free(items);
//     }
//     kaml_range_close(range);
enum kaml_status kaml_range_open(struct kaml_device device,
                                 kaml_namespace_id namespace_id,
                                 const void *from,
                                 size_t from_length,
                                 const void *to,
                                 size_t to_length,
                                 uint32_t flags,
                                 struct kaml_range *range);

// As `kaml_range_open`, for the keys that begin with a prefix of at most `KAML_LONG_KEY_BYTES_MAX` bytes; all keys begin with an empty one.
// Flags are `KAML_RANGE_REVERSE` and `KAML_RANGE_KEYS_ONLY`.
enum kaml_status kaml_prefix_open(struct kaml_device device,
                                  kaml_namespace_id namespace_id,
                                  const void *prefix,
                                  size_t prefix_length,
                                  uint32_t flags,
                                  struct kaml_range *range);

// The next records of an iterator, at most `item_count_max`, and fewer if they are large. `*items` is an array of `*item_count` records that you
// free with `kaml_free`. At the end it is null, and `*item_count` is 0. An error comes after the records before it; it does not end the iterator.
// `KAML_UNKNOWN_NAMESPACE` if the namespace was deleted, `KAML_BAD_HANDLE` after the iterator or its device was closed,
// `KAML_SNAPSHOT_TOO_OLD` if the records that it should show had to make room.
enum kaml_status kaml_range_next(struct kaml_range range,
                                 size_t item_count_max,
                                 struct kaml_item **items,
                                 size_t *item_count);

// Closes an iterator.
enum kaml_status kaml_range_close(struct kaml_range range);

// As `kaml_range_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
enum kaml_status kaml_range_abandon(struct kaml_range range);

// The record with the least key of an ordered namespace; `KAML_NOT_FOUND` if there is none. You free `*item` with `kaml_free`.
enum kaml_status kaml_first(struct kaml_device device,
                            kaml_namespace_id namespace_id,
                            struct kaml_item **item);

// The record with the greatest key of an ordered namespace; `KAML_NOT_FOUND` if there is none. You free `*item` with `kaml_free`.
enum kaml_status kaml_last(struct kaml_device device,
                           kaml_namespace_id namespace_id,
                           struct kaml_item **item);

// Counts the keys of a range, whose bounds are those of `kaml_range_open`; flags are `KAML_RANGE_FROM_EXCLUDED` and `KAML_RANGE_TO_INCLUDED`. Reads
// no flash; takes a second for some 50 million keys.
enum kaml_status kaml_count(struct kaml_device device,
                            kaml_namespace_id namespace_id,
                            const void *from,
                            size_t from_length,
                            const void *to,
                            size_t to_length,
                            uint32_t flags,
                            uint64_t *count);

// About how many keys a range has, in the time of two look-ups; otherwise as `kaml_count`.
enum kaml_status kaml_estimate(struct kaml_device device,
                               kaml_namespace_id namespace_id,
                               const void *from,
                               size_t from_length,
                               const void *to,
                               size_t to_length,
                               uint32_t flags,
                               uint64_t *count);

// Deletes the records of a range, whose bounds are those of `kaml_count`; durable when it returns. `*count` is how many there were; it may be null.
// `KAML_IN_USE` while a store is open over the device.
enum kaml_status kaml_delete_range(struct kaml_device device,
                                   kaml_namespace_id namespace_id,
                                   const void *from,
                                   size_t from_length,
                                   const void *to,
                                   size_t to_length,
                                   uint32_t flags,
                                   uint64_t *count);

// Lists keys of any length, of a namespace that is not ordered, in no particular order, up to `item_count_max` with each call. `*items` is an array of
// `*item_count` keys without values that you free with `kaml_free`; at the end it is null, and `*item_count` is 0. Every key that exists all the time
// is listed exactly once. Keys above 16 bytes are read from flash. Unflushed records of a store are not listed. An ordered namespace is listed with
// `kaml_range_open` (`KAML_BAD_ARGUMENT`).
enum kaml_status kaml_list_keys(struct kaml_device device,
                                kaml_namespace_id namespace_id,
                                struct kaml_cursor *cursor,
                                size_t item_count_max,
                                struct kaml_item **items,
                                size_t *item_count);

// Opens a snapshot of all namespaces of records: what is durable now, to be read whatever is put or deleted meanwhile. Nobody waits for it. It keeps
// what is overwritten and deleted; when that is in the way, the oldest snapshots expire (`KAML_SNAPSHOT_TOO_OLD`). It is in memory alone. Close it
// with `kaml_snapshot_close`; closing the device closes it, too.
//
// Unflushed records of a store are not in it. Namespaces of blocks and of versions cannot be read through it (`KAML_BAD_ARGUMENT`); for these there
// is `kaml_snapshot`.
//
//     kaml_device_snapshot before;
//     if (kaml_snapshot_open(device, &before)) goto failed;
//     kaml_put_one(device, users, "ada", 3, "after", 5);
//     kaml_snapshot_get(before, users, "ada", 3, &value, &length);    // what it was before
//     kaml_snapshot_close(before);
enum kaml_status kaml_snapshot_open(struct kaml_device device,
                                    struct kaml_device_snapshot *snapshot);

// Closes a snapshot. Iterators over it can be read to their end; what it keeps is released when they are closed. `KAML_IN_USE` if another thread is in
// a call with it; it is then kept.
enum kaml_status kaml_snapshot_close(struct kaml_device_snapshot snapshot);

// As `kaml_snapshot_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
enum kaml_status kaml_snapshot_abandon(struct kaml_device_snapshot snapshot);

// Lists the namespaces that existed, as they were, also those that cannot be read through a snapshot. Otherwise as `kaml_namespaces`.
enum kaml_status kaml_snapshot_namespaces(struct kaml_device_snapshot snapshot,
                                          struct kaml_namespace_info *namespaces,
                                          size_t namespace_count_max,
                                          size_t *namespace_count);

// Reads a value as it was. `KAML_UNKNOWN_NAMESPACE` if the namespace was created after the snapshot, or is deleted. Otherwise as `kaml_get`.
enum kaml_status kaml_snapshot_get(struct kaml_device_snapshot snapshot,
                                   kaml_namespace_id namespace_id,
                                   const void *key,
                                   size_t key_length,
                                   void **value,
                                   size_t *value_length);

// Reads a value as it was into a buffer of the caller. Otherwise as `kaml_get_into` and `kaml_snapshot_get`.
enum kaml_status kaml_snapshot_get_into(struct kaml_device_snapshot snapshot,
                                        kaml_namespace_id namespace_id,
                                        const void *key,
                                        size_t key_length,
                                        void *buffer,
                                        size_t buffer_bytes,
                                        size_t *value_length);

// Whether a key existed: `KAML_OK` or `KAML_NOT_FOUND`. Reads no flash.
enum kaml_status kaml_snapshot_exists(struct kaml_device_snapshot snapshot,
                                      kaml_namespace_id namespace_id,
                                      const void *key,
                                      size_t key_length);

// Lists the keys of a namespace as they were, each exactly once. Otherwise as `kaml_list_keys`.
enum kaml_status kaml_snapshot_list_keys(struct kaml_device_snapshot snapshot,
                                         kaml_namespace_id namespace_id,
                                         struct kaml_cursor *cursor,
                                         size_t item_count_max,
                                         struct kaml_item **items,
                                         size_t *item_count);

// Begins to read a range of an ordered namespace as it was, with `kaml_range_next`. The iterator shows the moment of the snapshot, also after the
// snapshot was closed. Otherwise as `kaml_range_open`.
enum kaml_status kaml_snapshot_range_open(struct kaml_device_snapshot snapshot,
                                          kaml_namespace_id namespace_id,
                                          const void *from,
                                          size_t from_length,
                                          const void *to,
                                          size_t to_length,
                                          uint32_t flags,
                                          struct kaml_range *range);

// As `kaml_snapshot_range_open`, for the keys that begin with a prefix. Prefix and flags are those of `kaml_prefix_open`.
enum kaml_status kaml_snapshot_prefix_open(struct kaml_device_snapshot snapshot,
                                           kaml_namespace_id namespace_id,
                                           const void *prefix,
                                           size_t prefix_length,
                                           uint32_t flags,
                                           struct kaml_range *range);

// The record with the least key of an ordered namespace as it was. Otherwise as `kaml_first`.
enum kaml_status kaml_snapshot_first(struct kaml_device_snapshot snapshot,
                                     kaml_namespace_id namespace_id,
                                     struct kaml_item **item);

// The record with the greatest key of an ordered namespace as it was. Otherwise as `kaml_last`.
enum kaml_status kaml_snapshot_last(struct kaml_device_snapshot snapshot,
                                    kaml_namespace_id namespace_id,
                                    struct kaml_item **item);

// Counts the keys that a range had. Bounds and flags are those of `kaml_count`. Reads no flash.
enum kaml_status kaml_snapshot_count(struct kaml_device_snapshot snapshot,
                                     kaml_namespace_id namespace_id,
                                     const void *from,
                                     size_t from_length,
                                     const void *to,
                                     size_t to_length,
                                     uint32_t flags,
                                     uint64_t *count);

// What open snapshots keep.
enum kaml_status kaml_snapshot_usage(struct kaml_device device, struct kaml_device_snapshot_usage *usage);

// Sets the memory that open snapshots take for what is overwritten and deleted meanwhile; 512 MiB by default, at some 160 bytes a record. With less
// than they take, the oldest expire at the next change.
enum kaml_status kaml_limit_snapshot_memory(struct kaml_device device,
                                            uint64_t bytes);

// Reads a value as a snapshot sees it. Otherwise as `kaml_get`.
enum kaml_status kaml_get_as_of(struct kaml_device device,
                                kaml_namespace_id namespace_id,
                                uint32_t snapshot,
                                const void *key,
                                size_t key_length,
                                void **value,
                                size_t *value_length);

// Reads a value as it was so many changes of its key ago; deletes count. Otherwise as `kaml_get`.
enum kaml_status kaml_get_back(struct kaml_device device,
                               kaml_namespace_id namespace_id,
                               uint32_t changes,
                               const void *key,
                               size_t key_length,
                               void **value,
                               size_t *value_length);

// Lists the versions of a key, newest first, up to `version_count_max` with each call: all that are kept, including those
// that a rollback hid. A `*version_count` of 0 is the end, also if the key was never put. Versions put after the first
// call are not listed. A cursor reads nothing twice, whatever `version_count_max` is, except if more than 16 histories of
// a device are in progress or a copy of the cursor has continued: then it reads the segments up to its place again.
enum kaml_status kaml_history(struct kaml_device device,
                              kaml_namespace_id namespace_id,
                              const void *key,
                              size_t key_length,
                              struct kaml_cursor *cursor,
                              struct kaml_version_info *versions,
                              size_t version_count_max,
                              size_t *version_count);

// Takes a snapshot, which costs next to nothing: what exists now can be read by its number. Durable when it returns. A
// store that is open over the device is flushed first.
enum kaml_status kaml_snapshot(struct kaml_device device,
                               kaml_namespace_id namespace_id,
                               uint32_t *snapshot);

// Lists the snapshots of a namespace, oldest first, up to `snapshot_count_max` of them. `*snapshot_count` is how many there
// are, also if they are more.
enum kaml_status kaml_snapshots(struct kaml_device device,
                                kaml_namespace_id namespace_id,
                                struct kaml_snapshot_info *snapshots,
                                size_t snapshot_count_max,
                                size_t *snapshot_count);

// Forgets a snapshot: the next merge drops what only it sees. Durable when it returns.
enum kaml_status kaml_forget_snapshot(struct kaml_device device,
                                      kaml_namespace_id namespace_id,
                                      uint32_t snapshot);

// Returns a namespace to its state in a snapshot. Takes a snapshot of the present state first, `*before`; rolling back to
// that one undoes this. Durable when it returns. `KAML_IN_USE` while a store is open over the device.
enum kaml_status kaml_roll_back(struct kaml_device device,
                                kaml_namespace_id namespace_id,
                                uint32_t snapshot,
                                uint32_t *before);

// Undoes the last changes of a key: what it was before them becomes its newest version, or it is deleted if it did not
// exist. Durable when it returns. `KAML_IN_USE` while a store is open over the device.
enum kaml_status kaml_undo(struct kaml_device device,
                           kaml_namespace_id namespace_id,
                           const void *key,
                           size_t key_length,
                           uint32_t changes);

// Drops the versions that the rules do not keep, and frees their space. Other threads can put and get meanwhile, also
// through a store. `report` may be null.
enum kaml_status kaml_merge(struct kaml_device device,
                            kaml_namespace_id namespace_id,
                            const struct kaml_retention *rules,
                            struct kaml_merge_report *report);

// As `kaml_merge`, and reports its progress to `callback`. `KAML_CANCELLED` if the callback requested the end: the
// versions in the report are dropped, all others are kept, and a later merge continues with them. `callback` and `report`
// may be null; `context` is passed to the callback and not used otherwise.
enum kaml_status kaml_merge_with_progress(struct kaml_device device,
                                          kaml_namespace_id namespace_id,
                                          const struct kaml_retention *rules,
                                          kaml_merge_callback callback,
                                          void *context,
                                          struct kaml_merge_report *report);

// Opens a store over a device: a cache of records with transactions. While it is open, records of the device change only
// through the store (`kaml_put`, `kaml_put_one`, `kaml_delete`, `kaml_roll_back` and `kaml_undo` return `KAML_IN_USE`),
// and the device cannot be closed. `options` may be null.
enum kaml_status kaml_store_open(struct kaml_device device,
                                 uint64_t cache_bytes,
                                 const struct kaml_store_options *options,
                                 struct kaml_store *store);

// Flushes a store and closes it. The handle is closed whatever the call returns, except `KAML_IN_USE` (transactions are not
// freed, or another thread is in a call with it) and `KAML_BAD_HANDLE`; after another error unflushed puts are lost.
enum kaml_status kaml_store_close(struct kaml_store store);

// As `kaml_store_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
enum kaml_status kaml_store_abandon(struct kaml_store store);

// Makes everything durable that was put or committed before.
enum kaml_status kaml_store_flush(struct kaml_store store);

// Acknowledges that commits with a durability delay were lost (`KAML_COMMITS_LOST`): records are as they were before these
// commits, and new ones are accepted again. `*count` is the number of lost commits, 0 if there are none; it may be null.
enum kaml_status kaml_store_acknowledge_lost(struct kaml_store store,
                                             uint64_t *count);

// Reads a value through the cache. The caller owns `*value` and frees it with `kaml_free`; it is null if there is none
// (`KAML_NOT_FOUND`).
enum kaml_status kaml_store_get(struct kaml_store store,
                                kaml_namespace_id namespace_id,
                                const void *key,
                                size_t key_length,
                                void **value,
                                size_t *value_length);

// Reads a value through the cache into a buffer of the caller. If it does not fit, the call returns
// `KAML_BUFFER_TOO_SMALL`, the buffer does not change, and `*value_length` is the length of the value.
enum kaml_status kaml_store_get_into(struct kaml_store store,
                                     kaml_namespace_id namespace_id,
                                     const void *key,
                                     size_t key_length,
                                     void *buffer,
                                     size_t buffer_bytes,
                                     size_t *value_length);

// Whether a key exists: `KAML_OK` or `KAML_NOT_FOUND`. Reads no flash, except in a versioned namespace.
enum kaml_status kaml_store_exists(struct kaml_store store,
                                   kaml_namespace_id namespace_id,
                                   const void *key,
                                   size_t key_length);

// Stores a record; durable as the store's `write_mode` specifies.
enum kaml_status kaml_store_put(struct kaml_store store,
                                kaml_namespace_id namespace_id,
                                const void *key,
                                size_t key_length,
                                const void *value,
                                size_t value_length);

// Deletes a record, whether it exists or not; durable as the store's `write_mode` specifies.
enum kaml_status kaml_store_delete(struct kaml_store store,
                                   kaml_namespace_id namespace_id,
                                   const void *key,
                                   size_t key_length);

// Reads the records of a range of an ordered namespace through the cache, as of one moment: unflushed ones are among them. Bounds and flags are those of
// `kaml_range_open`. `*items` is an array of `*item_count` records, at most `item_count_max`, that you free with `kaml_free`; it is null if there are
// none. All of them are in memory at once: to read a long range, begin again after the last key (`KAML_RANGE_FROM_EXCLUDED`).
enum kaml_status kaml_store_range(struct kaml_store store,
                                  kaml_namespace_id namespace_id,
                                  const void *from,
                                  size_t from_length,
                                  const void *to,
                                  size_t to_length,
                                  uint32_t flags,
                                  size_t item_count_max,
                                  struct kaml_item **items,
                                  size_t *item_count);

// Begins a transaction that only reads: a snapshot of what is durable, to be read with `kaml_snapshot_get` and others. It takes no locks, waits for
// nobody, and is never aborted. It shows every commit that has returned, except with a `durability_delay_us`, and every put in write-through mode;
// `kaml_store_flush` makes the others durable. Close it with `kaml_snapshot_close`. It can be read after the store was closed.
enum kaml_status kaml_store_read_only(struct kaml_store store,
                                      struct kaml_device_snapshot *snapshot);

// Reads the values of up to 4096 keys of a namespace; neighbours on the medium are read in one operation. `*items` is an array of
// `key_count` items in the order of `keys`, which you free with `kaml_free`. `value` is null in the item of a key that does not exist; the call
// returns `KAML_OK` all the same. The values are not of one moment: `kaml_snapshot_get` reads those.
enum kaml_status kaml_get_many(struct kaml_device device,
                               kaml_namespace_id namespace_id,
                               const void *const *keys,
                               const size_t *key_lengths,
                               size_t key_count,
                               struct kaml_item **items);

// As `kaml_get_many`, through the cache of a store. It also fills the cache: what it reads from the medium is cached.
enum kaml_status kaml_store_get_many(struct kaml_store store,
                                     kaml_namespace_id namespace_id,
                                     const void *const *keys,
                                     const size_t *key_lengths,
                                     size_t key_count,
                                     struct kaml_item **items);

// Begins a transaction. Free it with `kaml_txn_free` after it was committed or aborted. If a call aborts it
// (`KAML_DEADLOCK`, `KAML_LOCK_TIMEOUT`, `KAML_DEPENDENCY_LOST`), all later calls except `kaml_txn_free` return the same
// status.
enum kaml_status kaml_txn_begin(struct kaml_store store,
                                struct kaml_txn *txn);

// Reports which records a transaction is going to use; only their namespaces and keys are looked at. Those that the cache has not are read from the
// device together, before anything is locked. It changes no result, and a record that is not used costs only its read. A record that cannot be read
// returns its status when it is used.
enum kaml_status kaml_txn_expect(struct kaml_txn txn,
                                 const struct kaml_record *records,
                                 size_t record_count);

// Reads a record, or learns that there is none (`KAML_NOT_FOUND`). No other transaction can change it until this one ends.
// The caller owns `*value` and frees it with `kaml_free`.
enum kaml_status kaml_txn_read(struct kaml_txn txn,
                               kaml_namespace_id namespace_id,
                               const void *key,
                               size_t key_length,
                               void **value,
                               size_t *value_length);

// As `kaml_txn_read`, into a buffer of the caller. If the value does not fit, the call returns `KAML_BUFFER_TOO_SMALL`, the buffer does not change,
// and `*value_length` is the length of the value; the record is locked all the same.
enum kaml_status kaml_txn_read_into(struct kaml_txn txn,
                                    kaml_namespace_id namespace_id,
                                    const void *key,
                                    size_t key_length,
                                    void *buffer,
                                    size_t buffer_bytes,
                                    size_t *value_length);

// As `kaml_txn_read`, for a record that will be changed: no other transaction can read it for update meanwhile. This
// avoids deadlocks.
enum kaml_status kaml_txn_read_for_update(struct kaml_txn txn,
                                          kaml_namespace_id namespace_id,
                                          const void *key,
                                          size_t key_length,
                                          void **value,
                                          size_t *value_length);

// Reads the records of a range of an ordered namespace, as `kaml_store_range`, with what this transaction has changed itself. Until it ends nobody adds
// a record to the range, or changes or deletes one of it; of a range that `item_count_max` cut off, of the part that was read.
enum kaml_status kaml_txn_range(struct kaml_txn txn,
                                kaml_namespace_id namespace_id,
                                const void *from,
                                size_t from_length,
                                const void *to,
                                size_t to_length,
                                uint32_t flags,
                                size_t item_count_max,
                                struct kaml_item **items,
                                size_t *item_count);

// As `kaml_txn_range`, of records that will be changed: no other transaction can read them for update meanwhile. With an `item_count_max` of 1 two
// transactions never take the same first record, or with `KAML_RANGE_REVERSE` the same last one: the second one waits for the first.
//
//     kaml_item *job;
//     size_t count;
//     if (kaml_txn_range_for_update(txn, jobs, NULL, 0, NULL, 0, 0, 1, &job, &count)) goto failed;
//     if (count > 0) status = kaml_txn_delete(txn, jobs, job->key, job->key_length);
//     kaml_free(job);
enum kaml_status kaml_txn_range_for_update(struct kaml_txn txn,
                                           kaml_namespace_id namespace_id,
                                           const void *from,
                                           size_t from_length,
                                           const void *to,
                                           size_t to_length,
                                           uint32_t flags,
                                           size_t item_count_max,
                                           struct kaml_item **items,
                                           size_t *item_count);

// Changes a record that exists; else `KAML_NOT_FOUND`, and the transaction continues.
enum kaml_status kaml_txn_update(struct kaml_txn txn,
                                 kaml_namespace_id namespace_id,
                                 const void *key,
                                 size_t key_length,
                                 const void *value,
                                 size_t value_length);

// Stores a record, whether it exists or not.
enum kaml_status kaml_txn_upsert(struct kaml_txn txn,
                                 kaml_namespace_id namespace_id,
                                 const void *key,
                                 size_t key_length,
                                 const void *value,
                                 size_t value_length);

// Stores a record that does not exist; else `KAML_EXISTS`, and the transaction continues.
enum kaml_status kaml_txn_insert(struct kaml_txn txn,
                                 kaml_namespace_id namespace_id,
                                 const void *key,
                                 size_t key_length,
                                 const void *value,
                                 size_t value_length);

// Deletes a record that exists; else `KAML_NOT_FOUND`, and the transaction continues.
enum kaml_status kaml_txn_delete(struct kaml_txn txn,
                                 kaml_namespace_id namespace_id,
                                 const void *key,
                                 size_t key_length);

// Makes all changes durable, together. With a `durability_delay_us` they are visible when it returns, and durable soon.
// After an error the transaction is aborted; if the device failed, its changes can nevertheless be stored, all or none.
enum kaml_status kaml_txn_commit(struct kaml_txn txn);

// As `kaml_txn_commit`, and waits until the changes are durable whatever the store's delay is.
enum kaml_status kaml_txn_commit_durable(struct kaml_txn txn);

// Abandons all changes.
enum kaml_status kaml_txn_abort(struct kaml_txn txn);

// Releases a transaction that was committed or aborted, by its user or by a deadlock. An active one is left as it
// is (`KAML_BAD_STATE`): commit or abort it first.
enum kaml_status kaml_txn_free(struct kaml_txn txn);

// Aborts a transaction if it is active, and frees it, in one step. It is for destructors and finalizers: it leaves the message of
// `kaml_last_error` as it was. `KAML_IN_USE` if another thread is in a call with the transaction; it is then kept.
enum kaml_status kaml_txn_abandon(struct kaml_txn txn);

// Executes operations on records of any namespaces, all or none; durable when it returns. Later operations of one key apply to what earlier ones have put;
// conditions and expected values are judged by the state before the call. Counters are values of 8 bytes, signed, little-endian, and are changed
// without being read. `counters` is null or has `operation_count` places: that of an operation on a counter is set to the counter after it, others to 0.
//
// `KAML_VALUE_DIFFERS` if a value is not the expected one; `KAML_BAD_ARGUMENT` if a value is not a counter, or a sum does not fit 64 bits, or the namespace keeps
// versions; otherwise as `kaml_put`.
//
//     kaml_operation both[2] = { { users, KAML_PUT, "ada", 3, "1", 1, 0, 60000, 0 },    // for a minute
//                                { stats, KAML_ADD, "puts", 4, NULL, 0, 1, 0, 0 } };
//     int64_t counters[2];
//     if (kaml_write(device, both, 2, counters)) goto failed;
//     printf("put number %lld\n", (long long)counters[1]);
enum kaml_status kaml_write(struct kaml_device device,
                            const struct kaml_operation *operations,
                            size_t operation_count,
                            int64_t *counters);

// Stores one record that expires after so many milliseconds; durable when it returns. `time_to_live_ms` is as in `kaml_operation`. From then on nobody
// sees the record, and its room is released by itself. `KAML_BAD_ARGUMENT` if the namespace keeps versions; otherwise as `kaml_put_one`.
enum kaml_status kaml_put_expiring(struct kaml_device device,
                                   kaml_namespace_id namespace_id,
                                   const void *key,
                                   size_t key_length,
                                   const void *value,
                                   size_t value_length,
                                   uint64_t time_to_live_ms);

// When the record of a key expires: milliseconds since 1970 by the clock of the device, which never goes back, or `KAML_NEVER`. `KAML_NOT_FOUND` if the key
// does not exist. Reads no flash. Unflushed records of a store are not seen.
enum kaml_status kaml_expiry(struct kaml_device device,
                             kaml_namespace_id namespace_id,
                             const void *key,
                             size_t key_length,
                             uint64_t *expires_at_ms);

// From now on records that are put expire after so many milliseconds, unless a put requests something else; 0: they do not. Present records keep their
// times. Durable when it returns. `KAML_IN_USE` while a store is open over the device; `KAML_BAD_ARGUMENT` if the namespace keeps versions or holds blocks.
enum kaml_status kaml_set_time_to_live(struct kaml_device device,
                                       kaml_namespace_id namespace_id,
                                       uint64_t time_to_live_ms);

// Adds a number to a counter without reading it; durable when it returns. `*counter` is the counter afterwards; `counter` may be null. Many threads
// can change the same counter at a time. Otherwise as `KAML_ADD` of `kaml_write`.
enum kaml_status kaml_add(struct kaml_device device,
                          kaml_namespace_id namespace_id,
                          const void *key,
                          size_t key_length,
                          int64_t number,
                          int64_t *counter);

// Stores a value, provided that the key has the expected value; durable when it returns. `expected` null: provided that the key does not exist. `value`
// null: deletes the key instead. A value of no bytes is a pointer that is not null, with a length of 0. `KAML_VALUE_DIFFERS` if the key has another
// value, or does not exist.
//
//     // Only one of several processes becomes the leader.
//     kaml_status status = kaml_compare_and_set(device, locks, "leader", 6, NULL, 0, "me", 2);
enum kaml_status kaml_compare_and_set(struct kaml_device device,
                                      kaml_namespace_id namespace_id,
                                      const void *key,
                                      size_t key_length,
                                      const void *expected,
                                      size_t expected_length,
                                      const void *value,
                                      size_t value_length);

// Stores a record that expires; durable when it returns, whatever the `write_mode`. The cache keeps no value that can expire: its reads are those of the
// device. `time_to_live_ms` is as in `kaml_operation`. Otherwise as `kaml_store_put`.
enum kaml_status kaml_store_put_expiring(struct kaml_store store,
                                         kaml_namespace_id namespace_id,
                                         const void *key,
                                         size_t key_length,
                                         const void *value,
                                         size_t value_length,
                                         uint64_t time_to_live_ms);

// Adds a number to a counter in a transaction of its own, as `kaml_txn_add` does. `*counter` is the counter afterwards; `counter` may be null.
enum kaml_status kaml_store_add(struct kaml_store store,
                                kaml_namespace_id namespace_id,
                                const void *key,
                                size_t key_length,
                                int64_t number,
                                int64_t *counter);

// As `kaml_compare_and_set`, in a transaction of its own.
enum kaml_status kaml_store_compare_and_set(struct kaml_store store,
                                            kaml_namespace_id namespace_id,
                                            const void *key,
                                            size_t key_length,
                                            const void *expected,
                                            size_t expected_length,
                                            const void *value,
                                            size_t value_length);

// Stores a record that expires, whether it exists or not. Its time begins with the commit, which waits until the changes are durable.
// `time_to_live_ms` is as in `kaml_operation`. Otherwise as `kaml_txn_upsert`.
enum kaml_status kaml_txn_upsert_expiring(struct kaml_txn txn,
                                          kaml_namespace_id namespace_id,
                                          const void *key,
                                          size_t key_length,
                                          const void *value,
                                          size_t value_length,
                                          uint64_t time_to_live_ms);

// Adds a number to a counter, which is read and locked, and keeps the time at which it expires. `*counter` is the counter afterwards; `counter` may be
// null. `KAML_BAD_ARGUMENT` if the value is not a counter, or the sum does not fit 64 bits: the transaction continues. Otherwise as `kaml_txn_upsert`.
enum kaml_status kaml_txn_add(struct kaml_txn txn,
                              kaml_namespace_id namespace_id,
                              const void *key,
                              size_t key_length,
                              int64_t number,
                              int64_t *counter);

// Writes all that is on a device now to a file, while others read and write: all namespaces with their attributes, records, blocks and versions. With
// `since`, the path of an earlier backup of this device, only what has changed since; null for all. The file gets its name when it is whole and durable, and replaces
// what had that name. A store over the device is flushed first. `report` may be null.
//
// `KAML_SNAPSHOT_TOO_OLD` if what is overwritten meanwhile needs too much room; `KAML_IN_USE` if a namespace is deleted meanwhile; `KAML_BAD_ARGUMENT` if `since`
// is a backup of another device; `KAML_NOT_A_DEVICE`, `KAML_CORRUPT` if it is no backup or a damaged one; `KAML_IO` if the file cannot be written.
//
//     if (kaml_backup(device, "monday.backup", NULL, NULL)) goto failed;
//     if (kaml_backup(device, "tuesday.backup", "monday.backup", NULL)) goto failed;
enum kaml_status kaml_backup(struct kaml_device device,
                             const char *path,
                             const char *since,
                             struct kaml_backup_report *report);

// As `kaml_backup`, and reports its progress to `callback`. `KAML_CANCELLED` if the callback requested the end: there is no new file then, a file that had the
// name is as it was, and the next backup begins anew. `callback` and `report` may be null; `context` is passed to the callback and not used otherwise.
//
//     static int show(void *stop, uint64_t bytes_done, uint64_t byte_count) {
//         fprintf(stderr, "\r%3d %%", (int)(100 * bytes_done / (byte_count ? byte_count : 1)));
//         return *(volatile sig_atomic_t *)stop; // which a handler of SIGINT has set
//     }
//     status = kaml_backup_with_progress(device, "monday.backup", NULL, show, (void *)&stop, NULL);
enum kaml_status kaml_backup_with_progress(struct kaml_device device,
                                           const char *path,
                                           const char *since,
                                           kaml_backup_callback callback,
                                           void *context,
                                           struct kaml_backup_report *report);

// Reads a backup and checks all of it. `report` may be null. `KAML_NOT_A_DEVICE` if it is no backup, `KAML_NEWER_VERSION` if a later version of this software has
// made it, `KAML_CORRUPT` if it is damaged or ends early.
enum kaml_status kaml_backup_verify(const char *path,
                                    struct kaml_backup_report *report);

// Makes a device of a full backup, and of incremental ones in their order. It is closed afterwards. A file gets its name when it is whole; over contents this
// needs `force` in `options`, which may be null. With a `capacity_bytes` of 0 the device is as large as the one that was backed up.
//
// As `kaml_backup_verify` for each backup; `KAML_BAD_ARGUMENT` if one does not continue the one before it, or the device is too small; as `kaml_create`.
//
//     const char *backups[2] = { "monday.backup", "tuesday.backup" };
//     if (kaml_restore(backups, 2, "copy.kaml", 0, NULL)) goto failed;
enum kaml_status kaml_restore(const char *const *backups,
                              size_t backup_count,
                              const char *path,
                              uint64_t capacity_bytes,
                              const struct kaml_create_options *options);

// As `kaml_restore`, and reports its progress to `callback`. `KAML_CANCELLED` if the callback requested the end: a file that did not exist is then removed;
// other contents are lost and cannot be opened until a restore over them ends. `callback` may be null; `context` is passed to it and not used otherwise.
enum kaml_status kaml_restore_with_progress(const char *const *backups,
                                            size_t backup_count,
                                            const char *path,
                                            uint64_t capacity_bytes,
                                            const struct kaml_create_options *options,
                                            kaml_backup_callback callback,
                                            void *context);

// Makes a device larger or smaller, while others read and write: it takes as many whole erase blocks of each log as fit `capacity_bytes` of its file or block
// device. `*taken_bytes` is what it takes; `taken_bytes` may be null. A smaller device is emptied from its end on first. A crash leaves the old size or the new one.
//
// `KAML_BAD_ARGUMENT` if the device cannot have this size; `KAML_FULL` if what is in it does not fit; `KAML_NO_SPACE` if the file system has no room; it then keeps
// its size.
enum kaml_status kaml_resize(struct kaml_device device,
                             uint64_t capacity_bytes,
                             uint64_t *taken_bytes);

// The position after everything that is durable now: `kaml_changes_open` since it yields what is committed later.
enum kaml_status kaml_position_now(struct kaml_device device,
                                   struct kaml_position *position);

// Opens a reader of what was committed after a position, in the order of the commits, each commit exactly one time. `since` null: of what is committed from now on.
// Only what is durable is shown. The device keeps as many changes as its commit ring has bytes; no commit waits for a slow reader, which
// loses its place instead. Close it with `kaml_changes_close`; closing the device closes it, too.
//
// `KAML_BAD_ARGUMENT` if the position is of another device; `KAML_SNAPSHOT_TOO_OLD`, also later, if the changes after it are not on the device any more.
//
//     kaml_changes reader;
//     kaml_change *changes;
//     size_t count;
//     kaml_position position;
//     if (kaml_changes_open(device, NULL, &reader)) goto failed;
//     while (!kaml_changes_next(reader, 1000, &changes, &count, &position)) {
//         for (size_t i = 0; i < count; i++)
//             if (changes[i].kind == KAML_CHANGE_PUT) printf("%.*s\n", (int)changes[i].key_length, (const char *)changes[i].key);
//         kaml_free(changes);
//     }
enum kaml_status kaml_changes_open(struct kaml_device device,
                                   const struct kaml_position *since,
                                   struct kaml_changes *reader);

// The changes of the next commit, of which there is at least one; none if nothing is committed within `timeout_ms`. `*changes` is an array of `*change_count`
// changes that you free with `kaml_free`; it is null if there are none. `*position` is the one after them; it may be null. The first changes describe the namespaces.
enum kaml_status kaml_changes_next(struct kaml_changes reader,
                                   uint32_t timeout_ms,
                                   struct kaml_change **changes,
                                   size_t *change_count,
                                   struct kaml_position *position);

// Closes a reader. `KAML_IN_USE` if another thread is in a call with it; it is then kept.
enum kaml_status kaml_changes_close(struct kaml_changes reader);

// As `kaml_changes_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
enum kaml_status kaml_changes_abandon(struct kaml_changes reader);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KAML_H */
