package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * How a store caches and locks.
 *
 * @param writeBack whether a plain put is durable at the next flush only, not when it returns
 * @param earlyRelease whether locks are released when a commit's place in the durable order is fixed; commits still return when they are
 *     durable
 * @param lockTimeoutMs longest wait for a lock in milliseconds; 0 is two seconds
 * @param durabilityDelayUs 0: a transaction is durable when its commit returns. Else commits return at once and become durable after
 *     about this many microseconds, in order: a crash loses the last of them
 */
public record StoreOptions(boolean writeBack, boolean earlyRelease, int lockTimeoutMs, long durabilityDelayUs) {
    /** Everything is durable when it returns. */
    public static final StoreOptions DEFAULT = new StoreOptions(false, false, 0, 0);

    MemorySegment encode(Arena arena) {
        MemorySegment bytes = arena.allocate(48, 8);
        bytes.set(JAVA_LONG, 0, 48);
        bytes.set(JAVA_INT, 8, writeBack ? 1 : 0);
        bytes.set(JAVA_INT, 16, earlyRelease ? 1 : 0);
        bytes.set(JAVA_INT, 20, lockTimeoutMs);
        bytes.set(JAVA_LONG, 32, durabilityDelayUs);
        return bytes;
    }
}
