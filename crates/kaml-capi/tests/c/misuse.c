// Every mistake a C program can make, and what it is returned; then that everything still works.
#define _DEFAULT_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const char *path;
static kaml_device device;
static kaml_namespace_id bytes_ns, u64_ns;

static void opening(void) {
    kaml_device other;
    kaml_create_options create = KAML_CREATE_OPTIONS_INIT;
    kaml_open_options open_options = KAML_OPEN_OPTIONS_INIT;

    EXPECT(kaml_open_or_create(NULL, 64 << 20, NULL, &other), KAML_BAD_ARGUMENT);
    EXPECT(kaml_open_or_create(path, 64 << 20, NULL, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_create(NULL, 64 << 20, NULL, &other), KAML_BAD_ARGUMENT);
    EXPECT(kaml_create(path, 64 << 20, NULL, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_create(path, 1, NULL, &other), KAML_BAD_ARGUMENT);
    EXPECT(kaml_open(NULL, NULL, &other), KAML_BAD_ARGUMENT);
    EXPECT(kaml_open("/nowhere/at/all", NULL, &other), KAML_NO_FILE);
    EXPECT(kaml_create("/nowhere/at/all", 64 << 20, NULL, &other), KAML_NO_FILE);
    EXPECT(kaml_create("/sys/device.kaml", 64 << 20, NULL, &other), KAML_NO_PERMISSION);
    EXPECT(kaml_open("/dev/null", NULL, &other), KAML_NOT_A_DEVICE);
    TRUE_THAT(other.id == 0);
    create.durability = 7;
    EXPECT(kaml_create(path, 64 << 20, &create, &other), KAML_BAD_ARGUMENT);
    create.durability = KAML_DURABLE_PROCESS;
    create.force = 2;
    EXPECT(kaml_create(path, 64 << 20, &create, &other), KAML_BAD_ARGUMENT);
    create.force = 0;
    create.struct_size = 3;
    EXPECT(kaml_create(path, 64 << 20, &create, &other), KAML_BAD_ARGUMENT);
    create.struct_size = sizeof create;
    create.chunk_bytes = 12345;
    EXPECT(kaml_create(path, 64 << 20, &create, &other), KAML_BAD_ARGUMENT);
    create.chunk_bytes = 0;
    EXPECT(kaml_create(path, 64 << 20, (kaml_create_options *)((char *)&create + 1), &other), KAML_BAD_ARGUMENT);

    EXPECT(kaml_create(path, 64 << 20, &create, &device), KAML_OK);
    EXPECT(kaml_create(path, 64 << 20, &create, &other), KAML_LOCKED);
    EXPECT(kaml_open(path, NULL, &other), KAML_LOCKED);
    EXPECT(kaml_open_or_create(path, 64 << 20, NULL, &other), KAML_LOCKED);
    create.grows = 2;
    EXPECT(kaml_create(path, 64 << 20, &create, &other), KAML_BAD_ARGUMENT);
    create.grows = 0;
    open_options.durability = 9;
    EXPECT(kaml_open(path, &open_options, &other), KAML_BAD_ARGUMENT);
}

static void namespaces(void) {
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_namespace_id id = 77, versions = 0;
    const uint32_t log = 1000000, twice[2] = {0, 0};
    char name[300];
    size_t value_length = 0;

    EXPECT(kaml_create_namespace(device, "bytes", NULL, &bytes_ns), KAML_OK);
    options.keys = KAML_KEYS_U64;
    EXPECT(kaml_create_namespace(device, "u64", &options, &u64_ns), KAML_OK);
    EXPECT(kaml_create_namespace(device, "bytes", NULL, &id), KAML_NAMESPACE_EXISTS);
    EXPECT(kaml_create_namespace(device, "", NULL, &id), KAML_BAD_NAME);
    EXPECT(kaml_create_namespace(device, "\xff\xfe", NULL, &id), KAML_BAD_NAME);
    EXPECT(kaml_create_namespace(device, NULL, NULL, &id), KAML_BAD_ARGUMENT);
    EXPECT(kaml_create_namespace(device, "x", NULL, NULL), KAML_BAD_ARGUMENT);
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    EXPECT(kaml_create_namespace(device, name, NULL, &id), KAML_BAD_NAME);
    options.keys = 5;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.keys = KAML_KEYS_BYTES;
    options.log_count = 1;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.logs = &log;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.log_count = 2;
    options.logs = twice;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.log_count = 0;
    options.merge_when_low = 1;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.merge_when_low = 0;
    options.keep_last = 3;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.keep_last = 0;
    options.keep_for_ns = 1;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.keep_for_ns = 0;
    options.keep_internal = 1;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.keep_internal = 0;
    options.versioned = 1;
    options.merge_when_low = 2;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.merge_when_low = 0;
    options.keep_last = 3;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.merge_when_low = 1;
    options.index_place = 7;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.index_place = KAML_INDEX_FLASH;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    options.index_place = KAML_INDEX_MEMORY;
    EXPECT(kaml_create_namespace(device, "x", &options, &versions), KAML_OK);
    EXPECT(kaml_delete_namespace(device, versions), KAML_OK);
    options.versioned = options.merge_when_low = options.keep_last = 0;
    options.index_place = KAML_INDEX_FLASH;
    options.keys = KAML_KEYS_ORDERED;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    TRUE_THAT(strstr(kaml_last_error(), "16 bytes") != NULL);
    options.keys = KAML_KEYS_BYTES;
    EXPECT(kaml_create_namespace(device, "x", &options, &versions), KAML_OK);
    EXPECT(kaml_put_one(device, versions, "key", 3, "value", 5), KAML_OK);
    EXPECT(kaml_get_into(device, versions, "key", 3, name, sizeof name, &value_length), KAML_OK);
    TRUE_THAT(value_length == 5 && memcmp(name, "value", 5) == 0);
    EXPECT(kaml_delete_namespace(device, versions), KAML_OK);
    EXPECT(kaml_namespace(device, "nobody", &id), KAML_UNKNOWN_NAMESPACE);
    TRUE_THAT(strstr(kaml_last_error(), "nobody") != NULL);
    EXPECT(kaml_delete_namespace(device, 4711), KAML_UNKNOWN_NAMESPACE);
    TRUE_THAT(id == 77);
    EXPECT(kaml_namespace(device, "u64", &id), KAML_OK);
    TRUE_THAT(id == u64_ns);

    kaml_namespace_info infos[3];
    size_t count = 0;
    EXPECT(kaml_namespaces(device, infos, 3, &count), KAML_OK);
    TRUE_THAT(count == 2 && infos[0].namespace_id == bytes_ns && infos[1].namespace_id == u64_ns);
    TRUE_THAT(strcmp(infos[0].name, "bytes") == 0 && strcmp(infos[1].name, "u64") == 0);
    TRUE_THAT(infos[0].keys == KAML_KEYS_BYTES && infos[1].keys == KAML_KEYS_U64 && infos[1].versioned == 0);
    infos[1].namespace_id = 4711;
    EXPECT(kaml_namespaces(device, infos, 1, &count), KAML_OK);
    TRUE_THAT(count == 2 && infos[1].namespace_id == 4711);
    EXPECT(kaml_namespaces(device, NULL, 0, &count), KAML_OK);
    TRUE_THAT(count == 2);
    EXPECT(kaml_namespaces(device, NULL, 3, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_namespaces(device, infos, 3, NULL), KAML_BAD_ARGUMENT);
}

static void records(void) {
    const size_t negative = (size_t)-1;
    uint64_t value_max, batch_max;
    kaml_record batch[2] = {{bytes_ns, KAML_PUT, "a", 1, "1", 1}, {bytes_ns, KAML_PUT, "b", 1, NULL, 0}};
    char buffer[4] = "xyz";
    void *value = buffer;
    size_t length = 5;

    EXPECT(kaml_put(device, batch, 2), KAML_OK);
    EXPECT(kaml_put(device, NULL, 2), KAML_BAD_ARGUMENT);
    EXPECT(kaml_put(device, batch, 0), KAML_BAD_ARGUMENT);
    EXPECT(kaml_put(device, batch, negative), KAML_BAD_ARGUMENT);
    EXPECT(kaml_put(device, batch, negative / sizeof batch[0]), KAML_BAD_ARGUMENT);
    batch[0].value = "2";
    batch[1].action = 99;
    EXPECT(kaml_put(device, batch, 2), KAML_BAD_ARGUMENT);
    batch[1].action = KAML_PUT_IF_ABSENT;
    EXPECT(kaml_put(device, batch, 2), KAML_EXISTS);
    batch[1].key = "c";
    batch[1].action = KAML_PUT_IF_PRESENT;
    EXPECT(kaml_put(device, batch, 2), KAML_NOT_FOUND);
    batch[1].namespace_id = 4711;
    EXPECT(kaml_put(device, batch, 2), KAML_UNKNOWN_NAMESPACE);
    batch[1].namespace_id = u64_ns;
    EXPECT(kaml_put(device, batch, 2), KAML_BAD_KEY);
    batch[1].namespace_id = bytes_ns;
    batch[1].key = NULL;
    EXPECT(kaml_put(device, batch, 2), KAML_BAD_ARGUMENT);

    EXPECT(kaml_get(device, bytes_ns, "a", 1, &value, &length), KAML_OK); // none of those was stored
    TRUE_THAT(length == 1 && memcmp(value, "1", 1) == 0);
    kaml_free(value);
    kaml_free(NULL);
    EXPECT(kaml_get(device, bytes_ns, "b", 1, &value, &length), KAML_OK); // a value of no bytes is a value
    TRUE_THAT(length == 0 && value != NULL);
    kaml_free(value);
    EXPECT(kaml_get(device, bytes_ns, "nobody", 6, &value, &length), KAML_NOT_FOUND);
    TRUE_THAT(strstr(kaml_last_error(), "nobody") != NULL);
    TRUE_THAT(length == 0 && value == NULL);
    EXPECT(kaml_get(device, bytes_ns, "a", 1, NULL, &length), KAML_BAD_ARGUMENT);
    EXPECT(kaml_get(device, bytes_ns, "a", 1, &value, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_get(device, bytes_ns, NULL, 1, &value, &length), KAML_BAD_ARGUMENT);
    EXPECT(kaml_get(device, bytes_ns, "", 0, &value, &length), KAML_BAD_KEY);
    EXPECT(kaml_get(device, bytes_ns, NULL, 0, &value, &length), KAML_BAD_KEY);
    EXPECT(kaml_get(device, bytes_ns, "12345678901234567", 17, &value, &length), KAML_BAD_KEY);
    EXPECT(kaml_get(device, bytes_ns, "a", negative, &value, &length), KAML_BAD_KEY);
    EXPECT(kaml_get(device, u64_ns, "a", 1, &value, &length), KAML_BAD_KEY);
    EXPECT(kaml_get(device, 4711, "a", 1, &value, &length), KAML_UNKNOWN_NAMESPACE);

    EXPECT(kaml_put_one(device, bytes_ns, "word", 4, "hello", 5), KAML_OK);
    EXPECT(kaml_get_into(device, bytes_ns, "word", 4, buffer, sizeof buffer, &length), KAML_BUFFER_TOO_SMALL);
    TRUE_THAT(length == 5 && strcmp(buffer, "xyz") == 0);
    EXPECT(kaml_get_into(device, bytes_ns, "word", 4, NULL, 0, &length), KAML_BUFFER_TOO_SMALL);
    EXPECT(kaml_get_into(device, bytes_ns, "word", 4, NULL, 4, &length), KAML_BAD_ARGUMENT);
    EXPECT(kaml_get_into(device, bytes_ns, "word", 4, buffer, negative, &length), KAML_BAD_ARGUMENT);
    EXPECT(kaml_get_into(device, bytes_ns, "a", 1, buffer, sizeof buffer, &length), KAML_OK);
    TRUE_THAT(length == 1 && buffer[0] == '1' && buffer[1] == 'y');
    EXPECT(kaml_exists(device, bytes_ns, "a", 1), KAML_OK);
    EXPECT(kaml_exists(device, bytes_ns, "z", 1), KAML_NOT_FOUND);
    EXPECT(kaml_delete(device, bytes_ns, "z", 1), KAML_OK);
    EXPECT(kaml_delete(device, bytes_ns, NULL, 3), KAML_BAD_ARGUMENT);

    EXPECT(kaml_put_one(device, bytes_ns, "a", 1, NULL, 3), KAML_BAD_ARGUMENT);
    EXPECT(kaml_put_one(device, bytes_ns, "a", 1, "x", negative), KAML_VALUE_TOO_LARGE);
    EXPECT(kaml_limits(device, NULL, &batch_max), KAML_BAD_ARGUMENT);
    EXPECT(kaml_limits(device, &value_max, &batch_max), KAML_OK);
    value = calloc(1, (size_t)value_max + 1);
    TRUE_THAT(value != NULL && value_max > 0 && batch_max > 0);
    EXPECT(kaml_put_one(device, bytes_ns, "big", 3, value, (size_t)value_max + 1), KAML_VALUE_TOO_LARGE);
    EXPECT(kaml_put_one(device, bytes_ns, "big", 3, value, (size_t)value_max), KAML_OK);
    free(value);
    EXPECT(kaml_delete(device, bytes_ns, "big", 3), KAML_OK);
}

// Memory that nobody may read: a call that reads a byte of it ends the program.
static char *forbidden;

static void lengths(void) {
    const size_t negative = (size_t)-1;
    uint64_t value_max, batch_max;
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_store_options store_options = KAML_STORE_OPTIONS_INIT;
    kaml_namespace_id past, id;
    kaml_store store;
    kaml_txn txn;
    void *value;
    size_t length;
    char *page = (char *)mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    TRUE_THAT(page != (char *)MAP_FAILED && mprotect(page + 4096, 4096, PROT_NONE) == 0);
    forbidden = page + 4096;
    EXPECT(kaml_limits(device, &value_max, &batch_max), KAML_OK);
    const size_t too_long[] = {(size_t)value_max + 1, (size_t)1 << 30, negative / 2, negative - 1, negative};
    const size_t key_lengths[] = {KAML_LONG_KEY_BYTES_MAX + 1, 4096, (size_t)1 << 30, negative};
    options.versioned = 1;
    options.version_buffer_bytes = 1 << 20;
    EXPECT(kaml_create_namespace(device, "past", &options, &past), KAML_OK);
    EXPECT(kaml_store_open(device, 8 << 20, NULL, &store), KAML_OK);
    EXPECT(kaml_txn_begin(store, &txn), KAML_OK);
    for (size_t i = 0; i < sizeof too_long / sizeof too_long[0]; i++) {
        const size_t n = too_long[i];
        EXPECT(kaml_store_put(store, bytes_ns, "k", 1, forbidden, n), KAML_VALUE_TOO_LARGE);
        EXPECT(kaml_store_put(store, past, "k", 1, forbidden, n), KAML_VALUE_TOO_LARGE);
        EXPECT(kaml_txn_insert(txn, bytes_ns, "k", 1, forbidden, n), KAML_VALUE_TOO_LARGE);
        EXPECT(kaml_txn_update(txn, bytes_ns, "a", 1, forbidden, n), KAML_VALUE_TOO_LARGE);
        EXPECT(kaml_txn_upsert(txn, bytes_ns, "k", 1, forbidden, n), KAML_VALUE_TOO_LARGE);
    }
    EXPECT(kaml_txn_abort(txn), KAML_OK);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    EXPECT(kaml_store_close(store), KAML_OK);
    for (size_t i = 0; i < sizeof too_long / sizeof too_long[0]; i++) {
        const size_t n = too_long[i];
        EXPECT(kaml_put_one(device, bytes_ns, "k", 1, forbidden, n), KAML_VALUE_TOO_LARGE);
        EXPECT(kaml_put_one(device, bytes_ns, "k", 1, NULL, n), KAML_VALUE_TOO_LARGE);
        EXPECT(kaml_put_one(device, past, "k", 1, forbidden, n), KAML_VALUE_TOO_LARGE);
        for (uint32_t action = KAML_PUT; action <= KAML_PUT_IF_PRESENT; action++) {
            kaml_record batch[2] = {{bytes_ns, KAML_PUT, "k", 1, "1", 1}, {bytes_ns, action, "l", 1, forbidden, n}};
            EXPECT(kaml_put(device, batch, 2), KAML_VALUE_TOO_LARGE);
            EXPECT(kaml_put(device, batch + 1, 1), KAML_VALUE_TOO_LARGE);
        }
    }
    for (size_t i = 0; i < sizeof key_lengths / sizeof key_lengths[0]; i++) {
        const kaml_record batch[2] = {{bytes_ns, KAML_PUT, "k", 1, "1", 1},
                                      {bytes_ns, KAML_PUT, forbidden, key_lengths[i], "1", 1}};
        EXPECT(kaml_put(device, batch, 2), KAML_BAD_KEY);
        EXPECT(kaml_put_one(device, bytes_ns, forbidden, key_lengths[i], "1", 1), KAML_BAD_KEY);
        EXPECT(kaml_get(device, bytes_ns, forbidden, key_lengths[i], &value, &length), KAML_BAD_KEY);
        EXPECT(kaml_exists(device, bytes_ns, forbidden, key_lengths[i]), KAML_BAD_KEY);
        EXPECT(kaml_delete(device, bytes_ns, forbidden, key_lengths[i]), KAML_BAD_KEY);
        EXPECT(kaml_undo(device, past, forbidden, key_lengths[i], 1), KAML_BAD_KEY);
    }
    // More records than a Put can have.
    const kaml_record *records = (const kaml_record *)(void *)forbidden;
    EXPECT(kaml_put(device, records, (size_t)batch_max), KAML_BATCH_TOO_LARGE);
    EXPECT(kaml_put(device, records, (size_t)1 << 30), KAML_BATCH_TOO_LARGE);
    EXPECT(kaml_put(device, records, negative), KAML_BAD_ARGUMENT);
    // A name that does not end.
    memset(page, 'n', 4096);
    EXPECT(kaml_create_namespace(device, page + 4096 - KAML_NAME_BYTES, NULL, &id), KAML_BAD_NAME);
    EXPECT(kaml_namespace(device, page + 4096 - KAML_NAME_BYTES, &id), KAML_BAD_NAME);
    // More options than there can be.
    options.logs = (const uint32_t *)(void *)forbidden;
    options.log_count = UINT32_MAX;
    EXPECT(kaml_create_namespace(device, "x", &options, &id), KAML_BAD_ARGUMENT);
    store_options.lock_widths = (const kaml_lock_width *)(void *)forbidden;
    store_options.lock_width_count = UINT32_MAX;
    EXPECT(kaml_store_open(device, 8 << 20, &store_options, &store), KAML_BAD_ARGUMENT);
    EXPECT(kaml_exists(device, bytes_ns, "k", 1), KAML_NOT_FOUND); // nothing of all this was stored
    EXPECT(kaml_delete_namespace(device, past), KAML_OK);
    TRUE_THAT(munmap(page, 8192) == 0);
}

static void listing(void) {
    kaml_cursor cursor = KAML_CURSOR_INIT;
    kaml_key keys[7];
    size_t count, seen = 0, calls = 0;
    int found[100] = {0};
    kaml_namespace_id ns;

    EXPECT(kaml_create_namespace(device, "listed", NULL, &ns), KAML_OK);
    for (uint64_t i = 0; i < 100; i++) {
        const kaml_key key = kaml_key_u64(i);
        EXPECT(kaml_put_one(device, ns, key.bytes, key.length, NULL, 0), KAML_OK);
    }
    do {
        EXPECT(kaml_list(device, ns, &cursor, keys, 7, &count), KAML_OK);
        for (size_t i = 0; i < count; i++) {
            TRUE_THAT(keys[i].length == 8 && keys[i].bytes[7] < 100);
            found[keys[i].bytes[7] % 100]++;
        }
        seen += count;
    } while (count > 0 && ++calls < 1000);
    TRUE_THAT(seen == 100);
    for (int i = 0; i < 100; i++) TRUE_THAT(found[i] == 1);
    EXPECT(kaml_list(device, ns, &cursor, keys, 7, &count), KAML_OK);
    TRUE_THAT(count == 0);
    EXPECT(kaml_list(device, ns, NULL, keys, 7, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_list(device, ns, &cursor, NULL, 7, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_list(device, ns, &cursor, keys, 0, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_list(device, ns, &cursor, keys, 7, NULL), KAML_BAD_ARGUMENT);
    cursor.state = 3;
    EXPECT(kaml_list(device, ns, &cursor, keys, 7, &count), KAML_BAD_ARGUMENT);
    memset(&cursor, 0xff, sizeof cursor);
    cursor.state = 1; // any place is some place
    EXPECT(kaml_list(device, ns, &cursor, keys, 7, &count), KAML_OK);
    cursor.state = 0;
    EXPECT(kaml_list(device, 4711, &cursor, keys, 7, &count), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_delete_namespace(device, ns), KAML_OK);
    EXPECT(kaml_list(device, ns, &cursor, keys, 7, &count), KAML_UNKNOWN_NAMESPACE);
}

static int hear(void *context, uint64_t done, uint64_t total, const char *problem) {
    uint64_t *heard = (uint64_t *)context;
    void *value;
    size_t length;

    TRUE_THAT(problem == NULL && done <= total);
    heard[1] = total;
    EXPECT(kaml_close(device), KAML_IN_USE); // any call can be made, and nothing is closed under the check
    EXPECT(kaml_get(device, bytes_ns, "word", 4, &value, &length), KAML_OK);
    kaml_free(value);
    return ++heard[0] == heard[2];
}

static void inspecting(void) {
    kaml_device_info info = KAML_DEVICE_INFO_INIT;
    kaml_device_statistics statistics = KAML_DEVICE_STATISTICS_INIT;
    kaml_check_report report = KAML_CHECK_REPORT_INIT;
    kaml_namespace_info namespaces[2];
    uint64_t heard[3] = {0, 0, 0};
    const kaml_device none = {0};
    size_t count;

    EXPECT(kaml_info(device, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_info(device, (kaml_device_info *)((char *)&info + 1)), KAML_BAD_ARGUMENT);
    EXPECT(kaml_info(none, &info), KAML_BAD_HANDLE);
    info.struct_size = 3;
    EXPECT(kaml_info(device, &info), KAML_BAD_ARGUMENT);
    TRUE_THAT(info.struct_size == 3 && info.flash_bytes == 0);
    info.struct_size = sizeof info;
    EXPECT(kaml_info(device, &info), KAML_OK);
    TRUE_THAT(info.struct_size == sizeof info && info.flash_bytes == info.block_count * info.block_bytes);
    TRUE_THAT(info.durability == KAML_DURABLE_PROCESS && info.page_bytes % info.chunk_bytes == 0 && info.ring_bytes > 0);
    TRUE_THAT(strspn(info.uuid, "0123456789abcdef") == 32 && strlen(info.uuid) == 32);
    TRUE_THAT(strstr(info.description, "file ") == info.description);

    EXPECT(kaml_statistics(device, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_statistics(none, &statistics), KAML_BAD_HANDLE);
    statistics.struct_size++;
    EXPECT(kaml_statistics(device, &statistics), KAML_BAD_ARGUMENT);
    statistics.struct_size--;
    EXPECT(kaml_statistics(device, &statistics), KAML_OK);
    TRUE_THAT(statistics.live_bytes > 0 && statistics.live_bytes + statistics.free_bytes == statistics.capacity_bytes);
    TRUE_THAT(statistics.host_bytes > 0 && statistics.record_bytes > statistics.host_bytes);
    TRUE_THAT(statistics.put_count > 0 && statistics.get_count > 0 && statistics.delete_count > 0);
    TRUE_THAT(statistics.block_count == info.block_count && statistics.free_blocks < statistics.block_count);
    TRUE_THAT(statistics.erase_min <= statistics.erase_mean && statistics.erase_mean <= statistics.erase_max);
    TRUE_THAT(statistics.stopped == 0 && statistics.bad_blocks == 0 && statistics.index_bytes > 0);
    TRUE_THAT(statistics.get_latency.count == statistics.get_count && statistics.put_latency.mean_ns > 0);
    TRUE_THAT(statistics.put_latency.p50_ns <= statistics.put_latency.p99_ns);
    TRUE_THAT(statistics.put_latency.p99_ns <= statistics.put_latency.max_ns);

    EXPECT(kaml_check(none, NULL, NULL, NULL), KAML_BAD_HANDLE);
    report.struct_size = 0;
    EXPECT(kaml_check(device, hear, heard, &report), KAML_BAD_ARGUMENT);
    report.struct_size = sizeof report;
    TRUE_THAT(heard[0] == 0);
    EXPECT(kaml_check(device, NULL, NULL, NULL), KAML_OK);
    EXPECT(kaml_check(device, hear, heard, &report), KAML_OK);
    TRUE_THAT(heard[0] > heard[1] && heard[1] > 0);
    EXPECT(kaml_namespaces(device, namespaces, 2, &count), KAML_OK);
    TRUE_THAT(count == 2 && report.records == namespaces[0].record_count + namespaces[1].record_count);
    TRUE_THAT(report.records == 3 && report.value_bytes == 6 && report.blocks > 0 && report.problem_count == 0);
    report.records = 77;
    heard[0] = 0;
    heard[2] = 1;
    EXPECT(kaml_check(device, hear, heard, &report), KAML_CANCELLED);
    TRUE_THAT(heard[0] == 1 && report.records == 77);

    kaml_set_last_error("mine");
    TRUE_THAT(strcmp(kaml_last_error(), "mine") == 0);
    kaml_set_last_error(kaml_last_error());
    TRUE_THAT(strcmp(kaml_last_error(), "mine") == 0);
    kaml_set_last_error(NULL);
    TRUE_THAT(kaml_last_error()[0] == 0);
}

// Conditions and histories of a namespace that keeps versions.
static void pasts(void) {
    const size_t negative = (size_t)-1;
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_cursor cursor = KAML_CURSOR_INIT;
    kaml_version_info versions[7];
    kaml_namespace_id past, plain;
    kaml_device memory;
    uint64_t before = UINT64_MAX;
    size_t count, seen = 0;

    EXPECT(kaml_create_in_memory(256 << 20, NULL, &memory), KAML_OK);
    options.versioned = 1;
    EXPECT(kaml_create_namespace(memory, "past", &options, &past), KAML_OK);
    EXPECT(kaml_create_namespace(memory, "plain", NULL, &plain), KAML_OK);

    kaml_record batch[2] = {{past, KAML_PUT_IF_PRESENT, "k", 1, "1", 1}, {plain, KAML_PUT, "k", 1, "1", 1}};
    EXPECT(kaml_put(memory, batch, 1), KAML_NOT_FOUND);
    EXPECT(kaml_put(memory, batch, 2), KAML_NOT_FOUND);
    batch[0].action = KAML_PUT_DELETE_IF_PRESENT;
    EXPECT(kaml_put(memory, batch, 1), KAML_NOT_FOUND);
    batch[0].action = KAML_PUT_IF_ABSENT;
    batch[0].value = NULL;
    EXPECT(kaml_put(memory, batch, 1), KAML_BAD_ARGUMENT);
    batch[0].value = "1";
    EXPECT(kaml_put(memory, batch, 1), KAML_OK);
    EXPECT(kaml_put(memory, batch, 1), KAML_EXISTS);
    TRUE_THAT(strstr(kaml_last_error(), "key k") != NULL);
    batch[0].action = KAML_PUT_IF_PRESENT;
    EXPECT(kaml_put(memory, batch, 1), KAML_OK);
    EXPECT(kaml_exists(memory, plain, "k", 1), KAML_NOT_FOUND); // nothing of what was refused was stored

    for (int i = 0; i < 97; i++) EXPECT(kaml_put_one(memory, past, "k", 1, "value", 5), KAML_OK);
    EXPECT(kaml_delete(memory, past, "k", 1), KAML_OK);
    do {
        EXPECT(kaml_history(memory, past, "k", 1, &cursor, versions, 7, &count), KAML_OK);
        for (size_t i = 0; i < count; i++) {
            TRUE_THAT(versions[i].sequence < before && versions[i].hidden == 0);
            TRUE_THAT((versions[i].deleted == 1) == (seen + i == 0));
            before = versions[i].sequence;
        }
        seen += count;
        EXPECT(kaml_put_one(memory, past, "k", 1, "later", 5), KAML_OK); // not listed: the history continues from where it began
    } while (count > 0 && seen < 1000);
    TRUE_THAT(seen == 100);
    EXPECT(kaml_history(memory, past, "k", 1, &cursor, versions, 7, &count), KAML_OK);
    TRUE_THAT(count == 0);

    EXPECT(kaml_history(memory, past, "k", 1, NULL, versions, 7, &count), KAML_BAD_ARGUMENT);
    cursor.state = 0;
    EXPECT(kaml_history(memory, past, "k", 1, &cursor, NULL, 7, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_history(memory, past, "k", 1, &cursor, versions, 0, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_history(memory, past, "k", 1, &cursor, versions, negative, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_history(memory, past, "k", 1, &cursor, versions, 7, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_history(memory, past, NULL, 1, &cursor, versions, 7, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_history(memory, plain, "k", 1, &cursor, versions, 7, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_history(memory, 4711, "k", 1, &cursor, versions, 7, &count), KAML_UNKNOWN_NAMESPACE);
    TRUE_THAT(cursor.state == 0);
    EXPECT(kaml_history(memory, past, "nobody", 6, &cursor, versions, 7, &count), KAML_OK);
    TRUE_THAT(count == 0);
    for (int byte = 0; byte < 256; byte++) { // any place is some place
        memset(&cursor, byte, sizeof cursor);
        cursor.state = 1;
        EXPECT(kaml_history(memory, past, "k", 1, &cursor, versions, 7, &count), KAML_OK);
    }
    cursor.state = 3;
    EXPECT(kaml_history(memory, past, "k", 1, &cursor, versions, 7, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_close(memory), KAML_OK);
    EXPECT(kaml_history(memory, past, "k", 1, &cursor, versions, 7, &count), KAML_BAD_HANDLE);
}

static int end_merge(void *context, uint32_t rows_done, uint32_t row_count) {
    int *calls = (int *)context;
    TRUE_THAT(rows_done <= row_count && row_count > 0);
    return ++*calls == 1;
}

// What a history reads, and a merge that is ended.
static void long_pasts(void) {
    const int counts[] = {10, 1000, 10000};
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_retention rules = KAML_RETENTION_INIT;
    kaml_merge_report planned, report;
    kaml_version_info versions[16];
    kaml_namespace_id past;
    kaml_device memory;
    size_t count;
    int calls = 0;

    EXPECT(kaml_create_in_memory(512 << 20, NULL, &memory), KAML_OK);
    options.versioned = 1;
    options.version_buffer_bytes = 1 << 20;
    EXPECT(kaml_create_namespace(memory, "past", &options, &past), KAML_OK);
    for (int key = 0; key < 3; key++) {
        for (int i = 0; i < counts[key]; i++) EXPECT(kaml_put_one(memory, past, &"fsm"[key], 1, "value", 5), KAML_OK);
    }
    for (uint64_t i = 0; i < 40000; i++) { // so that all before is in segments
        const kaml_key key = kaml_key_u64(i % 1000);
        EXPECT(kaml_put_one(memory, past, key.bytes, key.length, "value", 5), KAML_OK);
    }
    for (int key = 0; key < 3; key++) {
        for (size_t room = 1; room <= 16; room += 15) {
            kaml_cursor cursor = KAML_CURSOR_INIT;
            kaml_device_statistics before = KAML_DEVICE_STATISTICS_INIT, after = KAML_DEVICE_STATISTICS_INIT;
            int seen = 0;
            EXPECT(kaml_statistics(memory, &before), KAML_OK);
            do {
                EXPECT(kaml_history(memory, past, &"fsm"[key], 1, &cursor, versions, room, &count), KAML_OK);
                seen += (int)count;
            } while (count > 0);
            EXPECT(kaml_statistics(memory, &after), KAML_OK);
            TRUE_THAT(seen == counts[key] && after.read_count > before.read_count);
            TRUE_THAT(after.read_count - before.read_count < 4 * (uint64_t)counts[key]);
        }
    }
    rules.dry_run = 1;
    EXPECT(kaml_merge(memory, past, &rules, &planned), KAML_OK);
    EXPECT(kaml_merge_with_progress(memory, past, &rules, end_merge, &calls, &report), KAML_CANCELLED);
    TRUE_THAT(calls == 1 && report.dropped == 0);
    rules.dry_run = 0;
    calls = 0;
    EXPECT(kaml_merge_with_progress(memory, past, &rules, end_merge, &calls, NULL), KAML_CANCELLED);
    EXPECT(kaml_merge_with_progress(memory, past, NULL, end_merge, &calls, &report), KAML_BAD_ARGUMENT);
    EXPECT(kaml_merge_with_progress(memory, past, &rules, end_merge, &calls, &report), KAML_OK);
    TRUE_THAT(calls > 1 && report.dropped == planned.dropped && planned.dropped > 0);
    EXPECT(kaml_close(memory), KAML_OK); // whatever histories were given up
}

static void stores(void) {
    kaml_store_options options = KAML_STORE_OPTIONS_INIT;
    const kaml_lock_width none = {0, 0};
    kaml_store store, second;
    kaml_namespace_id doomed;
    kaml_device wrong;
    void *value;
    size_t length;
    char buffer[2];

    EXPECT(kaml_store_open(device, 8 << 20, NULL, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_store_open(device, 10, NULL, &store), KAML_CACHE_TOO_SMALL);
    options.write_mode = 3;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_BAD_ARGUMENT);
    options.write_mode = KAML_WRITE_BACK;
    options.transactions_max = 1000000;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_BAD_ARGUMENT);
    options.transactions_max = 8;
    options.lock_width_count = 1;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_BAD_ARGUMENT);
    options.lock_widths = &none;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_BAD_ARGUMENT);
    options.lock_width_count = 0;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_OK);
    EXPECT(kaml_store_open(device, 8 << 20, NULL, &second), KAML_IN_USE);
    EXPECT(kaml_close(device), KAML_IN_USE);
    EXPECT(kaml_put_one(device, bytes_ns, "a", 1, "past the cache", 14), KAML_IN_USE);
    EXPECT(kaml_delete(device, bytes_ns, "a", 1), KAML_IN_USE);

    EXPECT(kaml_store_put(store, bytes_ns, "k", 1, "value", 5), KAML_OK);
    EXPECT(kaml_exists(device, bytes_ns, "k", 1), KAML_NOT_FOUND); // not flushed
    EXPECT(kaml_store_exists(store, bytes_ns, "k", 1), KAML_OK);
    EXPECT(kaml_store_flush(store), KAML_OK);
    EXPECT(kaml_exists(device, bytes_ns, "k", 1), KAML_OK);
    EXPECT(kaml_store_get(store, bytes_ns, "k", 1, &value, &length), KAML_OK);
    TRUE_THAT(length == 5 && memcmp(value, "value", 5) == 0);
    kaml_free(value);
    EXPECT(kaml_store_get_into(store, bytes_ns, "k", 1, buffer, 2, &length), KAML_BUFFER_TOO_SMALL);
    EXPECT(kaml_store_delete(store, bytes_ns, "k", 1), KAML_OK);
    EXPECT(kaml_store_get(store, bytes_ns, "k", 1, &value, &length), KAML_NOT_FOUND);
    EXPECT(kaml_store_put(store, 4711, "k", 1, "value", 5), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_store_put(store, u64_ns, "k", 1, "value", 5), KAML_BAD_KEY);
    EXPECT(kaml_store_put(store, bytes_ns, "k", 1, NULL, 5), KAML_BAD_ARGUMENT);

    EXPECT(kaml_create_namespace(device, "doomed", NULL, &doomed), KAML_OK);
    EXPECT(kaml_store_put(store, doomed, "k", 1, "v", 1), KAML_OK);
    EXPECT(kaml_delete_namespace(device, doomed), KAML_OK); // goes through the store
    EXPECT(kaml_store_put(store, doomed, "k", 1, "v", 1), KAML_UNKNOWN_NAMESPACE);

    uint64_t lost = 7;
    EXPECT(kaml_store_acknowledge_lost(store, &lost), KAML_OK);
    TRUE_THAT(lost == 0);
    EXPECT(kaml_store_acknowledge_lost(store, NULL), KAML_OK);
    EXPECT(kaml_store_put(store, bytes_ns, "last", 4, "unflushed", 9), KAML_OK);
    wrong.id = store.id;
    EXPECT(kaml_close(wrong), KAML_BAD_HANDLE);
    EXPECT(kaml_store_close(store), KAML_OK);
    EXPECT(kaml_store_close(store), KAML_BAD_HANDLE);
    EXPECT(kaml_store_flush(store), KAML_BAD_HANDLE);
    EXPECT(kaml_store_acknowledge_lost(store, &lost), KAML_BAD_HANDLE);
    EXPECT(kaml_store_get(store, bytes_ns, "k", 1, &value, &length), KAML_BAD_HANDLE);
    EXPECT(kaml_exists(device, bytes_ns, "last", 4), KAML_OK);
    EXPECT(kaml_put_one(device, bytes_ns, "a", 1, "1", 1), KAML_OK);
}

static void transactions(void) {
    kaml_store_options options = KAML_STORE_OPTIONS_INIT;
    kaml_store store;
    kaml_txn txn, other, many;
    kaml_txn stale;
    void *value;
    size_t length;

    options.lock_timeout_ms = 50;
    options.transactions_max = 2;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_OK);
    EXPECT(kaml_txn_begin(store, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_begin(store, &txn), KAML_OK);
    EXPECT(kaml_txn_begin(store, &other), KAML_OK);
    EXPECT(kaml_txn_begin(store, &many), KAML_TOO_MANY);
    EXPECT(kaml_store_close(store), KAML_IN_USE);
    EXPECT(kaml_txn_free(txn), KAML_BAD_STATE);

    EXPECT(kaml_txn_read(txn, bytes_ns, "a", 1, &value, &length), KAML_OK);
    kaml_free(value);
    EXPECT(kaml_txn_read(txn, bytes_ns, "z", 1, &value, &length), KAML_NOT_FOUND);
    TRUE_THAT(value == NULL && strstr(kaml_last_error(), "key z") != NULL);
    EXPECT(kaml_txn_insert(txn, bytes_ns, "a", 1, "2", 1), KAML_EXISTS);
    EXPECT(kaml_txn_update(txn, bytes_ns, "z", 1, "2", 1), KAML_NOT_FOUND);
    EXPECT(kaml_txn_delete(txn, bytes_ns, "z", 1), KAML_NOT_FOUND);
    EXPECT(kaml_txn_update(txn, bytes_ns, "a", 1, "2", 1), KAML_OK);
    EXPECT(kaml_txn_update(txn, 4711, "a", 1, "2", 1), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_txn_upsert(txn, 4711, "a", 1, "2", 1), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_txn_upsert(txn, bytes_ns, "a", 1, NULL, 1), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_upsert(txn, bytes_ns, "a", 1, "2", 1), KAML_OK);
    EXPECT(kaml_txn_upsert(txn, bytes_ns, "upserted", 8, "1", 1), KAML_OK);
    EXPECT(kaml_txn_insert(txn, bytes_ns, "upserted", 8, "2", 1), KAML_EXISTS);
    EXPECT(kaml_txn_delete(txn, bytes_ns, "upserted", 8), KAML_OK);
    EXPECT(kaml_txn_update(txn, bytes_ns, "a", 17, "2", 1), KAML_BAD_KEY);
    EXPECT(kaml_txn_update(txn, bytes_ns, "a", 1, NULL, 1), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_read(txn, bytes_ns, "a", 1, NULL, &length), KAML_BAD_ARGUMENT);

    EXPECT(kaml_txn_read(other, bytes_ns, "a", 1, &value, &length), KAML_LOCK_TIMEOUT);
    TRUE_THAT(kaml_is_retryable(KAML_LOCK_TIMEOUT) && !kaml_is_retryable(KAML_EXISTS));
    EXPECT(kaml_txn_read(other, bytes_ns, "b", 1, &value, &length), KAML_LOCK_TIMEOUT); // it was aborted
    TRUE_THAT(value == NULL);
    EXPECT(kaml_txn_update(other, bytes_ns, "b", 1, "2", 1), KAML_LOCK_TIMEOUT);
    EXPECT(kaml_txn_commit(other), KAML_LOCK_TIMEOUT);
    EXPECT(kaml_txn_abort(other), KAML_BAD_STATE);
    EXPECT(kaml_txn_free(other), KAML_OK);
    EXPECT(kaml_txn_free(other), KAML_BAD_HANDLE);

    EXPECT(kaml_txn_commit(txn), KAML_OK);
    EXPECT(kaml_txn_commit(txn), KAML_BAD_STATE);
    EXPECT(kaml_txn_abort(txn), KAML_BAD_STATE);
    EXPECT(kaml_txn_update(txn, bytes_ns, "a", 1, "3", 1), KAML_BAD_STATE);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    stale = txn;
    EXPECT(kaml_txn_begin(store, &txn), KAML_OK); // in the same place as the one that was freed
    EXPECT(kaml_txn_commit(stale), KAML_BAD_HANDLE);
    EXPECT(kaml_txn_read(txn, bytes_ns, "a", 1, &value, &length), KAML_OK);
    TRUE_THAT(length == 1 && memcmp(value, "2", 1) == 0);
    kaml_free(value);
    EXPECT(kaml_txn_abort(txn), KAML_OK);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    EXPECT(kaml_store_close(store), KAML_OK);
    EXPECT(kaml_txn_begin(store, &txn), KAML_BAD_HANDLE);
}

static void delayed(void) {
    kaml_store_options options = KAML_STORE_OPTIONS_INIT;
    kaml_store store;
    kaml_txn txn;
    void *value;
    size_t length;

    options.durability_delay_us = 3600 * 1000000ull;
    EXPECT(kaml_store_open(device, 8 << 20, &options, &store), KAML_OK);
    EXPECT(kaml_txn_begin(store, &txn), KAML_OK);
    EXPECT(kaml_txn_insert(txn, bytes_ns, "later", 5, "1", 1), KAML_OK);
    EXPECT(kaml_txn_commit(txn), KAML_OK);
    EXPECT(kaml_txn_commit_durable(txn), KAML_BAD_STATE);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    EXPECT(kaml_txn_commit_durable(txn), KAML_BAD_HANDLE);
    EXPECT(kaml_store_exists(store, bytes_ns, "later", 5), KAML_OK);
    EXPECT(kaml_exists(device, bytes_ns, "later", 5), KAML_NOT_FOUND);
    EXPECT(kaml_txn_begin(store, &txn), KAML_OK);
    EXPECT(kaml_txn_update(txn, bytes_ns, "later", 5, "2", 1), KAML_OK);
    EXPECT(kaml_txn_commit_durable(txn), KAML_OK);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    EXPECT(kaml_exists(device, bytes_ns, "later", 5), KAML_OK);
    EXPECT(kaml_store_delete(store, bytes_ns, "later", 5), KAML_OK); // write-through: it waits
    EXPECT(kaml_exists(device, bytes_ns, "later", 5), KAML_NOT_FOUND);
    EXPECT(kaml_store_get(store, bytes_ns, "later", 5, &value, &length), KAML_NOT_FOUND);
    EXPECT(kaml_store_close(store), KAML_OK);
}

// Handles are opened, used and closed under each other by many threads; every answer is one of those that are allowed.
static kaml_store contested;

static void *contend(void *argument) {
    for (int i = 0; i < 200; i++) {
        kaml_txn txn;
        kaml_status status = kaml_txn_begin(contested, &txn);
        if (status == KAML_BAD_HANDLE) return argument; // somebody closed the store
        EXPECT(status, KAML_OK);
        EXPECT(kaml_txn_abort(txn), KAML_OK);
        EXPECT(kaml_txn_free(txn), KAML_OK);
        status = kaml_store_close(contested);
        if (status == KAML_OK) return argument;
        TRUE_THAT(status == KAML_IN_USE || status == KAML_BAD_HANDLE);
    }
    return argument;
}

static void closing_in_use(void) {
    pthread_t threads[8];
    for (int round = 0; round < 20; round++) {
        EXPECT(kaml_store_open(device, 8 << 20, NULL, &contested), KAML_OK);
        for (int i = 0; i < 8; i++) TRUE_THAT(pthread_create(&threads[i], NULL, contend, NULL) == 0);
        for (int i = 0; i < 8; i++) TRUE_THAT(pthread_join(threads[i], NULL) == 0);
        kaml_status status = kaml_store_close(contested);
        TRUE_THAT(status == KAML_OK || status == KAML_BAD_HANDLE);
    }
}

static void closing(void) {
    const kaml_device zero = {0}, random_one = {0x123456789abcdef0u};
    kaml_open_options options = KAML_OPEN_OPTIONS_INIT;
    void *value;
    size_t length;

    EXPECT(kaml_close(zero), KAML_BAD_HANDLE);
    EXPECT(kaml_close(random_one), KAML_BAD_HANDLE);
    EXPECT(kaml_close(device), KAML_OK);
    EXPECT(kaml_close(device), KAML_BAD_HANDLE);
    EXPECT(kaml_get(device, bytes_ns, "a", 1, &value, &length), KAML_BAD_HANDLE);
    EXPECT(kaml_create(path, 64 << 20, NULL, &device), KAML_NOT_EMPTY);
    TRUE_THAT(device.id == 0);
    options.read_only = 1;
    EXPECT(kaml_open(path, &options, &device), KAML_OK);
    EXPECT(kaml_put_one(device, bytes_ns, "a", 1, "1", 1), KAML_READ_ONLY);
    EXPECT(kaml_get(device, bytes_ns, "a", 1, &value, &length), KAML_OK);
    TRUE_THAT(length == 1 && memcmp(value, "2", 1) == 0);
    EXPECT(kaml_close(device), KAML_OK);
    kaml_free(value); // values outlive their device
    EXPECT(kaml_create_in_memory(64 << 20, NULL, &device), KAML_OK);
    EXPECT(kaml_close(device), KAML_OK);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    path = argv[1];
    TRUE_THAT(kaml_last_error()[0] == 0);
    TRUE_THAT(strcmp(kaml_version(), KAML_VERSION) == 0);
    TRUE_THAT(strcmp(kaml_strerror(KAML_OK), "no error") == 0 && kaml_strerror(-5) != NULL);
    opening();
    namespaces();
    records();
    lengths();
    listing();
    inspecting();
    pasts();
    long_pasts();
    stores();
    transactions();
    delayed();
    closing_in_use();
    closing();
    printf("%d mistakes with another status\n", failed_count);
    return failed_count != 0;
}
