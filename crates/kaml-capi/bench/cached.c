// Gets of cached records through C: KAML's store next to LMDB, whose reads are the least work that a peer does in memory.
//
//   cc -O2 cached.c -o cached $(pkg-config --cflags --libs kaml) -pthread
//   cc -O2 -DWITH_LMDB cached.c -o cached $(pkg-config --cflags --libs kaml) -llmdb -pthread
//   ./cached DIRECTORY [SECONDS]
//
// 200 000 records of 100 bytes, keys at random with the same generator on all sides; each get copies the value to a buffer and compares its first
// bytes. The sides take turns, five rounds of SECONDS each (default 2), with 1, 2 and 8 threads; the medians are printed.
// LMDB reads in one read transaction per thread that is renewed after every 100 gets, as its users do.
//
// Each key depends on the value before it, so the processor cannot begin a get before the last one has ended: that is the time of one get.
//
// The control is a bare table: cells with a key and a pointer, linear probing, values from malloc in random order. It locks nothing, checks
// nothing and evicts nothing, so nothing that keeps records apart from each other in memory is faster on the same machine.
#include <kaml.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_LMDB
#include <lmdb.h>
#endif

enum { RECORDS = 200000, PUT_RECORDS = 500, VALUE_BYTES = 100, THREADS_MAX = 8, ROUNDS = 5, RENEWED_AFTER = 100 };

static kaml_store store;
static kaml_namespace_id records;
#ifdef WITH_LMDB
static MDB_env *env;
static MDB_dbi table;
#endif

static struct cell {
    uint64_t key_plus_one;
    char *value;
} *cells;

static volatile int running;

static void fail(const char *what) {
    fprintf(stderr, "%s failed: %s\n", what, kaml_last_error());
    exit(1);
}

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

// Zero in all values, which the compiler does not know: the next key depends on this value.
static uint64_t last_byte(const char *buffer) { return (uint64_t)(unsigned char)buffer[VALUE_BYTES - 1]; }

static uint64_t big_endian(uint64_t number) { return __builtin_bswap64(number); }

enum { CELLS = 1 << 19 };

static uint64_t cell_of(uint64_t key) { return key * 0x9E3779B97F4A7C15ull >> 45; }

// Fills the table of the control.
static void fill_cells(void) {
    cells = calloc(CELLS, sizeof *cells);
    uint64_t *numbers = malloc(RECORDS * sizeof *numbers), state = 1234567;
    if (cells == NULL || numbers == NULL) {
        fail("malloc");
    }
    for (uint64_t number = 0; number < RECORDS; number++) {
        numbers[number] = number;
    }
    for (uint64_t left = RECORDS; left > 1; left--) {
        uint64_t other = next_random(&state) % left, moved = numbers[left - 1];
        numbers[left - 1] = numbers[other];
        numbers[other] = moved;
    }
    for (uint64_t at = 0; at < RECORDS; at++) {
        uint64_t key = big_endian(numbers[at]), cell = cell_of(key);
        while (cells[cell].key_plus_one != 0) {
            cell = (cell + 1) % CELLS;
        }
        char *value = calloc(1, VALUE_BYTES);
        if (value == NULL) {
            fail("malloc");
        }
        memcpy(value, &numbers[at], sizeof numbers[at]);
        cells[cell] = (struct cell){key + 1, value};
    }
    free(numbers);
}

struct thread {
    pthread_t id;
    uint64_t seed, get_count;
};

static void *get_from_kaml(void *argument) {
    struct thread *thread = argument;
    char buffer[VALUE_BYTES];
    uint64_t count = 0;
    while (running) {
        uint64_t number = next_random(&thread->seed) % RECORDS, key = big_endian(number);
        size_t length;
        if (kaml_store_get_into(store, records, &key, sizeof key, buffer, sizeof buffer, &length) != KAML_OK ||
            length != VALUE_BYTES || memcmp(buffer, &number, sizeof number) != 0) {
            fail("a get");
        }
        thread->seed ^= last_byte(buffer);
        count++;
    }
    thread->get_count = count;
    return NULL;
}

static void *get_from_cells(void *argument) {
    struct thread *thread = argument;
    char buffer[VALUE_BYTES];
    uint64_t count = 0;
    while (running) {
        uint64_t number = next_random(&thread->seed) % RECORDS, key = big_endian(number), cell = cell_of(key);
        while (cells[cell].key_plus_one != key + 1) {
            cell = (cell + 1) % CELLS;
        }
        memcpy(buffer, cells[cell].value, VALUE_BYTES);
        thread->seed ^= last_byte(buffer);
        if (memcmp(buffer, &number, sizeof number) != 0) {
            fail("a comparison");
        }
        count++;
    }
    thread->get_count = count;
    return NULL;
}

#ifdef WITH_LMDB
static void *get_from_lmdb(void *argument) {
    struct thread *thread = argument;
    char buffer[VALUE_BYTES];
    uint64_t count = 0;
    MDB_txn *txn;
    if (mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) != 0) {
        fail("mdb_txn_begin");
    }
    while (running) {
        uint64_t number = next_random(&thread->seed) % RECORDS, bytes = big_endian(number);
        MDB_val key = {sizeof bytes, &bytes}, value;
        if (mdb_get(txn, table, &key, &value) != 0 || value.mv_size != VALUE_BYTES) {
            fail("mdb_get");
        }
        memcpy(buffer, value.mv_data, VALUE_BYTES);
        thread->seed ^= last_byte(buffer);
        if (memcmp(buffer, &number, sizeof number) != 0) {
            fail("a comparison");
        }
        if (++count % RENEWED_AFTER == 0) {
            mdb_txn_reset(txn);
            mdb_txn_renew(txn);
        }
    }
    mdb_txn_abort(txn);
    thread->get_count = count;
    return NULL;
}
#endif

// Millions of gets a second.
static double measure(void *(*body)(void *), int thread_count, double seconds) {
    struct thread threads[THREADS_MAX];
    struct timespec begin, end;
    running = 1;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int at = 0; at < thread_count; at++) {
        threads[at].seed = 88172645463325252ull + (uint64_t)at * 7919;
        if (pthread_create(&threads[at].id, NULL, body, &threads[at]) != 0) {
            fail("pthread_create");
        }
    }
    usleep((useconds_t)(seconds * 1e6));
    running = 0;
    uint64_t sum = 0;
    for (int at = 0; at < thread_count; at++) {
        pthread_join(threads[at].id, NULL);
        sum += threads[at].get_count;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double took = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    return (double)sum / took / 1e6;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *rates) {
    qsort(rates, ROUNDS, sizeof *rates, compare);
    return rates[ROUNDS / 2];
}

int main(int argument_count, char **arguments) {
    if (argument_count < 2) {
        fprintf(stderr, "usage: cached DIRECTORY [SECONDS]\n");
        return 2;
    }
    double seconds = argument_count > 2 ? atof(arguments[2]) : 2;
    char path[4096];
    kaml_device device;
    snprintf(path, sizeof path, "%s/cached.kaml", arguments[1]);
    unlink(path);
    if (kaml_create(path, 256 << 20, NULL, &device) != KAML_OK ||
        kaml_create_namespace(device, "records", NULL, &records) != KAML_OK) {
        fail("opening");
    }
    static char values[PUT_RECORDS][VALUE_BYTES];
    static uint64_t keys[PUT_RECORDS];
    static kaml_record batch[PUT_RECORDS];
    for (uint64_t number = 0; number < RECORDS; number += PUT_RECORDS) {
        for (uint64_t at = 0; at < PUT_RECORDS; at++) {
            keys[at] = big_endian(number + at);
            memcpy(values[at], &(uint64_t){number + at}, sizeof(uint64_t));
            batch[at] = (kaml_record){records, KAML_PUT, &keys[at], sizeof keys[at], values[at], VALUE_BYTES};
        }
        if (kaml_put(device, batch, PUT_RECORDS) != KAML_OK) {
            fail("a put");
        }
    }
    if (kaml_store_open(device, 128 << 20, NULL, &store) != KAML_OK) {
        fail("opening the store");
    }
    for (uint64_t number = 0; number < RECORDS; number++) {
        uint64_t key = big_endian(number);
        size_t length;
        if (kaml_store_get_into(store, records, &key, sizeof key, values, sizeof values, &length) != KAML_OK) {
            fail("a get");
        }
    }
#ifdef WITH_LMDB
    char lmdb_path[4096];
    snprintf(lmdb_path, sizeof lmdb_path, "%s/cached.mdb", arguments[1]);
    unlink(lmdb_path);
    MDB_txn *txn;
    if (mdb_env_create(&env) != 0 || mdb_env_set_mapsize(env, 256 << 20) != 0 ||
        mdb_env_open(env, lmdb_path, MDB_NOSUBDIR | MDB_NOSYNC, 0644) != 0 || mdb_txn_begin(env, NULL, 0, &txn) != 0 ||
        mdb_dbi_open(txn, NULL, 0, &table) != 0) {
        fail("opening LMDB");
    }
    for (uint64_t number = 0; number < RECORDS; number++) {
        char bytes[VALUE_BYTES] = {0};
        uint64_t key_bytes = big_endian(number);
        memcpy(bytes, &number, sizeof number);
        MDB_val key = {sizeof key_bytes, &key_bytes}, value = {sizeof bytes, bytes};
        if (mdb_put(txn, table, &key, &value, MDB_APPEND) != 0) {
            fail("mdb_put");
        }
    }
    if (mdb_txn_commit(txn) != 0) {
        fail("mdb_txn_commit");
    }
#endif
    fill_cells();
    static const int THREADS[] = {1, 2, 8};
    for (size_t at = 0; at < sizeof THREADS / sizeof *THREADS; at++) {
        double kaml[ROUNDS], bare[ROUNDS], lmdb[ROUNDS] = {0};
        for (int round = 0; round < ROUNDS; round++) {
            kaml[round] = measure(get_from_kaml, THREADS[at], seconds);
            bare[round] = measure(get_from_cells, THREADS[at], seconds);
#ifdef WITH_LMDB
            lmdb[round] = measure(get_from_lmdb, THREADS[at], seconds);
#endif
        }
        double ours = median(kaml), control = median(bare), theirs = median(lmdb);
        printf("%d threads: KAML %.2f M gets/s, a bare table %.2f, KAML / bare table %.2f", THREADS[at], ours, control,
               ours / control);
        if (theirs > 0) {
            printf(", LMDB %.2f M gets/s, KAML / LMDB %.2f", theirs, ours / theirs);
        }
        printf("\n");
    }
    kaml_store_close(store);
    kaml_close(device);
    return 0;
}
