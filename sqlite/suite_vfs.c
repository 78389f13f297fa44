// suite_vfs.c: makes the VFS `kaml` the default one of SQLite's own test suite.
//
// Lives here:       a copy of each database in a file, for the tests that look at files; registration at start.
// Lives elsewhere:  the VFS that is tested (kaml_sqlite.c); building and running the suite (suite); files that do not apply (suite.list).
// Implements:       SQLite's interfaces sqlite3_vfs and sqlite3_io_methods, version 1.
//
// The tests copy, delete, damage and measure the files of databases. So the database DIRECTORY/NAME is in the namespace NAME of the device
// DIRECTORY/suite.kaml, and what a transaction has changed is copied to the file NAME when it ends. A connection that begins to read
// compares the file with the state that this program gave it. If a test has changed or removed the file, its content becomes the
// content of the database. SQLite itself reads and writes only through the VFS `kaml`.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096 };
#define DEVICE "suite.kaml"

int sqlite3_kamlsqlite_init(sqlite3 *connection, char **message, const void *api);

// The state of a copy when this program wrote or read it last.
struct copy {
    char *path;
    struct stat state;
    struct copy *next;
};

struct file {
    sqlite3_file base;
    sqlite3_file *inner;
    struct copy *copy; // none of databases that are not copied
    int lock;
    unsigned char *changed; // a bit for each block that was written since the copy was made
    size_t changed_bytes;
    bool is_changed;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct copy *copies;
static sqlite3_vfs *kaml;

// Removes the name of the device from a path: the path of the copy.
static char *path_of_copy(const char *path) {
    char *copy = strdup(path);
    char *at = copy != NULL ? strstr(copy, "/" DEVICE "/") : NULL;
    if (at != NULL) {
        memmove(at, at + strlen("/" DEVICE), strlen(at + strlen("/" DEVICE)) + 1);
    }
    return copy;
}

// The copy of a database; none of a name that was never opened as a database, unless it is new.
static struct copy *copy_of(const char *path, bool is_new) {
    char *name = path_of_copy(path);
    if (name == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&mutex);
    struct copy *copy = copies;
    while (copy != NULL && strcmp(copy->path, name) != 0) {
        copy = copy->next;
    }
    if (copy == NULL && is_new && (copy = calloc(1, sizeof *copy)) != NULL) {
        *copy = (struct copy){.path = strdup(name), .next = copies};
        copies = copy;
    }
    pthread_mutex_unlock(&mutex);
    free(name);
    return copy;
}

static bool is_same(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int mark(struct file *file, sqlite3_int64 from, sqlite3_int64 to) {
    size_t needed = (size_t)(to / BLOCK / 8 + 1);
    if (needed > file->changed_bytes) {
        size_t room = needed * 2;
        unsigned char *changed = realloc(file->changed, room);
        if (changed == NULL) {
            return SQLITE_NOMEM;
        }
        memset(changed + file->changed_bytes, 0, room - file->changed_bytes);
        file->changed = changed;
        file->changed_bytes = room;
    }
    for (sqlite3_int64 block = from / BLOCK; block * BLOCK < to; block++) {
        file->changed[block / 8] |= (unsigned char)(1 << block % 8);
    }
    file->is_changed = true;
    return SQLITE_OK;
}

// Copies what has changed to the file.
static void copy_out(struct file *file) {
    sqlite3_int64 size = 0;
    if (!file->is_changed || file->copy == NULL || file->inner->pMethods->xFileSize(file->inner, &size) != SQLITE_OK) {
        return;
    }
    int out = open(file->copy->path, O_RDWR | O_CLOEXEC);
    for (size_t at = 0; out >= 0 && at < file->changed_bytes; at++) {
        for (int bit = 0; file->changed[at] != 0 && bit < 8; bit++) {
            unsigned char block[BLOCK];
            sqlite3_int64 offset = ((sqlite3_int64)at * 8 + bit) * BLOCK;
            if ((file->changed[at] >> bit & 1) != 0 && offset < size) {
                int count = size - offset < BLOCK ? (int)(size - offset) : BLOCK;
                if (file->inner->pMethods->xRead(file->inner, block, count, offset) != SQLITE_OK ||
                    pwrite(out, block, (size_t)count, offset) != count) {
                    fprintf(stderr, "suite_vfs: %s was not copied\n", file->copy->path);
                }
            }
        }
        file->changed[at] = 0;
    }
    file->is_changed = false;
    if (out >= 0) {
        pthread_mutex_lock(&mutex);
        if (ftruncate(out, size) != 0 || fstat(out, &file->copy->state) != 0) {
            fprintf(stderr, "suite_vfs: %s: %s\n", file->copy->path, strerror(errno));
        }
        pthread_mutex_unlock(&mutex);
        close(out);
    }
}

// Makes the file's content that of the database, if it is not what this program left. The connection holds a shared lock.
static int copy_in(struct file *file) {
    struct stat now;
    if (file->copy == NULL || stat(file->copy->path, &now) != 0 || is_same(&now, &file->copy->state)) {
        return SQLITE_OK;
    }
    const sqlite3_io_methods *inner = file->inner->pMethods;
    int code = inner->xLock(file->inner, SQLITE_LOCK_RESERVED);
    code = code == SQLITE_OK ? inner->xLock(file->inner, SQLITE_LOCK_EXCLUSIVE) : code;
    if (code == SQLITE_OK) {
        int in = open(file->copy->path, O_RDONLY | O_CLOEXEC);
        code = in >= 0 ? inner->xTruncate(file->inner, 0) : SQLITE_IOERR_READ;
        unsigned char block[BLOCK];
        for (sqlite3_int64 offset = 0; code == SQLITE_OK && offset < now.st_size; offset += BLOCK) {
            ssize_t count = pread(in, block, sizeof block, offset);
            code = count > 0 ? inner->xWrite(file->inner, block, (int)count, offset) : SQLITE_IOERR_READ;
        }
        code = code == SQLITE_OK ? inner->xSync(file->inner, SQLITE_SYNC_NORMAL) : code;
        if (in >= 0) {
            close(in);
        }
        if (code == SQLITE_OK) {
            pthread_mutex_lock(&mutex);
            file->copy->state = now;
            pthread_mutex_unlock(&mutex);
        }
    }
    inner->xUnlock(file->inner, SQLITE_LOCK_SHARED);
    // Another connection reads: what it sees remains what it is.
    return code == SQLITE_BUSY ? SQLITE_OK : code;
}

static sqlite3_file *inner_of(sqlite3_file *base) { return ((struct file *)base)->inner; }

static int file_close(sqlite3_file *base) {
    struct file *file = (struct file *)base;
    int code = file->inner->pMethods->xClose(file->inner);
    free(file->changed);
    return code;
}

static int file_read(sqlite3_file *base, void *buffer, int count, sqlite3_int64 offset) {
    return inner_of(base)->pMethods->xRead(inner_of(base), buffer, count, offset);
}

static int file_write(sqlite3_file *base, const void *buffer, int count, sqlite3_int64 offset) {
    int code = mark((struct file *)base, offset, offset + count);
    return code == SQLITE_OK ? inner_of(base)->pMethods->xWrite(inner_of(base), buffer, count, offset) : code;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size) {
    sqlite3_int64 before = size;
    inner_of(base)->pMethods->xFileSize(inner_of(base), &before);
    int code = mark((struct file *)base, size, before > size ? before : size + 1);
    return code == SQLITE_OK ? inner_of(base)->pMethods->xTruncate(inner_of(base), size) : code;
}

static int file_sync(sqlite3_file *base, int flags) {
    int code = inner_of(base)->pMethods->xSync(inner_of(base), flags);
    if (code == SQLITE_OK) {
        copy_out((struct file *)base);
    }
    return code;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *size) { return inner_of(base)->pMethods->xFileSize(inner_of(base), size); }

static int file_lock(sqlite3_file *base, int level) {
    struct file *file = (struct file *)base;
    int code = file->inner->pMethods->xLock(file->inner, level);
    if (code == SQLITE_OK && file->lock == SQLITE_LOCK_NONE && level == SQLITE_LOCK_SHARED) {
        code = copy_in(file);
        if (code != SQLITE_OK) {
            file->inner->pMethods->xUnlock(file->inner, SQLITE_LOCK_NONE);
        }
    }
    file->lock = code == SQLITE_OK && level > file->lock ? level : file->lock;
    return code;
}

static int file_unlock(sqlite3_file *base, int level) {
    struct file *file = (struct file *)base;
    int code = SQLITE_OK;
    if (file->is_changed && level <= SQLITE_LOCK_SHARED) {
        // What was written and not committed is dropped here; the copy gets what remains.
        code = file->inner->pMethods->xUnlock(file->inner, SQLITE_LOCK_SHARED);
        copy_out(file);
    }
    file->lock = level < file->lock ? level : file->lock;
    return code == SQLITE_OK ? file->inner->pMethods->xUnlock(file->inner, level) : code;
}

static int file_check_reserved(sqlite3_file *base, int *is_reserved) {
    return inner_of(base)->pMethods->xCheckReservedLock(inner_of(base), is_reserved);
}

static int file_control(sqlite3_file *base, int operation, void *argument) {
    int code = inner_of(base)->pMethods->xFileControl(inner_of(base), operation, argument);
    if (operation == SQLITE_FCNTL_COMMIT_PHASETWO && code == SQLITE_OK) {
        copy_out((struct file *)base);
    }
    return code;
}

static int file_sector_size(sqlite3_file *base) { return inner_of(base)->pMethods->xSectorSize(inner_of(base)); }

static int file_characteristics(sqlite3_file *base) {
    return inner_of(base)->pMethods->xDeviceCharacteristics(inner_of(base));
}

static const sqlite3_io_methods METHODS = {
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

// A file is created, or refused, as the VFS for files would.
static int open_copy(const struct copy *copy, int flags) {
    int created = open(copy->path, O_CLOEXEC | ((flags & SQLITE_OPEN_READWRITE) != 0 ? O_RDWR : O_RDONLY) |
                                       ((flags & SQLITE_OPEN_CREATE) != 0 ? O_CREAT : 0),
                       0644);
    if (created < 0) {
        return SQLITE_CANTOPEN;
    }
    close(created);
    return SQLITE_OK;
}

static int vfs_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *base, int flags, int *out_flags) {
    (void)vfs;
    if ((flags & SQLITE_OPEN_MAIN_DB) == 0 || path == NULL) {
        return kaml->xOpen(kaml, path, base, flags, out_flags);
    }
    struct file *file = (struct file *)base;
    memset(file, 0, sizeof *file);
    file->inner = (sqlite3_file *)(file + 1);
    file->copy = copy_of(path, true);
    if (file->copy == NULL) {
        return SQLITE_NOMEM;
    }
    int code = open_copy(file->copy, flags);
    if (code == SQLITE_CANTOPEN && (flags & SQLITE_OPEN_READWRITE) != 0 && errno != EISDIR) {
        flags = (flags & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
        code = open_copy(file->copy, flags);
    }
    if (code == SQLITE_OK) {
        // The device and the namespace can be missing where the file exists.
        code = kaml->xOpen(kaml, path, file->inner, flags | SQLITE_OPEN_CREATE | SQLITE_OPEN_READWRITE, NULL);
    }
    if (code != SQLITE_OK) {
        return code;
    }
    // SQLite reads the first page before it takes a lock.
    if (file->inner->pMethods->xLock(file->inner, SQLITE_LOCK_SHARED) == SQLITE_OK) {
        code = copy_in(file);
        file->inner->pMethods->xUnlock(file->inner, SQLITE_LOCK_NONE);
    }
    if (code != SQLITE_OK) {
        file->inner->pMethods->xClose(file->inner);
        return code;
    }
    if (out_flags != NULL) {
        *out_flags = flags;
    }
    base->pMethods = &METHODS;
    return SQLITE_OK;
}

// SQLite deletes and looks for journals only. The VFS `multiplex` of the tests does so with databases: its parts are databases to the VFS below it.
static int vfs_delete(sqlite3_vfs *vfs, const char *path, int syncs) {
    (void)vfs;
    const struct copy *copy = copy_of(path, false);
    if (copy == NULL) {
        return kaml->xDelete(kaml, path, syncs);
    }
    if (unlink(copy->path) != 0) {
        return errno == ENOENT ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
    }
    return SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *vfs, const char *path, int flags, int *there) {
    (void)vfs;
    struct stat found;
    const struct copy *copy = flags == SQLITE_ACCESS_EXISTS ? copy_of(path, false) : NULL;
    if (copy == NULL) {
        return kaml->xAccess(kaml, path, flags, there);
    }
    *there = stat(copy->path, &found) == 0 && found.st_size > 0;
    return SQLITE_OK;
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *path, int room, char *full) {
    (void)vfs;
    int code = kaml->xFullPathname(kaml, path, room, full);
    char *slash = code == SQLITE_OK ? strrchr(full, '/') : NULL;
    if (slash == NULL || strstr(full, "/" DEVICE "/") != NULL) {
        return code;
    }
    size_t more = strlen("/" DEVICE);
    if (strlen(full) + more >= (size_t)room) {
        return SQLITE_CANTOPEN;
    }
    memmove(slash + more, slash, strlen(slash) + 1);
    memcpy(slash, "/" DEVICE, more);
    return SQLITE_OK;
}

// Called by SQLite at the end of each sqlite3_initialize.
int kaml_suite_init(const char *unused) {
    (void)unused;
    static sqlite3_vfs vfs;
    char *message = NULL;
    int code = sqlite3_kamlsqlite_init(NULL, &message, NULL);
    kaml = sqlite3_vfs_find("kaml");
    if (kaml == NULL) {
        fprintf(stderr, "suite_vfs: %s\n", message != NULL ? message : "the VFS was not registered");
        return code;
    }
    if (vfs.zName == NULL) {
        vfs = *kaml;
        vfs.pNext = NULL;
        vfs.zName = "kaml-suite";
        vfs.szOsFile = (int)sizeof(struct file) + kaml->szOsFile;
        vfs.xOpen = vfs_open;
        vfs.xDelete = vfs_delete;
        vfs.xAccess = vfs_access;
        vfs.xFullPathname = vfs_full_path;
    }
    return sqlite3_vfs_register(&vfs, 1);
}
