package io.kaml;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
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

    private record Record(int namespace, int action, byte[] key, byte[] value) {}

    private final List<Record> records = new ArrayList<>();

    /** A batch of no records. */
    public Batch() {}

    private Batch add(Namespace namespace, int action, byte[] key, byte[] value) {
        records.add(new Record(namespace.id(), action, key, value));
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

    void write(long device) {
        long bytes = 0;
        for (Record record : records) {
            bytes += Native.RECORD_BYTES + 1 + record.key.length + Native.length(record.value);
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(bytes + 1, 8);
            long bodies = records.size() * Native.RECORD_BYTES;
            for (int i = 0; i < records.size(); i++) {
                Record record = records.get(i);
                long at = i * Native.RECORD_BYTES;
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
            }
            Native.check(Native.status(Native.PUT, device, memory, (long) records.size()));
        }
    }
}
