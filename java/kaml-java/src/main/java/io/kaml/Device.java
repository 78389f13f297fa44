package io.kaml;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * A device: a file or a block device with records in namespaces. Many threads may use it at once. One process has it open at a time.
 */
public final class Device implements AutoCloseable {
    final Handle handle;

    private Device(long id) {
        handle = new Handle(this, id, Native.CLOSE, Native.ABANDON);
    }

    /** A call that stores a device behind its last argument. */
    private interface Opening {
        int call(Arena arena, MemorySegment device);
    }

    private static Device opened(Opening opening) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment device = arena.allocate(JAVA_LONG);
            Native.check(opening.call(arena, device));
            return new Device(device.get(JAVA_LONG, 0));
        }
    }

    /**
     * Opens a device. After a crash this recovers everything that was acknowledged.
     *
     * @param path a file or block device
     * @return the device
     * @throws KamlException {@link Status#NO_FILE}, {@link Status#NOT_A_DEVICE}, {@link Status#LOCKED} and others
     */
    public static Device open(Path path) {
        return opened((arena, device) ->
                Native.status(Native.OPEN, arena.allocateFrom(path.toString()), MemorySegment.NULL, device));
    }

    /**
     * Opens a device to be read only, beside other readers.
     *
     * @param path a file or block device
     * @return the device
     * @throws KamlException as {@link #open(Path)}
     */
    public static Device openReadOnly(Path path) {
        return open(path, OpenOptions.DEFAULT.reading());
    }

    /**
     * Opens a device with options.
     *
     * @param path a file or block device
     * @param options how
     * @return the device
     * @throws KamlException as {@link #open(Path)}
     */
    public static Device open(Path path, OpenOptions options) {
        return opened((arena, device) ->
                Native.status(Native.OPEN, arena.allocateFrom(path.toString()), options.encode(arena), device));
    }

    /**
     * Opens a device, or creates it first if its file does not exist or is empty. A new file takes up to 353 MiB, and then grows by
     * itself.
     *
     * @param path a file or block device
     * @return the device
     * @throws KamlException as {@link #open(Path)} and {@link #create}
     */
    public static Device openOrCreate(Path path) {
        return openOrCreate(path, 0);
    }

    /**
     * Opens a device, or creates it first if its file does not exist or is empty. A device that exists keeps its capacity.
     *
     * @param path a file or block device
     * @param capacityBytes bytes of a new device; 0 for the whole of a block device, or for a file that grows by itself
     * @return the device
     * @throws KamlException as {@link #open(Path)} and {@link #create}
     */
    public static Device openOrCreate(Path path, long capacityBytes) {
        return opened((arena, device) -> Native.status(
                Native.OPEN_OR_CREATE, arena.allocateFrom(path.toString()), capacityBytes, MemorySegment.NULL, device));
    }

    /**
     * Creates a device on a new file or on a block device, and opens it.
     *
     * @param path the file
     * @param capacityBytes its bytes; 0 for the whole of a block device, or for a file that grows by itself
     * @param options how
     * @return the device
     * @throws KamlException {@link Status#NOT_EMPTY} if something exists there, {@link Status#NO_SPACE} and others
     */
    public static Device create(Path path, long capacityBytes, CreateOptions options) {
        return opened((arena, device) -> Native.status(
                Native.CREATE, arena.allocateFrom(path.toString()), capacityBytes, options.encode(arena), device));
    }

    /**
     * Creates a device in memory, for tests. Closing it drops it.
     *
     * @param capacityBytes its bytes
     * @return the device
     * @throws KamlException {@link Status#BAD_ARGUMENT} for a capacity that is too small
     */
    public static Device inMemory(long capacityBytes) {
        return opened((arena, device) ->
                Native.status(Native.CREATE_IN_MEMORY, capacityBytes, MemorySegment.NULL, device));
    }

    /**
     * The version of libkaml that is loaded.
     *
     * @return such as "1.2.3"
     */
    public static String libraryVersion() {
        return Native.version();
    }

    /**
     * Creates a namespace; durable when it returns.
     *
     * @param name 1 to 255 bytes of UTF-8
     * @param options what it is
     * @return the namespace
     * @throws KamlException {@link Status#NAMESPACE_EXISTS}, {@link Status#BAD_NAME}, {@link Status#TOO_MANY}
     */
    public Namespace createNamespace(String name, NamespaceOptions options) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment id = arena.allocate(JAVA_INT);
            Native.check(Native.status(
                    Native.CREATE_NAMESPACE, handle.id, arena.allocateFrom(name), options.encode(arena), id));
            return new Namespace(this, id.get(JAVA_INT, 0));
        }
    }

    /**
     * Finds a namespace by its name.
     *
     * @param name its name
     * @return the namespace
     * @throws KamlException {@link Status#UNKNOWN_NAMESPACE}
     */
    public Namespace namespace(String name) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment id = arena.allocate(JAVA_INT);
            Native.check(Native.status(Native.NAMESPACE, handle.id, arena.allocateFrom(name), id));
            return new Namespace(this, id.get(JAVA_INT, 0));
        }
    }

    /**
     * Finds a namespace by its name, or creates it.
     *
     * @param name its name
     * @param options what it is
     * @return the namespace
     * @throws KamlException as {@link #createNamespace}; {@link Status#BAD_ARGUMENT} if one of that name has other keys
     */
    public Namespace ensureNamespace(String name, NamespaceOptions options) {
        while (true) {
            for (NamespaceInfo info : namespaces()) {
                if (info.name().equals(name)) {
                    if (info.blocks() || info.keys() != options.keys() || info.versioned() != options.versioned()) {
                        throw new KamlException(Status.BAD_ARGUMENT,
                                "namespace " + name + " exists and is of another kind: " + info, false);
                    }
                    return new Namespace(this, info.id());
                }
            }
            try {
                return createNamespace(name, options);
            } catch (KamlException failure) {
                if (failure.status() != Status.NAMESPACE_EXISTS) {
                    throw failure;
                }
                // Another thread was quicker.
            }
        }
    }

    /**
     * Lists the namespaces in the order of their numbers.
     *
     * @return all of them
     * @throws KamlException {@link Status#BAD_HANDLE} after the device was closed
     */
    public List<NamespaceInfo> namespaces() {
        for (long room = 64;; room *= 4) {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment infos = arena.allocate(room * Native.NAMESPACE_INFO_BYTES, 8);
                MemorySegment count = arena.allocate(JAVA_LONG);
                Native.check(Native.status(Native.NAMESPACES, handle.id, infos, room, count));
                long found = count.get(JAVA_LONG, 0);
                if (found > room) {
                    continue;
                }
                List<NamespaceInfo> list = new ArrayList<>((int) found);
                for (long i = 0; i < found; i++) {
                    MemorySegment info = infos.asSlice(i * Native.NAMESPACE_INFO_BYTES, Native.NAMESPACE_INFO_BYTES);
                    list.add(new NamespaceInfo(info.get(JAVA_INT, 8), info.getString(24),
                            KeyKind.values()[info.get(JAVA_INT, 12)], info.get(JAVA_LONG, 0),
                            info.get(JAVA_INT, 16) != 0, info.get(JAVA_INT, 20) != 0));
                }
                return list;
            }
        }
    }

    /**
     * Deletes a namespace with everything in it; durable when it returns.
     *
     * @param namespace the namespace
     * @throws KamlException {@link Status#UNKNOWN_NAMESPACE}
     */
    public void deleteNamespace(Namespace namespace) {
        Native.check(Native.status(Native.DELETE_NAMESPACE, handle.id, namespace.id()));
    }

    /**
     * Stores and deletes all records of a batch, or none; durable when it returns.
     *
     * @param batch the records, in any namespaces of this device
     * @throws KamlException {@link Status#EXISTS}, {@link Status#NOT_FOUND} or {@link Status#VALUE_DIFFERS} for a condition that does not hold,
     *     {@link Status#FULL}, {@link Status#BATCH_TOO_LARGE} and others; {@link Status#BAD_ARGUMENT} for counters, expiry or expected values in
     *     a namespace that keeps versions
     */
    public void write(Batch batch) {
        batch.write(handle.id);
    }

    /**
     * As {@link #write}, and returns the counters.
     *
     * @param batch the records, in any namespaces of this device
     * @return for each operation on a counter, in its place in the batch, the counter after it; 0 for others
     * @throws KamlException as {@link #write}
     */
    public long[] apply(Batch batch) {
        return batch.write(handle.id);
    }

    /**
     * Opens a snapshot of all namespaces of records: what is durable now, to be read whatever is put or deleted meanwhile.
     *
     * @return the snapshot
     * @throws KamlException {@link Status#TOO_MANY}
     */
    public Snapshot snapshot() {
        return Snapshot.opened(Native.SNAPSHOT_OPEN, handle.id);
    }

    /**
     * What open snapshots keep.
     *
     * @return counts and bytes
     */
    public SnapshotUsage snapshotUsage() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment usage = arena.allocate(48, 8);
            usage.set(JAVA_LONG, 0, 48);
            Native.check(Native.status(Native.SNAPSHOT_USAGE, handle.id, usage));
            return new SnapshotUsage(usage.getAtIndex(JAVA_LONG, 1), usage.getAtIndex(JAVA_LONG, 2),
                    usage.getAtIndex(JAVA_LONG, 3), usage.getAtIndex(JAVA_LONG, 4), usage.getAtIndex(JAVA_LONG, 5));
        }
    }

    /**
     * Sets the memory that open snapshots take for what is overwritten and deleted meanwhile; 512 MiB by default, at some 160 bytes a record.
     * With less than they take, the oldest expire at the next change.
     *
     * @param bytes bytes of memory
     * @throws KamlException {@link Status#BAD_HANDLE} after the device was closed
     */
    public void limitSnapshotMemory(long bytes) {
        Native.check(Native.status(Native.LIMIT_SNAPSHOT_MEMORY, handle.id, bytes));
    }

    /**
     * What the device is: its sizes, its identity, and how it was opened. Reads no flash.
     *
     * @return what it is
     */
    public DeviceInfo info() {
        return DeviceInfo.of(handle.id);
    }

    /**
     * Makes the device larger or smaller, while others read and write. A smaller one is emptied from its end on first. A crash leaves the old
     * size or the new one.
     *
     * @param capacityBytes bytes of its file or block device
     * @return bytes that it takes: as many whole erase blocks of each log as fit
     * @throws KamlException {@link Status#BAD_ARGUMENT} if the device cannot have this size; {@link Status#FULL} if what is in it does not fit;
     *     {@link Status#NO_SPACE} if the file system has no room
     */
    public long resize(long capacityBytes) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment taken = arena.allocate(JAVA_LONG);
            Native.check(Native.status(Native.RESIZE, handle.id, capacityBytes, taken));
            return taken.get(JAVA_LONG, 0);
        }
    }

    /**
     * Writes all that is on the device now to a file, while others read and write. The file gets its name when it is whole and durable, and
     * replaces what had that name. A store over the device is flushed first.
     *
     * @param path the file
     * @return what is in it
     * @throws KamlException {@link Status#SNAPSHOT_TOO_OLD} if what is overwritten meanwhile needs too much room; {@link Status#IN_USE} if a
     *     namespace is deleted meanwhile; {@link Status#IO} if the file cannot be written
     */
    public BackupReport backup(Path path) {
        return backup(path, null);
    }

    /**
     * Writes what has changed since an earlier backup to a file. Otherwise as {@link #backup(Path)}.
     *
     * @param path the file
     * @param since the earlier backup of this device; null for a full one
     * @return what is in it
     * @throws KamlException as {@link #backup(Path)}; {@link Status#BAD_ARGUMENT} if {@code since} is a backup of another device;
     *     {@link Status#NOT_A_DEVICE} or {@link Status#CORRUPT} if it is no backup or a damaged one
     */
    public BackupReport backup(Path path, Path since) {
        return backup(path, since, (bytesDone, byteCount) -> true);
    }

    /**
     * As {@link #backup(Path, Path)}, with progress. What the progress throws ends the backup, and is thrown. There is no new file then.
     *
     * @param path the file
     * @param since the earlier backup of this device; null for a full one
     * @param progress gets the progress, and ends the backup
     * @return what is in it
     * @throws KamlException {@link Status#CANCELLED} if the progress ended the backup; as {@link #backup(Path, Path)}
     */
    public BackupReport backup(Path path, Path since, BackupProgress progress) {
        BackupProgress.Hearing hearing = new BackupProgress.Hearing(progress);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment report = BackupReport.room(arena);
            MemorySegment base = since == null ? MemorySegment.NULL : arena.allocateFrom(since.toString());
            hearing.check(Native.status(Native.BACKUP, handle.id, arena.allocateFrom(path.toString()), base, hearing.callback(arena),
                    MemorySegment.NULL, report));
            return BackupReport.of(report);
        }
    }

    /**
     * Reads a backup and checks all of it.
     *
     * @param path the file
     * @return what is in it
     * @throws KamlException {@link Status#NOT_A_DEVICE} if it is no backup, {@link Status#NEWER_VERSION}, {@link Status#CORRUPT} if it is damaged
     *     or ends early
     */
    public static BackupReport verifyBackup(Path path) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment report = BackupReport.room(arena);
            Native.check(Native.status(Native.BACKUP_VERIFY, arena.allocateFrom(path.toString()), report));
            return BackupReport.of(report);
        }
    }

    /**
     * Makes a device of a full backup, and of incremental ones in their order. Open it afterwards. A file gets its name when it is whole.
     *
     * @param backups the files
     * @param path the new device
     * @param capacityBytes its bytes; 0: as large as the one that was backed up
     * @param options how it is created; over contents this needs {@link CreateOptions#withForce}
     * @throws KamlException as {@link #verifyBackup} for each backup, and as {@link #create}; {@link Status#BAD_ARGUMENT} if one does not
     *     continue the one before it, or the device is too small
     */
    public static void restore(List<Path> backups, Path path, long capacityBytes, CreateOptions options) {
        restore(backups, path, capacityBytes, options, (bytesDone, byteCount) -> true);
    }

    /**
     * As {@link #restore(List, Path, long, CreateOptions)}, with progress. What the progress throws ends the restore, and is thrown. A file
     * that did not exist is removed then; other contents cannot be opened until a restore over them ends.
     *
     * @param backups the files
     * @param path the new device
     * @param capacityBytes its bytes; 0: as large as the one that was backed up
     * @param options how it is created
     * @param progress gets the progress, and ends the restore
     * @throws KamlException {@link Status#CANCELLED} if the progress ended the restore; as {@link #restore(List, Path, long, CreateOptions)}
     */
    public static void restore(List<Path> backups, Path path, long capacityBytes, CreateOptions options, BackupProgress progress) {
        BackupProgress.Hearing hearing = new BackupProgress.Hearing(progress);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment paths = arena.allocate(ADDRESS, Math.max(1, backups.size()));
            for (int i = 0; i < backups.size(); i++) {
                paths.setAtIndex(ADDRESS, i, arena.allocateFrom(backups.get(i).toString()));
            }
            hearing.check(Native.status(Native.RESTORE, paths, (long) backups.size(), arena.allocateFrom(path.toString()), capacityBytes,
                    options.encode(arena), hearing.callback(arena), MemorySegment.NULL));
        }
    }

    /**
     * The position after everything that is durable now.
     *
     * @return the position; {@link #changes(Position)} since it reads what is committed later
     */
    public Position position() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment position = arena.allocate(Position.BYTES);
            Native.check(Native.status(Native.POSITION_NOW, handle.id, position));
            return Position.of(position);
        }
    }

    /**
     * Reads what is committed from now on.
     *
     * @return the commits; close it
     * @throws KamlException {@link Status#TOO_MANY}
     */
    public ChangeReader changes() {
        return new ChangeReader(this, null);
    }

    /**
     * Reads what was committed after a position, and is committed from now on.
     *
     * @param since the position
     * @return the commits; close it
     * @throws KamlException {@link Status#BAD_ARGUMENT} if the position is of another device; {@link Status#SNAPSHOT_TOO_OLD} if the changes
     *     after it are not on the device any more
     */
    public ChangeReader changes(Position since) {
        return new ChangeReader(this, since);
    }

    /**
     * The state of the device, and counts since it was opened. Reads no flash, but visits every block: call it once a second, not for each
     * put.
     *
     * @return counts and bytes
     */
    public Statistics statistics() {
        return Statistics.of(handle.id);
    }

    /**
     * Reads everything that is durable and checks it against checksums, indexes and accounts. Other threads can continue meanwhile.
     *
     * @param problem gets each problem as a sentence
     * @return what was found; a device in order has no problems
     * @throws KamlException {@link Status#STOPPED} if the device accepts no more changes: open it again first
     */
    public CheckReport check(Consumer<String> problem) {
        return CheckReport.of(handle.id, problem);
    }

    /**
     * The longest value.
     *
     * @return bytes
     */
    public long valueBytesMax() {
        return limit(0);
    }

    /**
     * The largest sum of values in one batch, in which a large value counts 48 bytes.
     *
     * @return bytes
     */
    public long batchBytesMax() {
        return limit(1);
    }

    private long limit(int which) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment limits = arena.allocate(JAVA_LONG, 2);
            Native.check(Native.status(Native.LIMITS, handle.id, limits, limits.asSlice(8)));
            return limits.getAtIndex(JAVA_LONG, which);
        }
    }

    /**
     * Closes the device, so it opens quickly the next time. Closing it again does nothing.
     *
     * @throws KamlException {@link Status#IN_USE} while a store is open over it: close that first
     */
    @Override
    public void close() {
        handle.close();
    }
}
