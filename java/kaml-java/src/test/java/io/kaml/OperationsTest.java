package io.kaml;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Expiry, counters, expected values and compression. */
class OperationsTest {
    private static final long BYTES = 64L << 20;
    private static final byte[] KEY = Keys.text("key");
    private static final byte[] VALUE = Keys.text("value");

    @TempDir
    Path directory;

    private static void fails(Status status, Runnable call) {
        KamlException failure = assertThrows(KamlException.class, call::run);
        assertEquals(status, failure.status(), failure.getMessage());
        assertFalse(failure.getMessage().isEmpty());
    }

    /** A time to live that was requested between two moments; the clock of the device has milliseconds. */
    private static void expiresWithin(Namespace namespace, byte[] key, Instant begin, Duration timeToLive) {
        Instant found = namespace.expiry(key).orElseThrow();
        assertFalse(found.isBefore(begin.plus(timeToLive).minusMillis(2)), found + " is too early");
        assertFalse(found.isAfter(Instant.now().plus(timeToLive).plusMillis(2)), found + " is too late");
    }

    /**
     * Goal: each way to put a record sets the time that it was given, the namespace's time holds for other puts, and a record is gone at its
     * time.
     * Method: times of hours are compared with the clock; a record of 30 ms is awaited; times that make no sense are refused.
     */
    @Test
    void recordsExpire() throws InterruptedException {
        Duration hour = Duration.ofHours(1);
        try (Device device = Device.inMemory(BYTES)) {
            Namespace records = device.createNamespace("records", NamespaceOptions.ordered().withTimeToLive(Duration.ofHours(9)));
            Instant begin = Instant.now();
            records.put(KEY, VALUE);
            expiresWithin(records, KEY, begin, Duration.ofHours(9));
            records.put(KEY, VALUE, hour);
            expiresWithin(records, KEY, begin, hour);
            device.write(new Batch().put(records, KEY, VALUE, Duration.ofHours(2)));
            expiresWithin(records, KEY, begin, Duration.ofHours(2));
            Instant later = Instant.ofEpochMilli(begin.plusSeconds(100_000).toEpochMilli());
            device.write(new Batch().putUntil(records, KEY, VALUE, later));
            assertEquals(Optional.of(later), records.expiry(KEY));
            for (Duration never : List.of(Namespace.FOREVER, Duration.ofSeconds(Long.MAX_VALUE / 1000))) {
                records.put(KEY, VALUE, never);
                assertEquals(Optional.of(Instant.MAX), records.expiry(KEY));
            }
            device.write(new Batch().putUntil(records, KEY, VALUE, Instant.MAX));
            assertEquals(Optional.of(Instant.MAX), records.expiry(KEY));
            records.setTimeToLive(Namespace.FOREVER);
            records.put(KEY, VALUE);
            assertEquals(Optional.of(Instant.MAX), records.expiry(KEY));
            records.setTimeToLive(hour);
            records.put(KEY, VALUE);
            expiresWithin(records, KEY, begin, hour);
            assertEquals(Optional.empty(), records.expiry(Keys.text("absent")));

            records.put(KEY, VALUE, Duration.ofMillis(30));
            for (long end = System.nanoTime() + 10_000_000_000L; records.get(KEY) != null; Thread.sleep(1)) {
                assertTrue(System.nanoTime() < end, "a record of 30 ms still exists after 10 s");
            }
            assertEquals(Optional.empty(), records.expiry(KEY));
            assertEquals(0, records.count(KeyRange.all()));

            fails(Status.BAD_ARGUMENT, () -> records.put(KEY, VALUE, Duration.ZERO));
            fails(Status.BAD_ARGUMENT, () -> new Batch().put(records, KEY, VALUE, Duration.ofMillis(-1)));
            fails(Status.BAD_ARGUMENT, () -> new Batch().putUntil(records, KEY, VALUE, Instant.EPOCH));
            Namespace versions = device.createNamespace("versions", NamespaceOptions.of(KeyKind.BYTES).withVersions());
            fails(Status.BAD_ARGUMENT, () -> versions.put(KEY, VALUE, hour));
            fails(Status.BAD_ARGUMENT, () -> versions.setTimeToLive(hour));
        }
    }

    /**
     * Goal: counters are exact with many threads, in batches and near the ends of 64 bits.
     * Method: four threads add to one counter; a batch changes several; sums that do not fit and values that are no counters are refused.
     */
    @Test
    void countersCount() throws InterruptedException {
        try (Device device = Device.inMemory(BYTES)) {
            Namespace counters = device.createNamespace("counters", NamespaceOptions.ordered());
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                threads.add(Thread.ofPlatform().start(() -> {
                    for (int turn = 0; turn < 250; turn++) {
                        counters.add(KEY, 3);
                    }
                }));
            }
            for (Thread thread : threads) {
                thread.join();
            }
            assertEquals(3000, Keys.counter(counters.get(KEY)));
            assertEquals(2990, counters.add(KEY, -10));
            long[] after = device.apply(new Batch().put(counters, Keys.text("other"), VALUE).add(counters, KEY, 10)
                    .max(counters, Keys.text("max"), -5).min(counters, Keys.text("max"), -7).add(counters, KEY, 1));
            assertArrayEquals(new long[] {0, 3000, -5, -7, 3001}, after);
            assertArrayEquals(VALUE, counters.get(Keys.text("other")));
            assertArrayEquals(new long[2], device.apply(new Batch().put(counters, KEY, Keys.counter(Long.MAX_VALUE)).delete(counters, VALUE)));
            fails(Status.BAD_ARGUMENT, () -> counters.add(KEY, 1));
            assertEquals(Long.MAX_VALUE, Keys.counter(counters.get(KEY)));
            fails(Status.BAD_ARGUMENT, () -> counters.add(Keys.text("other"), 1));
            assertEquals(0, Keys.counter((byte[]) null));
            assertThrows(IllegalArgumentException.class, () -> Keys.counter(VALUE));
        }
    }

    /**
     * Goal: a value is stored only over the expected one; an empty value differs from none.
     * Method: all pairs of absent, empty and other values, as a call and as a batch.
     */
    @Test
    void expectedValuesAreCompared() {
        byte[][] values = {null, new byte[0], VALUE};
        try (Device device = Device.inMemory(BYTES)) {
            Namespace records = device.createNamespace("records", NamespaceOptions.ordered());
            for (byte[] present : values) {
                for (byte[] expected : values) {
                    for (byte[] next : values) {
                        set(records, present);
                        assertEquals(present == expected, records.compareAndSet(KEY, expected, next));
                        assertArrayEquals(present == expected ? next : present, records.get(KEY));
                    }
                    set(records, present);
                    records.delete(Keys.text("other"));
                    Batch batch = new Batch().expect(records, KEY, expected).put(records, Keys.text("other"), VALUE);
                    if (present == expected) {
                        device.write(batch);
                    } else {
                        fails(Status.VALUE_DIFFERS, () -> device.write(batch));
                    }
                    assertEquals(present == expected, records.exists(Keys.text("other")));
                    assertArrayEquals(present, records.get(KEY));
                }
            }
        }
    }

    private static void set(Namespace records, byte[] value) {
        if (value == null) {
            records.delete(KEY);
        } else {
            records.put(KEY, value);
        }
    }

    /**
     * Goal: a store and its transactions expire, count and compare as a device does.
     * Method: each call through a store, and in a transaction that is committed or not; many keys at once.
     */
    @Test
    void storesHaveTheSame() {
        try (Device device = Device.inMemory(BYTES)) {
            Namespace records = device.createNamespace("records", NamespaceOptions.ordered());
            Instant begin = Instant.now();
            Duration hour = Duration.ofHours(1);
            try (Store store = new Store(device, 8 << 20, new StoreOptions(false, false, 0, 1000))) {
                store.put(records, KEY, VALUE, hour);
                expiresWithin(records, KEY, begin, hour);
                assertTrue(store.compareAndSet(records, KEY, VALUE, null));
                assertFalse(store.compareAndSet(records, KEY, VALUE, VALUE));
                assertTrue(store.compareAndSet(records, KEY, null, Keys.counter(40)));
                assertEquals(42, store.add(records, KEY, 2));
                try (Transaction transaction = store.begin()) {
                    assertEquals(43, transaction.add(records, KEY, 1));
                    transaction.upsert(records, Keys.text("other"), VALUE, hour);
                    fails(Status.BAD_ARGUMENT, () -> transaction.add(records, KEY, Long.MAX_VALUE));
                    assertEquals(44, transaction.add(records, KEY, 1));
                    transaction.commitDurable();
                }
                try (Transaction transaction = store.begin()) {
                    transaction.add(records, KEY, 1);
                }
                assertEquals(44, Keys.counter(records.get(KEY)));
                expiresWithin(records, Keys.text("other"), begin, hour);
                List<byte[]> found = store.getMany(records, List.of(KEY, Keys.text("absent"), Keys.text("other")));
                assertArrayEquals(Keys.counter(44), found.get(0));
                assertNull(found.get(1));
                assertArrayEquals(VALUE, found.get(2));
                assertEquals(0, store.acknowledgeLost());
            }
        }
    }

    /**
     * Goal: a namespace has the logs that it was given, and what it stored before stays readable; logs that cannot be are refused.
     * Method: a device of four logs; lists of each kind.
     */
    @Test
    void logsAreSet() {
        CreateOptions options = new CreateOptions(false, false, 4, 0, false, 0);
        try (Device device = Device.create(directory.resolve("logs.kaml"), BYTES, options)) {
            Namespace records = device.createNamespace("records", NamespaceOptions.of(KeyKind.BYTES));
            assertEquals(0, records.logs().length);
            records.put(KEY, VALUE);
            records.setLogs(3, 1);
            int[] logs = records.logs();
            Arrays.sort(logs);
            assertArrayEquals(new int[] {1, 3}, logs);
            records.put(Keys.text("other"), VALUE);
            assertArrayEquals(VALUE, records.get(KEY));
            fails(Status.BAD_ARGUMENT, () -> records.setLogs(4));
            fails(Status.BAD_ARGUMENT, () -> records.setLogs(1, 1));
            records.setLogs();
            assertEquals(0, records.logs().length);
        }
    }

    /**
     * Goal: a namespace with its index on flash takes, changes, deletes and lists records, keeps them over a reopening, and takes less memory.
     * Method: the same records with both indexes; options that an index on flash does not have are refused.
     */
    @Test
    void theIndexCanBeOnFlash() {
        Path path = directory.resolve("index.kaml");
        int count = 20_000;
        try (Device device = Device.create(path, 256L << 20, CreateOptions.DEFAULT)) {
            Namespace records = device.createNamespace("records", NamespaceOptions.of(KeyKind.U64).withIndex(IndexPlace.FLASH));
            Batch batch = new Batch();
            for (long key = 0; key < count; key++) {
                batch.put(records, Keys.u64(key), Keys.text("value " + key));
                if (key % 1000 == 999) {
                    device.apply(batch);
                    batch = new Batch();
                }
            }
            records.put(Keys.u64(7), Keys.text("changed"));
            records.delete(Keys.u64(8));
            NamespaceOptions flash = NamespaceOptions.of(KeyKind.BYTES).withIndex(IndexPlace.FLASH);
            fails(Status.BAD_ARGUMENT, () -> device.createNamespace("versions", flash.withVersions()));
            fails(Status.BAD_ARGUMENT, () -> device.createNamespace("ordered", NamespaceOptions.ordered().withIndex(IndexPlace.FLASH)));
            fails(Status.BAD_ARGUMENT, () -> device.createNamespace("packed", flash.withCompression(Compression.LZ4)));
            fails(Status.BAD_ARGUMENT, () -> device.createNamespace("brief", flash.withTimeToLive(Duration.ofHours(1))));
        }
        try (Device device = Device.open(path)) {
            Namespace records = device.namespace("records");
            assertArrayEquals(Keys.text("changed"), records.get(Keys.u64(7)));
            assertNull(records.get(Keys.u64(8)));
            for (long key = 9; key < count; key += 97) {
                assertArrayEquals(Keys.text("value " + key), records.get(Keys.u64(key)));
            }
            long[] listed = new long[1];
            records.forEachKey(key -> listed[0] += 1);
            assertEquals(count - 1, listed[0]);
        }
    }

    /**
     * Goal: compression saves room, and changes no value.
     * Method: the same values, which repeat, in a namespace of each kind; the live bytes are compared.
     */
    @Test
    void valuesAreCompressed() {
        long[] live = new long[Compression.values().length];
        for (Compression compression : Compression.values()) {
            try (Device device = Device.inMemory(BYTES)) {
                Namespace records = device.createNamespace("records", NamespaceOptions.of(KeyKind.U64).withCompression(compression));
                Random random = new Random(7);
                for (int i = 0; i < 100; i++) {
                    byte[] value = (i + " words that repeat ".repeat(200)).getBytes();
                    value[random.nextInt(value.length)] = 0;
                    records.put(Keys.u64(i), value);
                    assertArrayEquals(value, records.get(Keys.u64(i)));
                }
                live[compression.ordinal()] = device.statistics().liveBytes();
            }
        }
        assertTrue(live[Compression.LZ4.ordinal()] * 3 < live[Compression.NONE.ordinal()], live[1] + " of " + live[0]);
        assertTrue(live[Compression.ZSTD.ordinal()] * 3 < live[Compression.NONE.ordinal()], live[2] + " of " + live[0]);
        try (Device device = Device.inMemory(BYTES)) {
            NamespaceOptions both = NamespaceOptions.of(KeyKind.BYTES).withVersions().withCompression(Compression.LZ4);
            fails(Status.BAD_ARGUMENT, () -> device.createNamespace("both", both));
        }
    }
}
