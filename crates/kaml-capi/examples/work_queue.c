// A durable work queue with leases: a job that a worker has taken and not finished is taken again when its lease has ended.
//
// Any number of threads of one process can work: a transaction locks the oldest job for update, so two workers never take the same one. Also compiles as C++.
//
//     cc work_queue.c $(pkg-config --cflags --libs kaml) -o work_queue
//     ./work_queue queue.kaml put "mail to ada" "mail to alan"
//     ./work_queue queue.kaml take 30          # takes a job for 30 seconds, and does not finish it
//     ./work_queue queue.kaml work             # does all jobs that are ready
//     ./work_queue queue.kaml show
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <kaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEASE_S 60
#define NUMBER_BYTES 8

// `ready` has the jobs under their numbers; `leased` has them under the end of the lease and the number.
typedef struct {
    kaml_device device;
    kaml_store store;
    kaml_namespace_id ready, leased, counts;
} queue;

typedef struct {
    unsigned char lease[2 * NUMBER_BYTES]; // its key in `leased`
    char text[1024];
} job;

static void check(kaml_status status, const char *what) {
    if (status == KAML_OK) return;
    fprintf(stderr, "%s: %s\n", what, kaml_last_error());
    exit(1);
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// Big-endian, so keys are in the order of their numbers.
static void store_number(uint64_t number, unsigned char *to) {
    for (int i = NUMBER_BYTES; i-- > 0; number >>= 8) to[i] = (unsigned char)number;
}

// A body returns KAML_OK to commit. It is run again after a deadlock, so it changes nothing but the transaction and what it returns.
typedef kaml_status (*body)(const queue *q, kaml_txn txn, void *argument);

static kaml_status run(const queue *q, body what, void *argument) {
    kaml_status status;
    do {
        kaml_txn txn;
        check(kaml_txn_begin(q->store, &txn), "begin");
        status = what(q, txn, argument);
        if (status == KAML_OK) status = kaml_txn_commit(txn);
        kaml_txn_abandon(txn); // aborts it unless it was committed, and leaves the message of the failure
    } while (kaml_is_retryable(status));
    return status;
}

static kaml_status put_in(const queue *q, kaml_txn txn, void *text) {
    unsigned char number[NUMBER_BYTES];
    int64_t last;
    kaml_status status = kaml_txn_add(txn, q->counts, "jobs", 4, 1, &last);
    if (status != KAML_OK) return status;
    store_number((uint64_t)last, number);
    return kaml_txn_insert(txn, q->ready, number, sizeof number, text, strlen((const char *)text));
}

// Moves jobs whose lease has ended back to those that are ready.
static kaml_status end_leases(const queue *q, kaml_txn txn, uint64_t now) {
    unsigned char end[NUMBER_BYTES];
    kaml_item *found;
    size_t count;
    store_number(now, end);
    kaml_status status = kaml_txn_range_for_update(txn, q->leased, NULL, 0, end, sizeof end, 0, 100, &found, &count);
    for (size_t i = 0; status == KAML_OK && i < count; i++) {
        const char *number = (const char *)found[i].key + NUMBER_BYTES;
        status = kaml_txn_delete(txn, q->leased, found[i].key, found[i].key_length);
        if (status == KAML_OK) {
            status = kaml_txn_insert(txn, q->ready, number, NUMBER_BYTES, found[i].value, found[i].value_length);
        }
    }
    kaml_free(found);
    return status;
}

typedef struct {
    unsigned lease_s;
    job taken;
    int is_found;
} taking;

static kaml_status take_in(const queue *q, kaml_txn txn, void *argument) {
    taking *t = (taking *)argument;
    uint64_t now = now_ms();
    kaml_item *oldest;
    size_t count;
    kaml_status status = end_leases(q, txn, now);
    if (status != KAML_OK) return status;
    status = kaml_txn_range_for_update(txn, q->ready, NULL, 0, NULL, 0, 0, 1, &oldest, &count);
    t->is_found = status == KAML_OK && count > 0;
    if (t->is_found) {
        store_number(now + t->lease_s * UINT64_C(1000), t->taken.lease);
        memcpy(t->taken.lease + NUMBER_BYTES, oldest->key, NUMBER_BYTES);
        snprintf(t->taken.text, sizeof t->taken.text, "%.*s", (int)oldest->value_length, (const char *)oldest->value);
        status = kaml_txn_delete(txn, q->ready, oldest->key, oldest->key_length);
        if (status == KAML_OK) {
            status = kaml_txn_insert(txn, q->leased, t->taken.lease, sizeof t->taken.lease, oldest->value,
                                     oldest->value_length);
        }
    }
    kaml_free(oldest);
    return status;
}

// Takes the oldest job for so many seconds. Returns whether there is one.
static int take(const queue *q, unsigned lease_s, job *taken) {
    taking t;
    memset(&t, 0, sizeof t);
    t.lease_s = lease_s;
    check(run(q, take_in, &t), "take");
    *taken = t.taken;
    return t.is_found;
}

static kaml_status finish_in(const queue *q, kaml_txn txn, void *taken) {
    return kaml_txn_delete(txn, q->leased, ((job *)taken)->lease, 2 * NUMBER_BYTES);
}

// Removes a job that is done. Returns 0 if its lease had ended and somebody else has it.
static int finish(const queue *q, job *done) {
    kaml_status status = run(q, finish_in, done);
    if (status != KAML_NOT_FOUND) check(status, "finish");
    return status == KAML_OK;
}

static kaml_namespace_id namespace_of(kaml_device device, const char *name, uint32_t keys) {
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_namespace_id found;
    options.keys = keys;
    kaml_status status = kaml_namespace(device, name, &found);
    if (status == KAML_UNKNOWN_NAMESPACE) status = kaml_create_namespace(device, name, &options, &found);
    check(status, name);
    return found;
}

int main(int argc, char **argv) {
    const char *action = argc > 2 ? argv[2] : "";
    queue q;
    job taken;
    uint64_t ready, leased;
    if (argc < 3) {
        fprintf(stderr, "usage: work_queue DEVICE put JOB... | take SECONDS | work | show\n");
        return 2;
    }
    check(kaml_open_or_create(argv[1], 64 << 20, NULL, &q.device), "open");
    q.ready = namespace_of(q.device, "ready", KAML_KEYS_ORDERED);
    q.leased = namespace_of(q.device, "leased", KAML_KEYS_ORDERED);
    q.counts = namespace_of(q.device, "counts", KAML_KEYS_BYTES);
    check(kaml_store_open(q.device, 8 << 20, NULL, &q.store), "store");
    if (strcmp(action, "put") == 0) {
        for (int i = 3; i < argc; i++) check(run(&q, put_in, argv[i]), "put");
    } else if (strcmp(action, "take") == 0) {
        if (take(&q, argc > 3 ? (unsigned)atoi(argv[3]) : LEASE_S, &taken)) printf("%s\n", taken.text);
    } else if (strcmp(action, "work") == 0) {
        while (take(&q, LEASE_S, &taken)) {
            printf("%s\n", taken.text); // the work
            if (!finish(&q, &taken)) fprintf(stderr, "%s: took too long, and is done again\n", taken.text);
        }
    }
    check(kaml_store_close(q.store), "close the store");
    check(kaml_count(q.device, q.ready, NULL, 0, NULL, 0, 0, &ready), "count");
    check(kaml_count(q.device, q.leased, NULL, 0, NULL, 0, 0, &leased), "count");
    check(kaml_close(q.device), "close");
    if (strcmp(action, "show") == 0) printf("%" PRIu64 " ready, %" PRIu64 " leased\n", ready, leased);
    return 0;
}
