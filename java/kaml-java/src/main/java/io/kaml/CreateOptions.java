package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * How a device is created. Options are values: each method returns another one.
 *
 * @param process whether what is durable survives the end of the process alone, not the loss of power; much faster
 * @param force whether to format over what exists
 * @param dies dies, which is the number of logs; 0 for the default
 * @param ringBytes bytes of the commit ring; 0 for the default
 * @param grows whether a file grows by itself when it runs low on space; its capacity is then its first size, from which the largest value
 *     and the largest batch follow
 * @param growUpToBytes bytes to which such a file grows at most; 0: as far as its file system lets it
 */
public record CreateOptions(boolean process, boolean force, int dies, long ringBytes, boolean grows, long growUpToBytes) {
    /** What suits most devices: durable through the loss of power. */
    public static final CreateOptions DEFAULT = new CreateOptions(false, false, 0, 0, false, 0);

    /**
     * The same, but what is durable survives only the end of the process.
     *
     * @return the options
     */
    public CreateOptions withProcessDurability() {
        return new CreateOptions(true, force, dies, ringBytes, grows, growUpToBytes);
    }

    /**
     * The same, formatting over what exists.
     *
     * @return the options
     */
    public CreateOptions withForce() {
        return new CreateOptions(process, true, dies, ringBytes, grows, growUpToBytes);
    }

    /**
     * The same for a file that grows by itself.
     *
     * @return the options
     */
    public CreateOptions withGrowth() {
        return withGrowthUpTo(0);
    }

    /**
     * The same for a file that grows by itself up to a limit. {@link Device#resize} makes it larger than that.
     *
     * @param bytes bytes at most; 0: as far as its file system lets it
     * @return the options
     */
    public CreateOptions withGrowthUpTo(long bytes) {
        return new CreateOptions(process, force, dies, ringBytes, true, bytes);
    }

    MemorySegment encode(Arena arena) {
        MemorySegment bytes = arena.allocate(56, 8);
        bytes.set(JAVA_LONG, 0, 56);
        bytes.set(JAVA_INT, 8, process ? 2 : 0);
        bytes.set(JAVA_INT, 12, force ? 1 : 0);
        bytes.set(JAVA_INT, 20, dies);
        bytes.set(JAVA_LONG, 32, ringBytes);
        bytes.set(JAVA_INT, 44, grows ? 1 : 0);
        bytes.set(JAVA_LONG, 48, growUpToBytes);
        return bytes;
    }
}
