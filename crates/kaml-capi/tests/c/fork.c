// Forks while other threads open and close handles; each child opens and closes some of its own.
#define _POSIX_C_SOURCE 200809L
#include <kaml.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, FORKS = 200 };

static kaml_store store;
static int stops;

static void *open_and_close(void *argument) {
    while (!__atomic_load_n(&stops, __ATOMIC_RELAXED)) {
        kaml_txn txn, stale;
        if (kaml_txn_begin(store, &txn)) return argument;
        stale = txn;
        kaml_txn_abort(txn);
        kaml_txn_free(txn);
        kaml_txn_abort(stale);
    }
    return argument;
}

static int child(void) {
    kaml_device device;
    kaml_namespace_id ns;
    kaml_store own;
    kaml_txn txn;

    alarm(20); // rather than wait for ever
    if (kaml_txn_begin(store, &txn) != KAML_BAD_HANDLE) return 1;
    if (kaml_create_in_memory(64 << 20, NULL, &device)) return 2;
    if (kaml_create_namespace(device, "own", NULL, &ns)) return 3;
    if (kaml_store_open(device, 1 << 20, NULL, &own)) return 4;
    for (int i = 0; i < 10; i++) {
        if (kaml_txn_begin(own, &txn) || kaml_txn_insert(txn, ns, &i, sizeof i, "", 0)) return 5;
        if (kaml_txn_commit(txn) || kaml_txn_free(txn)) return 6;
    }
    return kaml_store_close(own) || kaml_close(device) ? 7 : 0;
}

int main(void) {
    kaml_device device;
    pthread_t threads[THREADS];
    int failed_count = 0;

    if (kaml_create_in_memory(64 << 20, NULL, &device) || kaml_store_open(device, 1 << 20, NULL, &store)) return 1;
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, open_and_close, NULL)) return 1;
    }
    for (int i = 0; i < FORKS && failed_count == 0; i++) {
        int status = 0;
        const pid_t pid = fork();
        if (pid == 0) _exit(child());
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "fork %d: %#x\n", i, (unsigned)status);
            failed_count++;
        }
    }
    __atomic_store_n(&stops, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    if (kaml_store_close(store) || kaml_close(device)) failed_count++;
    printf("%d children failed\n", failed_count);
    return failed_count != 0;
}
