package io.kaml;

import java.time.Duration;
import java.util.List;

/**
 * A serializable transaction, used by one thread at a time. Closing one that is not committed aborts it.
 *
 * <p>If a call aborts it ({@link KamlException#isRetryable}), all later calls throw the same; run it again from its beginning.
 */
public final class Transaction implements AutoCloseable {
    private final Handle handle;
    /** Keeps the store open as long as this is referred to. */
    private final Store store;

    Transaction(Store store, long id) {
        this.store = store;
        // Freeing it takes one step, which aborts it if it is active.
        handle = new Handle(this, id, Native.TXN_ABANDON, Native.TXN_ABANDON);
    }

    /**
     * The store that it belongs to.
     *
     * @return the store
     */
    public Store store() {
        return store;
    }

    /**
     * Reads a record. No other transaction can change it until this one ends.
     *
     * @param namespace where
     * @param key its key
     * @return the value; null if there is none, and then nobody adds it until this transaction ends
     * @throws KamlException {@link Status#DEADLOCK}, {@link Status#LOCK_TIMEOUT} and others
     */
    public byte[] read(Namespace namespace, byte[] key) {
        return Native.get(Native.TXN_READ, handle.id, namespace.id(), key);
    }

    /**
     * As {@link #read}, for a record that will be changed: no other transaction can read it for update meanwhile. This avoids deadlocks.
     *
     * @param namespace where
     * @param key its key
     * @return the value; null if there is none
     * @throws KamlException as {@link #read}
     */
    public byte[] readForUpdate(Namespace namespace, byte[] key) {
        return Native.get(Native.TXN_READ_FOR_UPDATE, handle.id, namespace.id(), key);
    }

    /**
     * Reads records of a range of an ordered namespace, with what this transaction has changed itself. Until it ends nobody adds a record
     * to the range, or changes or deletes one of it.
     *
     * @param namespace where
     * @param range which
     * @param limit how many at most
     * @return the records in their order
     * @throws KamlException as {@link #read} and {@link Namespace#range}
     */
    public List<Entry> range(Namespace namespace, KeyRange range, long limit) {
        return Native.limited(Native.TXN_RANGE, handle.id, namespace.id(), range, limit);
    }

    /**
     * As {@link #range}, of records that will be changed: no other transaction can read them for update meanwhile. With a limit of 1 two
     * transactions never take the same first record.
     *
     * @param namespace where
     * @param range which
     * @param limit how many at most
     * @return the records in their order
     * @throws KamlException as {@link #range}
     */
    public List<Entry> rangeForUpdate(Namespace namespace, KeyRange range, long limit) {
        return Native.limited(Native.TXN_RANGE_FOR_UPDATE, handle.id, namespace.id(), range, limit);
    }

    /**
     * Changes a record that exists.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @return false if there is none; the transaction continues
     * @throws KamlException as {@link #read}
     */
    public boolean update(Namespace namespace, byte[] key, byte[] value) {
        return Native.found(Native.withValue(Native.TXN_UPDATE, handle.id, namespace.id(), key, value));
    }

    /**
     * Stores a record, whether it exists or not.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @throws KamlException as {@link #read}
     */
    public void upsert(Namespace namespace, byte[] key, byte[] value) {
        Native.check(Native.withValue(Native.TXN_UPSERT, handle.id, namespace.id(), key, value));
    }

    /**
     * Stores a record that expires, whether it exists or not. Its time begins with the commit, which waits until the changes are durable.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @param timeToLive how long after the commit it expires; {@link Namespace#FOREVER} if it does not
     * @throws KamlException as {@link #read} and {@link Namespace#put(byte[], byte[], Duration)}
     */
    public void upsert(Namespace namespace, byte[] key, byte[] value, Duration timeToLive) {
        long ms = Times.timeToLive(timeToLive);
        Native.check(Native.withValueExpiring(Native.TXN_UPSERT_EXPIRING, handle.id, namespace.id(), key, value, ms));
    }

    /**
     * Adds a number to a counter, which is read and locked, and keeps the time at which it expires.
     *
     * @param namespace where
     * @param key its key
     * @param number what to add
     * @return the counter afterwards
     * @throws KamlException {@link Status#BAD_ARGUMENT} if the value is no counter, or the sum does not fit 64 bits: the transaction continues;
     *     as {@link #read}
     */
    public long add(Namespace namespace, byte[] key, long number) {
        return Native.add(Native.TXN_ADD, handle.id, namespace.id(), key, number);
    }

    /**
     * Stores a record that does not exist.
     *
     * @param namespace where
     * @param key its key
     * @param value its value
     * @return false if it exists; the transaction continues
     * @throws KamlException as {@link #read}
     */
    public boolean insert(Namespace namespace, byte[] key, byte[] value) {
        int status = Native.withValue(Native.TXN_INSERT, handle.id, namespace.id(), key, value);
        if (status == Status.EXISTS.code()) {
            return false;
        }
        Native.check(status);
        return true;
    }

    /**
     * Deletes a record that exists.
     *
     * @param namespace where
     * @param key its key
     * @return false if there is none; the transaction continues
     * @throws KamlException as {@link #read}
     */
    public boolean delete(Namespace namespace, byte[] key) {
        return Native.found(Native.withKey(Native.TXN_DELETE, handle.id, namespace.id(), key));
    }

    /**
     * Makes all changes durable, together. Close the transaction then.
     *
     * @throws KamlException after an error the transaction is aborted; if the device failed, its changes can nevertheless be stored, all or
     *     none
     */
    public void commit() {
        Native.check(Native.status(Native.TXN_COMMIT, handle.id));
    }

    /**
     * As {@link #commit}, and waits until the changes are durable, whatever {@link StoreOptions#durabilityDelayUs} is.
     *
     * @throws KamlException as {@link #commit}
     */
    public void commitDurable() {
        Native.check(Native.status(Native.TXN_COMMIT_DURABLE, handle.id));
    }

    /** Aborts it unless it is committed, and releases its locks. Closing it again does nothing. */
    @Override
    public void close() {
        handle.close();
    }
}
