package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * How a device is opened. Options are values: each method returns another one.
 *
 * @param durability what acknowledged changes survive
 * @param readOnly whether nothing changes, so other readers can share the device
 * @param pageCache whether reads go through the page cache of the system; without it they read the disk each time
 */
public record OpenOptions(Durability durability, boolean readOnly, boolean pageCache) {
    /** Read and write with the durability that the device was created with. */
    public static final OpenOptions DEFAULT = new OpenOptions(Durability.AS_CREATED, false, false);

    /** What acknowledged changes survive. */
    public enum Durability {
        /** As the device was created. */
        AS_CREATED,
        /** The loss of power. */
        POWER,
        /** The end of the process, but not the loss of power; much faster. */
        PROCESS
    }

    /**
     * The same with another durability.
     *
     * @param durability what acknowledged changes survive
     * @return the options
     */
    public OpenOptions withDurability(Durability durability) {
        return new OpenOptions(durability, readOnly, pageCache);
    }

    /**
     * The same, reading only.
     *
     * @return the options
     */
    public OpenOptions reading() {
        return new OpenOptions(durability, true, pageCache);
    }

    /**
     * The same, through the page cache of the system.
     *
     * @return the options
     */
    public OpenOptions throughPageCache() {
        return new OpenOptions(durability, readOnly, true);
    }

    MemorySegment encode(Arena arena) {
        MemorySegment bytes = arena.allocate(24, 8);
        bytes.set(JAVA_LONG, 0, 24);
        bytes.set(JAVA_INT, 8, durability.ordinal());
        bytes.set(JAVA_INT, 12, readOnly ? 1 : 0);
        bytes.set(JAVA_INT, 20, pageCache ? 1 : 0);
        return bytes;
    }
}
