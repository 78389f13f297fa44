package io.kaml;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;

/**
 * What a namespace is. Options are values: each method returns another one.
 *
 * @param keys which keys it takes
 * @param versioned whether it keeps every version of every record
 * @param mergePolicy for a versioned namespace: which versions are kept when space runs low; null: nothing is dropped by itself
 * @param compression how values are stored; a versioned namespace has {@link Compression#NONE}
 * @param timeToLive how long after a put its record expires, unless the put requests something else; {@link Namespace#FOREVER} if records
 *     do not expire, as those of a versioned namespace
 * @param index where its index is; of a versioned namespace {@link IndexPlace#MEMORY}
 */
public record NamespaceOptions(KeyKind keys, boolean versioned, MergePolicy mergePolicy, Compression compression, Duration timeToLive,
        IndexPlace index) {
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
        return new NamespaceOptions(keys, false, null, Compression.NONE, Namespace.FOREVER, IndexPlace.MEMORY);
    }

    /**
     * The same with every version of every record. Nothing is dropped before {@link Versions#merge}.
     *
     * @return the options
     */
    public NamespaceOptions withVersions() {
        return withVersions(null);
    }

    /**
     * The same with every version of every record, until space runs low.
     *
     * @param mergePolicy what is kept then
     * @return the options
     */
    public NamespaceOptions withVersions(MergePolicy mergePolicy) {
        return new NamespaceOptions(keys, true, mergePolicy, compression, timeToLive, index);
    }

    /**
     * The same with compressed values.
     *
     * @param compression how
     * @return the options
     */
    public NamespaceOptions withCompression(Compression compression) {
        return new NamespaceOptions(keys, versioned, mergePolicy, compression, timeToLive, index);
    }

    /**
     * The same with records that expire.
     *
     * @param timeToLive how long after a put its record expires
     * @return the options
     */
    public NamespaceOptions withTimeToLive(Duration timeToLive) {
        return new NamespaceOptions(keys, versioned, mergePolicy, compression, timeToLive, index);
    }

    /**
     * The same with its index elsewhere: on flash, for more keys than memory has room for.
     *
     * @param index where
     * @return the options
     */
    public NamespaceOptions withIndex(IndexPlace index) {
        return new NamespaceOptions(keys, versioned, mergePolicy, compression, timeToLive, index);
    }

    MemorySegment encode(Arena arena) {
        MemorySegment bytes = arena.allocate(72, 8);
        bytes.set(JAVA_LONG, 0, 72);
        bytes.set(JAVA_INT, 8, keys.ordinal());
        bytes.set(JAVA_INT, 24, versioned ? 1 : 0);
        bytes.set(JAVA_INT, 28, index.ordinal());
        if (mergePolicy != null) {
            bytes.set(JAVA_INT, 40, 1);
            bytes.set(JAVA_INT, 44, mergePolicy.keepLast());
            bytes.set(JAVA_LONG, 48, Times.nanos(mergePolicy.keepFor()));
            bytes.set(JAVA_INT, 56, mergePolicy.keepInternal() ? 1 : 0);
        }
        bytes.set(JAVA_INT, 60, compression.ordinal());
        bytes.set(JAVA_LONG, 64, Times.ofNamespace(timeToLive));
        return bytes;
    }
}
