// Operations through C for a count of instructions: `run` in this directory builds and runs it.
//
//   operations put|get|cached|commit COUNT
//
// put       a durable put of 1 KiB, 20 000 keys
// get       a get of 1 KiB without a store
// cached    a get of 1 KiB that the cache of a store has
// commit    a transaction as in TPC-B: three records read and written, one inserted, commit
//
// The device is in memory. The same program builds against earlier versions of the library, so it uses only calls that 90a970f has.
#include <kaml.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 20000, VALUE_BYTES = 1024 };

static void must(enum kaml_status status, const char *what) {
    if (status != KAML_OK) {
        fprintf(stderr, "%s: %s\n", what, kaml_last_error());
        exit(1);
    }
}

static void commit(kaml_store store, kaml_namespace_id records, const unsigned char *value, long at) {
    kaml_txn txn;
    must(kaml_txn_begin(store, &txn), "begin");
    for (int part = 0; part < 3; part++) {
        void *row;
        size_t length;
        kaml_key key = kaml_key_u64((uint64_t)(at * (7919 + part) + part * 5003) % KEYS);
        must(kaml_txn_read_for_update(txn, records, key.bytes, key.length, &row, &length), "read");
        must(kaml_txn_update(txn, records, key.bytes, key.length, row, 100), "update");
        kaml_free(row);
    }
    kaml_key key = kaml_key_u64((uint64_t)(KEYS + at));
    must(kaml_txn_insert(txn, records, key.bytes, key.length, value, 50), "insert");
    must(kaml_txn_commit_durable(txn), "commit");
    must(kaml_txn_free(txn), "free");
}

// Only what this function causes in its thread is counted.
__attribute__((noinline)) void operate(const char *operation, long count, kaml_device device, kaml_store store, kaml_namespace_id records,
                                       const unsigned char *value) {
    unsigned char buffer[VALUE_BYTES];
    size_t length;
    for (long at = 0; at < count; at++) {
        kaml_key key = kaml_key_u64((uint64_t)(at * 7919) % KEYS);
        if (!strcmp(operation, "put"))
            must(kaml_put_one(device, records, key.bytes, key.length, value, VALUE_BYTES), "put");
        else if (!strcmp(operation, "get"))
            must(kaml_get_into(device, records, key.bytes, key.length, buffer, sizeof buffer, &length), "get");
        else if (!strcmp(operation, "cached"))
            must(kaml_store_get_into(store, records, key.bytes, key.length, buffer, sizeof buffer, &length), "get");
        else
            commit(store, records, value, at);
    }
}

int main(int count_of_arguments, char **arguments) {
    if (count_of_arguments != 3) {
        fprintf(stderr, "usage: operations put|get|cached|commit COUNT\n");
        return 2;
    }
    const char *operation = arguments[1];
    const long count = atol(arguments[2]);
    const int with_store = !strcmp(operation, "cached") || !strcmp(operation, "commit");
    kaml_device device;
    kaml_namespace_id records;
    kaml_store store = {0};
    static unsigned char value[VALUE_BYTES], buffer[VALUE_BYTES];
    size_t length;
    memset(value, 7, sizeof value);
    must(kaml_create_in_memory(512ull << 20, NULL, &device), "create");
    must(kaml_create_namespace(device, "n", NULL, &records), "namespace");
    for (uint64_t at = 0; at < KEYS; at++) {
        kaml_key key = kaml_key_u64(at);
        must(kaml_put_one(device, records, key.bytes, key.length, value, sizeof value), "fill");
    }
    if (with_store)
        must(kaml_store_open(device, 256u << 20, NULL, &store), "store");
    for (uint64_t at = 0; with_store && at < KEYS; at++) {
        kaml_key key = kaml_key_u64(at);
        must(kaml_store_get_into(store, records, key.bytes, key.length, buffer, sizeof buffer, &length), "warm");
    }
    operate(operation, count, device, store, records, value);
    if (with_store)
        must(kaml_store_close(store), "close the store");
    must(kaml_close(device), "close");
    return 0;
}
