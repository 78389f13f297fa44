package io.kaml;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

/**
 * The records of a range in their order, as of one moment, whatever is put or deleted meanwhile. Close it, or read it to its end.
 *
 * <p>It may be used by one thread at a time. If what it shows had to make room, {@code next} throws
 * {@link Status#SNAPSHOT_TOO_OLD}.
 */
public final class RecordIterator implements Iterator<Entry>, AutoCloseable {
    private final Handle handle;
    private List<Entry> batch = List.of();
    private int at;
    private boolean isAtEnd;

    RecordIterator(long id) {
        handle = new Handle(this, id, Native.RANGE_CLOSE, Native.RANGE_ABANDON);
    }

    @Override
    public boolean hasNext() {
        if (at == batch.size() && !isAtEnd) {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment items = arena.allocate(ADDRESS);
                MemorySegment count = arena.allocate(JAVA_LONG);
                Native.check(Native.status(Native.RANGE_NEXT, handle.id, Native.BATCH, items, count));
                batch = Native.entries(items.get(ADDRESS, 0), count.get(JAVA_LONG, 0));
                at = 0;
            }
            if (batch.isEmpty()) {
                close();
            }
        }
        return at < batch.size();
    }

    @Override
    public Entry next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        return batch.get(at++);
    }

    /** Closes it; closing it again does nothing. */
    @Override
    public void close() {
        isAtEnd = true;
        batch = List.of();
        at = 0;
        handle.close();
    }
}
