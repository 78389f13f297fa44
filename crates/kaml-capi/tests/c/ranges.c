// Keys of any length and ranges of them: against a sorted array, and every mistake with its status.
#define _DEFAULT_SOURCE
#include "check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 500 };

static kaml_device device;
static kaml_namespace_id ordered, any, plain;

// The key with a number: in the order of the numbers, of 6 to 1006 bytes.
static size_t key_of(int number, char *key) {
    size_t length = 6 + (size_t)(number % 5) * 250;
    memset(key, 'k', length);
    char digits[16];
    snprintf(digits, sizeof digits, "%06d", number);
    memcpy(key, digits, 6);
    return length;
}

static size_t value_of(int number, char *value) {
    size_t length = (size_t)(number * 37 % 3000);
    memset(value, number & 0xff, length);
    return length;
}

static void is_record(const kaml_item *item, int number, int has_value) {
    char key[KAML_LONG_KEY_BYTES_MAX], value[3000];
    size_t key_length = key_of(number, key), value_length = value_of(number, value);
    TRUE_THAT(item->key_length == key_length && memcmp(item->key, key, key_length) == 0);
    if (has_value) {
        TRUE_THAT(item->value_length == value_length && memcmp(item->value, value, value_length) == 0);
    } else {
        TRUE_THAT(item->value == NULL && item->value_length == 0);
    }
}

static void filling(void) {
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    char key[KAML_LONG_KEY_BYTES_MAX + 1], value[3000];
    void *found;
    size_t length;
    EXPECT(kaml_create_namespace(device, "plain", &options, &plain), KAML_OK);
    options.keys = KAML_KEYS_ANY;
    EXPECT(kaml_create_namespace(device, "any", &options, &any), KAML_OK);
    options.keys = KAML_KEYS_ORDERED;
    EXPECT(kaml_create_namespace(device, "ordered", &options, &ordered), KAML_OK);
    for (int i = 0; i < RECORDS; i++) {
        int number = i * 7 % RECORDS; // 7 does not divide it, so all of them, in another order
        size_t key_length = key_of(number, key), value_length = value_of(number, value);
        const kaml_record both[2] = {{ordered, KAML_PUT_IF_ABSENT, key, key_length, value, value_length},
                                     {any, KAML_PUT, key, key_length, value, value_length}};
        EXPECT(kaml_put(device, both, 2), KAML_OK);
        EXPECT(kaml_exists(device, any, key, key_length), KAML_OK);
        EXPECT(kaml_get(device, ordered, key, key_length, &found, &length), KAML_OK);
        TRUE_THAT(length == value_length && memcmp(found, value, length) == 0);
        kaml_free(found);
    }
    memset(key, 'x', sizeof key);
    EXPECT(kaml_put_one(device, any, key, KAML_LONG_KEY_BYTES_MAX, "1", 1), KAML_OK);
    EXPECT(kaml_delete(device, any, key, KAML_LONG_KEY_BYTES_MAX), KAML_OK);
    EXPECT(kaml_get(device, any, key, KAML_LONG_KEY_BYTES_MAX, &found, &length), KAML_NOT_FOUND);
    TRUE_THAT(strstr(kaml_last_error(), "xxxxxxxxxxxxxxxxxxxxxxxx") != NULL);
    EXPECT(kaml_put_one(device, any, key, KAML_LONG_KEY_BYTES_MAX + 1, "1", 1), KAML_BAD_KEY);
    EXPECT(kaml_put_one(device, plain, key, KAML_KEY_BYTES_MAX + 1, "1", 1), KAML_BAD_KEY);
    EXPECT(kaml_put_one(device, any, key, 0, "1", 1), KAML_BAD_KEY);
}

// Reads [from, to) in batches of some length; bounds below 0 are none.
static void walk(int from, int to, uint32_t flags, size_t batch) {
    char lower[KAML_LONG_KEY_BYTES_MAX], upper[KAML_LONG_KEY_BYTES_MAX];
    size_t lower_length = from < 0 ? 0 : key_of(from, lower), upper_length = to < 0 ? 0 : key_of(to, upper);
    int first = from < 0 ? 0 : from + (flags & KAML_RANGE_FROM_EXCLUDED ? 1 : 0);
    int end = to < 0 ? RECORDS : to + (flags & KAML_RANGE_TO_INCLUDED ? 1 : 0);
    int expected = end > first ? end - first : 0, told = 0;
    uint64_t counted = 77;
    kaml_range range;
    kaml_item *items;
    size_t count;
    EXPECT(kaml_range_open(device, ordered, from < 0 ? NULL : lower, lower_length, to < 0 ? NULL : upper,
                           upper_length, flags, &range), KAML_OK);
    for (;;) {
        EXPECT(kaml_range_next(range, batch, &items, &count), KAML_OK);
        TRUE_THAT(count <= batch && (items == NULL) == (count == 0));
        if (count == 0) break;
        for (size_t at = 0; at < count; at++, told++) {
            int number = flags & KAML_RANGE_REVERSE ? end - 1 - told : first + told;
            is_record(&items[at], number, !(flags & KAML_RANGE_KEYS_ONLY));
        }
        kaml_free(items);
    }
    TRUE_THAT(told == expected);
    EXPECT(kaml_range_next(range, batch, &items, &count), KAML_OK);
    TRUE_THAT(count == 0 && items == NULL);
    EXPECT(kaml_range_close(range), KAML_OK);
    EXPECT(kaml_count(device, ordered, from < 0 ? NULL : lower, lower_length, to < 0 ? NULL : upper, upper_length,
                      flags, &counted), KAML_OK);
    TRUE_THAT(counted == (uint64_t)expected);
}

static void walking(void) {
    const size_t batches[] = {1, 7, 100000};
    for (uint32_t flags = 0; flags < 16; flags++) {
        for (int i = 0; i < 3; i++) {
            walk(-1, -1, flags, batches[i]);
            walk(100, 110, flags, batches[i]);
            walk(110, 100, flags, batches[i]);
            walk(50, 50, flags, batches[i]);
            walk(-1, 20, flags, batches[i]);
            walk(480, -1, flags, batches[i]);
        }
    }
    kaml_range range;
    kaml_item *items;
    size_t count;
    uint64_t about = 0;
    EXPECT(kaml_prefix_open(device, ordered, "00012", 5, KAML_RANGE_REVERSE, &range), KAML_OK);
    EXPECT(kaml_range_next(range, 100, &items, &count), KAML_OK);
    TRUE_THAT(count == 10);
    for (int at = 0; at < 10; at++) is_record(&items[at], 129 - at, 1);
    kaml_free(items);
    EXPECT(kaml_range_close(range), KAML_OK);
    EXPECT(kaml_prefix_open(device, ordered, NULL, 0, KAML_RANGE_KEYS_ONLY, &range), KAML_OK);
    EXPECT(kaml_range_next(range, 100000, &items, &count), KAML_OK);
    TRUE_THAT(count == RECORDS);
    kaml_free(items);
    EXPECT(kaml_range_close(range), KAML_OK);
    EXPECT(kaml_first(device, ordered, &items), KAML_OK);
    is_record(items, 0, 1);
    kaml_free(items);
    EXPECT(kaml_last(device, ordered, &items), KAML_OK);
    is_record(items, RECORDS - 1, 1);
    kaml_free(items);
    EXPECT(kaml_estimate(device, ordered, NULL, 0, NULL, 0, 0, &about), KAML_OK);
    TRUE_THAT(about > RECORDS / 4 && about < RECORDS * 4);
}

static void listing(void) {
    kaml_cursor cursor = KAML_CURSOR_INIT, same;
    char seen[RECORDS] = {0};
    kaml_key short_keys[64];
    kaml_item *items;
    size_t count, total = 0;
    EXPECT(kaml_list(device, any, &cursor, short_keys, 64, &count), KAML_BAD_ARGUMENT);
    TRUE_THAT(cursor.state == 0);
    for (;;) {
        EXPECT(kaml_list_keys(device, any, &cursor, 64, &items, &count), KAML_OK);
        if (count == 0) break;
        for (size_t at = 0; at < count; at++, total++) {
            char digits[7] = {0};
            memcpy(digits, items[at].key, 6);
            int number = atoi(digits);
            is_record(&items[at], number, 0);
            TRUE_THAT(!seen[number]);
            seen[number] = 1;
        }
        kaml_free(items);
    }
    TRUE_THAT(total == RECORDS && items == NULL);
    memset(&same, 0, sizeof same);
    EXPECT(kaml_list_keys(device, ordered, &same, 64, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_list_keys(device, any, &same, 0, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_list_keys(device, any, NULL, 64, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_list_keys(device, any, &same, 64, NULL, &count), KAML_BAD_ARGUMENT);
}

static void storing(void) {
    char key[KAML_LONG_KEY_BYTES_MAX], value[3000], other[KAML_LONG_KEY_BYTES_MAX];
    kaml_store_options options = KAML_STORE_OPTIONS_INIT;
    kaml_store store;
    kaml_txn txn;
    kaml_item *items;
    void *found;
    size_t count, length, key_length = key_of(333, key), other_length;
    options.write_mode = KAML_WRITE_BACK;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_OK);
    EXPECT(kaml_delete_range(device, ordered, NULL, 0, NULL, 0, 0, NULL), KAML_IN_USE);
    EXPECT(kaml_store_delete(store, ordered, key, key_length), KAML_OK);
    EXPECT(kaml_store_get(store, ordered, key, key_length, &found, &length), KAML_NOT_FOUND);
    EXPECT(kaml_store_put(store, ordered, key, key_length, value, value_of(333, value)), KAML_OK);
    EXPECT(kaml_store_exists(store, ordered, key, key_length), KAML_OK);
    EXPECT(kaml_store_range(store, ordered, "000330", 6, "000340", 6, 0, 100, &items, &count), KAML_OK);
    TRUE_THAT(count == 10);
    for (int at = 0; at < 10; at++) is_record(&items[at], 330 + at, 1);
    kaml_free(items);
    EXPECT(kaml_store_range(store, ordered, NULL, 0, NULL, 0, KAML_RANGE_REVERSE | KAML_RANGE_KEYS_ONLY, 3, &items,
                            &count), KAML_OK);
    TRUE_THAT(count == 3);
    for (int at = 0; at < 3; at++) is_record(&items[at], RECORDS - 1 - at, 0);
    kaml_free(items);
    EXPECT(kaml_store_range(store, plain, NULL, 0, NULL, 0, 0, 3, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_store_range(store, ordered, NULL, 0, NULL, 0, 16, 3, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_store_range(store, ordered, NULL, 0, NULL, 0, 0, 0, &items, &count), KAML_OK);
    TRUE_THAT(count == 0 && items == NULL);

    EXPECT(kaml_txn_begin(store, &txn), KAML_OK);
    EXPECT(kaml_txn_delete(txn, ordered, key, key_length), KAML_OK);
    other_length = key_of(RECORDS, other);
    EXPECT(kaml_txn_insert(txn, ordered, other, other_length, value, value_of(RECORDS, value)), KAML_OK);
    EXPECT(kaml_txn_insert(txn, ordered, other, other_length, "", 0), KAML_EXISTS);
    EXPECT(kaml_txn_range(txn, ordered, "000332", 6, "000335", 6, 0, 100, &items, &count), KAML_OK);
    TRUE_THAT(count == 2);
    is_record(&items[0], 332, 1);
    is_record(&items[1], 334, 1);
    kaml_free(items);
    EXPECT(kaml_txn_range(txn, ordered, "000498", 6, NULL, 0, KAML_RANGE_REVERSE, 2, &items, &count), KAML_OK);
    TRUE_THAT(count == 2);
    is_record(&items[0], RECORDS, 1);
    is_record(&items[1], RECORDS - 1, 1);
    kaml_free(items);
    EXPECT(kaml_txn_abort(txn), KAML_OK);
    EXPECT(kaml_txn_range(txn, ordered, NULL, 0, NULL, 0, 0, 5, &items, &count), KAML_BAD_STATE);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    EXPECT(kaml_txn_range(txn, ordered, NULL, 0, NULL, 0, 0, 5, &items, &count), KAML_BAD_HANDLE);
    EXPECT(kaml_store_close(store), KAML_OK);
    EXPECT(kaml_store_range(store, ordered, NULL, 0, NULL, 0, 0, 5, &items, &count), KAML_BAD_HANDLE);
    TRUE_THAT(items == NULL && count == 0);
}

// Two transactions, and one of them locks records of a range for changes.
static void locking(void) {
    kaml_store_options options = KAML_STORE_OPTIONS_INIT;
    kaml_store store;
    kaml_txn first, second;
    kaml_item *items;
    size_t count;
    options.lock_timeout_ms = 50;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_OK);
    for (uint32_t flags = 0; flags <= KAML_RANGE_REVERSE; flags += KAML_RANGE_REVERSE) {
        int number = flags ? RECORDS - 1 : 0, below = flags ? RECORDS - 4 : 3;
        EXPECT(kaml_txn_begin(store, &first), KAML_OK);
        EXPECT(kaml_txn_range_for_update(first, ordered, NULL, 0, NULL, 0, flags, 2, &items, &count), KAML_OK);
        TRUE_THAT(count == 2);
        is_record(&items[0], number, 1);
        is_record(&items[1], flags ? number - 1 : number + 1, 1);
        kaml_free(items);
        EXPECT(kaml_txn_begin(store, &second), KAML_OK);
        EXPECT(kaml_txn_range_for_update(second, ordered, "000003", 6, "000497", 6, flags | KAML_RANGE_KEYS_ONLY, 1,
                                         &items, &count), KAML_OK);
        TRUE_THAT(count == 1);
        is_record(&items[0], below, 0);
        kaml_free(items);
        EXPECT(kaml_txn_range_for_update(second, ordered, NULL, 0, NULL, 0, flags, 1, &items, &count),
               KAML_LOCK_TIMEOUT);
        TRUE_THAT(items == NULL && count == 0);
        EXPECT(kaml_txn_free(second), KAML_OK);
        EXPECT(kaml_txn_commit(first), KAML_OK);
        EXPECT(kaml_txn_free(first), KAML_OK);
    }
    EXPECT(kaml_txn_begin(store, &first), KAML_OK);
    EXPECT(kaml_txn_range_for_update(first, plain, NULL, 0, NULL, 0, 0, 1, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_range_for_update(first, ordered, NULL, 5, NULL, 0, 0, 1, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_range_for_update(first, ordered, NULL, 0, NULL, 0, 16, 1, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_range_for_update(first, ordered, NULL, 0, NULL, 0, 0, 1, NULL, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_abandon(first), KAML_OK);
    EXPECT(kaml_txn_range_for_update(first, ordered, NULL, 0, NULL, 0, 0, 1, &items, &count), KAML_BAD_HANDLE);
    EXPECT(kaml_store_close(store), KAML_OK);
}

static void mistaking(void) {
    const kaml_range zero = {0}, random_one = {0x4123456789abcdefu};
    char key[KAML_LONG_KEY_BYTES_MAX + 1];
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_namespace_id doomed;
    kaml_device other;
    kaml_range range, second;
    kaml_item *items;
    size_t count;
    uint64_t deleted;
    memset(key, 'k', sizeof key);
    EXPECT(kaml_range_open(device, ordered, key, sizeof key, NULL, 0, 0, &range), KAML_BAD_KEY);
    EXPECT(kaml_range_open(device, ordered, key, 0, NULL, 0, 0, &range), KAML_BAD_KEY);
    EXPECT(kaml_range_open(device, ordered, NULL, 5, NULL, 0, 0, &range), KAML_BAD_ARGUMENT);
    EXPECT(kaml_range_open(device, ordered, NULL, 0, NULL, 0, 16, &range), KAML_BAD_ARGUMENT);
    EXPECT(kaml_range_open(device, ordered, NULL, 0, NULL, 0, 0, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_range_open(device, any, NULL, 0, NULL, 0, 0, &range), KAML_BAD_ARGUMENT);
    EXPECT(kaml_range_open(device, 4711, NULL, 0, NULL, 0, 0, &range), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_prefix_open(device, ordered, key, sizeof key, 0, &range), KAML_BAD_KEY);
    EXPECT(kaml_prefix_open(device, ordered, NULL, 5, 0, &range), KAML_BAD_ARGUMENT);
    EXPECT(kaml_prefix_open(device, ordered, "a", 1, KAML_RANGE_TO_INCLUDED, &range), KAML_BAD_ARGUMENT);
    TRUE_THAT(range.id == 0);
    EXPECT(kaml_range_next(zero, 5, &items, &count), KAML_BAD_HANDLE);
    EXPECT(kaml_range_next(random_one, 5, &items, &count), KAML_BAD_HANDLE);
    EXPECT(kaml_range_close(zero), KAML_BAD_HANDLE);
    EXPECT(kaml_first(device, any, &items), KAML_BAD_ARGUMENT);
    EXPECT(kaml_first(device, ordered, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_count(device, plain, NULL, 0, NULL, 0, 0, &deleted), KAML_BAD_ARGUMENT);
    EXPECT(kaml_count(device, ordered, NULL, 0, NULL, 0, 0, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_delete_range(device, any, NULL, 0, NULL, 0, 0, &deleted), KAML_BAD_ARGUMENT);

    EXPECT(kaml_range_open(device, ordered, NULL, 0, NULL, 0, 0, &range), KAML_OK);
    EXPECT(kaml_range_next(range, 0, &items, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_range_next(range, 5, NULL, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_range_next(range, 5, &items, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_range_close(range), KAML_OK);
    EXPECT(kaml_range_close(range), KAML_BAD_HANDLE);
    EXPECT(kaml_range_next(range, 5, &items, &count), KAML_BAD_HANDLE);

    // The namespace goes, and then the device.
    options.keys = KAML_KEYS_ORDERED;
    EXPECT(kaml_create_in_memory(64 << 20, NULL, &other), KAML_OK);
    EXPECT(kaml_create_namespace(other, "doomed", &options, &doomed), KAML_OK);
    EXPECT(kaml_first(other, doomed, &items), KAML_NOT_FOUND);
    EXPECT(kaml_put_one(other, doomed, "a", 1, "1", 1), KAML_OK);
    EXPECT(kaml_range_open(other, doomed, NULL, 0, NULL, 0, 0, &range), KAML_OK);
    EXPECT(kaml_range_open(other, doomed, NULL, 0, NULL, 0, 0, &second), KAML_OK);
    EXPECT(kaml_delete_range(other, doomed, "a", 1, "a", 1, KAML_RANGE_TO_INCLUDED, &deleted), KAML_OK);
    TRUE_THAT(deleted == 1);
    EXPECT(kaml_delete_namespace(other, doomed), KAML_OK);
    EXPECT(kaml_range_next(range, 5, &items, &count), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_first(other, doomed, &items), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_close(other), KAML_OK);
    EXPECT(kaml_range_next(range, 5, &items, &count), KAML_BAD_HANDLE);
    EXPECT(kaml_range_close(range), KAML_OK);
    EXPECT(kaml_range_abandon(second), KAML_OK);
    EXPECT(kaml_range_next(second, 5, &items, &count), KAML_BAD_HANDLE);
}

static void deleting(void) {
    uint64_t deleted = 0, left = 0;
    EXPECT(kaml_delete_range(device, ordered, "000100", 6, "000200", 6, 0, &deleted), KAML_OK);
    TRUE_THAT(deleted == 100);
    EXPECT(kaml_count(device, ordered, NULL, 0, NULL, 0, 0, &left), KAML_OK);
    TRUE_THAT(left == RECORDS - 100);
    EXPECT(kaml_delete_range(device, ordered, NULL, 0, NULL, 0, 0, NULL), KAML_OK);
    EXPECT(kaml_count(device, ordered, NULL, 0, NULL, 0, 0, &left), KAML_OK);
    TRUE_THAT(left == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    EXPECT(kaml_create(argv[1], 64 << 20, NULL, &device), KAML_OK);
    filling();
    EXPECT(kaml_close(device), KAML_OK);
    EXPECT(kaml_open(argv[1], NULL, &device), KAML_OK);
    walking();
    listing();
    storing();
    locking();
    mistaking();
    walking();
    deleting();
    EXPECT(kaml_close(device), KAML_OK);
    printf("%d mistakes with another status\n", failed_count);
    return failed_count != 0;
}
