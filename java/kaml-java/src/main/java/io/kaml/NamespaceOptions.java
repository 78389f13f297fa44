package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * What a namespace is.
 *
 * @param keys which keys it takes
 * @param versioned whether it keeps every version of every record
 */
public record NamespaceOptions(KeyKind keys, boolean versioned) {
    /**
     * Keys of 1 to 1024 bytes in their order.
     *
     * @return the options
     */
    public static NamespaceOptions ordered() {
        return of(KeyKind.ORDERED);
    }

    /**
     * Keys of a kind, in a namespace that keeps no versions.
     *
     * @param keys which keys
     * @return the options
     */
    public static NamespaceOptions of(KeyKind keys) {
        return new NamespaceOptions(keys, false);
    }

    MemorySegment encode(Arena arena) {
        MemorySegment bytes = arena.allocate(72, 8);
        bytes.set(JAVA_LONG, 0, 72);
        bytes.set(JAVA_INT, 8, keys.ordinal());
        bytes.set(JAVA_INT, 24, versioned ? 1 : 0);
        return bytes;
    }
}
