// A bank: threads move money between accounts in transactions, and no money is made or lost.
//
// Shows what a program with transactions looks like: reading for update, running a transaction again after a deadlock,
// freeing what was read, and errors with their messages. Also compiles as C++.
//
//     cc bank.c $(pkg-config --cflags --libs kaml) -pthread -o bank && ./bank bank.kaml
#define _POSIX_C_SOURCE 200809L
#include <kaml.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACCOUNT_COUNT 64u
#define FIRST_BALANCE 1000
#define THREAD_COUNT 4
#define TRANSFER_COUNT 250

typedef struct {
    kaml_store store;
    kaml_namespace_id accounts;
    unsigned seed;
    unsigned again_count;
} teller;

static void check(kaml_status status, const char *what) {
    if (status == KAML_OK) return;
    fprintf(stderr, "%s: %s\n", what, kaml_last_error());
    exit(1);
}

// Reads a balance that is going to be changed.
static kaml_status balance_of(kaml_txn txn, kaml_namespace_id accounts, uint64_t account, int64_t *balance) {
    const kaml_key key = kaml_key_u64(account);
    void *value;
    size_t length;
    kaml_status status = kaml_txn_read_for_update(txn, accounts, key.bytes, key.length, &value, &length);
    if (status != KAML_OK) return status;
    if (length == sizeof *balance) memcpy(balance, value, sizeof *balance);
    kaml_free(value);
    return length == sizeof *balance ? KAML_OK : KAML_CORRUPT;
}

static kaml_status set_balance(kaml_txn txn, kaml_namespace_id accounts, uint64_t account, int64_t balance) {
    const kaml_key key = kaml_key_u64(account);
    return kaml_txn_update(txn, accounts, key.bytes, key.length, &balance, sizeof balance);
}

static kaml_status transfer_in(kaml_txn txn, const teller *t, uint64_t from, uint64_t to, int64_t amount) {
    int64_t source, target;
    kaml_status status = balance_of(txn, t->accounts, from, &source);
    if (status == KAML_OK) status = balance_of(txn, t->accounts, to, &target);
    if (status == KAML_OK) status = set_balance(txn, t->accounts, from, source - amount);
    if (status == KAML_OK) status = set_balance(txn, t->accounts, to, target + amount);
    return status;
}

// One transfer, run again as long as others are in its way.
static void transfer(teller *t, uint64_t from, uint64_t to, int64_t amount) {
    for (;;) {
        kaml_txn txn;
        check(kaml_txn_begin(t->store, &txn), "begin");
        kaml_status status = transfer_in(txn, t, from, to, amount);
        if (status == KAML_OK) status = kaml_txn_commit(txn);
        if (status != KAML_OK && !kaml_is_retryable(status)) check(status, "transfer");
        check(kaml_txn_free(txn), "free"); // a deadlock aborted it already
        if (status == KAML_OK) return;
        t->again_count++;
    }
}

static unsigned next_random(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void *work(void *argument) {
    teller *t = (teller *)argument;
    for (int i = 0; i < TRANSFER_COUNT; i++) {
        uint64_t from = next_random(&t->seed) % ACCOUNT_COUNT;
        uint64_t to = (from + 1 + next_random(&t->seed) % (ACCOUNT_COUNT - 1)) % ACCOUNT_COUNT;
        transfer(t, from, to, (int64_t)(next_random(&t->seed) % 100));
    }
    return NULL;
}

// All balances, read in one transaction.
static int64_t total(kaml_store store, kaml_namespace_id accounts) {
    int64_t sum = 0;
    kaml_txn txn;
    check(kaml_txn_begin(store, &txn), "begin");
    for (uint64_t account = 0; account < ACCOUNT_COUNT; account++) {
        int64_t balance;
        check(balance_of(txn, accounts, account, &balance), "balance");
        sum += balance;
    }
    check(kaml_txn_commit(txn), "commit");
    check(kaml_txn_free(txn), "free");
    return sum;
}

static void open_accounts(kaml_store store, kaml_namespace_id accounts) {
    const int64_t balance = FIRST_BALANCE;
    kaml_txn txn;
    check(kaml_txn_begin(store, &txn), "begin");
    for (uint64_t account = 0; account < ACCOUNT_COUNT; account++) {
        const kaml_key key = kaml_key_u64(account);
        check(kaml_txn_insert(txn, accounts, key.bytes, key.length, &balance, sizeof balance), "insert");
    }
    check(kaml_txn_commit(txn), "commit");
    check(kaml_txn_free(txn), "free");
}

static unsigned run_tellers(kaml_store store, kaml_namespace_id accounts) {
    pthread_t threads[THREAD_COUNT];
    teller tellers[THREAD_COUNT];
    unsigned again_count = 0;
    for (int i = 0; i < THREAD_COUNT; i++) {
        memset(&tellers[i], 0, sizeof tellers[i]);
        tellers[i].store = store;
        tellers[i].accounts = accounts;
        tellers[i].seed = (unsigned)i + 1;
        if (pthread_create(&threads[i], NULL, work, &tellers[i]) != 0) exit(1);
    }
    for (int i = 0; i < THREAD_COUNT; i++) {
        if (pthread_join(threads[i], NULL) != 0) exit(1);
        again_count += tellers[i].again_count;
    }
    return again_count;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "bank.kaml";
    const int64_t expected = (int64_t)ACCOUNT_COUNT * FIRST_BALANCE;
    kaml_namespace_options keys = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_store_options options = KAML_STORE_OPTIONS_INIT;
    kaml_namespace_id accounts;
    kaml_device device;
    kaml_store store;

    keys.keys = KAML_KEYS_U64;
    options.lock_timeout_ms = 10000;
    check(kaml_create(path, 64 << 20, NULL, &device), "create");
    check(kaml_create_namespace(device, "accounts", &keys, &accounts), "namespace");
    check(kaml_store_open(device, 8 << 20, &options, &store), "store");
    open_accounts(store, accounts);
    unsigned again_count = run_tellers(store, accounts);
    int64_t after = total(store, accounts);
    check(kaml_store_close(store), "close the store");
    check(kaml_close(device), "close");

    // What was committed exists when the device is opened again.
    check(kaml_open(path, NULL, &device), "open");
    check(kaml_namespace(device, "accounts", &accounts), "namespace");
    check(kaml_store_open(device, 8 << 20, NULL, &store), "store");
    int64_t reopened = total(store, accounts);
    check(kaml_store_close(store), "close the store");
    check(kaml_close(device), "close");

    printf("%d transfers, %u run again, total %lld, after reopening %lld\n", THREAD_COUNT * TRANSFER_COUNT, again_count,
           (long long)after, (long long)reopened);
    return after == expected && reopened == expected ? 0 : 1;
}
