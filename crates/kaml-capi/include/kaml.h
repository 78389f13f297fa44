// kaml.h: the C API of libkaml, a key-value SSD in software.
//
// A device keeps records of 1 to 16 byte keys and values of any bytes in namespaces, on a file or block device. A Put of
// any number of records is atomic, and durable when it returns. A store over a device adds a cache and serializable
// transactions. docs/c-api.md has the whole story; examples/first.c is the shortest program.
//
// Every call answers KAML_OK or why not; kaml_last_error has the message of this thread's last failure.
//
// Ownership. What you pass in stays yours, is only read, and is not kept: it may be gone when the call returns. What is
// stored behind `void **value` is yours, and you give it back with kaml_free, from any thread, even after the device is
// closed. Strings that the library returns are not freed. Handles are numbers, not pointers: copy them as you like; one
// that was closed is refused, not followed.
//
// Threads. Everything may be called from any thread at once. A transaction is used by one thread at a time; more than
// one wait for each other. Handles do not survive fork.
//
// Pointers. Null and misaligned pointers are refused with KAML_BAD_ARGUMENT, except where a call says that they may be
// null. Nobody may change what a call reads while it runs. An answer through a pointer is there only if KAML_OK is
// answered, unless a call says otherwise.


#ifndef KAML_H
#define KAML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KAML_VERSION "0.1.0"

// What to begin with. All that is 0 is the default.
#define KAML_CREATE_OPTIONS_INIT { sizeof(kaml_create_options), 0, 0, 0, 0, 0, 0, 0, 0 }
#define KAML_OPEN_OPTIONS_INIT { sizeof(kaml_open_options), 0, 0, 0, 0 }
#define KAML_NAMESPACE_OPTIONS_INIT { sizeof(kaml_namespace_options), 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0 }
#define KAML_STORE_OPTIONS_INIT { sizeof(kaml_store_options), 0, 0, 0, 0, 0, 0, 0, NULL }
#define KAML_RETENTION_INIT { sizeof(kaml_retention), 0, 0, 1, 0, 0 }
#define KAML_CURSOR_INIT { 0, { 0 } }
#define KAML_DEVICE_INFO_INIT { sizeof(kaml_device_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }, { 0 } }
#define KAML_DEVICE_STATISTICS_INIT { sizeof(kaml_device_statistics), \
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
    { 0, 0, 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0, 0, 0 } }
#define KAML_CHECK_REPORT_INIT { sizeof(kaml_check_report), 0, 0, 0, 0, 0 }


// As the device was created; `KAML_DURABLE_POWER` when creating.
#define KAML_DURABLE_DEFAULT 0

// What is durable survives the loss of power.
#define KAML_DURABLE_POWER 1

// What is durable survives the end of the process, but not the loss of power; much faster.
#define KAML_DURABLE_PROCESS 2

// Keys of 1 to 16 bytes.
#define KAML_KEYS_BYTES 0

// Keys of exactly 8 bytes: big-endian integers (`kaml_key_u64`). They take less memory.
#define KAML_KEYS_U64 1

// Versions are found by retrieval tables.
#define KAML_INDEX_COLUMNS 0

// Versions are found by the Bloom filters of the Muninn paper: a baseline to measure.
#define KAML_INDEX_BLOOM 1

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

// Store, whether the key is there or not.
#define KAML_PUT 0

// Store a key that is not there; else nothing of the batch is stored.
#define KAML_PUT_IF_ABSENT 1

// Store a key that is there; else nothing of the batch is stored.
#define KAML_PUT_IF_PRESENT 2

// Delete, whether the key is there or not. The value is not looked at.
#define KAML_PUT_DELETE 3

// Delete a key that is there; else nothing of the batch is stored. The value is not looked at.
#define KAML_PUT_DELETE_IF_PRESENT 4

// The longest key.
#define KAML_KEY_BYTES_MAX 16

// What every call answers. Numbers keep their meaning in later versions; later versions may add some.
typedef enum kaml_status {
    // It worked.
    KAML_OK = 0,
    // No record has that key.
    KAML_NOT_FOUND = 1,
    // A record has that key already.
    KAML_EXISTS = 2,
    // The transaction waited for others that waited for it. It was aborted; run it again.
    KAML_DEADLOCK = 10,
    // A lock was not given in time. The transaction was aborted; run it again.
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
    // A key of a length that the namespace does not take.
    KAML_BAD_KEY = 24,
    // A value above the limit of the device.
    KAML_VALUE_TOO_LARGE = 25,
    // More than one Put takes.
    KAML_BATCH_TOO_LARGE = 26,
    // The value is longer than the buffer; its length was answered.
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
    // No snapshot has that number, or the key has not so many versions.
    KAML_NO_VERSION = 34,
    // A callback of the caller asked for the end.
    KAML_CANCELLED = 35,
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
    // Made by a later version of this software.
    KAML_NEWER_VERSION = 51,
    // Open in another process, or twice in this one.
    KAML_LOCKED = 52,
    // Something is there already, and it was not asked to be replaced.
    KAML_NOT_EMPTY = 53,
    // No file is there, or the directory that it was to be made in is not.
    KAML_NO_FILE = 54,
    // The system does not let this user read or write the file, or make it.
    KAML_NO_PERMISSION = 55,
    // A mistake in this library; please report it with its message.
    KAML_INTERNAL = 99,
} kaml_status;

// How a device is created. Begin with `KAML_CREATE_OPTIONS_INIT`; 0 is the default of every field.
typedef struct kaml_create_options {
    // Filled in by `KAML_CREATE_OPTIONS_INIT`.
    size_t struct_size;
    // `KAML_DURABLE_...`.
    uint32_t durability;
    // 1: format over what is there.
    uint32_t force;
    // 1: write every block once now, so that later puts are a quarter faster from the start.
    uint32_t prewrite;
    // Dies, which is the number of logs.
    uint32_t die_count;
    // Data bytes of an erase block.
    uint64_t block_bytes;
    // Bytes of the commit ring.
    uint64_t ring_bytes;
    // Bytes of a chunk.
    uint32_t chunk_bytes;
    // 0.
    uint32_t reserved;
} kaml_create_options;

// A device: a number, copied as you like. Zeros are never open.
typedef struct kaml_device {
    // Only the library knows what it means.
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
    // Of a versioned namespace: `KAML_INDEX_...`.
    uint32_t index;
    // Of a versioned namespace: bytes of its page buffer, memory and part of the commit ring.
    uint64_t version_buffer_bytes;
    // Of a versioned namespace: 1: the space of old versions is given back when it runs low; what the fields below keep
    // and what snapshots see stays. 0: nothing ever goes by itself.
    uint32_t merge_when_low;
    // So many of the newest versions of each key stay then; 0 is 1.
    uint32_t keep_last;
    // Everything put in so many nanoseconds before stays then; 0: no such rule.
    uint64_t keep_for_ns;
    // 1: the newest version of each key among those that were put around the same time stays then.
    uint32_t keep_internal;
    // 0.
    uint32_t reserved;
} kaml_namespace_options;

// A namespace of a device; never given to another one.
typedef uint32_t kaml_namespace_id;

// A namespace, as a listing tells it.
typedef struct kaml_namespace_info {
    // Records that the device has in it, or versions of all records.
    uint64_t record_count;
    // Its id.
    kaml_namespace_id namespace_id;
    // `KAML_KEYS_...`.
    uint32_t keys;
    // 1: it keeps every version of every record.
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
    // The medium in words, with its path and with what it has to do without, as io_uring; cut off where it is longer.
    char description[KAML_DESCRIPTION_BYTES];
} kaml_device_info;

// Latencies of one kind of command since the device was opened, in nanoseconds; all 0 if there was none. Two digits count.
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

// How a device stands, and what it has done since it was opened. Begin with `KAML_DEVICE_STATISTICS_INIT`.
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
    // Gets answered.
    uint64_t get_count;
    // Blocks erased.
    uint64_t erase_count;
    // Programs that failed.
    uint64_t program_failures;
    // Damaged records that garbage collection came across.
    uint64_t damaged_records;
    // Nanoseconds that opening took.
    uint64_t open_ns;
    // `page_bytes` for each of `host_bytes`; 0 before the first.
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
    // 1: a write failed and stopped the device: it takes no more changes (`KAML_STOPPED`).
    uint32_t stopped;
    // Of Puts and deletes, one for each batch.
    struct kaml_latency put_latency;
    // Of Gets.
    struct kaml_latency get_latency;
} kaml_device_statistics;

// Hears of a check while it goes on: of each problem, a sentence that is valid until it returns, and with a null `problem` how
// far the check has come, in blocks (`block_count` is 0 before they are counted). 0: go on; anything else ends the check.
// It is called by the thread that called `kaml_check` and may make any call. It has to return: no exception and no `longjmp` may
// leave it.
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

// A key that the library answers.
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
    // Its bytes, 1 to `KAML_KEY_BYTES_MAX`.
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
    // Only the library knows what it means.
    uint8_t place[24];
} kaml_cursor;

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

// What a merge keeps besides the newest version of each key: whatever one of the rules wants. Begin with
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
    // 1: change nothing, only tell what would go.
    uint32_t dry_run;
} kaml_retention;

// What a merge did, or would do.
typedef struct kaml_merge_report {
    // Versions that were looked at.
    uint64_t versions;
    // Of these, the ones that the rules keep.
    uint64_t kept;
    // Those that went.
    uint64_t dropped;
    // Their bytes.
    uint64_t dropped_bytes;
    // Segments given back.
    uint64_t segments_read;
    // Segments that took their place; not known in a dry run.
    uint64_t segments_written;
} kaml_merge_report;

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
    // 1: give locks back when a commit's place in the durable order is fixed, not when it is durable. Commits still
    // return when they are durable.
    uint32_t early_release;
    // Longest wait for a lock; 0 is two seconds.
    uint32_t lock_timeout_ms;
    // Transactions that may be open at once; 0 is 1024.
    uint32_t transactions_max;
    // How many `lock_widths` there are.
    uint32_t lock_width_count;
    // 0: a transaction is durable when its commit returns. Else commits return at once and become durable after about so many
    // microseconds, in order and many together: a crash loses the last of them, whole. `kaml_store_flush` waits for all.
    uint64_t durability_delay_us;
    // Namespaces whose `records_per_lock` differs.
    const struct kaml_lock_width *lock_widths;
} kaml_store_options;

// A store: a number, copied as you like. Zeros are never open.
typedef struct kaml_store {
    // Only the library knows what it means.
    uint64_t id;
} kaml_store;

// A transaction: a number, copied as you like. Zeros are never open.
typedef struct kaml_txn {
    // Only the library knows what it means.
    uint64_t id;
} kaml_txn;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What a status means, in general: a string that is never freed. `kaml_last_error` says what happened.
const char *kaml_strerror(int status);

// Whether a transaction that ended with this status may well succeed when it is run again from its beginning.
bool kaml_is_retryable(int status);

// What went wrong in the last call of this thread that did not answer `KAML_OK`, with names and numbers; an empty string
// if none did. Valid until the next call of this thread fails, or puts a message back; never freed by the caller.
const char *kaml_last_error(void);

// Puts a message back that was copied from `kaml_last_error`: for destructors and finalizers, whose own calls may fail
// between a call and the look at its message. `message` is copied; null is the empty string.
void kaml_set_last_error(const char *message);

// The version of the library that is loaded, `"1.2.3"`; `KAML_VERSION` is that of the header, which may be older.
const char *kaml_version(void);

// Gives back a value that the library answered. A null pointer is nothing.
void kaml_free(void *value);

// Creates a device on a file, which is made, or on a block device, and opens it. `options` may be null.
enum kaml_status kaml_create(const char *path,
                             uint64_t capacity_bytes,
                             const struct kaml_create_options *options,
                             struct kaml_device *device);

// Creates a device in memory, gone when it is closed: for tests. `options` may be null.
enum kaml_status kaml_create_in_memory(uint64_t capacity_bytes,
                                       const struct kaml_create_options *options,
                                       struct kaml_device *device);

// Opens a device. After a crash this brings back exactly what was answered. `options` may be null.
enum kaml_status kaml_open(const char *path,
                           const struct kaml_open_options *options,
                           struct kaml_device *device);

// Closes a device, so that it opens at once the next time. The handle is closed whatever the answer, except
// `KAML_IN_USE` (a store is open over it, or another thread is in a call with it) and `KAML_BAD_HANDLE`; after another
// error the device recovers when it is next opened.
enum kaml_status kaml_close(struct kaml_device device);

// The largest value and the most one Put takes, where a large value counts little.
enum kaml_status kaml_limits(struct kaml_device device, uint64_t *value_bytes_max, uint64_t *batch_bytes_max);

// Creates a namespace; durable when it returns. `name` has 1 to 255 bytes of UTF-8; `options` may be null.
enum kaml_status kaml_create_namespace(struct kaml_device device,
                                       const char *name,
                                       const struct kaml_namespace_options *options,
                                       kaml_namespace_id *namespace_id);

// Finds a namespace by its name. Nothing has to be closed.
enum kaml_status kaml_namespace(struct kaml_device device, const char *name, kaml_namespace_id *namespace_id);

// Tells the namespaces of a device in the order of their ids, up to `namespace_count_max` of them. `*namespace_count` is how
// many there are, also if they are more.
enum kaml_status kaml_namespaces(struct kaml_device device,
                                 struct kaml_namespace_info *namespaces,
                                 size_t namespace_count_max,
                                 size_t *namespace_count);

// Deletes a namespace with everything in it; durable when it returns. Also while a store is open over the device:
// transactions that use the namespace fail then.
enum kaml_status kaml_delete_namespace(struct kaml_device device,
                                       kaml_namespace_id namespace_id);

// Tells what a device is. Reads no flash.
enum kaml_status kaml_info(struct kaml_device device, struct kaml_device_info *info);

// Tells how a device stands, and what it has done since it was opened. `kaml_namespaces` tells how many records each namespace
// has. Reads no flash, but looks at every block: ask once a second, not once a Put.
enum kaml_status kaml_statistics(struct kaml_device device,
                                 struct kaml_device_statistics *statistics);

// Reads everything that is durable and checks it: records and versions against their checksums and the indexes, live data against
// what is accounted. `KAML_OK` also if there are problems: `problem_count` says how many, `callback` hears each. Others may go on
// meanwhile; what they change while it is being read is not judged. `KAML_CANCELLED` if the callback asked for the end, without a
// report; `KAML_STOPPED` if the device takes no more changes: open it again first. `callback` and `report` may be null; `context`
// is handed to the callback and not looked at.
enum kaml_status kaml_check(struct kaml_device device,
                            kaml_check_callback callback,
                            void *context,
                            struct kaml_check_report *report);

// The key of a number, for namespaces of `KAML_KEYS_U64`: 8 bytes, big-endian.
struct kaml_key kaml_key_u64(uint64_t number);

// Reads a value. `*value` is the caller's from then on and is given back with `kaml_free`; it is null if there is none
// (`KAML_NOT_FOUND`).
enum kaml_status kaml_get(struct kaml_device device,
                          kaml_namespace_id namespace_id,
                          const void *key,
                          size_t key_length,
                          void **value,
                          size_t *value_length);

// Reads a value into a buffer of the caller. If it does not fit, `KAML_BUFFER_TOO_SMALL` is answered, the buffer is as
// it was, and `*value_length` is what it takes.
enum kaml_status kaml_get_into(struct kaml_device device,
                               kaml_namespace_id namespace_id,
                               const void *key,
                               size_t key_length,
                               void *buffer,
                               size_t buffer_bytes,
                               size_t *value_length);

// Whether a key is there: `KAML_OK` or `KAML_NOT_FOUND`. Never reads flash.
enum kaml_status kaml_exists(struct kaml_device device,
                             kaml_namespace_id namespace_id,
                             const void *key,
                             size_t key_length);

// Stores records over any namespaces, all or none; durable when it returns. Later records of one key win over earlier
// ones; conditions are judged as things stood before. Versioned namespaces know the conditions `KAML_PUT_IF_ABSENT` and
// `KAML_PUT_IF_PRESENT`, of one record that is put alone; all others there are `KAML_BAD_ARGUMENT`, and nothing is stored.
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

// Deletes a record, whether it is there or not; durable when it returns.
enum kaml_status kaml_delete(struct kaml_device device,
                             kaml_namespace_id namespace_id,
                             const void *key,
                             size_t key_length);

// Lists the keys of a namespace, up to `key_count_max` with each call, in no order that means anything. A
// `*key_count` of 0 is the end. Every key that is there all the time is listed exactly once. What is unflushed in a
// store is not seen.
enum kaml_status kaml_list(struct kaml_device device,
                           kaml_namespace_id namespace_id,
                           struct kaml_cursor *cursor,
                           struct kaml_key *keys,
                           size_t key_count_max,
                           size_t *key_count);

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

// Tells the versions of a key, newest first, up to `version_count_max` with each call: all that are kept, those that a rollback
// hid included. A `*version_count` of 0 is the end: at once if the key was never put. What is put after the first call is not
// told.
enum kaml_status kaml_history(struct kaml_device device,
                              kaml_namespace_id namespace_id,
                              const void *key,
                              size_t key_length,
                              struct kaml_cursor *cursor,
                              struct kaml_version_info *versions,
                              size_t version_count_max,
                              size_t *version_count);

// Takes a snapshot, which costs nothing: what is there now stays readable under its number. Durable when it returns. A
// store that is open over the device is flushed first.
enum kaml_status kaml_snapshot(struct kaml_device device,
                               kaml_namespace_id namespace_id,
                               uint32_t *snapshot);

// Tells the snapshots of a namespace, oldest first, up to `snapshot_count_max` of them. `*snapshot_count` is how many there
// are, also if they are more.
enum kaml_status kaml_snapshots(struct kaml_device device,
                                kaml_namespace_id namespace_id,
                                struct kaml_snapshot_info *snapshots,
                                size_t snapshot_count_max,
                                size_t *snapshot_count);

// Forgets a snapshot: what only it sees goes with the next merge. Durable when it returns.
enum kaml_status kaml_forget_snapshot(struct kaml_device device,
                                      kaml_namespace_id namespace_id,
                                      uint32_t snapshot);

// Makes a namespace look as it did in a snapshot. What it looked like before is taken as a snapshot first, `*before`:
// rolling back to that one undoes it. Durable when it returns. `KAML_IN_USE` while a store is open over the device.
enum kaml_status kaml_roll_back(struct kaml_device device,
                                kaml_namespace_id namespace_id,
                                uint32_t snapshot,
                                uint32_t *before);

// Undoes the last changes of a key: what it was before them becomes its newest version, or it is deleted if it was not
// there. Durable when it returns. `KAML_IN_USE` while a store is open over the device.
enum kaml_status kaml_undo(struct kaml_device device,
                           kaml_namespace_id namespace_id,
                           const void *key,
                           size_t key_length,
                           uint32_t changes);

// Gives the space of versions back that the rules do not keep, while others put and get, also through a store. `report`
// may be null.
enum kaml_status kaml_merge(struct kaml_device device,
                            kaml_namespace_id namespace_id,
                            const struct kaml_retention *rules,
                            struct kaml_merge_report *report);

// Opens a store over a device: a cache of records with transactions. While it is open, records of the device are
// changed through it alone (`kaml_put`, `kaml_put_one`, `kaml_delete`, `kaml_roll_back` and `kaml_undo` answer
// `KAML_IN_USE`), and the device is not closed.
// `options` may be null.
enum kaml_status kaml_store_open(struct kaml_device device,
                                 uint64_t cache_bytes,
                                 const struct kaml_store_options *options,
                                 struct kaml_store *store);

// Flushes a store and closes it. The handle is closed whatever the answer, except `KAML_IN_USE` (transactions are not
// freed, or another thread is in a call with it) and `KAML_BAD_HANDLE`; after another error unflushed puts are lost.
enum kaml_status kaml_store_close(struct kaml_store store);

// Makes everything durable that was put or committed before.
enum kaml_status kaml_store_flush(struct kaml_store store);

// Goes on after commits with a durability delay were lost (`KAML_COMMITS_LOST`): records are as they were before these.
// `*count` is how many they were, 0 if none are; it may be null.
enum kaml_status kaml_store_acknowledge_lost(struct kaml_store store,
                                             uint64_t *count);

// Reads a value through the cache. `*value` is the caller's from then on and is given back with `kaml_free`; it is null
// if there is none (`KAML_NOT_FOUND`).
enum kaml_status kaml_store_get(struct kaml_store store,
                                kaml_namespace_id namespace_id,
                                const void *key,
                                size_t key_length,
                                void **value,
                                size_t *value_length);

// Reads a value through the cache into a buffer of the caller. If it does not fit, `KAML_BUFFER_TOO_SMALL` is answered,
// the buffer is as it was, and `*value_length` is what it takes.
enum kaml_status kaml_store_get_into(struct kaml_store store,
                                     kaml_namespace_id namespace_id,
                                     const void *key,
                                     size_t key_length,
                                     void *buffer,
                                     size_t buffer_bytes,
                                     size_t *value_length);

// Whether a key is there: `KAML_OK` or `KAML_NOT_FOUND`. Never reads flash.
enum kaml_status kaml_store_exists(struct kaml_store store,
                                   kaml_namespace_id namespace_id,
                                   const void *key,
                                   size_t key_length);

// Stores a record; durable as the store's `write_mode` says.
enum kaml_status kaml_store_put(struct kaml_store store,
                                kaml_namespace_id namespace_id,
                                const void *key,
                                size_t key_length,
                                const void *value,
                                size_t value_length);

// Deletes a record, whether it is there or not; durable as the store's `write_mode` says.
enum kaml_status kaml_store_delete(struct kaml_store store,
                                   kaml_namespace_id namespace_id,
                                   const void *key,
                                   size_t key_length);

// Begins a transaction. It is freed with `kaml_txn_free`, after it was committed or aborted. If a call aborts it
// (`KAML_DEADLOCK`, `KAML_LOCK_TIMEOUT`, `KAML_DEPENDENCY_LOST`), all later calls but that one answer the same.
enum kaml_status kaml_txn_begin(struct kaml_store store,
                                struct kaml_txn *txn);

// Reads a record, or that there is none (`KAML_NOT_FOUND`): nobody changes it until the transaction ends. `*value` is
// the caller's from then on and is given back with `kaml_free`.
enum kaml_status kaml_txn_read(struct kaml_txn txn,
                               kaml_namespace_id namespace_id,
                               const void *key,
                               size_t key_length,
                               void **value,
                               size_t *value_length);

// As `kaml_txn_read`, for a record that is going to be changed: nobody else reads it for that either. This avoids
// deadlocks.
enum kaml_status kaml_txn_read_for_update(struct kaml_txn txn,
                                          kaml_namespace_id namespace_id,
                                          const void *key,
                                          size_t key_length,
                                          void **value,
                                          size_t *value_length);

// Changes a record that is there; else `KAML_NOT_FOUND`, and the transaction goes on.
enum kaml_status kaml_txn_update(struct kaml_txn txn,
                                 kaml_namespace_id namespace_id,
                                 const void *key,
                                 size_t key_length,
                                 const void *value,
                                 size_t value_length);

// Stores a record, whether it is there or not.
enum kaml_status kaml_txn_upsert(struct kaml_txn txn,
                                 kaml_namespace_id namespace_id,
                                 const void *key,
                                 size_t key_length,
                                 const void *value,
                                 size_t value_length);

// Stores a record that is not there; else `KAML_EXISTS`, and the transaction goes on.
enum kaml_status kaml_txn_insert(struct kaml_txn txn,
                                 kaml_namespace_id namespace_id,
                                 const void *key,
                                 size_t key_length,
                                 const void *value,
                                 size_t value_length);

// Deletes a record that is there; else `KAML_NOT_FOUND`, and the transaction goes on.
enum kaml_status kaml_txn_delete(struct kaml_txn txn,
                                 kaml_namespace_id namespace_id,
                                 const void *key,
                                 size_t key_length);

// Makes all changes durable, together; with a `durability_delay_us` they are visible when it returns, and durable soon. After
// an error the transaction is aborted; if the device failed, its changes may nevertheless be there, all or none.
enum kaml_status kaml_txn_commit(struct kaml_txn txn);

// As `kaml_txn_commit`, and waits until the changes are durable whatever the store's delay is.
enum kaml_status kaml_txn_commit_durable(struct kaml_txn txn);

// Abandons all changes.
enum kaml_status kaml_txn_abort(struct kaml_txn txn);

// Gives back a transaction that was committed or aborted, by its user or by a deadlock. One that is active stays as it
// is (`KAML_BAD_STATE`): commit or abort it first.
enum kaml_status kaml_txn_free(struct kaml_txn txn);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KAML_H */
