package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.util.Optional;
import java.util.function.Consumer;

/**
 * All namespaces of records as of one moment, in memory. Nobody waits for it. It keeps what is overwritten and deleted meanwhile. When that
 * is in the way, the oldest snapshots expire, and their calls throw {@link Status#SNAPSHOT_TOO_OLD}.
 */
public final class Snapshot implements AutoCloseable {
    private final Handle handle;

    private Snapshot(long id) {
        handle = new Handle(this, id, Native.SNAPSHOT_CLOSE, Native.SNAPSHOT_ABANDON);
    }

    static Snapshot opened(MethodHandle call, long of) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment snapshot = arena.allocate(JAVA_LONG);
            Native.check(Native.status(call, of, snapshot));
            return new Snapshot(snapshot.get(JAVA_LONG, 0));
        }
    }

    /**
     * Reads a value as it was.
     *
     * @param namespace where
     * @param key its key
     * @return the value; null if there was none
     * @throws KamlException {@link Status#SNAPSHOT_TOO_OLD}, {@link Status#UNKNOWN_NAMESPACE} and others
     */
    public byte[] get(Namespace namespace, byte[] key) {
        return Native.get(Native.SNAPSHOT_GET, handle.id, namespace.id(), key);
    }

    /**
     * Whether a key existed. Reads no flash.
     *
     * @param namespace where
     * @param key the key
     * @return whether it existed
     * @throws KamlException as {@link #get}
     */
    public boolean exists(Namespace namespace, byte[] key) {
        return Native.found(Native.withKey(Native.SNAPSHOT_EXISTS, handle.id, namespace.id(), key));
    }

    /**
     * Reads the records of a range of an ordered namespace as they were.
     *
     * @param namespace where
     * @param range which
     * @return the records in their order; it can be read after the snapshot was closed
     * @throws KamlException as {@link #get}; {@link Status#BAD_ARGUMENT} if the namespace is not ordered
     */
    public RecordIterator range(Namespace namespace, KeyRange range) {
        return Native.range(
                Native.SNAPSHOT_RANGE_OPEN, Native.SNAPSHOT_PREFIX_OPEN, handle.id, namespace.id(), range);
    }

    /**
     * Counts the keys that a range had.
     *
     * @param namespace where
     * @param range which
     * @return how many there were
     * @throws KamlException as {@link #range}
     */
    public long count(Namespace namespace, KeyRange range) {
        return Native.number(Native.SNAPSHOT_COUNT, handle.id, namespace.id(), range);
    }

    /**
     * The record with the least key that an ordered namespace had.
     *
     * @param namespace where
     * @return the record; nothing if the namespace was empty
     * @throws KamlException as {@link #range}
     */
    public Optional<Entry> first(Namespace namespace) {
        return Native.end(Native.SNAPSHOT_FIRST, handle.id, namespace.id());
    }

    /**
     * The record with the greatest key that an ordered namespace had.
     *
     * @param namespace where
     * @return the record; nothing if the namespace was empty
     * @throws KamlException as {@link #range}
     */
    public Optional<Entry> last(Namespace namespace) {
        return Native.end(Native.SNAPSHOT_LAST, handle.id, namespace.id());
    }

    /**
     * Visits the keys that a namespace without an order had, each one time.
     *
     * @param namespace where
     * @param visit gets each key
     * @throws KamlException as {@link #get}; {@link Status#BAD_ARGUMENT} if the namespace is ordered: read a range then
     */
    public void forEachKey(Namespace namespace, Consumer<byte[]> visit) {
        Native.keys(Native.SNAPSHOT_LIST_KEYS, handle.id, namespace.id(), visit);
    }

    /** Closes it, and releases what it kept. Closing it again does nothing. */
    @Override
    public void close() {
        handle.close();
    }
}
