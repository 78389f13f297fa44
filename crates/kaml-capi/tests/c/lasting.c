// Records that expire, counters, expected values, backups, sizes and the change stream: what they do, and every mistake with its status.
#define _DEFAULT_SOURCE
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kaml_device device;
static kaml_namespace_id plain, brief, versions;

static int is_value(kaml_namespace_id space, const char *key, const char *expected) {
    void *value;
    size_t length;
    if (kaml_get(device, space, key, strlen(key), &value, &length)) return expected == NULL;
    int same = expected && length == strlen(expected) && memcmp(value, expected, length) == 0;
    kaml_free(value);
    return same;
}

static void expiry(void) {
    uint64_t time;
    EXPECT(kaml_put_one(device, brief, "default", 7, "1", 1), KAML_OK);
    EXPECT(kaml_expiry(device, brief, "default", 7, &time), KAML_OK);
    TRUE_THAT(time > UINT64_C(1700000000000) && time != KAML_NEVER);
    EXPECT(kaml_put_expiring(device, brief, "never", 5, "1", 1, KAML_NEVER), KAML_OK);
    EXPECT(kaml_expiry(device, brief, "never", 5, &time), KAML_OK);
    TRUE_THAT(time == KAML_NEVER);
    EXPECT(kaml_put_expiring(device, plain, "soon", 4, "1", 1, 1), KAML_OK);
    usleep(5000);
    EXPECT(kaml_exists(device, plain, "soon", 4), KAML_NOT_FOUND);
    EXPECT(kaml_expiry(device, plain, "soon", 4, &time), KAML_NOT_FOUND);
    EXPECT(kaml_expiry(device, plain, "soon", 4, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_put_expiring(device, versions, "a", 1, "1", 1, 1000), KAML_BAD_ARGUMENT);
    EXPECT(kaml_set_time_to_live(device, plain, 3600000), KAML_OK);
    EXPECT(kaml_put_one(device, plain, "hour", 4, "1", 1), KAML_OK);
    EXPECT(kaml_expiry(device, plain, "hour", 4, &time), KAML_OK);
    TRUE_THAT(time != KAML_NEVER);
    EXPECT(kaml_set_time_to_live(device, plain, 0), KAML_OK);
    EXPECT(kaml_set_time_to_live(device, versions, 1000), KAML_BAD_ARGUMENT);
    EXPECT(kaml_set_time_to_live(device, 99, 1000), KAML_UNKNOWN_NAMESPACE);
}

static void operations(void) {
    int64_t counter, counters[4];
    EXPECT(kaml_add(device, plain, "n", 1, 5, &counter), KAML_OK);
    TRUE_THAT(counter == 5);
    EXPECT(kaml_add(device, plain, "n", 1, -7, NULL), KAML_OK);
    EXPECT(kaml_add(device, plain, "n", 1, INT64_MIN, &counter), KAML_BAD_ARGUMENT);
    kaml_operation all[4] = {
        { plain, KAML_PUT, "a", 1, "one", 3, 0, 60000, 0 },
        { plain, KAML_ADD, "n", 1, NULL, 0, 1, 0, 0 },
        { plain, KAML_MAX, "n", 1, NULL, 0, 9, 0, 0 },
        { plain, KAML_EXPECT_ABSENT, "b", 1, NULL, 0, 0, 0, 0 },
    };
    EXPECT(kaml_write(device, all, 4, counters), KAML_OK);
    TRUE_THAT(counters[0] == 0 && counters[1] == -1 && counters[2] == 9 && counters[3] == 0);
    TRUE_THAT(is_value(plain, "a", "one"));
    all[3].action = KAML_EXPECT;
    all[3].key = "a";
    all[3].value = "two";
    all[3].value_length = 3;
    all[1].action = KAML_MIN;
    EXPECT(kaml_write(device, all, 4, NULL), KAML_VALUE_DIFFERS);
    all[3].value = "one";
    EXPECT(kaml_write(device, all, 4, NULL), KAML_OK);
    all[0].expires_at_ms = 1;
    EXPECT(kaml_write(device, all, 4, NULL), KAML_BAD_ARGUMENT);
    all[0].time_to_live_ms = 0;
    EXPECT(kaml_write(device, all, 1, NULL), KAML_OK); // it has expired
    TRUE_THAT(is_value(plain, "a", NULL));
    all[0].action = 9;
    EXPECT(kaml_write(device, all, 1, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_write(device, NULL, 1, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_write(device, all, 0, NULL), KAML_BAD_ARGUMENT);

    EXPECT(kaml_compare_and_set(device, plain, "c", 1, NULL, 0, "1", 1), KAML_OK);
    EXPECT(kaml_compare_and_set(device, plain, "c", 1, NULL, 0, "2", 1), KAML_VALUE_DIFFERS);
    EXPECT(kaml_compare_and_set(device, plain, "c", 1, "1", 1, "", 0), KAML_OK);
    TRUE_THAT(is_value(plain, "c", ""));
    EXPECT(kaml_compare_and_set(device, plain, "c", 1, "", 0, NULL, 0), KAML_OK);
    EXPECT(kaml_compare_and_set(device, plain, "c", 1, "", 0, NULL, 0), KAML_VALUE_DIFFERS);
    EXPECT(kaml_compare_and_set(device, plain, "c", 1, NULL, 3, NULL, 0), KAML_BAD_ARGUMENT);
    EXPECT(kaml_compare_and_set(device, versions, "c", 1, NULL, 0, "1", 1), KAML_BAD_ARGUMENT);
}

static void stores(void) {
    kaml_store store;
    kaml_txn txn;
    int64_t counter;
    void *value;
    size_t length;
    EXPECT(kaml_store_open(device, 1 << 20, NULL, &store), KAML_OK);
    EXPECT(kaml_set_time_to_live(device, plain, 1), KAML_IN_USE);
    EXPECT(kaml_put_expiring(device, plain, "a", 1, "1", 1, 1), KAML_IN_USE);
    EXPECT(kaml_add(device, plain, "a", 1, 1, NULL), KAML_IN_USE);
    EXPECT(kaml_store_put(store, brief, "cached", 6, "1", 1), KAML_OK);
    EXPECT(kaml_store_get(store, brief, "cached", 6, &value, &length), KAML_OK);
    kaml_free(value);
    EXPECT(kaml_store_put_expiring(store, plain, "soon", 4, "1", 1, 1), KAML_OK);
    EXPECT(kaml_store_add(store, plain, "m", 1, 3, &counter), KAML_OK);
    TRUE_THAT(counter == 3);
    EXPECT(kaml_store_compare_and_set(store, plain, "c", 1, NULL, 0, "1", 1), KAML_OK);
    EXPECT(kaml_store_compare_and_set(store, plain, "c", 1, "2", 1, NULL, 0), KAML_VALUE_DIFFERS);
    EXPECT(kaml_store_add(store, plain, "c", 1, 1, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_begin(store, &txn), KAML_OK);
    EXPECT(kaml_txn_add(txn, plain, "m", 1, 4, &counter), KAML_OK);
    TRUE_THAT(counter == 7);
    EXPECT(kaml_txn_add(txn, plain, "m", 1, INT64_MAX, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_txn_upsert_expiring(txn, plain, "t", 1, "1", 1, 1), KAML_OK);
    EXPECT(kaml_txn_commit(txn), KAML_OK);
    EXPECT(kaml_txn_free(txn), KAML_OK);
    usleep(5000);
    EXPECT(kaml_store_exists(store, plain, "t", 1), KAML_NOT_FOUND);
    EXPECT(kaml_store_get(store, plain, "soon", 4, &value, &length), KAML_NOT_FOUND);
    EXPECT(kaml_store_close(store), KAML_OK);
}

// Which logs a namespace has, and that what is stored in others before stays readable.
static void logs(void) {
    const uint32_t two[2] = { 1, 0 }, twice[2] = { 1, 1 }, unknown[1] = { 1 << 20 };
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_create_options dies = KAML_CREATE_OPTIONS_INIT;
    kaml_device first = device;
    kaml_namespace_id first_plain = plain, mapped;
    uint32_t found[4] = { 9, 9, 9, 9 };
    size_t count = 9;
    dies.die_count = 2;
    EXPECT(kaml_create_in_memory(64 << 20, &dies, &device), KAML_OK);
    EXPECT(kaml_create_namespace(device, "plain", NULL, &plain), KAML_OK);
    EXPECT(kaml_logs(device, plain, found, 4, &count), KAML_OK);
    TRUE_THAT(count == 0 && found[0] == 9);
    options.logs = two;
    options.log_count = 2;
    EXPECT(kaml_create_namespace(device, "mapped", &options, &mapped), KAML_OK);
    EXPECT(kaml_logs(device, mapped, found, 1, &count), KAML_OK);
    TRUE_THAT(count == 2 && (found[0] == 0 || found[0] == 1) && found[1] == 9);
    EXPECT(kaml_put_one(device, mapped, "before", 6, "1", 1), KAML_OK);
    EXPECT(kaml_set_logs(device, mapped, two, 1), KAML_OK);
    EXPECT(kaml_logs(device, mapped, found, 4, &count), KAML_OK);
    TRUE_THAT(count == 1 && found[0] == 1);
    EXPECT(kaml_put_one(device, mapped, "after", 5, "2", 1), KAML_OK);
    TRUE_THAT(is_value(mapped, "before", "1") && is_value(mapped, "after", "2"));
    EXPECT(kaml_set_logs(device, mapped, twice, 2), KAML_BAD_ARGUMENT);
    EXPECT(kaml_set_logs(device, mapped, unknown, 1), KAML_BAD_ARGUMENT);
    EXPECT(kaml_set_logs(device, mapped, NULL, 2), KAML_BAD_ARGUMENT);
    EXPECT(kaml_set_logs(device, 4711, two, 2), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_logs(device, 4711, found, 4, &count), KAML_UNKNOWN_NAMESPACE);
    EXPECT(kaml_logs(device, mapped, NULL, 4, &count), KAML_BAD_ARGUMENT);
    EXPECT(kaml_logs(device, mapped, found, 4, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_logs(device, mapped, found, 4, &count), KAML_OK);
    TRUE_THAT(count == 1);
    EXPECT(kaml_set_logs(device, mapped, NULL, 0), KAML_OK);
    EXPECT(kaml_logs(device, mapped, found, 4, &count), KAML_OK);
    TRUE_THAT(count == 0);
    EXPECT(kaml_close(device), KAML_OK);
    device = first;
    plain = first_plain;
}

// The next change of a reader is a command on the versions.
static void is_command(kaml_changes reader, uint32_t command, uint32_t snapshot) {
    kaml_change *found;
    size_t count;
    EXPECT(kaml_changes_next(reader, 1000, &found, &count, NULL), KAML_OK);
    TRUE_THAT(count == 1 && found->kind == KAML_CHANGE_VERSION_COMMAND && found->namespace_id == versions);
    TRUE_THAT(count == 1 && found->command == command && found->snapshot == snapshot && found->sequence > 0);
    TRUE_THAT(count == 1 && found->key == NULL && found->value == NULL && found->flags == 0 && found->time_ns > 0);
    kaml_free(found);
}

static void commands(void) {
    kaml_position position;
    kaml_changes reader;
    kaml_change *found;
    size_t count;
    uint32_t first, before;
    EXPECT(kaml_put_one(device, versions, "v", 1, "1", 1), KAML_OK);
    EXPECT(kaml_position_now(device, &position), KAML_OK);
    EXPECT(kaml_changes_open(device, &position, &reader), KAML_OK);
    EXPECT(kaml_snapshot(device, versions, &first), KAML_OK);
    EXPECT(kaml_put_one(device, versions, "v", 1, "2", 1), KAML_OK);
    EXPECT(kaml_roll_back(device, versions, first, &before), KAML_OK);
    EXPECT(kaml_forget_snapshot(device, versions, before), KAML_OK);
    do { // first come descriptions of the namespaces
        EXPECT(kaml_changes_next(reader, 1000, &found, &count, NULL), KAML_OK);
        TRUE_THAT(count > 0 && found->command == (found->kind == KAML_CHANGE_VERSION_COMMAND));
        position.bytes[0] = count == 0 || found->kind == KAML_CHANGE_VERSION_COMMAND;
        kaml_free(found);
    } while (!position.bytes[0]);
    EXPECT(kaml_changes_next(reader, 1000, &found, &count, NULL), KAML_OK);
    TRUE_THAT(count == 1 && found->kind == KAML_CHANGE_VERSION && found->command == 0 && found->snapshot == 0);
    kaml_free(found);
    is_command(reader, KAML_COMMAND_ROLL_BACK, first);
    is_command(reader, KAML_COMMAND_FORGET, before);
    EXPECT(kaml_changes_close(reader), KAML_OK);
}

static void changes(void) {
    kaml_position position;
    kaml_changes reader;
    kaml_change *found;
    size_t count;
    EXPECT(kaml_position_now(device, &position), KAML_OK);
    EXPECT(kaml_put_expiring(device, plain, "seen", 4, "1", 1, 60000), KAML_OK);
    EXPECT(kaml_delete(device, plain, "seen", 4), KAML_OK);
    EXPECT(kaml_changes_open(device, &position, &reader), KAML_OK);
    EXPECT(kaml_changes_next(reader, 1000, &found, &count, NULL), KAML_OK);
    TRUE_THAT(count == 3 && found[0].kind == KAML_CHANGE_NAMESPACE && memcmp(found[0].key, "plain", 5) == 0);
    kaml_free(found);
    EXPECT(kaml_changes_next(reader, 1000, &found, &count, &position), KAML_OK);
    TRUE_THAT(count == 1 && found->kind == KAML_CHANGE_PUT && found->namespace_id == plain);
    TRUE_THAT(found->key_length == 4 && memcmp(found->key, "seen", 4) == 0);
    TRUE_THAT(found->value_length == 1 && found->expires_at_ms != KAML_NEVER);
    kaml_free(found);
    EXPECT(kaml_changes_next(reader, 1000, &found, &count, NULL), KAML_OK);
    TRUE_THAT(count == 1 && found->kind == KAML_CHANGE_DELETE && found->value == NULL);
    kaml_free(found);
    EXPECT(kaml_changes_next(reader, 0, &found, &count, NULL), KAML_OK);
    TRUE_THAT(count == 0 && found == NULL);
    EXPECT(kaml_changes_next(reader, 0, NULL, &count, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_changes_close(reader), KAML_OK);
    EXPECT(kaml_changes_close(reader), KAML_BAD_HANDLE);
    EXPECT(kaml_changes_next(reader, 0, &found, &count, NULL), KAML_BAD_HANDLE);
    // After the put, and before the delete.
    EXPECT(kaml_changes_open(device, &position, &reader), KAML_OK);
    EXPECT(kaml_changes_next(reader, 1000, &found, &count, NULL), KAML_OK);
    kaml_free(found);
    EXPECT(kaml_changes_next(reader, 1000, &found, &count, NULL), KAML_OK);
    TRUE_THAT(count == 1 && found->kind == KAML_CHANGE_DELETE);
    kaml_free(found);
    EXPECT(kaml_changes_close(reader), KAML_OK);
    commands();
    position.bytes[0] ^= 1;
    EXPECT(kaml_changes_open(device, &position, &reader), KAML_BAD_ARGUMENT);
    EXPECT(kaml_changes_open(device, NULL, &reader), KAML_OK); // the device closes it
}

// What a callback has received, and after which call it ends what it hears of; 0: never.
typedef struct { int calls, last_call, is_wrong; uint64_t done, count; } progress;

static int hear(void *context, uint64_t done, uint64_t count) {
    progress *heard = (progress *)context;
    void *value;
    size_t length;
    if (done < heard->done || done > count || (heard->calls > 0 && count != heard->count)) heard->is_wrong = 1;
    if (heard->calls == 0 && kaml_get(device, plain, "old", 3, &value, &length) == KAML_OK) kaml_free(value);
    heard->done = done;
    heard->count = count;
    heard->calls++;
    return heard->calls == heard->last_call;
}

static int exists(const char *path) {
    return access(path, F_OK) == 0;
}

// Backups and restores that report progress, and that are ended at every place where one can be.
static void ending(const char *path) {
    char full[512], unfinished[600], copy[512];
    static char value[100000];
    const char *one[1] = { full };
    kaml_backup_report report = KAML_BACKUP_REPORT_INIT;
    snprintf(full, sizeof full, "%s.ended", path);
    snprintf(unfinished, sizeof unfinished, "%s.unfinished", full);
    snprintf(copy, sizeof copy, "%s.ended-copy", path);
    for (int i = 0; i < 60; i++) {
        char key[16];
        snprintf(key, sizeof key, "large-%d", i);
        memset(value, i, sizeof value);
        EXPECT(kaml_put_one(device, plain, key, strlen(key), value, sizeof value), KAML_OK);
        EXPECT(kaml_put_one(device, versions, key, strlen(key), value, 1000), KAML_OK);
    }
    progress heard = { 0, 0, 0, 0, 0 };
    EXPECT(kaml_backup_with_progress(device, full, NULL, hear, &heard, &report), KAML_OK);
    TRUE_THAT(heard.calls > 5 && !heard.is_wrong && heard.done == heard.count && heard.count > 0);
    TRUE_THAT(unlink(full) == 0);
    int calls = heard.calls;
    for (int at = 1; at <= calls; at += at < 3 || at > calls - 3 ? 1 : 2) {
        progress ended = { 0, at, 0, 0, 0 };
        kaml_status status = kaml_backup_with_progress(device, full, NULL, hear, &ended, NULL);
        if (status == KAML_OK) break; // others write, so a later one can have fewer calls
        TRUE_THAT(status == KAML_CANCELLED && strstr(kaml_last_error(), "callback") != NULL);
        TRUE_THAT(ended.calls == at && !ended.is_wrong && !exists(full) && !exists(unfinished));
    }
    kaml_device_snapshot_usage usage = KAML_DEVICE_SNAPSHOT_USAGE_INIT;
    EXPECT(kaml_snapshot_usage(device, &usage), KAML_OK);
    TRUE_THAT(usage.open_count == 0);
    // What had the name is kept, and a later backup replaces it.
    EXPECT(kaml_backup_with_progress(device, full, NULL, NULL, NULL, &report), KAML_OK);
    uint64_t bytes = report.bytes;
    progress third = { 0, 3, 0, 0, 0 };
    EXPECT(kaml_backup_with_progress(device, full, NULL, hear, &third, NULL), KAML_CANCELLED);
    EXPECT(kaml_backup_verify(full, &report), KAML_OK);
    TRUE_THAT(report.bytes == bytes);
    progress second = { 0, 2, 0, 0, 0 };
    EXPECT(kaml_restore_with_progress(one, 1, copy, 0, NULL, hear, &second), KAML_CANCELLED);
    TRUE_THAT(second.calls == 2 && !second.is_wrong && !exists(copy));
    progress whole = { 0, 0, 0, 0, 0 };
    EXPECT(kaml_restore_with_progress(one, 1, copy, 0, NULL, hear, &whole), KAML_OK);
    TRUE_THAT(whole.calls > 2 && !whole.is_wrong && whole.count >= whole.done && whole.done > whole.count / 2);
}

static void backups(const char *path) {
    char full[512], more[512], copy[512];
    kaml_backup_report report = KAML_BACKUP_REPORT_INIT;
    uint64_t taken;
    snprintf(full, sizeof full, "%s.full", path);
    snprintf(more, sizeof more, "%s.more", path);
    snprintf(copy, sizeof copy, "%s.copy", path);
    EXPECT(kaml_put_one(device, plain, "old", 3, "1", 1), KAML_OK);
    EXPECT(kaml_backup(device, full, NULL, &report), KAML_OK);
    TRUE_THAT(report.namespace_count == 3 && report.record_count > 0 && report.incremental == 0);
    EXPECT(kaml_put_one(device, plain, "new", 3, "2", 1), KAML_OK);
    EXPECT(kaml_backup(device, more, full, NULL), KAML_OK);
    EXPECT(kaml_backup_verify(more, &report), KAML_OK);
    TRUE_THAT(report.incremental == 1 && report.bytes > 0);
    EXPECT(kaml_backup_verify(copy, &report), KAML_NO_FILE);
    EXPECT(kaml_backup_verify(path, &report), KAML_NOT_A_DEVICE);
    EXPECT(kaml_backup(device, more, path, NULL), KAML_NOT_A_DEVICE);
    const char *both[2] = { full, more };
    EXPECT(kaml_restore(both + 1, 1, copy, 0, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_restore(both, 0, copy, 0, NULL), KAML_NOT_A_DEVICE);
    EXPECT(kaml_restore(both, 2, copy, 0, NULL), KAML_OK);
    EXPECT(kaml_restore(both, 2, copy, 0, NULL), KAML_NOT_EMPTY);
    ending(path);
    EXPECT(kaml_resize(device, 128 << 20, &taken), KAML_OK);
    TRUE_THAT(taken > 100 << 20 && taken <= 128 << 20);
    EXPECT(kaml_resize(device, 4096, NULL), KAML_BAD_ARGUMENT);
    EXPECT(kaml_close(device), KAML_OK);
    EXPECT(kaml_open(copy, NULL, &device), KAML_OK);
    EXPECT(kaml_namespace(device, "plain", &plain), KAML_OK);
    TRUE_THAT(is_value(plain, "old", "1") && is_value(plain, "new", "2"));
    EXPECT(kaml_close(device), KAML_OK);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    kaml_namespace_options options = KAML_NAMESPACE_OPTIONS_INIT;
    kaml_create_options limit = KAML_CREATE_OPTIONS_INIT;
    limit.grow_up_to_bytes = 1 << 30;
    EXPECT(kaml_create(argv[1], 64 << 20, &limit, &device), KAML_BAD_ARGUMENT);
    limit.grows = 1;
    EXPECT(kaml_create(argv[1], 64 << 20, &limit, &device), KAML_OK);
    EXPECT(kaml_create_namespace(device, "plain", NULL, &plain), KAML_OK);
    options.time_to_live_ms = 3600000;
    EXPECT(kaml_create_namespace(device, "brief", &options, &brief), KAML_OK);
    options.versioned = 1;
    EXPECT(kaml_create_namespace(device, "versions", &options, &versions), KAML_BAD_ARGUMENT);
    options.time_to_live_ms = 0;
    EXPECT(kaml_create_namespace(device, "versions", &options, &versions), KAML_OK);
    expiry();
    operations();
    stores();
    changes();
    logs();
    backups(argv[1]);
    printf("%d mistakes with another status\n", failed_count);
    return failed_count != 0;
}
