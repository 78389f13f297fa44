// kaml_sqlite.c: SQLite databases in the namespaces of a KAML device, as a loadable extension of SQLite.
//
// Lives here:       the VFS `kaml`: databases as records, locks between connections, commits, snapshots.
// Lives elsewhere:  the device (libkaml, kaml.h); how it is used (README.md); everything that SQLite keeps for itself in files of
//                   no database (the VFS that was the default).
// Implements:       SQLite's interfaces sqlite3_vfs and sqlite3_io_methods, version 1; README.md "Format".
//
// A database is a namespace with keys of 8 bytes. It is cut into units of 4096 bytes, each a record. What a transaction writes
// is collected in memory. Zeroes at the end of a unit are not stored. SQLite makes it durable with xSync; then it becomes one Put, so there is no journal on the
// device: a crash leaves all of a transaction or nothing. SQLite's own journal is in memory, for ROLLBACK.
//
// A commit that is too large for one Put is written in three steps: its units under keys of their own, a head that makes
// them count, and their places. Whoever opens the database after a crash does the third step again, or removes what the
// first one left. Databases of one device that are attached together commit together: SQLite removes the super-journal as
// the last step, and that becomes the Put of all of them.
//
// One process has the device. Connections of all its threads share the tables below, under one mutex. No call waits for another connection's
// transaction: SQLite is told that the database is busy, and asks again.
#include <kaml.h>
#include <limits.h>
#include <pthread.h>
#include <sqlite3ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT1

enum {
    UNIT = 4096,
    // What a record of a Put takes besides its value, at most.
    RECORD_OVERHEAD = 96,
    HEAD_BYTES = 32,
    // SQLite's header of a database.
    FIRST_BYTES = 100,
    VERSION = 1,
    LISTED = 1024,
};

static const char MAGIC[8] = "KAMLSQL";
// Units of a commit that is not in its place yet have this bit in their keys.
static const uint64_t STAGED = 1ull << 63;

// What the record with key 0 states.
struct head {
    uint64_t size;
    // 0: none; 1: a commit is being staged; 2: a staged commit counts.
    uint32_t staged;
};

struct device {
    char *path;
    kaml_device handle;
    uint64_t batch_bytes_max;
    int users;
    struct device *next;
};

struct file;

struct database {
    struct device *device;
    kaml_namespace_id id;
    struct head head;
    bool is_versioned;
    // A commit counts that is not in its place: nothing is read until the last connection has closed and the next one ends it.
    bool is_failed;
    // The beginning of the first page as the last commit left it: each transaction looks there for changes of others. A connection with a lock reads
    // it, and only the one that has locked it for itself alone changes it.
    unsigned char first[FIRST_BYTES];
    bool has_first;
    int users;
    // Who has locked it.
    int shared_count;
    struct file *reserved, *pending, *exclusive;
    struct database *next;
};

// A unit that was written and is not stored yet.
struct unit {
    uint64_t number;
    unsigned char bytes[UNIT];
};

// An open database, the main file of a connection.
struct file {
    sqlite3_file base;
    struct database *database;
    char *journal; // SQLite's name of its journal
    int lock;
    bool is_past;
    uint32_t as_of;
    struct head past;
    // Written and not stored: an open table of units by their numbers.
    struct unit **units;
    size_t unit_count, cell_count;
    uint64_t size, least_size; // since the last commit
    bool is_changed;
    struct file *next;
};

// A journal: bytes in memory. A super-journal is found by its name.
struct journal {
    sqlite3_file base;
    unsigned char *bytes;
    size_t length, room;
    char *name; // of a super-journal
    bool is_closed;
    struct journal *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct device *devices;
static struct database *databases;
static struct file *files;
static struct journal *super_journals;
static sqlite3_vfs *other;

// --- errors and small things ------------------------------------------------------------------------------------------

static int failed(enum kaml_status status, int code) {
    sqlite3_log(code, "kaml: %s", kaml_last_error());
    switch (status) {
    case KAML_OK: return SQLITE_OK;
    case KAML_FULL:
    case KAML_NO_SPACE: return SQLITE_FULL;
    case KAML_LOCKED:
    case KAML_IN_USE: return SQLITE_BUSY;
    case KAML_NO_RESOURCES: return SQLITE_NOMEM;
    case KAML_READ_ONLY: return SQLITE_READONLY;
    default: return code;
    }
}

static void put_key(unsigned char *key, uint64_t number) {
    for (int at = 7; at >= 0; at--, number >>= 8) {
        key[at] = (unsigned char)number;
    }
}

static uint64_t get_key(const unsigned char *key) {
    uint64_t number = 0;
    for (int at = 0; at < 8; at++) {
        number = number << 8 | key[at];
    }
    return number;
}

static uint64_t units_of(uint64_t size) { return size / UNIT + (size % UNIT != 0); }

static void write_head(unsigned char *bytes, struct head head) {
    memset(bytes, 0, HEAD_BYTES);
    memcpy(bytes, MAGIC, sizeof MAGIC);
    put_key(bytes + 8, (uint64_t)VERSION << 32 | head.staged);
    put_key(bytes + 16, head.size);
    put_key(bytes + 24, UNIT);
}

static bool read_head(const unsigned char *bytes, size_t length, struct head *head) {
    if (length != HEAD_BYTES || memcmp(bytes, MAGIC, sizeof MAGIC) != 0 || get_key(bytes + 24) != UNIT ||
        get_key(bytes + 8) >> 32 != VERSION) {
        return false;
    }
    head->staged = (uint32_t)get_key(bytes + 8);
    head->size = get_key(bytes + 16);
    return head->staged <= 2 && head->size < STAGED;
}

// --- records ----------------------------------------------------------------------------------------------------------

// Records of a Put that grows; the keys and heads are its own, the units are not.
struct put {
    kaml_record *records;
    unsigned char (*keys)[8];
    size_t count, room;
};

static bool reserve(struct put *put, size_t more) {
    if (put->count + more <= put->room) {
        return true;
    }
    size_t room = (put->count + more) * 2;
    kaml_record *records = realloc(put->records, room * sizeof *records);
    if (records != NULL) {
        put->records = records;
    }
    unsigned char(*keys)[8] = realloc(put->keys, room * sizeof *keys);
    if (keys != NULL) {
        put->keys = keys;
    }
    if (records == NULL || keys == NULL) {
        return false;
    }
    put->room = room;
    return true;
}

static bool add(struct put *put, kaml_namespace_id id, uint32_t action, uint64_t key, const void *value, size_t length) {
    if (!reserve(put, 1)) {
        return false;
    }
    put_key(put->keys[put->count], key);
    put->records[put->count++] = (kaml_record){id, action, NULL, 8, value, length};
    return true;
}

static int store(struct device *device, struct put *put) {
    for (size_t at = 0; at < put->count; at++) {
        put->records[at].key = put->keys[at];
    }
    enum kaml_status status = put->count > 0 ? kaml_put(device->handle, put->records, put->count) : KAML_OK;
    put->count = 0;
    return status == KAML_OK ? SQLITE_OK : failed(status, SQLITE_IOERR_WRITE);
}

static void release(struct put *put) {
    free(put->records);
    free(put->keys);
    *put = (struct put){0};
}

// So many units a Put takes for sure, and a head with them.
static size_t units_at_once(const struct device *device) {
    uint64_t count = device->batch_bytes_max / (UNIT + RECORD_OVERHEAD);
    return count > 2 ? (size_t)count - 1 : 1;
}

static int get(struct file *file, uint64_t key, void *buffer, size_t room, size_t *length) {
    struct database *database = file->database;
    unsigned char bytes[8];
    put_key(bytes, key);
    if (!file->is_past) {
        enum kaml_status status =
            kaml_get_into(database->device->handle, database->id, bytes, sizeof bytes, buffer, room, length);
        if (status == KAML_NOT_FOUND) {
            *length = 0;
            return SQLITE_OK;
        }
        return status == KAML_OK ? SQLITE_OK : failed(status, SQLITE_IOERR_READ);
    }
    void *value;
    enum kaml_status status =
        kaml_get_as_of(database->device->handle, database->id, file->as_of, bytes, sizeof bytes, &value, length);
    if (status == KAML_NOT_FOUND) {
        *length = 0;
        return SQLITE_OK;
    }
    if (status != KAML_OK) {
        return failed(status, SQLITE_IOERR_READ);
    }
    *length = *length < room ? *length : room;
    memcpy(buffer, value, *length);
    kaml_free(value);
    return SQLITE_OK;
}

// --- what a connection has written ------------------------------------------------------------------------------------

static size_t cell_of(const struct file *file, uint64_t number) {
    size_t cell = (size_t)(number * 0x9E3779B97F4A7C15ull >> 20) & (file->cell_count - 1);
    while (file->units[cell] != NULL && file->units[cell]->number != number) {
        cell = (cell + 1) & (file->cell_count - 1);
    }
    return cell;
}

static struct unit *find_unit(const struct file *file, uint64_t number) {
    return file->unit_count > 0 ? file->units[cell_of(file, number)] : NULL;
}

static bool grow(struct file *file) {
    if ((file->unit_count + 1) * 2 <= file->cell_count) {
        return true;
    }
    struct unit **old = file->units;
    size_t old_count = file->cell_count, count = old_count > 0 ? old_count * 2 : 64;
    struct unit **units = calloc(count, sizeof *units);
    if (units == NULL) {
        return false;
    }
    file->units = units;
    file->cell_count = count;
    for (size_t at = 0; at < old_count; at++) {
        if (old[at] != NULL) {
            units[cell_of(file, old[at]->number)] = old[at];
        }
    }
    free(old);
    return true;
}

static void discard(struct file *file) {
    for (size_t at = 0; at < file->cell_count; at++) {
        free(file->units[at]);
    }
    free(file->units);
    file->units = NULL;
    file->unit_count = file->cell_count = 0;
    file->is_changed = false;
}

static uint64_t size_of(const struct file *file) {
    if (file->is_past) {
        return file->past.size;
    }
    return file->is_changed ? file->size : file->database->head.size;
}

// The content of a unit; what the database does not have is zero.
static int read_unit(struct file *file, uint64_t number, unsigned char *bytes) {
    struct unit *unit = find_unit(file, number);
    if (unit != NULL) {
        memcpy(bytes, unit->bytes, UNIT);
        return SQLITE_OK;
    }
    size_t length = 0;
    // What was cut off has no content any more, also if the database has grown again.
    if (number < units_of(file->is_changed ? file->least_size : size_of(file))) {
        int code = get(file, number + 1, bytes, UNIT, &length);
        if (code != SQLITE_OK) {
            return code;
        }
    }
    memset(bytes + length, 0, UNIT - length);
    return SQLITE_OK;
}

static int change_unit(struct file *file, uint64_t number, bool is_whole, struct unit **unit) {
    *unit = find_unit(file, number);
    if (*unit != NULL) {
        return SQLITE_OK;
    }
    struct unit *new = malloc(sizeof *new);
    if (new == NULL || !grow(file)) {
        free(new);
        return SQLITE_NOMEM;
    }
    int code = is_whole ? SQLITE_OK : read_unit(file, number, new->bytes);
    if (code != SQLITE_OK) {
        free(new);
        return code;
    }
    new->number = number;
    file->units[cell_of(file, number)] = *unit = new;
    file->unit_count++;
    return SQLITE_OK;
}

static void begin_change(struct file *file) {
    if (!file->is_changed) {
        file->size = file->least_size = file->database->head.size;
        file->is_changed = true;
    }
}

// --- commits ----------------------------------------------------------------------------------------------------------

// Bytes of a unit before the zeroes at its end.
static size_t length_of(const struct unit *unit) {
    size_t length = UNIT;
    while (length >= 8 && memcmp(unit->bytes + length - 8, "\0\0\0\0\0\0\0", 8) == 0) {
        length -= 8;
    }
    return length;
}

// Applies one step to each unit that a file has written and that is part of the database.
static int each_unit(struct file *file, struct put *put, uint64_t bit, bool removes_staged) {
    struct database *database = file->database;
    size_t at_once = units_at_once(database->device) / (removes_staged ? 2 : 1);
    for (size_t at = 0; at < file->cell_count; at++) {
        struct unit *unit = file->units[at];
        if (unit == NULL || unit->number >= units_of(file->size)) {
            continue;
        }
        uint64_t key = unit->number + 1;
        if (!add(put, database->id, KAML_PUT, key | bit, unit->bytes, length_of(unit)) ||
            (removes_staged && !add(put, database->id, KAML_PUT_DELETE, key | STAGED, NULL, 0))) {
            return SQLITE_NOMEM;
        }
        if (put->count >= (at_once > 0 ? at_once : 1)) {
            int code = store(database->device, put);
            if (code != SQLITE_OK) {
                return code;
            }
        }
    }
    return SQLITE_OK;
}

// Removes the units after the new end.
static int cut(struct database *database, struct put *put, uint64_t old_size, uint64_t new_size, bool at_once) {
    for (uint64_t number = units_of(new_size); number < units_of(old_size); number++) {
        if (!add(put, database->id, KAML_PUT_DELETE, number + 1, NULL, 0)) {
            return SQLITE_NOMEM;
        }
        if (!at_once && put->count >= units_at_once(database->device)) {
            int code = store(database->device, put);
            if (code != SQLITE_OK) {
                return code;
            }
        }
    }
    return SQLITE_OK;
}

static int store_heads(struct file **changed, size_t count, uint32_t staged, bool is_new) {
    struct put put = {0};
    unsigned char(*heads)[HEAD_BYTES] = calloc(count, sizeof *heads);
    int code = heads != NULL ? SQLITE_OK : SQLITE_NOMEM;
    for (size_t at = 0; at < count && code == SQLITE_OK; at++) {
        uint64_t size = is_new ? changed[at]->size : changed[at]->database->head.size;
        write_head(heads[at], (struct head){size, staged});
        if (!add(&put, changed[at]->database->id, KAML_PUT, 0, heads[at], HEAD_BYTES)) {
            code = SQLITE_NOMEM;
        }
    }
    if (code == SQLITE_OK) {
        code = store(changed[0]->database->device, &put);
    }
    release(&put);
    free(heads);
    return code;
}

// Units that were cut off and are part of the database again have no content.
static int fill_holes(struct file *file, uint64_t end) {
    int code = SQLITE_OK;
    for (uint64_t number = units_of(file->least_size); number < end && code == SQLITE_OK; number++) {
        struct unit *unit;
        code = change_unit(file, number, false, &unit);
    }
    return code;
}

static int recover(struct database *database);

// Stores what files of one device have written: all of it or nothing. A failure after the step that makes it count is no failure: the rest is done
// when the database is opened again, and until then the connection cannot be used.
static int commit(struct file **changed, size_t count) {
    struct device *device = changed[0]->database->device;
    struct put put = {0};
    uint64_t records = 0;
    int code = SQLITE_OK;
    for (size_t at = 0; at < count && code == SQLITE_OK; at++) {
        uint64_t before = units_of(changed[at]->database->head.size), after = units_of(changed[at]->size);
        code = fill_holes(changed[at], before < after ? before : after);
        records += changed[at]->unit_count + 1 + (before > after ? before - after : 0);
    }
    bool is_small = records <= units_at_once(device);
    if (code != SQLITE_OK) {
        return code;
    }
    if (is_small) {
        unsigned char(*heads)[HEAD_BYTES] = calloc(count, sizeof *heads);
        code = heads != NULL ? SQLITE_OK : SQLITE_NOMEM;
        for (size_t at = 0; at < count && code == SQLITE_OK; at++) {
            struct file *file = changed[at];
            write_head(heads[at], (struct head){file->size, 0});
            for (size_t cell = 0; cell < file->cell_count && code == SQLITE_OK; cell++) {
                struct unit *unit = file->units[cell];
                if (unit != NULL && unit->number < units_of(file->size) &&
                    !add(&put, file->database->id, KAML_PUT, unit->number + 1, unit->bytes,
                         length_of(unit))) {
                    code = SQLITE_NOMEM;
                }
            }
            if (code == SQLITE_OK) {
                code = cut(file->database, &put, file->database->head.size, file->size, true);
            }
            // Most commits change no size: the head that is stored says the same.
            bool has_head = file->database->head.staged == 0 && file->size > 0 && file->database->head.size == file->size;
            if (code == SQLITE_OK && !has_head && !add(&put, file->database->id, KAML_PUT, 0, heads[at], HEAD_BYTES)) {
                code = SQLITE_NOMEM;
            }
        }
        if (code == SQLITE_OK) {
            code = store(device, &put);
        }
        free(heads);
    } else {
        code = store_heads(changed, count, 1, false);
        for (size_t at = 0; at < count && code == SQLITE_OK; at++) {
            code = each_unit(changed[at], &put, STAGED, false);
        }
        if (code == SQLITE_OK) {
            code = store(device, &put);
        }
        if (code == SQLITE_OK) {
            code = store_heads(changed, count, 2, true);
        }
        for (size_t at = 0; at < count && code != SQLITE_OK; at++) {
            // Units of this commit must not be taken for those of the next one.
            changed[at]->database->is_failed |= recover(changed[at]->database) != SQLITE_OK;
        }
        if (code == SQLITE_OK) { // from here on it is committed
            int later = SQLITE_OK;
            for (size_t at = 0; at < count && later == SQLITE_OK; at++) {
                later = each_unit(changed[at], &put, 0, true);
                if (later == SQLITE_OK) {
                    later = cut(changed[at]->database, &put, changed[at]->database->head.size, changed[at]->size, false);
                }
            }
            later = later == SQLITE_OK ? store(device, &put) : later;
            later = later == SQLITE_OK ? store_heads(changed, count, 0, true) : later;
            for (size_t at = 0; at < count; at++) {
                changed[at]->database->is_failed |= later != SQLITE_OK;
            }
        }
    }
    release(&put);
    for (size_t at = 0; at < count; at++) {
        struct database *database = changed[at]->database;
        const struct unit *first = find_unit(changed[at], 0);
        database->has_first = code == SQLITE_OK && changed[at]->size >= FIRST_BYTES && (database->has_first || first != NULL);
        if (database->has_first && first != NULL) {
            memcpy(database->first, first->bytes, FIRST_BYTES);
        }
    }
    for (size_t at = 0; at < count && code == SQLITE_OK; at++) {
        changed[at]->database->head = (struct head){changed[at]->size, 0};
        discard(changed[at]);
    }
    return code;
}

// Ends a commit that a crash interrupted, or removes what is left of one that never counted.
static int recover(struct database *database) {
    struct device *device = database->device;
    kaml_cursor cursor = KAML_CURSOR_INIT;
    kaml_key *keys = calloc(LISTED, sizeof *keys);
    unsigned char *units = malloc((size_t)LISTED * UNIT);
    struct put put = {0};
    int code = keys != NULL && units != NULL ? SQLITE_OK : SQLITE_NOMEM;
    uint64_t end = units_of(database->head.size);
    for (size_t count = 1; code == SQLITE_OK && count > 0;) {
        enum kaml_status status = kaml_list(device->handle, database->id, &cursor, keys, LISTED, &count);
        if (status != KAML_OK) {
            code = failed(status, SQLITE_IOERR_READ);
            break;
        }
        for (size_t at = 0; at < count && code == SQLITE_OK; at++) {
            uint64_t key = get_key(keys[at].bytes);
            bool is_staged = (key & STAGED) != 0, is_removed = is_staged || (database->head.staged == 2 && key > end);
            if (is_staged && database->head.staged == 2) {
                size_t length = 0;
                status = kaml_get_into(device->handle, database->id, keys[at].bytes, 8, units + at * UNIT, UNIT, &length);
                if (status != KAML_OK) {
                    code = failed(status, SQLITE_IOERR_READ);
                } else if (!add(&put, database->id, KAML_PUT, key & ~STAGED, units + at * UNIT, length)) {
                    code = SQLITE_NOMEM;
                }
            }
            if (code == SQLITE_OK && is_removed && !add(&put, database->id, KAML_PUT_DELETE, key, NULL, 0)) {
                code = SQLITE_NOMEM;
            }
            // A unit and the removal of its copy are in one Put.
            if (code == SQLITE_OK && put.count + 2 > units_at_once(device)) {
                code = store(device, &put);
            }
        }
        if (code == SQLITE_OK) {
            code = store(device, &put);
        }
    }
    unsigned char head[HEAD_BYTES];
    database->head.staged = 0;
    write_head(head, database->head);
    if (code == SQLITE_OK && !add(&put, database->id, KAML_PUT, 0, head, HEAD_BYTES)) {
        code = SQLITE_NOMEM;
    }
    if (code == SQLITE_OK) {
        code = store(device, &put);
    }
    release(&put);
    free(keys);
    free(units);
    return code;
}

static bool names(const struct journal *super, const char *journal) {
    for (size_t at = 0; at < super->length; at += strnlen((const char *)super->bytes + at, super->length - at) + 1) {
        if (strncmp((const char *)super->bytes + at, journal, super->length - at) == 0) {
            return true;
        }
    }
    return false;
}

// Whether a commit of several databases will store this one with the others.
static bool waits_for_others(const struct file *file) {
    for (struct journal *super = super_journals; super != NULL; super = super->next) {
        if (file->journal != NULL && names(super, file->journal)) {
            return true;
        }
    }
    return false;
}

// Stores what the databases of a super-journal have written; those of one device all or nothing.
static int commit_together(const struct journal *super) {
    int code = SQLITE_OK;
    for (struct device *device = devices; device != NULL && code == SQLITE_OK; device = device->next) {
        size_t count = 0;
        for (struct file *file = files; file != NULL; file = file->next) {
            count += file->is_changed && file->database->device == device && names(super, file->journal);
        }
        struct file **changed = count > 0 ? calloc(count, sizeof *changed) : NULL;
        if (count > 0 && changed == NULL) {
            return SQLITE_NOMEM;
        }
        size_t at = 0;
        for (struct file *file = files; file != NULL; file = file->next) {
            if (file->is_changed && file->database->device == device && names(super, file->journal)) {
                changed[at++] = file;
            }
        }
        code = count > 0 ? commit(changed, count) : SQLITE_OK;
        free(changed);
    }
    return code;
}

// A transaction that has ended is not committed with others any more.
static void forget_super_journals(const struct file *file) {
    for (struct journal **at = &super_journals; *at != NULL;) {
        struct journal *super = *at;
        if (super->is_closed && file->journal != NULL && names(super, file->journal)) {
            *at = super->next;
            free(super->bytes);
            free(super->name);
            free(super);
        } else {
            at = &super->next;
        }
    }
}

// --- the methods of a database ----------------------------------------------------------------------------------------

static void unlock(struct file *file, int level) {
    struct database *database = file->database;
    if (file->lock <= level) {
        return;
    }
    if (level <= SQLITE_LOCK_SHARED) {
        // What was neither stored nor committed belongs to a transaction that failed.
        discard(file);
        forget_super_journals(file);
        database->reserved = database->reserved == file ? NULL : database->reserved;
        database->pending = database->pending == file ? NULL : database->pending;
        database->exclusive = database->exclusive == file ? NULL : database->exclusive;
    }
    if (level == SQLITE_LOCK_NONE && file->lock >= SQLITE_LOCK_SHARED) {
        database->shared_count--;
    }
    file->lock = level;
}

static void release_device(struct device *device);

static void close_database(struct database *database) {
    if (--database->users > 0) {
        return;
    }
    for (struct database **at = &databases; *at != NULL; at = &(*at)->next) {
        if (*at == database) {
            *at = database->next;
            break;
        }
    }
    struct device *device = database->device;
    free(database);
    release_device(device);
}

static void release_device(struct device *device) {
    if (--device->users > 0) {
        return;
    }
    for (struct device **at = &devices; *at != NULL; at = &(*at)->next) {
        if (*at == device) {
            *at = device->next;
            break;
        }
    }
    if (kaml_close(device->handle) != KAML_OK) {
        sqlite3_log(SQLITE_WARNING, "kaml: %s", kaml_last_error());
    }
    free(device->path);
    free(device);
}

static int file_close(sqlite3_file *base) {
    struct file *file = (struct file *)base;
    pthread_mutex_lock(&mutex);
    if (!file->is_past) {
        unlock(file, SQLITE_LOCK_NONE);
    }
    discard(file);
    for (struct file **at = &files; *at != NULL; at = &(*at)->next) {
        if (*at == file) {
            *at = file->next;
            break;
        }
    }
    close_database(file->database);
    free(file->journal);
    pthread_mutex_unlock(&mutex);
    return SQLITE_OK;
}

static int file_read(sqlite3_file *base, void *buffer, int count, sqlite3_int64 offset) {
    struct file *file = (struct file *)base;
    if (file->database->is_failed) {
        return SQLITE_IOERR_READ;
    }
    uint64_t size = size_of(file), from = (uint64_t)offset, to = from + (uint64_t)count;
    unsigned char unit[UNIT], *out = buffer;
    if (file->database->has_first && to <= FIRST_BYTES && file->lock != SQLITE_LOCK_NONE && !file->is_past && !file->is_changed) {
        memcpy(buffer, file->database->first + from, (size_t)count);
        return SQLITE_OK;
    }
    for (uint64_t at = from; at < to;) {
        uint64_t number = at / UNIT, skip = at % UNIT, some = UNIT - skip < to - at ? UNIT - skip : to - at;
        bool is_direct = skip == 0 && some == UNIT;
        int code = read_unit(file, number, is_direct ? out : unit);
        if (code != SQLITE_OK) {
            return code;
        }
        if (!is_direct) {
            memcpy(out, unit + skip, (size_t)some);
        }
        out += some;
        at += some;
    }
    if (to <= size) {
        return SQLITE_OK;
    }
    uint64_t there = size > from ? size - from : 0;
    memset((unsigned char *)buffer + there, 0, (size_t)((uint64_t)count - there));
    return SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *base, const void *buffer, int count, sqlite3_int64 offset) {
    struct file *file = (struct file *)base;
    if (file->is_past) {
        return SQLITE_READONLY;
    }
    if (file->database->is_failed) {
        return SQLITE_IOERR_WRITE;
    }
    begin_change(file);
    uint64_t from = (uint64_t)offset, to = from + (uint64_t)count;
    const unsigned char *in = buffer;
    for (uint64_t at = from; at < to;) {
        uint64_t number = at / UNIT, skip = at % UNIT, some = UNIT - skip < to - at ? UNIT - skip : to - at;
        struct unit *unit;
        int code = change_unit(file, number, some == UNIT, &unit);
        if (code != SQLITE_OK) {
            return code;
        }
        memcpy(unit->bytes + skip, in, (size_t)some);
        in += some;
        at += some;
    }
    file->size = file->size > to ? file->size : to;
    return SQLITE_OK;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size) {
    struct file *file = (struct file *)base;
    if (file->is_past) {
        return SQLITE_READONLY;
    }
    begin_change(file);
    uint64_t new_size = (uint64_t)size;
    if (new_size < file->size) {
        for (size_t at = 0; at < file->cell_count; at++) {
            // Its content is that of nothing, if the database grows again.
            if (file->units[at] != NULL && file->units[at]->number >= units_of(new_size)) {
                memset(file->units[at]->bytes, 0, UNIT);
            }
        }
        if (new_size % UNIT != 0) {
            struct unit *unit;
            int code = change_unit(file, new_size / UNIT, false, &unit);
            if (code != SQLITE_OK) {
                return code;
            }
            memset(unit->bytes + new_size % UNIT, 0, (size_t)(UNIT - new_size % UNIT));
        }
    }
    file->size = new_size;
    file->least_size = new_size < file->least_size ? new_size : file->least_size;
    return SQLITE_OK;
}

static int store_changes(struct file *file) {
    if (file->database->is_failed) {
        return SQLITE_IOERR_FSYNC;
    }
    if (!file->is_changed) {
        return SQLITE_OK;
    }
    return commit(&file, 1);
}

static int file_sync(sqlite3_file *base, int flags) {
    struct file *file = (struct file *)base;
    (void)flags;
    pthread_mutex_lock(&mutex);
    bool waits = file->is_changed && waits_for_others(file);
    pthread_mutex_unlock(&mutex);
    return waits ? SQLITE_OK : store_changes(file);
}

static int file_size(sqlite3_file *base, sqlite3_int64 *size) {
    *size = (sqlite3_int64)size_of((struct file *)base);
    return SQLITE_OK;
}

static int file_lock(sqlite3_file *base, int level) {
    struct file *file = (struct file *)base;
    struct database *database = file->database;
    if (file->is_past) {
        return level <= SQLITE_LOCK_SHARED ? SQLITE_OK : SQLITE_READONLY;
    }
    int code = SQLITE_OK;
    pthread_mutex_lock(&mutex);
    if (level > file->lock && file->lock == SQLITE_LOCK_NONE) {
        if (database->pending != NULL || database->exclusive != NULL) {
            code = SQLITE_BUSY;
        } else {
            database->shared_count++;
            file->lock = SQLITE_LOCK_SHARED;
        }
    }
    if (code == SQLITE_OK && level > file->lock && level >= SQLITE_LOCK_RESERVED) {
        if (database->reserved != NULL && database->reserved != file) {
            code = SQLITE_BUSY;
        } else {
            database->reserved = file;
            file->lock = file->lock > SQLITE_LOCK_RESERVED ? file->lock : SQLITE_LOCK_RESERVED;
        }
    }
    if (code == SQLITE_OK && level > file->lock && level == SQLITE_LOCK_EXCLUSIVE) {
        // Nobody else begins to read, and those who do come to their end.
        database->pending = file;
        file->lock = SQLITE_LOCK_PENDING;
        if (database->shared_count > 1) {
            code = SQLITE_BUSY;
        } else {
            database->exclusive = file;
            file->lock = SQLITE_LOCK_EXCLUSIVE;
        }
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

static int file_unlock(sqlite3_file *base, int level) {
    struct file *file = (struct file *)base;
    if (!file->is_past) {
        pthread_mutex_lock(&mutex);
        unlock(file, level);
        pthread_mutex_unlock(&mutex);
    }
    return SQLITE_OK;
}

static int file_check_reserved(sqlite3_file *base, int *is_reserved) {
    struct file *file = (struct file *)base;
    pthread_mutex_lock(&mutex);
    *is_reserved = file->database->reserved != NULL;
    pthread_mutex_unlock(&mutex);
    return SQLITE_OK;
}

// Returns a versioned database to a snapshot, if no other connection uses it.
static int roll_back(struct file *file, uint32_t snapshot, uint32_t *before) {
    struct database *database = file->database;
    int code = file_lock(&file->base, SQLITE_LOCK_EXCLUSIVE);
    if (code == SQLITE_OK) {
        unsigned char unit[UNIT], bytes[HEAD_BYTES];
        size_t length = 0;
        code = read_unit(file, 0, unit);
        // The file change counter, and the schema cookie.
        uint32_t counter = (uint32_t)get_key(unit + 20) + 1, cookie = (uint32_t)get_key(unit + 36) + 1;
        enum kaml_status status = KAML_OK;
        if (code == SQLITE_OK) {
            status = kaml_roll_back(database->device->handle, database->id, snapshot, before);
            database->has_first = false;
            code = status == KAML_OK ? SQLITE_OK : failed(status, SQLITE_ERROR);
        }
        if (code == SQLITE_OK) {
            code = get(file, 0, bytes, sizeof bytes, &length);
        }
        if (code == SQLITE_OK && !read_head(bytes, length, &database->head)) {
            code = SQLITE_CORRUPT;
        }
        // Connections notice by these that what they have cached is old.
        if (code == SQLITE_OK && database->head.size > 0) {
            struct unit *first;
            begin_change(file);
            code = change_unit(file, 0, false, &first);
            if (code == SQLITE_OK) {
                for (int at = 0; at < 4; at++) {
                    first->bytes[24 + at] = first->bytes[92 + at] = (unsigned char)(counter >> (24 - 8 * at));
                    first->bytes[40 + at] = (unsigned char)(cookie >> (24 - 8 * at));
                }
                code = store_changes(file);
            }
        }
    }
    file_unlock(&file->base, SQLITE_LOCK_NONE);
    return code;
}

static int pragma(struct file *file, char **arguments) {
    const char *name = arguments[1], *value = arguments[2];
    bool takes = sqlite3_stricmp(name, "kaml_snapshot") == 0, returns = sqlite3_stricmp(name, "kaml_rollback") == 0;
    if (!takes && !returns) {
        return SQLITE_NOTFOUND;
    }
    struct database *database = file->database;
    if (!database->is_versioned) {
        arguments[0] = sqlite3_mprintf("this database has no versions; create one with ?versioned=1");
        return SQLITE_ERROR;
    }
    if (file->is_past || file->lock != SQLITE_LOCK_NONE) {
        arguments[0] = sqlite3_mprintf("not in a transaction, and not in the past");
        return SQLITE_ERROR;
    }
    char *end = NULL;
    unsigned long number = value != NULL ? strtoul(value, &end, 10) : 0;
    if (returns && (value == NULL || *value == 0 || *end != 0 || number == 0 || number > UINT32_MAX)) {
        arguments[0] = sqlite3_mprintf("PRAGMA kaml_rollback = N, the number of a snapshot");
        return SQLITE_ERROR;
    }
    uint32_t snapshot = 0;
    int code;
    if (takes) {
        // Nobody is in the middle of a commit.
        code = file_lock(&file->base, SQLITE_LOCK_RESERVED);
        if (code == SQLITE_OK) {
            enum kaml_status status = kaml_snapshot(database->device->handle, database->id, &snapshot);
            code = status == KAML_OK ? SQLITE_OK : failed(status, SQLITE_ERROR);
        }
        file_unlock(&file->base, SQLITE_LOCK_NONE);
    } else {
        code = roll_back(file, (uint32_t)number, &snapshot);
    }
    if (code == SQLITE_BUSY) {
        arguments[0] = sqlite3_mprintf("another connection uses the database");
    } else {
        arguments[0] = code == SQLITE_OK ? sqlite3_mprintf("%u", snapshot) : sqlite3_mprintf("%s", kaml_last_error());
    }
    return code;
}

static int file_control(sqlite3_file *base, int operation, void *argument) {
    struct file *file = (struct file *)base;
    switch (operation) {
    case SQLITE_FCNTL_COMMIT_PHASETWO: // of a transaction that was not made durable: PRAGMA synchronous = OFF
        return store_changes(file);
    case SQLITE_FCNTL_PRAGMA: return pragma(file, argument);
    case SQLITE_FCNTL_LOCKSTATE: *(int *)argument = file->lock; return SQLITE_OK;
    case SQLITE_FCNTL_VFSNAME: *(char **)argument = sqlite3_mprintf("kaml"); return SQLITE_OK;
    default: return SQLITE_NOTFOUND;
    }
}

static int file_sector_size(sqlite3_file *base) {
    (void)base;
    return UNIT;
}

static int file_characteristics(sqlite3_file *base) {
    (void)base;
    return SQLITE_IOCAP_SEQUENTIAL | SQLITE_IOCAP_SAFE_APPEND | SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static const sqlite3_io_methods FILE_METHODS = {
    .iVersion = 1,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_check_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector_size,
    .xDeviceCharacteristics = file_characteristics,
};

// --- the methods of a journal -----------------------------------------------------------------------------------------

static int journal_close(sqlite3_file *base) {
    struct journal *journal = (struct journal *)base;
    if (journal->name == NULL) { // a super-journal lives until it is deleted
        free(journal->bytes);
        return SQLITE_OK;
    }
    pthread_mutex_lock(&mutex);
    for (struct journal **at = &super_journals; *at != NULL; at = &(*at)->next) {
        if (*at == journal) {
            // SQLite's memory ends here, and the name with its content remains.
            struct journal *kept = malloc(sizeof *kept);
            if (kept != NULL) {
                *kept = *journal;
                kept->is_closed = true;
                *at = kept;
            } else {
                *at = journal->next;
                free(journal->bytes);
                free(journal->name);
            }
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
    return SQLITE_OK;
}

static int journal_read(sqlite3_file *base, void *buffer, int count, sqlite3_int64 offset) {
    struct journal *journal = (struct journal *)base;
    size_t from = (size_t)offset, there = from < journal->length ? journal->length - from : 0;
    size_t some = there < (size_t)count ? there : (size_t)count;
    if (some > 0) {
        memcpy(buffer, journal->bytes + from, some);
    }
    memset((unsigned char *)buffer + some, 0, (size_t)count - some);
    return some == (size_t)count ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

static int journal_write(sqlite3_file *base, const void *buffer, int count, sqlite3_int64 offset) {
    struct journal *journal = (struct journal *)base;
    size_t to = (size_t)offset + (size_t)count;
    if (to > journal->room) {
        size_t room = to + to / 2 + UNIT;
        unsigned char *bytes = realloc(journal->bytes, room);
        if (bytes == NULL) {
            return SQLITE_NOMEM;
        }
        journal->bytes = bytes;
        journal->room = room;
    }
    if ((size_t)offset > journal->length) {
        memset(journal->bytes + journal->length, 0, (size_t)offset - journal->length);
    }
    memcpy(journal->bytes + offset, buffer, (size_t)count);
    journal->length = journal->length > to ? journal->length : to;
    return SQLITE_OK;
}

static int journal_truncate(sqlite3_file *base, sqlite3_int64 size) {
    struct journal *journal = (struct journal *)base;
    journal->length = (size_t)size < journal->length ? (size_t)size : journal->length;
    return SQLITE_OK;
}

static int journal_sync(sqlite3_file *base, int flags) {
    (void)base;
    (void)flags;
    return SQLITE_OK;
}

static int journal_size(sqlite3_file *base, sqlite3_int64 *size) {
    *size = (sqlite3_int64)((struct journal *)base)->length;
    return SQLITE_OK;
}

static int journal_lock(sqlite3_file *base, int level) {
    (void)base;
    (void)level;
    return SQLITE_OK;
}

static int journal_check_reserved(sqlite3_file *base, int *is_reserved) {
    (void)base;
    *is_reserved = 0;
    return SQLITE_OK;
}

static int journal_control(sqlite3_file *base, int operation, void *argument) {
    (void)base;
    (void)operation;
    (void)argument;
    return SQLITE_NOTFOUND;
}

static const sqlite3_io_methods JOURNAL_METHODS = {
    .iVersion = 1,
    .xClose = journal_close,
    .xRead = journal_read,
    .xWrite = journal_write,
    .xTruncate = journal_truncate,
    .xSync = journal_sync,
    .xFileSize = journal_size,
    .xLock = journal_lock,
    .xUnlock = journal_lock,
    .xCheckReservedLock = journal_check_reserved,
    .xFileControl = journal_control,
    .xSectorSize = file_sector_size,
    .xDeviceCharacteristics = file_characteristics,
};

// --- opening ----------------------------------------------------------------------------------------------------------

// Finds the device that a path names, or opens it. `path` is DEVICE/NAME; its device is a file, a disk, or nothing yet.
static int open_device(const char *path, int flags, struct device **found) {
    char real[PATH_MAX];
    if (realpath(path, real) == NULL) {
        if ((flags & SQLITE_OPEN_CREATE) == 0 || strlen(path) >= sizeof real) {
            return SQLITE_CANTOPEN;
        }
        strcpy(real, path);
    }
    for (struct device *device = devices; device != NULL; device = device->next) {
        if (strcmp(device->path, real) == 0) {
            *found = device;
            return SQLITE_OK;
        }
    }
    struct device *device = calloc(1, sizeof *device);
    if (device == NULL || (device->path = strdup(real)) == NULL) {
        free(device);
        return SQLITE_NOMEM;
    }
    enum kaml_status status = (flags & SQLITE_OPEN_CREATE) != 0 ? kaml_open_or_create(path, 0, NULL, &device->handle)
                                                                 : kaml_open(path, NULL, &device->handle);
    if (status == KAML_OK) {
        uint64_t value_bytes_max;
        status = kaml_limits(device->handle, &value_bytes_max, &device->batch_bytes_max);
        // A device that was just created has a real path now.
        if (status == KAML_OK && realpath(path, real) != NULL) {
            char *again = strdup(real);
            if (again != NULL) {
                free(device->path);
                device->path = again;
            }
        }
        if (status != KAML_OK) {
            kaml_abandon(device->handle);
        }
    }
    if (status != KAML_OK) {
        int code = failed(status, SQLITE_CANTOPEN);
        free(device->path);
        free(device);
        return code;
    }
    device->next = devices;
    devices = device;
    *found = device;
    return SQLITE_OK;
}

static int is_versioned(struct device *device, kaml_namespace_id id, bool *versioned) {
    size_t count = 0;
    enum kaml_status status = kaml_namespaces(device->handle, NULL, 0, &count);
    kaml_namespace_info *infos = status == KAML_OK ? calloc(count + 16, sizeof *infos) : NULL;
    if (infos == NULL) {
        return SQLITE_NOMEM;
    }
    size_t room = count + 16;
    status = kaml_namespaces(device->handle, infos, room, &count);
    int code = SQLITE_CANTOPEN;
    for (size_t at = 0; status == KAML_OK && at < count && at < room; at++) {
        if (infos[at].namespace_id == id && infos[at].blocks == 0 && infos[at].keys == KAML_KEYS_U64) {
            *versioned = infos[at].versioned != 0;
            code = SQLITE_OK;
        }
    }
    free(infos);
    return code;
}

static int open_database(struct device *device, const char *name, int flags, bool versioned, struct database **found) {
    kaml_namespace_id id;
    enum kaml_status status = kaml_namespace(device->handle, name, &id);
    bool is_new = status == KAML_UNKNOWN_NAMESPACE && (flags & SQLITE_OPEN_CREATE) != 0;
    if (is_new) {
        kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
        options.keys = KAML_KEYS_U64;
        options.versioned = versioned;
        // Most commits change the first page, which is almost empty, and pages that are half full: fewer bytes are flushed. Versions are not compressed.
        options.compression = versioned ? KAML_COMPRESSION_NONE : KAML_COMPRESSION_LZ4;
        status = kaml_create_namespace(device->handle, name, &options, &id);
    }
    if (status != KAML_OK) {
        return failed(status, SQLITE_CANTOPEN);
    }
    for (struct database *database = databases; database != NULL; database = database->next) {
        if (database->device == device && database->id == id) {
            *found = database;
            return SQLITE_OK;
        }
    }
    struct database *database = calloc(1, sizeof *database);
    if (database == NULL) {
        return SQLITE_NOMEM;
    }
    database->device = device;
    database->id = id;
    unsigned char key[8], bytes[HEAD_BYTES];
    size_t length = 0;
    put_key(key, 0);
    int code = is_versioned(device, id, &database->is_versioned);
    if (code == SQLITE_OK) {
        status = kaml_get_into(device->handle, id, key, sizeof key, bytes, sizeof bytes, &length);
        if (status == KAML_OK && !read_head(bytes, length, &database->head)) {
            sqlite3_log(SQLITE_NOTADB, "kaml: the namespace \"%s\" holds no database of SQLite", name);
            code = SQLITE_NOTADB;
        } else if (status == KAML_BUFFER_TOO_SMALL) {
            code = SQLITE_NOTADB;
        } else if (status == KAML_OK && database->head.staged != 0) {
            code = recover(database);
        } else if (status == KAML_NOT_FOUND) {
            // Nothing, or records of somebody else.
            kaml_cursor cursor = KAML_CURSOR_INIT;
            kaml_key first;
            size_t count = 0;
            status = kaml_list(device->handle, id, &cursor, &first, 1, &count);
            code = status == KAML_OK && count == 0 ? SQLITE_OK : SQLITE_NOTADB;
        } else if (status != KAML_OK) {
            code = failed(status, SQLITE_CANTOPEN);
        }
    }
    if (code != SQLITE_OK) {
        free(database);
        return code;
    }
    device->users++;
    database->next = databases;
    databases = database;
    *found = database;
    return SQLITE_OK;
}

// A moment of the past, which must be one between two commits.
static int open_past(struct file *file) {
    unsigned char bytes[HEAD_BYTES];
    size_t length = 0;
    if (!file->database->is_versioned) {
        return SQLITE_CANTOPEN;
    }
    // A number of no snapshot fails here.
    int code = get(file, 0, bytes, sizeof bytes, &length);
    if (code != SQLITE_OK || length == 0) {
        return code == SQLITE_OK || code == SQLITE_NOMEM ? code : SQLITE_CANTOPEN;
    }
    return read_head(bytes, length, &file->past) && file->past.staged == 0 ? SQLITE_OK : SQLITE_CANTOPEN;
}

static int open_main(const char *path, struct file *file, int flags, int *out_flags) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash[1] == 0) {
        return SQLITE_CANTOPEN;
    }
    const char *as_of = sqlite3_uri_parameter(path, "as_of");
    char *device_path = strndup(path, (size_t)(slash - path));
    file->journal = malloc(strlen(path) + sizeof "-journal");
    int code = device_path != NULL && file->journal != NULL ? SQLITE_OK : SQLITE_NOMEM;
    if (code == SQLITE_OK) {
        sprintf(file->journal, "%s-journal", path);
        if (as_of != NULL) {
            char *end;
            unsigned long number = strtoul(as_of, &end, 10);
            file->is_past = true;
            file->as_of = (uint32_t)number;
            flags &= ~SQLITE_OPEN_CREATE;
            code = *as_of != 0 && *end == 0 && number > 0 && number <= UINT32_MAX ? SQLITE_OK : SQLITE_CANTOPEN;
        }
    }
    struct device *device = NULL;
    if (code == SQLITE_OK) {
        code = open_device(device_path, flags, &device);
    }
    if (code == SQLITE_OK) {
        device->users++;
        code = open_database(device, slash + 1, flags, sqlite3_uri_boolean(path, "versioned", 0) != 0, &file->database);
        if (code == SQLITE_OK) {
            file->database->users++;
            code = file->is_past ? open_past(file) : SQLITE_OK;
            if (code != SQLITE_OK) {
                close_database(file->database);
            }
        }
        release_device(device);
    }
    free(device_path);
    if (code != SQLITE_OK) {
        free(file->journal);
        return code;
    }
    if (out_flags != NULL) {
        *out_flags = file->is_past ? (flags & ~SQLITE_OPEN_READWRITE) | SQLITE_OPEN_READONLY : flags;
    }
    file->next = files;
    files = file;
    return SQLITE_OK;
}

static int vfs_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *base, int flags, int *out_flags) {
    (void)vfs;
    base->pMethods = NULL;
    if ((flags & SQLITE_OPEN_MAIN_DB) != 0 && path != NULL) {
        struct file *file = (struct file *)base;
        memset(file, 0, sizeof *file);
        pthread_mutex_lock(&mutex);
        int code = open_main(path, file, flags, out_flags);
        pthread_mutex_unlock(&mutex);
        base->pMethods = code == SQLITE_OK ? &FILE_METHODS : NULL;
        return code;
    }
    if ((flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL)) != 0) {
        struct journal *journal = (struct journal *)base;
        memset(journal, 0, sizeof *journal);
        if ((flags & SQLITE_OPEN_SUPER_JOURNAL) != 0) {
            journal->name = strdup(path);
            if (journal->name == NULL) {
                return SQLITE_NOMEM;
            }
            pthread_mutex_lock(&mutex);
            journal->next = super_journals;
            super_journals = journal;
            pthread_mutex_unlock(&mutex);
        }
        if (out_flags != NULL) {
            *out_flags = flags;
        }
        base->pMethods = &JOURNAL_METHODS;
        return SQLITE_OK;
    }
    if ((flags & SQLITE_OPEN_WAL) != 0) {
        return SQLITE_CANTOPEN;
    }
    return other->xOpen(other, path, base, flags, out_flags);
}

static int vfs_delete(sqlite3_vfs *vfs, const char *path, int commits) {
    (void)vfs;
    int code = SQLITE_OK;
    pthread_mutex_lock(&mutex);
    for (struct journal **at = &super_journals; *at != NULL; at = &(*at)->next) {
        struct journal *super = *at;
        if (strcmp(super->name, path) == 0) {
            code = commits ? commit_together(super) : SQLITE_OK;
            if (code == SQLITE_OK) {
                *at = super->next;
                free(super->bytes);
                free(super->name);
                free(super);
            }
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

static int vfs_access(sqlite3_vfs *vfs, const char *path, int flags, int *there) {
    (void)vfs;
    if (flags == SQLITE_ACCESS_READWRITE) { // of a directory for temporary files
        return other->xAccess(other, path, flags, there);
    }
    *there = 0; // journals are in memory, and none is left by a crash
    pthread_mutex_lock(&mutex);
    for (struct journal *super = super_journals; super != NULL; super = super->next) {
        *there |= strcmp(super->name, path) == 0;
    }
    pthread_mutex_unlock(&mutex);
    return SQLITE_OK;
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *path, int room, char *full) {
    (void)vfs;
    char here[PATH_MAX] = "";
    if (path[0] != '/' && getcwd(here, sizeof here) == NULL) {
        return SQLITE_CANTOPEN;
    }
    int length = snprintf(full, (size_t)room, "%s%s%s", here, path[0] == '/' ? "" : "/", path);
    return length >= 0 && length < room ? SQLITE_OK : SQLITE_CANTOPEN;
}

static void *vfs_dl_open(sqlite3_vfs *vfs, const char *path) {
    (void)vfs;
    return other->xDlOpen(other, path);
}

static void vfs_dl_error(sqlite3_vfs *vfs, int room, char *message) {
    (void)vfs;
    other->xDlError(other, room, message);
}

static void (*vfs_dl_sym(sqlite3_vfs *vfs, void *library, const char *name))(void) {
    (void)vfs;
    return other->xDlSym(other, library, name);
}

static void vfs_dl_close(sqlite3_vfs *vfs, void *library) {
    (void)vfs;
    other->xDlClose(other, library);
}

static int vfs_randomness(sqlite3_vfs *vfs, int count, char *bytes) {
    (void)vfs;
    return other->xRandomness(other, count, bytes);
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds) {
    (void)vfs;
    return other->xSleep(other, microseconds);
}

static int vfs_time(sqlite3_vfs *vfs, double *now) {
    (void)vfs;
    return other->xCurrentTime(other, now);
}

static int vfs_last_error(sqlite3_vfs *vfs, int room, char *message) {
    (void)vfs;
    if (room > 0) {
        snprintf(message, (size_t)room, "%s", kaml_last_error());
    }
    return 0;
}

static sqlite3_vfs VFS = {
    .iVersion = 1,
    .mxPathname = PATH_MAX,
    .zName = "kaml",
    .xOpen = vfs_open,
    .xDelete = vfs_delete,
    .xAccess = vfs_access,
    .xFullPathname = vfs_full_path,
    .xDlOpen = vfs_dl_open,
    .xDlError = vfs_dl_error,
    .xDlSym = vfs_dl_sym,
    .xDlClose = vfs_dl_close,
    .xRandomness = vfs_randomness,
    .xSleep = vfs_sleep,
    .xCurrentTime = vfs_time,
    .xGetLastError = vfs_last_error,
};

// Called by SQLite when the extension is loaded; from then on every connection of the process can use it.
int sqlite3_kamlsqlite_init(sqlite3 *connection, char **message, const sqlite3_api_routines *api) {
    (void)connection;
    SQLITE_EXTENSION_INIT2(api);
    if (sqlite3_vfs_find("kaml") != NULL) {
        return SQLITE_OK_LOAD_PERMANENTLY;
    }
    other = sqlite3_vfs_find(NULL);
    if (other == NULL) {
        *message = sqlite3_mprintf("there is no default VFS for temporary files");
        return SQLITE_ERROR;
    }
    size_t largest = sizeof(struct file) > sizeof(struct journal) ? sizeof(struct file) : sizeof(struct journal);
    VFS.szOsFile = (int)largest > other->szOsFile ? (int)largest : other->szOsFile;
    int code = sqlite3_vfs_register(&VFS, 0);
    return code == SQLITE_OK ? SQLITE_OK_LOAD_PERMANENTLY : code;
}
