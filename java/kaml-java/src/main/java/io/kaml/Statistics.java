package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * The state of a device, and counts since it was opened.
 *
 * @param capacityBytes bytes that can be live: records in whole chunks
 * @param liveBytes bytes of them that are live
 * @param freeBytes bytes that can still become live
 * @param indexBytes bytes of memory of all loaded indexes
 * @param hostBytes bytes of values that were put
 * @param pageBytes bytes programmed into pages
 * @param ringBytes bytes written to the commit ring
 * @param readBytes bytes read from the medium for gets
 * @param putCount values put
 * @param deleteCount deletes
 * @param getCount gets that have completed
 * @param eraseCount blocks erased
 * @param openNanos nanoseconds that opening took
 * @param writeAmplification programmed bytes for each byte of a record; 0 before the first record
 * @param isStopped whether a failed write stopped the device: it accepts no more changes
 */
public record Statistics(long capacityBytes, long liveBytes, long freeBytes, long indexBytes, long hostBytes, long pageBytes,
        long ringBytes, long readBytes, long putCount, long deleteCount, long getCount, long eraseCount, long openNanos,
        double writeAmplification, boolean isStopped) {
    /** Bytes of {@code kaml_device_statistics}: its size, 22 numbers, two fractions, six short numbers, and two times seven of latencies. */
    private static final long BYTES = 23 * 8 + 2 * 8 + 6 * 4 + 2 * 7 * 8;

    static Statistics of(long device) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment all = arena.allocate(BYTES, 8);
            all.set(JAVA_LONG, 0, BYTES);
            Native.check(Native.status(Native.STATISTICS, device, all));
            return new Statistics(word(all, 1), word(all, 2), word(all, 3), word(all, 4), word(all, 6), word(all, 11), word(all, 10),
                    word(all, 14), word(all, 16), word(all, 17), word(all, 18), word(all, 19), word(all, 22),
                    all.get(JAVA_DOUBLE, 23 * 8), all.get(JAVA_INT, 25 * 8 + 5 * 4) != 0);
        }
    }

    private static long word(MemorySegment all, int index) {
        return all.getAtIndex(JAVA_LONG, index);
    }
}
