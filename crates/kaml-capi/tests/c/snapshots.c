// Snapshots of a device: what they show against what was stored at their moment, and every mistake with its status.
#define _DEFAULT_SOURCE
#include "check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 300 };

static kaml_device device;
static kaml_namespace_id ordered, any, past;

static size_t key_of(int number, char *key) {
    return (size_t)sprintf(key, "a key with the number %04d", number);
}

static size_t value_of(int number, int round, char *value) {
    return (size_t)sprintf(value, "%d in round %d", number, round);
}

static void fill(int from, int to, int round) {
    char key[64], value[64];
    for (int number = from; number < to; number++) {
        size_t key_length = key_of(number, key), value_length = value_of(number, round, value);
        EXPECT(kaml_put_one(device, ordered, key, key_length, value, value_length), KAML_OK);
        EXPECT(kaml_put_one(device, any, key, key_length, value, value_length), KAML_OK);
    }
}

static void is_record(const kaml_item *item, int number, int round) {
    char key[64], value[64];
    size_t key_length = key_of(number, key), value_length = value_of(number, round, value);
    TRUE_THAT(item->key_length == key_length && memcmp(item->key, key, key_length) == 0);
    TRUE_THAT(item->value_length == value_length && memcmp(item->value, value, value_length) == 0);
}

// The remaining records of an iterator: of a round, from a number up or down.
static void walk(kaml_range range, int from, int step, int expected, int round) {
    kaml_item *items;
    size_t count;
    int told = 0;
    for (;;) {
        EXPECT(kaml_range_next(range, 7, &items, &count), KAML_OK);
        if (count == 0) break;
        for (size_t at = 0; at < count; at++, told++) is_record(&items[at], from + step * told, round);
        kaml_free(items);
    }
    TRUE_THAT(told == expected);
}

// All reads through a snapshot that shows all records of a round, and nothing else.
static void shows(kaml_device_snapshot snapshot, int round) {
    char key[64], value[64], buffer[64], seen[RECORDS] = {0};
    kaml_namespace_info infos[8];
    kaml_cursor cursor = KAML_CURSOR_INIT;
    kaml_range range;
    kaml_item *items;
    void *found;
    size_t length, count, total = 0;
    uint64_t counted = 77;
    for (int number = 0; number < RECORDS; number += 13) {
        size_t key_length = key_of(number, key), value_length = value_of(number, round, value);
        for (int i = 0; i < 2; i++) {
            kaml_namespace_id of = i ? ordered : any;
            EXPECT(kaml_snapshot_get(snapshot, of, key, key_length, &found, &length), KAML_OK);
            TRUE_THAT(length == value_length && memcmp(found, value, length) == 0);
            kaml_free(found);
            EXPECT(kaml_snapshot_get_into(snapshot, of, key, key_length, buffer, sizeof buffer, &length), KAML_OK);
            TRUE_THAT(length == value_length && memcmp(buffer, value, length) == 0);
            EXPECT(kaml_snapshot_get_into(snapshot, of, key, key_length, buffer, 1, &length), KAML_BUFFER_TOO_SMALL);
            TRUE_THAT(length == value_length);
            EXPECT(kaml_snapshot_exists(snapshot, of, key, key_length), KAML_OK);
        }
    }
    size_t key_length = key_of(RECORDS, key);
    EXPECT(kaml_snapshot_get(snapshot, ordered, key, key_length, &found, &length), KAML_NOT_FOUND);
    TRUE_THAT(found == NULL && length == 0);
    EXPECT(kaml_snapshot_exists(snapshot, any, key, key_length), KAML_NOT_FOUND);

    EXPECT(kaml_snapshot_range_open(snapshot, ordered, NULL, 0, NULL, 0, 0, &range), KAML_OK);
    walk(range, 0, 1, RECORDS, round);
    EXPECT(kaml_range_close(range), KAML_OK);
    EXPECT(kaml_snapshot_range_open(snapshot, ordered, NULL, 0, NULL, 0, KAML_RANGE_REVERSE, &range), KAML_OK);
    walk(range, RECORDS - 1, -1, RECORDS, round);
    EXPECT(kaml_range_close(range), KAML_OK);
    EXPECT(kaml_snapshot_prefix_open(snapshot, ordered, "a key with the number 012", 25, 0, &range), KAML_OK);
    walk(range, 120, 1, 10, round);
    EXPECT(kaml_range_close(range), KAML_OK);
    EXPECT(kaml_snapshot_prefix_open(snapshot, ordered, NULL, 0, KAML_RANGE_KEYS_ONLY, &range), KAML_OK);
    EXPECT(kaml_range_next(range, 100000, &items, &count), KAML_OK);
    TRUE_THAT(count == RECORDS && items[0].value == NULL);
    kaml_free(items);
    EXPECT(kaml_range_close(range), KAML_OK);
    EXPECT(kaml_snapshot_first(snapshot, ordered, &items), KAML_OK);
    is_record(items, 0, round);
    kaml_free(items);
    EXPECT(kaml_snapshot_last(snapshot, ordered, &items), KAML_OK);
    is_record(items, RECORDS - 1, round);
    kaml_free(items);
    EXPECT(kaml_snapshot_count(snapshot, ordered, NULL, 0, NULL, 0, 0, &counted), KAML_OK);
    TRUE_THAT(counted == RECORDS);
    char other[64];
    size_t other_length = key_of(20, other);
    key_length = key_of(10, key);
    EXPECT(kaml_snapshot_count(snapshot, ordered, key, key_length, other, other_length, KAML_RANGE_TO_INCLUDED,
                               &counted), KAML_OK);
    TRUE_THAT(counted == 11);

    for (;;) {
        EXPECT(kaml_snapshot_list_keys(snapshot, any, &cursor, 64, &items, &count), KAML_OK);
        if (count == 0) break;
        for (size_t at = 0; at < count; at++, total++) {
            char digits[5] = {0};
            memcpy(digits, (const char *)items[at].key + 22, 4); // no zero byte ends a key
            int number = atoi(digits);
            TRUE_THAT(items[at].key_length == key_of(number, key) && !seen[number]);
            seen[number] = 1;
        }
        kaml_free(items);
    }
    TRUE_THAT(total == RECORDS);
    EXPECT(kaml_snapshot_namespaces(snapshot, infos, 8, &count), KAML_OK);
    TRUE_THAT(count == 3 && infos[0].record_count == RECORDS && infos[1].record_count == RECORDS);
    TRUE_THAT(strcmp(infos[0].name, "ordered") == 0 && strcmp(infos[1].name, "any") == 0 && infos[2].versioned);
}

static uint64_t open_count(kaml_device of) {
    kaml_device_snapshot_usage usage = KAML_DEVICE_SNAPSHOT_USAGE_INIT;
    EXPECT(kaml_snapshot_usage(of, &usage), KAML_OK);
    return usage.open_count;
}

static void showing(void) {
    kaml_device_snapshot first, second;
    kaml_range range;
    kaml_item *items;
    size_t count;
    char key[64], value[64];
    EXPECT(kaml_snapshot_open(device, &first), KAML_OK);
    fill(0, RECORDS, 2);
    EXPECT(kaml_snapshot_open(device, &second), KAML_OK);
    TRUE_THAT(open_count(device) == 2);
    fill(RECORDS, RECORDS + 50, 3);
    EXPECT(kaml_delete_range(device, ordered, NULL, 0, NULL, 0, 0, NULL), KAML_OK);
    for (int number = 0; number < RECORDS; number += 2) {
        EXPECT(kaml_delete(device, any, key, key_of(number, key)), KAML_OK);
    }
    shows(first, 1);
    shows(second, 2);

    // An iterator that has begun, and one that has not, outlive their snapshot.
    EXPECT(kaml_snapshot_range_open(first, ordered, NULL, 0, NULL, 0, 0, &range), KAML_OK);
    EXPECT(kaml_range_next(range, 1, &items, &count), KAML_OK);
    is_record(items, 0, 1);
    kaml_free(items);
    EXPECT(kaml_snapshot_close(first), KAML_OK);
    TRUE_THAT(open_count(device) == 2);
    walk(range, 1, 1, RECORDS - 1, 1);
    EXPECT(kaml_range_close(range), KAML_OK);
    TRUE_THAT(open_count(device) == 1);
    shows(second, 2);
    EXPECT(kaml_snapshot_abandon(second), KAML_OK);
    TRUE_THAT(open_count(device) == 0);
    EXPECT(kaml_snapshot_exists(first, ordered, value, value_of(1, 1, value)), KAML_BAD_HANDLE);
    fill(0, RECORDS, 4);
    EXPECT(kaml_delete_range(device, ordered, key, key_of(RECORDS, key), NULL, 0, 0, NULL), KAML_OK);
    for (int number = RECORDS; number < RECORDS + 50; number++) {
        EXPECT(kaml_delete(device, any, key, key_of(number, key)), KAML_OK);
    }
}

static void reading_only(void) {
    kaml_store_options options = KAML_STORE_OPTIONS_INIT;
    kaml_store store;
    kaml_device_snapshot view, late;
    kaml_txn txn;
    char key[64], value[64];
    void *found;
    size_t length, key_length = key_of(5, key);
    options.lock_timeout_ms = 50;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_OK);
    EXPECT(kaml_store_read_only(store, &view), KAML_OK);
    shows(view, 4);
    EXPECT(kaml_txn_begin(store, &txn), KAML_OK);
    EXPECT(kaml_txn_update(txn, ordered, key, key_length, value, value_of(5, 5, value)), KAML_OK);
    shows(view, 4); // it waits for no lock
    EXPECT(kaml_store_read_only(store, &late), KAML_OK);
    shows(late, 4); // nothing of it is committed
    EXPECT(kaml_snapshot_close(late), KAML_OK);
    EXPECT(kaml_txn_commit(txn), KAML_OK);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    EXPECT(kaml_store_read_only(store, &late), KAML_OK);
    EXPECT(kaml_store_close(store), KAML_OK);
    shows(view, 4);
    EXPECT(kaml_snapshot_get(late, ordered, key, key_length, &found, &length), KAML_OK);
    TRUE_THAT(length == value_of(5, 5, value) && memcmp(found, value, length) == 0);
    kaml_free(found);
    EXPECT(kaml_snapshot_close(late), KAML_OK);
    EXPECT(kaml_snapshot_close(view), KAML_OK);
    EXPECT(kaml_store_read_only(store, &view), KAML_BAD_HANDLE);
    EXPECT(kaml_put_one(device, ordered, key, key_length, value, value_of(5, 4, value)), KAML_OK);
}

static uint64_t reads(void) {
    kaml_device_statistics statistics = KAML_DEVICE_STATISTICS_INIT;
    EXPECT(kaml_statistics(device, &statistics), KAML_OK);
    return statistics.read_count;
}

static void expecting(void) {
    enum { EXPECTED = 40 };
    static char keys[EXPECTED][64];
    kaml_record records[EXPECTED];
    kaml_store store;
    kaml_txn txn;
    char value[64];
    void *found;
    size_t length;
    memset(records, 0, sizeof records);
    for (int at = 0; at < EXPECTED; at++) {
        records[at].namespace_id = any;
        records[at].key = keys[at];
        records[at].key_length = key_of(at * 7, keys[at]);
    }
    EXPECT(kaml_store_open(device, 8 << 20, NULL, &store), KAML_OK);
    EXPECT(kaml_txn_begin(store, &txn), KAML_OK);
    EXPECT(kaml_txn_expect(txn, records, EXPECTED), KAML_OK);
    uint64_t before = reads();
    for (int at = 0; at < EXPECTED; at++) {
        EXPECT(kaml_txn_read(txn, any, keys[at], records[at].key_length, &found, &length), KAML_OK);
        TRUE_THAT(length == value_of(at * 7, 4, value) && memcmp(found, value, length) == 0);
        kaml_free(found);
    }
    TRUE_THAT(reads() == before); // all were in the cache
    EXPECT(kaml_txn_expect(txn, NULL, 0), KAML_OK);
    EXPECT(kaml_txn_expect(txn, NULL, 3), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_expect(txn, records, (size_t)1 << 40), KAML_BATCH_TOO_LARGE);
    records[3].key_length = 0;
    EXPECT(kaml_txn_expect(txn, records, EXPECTED), KAML_BAD_KEY);
    records[3].key_length = 3;
    records[3].namespace_id = 4711; // its status comes when it is used
    EXPECT(kaml_txn_expect(txn, records, EXPECTED), KAML_OK);
    EXPECT(kaml_txn_read(txn, 4711, keys[3], 3, &found, &length), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_txn_commit(txn), KAML_OK);
    EXPECT(kaml_txn_expect(txn, records, EXPECTED), KAML_BAD_STATE);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    EXPECT(kaml_txn_expect(txn, records, EXPECTED), KAML_BAD_HANDLE);
    EXPECT(kaml_store_close(store), KAML_OK);
}

static void expiring(void) {
    kaml_device_snapshot snapshot, fresh;
    kaml_device_snapshot_usage usage = KAML_DEVICE_SNAPSHOT_USAGE_INIT;
    kaml_range range;
    kaml_item *items;
    char key[64];
    void *found;
    size_t count, length, key_length = key_of(1, key);
    EXPECT(kaml_snapshot_open(device, &snapshot), KAML_OK);
    EXPECT(kaml_snapshot_range_open(snapshot, ordered, NULL, 0, NULL, 0, 0, &range), KAML_OK);
    EXPECT(kaml_range_next(range, 1, &items, &count), KAML_OK);
    kaml_free(items);
    EXPECT(kaml_limit_snapshot_memory(device, 1), KAML_OK);
    fill(0, RECORDS, 4);
    EXPECT(kaml_snapshot_get(snapshot, ordered, key, key_length, &found, &length), KAML_SNAPSHOT_TOO_OLD);
    TRUE_THAT(found == NULL);
    EXPECT(kaml_snapshot_exists(snapshot, any, key, key_length), KAML_SNAPSHOT_TOO_OLD);
    EXPECT(kaml_snapshot_first(snapshot, ordered, &items), KAML_SNAPSHOT_TOO_OLD);
    EXPECT(kaml_snapshot_prefix_open(snapshot, ordered, NULL, 0, 0, &range), KAML_SNAPSHOT_TOO_OLD);
    EXPECT(kaml_snapshot_usage(device, &usage), KAML_OK);
    TRUE_THAT(usage.expired_count == 1 && usage.open_count == 0);
    EXPECT(kaml_snapshot_close(snapshot), KAML_OK);
    EXPECT(kaml_limit_snapshot_memory(device, 512 << 20), KAML_OK);
    EXPECT(kaml_snapshot_open(device, &fresh), KAML_OK);
    shows(fresh, 4);
    EXPECT(kaml_snapshot_close(fresh), KAML_OK);
}

static void mistaking(void) {
    const kaml_device_snapshot zero = {0}, random_one = {0x5123456789abcdefu};
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_device_snapshot_usage usage = KAML_DEVICE_SNAPSHOT_USAGE_INIT;
    kaml_namespace_info infos[8];
    kaml_device_snapshot snapshot, same;
    kaml_namespace_id late, doomed;
    kaml_cursor cursor = KAML_CURSOR_INIT;
    kaml_device other;
    kaml_range range;
    kaml_item *items;
    void *found;
    size_t count, length;
    uint64_t counted;
    char key[64];
    size_t key_length = key_of(1, key);
    EXPECT(kaml_snapshot_open(device, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_close(zero), KAML_BAD_HANDLE);
    EXPECT(kaml_snapshot_close(random_one), KAML_BAD_HANDLE);
    EXPECT(kaml_snapshot_get(zero, any, key, key_length, &found, &length), KAML_BAD_HANDLE);
    usage.struct_size--;
    EXPECT(kaml_snapshot_usage(device, &usage), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_usage(device, NULL), KAML_BAD_ARGUMENT);

    EXPECT(kaml_snapshot_open(device, &snapshot), KAML_OK);
    EXPECT(kaml_create_namespace(device, "late", &options, &late), KAML_OK);
    EXPECT(kaml_snapshot_get(snapshot, late, "a", 1, &found, &length), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_delete_namespace(device, late), KAML_OK);
    EXPECT(kaml_snapshot_get(snapshot, 4711, "a", 1, &found, &length), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_snapshot_get(snapshot, past, "a", 1, &found, &length), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_get(snapshot, any, key, 0, &found, &length), KAML_BAD_KEY);
    EXPECT(kaml_snapshot_get(snapshot, any, NULL, 1, &found, &length), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_get(snapshot, any, key, key_length, NULL, &length), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_range_open(snapshot, any, NULL, 0, NULL, 0, 0, &range), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_range_open(snapshot, ordered, NULL, 0, NULL, 0, 16, &range), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_range_open(snapshot, ordered, NULL, 0, NULL, 0, 0, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_prefix_open(snapshot, ordered, "a", 1, KAML_RANGE_TO_INCLUDED, &range), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_first(snapshot, any, &items), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_last(snapshot, ordered, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_count(snapshot, any, NULL, 0, NULL, 0, 0, &counted), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_list_keys(snapshot, ordered, &cursor, 5, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_list_keys(snapshot, any, &cursor, 0, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_namespaces(snapshot, NULL, 8, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_snapshot_namespaces(snapshot, infos, 0, &count), KAML_OK);
    TRUE_THAT(count == 3);
    same = snapshot;
    EXPECT(kaml_snapshot_close(same), KAML_OK);
    EXPECT(kaml_snapshot_close(snapshot), KAML_BAD_HANDLE);

    // The namespace goes, and then the device.
    options.keys = KAML_KEYS_ORDERED;
    EXPECT(kaml_create_in_memory(64 << 20, NULL, &other), KAML_OK);
    EXPECT(kaml_create_namespace(other, "doomed", &options, &doomed), KAML_OK);
    EXPECT(kaml_put_one(other, doomed, "a", 1, "1", 1), KAML_OK);
    EXPECT(kaml_snapshot_open(other, &snapshot), KAML_OK);
    EXPECT(kaml_snapshot_open(other, &same), KAML_OK);
    EXPECT(kaml_snapshot_range_open(snapshot, doomed, NULL, 0, NULL, 0, 0, &range), KAML_OK);
    EXPECT(kaml_delete_namespace(other, doomed), KAML_OK);
    EXPECT(kaml_snapshot_get(snapshot, doomed, "a", 1, &found, &length), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_range_next(range, 5, &items, &count), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_close(other), KAML_OK);
    EXPECT(kaml_range_next(range, 5, &items, &count), KAML_BAD_HANDLE);
    EXPECT(kaml_snapshot_get(snapshot, doomed, "a", 1, &found, &length), KAML_BAD_HANDLE);
    EXPECT(kaml_snapshot_close(snapshot), KAML_OK);
    EXPECT(kaml_snapshot_close(snapshot), KAML_BAD_HANDLE);
    EXPECT(kaml_snapshot_abandon(same), KAML_OK);
    EXPECT(kaml_range_close(range), KAML_OK);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    EXPECT(kaml_create(argv[1], 64 << 20, NULL, &device), KAML_OK);
    options.keys = KAML_KEYS_ORDERED;
    EXPECT(kaml_create_namespace(device, "ordered", &options, &ordered), KAML_OK);
    options.keys = KAML_KEYS_ANY;
    EXPECT(kaml_create_namespace(device, "any", &options, &any), KAML_OK);
    options.keys = KAML_KEYS_BYTES;
    options.versioned = 1;
    EXPECT(kaml_create_namespace(device, "past", &options, &past), KAML_OK);
    fill(0, RECORDS, 1);
    showing();
    reading_only();
    expecting();
    mistaking();
    expiring();
    TRUE_THAT(open_count(device) == 0);
    EXPECT(kaml_close(device), KAML_OK);
    printf("%d mistakes with another status\n", failed_count);
    return failed_count != 0;
}
