package io.kaml;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

/**
 * Records to be stored and deleted together: all or none. Later records of one key win over earlier ones. Conditions are judged by the
 * state before the batch. Keys and values are not copied before the batch is written: do not change them.
 */
public final class Batch {
    private static final int PUT = 0;
    private static final int PUT_IF_ABSENT = 1;
    private static final int PUT_IF_PRESENT = 2;
    private static final int DELETE = 3;
    private static final int DELETE_IF_PRESENT = 4;

    private static final int ADD = 16;
    private static final int MAX = 17;
    private static final int MIN = 18;
    private static final int EXPECT = 19;
    private static final int EXPECT_ABSENT = 20;
    /** Bytes of {@code kaml_operation}: a record, a number, a time to live and a time. */
    private static final long OPERATION_BYTES = 64;

    private record Record(int namespace, int action, byte[] key, byte[] value, long number, long timeToLive, long expiresAt) {
        boolean isPlain() {
            return action < ADD && timeToLive == 0 && expiresAt == 0;
        }
    }

    private final List<Record> records = new ArrayList<>();

    /** A batch of no records. */
    public Batch() {}

    private Batch add(Namespace namespace, int action, byte[] key, byte[] value) {
        return add(namespace, action, key, value, 0, 0, 0);
    }

    private Batch add(Namespace namespace, int action, byte[] key, byte[] value, long number, long timeToLive, long expiresAt) {
        records.add(new Record(namespace.id(), action, key, value, number, timeToLive, expiresAt));
        return this;
    }

    /**
     * Stores a record, whether its key exists or not.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @return this batch
     */
    public Batch put(Namespace namespace, byte[] key, byte[] value) {
        return add(namespace, PUT, key, value);
    }

    /**
     * Stores a record that expires.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @param timeToLive how long after the batch is written it expires; {@link Namespace#FOREVER} if it does not
     * @return this batch
     * @throws KamlException {@link Status#BAD_ARGUMENT} for a time that is not above 0
     */
    public Batch put(Namespace namespace, byte[] key, byte[] value, Duration timeToLive) {
        return add(namespace, PUT, key, value, 0, Times.timeToLive(timeToLive), 0);
    }

    /**
     * Stores a record that expires at a time.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @param expiresAt when it expires
     * @return this batch
     * @throws KamlException {@link Status#BAD_ARGUMENT} for a time before 1970
     */
    public Batch putUntil(Namespace namespace, byte[] key, byte[] value, Instant expiresAt) {
        long ms = Times.expiry(expiresAt);
        return add(namespace, PUT, key, value, 0, ms == Times.NEVER ? ms : 0, ms == Times.NEVER ? 0 : ms);
    }

    /**
     * Adds a number to a counter. A key that does not exist counts as 0.
     *
     * @param namespace where
     * @param key its key
     * @param number what to add; may be negative
     * @return this batch
     */
    public Batch add(Namespace namespace, byte[] key, long number) {
        return add(namespace, ADD, key, null, number, 0, 0);
    }

    /**
     * Keeps the larger one of a counter and a number, which is the result if the key does not exist.
     *
     * @param namespace where
     * @param key its key
     * @param number the number
     * @return this batch
     */
    public Batch max(Namespace namespace, byte[] key, long number) {
        return add(namespace, MAX, key, null, number, 0, 0);
    }

    /**
     * Keeps the smaller one of a counter and a number, which is the result if the key does not exist.
     *
     * @param namespace where
     * @param key its key
     * @param number the number
     * @return this batch
     */
    public Batch min(Namespace namespace, byte[] key, long number) {
        return add(namespace, MIN, key, null, number, 0, 0);
    }

    /**
     * Stores nothing, and lets the whole batch fail with {@link Status#VALUE_DIFFERS} unless a key had this value before it.
     *
     * @param namespace where
     * @param key the key
     * @param value the value; null: unless the key did not exist
     * @return this batch
     */
    public Batch expect(Namespace namespace, byte[] key, byte[] value) {
        return add(namespace, value == null ? EXPECT_ABSENT : EXPECT, key, value);
    }

    /**
     * Stores a record whose key does not exist; else nothing of the batch is stored.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @return this batch
     */
    public Batch putIfAbsent(Namespace namespace, byte[] key, byte[] value) {
        return add(namespace, PUT_IF_ABSENT, key, value);
    }

    /**
     * Replaces a record that exists; else nothing of the batch is stored.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @return this batch
     */
    public Batch putIfPresent(Namespace namespace, byte[] key, byte[] value) {
        return add(namespace, PUT_IF_PRESENT, key, value);
    }

    /**
     * Deletes a record, whether it exists or not.
     *
     * @param namespace where
     * @param key its key
     * @return this batch
     */
    public Batch delete(Namespace namespace, byte[] key) {
        return add(namespace, DELETE, key, null);
    }

    /**
     * Deletes a record that exists; else nothing of the batch is stored.
     *
     * @param namespace where
     * @param key its key
     * @return this batch
     */
    public Batch deleteIfPresent(Namespace namespace, byte[] key) {
        return add(namespace, DELETE_IF_PRESENT, key, null);
    }

    /**
     * How many records it has.
     *
     * @return the number
     */
    public int size() {
        return records.size();
    }

    /** Removes all records, so the batch can be used again. */
    public void clear() {
        records.clear();
    }

    long[] write(long device) {
        boolean isPlain = true;
        long bytes = 0;
        for (Record record : records) {
            isPlain = isPlain && record.isPlain();
            bytes += OPERATION_BYTES + 8 + 1 + record.key.length + Native.length(record.value);
        }
        // A namespace that keeps versions takes plain records only.
        long stride = isPlain ? Native.RECORD_BYTES : OPERATION_BYTES;
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(bytes + 1, 8);
            long counters = records.size() * stride;
            long bodies = counters + (isPlain ? 0 : records.size() * 8L);
            for (int i = 0; i < records.size(); i++) {
                Record record = records.get(i);
                long at = i * stride;
                memory.set(JAVA_INT, at, record.namespace);
                memory.set(JAVA_INT, at + 4, record.action);
                // An empty key has an address too, so the library refuses its length and not its address.
                memory.set(ADDRESS, at + 8, memory.asSlice(bodies));
                memory.set(JAVA_LONG, at + 16, record.key.length);
                MemorySegment.copy(record.key, 0, memory, JAVA_BYTE, bodies, record.key.length);
                bodies += record.key.length + 1;
                if (record.value != null && record.value.length != 0) {
                    memory.set(ADDRESS, at + 24, memory.asSlice(bodies));
                    MemorySegment.copy(record.value, 0, memory, JAVA_BYTE, bodies, record.value.length);
                    bodies += record.value.length;
                }
                memory.set(JAVA_LONG, at + 32, Native.length(record.value));
                if (!isPlain) {
                    memory.set(JAVA_LONG, at + 40, record.number);
                    memory.set(JAVA_LONG, at + 48, record.timeToLive);
                    memory.set(JAVA_LONG, at + 56, record.expiresAt);
                }
            }
            if (isPlain) {
                Native.check(Native.status(Native.PUT, device, memory, (long) records.size()));
                return new long[records.size()];
            }
            MemorySegment after = memory.asSlice(counters, records.size() * 8L);
            Native.check(Native.status(Native.WRITE, device, memory, (long) records.size(), after));
            return after.toArray(JAVA_LONG);
        }
    }
}
