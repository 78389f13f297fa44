package io.kaml;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Consumer;

/**
 * A namespace of a device. Each put and delete is durable when it returns. It needs no closing.
 *
 * <p>While a {@link Store} is open over the device, change records through the store: changes here throw {@link Status#IN_USE}.
 */
public final class Namespace {
    private final Device device;
    private final int id;

    Namespace(Device device, int id) {
        this.device = device;
        this.id = id;
    }

    /**
     * Its number, never given to another one.
     *
     * @return the number
     */
    public int id() {
        return id;
    }

    /**
     * The device that it is on.
     *
     * @return the device
     */
    public Device device() {
        return device;
    }

    /**
     * Reads a value: one read of flash.
     *
     * @param key its key
     * @return the value; null if there is none
     * @throws KamlException {@link Status#BAD_KEY}, {@link Status#CORRUPT}, {@link Status#UNKNOWN_NAMESPACE}
     */
    public byte[] get(byte[] key) {
        return Native.get(Native.GET, device.handle.id, id, key);
    }

    /**
     * Reads a value into memory of the caller, without a copy in the Java heap.
     *
     * @param key its key
     * @param into native memory; nothing is written to it if the value does not fit
     * @return bytes of the value; nothing if there is none
     * @throws KamlException {@link Status#BUFFER_TOO_SMALL}; as {@link #get}
     */
    public OptionalLong getInto(byte[] key, MemorySegment into) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment length = arena.allocate(JAVA_LONG);
            int status = Native.status(Native.GET_INTO, device.handle.id, id, Native.key(arena, key), (long) key.length,
                    into, into.byteSize(), length);
            return Native.found(status) ? OptionalLong.of(length.get(JAVA_LONG, 0)) : OptionalLong.empty();
        }
    }

    /**
     * Reads the values of up to 4096 keys; neighbours on the medium are one read, and many reads are in progress at once. The values are not of
     * one moment.
     *
     * @param keys the keys
     * @return the values in the order of the keys; null where there is none
     * @throws KamlException as {@link #get}; {@link Status#BAD_ARGUMENT} for too many keys
     */
    public List<byte[]> getMany(List<byte[]> keys) {
        return Native.getMany(device.handle.id, id, keys);
    }

    /**
     * Whether a key exists. Reads no flash, except in a versioned namespace.
     *
     * @param key the key
     * @return whether it exists
     * @throws KamlException as {@link #get}
     */
    public boolean exists(byte[] key) {
        return Native.found(Native.withKey(Native.EXISTS, device.handle.id, id, key));
    }

    /**
     * Stores a record.
     *
     * @param key its key
     * @param value its value; may be empty
     * @throws KamlException {@link Status#FULL}, {@link Status#VALUE_TOO_LARGE}, {@link Status#BAD_KEY} and others
     */
    public void put(byte[] key, byte[] value) {
        Native.check(Native.withValue(Native.PUT_ONE, device.handle.id, id, key, value));
    }

    /**
     * Stores a record whose key does not exist.
     *
     * @param key its key
     * @param value its value
     * @return false if the key exists; nothing is stored then
     * @throws KamlException as {@link #put}
     */
    public boolean putIfAbsent(byte[] key, byte[] value) {
        return holds(new Batch().putIfAbsent(this, key, value), Status.EXISTS);
    }

    /**
     * Replaces a record that exists.
     *
     * @param key its key
     * @param value its value
     * @return false if the key does not exist; nothing is stored then
     * @throws KamlException as {@link #put}
     */
    public boolean putIfPresent(byte[] key, byte[] value) {
        return holds(new Batch().putIfPresent(this, key, value), Status.NOT_FOUND);
    }

    private boolean holds(Batch batch, Status otherwise) {
        try {
            device.write(batch);
            return true;
        } catch (KamlException failure) {
            if (failure.status() == otherwise) {
                return false;
            }
            throw failure;
        }
    }

    /**
     * Deletes a record, whether it exists or not.
     *
     * @param key its key
     * @throws KamlException as {@link #put}
     */
    public void delete(byte[] key) {
        Native.check(Native.withKey(Native.DELETE, device.handle.id, id, key));
    }

    /**
     * Reads the records of a range of an ordered namespace, as they are now.
     *
     * @param range which
     * @return the records in their order; close it, or read it to its end
     * @throws KamlException {@link Status#BAD_ARGUMENT} if the namespace is not ordered, {@link Status#BAD_KEY} for a bound that is too long
     */
    public RecordIterator range(KeyRange range) {
        return Native.range(Native.RANGE_OPEN, Native.PREFIX_OPEN, device.handle.id, id, range);
    }

    /**
     * The record with the least key of an ordered namespace.
     *
     * @return the record; nothing if the namespace is empty
     * @throws KamlException as {@link #range}
     */
    public Optional<Entry> first() {
        return end(Native.FIRST);
    }

    /**
     * The record with the greatest key of an ordered namespace.
     *
     * @return the record; nothing if the namespace is empty
     * @throws KamlException as {@link #range}
     */
    public Optional<Entry> last() {
        return end(Native.LAST);
    }

    private Optional<Entry> end(MethodHandle call) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment item = arena.allocate(ADDRESS);
            boolean found = Native.found(Native.status(call, device.handle.id, id, item));
            return found ? Optional.of(Native.entries(item.get(ADDRESS, 0), 1).getFirst()) : Optional.empty();
        }
    }

    /**
     * Counts the keys of a range of an ordered namespace. Reads no flash.
     *
     * @param range which
     * @return how many there are
     * @throws KamlException as {@link #range}
     */
    public long count(KeyRange range) {
        return Native.number(Native.COUNT, device.handle.id, id, range);
    }

    /**
     * Deletes the records of a range of an ordered namespace in one atomic step; durable when it returns.
     *
     * @param range which
     * @return how many there were
     * @throws KamlException as {@link #range} and {@link #put}
     */
    public long deleteRange(KeyRange range) {
        return Native.number(Native.DELETE_RANGE, device.handle.id, id, range);
    }

    /**
     * Visits the keys of a namespace that is not ordered, in no particular order. Every key that exists all the time is visited once.
     *
     * @param visit gets each key
     * @throws KamlException {@link Status#BAD_ARGUMENT} if the namespace is ordered: read a range then
     */
    public void forEachKey(Consumer<byte[]> visit) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment cursor = arena.allocate(Native.CURSOR_BYTES, 8);
            MemorySegment items = arena.allocate(ADDRESS);
            MemorySegment count = arena.allocate(JAVA_LONG);
            List<Entry> keys = new ArrayList<>();
            do {
                Native.check(
                        Native.status(Native.LIST_KEYS, device.handle.id, id, cursor, Native.BATCH, items, count));
                keys = Native.entries(items.get(ADDRESS, 0), count.get(JAVA_LONG, 0));
                keys.forEach(entry -> visit.accept(entry.key()));
            } while (!keys.isEmpty());
        }
    }

    @Override
    public String toString() {
        return "namespace " + id;
    }
}
