package io.kaml;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.ArrayList;
import java.util.List;

/**
 * The past of a versioned namespace, which {@link Namespace#versions} returns. Every put and delete adds a version. All calls throw
 * {@link Status#BAD_ARGUMENT} if the namespace keeps no versions.
 *
 * <pre>{@code
 * Namespace notes = device.ensureNamespace("notes", NamespaceOptions.of(KeyKind.BYTES).withVersions());
 * notes.put(Keys.text("todo"), Keys.text("milk"));
 * int before = notes.versions().snapshot();
 * notes.put(Keys.text("todo"), Keys.text("bread"));
 * notes.versions().getAsOf(before, Keys.text("todo"));    // milk
 * notes.versions().undo(Keys.text("todo"), 1);            // now it is milk again
 * }</pre>
 */
public final class Versions {
    /** Bytes of {@code kaml_version_info}. */
    private static final long VERSION_BYTES = 32;
    /** Bytes of {@code kaml_snapshot_info}. */
    private static final long SNAPSHOT_BYTES = 16;
    private static final FunctionDescriptor CALLBACK = FunctionDescriptor.of(JAVA_INT, ADDRESS, JAVA_INT, JAVA_INT);
    private static final MethodHandle PROGRESS;

    static {
        try {
            PROGRESS = MethodHandles.lookup().findVirtual(
                    Hearing.class, "hear", MethodType.methodType(int.class, MemorySegment.class, int.class, int.class));
        } catch (ReflectiveOperationException absent) {
            throw new AssertionError(absent);
        }
    }

    private final Namespace namespace;

    Versions(Namespace namespace) {
        this.namespace = namespace;
    }

    /** Gets the progress of a merge. */
    @FunctionalInterface
    public interface Progress {
        /**
         * Some rows are done. It is called many times for each row, by the thread that merges.
         *
         * @param rowsDone rows that are done
         * @param rowCount all rows
         * @return whether to continue; a later merge continues with the versions that remain
         */
        boolean accept(int rowsDone, int rowCount);
    }

    /**
     * Reads a value as a snapshot sees it.
     *
     * @param snapshot the number of the snapshot
     * @param key its key
     * @return the value; null if the key did not exist
     * @throws KamlException {@link Status#NO_VERSION} if no snapshot has that number; as {@link Namespace#get}
     */
    public byte[] getAsOf(int snapshot, byte[] key) {
        return read(Native.GET_AS_OF, snapshot, key);
    }

    /**
     * Reads a value as it was some changes of its key ago. Deletes count.
     *
     * @param changes how many changes
     * @param key its key
     * @return the value; null if the key did not exist
     * @throws KamlException {@link Status#NO_VERSION} if fewer versions are kept; as {@link Namespace#get}
     */
    public byte[] getBack(int changes, byte[] key) {
        return read(Native.GET_BACK, changes, key);
    }

    private byte[] read(MethodHandle call, int which, byte[] key) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment value = arena.allocate(ADDRESS);
            MemorySegment length = arena.allocate(JAVA_LONG);
            int status = Native.status(call, device(), id(), which, Native.key(arena, key), (long) key.length, value, length);
            return Native.found(status) ? Native.take(value.get(ADDRESS, 0), length.get(JAVA_LONG, 0)) : null;
        }
    }

    /**
     * The versions of a key, the newest first: all that are kept, those that a rollback hid included.
     *
     * @param key the key
     * @return its versions; none if it was never put
     * @throws KamlException as {@link Namespace#get}
     */
    public List<Version> history(byte[] key) {
        return history(key, Integer.MAX_VALUE);
    }

    /**
     * The newest versions of a key, the newest first.
     *
     * @param key the key
     * @param limit how many at most
     * @return its versions
     * @throws KamlException as {@link Namespace#get}
     */
    public List<Version> history(byte[] key, int limit) {
        List<Version> versions = new ArrayList<>();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment cursor = arena.allocate(Native.CURSOR_BYTES, 8);
            MemorySegment infos = arena.allocate(Native.BATCH * VERSION_BYTES, 8);
            MemorySegment count = arena.allocate(JAVA_LONG);
            MemorySegment bytes = Native.key(arena, key);
            while (versions.size() < limit) {
                long room = Math.min(Native.BATCH, limit - versions.size());
                Native.check(Native.status(Native.HISTORY, device(), id(), bytes, (long) key.length, cursor, infos, room, count));
                long found = count.get(JAVA_LONG, 0);
                if (found == 0) {
                    break;
                }
                for (long i = 0; i < found; i++) {
                    versions.add(version(infos.asSlice(i * VERSION_BYTES, VERSION_BYTES)));
                }
            }
        }
        return versions;
    }

    private static Version version(MemorySegment info) {
        return new Version(info.get(JAVA_LONG, 0), Times.ofNanos(info.get(JAVA_LONG, 8)), info.get(JAVA_INT, 16), info.get(JAVA_INT, 20),
                info.get(JAVA_INT, 24) != 0, info.get(JAVA_INT, 28) != 0);
    }

    /**
     * Takes a snapshot of the namespace, which costs next to nothing; durable when it returns. A store over the device is flushed first.
     *
     * @return its number
     * @throws KamlException {@link Status#TOO_MANY} and others
     */
    public int snapshot() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment number = arena.allocate(JAVA_INT);
            Native.check(Native.status(Native.SNAPSHOT, device(), id(), number));
            return number.get(JAVA_INT, 0);
        }
    }

    /**
     * Lists the snapshots of the namespace, the oldest first.
     *
     * @return all of them
     * @throws KamlException as {@link #snapshot}
     */
    public List<VersionSnapshot> snapshots() {
        for (long room = 64;; room *= 4) {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment infos = arena.allocate(room * SNAPSHOT_BYTES, 8);
                MemorySegment count = arena.allocate(JAVA_LONG);
                Native.check(Native.status(Native.SNAPSHOTS, device(), id(), infos, room, count));
                long found = count.get(JAVA_LONG, 0);
                if (found > room) {
                    continue;
                }
                List<VersionSnapshot> list = new ArrayList<>((int) found);
                for (long at = 0; at < found * SNAPSHOT_BYTES; at += SNAPSHOT_BYTES) {
                    list.add(new VersionSnapshot(infos.get(JAVA_INT, at + 8), Times.ofNanos(infos.get(JAVA_LONG, at))));
                }
                return list;
            }
        }
    }

    /**
     * Forgets a snapshot: the next merge drops what only it sees. Durable when it returns.
     *
     * @param snapshot its number
     * @throws KamlException {@link Status#NO_VERSION} if there is none of that number
     */
    public void forget(int snapshot) {
        Native.check(Native.status(Native.FORGET_SNAPSHOT, device(), id(), snapshot));
    }

    /**
     * Returns the namespace to its state in a snapshot; durable when it returns.
     *
     * @param snapshot the number of the snapshot
     * @return the number of a new snapshot of the state before; rolling back to that one undoes this
     * @throws KamlException {@link Status#NO_VERSION} if there is none of that number; {@link Status#IN_USE} while a store is open over the
     *     device
     */
    public int rollBack(int snapshot) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment before = arena.allocate(JAVA_INT);
            Native.check(Native.status(Native.ROLL_BACK, device(), id(), snapshot, before));
            return before.get(JAVA_INT, 0);
        }
    }

    /**
     * Undoes the last changes of a key: what it was before them is its newest version, or it is deleted if it did not exist. Durable when it
     * returns.
     *
     * @param key the key
     * @param changes how many changes, at least 1
     * @throws KamlException {@link Status#NO_VERSION} if fewer versions are kept; {@link Status#IN_USE} while a store is open over the device
     */
    public void undo(byte[] key, int changes) {
        try (Arena arena = Arena.ofConfined()) {
            Native.check(Native.status(Native.UNDO, device(), id(), Native.key(arena, key), (long) key.length, changes));
        }
    }

    /**
     * Drops the versions that the rules do not keep, and frees their space. Other threads can put and get meanwhile.
     *
     * @param rules what is kept
     * @return what was dropped, or would be
     * @throws KamlException {@link Status#BAD_ARGUMENT} and others
     */
    public MergeReport merge(Retention rules) {
        return merge(rules, (rowsDone, rowCount) -> true);
    }

    /**
     * As {@link #merge(Retention)}, with progress. What the progress throws ends the merge, and is thrown.
     *
     * @param rules what is kept
     * @param progress gets the progress, and ends the merge
     * @return what was dropped, or would be; if the progress ended the merge, what was dropped until then
     * @throws KamlException as {@link #merge(Retention)}
     */
    public MergeReport merge(Retention rules, Progress progress) {
        Hearing hearing = new Hearing(progress);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment report = arena.allocate(JAVA_LONG, 6);
            MemorySegment callback = Native.upcall(PROGRESS.bindTo(hearing), CALLBACK, arena);
            int status = Native.status(Native.MERGE, device(), id(), rules.encode(arena), callback, MemorySegment.NULL, report);
            KamlException failure = status == 0 || status == Status.CANCELLED.code() ? null : Native.failure(status);
            hearing.rethrow();
            if (failure != null) {
                throw failure;
            }
            return new MergeReport(report.getAtIndex(JAVA_LONG, 0), report.getAtIndex(JAVA_LONG, 1), report.getAtIndex(JAVA_LONG, 2),
                    report.getAtIndex(JAVA_LONG, 3), report.getAtIndex(JAVA_LONG, 4), report.getAtIndex(JAVA_LONG, 5));
        }
    }

    private long device() {
        return namespace.device().handle.id;
    }

    private int id() {
        return namespace.id();
    }

    /** Hears of a merge. No exception may leave it inside the library. */
    private static final class Hearing {
        private final Progress progress;
        private Throwable thrown;

        Hearing(Progress progress) {
            this.progress = progress;
        }

        int hear(MemorySegment context, int rowsDone, int rowCount) {
            try {
                return progress.accept(rowsDone, rowCount) ? 0 : 1;
            } catch (Throwable failure) {
                thrown = failure;
                return 1;
            }
        }

        void rethrow() {
            if (thrown instanceof Error error) {
                throw error;
            }
            if (thrown instanceof RuntimeException failure) {
                throw failure;
            }
        }
    }
}
