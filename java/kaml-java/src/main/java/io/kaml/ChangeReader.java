package io.kaml;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * The commits of a device in their order, each exactly one time. It shows only what is durable. No commit waits for a slow reader: the
 * device keeps as many changes as its commit ring has bytes, and a reader that is slower than that gets {@link Status#SNAPSHOT_TOO_OLD}.
 *
 * <p>It is used by one thread at a time. Close it in the thread that reads.
 */
public final class ChangeReader implements AutoCloseable {
    /** The longest call of the library, so an interruption is noticed. */
    private static final long WAIT_MS = 100;
    /** Bytes of {@code kaml_change}. */
    private static final long CHANGE_BYTES = 80;

    private final Handle handle;
    /** Keeps the device open as long as this is referred to. */
    private final Device device;

    ChangeReader(Device device, Position since) {
        this.device = device;
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment reader = arena.allocate(JAVA_LONG);
            MemorySegment place = since == null ? MemorySegment.NULL : since.encode(arena);
            Native.check(Native.status(Native.CHANGES_OPEN, device.handle.id, place, reader));
            handle = new Handle(this, reader.get(JAVA_LONG, 0), Native.CHANGES_CLOSE, Native.CHANGES_ABANDON);
        }
    }

    /**
     * The device that it reads.
     *
     * @return the device
     */
    public Device device() {
        return device;
    }

    /**
     * Waits for the next commit. The first one describes the namespaces.
     *
     * @param timeout how long at most
     * @return the commit; nothing if nothing was committed
     * @throws InterruptedException if the thread is interrupted; nothing of the stream is lost
     * @throws KamlException {@link Status#SNAPSHOT_TOO_OLD} if the next changes are not on the device any more; {@link Status#BAD_HANDLE}
     *     after it or the device was closed
     */
    public Optional<Commit> next(Duration timeout) throws InterruptedException {
        long remaining = Math.max(0, Times.nanos(timeout));
        long begin = System.nanoTime();
        while (true) {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            long left = remaining - (System.nanoTime() - begin);
            Optional<Commit> commit = next(Math.max(0, Math.min(WAIT_MS, (left + 999_999) / 1_000_000)));
            if (commit.isPresent() || left <= 0) {
                return commit;
            }
        }
    }

    private Optional<Commit> next(long ms) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment changes = arena.allocate(ADDRESS);
            MemorySegment count = arena.allocate(JAVA_LONG);
            MemorySegment position = arena.allocate(Position.BYTES);
            Native.check(Native.status(Native.CHANGES_NEXT, handle.id, (int) ms, changes, count, position));
            MemorySegment first = changes.get(ADDRESS, 0);
            if (first.equals(MemorySegment.NULL)) {
                return Optional.empty();
            }
            try {
                return Optional.of(new Commit(all(first, count.get(JAVA_LONG, 0)), Position.of(position)));
            } finally {
                Native.free(first);
            }
        }
    }

    private static List<Change> all(MemorySegment first, long count) {
        MemorySegment array = first.reinterpret(count * CHANGE_BYTES);
        List<Change> changes = new ArrayList<>((int) count);
        for (long i = 0; i < count; i++) {
            MemorySegment change = array.asSlice(i * CHANGE_BYTES, CHANGE_BYTES);
            int flags = change.get(JAVA_INT, 68);
            ChangeKind kind = ChangeKind.of(change.get(JAVA_INT, 0));
            VersionCommand command = kind == ChangeKind.VERSION_COMMAND ? VersionCommand.of(change.get(JAVA_INT, 72)) : null;
            changes.add(new Change(kind, change.get(JAVA_INT, 4), Native.bytes(change, 8),
                    Native.bytes(change, 24), Times.ofMillis(change.get(JAVA_LONG, 40)), change.get(JAVA_LONG, 48),
                    Times.ofNanos(change.get(JAVA_LONG, 56)), change.get(JAVA_INT, 64), (flags & KeyRange.FROM_EXCLUDED) != 0,
                    (flags & KeyRange.TO_INCLUDED) != 0, command, change.get(JAVA_INT, 76)));
        }
        return List.copyOf(changes);
    }

    /** Closes it. Closing it again does nothing. */
    @Override
    public void close() {
        handle.close();
    }
}
