// Reads of many records in one call, reads of transactions into a buffer, and calls of many threads with one store that another thread closes.
#define _DEFAULT_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEYS = 1000, TOO_MANY = 4097, THREADS = 8 };

static kaml_device device;
static kaml_store store;
static kaml_namespace_id numbers, names;

// Every third number has no record, every seventh of the others an empty value.
static int has_record(int number) { return number % 3 != 0; }

static size_t value_of(int number, char *value) {
    return number % 7 == 0 ? 0 : (size_t)sprintf(value, "value %d of this test", number);
}

static void check_items(const kaml_item *items, const kaml_key *keys, int from, int count) {
    for (int at = 0; at < count; at++) {
        char value[64];
        size_t length = value_of(from + at, value);
        TRUE_THAT(items[at].key_length == 8 && memcmp(items[at].key, keys[at].bytes, 8) == 0);
        TRUE_THAT((items[at].value != NULL) == has_record(from + at));
        TRUE_THAT(items[at].value_length == (has_record(from + at) ? length : 0));
        TRUE_THAT(items[at].value_length == 0 || memcmp(items[at].value, value, length) == 0);
    }
}

static void many(void) {
    static kaml_key keys[TOO_MANY];
    static const void *starts[TOO_MANY];
    static size_t lengths[TOO_MANY];
    for (int at = 0; at < TOO_MANY; at++) {
        keys[at] = kaml_key_u64((uint64_t)at);
        starts[at] = keys[at].bytes;
        lengths[at] = 8;
    }
    kaml_item *items = NULL;
    EXPECT(kaml_get_many(device, numbers, starts, lengths, KEYS, &items), KAML_OK);
    check_items(items, keys, 0, KEYS);
    kaml_free(items);
    // From the medium, and then from the cache.
    for (int round = 0; round < 2; round++) {
        EXPECT(kaml_store_get_many(store, numbers, starts + 10, lengths + 10, 500, &items), KAML_OK);
        check_items(items, keys + 10, 10, 500);
        kaml_free(items);
    }
    EXPECT(kaml_get_many(device, numbers, NULL, NULL, 0, &items), KAML_OK);
    TRUE_THAT(items == NULL);
    EXPECT(kaml_store_get_many(store, numbers, NULL, NULL, 0, &items), KAML_OK);
    TRUE_THAT(items == NULL);
    // Keys of all lengths.
    char longest[KAML_LONG_KEY_BYTES_MAX];
    memset(longest, 'k', sizeof longest);
    EXPECT(kaml_store_put(store, names, longest, sizeof longest, "long", 4), KAML_OK);
    const void *both[] = {longest, "short"};
    size_t both_lengths[] = {sizeof longest, 5};
    EXPECT(kaml_store_get_many(store, names, both, both_lengths, 2, &items), KAML_OK);
    TRUE_THAT(items[0].key_length == sizeof longest && items[0].value_length == 4 && memcmp(items[0].value, "long", 4) == 0);
    TRUE_THAT(items[1].key_length == 5 && items[1].value == NULL);
    kaml_free(items);

    EXPECT(kaml_store_get_many(store, numbers, starts, lengths, TOO_MANY, &items), KAML_BAD_ARGUMENT);
    TRUE_THAT(items == NULL);
    EXPECT(kaml_get_many(device, numbers, starts, NULL, KEYS, &items), KAML_BAD_ARGUMENT);
    EXPECT(kaml_get_many(device, numbers, NULL, lengths, KEYS, &items), KAML_BAD_ARGUMENT);
    EXPECT(kaml_get_many(device, numbers, starts, lengths, KEYS, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_get_many(device, 12345, starts, lengths, KEYS, &items), KAML_UNKNOWN_NAMESPACE);
    lengths[7] = 0;
    EXPECT(kaml_get_many(device, numbers, starts, lengths, KEYS, &items), KAML_BAD_KEY);
    EXPECT(kaml_store_get_many(store, numbers, starts, lengths, KEYS, &items), KAML_BAD_KEY);
    lengths[7] = 8;
    kaml_store closed = {0};
    EXPECT(kaml_store_get_many(closed, numbers, starts, lengths, KEYS, &items), KAML_BAD_HANDLE);
}

static void into_buffers(void) {
    kaml_key one = kaml_key_u64(1), none = kaml_key_u64(3);
    char expected[64], buffer[64] = "as it was";
    size_t expected_length = value_of(1, expected), length = 0;
    kaml_txn txn;
    EXPECT(kaml_txn_begin(store, &txn), KAML_OK);
    EXPECT(kaml_txn_read_into(txn, numbers, one.bytes, 8, buffer, 3, &length), KAML_BUFFER_TOO_SMALL);
    TRUE_THAT(length == expected_length && strcmp(buffer, "as it was") == 0);
    EXPECT(kaml_txn_read_into(txn, numbers, one.bytes, 8, buffer, sizeof buffer, &length), KAML_OK);
    TRUE_THAT(length == expected_length && memcmp(buffer, expected, length) == 0);
    EXPECT(kaml_txn_read_into(txn, numbers, none.bytes, 8, buffer, sizeof buffer, &length), KAML_NOT_FOUND);
    TRUE_THAT(length == 0);
    EXPECT(kaml_txn_read_into(txn, numbers, one.bytes, 8, NULL, sizeof buffer, &length), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_read_into(txn, numbers, one.bytes, 8, buffer, sizeof buffer, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_commit(txn), KAML_OK);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    EXPECT(kaml_txn_read_into(txn, numbers, one.bytes, 8, buffer, sizeof buffer, &length), KAML_BAD_HANDLE);
}

// Reads until the store is closed; another status than these two would be a mistake. The pauses let somebody close it: a store that a thread is
// in a call with is not closed.
static void *read_until_closed(void *read_count) {
    kaml_key one = kaml_key_u64(1);
    char buffer[64], expected[64];
    size_t expected_length = value_of(1, expected), length;
    for (;;) {
        kaml_status status = kaml_store_get_into(store, numbers, one.bytes, 8, buffer, sizeof buffer, &length);
        if (status == KAML_BAD_HANDLE) {
            return NULL;
        }
        if (status != KAML_OK || length != expected_length || memcmp(buffer, expected, length) != 0) {
            return (void *)"another status or value";
        }
        if (__atomic_add_fetch((uint64_t *)read_count, 1, __ATOMIC_RELAXED) % 100 == 0) {
            usleep(1000);
        }
    }
}

static void closing(void) {
    static uint64_t read_counts[THREADS];
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) {
        TRUE_THAT(pthread_create(&threads[at], NULL, read_until_closed, &read_counts[at]) == 0);
    }
    for (int at = 0; at < THREADS; at++) {
        while (__atomic_load_n(&read_counts[at], __ATOMIC_RELAXED) < 100) {
        }
    }
    kaml_status status;
    while ((status = kaml_store_close(store)) == KAML_IN_USE) {
    }
    EXPECT(status, KAML_OK);
    for (int at = 0; at < THREADS; at++) {
        void *mistake = NULL;
        TRUE_THAT(pthread_join(threads[at], &mistake) == 0);
        TRUE_THAT(mistake == NULL);
    }
    EXPECT(kaml_store_close(store), KAML_BAD_HANDLE);
}

int main(int argument_count, char **arguments) {
    if (argument_count != 2) {
        return 2;
    }
    kaml_namespace_options any = KAML_NAMESPACE_OPTIONS_INIT;
    any.keys = KAML_KEYS_ANY;
    EXPECT(kaml_create(arguments[1], 64 << 20, NULL, &device), KAML_OK);
    EXPECT(kaml_create_namespace(device, "numbers", NULL, &numbers), KAML_OK);
    EXPECT(kaml_create_namespace(device, "names", &any, &names), KAML_OK);
    for (int number = 0; number < KEYS; number++) {
        char value[64];
        kaml_key key = kaml_key_u64((uint64_t)number);
        if (has_record(number)) {
            EXPECT(kaml_put_one(device, numbers, key.bytes, 8, value, value_of(number, value)), KAML_OK);
        }
    }
    EXPECT(kaml_store_open(device, 8 << 20, NULL, &store), KAML_OK);
    many();
    into_buffers();
    closing();
    EXPECT(kaml_close(device), KAML_OK);
    printf("%d mistakes with another status\n", failed_count);
    return failed_count != 0;
}
