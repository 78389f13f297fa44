package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
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
    /** A time to live that never ends. */
    public static final Duration FOREVER = ChronoUnit.FOREVER.getDuration();

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
        return Native.getMany(Native.GET_MANY, device.handle.id, id, keys);
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
     * Stores a record that expires. From then on nobody sees it, and its room is released by itself.
     *
     * @param key its key
     * @param value its value
     * @param timeToLive how long after now it expires; {@link #FOREVER} if it does not, whatever the namespace specifies
     * @throws KamlException {@link Status#BAD_ARGUMENT} for a time that is not above 0, or if the namespace keeps versions; as {@link #put}
     */
    public void put(byte[] key, byte[] value, Duration timeToLive) {
        long ms = Times.timeToLive(timeToLive);
        Native.check(Native.withValueExpiring(Native.PUT_EXPIRING, device.handle.id, id, key, value, ms));
    }

    /**
     * When a record expires, by the clock of the device, which never goes back. Reads no flash.
     *
     * @param key its key
     * @return the time; {@link Instant#MAX} if it does not expire; nothing if the key does not exist
     * @throws KamlException as {@link #get}
     */
    public Optional<Instant> expiry(byte[] key) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment ms = arena.allocate(JAVA_LONG);
            int status = Native.status(Native.EXPIRY, device.handle.id, id, Native.key(arena, key), (long) key.length, ms);
            return Native.found(status) ? Optional.of(Times.ofMillis(ms.get(JAVA_LONG, 0))) : Optional.empty();
        }
    }

    /**
     * Sets how long after a put its record expires, unless the put requests something else. Present records keep their times. Durable when it
     * returns.
     *
     * @param timeToLive how long; {@link #FOREVER} if they do not expire
     * @throws KamlException {@link Status#IN_USE} while a store is open over the device; {@link Status#BAD_ARGUMENT} if the namespace keeps
     *     versions
     */
    public void setTimeToLive(Duration timeToLive) {
        Native.check(Native.status(Native.SET_TIME_TO_LIVE, device.handle.id, id, Times.ofNamespace(timeToLive)));
    }

    /**
     * Adds a number to a counter without reading it; durable when it returns. Many threads can change one counter at a time. A key that does
     * not exist counts as 0. {@link Keys#counter(byte[])} is the number of a value.
     *
     * @param key its key
     * @param number what to add; may be negative
     * @return the counter afterwards
     * @throws KamlException {@link Status#BAD_ARGUMENT} if the value is no counter, or the sum does not fit 64 bits; as {@link #put}
     */
    public long add(byte[] key, long number) {
        return Native.add(Native.ADD, device.handle.id, id, key, number);
    }

    /**
     * Stores a value, provided that the key has the expected one; durable when it returns.
     *
     * @param key its key
     * @param expected the value before; null: provided that the key does not exist
     * @param value the new value; null deletes the key
     * @return false if the key has another value, or does not exist; nothing is stored then
     * @throws KamlException as {@link #put}; {@link Status#BAD_ARGUMENT} if the namespace keeps versions
     */
    public boolean compareAndSet(byte[] key, byte[] expected, byte[] value) {
        return Native.compareAndSet(Native.COMPARE_AND_SET, device.handle.id, id, key, expected, value);
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
        return Native.end(Native.FIRST, device.handle.id, id);
    }

    /**
     * The record with the greatest key of an ordered namespace.
     *
     * @return the record; nothing if the namespace is empty
     * @throws KamlException as {@link #range}
     */
    public Optional<Entry> last() {
        return Native.end(Native.LAST, device.handle.id, id);
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
     * About how many keys a range of an ordered namespace has, in the time of two look-ups.
     *
     * @param range which
     * @return about how many there are
     * @throws KamlException as {@link #range}
     */
    public long estimate(KeyRange range) {
        return Native.number(Native.ESTIMATE, device.handle.id, id, range);
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
        Native.keys(Native.LIST_KEYS, device.handle.id, id, visit);
    }

    /**
     * The logs that it appends to.
     *
     * @return their numbers; none: all logs of the device
     * @throws KamlException {@link Status#UNKNOWN_NAMESPACE} if it was deleted
     */
    public int[] logs() {
        for (long room = 64;;) {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment logs = arena.allocate(JAVA_INT, room);
                MemorySegment count = arena.allocate(JAVA_LONG);
                Native.check(Native.status(Native.LOGS, device.handle.id, id, logs, room, count));
                long found = count.get(JAVA_LONG, 0);
                if (found <= room) {
                    return logs.asSlice(0, found * Integer.BYTES).toArray(JAVA_INT);
                }
                room = found;
            }
        }
    }

    /**
     * Has it append to these logs from now on, while it is in use; durable when it returns. A device has one log for each die
     * ({@link DeviceInfo#dieCount}), numbered from 0. Records that are stored already remain in their logs until they are overwritten or collected.
     *
     * @param logs the numbers of the logs; none: all
     * @throws KamlException {@link Status#BAD_ARGUMENT} for a log that the device does not have, or that is named twice
     */
    public void setLogs(int... logs) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment numbers = logs.length == 0 ? MemorySegment.NULL : arena.allocateFrom(JAVA_INT, logs);
            Native.check(Native.status(Native.SET_LOGS, device.handle.id, id, numbers, (long) logs.length));
        }
    }

    /**
     * The past of a versioned namespace.
     *
     * @return its versions and snapshots
     */
    public Versions versions() {
        return new Versions(this);
    }

    @Override
    public String toString() {
        return "namespace " + id;
    }
}
