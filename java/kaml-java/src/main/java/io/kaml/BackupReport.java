package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * What is in a backup.
 *
 * @param namespaces namespaces
 * @param records records and units of blocks; a few that moved meanwhile can count twice
 * @param versions versions, of namespaces that keep them
 * @param deleted keys that were deleted since the backup that it adds to
 * @param bytes bytes of the file
 * @param isIncremental whether it adds to an earlier backup
 */
public record BackupReport(long namespaces, long records, long versions, long deleted, long bytes, boolean isIncremental) {
    private static final long BYTES = 56;

    static MemorySegment room(Arena arena) {
        MemorySegment report = arena.allocate(BYTES, 8);
        report.set(JAVA_LONG, 0, BYTES);
        return report;
    }

    static BackupReport of(MemorySegment report) {
        return new BackupReport(report.getAtIndex(JAVA_LONG, 1), report.getAtIndex(JAVA_LONG, 2), report.getAtIndex(JAVA_LONG, 3),
                report.getAtIndex(JAVA_LONG, 4), report.getAtIndex(JAVA_LONG, 5), report.get(JAVA_INT, 48) != 0);
    }
}
