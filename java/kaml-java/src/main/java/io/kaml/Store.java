package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.List;
import java.util.function.Function;

/**
 * A cache of records over a device, with serializable transactions. While it is open, records of the device change only through it.
 *
 * <pre>{@code
 * try (Store store = new Store(device, 64 << 20, StoreOptions.DEFAULT)) {
 *     long balance = store.run(transaction -> {
 *         long found = Keys.u64(transaction.readForUpdate(accounts, ada));
 *         transaction.update(accounts, ada, Keys.u64(found + 10));
 *         return found + 10;
 *     });
 * }
 * }</pre>
 */
public final class Store implements AutoCloseable {
    final Handle handle;
    private final Device device;

    /**
     * Opens a store over a device. Close it before the device.
     *
     * @param device the device
     * @param cacheBytes bytes of its cache
     * @param options how it caches and locks
     * @throws KamlException {@link Status#CACHE_TOO_SMALL}, {@link Status#IN_USE} if one is open
     */
    public Store(Device device, long cacheBytes, StoreOptions options) {
        this.device = device;
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment store = arena.allocate(JAVA_LONG);
            Native.check(Native.status(Native.STORE_OPEN, device.handle.id, cacheBytes, options.encode(arena), store));
            handle = new Handle(this, store.get(JAVA_LONG, 0), Native.STORE_CLOSE, Native.STORE_ABANDON);
        }
    }

    /**
     * The device below.
     *
     * @return the device
     */
    public Device device() {
        return device;
    }

    /**
     * Reads a value through the cache.
     *
     * @param namespace where
     * @param key its key
     * @return the value; null if there is none
     * @throws KamlException as {@link Namespace#get}
     */
    public byte[] get(Namespace namespace, byte[] key) {
        return Native.get(Native.STORE_GET, handle.id, namespace.id(), key);
    }

    /**
     * Whether a key exists.
     *
     * @param namespace where
     * @param key the key
     * @return whether it exists
     * @throws KamlException as {@link #get}
     */
    public boolean exists(Namespace namespace, byte[] key) {
        return Native.found(Native.withKey(Native.STORE_EXISTS, handle.id, namespace.id(), key));
    }

    /**
     * Stores a record; durable as {@link StoreOptions#writeBack} specifies.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @throws KamlException as {@link Namespace#put}
     */
    public void put(Namespace namespace, byte[] key, byte[] value) {
        Native.check(Native.withValue(Native.STORE_PUT, handle.id, namespace.id(), key, value));
    }

    /**
     * Stores a record that expires; durable when it returns. The cache keeps no value that can expire.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @param timeToLive how long after now it expires; {@link Namespace#FOREVER} if it does not
     * @throws KamlException as {@link Namespace#put(byte[], byte[], Duration)}
     */
    public void put(Namespace namespace, byte[] key, byte[] value, Duration timeToLive) {
        long ms = Times.timeToLive(timeToLive);
        Native.check(Native.withValueExpiring(Native.STORE_PUT_EXPIRING, handle.id, namespace.id(), key, value, ms));
    }

    /**
     * Adds a number to a counter, in a transaction of its own.
     *
     * @param namespace where
     * @param key its key
     * @param number what to add
     * @return the counter afterwards
     * @throws KamlException as {@link Namespace#add}
     */
    public long add(Namespace namespace, byte[] key, long number) {
        return Native.add(Native.STORE_ADD, handle.id, namespace.id(), key, number);
    }

    /**
     * Stores a value, provided that the key has the expected one, in a transaction of its own.
     *
     * @param namespace where
     * @param key its key
     * @param expected the value before; null: provided that the key does not exist
     * @param value the new value; null deletes the key
     * @return false if the key has another value, or does not exist; nothing is stored then
     * @throws KamlException as {@link Namespace#compareAndSet}
     */
    public boolean compareAndSet(Namespace namespace, byte[] key, byte[] expected, byte[] value) {
        return Native.compareAndSet(Native.STORE_COMPARE_AND_SET, handle.id, namespace.id(), key, expected, value);
    }

    /**
     * Reads the values of up to 4096 keys through the cache, and caches what it reads from the medium. The values are not of one moment.
     *
     * @param namespace where
     * @param keys the keys
     * @return the values in the order of the keys; null where there is none
     * @throws KamlException as {@link Namespace#getMany}
     */
    public List<byte[]> getMany(Namespace namespace, List<byte[]> keys) {
        return Native.getMany(Native.STORE_GET_MANY, handle.id, namespace.id(), keys);
    }

    /**
     * Acknowledges that commits with a durability delay were lost ({@link Status#COMMITS_LOST}): records are as they were before these commits,
     * and new ones are accepted again.
     *
     * @return how many commits were lost; 0 if there are none
     */
    public long acknowledgeLost() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment count = arena.allocate(JAVA_LONG);
            Native.check(Native.status(Native.STORE_ACKNOWLEDGE_LOST, handle.id, count));
            return count.get(JAVA_LONG, 0);
        }
    }

    /**
     * Deletes a record, whether it exists or not; durable as {@link StoreOptions#writeBack} specifies.
     *
     * @param namespace where
     * @param key its key
     * @throws KamlException as {@link Namespace#put}
     */
    public void delete(Namespace namespace, byte[] key) {
        Native.check(Native.withKey(Native.STORE_DELETE, handle.id, namespace.id(), key));
    }

    /**
     * Reads records of a range of an ordered namespace through the cache, as of one moment.
     *
     * @param namespace where
     * @param range which
     * @param limit how many at most; all of them are in memory at once
     * @return the records in their order
     * @throws KamlException as {@link Namespace#range}
     */
    public List<Entry> range(Namespace namespace, KeyRange range, long limit) {
        return Native.limited(Native.STORE_RANGE, handle.id, namespace.id(), range, limit);
    }

    /**
     * Makes everything durable that was put or committed before.
     *
     * @throws KamlException {@link Status#STOPPED} and others if that fails
     */
    public void flush() {
        Native.check(Native.status(Native.STORE_FLUSH, handle.id));
    }

    /**
     * Begins a transaction that only reads: it takes no locks, waits for nobody, and is never aborted.
     *
     * @return a snapshot of what is durable
     * @throws KamlException {@link Status#TOO_MANY}
     */
    public Snapshot readOnly() {
        return Snapshot.opened(Native.STORE_READ_ONLY, handle.id);
    }

    /**
     * Begins a transaction. {@link #run} does this, and runs it again where that helps.
     *
     * @return the transaction; close it
     * @throws KamlException {@link Status#TOO_MANY}
     */
    public Transaction begin() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment txn = arena.allocate(JAVA_LONG);
            Native.check(Native.status(Native.TXN_BEGIN, handle.id, txn));
            return new Transaction(this, txn.get(JAVA_LONG, 0));
        }
    }

    /**
     * Runs a transaction and commits it. After a deadlock, a lost dependency, or up to three lock time-outs, it runs again from its
     * beginning. What the body throws aborts it.
     *
     * @param <T> what the body returns
     * @param body reads and changes records; it may run several times
     * @return what the body returned
     * @throws KamlException what the last attempt failed with
     */
    public <T> T run(Function<Transaction, T> body) {
        int timeouts = 0;
        while (true) {
            try (Transaction transaction = begin()) {
                T result = body.apply(transaction);
                transaction.commit();
                return result;
            } catch (KamlException failure) {
                timeouts += failure.status() == Status.LOCK_TIMEOUT ? 1 : 0;
                if (!failure.isRetryable() || timeouts > 3) {
                    throw failure;
                }
            }
        }
    }

    /**
     * Flushes the store and closes it. Closing it again does nothing.
     *
     * @throws KamlException {@link Status#IN_USE} while transactions are open
     */
    @Override
    public void close() {
        handle.close();
    }
}
