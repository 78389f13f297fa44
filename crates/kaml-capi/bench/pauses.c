// The longest pauses of durable puts on a device that is four fifths full, next to those of the machine.
//
//   cc -O2 pauses.c -o pauses $(pkg-config --cflags --libs kaml)
//   ./pauses DIRECTORY [SECONDS]
//
// One thread overwrites records of 1 KiB evenly for SECONDS (default 600). The controls take a tenth of that each, before and after it: a loop that
// reads the clock, and a loop that writes 4 KiB to a file of its own past the page cache and flushes them. Nothing of KAML is at work meanwhile.
// Printed are, in milliseconds, the longest pause, the tenth longest, and the 99.9th percentile, and how many 100 ms slices had less than half the median.
#define _GNU_SOURCE
#include <fcntl.h>
#include <kaml.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { VALUE_BYTES = 1024, BATCH = 512, SLICES_MAX = 36000, BUCKETS = 1 << 20, PAGE = 4096 };
static const uint64_t CAPACITY = (uint64_t)1 << 30, SLICE_NS = 100000000;

static kaml_device device;
static kaml_namespace_id records;
static uint64_t record_count, state = 88172645463325252ull;
static char value[VALUE_BYTES];
static void *page;
static int file = -1;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, kaml_last_error());
    exit(1);
}

static void read_clock(void) {}

static void write_page(void) {
    memcpy(page, &state, sizeof state);
    if (pwrite(file, page, PAGE, (off_t)(next() % 16384) * PAGE) != PAGE || fdatasync(file)) {
        perror("write");
        exit(1);
    }
}

static void put(void) {
    uint64_t key = next() % record_count;
    memcpy(value, &key, sizeof key);
    if (kaml_put_one(device, records, &key, sizeof key, value, VALUE_BYTES)) fail("put");
}

static int longer(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a < b) - (a > b);
}

// Repeats a step, and prints what it measured.
static void measure(const char *name, void (*step)(void), double seconds) {
    static uint32_t slices[SLICES_MAX];
    static uint32_t counts[BUCKETS]; // by microseconds
    uint64_t longest[10] = {0}, steps = 0, begin = now_ns(), last = begin;
    memset(slices, 0, sizeof slices);
    memset(counts, 0, sizeof counts);
    for (;;) {
        step();
        uint64_t at = now_ns(), took = at - last, slice = (at - begin) / SLICE_NS;
        last = at;
        if ((double)(at - begin) > seconds * 1e9) break;
        steps++;
        if (slice < SLICES_MAX) slices[slice]++;
        counts[took / 1000 < BUCKETS ? took / 1000 : BUCKETS - 1]++;
        if (took > longest[9]) {
            longest[9] = took;
            qsort(longest, 10, sizeof *longest, longer);
        }
    }
    uint64_t below = 0, percentile = 0;
    while (percentile < BUCKETS - 1 && (below += counts[percentile]) < steps - steps / 1000) percentile++;
    size_t slice_count = (size_t)(seconds * 10), slow = 0;
    if (slice_count > SLICES_MAX) slice_count = SLICES_MAX;
    uint64_t mean = steps / (slice_count ? slice_count : 1);
    for (size_t i = 0; i < slice_count; i++) slow += slices[i] < mean / 2;
    printf("%-24s %10.0f /s   longest %8.2f ms   tenth %8.2f ms   p99.9 %7.3f ms   slow slices %zu of %zu\n", name, (double)steps / seconds,
           (double)longest[0] / 1e6, (double)longest[9] / 1e6, (double)percentile / 1e3, slow, slice_count);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: pauses DIRECTORY [SECONDS]\n");
        return 2;
    }
    double seconds = argc > 2 ? atof(argv[2]) : 600;
    char path[4096], name[4096];
    snprintf(path, sizeof path, "%s/pauses.kaml", argv[1]);
    snprintf(name, sizeof name, "%s/pauses.control", argv[1]);
    kaml_create_options options = KAML_CREATE_OPTIONS_INIT;
    options.force = options.prewrite = 1;
    if (kaml_create(path, CAPACITY, &options, &device)) fail("create");
    kaml_namespace_options of = KAML_NAMESPACE_OPTIONS_INIT;
    of.keys = KAML_KEYS_U64;
    if (kaml_create_namespace(device, "records", &of, &records)) fail("create a namespace");
    kaml_device_statistics info = KAML_DEVICE_STATISTICS_INIT;
    if (kaml_statistics(device, &info)) fail("statistics");
    record_count = info.capacity_bytes / 5 * 4 / 1088; // what a record of this size takes
    static kaml_record batch[BATCH];
    static uint64_t keys[BATCH];
    for (uint64_t key = 0; key < record_count; key += BATCH) {
        size_t count = 0;
        for (; count < BATCH && key + count < record_count; count++) {
            keys[count] = key + count;
            batch[count] = (kaml_record){records, KAML_PUT, (const char *)&keys[count], sizeof *keys, value, VALUE_BYTES};
        }
        if (kaml_put(device, batch, count)) fail("fill");
    }
    if (posix_memalign(&page, PAGE, PAGE)) return 1;
    memset(page, 7, PAGE);
    file = open(name, O_CREAT | O_RDWR | O_DIRECT, 0600);
    if (file < 0 || ftruncate(file, 16384 * PAGE)) {
        perror(name);
        return 1;
    }
    for (int i = 0; i < 16384; i++) {
        if (pwrite(file, page, PAGE, (off_t)i * PAGE) != PAGE) return 1;
    }
    for (int i = 0; i < 2; i++) {
        measure("clock", read_clock, seconds / 20);
        measure("4 KiB written, flushed", write_page, seconds / 20);
        if (i == 0) measure("puts of 1 KiB", put, seconds);
    }
    kaml_close(device);
    unlink(path);
    unlink(name);
    return 0;
}
