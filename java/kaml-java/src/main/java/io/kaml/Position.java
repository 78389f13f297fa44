package io.kaml;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.HexFormat;

/** A place in the change stream of a device, between two commits. Store its bytes to continue there, also after the device was opened again. */
public final class Position {
    static final int BYTES = 32;

    private final byte[] bytes;

    private Position(byte[] bytes) {
        this.bytes = bytes;
    }

    /**
     * A position that was stored.
     *
     * @param bytes what {@link #bytes} returned
     * @return the position
     * @throws KamlException {@link Status#BAD_ARGUMENT} if these are not 32 bytes
     */
    public static Position of(byte[] bytes) {
        if (bytes.length != BYTES) {
            throw new KamlException(Status.BAD_ARGUMENT, "a position has " + BYTES + " bytes, not " + bytes.length, false);
        }
        return new Position(bytes.clone());
    }

    static Position of(MemorySegment found) {
        return new Position(found.toArray(ValueLayout.JAVA_BYTE));
    }

    /**
     * What to store.
     *
     * @return 32 bytes
     */
    public byte[] bytes() {
        return bytes.clone();
    }

    MemorySegment encode(Arena arena) {
        return arena.allocateFrom(ValueLayout.JAVA_BYTE, bytes);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Position position && Arrays.equals(bytes, position.bytes);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(bytes);
    }

    @Override
    public String toString() {
        return HexFormat.of().formatHex(bytes);
    }
}
