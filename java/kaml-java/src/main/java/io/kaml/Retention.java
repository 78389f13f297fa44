package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Instant;

/**
 * What a merge keeps besides the newest version of each key: whatever one of the rules keeps. Rules are values: each method returns another
 * one.
 *
 * @param keepLast number of the newest versions of each key, at least 1
 * @param keepSince everything that was put at this time or later; {@link Instant#MAX} for no such rule
 * @param keepSnapshots whether what any snapshot sees is kept; if not, all snapshots are forgotten first
 * @param keepInternal whether the newest version of each key is kept among those that were put around the same time
 * @param isDryRun whether nothing changes, and the report states what would be dropped
 */
public record Retention(int keepLast, Instant keepSince, boolean keepSnapshots, boolean keepInternal, boolean isDryRun) {
    /** Keeps the newest version of each key, and what snapshots see. */
    public static final Retention SNAPSHOTS = new Retention(1, Instant.MAX, true, false, false);

    /**
     * The same with more versions of each key.
     *
     * @param keepLast number of the newest versions that are kept
     * @return the rules
     */
    public Retention keepingLast(int keepLast) {
        return new Retention(keepLast, keepSince, keepSnapshots, keepInternal, isDryRun);
    }

    /**
     * The same with everything that was put since a time.
     *
     * @param keepSince the time
     * @return the rules
     */
    public Retention keepingSince(Instant keepSince) {
        return new Retention(keepLast, keepSince, keepSnapshots, keepInternal, isDryRun);
    }

    /**
     * The same without snapshots: all of them are forgotten.
     *
     * @return the rules
     */
    public Retention forgettingSnapshots() {
        return new Retention(keepLast, keepSince, false, keepInternal, isDryRun);
    }

    /**
     * The same, changing nothing.
     *
     * @return the rules
     */
    public Retention dryRun() {
        return new Retention(keepLast, keepSince, keepSnapshots, keepInternal, true);
    }

    MemorySegment encode(Arena arena) {
        MemorySegment bytes = arena.allocate(32, 8);
        bytes.set(JAVA_LONG, 0, 32);
        // 0 means no such rule. What was put since 1970 is everything, which the first nanosecond is, too.
        bytes.set(JAVA_LONG, 8, keepSince.equals(Instant.MAX) ? 0 : Math.max(1, Times.nanos(keepSince)));
        bytes.set(JAVA_INT, 16, keepLast);
        bytes.set(JAVA_INT, 20, keepSnapshots ? 1 : 0);
        bytes.set(JAVA_INT, 24, keepInternal ? 1 : 0);
        bytes.set(JAVA_INT, 28, isDryRun ? 1 : 0);
        return bytes;
    }
}
